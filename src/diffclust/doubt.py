"""Pairs and labels that may be wrong: which of them to believe.

:func:`believe` fits clusters to rows and to pairs at once. A pair of weight w is wrong with probability 1 / (1 + e^w).
Each pair is judged by the clusters and all *other* pairs. The model is a mixture over which belief propagation spreads
what pairs say; where pairs form no cycle that is exact. Weights that are not given are one number for all, found from
how often pairs are contradicted where the other evidence is strong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.constraints import consistent
from diffclust.cuts import (
    Floats,
    Ints,
    by_first_row,
    colour_groups,
    first_centres,
    kmeans,
    leading_components,
    log_densities,
    spectral_rows,
    squared_distances,
)
from diffclust.knowledge import Knowledge

MOST_ROWS = 5000  # that the model is fitted to; those that something is known of are always among them
DIMENSIONS = 20  # leading components of the rows
STARTS, KEPT_STARTS = 24, 4  # of k-means, of which the best go on
NEIGHBOURS = 5  # of each row; those that are neighbours of each other are linked in some of the refinements
HEATS = (1.0, 3.0)  # of starts, by which log densities are divided: columns are less independent than a mixture says
REFINEMENTS = (  # one shape for all clusters? weight of links between neighbours, heat (None: that of the start)
    (True, 0.0, None),
    (False, 0.0, None),
    (True, 1.0, 3.0),
    (True, 1.0, 10.0),
    (True, 1.5, 30.0),
)
MARGIN = 3.0  # by how much the log likelihood of all statements must be better for a later refinement to be taken
ROUNDS, MORE_ROUNDS, SPREAD_ROUNDS = 10, 20, 10
FIRST_WRONG, PRIOR = 0.1, 10  # share of wrong statements while it is not known; as if so many had been seen before
HARD, NEVER, TINY = 30.0, 1e-13, 1e-12  # the weight that stands for inf, and its probability of being wrong
SHRINKAGE = 1.0  # of the covariance of must-linked rows towards that of all rows
NUMBERS = (2, 3, 4, 6, 8, 12, 16, 24)  # of clusters, tried where none is given
WRONG_SHARES = np.geomspace(1e-3, 0.45, 25)  # candidates for the share of wrong statements
SLOPES = np.geomspace(0.5, 16, 11)  # candidates for how much too sure the model is


class _Links(NamedTuple):
    """Pairs of nodes, whether they say "same", and the probability that they are wrong."""

    ends: Ints
    same: NDArray[np.bool_]
    wrong: Floats


class _Fit(NamedTuple):
    share: Floats  # (rows, clusters) of each row
    agree: Floats  # (links,) probability of what each link says, by everything but the link
    score: float  # mean log likelihood of the links that may be wrong
    heat: float  # by which log densities were divided


class Belief(NamedTuple):
    """What :func:`believe` finds.

    Attributes:
        knowledge: hard knowledge, whose groups come from the hard pairs and labels and from the soft ones that are
            believed. Its ``given`` has all pairs, and weights in place of "auto".
        clusters: (n,) clusters of the model, which agree with it; None for more than 5,000 rows, or where the model
            leaves a cluster empty.
    """

    knowledge: Knowledge
    clusters: Ints | None


def believe(points: Any, knowledge: Knowledge, n_clusters: int | None = None, seed: int = 0) -> Belief:
    """Which of the pairs and labels that may be wrong to believe.

    Args:
        points: (n, ...) rows, scaled.
        knowledge: labels and pairs, some of them soft.
        n_clusters: None tries some numbers and takes the one under which pairs are most likely.
        seed: of the starts.

    Returns:
        What is believed.

    >>> points = np.repeat([[0.0], [5.0]], 20, axis=0) + np.linspace(0, 1, 40)[:, None]
    >>> known = Knowledge.join(np.full(40, -1), [(0, 9), (1, 8), (2, 30)], [(3, 25)], must_weights=2.0)
    >>> found = believe(points, known, 2).knowledge
    >>> [bool(found.group[i] == found.group[j] >= 0) for i, j in known.must_link]
    [True, True, False]
    """
    flat = np.asarray(points, np.float64).reshape(len(points), -1)
    said = knowledge.statements()
    soft = np.flatnonzero(~np.isinf(said.weight))
    wrong = 1 / (1 + np.exp(np.minimum(said.weight, HARD)))  # nan where it is to be found
    rows = _some_rows(knowledge, seed)
    model = _make_model(leading_components(flat[rows], DIMENSIONS), knowledge, rows, wrong)
    rng = np.random.default_rng([seed, 4])
    numbers = [n_clusters] if n_clusters is not None else [k for k in NUMBERS if k <= len(rows)]
    fits = [model.best_fit(k, rng, STARTS if n_clusters is not None else 1) for k in numbers]
    best = max(fits, key=lambda fit: fit.score)
    found, slope = _share_of_wrong(best.agree, wrong[soft])
    each = np.where(np.isnan(wrong[soft]), found, wrong[soft])
    chance = _tempered(best.agree, slope)
    right = np.full(len(wrong), 1.0)
    right[soft] = (1 - each) * chance / ((1 - each) * chance + each * (1 - chance))
    order = np.argsort(-right, kind="stable")
    order = order[right[order] > 0.5]
    believed = np.zeros(len(wrong), bool)
    believed[order] = consistent(said.ends[order], said.same[order])
    weight = float(np.log((1 - found) / found))
    clusters = _clusters(best.share, knowledge.decide(believed, weight), rows, rng)
    if clusters is None:  # together they leave no way to so many clusters: those go that the model disagrees with
        clusters = _clusters(best.share, knowledge.decide(np.isinf(said.weight), weight), rows, rng)
        believed &= np.isinf(said.weight) | (clusters is None or knowledge.agrees(clusters))
    whole = None
    if clusters is not None and len(np.unique(clusters)) == best.share.shape[1] and len(rows) == len(flat):
        whole = by_first_row(clusters)
    return Belief(knowledge.decide(believed, weight), whole)


def _clusters(share: Floats, knowledge: Knowledge, rows: Ints, rng: np.random.Generator) -> Ints | None:
    """(n,) the likeliest cluster of each row and each group, different ones for groups that are apart; -1 elsewhere."""
    found = np.full(knowledge.n_points, -1)
    found[rows] = share.argmax(1)
    if len(knowledge.apart):
        group = knowledge.group[rows]
        inside = np.flatnonzero(group >= 0)
        total = _sums(group[inside], len(knowledge.apart)) @ -np.log(share[inside] + TINY)
        try:
            found[rows[inside]] = colour_groups(total, knowledge.apart, rng)[group[inside]]
        except ValueError:
            return None
    return found


def _some_rows(knowledge: Knowledge, seed: int) -> Ints:
    """Rows to fit the model to: all that something is known of, and others at random."""
    known = np.union1d(np.append(knowledge.must_link, knowledge.cannot_link), np.flatnonzero(knowledge.labels >= 0))
    others = np.setdiff1d(np.arange(knowledge.n_points), known)
    n_others = min(len(others), max(0, MOST_ROWS - len(known)))
    return np.union1d(known, np.random.default_rng([seed, 5]).choice(others, n_others, replace=False)).astype(np.int64)


def _make_model(points: Floats, knowledge: Knowledge, rows: Ints, wrong: Floats) -> _Model:
    """Nodes are the rows, but of a hard group there is one, and classes. Links are soft statements, then hard ones."""
    said, n_groups = knowledge.statements(), len(knowledge.apart)
    key = np.where(knowledge.group >= 0, knowledge.group, n_groups + np.arange(knowledge.n_points))
    key = np.append(key, n_groups + knowledge.n_points + np.arange(int(knowledge.labels.max(initial=-1)) + 1))
    hard = np.isinf(said.weight)
    order = np.append(np.flatnonzero(~hard), np.flatnonzero(hard))
    number = np.unique(np.append(key[rows], key[said.ends[order]]), return_inverse=True)[1]
    n_soft = int((~hard).sum())
    must = said.same[order][:n_soft] & (said.ends[order][:n_soft] < knowledge.n_points).all(1)
    differences = np.zeros((n_soft, points.shape[1]))
    differences[must] = np.diff(points[np.searchsorted(rows, said.ends[order][:n_soft][must])], axis=1)[:, 0]
    links = _Links(
        number[len(rows) :].reshape(-1, 2), said.same[order], np.where(np.isnan(wrong), FIRST_WRONG, wrong)[order]
    )
    return _Model(points, number[: len(rows)], links, _mutual_neighbours(points), differences, must)


def _mutual_neighbours(points: Floats) -> Ints:
    """(m, 2) pairs of rows that are among each other's nearest ones."""
    from sklearn.neighbors import kneighbors_graph

    graph = kneighbors_graph(points, min(NEIGHBOURS, len(points) - 1))
    return np.stack(graph.minimum(graph.T).nonzero(), axis=1).reshape(-1, 2)


class _Model(NamedTuple):
    """What is fitted: rows, their nodes and the links between nodes, of which the first are in doubt.

    ``neighbours`` are pairs of rows, both ways. ``differences`` (statements in doubt, d) are those of the rows of
    must-links; ``must`` says which statements these are.
    """

    points: Floats
    node: Ints
    links: _Links
    neighbours: Ints
    differences: Floats
    must: NDArray[np.bool_]

    @property
    def n_nodes(self) -> int:
        """Their number; they are numbered from 0."""
        return int(max(self.node.max(), self.links.ends.max())) + 1

    def best_fit(self, n_clusters: int, rng: np.random.Generator, n_starts: int) -> _Fit:
        """The best of several starts by the likelihood of each statement under everything else."""
        fits = [self._start(n_clusters, rng, heat) for _ in range(n_starts) for heat in HEATS]
        fits = sorted(fits, key=lambda fit: -fit.score)[:KEPT_STARTS] + self._spectral_start(n_clusters)
        best, *others = (self._refine(fit, *how) for fit in fits for how in REFINEMENTS)
        for other in others:
            if (other.score - best.score) * len(self.must) > MARGIN:
                best = other
        return best

    def _start(self, n_clusters: int, rng: np.random.Generator, heat: float) -> _Fit:
        """k-means++ and some rounds of k-means among rows of which must-links say how far they may be apart."""
        points = self._whitened(np.ones(len(self.must)))
        squares = (points**2).sum(1)
        centres = first_centres(points, squares, np.full(len(points), -1), [], False, n_clusters, rng)
        share = np.eye(n_clusters)[squared_distances(points, squares, centres).argmin(1)]
        return self._rounds(_Fit(share, np.ones(len(self.must)), 0.0, heat), ROUNDS, True)

    def _spectral_start(self, n_clusters: int) -> list[_Fit]:
        """Spectral clustering of the graph of neighbours and of must-links in doubt; none for very few rows."""
        from scipy.sparse import csr_array

        n = len(self.points)
        if n_clusters >= n - 1:
            return []
        row_of_node = np.full(self.n_nodes, -1)
        row_of_node[self.node] = np.arange(n)
        ends = row_of_node[self.links.ends[: len(self.must)][self.must]]
        i, j = np.concatenate([self.neighbours, ends, ends[:, ::-1]]).T
        vectors = spectral_rows(csr_array((np.ones(len(i)), (i, j)), shape=(n, n)), n_clusters)
        found = kmeans(vectors, Knowledge.join(np.full(n, -1)), n_clusters)
        return [_Fit(np.eye(n_clusters)[found], np.ones(len(self.must)), -np.inf, HEATS[-1])]

    def _refine(self, fit: _Fit, one_shape: bool, weight: float, heat: float | None) -> _Fit:
        """More rounds, with links between neighbours where these have a weight."""
        model = self
        if weight:
            one_way = self.neighbours[self.neighbours[:, 0] < self.neighbours[:, 1]]
            chance = np.full(len(one_way), 1 / (1 + np.exp(weight)))
            joined = zip(self.links, (self.node[one_way], np.ones(len(one_way), bool), chance), strict=True)
            model = self._replace(links=_Links(*map(np.concatenate, joined)))
        return model._rounds(fit._replace(heat=fit.heat if heat is None else heat), MORE_ROUNDS, one_shape)

    def _rounds(self, fit: _Fit, n_rounds: int, one_shape: bool) -> _Fit:
        share, agree, _, heat = fit
        points = self._whitened(agree) if one_shape else self.points
        squares, messages, n = (points**2).sum(1), None, len(self.must)
        for _ in range(n_rounds):
            if one_shape:
                weight = share.sum(0) + 1e-9
                centres = share.T @ points / weight[:, None]
                density = np.log(weight / weight.sum()) - _nats(
                    squared_distances(points, squares, centres), points.shape[1]
                )
            else:
                density = log_densities(points, share, prior=1)
            belief, messages, agree = spread(self._of_nodes(density / heat), self.links, messages)
            share = np.exp(belief)[self.node]
        agree, wrong = agree[:n], self.links.wrong[:n]
        return _Fit(share, agree, float(np.log((1 - wrong) * agree + wrong * (1 - agree)).mean()), heat)

    def _of_nodes(self, density: Floats) -> Floats:
        """(nodes, k) sums over the rows of a node; a class without hard labels has none."""
        return _sums(self.node, self.n_nodes) @ density

    def _whitened(self, right: Floats) -> Floats:
        """Rows in which must-linked ones differ alike in all directions (relevant component analysis)."""
        d, weight = self.points.shape[1], right * self.must
        inside = (self.differences * weight[:, None]).T @ self.differences / 2
        inside += (d + 1) * SHRINKAGE * (self.points.T @ self.points) / len(self.points)
        root = np.linalg.cholesky(inside / (weight.sum() + d + 1) + 1e-6 * np.eye(d))
        return np.asarray(np.linalg.solve(root, self.points.T).T, np.float64)


def spread(density: Floats, links: _Links, messages: Floats | None = None) -> tuple[Floats, Floats, Floats]:
    """Belief propagation: what nodes are, by their own evidence and by links.

    Args:
        density: (nodes, k) log evidence of each node.
        links: between nodes.
        messages: (2 links, k) to start from.

    Returns:
        (nodes, k) log probabilities; the messages; and (links,) the probability of what each link says by everything
        but the link.
    """
    n_links = len(links.ends)
    source, target = links.ends.T.ravel(), links.ends[:, ::-1].T.ravel()
    back = np.roll(np.arange(2 * n_links), n_links)
    same, wrong = np.tile(links.same, 2)[:, None], np.tile(links.wrong, 2)[:, None]
    messages = np.zeros((2 * n_links, density.shape[1])) if messages is None else messages
    sums = _sums(target, len(density))
    for _ in range(SPREAD_ROUNDS):
        without = _without_link(density + sums @ messages, messages, source, back)
        new = np.log(np.where(same, wrong + (1 - 2 * wrong) * without, 1 - wrong - (1 - 2 * wrong) * without))
        messages = (messages + new - new.max(1, keepdims=True)) / 2  # half way, so that cycles do not swing
    total = density + sums @ messages
    without = _without_link(total, messages, source, back)
    together = np.clip((without[:n_links] * without[n_links:]).sum(1), TINY, 1 - TINY)
    return (
        total - np.logaddexp.reduce(total, axis=1)[:, None],
        messages,
        np.where(links.same, together, 1 - together),
    )


def _sums(target: Ints, n_targets: int) -> Any:
    """A matrix that adds up rows by their target."""
    from scipy.sparse import csr_array

    return csr_array((np.ones(len(target)), (target, np.arange(len(target)))), shape=(n_targets, len(target)))


def _without_link(total: Floats, messages: Floats, source: Ints, back: Ints) -> Floats:
    """(2 links, k) probabilities of each link's source by everything but the link."""
    without = total[source] - messages[back]
    without = np.exp(without - without.max(1, keepdims=True))
    return without / without.sum(1, keepdims=True)


def _nats(distances: Floats, n_dimensions: int) -> Floats:
    """Squared distances from centres in units of twice the variance of the nearest ones."""
    return distances * n_dimensions / (2 * max(float(distances.min(1).mean()), TINY))


def _tempered(chance: Floats, slope: float) -> Floats:
    """Probabilities whose log-odds are divided by ``slope``."""
    return 1 / (1 + ((1 - chance) / chance) ** (1 / slope))


def _share_of_wrong(agree: Floats, wrong: Floats) -> tuple[float, float]:
    """The share of wrong statements, and how much too sure the model is: the likeliest, with a weak prior on both.

    A model that is too sure is contradicted where it is nearly in doubt; wrong statements contradict it everywhere.

    Returns:
        The share, and by how much to divide log-odds.
    """
    unknown = np.isnan(wrong)
    best, found = -np.inf, (WRONG_SHARES[0], SLOPES[0])
    for slope in SLOPES:
        chance = _tempered(agree, slope)
        for share in WRONG_SHARES:
            each = np.where(unknown, share, wrong)
            score = np.log((1 - each) * chance + each * (1 - chance)).sum()
            score += PRIOR * (FIRST_WRONG * np.log(share) + (1 - FIRST_WRONG) * np.log(1 - share))
            score -= 2 * np.log(slope / 2) ** 2
            if score > best:
                best, found = score, (share, slope)
    return found
