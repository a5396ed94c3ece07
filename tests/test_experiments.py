"""The recipes run from the command line and write down what they say; evaluation equals its slow definition."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
torch = pytest.importorskip("torch")

from PIL import Image  # noqa: E402
from sklearn.datasets import load_digits, make_blobs  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import diffclust as dc  # noqa: E402
from experiments import evaluation, figures, recipes  # noqa: E402
from experiments.__main__ import app  # noqa: E402
from experiments.denoising import Denoising, clusters_of  # noqa: E402
from processes import python_m  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
FAST = ["--tiny", "--seeds", "0", "--set", "n_batches=4", "--set", "n_draws=5"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def call(*arguments):
    return CliRunner().invoke(app, list(arguments))


def sentence(result):
    """The one line of an error."""
    assert result.exit_code == 2, (result.output, result.exception)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def read(folder):
    return json.loads((folder / "numbers.json").read_text())


def check_picture(path, least=300):
    assert path.stat().st_size < 150_000
    picture = np.asarray(Image.open(path).convert("RGB"))
    assert min(picture.shape[:2]) >= least
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10


# --------------------------------------------------------------------------------------------------- the command line


def test_list_names_every_recipe_and_its_settings():
    result = call("list")
    assert result.exit_code == 0
    for name, cls in recipes.RECIPES.items():
        assert name in result.stdout
        assert cls.__doc__.splitlines()[0] in result.stdout
    shown = call("list", "toy").stdout
    assert "n_points" in shown
    assert "0,1,2,3,4" in shown
    assert "There is no recipe 'nothing'" in sentence(call("list", "nothing"))


@pytest.mark.slow
def test_toy_in_a_process_of_its_own(tmp_path):
    """As a user runs it, from a folder that is not the repository."""
    process = python_m("experiments", "run", "toy", "--tiny", "--seeds", "3,4", "--out", "out", COLUMNS=200)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "guarded forest" in output.replace("\n", " ")
    content = read(tmp_path / "out")
    assert content["recipe"] == "toy"
    assert content["settings"] == {"seeds": [3, 4], "n_points": 150}
    assert content["seconds"] > 0
    assert content["hardware"]["cores"] >= 1
    assert content["versions"]["numpy"] == np.__version__
    ari = {row["method"]: row for row in content["numbers"]["tables"]["ARI"]}
    assert ari["guarded forest"]["moons"]["mean"] > 0.95 > 0.6 > ari["k-means"]["moons"]["mean"]
    assert len(ari["forest"]["circles"]["values"]) == 2
    rows = (tmp_path / "out" / "scores.csv").read_text().splitlines()
    assert rows[0] == "seed,data,method,nmi,ari"
    assert len(rows) == 1 + 2 * 4 * 5
    assert "| guarded forest |" in (tmp_path / "out" / "numbers.md").read_text()
    check_picture(tmp_path / "out" / "toy.png")


@pytest.mark.slow
def test_denoising(tmp_path):
    result = call("run", "denoising", "--tiny", "--set", "noise_widths=8,1", "--set", "n_batches=25")
    assert result.exit_code == 0, result.stderr
    folder = tmp_path / "runs" / "denoising"
    wide, unit = read(folder)["numbers"]["tables"]["by width of the noise"]
    assert wide["error in four dimensions"]["mean"] > 0.1
    assert unit["error in four dimensions"]["mean"] == 0.0
    assert wide["error after 25 batches"]["values"] == [0.0, 0.0]
    assert wide["share of θ on noise"]["mean"] < 0.1 < wide["share of θ on noise before"]["mean"]
    assert len((folder / "curves.csv").read_text().splitlines()) == 1 + 2 * 2 * 26
    check_picture(folder / "denoising.png")


def test_denoising_summary_reads_the_curve():
    from experiments.denoising import _summary

    runs = [
        {"raw_error": 0.5, "errors": errors, "theta": [[1, 0], [0, 1], [0, 0], [0, 0]], "theta_before": [[1, 1]] * 4}
        for errors in ([0.3, 0.0, 0.2, 0.0, 0.0], [0.0] * 5, [0.3, 0.0, 0.0, 0.0, 0.1])
    ]
    row = _summary(8.0, runs)
    assert row["batches to error 0"]["values"] == [1, 0, 1]
    assert row["batches after which it stays 0"]["values"] == [3, 0, None]
    assert row["share of θ on noise before"]["mean"] == 0.5
    assert row["share of θ on noise"]["mean"] == 0.0


def test_the_target_is_the_clustering_of_the_signal():
    points, target = Denoising().points(np.random.default_rng(0), 8.0)
    assert points.shape == (60, 4)
    assert dc.metrics.connectivity_error(np.repeat(np.arange(4), 15), target) == 0.0
    assert (clusters_of(points[:, :2].double()) == target).all()


def test_a_run_goes_on_with_what_is_finished(tmp_path):
    assert call("run", "denoising", *FAST, "--out", "a").exit_code == 0
    first = read(tmp_path / "a")
    assert sentence(call("run", "denoising", *FAST, "--out", "a")).endswith("choose another --out.")
    (tmp_path / "a" / "numbers.json").unlink()
    kept = tmp_path / "a" / "parts" / "width_8_seed_0.json"
    done = json.loads(kept.read_text())
    kept.write_text(json.dumps({**done, "raw_error": 0.125}))
    (tmp_path / "a" / "parts" / "width_1_seed_0.json").unlink()
    assert call("run", "denoising", *FAST, "--out", "a", "--resume").exit_code == 0
    again = read(tmp_path / "a")
    wide, unit = again["numbers"]["tables"]["by width of the noise"]
    assert wide["error in four dimensions"]["mean"] == 0.125  # read, not done again
    assert unit == first["numbers"]["tables"]["by width of the noise"][1]
    assert again["resumed"]
    assert "was started with n_draws = 5" in sentence(
        call("run", "denoising", *FAST, "--set", "n_draws=6", "--out", "a", "--resume")
    )
    assert "no run to go on with" in sentence(call("run", "denoising", *FAST, "--out", "b", "--resume"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "There is no recipe 'nothing': the recipes are"),
        (["toy", "--set", "colour=red"], "toy has no setting 'colour': it has seeds, n_points."),
        (["toy", "--set", "n_points"], "A setting is written as name=value, got 'n_points'."),
        (["toy", "--set", "n_points=many"], "n_points must be an integer, got 'many'."),
        (["toy", "--set", "n_points=-5"], "n_points must be at least 0 and finite, got -5."),
        (["toy", "--seeds", "0,x"], "seeds must be an integer, got '0,x'."),
        (["toy", "--seeds", ""], "seeds must have at least one number."),
        (["toy", "--data-dir", "here"], "toy has no setting 'data_dir'"),
        (["denoising", "--set", "epsilon=nan"], "epsilon must be at least 0 and finite, got nan."),
        (["denoising", "--set", "epsilon=small"], "epsilon must be a number, got 'small'."),
    ],
)
def test_what_cannot_be_run_is_one_sentence(arguments, message, tmp_path):
    assert message in sentence(call("run", *arguments))
    assert not (tmp_path / "runs").exists()


def test_settings_by_their_types():
    @dataclasses.dataclass(frozen=True)
    class Some(recipes.Recipe):
        flag: bool = False
        data: Literal["a", "b"] = "a"
        limit: int | None = None
        data_dir: Path | None = None
        words: tuple[str, ...] = ()

    Some.name = "some"
    changed = recipes.change(
        Some(limit=3), ["flag=true", "data=b", "limit=None", "data_dir=x/y", "words=one, two", "seeds=7"]
    )
    assert changed == Some((7,), True, "b", None, Path("x/y"), ("one", "two"))
    assert "data_dir" not in changed.settings()
    assert recipes.change(Some(), ["limit=4"]).limit == 4
    with pytest.raises(ValueError, match="flag must be true or false, got 'yes'"):
        recipes.change(Some(), ["flag=yes"])
    with pytest.raises(ValueError, match="data must be one of a, b, got 'c'"):
        recipes.change(Some(), ["data=c"])


def test_settings_of_the_training_are_settings_of_the_recipe():
    shown = call("list", "ours-mnist").stdout
    expected = {"images": "mnist", "labelled_fraction": "0.4", "schedule": "cosine", "patience": "None"}
    for name, value in expected.items():
        assert re.search(rf"│ {name} +│ {value} +│", shown), name
    given = ["n_labels=50,100", "epsilon=auto", "backbone=mlp", "patience=3", "devices=2", "augment=none"]
    changed = recipes.change(recipes.RECIPES["ours-mnist"](), given)
    training = changed.training
    assert changed.n_labels == (50, 100)
    assert (training.epsilon, training.backbone, training.patience, training.devices) == ("auto", "mlp", 3, 2)
    assert training.augment is None
    assert training.labelled_fraction == 0.4
    settings = changed.settings()
    assert settings["backbone"] == "mlp"
    assert not {"devices", "data_dir", "seed", "training"} & settings.keys()
    with pytest.raises(ValueError, match="n_steps must be an integer, got 'many'"):
        recipes.change(changed, ["n_steps=many"])
    with pytest.raises(ValueError, match="ours-mnist has no setting 'seed'"):
        recipes.change(changed, ["seed=3"])


# --------------------------------------------------------------------------------------------------------- evaluation


def blobs(n=400, d=5, k=4, spread=3.0, seed=0):
    x, y = make_blobs(n, d, centers=k, cluster_std=spread, random_state=seed)
    return x.astype(np.float32), y


@pytest.mark.parametrize("seed", [None, 3])
def test_batch_scores_are_means_over_batches(seed):
    x, y = blobs(150)
    found = evaluation.batch_scores(x, y, k=4, batch_size=32, seed=seed)
    order = np.arange(150) if seed is None else np.random.default_rng(seed).permutation(150)
    errors, others = [], {"ari": [], "nmi": [], "accuracy": []}
    for start in range(0, 128, 32):
        rows = order[start : start + 32]
        similarity = -((x[rows, None].astype(np.float64) - x[None, rows].astype(np.float64)) ** 2).sum(-1)
        labels = dc.spanning_forest(similarity, 4).labels
        wrong = 0
        for i in range(32):
            for j in range(32):
                wrong += (labels[i] == labels[j]) != (y[rows[i]] == y[rows[j]])
        errors.append(wrong / 32**2)
        for name, values in others.items():
            values.append(dc.metrics.clustering_scores(y[rows], labels)[name])
    assert found["error"] == pytest.approx(np.mean(errors), abs=1e-12)
    assert found["precision"] == pytest.approx(1 - np.mean(errors), abs=1e-12)
    for name, values in others.items():
        assert found[name] == pytest.approx(np.mean(values), abs=1e-12)
    assert 0.01 < found["error"] < 0.9


def test_too_few_rows_for_a_batch():
    with pytest.raises(ValueError, match="10 rows do not fill one batch of 64"):
        evaluation.batch_scores(np.zeros((10, 2)), np.zeros(10))


def test_whole_set_scores():
    x, y = blobs(spread=1.5)
    found = evaluation.whole_set_scores(x, y, k=4, hidden=[1, 3])
    assert list(found) == ["forest", "robust forest", "k-means", "Ward"]
    similarity = -((x[:, None].astype(np.float64) - x[None].astype(np.float64)) ** 2).sum(-1)
    for name, matrix in (("forest", similarity), ("robust forest", dc.mutual_reachability(similarity, 5))):
        labels = dc.Hierarchy.from_similarity(matrix).labels(4, 20)
        hidden = np.isin(y, [1, 3])
        for part, rows in (("all", hidden | ~hidden), ("seen", ~hidden), ("withheld", hidden)):
            scores = dc.metrics.clustering_scores(y[rows], labels[rows])
            assert found[name][part] == {key: scores[key] for key in ("error", "ari", "nmi", "accuracy")}
        assert found[name]["n_clusters"] == 4
    assert set(evaluation.whole_set_scores(x, y, k=4)["Ward"]) == {"n_clusters", "all"}


def test_a_guard_that_allows_fewer_clusters():
    x, y = blobs(100)
    assert evaluation.whole_set_scores(x, y, k=4, min_cluster_size=40)["forest"]["n_clusters"] <= 2


def converged(x, y, x_test):
    """Predictions of logistic regression by another solver, run to the end, and how sure it is of each."""
    mean, scale = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1.0)
    exact = LogisticRegression(tol=1e-8, max_iter=20_000).fit((x - mean) / scale, y)
    shares = np.sort(exact.predict_proba((x_test - mean) / scale), axis=1)
    return exact.predict((x_test - mean) / scale), shares[:, -1] - shares[:, -2]


def test_probe_error_is_that_of_converged_logistic_regression():
    x, y = (each.astype(np.float64) for each in blobs(1300, spread=6.0))
    found = evaluation.probe_error(x[:300], y[:300], x[300:], y[300:])
    predicted, _ = converged(x[:300], y[:300], x[300:])
    assert 0.05 < found < 0.6
    assert found == pytest.approx(np.mean(predicted != y[300:]), abs=1e-12)


def test_probe_error_differs_at_most_where_converged_logistic_regression_is_undecided():
    """Digits: correlated and constant columns, on which SAGA is slow."""
    x, y = load_digits(return_X_y=True)
    found = evaluation.probe_error(x[:500].astype(np.float32), y[:500], x[500:].astype(np.float32), y[500:])
    predicted, margin = converged(x[:500], y[:500], x[500:])
    undecided = np.mean(margin < 0.05)
    assert undecided < 0.02
    assert abs(found - np.mean(predicted != y[500:])) <= undecided


# ------------------------------------------------------------------------------------------------------------ figures


def grid_table():
    rng = np.random.default_rng(0)
    return [
        {"n_labels": n, "withheld": w, "method": m, "seed": s, "error": e, "ari": 1 - 2 * e, "probe_error": None}
        for n in (100, 500, 1000) for w in (0, 3, 6) for m in ("forest", "cross-entropy") for s in (0, 1)
        for e in rng.uniform(0, 0.5, 1)
    ]  # fmt: skip


@pytest.mark.slow
def test_figures_are_drawn(tmp_path):
    figures.grid_figure(grid_table(), tmp_path / "two.png", title="made up")
    figures.grid_figure(grid_table(), tmp_path / "three.png", with_ari=True)
    assert Image.open(tmp_path / "three.png").width > Image.open(tmp_path / "two.png").width
    x, y = load_digits(return_X_y=True)
    figures.tsne_figure(x[:80], y[:80], [1, 2], tmp_path / "map.png", class_names=[f"digit {i}" for i in range(10)])
    for name in ("two", "three", "map"):
        check_picture(tmp_path / f"{name}.png")


def test_a_map_of_many_points_is_of_a_sample(tmp_path, monkeypatch):
    import sklearn.manifold

    shapes = []

    class Map:
        def __init__(self, **options):
            assert options["init"] == "pca"

        def fit_transform(self, x):
            shapes.append(x.shape)
            return x[:, :2]

    monkeypatch.setattr(sklearn.manifold, "TSNE", Map)
    x, y = blobs(3500)
    figures.tsne_figure(x, y, [], tmp_path / "map.png")
    assert shapes == [(3000, 5)]


def test_means_and_spreads():
    assert recipes.over_seeds([1.0, 3.0, None]) == {"mean": 2.0, "spread": 1.0, "values": [1.0, 3.0, None]}
    assert recipes.shown(recipes.over_seeds([None])) == "–"
    rows = [{"method": "ours", "ari": recipes.over_seeds([0.5, 0.7]), "k": 10}]
    assert recipes.markdown(rows) == "| method | ari | k |\n| --- | ---: | ---: |\n| ours | 0.600 ± 0.100 | 10 |\n"
    wide = [{str(i): float(i) for i in range(8)}, {str(i): 0.5 for i in range(8)}]
    heads, cells = recipes.layout(wide)
    assert heads == ["0", "0.000", "0.500"]
    assert cells[0] == ["1", "1.000", "0.500"]
