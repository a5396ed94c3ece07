"""An embedding and what is known → clusters: the one place where clusters are made.

    found = partition(embedding, Knowledge.join(labels, must_link), n_clusters=10)
    found.clusters, found.names(class_names), found.probabilities(), found.hierarchy.labels(12)

The estimators, ``fit_run`` and the command line call :func:`partition`. How clusters are made out of an embedding is a
*cut*, a row of ``CUTS`` in :mod:`diffclust.all_cuts`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust import confidence, cuts, linkage, samples, votes
from diffclust.all_cuts import CUTS, NUMBER_CUTS, Input, cut_all, few_components
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
from diffclust.frameworks import to_numpy
from diffclust.how_many import compare_numbers, expect_number, likely_numbers
from diffclust.knowledge import Knowledge
from diffclust.labels import new_names
from diffclust.novelty import LabelChances, label_chances
from diffclust.processes import beside
from diffclust.solvers.points import nearest_points
from diffclust.stability import soft_memberships
from diffclust.threads import is_small_set, small_in_one_thread
from diffclust.validation import check_points

OUTLIER_NEIGHBOURS, OUTLIER_FACTOR = 20, 2.0
OF_PAIRS = "pairs"  # the cut by the model of rows and pairs; "auto" takes it where there are pairs


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
        free = new_names(class_names)
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
        speaking = confidence.witnesses(
            points, self.clusters, self.others, self.classes < 0, labelled, self.metric, self.evidence.log_odds_new
        )
        found = confidence.probabilities(speaking, self.clusters, ~labelled, self.evidence.share_right)
        known = np.flatnonzero(labelled)
        found[known] = 0
        found[known, self.clusters[known]] = 1
        return found

    def distances(self) -> NDArray[np.float64]:
        """(n, n), none negative, of a "precomputed" matrix."""
        distances = -linkage.similarities(self.points, "precomputed")
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
            return nearest_points(self.points, np.asarray(to_numpy(x), np.float64), self.metric)
        x = to_numpy(x)
        return x.argmin(1) if linkage.are_distances(self.points) else x.argmax(1)

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
        if n > linkage.DENSE_POINTS and self.metric != "precomputed":
            rows = np.sort(np.random.default_rng(seed).choice(n, linkage.DENSE_POINTS, replace=False))
            points, guard = points[rows], max(1, guard * linkage.DENSE_POINTS // n)
        shares = soft_memberships(
            linkage.similarities(points, self.metric, self.reachability),
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
        return shares[nearest_points(points, self.points, self.metric)]


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
    if compares and knowledge.has_pairs and n_clusters is None and of_pairs is not None:
        n_clusters = int(of_pairs.max()) + 1
    chosen: _Chosen | None = None
    splits: list[Split] = []
    of_number: dict[str, Any] = {}
    if compares and len(points) > MOST_POINTS:
        compares = False
        if samples.can_sample(knowledge):
            chosen = _cluster_sample(points, knowledge, n_clusters, rows, retrain, seed, metric)
            n_clusters = int(chosen.clusters.max()) + 1
    if compares:
        splits = _hide_and_retrain(knowledge, n_clusters, seed, retrain)
    if splits and n_clusters is None:
        of_number = _find_number(splits, knowledge)
        n_clusters = int(of_number["n_clusters"])
        if n_clusters == len(knowledge.apart):  # no class is new, so none has to be hidden
            splits = _hide_and_retrain(knowledge, n_clusters, seed, retrain)

    if cut == "robust forest" and reachability is None:
        reachability = linkage.robust_reachability(len(points))
    free = linkage.spanning_tree(points, metric, reachability, n_neighbors) if tree is None else tree
    hierarchy, k, guard = linkage.cut_tree(
        free, knowledge, n_clusters, min_cluster_size, lambda: linkage.similarities(points, metric, reachability)
    )
    of_tree = hierarchy.labels(k, guard)
    wanted = k if n_clusters is None else n_clusters

    if compares:
        of_forest = None
        if metric == "sqeuclidean":  # that of the cut "forest"
            of_forest = linkage.kmeans_if_too_many(of_tree, points, knowledge, wanted)
        chosen = _compare_cuts(points, knowledge, wanted, of_forest, rows, splits, of_pairs)
        chosen = chosen._replace(evidence=replace(chosen.evidence, **of_number))
    elif chosen is None:
        name = "forest" if cut == "auto" else cut
        clusters = of_tree
        if not name.endswith("forest"):
            clusters = CUTS[name](points, knowledge, wanted)
        elif metric != "precomputed":
            clusters = linkage.kmeans_if_too_many(of_tree, points, knowledge, wanted)
        chosen = _Chosen(clusters, [], Evidence(name))
    elif chosen.evidence.cut == "forest":  # of a sample: all points have a forest of their own
        chosen = chosen._replace(clusters=of_tree)

    if not np.array_equal(chosen.clusters, of_tree):
        guard = min(guard, int(np.bincount(chosen.clusters).min()))
        hierarchy = linkage.tree_of_clusters(points, chosen.clusters, free, metric)
        hierarchy = hierarchy.joined(knowledge.group, knowledge.apart)
    return Partition(
        points=points,
        metric=metric,
        reachability=reachability,
        knowledge=knowledge,
        clusters=chosen.clusters,
        n_clusters=int(chosen.clusters.max()) + 1,
        min_cluster_size=guard,
        hierarchy=hierarchy,
        free_hierarchy=free,
        evidence=chosen.evidence,
        others=tuple(chosen.others),
    )


class _Chosen(NamedTuple):
    """Clusters (n,), what other cuts found, and why these were chosen."""

    clusters: NDArray[Any]
    others: list[NDArray[Any]]
    evidence: Evidence


def _compare_cuts(
    points: NDArray[Any],
    knowledge: Knowledge,
    n_clusters: int,
    of_forest: NDArray[Any] | None,
    rows: Any,
    splits: list[Split],
    of_pairs: NDArray[Any] | None,
) -> _Chosen:
    """The best of all cuts, by what they make of the points, of the input and of embeddings without some labels.

    Args:
        points: (n, d).
        knowledge: what the clusters agree with.
        n_clusters: their number.
        of_forest: (n,) the clusters of the forest, if they are there already.
        rows: the input.
        splits: embeddings without some labels.
        of_pairs: (n,) clusters of the model of rows and pairs, if there are pairs. They are taken where they are as
            many as asked for.

    Returns:
        The clusters, what the other cuts found, and why these were chosen.
    """
    can_vote = bool(splits) and votes.can_vote(knowledge, n_clusters)
    source = Input.prepare(rows, can_vote)
    if splits and source is not None:
        source.tree  # noqa: B018 - it is made once, before there are other processes

    def cut_split(split: Split, k: int) -> dict[str, NDArray[Any]]:
        chances = _label_chances(source, split.known, k)
        return cut_all(split.embedding, split.known, k, source=source, chances=chances)

    tasks = [functools.partial(cut_split, each, n_clusters) for each in splits]
    with beside(tasks, is_small_set(points) and len(points) >= WORTH_A_FORK) as results:
        chances = _label_chances(source, knowledge, n_clusters)
        partitions = cut_all(points, knowledge, n_clusters, source=source, of_forest=of_forest, chances=chances)
        k_found = max(int(each.max()) + 1 for each in partitions.values())
        of_splits = (
            results() if k_found == n_clusters else [cut_split(each, k_found) for each in splits]  # no cut finds as few
        )
    if can_vote:
        weight = 1.0 if source is None or source.values is None else votes.CATEGORIES_WEIGHT
        partitions[VOTE], counted = votes.count_votes(partitions, splits, of_splits, knowledge.labels, weight)
        of_splits = [{**each, VOTE: vote} for each, vote in zip(of_splits, counted, strict=True)]
    log_odds_new = None if chances is None else chances.log_odds_new(n_clusters)
    evidence = choose_cut(partitions, splits, of_splits, knowledge.labels, log_odds_new)
    if of_pairs is not None and of_pairs.max() + 1 == n_clusters:
        partitions[OF_PAIRS] = of_pairs
        evidence = replace(evidence, cut=OF_PAIRS)
    clusters = partitions.pop(evidence.cut)
    return _Chosen(clusters, [each for name, each in partitions.items() if is_asked(name)], evidence)


def _label_chances(source: Input | None, knowledge: Knowledge, n_clusters: int) -> LabelChances | None:
    if source is None or n_clusters > cuts.MANY_CLUSTERS:
        return None
    return label_chances(source.columns, knowledge, n_clusters)


def _find_number(splits: list[Split], knowledge: Knowledge) -> dict[str, Any]:
    """The number of clusters by embeddings without some labels, and why: attributes of :class:`Evidence`."""
    numbers = compare_numbers(splits, functools.partial(cut_all, names=NUMBER_CUTS), knowledge.labels)
    expected = expect_number(splits, knowledge.labels)
    low, number, high = likely_numbers(numbers, len(knowledge.apart), expected)
    return {
        "n_clusters": min(max(number, knowledge.min_clusters), knowledge.max_clusters),
        "candidates": numbers,
        "expected_clusters": expected,
        "interval": (low, high),
    }


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
        What is told in each call. None where that is not known beforehand: of knowledge that may be wrong, and of more
        than 20,000 points.
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
    """Whether cuts are compared where points are not too many."""
    plain = reachability is None and min_cluster_size == "auto"
    return cut == "auto" and plain and metric in ("sqeuclidean", "euclidean")


def _cluster_sample(
    points: NDArray[Any],
    knowledge: Knowledge,
    n_clusters: int | None,
    rows: Any,
    retrain: Callable[[Knowledge], NDArray[Any]] | None,
    seed: int,
    metric: str,
) -> _Chosen:
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
        clusters = samples.spread(few_components(rows), some, [found.clusters], knowledge.labels)[0]
    evidence, chances = found.evidence, found.evidence.hidden_chances
    if chances is not None:
        of_all = np.full((len(points), chances.shape[1]), np.nan)
        of_all[some] = chances
        evidence = replace(evidence, hidden_chances=of_all)
    if evidence.log_odds_new is not None:
        near = nearest_points(points[some], points, metric)
        evidence = replace(evidence, log_odds_new=evidence.log_odds_new[near])
    return _Chosen(clusters, others, evidence)


def check_cut(cut: str, n_clusters: int | None, knowledge: Knowledge) -> None:
    """A ValueError if there is no such cut, or if it or the knowledge do not allow so many clusters."""
    if cut not in ("auto", *CUTS):
        raise ValueError(f"cut must be 'auto' or one of {tuple(CUTS)}, got {cut!r}.")
    if n_clusters is None:
        return
    linkage.check_n_clusters(n_clusters, knowledge)
    if cut == "classifier" and not knowledge.is_soft:
        cuts.check_classes(knowledge, n_clusters)
