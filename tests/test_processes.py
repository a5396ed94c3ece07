"""Tasks in forks: results, errors and warnings arrive; what is killed or hangs is done again; nothing stays behind.

Forks are made by scripts of their own. A worker of pytest has threads, and may have loaded JAX.
"""

import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from diffclust import processes, threads

BEGINNING = """
import logging, os, signal, sys, time, warnings
logging.basicConfig(format="%(name)s: %(message)s")
from diffclust import processes
processes.allowed_threads = lambda: 3  # on a machine with one core, too
MAIN = os.getpid()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
"""


def start(script, **settings):
    """A script in a process of its own, which leads a group as the processes of a terminal do."""
    code = BEGINNING + textwrap.dedent(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2", **settings}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def run(script, **settings):
    """What a script printed, and its errors and log."""
    process = start(script, **settings)
    try:
        output, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output.split("\n")[:-1], errors


def test_results_come_in_order_from_several_processes():
    (pids, values, again), errors = run("""
        def task(number):
            time.sleep(0.3 if number < 3 else 0)
            return number**2, os.getpid()
        with processes.beside([lambda number=number: task(number) for number in range(6)]) as results:
            found = results()
            print(len({pid for _, pid in found}), [pid for _, pid in found].count(MAIN) > 0)
        print([value for value, _ in found])
        print(results() == found)
    """)
    assert pids == "3 True"
    assert values == "[0, 1, 4, 9, 16, 25]"
    assert again == "True"
    assert errors == ""


def test_large_tasks_keep_their_threads():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with processes.beside([torch.get_num_threads], when=False) as results:
            assert results() == [2]
    finally:
        torch.set_num_threads(before)


def test_tasks_begin_before_their_results_are_asked_for():
    (pids,), _ = run("""
        with processes.beside([os.getpid] * 2) as results:
            time.sleep(1)
            print(MAIN in results())
    """)
    assert pids == "False"


def test_what_a_killed_process_had_to_do_is_done_in_the_main_one():
    (values,), errors = run("""
        def task():
            if os.getpid() != MAIN:
                os.kill(os.getpid(), signal.SIGKILL)
            return os.getpid() == MAIN
        with processes.beside([task] * 3) as results:
            time.sleep(1)
            print(results())
    """)
    assert values == "[True, True, True]"
    assert errors.count("exit code -9") == 2


def test_a_process_that_hangs_is_killed_and_one_that_works_is_not():
    (values,), errors = run("""
        processes.HANGS_AFTER = 1
        def hang():
            if os.getpid() != MAIN:
                signal.pause()
            return "hung"
        def work():
            start = time.process_time()
            while time.process_time() < start + 2:
                pass
            return os.getpid() != MAIN
        with processes.beside([hang, work]) as results:
            time.sleep(0.5)
            print(results())
    """)
    assert values == "['hung', True]"
    assert errors.count("exit code") == 1


def test_an_error_arrives_with_its_type_and_text():
    (text,), errors = run("""
        def fail():
            raise FileNotFoundError(2, "no such thing", "a/b")
        with processes.beside([fail, lambda: 1]) as results:
            time.sleep(1)
            try:
                results()
            except FileNotFoundError as error:
                print(repr(error), error.filename)
    """)
    assert text == "FileNotFoundError(2, 'no such thing') a/b"
    assert "FileNotFoundError" in errors


def test_without_leave_to_fork_the_main_process_does_it_all():
    (values,), errors = run("""
        def refuse():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        os.fork = refuse
        with processes.beside([os.getpid] * 2) as results:
            print(results() == [MAIN, MAIN])
    """)
    assert values == "True"
    assert errors == ""


def test_a_result_for_which_there_is_no_place_is_made_again():
    (values,), errors = run("""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # errors of a file, as on a full disk
        with processes.beside([lambda: bytes(10**5)] * 2) as results:
            time.sleep(1)
            print([len(each) for each in results()])
    """)
    assert values == "[100000, 100000]"
    assert errors.count("cannot write its result") == 2
    assert "Traceback" not in errors


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "reap"])
def test_nothing_is_kept_of_processes_whose_end_another_has_seen(handler):
    lines, _ = run(f"""
        import contextlib, multiprocessing
        def reap(*_):
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        signal.signal(signal.SIGCHLD, {handler})
        def files():
            return len(os.listdir("/proc/self/fd"))
        before = files()
        with processes.beside([lambda: 1] * 2) as results:
            time.sleep(0.5)
            print(results())
        del results
        print(multiprocessing.active_children(), files() - before)
    """)
    assert lines == ["[1, 1]", "[] 0"]


def test_an_accident_of_a_process_is_no_error():
    (values,), errors = run("""
        def task():
            if os.getpid() != MAIN:
                raise MemoryError
            return 1
        with processes.beside([task, lambda: (lambda: 2)]) as results:  # functions cannot be sent
            time.sleep(1)
            found = results()
            print(found[0], found[1]())
    """)
    assert values == "1 2"
    assert "MemoryError()" in errors
    assert "pickle" in errors


def test_warnings_arrive_once_and_that_of_python_about_forks_does_not():
    (found,), errors = run("""
        fork = os.fork
        def fork_as_python_3_12_does():
            text = "This process (pid=1) is multi-threaded, use of fork() may lead to deadlocks in the child."
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return fork()
        os.fork = fork_as_python_3_12_does
        def task():
            warnings.warn("too few rows", UserWarning)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            with processes.beside([task] * 3) as results:
                time.sleep(1)
                results()
            print([(str(each.message), each.category.__name__) for each in caught])
    """)
    assert found == "[('too few rows', 'UserWarning')]"
    assert errors == ""


WAITING = """
    def wait():
        os.write(1, b"%d\\n" % os.getpid())  # in one piece, also where Python does not buffer
        while True:
            time.sleep(0.1)
    with processes.beside([wait] * 2) as results:
        time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["ctrl-c", "kill", "terminate", "error"])
def test_no_process_stays_behind(kind):
    script = WAITING if kind != "error" else WAITING.replace("time.sleep(60)", "time.sleep(1); raise KeyError")
    process = start(script)
    try:
        pids = [int(process.stdout.readline()) for _ in range(2)]
        assert all(is_running(pid) for pid in pids)
        if kind == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)
        elif kind != "error":
            process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    assert process.returncode == {"ctrl-c": -signal.SIGINT, "kill": -9, "terminate": -15, "error": 1}[kind]
    assert errors.count("Traceback") == (kind in ("ctrl-c", "error"))  # of the main process alone
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "a fork has outlived its parent"
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_a_signal_to_a_job_is_handled_by_the_main_process_alone(name):
    lines, errors = run(f"""
        def handle(*_):
            os.write(1, b"main\\n" if os.getpid() == MAIN else b"fork\\n")
        signal.signal(signal.{name}, handle)
        with processes.beside([lambda: time.sleep(1)] * 2) as results:
            time.sleep(0.3)
            os.killpg(0, signal.{name})
            results()
    """)
    assert lines == ["main"]
    assert errors == ""


def is_running(pid):
    try:
        return re.search(r"\) (\S)", Path(f"/proc/{pid}/stat").read_text())[1] != "Z"
    except OSError:
        return False


def test_processes_make_no_processes_and_the_main_one_leaves_them_the_cores():
    lines, _ = run("""
        from diffclust.solvers.cpu.threads import max_threads
        with processes.beside([lambda: (processes.why_not(), max_threads())] * 2) as results:
            print(max_threads())
            time.sleep(1)
            print(*results())
            print(max_threads())
    """)
    in_a_fork = "('this process is a worker itself', 1)"
    assert lines == ["1", f"{in_a_fork} {in_a_fork}", "2"]


def test_forks_are_refused_where_they_are_not_safe(monkeypatch):
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    monkeypatch.setattr(processes, "allowed_threads", lambda: 2)
    monkeypatch.setattr(processes.multiprocessing, "parent_process", lambda: None)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert processes.why_not() == ""

    def reason(*changes):
        with monkeypatch.context() as context:
            for change in changes:
                getattr(context, change[0])(*change[1:])
            return processes.why_not()

    assert "Linux" in reason(("setattr", sys, "platform", "darwin"))
    assert "worker" in reason(("setattr", processes.multiprocessing, "parent_process", lambda: 1))
    assert "JAX" in reason(("setitem", sys.modules, "jax", object()))
    assert "GPU" in reason(("setattr", torch.accelerator, "is_available", lambda: True))
    assert "ranks" in reason(("setattr", torch.distributed, "is_initialized", lambda: True))
    assert "one core" in reason(("setattr", processes, "allowed_threads", lambda: 1))
    others = [threading.main_thread(), threading.Thread(name="diffclust_0"), threading.Thread(name="of the user")]
    assert reason(("setattr", threading, "enumerate", lambda: others[:2])) == ""
    assert "of the user" in reason(("setattr", threading, "enumerate", lambda: others))
    found = []
    thread = threading.Thread(target=lambda: found.append(processes.why_not()))
    thread.start()
    thread.join()
    assert found == ["this is not the main thread"]


def test_forks_are_as_many_as_fit_into_memory(monkeypatch):
    assert processes._how_many_fit() > 0
    monkeypatch.setattr(processes, "MEMORY_SHARE", 1e-9)
    assert processes._how_many_fit() == 0


def test_a_kernel_that_does_not_tell_its_memory_gets_no_forks(monkeypatch):
    files = {"/proc/self/statm": "9 9 9", "/proc/meminfo": "MemTotal: 9 kB\nMemFree: 9 kB\n"}
    monkeypatch.setattr(processes, "open", lambda path: io.StringIO(files[path]), raising=False)
    assert processes._how_many_fit() == 0


@pytest.mark.parametrize(("setting", "expected"), [("4,2", 4), (" 3 ", 3), ("none", 8), ("", 8)])
def test_allowed_threads_without_torch_are_those_of_openmp(setting, expected, monkeypatch):
    import joblib
    import numba

    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 8)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert threads.allowed_threads() == expected


def test_allowed_threads_are_those_of_the_user(monkeypatch):
    import joblib
    import numba
    import torch

    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 6)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert threads.allowed_threads() == 4
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert threads.allowed_threads() == 6
    with threads.at_most_threads(2):
        assert threads.allowed_threads() == 2
    assert threads.allowed_threads() == 6
    with threads.one_thread():
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        assert threads.allowed_threads() == 6


FIT = """
    import hashlib
    import numpy as np, torch
    from sklearn.datasets import make_blobs
    from diffclust.cluster import ForestEmbedding

    # Pools of threads are at work before: torch's, OpenMP's of scikit-learn, BLAS's and the solver's.
    torch.set_num_threads(2)
    (torch.rand(500, 500) @ torch.rand(500, 500)).exp().sum()
    np.linalg.svd(np.random.default_rng(0).random((300, 300)))
    x, y = make_blobs(600, 8, centers=5, cluster_std=2.0, random_state=0)
    known = np.where((np.random.default_rng(0).random(600) < 0.2) & (y < 3), y, -1)
    forks = []
    fork = processes._Shared.fork
    processes._Shared.fork = lambda self: (forks.append(len(self.tasks)), fork(self))

    def digests(n_clusters):
        model = ForestEmbedding(n_clusters, n_steps=60, random_state=0).fit(x, known)
        evidence = model.partition_.evidence
        parts = model.embedding_, model.labels_, model.probabilities_, evidence.hidden_chances
        named = [hashlib.sha256(np.ascontiguousarray(part)).hexdigest()[:12] for part in parts]
        return [*named, evidence.cut, evidence.scores, evidence.candidates]

    for n_clusters in (5, "auto"):
        forked = digests(n_clusters)
        print(forks)
        forks.clear()
        safe, processes.why_not = processes.why_not, lambda: "no"
        print(digests(n_clusters) == forked, forks)
        processes.why_not = safe
"""


@pytest.mark.slow
def test_a_fit_is_the_same_bit_for_bit_with_forks_and_without():
    lines, errors = run(FIT)
    assert lines == ["[3, 3, 3, 3]", "True []", "[3, 3, 3, 3, 3, 3]", "True []"]
    assert errors == ""  # no warnings, no log
