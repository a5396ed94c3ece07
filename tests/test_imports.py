"""What importing costs, that the public names exist, and that the examples in the documentation are true."""

import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diffclust

NOT_IMPORTED = ("torch", "lightning", "jax", "numba", "scipy", "sklearn")
# The modules of the package that need an optional framework are left to their own tests.
MODULES = ["diffclust", *(m.name for m in pkgutil.walk_packages(diffclust.__path__, "diffclust."))]


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_is_light():
    code = (
        "import json, sys; before = set(sys.modules); import diffclust; "
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))"
    )
    imported = set(json.loads(run_python(code)))
    assert "diffclust" in imported
    assert not imported & set(NOT_IMPORTED)


def test_solving_in_numpy_imports_neither_torch_nor_jax():
    code = (
        "import json, sys, numpy as np, diffclust as dc; "
        "dc.spanning_forest(np.zeros((3, 3)), 2, constraints=dc.Constraints.from_labels([0, -1, 1])); "
        "dc.Hierarchy.from_similarity(np.zeros((3, 3))).labels(2); dc.noise.sample(0, 1, 3); "
        "dc.metrics.clustering_scores([0, 1], [0, 1]); print(json.dumps(sorted(sys.modules)))"
    )
    assert not {"torch", "jax"} & set(json.loads(run_python(code)))


def test_all_names_exist():
    assert len(set(diffclust.__all__)) == len(diffclust.__all__)
    for name in diffclust.__all__:
        assert getattr(diffclust, name) is not None, name


def test_names_promised_by_the_design():
    promised = (
        "negative_squared_distances cosine_similarities standardize mutual_reachability Constraints spanning_forest "
        "Hierarchy metrics noise"
    )
    assert set(promised.split()) <= set(diffclust.__all__)
    assert isinstance(diffclust.__version__, str)


def test_names_in_the_documentation_need_no_import_of_their_own():
    root = Path(__file__).resolve().parent.parent
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    names = sorted(set(re.findall(r"\b(?:dc|diffclust)\.((?:\w+\.)*\w+)", text)))
    assert {"training.fit", "metric_learning", "Hierarchy.from_points"} <= set(names)
    for name in names:
        first, *others = name.split(".")
        try:
            # Not by getattr: whatever was imported before is an attribute, too.
            found = diffclust.__getattr__(first) if first not in diffclust.__all__ else getattr(diffclust, first)
        except ImportError:  # of an extra
            continue
        for other in others:
            found = getattr(found, other)


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] == "diffclust":
            raise
        pytest.skip(f"{error.name} is not installed")
    assert doctest.testmod(module).failed == 0


def test_there_are_doctests():
    finder = doctest.DocTestFinder()
    n_examples = sum(len(test.examples) for name in ("forest", "constraints", "similarity", "metrics", "noise")
                     for test in finder.find(importlib.import_module(f"diffclust.{name}")))  # fmt: skip
    assert n_examples >= 10


@pytest.mark.parametrize("array", [[[0.0]], 1.0], ids=["list", "float"])
def test_solver_can_be_asked_for(array):
    assert diffclust.solvers.solver_for(array).__name__ == "diffclust.solvers.cpu"


def test_framework_without_a_solver_is_named(monkeypatch):
    monkeypatch.setattr(diffclust.solvers, "framework_of", lambda array: "jax")
    monkeypatch.setattr(diffclust.solvers, "TABLE", {("numpy", "cpu"): "diffclust.solvers.cpu"})
    diffclust.solvers._load.cache_clear()  # another test may have asked for it
    with pytest.raises(TypeError, match=r"No solver for jax arrays on cpu.*numpy on cpu"):
        diffclust.solvers.solver_for([[0.0]])
