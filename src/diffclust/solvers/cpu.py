"""The forest solver for CPUs: Numba, threads over draws, noise made inside the kernel.

A draw costs one pass that writes ``similarity + epsilon * noise`` into a scratch matrix of its thread, and one Prim per
solve on that matrix. Memory is O(threads * n^2 + n_draws * n). The scratch matrix holds *ordered integers*, floats
mapped to integers of the same order and size: comparisons and maxima of integers run in vectors.

One routine, :func:`_grow`, carries both solves. With labels and must-links first the constrained forest is again
one maximum spanning tree: it is grown inside each labelled group, then from all labelled points at once, as if they
were glued to one root, to the unlabelled ones. Constraints that are not of that form go through :func:`_agglomerate`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

from diffclust import noise as noise_definition
from diffclust.noise import gumbel, normal_pair, philox
from diffclust.solvers import Forests
from diffclust.solvers.tree import number_trees

for _function in (
    noise_definition.philox_round,
    noise_definition.philox,
    noise_definition.log_polynomial,
    noise_definition.log,
    noise_definition.uniform,
    noise_definition.normal_pair,
    noise_definition.gumbel,
):
    register_jitable(forceinline=True)(_function)

_jit = numba.njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")

NORMAL, GUMBEL = (noise_definition.KINDS.index(kind) for kind in ("normal", "gumbel"))


BLOCKS = 1024  # 2 x 2 blocks of noise made at a time: words, noise and indices stay in the first-level cache


# --------------------------------------------------------------------------------------------------------------
# Ordered integers


@register_jitable(forceinline=True)
def _flip_32(bits):
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@register_jitable(forceinline=True)
def _flip_64(bits):
    return np.int64(bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)))


def _ordered(weight):
    """A float as an integer of the same order and size; -0.0 and 0.0 are one."""


@overload(_ordered, jit_options={"forceinline": True})
def _ordered_by_type(weight):
    if weight == types.float32:
        return lambda weight: _flip_32(np.float32(weight + np.float32(0.0)).view(np.int32))
    return lambda weight: _flip_64(np.float64(weight + 0.0).view(np.int64))


def _number(weight):
    """The float of an ordered integer."""


@overload(_number, jit_options={"forceinline": True})
def _number_by_type(weight):
    if weight == types.int32:
        return lambda weight: np.int32(_flip_32(np.int32(weight))).view(np.float32)
    return lambda weight: np.int64(_flip_64(np.int64(weight))).view(np.float64)


# --------------------------------------------------------------------------------------------------------------
# Noise


@_jit
def _noise_blocks(rows, columns, count, key_0, key_1, draw_low, draw_high, kind, words, z):
    """Noise of ``count`` 2 x 2 blocks: z[0] to z[3] are the four pairs of each block. Loops long enough for vectors."""
    words_0, words_1, words_2, words_3 = words[0], words[1], words[2], words[3]
    for c in range(count):
        word = philox(np.uint64(columns[c]), np.uint64(rows[c]), draw_low, draw_high, key_0, key_1)
        words_0[c] = np.uint32(word[0])
        words_1[c] = np.uint32(word[1])
        words_2[c] = np.uint32(word[2])
        words_3[c] = np.uint32(word[3])
    if kind == NORMAL:
        for pair in range(2):
            radius, angle, first, second = words[2 * pair], words[2 * pair + 1], z[2 * pair], z[2 * pair + 1]
            for c in range(count):
                first[c], second[c] = normal_pair(np.uint64(radius[c]), np.uint64(angle[c]))
    else:
        for lane in range(4):
            source, target = words[lane], z[lane]
            for c in range(count):
                target[c] = gumbel(np.uint64(source[c]))


@_jit
def _next_blocks(row, column, half, rows, columns):
    """The next blocks in reading order of the upper triangle from (row, column): (how many, row, column after them)."""
    count = 0
    while row < half and count < rows.shape[0]:
        rows[count] = row
        columns[count] = column
        count += 1
        column += 1
        if column == half:
            row += 1
            column = row
    return count, row, column


@_jit
def _split_draw(draw, antithetic):
    """Counter words and sign of a draw: antithetic draws 2m and 2m + 1 are the same noise with opposite signs."""
    number = draw // np.uint64(2) if antithetic else draw
    sign = -1.0 if antithetic and draw % np.uint64(2) == np.uint64(1) else 1.0
    return number & np.uint64(0xFFFFFFFF), number >> np.uint64(32), sign


@_jit
def _perturb(similarity, key_0, key_1, draw, antithetic, epsilon, kind, blocks, words, z, weights):
    """weights = ordered similarity + epsilon * noise, the product rounded to float32 as NumPy does it."""
    n = similarity.shape[0]
    half = (n + 1) // 2
    draw_low, draw_high, sign = _split_draw(draw, antithetic)
    scale = np.float32(np.float32(sign) * epsilon)
    rows, columns = blocks[0], blocks[1]
    row, column = 0, 0
    while row < half:
        count, row, column = _next_blocks(row, column, half, rows, columns)
        _noise_blocks(rows, columns, count, key_0, key_1, draw_low, draw_high, kind, words, z)
        for c in range(count):
            i, j = 2 * rows[c], 2 * columns[c]
            if j + 1 < n and i < j:
                _set_pair(weights, i, j, _ordered(similarity[i, j] + scale * z[0, c]))
                _set_pair(weights, i, j + 1, _ordered(similarity[i, j + 1] + scale * z[1, c]))
                _set_pair(weights, i + 1, j, _ordered(similarity[i + 1, j] + scale * z[2, c]))
                _set_pair(weights, i + 1, j + 1, _ordered(similarity[i + 1, j + 1] + scale * z[3, c]))
            elif j + 1 < n:  # on the diagonal
                _set_pair(weights, i, j + 1, _ordered(similarity[i, j + 1] + scale * z[1, c]))
            elif i < j:  # the last column of an odd n
                _set_pair(weights, i, j, _ordered(similarity[i, j] + scale * z[0, c]))
                _set_pair(weights, i + 1, j, _ordered(similarity[i + 1, j] + scale * z[2, c]))


@_jit
def _copy_ordered(similarity, weights):
    for i in range(similarity.shape[0]):
        for j in range(similarity.shape[0]):
            weights[i, j] = _ordered(similarity[i, j])


@_jit
def _set_pair(matrix, i, j, value):
    matrix[i, j] = value
    matrix[j, i] = value


# --------------------------------------------------------------------------------------------------------------
# Trees


@_jit
def _code(low, high):
    """An edge as one integer, in the order of (low, high)."""
    return (np.int64(low) << 32) | np.int64(high)


@_jit
def _offer(row, u, key, parent):
    """Offer u's edges, whose weights are ``row``, to all points: the larger counts, of equal ones the smaller u."""
    for j in range(row.shape[0]):
        better = (row[j] > key[j]) | ((row[j] == key[j]) & (u < parent[j]))
        key[j] = row[j] if better else key[j]
        parent[j] = u if better else parent[j]


@_jit
def _largest(key, is_open, lowest):
    largest = lowest
    for j in range(key.shape[0]):
        largest = max(largest, key[j] if is_open[j] else lowest)
    return largest


@_jit
def _grow(weights, roots, is_open, n_open, key, parent, lowest, codes, edge_weights, n_edges):
    """Prim: connect the ``n_open`` open points to ``roots``, which count as one tree; the open ones get closed.

    Appends to ``codes`` and ``edge_weights`` and returns their new number. ``lowest`` is below all weights. Edges are
    compared by (weight, smaller pair); among edges to one point the smaller pair is the one with the smaller other end.
    """
    n = weights.shape[0]
    key[:] = lowest
    parent[:] = n
    for r in range(roots.shape[0] - 1):
        _offer(weights[roots[r]], roots[r], key, parent)
    u = roots[roots.shape[0] - 1]
    for _ in range(n_open):
        _offer(weights[u], u, key, parent)
        best_key = _largest(key, is_open, lowest)
        best_low, best_high = n, n
        for j in range(n):
            if key[j] == best_key and is_open[j]:
                low, high = min(j, parent[j]), max(j, parent[j])
                if low < best_low or (low == best_low and high < best_high):
                    u, best_low, best_high = np.int32(j), low, high
        codes[n_edges] = _code(best_low, best_high)
        edge_weights[n_edges] = best_key
        n_edges += 1
        is_open[u] = 0
    return n_edges


@_jit
def _before(weight, code, other_weight, other_code):
    """Whether an edge stands before another in the total order."""
    return weight > other_weight or (weight == other_weight and code < other_code)


@_jit
def _sort_edges(codes, edge_weights, start, stop, spare_codes, spare_weights):
    """Sort edges start..stop-1 by the total order: insertion sort in runs, then merges."""
    run = 16
    for low in range(start, stop, run):
        for e in range(low + 1, min(low + run, stop)):
            weight, code, position = edge_weights[e], codes[e], e
            while position > low and _before(weight, code, edge_weights[position - 1], codes[position - 1]):
                edge_weights[position] = edge_weights[position - 1]
                codes[position] = codes[position - 1]
                position -= 1
            edge_weights[position] = weight
            codes[position] = code
    while run < stop - start:
        for low in range(start, stop - run, 2 * run):
            middle, high = low + run, min(low + 2 * run, stop)
            spare_codes[low:middle] = codes[low:middle]
            spare_weights[low:middle] = edge_weights[low:middle]
            left, right, out = low, middle, low
            while left < middle:
                if right < high and _before(edge_weights[right], codes[right], spare_weights[left], spare_codes[left]):
                    edge_weights[out] = edge_weights[right]
                    codes[out] = codes[right]
                    right += 1
                else:
                    edge_weights[out] = spare_weights[left]
                    codes[out] = spare_codes[left]
                    left += 1
                out += 1
        run *= 2


@_jit
def _keep_strongest(codes, edge_weights, start, stop, n_keep, missing, in_order, spare_codes, spare_weights):
    """Move the ``n_keep`` strongest edges of start..stop-1, as far as they exist, to the front; return how many.

    Few weak ones are dropped one by one, if the order of the others does not matter: that is faster than sorting.
    """
    n_drop = max(stop - start - max(n_keep, 0), 0)
    if in_order or n_drop > 16:
        _sort_edges(codes, edge_weights, start, stop, spare_codes, spare_weights)
        stop -= n_drop
    else:
        for _ in range(n_drop):
            weakest = start
            for e in range(start + 1, stop):
                if _before(edge_weights[weakest], codes[weakest], edge_weights[e], codes[e]):
                    weakest = e
            stop -= 1
            edge_weights[weakest] = edge_weights[stop]
            codes[weakest] = codes[stop]
    n_kept = 0
    for e in range(start, stop):
        if edge_weights[e] > missing:
            edge_weights[start + n_kept] = edge_weights[e]
            codes[start + n_kept] = codes[e]
            n_kept += 1
    return n_kept


@_jit
def _write_forest(codes, edge_weights, n_edges, complete, leader, edges_out, labels_out):
    """Write the edges and, if ``complete``, their trees; return <A, weights>."""
    total = 0.0
    for e in range(n_edges):
        edges_out[e, 0] = codes[e] >> 32
        edges_out[e, 1] = codes[e] & 0xFFFFFFFF
        total += _number(edge_weights[e])
    for e in range(n_edges, edges_out.shape[0]):
        edges_out[e, 0] = -1
        edges_out[e, 1] = -1
    if complete:
        number_trees(edges_out, n_edges, leader, labels_out)
    return 2.0 * total


@_jit
def _free_forest(weights, k, lowest, missing, in_order, scratch):
    """The k-forest without constraints: the maximum spanning tree less its k - 1 weakest edges."""
    members, is_open, key, parent, codes, edge_weights, spare_codes, spare_weights = scratch
    n = weights.shape[0]
    is_open[:] = 1
    is_open[0] = 0
    members[0] = 0
    n_edges = _grow(weights, members[:1], is_open, n - 1, key, parent, lowest, codes, edge_weights, 0)
    return _keep_strongest(codes, edge_weights, 0, n_edges, n - k, missing, in_order, spare_codes, spare_weights)


@_jit
def _label_forest(weights, by_group, group_ends, n_groups, k, lowest, missing, in_order, scratch):
    """The constrained k-forest for labels, must-links first; -1 when some group is not connected by itself.

    ``by_group`` lists the points group after group, the unlabelled ones last.
    """
    _, is_open, key, parent, codes, edge_weights, spare_codes, spare_weights = scratch
    n = weights.shape[0]
    n_edges = 0
    start = 0
    is_open[:] = 0
    for group in range(n_groups):
        stop = group_ends[group]
        for c in range(start + 1, stop):
            is_open[by_group[c]] = 1
        n_edges = _grow(
            weights, by_group[start : start + 1], is_open, stop - start - 1, key, parent, lowest, codes, edge_weights,
            n_edges,
        )  # fmt: skip
        start = stop
    for e in range(n_edges):
        if edge_weights[e] <= missing:
            return -1
    n_roots = max(start, 1)
    for c in range(n_roots, n):
        is_open[by_group[c]] = 1
    stop = _grow(weights, by_group[:n_roots], is_open, n - n_roots, key, parent, lowest, codes, edge_weights, n_edges)
    n_keep = n_groups + (n - start) - k
    n_edges += _keep_strongest(codes, edge_weights, n_edges, stop, n_keep, missing, False, spare_codes, spare_weights)
    if in_order:
        _sort_edges(codes, edge_weights, 0, n_edges, spare_codes, spare_weights)
    return n_edges


# --------------------------------------------------------------------------------------------------------------
# General constraints: the true greedy, as agglomeration


@_jit
def _better(weights, between, row, a, b):
    """Whether the best edge from tree ``row`` to tree a stands before the one to tree b."""
    if weights[row, a] != weights[row, b]:
        return weights[row, a] > weights[row, b]
    return between[row, a] < between[row, b]


@_jit
def _allowed(r, s, block, apart, open_blocks):
    return block[r] == block[s] or (open_blocks and not apart[block[r], block[s]])


@_jit
def _nearest(weights, between, r, alive, n_alive, missing, block, apart, open_blocks):
    """The tree that r may join first, or -1."""
    best = -1
    for c in range(n_alive):
        s = alive[c]
        if s == r or weights[r, s] <= missing or not _allowed(r, s, block, apart, open_blocks):
            continue
        if best < 0 or _better(weights, between, r, s, best):
            best = s
    return best


@_jit
def _agglomerate(
    weights, relation, k, must_link_first, missing, between, apart, block, alive, nearest, codes, edge_weights
):
    """The constrained greedy of ``reference.kruskal`` without sorting n^2 edges; returns the number of edges.

    Trees are merged best pair first. ``weights[r, s]`` and ``between[r, s]`` become the best edge between trees r and
    s, and each tree remembers its best allowed partner. ``block`` is as in the reference: joins inside a block are
    always allowed, joins between blocks while ``open_blocks``. With must-links first, blocks open only when no join
    inside a block is left, and they close when k blocks are left. Overwrites ``weights``.
    """
    n = weights.shape[0]
    n_blocks = 0
    for i in range(n):
        alive[i] = i
        block[i] = i
        for j in range(n):
            between[i, j] = _code(min(i, j), max(i, j))
            apart[i, j] = relation[i, j] == 0
        for j in range(i):
            if relation[i, j] == 1:
                block[i] = j
                break
        n_blocks += block[i] == i
    n_alive = n
    n_edges = 0
    may_open = n_blocks > k
    open_blocks = may_open and not must_link_first
    stale = True
    while True:
        if stale:
            for c in range(n_alive):
                nearest[alive[c]] = _nearest(
                    weights, between, alive[c], alive, n_alive, missing, block, apart, open_blocks
                )
            stale = False
        r = -1
        for c in range(n_alive):
            t = alive[c]
            if nearest[t] < 0:
                continue
            if r < 0:
                r = t
                continue
            weight, best = weights[t, nearest[t]], weights[r, nearest[r]]
            if weight > best or (weight == best and between[t, nearest[t]] < between[r, nearest[r]]):
                r = t
        if r < 0:
            if open_blocks or not may_open:
                return n_edges
            open_blocks = True
            stale = True
            continue

        s = nearest[r]
        codes[n_edges] = between[r, s]
        edge_weights[n_edges] = weights[r, s]
        n_edges += 1

        for c in range(n_alive):
            if alive[c] == s:
                alive[c] = alive[n_alive - 1]
                break
        n_alive -= 1
        joined = block[r] != block[s]
        if joined:
            kept, gone = block[r], block[s]
            for t in range(n):
                if apart[gone, t]:
                    apart[kept, t] = True
                    apart[t, kept] = True
            for c in range(n_alive):
                if block[alive[c]] == gone:
                    block[alive[c]] = kept
            n_blocks -= 1
            if n_blocks == k:
                open_blocks = False
                may_open = False
                stale = True
        for c in range(n_alive):
            t = alive[c]
            if t != r and _better(weights, between, t, s, r):
                weights[r, t] = weights[t, r] = weights[t, s]
                between[r, t] = between[t, r] = between[t, s]
        if stale:
            continue
        for c in range(n_alive):
            t = alive[c]
            if t == r:
                nearest[t] = _nearest(weights, between, t, alive, n_alive, missing, block, apart, open_blocks)
            elif nearest[t] == r or nearest[t] == s:
                # The better of two best edges is still the best, if the joined tree may be joined at all.
                if _allowed(t, r, block, apart, open_blocks):
                    nearest[t] = r
                else:
                    nearest[t] = _nearest(weights, between, t, alive, n_alive, missing, block, apart, open_blocks)
            elif joined and nearest[t] >= 0 and not _allowed(t, nearest[t], block, apart, open_blocks):
                nearest[t] = _nearest(weights, between, t, alive, n_alive, missing, block, apart, open_blocks)


# --------------------------------------------------------------------------------------------------------------
# All draws


@_jit
def _group_points(labels, by_group, group_ends):
    """Points sorted by label, unlabelled (negative) last; returns the number of groups."""
    n = labels.shape[0]
    order = np.argsort(labels, kind="mergesort")
    n_unknown = 0
    while n_unknown < n and labels[order[n_unknown]] < 0:
        n_unknown += 1
    n_known = n - n_unknown
    for c in range(n):
        by_group[c] = order[(c + n_unknown) % n]
    n_groups = 0
    for c in range(n_known):
        if c + 1 == n_known or labels[by_group[c]] != labels[by_group[c + 1]]:
            group_ends[n_groups] = c + 1
            n_groups += 1
    return n_groups


@_jit
def _relation_of_labels(labels, relation):
    n = labels.shape[0]
    for i in range(n):
        for j in range(n):
            known = labels[i] >= 0 and labels[j] >= 0
            relation[i, j] = (1 if labels[i] == labels[j] else 0) if known else -1
        relation[i, i] = 1


@_jit
def _solve_items(
    similarity, lowest, n_clusters, labels, relation, form, must_link_first, free, complete, key_0, key_1, first_draw,
    antithetic, epsilon, kind, start, stop, edges_out, labels_out, values_out,
):  # fmt: skip
    """Solve items start..stop-1 of ``problems x draws``. ``form``: NO_CONSTRAINTS, LABELS or RELATION.

    ``lowest`` is an array of the ordered integers' type, with one entry below all of them.
    """
    n_draws, n = edges_out.shape[2], similarity.shape[1]
    blocks = np.empty((2, BLOCKS), np.uint32)
    words, z = np.empty((4, BLOCKS), np.uint32), np.empty((4, BLOCKS), np.float32)
    weights = np.empty((n, n), lowest.dtype)
    missing = lowest.dtype.type(_ordered(similarity.dtype.type(-np.inf)))
    key, parent = np.empty(n, lowest.dtype), np.empty(n, np.int32)
    codes, edge_weights = np.empty(n, np.int64), np.empty(n, lowest.dtype)
    spare_codes, spare_weights = np.empty(n, np.int64), np.empty(n, lowest.dtype)
    members, is_open = np.empty(n, np.int32), np.empty(n, np.int32)
    scratch = members, is_open, key, parent, codes, edge_weights, spare_codes, spare_weights
    by_group, group_ends = np.empty(n, np.int32), np.empty(n, np.int32)
    block, alive, nearest = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    between, apart = np.empty((0, 0), np.int64), np.empty((0, 0), np.bool_)
    own_relation = np.empty((0, 0), np.int8)
    n_groups, grouped = 0, -1

    for item in range(start, stop):
        problem, draw = item // n_draws, item % n_draws
        k = n_clusters[problem]
        edges, trees, values = edges_out[problem, :, draw], labels_out[problem, :, draw], values_out[problem, :, draw]
        if k < 0:  # not a number: see solve()
            edges[:] = -1
            trees[:] = 0
            values[:] = np.nan
            continue
        if epsilon == 0:
            _copy_ordered(similarity[problem], weights)
        else:
            number = first_draw + np.uint64(draw)
            _perturb(similarity[problem], key_0, key_1, number, antithetic, epsilon, kind, blocks, words, z, weights)
        if free:
            n_edges = _free_forest(weights, k, lowest[0], missing, complete, scratch)
            values[0] = _write_forest(codes, edge_weights, n_edges, complete, parent, edges[0], trees[0])
        if form == NO_CONSTRAINTS:
            continue
        n_edges = -1
        if form == LABELS and must_link_first:
            if grouped != problem:
                n_groups = _group_points(labels[problem], by_group, group_ends)
                grouped = problem
            n_edges = _label_forest(weights, by_group, group_ends, n_groups, k, lowest[0], missing, complete, scratch)
        if n_edges < 0:  # constraints of another form, or a labelled group that missing edges cut into pieces
            if between.shape[0] != n:
                between, apart = np.empty((n, n), np.int64), np.empty((n, n), np.bool_)
                own_relation = np.empty((n, n), np.int8)
            if form == LABELS:
                _relation_of_labels(labels[problem], own_relation)
            else:
                own_relation[:] = relation[problem]
            n_edges = _agglomerate(
                weights, own_relation, k, must_link_first, missing, between, apart, block, alive, nearest, codes,
                edge_weights,
            )  # fmt: skip
            _sort_edges(codes, edge_weights, 0, n_edges, spare_codes, spare_weights)
        values[-1] = _write_forest(codes, edge_weights, n_edges, complete, parent, edges[-1], trees[-1])


NO_CONSTRAINTS, LABELS, RELATION = range(3)


def _plain(array: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """Contiguous and writeable: Numba would compile everything once more for any other kind of array."""
    array = np.ascontiguousarray(array, dtype)
    return array if array.flags.writeable else array.copy()


def solve(
    similarity: NDArray[Any],
    n_clusters: NDArray[Any],
    *,
    labels: NDArray[Any] | None = None,
    relation: NDArray[Any] | None = None,
    must_link_first: bool = True,
    free: bool = True,
    seed: int = 0,
    first_draw: int = 0,
    n_draws: int = 1,
    epsilon: float = 0.0,
    noise: str = "normal",
    antithetic: bool = False,
    complete: bool = True,
) -> Forests:
    """Forests of ``similarity + epsilon * noise`` for every problem and draw.

    Args:
        similarity: (problems, n, n) float32 or float64, exactly symmetric; the diagonal is ignored.
        n_clusters: (problems,) integers.
        labels: (problems, n) integers, negative is unknown; or
        relation: (problems, n, n) int8, 1 same, 0 different, -1 unknown, transitively closed; or neither.
        free: also (or, without constraints, only) the forests without constraints.
        complete: False leaves the edges of a draw in no order and the labels out (their last dimension is 0).

    A problem with a NaN gets NaN values and no edges. Fewer edges than n - k mean that the greedy got stuck.
    """
    n_problems, n, _ = similarity.shape
    form = NO_CONSTRAINTS if labels is None and relation is None else LABELS if relation is None else RELATION
    free = free or form == NO_CONSTRAINTS
    n_solves = int(free) + int(form != NO_CONSTRAINTS)
    edges = np.empty((n_problems, n_solves, n_draws, max(n - 1, 0), 2), np.int32)
    trees = np.empty((n_problems, n_solves, n_draws, n if complete else 0), np.int32)
    values = np.empty((n_problems, n_solves, n_draws), np.float64)
    clusters = np.where(np.isnan(similarity).any(axis=(1, 2)), -1, n_clusters).astype(np.int32)
    if labels is None:
        labels = np.empty((0, 0), np.int64)
    if relation is None:
        relation = np.empty((0, 0, 0), np.int8)
    key_0, key_1 = noise_definition.split_seed(seed)
    ordered = np.int32 if similarity.dtype == np.float32 else np.int64
    arguments = (
        _plain(similarity), np.array([np.iinfo(ordered).min], ordered), clusters, _plain(labels, np.int64),
        _plain(relation, np.int8), form, must_link_first, free, complete, key_0, key_1, np.uint64(first_draw),
        antithetic, np.float32(epsilon), noise_definition.KINDS.index(noise),
    )  # fmt: skip
    _in_threads(lambda start, stop: _solve_items(*arguments, start, stop, edges, trees, values), n_problems * n_draws)
    return Forests(edges, trees, values)


# --------------------------------------------------------------------------------------------------------------
# Sums over draws


def mean_values(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(problems,) mean over draws of values (problems, solves, draws); of two solves, the mean gap between them.

    A gap is never negative: what rounding leaves below zero is zero.
    """
    if values.shape[1] == 1:
        return values[:, 0].mean(-1)
    return (values[:, 0] - values[:, 1]).clip(min=0.0).mean(-1)


@_jit
def _count_edges(edges, start, stop, counts):
    for problem in range(start, stop):
        for solve in range(edges.shape[1]):
            sign = 1 - 2 * solve
            for draw in range(edges.shape[2]):
                for e in range(edges.shape[3]):
                    i, j = edges[problem, solve, draw, e]
                    if i < 0:
                        break
                    counts[problem, i, j] += sign
                    counts[problem, j, i] += sign


def adjacency_counts(edges: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """(problems, n, n) number of draws whose forest has the edge, from edges (problems, solves, draws, n - 1, 2).

    Of two solves, the number in the first less the number in the second.
    """
    counts = np.zeros((edges.shape[0], n, n), np.int32)
    _in_threads(lambda start, stop: _count_edges(edges, start, stop, counts), len(edges))
    return counts


@_jit
def _count_pairs(labels, start, stop, counts):
    n = labels.shape[2]
    for item in range(start, stop):
        problem, i = item // n, item % n
        row = counts[problem, i]
        for draw in range(labels.shape[1]):
            tree = labels[problem, draw]
            own = tree[i]
            for j in range(n):
                row[j] += np.int32(tree[j] == own)


def connectivity_counts(labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """(problems, n, n) number of draws in which i and j share a tree, from labels (problems, draws, n)."""
    n_problems, _, n = labels.shape
    counts = np.zeros((n_problems, n, n), np.int32)
    _in_threads(lambda start, stop: _count_pairs(labels, start, stop, counts), n_problems * n)
    return counts


@_jit
def _edge_products(cotangent, edges, start, stop, products):
    n_draws = edges.shape[1]
    for item in range(start, stop):
        problem, draw = item // n_draws, item % n_draws
        total = 0.0
        for e in range(edges.shape[2]):
            i, j = edges[problem, draw, e]
            if i < 0:
                break
            total += cotangent[problem, i, j] + cotangent[problem, j, i]
        products[problem, draw] = total


def adjacency_products(cotangent: NDArray[Any], edges: NDArray[np.int32]) -> NDArray[np.float64]:
    """(problems, draws) inner products <cotangent, A> with the adjacency matrix of every draw."""
    products = np.empty(edges.shape[:2], np.float64)
    cotangent, edges = _plain(cotangent), _plain(edges)
    _in_threads(lambda start, stop: _edge_products(cotangent, edges, start, stop, products), products.size)
    return products


@_jit
def _pair_products(cotangent, labels, start, stop, products):
    n_draws, n = labels.shape[1], labels.shape[2]
    for item in range(start, stop):
        problem, draw = item // n_draws, item % n_draws
        tree = labels[problem, draw]
        total = 0.0
        for i in range(n):
            row = cotangent[problem, i]
            for j in range(n):
                if tree[i] == tree[j]:
                    total += row[j]
        products[problem, draw] = total


def connectivity_products(cotangent: NDArray[Any], labels: NDArray[np.int32]) -> NDArray[np.float64]:
    """(problems, draws) inner products <cotangent, M> with the connectivity matrix of every draw."""
    products = np.empty(labels.shape[:2], np.float64)
    cotangent, labels = _plain(cotangent), _plain(labels)
    _in_threads(lambda start, stop: _pair_products(cotangent, labels, start, stop, products), products.size)
    return products


@_jit
def _add_noise(weights, key_0, key_1, first_draw, antithetic, kind, start, stop, total):
    """total[problem, i, j] = sum over draws of weight * score, for the blocks of block rows start..stop-1."""
    n_problems, n_draws = weights.shape
    n = total.shape[1]
    half = (n + 1) // 2
    blocks = np.empty((2, BLOCKS), np.uint32)
    words, z = np.empty((4, BLOCKS), np.uint32), np.empty((4, BLOCKS), np.float32)
    sums = np.empty((n_problems, 4, BLOCKS), np.float64)
    row, column = start, start
    while row < stop:
        count, row, column = _next_blocks(row, column, half, blocks[0], blocks[1])
        sums[:] = 0.0
        for draw in range(n_draws):
            low, high, sign = _split_draw(first_draw + np.uint64(draw), antithetic)
            _noise_blocks(blocks[0], blocks[1], count, key_0, key_1, low, high, kind, words, z)
            for problem in range(n_problems):
                weight = sign * weights[problem, draw]
                for lane in range(4):
                    target, source = sums[problem, lane], z[lane]
                    if kind == NORMAL:
                        for c in range(count):
                            target[c] += weight * source[c]
                    else:
                        for c in range(count):
                            target[c] += weight * (1.0 - np.exp(-source[c]))
        for c in range(count):
            i, j = 2 * blocks[0, c], 2 * blocks[1, c]
            for lane in range(4):
                a, b = i + lane // 2, j + lane % 2
                if blocks[0, c] < stop and a < b and b < n:
                    for problem in range(n_problems):
                        total[problem, a, b] = sums[problem, lane, c]
                        total[problem, b, a] = sums[problem, lane, c]


def noise_sum(
    weights: NDArray[Any], n: int, *, seed: int, first_draw: int, noise: str, antithetic: bool = False
) -> NDArray[np.float64]:
    """(problems, n, n) sum over draws of weights (problems, draws) times the score of the noise, made again.

    The score is minus the derivative of the log-density: z for normal noise, 1 - exp(-z) for Gumbel noise.
    """
    total = np.zeros((len(weights), n, n), np.float64)
    key_0, key_1 = noise_definition.split_seed(seed)
    arguments = (
        np.ascontiguousarray(weights, np.float64), key_0, key_1, np.uint64(first_draw), antithetic,
        noise_definition.KINDS.index(noise),
    )  # fmt: skip
    # Row r of the triangle of blocks is short when r is large: thread t gets the rows between these shares of it.
    half = (n + 1) // 2
    share = [round(half * (1 - (1 - t / _SHARES) ** 0.5)) for t in range(_SHARES + 1)]

    def work(start: int, stop: int) -> None:
        if share[start] < share[stop]:
            _add_noise(*arguments, share[start], share[stop], total)

    _in_threads(work, _SHARES)
    return total


_SHARES = 64


# --------------------------------------------------------------------------------------------------------------
# Threads

_pool: ThreadPoolExecutor | None = None
_pool_owner = 0


def _max_threads() -> int:
    return int(vars(numba.config)["NUMBA_NUM_THREADS"])


def _in_threads(work: Callable[[int, int], None], n_items: int) -> None:
    """Run ``work(start, stop)`` over n_items, split evenly over NUMBA_NUM_THREADS threads (default: all cores)."""
    global _pool, _pool_owner
    n_threads = min(_max_threads(), n_items)
    if n_threads <= 1:
        if n_items:
            work(0, n_items)
        return
    if _pool is None or _pool_owner != os.getpid():  # threads do not survive a fork
        _pool, _pool_owner = ThreadPoolExecutor(_max_threads(), "diffclust"), os.getpid()
    bounds = [n_items * t // n_threads for t in range(n_threads + 1)]
    others = [_pool.submit(work, bounds[t], bounds[t + 1]) for t in range(1, n_threads)]
    work(bounds[0], bounds[1])
    for other in others:
        other.result()
