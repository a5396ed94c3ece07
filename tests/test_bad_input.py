"""Bad input: one table of what is wrong, the error, and words that its message must have."""

import numpy as np
import pytest

from diffclust import (
    Constraints,
    Hierarchy,
    cosine_similarities,
    metrics,
    mutual_reachability,
    negative_squared_distances,
    noise,
    spanning_forest,
    standardize,
)

OK = -np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
NAN, INF = float("nan"), float("inf")


def changed(*changes, base=OK):
    """A copy with entries replaced: changed((i, j, value), ...), one side only."""
    matrix = np.array(base, dtype=np.float64)
    for i, j, value in changes:
        matrix[i, j] = value
    return matrix


def from_matrix(*changes):
    """A matrix of constraints on 4 points, unknown where not changed; both sides."""
    return changed(*changes, *((j, i, value) for i, j, value in changes), base=np.full((4, 4), NAN))


def masked(array, *index):
    """The array with one masked entry."""
    result = np.ma.masked_array(array)
    result[index] = np.ma.masked
    return result


# Wrong similarities, for everything that takes one. (name, similarity, error, words)
SIMILARITIES = [
    ("scalar", 3.0, ValueError, r"shape \(n, n\).*got shape \(\)"),
    ("vector", np.zeros(4), ValueError, r"shape \(n, n\).*got shape \(4,\)"),
    ("not square", np.zeros((3, 4)), ValueError, r"shape \(n, n\).*got shape \(3, 4\)"),
    ("points", np.zeros((10, 2)), ValueError, r"got shape \(10, 2\)"),
    ("batch not square", np.zeros((2, 3, 4)), ValueError, r"got shape \(2, 3, 4\)"),
    ("empty", np.zeros((0, 0)), ValueError, r"empty.*at least one point|from 1 to the number of other points"),
    ("empty list", [], ValueError, r"shape \(n, n\).*got shape \(0,\)"),
    ("complex", OK.astype(complex), TypeError, r"similarity must be real numbers, got dtype complex128"),
    ("objects", np.array([[0, None], [None, 0]]), TypeError, r"similarity must be real numbers, got dtype object"),
    ("strings", [["a", "b"], ["b", "a"]], TypeError, r"similarity must be real numbers, got dtype <U1"),
    ("none", None, (TypeError, ValueError), r"similarity must (be real numbers, got dtype object|have shape)"),
    ("masked", masked(OK, 1, 2), ValueError, r"similarity has masked entries, the first at \(1, 2\).*filled"),
]
# Wrong for a solver. The elementwise functions pass a NaN on, where the solver finds it.
VALUES = [
    ("asymmetric", changed((0, 1, 5.0)), ValueError, r"symmetric: entry \(0, 1\) is 5, entry \(1, 0\) is -1.*Sym"),
    ("slightly asymmetric", changed((0, 1, -1.01)), ValueError, r"symmetric.*\(0, 1\)"),
    ("half missing", changed((2, 3, -INF)), ValueError, r"symmetric.*\(2, 3\) is -inf"),
    ("asymmetric in a batch", np.stack([OK, changed((3, 1, 9.0))]), ValueError, r"symmetric"),
    ("nan", changed((1, 2, NAN), (2, 1, NAN)), ValueError, r"NaN at \(1, 2\).*Use -inf"),
    ("nan on the diagonal", changed((3, 3, NAN)), ValueError, r"NaN at \(3, 3\)"),
    ("nan in a batch", np.stack([OK, changed((1, 2, NAN), (2, 1, NAN))]), ValueError, r"NaN at \(1, 1, 2\)"),
    ("infinite", changed((1, 2, INF), (2, 1, INF)), ValueError, r"\+inf at \(1, 2\).*must-link"),
    ("float32 nan", changed((1, 2, NAN), (2, 1, NAN)).astype(np.float32), ValueError, r"NaN at \(1, 2\)"),
    ("float16 asymmetric", changed((0, 1, 5.0)).astype(np.float16), ValueError, r"symmetric"),
]
N_CLUSTERS = [
    ("zero", 0, ValueError, r"n_clusters=0 must be from 1 to the number of points, 4"),
    ("negative", -1, ValueError, r"n_clusters=-1 must be from 1 to the number of points, 4"),
    ("above n", 5, ValueError, r"n_clusters=5 must be from 1 to the number of points, 4"),
    ("huge", 10**30, (ValueError, TypeError), r"n_clusters"),
    ("float", 2.0, TypeError, r"n_clusters must be an integer, got 2.0"),
    ("true", True, TypeError, r"n_clusters must be an integer, got True"),
    ("numpy true", np.True_, TypeError, r"n_clusters must be an integer, got (np\.)?True"),
    ("string", "2", TypeError, r"n_clusters must be an integer, got '2'"),
    ("none", None, TypeError, r"n_clusters must be an integer, got None"),
    ("nan", NAN, TypeError, r"n_clusters must be an integer, got nan"),
    ("masked", masked(2), (TypeError, ValueError), r"n_clusters (has masked entries|must be an integer)"),
]
LABELS = [
    ("float", [0.0, 1.0], TypeError, r"labels must be integers, got float64.*Convert them"),
    ("nan", [0, NAN], TypeError, r"labels must be integers, got float64"),
    ("bool", [True, False], TypeError, r"labels must be integers, got bool"),
    ("strings", ["a", "b"], TypeError, r"labels must be integers, got <U1"),
    ("objects", [None, 1], TypeError, r"labels must be integers, got object"),
    ("none", None, TypeError, r"labels must be integers, got object"),
    ("complex", [1j, 0], TypeError, r"labels must be integers, got complex128"),
    ("scalar", 3, ValueError, r"shape \(n,\).*got shape \(\)"),
    ("empty", np.empty(0, int), ValueError, r"empty.*at least one point"),
    ("empty list", [], ValueError, r"empty.*at least one point"),
    ("empty batch of nothing", np.empty((3, 0), int), ValueError, r"empty.*\(3, 0\)"),
]
PAIRS = [
    ("out of range", [(0, 4)], ValueError, r"pair \(0, 4\) is out of range: points are numbered 0 to 3"),
    ("second out of range", [(0, 1), (9, 2)], ValueError, r"pair \(9, 2\) is out of range"),
    ("masked", masked([(0, 1), (2, 3)], 1, 0), ValueError, r"has masked entries, the first at \(1, 0\)"),
    ("negative", [(-1, 2)], ValueError, r"pair \(-1, 2\) is out of range"),
    ("one pair", (0, 3), ValueError, r"shape \(m, 2\), got shape \(2,\)"),
    ("triples", [(0, 1, 2)], ValueError, r"shape \(m, 2\), got shape \(1, 3\)"),
    ("float", [(0.0, 1.0)], TypeError, r"must be integers, got float64"),
    ("bool", [(True, False)], TypeError, r"must be integers, got bool"),
    ("strings", [("a", "b")], TypeError, r"must be integers, got <U1"),
    ("objects", [(0, None)], TypeError, r"must be integers, got object"),
    ("number", 3, TypeError, r"not iterable|must be pairs"),
]
MATRICES = [
    ("one half", from_matrix((0, 1, 0.5)), ValueError, r"1 \(same\), 0 \(different\) or nan \(unknown\), got 0.5"),
    ("minus one", from_matrix((0, 1, -1)), ValueError, r"got -1"),
    ("infinite", from_matrix((0, 1, INF)), ValueError, r"got inf"),
    ("asymmetric", changed((0, 1, 1.0), base=np.full((4, 4), NAN)), ValueError, r"symmetric"),
    ("asymmetric values", changed((0, 1, 1.0), (1, 0, 0.0), base=np.full((4, 4), NAN)), ValueError, r"symmetric"),
    ("zero diagonal", from_matrix((2, 2, 0.0)), ValueError, r"0 on its diagonal.*Use 1 or nan"),
    ("not square", np.ones((2, 3)), ValueError, r"shape \(n, n\).*got shape \(2, 3\)"),
    ("vector", np.ones(3), ValueError, r"shape \(n, n\).*got shape \(3,\)"),
    ("empty", np.ones((0, 0)), ValueError, r"n >= 1, got shape \(0, 0\)"),
    ("contradiction", from_matrix((0, 1, 1), (1, 2, 1), (0, 2, 0)), ValueError, r"Contradictory.*\(0, 1\), \(1, 2\)"),
    ("complex", np.eye(2) * (1 + 1j), TypeError, r"matrix|real|complex"),
    ("objects", [[1, object()], [0, 1]], TypeError, r"real number"),
    ("strings", [["1", "x"], ["x", "1"]], (TypeError, ValueError), r"float|matrix"),
]
POINTS = [
    ("vector", np.zeros(3), ValueError, r"shape \(n, d\).*got shape \(3,\)"),
    ("scalar", 1.0, ValueError, r"shape \(n, d\).*got shape \(\)"),
    ("empty", np.zeros((0, 3)), ValueError, r"empty.*at least one point"),
    ("empty list", [], ValueError, r"shape \(n, d\).*got shape \(0,\)"),
    ("complex", np.zeros((3, 2), complex), TypeError, r"points must be real numbers, got dtype complex128"),
    ("objects", [[None, 1]], TypeError, r"points must be real numbers, got dtype object"),
    ("strings", [["a", "b"]], TypeError, r"points must be real numbers, got dtype <U1"),
    ("masked", masked(np.zeros((3, 2)), 2, 1), ValueError, r"points has masked entries, the first at \(2, 1\).*filled"),
]
COUNTS = [  # for integers from 1 up
    ("zero", 0, ValueError, r"=0 must be from 1 to"),
    ("negative", -2, ValueError, r"=-2 must be from 1 to"),
    ("float", 2.0, TypeError, r"must be an integer, got 2.0"),
    ("true", True, TypeError, r"must be an integer, got True"),
    ("string", "2", TypeError, r"must be an integer, got '2'"),
    ("none", None, TypeError, r"must be an integer, got None"),
]
KNOWN = {
    "labels": Constraints.from_labels([0, 0, 1, 2]),
    "pairs": Constraints.from_pairs(4, [(0, 1)], [(1, 2), (2, 3), (3, 1)]),
    "chain": Constraints.from_pairs(4, [], [(0, 1), (1, 2), (2, 3)]),
}
HIERARCHY = Hierarchy(4, np.array([[0, 1], [1, 2], [2, 3]], np.int32), np.array([-1.0, -1.0, -1.0]))
BATCH = np.stack([OK, OK, OK])


def rows(name, table, call):
    """Rows (id, call without arguments, error, words), one for each row of a table."""
    return [(f"{name}: {what}", lambda wrong=wrong: call(wrong), error, words) for what, wrong, error, words in table]


TABLE = [
    *rows("spanning_forest similarity", SIMILARITIES + VALUES, lambda wrong: spanning_forest(wrong, 1)),
    *rows("from_similarity", SIMILARITIES, Hierarchy.from_similarity),
    *rows("from_similarity", [row for row in VALUES if "batch" not in row[0]], Hierarchy.from_similarity),
    *rows("from_similarity", [("batch", BATCH, ValueError, r"one problem.*got \(3, 4")], Hierarchy.from_similarity),
    *rows("standardize", SIMILARITIES, standardize),
    *rows(
        "standardize",
        [("missing edge", changed((0, 1, -INF), (1, 0, -INF)), ValueError, "finite.*before masking")],
        standardize,
    ),
    *rows("mutual_reachability similarity", SIMILARITIES, lambda wrong: mutual_reachability(wrong, 1)),
    *rows("mutual_reachability n_neighbors", COUNTS, lambda wrong: mutual_reachability(OK, wrong)),
    *rows(
        "mutual_reachability",
        [("n neighbors", 4, ValueError, "n_neighbors=4 must be from 1 to the number of other points, 3")],
        lambda wrong: mutual_reachability(OK, wrong),
    ),
    *rows("from_points", [row for row in POINTS if row[0] == "masked"], Hierarchy.from_points),
    *rows("negative_squared_distances", POINTS, negative_squared_distances),
    *rows("cosine_similarities", POINTS, cosine_similarities),
    *rows("n_clusters", N_CLUSTERS, lambda wrong: spanning_forest(OK, wrong)),
    *rows("n_clusters with labels", N_CLUSTERS, lambda wrong: spanning_forest(OK, wrong, constraints=KNOWN["labels"])),
    *rows("n_clusters of a batch", N_CLUSTERS, lambda wrong: spanning_forest(BATCH, wrong)),
    *rows(
        "n_clusters per problem",
        [
            ("one is zero", [1, 0, 2], ValueError, "n_clusters=0 must be from 1"),
            ("one above n", [1, 2, 5], ValueError, "n_clusters=5 must be from 1"),
            ("floats", [1.0, 2.0, 3.0], TypeError, "must be an integer"),
            ("too few", [1, 2], ValueError, r"one per problem, shape \(3,\), got shape \(2,\)"),
            ("too many dimensions", [[1, 2, 3]], ValueError, r"one per problem, shape \(3,\), got shape \(1, 3\)"),
        ],
        lambda wrong: spanning_forest(BATCH, wrong),
    ),
    *rows(
        "n_clusters",
        [("several for one problem", [1, 2], ValueError, r"one integer or one per.*\(\), got shape \(2,\)")],
        lambda wrong: spanning_forest(OK, wrong),
    ),
    *rows("hierarchy.labels n_clusters", [r for r in N_CLUSTERS if r[0] != "numpy true"], HIERARCHY.labels),
    *rows("hierarchy.labels min_cluster_size", COUNTS, lambda wrong: HIERARCHY.labels(2, wrong)),
    *rows(
        "hierarchy.labels",
        [
            ("size above n", 5, ValueError, "min_cluster_size=5 must be from 1 to the number of points, 4"),
            (
                "size unreachable",
                3,
                ValueError,
                "reached with min_cluster_size=3: this tree can be cut into 1 to 1",
            ),
        ],
        lambda wrong: HIERARCHY.labels(2, wrong),
    ),
    *rows("guarded_cuts", COUNTS, HIERARCHY.guarded_cuts),
    *rows(
        "joined",
        [
            ("too few points", ([0, 0], np.eye(1)), ValueError, r"group must be 4 integers, got int64 of shape \(2,\)"),
            ("floats", (np.zeros(4), np.eye(1)), ValueError, "group must be 4 integers, got float64"),
            ("groups beyond", ([0, 1, 2, 9], np.eye(3)), ValueError, r"over the groups 0 to 9, got shape \(3, 3\)"),
            ("no matrix", ([0, 0, 0, 0], [True]), ValueError, r"apart must be a matrix.*got shape \(1,\)"),
        ],
        lambda wrong: HIERARCHY.joined(*wrong),
    ),
    *rows("from_labels", LABELS, Constraints.from_labels),
    *rows("from_pairs must_link", PAIRS, lambda wrong: Constraints.from_pairs(4, must_link=wrong)),
    *rows("from_pairs cannot_link", PAIRS, lambda wrong: Constraints.from_pairs(4, cannot_link=wrong)),
    *rows(
        "from_pairs n_points",
        [
            ("zero", 0, ValueError, "n_points must be at least 1, got 0"),
            ("negative", -3, ValueError, "n_points must be at least 1, got -3"),
            ("float", 4.0, TypeError, "n_points must be an integer, got 4.0"),
            ("true", True, TypeError, "n_points must be an integer, got True"),
            ("none", None, TypeError, "n_points must be an integer, got None"),
            ("pairs", [(0, 1)], TypeError, r"n_points must be an integer, got \[\(0, 1\)\]"),
        ],
        Constraints.from_pairs,
    ),
    *rows(
        "from_pairs contradiction",
        [
            ("direct", ([(0, 1)], [(1, 0)]), ValueError, r"\(1, 0\) must stay apart.*must-links \(1, 0\)"),
            (
                "chain",
                ([(0, 1), (1, 2), (2, 3)], [(0, 3)]),
                ValueError,
                r"\(0, 3\) must stay apart, but the must-links \(0, 1\), \(1, 2\), \(2, 3\) join them.*Remove one",
            ),
            ("itself", ([], [(2, 2)]), ValueError, r"\(2, 2\).*cannot be apart from itself"),
        ],
        lambda wrong: Constraints.from_pairs(4, *wrong),
    ),
    *rows("from_matrix", MATRICES, Constraints.from_matrix),
    *rows(
        "constraints",
        [
            ("labels themselves", [0, 0, 1, 2], TypeError, "must be a Constraints object, got list.*from_labels"),
            ("matrix itself", np.eye(4), TypeError, "must be a Constraints object, got ndarray"),
            ("class", Constraints, TypeError, "must be a Constraints object, got type"),
            ("wrong length", Constraints.from_labels([0, 1, -1]), ValueError, "about 3 points, similarity is about 4"),
            ("wrong length of pairs", Constraints.from_pairs(5, [(0, 1)]), ValueError, "about 5 points.*about 4"),
            ("batch for one", Constraints.from_labels(np.zeros((2, 4), int)), ValueError, r"batch shape \(2,\)"),
        ],
        lambda wrong: spanning_forest(OK, 2, constraints=wrong),
    ),
    *rows(
        "constraints of a batch",
        [
            ("other batch", Constraints.from_labels(np.zeros((2, 4), int)), ValueError, r"batch shape \(2,\).*\(3,\)"),
            (
                "one infeasible",
                Constraints.from_labels([[0, 1, -1, -1], [0, 0, 1, 2], [0, 1, -1, -1]]),
                ValueError,
                r"n_clusters=2 is infeasible: the constraints allow 3 to 3 clusters \(problem 1 of the batch\)",
            ),
        ],
        lambda wrong: spanning_forest(BATCH, 2, constraints=wrong),
    ),
    *rows(
        "infeasible",
        [
            ("too few for labels", ("labels", 2), ValueError, "n_clusters=2 is infeasible.*allow 3 to 3 clusters"),
            ("too many for labels", ("labels", 4), ValueError, "n_clusters=4 is infeasible.*allow 3 to 3 clusters"),
            ("too few for pairs", ("pairs", 1), ValueError, "n_clusters=1 is infeasible.*allow 3 to 3 clusters"),
            ("too few for a chain", ("chain", 1), ValueError, "n_clusters=1 is infeasible.*allow 2 to 4 clusters"),
        ],
        lambda wrong: spanning_forest(OK, wrong[1], constraints=KNOWN[wrong[0]]),
    ),
    *rows(
        "agree",
        [
            ("too short", [0, 1, 1], ValueError, r"3|shape"),
            ("one point for four", [0], ValueError, r"4 points|shape"),
            ("scalar", 0, (ValueError, IndexError), r"indices|shape"),
        ],
        KNOWN["labels"].agree,
    ),
    *rows(
        "connectivity_error",
        [
            ("lengths", ([0, 1], [0]), ValueError, "labels_true has 2 points, labels_pred has 1"),
            ("matrices", (np.eye(2), np.eye(2)), ValueError, r"shape \(n,\), got shapes \(2, 2\) and \(2, 2\)"),
            ("scalars", (0, 0), ValueError, r"got shapes \(\) and \(\)"),
            ("empty", ([], []), ValueError, "empty: at least one point"),
            ("masked", ([0, 1], masked([0, 1], 1)), ValueError, r"labels_pred has masked entries, the first at \(1,\)"),
        ],
        lambda wrong: metrics.connectivity_error(*wrong),
    ),
    *rows(
        "clustering_scores",
        [
            ("lengths", ([0, 1, 1], [0, 1]), ValueError, "labels_true has 3 points, labels_pred has 2"),
            ("matrix", ([0, 1], np.eye(2)), ValueError, r"shape \(n,\), got shapes \(2,\) and \(2, 2\)"),
            ("empty", ([], []), ValueError, "empty: at least one point"),
        ],
        lambda wrong: metrics.clustering_scores(*wrong),
    ),
    *rows(
        "noise.sample",
        [
            ("kind", {"noise": "uniform"}, ValueError, r"noise must be one of \('normal', 'gumbel'\), got 'uniform'"),
            ("no kind", {"noise": None}, ValueError, "noise must be one of.*got None"),
            ("negative draws", {"n_draws": -1}, ValueError, "n_draws must be at least 0, got -1"),
            ("float draws", {"n_draws": 2.0}, TypeError, "n_draws must be an integer, got 2.0"),
            ("true draws", {"n_draws": True}, TypeError, "n_draws must be an integer, got True"),
            ("negative n", {"n": -1}, ValueError, "n must be at least 0, got -1"),
            ("float n", {"n": 3.0}, TypeError, "n must be an integer, got 3.0"),
            ("no n", {"n": None}, TypeError, "n must be an integer, got None"),
            ("negative first", {"first_draw": -1}, ValueError, "first_draw must be at least 0, got -1"),
            ("float first", {"first_draw": 0.0}, TypeError, "first_draw must be an integer, got 0.0"),
            ("first beyond 64 bits", {"first_draw": 2**64}, ValueError, "draws are numbered up to"),
            ("seed beyond 64 bits", {"seed": 2**64}, ValueError, "seed must fit into 64 bits, got 18446744"),
            ("seed below 64 bits", {"seed": -(2**63) - 1}, ValueError, "seed must fit into 64 bits"),
            ("float seed", {"seed": 1.5}, TypeError, "seed must be an integer"),
            ("string seed", {"seed": "3"}, TypeError, "seed must be an integer"),
            ("true seed", {"seed": True}, TypeError, "seed must be an integer"),
            ("no seed", {"seed": None}, TypeError, "seed|int"),
        ],
        lambda wrong: noise.sample(**{"seed": 0, "n_draws": 1, "n": 3, **wrong}),
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words) as raised:
        call()
    assert len(str(raised.value)) > 15  # says something


def test_the_good_input_is_good():
    """Otherwise the table above would test nothing."""
    assert spanning_forest(OK, 3, constraints=KNOWN["labels"]).n_clusters == 3
    assert spanning_forest(OK, 3, constraints=KNOWN["pairs"]).n_clusters == 3
    assert spanning_forest(OK, 2, constraints=Constraints.from_matrix(from_matrix((0, 1, 1.0)))).n_clusters == 2
    assert HIERARCHY.labels(2, 2).tolist() == [0, 0, 1, 1]
    assert KNOWN["labels"].agree([0, 0, 1, 2])


@pytest.mark.parametrize("function", [negative_squared_distances, cosine_similarities])
@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_points_that_are_not_numbers_never_give_a_forest(function, wrong):
    points = np.array([[0.0, 1.0], [2.0, 3.0], [wrong, 1.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match=r"NaN|nan|finite"):
        spanning_forest(function(points), 2)


@pytest.mark.parametrize("function", [standardize, lambda similarity: mutual_reachability(similarity, 2)])
@pytest.mark.parametrize("where", [(1, 2), (0, 3), (2, 2)])
def test_nan_similarities_never_give_a_forest(function, where):
    similarity = changed((*where, NAN), (*where[::-1], NAN))
    with pytest.raises(ValueError, match=r"NaN|nan|finite"):
        spanning_forest(function(similarity), 2)


def test_a_large_problem_hides_no_asymmetry_of_a_small_one():
    wrong = np.array([[0.0, 1.0], [2.0, 0.0]])
    for matrix in (wrong, np.stack([1e9 * np.ones((2, 2)) - 1e9 * np.eye(2), wrong])):
        with pytest.raises(ValueError, match=r"entry \(\d, \d\) is \d, entry \(\d, \d\) is \d\. Symmetrise"):
            spanning_forest(matrix, 1)


def test_asymmetry_does_not_disappear_in_mutual_reachability():
    """The smaller core on both sides would make an asymmetric matrix look symmetric."""
    with pytest.raises(ValueError, match="symmetric"):
        spanning_forest(mutual_reachability(np.array([[0.0, 1.0], [2.0, 0.0]]), 1), 1)


@pytest.mark.parametrize("wrong", [None, "no", np.array([True, False])], ids=["none", "string", "array"])
def test_must_link_first_is_a_bool(wrong):
    with pytest.raises(TypeError, match="must_link_first"):
        spanning_forest(OK, 3, constraints=KNOWN["labels"], must_link_first=wrong)
