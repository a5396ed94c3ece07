"""Where compiled code is kept, and that everything runs where it cannot be kept."""

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.registry import CPUDispatcher

import diffclust
from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.trees import grow
from diffclust.solvers.tree import find

PACKAGE = Path(diffclust.__file__).parent

# Root may write everywhere, so root becomes nobody, who may still read everything: Python may lie in root's folder.
READ = "-all,+dac_read_search"
AS_NOBODY = [
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    f"--inh-caps={READ}", f"--ambient-caps={READ}", f"--bounding-set={READ}",
]  # fmt: skip

# Something of everything that Numba compiles: solvers/cpu, solvers/tree.py and solvers/points.
EVERY_FOLDER = """
import sys, warnings
import numpy as np

warnings.simplefilter("always")
import diffclust as dc
import diffclust.solvers.cpu, diffclust.solvers.tree
import diffclust.solvers.points.cpu, diffclust.solvers.points.neighbours, diffclust.solvers.points.reachability

assert dc.__file__.startswith(sys.argv[1]), dc.__file__
print("imported", file=sys.stderr)
x = np.random.default_rng(0).normal(size=(40, 3))
similarity = dc.negative_squared_distances(x)
labels = dc.Hierarchy.from_similarity(similarity).labels(3)
assert np.array_equal(labels, dc.Hierarchy.from_points(x).labels(3))
dc.Hierarchy.from_points(x, reachability=3).labels(3)
dc.perturbed_value(similarity, 3, n_draws=2, seed=0)
"""
ONE_FUNCTION = """
import numpy as np
from diffclust.solvers.tree import find

assert find(np.array([0, 0, 1]), 2) == 0
print(find.stats)
"""
# The same function, compiled anew for each of the given caches: one process for all of them.
EACH_CACHE = """
import sys
import numba, numpy as np
from diffclust.solvers.compiled import jit
from diffclust.solvers.tree import find

for cache in sys.argv[2:]:
    numba.config.CACHE_DIR = cache
    fresh = jit(error_model="python")(find.py_func)
    assert fresh(np.array([0, 0, 1]), 2) == 0
    print(fresh.stats)
"""
LOADED = "cache_misses=Counter()"
FULL_DISK = """
import errno
from numba.core.caching import IndexDataCacheFile

def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")

IndexDataCacheFile._save_data = full
"""


def run(code, folder, *arguments, cache=None, prefix=(), **variables):
    """Run code with the package in folder, no home, and no trace of the caller's caches."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_CACHE", "XDG_", "PYTHONPATH"))
    }
    environment |= {"PYTHONPATH": str(folder), "HOME": str(folder / "no-home"), "PYTHONDONTWRITEBYTECODE": "1"}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    command = [*prefix, sys.executable, "-c", code, str(folder), *map(str, arguments)]
    return subprocess.run(command, env=environment | variables, cwd="/", capture_output=True, text=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the package in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / "diffclust", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def filled(installed, tmp_path_factory):
    """A cache that holds one function of the copy."""
    cache = tmp_path_factory.mktemp("cache")
    assert run(ONE_FUNCTION, installed, cache=cache).returncode == 0
    return cache


@pytest.fixture
def read_only(installed):
    """The copy in folders that cannot be written, and the command that runs another one as a user without rights."""
    if os.name != "posix":
        pytest.skip("needs the permissions of POSIX")
    prefix = AS_NOBODY if os.geteuid() == 0 else []
    if prefix and (shutil.which("setpriv") is None or subprocess.run([*prefix, "true"]).returncode):
        pytest.skip("root needs setpriv (util-linux) and the right to become nobody")
    folders = [folder for folder, _, _ in os.walk(installed)]
    for folder in folders:
        os.chmod(folder, 0o555)
    yield installed, prefix
    for folder in folders:
        os.chmod(folder, 0o755)


@pytest.mark.slow
def test_a_read_only_installation_without_a_home_works_and_says_once_how_to_keep_compiled_code(read_only):
    folder, prefix = read_only
    result = run(EVERY_FOLDER, folder, prefix=prefix, NUMBA_OPT="0")  # that it compiles matters, not how well
    assert result.returncode == 0, result.stderr
    at_import, later = result.stderr.split("imported\n")
    assert "NUMBA_CACHE_DIR" not in at_import
    assert later.count("UserWarning") == later.count("NUMBA_CACHE_DIR") == 1
    assert "Compiled code cannot be kept" in later


@pytest.mark.slow
def test_the_advice_of_the_warning_helps(read_only, tmp_path):
    folder, prefix = read_only
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    for kept in (False, True):
        result = run(ONE_FUNCTION, folder, prefix=prefix, cache=cache)
        assert result.returncode == 0, result.stderr
        assert "Warning" not in result.stderr
        assert (LOADED in result.stdout) == kept


def emptied(data):
    return b""


def cut(data):
    return data[: len(data) // 2]


def overwritten(data):
    return b"x" + data[1:]


@pytest.mark.slow
def test_damaged_files_of_the_cache_are_made_again(installed, filled, tmp_path):
    whole = shutil.copytree(filled, tmp_path / "whole")
    damaged = []
    for suffix in (".nbi", ".nbc"):
        for damage in (emptied, cut, overwritten):
            damaged.append(shutil.copytree(filled, tmp_path / f"{damage.__name__}{suffix}"))
            (file,) = damaged[-1].rglob(f"*{suffix}")
            file.write_bytes(damage(file.read_bytes()))
    for kept in (False, True):
        result = run(EACH_CACHE, installed, whole, *damaged)
        assert result.returncode == 0, result.stderr
        assert [LOADED in line for line in result.stdout.splitlines()] == [True] + [kept] * len(damaged)


@pytest.mark.slow
def test_a_full_disk_is_a_warning(installed, tmp_path):
    result = run(FULL_DISK + ONE_FUNCTION, installed, cache=tmp_path / "cache")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("NUMBA_CACHE_DIR") == 1
    assert "No space left on device" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(numba.config, "CACHE_LOCATOR_CLASSES"), reason="this Numba has no such setting")
def test_other_errors_of_numba_are_not_hidden(installed):
    result = run(ONE_FUNCTION, installed, NUMBA_CACHE_LOCATOR_CLASSES="no.such.Locator")
    assert "Failed to import 'no.such.Locator'" in result.stderr


def test_a_function_without_a_wrapper_for_python_raises_when_python_calls_it():
    """Else such a call ends the process."""
    with pytest.raises(TypeError, match="grow is for compiled functions only"):
        grow(np.zeros((1, 17), np.int32), 1)


def test_no_garbage_is_collected_while_a_function_is_compiled(monkeypatch):
    enabled = []
    monkeypatch.setattr(CPUDispatcher, "compile", lambda function, signature: enabled.append(gc.isenabled()))
    for before in (True, False):
        (gc.enable if before else gc.disable)()
        try:
            jit(find.py_func).compile("void(int32[:], int32)")
            assert gc.isenabled() == before
        finally:
            gc.enable()
    assert enabled == [False, False]


def test_every_compiled_function_uses_this_decorator():
    found = [path for path in PACKAGE.rglob("*.py") if "njit" in path.read_text("utf-8")]
    assert found == [PACKAGE / "solvers" / "compiled.py"]
