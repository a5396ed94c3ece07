"""Damaged and mixed run folders: each is opened with the right answer or refused in one sentence, never in between."""

import collections
import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightning")
pytest.importorskip("typer")
torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

from diffclust import cli, messages, report, training  # noqa: E402
from diffclust.files import write_atomically  # noqa: E402
from diffclust.runs import load_run  # noqa: E402
from diffclust.runs.folder import FILES, FORMAT, MANIFEST, write_manifest  # noqa: E402

N = 24
TRUTH = np.arange(N) % 3
UNREAD = ("report.html", "log")
FIT = ["--steps", "6", "--batch-size", "16", "--draws", "3", "--backbone", "linear"]
FIT += ["--device", "cpu", "--holdout", "0", "--quiet", "--cut", "forest"]


def write_data(name, seed, truth):
    rows = np.random.default_rng(seed).normal(size=(N, 4)) + 6 * np.eye(4)[truth]
    np.save(f"{name}.npy", rows.astype(np.float32))
    np.save(f"{name} labels.npy", np.where(np.arange(N) < 12, truth, -1))


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(each) for each in arguments])


def fit(name, out, *more):
    return call("fit", f"{name}.npy", "--labels", f"{name} labels.npy", *FIT, "--out", out, *more)


def resume(out):
    return fit("run", out, "--resume")


def sentence(result):
    """The one line of an error."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    assert line.endswith(".")
    assert "Traceback" not in line
    return line.removeprefix("Error: ")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two finished runs, "run" and "other", of the same settings on other data, and both cut at step 3."""
    folder, here = tmp_path_factory.mktemp("runs"), Path.cwd()
    os.chdir(folder)
    write_data("run", 0, TRUTH)
    write_data("other", 1, TRUTH[::-1])
    write_data("new", 2, TRUTH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_report", lambda data, path: write_atomically(path, "<html></html>"))
        for name in ("run", "other"):
            result = fit(name, name)
            assert result.exit_code == 0, result.output
            with pytest.MonkeyPatch.context() as failing:
                failing.setattr(training.ForestModule, "on_train_batch_start", _fail_at_3)
                assert "The disk is full" in sentence(fit(name, f"{name} cut"))
        yield folder
    os.chdir(here)


def _fail_at_3(module, batch, index, start=training.ForestModule.on_train_batch_start):
    if module.global_step == 3:
        raise OSError(errno.ENOSPC, "No space left on device")
    start(module, batch, index)


def copy(name, to="damaged"):
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(name, to))


# ------------------------------------------------------------------------------------------------------- corruptions


def truncate(path, other, rng):
    path.write_bytes(path.read_bytes()[: rng.integers(1, path.stat().st_size)])


def lengthen(path, other, rng):
    path.write_bytes(path.read_bytes() + rng.bytes(rng.integers(1, 100)))


def flip(path, other, rng):
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)


def blank(path, other, rng):
    """A block of zeros, as a lost sector leaves it."""
    content = bytearray(path.read_bytes())
    start = rng.integers(len(content))
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    path.write_bytes(content)


def empty(path, other, rng):
    path.write_bytes(b"")


def delete(path, other, rng):
    path.unlink()


def swap(path, other, rng):
    shutil.copy(other / path.name, path)


def change_format(path, other, rng):
    manifest = path.parent / MANIFEST
    content = json.loads(manifest.read_text())
    content |= {"format": int(rng.choice([0, 1, FORMAT + 1, 99])), "diffclust": "7.8.9"}
    manifest.write_text(json.dumps(content))


def change_version(path, other, rng):
    """Another version that writes the same format is no damage."""
    manifest = path.parent / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "diffclust": "7.8.9"}))


ANY_FILE = (truncate, lengthen, flip, blank, empty, delete, swap)
OF_MANIFEST = (change_format, change_version)


def damage(folder, other, rng):
    """One random corruption; its name and that of the file."""
    kind = rng.choice([*ANY_FILE, *OF_MANIFEST])
    files = [*FILES, MANIFEST, "report.html", next((folder / "log").iterdir()).relative_to(folder)]
    name = Path(rng.choice(files)) if kind in ANY_FILE else Path(MANIFEST)
    if kind is swap and name.parent != Path():
        name = Path("report.html")
    kind(folder / name, other, rng)
    return kind.__name__, name


@pytest.mark.slow
def test_200_corruptions_are_right_or_refused(home):
    rng = np.random.default_rng(16)
    places = call("cluster", "run", "new.npy").stdout
    assert places.count("\n") == N + 1
    right = load_run("run")
    counts = collections.Counter()
    for _ in range(200):
        folder = copy("run")
        kind, name = damage(folder, Path("other"), rng)
        result = call("cluster", folder, "new.npy")
        if result.exit_code == 0:
            assert result.stdout == places, (kind, name)
            run = load_run(folder)
            for part in ("embeddings", "clusters", "confidence"):
                np.testing.assert_array_equal(getattr(run, part), getattr(right, part))
            np.testing.assert_array_equal(run.hierarchy.edges, right.hierarchy.edges)
            assert (run.names, run.metrics, run.settings) == (right.names, right.metrics, right.settings)
            harmless = str(name).startswith(UNREAD) or kind == "change_version"
            # A manifest may differ in a blank or in the version.
            assert harmless or name == Path(MANIFEST), (kind, name)
            counts["right"] += 1
            continue
        message = sentence(result)
        assert str(folder) in message
        with pytest.raises(ValueError, match=folder.name) as caught:
            load_run(folder)
        assert messages.in_flags(str(caught.value)) == message
        assert not str(name).startswith(UNREAD), (kind, name)
        assert kind != "change_version"
        if kind == "change_format":
            assert "written by diffclust 7.8.9" in message
        elif name != Path(MANIFEST):
            assert name.name in message
        assert any(way in message for way in ("from a copy", "--resume", "run again"))
        counts["refused"] += 1
    assert counts.total() == 200
    assert min(counts.values()) > 20
    print(counts)


@pytest.mark.parametrize(
    "change", [{"edges": np.full((N - 1, 2), N)}, {"edges": np.zeros((N - 1, 1), int)}, {"n_fixed": -9}]
)
def test_compiled_code_does_not_read_outside_of_a_tree(change, home):
    """Whoever changes a file can change its hash as well."""
    folder = copy("run")
    with np.load(folder / "hierarchy.npz") as saved:
        np.savez(folder / "hierarchy.npz", **{**saved, **change})
    write_manifest(folder)
    with pytest.raises(ValueError, match=r"hierarchy\.npz is damaged: its edges"):
        load_run(folder)


def rewrite(change):
    """A corruption by a program: a checkpoint that torch.load reads."""

    def corrupt(path, other, rng):
        state = torch.load(path, weights_only=True)
        change(state)
        torch.save(state, path)

    corrupt.__name__ = change.__name__
    return corrupt


@rewrite
def no_optimiser(state):
    del state["optimizer_states"]


@rewrite
def empty_optimiser(state):
    state["optimizer_states"] = []


@rewrite
def no_moments(state):
    state["optimizer_states"][0]["state"] = {}


@rewrite
def other_moments(state):
    moments = state["optimizer_states"][0]["state"][0]
    moments["exp_avg"] = moments["exp_avg"][:1]  # AdamW would broadcast it


@rewrite
def other_shapes(state):
    weights = state["state_dict"]
    weights["backbone.1.weight"] = weights["backbone.1.weight"][:3]


@rewrite
def no_weights(state):
    state["state_dict"] = {}


@rewrite
def no_settings(state):
    del state["hyper_parameters"]


@rewrite
def other_settings(state):
    state["hyper_parameters"]["config"]["epsilon"] = 3.0


@rewrite
def no_loops(state):
    del state["loops"]


@rewrite
def nothing(state):
    state.clear()


BY_PROGRAM = (
    no_optimiser,
    empty_optimiser,
    no_moments,
    other_moments,
    other_shapes,
    no_weights,
    no_settings,
    other_settings,
    no_loops,
    nothing,
)


def assert_same_result(folder, other):
    for name in ("clusters.csv", "embeddings.npy"):
        assert (Path(folder) / name).read_bytes() == (Path(other) / name).read_bytes(), name


@pytest.mark.slow
def test_corruptions_of_an_interrupted_run_are_right_or_refused(home):
    rng = np.random.default_rng(16)
    random = [kind for kind in (truncate, flip, blank, empty, swap) for _ in range(4)]
    cases = [(kind, training.LAST) for kind in (*BY_PROGRAM, *random, delete)]
    cases += [(kind, "settings.json") for kind in (truncate, empty, swap, delete)]
    counts = collections.Counter()
    for kind, name in cases:
        folder = copy("run cut")
        assert not (folder / MANIFEST).exists()
        kind(folder / name, Path("other cut"), rng)
        result = resume(folder)
        if result.exit_code == 0:  # no checkpoint, or a flipped bit in its padding
            assert kind in (delete, flip, blank), kind
            assert_same_result(folder, "run")
            counts["right"] += 1
            continue
        message = sentence(result)
        assert str(folder) in message
        if name == training.LAST:
            assert name in message
            assert "from a copy" in message
        assert not (folder / MANIFEST).exists()
        counts["refused"] += 1
    assert counts["refused"] >= 20
    print(counts)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES[1:], MANIFEST])
def test_the_way_out_leads_out(name, home):
    """--resume writes again what is damaged; a damaged checkpoint has to be deleted first."""
    folder = copy("run")
    truncate(folder / name, None, np.random.default_rng(3))
    if name == training.LAST:
        message = sentence(call("cluster", folder, "new.npy"))
        assert "delete it and use --resume, which then trains from the start" in message
        sentence(resume(folder))
        (folder / name).unlink()
    result = resume(folder)
    assert result.exit_code == 0, result.output
    assert_same_result(folder, "run")
    assert call("cluster", folder, "new.npy").stdout == call("cluster", "run", "new.npy").stdout


def test_an_interrupted_resume_leaves_no_manifest(home, monkeypatch):
    folder = copy("run")
    monkeypatch.setattr(training, "embed", lambda *arguments: {}["killed"])
    assert isinstance(resume(folder).exception, KeyError)
    assert not (folder / MANIFEST).exists()
    assert f"{folder / MANIFEST} is missing. Go on with it by --resume" in sentence(call("cluster", folder, "new.npy"))


def test_a_run_can_be_renamed_and_go_on_elsewhere(home):
    copy("run", "renamed")
    shutil.rmtree("renamed/log")
    Path("renamed/report.html").unlink()
    assert call("cluster", "renamed", "new.npy").stdout == call("cluster", "run", "new.npy").stdout
    copy("run cut", "renamed")
    assert resume("renamed").exit_code == 0
    assert_same_result("renamed", "run")
