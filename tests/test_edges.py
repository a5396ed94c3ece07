"""Lists of edges: against the matrix form, networkx and SciPy; thresholds, and the path between two points."""

import itertools

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from diffclust import Constraints, Hierarchy
from diffclust.solvers import edges as solver


def random_graph(seed, n, m, tied):
    """Edges with both directions, repetitions and loops, and the matrix of their similarities."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, n, (m, 2))
    weights = rng.integers(0, 4, m).astype(float) if tied else rng.normal(size=m)
    matrix = np.full((n, n), -np.inf)
    np.maximum.at(matrix, (edges[:, 0], edges[:, 1]), weights)
    matrix = np.maximum(matrix, matrix.T)
    np.fill_diagonal(matrix, 0)
    return edges, weights, matrix


graphs = given(st.integers(0, 10**6), st.integers(1, 25), st.integers(0, 80), st.booleans())


@graphs
@settings(max_examples=60, deadline=None)
def test_the_tree_is_that_of_the_matrix(seed, n, m, tied):
    edges, weights, matrix = random_graph(seed, n, m, tied)
    found, expected = Hierarchy.from_edges(edges, weights, n), Hierarchy.from_similarity(matrix)
    np.testing.assert_array_equal(found.edges, np.sort(expected.edges, axis=1))
    np.testing.assert_array_equal(found.weights, expected.weights)


@graphs
@settings(max_examples=60, deadline=None)
def test_the_tree_is_that_of_networkx_and_scipy(seed, n, m, tied):
    edges, weights, matrix = random_graph(seed, n, m, tied)
    found = Hierarchy.from_edges(edges, weights, n)
    graph = networkx.Graph()
    graph.add_nodes_from(range(n))
    i, j = np.nonzero(np.triu(np.isfinite(matrix), 1))
    graph.add_weighted_edges_from(zip(i.tolist(), j.tolist(), matrix[i, j].tolist(), strict=True))
    theirs = sorted(weight for *_, weight in networkx.maximum_spanning_tree(graph).edges(data="weight"))
    np.testing.assert_array_equal(np.sort(found.weights), theirs)
    # SciPy takes a zero for a missing edge, so heights are moved above it.
    heights = coo_array((10 - matrix[i, j], (i, j)), shape=(n, n)).tocsr()
    np.testing.assert_allclose(np.sort(10 - found.weights), np.sort(minimum_spanning_tree(heights).data))
    assert found.feasible_clusters()[0] == connected_components(heights, directed=False)[0]


@graphs
@settings(max_examples=40, deadline=None)
def test_a_threshold_keeps_the_components_of_stronger_edges(seed, n, m, tied):
    edges, weights, matrix = random_graph(seed, n, m, tied)
    for threshold in (-np.inf, 0.0, 1.0, np.inf):
        i, j = np.nonzero((matrix >= threshold) & np.isfinite(matrix))
        graph = coo_array((np.ones(len(i)), (i, j)), shape=(n, n))
        expected = connected_components(graph, directed=False)[1]
        np.testing.assert_array_equal(Hierarchy.from_edges(edges, weights, n).labels_at(threshold), expected)


def test_the_filter_leaves_the_tree_as_it_is(monkeypatch):
    edges, weights, _ = random_graph(0, 300, 20_000, tied=True)
    expected = Hierarchy.from_edges(edges, weights, 300)
    monkeypatch.setattr(solver, "LEAST_BATCH", 1)
    found = Hierarchy.from_edges(edges, weights, 300)
    np.testing.assert_array_equal(found.edges, expected.edges)
    np.testing.assert_array_equal(found.weights, expected.weights)


@graphs
@settings(max_examples=40, deadline=None)
def test_the_path_is_that_of_networkx(seed, n, m, tied):
    hierarchy = Hierarchy.from_edges(*random_graph(seed, n, m, tied)[:2], n)
    tree = networkx.Graph()
    tree.add_nodes_from(range(n))
    tree.add_weighted_edges_from(
        [(*edge, w) for edge, w in zip(hierarchy.edges.tolist(), hierarchy.weights, strict=True)]
    )
    i, j = (int(point) for point in np.random.default_rng(seed).integers(0, n, 2))
    if not networkx.has_path(tree, i, j):
        with pytest.raises(ValueError, match=f"nothing connects points {i} and {j}"):
            hierarchy.path(i, j)
        return
    edges, weights = hierarchy.path(i, j)
    points = networkx.shortest_path(tree, i, j)
    assert edges.tolist() == [list(edge) for edge in itertools.pairwise(points)]
    assert weights.tolist() == [tree.edges[edge]["weight"] for edge in edges.tolist()]


@pytest.mark.parametrize("seed", range(20))
def test_constraints_are_those_of_the_matrix(seed):
    edges, weights, matrix = random_graph(seed, 20, 120, tied=False)
    rng = np.random.default_rng(seed)
    labels = Constraints.from_labels(np.where(rng.random(20) < 0.3, rng.integers(0, 3, 20), -1))
    apart = Constraints.from_pairs(20, cannot_link=[(0, 1), (1, 2), (3, 4)])  # labels cannot say this
    for known in (labels, apart):
        found = Hierarchy.from_edges(edges, weights, 20, known)
        expected = Hierarchy.from_similarity(matrix, known)
        lowest, highest = found.feasible_clusters()
        for k in range(lowest, highest + 1):
            assert known.agree(found.labels(k))
        if known is apart:
            assert (lowest, highest) == expected.feasible_clusters()
            for k in range(lowest, highest + 1):
                np.testing.assert_array_equal(found.labels(k), expected.labels(k))


def test_must_links_connect_pieces_and_are_on_the_path():
    known = Constraints.from_pairs(5, must_link=[(1, 3)])
    hierarchy = Hierarchy.from_edges([(0, 1), (1, 2), (3, 4)], [0.9, 0.2, 0.5], 5, known)
    edges, weights = hierarchy.path(0, 4)
    assert edges.tolist() == [[0, 1], [1, 3], [3, 4]]
    assert weights.tolist() == [0.9, np.inf, 0.5]
    assert hierarchy.labels_at(0.6).tolist() == [0, 0, 1, 0, 2]
    assert hierarchy.labels_at(np.inf).tolist() == [0, 1, 2, 1, 3]
    assert hierarchy.path(2, 2)[0].shape == (0, 2)


def test_the_size_guard_holds_at_a_threshold():
    chain = np.stack([np.arange(9), np.arange(1, 10)], axis=1)
    hierarchy = Hierarchy.from_edges(chain, [1.0, 1, 1, 1, 0.3, 1, 1, 1, 0.1], 10)
    assert np.bincount(hierarchy.labels_at(0.5)).tolist() == [5, 4, 1]
    assert np.bincount(hierarchy.labels_at(0.5, min_cluster_size=2)).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("edges", "weights", "n_points", "error", "message"),
    [
        ([(0, 5)], [1.0], 5, ValueError, r"edge 0 is \(0, 5\): points are numbered 0 to 4"),
        ([(0, 1), (-1, 2)], [1.0, 2.0], 5, ValueError, "edge 1"),
        ([(0, 1)], [np.nan], 5, ValueError, "weight 0 is nan"),
        ([(0, 1)], [np.inf], 5, ValueError, "must-link"),
        ([(0, 1)], [1.0, 2.0], 5, ValueError, "shapes"),
        ([(0, 1, 2)], [1.0], 5, ValueError, "shapes"),
        ([(0.0, 1.0)], [1.0], 5, TypeError, "edges must be integers"),
        ([(0, 1)], ["a"], 5, TypeError, "weights must be real"),
        ([(0, 1)], [1.0], 0, ValueError, "n_points=0"),
        ([(0, 1)], [1.0], 2.0, TypeError, "n_points must be an integer"),
    ],
)
def test_bad_edges(edges, weights, n_points, error, message):
    with pytest.raises(error, match=message):
        Hierarchy.from_edges(edges, weights, n_points)


def test_bad_points_and_thresholds():
    hierarchy = Hierarchy.from_edges([(0, 1)], [1.0], 2)
    with pytest.raises(ValueError, match="point 2 is out of range"):
        hierarchy.path(0, 2)
    with pytest.raises(TypeError, match="must be an integer"):
        hierarchy.path(0.0, 1)
    with pytest.raises(ValueError, match="NaN"):
        hierarchy.labels_at(np.nan)
