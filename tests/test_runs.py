"""Runs in Python: what a folder holds, loading it back, resuming it, and what happens when writing fails."""

import csv
import dataclasses
import errno
import json
import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("lightning")
torch = pytest.importorskip("torch")

import diffclust as dc  # noqa: E402
from diffclust import files, report, runs, training  # noqa: E402
from diffclust.files import write_atomically  # noqa: E402
from diffclust.groups import join_knowledge  # noqa: E402
from diffclust.knowledge import Knowledge  # noqa: E402
from diffclust.partition import partition  # noqa: E402
from diffclust.runs import fit_run, folder, load_run  # noqa: E402
from diffclust.runs.baselines import score_methods  # noqa: E402
from diffclust.runs.fit import hold_out  # noqa: E402
from diffclust.runs.folder import FILES, MANIFEST, write_manifest  # noqa: E402
from diffclust.runs.summary import _headline, _how_to_load, _remarks, _warnings, reliability  # noqa: E402
from diffclust.tables import Table  # noqa: E402
from diffclust.training.loop import choose_device  # noqa: E402

N = 24


def make_table(n_labelled=12, n=N):
    """Three blobs; the labels of some rows."""
    rng = np.random.default_rng(0)
    truth = np.arange(n) % 3
    x = (rng.normal(size=(n, 4)) + 6 * np.eye(4)[truth]).astype(np.float32)
    return Table(x, np.where(np.arange(n) < n_labelled, truth, -1), ["cat", "dog", "eel"], "blobs")


CONFIG = training.TrainingConfig(batch_size=16, n_draws=3, n_steps=6, validate_every=2, device="cpu", backbone="linear")


@pytest.fixture(autouse=True)
def _no_report(monkeypatch, request):
    """Drawing takes longer than everything else; tests that look at the page ask for it."""
    if "with_report" not in request.fixturenames:
        monkeypatch.setattr(report, "write_report", lambda data, path: write_atomically(path, "<html></html>"))


@pytest.fixture
def with_report():
    pass


def fit(folder, table=None, config=CONFIG, n_clusters=None, **options):
    """A run, by default without comparing cuts: that is most of its time."""
    options = {"progress": False, "say": lambda text: None, "cut": "forest", **options}
    config = dataclasses.replace(config, n_clusters=n_clusters)
    return fit_run(make_table() if table is None else table, config, folder, **options)


def contents(folder):
    """All that must be the same in a resumed run."""
    with np.load(folder / "hierarchy.npz") as saved:
        hierarchy = {name: saved[name].tobytes() for name in saved}
    return (folder / "clusters.csv").read_bytes(), (folder / "embeddings.npy").read_bytes(), hierarchy


def test_other_methods_are_trained_where_rows_come_with_neighbours(tmp_path):
    """As many rows as these make training pair each row with a neighbour, which cross-entropy cannot use."""
    table = make_table(n_labelled=60, n=330)
    run = fit(tmp_path / "run", table, n_clusters=3, holdout=0.5, cut="forest", report=False)
    assert run.module.config.neighbours > 0
    assert "cross-entropy, same labels" in [row["method"] for row in run.metrics["scores"]]


# -------------------------------------------------------------------------------------------------------- the folder


def test_a_run_is_loaded_in_one_line(tmp_path, with_report):
    fitted = fit(tmp_path / "run", holdout=0.25, cut="auto")
    run = dc.load_run(tmp_path / "run")
    assert {path.name for path in run.folder.iterdir()} == {*FILES, MANIFEST, "clusters.json", "log", "report.html"}
    np.testing.assert_array_equal(run.clusters, np.arange(N) % 3)
    assert run.names == ["cat", "dog", "eel"]
    assert run.embeddings.shape == (N, 16)
    assert run.confidence.shape == (N,)
    assert run.metrics["scored_rows"] == 3
    assert {row["method"] for row in run.metrics["scores"]} >= {"diffclust", "k-means on raw data"}
    assert run.settings["source"] == "blobs"
    new = make_table().features + 0.01
    np.testing.assert_array_equal(run.cluster(new), run.clusters)
    np.testing.assert_array_equal(run.place(new)[1], run.confidence)
    np.testing.assert_array_equal(run.hierarchy.labels(3), fitted.hierarchy.labels(3))
    assert len(np.unique(run.hierarchy.labels(7))) == 7
    page = (run.folder / "report.html").read_text("utf-8")
    assert page.rstrip().endswith("</html>")
    assert "dc.load_run" in page
    names = {"new_rows": new}
    exec(_how_to_load(run), names)  # the lines that the page shows
    np.testing.assert_array_equal(names["run"].clusters, run.clusters)


def test_a_fitted_run_is_the_one_that_is_loaded(tmp_path):
    fitted = fit(tmp_path / "run", holdout=0.25)
    loaded = load_run(tmp_path / "run")
    assert (fitted.folder, fitted.names) == (loaded.folder, loaded.names)
    assert (fitted.metrics, fitted.settings) == (loaded.metrics, loaded.settings)
    for name in ("clusters", "embeddings"):
        np.testing.assert_array_equal(getattr(fitted, name), getattr(loaded, name), strict=True)
    for name in ("confidence", "novelty"):
        np.testing.assert_allclose(getattr(fitted, name), getattr(loaded, name), atol=5e-5, rtol=0)
    np.testing.assert_array_equal(fitted.hierarchy.edges, loaded.hierarchy.edges)
    weights = loaded.module.state_dict()
    for name, weight in fitted.module.state_dict().items():
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_files(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        fit(tmp_path / name, config=dataclasses.replace(CONFIG, seed=seed))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")[1] != contents(tmp_path / "c")[1]


@pytest.mark.parametrize("share", [2.0, -0.1, float("nan")])
def test_a_holdout_is_a_share(share, tmp_path):
    with pytest.raises(ValueError, match="holdout must be from 0 to 1, a share of the labels of each class, got"):
        fit(tmp_path / "run", holdout=share)
    assert not (tmp_path / "run").exists()


def test_the_seed_of_a_run_is_that_of_its_holdout(tmp_path):
    table = make_table(N)
    table.features[:] = np.random.default_rng(1).normal(size=(N, 4))  # no blobs, so no row is sure
    config = dataclasses.replace(CONFIG, seed=5)
    run = fit(tmp_path / "run", table, config, holdout=0.5, n_clusters=4, cut="forest")
    same, other = (hold_out(Knowledge.join(table.labels), 0.5, seed=seed)[0] for seed in (5, 6))
    assert not np.array_equal(same.labels, other.labels)
    labels = [line.rsplit(",", 1)[1] for line in (run.folder / "clusters.csv").read_text().splitlines()[1:]]
    assert labels == [table.class_names[label] if label >= 0 else "" for label in same.labels]
    found = partition(run.embeddings, same, 4)
    np.testing.assert_array_equal(found.clusters, run.clusters)
    np.testing.assert_allclose(run.confidence, found.probabilities()[np.arange(N), found.clusters], atol=1e-4)
    np.testing.assert_allclose(run.novelty, found.novelty(), atol=1e-4)


@pytest.mark.parametrize("name", FILES)
def test_an_unfinished_run_says_what_is_missing(name, tmp_path):
    for other in FILES[: FILES.index(name)]:
        (tmp_path / other).touch()
    with pytest.raises(ValueError, match=f"not the folder of a finished run: .*{name} is missing"):
        load_run(tmp_path)


def test_rows_of_another_shape_are_refused(tmp_path):
    run = fit(tmp_path / "run")
    with pytest.raises(ValueError, match=r"rows of shape \(4,\), got \(3,\)"):
        run.cluster(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_a_damaged_checkpoint_is_named(keep, tmp_path):
    fit(tmp_path / "run")
    last = tmp_path / "run" / training.LAST
    whole = last.read_bytes()
    last.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(ValueError, match=rf"last\.ckpt has \d+ bytes, not the {len(whole)} of manifest\.json"):
        load_run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"last\.ckpt is not a checkpoint, or is damaged"):
        training.load(last)
    with pytest.raises(ValueError, match=r"last\.ckpt is not a checkpoint, or is damaged"):
        fit(tmp_path / "run", resume=True)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match=r"other\.ckpt is not a checkpoint of diffclust"):
        training.load(tmp_path / "other.ckpt")


# --------------------------------------------------------------------------------------- code that a folder names


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module that can be imported, and notes that it was."""
    (tmp_path / "tests_trap.py").write_text(
        "import pathlib\nimport torch\n"
        f"pathlib.Path({str(tmp_path / 'sprung')!r}).touch()\n\n\n"
        "def network(shape):\n    return torch.nn.Linear(*shape, 16)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tests_trap", raising=False)
    yield tmp_path / "sprung"
    sys.modules.pop("tests_trap", None)


def rewrite_checkpoint(path, change):
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def name_backbone(folder, name):
    """What a stranger may write: the folder names code, and its manifest is valid."""
    rewrite_checkpoint(folder / training.LAST, lambda s: s["hyper_parameters"]["config"].update(backbone=name))
    settings = json.loads((folder / "settings.json").read_text())
    settings["config"]["backbone"] = name
    (folder / "settings.json").write_text(json.dumps(settings))
    write_manifest(folder)


def test_a_folder_cannot_name_code_to_run(tmp_path, trap):
    fit(tmp_path / "run")
    name_backbone(tmp_path / "run", "tests_trap:network")
    for load in (load_run, lambda folder: training.load(folder / training.LAST)):
        with pytest.raises(ValueError, match=r"name it again, backbone='tests_trap:network'\."):
            load(tmp_path / "run")
    with pytest.raises(ValueError, match=r"is 'tests_trap:network', not 'linear'"):
        load_run(tmp_path / "run", backbone="linear")
    with pytest.raises(ValueError, match=r"backbone='tests_trap:network', now it is 'linear'"):
        fit(tmp_path / "run", resume=True)
    assert not trap.exists()
    with pytest.raises(ValueError, match=r"of another backbone: Missing key.* \"backbone\.weight\""):
        load_run(tmp_path / "run", backbone="tests_trap:network")
    assert trap.exists()


def test_a_resumed_run_imports_what_the_user_names_only(tmp_path, trap):
    """The settings agree with the user, the checkpoint names something else."""
    fit(tmp_path / "run")
    last = tmp_path / "run" / training.LAST
    rewrite_checkpoint(last, lambda s: s["hyper_parameters"]["config"].update(backbone="tests_trap:network"))
    with pytest.raises(ValueError, match=r"of another run, trained with backbone='tests_trap:network', now it is 'lin"):
        fit(tmp_path / "run", resume=True)
    assert not trap.exists()


def make_network(shape):
    return torch.nn.Linear(*shape, 3)


@pytest.mark.parametrize("kind", ["name", "function", "module"])
def test_a_backbone_of_ones_own_is_named_again(kind, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    name = "test_runs:make_network"
    given = {"name": name, "function": make_network, "module": make_network((4,))}[kind]
    run = fit(tmp_path / "run", config=dataclasses.replace(CONFIG, backbone=given))
    with pytest.raises(ValueError, match="name it again, backbone="):
        load_run(tmp_path / "run")
    for again in (name, make_network, make_network((4,))):
        loaded = load_run(tmp_path / "run", backbone=again)
        np.testing.assert_array_equal(loaded.cluster(make_table().features), run.clusters)


def test_a_module_as_backbone_is_not_the_one_of_the_baseline(tmp_path):
    """Trained in place, the network of the run would become that of cross-entropy before the rows are embedded."""
    network = make_network((4,))
    before = network.weight.clone()
    run = fit(tmp_path / "run", config=dataclasses.replace(CONFIG, backbone=network), holdout=0.25, cut="auto")
    assert torch.equal(network.weight, before)
    assert "cross-entropy" in json.dumps(run.metrics)
    loaded = load_run(tmp_path / "run", backbone=make_network)
    np.testing.assert_array_equal(training.embed(loaded.module, make_table().features), run.embeddings)


@pytest.mark.parametrize("name", ["embeddings.npy", "hierarchy.npz", "last.ckpt"])
def test_files_make_no_objects(name, tmp_path):
    fit(tmp_path / "run")
    sprung = tmp_path / "sprung"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(sprung),)

    path = tmp_path / "run" / name
    if name == "embeddings.npy":
        np.save(path, np.array([Trap()], object), allow_pickle=True)
    elif name == "hierarchy.npz":
        np.savez(path, n_points=np.array([Trap()], object), allow_pickle=True)
    else:
        torch.save({"state_dict": Trap(), "validations": []}, path)
    write_manifest(tmp_path / "run")
    with pytest.raises(ValueError, match=f"{name} .*(damaged|cannot be read)") as caught:
        load_run(tmp_path / "run")
    assert "pickle" not in str(caught.value)
    if name == "last.ckpt":
        with pytest.raises(ValueError, match="damaged"):
            fit(tmp_path / "run", resume=True)
    assert not sprung.exists()


# --------------------------------------------------------------------------------------------------- seeds and names


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2**32, 2**63, 2**64 - 1])
def test_large_seeds(seed, tmp_path):
    run = fit(tmp_path / "run", config=dataclasses.replace(CONFIG, seed=seed), holdout=0.25)
    assert run.settings["config"]["seed"] == seed
    assert run.metrics["scores"]


@pytest.mark.parametrize("seed", [-1, 2**64, 10**400, 1.0, True, None])
def test_seeds_out_of_range_are_refused_at_once(seed):
    with pytest.raises(ValueError, match=r"seed must be an integer from 0 to 2\*\*64 - 1"):
        dataclasses.replace(CONFIG, seed=seed)


def test_names_are_no_formulas_and_are_read_back(tmp_path):
    names = ["=cmd|' /C calc'!A0", "'quoted", "-1"]
    run = fit(tmp_path / "run", dataclasses.replace(make_table(), class_names=names))
    assert run.names == names
    with (tmp_path / "run" / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["name"] for row in rows} == {"'" + names[0], *names[1:]}
    assert {row["label"] for row in rows} == {"'" + names[0], *names[1:], ""}


# --------------------------------------------------------------------------------------------------------- knowledge


def test_some_labels_of_every_class_with_enough_of_them_are_held_out():
    table = make_table()
    table.labels[[1, 4, 7]] = -1  # dog keeps one label
    knowledge, truth = hold_out(Knowledge.join(table.labels), 0.5, seed=0)
    assert np.bincount(truth[truth >= 0]).tolist() == [2, 0, 2]
    assert np.bincount(knowledge.labels[knowledge.labels >= 0]).tolist() == [2, 1, 2]
    assert not ((truth >= 0) & (knowledge.labels >= 0)).any()


def test_a_truth_scores_only_rows_that_nobody_was_told(tmp_path):
    run = fit(tmp_path / "run", make_table(9), truth=np.arange(N) % 3)
    assert (run.metrics["labelled_rows"], run.metrics["scored_rows"]) == (9, N - 9)


def test_a_contradiction_is_one_whatever_is_held_out(tmp_path):
    for seed in range(5):
        with pytest.raises(ValueError, match=r"\(0, 1\)"):
            fit(tmp_path, must_link=[(0, 1)], holdout=0.75, config=dataclasses.replace(CONFIG, seed=seed))


def test_nothing_known(tmp_path):
    with pytest.raises(ValueError, match="Nothing is known: give labels of some rows, or must_link"):
        fit(tmp_path, make_table(0), holdout=0.2)


@pytest.mark.parametrize(
    ("labelled", "must_link", "cannot_link"),
    [
        (0, [(0, 3), (3, 6), (1, 4)], []),
        (0, [], [(0, 1)]),
        (0, [(0, 3)], [(0, 1), (1, 2), (2, 4)]),  # no labels can say this
        (9, [(0, 12)], [(13, 14), (14, 15), (20, 21)]),
        (3, [], []),
        (1, [], []),
        (N, [], []),
    ],
)
def test_the_clusters_agree_with_all_that_is_known(labelled, must_link, cannot_link, tmp_path):
    table = make_table(labelled)
    run = fit(tmp_path / "run", table, must_link=must_link, cannot_link=cannot_link)
    known = dc.Constraints.from_groups(*join_knowledge(table.labels, must_link, cannot_link))
    assert known.agree(run.clusters)
    assert run.metrics["n_clusters"] == len(run.names) == len(np.unique(run.clusters))


def test_more_clusters_than_asked_for_where_the_greedy_needs_them(tmp_path):
    cannot_link = [(0, 1), (1, 2), (2, 5), (12, 13), (13, 14), (14, 12 + 5)]
    said = []
    run = fit(tmp_path / "run", make_table(0), cannot_link=cannot_link, n_clusters=2, say=said.append)
    assert dc.Constraints.from_pairs(N, (), cannot_link).agree(run.clusters)
    n_clusters = run.metrics["n_clusters"]
    assert any(f"{n_clusters} clusters were found, not 2" in text for text in said) == (n_clusters > 2)


@pytest.mark.parametrize("n", [2, 3])
def test_very_few_rows(n, tmp_path, with_report):
    run = fit(tmp_path / "run", make_table(n, n), holdout=0.2)
    assert run.clusters.tolist() == list(range(n))


@pytest.mark.parametrize("most", [5000, N - 4])
def test_other_methods_cluster_all_rows_and_are_scored_on_those_held_out(most, monkeypatch):
    monkeypatch.setattr(runs.baselines, "BASELINE_ROWS", most)
    table = make_table(0)
    truth = np.where(np.arange(N) < 5, np.arange(N) % 3, -1)  # by themselves, three clusters of four rows split a class
    truth[2] = -1
    scores = score_methods(table, truth, np.arange(N) % 3, 3, None, seed=0)
    assert [row["ari"] for row in scores] == [1.0, 1.0, 1.0]
    assert ["rows)" in row["method"] for row in scores] == [False, most < N, most < N]


def test_other_methods_see_the_columns_of_a_table_in_one_unit():
    table = make_table(0)
    noise = 1000 * np.random.default_rng(1).normal(size=(N, 1))
    table = dataclasses.replace(table, features=np.concatenate([table.features, noise], 1).astype(np.float32))
    truth = np.arange(N) % 3
    scores = score_methods(table, truth, truth, 3, None, CONFIG.seed)
    assert [row["ari"] for row in scores if row["method"].startswith("k-means")] == [1.0]


# ---------------------------------------------------------------------------------------- found before the first step

MISTAKES = {
    "k too small": ({"n_clusters": 2}, {}, "n_clusters=2 is outside .* 3 to 15"),
    "k too large": ({"n_clusters": 16}, {}, "n_clusters=16 is outside"),
    "guard": ({"min_cluster_size": N + 1}, {}, "min_cluster_size=25 is more than the 24 rows"),
    "backbone": ({}, {"backbone": "resnet"}, "backbone must be one of"),
    "no such module": ({}, {"backbone": "nothing:here"}, "cannot be imported"),
    "empty module": ({}, {"backbone": ":here"}, "cannot be imported"),
    "two arguments": ({}, {"backbone": "torch.nn:Linear"}, "cannot be called with input_shape"),
    "not an image": ({}, {"backbone": "cnn"}, "needs images"),
    "nothing to train": ({}, {"backbone": "torch.nn:Identity"}, "no parameters"),
    "other input": ({}, {"backbone": "tests_backbones:wide"}, r"does not take rows of shape \(4,\)"),
    "not vectors": ({}, {"backbone": "tests_backbones:flat"}, "must give a vector for each row"),
    "no resume": ({"resume": True}, {}, "has no run to go on with"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_leave_no_folder(name, tmp_path, monkeypatch):
    options, changes, message = MISTAKES[name]
    (tmp_path / "tests_backbones.py").write_text(
        "import torch\n\n\n"
        "def wide(shape):\n    return torch.nn.Linear(99, 3)\n\n\n"
        "def flat(shape):\n    return torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((ValueError, TypeError), match=message):
        fit(tmp_path / "run", config=dataclasses.replace(CONFIG, **changes), **options)
    assert not (tmp_path / "run").exists()


def test_no_cuda(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device"):
        fit(tmp_path / "run", config=dataclasses.replace(CONFIG, device="cuda"))
    assert not (tmp_path / "run").exists()


def test_devices(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == "cuda"
    with pytest.raises(ValueError, match="device='tpu' must be 'auto', 'cpu' or 'cuda'"):
        fit(tmp_path / "run", config=dataclasses.replace(CONFIG, device="tpu"))
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------------------------ resume


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["training", "embed", "score_methods", "write_run_report"])
def test_a_run_that_failed_anywhere_goes_on_to_the_same_result(stop, tmp_path, monkeypatch):
    fit(tmp_path / "whole", holdout=0.25)
    with monkeypatch.context() as patched:
        if stop == "training":
            write = files.write_atomically
            written = []

            def only_one(path, content):
                written.append(path)
                if len(written) > 1:
                    raise OSError(errno.ENOSPC, "No space left on device", str(path))
                write(path, content)

            patched.setattr(training.checkpoints, "write_atomically", only_one)
        elif stop == "embed":
            patched.setattr(training, "embed", _fail)
        else:
            patched.setattr(runs.fit, stop, _fail)
        with pytest.raises(OSError, match=r"No space left"):
            fit(tmp_path / "cut", holdout=0.25)
    assert not list((tmp_path / "cut").glob(".*.tmp"))
    with pytest.raises(ValueError, match="has a run already"):
        fit(tmp_path / "cut", holdout=0.25)
    (tmp_path / "cut" / ".clusters.csv.1.tmp").write_text("half")
    fit(tmp_path / "cut", holdout=0.25, resume=True)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert not list((tmp_path / "cut").glob(".*.tmp"))


def _fail(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_resume_is_refused_for_other_data_or_settings(tmp_path):
    folder = tmp_path / "run"
    fit(folder)
    before = contents(folder)
    for table, options, message in (
        (make_table(9), {}, "other data, labels or pairs"),
        (dataclasses.replace(make_table(), features=make_table().features + 1), {}, "other data"),
        (None, {"cannot_link": [(20, 21)]}, "other data"),
        (None, {"config": dataclasses.replace(CONFIG, epsilon=0.1)}, "epsilon=0.5, now it is 0.1"),
        (None, {"n_clusters": 4}, "n_clusters=5, now it is 4"),
        (None, {"n_clusters": 3}, "n_clusters=5, now it is 3"),
        (None, {"holdout": 0.01}, "holdout=0.0, now it is 0.01"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(folder, table, resume=True, **options)
    assert contents(folder) == before
    (folder / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings\.json is damaged"):
        fit(folder, resume=True)


def test_resume_is_refused_for_other_cannot_links_between_the_same_rows(tmp_path):
    fit(tmp_path / "run", cannot_link=[(20, 21), (21, 22)])
    with pytest.raises(ValueError, match="other data, labels or pairs"):
        fit(tmp_path / "run", cannot_link=[(20, 21), (20, 22)], resume=True)


def test_another_size_guard_needs_no_training(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"falls into 3 to 3 clusters.*min_cluster_size.*go on with resume=True"):
        fit(tmp_path / "run", n_clusters=4, min_cluster_size=N)
    steps = []
    monkeypatch.setattr(training.ForestModule, "training_step", lambda *a: steps.append(a))
    run = fit(tmp_path / "run", n_clusters=4, min_cluster_size=1, resume=True)
    assert run.metrics["n_clusters"] == 4
    assert not steps
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["min_cluster_size"] == 1


def test_a_folder_with_a_checkpoint_of_another_kind_is_left_alone(tmp_path):
    (tmp_path / "last.ckpt").write_text("precious")
    with pytest.raises(ValueError, match="has a run already"):
        fit(tmp_path)
    assert (tmp_path / "last.ckpt").read_text() == "precious"


# ------------------------------------------------------------------------------------------- two processes, one folder


@pytest.mark.parametrize("resume", [False, True])
def test_two_runs_cannot_write_to_one_folder_at_once(resume, tmp_path, monkeypatch):
    """The second one starts while the first is training; a lock belongs to an open file, not to a process."""
    if resume:
        fit(tmp_path / "run")
    said = []
    start = training.ForestModule.on_fit_start

    def start_another(module):
        if not said:
            try:
                said.append("started")
                fit(tmp_path / "run", resume=True)
            except ValueError as error:
                said[0] = str(error)
        start(module)

    monkeypatch.setattr(training.ForestModule, "on_fit_start", start_another)
    fit(tmp_path / "run", resume=resume)
    assert said == [
        f"Another process is writing a run to {tmp_path / 'run'}. Wait until it has ended, or choose another folder."
    ]
    assert load_run(tmp_path / "run").metrics["n_rows"] == N
    assert not (tmp_path / "run" / ".lock").exists()


def test_of_runs_that_start_at_the_same_moment_one_goes_on(tmp_path, monkeypatch):
    """All have seen an empty folder before the first one claims it."""
    ready, ended = threading.Barrier(4), threading.Barrier(4)
    claim = folder.claim
    monkeypatch.setattr(folder, "claim", lambda place: (ready.wait(60) and None) or claim(place))
    outcomes = []

    def start():
        try:
            with folder.prepare(tmp_path / "run", {}, False):
                outcomes.append("goes on")
                ended.wait(60)
        except ValueError as error:
            outcomes.append(str(error))
            ended.wait(60)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("goes on") == 1
    assert sum("Another process is writing" in each for each in outcomes) == 3


def test_a_run_that_another_process_finished_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    """The folder was empty when this process looked at it first."""
    claim = folder.claim

    def other_is_faster(place):
        (place / "settings.json").write_text("precious")
        return claim(place)

    monkeypatch.setattr(folder, "claim", other_is_faster)
    with pytest.raises(ValueError, match="has a run already"):
        fit(tmp_path / "run")
    assert (tmp_path / "run" / "settings.json").read_text() == "precious"


def test_a_lock_on_a_file_that_was_removed_is_none(tmp_path, monkeypatch):
    """The process that had the lock removes its file between our opening and our locking it."""
    flock, calls = folder.fcntl.flock, []

    def removed_before(descriptor, operation):
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / ".lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(folder.fcntl, "flock", removed_before)
    with folder.claim(tmp_path):
        assert (tmp_path / ".lock").exists()
        with pytest.raises(ValueError, match="Another process"), folder.claim(tmp_path):
            pass


@pytest.mark.slow
def test_a_lock_that_a_killed_run_left_does_not_block(tmp_path):
    fit(tmp_path / "run")
    (tmp_path / "run" / ".lock").touch()
    fit(tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / ".lock").exists()


@pytest.mark.slow
def test_a_disk_without_locks(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(folder.fcntl, "flock", unsupported)
    assert fit(tmp_path / "run").metrics["n_rows"] == N


# ------------------------------------------------------------------------------------------------------- whole files


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_file_as_it_was(step, tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    write_atomically(path, "before")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, "after")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert [each.name for each in tmp_path.iterdir()] == ["file.txt"]
    assert path.read_text() == "before"


def test_errors_name_the_final_file(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "below", tmp_path / "missing" / "below"):
        with pytest.raises(OSError, match="below") as caught:
            write_atomically(path, "x")
        assert caught.value.filename == str(path)


# ------------------------------------------------------------------------------------------------------ what is said


def on_a_line(known, n_clusters=3, truth=(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)):
    """Groups of four points, their partition, and the classes of rows without a label."""
    x = 10.0 * np.repeat([0, 1, 2], 4)[:, None] + np.tile([0, 0.1, 0.2, 0.3], 3)[:, None]
    known = np.array(known)
    return partition(x, Knowledge.join(known), n_clusters), np.where(known >= 0, -1, truth)


@pytest.mark.parametrize(
    ("known", "classes", "covered"),
    [
        ([0, 0, -1, -1, 1, 1, -1, -1, -1, -1, -1, -1], [0, 1, 2], "8 rows of 3 classes, 1 of which nobody labelled"),
        ([0, 0, -1, -1, 1, 1, -1, -1, -1, -1, -1, -1], [0, 1],
         "4 rows of the 2 labelled classes; classes that nobody labelled are not in it"),
        ([0, 0, -1, -1, 1, 1, -1, -1, 2, 2, -1, -1], [0, 1, 2], "6 rows of the 3 labelled classes"),
        ([0, 0, -1, -1, 1, 1, -1, -1, 2, 2, -1, -1], [1], "2 rows of 1 of the 3 labelled classes"),
    ],
)  # fmt: skip
def test_the_headline_says_which_classes_a_score_covers(known, classes, covered):
    found, scored = on_a_line(known)
    scored[~np.isin(scored, classes)] = -1
    sentences = _headline(found, scored, [{"method": "diffclust", "ours": True, "ari": 0.987}])
    number, _, which = covered.partition(" rows ")
    assert sentences == [f"ARI 0.99 on {number} rows whose labels nobody was told, {which}."]


def test_rows_of_one_class_have_no_score():
    table = Table(np.arange(8.0)[:, None], np.array([0] * 4 + [-1] * 4), ["a"], "x")
    scored = np.array([-1, -1, 0, 0, -1, -1, -1, -1])
    assert score_methods(table, scored, np.arange(8) // 4, 2, None, seed=0) == []  # an ARI would be 1 or 0
    found, _ = on_a_line([0, 0, -1, -1, 1, 1, -1, -1, -1, -1, -1, -1])
    assert _headline(found, np.repeat([1, -1], 6), []) == [
        "No score: the rows whose labels nobody was told (6) are of one class."
    ]


def test_the_headline_has_what_hidden_classes_say():
    found, scored = on_a_line([0, 0, -1, -1, 1, 1, -1, -1, -1, -1, -1, -1])
    found = dataclasses.replace(found, evidence=dataclasses.replace(found.evidence, new_classes=0.714))
    (sentence,) = _headline(found, np.full_like(scored, -1), [])
    assert sentence.startswith("New classes: when some labelled classes were hidden")
    assert sentence.endswith("ARI 0.71.")


def test_clusters_by_labels_with_weights_have_no_score_of_a_cut():
    truth = np.repeat([0, 1, 2], 40)
    points = np.random.default_rng(0).normal(size=(120, 2)) + 5 * np.eye(3)[truth][:, :2]
    known = Knowledge.join(np.where(np.arange(120) % 4 == 0, truth, -1), label_weights=2.0)
    found = partition(points, known, 3, cut="auto", rows=points, retrain=lambda rest: points)
    assert found.evidence.scores
    assert found.evidence.cut not in found.evidence.scores
    module = SimpleNamespace(scaling=SimpleNamespace(chosen="column"), input_shape=(2,))
    assert _remarks(module, found) == ["Scaling of the columns: column."]


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            [0, 0, -1, -1, 1, 1, -1, -1, -1, -1, -1, -1],
            [
                "Cut: k-means, of 2 that were compared; hidden labels were found again with ARI 0.41.",
                "There are probably 2 to 4 clusters",
            ],
        ),
        ([0, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1], ["share of rows with hidden labels", "one class say little"]),
    ],
)
def test_remarks_on_one_class_do_not_speak_of_hidden_classes(known, said):
    found, _ = on_a_line(known)
    evidence = dataclasses.replace(
        found.evidence,
        cut="k-means",
        scores={"k-means": 0.41},
        agreement={"forest": 0.2, "k-means": 0.3},
        n_clusters=3,
        candidates={2: 0.5, 3: 0.5, 4: 0.4},
        interval=(2, 4),
    )
    module = SimpleNamespace(scaling=SimpleNamespace(chosen="column"), input_shape=(1,))
    remarks = _remarks(module, dataclasses.replace(found, evidence=evidence))
    assert [part in remark for part, remark in zip(said, remarks[1:], strict=True)] == [True, True], remarks


def test_reliability_counts_right_rows():
    found, scored = on_a_line(
        [0, -1, -1, -1, 1, -1, -1, -1, -1, -1, -1, -1], truth=(0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 3)
    )
    confidence = np.array([1, 0.92, 0.98, 0.25, 1, 0.21, 1, 1, 0.5, 0.5, 0.5, 0.5])
    assert reliability(found, confidence, np.full_like(scored, -1)) is None
    measured = reliability(found, confidence, scored)
    assert measured["rows"] == 10
    bins = {each["low"]: (each["rows"], round(each["confidence"], 3), each["right"]) for each in measured["bins"]}
    # Class 3 has no cluster of its own, and one row of class 1 is in the cluster of class 0.
    assert bins == {0.2: (2, 0.23, 0.5), 0.5: (4, 0.5, 0.75), 0.9: (4, 0.975, 1.0)}
    error = (2 * 0.27 + 4 * 0.25 + 4 * 0.025) / 10
    assert measured["expected_calibration_error"] == pytest.approx(error)


def test_a_class_that_swallows_rows_is_named():
    x = np.concatenate([np.linspace(0, 1, 90), [5.0, 5.1, 5.2, 5.3, 5.4, 9.0, 9.1, 9.2, 9.3, 9.4]])[:, None]
    known = np.full(100, -1)
    known[[0, 90, 91, 92, 93]] = [0, 1, 1, 1, 1]
    found = partition(x, Knowledge.join(known), 3, min_cluster_size=2)
    assert _warnings(found, ["[red]cat", "dog"]) == [
        "The cluster of class [red]cat has 90% of the rows, but only 20% of the labels are of that class: it may hold "
        "a class that nobody labelled."
    ]
