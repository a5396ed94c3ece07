"""General constraints: the true greedy, as agglomeration."""

from __future__ import annotations

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.trees import CODE


@jit(inner=True)
def _better(weights, between, row, a, b):
    """Whether the best edge from tree ``row`` to tree a stands before the one to tree b."""
    if weights[row, a] != weights[row, b]:
        return weights[row, a] > weights[row, b]
    return between[row, a] < between[row, b]


@jit(inner=True)
def _allowed(r, s, block, apart, open_blocks):
    return block[r] == block[s] or (open_blocks and not apart[block[r], block[s]])


@jit(inner=True)
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


@jit(inner=True)
def agglomerate(
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
            between[i, j] = min(i, j) * CODE + max(i, j)
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
