"""Partial labels as people have them, in both estimators' words; sparse rows; probabilities of the clusterer."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score, pairwise_distances

import diffclust as dc
from diffclust.cluster import SpanningForestClustering
from diffclust.labels import parse_labels
from diffclust.tables.known import encode_labels

NUMBERS = [3, -1, 7, -1, 3]
NAMES = ["cat", None, "dog", None, "cat"]


def spellings_of_numbers():
    pandas = pytest.importorskip("pandas")
    yield np.array(NUMBERS)
    yield [3, None, 7, -100, 3]
    yield np.array([3, np.nan, 7, -1, 3])
    yield np.array(NUMBERS)[:, None]
    yield np.ma.masked_array([3, 9, 7, 9, 3], mask=[0, 1, 0, 1, 0])
    yield pandas.Series(NUMBERS)
    yield pandas.array([3, None, 7, None, 3], dtype="Int64")
    yield pandas.Categorical([3, None, 7, None, 3])
    yield np.array([3, None, 7, np.nan, 3], object)
    yield np.array(NUMBERS, ">i4")
    yield np.array([3, np.nan, 7, -1, 3], np.float16)


def spellings_of_names():
    pandas = pytest.importorskip("pandas")
    yield NAMES
    yield ["cat", float("nan"), "dog", "", "cat"]
    yield ["cat", -1, "dog", -1, "cat"]
    yield np.array(["cat", "", "dog", "", "cat"])
    yield np.array(["cat", -1, "dog", np.nan, "cat"])  # NumPy makes names of them
    yield np.array([b"cat", b"", b"dog", b"", b"cat"])
    yield np.array([b"cat", None, b"dog", b"", b"cat"], object)  # as h5py reads them
    yield np.ma.masked_array(["cat", "cow", "dog", "cow", "cat"], mask=[0, 1, 0, 1, 0])
    yield pandas.Series(NAMES)
    yield pandas.Series(NAMES, dtype="string")
    yield pandas.Series(NAMES, dtype="category")
    yield pandas.Series(NAMES, dtype="string").astype("category")


def test_all_spellings_of_integers_are_the_same():
    for y in spellings_of_numbers():
        labels = parse_labels(y, 5)
        assert labels.classes.dtype == np.int64
        assert labels.classes.tolist() == [3, 7]
        assert labels.codes.tolist() == [0, -1, 1, -1, 0]
        assert labels.cluster_names(np.array([-1, 1, 0, -1])).tolist() == [8, 7, 3, 9]


def test_all_spellings_of_names_are_the_same():
    for y in spellings_of_names():
        labels = parse_labels(y, 5)
        assert labels.classes.tolist() == ["cat", "dog"]
        assert labels.codes.tolist() == [0, -1, 1, -1, 0]
        assert labels.cluster_names(np.array([-1, 1, 0, -1])).tolist() == ["new 1", "dog", "cat", "new 2"]


def test_bytes_are_utf_8():
    for y in (np.array(["käse".encode(), b""]), np.array(["käse".encode(), None], object)):
        assert parse_labels(y, 2).classes.tolist() == ["käse"]


def test_tensors_in_half_precision():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float16, torch.bfloat16):
        assert parse_labels(torch.tensor([3, -1, 7, torch.nan], dtype=dtype), 4).codes.tolist() == [0, -1, 1, -1]


@pytest.mark.parametrize("word", ["-1.0", "unknown", "Unknown", "unlabeled", "NA", "n/a", "?", " ", "null", "NaN"])
def test_words_for_unknown_are_those_of_tables(word):
    y = ["b", word, "a", "b"]
    assert parse_labels(y, 4).codes.tolist() == encode_labels(np.array(y, object))[0].tolist() == [1, -1, 0, 1]


def test_new_clusters_do_not_take_the_name_of_a_class():
    assert parse_labels(["new 1", None], 2).cluster_names(np.array([-1, 0])).tolist() == ["new 2", "new 1"]


def test_booleans_are_the_classes_0_and_1():
    assert parse_labels([True, False, None], 3).classes.tolist() == [0, 1]


@pytest.mark.parametrize("y", [[None, None], [np.nan, np.nan], [-1, -2], [np.datetime64("NaT"), None]])
def test_nothing_known_numbers_clusters_from_0(y):
    assert parse_labels(y, 2).cluster_names(np.array([-1, -1])).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.5, 1.0], "Unknown label type float64: y must be integers, names or categories"),
        ([np.inf, 1.0], "Unknown label type"),
        ([(1, 2), (3, 4)], "one label for each of the 2 points"),
        ([0], "one label for each of the 2 points"),
        (["cat", 3], "names and numbers"),
        ([{}, {}], "Unknown label type dict"),
        (np.array([1 + 1j, 0]), "Unknown label type complex128"),
        (np.array([2**64 - 1, 0], np.uint64), "fit into int64"),
    ],
)
def test_what_is_no_label(y, message):
    with pytest.raises(ValueError, match=message):
        parse_labels(y, 2)


@pytest.fixture(scope="module")
def blobs():
    x, truth = make_blobs(90, centers=[(0, 0), (6, 0), (0, 6)], cluster_std=0.7, random_state=0)
    return x, truth, np.where((np.arange(90) < 20) & (truth < 2), truth, -1)  # the third blob has no labels


def test_names_come_back(blobs):
    x, truth, y = blobs
    names = np.array(["ash", "oak", None], object)[y]
    model = SpanningForestClustering(3).fit(x, names)
    assert model.classes_.tolist() == ["ash", "oak"]
    assert set(model.labels_) == {"ash", "oak", "new 1"}
    assert (model.labels_[y >= 0] == names[y >= 0]).all()
    assert adjusted_rand_score(truth, model.labels_) > 0.95
    np.testing.assert_array_equal(model.predict(x), model.labels_)
    np.testing.assert_array_equal(SpanningForestClustering(3).fit_predict(x, names), model.labels_)
    np.testing.assert_array_equal(model.cluster_numbers_[model.predict_proba(x).argmax(1)], model.labels_)


def test_labels_as_y_are_constraints(blobs):
    x, _, y = blobs
    model = SpanningForestClustering(3).fit(x, np.where(y == 1, 9, y))
    assert set(model.labels_) == {0, 9, 10}
    other = SpanningForestClustering(3).fit(x, constraints=dc.Constraints.from_labels(y))
    np.testing.assert_array_equal(model.partition_.clusters, other.labels_)
    unknown = SpanningForestClustering(3).fit(x, np.full(90, -1))
    np.testing.assert_array_equal(unknown.labels_, SpanningForestClustering(3).fit(x).labels_)


def test_labels_and_pairs(blobs):
    x, truth, y = blobs
    first, new = int(np.flatnonzero(y == 0)[0]), int(np.flatnonzero(truth == 2)[0])
    pairs = dc.Constraints.from_pairs(90, must_link=[(first, new)])
    assert SpanningForestClustering(2).fit(x, y, constraints=pairs).labels_[new] == 0
    apart = dc.Constraints.from_pairs(90, cannot_link=[np.flatnonzero(y == 0)[:2]])
    with pytest.raises(ValueError, match="must stay apart"):
        SpanningForestClustering(3).fit(x, y, constraints=apart)


def test_n_clusters_is_moved_to_what_y_allows(blobs):
    x, truth, _ = blobs
    for k in (1, 8):
        with pytest.warns(ConvergenceWarning, match=f"n_clusters={k}, but y and constraints allow 3 to 3 clusters"):
            model = SpanningForestClustering(k).fit(x, truth)
        np.testing.assert_array_equal(model.labels_, truth)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_probabilities_are_those_of_the_partition(blobs, metric):
    x, _, y = blobs
    model = SpanningForestClustering(3, metric=metric).fit(x, y)
    np.testing.assert_allclose(model.predict_proba(x), model.partition_.probabilities())
    np.testing.assert_allclose(model.novelty_, model.partition_.novelty())
    assert model.probabilities_.shape == (90,)
    assert (model.probabilities_[y >= 0] == 1).all()
    assert model.novelty_[model.labels_ == 2].min() > 0.5 > model.novelty_[model.labels_ != 2].max()


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "manhattan", "chebyshev"])
def test_a_matrix_has_the_probabilities_of_its_points(metric):
    x = np.random.default_rng(0).normal(size=(60, 3))
    points = SpanningForestClustering(4, metric=metric).fit(x)
    distances = pairwise_distances(x, metric=metric)
    np.fill_diagonal(distances, 0)
    for matrix in (distances, 3 - distances):
        model = SpanningForestClustering(4, metric="precomputed").fit(matrix)
        np.testing.assert_allclose(model.probabilities_, points.probabilities_)
        np.testing.assert_allclose(model.predict_proba(matrix[:5]), points.predict_proba(x[:5]))
    assert points.novelty_ == pytest.approx(1)
    assert not hasattr(SpanningForestClustering(), "probabilities_")


def test_probabilities_of_one_point_and_before_fit():
    assert SpanningForestClustering(1).fit([[1.0]]).probabilities_.tolist() == [1.0]
    with pytest.raises(NotFittedError):
        SpanningForestClustering(1).predict_proba([[1.0]])


def test_sparse_rows(blobs, monkeypatch):
    x, _, y = blobs
    expected = SpanningForestClustering(3).fit(x, y)
    model = SpanningForestClustering(3).fit(csr_array(x), y)
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    np.testing.assert_array_equal(model.predict(csr_array(x)), expected.labels_)
    monkeypatch.setattr("diffclust.frameworks.MOST_DENSE_BYTES", 100)
    with pytest.raises(ValueError, match="TruncatedSVD"):
        SpanningForestClustering(3).fit(csr_array(x))
    with pytest.raises(TypeError, match="dense"):
        SpanningForestClustering(2, metric="precomputed").fit(csr_array(np.eye(3)))


def test_names_of_columns(blobs):
    pandas = pytest.importorskip("pandas")
    x, _, y = blobs
    frame = pandas.DataFrame(x, columns=["width", "height"])
    model = SpanningForestClustering(3).fit(frame, pandas.Series(y))
    assert model.feature_names_in_.tolist() == ["width", "height"]
    np.testing.assert_array_equal(model.predict(frame), model.labels_)


def test_the_embedding_takes_names_frames_and_sparse_rows(blobs):
    pytest.importorskip("lightning")
    pandas = pytest.importorskip("pandas")
    x, truth, y = blobs
    frame = pandas.DataFrame(x, columns=["width", "height"])
    names = pandas.Series(np.array(["ash", "oak", None], object)[y], dtype="category")
    make = {"n_steps": 20, "embedding_dim": 4, "cut": "forest", "device": "cpu", "random_state": 0}
    model = dc.cluster.ForestEmbedding(3, **make).set_output(transform="pandas").fit(frame, names)
    assert model.classes_.tolist() == ["ash", "oak"]
    assert set(model.labels_) == {"ash", "oak", "new 1"}
    assert model.score(frame, names) == 1
    assert adjusted_rand_score(truth, model.predict(frame)) > 0.9
    assert model.feature_names_in_.tolist() == ["width", "height"]
    assert model.transform(frame).columns.tolist() == [f"forestembedding{i}" for i in range(4)]
    same = dc.cluster.ForestEmbedding(3, **make).fit(csr_array(x), y)
    np.testing.assert_array_equal(same.partition_.clusters, model.partition_.clusters)


def test_words_among_the_features_say_what_to_do():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("torch")
    frame = pandas.DataFrame({"width": [1.0, 2.0, 3.0], "colour": ["red", "blue", "red"]})
    for model in (SpanningForestClustering(2), dc.cluster.ForestEmbedding(2)):
        with pytest.raises(ValueError, match=r"could not convert string to float: 'red'.*read_table"):
            model.fit(frame, [0, 1, -1])
