"""The training loop: batches, validation, checkpoints, and that a killed and resumed run is the run that was not."""

import dataclasses
import importlib
import itertools
import json
import logging
import os
import pickle
import signal
import sys
import tempfile
import threading
import warnings

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA

pytest.importorskip("lightning")
torch = pytest.importorskip("torch")

from lightning.pytorch.callbacks import Callback, LambdaCallback  # noqa: E402

import diffclust as dc  # noqa: E402
from diffclust.backbones import BACKBONES, InputScaling, choose_scaling, make_backbone  # noqa: E402
from diffclust.training import TrainingConfig, embed, fit, fit_many, load, loop  # noqa: E402
from diffclust.training.data import (  # noqa: E402
    LONGEST_BLOCK,
    ForestData,
    as_labels,
    as_rows,
    batch_moves,
    batch_rows,
    lend_labels,
    longest_shift,
    move_images,
    mutual_others,
    shape_of_batch,
)
from diffclust.training.module import ForestModule, make_module, pair_scores  # noqa: E402
from diffclust.training.steps import Steps, seed_step  # noqa: E402
from processes import Process  # noqa: E402


def make_data(n=120, n_labels=30, seed=0):
    """Three blobs in five dimensions, some rows labelled."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.normal(size=(n, 5)).astype(np.float32) + 4 * np.eye(5, dtype=np.float32)[y]
    known = np.where(rng.permutation(n) < n_labels, y, -1)
    return x, y, known


def make_config(**changes):
    settings = {
        "n_clusters": 3, "embedding_dim": 4, "epsilon": 0.3, "n_draws": 5, "batch_size": 40, "labelled_fraction": 0.5,
        "n_steps": 20, "validate_every": 5, "device": "cpu", "seed": 7,
    }  # fmt: skip
    return TrainingConfig(**{**settings, **changes})


def weights_of(module):
    return {name: value.numpy() for name, value in module.state_dict().items()}


def assert_same_weights(a, b):
    a, b = weights_of(a), weights_of(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


# ---------------------------------------------------------------------------------------------------------- batches


def test_views_of_a_row_belong_together_and_other_rows_as_labels_say():
    config = make_config(views=2, augment="shift", least_labels=1)
    data = ForestData(config, torch.zeros(3, 4, 4), torch.tensor([0, 1, -1]), None)
    _, known = data.take("training", torch.tensor([0, 1, 2, 0, 1, 2]), None)
    unknown = np.nan
    rows = np.array([[1, 0, unknown], [0, 1, unknown], [unknown, unknown, 1]])
    np.testing.assert_array_equal(np.asarray(known.matrix()), np.tile(rows, (2, 2)))


def test_batches_are_a_function_of_seed_and_step():
    labelled, unlabelled = np.arange(50), np.arange(50, 1000)
    rows = batch_rows(1, 5, labelled, unlabelled, 64, 32)
    np.testing.assert_array_equal(rows, batch_rows(1, 5, labelled, unlabelled, 64, 32))
    for other in (batch_rows(2, 5, labelled, unlabelled, 64, 32), batch_rows(1, 6, labelled, unlabelled, 64, 32)):
        assert not np.array_equal(rows, other)


@pytest.mark.parametrize(
    ("n_labelled", "n_unlabelled", "expected"),
    [(50, 950, 32), (10, 990, 10), (990, 10, 54), (100, 0, 64), (40, 24, 40)],
)
def test_share_of_labelled_rows(n_labelled, n_unlabelled, expected):
    labelled, unlabelled = np.arange(n_labelled), np.arange(n_labelled, n_labelled + n_unlabelled)
    rows = batch_rows(0, 0, labelled, unlabelled, 64, 32)
    assert len(rows) == len(set(rows)) == 64
    assert (rows < n_labelled).sum() == expected


def test_negative_and_masked_labels_are_unknown():
    assert as_labels(np.array([0, -100, -2, 3]), 4).tolist() == [0, -1, -1, 3]
    assert as_labels(np.ma.masked_array([0, 1, 2, 3], mask=[0, 1, 0, 0]), 4).tolist() == [0, -1, 2, 3]
    with pytest.raises(ValueError, match="x has masked entries"):
        as_rows(np.ma.masked_array(np.zeros((2, 2)), mask=np.eye(2)))


def test_validation_rows_are_held_out():
    x, _, known = make_data()
    data = ForestData(make_config(validation_fraction=0.2), as_rows(x), as_labels(known, len(x)), None)
    (rows,) = data.validation_rows
    held_out = set(np.flatnonzero(known >= 0)) - set(data.labelled)
    assert len(held_out) == 6
    assert held_out == {int(i) for i in rows if known[i] >= 0}
    assert len(rows) == 40
    trained_on = {int(i) for step in range(50) for i in data.rows_of_step(step)}
    assert not held_out & trained_on


# ----------------------------------------------------------------------------------------------------- few labels


def naive_lending(x, labels, least):
    """By Lloyd's iteration from the means of the classes; as many clusters as classes."""
    x = x.reshape(len(x), -1).astype(np.float64)
    names, taking_part = np.unique(labels[labels >= 0]), labels >= -1
    middles, before = np.array([x[labels == name].mean(0) for name in names]), None
    while True:
        distances = ((x[:, None] - middles) ** 2).sum(-1)
        cluster = distances.argmin(1)
        if np.array_equal(cluster, before):
            break
        middles = np.array([x[taking_part & (cluster == number)].mean(0) for number in range(len(names))])
        before = cluster
    lent = labels.copy()
    for number, name in enumerate(names):
        takers = sorted(np.flatnonzero((labels == -1) & (cluster == number)), key=lambda i, k=number: distances[i, k])
        lent[takers[: max(0, least - (labels == name).sum())]] = name
    return lent


@pytest.mark.parametrize("seed", range(10))
def test_small_classes_lend_their_label_to_rows_in_their_middle(seed):
    rng = np.random.default_rng(seed)
    n, least = int(rng.integers(20, 60)), int(rng.integers(1, 7))
    truth = rng.integers(0, 3, n)
    shape = (4, 3) if seed % 2 else (4,)
    x = (rng.normal(size=(n, *shape)) + 2 * truth.reshape(n, *[1] * len(shape))).astype(np.float32)
    labels = np.where(rng.random(n) < 0.2, np.array([0, 1, 5])[truth], -1)
    labels[rng.integers(0, n, 3)] = -2
    labels[[np.argmax(truth == c) for c in range(3)]] = [0, 1, 5]
    found = lend_labels(torch.tensor(x), torch.tensor(labels), least, 3, "none")
    np.testing.assert_array_equal(found, naive_lending(x, labels, least))
    np.testing.assert_array_equal(found[labels != -1], labels[labels != -1])


def test_a_label_at_the_edge_of_its_class_is_lent_to_its_middle():
    x = torch.tensor([0.0, 0.9, 1.0, 1.1, 2.0, 2.1, 3.9, 4.0, 4.1, 5.0])[
        :, None
    ]  # row 5 is the edge of the first class
    labels = torch.tensor([-1, -1, -1, -1, -1, 0, -1, -1, -1, 1])
    assert lend_labels(x, labels, 2, 2, "none").tolist() == [-1, -1, -1, 0, -1, 0, -1, -1, 1, 1]


def test_clusters_that_nobody_labelled_get_no_label():
    """Three clusters, two of them labelled once: the third has a middle of its own, and rows of neither class."""
    rng = np.random.default_rng(0)
    truth = np.repeat(range(3), 30)
    x = torch.tensor(rng.normal(size=(90, 2)) * 0.3 + 4 * np.array([[0, 0], [1, 0], [0, 1]])[truth]).float()
    labels = torch.full((90,), -1)
    labels[[0, 30]] = torch.tensor([0, 1])
    for seed in range(5):
        lent = lend_labels(x, labels, 5, 3, seed=seed).numpy()
        assert [(lent == label).sum() for label in (0, 1)] == [5, 5]
        np.testing.assert_array_equal(truth[lent >= 0], lent[lent >= 0])


def test_labels_are_lent_in_the_scaled_input():
    x = torch.tensor([[0.0, 0.0], [0.0, 50.0], [3.0, 0.0], [4.0, 1000.0]])
    labels = torch.tensor([0, -1, -1, 1])
    assert lend_labels(x, labels, 2, 2, "none").tolist() == [0, -1, 0, 1]
    assert lend_labels(x, labels, 2, 2, "column").tolist() == [0, 0, -1, 1]


@pytest.mark.parametrize("n_clusters", [1, 2, 5, 9])
def test_lending_where_there_is_next_to_nothing(n_clusters):
    """Rows that are all equal, fewer rows than clusters."""
    labels = torch.tensor([0, 1, -1, -1])
    assert lend_labels(torch.zeros(4, 3), labels, 3, n_clusters)[:2].tolist() == [0, 1]
    x = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
    assert lend_labels(x, labels, 1, n_clusters).tolist() == labels.tolist()
    assert lend_labels(x, labels, 3, n_clusters)[:2].tolist() == [0, 1]


def test_training_takes_lent_labels_but_not_those_of_held_out_rows():
    x, _, known = make_data(n=200)
    for label in range(3):
        known[np.flatnonzero(known == label)[2:]] = -1
    rows, labels = as_rows(x), as_labels(known, len(x))
    data = ForestData(make_config(least_labels=4), rows, labels, None)
    trained = data.sets["training"][1].numpy()
    assert np.bincount(trained[data.labelled]).tolist() == [4, 4, 4]
    assert sorted([*data.labelled, *data.unlabelled]) == list(range(200))
    np.testing.assert_array_equal(trained[known >= 0], known[known >= 0])
    off = ForestData(make_config(least_labels=1), rows, labels, None)
    np.testing.assert_array_equal(off.labelled, np.flatnonzero(known >= 0))
    held = ForestData(make_config(least_labels=4, validation_fraction=0.5), rows, labels, None)
    held_out = {int(i) for i in held.validation_rows[0] if known[i] >= 0}
    assert not held_out & ({*held.labelled} | {*held.unlabelled})
    crowd = ForestData(make_config(least_labels=4, n_clusters=20), rows, labels, None)  # a fifth of a cluster is two
    assert len(crowd.labelled) == 6
    pairs = ForestData(make_config(least_labels=4), rows, labels, None, apart=np.zeros((3, 3), bool))
    assert len(pairs.labelled) == 6


def test_scores_of_pairs_are_those_of_metrics():
    rng = np.random.default_rng(0)
    labels, found = rng.integers(-3, 4, (30, 12)), rng.integers(0, 4, (30, 12))
    labels[:, 0] = 1
    labels[0], found[0] = np.arange(12), np.arange(12)  # perfect, by single points
    labels[1, 1:] = -1  # one labelled point
    errors, indices = pair_scores(torch.from_numpy(found), torch.from_numpy(labels))
    for error, ari, true, pred in zip(errors, indices, labels, found, strict=True):
        scores = dc.metrics.clustering_scores(true[true >= 0], pred[true >= 0])
        assert (float(error), float(ari)) == (scores["error"], scores["ari"])


@pytest.mark.parametrize("train", [fit, lambda config, x, y, **options: fit_many([config], x, [y], **options)[0]])
def test_validation_batches_without_a_label_are_left_out(train):
    x, y, known = make_data()
    few = np.where(np.arange(120) == 17, y, -1)
    config = make_config(n_steps=5)
    module = train(config, x, known, validation=(x, few), progress=False)
    assert np.isfinite(list(module.validations[0].values())).all()
    with pytest.raises(ValueError, match="has no known label"):
        train(config, x, known, validation=(x, np.full(120, -1)), progress=False)


def test_validation_in_full_batches():
    x, y, _ = make_data(n=120)
    data = ForestData(make_config(batch_size=50), as_rows(x), as_labels(y, len(x)), (as_rows(x), as_labels(y, len(x))))
    assert [len(rows) for rows in data.validation_rows] == [50, 50]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((6, 3), (6, 3)), ((6, 9, 8), (6, 9, 8)), ((6, 9, 8, 3), (6, 3, 9, 8)), ((6, 3, 9, 8), (6, 3, 9, 8))],
)
def test_images_have_their_channels_first(shape, expected):
    assert as_rows(np.zeros(shape)).shape == expected


def test_bytes_stay_bytes():
    assert as_rows(np.zeros((2, 8, 8), np.uint8)).dtype == torch.uint8
    assert as_rows(np.zeros((2, 8, 8), np.int64)).dtype == torch.float32


def test_rows_that_cannot_be_written_are_neither_copied_nor_warned_of(recwarn):
    x = np.zeros((2, 3), np.float32)
    x.setflags(write=False)
    assert as_rows(x).data_ptr() == x.ctypes.data
    assert not recwarn.list


@pytest.mark.parametrize("kind", ["shift", "shift-flip", "shift-flip-cut"])
@pytest.mark.parametrize("shape", [(40, 8, 9), (40, 3, 32, 32)])
def test_moved_images(shape, kind):
    x, reach = torch.rand(shape), min(shape[-2:]) // 8
    moves = batch_moves(1, 5, len(x), shape, kind)
    assert np.array_equal(moves, batch_moves(1, 5, len(x), shape, kind))
    assert not np.array_equal(moves, batch_moves(1, 6, len(x), shape, kind))
    assert set(moves[:, :2].ravel()) == set(range(-reach, reach + 1))
    assert set(moves[:, 2]) == ({0} if kind == "shift" else {0, 1})
    moved = move_images(x, torch.from_numpy(moves))
    for image, result, (down, right, mirrored, *hole) in zip(x, moved, moves, strict=True):
        expected = torch.roll(image.flip(-1) if mirrored else image, (down, right), (-2, -1))
        for axis, by in ((-2, down), (-1, right)):
            gap = torch.arange(shape[axis])
            gap = gap < by if by > 0 else gap >= shape[axis] + by
            expected.movedim(axis, 0)[gap] = 0
        if hole:
            half = min(shape[-2:]) // 4
            rows, columns = (slice(max(0, middle - half), middle + half) for middle in hole)
            expected[..., rows, columns] = 0
        assert len(hole) == (2 if kind == "shift-flip-cut" else 0)
        assert torch.equal(result, expected)


def test_images_are_moved_by_an_eighth_of_the_shorter_side_and_by_a_pixel_at_least():
    assert [longest_shift(shape) for shape in ((7, 90), (3, 15, 16), (3, 17, 16), (32, 24))] == [1, 1, 2, 3]


# ------------------------------------------------------------------------------------------------------------- noise


def test_noise_that_grows():
    """By the same factor in every step, from the first to the last; the trained loss has the last one's."""
    x, _, known = make_data()
    config = make_config(epsilon=0.8, noise_start=0.125, n_steps=4)
    assert [round(0.8 * config.noise_scale(step), 6) for step in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert make_config().noise_scale(3) == 1.0
    growing, constant = fit(config, x, known, progress=False), fit(make_config(epsilon=0.1), x, known, progress=False)
    np.testing.assert_allclose(growing.loss_curve[0], constant.loss_curve[0], rtol=1e-5)
    assert not np.isclose(growing.loss_curve[1], constant.loss_curve[1], rtol=1e-3)
    assert float(growing.loss.noise_scale) == 1.0


GROWING = {"epsilon": 0.8, "noise_start": 0.125, "n_steps": 25, "backbone": "mlp"}


def test_loss_at_the_final_noise_is_measured_and_changes_nothing(tmp_path, monkeypatch):
    """Every so many steps and at the end, where it is the loss of the trained network."""
    monkeypatch.setattr("diffclust.training.module.LEAST_STEPS", 10)
    x, _, known = make_data()
    config = make_config(**GROWING)
    module = fit(config, x, known, folder=tmp_path, progress=False)
    assert [each["step"] for each in module.final_noise_losses] == [0, 10, 20, 25]
    assert module.final_noise_losses[-1]["loss"] < module.final_noise_losses[0]["loss"]
    assert load(tmp_path / "last.ckpt").final_noise_losses == module.final_noise_losses
    data = ForestData(module.config, torch.from_numpy(x).float(), torch.from_numpy(known), None)
    rows, labels = data.take("training", data.rows_of_step(0), None)
    with torch.no_grad():
        loss = dc.nn.PartialFenchelYoungLoss(
            module.config.k, epsilon=0.8, n_draws=config.n_draws, seed=config.seed
        ).eval()(module(rows), labels)
    assert float(loss) == pytest.approx(module.final_noise_losses[-1]["loss"], rel=1e-5)
    monkeypatch.setattr(ForestModule, "_measure_at_final_noise", lambda self, step: None)
    assert_same_weights(module, fit(config, x, known, progress=False))
    assert fit(make_config(), x, known, progress=False).final_noise_losses == []  # its noise is the same in all steps


class StopsAtValidation(Callback):
    def on_validation_end(self, trainer, pl_module):
        trainer.should_stop = True


def test_losses_at_the_final_noise_are_numbers_where_training_ends_early(monkeypatch):
    monkeypatch.setattr("diffclust.training.module.LEAST_STEPS", 5)
    x, _, known = make_data()
    config = make_config(**GROWING, validation_fraction=0.3, validate_every=8)
    module = fit(config, x, known, callbacks=[StopsAtValidation()], progress=False)
    assert [each["step"] for each in module.final_noise_losses] == [0, 5]
    assert all(isinstance(each["loss"], float) for each in module.final_noise_losses)


def test_loss_at_the_final_noise_is_the_same_after_a_resume(tmp_path, monkeypatch):
    monkeypatch.setattr("diffclust.training.module.LEAST_STEPS", 5)  # also at the step of the checkpoint
    x, _, known = make_data()
    whole = fit(make_config(**GROWING), x, known, progress=False)
    with pytest.raises(RuntimeError, match="disk"):
        fit(make_config(**GROWING), x, known, folder=tmp_path, callbacks=[FailAt()], progress=False)
    last = tmp_path / "last.ckpt"
    resumed = fit(make_config(**GROWING), x, known, folder=tmp_path, resume=last, progress=False)
    assert resumed.final_noise_losses == whole.final_noise_losses
    again = fit(make_config(**GROWING), x, known, folder=tmp_path, resume=last, progress=False)
    assert again.final_noise_losses == whole.final_noise_losses


# --------------------------------------------------------------------------------------------------------- backbones


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (3, 28, 28), (9, 13), (3, 32, 32)])
@pytest.mark.parametrize("name", BACKBONES)
def test_named_backbones(name, shape):
    assert make_backbone(name, shape, 6).eval()(torch.zeros(2, *shape)).shape == (2, 6)


def test_a_committee_is_the_mean_of_networks_that_learn_by_themselves(tmp_path):
    x, _, known = make_data()
    start = fit(make_config(backbone="committee", learning_rate=1e-12, n_steps=1), x, known, progress=False)
    alone = fit(make_config(backbone="residual", learning_rate=1e-12, n_steps=1), x, known, progress=False)
    np.testing.assert_allclose(embed(start, x), embed(alone, x), rtol=1e-4, atol=1e-5)
    module = fit(make_config(backbone="committee", n_steps=5), x, known, progress=False, folder=tmp_path)
    scaled = module.scaling(torch.from_numpy(x))
    with torch.no_grad():
        each = torch.stack([network(scaled) for network in module.backbone.networks])
        np.testing.assert_array_equal(module.backbone.train()(scaled), each)
    assert all(not torch.allclose(each[0], other, rtol=1e-2) for other in each[1:])
    np.testing.assert_allclose(embed(module, x), each.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(embed(load(tmp_path / "last.ckpt"), x), embed(module, x))


@pytest.mark.parametrize(("embedding_dim", "kept"), [(9, 5), (5, 5), (2, 2)])
def test_a_residual_network_starts_at_the_input_or_at_its_principal_components(embedding_dim, kept):
    x, _, known = make_data()
    settings = {"embedding_dim": embedding_dim, "scaling": "column"}
    module = fit(make_config(learning_rate=1e-12, **settings), x, known, progress=False)
    scaled = (x - x.mean(0)) / x.std(0)
    values, axes = np.linalg.eigh(scaled.T @ scaled)
    expected = scaled @ axes[:, np.argsort(values)[::-1][:kept]]
    np.testing.assert_allclose(pdist(embed(module, x)), pdist(expected), rtol=1e-4)
    trained = fit(make_config(n_steps=3, **settings), x, known, progress=False)
    assert not np.allclose(pdist(embed(trained, x)), pdist(expected), rtol=1e-2)


@pytest.mark.parametrize("embedding_dim", [16, 128])
def test_a_residual_network_starts_at_the_same_weights_with_any_number_of_threads(embedding_dim):
    """Sums of BLAS depend on them, and then all that is trained and clustered did."""
    from threadpoolctl import threadpool_limits

    rows, weights = torch.from_numpy(np.random.default_rng(0).normal(size=(600, 64)).astype(np.float32)), []
    before = torch.get_num_threads()
    for n_threads in (1, 2):
        torch.manual_seed(0)
        with threadpool_limits(n_threads):
            torch.set_num_threads(n_threads)
            network = make_backbone("residual", (64,), embedding_dim)
            network.start_at(rows)
        weights.append(network.input.weight.detach())
    torch.set_num_threads(before)
    assert torch.equal(*weights)


def test_a_residual_network_with_fewer_rows_than_dimensions():
    x = np.random.default_rng(0).normal(size=(6, 30)).astype(np.float32)
    module = fit(make_config(n_clusters=2, embedding_dim=16, n_steps=2), x, [0, 1, -1, -1, -1, -1], progress=False)
    assert embed(module, x).shape == (6, 16)


def make_network(input_shape):
    return torch.nn.Linear(*input_shape, 3)


def test_backbones_of_ones_own():
    module = torch.nn.Linear(4, 2)
    assert make_backbone(module, (4,), 9) is module
    assert make_backbone(make_network, (4,), 9)(torch.zeros(2, 4)).shape == (2, 3)
    assert isinstance(make_backbone("torch.nn:Identity", (4,), 9), torch.nn.Identity)


@pytest.mark.parametrize(
    ("backbone", "shape", "error", "message"),
    [
        ("resnet", (4,), ValueError, "package.module:attribute"),
        ("nowhere.at_all:f", (4,), ValueError, "cannot be imported"),
        ("torch.nn:Nothing", (4,), ValueError, "cannot be imported"),
        ("cnn", (64,), ValueError, "at least 8 x 8"),
        ("cnn", (7, 9), ValueError, "at least 8 x 8"),
        (3, (4,), TypeError, "must be a name"),
        (lambda shape: 3, (4,), TypeError, "must return a torch module"),
    ],
)
def test_backbone_errors(backbone, shape, error, message):
    with pytest.raises(error, match=message):
        make_backbone(backbone, shape, 2)


def test_scaling():
    rng = np.random.default_rng(0)
    units = torch.from_numpy(rng.normal(size=(500, 3)) * [1, 100, 0.01] + [5, 0, 1]).float()
    pixels = torch.from_numpy(rng.integers(0, 256, (500, 6), np.uint8))
    scaled = InputScaling((3,)).fit(units)(units)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3))
    for shape in ((6,), (2, 3)):
        scaling = InputScaling(shape).fit(pixels.reshape(-1, *shape), chunk=64)
        assert len(scaling.deviation.unique()) == 1
        assert len(scaling.mean.unique()) == (1 if len(shape) == 2 else 6)  # columns have means of their own
        assert float(scaling(pixels.reshape(-1, *shape)).std(correction=0)) == pytest.approx(1, abs=1e-3)
    assert torch.equal(InputScaling((3,)).fit(torch.ones(4, 3))(torch.ones(4, 3)), torch.zeros(4, 3))
    missing = torch.cat([units[:, [0, 0, 0]], torch.full((500, 1), 1e30)], 1)  # a column of what stands for no value
    scaled = InputScaling((4,)).fit(missing)(missing)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert torch.equal(InputScaling((3,), "none").fit(units)(units), units)


# ---------------------------------------------------------------------------------------------------------- training


def test_defaults_of_a_run():
    """Results and documentation were made with these: a change of one is a change of what people get."""
    assert TrainingConfig(n_clusters=3) == TrainingConfig(
        n_clusters=3, objective="forest", backbone="auto", embedding_dim="auto", scaling="auto", augment=None, views=1,
        neighbours="auto",
        epsilon="auto", noise_start=None, n_draws=10, noise="normal", similarity="sqeuclidean", must_link_first=False,
        reachability=None, batch_size="auto", labelled_fraction=0.2, least_labels=5, n_steps=300, learning_rate=1e-3,
        weight_decay=0.0, schedule="constant", warmup_steps=0, validation_fraction=0.0, validate_every=100,
        monitor="val_loss", patience=None, precision="32-true", device="auto", devices=1, num_nodes=1,
        strategy="auto", capture=True, timeout=45.0, seed=0,
    )  # fmt: skip


def test_scaling_is_chosen_by_columns_and_labels():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)) * [1, 1, 1, 1, 1, 30]
    components = torch.from_numpy(PCA().fit_transform(x))
    assert choose_scaling(torch.from_numpy(x)) == "column"
    assert choose_scaling(components) == "global"
    assert choose_scaling(components[:, torch.tensor([3, 0, 5, 1, 4, 2])]) == "column"  # not in their order
    counts = torch.from_numpy(rng.poisson(0.3 * rng.random(40), (300, 40)))
    assert choose_scaling(counts) == "global"
    counts[:, 0] *= 10_000  # another unit
    assert choose_scaling(counts) == "column"
    # Columns of one unit by their ranges; the class is in a small column, or in the large one.
    y = torch.arange(300) % 2
    ranges = torch.from_numpy(rng.normal(size=(300, 3)) * [1, 10, 10])
    small = ranges + 5 * torch.stack([y, 0 * y, 0 * y], 1)
    known = torch.where(torch.arange(300) < 60, y, -1)
    assert choose_scaling(small) == "global"
    assert choose_scaling(small, known) == "column"
    assert choose_scaling(small, torch.where(torch.arange(300) < 4, y, -1)) == "global"  # four labels prove nothing


def test_scaling_of_rows():
    x = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])
    unit = InputScaling((2,), "unit").fit(x)
    torch.testing.assert_close(unit(5 * x), unit(x))
    counts = InputScaling((2,), "counts").fit(x)
    torch.testing.assert_close(counts(5 * x), counts(x))
    reloaded = InputScaling((2,), "counts")
    reloaded.load_state_dict(counts.state_dict())
    torch.testing.assert_close(reloaded(x), counts(x))
    with pytest.raises(ValueError, match="negative"):
        InputScaling((2,), "counts").fit(-x)


@pytest.mark.parametrize(
    "changes", [{}, {"neighbours": 3}, {"views": 2}, {"batch_size": 500}, {"batch_size": 500, "views": 3}, {"apart": 1}]
)
def test_a_rehearsal_has_the_shapes_of_a_batch(changes):
    """What is known of it has the form of a batch's, and a k that is in range stays what it is."""
    x, _, known = make_data()
    if "views" in changes:
        x, changes = np.random.default_rng(0).normal(size=(len(x), 8, 8)), {**changes, "augment": "shift"}
    apart = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], bool) if "apart" in changes else None
    config = make_config(**{"neighbours": 0, **{name: value for name, value in changes.items() if name != "apart"}})
    rows, labels = as_rows(x), as_labels(known, len(x))
    data = ForestData(config, rows, labels, None, apart)
    (_, batch), rehearsed = data.first_batch(torch.device("cpu")), shape_of_batch(config, labels, apart)
    for name in ("labels", "relation", "soft"):
        of_batch, other = getattr(batch, name), getattr(rehearsed, name)
        assert (of_batch is None) == (other is None), name
        if of_batch is not None:
            assert (type(of_batch), of_batch.dtype, of_batch.shape) == (type(other), other.dtype, other.shape), name


def test_rows_come_with_a_neighbour_that_must_link():
    x, _, known = make_data()
    rows, labels = as_rows(x), as_labels(known, len(x))
    data = ForestData(make_config(neighbours=3, batch_size=20, least_labels=1), rows, labels, None)
    chosen = data.rows_of_step(7)
    own, other = chosen[:10], chosen[10:]
    distances = torch.cdist(data.scaling(rows), data.scaling(rows)).fill_diagonal_(torch.inf)
    assert all(o in distances[i].argsort()[:3] for i, o in zip(own, other, strict=True))
    assert data.rows_of_step(7).tolist() == chosen.tolist() != data.rows_of_step(8).tolist()
    relation = data.take("training", chosen, None)[1].relation
    for i, (a, b) in enumerate(zip(labels[own], labels[other], strict=True)):
        clash = a >= 0 and b >= 0 and a != b
        assert relation[i, i + 10] == (0 if clash else 1)


def test_neighbours_of_images_are_mutual():
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 4, 4)) * np.geomspace(1, 9, 60)[:, None, None])
    distances = torch.cdist(images.flatten(1), images.flatten(1)).fill_diagonal_(torch.inf)
    nearest = [set(each.argsort()[:3].tolist()) for each in distances]
    expected = [{j for j in nearest[i] if i in nearest[j]} or {i} for i in range(60)]
    assert [set(each) for each in mutual_others(images, 3).tolist()] == expected
    assert {len(each) for each in expected} == {1, 2, 3}
    assert any(i in each for i, each in enumerate(expected))


def test_images_have_neighbours_where_pixels_tell_the_classes():
    rng = np.random.default_rng(0)
    classes = np.arange(400) % 2
    y = np.where(np.arange(400) < 40, classes, -1)
    alike = rng.normal(size=(400, 8, 8)) + 9 * classes[:, None, None]
    config = TrainingConfig(n_clusters=2, n_steps=1, device="cpu")
    for images, labels, expected in (
        (alike, y, 15),
        (rng.normal(size=(400, 8, 8)), y, 0),
        (alike, np.where(np.arange(400) < 19, classes, -1), 0),  # too few labels say so
        (alike, np.where(np.arange(400) < 41, classes, -1), 0),  # so many labels need none
    ):
        images = images.astype(np.float32)
        assert fit(config, images, labels, progress=False).config.neighbours == expected


def test_plain_labels_decide_neighbours_as_knowledge_does():
    x = np.random.default_rng(0).normal(size=(200, 2))
    y = np.where(np.arange(200) % 20 == 0, np.arange(200) // 100, -1)
    config = TrainingConfig(n_clusters=2, n_steps=1, device="cpu")
    for known in (y, dc.Knowledge.join(y)):
        assert fit(config, x, known, progress=False).config.neighbours == 15


def test_tables_with_enough_rows_have_neighbours_and_many_clusters_room():
    y = np.where(np.arange(1000) < 50, np.arange(1000) % 4, -1)
    known, pairs = dc.Knowledge.join(y), dc.Knowledge.join(y, [(60, 61)])
    assert TrainingConfig(n_clusters=10).resolve((5,), known).neighbours == 15
    for config, shape, knowledge in (
        (TrainingConfig(n_clusters=11), (5,), known),  # too few rows a cluster
        (TrainingConfig(n_clusters=10), (5,), pairs),
        (TrainingConfig(n_clusters=10), (8, 8), pairs),
        (TrainingConfig(n_clusters=10), (8, 8), dc.Knowledge.join(np.r_[0, np.full(20_000, -1)])),  # too many images
        (TrainingConfig(n_clusters=10, objective="cross-entropy"), (5,), known),
    ):
        assert config.resolve(shape, knowledge).neighbours == 0
    assert TrainingConfig(n_clusters=10).resolve((8, 8), known).neighbours == "auto"  # the images decide
    assert TrainingConfig(n_clusters=20).resolve((5,), known).embedding_dim == 16
    assert TrainingConfig(n_clusters=21).resolve((5,), known).embedding_dim == 64
    assert TrainingConfig(n_clusters=20).resolve((5,), known).batch_size == 256
    assert TrainingConfig(n_clusters=21).resolve((5,), known).batch_size == 512
    assert TrainingConfig(n_clusters=21, batch_size=64).resolve((5,), known).batch_size == 64
    assert TrainingConfig(n_clusters=20).resolve((5,), known).backbone == "residual"
    assert TrainingConfig(n_clusters=21).resolve((5,), known).backbone == "committee"
    assert TrainingConfig(n_clusters=21).resolve((7, 20), known).backbone == "residual"
    assert TrainingConfig(n_clusters=21, objective="cross-entropy").resolve((5,), known).backbone == "residual"


@pytest.mark.parametrize(
    ("shape", "backbone", "epsilon", "noise_start"),
    [
        ((6,), "residual", 0.5, 1.0),
        ((8, 8), "cnn", 2.0, 0.25),
        ((3, 8, 12), "cnn", 2.0, 0.25),
        ((7, 20), "residual", 2.0, 0.25),
    ],
)
def test_automatic_settings_depend_on_the_rows(shape, backbone, epsilon, noise_start):
    decided = TrainingConfig(n_clusters=3).resolve(shape)
    assert (decided.backbone, decided.epsilon, decided.noise_start) == (backbone, epsilon, noise_start)
    assert decided.resolve(shape) == decided
    given = TrainingConfig(n_clusters=3, backbone="mlp", epsilon=0.1).resolve(shape)
    assert (given.backbone, given.epsilon, given.noise_start) == ("mlp", 0.1, 1.0)


def test_without_a_number_of_clusters_there_is_room_for_what_is_known():
    x, _, known = make_data()
    given = dc.Knowledge.join(known, must_link=[(0, 1)] if known[0] == known[1] else [])
    n_classes = len(set(known[known >= 0]))
    for y in (known, given):
        module = fit(TrainingConfig(n_steps=1, device="cpu"), x, y, progress=False)
        assert module.config.n_clusters == -(-3 * n_classes // 2)
    one = np.where(known == known.max(), 0, -1)
    assert fit(TrainingConfig(n_steps=1, device="cpu"), x, one, progress=False).config.n_clusters == 2
    with pytest.raises(ValueError, match="n_clusters=None is decided by what is known"):
        _ = TrainingConfig().resolve((6,)).k


def test_old_names_of_settings_warn():
    for old, new, value in (
        ("max_steps", "n_steps", 7),
        ("accelerator", "device", "cpu"),
        ("n_neighbors", "reachability", 3),
    ):
        with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
            config = TrainingConfig(n_clusters=3, **{old: value})
        assert config == TrainingConfig(n_clusters=3, **{new: value})
        with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
            assert getattr(config, old) == value
        with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
            assert dataclasses.replace(TrainingConfig(n_clusters=3), **{old: value}) == config
    with pytest.raises(AttributeError, match="no attribute 'speed'"):
        _ = TrainingConfig().speed
    with pytest.raises(TypeError, match="speed"):
        TrainingConfig(speed=3)


def test_a_checkpoint_with_old_names_is_read_without_a_warning(tmp_path, recwarn):
    x, _, known = make_data()
    module = fit(make_config(n_steps=3), x, known, folder=tmp_path, progress=False)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    config = state["hyper_parameters"]["config"]
    for old, new in (("max_steps", "n_steps"), ("accelerator", "device"), ("n_neighbors", "reachability")):
        config[old] = config.pop(new)
    torch.save(state, tmp_path / "old.ckpt")
    assert_same_weights(load(tmp_path / "old.ckpt"), module)
    assert not [each for each in recwarn if "is now" in str(each.message)]


def test_fit_learns_and_is_repeatable():
    x, y, known = make_data()
    state = torch.get_rng_state()
    module = fit(make_config(backbone="mlp", n_steps=40), x, known, progress=False)
    assert torch.equal(state, torch.get_rng_state())
    assert module.loss_curve.shape == (40,)
    assert module.loss_curve[-10:].mean() < 0.2 * module.loss_curve[0]
    tree = dc.Hierarchy.from_similarity(dc.negative_squared_distances(embed(module, x)))
    assert dc.metrics.clustering_scores(y, tree.labels(3, min_cluster_size=10))["ari"] > 0.9
    torch.manual_seed(99)
    assert_same_weights(module, fit(make_config(backbone="mlp", n_steps=40), x, known, progress=False))
    other = fit(make_config(backbone="mlp", n_steps=40, seed=8), x, known, progress=False)
    assert not np.array_equal(other.loss_curve, module.loss_curve)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_torchs_defaults_change_nothing(dtype, tmp_path):
    """With another default dtype training failed; a default device has a network elsewhere than its rows."""
    x, _, known = make_data()
    expected = fit(make_config(), x, known, progress=False)
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            module = fit(make_config(), x, known, progress=False, folder=tmp_path)
            loaded = load(tmp_path / "last.ckpt")
            embedded = embed(loaded, x)
            members = fit_many([make_config()], x, [known], progress=False)
            assert torch.get_default_device().type == "meta"
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_weights(expected, module)
    assert_same_weights(expected, loaded)
    assert np.array_equal(embed(expected, x), embedded)
    assert members[0].loss_curve.dtype == np.float32


def test_fully_labelled_images_with_everything_on():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    images = (rng.random((60, 9, 8, 3)) * 100 + 100 * y[:, None, None, None]).astype(np.uint8)
    config = make_config(
        n_clusters=2, backbone="cnn", augment="shift-flip", reachability=3, similarity="cosine", schedule="cosine",
        warmup_steps=3, n_steps=8, weight_decay=0.1,
    )  # fmt: skip
    module = fit(config, images, y, validation=(images, y), progress=False)
    assert [each["step"] for each in module.validations] == [5]
    assert set(module.validations[0]) == {"step", "val_loss", "val_error", "val_ari"}
    assert embed(module, images, batch_size=7).shape == (60, 4)
    pickle.loads(pickle.dumps(module))


def test_mixed_precision():
    x, _, known = make_data()
    module = fit(make_config(n_steps=3, precision="bf16-mixed"), x, known, progress=False)
    assert np.isfinite(module.loss_curve).all()


class RecordingDropout(torch.nn.Dropout):
    """Keeps the mask of each training step."""

    def __init__(self):
        super().__init__(0.5)
        self.masks = []

    def forward(self, x):
        if self.training:
            self.masks.append(tuple((super().forward(torch.ones(64)) > 0).tolist()))
        return x


def test_dropout_differs_between_steps_and_seeds_and_repeats_with_them():
    x, _, known = make_data()

    def masks(seed):
        network = torch.nn.Sequential(torch.nn.Linear(5, 4), RecordingDropout())
        fit(make_config(backbone=network, n_steps=4, seed=seed), x, known, progress=False)
        return network[1].masks[-4:]  # before them the network was tried on a few rows

    first = masks(7)
    assert len(set(first)) == 4
    assert masks(7) == first
    assert not set(masks(8)) & set(first)


def test_each_rank_draws_its_own_dropout():
    drawn = set()
    for seed, step, rank in itertools.product((0, 1), (0, 1), (0, 1)):
        seed_step(torch.device("cpu"), seed, step, rank)
        drawn.add(float(torch.rand(())))
    assert len(drawn) == 8


class WatchGather(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, module, *_):
        self.seen.append(module.loss.gather)


def test_one_rank_gathers_nothing():
    x, _, known = make_data()
    watch = WatchGather()
    fit(make_config(n_steps=2), x, known, progress=False, callbacks=[watch])
    assert watch.seen == [False, False]


class KillAt(Callback):
    def __init__(self, step, signum=signal.SIGKILL):
        self.step, self.signum = step, signum

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), self.signum)


def make_network_with_dropout(input_shape):
    return torch.nn.Sequential(torch.nn.Linear(*input_shape, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4))


RESUMED = {
    "backbone": "test_training:make_network_with_dropout", "schedule": "cosine", "warmup_steps": 4,
    "noise_start": 0.1,
}  # fmt: skip


def moments(checkpoint):
    return checkpoint["optimizer_states"][0]["state"]


def run_and_be_killed(folder, options):
    x, _, known = make_data()
    fit(make_config(**options), x, known, folder=folder, progress=False, callbacks=[KillAt(13)])


@pytest.mark.slow
def test_killed_and_resumed_is_the_same_as_never_killed(tmp_path):
    options = {**RESUMED, "validation_fraction": 0.3, "patience": 3}
    x, _, known = make_data()
    killed = Process(run_and_be_killed, tmp_path / "killed", options, threads=torch.get_num_threads())
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    last = tmp_path / "killed" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 10
    whole = fit(make_config(**options), x, known, folder=tmp_path / "whole", progress=False)
    resumed = fit(make_config(**options), x, known, folder=tmp_path / "killed", resume=last, progress=False)
    assert_same_weights(whole, resumed)
    assert whole.validations == resumed.validations
    assert len(whole.validations) == 4
    np.testing.assert_array_equal(embed(whole, x), embed(resumed, x))
    a, b = (torch.load(folder / "last.ckpt", weights_only=True) for folder in (tmp_path / "whole", last.parent))
    assert a["lr_schedulers"] == b["lr_schedulers"]
    torch.testing.assert_close(moments(a), moments(b), rtol=0, atol=0)


def test_checkpoints_are_written_beside_their_place(tmp_path, monkeypatch):
    """By way of another disk they could be cut: Lightning's own way is the system's temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no such folder"))
    x, _, known = make_data()
    fit(make_config(), x, known, folder=tmp_path / "run", progress=False)
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == 20


def test_the_last_checkpoint_is_the_last_even_where_it_is_not_the_best(tmp_path):
    x, _, known = make_data()
    config = make_config(validation_fraction=0.3, monitor="val_error", learning_rate=1e-12)
    fit(config, x, known, folder=tmp_path, progress=False)
    steps = [torch.load(tmp_path / f"{name}.ckpt", weights_only=True)["global_step"] for name in ("best", "last")]
    assert steps == [5, 20]


class FailAt(Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 13:
            raise RuntimeError("the disk is full")


def test_failed_and_resumed_without_validation(tmp_path):
    x, _, known = make_data()
    with pytest.raises(RuntimeError, match="disk"):
        fit(make_config(**RESUMED), x, known, folder=tmp_path, progress=False, callbacks=[FailAt()])
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 10
    resumed = fit(make_config(**RESUMED), x, known, resume=tmp_path / "last.ckpt", progress=False)
    assert_same_weights(resumed, fit(make_config(**RESUMED), x, known, progress=False))


def test_a_finished_run_can_go_on(tmp_path):
    x, _, known = make_data()
    options = {"validation_fraction": 0.3}
    fit(make_config(n_steps=10, **options), x, known, folder=tmp_path, progress=False)
    longer = fit(make_config(**options), x, known, resume=tmp_path / "last.ckpt", progress=False)
    whole = fit(make_config(**options), x, known, progress=False)
    assert_same_weights(longer, whole)
    assert longer.validations == whole.validations


def test_interrupt_leaves_a_checkpoint(tmp_path):
    x, _, known = make_data()
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(make_config(), x, known, folder=tmp_path, progress=False, callbacks=[KillAt(12, signal.SIGINT)])
    assert signal.getsignal(signal.SIGINT) is handler
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 13
    resumed = fit(make_config(), x, known, resume=tmp_path / "last.ckpt", progress=False)
    assert_same_weights(resumed, fit(make_config(), x, known, progress=False))


@pytest.mark.parametrize("column", [1.7e9 + np.arange(120) % 60, 1_700_000_000 + np.arange(120)])
def test_columns_that_32_bits_do_not_tell_apart_are_named(column):
    """Times in seconds since 1970 of one minute would all be equal."""
    x, _, known = make_data()
    times = np.stack([x[:, 0].astype(column.dtype), column], axis=1)
    words = r"1 column of x, the first number 1, with values from 17000000.*Subtract the minimum"
    with pytest.warns(UserWarning, match=words):
        fit(make_config(n_steps=1), times, known, progress=False)
    with pytest.warns(UserWarning, match=words):
        fit_many([make_config(n_steps=1)], times, [known], progress=False)
    with pytest.warns(UserWarning, match=words):
        dc.cluster.ForestEmbedding(3, n_steps=1, cut="forest", device="cpu").fit(times, known)
    for fine in (times - [0, 1_700_000_000], times // 2**7 * 2**7, times + [0, 10**6] * np.arange(120)[:, None]):
        fit(make_config(n_steps=1), fine, known, progress=False)


def spellings_of_rows(x):
    pandas, sparse = pytest.importorskip("pandas"), pytest.importorskip("scipy.sparse")
    return [x.astype(">f4"), x.astype(np.longdouble), x.astype(object), x.tolist(), sparse.csr_array(x),
            pandas.DataFrame(x), pandas.DataFrame(x).convert_dtypes()]  # fmt: skip


def test_all_spellings_of_rows_are_the_same():
    x = make_data()[0]
    for other in spellings_of_rows(x):
        assert torch.equal(as_rows(other), torch.from_numpy(x))


@pytest.mark.parametrize(
    "x",
    [np.eye(3) * 1j, torch.eye(3) * 1j, [["a"], ["b"]], np.array([[None], [1.0]])],
    ids=["complex", "tensor", "words", "missing"],
)
def test_rows_that_are_no_real_numbers_are_refused(x):
    """torch would leave out imaginary parts, with a warning of its own."""
    with pytest.raises((TypeError, ValueError), match=r"x must be real numbers, got|not a finite number"):
        as_rows(x)


def test_rows_to_validate_on_are_as_wide():
    x, y, known = make_data()
    with pytest.raises(ValueError, match=r"must have rows of shape \(5,\), as x has, got \(2,\)"):
        fit(make_config(), x, known, validation=(x[:9, :2], y[:9]), progress=False)


def test_fit_in_a_thread():
    x, _, known = make_data()
    modules = []
    thread = threading.Thread(target=lambda: modules.append(fit(make_config(n_steps=2), x, known, progress=False)))
    thread.start()
    thread.join()
    assert len(modules) == 1


class StartAnother(Callback):
    """Starts another training in a thread when its own begins, and gives it a second."""

    def __init__(self, another):
        self.thread, self.began, self.ended = threading.Thread(target=another), threading.Event(), threading.Event()

    def on_train_start(self, trainer, pl_module):
        self.thread.start()
        self.began.wait(1)


class OutlastTheOther(Callback):
    """Ends its training after that of the other."""

    def __init__(self, other):
        self.other = other

    def on_train_start(self, trainer, pl_module):
        self.other.began.set()

    def on_train_end(self, trainer, pl_module):
        self.other.ended.wait(10)


def test_trainings_in_two_threads_do_not_see_each_other():
    x, _, known = make_data()
    found = []
    first = StartAnother(lambda: found.append(train(8, [OutlastTheOther(first)])))

    def train(seed, callbacks=()):
        return fit(make_config(n_steps=2, seed=seed), x, known, progress=False, callbacks=callbacks)

    def shared_state():
        return torch.get_rng_state().tolist(), list(warnings.filters), logging.getLogger("lightning.pytorch").level

    before = shared_state()
    found.append(train(7, [first]))
    first.ended.set()
    first.thread.join()
    assert shared_state() == before
    for seed, module in zip((7, 8), found, strict=True):
        assert_same_weights(module, train(seed))


def test_early_stopping_returns_the_best_weights(tmp_path):
    x, _, known = make_data()
    config = make_config(validation_fraction=0.3, patience=2, n_steps=100, learning_rate=0.05)
    module = fit(config, x, known, folder=tmp_path, progress=False)
    losses = [each["val_loss"] for each in module.validations]
    assert len(losses) == np.argmin(losses) + 3 or len(losses) == 20
    best = load(tmp_path / "best.ckpt")
    np.testing.assert_array_equal(embed(best, x), embed(module, x))
    assert np.argmin(losses) + 1 == len(best.validations)
    np.testing.assert_array_equal(embed(fit(config, x, known, progress=False), x), embed(module, x))


def test_checkpoint_holds_all_that_loading_needs(tmp_path):
    x, _, known = make_data()
    module = fit(make_config(n_steps=3), x, known, folder=tmp_path, progress=False)
    loaded = load(tmp_path / "last.ckpt")
    decided = make_config(n_steps=3).resolve(x.shape[1:], dc.Knowledge.join(known))
    assert loaded.config == dataclasses.replace(decided, validate_every=3)
    assert loaded.input_shape == (5,)
    assert_same_weights(module, loaded)
    assert not loaded.training
    json.dumps(loaded.config.to_dict())
    assert list((tmp_path / "log").iterdir())


def test_checkpoint_of_a_module_of_ones_own(tmp_path):
    x, _, known = make_data()
    module = fit(make_config(n_steps=3, backbone=make_network), x, known, folder=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"was an object of type function, .* name it again, backbone=\.\.\."):
        load(tmp_path / "last.ckpt")
    assert_same_weights(module, load(tmp_path / "last.ckpt", backbone=make_network))


def test_without_lightning_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "diffclust.training")
    with pytest.raises(ImportError, match=r"pip install 'diffclust\[fit\]'"):
        importlib.import_module("diffclust.training")


def test_nothing_on_the_console(capfd):
    x, _, known = make_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(make_config(n_steps=3, validation_fraction=0.2), x, known, progress=False)
    assert capfd.readouterr() == ("", "")


def test_progress_bar(capfd):
    x, _, known = make_data()
    fit(make_config(n_steps=4), x, known)
    shown = capfd.readouterr().err
    assert "4/4" in shown
    assert "loss=" in shown
    module = fit(make_config(**GROWING), x, known)  # what can be compared is shown, and not losses that only climb
    shown = capfd.readouterr().err
    assert f"loss at final noise={module.final_noise_losses[-1]['loss']:.4g}" in shown
    assert " loss=" not in shown


# ---------------------------------------------------------------------------------------------------- blocks of steps


@pytest.fixture
def in_blocks(monkeypatch):
    """A function that trains in blocks of seven steps. There is no graph on the CPU, all else is as on a GPU."""

    def train(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setitem(LONGEST_BLOCK, "cpu", 7)
            return fit(*arguments, progress=False, **options)

    return train


@pytest.fixture
def in_single_steps(monkeypatch):
    """A function that trains step by step, in Lightning's loop."""

    def train(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr("diffclust.training.loop.why_single_steps", lambda *arguments: "a test")
            return fit(*arguments, progress=False, **options)

    return train


def logged(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder / "log")).Reload()
    return {name: [(each.step, each.value) for each in log.Scalars(name)] for name in log.Tags()["scalars"]}


@pytest.mark.parametrize(
    "options",
    [
        {"validation_fraction": 0.3, "n_steps": 33, "validate_every": 10, "schedule": "cosine", "warmup_steps": 4},
        {"validation_fraction": 0.3, "n_steps": 60, "learning_rate": 0.05, "patience": 2, "weight_decay": 0.1},
        {"backbone": "test_training:make_network_with_dropout", "precision": "bf16-mixed", **GROWING},
        {"backbone": "committee", "validate_every": 50},
    ],
)
def test_steps_in_blocks_are_single_steps(tmp_path, in_blocks, in_single_steps, monkeypatch, options):
    """Bit for bit: weights, what is measured and logged, and checkpoints."""
    monkeypatch.setattr("diffclust.training.module.LEAST_STEPS", 10)
    pytest.importorskip("tensorboard")
    x, _, known = make_data()
    config = make_config(**options)
    single = in_single_steps(config, x, known, folder=tmp_path / "single")
    block = in_blocks(config, x, known, folder=tmp_path / "block")
    assert_same_weights(single, block)
    assert single.validations == block.validations
    assert single.final_noise_losses == block.final_noise_losses
    assert logged(tmp_path / "single") == logged(tmp_path / "block")
    a, b = (torch.load(tmp_path / name / "last.ckpt", weights_only=True) for name in ("single", "block"))
    torch.testing.assert_close(a["optimizer_states"], b["optimizer_states"], rtol=0, atol=0)
    for name in ("global_step", "hyper_parameters", "validations", "final_noise_losses"):
        assert a[name] == b[name]
    assert a["lr_schedulers"][0]["last_epoch"] == b["lr_schedulers"][0]["last_epoch"] == a["global_step"]
    pickle.loads(pickle.dumps(block))


@pytest.mark.parametrize("first_in_blocks", [False, True])
def test_a_run_goes_on_in_blocks_or_in_single_steps(tmp_path, in_blocks, in_single_steps, first_in_blocks):
    x, _, known = make_data()
    options = {**RESUMED, "validation_fraction": 0.3, "validate_every": 8}
    first, second = (in_blocks, in_single_steps) if first_in_blocks else (in_single_steps, in_blocks)
    first(make_config(**options), x, known, folder=tmp_path)
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["global_step"] in (8, 16)
    resumed = second(make_config(**options), x, known, resume=tmp_path / "best.ckpt")
    whole = in_single_steps(make_config(**options), x, known)
    assert_same_weights(resumed, whole)
    assert resumed.validations == whole.validations


class InterruptsItself(torch.nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls == 12:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(x)


@pytest.mark.parametrize("number", [float, np.float64])
def test_rates_of_steps_are_float32(number):
    """As fused AdamW on a GPU wants them, also where a sweep gives numbers of NumPy."""
    x, _, known = make_data()
    config = make_config(learning_rate=number(1e-3), noise_start=number(0.25)).resolve((5,))
    data = ForestData(config, torch.from_numpy(x).float(), torch.from_numpy(known), None)
    module = make_module(config, data.sets["training"][0], data.scaling)
    steps = Steps([module], [data], [module.make_optimizer()], 0, 5)
    assert [each.dtype for each in (*steps._rates, *steps._rate, *steps._scales)] == [torch.float32] * 3


@pytest.mark.parametrize("way", ["in_blocks", "in_single_steps"])
def test_interrupt_ends_training_after_the_step(tmp_path, request, way):
    x, _, known = make_data()
    train = request.getfixturevalue(way)
    with pytest.raises(KeyboardInterrupt):
        train(make_config(backbone=InterruptsItself(5, 4), n_steps=40), x, known, folder=tmp_path)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 12


def test_divergence_in_a_block_is_an_error(tmp_path, in_blocks):
    x, _, known = make_data()
    with pytest.raises(FloatingPointError, match="is nan after 5 steps"):
        in_blocks(make_config(learning_rate=1e30, backbone="mlp"), x, known, folder=tmp_path)
    assert not (tmp_path / "last.ckpt").exists()


def test_nothing_on_the_console_in_blocks(capfd, in_blocks):
    x, _, known = make_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_blocks(make_config(n_steps=3, validation_fraction=0.2), x, known)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("changes", "callbacks", "reason"),
    [
        ({}, [Callback()], ""),
        ({}, [WatchGather()], "the callback WatchGather is for every step"),
        ({}, [LambdaCallback(on_after_backward=lambda *_: None)], "the callback LambdaCallback is for every step"),
        ({}, [LambdaCallback(on_fit_start=lambda *_: None)], ""),
        ({"capture": False}, [], "capture is False"),
        ({"precision": "bf16-true"}, [], "precision is 'bf16-true'"),
    ],
)
def test_why_steps_are_not_in_blocks(monkeypatch, caplog, changes, callbacks, reason):
    x, _, known = make_data()
    blocks, reasons = [], []
    take, why = ForestModule._take_block, loop.why_single_steps
    monkeypatch.setattr(ForestModule, "_take_block", lambda *arguments: blocks.append(1) or take(*arguments))
    monkeypatch.setattr(loop, "why_single_steps", lambda *arguments: reasons.append(why(*arguments)) or reasons[0])
    with caplog.at_level("INFO", "diffclust.training"):
        module = fit(make_config(n_steps=2, **changes), x, known, callbacks=callbacks, progress=False)
    assert reasons[0].startswith(reason)
    assert bool(reasons[0]) == bool(reason) == (not blocks)
    assert module.not_captured == ""  # there is nothing to capture on the CPU
    assert not caplog.records


def test_a_step_that_could_not_be_captured_is_logged(monkeypatch, caplog):
    def run(self, *arguments):
        take_all(self, *arguments)
        self.not_captured = "a test says so"

    take_all = Steps.run
    monkeypatch.setattr(Steps, "run", run)
    x, _, known = make_data()
    with caplog.at_level("INFO", "diffclust.training"):
        module = fit(make_config(n_steps=2), x, known, progress=False)
    assert module.not_captured == "a test says so"
    assert "Training did not replay a captured step: a test says so." in caplog.text


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "changes",
    [
        {"n_clusters": 0}, {"n_clusters": 2.0}, {"batch_size": True}, {"labelled_fraction": 0}, {"epsilon": 0.0},
        {"validation_fraction": 1.0}, {"schedule": "step"}, {"augment": "mixup"}, {"monitor": "loss"}, {"patience": 0},
        {"noise_start": 0.0}, {"seed": -1}, {"learning_rate": 0.0}, {"weight_decay": -1.0}, {"warmup_steps": -1},
        {"learning_rate": None}, {"labelled_fraction": "x"}, {"validation_fraction": [0.1]}, {"timeout": "45"},
    ],
)  # fmt: skip
def test_bad_settings(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        make_config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patience": 2}, "validation_fraction above 0"),
        ({"augment": "shift"}, "is for images"),
        ({"scaling": "robust"}, "scaling must be one of"),
        ({"validation_fraction": 0.99}, "leaves none to train on"),
        ({"similarity": "euclid"}, "similarity must be one of"),
    ],
)
def test_settings_that_do_not_fit_the_data(changes, message):
    x, _, known = make_data()
    with pytest.raises(ValueError, match=message):
        fit(make_config(**changes), x, known, progress=False)


def test_bad_data():
    x, _, known = make_data()
    with pytest.raises(ValueError, match="no known label"):
        fit(make_config(), x, np.full(len(x), -1), progress=False)
    with pytest.raises(ValueError, match="one label per row"):
        fit(make_config(), x, known[:-1], progress=False)
    with pytest.raises(ValueError, match=r"features \(n, d\) or images"):
        fit(make_config(), x[:, 0], known, progress=False)
    module = fit(make_config(n_steps=1), x, known, progress=False)
    with pytest.raises(ValueError, match=r"rows of shape \(5,\), got \(4,\)"):
        embed(module, x[:, :4])
    for wrong in (np.nan, np.inf, 1e300):
        spoilt = x.astype(np.float64)
        spoilt[7, 0] = wrong
        with pytest.raises(ValueError, match="row 7 of x has a value that is not a finite number"):
            fit(make_config(), spoilt, known, progress=False)
        with pytest.raises(ValueError, match="row 7 of x"):
            embed(module, spoilt)


def test_divergence_is_an_error():
    x, _, known = make_data()
    with pytest.raises(FloatingPointError, match=r"is nan after 5 steps: .* Lower learning_rate"):
        fit(make_config(learning_rate=1e30, backbone="mlp"), x, known, progress=False)
