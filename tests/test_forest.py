"""The exact operators: what must hold for every forest, with and without constraints."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffclust import Constraints, Forest, spanning_forest
from oracles import (
    DTYPES,
    agrees,
    best_forest_value,
    components,
    forest_value,
    is_forest,
    kept_edges,
    partial_labels,
    random_labels,
    random_pairs,
    random_similarity,
    relation_of_labels,
    similarities,
)


def constraints_from(labels, form):
    """The same knowledge in each of the three forms."""
    relation = relation_of_labels(labels)
    matrix = np.where(relation == -1, np.nan, relation.astype(float))
    if form == "labels":
        return Constraints.from_labels(labels)
    if form == "matrix":
        return Constraints.from_matrix(matrix)
    upper = np.triu(np.ones(matrix.shape, bool), 1)
    return Constraints.from_pairs(len(labels), np.argwhere(upper & (matrix == 1)), np.argwhere(upper & (matrix == 0)))


# ----------------------------------------------------------------------------------------------------------------
# Without constraints


@given(st.data())
def test_a_forest_with_k_trees(data):
    similarity = data.draw(similarities())
    n = len(similarity)
    k = data.draw(st.integers(1, n))
    forest = spanning_forest(similarity, k)
    edges = kept_edges(forest.edges)
    assert forest.edges.shape == (n - 1, 2)
    assert forest.edges.dtype == np.int32
    assert is_forest(edges, n, k)
    assert forest.labels.tolist() == components(n, edges)
    assert forest.labels.dtype == np.int32
    weights = [(-similarity[edge], edge) for edge in edges]
    assert weights == sorted(weights)  # larger similarity first, equal ones by smaller pair
    assert forest.n_clusters == k
    assert isinstance(forest.n_clusters, int)
    assert np.ndim(forest.value) == 0


@given(st.data())
def test_value_and_matrices(data):
    similarity = data.draw(similarities())
    n = len(similarity)
    k = data.draw(st.integers(1, n))
    forest = spanning_forest(similarity, k)
    adjacency, connectivity = forest.adjacency(), forest.connectivity()
    assert forest.value == (adjacency * similarity).sum()  # small integers: exact
    assert adjacency.shape == connectivity.shape == (n, n)
    assert adjacency.dtype == connectivity.dtype == np.float64
    expected = np.zeros((n, n))
    for i, j in kept_edges(forest.edges):
        expected[i, j] = expected[j, i] = 1
    assert np.array_equal(adjacency, expected)
    # Points share a tree if some power of A joins them.
    reach = np.linalg.matrix_power(adjacency + np.eye(n), n) > 0
    assert np.array_equal(connectivity, reach.astype(float))


@given(similarities(max_n=6))
def test_value_is_the_maximum(similarity):
    for k in range(1, len(similarity) + 1):
        assert spanning_forest(similarity, k).value == best_forest_value(similarity, k)


@given(similarities())
def test_nested_in_k(similarity):
    n = len(similarity)
    tree = kept_edges(spanning_forest(similarity, 1).edges)
    for k in range(1, n + 1):
        assert kept_edges(spanning_forest(similarity, k).edges) == tree[: n - k]


@given(st.data())
def test_equivariant_under_permutation(data):
    similarity = data.draw(similarities(distinct=True))
    n = len(similarity)
    k = data.draw(st.integers(1, n))
    order = np.array(data.draw(st.permutations(range(n))))
    forest, moved = spanning_forest(similarity, k), spanning_forest(similarity[np.ix_(order, order)], k)
    edges = {frozenset(edge) for edge in kept_edges(forest.edges)}
    assert {frozenset(order[list(edge)].tolist()) for edge in kept_edges(moved.edges)} == edges
    assert np.array_equal(moved.connectivity(), forest.connectivity()[np.ix_(order, order)])
    assert np.array_equal(moved.adjacency(), forest.adjacency()[np.ix_(order, order)])
    assert moved.value == forest.value


@given(st.data())
def test_only_the_order_of_similarities_matters(data):
    similarity = data.draw(similarities())
    k = data.draw(st.integers(1, len(similarity)))
    expected = spanning_forest(similarity, k)
    for image in (3 * similarity - 7, np.exp(similarity), similarity**3):
        assert np.array_equal(spanning_forest(image, k).edges, expected.edges)
    other = similarity + np.diag(np.arange(len(similarity)) * 1e6)  # the diagonal does not matter
    assert np.array_equal(spanning_forest(other, k).edges, expected.edges)
    assert spanning_forest(other, k).value == expected.value


@given(similarities(min_n=2, max_n=12))
def test_networkx_maximum_spanning_tree(similarity):
    graph = nx.from_numpy_array(np.where(np.eye(len(similarity), dtype=bool), 0, similarity + 10))
    tree = nx.maximum_spanning_tree(graph)
    assert spanning_forest(similarity + 10, 1).value == 2 * tree.size(weight="weight")


@given(st.data())
def test_missing_edges(data):
    similarity = data.draw(similarities(missing=True))
    n = len(similarity)
    existing = [(i, j) for i in range(n) for j in range(i + 1, n) if similarity[i, j] > -math.inf]
    n_pieces = max(components(n, existing)) + 1
    for k in range(1, n + 1):
        if k < n_pieces:
            with pytest.raises(ValueError, match=f"cannot be reached.*{n_pieces} components.*at least {n_pieces}"):
                spanning_forest(similarity, k)
        else:
            forest = spanning_forest(similarity, k)
            assert is_forest(kept_edges(forest.edges), n, k)
            assert math.isfinite(forest.value)
            if n <= 6:
                assert forest.value == best_forest_value(similarity, k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_value_of_random_floats(dtype):
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 60):
        similarity = random_similarity(rng, n, "random", dtype)
        for k in {1, (n + 1) // 2, n}:
            forest = spanning_forest(similarity, k)
            edges = kept_edges(forest.edges)
            exact = forest_value(edges, similarity)
            size = 2 * math.fsum(abs(float(similarity[edge])) for edge in edges)
            assert abs(forest.value - exact) <= n * np.finfo(np.float64).eps * size


def test_one_point():
    for constraints in (None, Constraints.from_labels([3]), Constraints.from_labels([-1]), Constraints.from_pairs(1)):
        forest = spanning_forest([[5.0]], 1, constraints=constraints)
        assert forest.edges.shape == (0, 2)
        assert forest.labels.tolist() == [0]
        assert forest.value == 0
        assert forest.adjacency().tolist() == [[0.0]]
        assert forest.connectivity().tolist() == [[1.0]]


def test_kinds_of_numbers():
    similarity = [[0, 3, 1], [3, 0, 2], [1, 2, 0]]
    expected = spanning_forest(np.array(similarity, np.float64), 2)
    for array in (
        similarity, np.array(similarity), np.array(similarity, np.uint8), np.array(similarity, np.float16),
        np.array(similarity, np.float32), np.array(similarity, np.longdouble), np.array(similarity, ">f8"),
        np.array(similarity, np.float64, order="F"), np.array(similarity) > 1,
    ):  # fmt: skip
        forest = spanning_forest(array, np.int32(2))
        if np.asarray(array).dtype != bool:
            assert np.array_equal(forest.edges, expected.edges)
            assert forest.value == expected.value
        assert isinstance(forest, Forest)
        assert forest.n_clusters == 2


def test_nearly_symmetric_products_are_accepted():
    """x @ x.T need not be symmetric to the last bit; the mean of both entries counts."""
    similarity = np.array([[0.0, 1.0, 0.5], [1.0 + 1e-9, 0.0, 0.25], [0.5, 0.25, 0.0]])
    for extra in (0.0, -np.inf):
        matrix = similarity.copy()
        matrix[1, 2] = matrix[2, 1] = matrix[2, 1] + extra
        np.fill_diagonal(matrix, np.inf if extra else 0.0)
        forest = spanning_forest(matrix, 2)
        assert kept_edges(forest.edges) == [(0, 1)]
        assert forest.value == 2 * (0.5 * 1.0 + 0.5 * (1.0 + 1e-9))


# ----------------------------------------------------------------------------------------------------------------
# Batches


@given(st.data())
def test_a_batch_is_a_loop(data):
    n = data.draw(st.integers(1, 6))
    shape = data.draw(st.sampled_from([(1,), (3,), (2, 2), (0,), (2, 0)]))
    problems = [data.draw(similarities(min_n=n, max_n=n)) for _ in range(math.prod(shape))]
    batch = np.array(problems).reshape(*shape, n, n)
    k = data.draw(st.integers(1, n))
    clusters = data.draw(st.sampled_from([k, np.full(shape, k), np.arange(math.prod(shape)).reshape(shape) % n + 1]))
    forests = spanning_forest(batch, clusters)
    assert forests.edges.shape == (*shape, n - 1, 2)
    assert forests.labels.shape == (*shape, n)
    assert forests.value.shape == shape
    adjacency, connectivity = forests.adjacency(), forests.connectivity()
    assert adjacency.shape == connectivity.shape == (*shape, n, n)
    for index in np.ndindex(shape):
        single = spanning_forest(batch[index], int(np.broadcast_to(clusters, shape)[index]))
        assert np.array_equal(forests.edges[index], single.edges)
        assert np.array_equal(forests.labels[index], single.labels)
        assert forests.value[index] == single.value
        assert np.array_equal(adjacency[index], single.adjacency())
        assert np.array_equal(connectivity[index], single.connectivity())


@pytest.mark.parametrize("form", ["labels", "matrix", "one for all", "pairs for all"])
def test_constrained_batches(form):
    rng = np.random.default_rng(1)
    batch = np.stack([random_similarity(rng, 7) for _ in range(4)])
    labels = np.stack([random_labels(rng, 7, n_classes=2) for _ in range(4)])
    general = Constraints.from_pairs(7, [(0, 1)], [(2, 3), (4, 5)])
    if form == "labels":
        constraints, singles = Constraints.from_labels(labels), [Constraints.from_labels(row) for row in labels]
    elif form == "matrix":
        matrices = [Constraints.from_labels(row).matrix() for row in labels[:3]] + [general.matrix()]
        constraints, singles = Constraints.from_matrix(matrices), [Constraints.from_matrix(m) for m in matrices]
    else:
        constraints = general if form == "pairs for all" else Constraints.from_labels(labels[0])
        singles = [constraints] * 4
    clusters = np.array([single.max_clusters - p % 2 for p, single in enumerate(singles)])
    forests = spanning_forest(batch, clusters, constraints=constraints)
    for p, single in enumerate(singles):
        expected = spanning_forest(batch[p], int(clusters[p]), constraints=single)
        assert np.array_equal(forests.edges[p], expected.edges)
        assert forests.value[p] == expected.value


# ----------------------------------------------------------------------------------------------------------------
# With constraints


@given(st.data())
def test_labels_are_satisfied(data):
    similarity = data.draw(similarities())
    n = len(similarity)
    labels = data.draw(partial_labels(n))
    relation = relation_of_labels(labels)
    first = data.draw(st.booleans())
    form = data.draw(st.sampled_from(["labels", "matrix", "pairs"]))
    constraints = constraints_from(labels, form)
    free = spanning_forest(similarity, 1)
    for k in range(1, n + 1):
        if not constraints.min_clusters <= k <= constraints.max_clusters:
            low, high = constraints.min_clusters, constraints.max_clusters
            with pytest.raises(ValueError, match=f"n_clusters={k} is infeasible.*allow {low} to {high} clusters"):
                spanning_forest(similarity, k, constraints=constraints, must_link_first=first)
            continue
        forest = spanning_forest(similarity, k, constraints=constraints, must_link_first=first)
        assert is_forest(kept_edges(forest.edges), n, k)
        assert agrees(forest.labels, relation)
        assert constraints.agree(forest.labels)
        free = spanning_forest(similarity, k)
        assert forest.value <= free.value
        assert forest.value == (forest.adjacency() * similarity).sum()


@given(st.data())
def test_constraints_that_the_free_forest_satisfies(data):
    """In one pass, knowledge that the free forest agrees with changes nothing; no knowledge never does."""
    similarity = data.draw(similarities(min_n=2))
    n = len(similarity)
    k = data.draw(st.integers(1, n))
    free = spanning_forest(similarity, k)
    for first in (True, False):
        for unknown in (Constraints.from_labels([-1] * n), Constraints.from_pairs(n)):
            forest = spanning_forest(similarity, k, constraints=unknown, must_link_first=first)
            assert np.array_equal(forest.edges, free.edges)
    labels = np.where(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), free.labels, -1)
    constraints = Constraints.from_labels(labels)
    if (np.bincount(labels[labels >= 0], minlength=1) <= 1).all():  # cannot-links only
        assert np.array_equal(spanning_forest(similarity, k, constraints=constraints).edges, free.edges)
    one_pass = spanning_forest(similarity, k, constraints=constraints, must_link_first=False)
    assert np.array_equal(one_pass.edges, free.edges)


@given(st.data())
def test_equivariant_with_labels(data):
    similarity = data.draw(similarities(distinct=True))
    n = len(similarity)
    labels = data.draw(partial_labels(n))
    order = np.array(data.draw(st.permutations(range(n))))
    constraints, moved = Constraints.from_labels(labels), Constraints.from_labels(labels[order])
    k = data.draw(st.integers(constraints.min_clusters, constraints.max_clusters))
    first = data.draw(st.booleans())
    a = spanning_forest(similarity, k, constraints=constraints, must_link_first=first).adjacency()
    b = spanning_forest(similarity[np.ix_(order, order)], k, constraints=moved, must_link_first=first).adjacency()
    assert np.array_equal(b, a[np.ix_(order, order)])


def test_pairs_are_satisfied_or_an_error_says_why():
    rng = np.random.default_rng(2)
    stuck, n_solved = [], 0
    for _ in range(400):
        n = int(rng.integers(3, 12))
        must, cannot = random_pairs(rng, n, density=0.3)
        constraints = Constraints.from_pairs(n, must, cannot)
        similarity = random_similarity(rng, n, rng.choice(["random", "tied"]))
        k = int(rng.integers(constraints.min_clusters, constraints.max_clusters + 1))
        first = bool(rng.integers(2))
        try:
            forest = spanning_forest(similarity, k, constraints=constraints, must_link_first=first)
        except ValueError as error:
            stuck.append((k, constraints.max_clusters, str(error)))
            continue
        n_solved += 1
        assert is_forest(kept_edges(forest.edges), n, k)
        assert constraints.agree(forest.labels)
        assert all(forest.labels[i] == forest.labels[j] for i, j in must)
        assert all(forest.labels[i] != forest.labels[j] for i, j in cannot)
    for k, highest, message in stuck:
        assert k < highest
        assert f"n_clusters={k} cannot be reached" in message
        assert "Ask for more clusters" in message
    assert stuck
    assert n_solved > 200


def test_missing_edges_may_split_a_group():
    similarity = np.full((4, 4), -np.inf)
    similarity[0, 1] = similarity[1, 0] = similarity[2, 3] = similarity[3, 2] = 1.0
    constraints = Constraints.from_labels([0, -1, 0, -1])
    with pytest.raises(ValueError, match=r"cannot be reached.*missing"):
        spanning_forest(similarity, 2, constraints=constraints)
    similarity[1, 2] = similarity[2, 1] = 0.0  # 0 and 2 meet through 1
    forest = spanning_forest(similarity, 2, constraints=constraints)
    assert constraints.agree(forest.labels)
    assert kept_edges(forest.edges) == [(0, 1), (1, 2)]


def test_three_points_on_a_line():
    """The design's example: with must-links first the long edge is taken."""
    similarity = -np.abs(np.subtract.outer([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]))
    constraints = Constraints.from_labels([0, -1, 0])
    assert kept_edges(spanning_forest(similarity, 1, constraints=constraints).edges) == [(0, 1), (0, 2)]
    one_pass = spanning_forest(similarity, 1, constraints=constraints, must_link_first=False)
    assert kept_edges(one_pass.edges) == [(0, 1), (1, 2)]


@pytest.mark.parametrize("labels", [[2**40, 2**40 + 1, 2**40], [2**63 - 1, 0, 2**63 - 1]])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_large_labels(labels, dtype):
    constraints = Constraints.from_labels(np.array(labels, dtype))
    assert spanning_forest(np.zeros((3, 3)), 2, constraints=constraints).labels.tolist() == [0, 1, 0]


def test_labels_beyond_int64():
    """Either an error or the right answer: solvers count in int64."""
    labels = np.array([2**63, 0, 2**63], np.uint64)
    try:
        found = spanning_forest(np.zeros((3, 3)), 2, constraints=Constraints.from_labels(labels)).labels.tolist()
    except ValueError:
        return
    assert found == [0, 1, 0]
