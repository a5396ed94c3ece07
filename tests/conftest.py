"""Settings of all tests: caches of what Numba and XLA compile, how Triton and hypothesis run, markers."""

import contextlib
import dataclasses
import functools
import gc
import hashlib
import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "diffclust"


def _source_hash():
    """Numba's own cache looks at the compiled function's file only: it would miss a change in noise.py."""
    digest = hashlib.sha256()
    for path in (
        PACKAGE / "noise.py",
        *sorted((PACKAGE / "solvers" / "cpu").glob("*.py")),
        *sorted((PACKAGE / "solvers" / "points").glob("*.py")),
        PACKAGE / "solvers" / "compiled.py",
        PACKAGE / "solvers" / "tree.py",
    ):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


assert "numba" not in sys.modules, "numba reads NUMBA_CACHE_DIR when it is imported: conftest.py must come first"
# A folder for each Numba, too: with two of them (make test-lowest) each would write over what the other compiled.
NUMBA_CACHE = ROOT / ".cache" / "numba" / f"{_source_hash()}-{importlib.metadata.version('numba')}"
os.environ["NUMBA_CACHE_DIR"] = str(NUMBA_CACHE)

# torch, JAX and the rest keep a million objects. Python looked through all of them so often that it took a fifth of the
# time; what a test leaves in cycles is little beside them.
gc.set_threshold(50_000, 10, 10)

# Workers of xdist share the cores: threads of torch and scikit-learn beyond that would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# XLA compiles for seconds what runs in milliseconds; its cache looks at the whole program.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def _patch_triton_once_a_launch():
    """Triton's interpreter patches its language at every call of a device function: two fifths of the kernels' time.

    Inside a launch the language is patched already, and patching it again changes nothing.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    @functools.cache
    def languages(function):
        return [value for value in function.__globals__.values() if value is tl or value is tl.core]

    def patch_if_needed(function):
        if any(tl.core.is_builtin(language.load) for language in languages(function)):
            return patch(function)
        return None

    interpreter._patch_lang = patch_if_needed


def _compute_nothing_twice_in_triton():
    """Of what is left, more than half is work of the interpreter that has no effect, or that it did before.

    It looks whether sums of integers overflow, in 64 bits, and drops the answer unless it debugs. For every operation
    it writes down all types anew to look one up, and makes shapes of the same few numbers.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)

    by_name, find = {}, interpreter._get_np_dtype

    def find_once(of):
        if of.name not in by_name:
            by_name[of.name] = find(of)
        return by_name[of.name]

    interpreter._get_np_dtype = find_once

    make_type, make_tensor, types, shapes = tl.core.block_type.__init__, tl.core.tensor.__init__, {}, {}

    def make_type_once(self, element_ty, shape):
        numbers = tuple([each.value if isinstance(each, tl.constexpr) else each for each in shape])
        found = types.get((element_ty.name, numbers))
        if found is None:
            make_type(self, element_ty, shape)
            types[element_ty.name, numbers] = self.shape, self.numel, self.name
        else:
            self.element_ty, (self.shape, self.numel, self.name) = element_ty, found

    def make_tensor_once(self, handle, type):
        key = type.name if type.is_block() else ""
        found = shapes.get(key)
        if found is None:
            make_tensor(self, handle, type)
            shapes[key] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype, (self.shape, self.numel) = handle, type, type.scalar, found

    tl.core.block_type.__init__, tl.core.tensor.__init__ = make_type_once, make_tensor_once


HAS_GPU = False


def pytest_configure(config):
    """Without a GPU kernels run in Triton's interpreter, which Triton reads when it is imported, by others as well."""
    global HAS_GPU
    if config.getoption("numprocesses", None):  # runs no test, and need not wait for torch before it starts the workers
        return
    try:
        import torch
    except ImportError:
        return
    HAS_GPU = torch.cuda.is_available()
    if HAS_GPU:
        return
    # XLA compiles in a third of the time without optimisations. Bits that could depend on these are tested by
    # test_jax_devices.py, in a process that has them. The lowest JAX does not know the flags.
    if not os.environ.get("DIFFCLUST_LOWEST"):
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
    os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(ImportError):  # not every torch brings Triton
        _patch_triton_once_a_launch()
        _compute_nothing_twice_in_triton()


settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.hookimpl(tryfirst=True)  # before -m chooses by markers
def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker("browser")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)  # long ones first: no worker waits at the end


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not HAS_GPU:
        pytest.skip("needs a GPU")


@pytest.fixture(scope="module")
def browser():
    """Chromium that reaches nothing but this machine."""
    wanted = os.environ.get("DIFFCLUST_BROWSER", "")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if wanted == "off":
        pytest.skip("DIFFCLUST_BROWSER=off")
    if chromium is None or driver is None:
        reason = "Pages are tested in a real browser: apt-get install chromium chromium-driver"
        pytest.fail(reason) if wanted == "required" else pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-quic",
        "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "window-size=1300,1000",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()
