"""The constrained forest out of the free tree, for labels and must-link groups. docs/design.md says why it is right.

A *closure* is what must-links tie together: a labelled class, a must-link group, or a point of which nothing is known.
Labelled closures stay apart. ``closure[i]`` is the smallest point of i's closure.
"""

from __future__ import annotations

import numpy as np

from diffclust.solvers.compiled import jit
from diffclust.solvers.cpu.trees import CODE, grow
from diffclust.solvers.tree import find


@jit
def closures_of_labels(labels, order, closure, labelled, n_closures, n_classes):
    """Write the closures of every problem's labels, negative is unknown, and which points are labelled.

    Also the numbers of closures, and of those that are labelled, at least 1. ``order`` sorts the labels, equal ones by
    their number. It comes from NumPy: Numba compiles a sort for a second.
    """
    for p in range(labels.shape[0]):
        n_closures[p], n_classes[p] = 0, 0
        before = -1
        for c in range(labels.shape[1]):
            i = order[p, c]
            labelled[p, i] = labels[p, i] >= 0
            if labelled[p, i] and before >= 0 and labels[p, before] == labels[p, i]:
                closure[p, i] = closure[p, before]
            else:
                closure[p, i] = i
                n_closures[p] += 1
                n_classes[p] += labelled[p, i]
            before = i
        n_classes[p] += n_classes[p] == 0


@jit
def closures_of_relation(relation, closure, labelled):
    """The same of one closed relation; -1 where some cannot-links are missing between the closures that have any."""
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
def closures_of_relations(relations, closure, labelled, n_closures):
    """The same of every problem's relation."""
    for p in range(relations.shape[0]):
        n_closures[p] = closures_of_relation(relations[p], closure[p], labelled[p])


@jit(inner=True)
def relation_of_closures(closure, labelled, relation):
    """The closed relation that closures stand for."""
    n = closure.shape[0]
    for i in range(n):
        for j in range(n):
            same = closure[i] == closure[j]
            relation[i, j] = 1 if same else 0 if labelled[i] and labelled[j] else -1


@jit(inner=True)
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
            a, b = (a, b) if a < b else (b, a)
            leader[b] = a
            has_label[a] = has_label[a] or has_label[b]
            n_blocks -= 1
        codes[n_kept] = codes[e]
        edge_weights[n_kept] = edge_weights[e]
        n_kept += 1
    return n_kept


@jit(inner=True)
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


@jit(inner=True)
def label_forest(
    weights, codes, edge_weights, n_edges, closure, labelled, n_closures, k, must_link_first, limits, part, key,
    parent, leader, has_label, members, ends, n_inside,
):  # fmt: skip
    """Turn the sorted edges of the free tree into the constrained forest, in no order; return the number of its edges.

    -1 with must-links first where missing edges cut a closure into pieces: then the greedy is needed.
    """
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
        stop = grow(part, size, key, parent, limits[0], codes, edge_weights, n_edges)
        for e in range(n_edges, stop):
            if edge_weights[e] > limits[1]:
                codes[n_edges] = np.int64(group[codes[e] >> 32]) * CODE + group[codes[e] & 0xFFFFFFFF]
                edge_weights[n_edges] = edge_weights[e]
                n_edges += 1
            elif must_link_first:
                return -1
    return n_edges


@jit(inner=True)
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
