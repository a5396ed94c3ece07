"""The recipes on images, in seconds: every one runs, goes on after it was killed, and is the same on two ranks."""

import csv
import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("lightning")
torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

from diffclust.training import embed, load  # noqa: E402
from experiments import data, evaluation, images, networks, recipes  # noqa: E402
from experiments.__main__ import app  # noqa: E402
from processes import on_ranks, python_m  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
NAMES = [name for name, cls in recipes.RECIPES.items() if issubclass(cls, images.ImageRecipe)]


def run(*arguments, out):
    result = CliRunner().invoke(app, ["run", *arguments, "--tiny", "--out", str(out)])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads((out / "numbers.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe(name, tmp_path):
    content = run(name, "--seeds", "0", out=tmp_path)
    recipe = recipes.RECIPES[name].tiny()
    cells = content["numbers"]["cells"]
    assert len(cells) == len(recipe.methods) * len(recipe.withheld)
    parts = data.split(data.load("digits"), recipe.n_probe, validate=recipe.training.patience is not None)
    for cell, found in cells.items():
        module = load(tmp_path / "cells" / f"{cell}.ckpt")
        assert len(module.loss_curve) == found["steps"] == recipe.training.n_steps
        # What is written down is what the checkpoint does.
        scores = evaluation.batch_scores(embed(module, parts.test[0]), parts.test[1])
        assert scores["error"] == pytest.approx(found["batches"]["error"], abs=0.02)
        assert 0 <= found["probe_error"] < 0.9
        assert len(found["validations"]) == (2 if parts.validation else 0)
    with (tmp_path / "scores.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(cells)
    assert (tmp_path / "tsne.png").stat().st_size > 5000
    assert (tmp_path / "loss.png").stat().st_size > 3000
    assert not list(tmp_path.glob("training-*"))


@pytest.mark.slow
def test_the_grid_has_its_figure(tmp_path):
    run("semi-mnist", "--seeds", "0", "--set", "n_labels=50,100", "--set", "withheld=0", out=tmp_path)
    assert (tmp_path / "grid.png").stat().st_size > 5000


SMALL = ["--seeds", "0", "--set", "withheld=0", "--set", "figures=false", "--set", "n_steps=20"]


COMMAND = ("experiments", "run", "ours-mnist", "--tiny", *SMALL, "--out")


def scores_of(folder):
    cells = json.loads((folder / "numbers.json").read_text())["numbers"]["cells"]
    return {name: [found["batches"]["error"], found["whole"]["k-means"]["all"]["ari"]] for name, found in cells.items()}


def finish(process):
    _, errors = process.communicate()
    assert process.returncode == 0, errors


@pytest.mark.slow
def test_killed_and_resumed_and_on_two_ranks(tmp_path):
    finish(python_m(*COMMAND, tmp_path / "whole"))
    expected = scores_of(tmp_path / "whole")
    # Killed while it trains, as soon as a folder of the training is there.
    killed = python_m(*COMMAND, tmp_path / "killed")
    while not list((tmp_path / "killed").glob("training-*")) and killed.poll() is None:
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    finish(python_m(*COMMAND, tmp_path / "killed", "--resume"))
    assert scores_of(tmp_path / "killed") == expected
    for rank in on_ranks(2, *COMMAND, tmp_path / "ranks"):
        finish(rank)
    for name, values in scores_of(tmp_path / "ranks").items():
        assert values == pytest.approx(expected[name], abs=0.05)  # another order of sums


def test_parts():
    digits = data.load("digits")
    parts = data.split(digits, 100, validate=True)
    assert np.bincount(parts.probe[1]).tolist() == [10] * 10
    assert len(parts.training[0]) == 1100
    assert len(parts.test[0]) + len(parts.validation[0]) == len(digits.x_test)
    assert np.array_equal(np.concatenate([parts.test[0], parts.validation[0]]), digits.x_test)
    assert data.split(digits, 100, validate=False).validation is None
    seen = np.concatenate([parts.training[0], parts.probe[0]]).reshape(1200, -1)
    assert np.array_equal(np.sort(seen, axis=0), np.sort(digits.x_train.reshape(1200, -1), axis=0))


def test_given_classes_are_withheld():
    y = np.repeat(np.arange(10), 20)
    known, hidden = data.choose_labels(y, 50, range(3), seed=1)
    assert hidden.tolist() == [0, 1, 2]
    assert set(known) == {-1, *range(3, 10)}
    assert (known >= 0).sum() == 50
    with pytest.raises(ValueError, match="asks for 21 labels of class 0, which has 20"):
        data.choose_labels(y, 205)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "shape", "parameters"),
    [(networks.lenet, (28, 28), 887_680), (networks.resnet50, (3, 32, 32), 24_024_896),
     (networks.resnet18, (3, 32, 32), 11_300_160)],
)  # fmt: skip
def test_networks(network, shape, parameters):
    model = network(shape)
    assert sum(each.numel() for each in model.parameters()) == parameters
    x = torch.rand(3, *shape)
    assert model(x).shape == (3, 256)
    model(x).sum().backward()
    assert all(each.grad is not None for each in model.parameters())
