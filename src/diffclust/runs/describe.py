"""What is in each cluster: the columns that tell it apart, and its typical rows. The content of ``clusters.json``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.tables import Table

N_TELLING, N_TYPICAL = 5, 3
MOST_DIGITS = 7  # of features, which have 32 bits
LEAST_DIFFERENCE = 0.2  # standard deviations. Below this, a column says little about a cluster.


class TellingColumn(NamedTuple):
    """A column whose mean in a cluster differs from its mean elsewhere."""

    column: str
    here: float  # mean of the rows of the cluster
    elsewhere: float  # mean of all other rows
    difference: float  # between the two, in standard deviations of the column
    text: str  # "height: 5.1 here, 2.2 elsewhere"


def describe_clusters(
    table: Table, clusters: NDArray[Any], names: list[str], embeddings: NDArray[Any]
) -> list[dict[str, Any]]:
    """Number, name, size, telling columns and typical rows of each cluster, as JSON.

    Images, and arrays without names of columns, have no telling columns. Typical rows are those whose embeddings (n, e)
    are nearest to the mean of their cluster.
    """
    telling: list[list[TellingColumn]] = [[] for _ in names]
    if table.texts is not None:
        telling = telling_words(table.texts, clusters, len(names))
    elif table.measured is not None:
        telling = telling_columns(*table.measured, clusters, len(names), order=_marker_genes(table, clusters, names))
    elif table.columns is not None:
        telling = telling_columns(table.features, table.columns, clusters, len(names), table.column_kinds())
    return [
        {
            "cluster": number,
            "name": name,
            "rows": int((clusters == number).sum()),
            "telling": [each._asdict() for each in telling[number]],
            "typical": [
                {
                    "row": row,
                    "id": None if table.row_names is None else table.row_names[row],
                    **({} if table.texts is None else {"text": table.texts[row]}),
                }
                for row in _typical(embeddings, np.flatnonzero(clusters == number))
            ],
        }
        for number, name in enumerate(names)
    ]


def _marker_genes(table: Table, clusters: NDArray[Any], names: list[str]) -> list[list[int]] | None:
    """The columns of ``table.measured`` that scanpy ranks first for each cluster; None if it is not installed."""
    from diffclust.cells import rank_genes

    if table.measured is None or table.encoding is None or table.encoding["kind"] != "cells":
        return None
    matrix, genes = table.measured
    position = {gene: column for column, gene in enumerate(genes)}
    ranking = rank_genes(matrix, genes, clusters, [str(number) for number in range(len(names))])
    if ranking is None:
        return None
    return [[position[gene] for gene in ranking["names"][str(number)][:N_TELLING]] for number in range(len(names))]


def telling_words(texts: Sequence[str], clusters: NDArray[Any], n_clusters: int) -> list[list[TellingColumn]]:
    """Which words tell each cluster apart: those of largest class-based TF-IDF, each with its share of the texts.

    That is the share of a word among the words of the cluster, times log(1 + A / f): f is how often it is in all
    texts, and A the mean number of words of a cluster.

    >>> texts = ["the router is slow", "the router is off", "my card is lost", "the card is new"]
    >>> [each.text for each in telling_words(texts, np.array([0, 0, 1, 1]), 2)[0]][:1]
    ['router: 100 % here, 0 % elsewhere']
    """
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import CountVectorizer

    model = CountVectorizer(min_df=min(2, len(texts)), token_pattern=r"(?u)\b[^\W\d]\w+\b")
    try:
        counts = csr_array(model.fit_transform(texts))
    except ValueError:  # no word is in two texts
        return [[] for _ in range(n_clusters)]
    inside = csr_array((np.ones(len(texts)), (clusters, np.arange(len(texts)))), shape=(n_clusters, len(texts)))
    of_cluster = (inside @ counts).toarray()
    n_words = of_cluster.sum(1, keepdims=True)
    score = of_cluster / np.maximum(n_words, 1) * np.log1p(n_words.mean() / of_cluster.sum(0))
    order = [np.argsort(-row, kind="stable")[:N_TELLING].tolist() for row in score]
    words = model.get_feature_names_out().tolist()
    return telling_columns((counts > 0).astype(np.float64), words, clusters, n_clusters, order=order)


def _typical(embeddings: NDArray[Any], rows: NDArray[np.int64]) -> list[int]:
    points = embeddings[rows].astype(np.float64)
    distance = np.linalg.norm(points - points.mean(0), axis=1)
    return [int(row) for row in rows[np.argsort(distance, kind="stable")[:N_TYPICAL]]]


def telling_columns(
    features: Any,
    columns: list[str],
    clusters: NDArray[Any],
    n_clusters: int,
    kinds: list[str] | None = None,
    order: list[list[int]] | None = None,
) -> list[list[TellingColumn]]:
    """Which columns tell each cluster apart: those whose mean differs most from that of all other rows.

    Features (n, d) may be sparse. Of the kinds of columns, "date" is written as one, and "vector" is left out.
    ``order`` has for each cluster the columns to say, the clearest first; None finds them.

    >>> width, red = np.array([1.0, 1.2, 5.0, 5.2]), np.array([1, 1, 1, 0])
    >>> found = telling_columns(np.stack([width, red], 1), ["width", "colour = red"], np.array([0, 0, 1, 1]), 2)
    >>> [each.text for each in found[1]]
    ['width: 5.1 here, 1.1 elsewhere', 'colour = red: 50 % here, 100 % elsewhere']
    """
    sums, squares, low, high = _sums(features, clusters, n_clusters)
    sizes = np.bincount(clusters, minlength=n_clusters)[:, None]
    n = sizes.sum()
    here = sums / np.maximum(sizes, 1)
    elsewhere = (sums.sum(0) - sums) / np.maximum(n - sizes, 1)
    variance = squares / n - (sums.sum(0) / n) ** 2
    deviation = np.sqrt(np.maximum(variance, 0))
    difference = np.divide(here - elsewhere, deviation, out=np.zeros_like(here), where=deviation > 1e-9)
    kinds = kinds or ["number"] * len(columns)
    are_shares = (low == 0) & (high == 1) & (squares == sums.sum(0))  # zeros and ones
    kinds = ["share" if is_share else kind for kind, is_share in zip(kinds, are_shares, strict=True)]
    difference[:, [kind == "vector" for kind in kinds]] = 0
    found = []
    for number in range(n_clusters):
        best = np.argsort(-np.abs(difference[number]), kind="stable")[:N_TELLING] if order is None else order[number]
        found.append(
            [
                TellingColumn(
                    columns[c],
                    float(here[number, c]),
                    float(elsewhere[number, c]),
                    float(difference[number, c]),
                    f"{columns[c]}: {_show_both(here[number, c], elsewhere[number, c], kinds[c])}",
                )
                for c in best
                if abs(difference[number, c]) >= LEAST_DIFFERENCE
            ]
        )
    return found


def _sums(features: Any, clusters: NDArray[Any], n_clusters: int) -> tuple[NDArray[np.float64], ...]:
    """Sums of each cluster, (k, d); and over all rows, (d,): sums of squares, smallest and largest values."""
    n_columns = features.shape[1]
    sums = np.zeros((n_clusters, n_columns))
    squares, low, high = np.zeros(n_columns), np.full(n_columns, np.inf), np.full(n_columns, -np.inf)
    for number in range(n_clusters):
        block = features[np.flatnonzero(clusters == number)].astype(np.float64)
        if block.shape[0] == 0:
            continue
        sums[number] = np.asarray(block.sum(0)).ravel()
        squares += np.asarray((block.multiply(block) if hasattr(block, "multiply") else block**2).sum(0)).ravel()
        low, high = np.minimum(low, _extreme(block.min(axis=0))), np.maximum(high, _extreme(block.max(axis=0)))
    return sums, squares, low, high


def _extreme(values: Any) -> NDArray[np.float64]:
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values).ravel()


def _show_both(here: float, elsewhere: float, kind: str) -> str:
    """Two means as texts, with more digits where three do not tell them apart."""
    for digits in range(3, MOST_DIGITS + 1):
        one, other = (show_value(each, kind, digits) for each in (here, elsewhere))
        if one != other:
            break
    else:
        one, other = show_value(here, kind), show_value(elsewhere, kind)
    return f"{one} here, {other} elsewhere"


def show_value(value: float, kind: str, digits: int = 3) -> str:
    """A value of a column as text: a share in per cent, a date as one, any other number in at least so many digits."""
    if kind == "share":
        return f"{value:.0%}".replace("%", " %")
    if kind == "date":
        return str(np.datetime64(0, "D") + np.timedelta64(math.floor(value), "D"))
    if 10**digits - 0.5 <= abs(value) < 10**15:  # 2.02e+03 is no year
        return f"{float(f'{value:.{MOST_DIGITS}g}'):.0f}"
    return f"{value:.{digits}g}"
