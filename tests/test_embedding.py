"""The trainable estimator: what it finds, what scikit-learn asks of it, and its errors."""

import copy
import pickle

import numpy as np
import pytest
import sklearn

pytest.importorskip("lightning")
torch = pytest.importorskip("torch")

from sklearn.base import clone  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.exceptions import ConvergenceWarning, NotFittedError  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

import diffclust as dc  # noqa: E402
from diffclust.cluster import ForestEmbedding  # noqa: E402
from diffclust.mistakes import suspect_labels  # noqa: E402

NEEDS_LABELS = "fits without y, which this estimator requires"
TOO_FEW = "sets n_clusters below the number of labelled classes, which is an error here"
EXPECTED_FAILURES = {
    "check_clustering": NEEDS_LABELS,
    "check_dont_overwrite_parameters": TOO_FEW,
    "check_fit2d_1feature": TOO_FEW,
    "check_fit2d_predict1d": TOO_FEW,
    "check_methods_sample_order_invariance": TOO_FEW,
    "check_methods_subset_invariance": TOO_FEW,
}


def make_blobs(n=120, n_classes=4, labelled=(0, 1, 2, 3), per_class=5, seed=0, distance=6):
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % n_classes
    x = rng.normal(size=(n, 6)) + distance * np.eye(6)[truth]
    y = np.full(n, -1)
    for c in labelled:
        y[np.flatnonzero(truth == c)[:per_class]] = c
    return x, y, truth


def make_model(n_clusters=4, **changes):
    settings = {
        "n_steps": 30,
        "n_draws": 5,
        "batch_size": 64,
        "embedding_dim": 16,
        "device": "cpu",
        "random_state": 0,
        "cut": "forest",  # comparing cuts is most of the time of a fit
    }
    return ForestEmbedding(n_clusters, **{**settings, **changes})


def test_defaults_are_those_of_training():
    ours, config = ForestEmbedding().get_params(), dc.training.TrainingConfig(n_clusters=8)
    shared = {name for name in ours if name in config.to_dict()} - {"n_clusters"}
    assert len(shared) >= 10
    assert {name: ours[name] for name in shared} == {name: getattr(config, name) for name in shared}


@pytest.fixture(scope="module")
def fitted():
    x, y, truth = make_blobs()
    return make_model(cut="auto").fit(x, y), x, y, truth


def test_attributes(fitted):
    model, x, y, truth = fitted
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert model.labels_.shape == (120,)
    assert model.embedding_.shape == (120, 16)
    assert model.embedding_.dtype == np.float32
    assert model.loss_curve_.shape == (30,)
    assert model.n_features_in_ == 6
    assert (model.labels_[y >= 0] == y[y >= 0]).all()
    assert (model.labels_ == truth).mean() > 0.95
    np.testing.assert_array_equal(model.transform(x), model.embedding_)
    np.testing.assert_array_equal(model.predict(x), model.labels_)
    assert model.get_feature_names_out().tolist() == [f"forestembedding{i}" for i in range(16)]


def test_prediction_is_row_by_row(fitted):
    model, x, _, _ = fitted
    order = np.random.default_rng(0).permutation(len(x))
    np.testing.assert_array_equal(model.predict(x[order]), model.predict(x)[order])
    np.testing.assert_allclose(model.transform(x[:7]), model.transform(x)[:7], rtol=1e-5, atol=1e-6)


def test_one_row_can_be_predicted_but_not_fitted(fitted):
    model, x, _, _ = fitted
    np.testing.assert_array_equal(model.predict(x[:1]), model.predict(x)[:1])
    with pytest.raises(ValueError, match=r"1 sample.*a minimum of 2 is required"):
        make_model(1).fit(x[:1], [0])


def test_noise_of_tables(fitted):
    model, x, y, _ = fitted
    assert (model.module_.config.epsilon, model.module_.config.noise_start) == (0.5, 1.0)
    given = make_model(epsilon=0.2, n_steps=1).fit(x, y).module_.config
    assert (given.epsilon, given.noise_start) == (0.2, 1.0)


def test_parameters_are_left_alone(fitted):
    model = fitted[0]
    assert model.get_params() == make_model(cut="auto").get_params()


def test_more_clusters_than_labels_leave_room_for():
    x, _, truth = make_blobs(n=40)
    with pytest.warns(ConvergenceWarning, match="room for 4 clusters"):
        model = make_model(6, n_steps=2).fit(x, truth)
    assert model.n_clusters_ == 4


def test_fewer_clusters_because_rows_are_equal_are_said():
    x, y = np.repeat(np.eye(3), 10, axis=0), np.where(np.arange(30) < 12, np.arange(30) // 10, -1)
    with pytest.warns(ConvergenceWarning, match="by cut 'k-means' of equal rows 3 clusters were found"):
        assert make_model(5, cut="k-means", n_steps=2).fit(x, y).n_clusters_ == 3


def test_score_ignores_unknown_rows(fitted):
    model, x, y, truth = fitted
    assert model.score(x, y) == 1.0
    assert model.score(x, truth) == dc.metrics.clustering_scores(truth, model.labels_)["ari"]


def test_new_clusters_get_new_numbers():
    x, y, truth = make_blobs(n=120, labelled=(0, 2), per_class=10)
    y[y == 2] = 9
    model = make_model(batch_size=120).fit(x, y)
    assert model.classes_.tolist() == [0, 9]
    assert set(model.labels_) == {0, 9, 10, 11}
    assert (model.labels_[y >= 0] == y[y >= 0]).all()
    assert dc.metrics.clustering_scores(truth, model.labels_)["ari"] > 0.9
    assert model.min_cluster_size_ == 10


@pytest.mark.parametrize("with_labels", [True, False])
def test_pairs_and_labels_together(with_labels):
    x, y, truth = make_blobs(n=80, labelled=(0, 1), per_class=5)
    must = [(2, 6), (6, 10), (3, 7)]  # classes 2 and 3 are known by pairs only
    cannot = [(2, 3), (2, 0)]
    pairs = dc.Constraints.from_pairs(80, must, cannot)
    labels = y if with_labels else None
    model = make_model(4).fit(x, labels, constraints=pairs)
    assert pairs.agree(model.labels_)
    if with_labels:
        assert (model.labels_[y >= 0] == y[y >= 0]).all()
        assert set(model.labels_) == {0, 1, 2, 3}
        again = make_model(4).fit(x, constraints=dc.Knowledge.join(y, must, cannot))
        np.testing.assert_array_equal(again.labels_, model.labels_)
    assert dc.metrics.clustering_scores(truth, model.labels_)["ari"] > 0.9
    with pytest.raises(ValueError, match=r"\(0, 1\) must stay apart"):
        make_model(4).fit(x, y, constraints=dc.Constraints.from_pairs(80, [(0, 1)]))
    with pytest.raises(ValueError, match="about 80 points, but there are 79"):
        make_model(4).fit(x[:79], y[:79], constraints=pairs)


@pytest.mark.slow
def test_one_label_for_each_class():
    """What helps there: a size guard for labelled classes, rows that are lent a label, a network that starts at x."""
    x, y, truth = make_blobs(n=240, per_class=1, seed=1, distance=4)
    without = {"options": {"least_labels": 1}}
    aris, smallest = [], []
    mlp = {"backbone": "mlp"}
    for changes in ({**mlp, **without, "min_cluster_size": 1}, {**mlp, **without}, mlp, without, {}):
        labels = make_model(n_steps=100, batch_size=128, cut="forest", **changes).fit(x, y).labels_
        assert (labels[y >= 0] == y[y >= 0]).all()
        aris.append(dc.metrics.clustering_scores(truth, labels)["ari"])
        smallest.append(np.bincount(labels).min())
    assert smallest[0] == 1
    assert smallest[1] >= 20  # the guard
    assert aris[0] < aris[1] < 0.7
    assert min(aris[2:]) > 0.9


def test_guard_is_lowered_where_it_leaves_too_few_clusters():
    x, y, _ = make_blobs(n=40)
    model = make_model(n_clusters=12, min_cluster_size="auto", n_steps=2).fit(x, y)
    assert len(set(model.labels_)) == 12
    x, y, _ = make_blobs(n=120, n_classes=2, labelled=(0, 1), per_class=40)
    model = make_model(n_clusters=6, n_steps=2).fit(x, y)
    assert len(set(model.labels_)) == 6
    assert model.min_cluster_size_ < 120 // 18


def test_fit_predict_and_fit_transform(fitted):
    model, x, y, _ = fitted
    np.testing.assert_array_equal(make_model().fit_predict(x, y), model.labels_)
    np.testing.assert_array_equal(make_model().fit_transform(x, y), model.embedding_)


@pytest.mark.slow
def test_repeatable_and_not(fitted):
    model, x, y, _ = fitted
    other = make_model(random_state=1).fit(x, y)
    assert not np.array_equal(other.embedding_, model.embedding_)
    unseeded = [make_model(random_state=None, n_steps=1).fit(x, y).embedding_ for _ in range(2)]
    assert not np.array_equal(*unseeded)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_predict_the_same(fitted, duplicate):
    model, x, _, _ = fitted
    np.testing.assert_array_equal(duplicate(model).predict(x), model.predict(x))


def test_clone_and_parameters(fitted):
    model = fitted[0]
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        clone(model).predict(np.zeros((2, 6)))


@pytest.mark.parametrize("frames", ["pandas", "polars"])
def test_frames_as_scikit_learns_global_output_change_nothing(frames):
    """Transformers inside would give frames, too."""
    pytest.importorskip(frames)
    x, y, _ = make_blobs()
    expected = make_model(cut="auto", n_steps=4).fit(x, y)
    with sklearn.config_context(transform_output=frames):
        model = make_model(cut="auto", n_steps=4).fit(x, y)
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        np.testing.assert_array_equal(model.probabilities_, expected.probabilities_)
        np.testing.assert_array_equal(model.predict(x), expected.predict(x))
        assert dc.suggest(model, 3) == dc.suggest(expected, 3)
        assert suspect_labels(model.partition_, list("abcd")) == suspect_labels(expected.partition_, list("abcd"))
        assert type(model.transform(x)).__module__.startswith(frames)


def test_display_and_missing_fit(fitted):
    assert "ForestEmbedding" in fitted[0]._repr_html_()
    with pytest.raises(NotFittedError):
        _ = make_model().probabilities_


def test_pipeline(fitted):
    _, x, y, _ = fitted
    pipeline = make_pipeline(StandardScaler(), make_model(n_steps=3)).fit(x, y)
    assert pipeline.predict(x[:5]).shape == (5,)
    assert pipeline.score(x, y) <= 1


def test_unknown_labels_as_nan(fitted):
    model, x, y, _ = fitted
    np.testing.assert_array_equal(make_model().fit(x, np.where(y < 0, np.nan, y)).labels_, model.labels_)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3)])
def test_images(shape):
    rng = np.random.default_rng(0)
    truth = np.arange(40) % 2
    x = (rng.random((40, *shape)) * 100 + truth.reshape(-1, *[1] * len(shape)) * 100).astype(np.uint8)
    model = make_model(2, n_steps=5, options={"augment": "shift"})
    model.fit(x, np.where(np.arange(40) < 10, truth, -1))
    assert model.transform(x[:3]).shape == (3, 16)
    config = model.module_.config
    assert (config.backbone, config.epsilon, config.noise_start) == ("cnn", 2.0, 0.25)
    with pytest.raises(ValueError, match="rows of shape"):
        model.transform(np.zeros((3, 8, 9, *shape[2:]), np.uint8))


def test_module_as_backbone_and_early_stopping(fitted):
    _, x, y, _ = fitted
    network = torch.nn.Linear(6, 3)
    model = make_model(backbone=network, validation_fraction=0.3, patience=1, options={"validate_every": 5}).fit(x, y)
    assert model.embedding_.shape == (120, 3)
    assert model.module_.validations
    assert model.get_params()["backbone"] is network


def test_a_module_as_backbone_is_left_as_it_is():
    """Trained in place, it would change again after the rows were embedded, while a cut is chosen."""
    x, y, _ = make_blobs()
    network = torch.nn.Linear(6, 3)
    before = network.weight.clone()
    model, again = (make_model(backbone=network, cut="auto", n_steps=4).fit(x, y) for _ in range(2))
    assert torch.equal(network.weight, before)
    np.testing.assert_array_equal(model.transform(x), model.embedding_)
    np.testing.assert_array_equal(again.embedding_, model.embedding_)


def test_negative_and_masked_labels_are_unknown(fitted):
    _, x, y, _ = fitted
    expected = make_model(n_steps=1).fit(x, y)
    for other in (
        np.where(y < 0, -100, y),
        np.ma.masked_array(np.where(y < 0, 1, y), mask=y < 0),
        np.ma.masked_array(np.where(y < 0, 1.0, y), mask=y < 0),
    ):
        model = make_model(n_steps=1).fit(x, other)
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        np.testing.assert_array_equal(model.embedding_, expected.embedding_)
        assert model.score(x, other) == expected.score(x, y)


def test_masked_points_are_refused(fitted):
    model, x, y, _ = fitted
    masked = np.ma.masked_array(x, mask=x == x.max())
    for call in (lambda: make_model().fit(masked, y), lambda: model.predict(masked), lambda: model.transform(masked)):
        with pytest.raises(ValueError, match="X has masked entries"):
            call()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed"),
        (np.full(120, -1), "Without any, use SpanningForestClustering"),
        (np.full(120, "2026-11-18", "datetime64[D]"), r"pandas\.factorize numbers classes, -1 where one is missing"),
        (np.full(120, 0.5), r"pandas\.factorize"),
        (np.where(np.arange(120) < 9, 1.0, np.inf), "y must be integers"),
        (np.full(120, -100), "y has no known label"),
        (np.zeros(7, int), "one label for each of the 120 points"),
        (np.arange(120) % 5, "n_clusters to at least 5"),
    ],
)
def test_bad_labels(fitted, y, message):
    with pytest.raises(ValueError, match=message):
        make_model().fit(fitted[1], y)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n_clusters": 121}, ValueError, "n_samples=120"),
        ({"n_clusters": 4.0}, TypeError, "n_clusters must be an integer"),
        ({"epsilon": "large"}, ValueError, "epsilon must be above 0"),
        ({"n_steps": 0}, ValueError, "n_steps must be an integer, at least 1"),
        ({"patience": 3}, ValueError, "validation_fraction above 0"),
        ({"backbone": "resnet"}, ValueError, "package.module:attribute"),
        ({"options": {"speed": 3}}, TypeError, "options has no setting speed. The settings are .*weight_decay"),
    ],
)
def test_bad_parameters(fitted, changes, error, message):
    _, x, y, _ = fitted
    with pytest.raises(error, match=message):
        make_model(**changes).fit(x, y)


@pytest.mark.slow
def test_digits_with_100_labels():
    x, truth = load_digits(return_X_y=True)
    x, x_test, truth, truth_test = train_test_split(x, truth, test_size=0.5, stratify=truth, random_state=0)
    rng = np.random.default_rng(0)
    y = np.full(len(x), -1)
    for digit in range(10):
        y[rng.choice(np.flatnonzero(truth == digit), 10, replace=False)] = digit
    model = ForestEmbedding(n_clusters=10, batch_size=128, n_steps=100, random_state=0).fit(x, y)
    assert model.score(x_test, truth_test) > 0.7


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:n_clusters=5, but the labels")
@parametrize_with_checks(
    [make_model(5, n_steps=2, cut="forest")], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
