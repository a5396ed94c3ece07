"""What importing costs, that the public names exist, and that the examples in the documentation are true."""

import ast
import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import diffclust

ROOT = Path(__file__).resolve().parent.parent
FOR_USERS = ("torch", "jax", "fit", "cells", "text", "neighbors", "metric-learning")  # extras
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
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = re.sub(r"https?://\S+", "", "\n".join(page.read_text("utf-8") for page in pages))
    names = sorted(set(re.findall(r"(?<!from )\b(?:dc|diffclust)\.((?:\w+\.)*\w+)", text)))
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
    modules = [
        importlib.import_module(f"diffclust.{name}") for name in ("forest", "constraints", "similarity", "noise")
    ]
    assert sum(len(test.examples) for module in modules for test in finder.find(module)) >= 10


@pytest.mark.parametrize("array", [[[0.0]], 1.0], ids=["list", "float"])
def test_solver_can_be_asked_for(array):
    assert diffclust.solvers.solver_for(array).__name__ == "diffclust.solvers.cpu"


def test_framework_without_a_solver_is_named(monkeypatch):
    monkeypatch.setattr(diffclust.solvers, "framework_of", lambda array: "jax")
    monkeypatch.setattr(diffclust.solvers, "TABLE", {("numpy", "cpu"): ("diffclust.solvers.cpu", "")})
    diffclust.solvers._find.cache_clear()  # another test may have asked for it
    with pytest.raises(TypeError, match=r"No solver for jax arrays on cpu.*numpy on cpu"):
        diffclust.solvers.solver_for([[0.0]])


# The order in which a call goes through the files, see docs/design.md. A file imports files of its own line or of later
# ones, so nobody who follows a call comes back to a line that was left.
ORDER = """
    __main__
    cli
    runs
    cells
    embedding metric_learning sentence_transformers
    report cluster bench
    suggestions mistakes
    training partition
    doubt
    how_many all_cuts
    samples votes evidence confidence novelty placing linkage cuts colouring continuation
    nn distributed backbones
    losses perturbed stability
    forest
    bindings.torch_similarity
    similarity
    validation
    bindings
    bindings.torch bindings.jax bindings.numpy
    bindings.torch_operators
    gradients
    solvers
    knowledge constraints groups noise
    labels metrics tables messages
    answers
    processes
    frameworks files threads _typing
"""
LINES = {name: number for number, line in enumerate(ORDER.strip().splitlines()) for name in line.split()}


def line_of(module):
    """The line of a module, or of the folder that it is in."""
    while module not in LINES:
        assert "." in module, f"{module} has no place in ORDER"
        module = module.rpartition(".")[0]
    return LINES[module]


def own_imports(tree):
    """Modules of diffclust that a file imports, those for type checkers aside."""
    skipped = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped and node.module.split(".")[0] == "diffclust":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield (name if name in MODULES else node.module).removeprefix("diffclust.")


def test_a_call_does_not_come_back_to_a_file_that_it_has_left():
    for path in (ROOT / "src/diffclust").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / "src/diffclust").with_suffix("").parts).removesuffix(".__init__")
        if module == "__init__":
            continue
        for imported in own_imports(ast.parse(path.read_text("utf-8"))):
            assert line_of(imported) >= line_of(module), f"{module} imports {imported}, which comes before it"


def test_bindings_do_not_ask_for_a_device():
    """Solvers and ``similarity.py`` do: a binding holds tensors, a request, and how it is differentiated."""
    questions = r"\.is_cuda|\.platform|\.devices\(|device\.type|device_(of|count)|default_backend|captur|rehears"
    questions += r"|[\"'](cpu|cuda|gpu)"
    for path in (ROOT / "src/diffclust/bindings").glob("*.py"):
        code = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(code):  # without docstrings; comments are gone already
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = ""
        assert not re.search(questions, ast.unparse(code)), path.name


# Name of a package where it is not that of the module, and those that come with another one.
PACKAGES = {
    "PIL": "pillow",
    "pytorch_metric_learning": "pytorch-metric-learning",
    "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn",
}
COME_ALONG = {
    "jaxlib": "jax",
    "joblib": "scikit-learn",
    "llvmlite": "numba",
    "threadpoolctl": "scikit-learn",
    "triton": "torch",
}
USED_IF_INSTALLED = {"scanpy"}
USED_BY_OTHERS = {"pyarrow", "tensorboard"}  # by pandas and by Lightning


def test_the_extras_are_what_the_package_imports():
    """What ``src`` imports is in an extra, and an extra for users has nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in FOR_USERS for line in extras[name])]
    declared = {Requirement(line).name for line in lines} - {"diffclust"}
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.split(".")[0])
    imported -= sys.stdlib_module_names | USED_IF_INSTALLED | {"diffclust", "experiments"}
    assert {COME_ALONG.get(name, PACKAGES.get(name, name)) for name in imported} | USED_BY_OTHERS == declared
    assert {Requirement(line).name for line in extras["fit"]} >= {"lightning", "rich", "tqdm", "typer"}
