"""Something of every extra, in a minute or two.

``make test-lowest`` runs it with the lowest versions that pyproject.toml allows, ``make test-pythons`` with other
versions of Python.
"""

import importlib
import importlib.metadata
import os
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import diffclust as dc

ROOT = Path(__file__).resolve().parent.parent
LOWEST = ROOT / "constraints-lowest.txt"
# Set where every extra must be there: a package that is missing is then an error, not a skipped test.
EXTRAS = os.environ.get("DIFFCLUST_EXTRAS") == "required"
# Of tools and of other people's solvers, which only benchmarks use, any version may do: constraints.txt has ours.
# Tools for work on the library: constraints.txt pins them.
UNBOUND = {"mypy", "ruff", "selenium", "fast_hdbscan", "fastcluster", "palmerpenguins", "quitefastmst"}
UNBOUND |= {"build", "codespell", "ipykernel", "myst-parser", "nbclient", "pydata-sphinx-theme", "sphinx"}
UNBOUND |= {"sphinx-design", "sphinx-gallery", "twine"}
UNBOUND |= {"accelerate", "bertopic", "dask", "datasets", "distributed", "polars", "ray", "scanpy"}  # peers
RNG = np.random.default_rng(0)
POINTS = np.concatenate([RNG.normal(centre, 0.3, size=(12, 3)) for centre in (-4, 0, 4)])
LABELS = np.where(np.arange(36) % 3, -1, np.arange(36) // 12)
SIMILARITY = dc.standardize(dc.negative_squared_distances(POINTS))


def need(name):
    return importlib.import_module(name) if EXTRAS else pytest.importorskip(name)


def lower_bounds():
    """What pyproject.toml asks for: name of a package -> its lowest version, None for those without one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    bounds = {}
    for requirement in map(Requirement, lines):
        if requirement.name == "diffclust":  # another extra
            continue
        versions = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
        assert len(versions) <= 1, requirement
        bound = versions[0] if versions else None
        assert bounds.setdefault(requirement.name, bound) == bound, f"two lower bounds of {requirement.name}"
    return bounds


def lowest():
    lines = [line.split("#")[0].strip() for line in LOWEST.read_text("utf-8").splitlines()]
    return {requirement.name: requirement for requirement in map(Requirement, filter(None, lines))}


def test_every_lower_bound_is_a_version_that_test_lowest_installs():
    bounds = lower_bounds()
    assert {name for name, bound in bounds.items() if bound is None} == UNBOUND
    expected = {name: f"=={bound}" for name, bound in bounds.items() if bound is not None}
    assert {name: str(each.specifier) for name, each in lowest().items()} == expected


@pytest.mark.skipif(not os.environ.get("DIFFCLUST_LOWEST"), reason="make test-lowest sets DIFFCLUST_LOWEST")
@pytest.mark.parametrize("name", lowest())
def test_the_lowest_version_is_the_one_that_runs(name):
    assert Version(importlib.metadata.version(name)) in lowest()[name].specifier


@pytest.mark.parametrize("name", [each.name for each in pkgutil.walk_packages(dc.__path__, "diffclust.")])
def test_every_module_is_imported(name):
    try:
        importlib.import_module(name)
    except ImportError as error:
        if EXTRAS or (error.name or "").startswith("diffclust"):
            raise
        pytest.skip(str(error))


def test_core():
    tree = dc.Hierarchy.from_points(POINTS)
    assert np.array_equal(tree.labels(3), np.repeat([0, 1, 2], 12))
    assert np.array_equal(dc.Hierarchy.from_similarity(SIMILARITY).labels(3), tree.labels(3))
    assert tree.linkage_matrix().shape == (35, 4)
    assert dc.spanning_forest(SIMILARITY, 3, constraints=dc.Constraints.from_labels(LABELS)).adjacency().sum() == 2 * 33
    model = dc.cluster.SpanningForestClustering(3, reachability=3).fit(POINTS)
    assert np.array_equal(model.predict(POINTS), model.labels_)
    assert dc.metrics.clustering_scores(model.labels_, tree.labels(3))["ari"] == 1


def loss_of(similarity, constraints, **options):
    return dc.partial_fenchel_young_loss(similarity, constraints, 3, n_draws=20, seed=1, **options)


@pytest.mark.slow
def test_torch():
    torch = need("torch")
    similarity = torch.tensor(SIMILARITY, dtype=torch.float32, requires_grad=True)
    loss = loss_of(similarity, dc.Constraints.from_labels(torch.as_tensor(LABELS)))
    loss.backward()
    expected = loss_of(SIMILARITY.astype(np.float32), dc.Constraints.from_labels(LABELS))
    assert loss.item() == pytest.approx(float(expected), rel=1e-5)
    assert bool(torch.isfinite(similarity.grad).all())
    layer = torch.nn.Linear(3, 2)
    module = torch.compile(dc.nn.PartialFenchelYoungLoss(3, n_draws=5, seed=0), backend="aot_eager", fullgraph=True)
    module(layer(torch.tensor(POINTS, dtype=torch.float32)), torch.as_tensor(LABELS)).backward()
    assert float(layer.weight.grad.abs().sum()) > 0


@pytest.mark.slow
def test_jax():
    jax = need("jax")
    constraints = dc.Constraints.from_labels(LABELS)

    @jax.jit
    def loss(similarity, labels):
        return loss_of(similarity, dc.Constraints.from_labels(labels))

    value, gradient = jax.value_and_grad(loss)(jax.numpy.asarray(SIMILARITY, "float32"), jax.numpy.asarray(LABELS))
    assert float(value) == pytest.approx(float(loss_of(SIMILARITY.astype(np.float32), constraints)), rel=1e-5)
    assert bool(jax.numpy.isfinite(gradient).all())


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
@pytest.mark.parametrize("noise", ["normal", "gumbel"])
def test_triton(noise):
    torch = need("torch")
    need("triton")
    from diffclust.noise import Draws
    from diffclust.solvers import Request, cpu, cuda

    device = "cuda" if torch.cuda.is_available() else "cpu"  # there in Triton's interpreter
    similarity = SIMILARITY[None, ::4, ::4].astype(np.float32).copy()
    draws = Draws(3, 0, n_draws=2, epsilon=0.5, noise=noise)
    request = Request(torch.as_tensor(similarity, device=device), 3, draws=draws, detail="forests")
    expected = cpu.solve(request._replace(similarity=similarity))
    assert np.array_equal(cuda.solve(request).edges.cpu().numpy(), expected.edges)


def test_metric_learning():
    torch = need("torch")
    need("pytorch_metric_learning")
    loss = dc.metric_learning.PartialFenchelYoungLoss(3, n_draws=5, seed=0)
    points = torch.tensor(POINTS, dtype=torch.float32, requires_grad=True)
    loss(points, torch.as_tensor(LABELS)).backward()
    assert bool(torch.isfinite(points.grad).all())


def test_cells():
    anndata = need("anndata")
    need("lightning")
    adata = anndata.AnnData(np.random.default_rng(0).poisson(3.0, (36, 8)).astype(np.float32))
    adata.obsm["X_pca"] = POINTS.astype(np.float32)
    adata.obs["cell_type"] = np.where(LABELS < 0, "Unknown", "type " + LABELS.astype(str).astype(object))
    dc.cells.fit(adata, "cell_type", n_clusters=3, n_steps=10, cut="forest")
    assert adata.obs["diffclust"].tolist() == [f"type {number // 12}" for number in range(36)]


@pytest.mark.slow  # seconds to import
def test_texts(tmp_path):
    need("sentence_transformers")
    from diffclust.tables.texts import embed_texts

    with pytest.raises(ValueError, match=r"cannot be loaded: .*Give the name of a sentence-transformers model"):
        embed_texts(["a text"], str(tmp_path / "no-such-model"))
    torch = need("torch")
    loss = dc.sentence_transformers.PartialFenchelYoungLoss(lambda x: {"sentence_embedding": x}, n_clusters=3, seed=0)
    points = torch.tensor(POINTS, dtype=torch.float32, requires_grad=True)
    loss([points], torch.as_tensor(LABELS)).backward()
    assert bool(torch.isfinite(points.grad).all())


def test_neighbors(capfd):
    need("tqdm")
    points = RNG.normal(size=(10_500, 2))  # above 10,000, neighbours are searched in cells
    tree = dc.Hierarchy.from_points(points, n_neighbors=5, progress=True)
    assert tree.labels(4).max() == 3
    assert "neighbours" in capfd.readouterr().err


def command(*arguments, cwd=None):
    """What a user starts: seconds to import."""
    result = subprocess.run([sys.executable, "-m", "diffclust", *arguments], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def call(*arguments):
    """The same in this process, in the current folder."""
    from diffclust.cli import app

    result = need("typer.testing").CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_help():
    need("typer")
    assert " fit " in call("--help")
    assert "--labels" in call("fit", "--help")


@pytest.mark.slow
def test_a_table_becomes_a_run(tmp_path, monkeypatch):
    need("lightning")
    pandas = need("pandas")
    need("pyarrow")
    accumulator = need("tensorboard.backend.event_processing.event_accumulator")
    table = pandas.DataFrame(POINTS, columns=["x", "y", "z"])
    table.to_parquet(tmp_path / "new.parquet")
    table["kind"] = [None if label < 0 else "abc"[label] for label in LABELS]
    table.to_csv(tmp_path / "t.csv", index=False)
    command("fit", "t.csv", "--labels", "kind", "--steps", "3", "--out", "run", cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    call("cluster", "run", "new.parquet", "--out", "placed.csv")
    assert len((tmp_path / "placed.csv").read_text().splitlines()) == 1 + len(table)
    assert "Plotly" in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert accumulator.EventAccumulator(str(tmp_path / "run" / "log")).Reload().Tags()["scalars"]


@pytest.mark.slow
def test_images_become_a_run(tmp_path, monkeypatch):
    need("lightning")
    need("PIL")
    np.save(tmp_path / "x.npy", RNG.integers(0, 256, size=(36, 8, 8), dtype=np.uint8))
    np.save(tmp_path / "y.npy", LABELS)
    monkeypatch.chdir(tmp_path)
    call("fit", "x.npy", "--labels", "y.npy", "--clusters", "3", "--steps", "2", "--out", "run")
    assert "data:image/png" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_figures_of_the_experiments(tmp_path):
    need("matplotlib")
    need("PIL")
    from experiments.figures import clusters_figure

    clusters = [{"ours": np.repeat([0, 1, 2], 12)}]
    clusters_figure([POINTS[:, :2]], clusters, [{"ours": "1.00"}], ["three"], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
