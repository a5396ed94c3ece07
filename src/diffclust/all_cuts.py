"""The table of cuts, and all of them at once: of an embedding, and of the input that it was made of.

A *cut* makes clusters out of an embedding. A new one is a function and a row of ``CUTS``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust import cuts
from diffclust.evidence import OF_INPUT
from diffclust.forest import Hierarchy
from diffclust.knowledge import Knowledge
from diffclust.linkage import forest, robust_forest, spanning_tree
from diffclust.novelty import LabelChances

# (embedding (n, d), knowledge, n_clusters) -> clusters (n,), numbered from 0, which agree with the knowledge. A cut
# that cannot satisfy the pairs with n_clusters clusters may return more.
Cut = Callable[[NDArray[Any], Knowledge, int], NDArray[Any]]


def gaussian(embedding: NDArray[Any], knowledge: Knowledge, n_clusters: int) -> NDArray[Any]:
    """A mixture of Gaussians that starts at the forest, or at k-means where the forest has too many clusters."""
    start = forest(embedding, knowledge, n_clusters)
    return cuts.gaussian(embedding, knowledge, n_clusters, start=start if start.max() + 1 == n_clusters else None)


def of_new_rows(
    points: NDArray[Any], knowledge: Knowledge, n_clusters: int, chances: LabelChances
) -> NDArray[np.int64]:
    """A mixture of Gaussians that starts at the labelled classes and at k-means of the rows that seem to be new.

    What trees say about labels (:mod:`diffclust.novelty`) speaks for clusters besides the densities.

    Returns:
        (n,) clusters from 0.

    Raises:
        ValueError: fewer rows seem to be new than there are new clusters.
    """
    start = chances.first_clusters(points, knowledge, n_clusters)
    return cuts.gaussian(points, knowledge, n_clusters, start=start, evidence=chances.evidence(n_clusters))


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
NEW_ROWS = "gaussian of new rows"  # a mixture that starts at rows that seem to be of no labelled class
LATENT_CLASSES = "latent classes" + OF_INPUT  # another cut of the input, where its columns are categories
OF_VALUES = " of values" + OF_INPUT  # ends the names of classifiers that see its indicators
NUMBER_CUTS = ("forest", "k-means", "gaussian")  # with which numbers of clusters are compared
INPUT_COMPONENTS = 50  # leading ones of the input, which its cuts look at


@dataclass(frozen=True, eq=False)
class Input:
    """The input that an embedding was made of, as its cuts see it. Build it with :meth:`prepare`.

    Attributes:
        rows: (n, d) leading components.
        values: (n, values) indicators, if the columns are categories (:func:`diffclust.cuts.indicators`); else None.
        columns: (n, p) all columns, for classifiers.
        can_vote: whether classifiers vote.
    """

    rows: NDArray[np.float64]
    values: NDArray[np.float64] | None
    columns: NDArray[np.float64]
    can_vote: bool

    @classmethod
    def prepare(cls, rows: Any, can_vote: bool) -> Input | None:
        """The input, or None of images (n, ...): what is near by its pixels is often of another class."""
        if np.ndim(rows) != 2:
            return None
        columns = np.asarray(rows, np.float64)
        return cls(few_components(columns), cuts.indicators(rows), columns, can_vote)

    @functools.cached_property
    def tree(self) -> Hierarchy:
        """The tree of the rows."""
        return spanning_tree(self.rows, "sqeuclidean")


def few_components(rows: Any) -> NDArray[np.float64]:
    """The leading components of the input, which its cuts look at."""
    return cuts.leading_components(np.asarray(rows, np.float64), INPUT_COMPONENTS)


def cut_all(
    embedding: NDArray[Any],
    knowledge: Knowledge,
    n_clusters: int,
    *,
    source: Input | None = None,
    names: Iterable[str] = CUTS,
    of_forest: NDArray[Any] | None = None,
    chances: LabelChances | None = None,
) -> dict[str, NDArray[Any]]:
    """The partitions into ``n_clusters`` by the names of their cuts.

    Args:
        embedding: (n, d).
        knowledge: what the clusters agree with.
        n_clusters: their number.
        source: the input, which is cut, too.
        names: of the cuts of the embedding.
        of_forest: (n,) the clusters of the forest, if they are there already.
        chances: how likely rows are to have a label; None leaves out the cuts that start at new rows.

    Returns:
        Those of the cuts that found one. Pairs may make it impossible, and a classifier needs labels of all classes.
    """
    found: dict[str, NDArray[Any]] = {} if of_forest is None else {"forest": of_forest}
    input_names: Iterable[str] = () if source is None else INPUT_CUTS
    if n_clusters > cuts.MANY_CLUSTERS:
        names = [name for name in names if name in MANY_CUTS]
        input_names = [name for name in input_names if name in MANY_INPUT_CUTS]
    tries = [(name, "", embedding) for name in names if name not in found]
    tries += [(name, OF_INPUT, source.rows) for name in input_names if source is not None]
    for name, suffix, points in tries:
        start = found.get(STARTS.get(name, "") + suffix)
        with contextlib.suppress(ValueError):
            if name == "forest" and suffix and source is not None:
                found[name + suffix] = forest(points, knowledge, n_clusters, tree=source.tree)
            elif start is not None and _is_start(name, start, points, n_clusters):
                found[name + suffix] = cuts.gaussian(points, knowledge, n_clusters, start=start)
            else:
                found[name + suffix] = CUTS[name](points, knowledge, n_clusters)
    if chances is not None:
        for suffix, points in [("", embedding)] + ([] if source is None else [(OF_INPUT, source.rows)]):
            with contextlib.suppress(ValueError):
                found[NEW_ROWS + suffix] = of_new_rows(points, knowledge, n_clusters, chances)
    if source is not None:
        found |= _cut_columns(source, knowledge, n_clusters, found.get("k-means" + OF_INPUT))
    exact = {name: clusters for name, clusters in found.items() if clusters.max() + 1 == n_clusters}
    return exact or found


def _cut_columns(source: Input, knowledge: Knowledge, n_clusters: int, start: Any) -> dict[str, NDArray[Any]]:
    """Latent classes, which start at given clusters of the input, and what classifiers say about columns and values."""
    found = {}
    if source.values is not None and n_clusters <= cuts.MANY_CLUSTERS:
        with contextlib.suppress(ValueError):
            found[LATENT_CLASSES] = cuts.latent_classes(source.values, knowledge, n_clusters, start=start)
    if not source.can_vote:
        return found
    seen = {OF_INPUT: source.columns}
    if source.values is not None and source.values.shape[1] > 2 * source.columns.shape[1]:  # of two, one says it all
        seen[OF_VALUES] = source.values
    for (suffix, features), (name, classify) in itertools.product(seen.items(), cuts.CLASSIFIERS.items()):
        with contextlib.suppress(ValueError):
            found[name + suffix] = classify(features, knowledge)
    return found


def _is_start(name: str, start: NDArray[Any], points: NDArray[Any], n_clusters: int) -> bool:
    """Whether a mixture starts at these clusters. Of many dimensions it sees a few, and makes its k-means in those."""
    same = STARTS[name] == "forest" or points.shape[1] <= cuts.GAUSSIAN_DIMENSIONS
    return same and int(start.max()) + 1 == n_clusters
