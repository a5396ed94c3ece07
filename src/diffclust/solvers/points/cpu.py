"""The exact tree on CPUs: O(n) memory, threads, ties by the total order of edges."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.solvers.compiled import jit
from diffclust.solvers.points.boruvka import minimum_spanning_tree
from diffclust.solvers.points.metrics import METRICS, place
from diffclust.solvers.points.progress import Progress
from diffclust.solvers.points.search import nearest
from diffclust.solvers.points.tiles import build_tree

Tree = tuple[NDArray[np.int32], NDArray[np.float64]]


@jit(allocates=True)
def _hash_rows(bits):
    """A number for each row of 64-bit integers, the same for equal rows."""
    result = np.empty(bits.shape[0], np.uint64)
    for i in range(bits.shape[0]):
        value = np.uint64(0x9E3779B97F4A7C15)
        for k in range(bits.shape[1]):
            value = (value ^ bits[i, k]) * np.uint64(0xBF58476D1CE4E5B9)
            value ^= value >> np.uint64(29)
        result[i] = value
    return result


@jit(allocates=True)
def _first_equal(points, hashes, order):
    """For each point the first one equal to it; ``order`` sorts the hashes, equal ones by point."""
    n, d = points.shape
    first = np.arange(n, dtype=np.int64)
    start = 0
    for position in range(n):
        if hashes[order[position]] != hashes[order[start]]:
            start = position
        i = order[position]
        for earlier in range(start, position):
            j = order[earlier]
            if first[j] == j:
                same = True
                for k in range(d):
                    same &= points[i, k] == points[j, k]
                if same:
                    first[i] = j
                    break
    return first


def first_equal(points: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """For each point the first one equal to it; None where all differ.

    Equal points join the first of them at distance 0, and the first is the one that the total order prefers in every
    other edge. So the search may leave the others out; they would spoil it: all of them are nearest to each other.
    """
    hashes = _hash_rows(points.view(np.uint64))
    ordered = np.sort(hashes)
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    return _first_equal(points, hashes, np.argsort(hashes, kind="stable"))


def place_distinct(points: Any, metric: str) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
    """The points as :func:`place` returns them, without copies; and :func:`first_equal` of all of them."""
    placed = place(points, METRICS[metric])
    first = first_equal(placed)
    return placed if first is None else placed[first == np.arange(len(first))], first


def in_order(codes: NDArray[np.int64], similarities: NDArray[np.float64]) -> Tree:
    """Edges and similarities by decreasing similarity, equal ones by smaller pair."""
    order = np.argsort(-similarities)
    if (np.diff(similarities[order]) == 0).any():
        order = np.lexsort((codes, -similarities))
    codes = codes[order]
    return np.stack([codes >> 32, codes & 0xFFFFFFFF], axis=1).astype(np.int32), similarities[order]


def finish(
    codes: NDArray[np.int64], lengths: NDArray[np.float64], first: NDArray[np.int64] | None, metric: str
) -> Tree:
    """The whole tree from that of the distinct points: their numbers back to all points', equal points attached."""
    if first is not None:
        numbers = np.flatnonzero(first == np.arange(len(first)))
        copies = np.flatnonzero(first != np.arange(len(first)))
        codes = (numbers[codes >> 32] << 32) | numbers[codes & 0xFFFFFFFF]
        codes = np.concatenate([(first[copies] << 32) | copies, codes])
        lengths = np.concatenate([np.zeros(len(copies)), lengths])
    return in_order(codes, METRICS[metric].similarity(lengths))


def spanning_tree(points: Any, metric: str, algorithm: str = "auto", progress: bool = False) -> Tree:
    """The exact maximum spanning tree of all pairs of points (n, d), finite numbers."""
    kind = METRICS[metric].kind
    distinct, first = place_distinct(points, metric)
    codes, lengths = np.empty(0, np.int64), np.empty(0)
    if len(distinct) > 1:
        tree = build_tree(distinct)
        with closing(Progress(progress)) as report:
            near = nearest(tree, kind, algorithm, report)
            codes, lengths = minimum_spanning_tree(tree, kind, near, len(distinct), report)
    return finish(codes, lengths, first, metric)
