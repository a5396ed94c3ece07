"""Small jobs run in one thread, large ones as before; work in threads is done once, and its errors are raised."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from diffclust.solvers.cpu import threads as solver_threads
from diffclust.threads import ignored_warnings, is_small, one_thread, small_in_one_thread

torch = pytest.importorskip("torch")

from diffclust.backbones import make_backbone  # noqa: E402


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_threads_are_restored_also_after_an_error():
    before = threadpool_info()

    def fail():
        with one_thread():
            assert torch.get_num_threads() == 1
            assert {each["num_threads"] for each in threadpool_info()} == {1}
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == 2
    assert threadpool_info() == before


def test_jobs_of_two_threads_at_a_time_restore_what_was_before():
    """The second begins when the first has set its limits, and ends after it."""
    begun, ended = [[threading.Event(), threading.Event()] for _ in range(2)]

    def job(number):
        if number == 1:
            begun[0].wait(60)
        with one_thread():
            begun[number].set()
            begun[1].wait(60)
            if number == 1:
                ended[0].wait(60)
        ended[number].set()

    before = threadpool_info()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(job, range(2)))
    assert threadpool_info() == before
    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(torch.get_num_threads).result() == 2


def test_blas_has_one_thread_also_if_the_job_that_limited_it_has_ended():
    """The second job begins while the first runs, the third after the first has ended."""
    second_in, third_out = threading.Event(), threading.Event()

    def of_blas():
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    def second():
        with one_thread(), one_thread():  # as a job does that is part of another one
            second_in.set()
            third_out.wait(60)

    before = threadpool_info()
    with ThreadPoolExecutor(1) as pool:
        with one_thread():
            job = pool.submit(second)
            second_in.wait(60)
        with one_thread():
            of_third = of_blas()
        third_out.set()
        job.result()
    assert of_third == {1}
    assert threadpool_info() == before


def test_warnings_are_ignored_in_two_threads_at_a_time():
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first():
        with ignored_warnings(UserWarning, "no such"):
            first_in.set()
            second_in.wait(60)
        first_out.set()

    before = list(warnings.filters)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(first)
        first_in.wait(60)
        with ignored_warnings(UserWarning, "no such"):
            second_in.set()
            first_out.wait(60)
            warnings.warn("No such thing", UserWarning, stacklevel=1)
            with pytest.warns(UserWarning, match="another"):
                warnings.warn("another", UserWarning, stacklevel=1)
        job.result()
    assert list(warnings.filters) == before


def test_large_jobs_keep_their_threads():
    threads_of = small_in_one_thread(lambda rows: torch.get_num_threads())
    assert threads_of(np.zeros((1000, 10))) == 1
    assert threads_of(np.broadcast_to(0.0, (20_000, 64))) == 1  # partitions compare cuts of so many rows
    assert threads_of(np.broadcast_to(0.0, (100_000, 10))) == 2
    assert threads_of([[0.0]]) == 2


def test_a_network_is_small_by_its_multiply_adds():
    network, rows = make_backbone("cnn", (8, 8), 16), torch.zeros(3, 8, 8)
    per_row = (
        64 * 25 * 32 + 16 * 25 * 32 * 64 + sum(each.weight.numel() for each in network if hasattr(each, "in_features"))
    )
    assert network.training
    assert is_small(network, rows, 2**29 // per_row)
    assert not is_small(network, rows, 2**29 // per_row + 1)
    assert network.training


@pytest.mark.parametrize("n_items", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("grain", [0, 1, 3, 1000])
def test_every_item_is_done_once(n_items, grain, monkeypatch):
    monkeypatch.setattr(solver_threads, "max_threads", lambda: 3)
    done = np.zeros(n_items, int)

    def work(start, stop):
        assert stop - start >= min(grain, n_items)
        done[start:stop] += 1

    solver_threads.in_threads(work, n_items, grain)
    assert (done == 1).all()


def test_the_caller_does_not_wait_for_threads_that_have_not_started(monkeypatch):
    monkeypatch.setattr(solver_threads, "max_threads", lambda: 2)
    solver_threads.in_threads(lambda start, stop: None, 8)  # the pool exists now
    release = threading.Event()
    busy = [solver_threads._pool.submit(release.wait) for _ in range(solver_threads._pool._max_workers)]
    done = []
    solver_threads.in_threads(lambda start, stop: done.extend(range(start, stop)), 8)
    release.set()
    assert done == list(range(8))
    assert all(each.result() for each in busy)


def test_an_error_of_any_thread_is_raised(monkeypatch):
    monkeypatch.setattr(solver_threads, "max_threads", lambda: 3)

    def work(start, stop):
        if start <= 50 < stop:
            raise ZeroDivisionError

    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            solver_threads.in_threads(work, 100)
