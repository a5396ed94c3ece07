"""Every solver against plain Kruskal, edge for edge, and plain Kruskal against exhaustive search over all forests."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from diffclust import Constraints, noise
from diffclust.solvers import cpu, reference
from diffclust.solvers.cpu import trees
from diffclust.solvers.cpu.philox import BLOCKS, PAD, perturb
from diffclust.solvers.cpu.walk import closures_of_relation
from diffclust.threads import at_most_threads
from oracles import (
    DTYPES,
    SIMILARITY_KINDS,
    agrees,
    best_forest_value,
    close_relation,
    components,
    feasible_cluster_counts,
    forest_value,
    is_complete,
    is_forest,
    kept_edges,
    random_groups,
    random_labels,
    random_relation,
    random_similarity,
    relation_of_labels,
)
from solving import solve

CASES = [(kind, dtype) for kind in SIMILARITY_KINDS for dtype in DTYPES]
case_ids = [f"{kind}-{np.dtype(dtype).name}" for kind, dtype in CASES]
each_kind = pytest.mark.parametrize(("kind", "dtype"), CASES, ids=case_ids)
each_order = pytest.mark.parametrize("must_link_first", [True, False], ids=["must-links-first", "one-pass"])


def assert_equals_reference(edges, labels, value, similarity, k, relation=None, must_link_first=True):
    """One solved forest against ``reference.kruskal``: edges and their order, labels, value to the last bit."""
    n = len(similarity)
    rows = similarity.tolist()
    relation = None if relation is None else relation.tolist()
    expected = reference.kruskal(rows, k, relation, must_link_first)
    assert kept_edges(edges) == expected
    assert len(edges) == n - 1
    assert labels.tolist() == reference.labels_of(n, expected) == components(n, expected)
    total = 0.0
    for i, j in expected:
        total += rows[i][j]
    assert value == 2.0 * total


def assert_all_equal_reference(solved, similarities, clusters, relations, must_link_first, free):
    """All problems and draws of a solve; ``similarities`` (problems, draws, n, n) are already perturbed."""
    solves = [False] * free + [True] * (relations is not None)
    n_draws = similarities.shape[1]
    assert solved.edges.shape[:3] == (len(clusters), len(solves), n_draws)
    assert solved.edges.dtype == solved.labels.dtype == np.int32
    assert solved.values.dtype == np.float64
    for p, k in enumerate(clusters):
        for s, constrained in enumerate(solves):
            for b in range(n_draws):
                assert_equals_reference(
                    solved.edges[p, s, b], solved.labels[p, s, b], solved.values[p, s, b], similarities[p, b],
                    int(k), relations[p] if constrained else None, must_link_first,
                )  # fmt: skip


def n_groups(relation):
    return len({tuple(row) for row in (relation == 1).tolist()})


# ----------------------------------------------------------------------------------------------------------------
# cpu.py against reference.py


@each_kind
def test_every_k_without_constraints(kind, dtype):
    rng = np.random.default_rng(0)
    for n in range(1, 13):
        for _ in range(8):
            similarity = random_similarity(rng, n, kind, dtype)
            clusters = np.arange(1, n + 1)
            batch = np.broadcast_to(similarity, (n, n, n))
            solved = solve(cpu, batch, clusters)
            assert_all_equal_reference(solved, batch[:, None], clusters, None, True, free=True)


def check_every_k(similarity, expected, must_link_first, *, free, **known):
    """The forests of the expected relation, which the solver is told in one form or another, for every k at once."""
    clusters = np.arange(1, n_groups(expected) + 1)
    batch = np.broadcast_to(similarity, (len(clusters), *similarity.shape))
    known = {name: np.broadcast_to(array, (len(clusters), *array.shape)) for name, array in known.items()}
    solved = solve(cpu, batch, clusters, must_link_first=must_link_first, free=free, **known)
    expected = [expected] * len(clusters)
    assert_all_equal_reference(solved, batch[:, None], clusters, expected, must_link_first, free=free)


@each_order
@each_kind
def test_every_k_with_labels(kind, dtype, must_link_first):
    """Also numbers of clusters below the number of classes, which the operators reject: the greedy stays the same."""
    rng = np.random.default_rng(1)
    for n in range(1, 13):
        for repeat in range(8):
            similarity = random_similarity(rng, n, kind, dtype)
            labels = random_labels(rng, n, 1 + repeat % 5, known=rng.choice([0.2, 0.5, 0.9, 1.0]))
            check_every_k(similarity, relation_of_labels(labels), must_link_first, free=False, labels=labels)


@each_order
@each_kind
def test_every_k_with_pairs(kind, dtype, must_link_first):
    rng = np.random.default_rng(2)
    for n in range(1, 13):
        for _ in range(8):
            similarity = random_similarity(rng, n, kind, dtype)
            relation = random_relation(rng, n, density=rng.choice([0.05, 0.15, 0.3, 0.6]))
            check_every_k(similarity, relation, must_link_first, free=True, relation=relation)


@each_order
@each_kind
def test_every_k_with_labels_and_groups(kind, dtype, must_link_first):
    """Labels and must-links that do not contradict them, as views of rows: the forest comes out of the free tree."""
    rng = np.random.default_rng(20)
    for n in range(1, 12):
        for _ in range(12):
            similarity = random_similarity(rng, n, kind, dtype)
            relation = random_groups(rng, n)
            check_every_k(similarity, relation, must_link_first, free=True, relation=relation)


@each_order
@pytest.mark.parametrize("n", [64, 129, 300, 600])
def test_large_with_labels_and_groups(n, must_link_first):
    """More edges than are sorted at once; tied ones among them."""
    rng = np.random.default_rng(n)
    for kind in ("random", "tied", "missing") if n < 300 else ("tied",):
        similarity = random_similarity(rng, n, kind, np.float32)[None]
        classes = random_labels(rng, n, n_classes=6, known=0.3)
        must = [(2 * i, 2 * i + 1) for i in range(n // 2) if -1 in classes[2 * i : 2 * i + 2]]
        names = [np.flatnonzero(classes == name) for name in np.unique(classes[classes >= 0])]
        must += [(points[0], j) for points in names for j in points[1:]]
        cannot = [(a[0], b[0]) for a in names for b in names if a[0] < b[0]]
        constraints = Constraints.from_pairs(n, must, cannot)
        relation = constraints.relation
        k = int(rng.integers(6, n_groups(relation) + 1))
        solved = solve(
            cpu, similarity, np.array([k]), relation=relation[None], must_link_first=must_link_first, free=False
        )
        assert_all_equal_reference(solved, similarity[:, None], [k], [relation], must_link_first, free=False)


def test_which_relations_have_closures():
    """Only those in which any two closures with a cannot-link are apart; the others go through the greedy."""
    rng = np.random.default_rng(21)
    n_found = 0
    for _ in range(300):
        n = int(rng.integers(1, 9))
        relation = random_groups(rng, n) if rng.random() < 0.5 else random_relation(rng, n, 0.3)
        closure, labelled = np.empty(n, np.int32), np.empty(n, np.bool_)
        found = closures_of_relation(relation, closure, labelled)
        has_cannot_links = (relation == 0).any(1)
        expected = (relation[np.ix_(has_cannot_links, has_cannot_links)] >= 0).all()
        assert (found >= 0) == expected
        if expected:
            assert found == n_groups(relation)
            assert closure.tolist() == (relation == 1).argmax(1).tolist()
            assert labelled.tolist() == has_cannot_links.tolist()
        n_found += expected
    assert 0 < n_found < 300


@pytest.mark.parametrize("n", [15, 16, 17, 33, 63, 64, 65, 128, 200])  # loops run in vectors of 16
@pytest.mark.parametrize("kind", ["random", "tied", "duplicated", "missing"])
def test_large(n, kind):
    rng = np.random.default_rng(n)
    for dtype in DTYPES if n < 100 else (np.float32,):
        similarity = random_similarity(rng, n, kind, dtype)[None]
        labels = random_labels(rng, n, n_classes=6, known=0.4)
        relation = relation_of_labels(labels)
        for k in (1, 7, n // 2):
            solved = solve(cpu, similarity, np.array([k]))
            assert_all_equal_reference(solved, similarity[:, None], [k], None, True, free=True)
        for must_link_first in (True, False):
            clusters = [int(rng.integers(6, n_groups(relation) + 1))]
            solved = solve(
                cpu, similarity, np.array(clusters), labels=labels[None], must_link_first=must_link_first, free=False
            )
            assert_all_equal_reference(solved, similarity[:, None], clusters, [relation], must_link_first, free=False)


@each_order
@pytest.mark.parametrize(("n", "density"), [(40, 0.02), (40, 0.2), (90, 0.01), (200, 0.002)])
def test_large_with_pairs(n, density, must_link_first):
    rng = np.random.default_rng(n)
    for kind in ("random", "tied") if n < 200 else ("tied",):
        similarity = random_similarity(rng, n, kind, np.float32)[None]
        relation = random_relation(rng, n, density)
        k = int(rng.integers(n_groups(relation) // 2, n_groups(relation) + 1))
        solved = solve(
            cpu, similarity, np.array([k]), relation=relation[None], must_link_first=must_link_first, free=False
        )
        assert_all_equal_reference(solved, similarity[:, None], [k], [relation], must_link_first, free=False)


def perturbed(similarity, z, epsilon):
    """(problems, draws, n, n): the product is rounded to float32, then added in the similarity's precision."""
    return similarity[:, None] + (np.float32(epsilon) * z)[None].astype(similarity.dtype)


NOISE_CASES = [  # epsilon, kind of noise, first_draw, antithetic
    (0.5, "normal", 0, False),
    (0.1, "gumbel", 0, False),
    (2.0, "normal", 17, False),
    (0.3, "gumbel", 2**32 - 3, False),
    (0.5, "normal", 0, True),
    (0.7, "gumbel", 5, True),  # the first draw is the second half of a pair
    (1e-3, "normal", 2**33, True),
]


@pytest.mark.parametrize(("epsilon", "kind_of_noise", "first_draw", "antithetic"), NOISE_CASES)
@pytest.mark.parametrize("form", ["none", "labels", "labels-one-pass", "relation", "relation-one-pass"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_perturbed_draws(epsilon, kind_of_noise, first_draw, antithetic, form, dtype):
    rng = np.random.default_rng(3)
    n_draws, n_problems = 6, 3
    for n in (1, 2, 7, 10, 16, 23):
        kinds = ("random", "tied", "missing")
        similarity = np.stack([random_similarity(rng, n, kind, dtype) for kind in kinds])
        labels = np.stack([random_labels(rng, n) for _ in kinds])
        if form.startswith("relation"):
            relations = np.stack([random_relation(rng, n) for _ in kinds])
            known = {"relation": relations}
        else:
            relations = np.stack([relation_of_labels(row) for row in labels])
            known = {"labels": labels}
        if form == "none":
            relations, known, highest = None, {}, [n] * n_problems
        else:
            highest = [n_groups(relation) for relation in relations]
        clusters = np.array([rng.integers(1, high + 1) for high in highest])
        must_link_first = not form.endswith("one-pass")
        solved = solve(
            cpu, similarity, clusters, **known, must_link_first=must_link_first, seed=99, first_draw=first_draw,
            n_draws=n_draws, epsilon=epsilon, noise=kind_of_noise, antithetic=antithetic,
        )  # fmt: skip
        if antithetic:
            draws = range(first_draw, first_draw + n_draws)
            z = np.stack(
                [(-1) ** draw * noise.sample(99, 1, n, kind_of_noise, first_draw=draw // 2)[0] for draw in draws]
            ).astype(np.float32)
        else:
            z = noise.sample(99, n_draws, n, kind_of_noise, first_draw=first_draw)
        similarities = perturbed(similarity, z, epsilon)
        assert_all_equal_reference(solved, similarities, clusters, relations, must_link_first, free=True)


@pytest.mark.parametrize(("n", "listed"), [(90, True), (91, True), (90, False), (91, False)])
def test_noise_that_is_made_in_pieces_and_solved_in_chunks(n, listed, monkeypatch):
    """A draw has more blocks of noise than are made at a time, and there are more draws than are solved at a time."""
    if not listed:
        monkeypatch.setattr(cpu, "LISTED", 0)
    n_draws = cpu.CHUNK // n**2 + 1
    assert (n // 2) * (n // 2 + 1) // 2 > BLOCKS
    rng = np.random.default_rng(n)
    similarity, labels = random_similarity(rng, n, "random", np.float32)[None], random_labels(rng, n, n_classes=6)
    with at_most_threads(1):
        solved = solve(cpu, similarity, np.array([8]), labels=labels[None], seed=5, n_draws=n_draws, epsilon=0.4)
    similarities = perturbed(similarity, noise.sample(5, n_draws, n), 0.4)
    assert_all_equal_reference(solved, similarities, [8], [relation_of_labels(labels)], True, free=True)


def test_more_points_than_are_counted_at_a_time(monkeypatch):
    """Prim finds its next point among 2^15 of them at a time. Here 16, in plain Python, whose numbers are the same."""
    rng, n = np.random.default_rng(0), 50
    monkeypatch.setattr(trees, "SPAN", 16)
    monkeypatch.setattr(trees, "_first_of_ties", trees._first_of_ties.py_func)
    for kind in ("random", "tied"):
        similarity = random_similarity(rng, n, kind, np.float32)
        weights = np.zeros((1, n, n + PAD), np.int32)
        blocks = np.empty((2, 25 * 26 // 2), np.uint32)
        scratch = np.empty((4, BLOCKS), np.uint32), np.zeros((2, 2 * BLOCKS + PAD), np.float32), blocks
        zero, first = np.uint64(0), np.arange(1)
        perturb(similarity[None], zero, zero, zero, 1, False, np.float32(0), 0, first, *scratch, weights)
        codes, found = np.empty(n, np.int64), np.empty(n, np.int32)
        key, parent, lowest = np.empty(n + PAD, np.int32), np.empty(n + PAD, np.int32), np.int32(-(2**31))
        with np.errstate(over="ignore"):
            trees.grow.py_func(weights[0], n, key, parent, lowest, codes, found, 0)
        edges = sorted((int(code >> 32), int(code & 0xFFFFFFFF)) for code in codes[: n - 1])
        assert edges == sorted(reference.kruskal(similarity.tolist(), 1))


@each_kind
def test_epsilon_zero_ignores_the_noise(kind, dtype):
    rng = np.random.default_rng(4)
    similarity = random_similarity(rng, 9, kind, dtype)[None]
    one = solve(cpu, similarity, np.array([3]))
    many = solve(cpu, similarity, np.array([3]), n_draws=5, seed=8)
    for a, b in zip(one[2:], many[2:], strict=True):
        assert (b == a[:, :, :1]).all()


def test_a_batch_is_a_loop():
    rng = np.random.default_rng(5)
    n, n_problems = 11, 20
    similarity = np.stack([random_similarity(rng, n, SIMILARITY_KINDS[p % 6], np.float32) for p in range(n_problems)])
    labels = np.stack([random_labels(rng, n) for _ in range(n_problems)])
    clusters = np.array([rng.integers(1, n_groups(relation_of_labels(row)) + 1) for row in labels])
    options = {"seed": 4, "n_draws": 7, "epsilon": 0.4}
    batch = solve(cpu, similarity, clusters, labels=labels, **options)
    for p in range(n_problems):
        single = solve(cpu, similarity[p : p + 1], clusters[p : p + 1], labels=labels[p : p + 1], **options)
        for a, b in zip(batch[2:], single[2:], strict=True):
            assert np.array_equal(a[p], b[0])


def test_empty_batches():
    solved = solve(cpu, np.zeros((0, 4, 4)), np.zeros(0, int))
    assert solved.edges.shape == (0, 1, 1, 3, 2)


def test_inputs_are_left_alone():
    rng = np.random.default_rng(7)
    similarity, relation = random_similarity(rng, 9, "missing")[None], random_relation(rng, 9)[None]
    labels = random_labels(rng, 9)[None]
    copies = similarity.copy(), relation.copy(), labels.copy()
    for epsilon in (0.0, 0.1):
        for must_link_first in (True, False):
            for known in ({"relation": relation}, {"labels": labels}):
                solve(cpu, similarity, np.array([6]), must_link_first=must_link_first, epsilon=epsilon, **known)
    for array, copy in zip((similarity, relation, labels), copies, strict=True):
        assert np.array_equal(array, copy)


def test_strided_and_read_only_inputs():
    rng = np.random.default_rng(8)
    similarity = random_similarity(rng, 10, "random")
    strided = np.zeros((20, 20))
    strided[::2, ::2] = similarity
    view = strided[::2, ::2][None]
    view.flags.writeable = False
    found, expected = solve(cpu, view, np.array([3])), solve(cpu, similarity[None], np.array([3]))
    for a, b in zip(found[2:], expected[2:], strict=True):
        assert np.array_equal(a, b)


def test_read_only_inputs_do_not_compile_again():
    """Numba compiles anew for read-only arrays, for many seconds: broadcast labels must not cost that."""
    similarity, labels, relation = np.zeros((1, 3, 3)), np.zeros((1, 3), int), np.ones((1, 3, 3), np.int8)
    for array in (similarity, labels, relation):
        array.flags.writeable = False
    solve(cpu, similarity, np.array([1]))
    solve(cpu, similarity, np.array([1]), labels=labels)
    solve(cpu, similarity, np.array([1]), relation=relation)
    signatures = [*perturb.signatures, *cpu._solve_items.signatures, *cpu._solve_by_greedy.signatures]
    compiled_for = {kind for signature in signatures for kind in signature}
    assert not [kind for kind in compiled_for if isinstance(kind, numba.types.Array) and not kind.mutable]


# ----------------------------------------------------------------------------------------------------------------
# Threads and processes


def _solve_for_threads(seed):
    rng = np.random.default_rng(seed)
    n = 20
    similarity = np.stack([random_similarity(rng, n, "tied", np.float32) for _ in range(3)])
    relation = np.stack([random_relation(rng, n)] * 3)
    labels = np.tile(random_labels(rng, n), (3, 1))
    clusters = np.full(3, 12)
    options = {"seed": seed, "n_draws": 20, "epsilon": 0.3}
    forests = [
        solve(cpu, similarity, clusters, labels=labels, **options),
        solve(cpu, similarity, clusters, relation=relation, must_link_first=False, **options),
    ]
    counts = [
        cpu.sums.adjacency_counts(forests[0].edges[:, :1], n),
        cpu.sums.connectivity_counts(forests[0].labels[:, 1]),
    ]
    return [array.tobytes() for arrays in (*(each[2:] for each in forests), counts) for array in arrays]


def test_several_threads_at_once():
    expected = [_solve_for_threads(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            assert list(pool.map(_solve_for_threads, range(8))) == expected


def _child(queue):
    queue.put(_solve_for_threads(1))


@pytest.mark.filterwarnings("ignore:.*fork.*")  # Python's and, where other tests use JAX, JAX's
def test_forked_child():
    """A child made by fork has none of its parent's threads: it must not wait for them."""
    expected = _solve_for_threads(1)  # the parent's threads exist now
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == expected
        child.join(timeout=60)
        assert child.exitcode == 0
    finally:
        if child.is_alive():
            child.kill()
    assert _solve_for_threads(1) == expected


@pytest.mark.parametrize("n_threads", [1, 3])
def test_number_of_threads_does_not_matter(n_threads, monkeypatch):
    expected = _solve_for_threads(2)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", n_threads)
    assert _solve_for_threads(2) == expected


# ----------------------------------------------------------------------------------------------------------------
# Sums over draws


@pytest.mark.parametrize(("n_problems", "n_draws", "n"), [(1, 1, 1), (2, 9, 2), (3, 30, 9), (0, 4, 5), (1, 50, 40)])
def test_counts(n_problems, n_draws, n):
    rng = np.random.default_rng(9)
    similarity = np.zeros((n_problems, n, n), np.float32)
    clusters = rng.integers(1, n + 1, size=n_problems)
    solved = solve(cpu, similarity, clusters, epsilon=1.0, n_draws=n_draws)
    edges, labels = solved.edges[:, 0], solved.labels[:, 0]
    adjacency = np.zeros((n_problems, n, n), int)
    for p in range(n_problems):
        for b in range(n_draws):
            for i, j in kept_edges(edges[p, b]):
                adjacency[p, i, j] += 1
                adjacency[p, j, i] += 1
    counts = cpu.sums.adjacency_counts(edges[:, None], n)
    assert counts.dtype == np.int32
    assert np.array_equal(counts, adjacency)
    assert np.array_equal(counts.sum((1, 2)), 2 * n_draws * (n - clusters))
    together = (labels[..., :, None] == labels[..., None, :]).sum(1)
    counts = cpu.sums.connectivity_counts(labels)
    assert counts.dtype == np.int32
    assert np.array_equal(counts, together)


def test_counts_of_a_strided_view():
    """One of two solves, as the losses take it."""
    labels = random_labels(np.random.default_rng(10), 8)[None]
    solved = solve(cpu, np.zeros((1, 8, 8)), np.array([5]), labels=labels, epsilon=1.0, n_draws=6)
    first, second = (cpu.sums.adjacency_counts(solved.edges[:, s : s + 1], 8) for s in range(2))
    assert np.array_equal(cpu.sums.adjacency_counts(solved.edges, 8), first - second)
    for s in range(2):
        view, copy = solved.edges[:, s : s + 1], solved.edges[:, s : s + 1].copy()
        assert np.array_equal(cpu.sums.adjacency_counts(view, 8), cpu.sums.adjacency_counts(copy, 8))
        view, copy = solved.labels[:, s], solved.labels[:, s].copy()
        assert np.array_equal(cpu.sums.connectivity_counts(view), cpu.sums.connectivity_counts(copy))


# ----------------------------------------------------------------------------------------------------------------
# reference.py against exhaustive search


def solve_reference(similarity, k, relation=None, must_link_first=True):
    relation = None if relation is None else relation.tolist()
    return reference.kruskal(similarity.tolist(), k, relation, must_link_first)


@each_kind
def test_reference_is_optimal_without_constraints(kind, dtype):
    rng = np.random.default_rng(11)
    for n in range(1, 7):
        for _ in range(10):
            similarity = random_similarity(rng, n, kind, dtype)
            for k in range(1, n + 1):
                forest = solve_reference(similarity, k)
                best = best_forest_value(similarity, k)
                if best == -np.inf:
                    assert len(forest) < n - k
                else:
                    assert is_forest(forest, n, k)
                    assert forest_value(forest, similarity) == best


@each_order
@each_kind
def test_reference_is_optimal_with_one_labelled_point_per_class(kind, dtype, must_link_first):
    rng = np.random.default_rng(12)
    for n in range(1, 7):
        for _ in range(10):
            similarity = random_similarity(rng, n, kind, dtype)
            n_labelled = int(rng.integers(0, n + 1))
            labels = np.full(n, -1)
            labels[rng.permutation(n)[:n_labelled]] = rng.permutation(n)[:n_labelled]
            relation = relation_of_labels(labels)
            for k in range(max(1, n_labelled), n + 1):
                forest = solve_reference(similarity, k, relation, must_link_first)
                best = best_forest_value(similarity, k, relation)
                if best == -np.inf:
                    assert len(forest) < n - k
                else:
                    assert is_forest(forest, n, k)
                    assert agrees(components(n, forest), relation)
                    assert forest_value(forest, similarity) == best


@each_order
@each_kind
def test_reference_is_feasible_and_never_above_the_optimum(kind, dtype, must_link_first):
    """Labels and pairs. On a complete graph labels are always satisfied; cannot-link pairs may stop the greedy."""
    rng = np.random.default_rng(13)
    n_below = 0
    for n in range(2, 7):
        for repeat in range(16):
            similarity = random_similarity(rng, n, kind, dtype)
            from_labels = repeat % 2 == 0
            relation = (
                relation_of_labels(random_labels(rng, n, known=0.8)) if from_labels else random_relation(rng, n, 0.4)
            )
            for k in feasible_cluster_counts(relation):
                forest = solve_reference(similarity, k, relation, must_link_first)
                labels = np.array(components(n, forest))
                apart = labels[:, None] != labels[None, :]
                assert len(forest) == n - labels.max() - 1 <= n - k  # no cycle
                assert apart[relation == 0].all()
                if from_labels and is_complete(similarity):
                    assert len(forest) == n - k
                if len(forest) == n - k:
                    assert agrees(labels, relation)
                    best = best_forest_value(similarity, k, relation)
                    assert forest_value(forest, similarity) <= best
                    n_below += forest_value(forest, similarity) < best
    if kind == "random":
        assert n_below > 0  # otherwise the greedy would be exact here and this test would test nothing


def test_three_points_on_a_line():
    """The design's example: the ends must link, k = 1. Must-links first takes the long edge."""
    similarity = np.array([[0.0, -1.0, -4.0], [-1.0, 0.0, -1.0], [-4.0, -1.0, 0.0]])
    relation = close_relation(3, must_link=[(0, 2)])
    assert solve_reference(similarity, 1, relation, True) == [(0, 1), (0, 2)]
    assert solve_reference(similarity, 1, relation, False) == [(0, 1), (1, 2)]
    assert solve_reference(similarity, 2, relation, True) == [(0, 2)]
    assert solve_reference(similarity, 2, relation, False) == [(0, 2)]
    assert best_forest_value(similarity, 1, relation) == -4.0


def test_ties_go_by_smaller_pair():
    zeros = np.zeros((4, 4))
    assert solve_reference(zeros, 1) == [(0, 1), (0, 2), (0, 3)]
    assert solve_reference(zeros, 2) == [(0, 1), (0, 2)]
    assert reference.ordered_edges([[0, 1, 2], [1, 0, 2], [2, 2, 0]]) == [(0, 2), (1, 2), (0, 1)]
    assert reference.ordered_edges(zeros) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert reference.ordered_edges([[0, -np.inf], [-np.inf, 0]]) == []


def test_negative_zero_equals_zero():
    """-0.0 and 0.0 are a tie, so the smaller pair comes first."""
    similarity = np.zeros((3, 3))
    similarity[0, 1] = similarity[1, 0] = -0.0
    for dtype in DTYPES:
        for k in (1, 2):
            solved = solve(cpu, similarity.astype(dtype)[None], np.array([k]))
            assert kept_edges(solved.edges[0, 0, 0]) == [(0, 1), (0, 2)][: 3 - k]


def test_one_pass_labels_always_reach_k():
    """must_link_first=False keeps enough joins back for the must-links, whatever the order of the edges."""
    rng = np.random.default_rng(14)
    for _ in range(300):
        n = int(rng.integers(2, 10))
        labels = random_labels(rng, n, known=0.7)
        relation = relation_of_labels(labels)
        similarity = random_similarity(rng, n, rng.choice(["random", "tied", "duplicated"]))
        n_classes = len(set(labels[labels >= 0].tolist()))
        for k in range(max(1, n_classes), n_groups(relation) + 1):
            for must_link_first in (True, False):
                solved = solve(
                    cpu,
                    similarity[None],
                    np.array([k]),
                    labels=labels[None],
                    must_link_first=must_link_first,
                    free=False,
                )
                trees = solved.labels[0, 0, 0]
                assert trees.max() + 1 == k
                assert agrees(trees, relation)
