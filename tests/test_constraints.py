"""Labels, pairs and matrices: closure, feasible range and contradictions, against brute force over all clusterings."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diffclust as dc
from diffclust import Constraints
from oracles import (
    agrees,
    close_relation,
    feasible_cluster_counts,
    partial_labels,
    partitions,
    random_labels,
    random_pairs,
    relation_of_labels,
)


def to_relation(matrix):
    """The paper's matrix with nan for unknown as a relation with -1."""
    return np.where(np.isnan(matrix), -1, matrix).astype(np.int8)


def to_matrix(relation):
    return np.where(relation == -1, np.nan, relation.astype(np.float64))


@st.composite
def pair_lists(draw, max_n=7):
    """n, must-links and cannot-links, which may contradict each other."""
    n = draw(st.integers(2, max_n))
    pairs = st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=5)
    return n, draw(pairs), draw(pairs)


# ----------------------------------------------------------------------------------------------------------------
# Labels


@given(st.data())
def test_matrix_and_range_of_labels(data):
    labels = data.draw(partial_labels(data.draw(st.integers(1, 7))))
    constraints = Constraints.from_labels(labels)
    relation = relation_of_labels(labels)
    matrix = constraints.matrix()
    assert np.array_equal(matrix, to_matrix(relation), equal_nan=True)
    assert (matrix.diagonal() == 1).all()
    feasible = feasible_cluster_counts(relation)
    assert (constraints.min_clusters, constraints.max_clusters) == (feasible[0], feasible[-1])
    assert isinstance(constraints.min_clusters, int)
    assert isinstance(constraints.max_clusters, int)
    assert feasible == list(range(feasible[0], feasible[-1] + 1))
    assert constraints.n_points == len(labels)
    assert constraints.batch_shape == ()


@pytest.mark.parametrize("shape", [(3,), (2, 4)])
def test_batches_of_labels(shape):
    rng = np.random.default_rng(0)
    labels = np.stack([random_labels(rng, 9, known=p % 3 / 2) for p in range(np.prod(shape))]).reshape(*shape, 9)
    batch = Constraints.from_labels(labels)
    assert batch.batch_shape == shape
    assert batch.n_points == 9
    assert batch.matrix().shape == (*shape, 9, 9)
    for index in np.ndindex(shape):
        single = Constraints.from_labels(labels[index])
        assert np.array_equal(batch.matrix()[index], single.matrix(), equal_nan=True)
        assert batch.min_clusters[index] == single.min_clusters
        assert batch.max_clusters[index] == single.max_clusters


def in_framework(framework, array):
    if framework == "numpy":
        return array
    if framework == "torch":
        return pytest.importorskip("torch").from_numpy(array)
    return pytest.importorskip("jax.numpy").asarray(array)


@pytest.mark.parametrize("framework", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("must_link_first", [True, False])
def test_every_negative_label_is_unknown(framework, must_link_first):
    """-1 as in scikit-learn, -100 as torch's ignore_index, and any other; two of them are not one class."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(12, 2)).astype(np.float32)
    similarity = in_framework(framework, dc.negative_squared_distances(points))
    known = np.array([0, 1, 0, 2, -1, -1, -1, -1, 1, -1, -1, -1])
    other = np.where(known < 0, rng.choice([-1, -2, -100, -(2**31)], 12), known)
    a, b = (Constraints.from_labels(in_framework(framework, labels)) for labels in (known, other))
    np.testing.assert_array_equal(a.matrix(), b.matrix())
    assert (int(a.min_clusters), int(a.max_clusters)) == (int(b.min_clusters), int(b.max_clusters)) == (3, 10)
    assert [group.tolist() for group in a.groups()] == [group.tolist() for group in b.groups()]
    for k in (4, 11):  # 11 is moved to 10
        options = {"n_draws": 8, "seed": 3}
        first, second = (
            dc.partial_fenchel_young_loss(similarity, c, k, must_link_first=must_link_first, **options) for c in (a, b)
        )
        assert float(first) == float(second)
        first, second = (dc.connectivity_loss(similarity, c, k, **options) for c in (a, b))
        assert float(first) == float(second)
    first, second = (
        dc.spanning_forest(similarity, 4, constraints=c, must_link_first=must_link_first).labels.tolist()
        for c in (a, b)
    )
    assert first == second


def test_masked_labels_are_unknown():
    labels = np.ma.masked_array([0, 1, 0, 1], mask=[False, False, True, False])
    assert Constraints.from_labels(labels).labels.tolist() == [0, 1, -1, 1]
    small = np.ma.masked_array(np.array([0, 1], np.uint8), mask=[True, False])
    assert Constraints.from_labels(small).labels.tolist() == [-1, 1]
    assert Constraints.from_labels(np.ma.masked_array([3, 4])).labels.tolist() == [3, 4]


def test_masked_entries_of_a_matrix_are_unknown():
    matrix = np.ma.masked_array(np.eye(3, dtype=int), mask=[[0, 0, 1], [0, 0, 0], [1, 0, 0]])
    expected = [[1, 0, np.nan], [0, 1, 0], [np.nan, 0, 1]]
    np.testing.assert_array_equal(Constraints.from_matrix(matrix).matrix(), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, ">i4", ">u8"])
def test_integer_types_of_labels(dtype):
    constraints = Constraints.from_labels(np.array([0, 3, 3, 1], dtype))
    assert (constraints.min_clusters, constraints.max_clusters) == (3, 3)
    assert Constraints.from_labels([0, 3, 3, 1]).matrix().tolist() == constraints.matrix().tolist()
    assert Constraints.from_pairs(4, np.array([[0, 3]], dtype)).labels.tolist() == [0, -1, -1, 0]


# ----------------------------------------------------------------------------------------------------------------
# Pairs


@given(pair_lists())
def test_closure_of_pairs(problem):
    n, must, cannot = problem
    relation = close_relation(n, must, cannot)
    if relation is None:
        with pytest.raises(ValueError, match="Contradictory constraints"):
            Constraints.from_pairs(n, must, cannot)
        return
    constraints = Constraints.from_pairs(n, must_link=must, cannot_link=cannot)
    assert np.array_equal(to_relation(constraints.matrix()), relation)
    feasible = feasible_cluster_counts(relation)
    # Up to 3 the lower bound is the chromatic number. A wheel of 5 and its hub needs 4 without a clique of 4.
    assert constraints.min_clusters <= feasible[0]
    assert constraints.max_clusters == feasible[-1]
    if constraints.min_clusters <= 2 or feasible[0] <= 3:
        assert constraints.min_clusters == feasible[0]


def test_closure_on_larger_sets():
    rng = np.random.default_rng(1)
    for _ in range(100):
        n = int(rng.integers(8, 25))
        must, cannot = random_pairs(rng, n, density=rng.choice([0.02, 0.1, 0.3]))
        constraints = Constraints.from_pairs(n, must, cannot)
        assert np.array_equal(to_relation(constraints.matrix()), close_relation(n, must, cannot))


def test_min_clusters_is_a_bound_that_cliques_and_odd_cycles_reach():
    for size in range(1, 7):
        clique = list(itertools.combinations(range(size), 2))
        assert Constraints.from_pairs(8, cannot_link=clique).min_clusters == size
    for size, expected in ((4, 2), (5, 3), (6, 2), (7, 3)):
        cycle = [(i, (i + 1) % size) for i in range(size)]
        assert Constraints.from_pairs(8, cannot_link=cycle).min_clusters == expected


@given(st.data())
def test_pairs_that_say_what_labels_say_become_labels(data):
    """The fast path of the solvers is taken whichever way the knowledge came."""
    labels = data.draw(partial_labels(data.draw(st.integers(1, 8))))
    n, relation = len(labels), relation_of_labels(labels)
    pairs = list(itertools.combinations(range(n), 2))
    must = [p for p in pairs if relation[p] == 1]
    cannot = [p for p in pairs if relation[p] == 0]
    for constraints in (Constraints.from_pairs(n, must, cannot), Constraints.from_matrix(to_matrix(relation))):
        assert constraints.relation is None
        assert np.array_equal(to_relation(constraints.matrix()), relation)


def test_pairs_that_are_labels_need_no_matrix():
    known = Constraints.from_pairs(300_000, [(7, 200_000), (5, 5)], [(7, 9), (200_000, 9)])
    assert np.flatnonzero(known.labels >= 0).tolist() == [7, 9, 200_000]
    assert known.labels[[7, 9, 200_000]].tolist() == [7, 9, 7]
    assert (known.min_clusters, known.max_clusters) == (2, 299_999)


def test_general_pairs_keep_their_relation():
    constraints = Constraints.from_pairs(5, must_link=[(0, 1), (2, 3)])
    assert constraints.labels is None
    assert constraints.relation.tolist() == close_relation(5, [(0, 1), (2, 3)]).tolist()
    assert Constraints.from_pairs(5, must_link=[(3, 1)]).labels.tolist() == [-1, 1, -1, 1, -1]


def test_groups_leave_out_points_of_which_nothing_is_known():
    pairs = Constraints.from_pairs(7, must_link=[(1, 4)], cannot_link=[(4, 2), (2, 5)])
    group, apart = pairs.groups()
    assert group.tolist() == [-1, 0, 1, -1, 0, 2, -1]
    assert apart.tolist() == [[False, True, False], [True, False, True], [False, True, False]]
    group, apart = Constraints.from_labels([7, -1, 3, 7]).groups()
    assert group.tolist() == [1, -1, 0, 1]
    assert apart.tolist() == [[False, True], [True, False]]
    with pytest.raises(ValueError, match="one problem"):
        Constraints.from_labels([[0, 1], [1, 0]]).groups()


@pytest.mark.parametrize("empty", [(), [], np.empty((0, 2), int)])
def test_no_pairs(empty):
    constraints = Constraints.from_pairs(3, empty, empty)
    assert (constraints.min_clusters, constraints.max_clusters) == (1, 3)
    assert np.array_equal(constraints.matrix(), to_matrix(close_relation(3)), equal_nan=True)


def test_pairs_in_any_container():
    expected = Constraints.from_pairs(4, [(0, 1)], [(2, 3)]).matrix()
    for wrap in (tuple, set, iter, np.array, lambda pairs: np.array(pairs, np.uint8), lambda pairs: (p for p in pairs)):
        got = Constraints.from_pairs(np.int64(4), wrap([(0, 1)]), wrap([(3, 2), (2, 3)])).matrix()
        assert np.array_equal(got, expected, equal_nan=True)


# ----------------------------------------------------------------------------------------------------------------
# Contradictions


@given(pair_lists())
def test_contradiction_names_a_true_chain(problem):
    n, must, cannot = problem
    if close_relation(n, must, cannot) is not None:
        return
    with pytest.raises(ValueError, match="Contradictory constraints") as error:
        Constraints.from_pairs(n, must, cannot)
    named = [(int(a), int(b)) for a, b in re.findall(r"\((\d+), (\d+)\)", str(error.value))]
    (i, j), chain = named[0], named[1:]
    assert (i, j) in cannot or (j, i) in cannot
    if i == j:
        return
    assert "must-links" in str(error.value)
    assert "Remove" in str(error.value)
    assert chain[0][0] == i
    assert chain[-1][1] == j
    for (a, b), (c, _) in zip(chain, [*chain[1:], (j, j)], strict=True):
        assert b == c
        assert (a, b) in must or (b, a) in must


def test_shortest_chain_is_named():
    must = [(0, 1), (1, 2), (2, 3), (3, 4), (1, 4)]
    with pytest.raises(ValueError, match=re.escape("(0, 4) must stay apart, but the must-links (0, 1), (1, 4) join")):
        Constraints.from_pairs(5, must, [(0, 4)])


def test_contradictory_matrix():
    matrix = np.full((3, 3), np.nan)
    matrix[0, 1] = matrix[1, 0] = matrix[1, 2] = matrix[2, 1] = 1
    matrix[0, 2] = matrix[2, 0] = 0
    with pytest.raises(ValueError, match=re.escape("(0, 2) must stay apart, but the must-links (0, 1), (1, 2)")):
        Constraints.from_matrix(matrix)


# ----------------------------------------------------------------------------------------------------------------
# Matrices


@given(pair_lists())
def test_matrix_is_given_back(problem):
    n, must, cannot = problem
    relation = close_relation(n, must, cannot)
    if relation is None:
        return
    matrix = to_matrix(relation)
    assert np.array_equal(Constraints.from_matrix(matrix).matrix(), matrix, equal_nan=True)
    np.fill_diagonal(matrix, np.nan)  # an unknown diagonal is 1
    assert np.array_equal(Constraints.from_matrix(matrix).matrix(), to_matrix(relation), equal_nan=True)


def test_matrix_is_closed():
    matrix = np.full((4, 4), np.nan)
    for i, j, value in ((0, 1, 1), (1, 2, 1), (2, 3, 0)):
        matrix[i, j] = matrix[j, i] = value
    expected = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    assert Constraints.from_matrix(matrix).matrix().tolist() == expected


@pytest.mark.parametrize("general", [False, True])
def test_batches_of_matrices(general):
    rng = np.random.default_rng(2)
    relations = [relation_of_labels(random_labels(rng, 6)) for _ in range(6)]
    if general:
        relations[4] = close_relation(6, [(0, 1), (2, 3)], [(4, 5)])
    batch = Constraints.from_matrix(np.stack([to_matrix(r) for r in relations]).reshape(2, 3, 6, 6))
    assert batch.batch_shape == (2, 3)
    assert (batch.relation is None) != general
    assert np.array_equal(to_relation(batch.matrix()), np.stack(relations).reshape(2, 3, 6, 6))
    for p, relation in enumerate(relations):
        feasible = feasible_cluster_counts(relation)
        assert batch.min_clusters[p // 3, p % 3] == feasible[0]
        assert batch.max_clusters[p // 3, p % 3] == feasible[-1]


# ----------------------------------------------------------------------------------------------------------------
# Agreement


@given(pair_lists(max_n=5))
def test_agree(problem):
    n, must, cannot = problem
    relation = close_relation(n, must, cannot)
    if relation is None:
        return
    constraints = Constraints.from_pairs(n, must, cannot)
    clusterings = partitions(n)
    assert constraints.agree(clusterings).tolist() == [agrees(p, relation) for p in clusterings]
    assert constraints.agree(clusterings[0].tolist()) is agrees(clusterings[0], relation)
    names = np.array([7, -3, 100, 2, 50])[clusterings]  # the names of the clusters do not matter
    assert constraints.agree(names).tolist() == constraints.agree(clusterings).tolist()


def test_agree_with_a_batch():
    constraints = Constraints.from_labels([[0, 0, -1], [0, 1, -1]])
    assert constraints.agree([0, 0, 0]).tolist() == [True, False]
    assert constraints.agree([[0, 0, 1], [5, 6, 6]]).tolist() == [True, True]
