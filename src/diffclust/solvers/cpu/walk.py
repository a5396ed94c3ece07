"""The constrained forest out of the free tree, for labels and must-link groups. docs/design.md says why it is right.

A *closure* is what must-links tie together: a labelled class, a must-link group, or a point of which nothing is known.
Labelled closures stay apart. ``closure[i]`` is the smallest point of i's closure.
"""

from __future__ import annotations

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.trees import code, grow
from diffclust.solvers.tree import find


@jit
def closures_of_labels(labels, order, closure, labelled):
    """Write the closures of labels, negative is unknown, and which of them are labelled; return their number.

    ``order`` sorts the labels, equal ones by their number. It comes from NumPy: Numba compiles a sort for a second.
    """
    n = labels.shape[0]
    n_closures = 0
    for c in range(n):
        i = order[c]
        labelled[i] = labels[i] >= 0
        is_first = c == 0 or not labelled[i] or labels[order[c - 1]] != labels[i]
        closure[i] = i if is_first else closure[order[c - 1]]
        n_closures += is_first
    return n_closures


@jit
def closures_of_relation(relation, closure, labelled):
    """Write the closures of a closed relation; return their number, -1 if not all that have cannot-links are apart."""
    n = relation.shape[0]
    n_closures, n_labelled = 0, 0
    for i in range(n):
        closure[i] = i
        labelled[i] = False
        for j in range(n):
            if relation[i, j] == 0:
                labelled[i] = True
                break
        for j in range(i):
            if relation[i, j] == 1:
                closure[i] = j
                break
        n_closures += closure[i] == i
        n_labelled += labelled[i]
    for i in range(n):
        n_known = 0
        for j in range(n):
            n_known += relation[i, j] >= 0 or i == j
        if labelled[i] and n_known != n_labelled:
            return -1
    return n_closures


@jit
def relation_of_closures(closure, labelled, relation):
    """The closed relation that closures stand for."""
    n = closure.shape[0]
    for i in range(n):
        for j in range(n):
            same = closure[i] == closure[j]
            relation[i, j] = 1 if same else 0 if labelled[i] and labelled[j] else -1


@jit
def walk(codes, edge_weights, n_edges, closure, labelled, n_closures, k, must_link_first, leader, has_label):
    """Find the blocks of points that end up together: go down the sorted edges of the free tree, and join closures.

    Moves the edges that stay to the front, without those inside a closure if must-links come first, and returns their
    number. Afterwards, ``find(leader, i)`` is the smallest point of i's block.
    """
    for i in range(closure.shape[0]):  # a loop: for leader[:] = closure Numba compiles an error message, for seconds
        leader[i] = closure[i]
        has_label[i] = labelled[i]
    n_kept, n_blocks = 0, n_closures
    for e in range(n_edges):
        a, b = find(leader, codes[e] >> 32), find(leader, codes[e] & 0xFFFFFFFF)
        if a == b:
            if must_link_first:
                continue
        elif n_blocks <= k or (has_label[a] and has_label[b]):
            continue
        else:
            leader[max(a, b)] = min(a, b)
            has_label[min(a, b)] = has_label[a] or has_label[b]
            n_blocks -= 1
        codes[n_kept] = codes[e]
        edge_weights[n_kept] = edge_weights[e]
        n_kept += 1
    return n_kept


@jit
def list_members(leader, members, ends):
    """Sort the points by leader, then by number: ``members[ends[a - 1]:ends[a]]`` are the points of leader a."""
    n = leader.shape[0]
    for a in range(ends.shape[0]):  # a loop: Numba takes longer to compile ends[:] = 0
        ends[a] = 0
    for i in range(n):
        ends[leader[i]] += 1
    total = 0
    for a in range(n):  # where a's points start, for now
        total += ends[a]
        ends[a] = total - ends[a]
    for i in range(n):
        members[ends[leader[i]]] = i
        ends[leader[i]] += 1


@jit
def label_forest(
    weights, codes, edge_weights, n_edges, closures, k, must_link_first, lowest, missing, part, scratch, walk_scratch
):
    """Turn the sorted edges of the free tree into the constrained forest, in no order; return the number of its edges.

    -1 with must-links first where missing edges cut a closure into pieces: then the greedy is needed.
    """
    closure, labelled, n_closures = closures
    key, parent, cap = scratch
    leader, has_label, members, ends, n_inside = walk_scratch
    n_edges = walk(codes, edge_weights, n_edges, closure, labelled, n_closures, k, must_link_first, leader, has_label)
    for a in range(n_inside.shape[0]):
        n_inside[a] = 0
    if must_link_first:
        list_members(closure, members, ends)
    else:
        n_edges = _keep_whole(codes, edge_weights, n_edges, leader, members, ends, n_inside)
    start = 0
    for a in range(ends.shape[0]):
        group = members[start : ends[a]]
        start, size = ends[a], group.shape[0]
        if size < 2 or n_inside[a] == size - 1:
            continue
        for c in range(size):
            row = weights[group[c]]
            for d in range(size):
                part[c, d] = row[group[d]]
        stop = grow(part, size, key, parent, cap, lowest, codes, edge_weights, n_edges)
        for e in range(n_edges, stop):
            if edge_weights[e] > missing:
                codes[n_edges] = code(group[codes[e] >> 32], group[codes[e] & 0xFFFFFFFF])
                edge_weights[n_edges] = edge_weights[e]
                n_edges += 1
            elif must_link_first:
                return -1
    return n_edges


@jit
def _keep_whole(codes, edge_weights, n_edges, leader, members, ends, n_inside):
    """List the points of each block, count its edges, and keep those of blocks that are one piece; return how many."""
    for i in range(leader.shape[0]):
        leader[i] = find(leader, i)
    list_members(leader, members, ends)
    for e in range(n_edges):
        n_inside[leader[codes[e] >> 32]] += 1
    n_kept = 0
    for e in range(n_edges):
        a = leader[codes[e] >> 32]
        start = ends[a - 1] if a else 0
        if n_inside[a] == ends[a] - start - 1:
            codes[n_kept] = codes[e]
            edge_weights[n_kept] = edge_weights[e]
            n_kept += 1
    return n_kept
