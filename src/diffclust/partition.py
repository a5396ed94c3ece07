"""An embedding and what is known → clusters: the one place where clusters are made.

    found = partition(embedding, Knowledge.join(labels, must_link), n_clusters=10)
    found.clusters, found.names(class_names), found.probabilities(), found.hierarchy.labels(12)

The estimators, ``fit_run`` and the command line call :func:`partition`. How clusters are made out of an embedding is a
*cut*, a row of ``CUTS``; see :data:`Cut` for what it takes and gives.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import confidence, cuts, samples, votes
from diffclust.continuation import continue_clusters
from diffclust.doubt import believe, can_model
from diffclust.evidence import (
    MOST_POINTS,
    OF_INPUT,
    VOTE,
    WORTH_A_FORK,
    Evidence,
    Split,
    choose_cut,
    hide_labels,
    is_asked,
)
from diffclust.forest import Hierarchy
from diffclust.frameworks import is_integer, to_numpy
from diffclust.how_many import compare_numbers, expect_number, likely_numbers
from diffclust.knowledge import Knowledge
from diffclust.processes import beside
from diffclust.similarity import cosine_similarities, mutual_reachability
from diffclust.solvers import points as solvers_of_points
from diffclust.stability import choose_n_clusters, soft_memberships
from diffclust.threads import is_small_set, small_in_one_thread
from diffclust.validation import check_count, check_points

ROUNDING = 1e-6  # share of the largest entry of a matrix, up to which another one is zero
DENSE_POINTS = 4096  # up to which an n x n matrix is made
ROBUST_NEIGHBOURS = 5  # of the robust forest
OUTLIER_NEIGHBOURS, OUTLIER_FACTOR = 20, 2.0

# (embedding (n, d), knowledge, n_clusters) -> clusters (n,), numbered from 0, which agree with the knowledge. A cut
# that cannot satisfy the pairs with n_clusters clusters may return more.
Cut = Callable[[NDArray[Any], Knowledge, int], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Partition:
    """The clusters of some points, and the tree they come from.

    Attributes:
        points: (n, d) what was clustered, or the (n, n) matrix of metric "precomputed".
        metric, reachability: how similar two points are.
        knowledge: what the clusters agree with.
        clusters: (n,) cluster of each point, numbered from 0.
        n_clusters: their number. It is larger than the number that was asked for if that cannot satisfy the pairs.
        min_cluster_size: the size guard that was used.
        hierarchy: the tree under ``knowledge``: ``hierarchy.labels(k, min_cluster_size)`` for other k.
        free_hierarchy: the tree without knowledge.
        evidence: the cut that made the clusters, and why; how sure they are.
        others: what other cuts made of the same points, where cuts were compared; without classifiers.
    """

    points: NDArray[Any]
    metric: str
    reachability: int | None
    knowledge: Knowledge
    clusters: NDArray[Any]
    n_clusters: int
    min_cluster_size: int
    hierarchy: Hierarchy
    free_hierarchy: Hierarchy
    evidence: Evidence
    others: tuple[NDArray[Any], ...] = ()

    @property
    def classes(self) -> NDArray[np.int64]:
        """(n_clusters,) the labelled class that each cluster holds, -1 where it holds none."""
        known = self.knowledge.labels >= 0
        classes = np.full(self.n_clusters, -1, np.int64)
        classes[self.clusters[known]] = self.knowledge.labels[known]
        return classes

    def names(self, class_names: list[str]) -> list[str]:
        """The name of each cluster: that of the class that it holds, or "new 1", "new 2", ..."""
        free = (name for name in (f"new {i}" for i in range(1, 10**9)) if name not in class_names)
        return [class_names[c] if c >= 0 else next(free) for c in self.classes]

    def probabilities(self) -> NDArray[np.float64]:
        """The probability of each cluster for each point, see :mod:`diffclust.confidence`.

        Returns:
            (n, n_clusters); rows sum to one. Labelled points are certain.
        """
        return self._probabilities

    @functools.cached_property
    def _probabilities(self) -> NDArray[np.float64]:
        points = self.distances() if self.metric == "precomputed" else self.points
        labelled = self.knowledge.labels >= 0
        speaking = confidence.witnesses(points, self.clusters, self.others, self.classes < 0, labelled, self.metric)
        found = confidence.probabilities(speaking, self.clusters, ~labelled, self.evidence.share_right)
        known = np.flatnonzero(labelled)
        found[known] = 0
        found[known, self.clusters[known]] = 1
        return found

    def distances(self) -> NDArray[np.float64]:
        """(n, n), none negative, of a "precomputed" matrix."""
        distances = -similarities(self.points, "precomputed")
        return distances - distances.min()

    def like(self, old: Any) -> Partition:
        """The same clusters with the numbers of the clusters that they continue.

        Args:
            old: (n,) the number of the cluster that each point was in before, -1 for new points; see
                :func:`diffclust.continuation.continue_clusters`, which also says what was split and merged.

        Returns:
            The partition. Its clusters are still numbered from 0, so numbers of clusters that are gone go to others.

        Example:
            >>> found = partition(np.array([[0.0], [0.1], [5.0], [5.1]]), None, 2)
            >>> found.clusters.tolist(), found.like([1, 1, 0, 0]).clusters.tolist()
            ([0, 0, 1, 1], [1, 1, 0, 0])
        """
        numbers = continue_clusters(self.clusters, np.asarray(old)).numbers()
        return replace(self, clusters=numbers[self.clusters])

    def novelty(self) -> NDArray[np.float64]:
        """(n,) the probability that a point is of none of the labelled classes."""
        return self.probabilities()[:, self.classes < 0].sum(1)

    def outliers(self) -> NDArray[np.bool_]:
        """The points that lie less than half as densely as their neighbours do.

        That is a factor above 2 of scikit-learn's LocalOutlierFactor.

        Returns:
            (n,) whether a point is one; labelled points never are.

        Example:
            >>> x = np.concatenate([np.random.default_rng(0).uniform(size=(100, 2)), [[9.0, 9.0]]])
            >>> np.flatnonzero(partition(x, None, 1).outliers()).tolist()
            [100]
        """
        from sklearn.neighbors import LocalOutlierFactor

        if len(self.points) < 3:
            return np.zeros(len(self.points), bool)
        metric = "euclidean" if self.metric == "sqeuclidean" else self.metric
        model = LocalOutlierFactor(min(OUTLIER_NEIGHBOURS, len(self.points) - 1), metric=metric)
        points = self.distances() if self.metric == "precomputed" else self.points
        factor = -model.fit(points).negative_outlier_factor_
        return (factor > OUTLIER_FACTOR) & (self.knowledge.labels < 0)

    def nearest(self, x: NDArray[Any]) -> NDArray[np.int64]:
        """The clustered point most similar to each new point.

        Args:
            x: new points (m, d); with metric "precomputed" a matrix (m, n) of the kind that was clustered.

        Returns:
            (m,) numbers of clustered points, of equal ones the first.

        Raises:
            TypeError: new points are not real numbers.
            ValueError: they are not finite, or have not as many columns as what was clustered.
        """
        x = check_points(x)
        if x.shape[1] != self.points.shape[1]:
            raise ValueError(f"new points must have {self.points.shape[1]} columns, got shape {tuple(x.shape)}.")
        if self.metric != "precomputed":
            return solvers_of_points.nearest_points(self.points, np.asarray(to_numpy(x), np.float64), self.metric)
        x = to_numpy(x)
        return x.argmin(1) if are_distances(self.points) else x.argmax(1)

    def memberships(self, *, epsilon: float = 0.1, n_draws: int = 50, seed: int = 0) -> NDArray[np.float64]:
        """Shares of the clusters over perturbed similarities, see :func:`diffclust.stability.soft_memberships`.

        Of more than 4,096 points a random 4,096 are perturbed, and the others take the shares of the one nearest to
        them.

        Args:
            epsilon: scale of the noise.
            n_draws: number of draws.
            seed: of the noise.

        Returns:
            (n, n_clusters) shares.
        """
        n, points, guard, rows = len(self.points), self.points, self.min_cluster_size, np.arange(len(self.points))
        if n > DENSE_POINTS and self.metric != "precomputed":
            rows = np.sort(np.random.default_rng(seed).choice(n, DENSE_POINTS, replace=False))
            points, guard = points[rows], max(1, guard * DENSE_POINTS // n)
        shares = soft_memberships(
            similarities(points, self.metric, self.reachability),
            self.clusters[rows],
            n_clusters=self.n_clusters,
            min_cluster_size=guard,
            constraints=self.knowledge.constraints(rows),
            epsilon=epsilon,
            n_draws=n_draws,
            seed=seed,
        )
        if len(rows) == n:
            return shares
        return shares[solvers_of_points.nearest_points(points, self.points, self.metric)]


@small_in_one_thread
def partition(
    embedding: Any,
    knowledge: Knowledge | None = None,
    n_clusters: int | None = None,
    *,
    min_cluster_size: int | str = "auto",
    cut: str = "forest",
    rows: Any = None,
    retrain: Callable[[Knowledge], NDArray[Any]] | None = None,
    seed: int = 0,
    metric: str = "sqeuclidean",
    reachability: int | None = None,
    n_neighbors: int | None = None,
    tree: Hierarchy | None = None,
) -> Partition:
    """Clusters of points under what is known about them.

    Args:
        embedding: points (n, d), or a matrix (n, n) with metric "precomputed".
        knowledge: labels and pairs that the clusters agree with; None knows nothing.
        n_clusters: number of clusters. None chooses it: with cut "auto" by hiding labelled classes where there are
            enough labels, and by the likelihood of pairs where there are some, else by agreement with the labels
            where a class has two or more, else by the largest gap
            (:func:`diffclust.stability.choose_n_clusters`).
        min_cluster_size: the size guard. A cluster is cut off only where so many points stay on both sides, and
            labelled classes get so many points as far as the tree allows. "auto" is a third of an average cluster,
            n / (3 n_clusters), halved until ``n_clusters`` can be reached with it.
        cut: how clusters are made, one of ``CUTS``. "auto" makes all of them and takes the one that agrees best with
            others and, where ``retrain`` is given, with hidden labels (:mod:`diffclust.evidence`). If labels were
            hidden and every cluster is a labelled class, all of them vote (:mod:`diffclust.votes`). With pairs, of up
            to 5,000 points, it is a model of rows and pairs together (:mod:`diffclust.doubt`). It is the forest
            where ``min_cluster_size`` or ``reachability`` is given, which are settings of forests, with another metric
            than a Euclidean one, and with pairs for more than 20,000 points. Of so many points with labels only, a
            sample of 10,000 is clustered, and the others go where their neighbours go (:mod:`diffclust.samples`),
            unless the cut is the forest.
        rows: for "auto", the input (n, p) of which the embedding was made. Cuts of it are compared, too, but not of
            images (n, ...): what is near by its pixels is often of another class. Where its columns are categories,
            latent classes are one of them (:func:`diffclust.cuts.latent_classes`).
        retrain: for "auto", makes the embedding that other knowledge gives; None hides no labels.
        seed: of "auto".
        metric: "sqeuclidean", "euclidean", "cosine", "manhattan", "chebyshev", or "precomputed": a matrix of distances
            (zero diagonal, nothing negative, but for rounding) or else of similarities (larger is closer).
        reachability: None for plain single linkage, m for robust single linkage with m neighbours.
        n_neighbors: None for the exact tree, else that of a graph of so many neighbours, for millions of points.
        tree: that of the points without knowledge, ``free_hierarchy`` of an earlier partition; None makes it.

    Returns:
        The clusters, with the tree they come from.

    Raises:
        ValueError: the knowledge or the size guard do not allow so many clusters, or the tree is of other points.

    >>> x = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [9.0], [9.1]])
    >>> found = partition(x, Knowledge.join([0, -1, -1, -1, 1, -1, -1]), n_clusters=3)
    >>> found.clusters.tolist(), found.names(["cat", "dog"])
    ([0, 0, 0, 1, 1, 2, 2], ['cat', 'dog', 'new 1'])
    """
    points = np.asarray(to_numpy(embedding, "embedding"), np.float64)
    knowledge = Knowledge.from_constraints(knowledge, len(points))
    of_pairs = None
    if knowledge.is_soft:
        seen = points if rows is None else np.reshape(rows, (len(points), -1))
        knowledge, of_pairs = believe(seen, knowledge, n_clusters, seed)
    if tree is not None and tree.n_points != len(points):
        raise ValueError(f"tree must be that of the {len(points)} points, got one of {tree.n_points}.")
    check_cut(cut, n_clusters, knowledge)
    compares = _compares_cuts(cut, min_cluster_size, reachability, metric)
    if compares and knowledge.given is None and can_model(knowledge, n_clusters):
        of_pairs = believe(rows if np.ndim(rows) == 2 else points, knowledge, n_clusters, seed).clusters
    if compares and n_clusters is None and of_pairs is not None:
        n_clusters = int(of_pairs.max()) + 1
    splits: list[Split] = []
    of_number: dict[str, Any] = {}
    by_sample: _BySample | None = None
    if len(points) > MOST_POINTS:
        if compares and samples.can_sample(knowledge):
            by_sample = _cluster_sample(points, knowledge, n_clusters, rows, retrain, seed, metric)
            n_clusters = by_sample.n_clusters
        compares = False
    if compares:
        splits = _hide_and_retrain(knowledge, n_clusters, seed, retrain)
    if splits and n_clusters is None:
        numbers = compare_numbers(splits, functools.partial(_cut_all, names=NUMBER_CUTS), knowledge.labels)
        expected = expect_number(splits, knowledge.labels)
        low, number, high = likely_numbers(numbers, len(knowledge.apart), expected)
        n_clusters = min(max(number, knowledge.min_clusters), knowledge.max_clusters)
        of_number = {"n_clusters": n_clusters, "candidates": numbers, "expected_clusters": expected}
        of_number["interval"] = low, high
        if n_clusters == len(knowledge.apart):  # no class is new, so none has to be hidden
            splits = _hide_and_retrain(knowledge, n_clusters, seed, retrain)
    if cut == "robust forest" and reachability is None:
        reachability = min(ROBUST_NEIGHBOURS, len(points) - 1) or None
    free = spanning_tree(points, metric, reachability, n_neighbors) if tree is None else tree
    hierarchy, k, guard = _cut_tree(
        free, knowledge, n_clusters, min_cluster_size, lambda: similarities(points, metric, reachability)
    )
    of_tree: NDArray[Any] = hierarchy.labels(k, guard)
    clusters = of_tree
    wanted = k if n_clusters is None else n_clusters
    evidence = Evidence(cut="forest" if cut == "auto" else cut)
    others: list[NDArray[Any]] = []
    if compares:
        can_vote = bool(splits) and votes.can_vote(knowledge, wanted)
        columns = np.asarray(rows, np.float64) if np.ndim(rows) == 2 and can_vote else None
        values = cuts.indicators(rows) if np.ndim(rows) == 2 else None
        rows = _few_components(rows) if np.ndim(rows) == 2 else None
        tree_of_rows = functools.cache(lambda: spanning_tree(rows, "sqeuclidean"))
        cut_all = functools.partial(_cut_all, rows=rows, tree_of_rows=tree_of_rows, values=values, columns=columns)
        if splits and rows is not None:
            tree_of_rows()  # once, before there are other processes
        tasks = [functools.partial(cut_all, each.embedding, each.known, wanted) for each in splits]
        with beside(tasks, is_small_set(points) and len(points) >= WORTH_A_FORK) as results:
            partitions = cut_all(points, knowledge, wanted, tree=free if metric == "sqeuclidean" else None)
            k_found = max(int(each.max()) + 1 for each in partitions.values())
            of_splits = (
                results()
                if k_found == wanted
                else [cut_all(each.embedding, each.known, k_found) for each in splits]  # no cut finds as few
            )
        if can_vote:
            weight = 1.0 if values is None else votes.CATEGORIES_WEIGHT
            partitions[VOTE], counted = votes.count_votes(partitions, splits, of_splits, knowledge.labels, weight)
            of_splits = [{**each, VOTE: vote} for each, vote in zip(of_splits, counted, strict=True)]
        evidence = choose_cut(partitions, splits, of_splits, knowledge.labels)
        evidence = replace(evidence, **of_number)
        if of_pairs is not None and of_pairs.max() + 1 == wanted:
            partitions[OF_PAIRS] = of_pairs
            evidence = replace(evidence, cut=OF_PAIRS)
        clusters = partitions.pop(evidence.cut)
        others = [each for name, each in partitions.items() if is_asked(name)]
    elif by_sample is not None:
        evidence, others = by_sample.evidence, by_sample.others
        clusters = of_tree if evidence.cut == "forest" else by_sample.clusters
    elif evidence.cut not in ("forest", "robust forest"):
        clusters = CUTS[cut](points, knowledge, wanted)
    elif k > wanted and metric != "precomputed":
        # The greedy did not satisfy the pairs with so few clusters. A colouring of the groups may.
        with contextlib.suppress(ValueError):
            clusters = cuts.kmeans(points, knowledge, wanted)
    if not np.array_equal(clusters, of_tree):
        guard = min(guard, int(np.bincount(clusters).min()))
        hierarchy = _tree_of_clusters(points, clusters, free, metric).joined(knowledge.group, knowledge.apart)
    return Partition(
        points,
        metric,
        reachability,
        knowledge,
        clusters,
        int(clusters.max()) + 1,
        guard,
        hierarchy,
        free,
        evidence,
        tuple(others),
    )


def what_retrain_is_told(
    knowledge: Knowledge,
    n_clusters: int | None,
    *,
    min_cluster_size: int | str = "auto",
    cut: str = "forest",
    seed: int = 0,
    metric: str = "sqeuclidean",
    reachability: int | None = None,
) -> list[Knowledge]:
    """What :func:`partition` with these arguments will call ``retrain`` with, so that training may begin before.

    Returns:
        It. Empty as well where it is not known before: of knowledge that may be wrong, and of more than 20,000 points.
    """
    if knowledge.is_soft or not _compares_cuts(cut, min_cluster_size, reachability, metric):
        return []
    return hide_labels(knowledge, n_clusters, seed)


def _hide_and_retrain(
    knowledge: Knowledge, n_clusters: int | None, seed: int, retrain: Callable[[Knowledge], NDArray[Any]] | None
) -> list[Split]:
    """The embeddings that are made without some labels; none where nothing can be trained again."""
    if retrain is None:
        return []
    return [Split(retrain(rest), rest) for rest in hide_labels(knowledge, n_clusters, seed)]


def _compares_cuts(cut: str, min_cluster_size: int | str, reachability: int | None, metric: str) -> bool:
    """Whether cuts are compared, of points that are not too many."""
    plain = reachability is None and min_cluster_size == "auto"
    return cut == "auto" and plain and metric in ("sqeuclidean", "euclidean")


@dataclass(frozen=True, eq=False)
class _BySample:
    """What clusters of a sample say about all points: see :attr:`Partition.clusters` and the like."""

    clusters: NDArray[Any]
    others: list[NDArray[Any]]
    n_clusters: int
    evidence: Evidence


def _cluster_sample(
    points: NDArray[Any],
    knowledge: Knowledge,
    n_clusters: int | None,
    rows: Any,
    retrain: Callable[[Knowledge], NDArray[Any]] | None,
    seed: int,
    metric: str,
) -> _BySample:
    """Clusters of a sample of the points by cut "auto", spread over all of them."""
    some = samples.choose_rows(knowledge.labels, seed, samples.SAMPLE)

    def retrain_sample(rest: Knowledge) -> NDArray[Any]:
        assert retrain is not None
        return np.asarray(retrain(samples.hide_alike(knowledge, some, rest)))[some]

    found = partition(
        points[some],
        Knowledge.join(knowledge.labels[some]),
        n_clusters,
        cut="auto",
        rows=None if rows is None else np.asarray(rows)[some],
        retrain=None if retrain is None else retrain_sample,
        seed=seed,
        metric=metric,
    )
    clusters, *others = samples.spread(points, some, [found.clusters, *found.others], knowledge.labels)
    if found.evidence.cut.endswith(OF_INPUT):
        clusters = samples.spread(_few_components(rows), some, [found.clusters], knowledge.labels)[0]
    evidence, chances = found.evidence, found.evidence.hidden_chances
    if chances is not None:
        of_all = np.full((len(points), chances.shape[1]), np.nan)
        of_all[some] = chances
        evidence = replace(evidence, hidden_chances=of_all)
    return _BySample(clusters, others, found.n_clusters, evidence)


def forest(
    embedding: NDArray[Any], knowledge: Knowledge, n_clusters: int, tree: Hierarchy | None = None
) -> NDArray[Any]:
    """Single linkage under the default size guard."""
    return partition(embedding, knowledge, n_clusters, tree=tree).clusters


def robust_forest(embedding: NDArray[Any], knowledge: Knowledge, n_clusters: int) -> NDArray[Any]:
    """The same with robust linkage, in which a point is no closer to any other than its fifth nearest one."""
    return partition(embedding, knowledge, n_clusters, cut="robust forest").clusters


def gaussian(embedding: NDArray[Any], knowledge: Knowledge, n_clusters: int) -> NDArray[Any]:
    """A mixture of Gaussians that starts at the forest, or at k-means where the forest has too many clusters."""
    start = forest(embedding, knowledge, n_clusters)
    return cuts.gaussian(embedding, knowledge, n_clusters, start=start if start.max() + 1 == n_clusters else None)


CUTS: dict[str, Cut] = {
    "forest": forest,
    "robust forest": robust_forest,
    "k-means": cuts.kmeans,
    "gaussian": gaussian,
    "gaussian of k-means": cuts.gaussian,
    "spectral": cuts.spectral,
    "classifier": cuts.classifier,
}
STARTS = {"gaussian": "forest", "gaussian of k-means": "k-means"}  # where mixtures start
INPUT_CUTS = ("forest", "k-means", "gaussian", "gaussian of k-means", "classifier")  # of the input, for "auto"
# Of more than 20 clusters only these are compared, of the embedding and of the input: the others take too long.
MANY_CUTS, MANY_INPUT_CUTS = ("forest", "k-means", "spectral", "classifier"), ("k-means", "classifier")
LATENT_CLASSES = "latent classes" + OF_INPUT  # another cut of the input, where its columns are categories
OF_VALUES = " of values" + OF_INPUT  # ends the names of classifiers that see its indicators
NUMBER_CUTS = ("forest", "k-means", "gaussian")  # with which numbers of clusters are compared
OF_PAIRS = "pairs"  # the cut by the model of rows and pairs; "auto" takes it where there are pairs
INPUT_COMPONENTS = 50  # leading ones of the input, which its cuts look at


def _cut_all(
    embedding: NDArray[Any],
    knowledge: Knowledge,
    n_clusters: int,
    *,
    rows: NDArray[Any] | None = None,
    names: Iterable[str] = CUTS,
    tree: Hierarchy | None = None,
    tree_of_rows: Callable[[], Hierarchy | None] = lambda: None,
    values: NDArray[Any] | None = None,
    columns: NDArray[Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """The partitions into ``n_clusters`` by the names of their cuts.

    Args:
        embedding: (n, d).
        knowledge: what the clusters agree with.
        n_clusters: their number.
        rows: the input, which is cut, too.
        names: of the cuts of the embedding.
        tree: of the embedding without knowledge, if it is there already.
        tree_of_rows: makes that of the input, or None.
        values: its indicators, if its columns are categories (:func:`diffclust.cuts.indicators`).
        columns: the input with all columns, for classifiers that vote; None where there is no vote.

    Returns:
        Those of the cuts that found one. Pairs may make it impossible, and a classifier needs labels of all classes.
    """
    found: dict[str, NDArray[Any]] = {}
    of_input: Iterable[str] = INPUT_CUTS
    if n_clusters > cuts.MANY_CLUSTERS:
        names, of_input = [name for name in names if name in MANY_CUTS], MANY_INPUT_CUTS
    tries = [(name, "", embedding) for name in names]
    tries += [] if rows is None else [(name, OF_INPUT, rows) for name in of_input]
    for name, suffix, points in tries:
        start = found.get(STARTS.get(name, "") + suffix)
        with contextlib.suppress(ValueError):
            if name == "forest":
                known_tree = tree_of_rows() if suffix else tree
                found[name + suffix] = forest(points, knowledge, n_clusters, known_tree)
            elif start is not None and _is_start(name, start, points, n_clusters):
                found[name + suffix] = cuts.gaussian(points, knowledge, n_clusters, start=start)
            else:
                found[name + suffix] = CUTS[name](points, knowledge, n_clusters)
    if values is not None and n_clusters <= cuts.MANY_CLUSTERS:
        with contextlib.suppress(ValueError):
            start = found.get("k-means" + OF_INPUT)
            found[LATENT_CLASSES] = cuts.latent_classes(values, knowledge, n_clusters, start=start)
    seen = {} if columns is None else {OF_INPUT: columns}
    if columns is not None and values is not None and values.shape[1] > 2 * columns.shape[1]:  # two values say the same
        seen[OF_VALUES] = values
    for (suffix, features), (name, classify) in itertools.product(seen.items(), votes.CLASSIFIERS.items()):
        with contextlib.suppress(ValueError):
            found[name + suffix] = classify(features, knowledge)
    exact = {name: clusters for name, clusters in found.items() if clusters.max() + 1 == n_clusters}
    return exact or found


def _is_start(name: str, start: NDArray[Any], points: NDArray[Any], n_clusters: int) -> bool:
    """Whether a mixture starts at these clusters. Of many dimensions it sees a few, and makes its k-means in those."""
    same = STARTS[name] == "forest" or points.shape[1] <= cuts.GAUSSIAN_DIMENSIONS
    return same and int(start.max()) + 1 == n_clusters


def _few_components(rows: Any) -> NDArray[Any]:
    return cuts.leading_components(np.asarray(rows, np.float64), INPUT_COMPONENTS)


# ------------------------------------------------------------------------------------------------------------------
# The tree, the number of clusters and the size guard


def check_cut(cut: str, n_clusters: int | None, knowledge: Knowledge) -> None:
    """A ValueError if there is no such cut, or if it or the knowledge do not allow so many clusters."""
    if cut not in ("auto", *CUTS):
        raise ValueError(f"cut must be 'auto' or one of {tuple(CUTS)}, got {cut!r}.")
    if n_clusters is None:
        return
    check_n_clusters(n_clusters, knowledge)
    if cut == "classifier" and not knowledge.is_soft:
        cuts.check_classes(knowledge, n_clusters)


def check_n_clusters(n_clusters: int, knowledge: Knowledge) -> None:
    """An error if this is no integer, or the knowledge does not allow so many clusters."""
    if not is_integer(n_clusters):
        raise TypeError(f"n_clusters must be an integer, got {n_clusters!r}.")
    lowest, highest = knowledge.min_clusters, knowledge.max_clusters
    if not lowest <= n_clusters <= highest:
        raise ValueError(
            f"n_clusters={n_clusters} is outside what the known labels and pairs allow, {lowest} to {highest}."
        )


def auto_min_cluster_size(n_points: int, n_clusters: int) -> int:
    """The size guard "auto": a third of an average cluster."""
    return max(1, n_points // (3 * n_clusters))


def _choose_n_clusters(free: Hierarchy, knowledge: Knowledge) -> int:
    """The number of clusters that the labels, or else the largest gap of the tree, ask for."""
    # Labels tell too many clusters from enough only where two rows have the same one.
    repeated = (np.unique(knowledge.labels[knowledge.labels >= 0], return_counts=True)[1] > 1).any()
    return choose_n_clusters(free, "labels" if repeated else "gap", labels=knowledge.labels).n_clusters


def _cut_tree(
    free: Hierarchy,
    knowledge: Knowledge,
    n_clusters: int | None,
    min_cluster_size: int | str,
    similarity: Callable[[], NDArray[Any]],
) -> tuple[Hierarchy, int, int]:
    """The tree under what is known and its cut. ``similarity`` makes the (n, n) similarities for general pairs.

    General cannot-links may leave the greedy with more clusters than were asked for.

    Returns:
        The tree, the number of clusters, and the size guard with which the tree reaches that number.

    Raises:
        ValueError: ``n_clusters`` cannot be reached with the size guard.
    """
    given = 1 if min_cluster_size == "auto" else check_count("min_cluster_size", min_cluster_size, free.n_points)
    hierarchy = _constrain(free, knowledge, given, similarity)
    lowest, highest = hierarchy.feasible_clusters(given)
    if n_clusters is None:
        n_clusters = min(_choose_n_clusters(free, knowledge), highest)
    n_clusters = max(n_clusters, lowest)
    if n_clusters > highest:
        raise ValueError(
            f"n_clusters={n_clusters} cannot be reached with min_cluster_size={given}: the tree falls into "
            f"{lowest} to {highest} clusters. Ask for fewer clusters or a smaller min_cluster_size."
        )
    if min_cluster_size != "auto":
        return hierarchy, n_clusters, given
    guard = auto_min_cluster_size(free.n_points, n_clusters)
    if not knowledge.all_apart:  # the guard does not change this tree
        return hierarchy, n_clusters, hierarchy.reachable_guard(n_clusters, guard)
    while guard > 1:
        guarded = _constrain(free, knowledge, guard, similarity)
        if guarded.feasible_clusters(guard)[1] >= n_clusters:
            return guarded, n_clusters, guard
        guard //= 2
    return hierarchy, n_clusters, 1


def _constrain(
    free: Hierarchy, knowledge: Knowledge, min_cluster_size: int, similarity: Callable[[], NDArray[Any]]
) -> Hierarchy:
    """Labels need only the tree. The greedy for general pairs is better with all pairs, where their matrix fits."""
    if knowledge.is_empty:
        return free
    if knowledge.all_apart or free.n_points > DENSE_POINTS:
        return free.joined(knowledge.group, knowledge.apart, min_cluster_size)
    return Hierarchy.from_similarity(similarity(), knowledge.constraints())


def _tree_of_clusters(points: NDArray[Any], clusters: NDArray[Any], free: Hierarchy, metric: str) -> Hierarchy:
    """The tree in which given clusters come apart first: a tree of each, then the free tree's edges between them.

    Returns:
        It. An edge between clusters is at most as similar as the weakest inside one, so that similarities decrease.
    """
    from diffclust.solvers.tree import constrain

    edges, weights = [np.empty((0, 2), np.int32)], [np.empty(0)]
    for number in range(int(clusters.max()) + 1):
        rows = np.flatnonzero(clusters == number)
        if len(rows) > 1:
            tree = Hierarchy.from_points(points[rows], metric)
            edges.append(rows[tree.edges].astype(np.int32))
            weights.append(tree.weights)
    inside, strength = np.concatenate(edges), np.concatenate(weights)
    order = np.argsort(-strength, kind="stable")
    ends = clusters[free.edges]
    between = np.flatnonzero(ends[:, 0] != ends[:, 1])
    n_clusters = int(clusters.max()) + 1
    joins = constrain(ends[between].astype(np.int32), np.full(n_clusters, -1), np.zeros((0, 0), bool))
    weakest = strength.min(initial=np.inf)
    return Hierarchy(
        len(points),
        np.sort(np.concatenate([inside[order], free.edges[between[joins]]]), axis=1),
        np.concatenate([strength[order], np.minimum(free.weights[between[joins]], weakest)]),
    )


# ------------------------------------------------------------------------------------------------------------------
# Points


def spanning_tree(
    points: NDArray[Any], metric: str, reachability: int | None = None, n_neighbors: int | None = None
) -> Hierarchy:
    """The hierarchy of points (n, d), or of a matrix (n, n) with metric "precomputed", without constraints."""
    if metric == "precomputed":
        return Hierarchy.from_similarity(similarities(points, metric, reachability))
    return Hierarchy.from_points(points, metric, n_neighbors, reachability=reachability)


def similarities(points: NDArray[Any], metric: str, reachability: int | None = None) -> NDArray[Any]:
    """The (n, n) similarities of points."""
    from scipy.spatial.distance import cdist

    if metric == "precomputed":
        similarity = -points if are_distances(points) else points
    elif metric == "cosine":
        similarity = cosine_similarities(points)
    else:
        # Not scikit-learn's distances, of which "euclidean" are not computed from differences.
        similarity = -cdist(points, points, "cityblock" if metric == "manhattan" else metric)
    return similarity if reachability is None else mutual_reachability(similarity, reachability)


def are_distances(matrix: NDArray[Any]) -> bool:
    """Whether a matrix (n, n) is of distances: zero diagonal, nothing negative, but for rounding, as of 1 - cosine."""
    rounding = ROUNDING * np.abs(matrix).max(initial=0)
    return bool(matrix.min(initial=0) >= -rounding and np.abs(np.diagonal(matrix)).max(initial=0) <= rounding)
