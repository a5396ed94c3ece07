"""The Triton kernels against the CPU solver, edge for edge: on a GPU if there is one, else in Triton's interpreter.

The interpreter needs milliseconds for a round of Prim with noise, so problems are small here and larger on a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ON_GPU = torch.cuda.is_available()
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from diffclust import noise as definition  # noqa: E402
from diffclust.noise import Draws  # noqa: E402
from diffclust.solvers import Request, cpu, cuda  # noqa: E402
from diffclust.solvers.cuda import greedy, launches, small  # noqa: E402
from diffclust.solvers.kernels.launches import INTERPRETED  # noqa: E402
from diffclust.solvers.kernels.trees import grow_tree, grow_tree_by_rounds  # noqa: E402
from diffclust.solvers.kernels.weights import pitch_of  # noqa: E402
from diffclust.solvers.points import cpu as points_cpu  # noqa: E402
from diffclust.solvers.points import cuda as points_cuda  # noqa: E402
from solving import request  # noqa: E402

pytestmark = [] if ON_GPU else pytest.mark.slow

DEVICE = "cuda" if ON_GPU else "cpu"
assert ON_GPU or INTERPRETED.value, "triton was imported before TRITON_INTERPRET=1 was set"


def on_device(value):
    return torch.as_tensor(value, device=DEVICE)


def solve(similarity, n_clusters, *, seed=3, first_draw=0, **options):
    arrays = {name: on_device(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    stream = {"seed": on_device(seed), "first_draw": on_device(first_draw)}
    forests = cuda.solve(request(on_device(similarity), on_device(n_clusters), **stream, **arrays))
    draws = cuda.solve(request(on_device(similarity), on_device(n_clusters), detail="draws", **stream, **arrays))
    np.testing.assert_array_equal(draws.edges.cpu(), forests.edges.cpu())  # of trees that were grown in another way
    np.testing.assert_array_equal(draws.values.cpu(), forests.values.cpu())
    return [part.cpu().numpy() for part in (forests.edges, forests.labels, forests.values)]


def means(similarity, n_clusters, *, detail="mean", adjacency=True, **options):
    """Means over draws; k is moved into the range of the labels."""
    asked = request(similarity, n_clusters, detail=detail, adjacency=adjacency, if_infeasible="clamp", **options)
    answer = cuda.solve(asked)
    return answer.mean, answer.adjacency


def check(similarity, n_clusters, **options):
    """The same edges and labels as on the CPU, and the same values but for rounding them to float32."""
    edges, labels, values = solve(similarity, n_clusters, **options)
    expected = cpu.solve(request(similarity, n_clusters, **{"seed": 3, **options}))
    np.testing.assert_array_equal(edges, expected.edges)
    np.testing.assert_array_equal(labels, expected.labels)
    assert edges.dtype == labels.dtype == np.int32
    assert values.dtype == np.float32
    rounded = expected.values.astype(np.float32)
    close = np.abs(values - rounded) <= np.spacing(np.abs(rounded))
    assert (close | np.isnan(rounded)).all()
    np.testing.assert_array_equal(np.isnan(values), np.isnan(rounded))
    return values


def symmetric(rng, n_problems, n):
    upper = np.triu(rng.normal(size=(n_problems, n, n)), 1).astype(np.float32)
    return upper + upper.swapaxes(1, 2)


def some_labels(rng, n_problems, n, n_classes=3):
    return rng.integers(-1, n_classes, size=(n_problems, n))


def some_relation(rng, n_problems, n, cannot_link=0.3):
    """Must-links from groups, cannot-links between random pairs of groups: closed, and not of the form of labels."""
    groups = rng.integers(0, max(1, 2 * n // 3), size=(n_problems, n))
    apart = rng.random((n_problems, n, n)) < cannot_link
    apart = np.triu(apart, 1) | np.triu(apart, 1).swapaxes(1, 2)
    index = np.arange(n_problems)[:, None, None]
    between = apart[index, groups[:, :, None], groups[:, None, :]]
    return np.where(groups[:, :, None] == groups[:, None, :], 1, np.where(between, 0, -1)).astype(np.int8)


def some_views(rng, n_problems, n):
    """Labels, and pairs of points of which at most one is labelled that must link: closures say all that is known."""
    relations = []
    for labels in some_labels(rng, n_problems, n):
        closure = np.where(labels >= 0, labels, 3 + np.arange(n))
        for i in range(0, n - 1, 2):
            if max(closure[i : i + 2]) >= 3:
                closure[i : i + 2] = min(closure[i : i + 2])
        apart = (closure[:, None] < 3) & (closure[None, :] < 3)
        relations.append(np.where(closure[:, None] == closure[None, :], 1, np.where(apart, 0, -1)))
    return np.stack(relations).astype(np.int8)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def run_compiler(script, folder):
    """What a script prints that compiles machine code, which needs no GPU, but no interpreter either."""
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, Path(__file__).with_name(script), folder],
        env=settings | {"TRITON_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_kernels_compile_for_a_gpu():
    """The interpreter does not check types. Triton's cache keeps what was compiled until a kernel changes."""
    cache = Path(__file__).resolve().parent.parent / ".cache" / "triton"
    assert int(run_compiler("compile_kernels.py", cache).split()[0]) > 50


def test_kernels_are_compiled_ahead(tmp_path):
    assert run_compiler("compile_ahead.py", tmp_path) == "compiled ahead\n"


# ---------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("n", [1, 4, 9])
@pytest.mark.parametrize("kind", definition.KINDS)
@pytest.mark.parametrize(("seed", "first_draw"), [(0, 0), (-(2**40) - 1, 2**32 - 2), (2**63 - 1, 2**33 + 1)])
def test_noise_is_the_definition_to_the_last_bit(n, kind, seed, first_draw):
    n_draws = 3
    z = definition.sample(seed, n_draws, n, kind, first_draw=first_draw)
    draws = Draws(on_device(seed), on_device(first_draw), noise=kind)
    one_hot = torch.eye(n_draws, device=DEVICE)  # a problem for each draw
    result = cuda.noise_sum(one_hot, n, draws).cpu().numpy()
    if kind == "normal":
        np.testing.assert_array_equal(result, z)
        return
    # The exponential is not defined to the last bit: for Gumbel noise the tree of zeros shows the noise itself.
    score = np.where(np.eye(n), 0, 1 - np.exp(-z.astype(np.float64)))
    np.testing.assert_allclose(result, score, rtol=1e-6, atol=1e-6)
    if n > 1:
        zeros = np.zeros((1, n, n), np.float32)
        edges, _, values = solve(zeros, np.array([n - 1]), epsilon=1.0, n_draws=1, seed=seed, first_draw=first_draw,
                                 noise=kind)  # fmt: skip
        assert values.item() == 2 * z[0][np.triu_indices(n, 1)].max()
        assert z[0][tuple(edges[0, 0, 0, 0])] == z[0][np.triu_indices(n, 1)].max()


def test_antithetic_noise_has_opposite_signs_in_pairs():
    plain = cuda.noise_sum(torch.tensor([[0.0, 1.0]], device=DEVICE), 5, Draws(5, on_device(2)))
    draws = Draws(on_device(5), 6, antithetic=True)
    pair = cuda.noise_sum(torch.tensor([[1.0, 0.0], [0.0, 1.0]], device=DEVICE), 5, draws)
    np.testing.assert_array_equal(pair[0].cpu(), plain[0].cpu())  # draws 6 and 7 are plain draw 3 and its mirror image
    np.testing.assert_array_equal(pair[1].cpu(), -plain[0].cpu())


# ---------------------------------------------------------------------------------------------------- solve


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, *([17, 64, 255, 256, 1000] if ON_GPU else [])])
def test_free_and_label_solves_with_noise(rng, n):
    n_clusters = np.array([1, (n + 1) // 2, n])
    check(
        symmetric(rng, 3, n), n_clusters, labels=some_labels(rng, 3, n), epsilon=0.5, n_draws=20 if ON_GPU else 2,
        first_draw=2**32 - 1,
    )  # fmt: skip


@pytest.mark.parametrize("n", [34, 39])
def test_wider_than_a_warp(rng, n):
    check(symmetric(rng, 1, n), np.array([4]), labels=some_labels(rng, 1, n), epsilon=0.3)


@triton.jit
def _grow_both(words, keys, best, roots, n, pitch, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, LEFT: tl.constexpr):
    index = tl.arange(0, BLOCK)
    grow_tree(words, roots, roots, keys, index < n, n, pitch, False, False, BLOCK, 1)
    grow_tree_by_rounds(words, keys + n, best, roots, n, pitch, BLOCK, AT_ONCE, LEFT, 1)


@pytest.mark.parametrize("n", [2, 5, 16, 37])
@pytest.mark.parametrize("left", [1, 4, 64])
@pytest.mark.parametrize("levels", [2, 100])
def test_trees_by_rounds_are_those_of_prim(rng, n, left, levels):
    block, pitch = 1 << (n - 1).bit_length(), pitch_of(n)
    weights = np.zeros((n, pitch), np.float32)
    weights[:, :n] = np.floor(levels * symmetric(rng, 1, n)[0])  # ties
    bits = weights.view(np.int32)
    words = on_device(bits ^ ((bits >> 31) | np.int32(-(2**31))))
    keys, roots = on_device(np.zeros((3, n), np.int64)), on_device(np.zeros((4, n), np.int32))
    _grow_both[(1,)](words, keys, keys[2], roots, n, pitch, block, 4, left, num_warps=1)
    prim, rounds = keys[:2, : n - 1].cpu().numpy() >> 1  # without the bit that says which vertex is new
    np.testing.assert_array_equal(np.sort(prim), np.sort(rounds))
    assert len(np.unique(prim)) == n - 1


@pytest.mark.parametrize("n", [20, *([130, 300] if ON_GPU else [])])
@pytest.mark.parametrize("known", ["labels", "views"])
def test_more_trees_than_run_at_once(rng, monkeypatch, n, known):
    """Prim's algorithm grows them, and the answer is the same."""
    of_known = {"labels": some_labels(rng, 1, n)} if known == "labels" else {"relation": some_views(rng, 1, n)}
    similarity = on_device(symmetric(rng, 1, n))
    known = {name: on_device(value) for name, value in of_known.items()}
    asked = request(similarity, 4, detail="draws", adjacency=True, if_infeasible="clamp", n_draws=2, **known)
    by_rounds = cuda.solve(asked)
    small_by_rounds = cuda.solve(asked._replace(detail="mean"))
    for module in (cuda, small):
        monkeypatch.setattr(module, "multiprocessors", lambda device: 0)
    small._prepare_once.cache_clear()
    by_prim = cuda.solve(asked)
    small_by_prim = cuda.solve(asked._replace(detail="mean"))
    small._prepare_once.cache_clear()
    for one, other in ((by_rounds, by_prim), (small_by_rounds, small_by_prim)):
        torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=0)
        torch.testing.assert_close(one.adjacency, other.adjacency, rtol=0, atol=0)
    torch.testing.assert_close(by_rounds.edges, by_prim.edges, rtol=0, atol=0)


@pytest.mark.parametrize("n", [6, 11])
@pytest.mark.parametrize("levels", [1, 4])
@pytest.mark.parametrize("constraints", ["none", "labels", "relation", "one pass"])
def test_ties_go_by_the_smaller_pair(rng, n, levels, constraints):
    similarity = np.round(symmetric(rng, 2, n) * levels / 8)  # for one level hardly more than -0.0 and 0.0
    assert np.signbit(similarity[similarity == 0]).any()
    options = {
        "none": {},
        "labels": {"labels": some_labels(rng, 2, n)},
        "relation": {"relation": some_relation(rng, 2, n), "free": False},
        "one pass": {"labels": some_labels(rng, 2, n), "must_link_first": False, "free": False},
    }[constraints]
    check(similarity.astype(np.float32), np.array([1, 4]), **options)


@pytest.mark.parametrize("missing", [0.4, 0.8, *([0.9, 1.0] if ON_GPU else [])])
@pytest.mark.parametrize("n", [7, *([33, 100, 129, 300] if ON_GPU else [])])
def test_groups_cut_by_missing_edges(rng, n, missing):
    """The forests of the CPU solver, which sends such groups through the greedy; the one-launch path agrees."""
    n_problems, k = 4 if ON_GPU else 2, 3
    similarity, labels = symmetric(rng, n_problems, n), some_labels(rng, n_problems, n)
    gone = np.triu(rng.random(similarity.shape) < missing, 1)
    similarity[gone | gone.swapaxes(1, 2)] = -np.inf
    options = {"labels": labels, "epsilon": 0.3, "n_draws": 10 if ON_GPU else 1}
    check(similarity, np.full(n_problems, k), **options)
    if n <= small.SMALL:
        given, groups = on_device(similarity), on_device(labels)
        draws = Draws(3, 0, options["n_draws"], 0.3)
        asked = Request(given, k, groups, draws=draws, if_infeasible="clamp", adjacency=True, detail="forests")
        forests, means = cuda.solve(asked), cuda.solve(asked._replace(detail="mean"))
        np.testing.assert_array_equal(means.mean.cpu(), forests.mean.cpu())
        counts = ((each.adjacency.cpu() * draws.n_draws).round() for each in (means, forests))
        np.testing.assert_array_equal(*counts)  # torch divides by multiplying with the reciprocal


@pytest.mark.parametrize("n", [1, 2, 3, 7, *([9, 17, 64, 129, 256, 700] if ON_GPU else [])])
@pytest.mark.parametrize("known", ["labels", "views"])
def test_one_pass_and_views(rng, n, known):
    """Labels, and labels with must-link groups, of which kernels alone know that they need no greedy."""
    constraints = {"labels": some_labels(rng, 3, n)} if known == "labels" else {"relation": some_views(rng, 3, n)}
    options = {"epsilon": 0.5, "n_draws": 10 if ON_GPU else 1, "first_draw": 7}
    for must_link_first in (True, False):
        for free in (True, False):
            similarity = symmetric(rng, 3, n)
            check(
                similarity, np.array([1, (n + 3) // 4, n]), must_link_first=must_link_first, free=free, **constraints,
                **options,
            )  # fmt: skip


@pytest.mark.parametrize("free", [True, False])
def test_one_pass_counts_edges(rng, free):
    """Of problems with closures and of one without, in one batch."""
    similarity, relation = symmetric(rng, 3, 6), some_views(rng, 3, 6)
    relation[1] = some_relation(rng, 1, 6)[0]
    options = {"must_link_first": False, "free": free, "n_draws": 2, "epsilon": 0.2, "adjacency": True}
    found = cuda.solve(request(on_device(similarity), on_device([3, 3, 3]), relation=on_device(relation), **options))
    np.testing.assert_array_equal(found.adjacency.cpu() * 2, cpu.sums.adjacency_counts(found.edges.cpu().numpy(), 6))
    check(similarity, np.array([3, 3, 3]), relation=relation, must_link_first=False, free=free, epsilon=0.2)


def test_one_pass_in_a_block_that_is_wider_than_most(rng):
    """The free tree connects nearly all points of the first class through the four of the second."""
    similarity = symmetric(rng, 1, 70)
    similarity[:, :4] += 9
    similarity[:, :, :4] += 9
    labels = np.where(np.arange(70) < 4, 1, 0)[None]
    check(similarity, np.array([2]), labels=labels, must_link_first=False, epsilon=0.1)


@pytest.mark.parametrize("missing", [0.3, 0.6])
def test_one_pass_with_missing_edges(rng, missing):
    similarity = np.round(2 * symmetric(rng, 3, 9))
    gone = np.triu(rng.random(similarity.shape) < missing, 1)
    similarity[gone | gone.swapaxes(1, 2)] = -np.inf
    for must_link_first in (True, False):
        options = {"must_link_first": must_link_first, "free": must_link_first}
        check(similarity, np.array([1, 3, 5]), labels=some_labels(rng, 3, 9), **options)
        check(similarity, np.array([1, 3, 4]), relation=some_views(rng, 3, 9), **options)


@pytest.mark.parametrize("must_link_first", [True, False])
@pytest.mark.parametrize("cannot_link", [0.1, 0.6])
@pytest.mark.parametrize("n", [1, 2, 5, 10, *([65, 300] if ON_GPU else [])])
def test_general_constraints(rng, n, must_link_first, cannot_link):
    options = {"relation": some_relation(rng, 3, n, cannot_link), "must_link_first": must_link_first, "free": n == 5}
    check(symmetric(rng, 3, n), np.array([1, 2, n]), **options)


def test_draws_take_turns_where_scratch_is_short(rng, monkeypatch):
    monkeypatch.setattr(greedy, "SCRATCH_BYTES", 13 * 6 * 6 * 2)
    check(symmetric(rng, 5, 6), np.arange(1, 6), relation=some_relation(rng, 5, 6), free=False)


@pytest.mark.parametrize("must_link_first", [True, False])
def test_draws_take_turns_where_their_words_do_not_fit(rng, monkeypatch, must_link_first):
    similarity, labels = symmetric(rng, 2, 6), some_labels(rng, 2, 6)
    options = {"labels": labels, "must_link_first": must_link_first, "epsilon": 0.4, "first_draw": 3}
    whole = solve(similarity, np.array([2, 3]), n_draws=5, **options)
    monkeypatch.setattr(cuda, "words_bytes", lambda _: 4 * 2 * 6 * 16 * 2)  # two draws of both problems
    for mine, expected in zip(solve(similarity, np.array([2, 3]), n_draws=5, **options), whole, strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_launches_stay_within_what_a_gpu_takes(monkeypatch):
    """Along the second axis of a launch that is 65,535 programs; the interpreter takes any number."""
    grids = []

    class Recorded:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *arguments, **options: None

    for name in ("perturb", "solve_draws", "grow_units", "write_constrained"):
        monkeypatch.setattr(cuda, name, Recorded())
    monkeypatch.setattr(cuda, "mean_values", lambda values: values[:, 0, 0])
    similarity, labels = torch.zeros(1, 2, 2, device=DEVICE), torch.zeros(1, 2, dtype=torch.int64, device=DEVICE)
    cuda.solve(request(similarity, 1, labels=labels, detail="draws", n_draws=300_000))
    assert len(grids) == 8
    assert all(len(grid) == 1 or grid[1] <= 65_535 for grid in grids)


def test_every_output_is_written_whatever_was_in_memory(rng, monkeypatch):
    new_empty = torch.Tensor.new_empty

    def poisoned(self, size, **options):
        return new_empty(self, size, **options).fill_(77)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    similarity, labels = symmetric(rng, 2, 9), some_labels(rng, 2, 9)
    check(similarity, np.array([1, 4]), labels=labels)
    check(similarity, np.array([1, 4]), relation=some_relation(rng, 2, 9), free=False)
    check(similarity, np.array([1, 4]), relation=some_views(rng, 2, 9), must_link_first=False)
    noise = cuda.noise_sum(torch.zeros(2, 3, device=DEVICE), 9, Draws(on_device(1), on_device(0)))
    assert not noise.any()
    trees = np.zeros((1, 2, 9), np.int32)
    assert (cuda.sums.connectivity_counts(on_device(trees)) == 2).all()
    assert (cuda.sums.connectivity_products(torch.ones(1, 9, 9, device=DEVICE), on_device(trees)) == 81).all()
    no_edges = np.full((1, 2, 8, 2), -1, np.int32)
    assert (cuda.sums.adjacency_products(torch.ones(1, 9, 9, device=DEVICE), on_device(no_edges)) == 0).all()


@pytest.mark.parametrize(("n_problems", "n_draws"), [(0, 2)])
def test_nothing_to_do(n_problems, n_draws):
    similarity = np.zeros((n_problems, 4, 4), np.float32)
    edges, labels, values = solve(similarity, np.ones(n_problems, np.int64), n_draws=n_draws)
    assert edges.shape == (n_problems, 1, n_draws, 3, 2)
    assert labels.shape == (n_problems, 1, n_draws, 4)
    assert values.shape == (n_problems, 1, n_draws)
    assert cuda.sums.adjacency_counts(on_device(edges), 4).shape == (n_problems, 4, 4)
    assert not cuda.sums.connectivity_counts(on_device(labels[:, 0])).any()
    cotangent = torch.zeros(n_problems, 4, 4, device=DEVICE)
    for products in (
        cuda.sums.adjacency_products(cotangent, on_device(edges[:, 0])),
        cuda.sums.connectivity_products(cotangent, on_device(labels[:, 0])),
    ):
        assert products.shape == (n_problems, n_draws)
    weights = torch.zeros(n_problems, n_draws, device=DEVICE)
    assert not cuda.noise_sum(weights, 4, Draws()).any()


def test_what_it_cannot_do_is_said(rng):
    with pytest.raises(ValueError, match="16384"):
        cuda.solve(Request(torch.zeros(1).expand(1, 16385, 16385), 1))
    with pytest.raises(ValueError, match="gumbel"):
        cuda.solve(Request(torch.zeros(1, 3, 3), 1, draws=Draws(noise="cauchy")))


# ---------------------------------------------------------------------------------------------------- one launch


@pytest.mark.parametrize("n", [1, 6, *([64, 65, 128] if ON_GPU else [])])
@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("options", [{}, {"noise": "gumbel", "antithetic": True, "epsilon": 0.0}])
def test_one_launch_gives_what_three_do(rng, n, constrained, options):
    given = on_device(rng.normal(size=(2, n, n)))  # float64, and not symmetric
    labels = on_device(some_labels(rng, 2, n)) if constrained else None
    draws = {"seed": 3, "first_draw": on_device(5), "n_draws": 20 if ON_GPU else 2, "epsilon": 0.5, **options}
    for k in ((n + 1) // 2, on_device(np.array([1, n]))):
        asked = request(given, k, labels=labels, if_infeasible="clamp", adjacency=True, **draws)
        expected = cuda.solve(asked)
        for _ in range(1 + ON_GPU):  # the second time by the kernel that is known
            mean, found = means(given, k, labels=labels, **draws)
            np.testing.assert_array_equal(mean.cpu(), expected.mean.cpu())
            np.testing.assert_array_equal(found.float().cpu(), expected.adjacency.float().cpu())
        own_k, own_labels = k if isinstance(k, int) else k[1:], None if labels is None else labels[1:]
        mean, found = means(given[1:], own_k, labels=own_labels, adjacency=False, **draws)
        assert found is None
        assert mean.item() == expected.mean[1].item()


@pytest.mark.parametrize("n", [6, *([64, 128] if ON_GPU else [])])
@pytest.mark.parametrize("must_link_first", [False, True])
@pytest.mark.parametrize("free", [False, True])
def test_one_launch_of_a_relation(rng, n, must_link_first, free):
    """Of problems with closures and of one that needs the greedy, in one batch."""
    relation = some_views(rng, 3, n)
    relation[1] = some_relation(rng, 1, n)[0]
    given, draws = on_device(symmetric(rng, 3, n)), {"n_draws": 10 if ON_GPU else 2, "epsilon": 0.4, "seed": 2}
    options = {"relation": on_device(relation), "must_link_first": must_link_first, "free": free, **draws}
    for k in (n // 2, on_device(np.array([n // 2, n, 1]))):
        expected = cuda.solve(request(given, k, adjacency=True, if_infeasible="clamp", **options))
        for _ in range(2):
            mean, found = means(given, k, **options)
            np.testing.assert_array_equal(mean.cpu(), expected.mean.cpu())
            np.testing.assert_allclose(found.cpu(), expected.adjacency.cpu(), rtol=2e-7)  # torch divides otherwise


TWO_DRAWS = {"seed": 0, "first_draw": 0, "n_draws": 2, "epsilon": 0.1}


def test_one_launch_with_a_nan_and_with_nothing(rng):
    given = symmetric(rng, 3, 6)
    given[1, 2, 4] = np.nan  # on one side of the diagonal
    mean, adjacency = means(on_device(given), 2, **TWO_DRAWS)
    assert mean.isnan().tolist() == [False, True, False]
    assert not adjacency[1].any()
    mean, adjacency = means(on_device(given[:0]), 2, **TWO_DRAWS)
    assert mean.shape == (0,)
    assert adjacency.shape == (0, 6, 6)


def test_one_number_of_clusters_for_all_problems(rng):
    """A tensor that repeats its one element, as an expanded 0-d one and those of vmap do."""
    given, labels = on_device(symmetric(rng, 3, 6)), on_device(some_labels(rng, 3, 6))
    draws = {"seed": 0, "first_draw": 0, "n_draws": 1, "epsilon": 0.1}
    repeated = torch.full((), 4, device=DEVICE).expand(3)
    for detail in ("mean", "forests"):
        found, right = (means(given, k, labels=labels, detail=detail, **draws)[0] for k in (repeated, 4))
        np.testing.assert_array_equal(found.cpu(), right.cpu())


@pytest.mark.parametrize("must_link_first", [False, True])
def test_clusters_are_moved_into_the_range_of_closures(rng, must_link_first):
    """Of a relation as of the labels that say the same: while a graph is captured, the caller cannot read it."""
    labels = np.array([[0, 0, 1, 2, 1, -1], [0, 0, 0, 0, 0, 0]])  # from 3 to 4 clusters, and 1
    closure = np.where(labels >= 0, labels, 3 + np.arange(6))
    apart = (labels >= 0)[:, :, None] & (labels >= 0)[:, None, :]
    relation = np.where(closure[:, :, None] == closure[:, None, :], 1, np.where(apart, 0, -1)).astype(np.int8)
    given, options = on_device(symmetric(rng, 2, 6)), {"n_draws": 2, "epsilon": 0.1, "must_link_first": must_link_first}
    for k in (1, 4, 6):
        for detail in ("mean", "draws"):
            found, expected = (
                means(given, k, detail=detail, **{name: on_device(known)}, **options)
                for name, known in (("relation", relation), ("labels", labels))
            )
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(mine.cpu(), theirs.cpu())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_labels_of_any_integer_type(rng, dtype):
    """For unsigned ones, too, what is read past the last point is no label: n is no power of two."""
    labels = on_device(np.array([[0, 255, 0, 1, 1, 255], [2, 2, 3, 3, 2, 0]])).to(dtype)
    given = on_device(symmetric(rng, 2, 6))
    draws = {"seed": 0, "first_draw": 0, "n_draws": 1, "epsilon": 0.1}
    clusters = torch.tensor([3, 1], device=DEVICE)
    for detail in ("mean", "forests"):
        found, expected = (
            means(given, clusters, labels=each, detail=detail, **draws)[0] for each in (labels, labels.long())
        )
        np.testing.assert_array_equal(found.cpu(), expected.cpu())


@pytest.mark.parametrize(("n_problems", "n_draws"), [(1, 9), (9, 1)])
def test_a_workspace_is_kept_only_if_it_is_small(rng, monkeypatch, n_problems, n_draws):
    """Many draws need keys, many problems counts."""
    for limit, kept in ((1 << 20, 1), (500, 0)):
        monkeypatch.setattr(small, "_KEPT", limit)
        small._prepare_once.cache_clear()
        means(on_device(symmetric(rng, n_problems, 4)), 2, **{**TWO_DRAWS, "n_draws": n_draws})
        assert small._prepare_once.cache_info().currsize == kept


def test_the_workspace_of_one_launch_is_left_as_it_was(rng):
    """Large and small in turns, a NaN among them: the same as with a workspace that nobody has used."""
    sizes = ((1, 5), (2, 4), (1, 2), (2, 5))
    inputs = [on_device(symmetric(rng, n_problems, n)) for n_problems, n in sizes]
    inputs[1][1, 0, 2] = np.nan
    alone = []
    for given in inputs:
        small._prepare_once.cache_clear()
        alone.append(means(given, 2, **TWO_DRAWS))
    for _ in range(2):
        for given, expected in zip(inputs, alone, strict=True):
            for mine, theirs in zip(means(given, 2, **TWO_DRAWS), expected, strict=True):
                np.testing.assert_array_equal(mine.cpu(), theirs.cpu())


def test_a_launch_that_fails_leaves_no_workspace_behind(rng, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    given = on_device(symmetric(rng, 1, 6))
    before, _ = means(given, 2, **TWO_DRAWS)
    with monkeypatch.context() as patched:
        patched.setattr(launches.Launch, "__call__", fail)
        with pytest.raises(KeyboardInterrupt):
            means(given, 2, **TWO_DRAWS)
    assert small._prepare_once.cache_info().currsize == 0
    assert means(given, 2, **TWO_DRAWS)[0].item() == before.item()


def test_a_workspace_serves_one_thread_at_a_time(rng, monkeypatch):
    """The greedy of a relation leaves counts in it for the launch after it."""
    held, greedily = [], small.solve_greedily

    def watched(*arguments):
        held.append(small._workspace_lock.locked())
        return greedily(*arguments)

    monkeypatch.setattr(small, "solve_greedily", watched)
    means(on_device(symmetric(rng, 1, 6)), 2, relation=on_device(some_relation(rng, 1, 6)), n_draws=1)
    assert held == [True]
    assert not small._workspace_lock.locked()


@pytest.mark.gpu  # in the interpreter there are no streams
def test_each_stream_has_a_workspace_of_its_own(rng):
    draws = {**TWO_DRAWS, "n_draws": 500}
    given = on_device(symmetric(rng, 4, 64))
    expected = means(given, 2, **draws)
    streams, found = [torch.cuda.Stream() for _ in range(3)], []
    torch.cuda.synchronize()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(means(given, 2, **draws))
    torch.cuda.synchronize()
    assert small._prepare_once.cache_info().currsize >= 4
    for mine in found:
        for each, right in zip(mine, expected, strict=True):
            assert torch.equal(each, right)


# ---------------------------------------------------------------------------------------------------- points


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine", "manhattan", "chebyshev"])
@pytest.mark.parametrize("kind", ["random", "grid"])
def test_tree_of_points(rng, metric, kind):
    n = 700 if ON_GPU else 70
    x = rng.normal(size=(n, 3)) if kind == "random" else rng.integers(1, 4, size=(n, 3)).astype(float)
    edges, weights = points_cuda.spanning_tree(on_device(x), metric)
    expected = points_cpu.spanning_tree(x, metric)
    np.testing.assert_allclose(weights, expected[1], rtol=1e-12, atol=1e-15)
    if metric != "cosine" or kind == "random":  # equal directions of unequal vectors are equal but for rounding
        np.testing.assert_array_equal(edges, expected[0])


@pytest.mark.parametrize("where", [1e12, "two groups"])
def test_tree_of_points_far_from_the_origin(rng, where):
    x = rng.normal(size=(70, 17)) + (
        np.where(np.arange(70) % 2, 1e8, -1e8)[:, None] if where == "two groups" else where
    )
    for metric in ("sqeuclidean", "manhattan", "chebyshev"):
        edges, weights = points_cuda.spanning_tree(on_device(x), metric)
        expected = points_cpu.spanning_tree(x, metric)
        np.testing.assert_array_equal(edges, expected[0])
        np.testing.assert_allclose(weights, expected[1], rtol=1e-12)


def test_tree_of_one_point_and_two():
    for n in (1, 2):
        edges, weights = points_cuda.spanning_tree(on_device(np.arange(n, dtype=np.float32)[:, None]), "sqeuclidean")
        assert edges.tolist() == [[0, 1]][: n - 1]
        assert weights.tolist() == [-1.0][: n - 1]
    with pytest.raises(ValueError, match="too far apart"):
        points_cuda.spanning_tree(on_device(np.array([[1.0], [1e200]])), "sqeuclidean")
    with pytest.raises(ValueError, match="point 1 is a zero vector"):
        points_cuda.spanning_tree(on_device(np.array([[1.0], [0.0]])), "cosine")
