"""What the tests compare against: brute force, closed forms, and random problems. Independent of ``diffclust``.

Nothing here imports the package, so a mistake there cannot hide here. A *relation* is an (n, n) int8 matrix, 1 same
cluster, 0 different, -1 unknown, with a unit diagonal. *Pairs* always run in the order of ``numpy.triu_indices(n, 1)``.
"""

import functools
import itertools
import math

import numpy as np
from hypothesis import strategies as st

SIMILARITY_KINDS = ("random", "tied", "duplicated", "missing", "tied_missing", "constant")
DTYPES = (np.float32, np.float64)
MAX_BRUTE_FORCE = 6


# ----------------------------------------------------------------------------------------------------------------
# Random problems


def random_similarity(rng, n, kind="random", dtype=np.float64):
    """A symmetric (n, n) matrix of one of ``SIMILARITY_KINDS``. The diagonal, which must not matter, is anything.

    random: independent normals. tied: integers from -2 to 2. duplicated: negative squared distances of points on a
    small grid, many of them twice. missing: a third of the edges -inf, so the graph may fall apart. tied_missing:
    both. constant: all edges equal.
    """
    if kind == "duplicated":
        points = rng.integers(0, 3, size=(n, 2)).astype(np.float64)
        matrix = -((points[:, None, :] - points[None, :, :]) ** 2).sum(-1)
    else:
        values = {
            "random": lambda: rng.normal(size=(n, n)),
            "tied": lambda: rng.integers(-2, 3, size=(n, n)).astype(np.float64),
            "missing": lambda: np.where(rng.random((n, n)) < 1 / 3, -np.inf, rng.normal(size=(n, n))),
            "tied_missing": lambda: np.where(rng.random((n, n)) < 1 / 3, -np.inf, rng.integers(0, 3, size=(n, n))),
            "constant": lambda: np.full((n, n), 0.5),
        }[kind]()
        upper = np.where(np.triu(np.ones((n, n), bool), 1), values, 0.0)
        matrix = upper + upper.T
    matrix[range(n), range(n)] = rng.choice([0.0, 100.0, -100.0], size=n)
    return matrix.astype(dtype)


def is_complete(similarity):
    """Whether no edge is missing."""
    return bool(np.isfinite(similarity[pairs_of(len(similarity))]).all())


def random_labels(rng, n, n_classes=3, known=0.5):
    """Partial labels: each point known with probability ``known``; class numbers with gaps, the rest -1."""
    names = rng.choice(50, size=n_classes, replace=False)
    return np.where(rng.random(n) < known, names[rng.integers(0, n_classes, size=n)], -1).astype(np.int64)


def random_pairs(rng, n, density=0.15):
    """(must_link, cannot_link): lists of pairs that agree with some hidden clustering, hence with each other."""
    hidden = rng.integers(0, max(2, n // 3), size=n)
    chosen = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < density]
    must = [pair for pair in chosen if hidden[pair[0]] == hidden[pair[1]]]
    cannot = [pair for pair in chosen if hidden[pair[0]] != hidden[pair[1]]]
    return must, cannot


def random_relation(rng, n, density=0.15):
    """The closed relation of :func:`random_pairs`: general pairwise constraints that some clustering satisfies."""
    return close_relation(n, *random_pairs(rng, n, density))


def random_groups(rng, n):
    """The closed relation of random labels and must-link groups, which agree: some points are tied to labelled ones."""
    labels = random_labels(rng, n, int(rng.integers(1, 5)), rng.choice([0.0, 0.3, 0.6, 1.0]))
    relation = relation_of_labels(labels)
    for _ in range(int(rng.integers(0, n + 1))):
        i, j = rng.integers(0, n, size=2)
        if relation[i, j] == -1:
            must, cannot = np.argwhere(relation == 1), np.argwhere(relation == 0)
            relation = close_relation(n, [*must.tolist(), (i, j)], cannot.tolist())
    return relation


@st.composite
def similarities(draw, min_n=1, max_n=9, distinct=False, missing=False):
    """Hypothesis strategy: symmetric float64 matrices of small integers, which shrink well; exact in any arithmetic.

    distinct: no two edges are equal. missing: some edges may be -inf.
    """
    n = draw(st.integers(min_n, max_n))
    n_pairs = n * (n - 1) // 2
    if distinct:
        values = [float(v) for v in draw(st.permutations(range(-n_pairs, 0)))]
    else:
        elements = st.integers(-4, 4).map(float)
        if missing:
            elements = st.one_of(elements, st.just(-math.inf))
        values = draw(st.lists(elements, min_size=n_pairs, max_size=n_pairs))
    matrix = np.zeros((n, n))
    matrix[pairs_of(n)] = values
    return matrix + matrix.T


@st.composite
def partial_labels(draw, n):
    """Hypothesis strategy: n labels from -1 (unknown) to 3."""
    return np.array(draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)), np.int64)


# ----------------------------------------------------------------------------------------------------------------
# Relations


def relation_of_labels(labels):
    """The relation that labels stand for; negative is unknown."""
    n = len(labels)
    relation = np.full((n, n), -1, np.int8)
    for i, j in itertools.product(range(n), repeat=2):
        if i == j:
            relation[i, j] = 1
        elif labels[i] >= 0 and labels[j] >= 0:
            relation[i, j] = int(labels[i] == labels[j])
    return relation


def close_relation(n, must_link=(), cannot_link=()):
    """Transitive closure by rules applied until nothing changes; None where the pairs contradict each other."""
    relation = np.full((n, n), -1, np.int8)
    relation[range(n), range(n)] = 1
    for value, pairs in ((1, must_link), (0, cannot_link)):
        for i, j in pairs:
            if relation[i, j] not in (-1, value):
                return None
            relation[i, j] = relation[j, i] = value
    while True:
        same, apart = relation == 1, relation == 0
        implied_same = same @ same  # same and same make same
        implied_apart = apart | (same @ apart) | (apart @ same)  # same and apart make apart
        if (implied_same & implied_apart).any():
            return None
        closed = np.where(implied_same, 1, np.where(implied_apart, 0, -1)).astype(np.int8)
        if (closed == relation).all():
            return relation
        relation = closed


def agrees(labels, relation):
    """Whether a clustering agrees with everything that a relation knows."""
    labels = np.asarray(labels)
    together = labels[:, None] == labels[None, :]
    return bool(((relation == -1) | (together == (relation == 1))).all())


@functools.cache
def partitions(n):
    """All clusterings of n points as an int array (number, n), clusters numbered by first appearance."""
    result = [[0]] if n else [[]]
    for _ in range(n - 1):
        result = [[*head, c] for head in result for c in range(max(head) + 2)]
    return np.array(result)


def feasible_cluster_counts(relation):
    """The numbers of clusters of all clusterings that agree with the relation, by brute force."""
    return sorted({int(p.max()) + 1 for p in partitions(len(relation)) if agrees(p, relation)})


# ----------------------------------------------------------------------------------------------------------------
# Forests


def pairs_of(n):
    """(rows, columns) of all pairs i < j."""
    return np.triu_indices(n, 1)


def components(n, edges):
    """The component of each of n points by breadth-first search, numbered by their smallest point."""
    neighbours = [[] for _ in range(n)]
    for i, j in edges:
        neighbours[i].append(j)
        neighbours[j].append(i)
    labels = [-1] * n
    n_found = 0
    for start in range(n):
        if labels[start] >= 0:
            continue
        labels[start] = n_found
        queue = [start]
        for v in queue:
            for u in neighbours[v]:
                if labels[u] < 0:
                    labels[u] = n_found
                    queue.append(u)
        n_found += 1
    return labels


def is_forest(edges, n, k):
    """Whether the edges are distinct pairs i < j, have no cycle and leave exactly k trees."""
    edges = [(int(i), int(j)) for i, j in edges]
    in_range = all(0 <= i < j < n for i, j in edges)
    return in_range and len(set(edges)) == len(edges) == n - k and max(components(n, edges), default=-1) + 1 == k


def kept_edges(edges):
    """The rows before the (-1, -1) padding as a list of tuples; asserts that all padding stands at the end."""
    edges = np.asarray(edges)
    present = (edges >= 0).all(-1)
    n_kept = int(present.sum())
    assert present[:n_kept].all()
    assert (edges[n_kept:] == -1).all()
    return [(int(i), int(j)) for i, j in edges[:n_kept]]


def forest_value(edges, similarity):
    """<A, similarity>, every edge twice, correctly rounded: equal for any two forests of equal weight."""
    return 2.0 * math.fsum(float(similarity[i][j]) for i, j in edges)


@functools.cache
def brute_force_forests(n, k):
    """All forests on n points with k trees: (incidence, together), bool arrays (number, pairs).

    incidence says which pairs are edges, together which pairs share a tree.
    """
    assert n <= MAX_BRUTE_FORCE, "there are too many forests"
    pairs = list(zip(*pairs_of(n), strict=True))
    incidence, together = [], []
    for chosen in itertools.combinations(range(len(pairs)), n - k):
        labels = components(n, [pairs[e] for e in chosen])
        if max(labels) + 1 == k:  # n - k edges and k trees: no cycle
            incidence.append(np.isin(np.arange(len(pairs)), chosen))
            together.append([labels[i] == labels[j] for i, j in pairs])
    shape = (len(incidence), len(pairs))
    return np.array(incidence, bool).reshape(shape), np.array(together, bool).reshape(shape)


def best_forest_value(similarity, k, relation=None):
    """max <A, similarity> over all forests with k trees that exist and agree with the relation; -inf if there is none.

    Correctly rounded, so that an optimal forest's :func:`forest_value` equals it exactly.
    """
    n = len(similarity)
    weights = np.asarray(similarity, np.float64)[pairs_of(n)]
    incidence, together = brute_force_forests(n, k)
    possible = ~incidence[:, np.isneginf(weights)].any(1)
    if relation is not None:
        known = np.asarray(relation)[pairs_of(n)]
        possible &= ((known == -1) | (together == (known == 1))).all(1)
    if not possible.any():
        return -math.inf
    candidates = incidence[possible]
    rough = candidates @ np.where(np.isfinite(weights), weights, 0.0)
    # Rounding may swap forests of nearly equal weight: among those the exact sums decide.
    close = candidates[rough >= rough.max() - 1e-9 * max(1.0, np.abs(rough).max())]
    return 2.0 * max(math.fsum(weights[row]) for row in close)
