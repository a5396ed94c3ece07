"""Pairs and labels that may be wrong: which of them to believe, and the clusters that they and the rows speak for.

:func:`believe` fits clusters to rows and to pairs at once. A pair of weight w is wrong with probability 1 / (1 + e^w).
A hard pair counts as one that is wrong in one of 100 cases, and the clusters that are found are made to obey it.
Each pair is judged by the clusters and all *other* pairs. The model is a mixture over which belief propagation spreads
what pairs say; where pairs form no cycle that is exact. Weights that are not given are one number for all, found from
how often pairs are contradicted where the other evidence is strong.

One mixture is easily caught in a poor optimum, so there are many, and their mean counts. Some look at the rows, the
others at leading eigenvectors of a graph of neighbours and must-links, and all start from a clustering of such
eigenvectors. A second pass knows better which must-links to believe and in which directions clusters are narrow, so its
graphs are better. Neighbours are looked for among the rows as they are and the whitened rows. The second pass also
looks in two other spaces: the directions in which the clusters of the first pass differ, and what a classifier of these
clusters predicts for rows that it was not trained on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.cuts import (
    Floats,
    Ints,
    by_first_row,
    colour_groups,
    gaussian,
    kmeans,
    leading_components,
    log_densities,
    spectral_rows,
    squared_distances,
)
from diffclust.frameworks import plain
from diffclust.knowledge import Knowledge
from diffclust.linkage import guess_n_clusters

MOST_ROWS = 5000  # that the model is fitted to; those that something is known of are always among them
FEW_ROWS = 2000  # to which it is fitted with some numbers of clusters, where none is given
MOST_SHARES = 100_000  # rows times clusters up to which it looks at pairs of which none may be wrong
DIMENSIONS = 20  # leading components of the rows
PASSES = 2
# Neighbours of each row, the weight of a must-link beside them, and how many more eigenvectors than clusters.
GRAPHS = ((5, 4.0, 0), (5, 4.0, 4), (7, 6.0, 2), (10, 8.0, 2))
# The classifier: a logistic regression of kernel features.
LANDMARKS, RIDGE, FOLDS, CLASSIFIER_STEPS = 300, 0.03, 5, 30
LEAST_LOG_CHANCE = -8.0  # of a cluster, by the classifier
WHITENED_SHARE = 0.3  # scale of the whitened rows beside what the classifier predicts
LINKED_NEIGHBOURS = 5  # rows that are so near each other mutually are linked in all mixtures
SHARED = -1  # in place of a prior: all clusters have one covariance
# Prior of the covariances, in rows a dimension; heat, by which log densities are divided, because columns are less
# independent than a mixture says; and weight of the links between neighbours.
OF_VECTORS = ((SHARED, 3.0, 1.0), (SHARED, 10.0, 1.0))
OF_ROWS = ((1, 3.0, 1.0), (8, 10.0, 1.5), (SHARED, 3.0, 1.5))
LAST = (1, 3.0, 0.0)  # without neighbours: it is taken where pairs are so many that they fit it best
TEMPERATURE = 10.0  # by which log likelihoods are divided to weigh mixtures
HANDICAP = 0.03  # of mixtures of eigenvectors in log likelihood a statement: the graph has seen the statements
ROUNDS, LAST_ROUNDS, SPREAD_ROUNDS = 8, 20, 4
FIRST_WRONG, PRIOR = 0.1, 10  # share of wrong statements while it is not known; as if so many had been seen before
LEAST_WRONG = 0.01  # share of them while mixtures are fitted
SUREST, TINY = 30.0, 1e-12  # the largest weight; what is added to keep logarithms finite
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
    agree: Floats  # (statements in doubt,) probability of what each says, by everything but the statement
    score: float  # log likelihood of the statements in doubt


class Belief(NamedTuple):
    """What :func:`believe` finds.

    Attributes:
        knowledge: hard knowledge, whose groups come from the hard pairs and labels and from the soft ones that are
            believed. Its ``given`` has all pairs, and weights in place of "auto".
        clusters: (n,) clusters of the model, which agree with it; None for more than 5,000 rows, or where no way was
            found to satisfy the hard pairs with so many clusters.
    """

    knowledge: Knowledge
    clusters: Ints | None


def can_model(knowledge: Knowledge, n_clusters: int | None) -> bool:
    """Whether there are pairs, and :func:`believe` finds clusters before long. Labels alone go to other cuts."""
    n = knowledge.n_points
    return knowledge.has_pairs and n <= MOST_ROWS and n * max(n_clusters or 1, knowledge.min_clusters) <= MOST_SHARES


def believe(points: Any, knowledge: Knowledge, n_clusters: int | None = None, seed: int = 0) -> Belief:
    """Which of the pairs and labels that may be wrong to believe, and clusters.

    Args:
        points: (n, ...) rows, scaled.
        knowledge: labels and pairs, soft or hard.
        n_clusters: None tries some numbers and takes the one under which pairs are most likely. That needs pairs of
            both kinds: under more clusters more cannot-links hold, and more must-links under fewer. With pairs of one
            kind the largest gap of the tree says it (:func:`diffclust.linkage.guess_n_clusters`).
        seed: of ties, and of the rows that are taken of more than 5,000.

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
    hard = np.isinf(said.weight)
    wrong = 1 / (1 + np.exp(np.minimum(said.weight, SUREST)))  # nan where it is to be found
    wrong[hard] = LEAST_WRONG
    if n_clusters is None and (said.same.all() or not said.same.any()):
        n_clusters = guess_n_clusters(flat, knowledge)
    if n_clusters is None:
        model = _make_model(flat, knowledge, _some_rows(knowledge, seed, FEW_ROWS), wrong)
        n_clusters = _likeliest_number(
            lambda k: model.fit(k, 1).score, knowledge.min_clusters, min(len(model.points), knowledge.max_clusters)
        )
    rows = _some_rows(knowledge, seed, MOST_ROWS)
    model = _make_model(flat, knowledge, rows, wrong)
    best = model.fit(min(n_clusters, len(rows)), PASSES)
    n_doubt = len(best.agree)
    found, _ = _share_of_wrong(best.agree[~hard[:n_doubt]], wrong[:n_doubt][~hard[:n_doubt]])
    weight = float(np.log((1 - found) / found))
    clusters = _clusters(best.share, knowledge, rows, np.random.default_rng([seed, 4]))
    believed = hard | (clusters is not None and knowledge.agrees(clusters))
    known, whole = knowledge.decide(believed, weight), None
    if clusters is not None and len(rows) == len(flat):
        whole = by_first_row(_fill_empty(clusters, best.share, known))
    return Belief(known, whole)


def _likeliest_number(score: Callable[[int], float], least: int, most: int) -> int:
    """The number of clusters with the best score, of some; larger ones are not tried where two were worse."""
    scores: dict[int, float] = {}
    for k in sorted({max(least, min(most, NUMBERS[0])), *(k for k in NUMBERS if least < k <= most)}):
        scores[k] = score(k)
        if list(scores.values()).index(max(scores.values())) < len(scores) - 2:
            break
    best = max(scores, key=lambda k: scores[k])
    tried = sorted(scores)
    around = tried[max(0, tried.index(best) - 1) : tried.index(best) + 2]
    scores |= {k: score(k) for k in {(a + b) // 2 for a, b in itertools.pairwise(around)} - {*scores}}
    return max(scores, key=lambda k: scores[k])


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


def _fill_empty(clusters: Ints, share: Floats, knowledge: Knowledge) -> Ints:
    """The same, but empty clusters get so many rows as the model gives them, the likeliest. What is known holds."""
    clusters, group, n = clusters.copy(), knowledge.group, len(clusters)
    unit = np.unique(np.where(group >= 0, group, n + np.arange(n)), return_inverse=True)[1]  # groups come first
    size, n_groups = np.bincount(unit), len(knowledge.apart)
    for empty in np.setdiff1d(np.arange(share.shape[1]), clusters):
        gain = np.bincount(unit, np.log(share[:, empty] + TINY) - np.log(share[np.arange(n), clusters] + TINY))
        cluster = clusters[np.unique(unit, return_index=True)[1]]
        left, room = np.bincount(cluster), share[:, empty].sum()
        moved = np.zeros(len(size), bool)
        for number in np.argsort(-gain):
            if moved.any() and size[moved].sum() + size[number] > room:
                break
            apart = number < n_groups and knowledge.apart[number, moved[:n_groups]].any()
            if left[cluster[number]] > 1 and not apart:
                left[cluster[number]] -= 1
                moved[number] = True
        clusters[moved[unit]] = empty
    return clusters


def _some_rows(knowledge: Knowledge, seed: int, most: int) -> Ints:
    """Rows to fit the model to: all that something is known of, and others at random."""
    known = np.union1d(np.append(knowledge.must_link, knowledge.cannot_link), np.flatnonzero(knowledge.labels >= 0))
    others = np.setdiff1d(np.arange(knowledge.n_points), known)
    n_others = min(len(others), max(0, most - len(known)))
    return np.union1d(known, np.random.default_rng([seed, 5]).choice(others, n_others, replace=False)).astype(np.int64)


def _make_model(flat: Floats, knowledge: Knowledge, rows: Ints, wrong: Floats) -> _Model:
    """The model of some rows. Links are what is said, and at last that classes are apart."""
    points = leading_components(flat[rows], DIMENSIONS)
    said, classes = knowledge.statements(), np.unique(knowledge.labels[knowledge.labels >= 0])
    ends = np.searchsorted(np.append(rows, knowledge.n_points + classes), said.ends)
    n_doubt = len(ends) - len(classes) * (len(classes) - 1) // 2
    must = said.same[:n_doubt] & (ends[:n_doubt] < len(rows)).all(1)
    differences = np.zeros((n_doubt, points.shape[1]))
    differences[must] = np.diff(points[ends[:n_doubt][must]], axis=1)[:, 0]
    wrong = np.append(wrong[:n_doubt], np.full(len(ends) - n_doubt, 1 / (1 + np.exp(SUREST))))
    return _Model(points, _Links(ends, said.same, wrong), differences, len(rows) + len(classes))


class _Model(NamedTuple):
    """What is fitted: rows, and links between nodes, which are the rows and then the classes.

    ``differences`` (statements, d) are those of the rows of must-links, 0 for other statements. The links beyond the
    statements say that classes are apart.
    """

    points: Floats
    links: _Links
    differences: Floats
    n_nodes: int

    def fit(self, n_clusters: int, n_passes: int) -> _Fit:
        """The mean of the mixtures of the last pass. Statements are judged by mixtures of rows alone."""
        n, given = len(self.differences), self.links.wrong
        right = 1 - np.where(np.isnan(given), FIRST_WRONG, given)
        scatter = self.differences.T @ (self.differences * right[:n, None]) / 2
        share_of_wrong, model = FIRST_WRONG, self
        free = _near(gaussian(self.points, _nothing(self.points), n_clusters), n_clusters)
        mean = judge = _Fit(np.ones((0, 0)), np.ones(0), 0.0)
        for number in range(n_passes):
            wrong = np.where(np.isnan(given), share_of_wrong, given)
            model = self._replace(links=self.links._replace(wrong=wrong))
            whitened = _whitened(self.points, scatter)
            spaces = [whitened, self.points]
            if number > 0:
                spaces += _learned_spaces(self.points, whitened, mean.share)
            of_vectors: list[_Fit] = []
            of_rows: list[_Fit] = []
            for space in spaces:
                vectors, rows = model._mixtures(free, space, right)
                of_vectors, of_rows = of_vectors + vectors, of_rows + rows
            mean, judge = _mean(of_vectors + of_rows), _mean(of_rows)
            if number == n_passes - 1:
                last = model._rounds(self.points, mean.share, np.empty((0, 2), np.int64), LAST, LAST_ROUNDS)
                mean, judge = _mean([*of_vectors, *of_rows, last]), _mean([*of_rows, last])
            share_of_wrong = max(LEAST_WRONG, _share_of_wrong(judge.agree, given[:n])[0])
            right = np.append(_right(judge.agree, wrong[:n]), right[n:])
            scatter = _scatter_inside(self.points, mean.share)
        return _Fit(mean.share, judge.agree, _score(judge.agree, model._wrong))

    def _mixtures(self, free: Floats, space: Floats, right: Floats) -> tuple[list[_Fit], list[_Fit]]:
        """Mixtures of eigenvectors of some graphs, and mixtures of the rows.

        Args:
            free: (rows, clusters) shares without knowledge, from which some of them start.
            space: (rows, d) where neighbours are looked for.
            right: (links,) the probability of each.

        Returns:
            The fits of eigenvectors and those of rows.
        """
        from sklearn.neighbors import NearestNeighbors

        n_clusters = free.shape[1]
        most = min(max(LINKED_NEIGHBOURS, *(each[0] for each in GRAPHS)), len(space) - 1)
        near = NearestNeighbors(n_neighbors=most).fit(space).kneighbors(return_distance=False)
        linked = _graph_of_neighbours(near[:, :LINKED_NEIGHBOURS])
        linked = np.stack(linked.minimum(linked.T).nonzero(), axis=1)
        linked = linked[linked[:, 0] < linked[:, 1]]
        of_vectors = []
        for n_neighbours, weight, more in GRAPHS:
            vectors = self._vectors(near[:, :n_neighbours], weight * right, n_clusters + more)
            start = self._first_share(vectors, n_clusters)
            fits = [self._rounds(vectors, start, linked, how) for how in OF_VECTORS]
            of_vectors += [fit._replace(score=fit.score - HANDICAP * len(self.differences)) for fit in fits]
        starts = [_mean(of_vectors).share, self._first_share(space, n_clusters), free]
        of_rows = [
            max((self._rounds(self.points, start, linked, how) for start in starts), key=lambda fit: fit.score)
            for how in OF_ROWS
        ]
        return of_vectors, of_rows

    def _first_share(self, points: Floats, n_clusters: int) -> Floats:
        """(rows, clusters) shares to start from: nearly those of k-means."""
        return _near(kmeans(points, _nothing(points), n_clusters), n_clusters)

    @property
    def _wrong(self) -> Floats:
        """(statements in doubt,) the probability that each is wrong."""
        return self.links.wrong[: len(self.differences)]

    def _vectors(self, near: Ints, weight: Floats, n_vectors: int) -> Floats:
        """(rows, vectors) leading eigenvectors of the graph of neighbours and of must-links of some weight."""
        from scipy.sparse import csr_array

        graph = _graph_of_neighbours(near).tocoo()
        (first, second), weight = self.links.ends[self.links.same].T, weight[self.links.same]
        i = np.concatenate([graph.row, graph.col, first, second])
        j = np.concatenate([graph.col, graph.row, second, first])
        values = np.concatenate([graph.data / 2, graph.data / 2, weight, weight])
        graph = csr_array((values, (i, j)), shape=(self.n_nodes, self.n_nodes))
        return spectral_rows(graph, min(n_vectors, self.n_nodes))[: len(self.points)]

    def _rounds(
        self, points: Floats, share: Floats, linked: Ints, how: tuple[int, float, float], n_rounds: int = ROUNDS
    ) -> _Fit:
        """A mixture of ``points`` with links between some neighbours; ``how`` is a line of ``OF_ROWS``."""
        prior, heat, weight = how
        more = (linked, np.ones(len(linked), bool), np.full(len(linked), 1 / (1 + np.exp(weight))))
        links = _Links(*map(np.concatenate, zip(self.links, more, strict=True)))
        density, messages, n = np.zeros((self.n_nodes, share.shape[1])), None, len(self.differences)
        agree = np.ones(0)
        for _ in range(n_rounds):
            found = _alike(points, share) if prior == SHARED else log_densities(points, share, prior)
            density[: len(points)] = found / heat
            belief, messages, agree = spread(density, links, messages)
            share = np.exp(belief)[: len(points)]
        return _Fit(share, agree[:n], _score(agree[:n], self._wrong))


def _nothing(points: Floats) -> Knowledge:
    """What is known where nothing is."""
    return Knowledge.join(np.full(len(points), -1))


def _near(clusters: Ints, n_clusters: int) -> Floats:
    """(rows, clusters) shares that are nearly those of clusters."""
    return 0.98 * np.eye(n_clusters)[clusters] + 0.02 / n_clusters


def _alike(points: Floats, share: Floats) -> Floats:
    """:func:`diffclust.cuts.log_densities` where all clusters have one covariance, but for a constant."""
    from scipy.linalg import solve_triangular

    weight = share.sum(0) + TINY
    covariance = _scatter_inside(points, share) / len(points) + 1e-6 * np.eye(points.shape[1])
    rows = solve_triangular(np.linalg.cholesky(covariance), points.T, lower=True, check_finite=False).T
    centres = share.T @ rows / weight[:, None]
    return np.asarray(np.log(weight) - squared_distances(rows, (rows**2).sum(1), centres) / 2, np.float64)


def _graph_of_neighbours(near: Ints) -> Any:
    """A sparse matrix (rows, rows) that is one at the neighbours of each row."""
    from scipy.sparse import csr_array

    n, most = near.shape
    return csr_array((np.ones(near.size), (np.repeat(np.arange(n), most), near.ravel())), shape=(n, n))


def _whitened(points: Floats, scatter: Floats) -> Floats:
    """Rows in which those of a cluster differ alike in all directions; ``scatter`` is that inside of clusters."""
    d = points.shape[1]
    inside = scatter + (d + 1) * (points.T @ points) / len(points)
    root = np.linalg.cholesky(inside + 1e-6 * max(np.trace(inside), 1.0) * np.eye(d))
    return np.asarray(np.linalg.solve(root, points.T).T, np.float64)


def _learned_spaces(points: Floats, whitened: Floats, share: Floats) -> tuple[Floats, Floats]:
    """Where neighbours are likelier of one cluster: the discriminants, and what a classifier predicts."""
    weight = share.sum(0) + TINY
    centres = share.T @ whitened / weight[:, None]
    between, directions = np.linalg.eigh(centres.T @ (centres * weight[:, None]))
    rows = whitened @ directions
    between = np.maximum(between, 0)
    within = np.maximum((rows**2).sum(0) - between, TINY)
    discriminants = rows * np.sqrt(between / within / (between + within))
    chances = np.maximum(_predict_unseen(_kernel_features(points), share), LEAST_LOG_CHANCE)
    return discriminants, np.column_stack([chances, WHITENED_SHARE * np.sqrt(len(points)) * whitened])


def _kernel_features(points: Floats) -> Floats:
    """(rows, landmarks) whose products are nearly a Gaussian kernel of the rows, which have mean square one."""
    from sklearn.kernel_approximation import Nystroem

    model = Nystroem(gamma=1 / points.shape[1], n_components=min(LANDMARKS, len(points)), random_state=0)
    return np.asarray(plain(model).fit_transform(points), np.float64)


def _predict_unseen(features: Floats, share: Floats) -> Floats:
    """(rows, clusters) log probabilities of each row, by a logistic regression on the shares of other rows."""
    fold = np.random.default_rng(0).permutation(len(features)) % FOLDS
    found = np.zeros(share.shape)
    for number in range(FOLDS):
        unseen = fold == number
        found[unseen] = _log_softmax(features[unseen] @ _logistic_weights(features[~unseen], share[~unseen]))
    return found


def _logistic_weights(features: Floats, share: Floats) -> Floats:
    """(features, clusters) weights of a logistic regression on soft labels."""
    from scipy.optimize import minimize

    shape = (features.shape[1], share.shape[1])

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights = flat.reshape(shape)
        chances = _log_softmax(features @ weights)
        slope = features.T @ (np.exp(chances) - share) + RIDGE * weights
        return float(RIDGE / 2 * (flat @ flat) - (share * chances).sum()), slope.ravel()

    start = np.zeros(shape).ravel()
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": CLASSIFIER_STEPS}).x
    return np.asarray(best, np.float64).reshape(shape)


def _log_softmax(logits: Floats) -> Floats:
    """Logarithms of probabilities, row by row."""
    logits = logits - logits.max(1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits) @ np.ones(logits.shape[1]))[:, None], np.float64)


def _scatter_inside(points: Floats, share: Floats) -> Floats:
    """(d, d) scatter of rows around the centres of their clusters."""
    weight = share.sum(0) + TINY
    centres = share.T @ points / weight[:, None]
    return np.asarray(points.T @ points - centres.T @ (centres * weight[:, None]), np.float64)


def _mean(fits: list[_Fit]) -> _Fit:
    """The mean of fits, the best of which count most. Their clusters are matched with those of the best one."""
    from scipy.optimize import linear_sum_assignment

    best = max(fits, key=lambda fit: fit.score)
    weights = np.exp([(fit.score - best.score) / TEMPERATURE for fit in fits])
    matched = [fit.share[:, linear_sum_assignment(-best.share.T @ fit.share)[1]] for fit in fits]
    share, agree = (np.average(each, axis=0, weights=weights) for each in (matched, [fit.agree for fit in fits]))
    return _Fit(share, agree, best.score)


def _score(agree: Floats, wrong: Floats) -> float:
    """Log likelihood of statements."""
    return float(np.log((1 - wrong) * agree + wrong * (1 - agree)).sum())


def _right(agree: Floats, wrong: Floats) -> Floats:
    """The probability that statements are right."""
    return (1 - wrong) * agree / ((1 - wrong) * agree + wrong * (1 - agree))


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
    slope = np.tile(np.where(links.same, 1, -1) * (1 - 2 * links.wrong), 2)[:, None]
    least = np.tile(np.where(links.same, links.wrong, 1 - links.wrong), 2)[:, None]
    messages = np.zeros((2 * n_links, density.shape[1])) if messages is None else messages
    sums = _sums(target, len(density))
    for _ in range(SPREAD_ROUNDS):
        new = _without_link(density + sums @ messages, messages, source, back)
        new *= slope
        new += least
        messages = (messages + np.log(new, out=new)) / 2  # half way, so that cycles do not swing
    total = density + sums @ messages
    without = _without_link(total, messages, source, back)
    together = np.clip(np.einsum("ij,ij->i", without[:n_links], without[n_links:]), TINY, 1 - TINY)
    return _log_softmax(total), messages, np.where(links.same, together, 1 - together)


def _sums(target: Ints, n_targets: int) -> Any:
    """A matrix that adds up rows by their target."""
    from scipy.sparse import csr_array

    return csr_array((np.ones(len(target)), (target, np.arange(len(target)))), shape=(n_targets, len(target)))


def _without_link(total: Floats, messages: Floats, source: Ints, back: Ints) -> Floats:
    """(2 links, k) probabilities of each link's source by everything but the link."""
    total = total - total.max(1, keepdims=True)  # messages are at most 0 and not very small, so nothing overflows
    without = total[source]
    without -= messages[back]
    np.exp(without, out=without)
    without /= (without @ np.ones(without.shape[1]))[:, None]
    return without


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
