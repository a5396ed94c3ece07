"""Which rows are of classes that nobody labelled, by where labels are and where they are not.

Labels are taken for a random choice among the rows of their classes. Then rows of a labelled class have labels around
them, as many as the class has on the average, and rows of other classes have none. Trees that are asked which rows have
a label learn that, and answer for each row from those of them that have not seen it. They look at the input alone: an
embedding that was trained on the labels has moved labelled rows away from others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.cuts import kmeans
from diffclust.knowledge import Knowledge

N_TREES = 300
LEAST_IN_A_LEAF = 10  # rows, so that a leaf inside a class with one label in ten rows has some
MOST_IN_A_TREE = 5000  # rows
LARGEST = 1e30  # trees see 32-bit floats
LABELS_A_CLASS = 2  # in the mean: with fewer, trees learn nothing
STRENGTH, MOST_EVIDENCE = 4.0, 4.0  # factor of the logarithm of the chance of a label, and the limit of the result
TINY_CHANCE = 1e-3  # of a label, beside which others are compared
CLASS_WEIGHT, TINY_SHARE = 0.5, 0.02  # of what trees say about the class of a row, and what is added to each share
MOST_NEW = 0.97  # share of the rows without a label

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LabelChances:
    """How likely rows are to have a label, as far as other rows say.

    Attributes:
        of_class: (n, classes) the probability of a label of each labelled class. Classes are numbered as in
            ``Knowledge.group``.
        labelled: (n,) which rows have one.
    """

    of_class: Floats
    labelled: NDArray[np.bool_]

    def log_odds_new(self, n_clusters: int) -> Floats:
        """How probably rows are of none of the labelled classes, if there are ``n_clusters`` classes.

        Returns:
            (n,) the logarithm of the odds, from -4 to 4. It is 0 where :meth:`share_new` puts the border.
        """
        chance = self.of_class.sum(1)
        middle = np.quantile(chance[~self.labelled], self.share_new(n_clusters))
        log_odds = STRENGTH * (np.log(middle + TINY_CHANCE) - np.log(chance + TINY_CHANCE))
        return np.clip(log_odds, -MOST_EVIDENCE, MOST_EVIDENCE)

    def share_new(self, n_clusters: int) -> float:
        """The share of the rows without a label that are of new classes, if there are ``n_clusters`` classes.

        One estimate is that all classes are equally large. Another one follows from the chances of a label (Elkan and
        Noto, 2008): where these are a half of what they are at labelled rows, half of the rows are new. That one counts
        the more the more labels there are.

        Returns:
            The share, from 0 to 0.97.
        """
        from sklearn.isotonic import IsotonicRegression

        n, n_classes = self.of_class.shape
        chance, labelled = self.of_class.sum(1), self.labelled
        if_equal = min(MOST_NEW, n * (1 - n_classes / n_clusters) / (~labelled).sum())
        calibrated = IsotonicRegression(out_of_bounds="clip").fit_transform(chance, labelled)
        at_labels = calibrated[labelled].mean()
        odds = calibrated[~labelled] / np.maximum(1 - calibrated[~labelled], 1e-9)
        by_chance = max(0.0, 1 - (1 - at_labels) / at_labels * odds.mean())
        trust = chance[labelled].mean()
        return float(trust * by_chance + (1 - trust) * if_equal)

    def evidence(self, n_clusters: int) -> Floats:
        """(n, n_clusters) what to add to the logarithm of the density of each cluster, labelled classes first."""
        n, n_classes = self.of_class.shape
        share = self.of_class + 0.5 / n
        share = share / share.sum(1, keepdims=True)
        evidence = np.repeat(self.log_odds_new(n_clusters)[:, None] / 2, n_clusters, axis=1)
        evidence[:, :n_classes] = CLASS_WEIGHT * np.log(share + TINY_SHARE) - evidence[:, :n_classes]
        return evidence

    def first_clusters(self, points: NDArray[Any], knowledge: Knowledge, n_clusters: int) -> NDArray[np.int64]:
        """Clusters to start from: the likeliest classes of rows that are not new, and k-means of those that are.

        Returns:
            (n,) clusters, labelled classes first.

        Raises:
            ValueError: fewer rows seem to be new than there are new clusters.
        """
        n_classes = self.of_class.shape[1]
        new = np.flatnonzero((self.log_odds_new(n_clusters) > 0) & ~self.labelled)
        if len(new) < n_clusters - n_classes:
            raise ValueError(f"{len(new)} rows seem to be new, too few for {n_clusters - n_classes} new clusters.")
        found = np.where(self.labelled, knowledge.group, self.of_class.argmax(1))
        found[new] = n_classes + kmeans(points[new], Knowledge.join(np.full(len(new), -1)), n_clusters - n_classes)
        return found


def label_chances(columns: Any, knowledge: Knowledge, n_clusters: int) -> LabelChances | None:
    """What trees say about the labels of rows, from the columns of the input.

    Args:
        columns: (n, p).
        knowledge: labels.
        n_clusters: number of clusters.

    Returns:
        It; None where there are pairs, no new cluster, or too few labels.

    >>> points = np.random.default_rng(0).normal(size=(300, 2)) + 6 * np.repeat(np.eye(3)[:, :2], 100, axis=0)
    >>> labels = np.repeat([0, 1, -1], 100)
    >>> labels[np.arange(300) % 5 > 0] = -1
    >>> found = label_chances(points, Knowledge.join(labels), 3).log_odds_new(3)
    >>> [bool(np.median(each) > 0) for each in np.split(found, 3)]
    [False, False, True]
    """
    from sklearn.ensemble import ExtraTreesClassifier

    labelled, n_classes = knowledge.labels >= 0, len(knowledge.apart)
    if knowledge.has_pairs or not 0 < n_classes < n_clusters:
        return None
    if labelled.sum() < LABELS_A_CLASS * n_classes or labelled.all():
        return None
    columns = np.asarray(columns, np.float64)
    columns = columns / np.maximum(1, np.abs(columns).max(0) / LARGEST)
    trees = ExtraTreesClassifier(
        N_TREES,
        min_samples_leaf=LEAST_IN_A_LEAF,
        bootstrap=True,
        max_samples=min(len(columns), MOST_IN_A_TREE),
        oob_score=True,
        random_state=0,
    ).fit(columns, np.where(labelled, knowledge.group, n_classes))
    return LabelChances(np.nan_to_num(trees.oob_decision_function_[:, :n_classes]), labelled)
