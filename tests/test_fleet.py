"""Networks side by side: each as if it were alone; validation, patience, checkpoints."""

import dataclasses
import re
import time

import numpy as np
import pytest

pytest.importorskip("lightning")
torch = pytest.importorskip("torch")

from diffclust import Knowledge  # noqa: E402
from diffclust.forest import spanning_forest  # noqa: E402
from diffclust.metrics import connectivity_error  # noqa: E402
from diffclust.training import TrainingConfig, embed, fit, fit_many, load, save  # noqa: E402
from processes import Process  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def exact_convolutions():
    """On a GPU they otherwise round to ten bits and sum in any order, and steps make little differences large."""
    return torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)


@pytest.fixture(autouse=True)
def _exact_convolutions():
    with exact_convolutions():
        yield


def make_data(n=160, seed=0):
    """Four blobs of 8 x 8 images; two sets of labels."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 4
    x = (rng.normal(size=(n, 8, 8)) + 3 * rng.normal(size=(4, 8, 8))[y]).astype(np.float32)
    return x, y, [np.where(rng.permutation(n) < 40, y, -1), np.where((rng.permutation(n) < 60) & (y > 0), y, -1)]


def make_config(**changes):
    settings = {
        "n_clusters": 4, "embedding_dim": 4, "epsilon": 0.3, "n_draws": 5, "batch_size": 32, "labelled_fraction": 0.5,
        "n_steps": 14, "validate_every": 5, "device": DEVICE, "seed": 7, "learning_rate": 3e-3,
    }  # fmt: skip
    return TrainingConfig(**{**settings, **changes})


def assert_same(a, b, **tolerance):
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], equal_nan=True, **tolerance)


# A graph may choose other algorithms than single steps, and steps make little differences large: on a GPU only the
# first steps can be compared.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def assert_alike(a, b):
    if DEVICE == "cpu":
        assert_same(a, b, **TOLERANCE)
    np.testing.assert_allclose(a.loss_curve[:5], b.loss_curve[:5], rtol=1e-2)


def test_each_network_is_trained_as_if_it_were_alone():
    x, _, ys = make_data()
    configs = [
        make_config(schedule="cosine", warmup_steps=3),
        make_config(augment="shift-flip", backbone="cnn", seed=1, noise_start=0.1),
        make_config(objective="cross-entropy", labelled_fraction=1.0, batch_size=16, weight_decay=0.1),
        make_config(augment="shift", views=2, must_link_first=False, backbone="linear", n_steps=8),
        make_config(n_steps=3),
    ]  # fmt: skip
    labels = [ys[0], ys[1], ys[0], ys[1], ys[0]]
    together = fit_many(configs, x, labels, progress=False)
    for config, y, module in zip(configs, labels, together, strict=True):
        assert_alike(module, fit(config, x, y, progress=False))
        assert len(module.loss_curve) == config.n_steps
        assert not module.training
        assert module.device.type == "cpu"


def test_on_the_cpu_nothing_is_to_be_captured():
    x, _, ys = make_data()
    (module,) = fit_many([make_config(capture=False, device="cpu", n_steps=1)], x, ys[:1], progress=False)
    assert module.not_captured == ""


@pytest.mark.filterwarnings("ignore:.*fork.*")  # of JAX, where other tests use it
def test_workers_change_nothing():
    x, _, ys = make_data()
    configs = [make_config(augment="shift"), make_config(seed=3)]
    for a, b in zip(
        fit_many(configs, x, ys, progress=False), fit_many(configs, x, ys, progress=False, workers=2), strict=True
    ):
        assert_same(a, b, rtol=0, atol=0)


def test_validation_is_the_error_in_batches():
    x, y, ys = make_data()
    config = make_config(batch_size=40, n_steps=6, validate_every=3)
    module = fit_many([config], x, ys[:1], validation=(x[:80], y[:80]), progress=False)[0]
    assert [each["step"] for each in module.validations] == [3, 6]
    order = np.random.default_rng([config.seed, 1]).permutation(80)
    errors = []
    for rows in np.split(order, 2):
        similarity = module.loss.similarities(torch.from_numpy(embed(module, x[rows])))
        errors.append(connectivity_error(y[rows], spanning_forest(similarity, 4).labels))
    assert module.validations[-1]["val_error"] == pytest.approx(np.mean(errors), abs=1e-6)


MEASURED = ("val_loss", "val_error", "val_ari")


@pytest.mark.parametrize("objective", ["forest", "cross-entropy"])
def test_validations_are_those_of_fit(objective):
    x, y, ys = make_data()
    partly = np.where(np.arange(80) % 3 == 0, -1, y[:80])
    configs = [
        make_config(objective=objective, noise_start=0.3, augment="shift"),
        make_config(objective=objective, seed=1, n_steps=8),
        make_config(objective=objective, seed=2, n_steps=3),  # shorter than validate_every
    ]
    together = fit_many(configs, x, [ys[0]] * 3, validation=(x[:80], partly), progress=False)
    assert [[each["step"] for each in module.validations] for module in together] == [[5, 10], [5], [3]]
    for config, module in zip(configs, together, strict=True):
        alone = fit(config, x, ys[0], validation=(x[:80], partly), progress=False)
        assert [each.keys() for each in module.validations] == [each.keys() for each in alone.validations]
        if DEVICE == "cpu":
            for a, b in zip(module.validations, alone.validations, strict=True):
                assert a == pytest.approx(b, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("monitor", MEASURED)
def test_patience_watches_the_monitored_value(monitor):
    x, y, ys = make_data()
    config = make_config(
        monitor=monitor, patience=3, n_steps=60, validate_every=2, learning_rate=0.05, backbone="linear"
    )
    options = {"validation": (x[:64], y[:64]), "progress": False}
    (module,) = fit_many([config], x, ys[1:], **options)
    values = [each[monitor] for each in module.validations]
    best = int(np.argmax(values) if monitor == "val_ari" else np.argmin(values))
    assert len(values) == min(best + 1 + config.patience, 30)
    alone = fit(config, x, ys[1], **options)
    if DEVICE == "cpu":
        assert len(module.validations) == len(alone.validations)
        np.testing.assert_allclose(embed(module, x), embed(alone, x), rtol=1e-3, atol=1e-4)


def test_patience_stops_one_network_and_keeps_its_best_weights():
    x, y, ys = make_data()
    # A network that learns nothing stops after one more validation; the other goes on.
    idle = make_config(learning_rate=1e-30, patience=1, n_steps=20, monitor="val_error")
    busy = make_config(patience=100, n_steps=20, monitor="val_error")
    first, second = fit_many([idle, busy], x, ys, validation=(x[:64], y[:64]), progress=False)
    assert len(first.validations) == 2
    assert len(first.loss_curve) == 10
    assert len(second.validations) == 4
    best = min(second.validations, key=lambda each: each["val_error"])
    whole = fit(dataclasses.replace(busy, patience=None, n_steps=best["step"]), x, ys[1], progress=False)
    if DEVICE == "cpu":  # the weights of the best validation
        np.testing.assert_allclose(embed(second, x), embed(whole, x), **TOLERANCE)


def test_all_stopped_ends_training():
    x, y, ys = make_data()
    idle = make_config(learning_rate=1e-30, patience=1, n_steps=1000, monitor="val_ari")
    module = fit_many([idle], x, ys[:1], validation=(x[:64], y[:64]), progress=False)[0]
    assert len(module.loss_curve) == 10


def test_a_run_in_which_all_have_stopped_takes_no_more_steps(tmp_path, monkeypatch):
    """It was killed after the checkpoint of its last block."""
    x, y, ys = make_data()
    idle = make_config(learning_rate=1e-30, patience=1, n_steps=1000, monitor="val_ari")
    options = {"validation": (x[:64], y[:64]), "progress": False, "folder": tmp_path, "save_every": 0}
    with monkeypatch.context() as patch:
        patch.setattr("diffclust.training.callbacks.SaveBlocks.on_train_end", lambda *arguments: None)
        fit_many([idle], x, ys[:1], **options)
    module = fit_many([idle], x, ys[:1], resume=tmp_path / "last.ckpt", **options)[0]
    assert len(module.loss_curve) == 10
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["done"] == 10


def train_and_save(configs, folder):
    x, y, ys = make_data()
    with exact_convolutions():  # of this process
        fit_many(configs, x, ys, validation=(x[:64], y[:64]), progress=False, save_every=0, folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize("patience", [None, 2])
def test_resumed_is_uninterrupted(tmp_path, patience):
    x, y, ys = make_data()
    options = {"validation": (x[:64], y[:64]), "progress": False}
    configs = [make_config(augment="shift", patience=patience), make_config(seed=1, patience=patience)]
    whole = fit_many(configs, x, ys, **options)
    # Killed as soon as there is a checkpoint: perhaps in the middle of writing the next one.
    threads = torch.get_num_threads()  # sums in another order are other bits
    process = Process(train_and_save, configs, tmp_path, threads=threads)
    while not (tmp_path / "last.ckpt").exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    resumed = fit_many(configs, x, ys, resume=tmp_path / "last.ckpt", **options)
    for a, b in zip(whole, resumed, strict=True):
        assert_alike(a, b)
        assert a.validations[0]["step"] == b.validations[0]["step"]
        if DEVICE == "cpu":
            assert a.validations == b.validations


def test_saved_modules_load(tmp_path):
    x, _, ys = make_data()
    module = fit_many([make_config()], x, ys[:1], progress=False)[0]
    save(module, tmp_path / "one.ckpt")
    assert_same(load(tmp_path / "one.ckpt"), module, rtol=0, atol=0)


def test_mistakes(tmp_path):
    x, _, ys = make_data()
    with pytest.raises(ValueError, match="labels for each config"):
        fit_many([make_config()], x, ys)
    with pytest.raises(ValueError, match="validate_every must be the same"):
        fit_many([make_config(), make_config(validate_every=3)], x, ys)
    with pytest.raises(ValueError, match="precision must be one of"):
        fit_many([make_config(precision="16-mixed")], x, ys[:1])
    with pytest.raises(ValueError, match="needs something to validate on"):
        fit_many([make_config(patience=1)], x, ys[:1])
    with pytest.raises(FloatingPointError, match="training diverged"):
        fit_many([make_config(learning_rate=1e30, backbone="mlp")], x, ys[:1], progress=False)
    fit_many([make_config()], x, ys[:1], folder=tmp_path, progress=False)
    assert len(fit_many([make_config()], x, ys[:1], resume=tmp_path / "last.ckpt", progress=False)[0].loss_curve) == 14
    with pytest.raises(ValueError, match="several networks"):
        load(tmp_path / "last.ckpt")
    fit(make_config(n_steps=1), x, ys[0], folder=tmp_path / "one", progress=False)
    with pytest.raises(ValueError, match="one network"):
        fit_many([make_config()], x, ys[:1], resume=tmp_path / "one" / "last.ckpt", progress=False)
    (tmp_path / "last.ckpt").write_bytes(b"no")
    with pytest.raises(ValueError, match="is damaged"):
        fit_many([make_config()], x, ys[:1], resume=tmp_path / "last.ckpt")


# --------------------------------------------------------------------------------------------- captured steps of a GPU


class Waits(torch.nn.Module):
    """What a network of the user may do: each of these keeps its step from being captured."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        if self.training and self.what == "value":
            x.sum().item()
        if self.training and self.what == "random":
            torch.rand(())
        if self.training and self.what == "synchronize":  # nothing announces it: the capture fails
            torch.cuda.synchronize()
        return x


def make_network(what=""):
    def network(shape):
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Dropout(0.2), Waits(what), torch.nn.Linear(16, 4)
        )

    return network


on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("backbone", ["cnn", make_network()])
def test_a_captured_step_is_the_step(backbone, precision):
    x, _, ys = make_data()
    options = {"backbone": backbone, "precision": precision, "noise_start": 0.3, "augment": "shift", "n_steps": 30}
    captured = fit(make_config(**options), x, ys[0], progress=False)
    single = fit(make_config(**options, capture=False), x, ys[0], progress=False)
    assert (captured.not_captured, single.not_captured) == ("", "capture is False")
    np.testing.assert_allclose(captured.loss_curve[:6], single.loss_curve[:6], rtol=1e-2)  # the fourth one is captured
    first = [module.final_noise_losses[0]["loss"] for module in (captured, single)]
    np.testing.assert_allclose(*first, rtol=1e-2)
    again = fit(make_config(**options), x, ys[0], progress=False)
    np.testing.assert_allclose(again.loss_curve[:6], captured.loss_curve[:6], rtol=1e-3)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("value", "a step waits for the GPU"),
        ("random", "a step draws random numbers on the host"),
        ("synchronize", "the step cannot be captured|a step waits for the GPU"),
    ],
)
def test_what_cannot_be_captured_is_trained_step_by_step(what, reason):
    x, _, ys = make_data()
    module = fit(make_config(backbone=make_network(what)), x, ys[0], progress=False)
    assert re.match(reason, module.not_captured)
    single = fit(make_config(backbone=make_network(what), capture=False), x, ys[0], progress=False)
    np.testing.assert_allclose(module.loss_curve[:6], single.loss_curve[:6], rtol=1e-2)
    # A capture that fails leaves torch as it was.
    torch.cuda.empty_cache()
    torch.rand(3, device="cuda")
    after = fit(make_config(backbone=make_network()), x, ys[0], progress=False)
    assert after.not_captured == ""


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("options", [{"views": 2, "augment": "shift"}, {"neighbours": 3, "backbone": "mlp"}])
def test_steps_with_several_copies_of_a_row_are_captured(options):
    """What is known about these is a relation on the GPU, which no step reads."""
    x, _, ys = make_data()
    x = x if "augment" in options else x.reshape(len(x), -1)
    for labelled_fraction in (0.5, 1.0):  # where all rows of a batch are labelled, k is above what they allow
        config = make_config(**options, labelled_fraction=labelled_fraction, n_clusters=5, n_steps=8)
        captured = fit(config, x, ys[0], progress=False)
        assert captured.not_captured == ""
        single = fit(dataclasses.replace(config, capture=False), x, ys[0], progress=False)
        np.testing.assert_allclose(captured.loss_curve[:6], single.loss_curve[:6], rtol=1e-2)


@pytest.mark.gpu
@on_gpu
def test_a_run_on_a_gpu_goes_on_on_the_cpu_and_back(tmp_path):
    x, _, ys = make_data()
    for number, (first, second) in enumerate([("cuda", "cpu"), ("cpu", "cuda")]):
        fit(make_config(device=first, n_steps=10), x, ys[0], folder=tmp_path / str(number), progress=False)
        last = tmp_path / str(number) / "last.ckpt"
        module = fit(make_config(device=second, n_steps=20), x, ys[0], resume=last, progress=False)
        assert len(module.loss_curve) == 20
        assert np.isfinite(module.loss_curve).all()
        assert module.not_captured == ""


@pytest.mark.gpu
@on_gpu
def test_groups_that_may_be_together_or_apart_are_trained_step_by_step():
    x, y, _ = make_data()
    pairs = [(int(i), int(j)) for i, j in np.random.default_rng(0).integers(0, 160, (200, 2)) if i != j]
    together, apart = ([pair for pair in pairs if (y[pair[0]] == y[pair[1]]) == same] for same in (True, False))
    known = Knowledge.join(np.full(160, -1), together, apart)
    module = fit(make_config(), x, known, progress=False)
    assert module.not_captured.startswith("a step waits for the GPU")
    assert np.isfinite(module.loss_curve).all()
