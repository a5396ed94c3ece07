"""Other cuts than the forest's: k-means, mixtures, spectral clustering and a classifier, which respect what is known.

What is known are groups of rows that belong together, and which groups belong apart (:class:`Knowledge`). Rows go to
the nearest centre. Groups go as a whole, and groups that belong apart to different centres: that is a colouring
of the graph of groups, guided by distances (:mod:`diffclust.colouring`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.colouring import colour_groups
from diffclust.frameworks import plain
from diffclust.knowledge import Knowledge
from diffclust.threads import ignored_warnings

RESTARTS, PAIR_RESTARTS = 10, 3  # with pairs a start takes longer
MANY_CLUSTERS = 20  # above it, k-means starts at the centres of k-means without knowledge, and spectral smooths
MANY_RESTARTS = 5  # of that k-means
SMOOTHING_NEIGHBOURS, SMOOTHING_ROUNDS = 10, 2
MEMBERS = 5  # partitions of smoothed points that are joined into one
CONSENSUS_DIMENSIONS = 100  # of what they say, at most
ROUNDS = 100  # of k-means; it stops before if nothing changes
NEIGHBOURS = 15  # of each row in the graph of spectral clustering
GAUSSIAN_DIMENSIONS = 20  # leading components that a mixture is fitted to
GAUSSIAN_PRIOR = 8  # rows a dimension that speak for the mean covariance
MIXTURE_ROUNDS = 50
MIXTURE_GAIN = 1e-4  # in log likelihood a row, below which a mixture ends
MOST_VALUES = 10  # different ones, of a column whose values are categories
SHARE_OF_CATEGORIES = 0.9  # of all columns, for latent classes
MOST_INDICATORS = 10**7  # rows times values, for latent classes
VALUE_PRIOR = 2  # rows that speak for the frequencies in the whole table, in each cluster
CLASSIFIER_ROUNDS = 500
N_TREES = 100
MOST_SUPPORT = 3000  # labelled rows that support vectors are sought among; the time grows with their square
PENALTY = 10.0  # of a support vector machine, for labelled rows on the wrong side

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def kmeans(
    points: Any, knowledge: Knowledge, n_clusters: int, seed: int = 0, free_restarts: int = MANY_RESTARTS
) -> Ints:
    """Clusters (n,) from 0 by k-means under constraints: the best of several starts.

    Groups that are all apart, such as labelled classes, have a centre each from the start, and the other centres start
    at rows far from them, as in k-means++. The means of a few labelled rows are poor centres, so the last start is
    scikit-learn's k-means without knowledge. Of many clusters that is the only one.

    Args:
        points: (n, d).
        knowledge: labels and pairs that the clusters agree with.
        n_clusters: k.
        seed: of the starts.
        free_restarts: of the k-means without knowledge.

    Raises:
        ValueError: no way was found to put the groups into ``n_clusters`` clusters.

    >>> points = np.array([[0.0], [0.1], [0.4], [5.0], [5.1], [9.0]])
    >>> kmeans(points, Knowledge.join([0, -1, 1, -1, -1, -1]), 4).tolist()
    [0, 0, 1, 2, 2, 3]
    """
    points = np.asarray(points, np.float64)
    points = points - points.mean(0)
    squares = (points**2).sum(1)
    rng = np.random.default_rng(seed)
    group, apart = knowledge.group, knowledge.apart
    members = [np.flatnonzero(group == number) for number in range(len(apart))]
    best, lowest = None, np.inf
    n_starts = RESTARTS if knowledge.all_apart else PAIR_RESTARTS
    if len(members) == n_clusters and knowledge.all_apart:
        n_starts = 1  # every one would be the same
    if MANY_CLUSTERS < n_clusters < len(points):
        n_starts = 0
    for start in range(n_starts + 1):
        if start < n_starts or n_clusters == len(points):
            centres = first_centres(points, squares, group, members, knowledge.all_apart, n_clusters, rng)
        else:
            centres = free_kmeans(points, n_clusters, seed, free_restarts).cluster_centers_
        found, inertia = _lloyd(points, squares, members, group, apart, centres, rng)
        if inertia < lowest:
            best, lowest = found, inertia
    assert best is not None
    return by_first_row(best)


def spectral(points: Any, knowledge: Knowledge, n_clusters: int, seed: int = 0) -> Ints:
    """Clusters (n,) from 0: :func:`kmeans` in the leading eigenvectors of the graph of nearest neighbours.

    It follows clusters of any shape, as the forest does, and a few rows between two clusters mislead it less. With more
    than 20 clusters the eigenvectors mix. Then each row becomes the mean of itself and its neighbours, twice, which
    keeps the leading part of all eigenvectors, and :func:`_consensus` cuts the result. Arguments and errors are those
    of :func:`kmeans`.

    >>> points = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
    >>> spectral(points, Knowledge.join([-1] * 6), 2).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    from scipy.sparse import csr_array
    from sklearn.neighbors import NearestNeighbors

    points = np.asarray(points, np.float64)
    n = len(points)
    if n_clusters >= n - 1:  # no neighbours are left to speak of
        return kmeans(points, knowledge, n_clusters, seed)
    if n_clusters > MANY_CLUSTERS:
        return _consensus(points, knowledge, n_clusters, seed)
    n_neighbours = min(NEIGHBOURS, n - 1)
    distance, nearest = NearestNeighbors(n_neighbors=n_neighbours).fit(points).kneighbors()
    reach = distance[:, n_neighbours // 2]  # the scale of each row's surroundings
    scale = np.maximum(reach[:, None] * reach[nearest], np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):  # among equal rows
        weight = np.exp(-(distance**2) / scale) + 1e-6  # equal and far rows stay connected
    graph = csr_array((weight.ravel(), (np.repeat(np.arange(n), n_neighbours), nearest.ravel())), shape=(n, n))
    return kmeans(spectral_rows(graph.maximum(graph.T), n_clusters, seed), knowledge, n_clusters, seed)


def spectral_rows(graph: Any, n_clusters: int, seed: int = 0) -> Floats:
    """(n, n_clusters) leading eigenvectors of a symmetric sparse graph, its rows of length one."""
    from scipy.sparse import diags_array, eye_array
    from sklearn.utils.extmath import randomized_svd

    n = graph.shape[0]
    degree = diags_array(1 / np.sqrt(np.maximum(graph.sum(1), np.finfo(np.float64).tiny)))
    # Half of it and of the identity has no negative eigenvalue, so singular vectors are eigenvectors. A method for
    # blocks of vectors finds all of those of separate pieces of the graph, which have the same eigenvalue.
    smooth = (degree @ graph @ degree + eye_array(n)) / 2
    vectors = randomized_svd(smooth.tocsr(), n_clusters, n_iter=30, power_iteration_normalizer="QR", random_state=seed)[
        0
    ]
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(length, np.finfo(np.float64).tiny)


def _consensus(points: Floats, knowledge: Knowledge, n_clusters: int, seed: int) -> Ints:
    """What several starts of :func:`kmeans` of smoothed points agree about.

    With many clusters every start ends elsewhere: it splits some clusters and merges others. Each start gives, for
    every row, the share of its neighbours in each cluster. :func:`kmeans` of all these shares keeps together what most
    starts keep together.
    """
    from scipy.sparse import csr_array, hstack
    from sklearn.decomposition import TruncatedSVD
    from sklearn.neighbors import NearestNeighbors

    n = len(points)
    nearest = NearestNeighbors(n_neighbors=min(NEIGHBOURS, n - 1)).fit(points).kneighbors(return_distance=False)
    smooth, ones = _smoothed(points, nearest[:, :SMOOTHING_NEIGHBOURS]), np.ones(n)
    few = nearest[:, : max(3, n // (3 * n_clusters))]  # not many more than a small cluster has
    around = csr_array(
        (np.full(few.size, 1 / few.shape[1]), (np.repeat(np.arange(n), few.shape[1]), few.ravel())), (n, n)
    )
    shares = []
    for number in range(MEMBERS):
        found = kmeans(smooth, knowledge, n_clusters, seed + number, free_restarts=1)
        shares.append(around @ csr_array((ones, (np.arange(n), found)), (n, n_clusters)))
    room = min(n_clusters, CONSENSUS_DIMENSIONS)
    joined = plain(TruncatedSVD(room, random_state=seed)).fit_transform(hstack(shares).tocsr())
    return kmeans(joined, knowledge, n_clusters, seed)


def _smoothed(points: Floats, nearest: Ints) -> Floats:
    """Each row as the mean of itself and its nearest others, twice."""
    around = np.concatenate([np.arange(len(points))[:, None], nearest], axis=1)
    for _ in range(SMOOTHING_ROUNDS):
        points = points[around].mean(1)
    return points


def gaussian(
    points: Any,
    knowledge: Knowledge,
    n_clusters: int,
    seed: int = 0,
    start: Any = None,
    evidence: Floats | float = 0.0,
) -> Ints:
    """Clusters (n,) from 0 by a mixture of Gaussians under constraints.

    Every cluster has a covariance of its own, so clusters may be long, wide and of different sizes. Each covariance is
    pulled towards the mean one as if 8 (d + 1) more rows spoke for that, so a cluster of few rows has one too. Rows of
    a group have the responsibilities of their cluster. Of more than 20 dimensions the leading principal components are
    taken.

    Args:
        points: (n, d).
        knowledge: labels and pairs that the clusters agree with.
        n_clusters: k.
        seed: of ties, and of :func:`kmeans`.
        start: (n,) clusters to start from, which agree with the knowledge; None takes those of :func:`kmeans`. These
            split large clusters where there are small ones.
        evidence: (n, k) what else speaks for each cluster of ``start``, added to the logarithms of the densities.

    Raises:
        ValueError: no way was found to put the groups into ``n_clusters`` clusters.

    >>> rng = np.random.default_rng(0)
    >>> points = np.concatenate([rng.normal(size=(99, 2)) * [9, 0.1], rng.normal(size=(99, 2)) * [9, 0.1] + [0, 3]])
    >>> found = gaussian(points, Knowledge.join([0] * 9 + [-1] * 180 + [1] * 9), 2)
    >>> bool((found == np.repeat([0, 1], 99)).all())
    True
    """
    points = leading_components(np.asarray(points, np.float64), GAUSSIAN_DIMENSIONS)
    start = kmeans(points, knowledge, n_clusters, seed) if start is None else np.asarray(start, np.int64)
    return _fit_mixture(lambda share: log_densities(points, share) + evidence, knowledge, n_clusters, start, seed)[0]


def indicators(rows: Any) -> Floats | None:
    """A 0 or 1 for each value of each column, where at least 90 % of the columns have few values; else None.

    Columns are left out that are constant or have more than 10 values.

    >>> indicators(np.array([[5.0, 1.0], [3.0, 1.0], [5.0, 1.0], [5.0, 1.0]])).astype(int).tolist()
    [[0, 1], [1, 0], [0, 1], [0, 1]]
    """
    parts, n_many = [], 0
    for column in np.asarray(rows).T:
        values, codes = np.unique(column, return_inverse=True)
        if len(values) > min(MOST_VALUES, len(column) // 2):
            n_many += 1
        elif len(values) > 1:
            parts.append(codes[:, None] == np.arange(len(values)))
    n_values = sum(part.shape[1] for part in parts)
    if len(parts) < max(1, SHARE_OF_CATEGORIES * (len(parts) + n_many)) or len(rows) * n_values > MOST_INDICATORS:
        return None
    return np.concatenate(parts, axis=1).astype(np.float64)


def latent_classes(values: Floats, knowledge: Knowledge, n_clusters: int, seed: int = 0, start: Any = None) -> Ints:
    """Clusters (n,) from 0 by latent class analysis under constraints, for tables of categories.

    It is a mixture in which every cluster has its own frequencies of the values of each column. Two values are
    equal or not; which is the larger one does not matter. Rows of a group have the responsibilities of their cluster.

    Args:
        values: (n, values) of :func:`indicators`.
        knowledge: labels and pairs that the clusters agree with.
        n_clusters: k.
        seed: of ties, and of :func:`kmeans`.
        start: (n,) clusters to start from, which agree with the knowledge. Another start is :func:`kmeans` of the
            indicators. The likelier of the two results is taken.

    Raises:
        ValueError: no way was found to put the groups into ``n_clusters`` clusters.

    >>> values = indicators(np.repeat([[0, 0, 1], [1, 2, 0], [2, 1, 1]], 9, axis=0))
    >>> latent_classes(values, Knowledge.join([0] + [-1] * 26), 3).tolist() == np.repeat([0, 1, 2], 9).tolist()
    True
    """
    starts = [kmeans(values, knowledge, n_clusters, seed)]
    if start is not None and int(np.max(start)) + 1 == n_clusters:
        starts.append(np.asarray(start, np.int64))
    results = [
        _fit_mixture(lambda share: log_chances(values, share), knowledge, n_clusters, each, seed) for each in starts
    ]
    return max(results, key=lambda result: result[1])[0]


def _fit_mixture(
    densities: Callable[[Floats], Floats], knowledge: Knowledge, n_clusters: int, start: Ints, seed: int
) -> tuple[Ints, float]:
    """Expectation maximisation under constraints.

    Args:
        densities: shares of the rows (n, k) in the clusters -> log of weight times density (n, k).
        knowledge: what the clusters agree with.
        n_clusters: k.
        start: (n,) clusters, which agree with it.
        seed: of ties.

    Returns:
        Clusters (n,), those of the start if one of the others has lost its rows, and the mean log likelihood.
    """
    group = knowledge.group
    members = [np.flatnonzero(group == number) for number in range(len(knowledge.apart))]
    rng = np.random.default_rng(seed)
    colours = np.array([start[rows[0]] for rows in members], np.int64)
    share = np.zeros((len(start), n_clusters))
    share[np.arange(len(start)), start] = 1
    before = -np.inf
    for _ in range(MIXTURE_ROUNDS):
        density = densities(share)
        total = np.logaddexp.reduce(density, axis=1)
        share = np.exp(density - total[:, None])
        if members:
            colours = colour_groups(
                -np.stack([density[rows].sum(0) for rows in members]), knowledge.apart, rng, colours
            )
            known = np.flatnonzero(group >= 0)
            share[known] = 0
            share[known, colours[group[known]]] = 1
        if total.mean() - before < MIXTURE_GAIN:
            break
        before = total.mean()
    found = share.argmax(1)
    kept = len(np.unique(found)) == n_clusters  # a cluster may lose its rows
    return by_first_row(found) if kept else start, float(total.mean())


def classifier(points: Any, knowledge: Knowledge, n_clusters: int, seed: int = 0) -> Ints:
    """Clusters (n,) from 0 by a logistic regression on the labels, where every cluster is a labelled class.

    Arguments are those of :func:`kmeans`; nothing is random.

    Raises:
        ValueError: some cluster has no labelled class.

    >>> points = np.array([[0.0], [0.1], [0.4], [5.0], [5.1]])
    >>> classifier(points, Knowledge.join([-1, 0, -1, -1, 1]), 2).tolist()
    [0, 0, 0, 1, 1]
    """
    from sklearn.preprocessing import StandardScaler

    check_classes(knowledge, n_clusters)
    if n_clusters == 1:
        return np.zeros(len(knowledge.group), np.int64)
    rows = plain(StandardScaler()).fit_transform(np.asarray(points, np.float64))
    return predict_classes(logistic_regression, rows, knowledge)


def predict_classes(fit: Callable[[Floats, Ints], Any], rows: Floats, knowledge: Knowledge) -> Ints:
    """Clusters (n,) from 0 by a classifier that ``fit(rows, classes)`` returns; labelled rows keep their class."""
    group = knowledge.group
    known = group >= 0
    with _one_label_is_enough():
        model = fit(rows[known], group[known])
    return by_first_row(np.where(known, group, model.predict(rows)))


def logistic_regression(points: Floats, labels: Ints) -> Any:
    """scikit-learn's, fitted."""
    from sklearn.linear_model import LogisticRegression

    with _one_label_is_enough():
        return LogisticRegression(max_iter=CLASSIFIER_ROUNDS).fit(points, labels)


def trees(columns: Floats, knowledge: Knowledge) -> Ints:
    """Clusters (n,) from 0 by extremely randomised trees: for columns of many kinds, and many that say nothing."""
    from sklearn.ensemble import ExtraTreesClassifier

    return predict_classes(ExtraTreesClassifier(N_TREES, random_state=0).fit, columns, knowledge)


def support_vectors(columns: Floats, knowledge: Knowledge) -> Ints:
    """Clusters (n,) from 0 by a support vector machine: for classes with a curved border between them.

    Raises:
        ValueError: there are more labelled rows than it can handle in a reasonable time.
    """
    from sklearn.svm import SVC

    if (n_labels := int((knowledge.labels >= 0).sum())) > MOST_SUPPORT:
        raise ValueError(f"support vectors are sought among at most {MOST_SUPPORT} labelled rows, got {n_labels}.")
    return predict_classes(SVC(C=PENALTY).fit, columns, knowledge)


CLASSIFIERS: dict[str, Callable[[Floats, Knowledge], Ints]] = {"trees": trees, "support vectors": support_vectors}


def _one_label_is_enough() -> AbstractContextManager[None]:
    """Without scikit-learn's warning that classes have few rows each."""
    return ignored_warnings(message="The number of unique classes is greater")


def check_classes(knowledge: Knowledge, n_clusters: int) -> None:
    """A ValueError unless every cluster is a labelled class, as :func:`classifier` needs it."""
    if not are_classes(knowledge, n_clusters):
        raise ValueError(
            f"cut 'classifier' needs a labelled class for each of the {n_clusters} clusters, got "
            f"{len(knowledge.apart)} classes. Take another cut."
        )


def are_classes(knowledge: Knowledge, n_clusters: int) -> bool:
    """Whether every cluster is a labelled class."""
    return knowledge.all_apart and len(knowledge.apart) == n_clusters


def leading_components(points: Floats, most: int) -> Floats:
    """Centred, of mean square one, and of at most so many dimensions: the principal components of largest variance."""
    points = points - points.mean(0)
    if points.shape[1] > most:
        from sklearn.decomposition import PCA

        with np.errstate(divide="ignore", invalid="ignore"):  # shares of a variance of zero, where all rows are equal
            points = plain(PCA(min(most, len(points)), random_state=0)).fit_transform(points)
    size = np.sqrt((points**2).mean())
    return points / size if size > 0 else points


def log_densities(points: Floats, share: Floats, prior: int = GAUSSIAN_PRIOR) -> Floats:
    """(n, k) log of weight times density of each cluster, whose parameters are those of the rows it has a share of.

    ``prior`` rows a dimension speak for the mean covariance of all clusters.
    """
    from scipy.linalg import solve_triangular

    n, d = points.shape
    weight = np.maximum(share.sum(0), np.finfo(np.float64).tiny)
    centres = share.T @ points / weight[:, None]
    scatter = np.stack(
        [(rows := points - centre).T @ (rows * own[:, None]) for centre, own in zip(centres, share.T, strict=True)]
    )
    mean, extra = scatter.sum(0) / n, prior * (d + 1)
    density = np.empty(share.shape)
    for number, (centre, own) in enumerate(zip(centres, weight, strict=True)):
        covariance = (scatter[number] + extra * mean) / (own + extra) + 1e-6 * np.eye(d)
        root = np.linalg.cholesky(covariance)
        whitened = solve_triangular(root, (points - centre).T, lower=True, overwrite_b=True, check_finite=False)
        density[:, number] = np.log(own / n) - np.log(np.diag(root)).sum() - 0.5 * (whitened**2).sum(0)
    return density


def log_chances(values: Floats, share: Floats) -> Floats:
    """(n, k) log of weight times chance of each row's values in each cluster, whose frequencies are those of its rows.

    Two rows speak for the frequencies in the whole table, and one for a cluster, so nothing is impossible.
    """
    own = share.sum(0)
    frequencies = (values.T @ share + VALUE_PRIOR * values.mean(0)[:, None]) / (own + VALUE_PRIOR)
    return np.asarray(values @ np.log(frequencies) + np.log((own + 1) / (len(values) + share.shape[1])))


def first_centres(
    points: Floats,
    squares: Floats,
    group: Ints,
    members: list[Ints],
    are_classes: bool,
    n_clusters: int,
    rng: np.random.Generator,
) -> Floats:
    """Means of the groups if they are classes, and rows drawn by their squared distance from the centres so far."""
    centres = np.empty((0, points.shape[1]))
    if are_classes and members:
        centres = np.stack([points[rows].mean(0) for rows in members])
    if len(centres) == 0:
        centres = points[[rng.integers(len(points))]]
    nearest = squared_distances(points, squares, centres).min(1)
    if are_classes:
        nearest[group >= 0] = 0
    while len(centres) < n_clusters:
        if nearest.sum() > 0:
            tried = rng.choice(len(points), 4, p=nearest / nearest.sum())
        else:
            tried = rng.choice(len(points), 1)
        left = np.minimum(nearest[:, None], squared_distances(points, squares, points[tried]))
        best = int(left.sum(0).argmin())
        centres, nearest = np.concatenate([centres, points[tried[[best]]]]), left[:, best]
    return centres


def free_kmeans(points: NDArray[Any], n_clusters: int, seed: int, restarts: int) -> Any:
    """scikit-learn's k-means, which knows nothing about the rows, fitted."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with ignored_warnings(ConvergenceWarning):  # where rows are equal there are fewer clusters
        return KMeans(n_clusters, n_init=restarts, random_state=seed).fit(points)


def squared_distances(points: Floats, squares: Floats, centres: Floats) -> Floats:
    """(n, k) squared distances of rows, whose squared lengths are given, from centres."""
    return np.maximum(squares[:, None] - 2 * points @ centres.T + (centres**2).sum(1), 0)


def _lloyd(
    points: Floats,
    squares: Floats,
    members: list[Ints],
    group: Ints,
    apart: NDArray[np.bool_],
    centres: Floats,
    rng: np.random.Generator,
) -> tuple[Ints, float]:
    """Clusters, and the sum of squared distances from their centres."""
    k = len(centres)
    clusters = np.full(len(points), -1)
    colours: Ints | None = None
    distances = np.empty((0, 0))
    for _ in range(ROUNDS):
        distances = squared_distances(points, squares, centres)
        found = distances.argmin(1)
        if members:
            cost = np.stack([distances[rows].sum(0) for rows in members])
            colours = colour_groups(cost, apart, rng, colours)
            found = np.where(group >= 0, colours[group], found)
        if np.array_equal(found, clusters):
            break
        clusters = found
        sizes = np.bincount(clusters, minlength=k)
        sums = np.eye(k)[clusters].T @ points
        # A centre that lost all of its rows moves to the row that is farthest from its own.
        own = distances[np.arange(len(points)), clusters]
        for empty in np.flatnonzero(sizes == 0):
            row = int(np.where(group < 0, own, -1).argmax())
            own[row], sums[empty], sizes[empty] = 0, points[row], 1
        centres = sums / sizes[:, None]
    return clusters, float(distances[np.arange(len(points)), clusters].sum())


def by_first_row(clusters: Ints) -> Ints:
    """Clusters numbered by their first row."""
    names, first, numbers = np.unique(clusters, return_index=True, return_inverse=True)
    position = np.empty(len(names), np.int64)
    position[np.argsort(first)] = np.arange(len(names))
    return position[numbers]
