"""What to ask next: the rows, or pairs of rows, whose answer would settle most.

    for question in dc.suggest(run, n=20):
        print(question.row, question.cluster, question.confidence, question.why)

An answer settles a row and, by and large, the rows around it. So each question goes to the row with most uncertainty in
its neighbourhood, and what its answer settles no longer counts for the next one: the questions are about different
things. How uncertain a row is follows from the probability of its cluster (:mod:`diffclust.confidence`) and from a
classifier of the answers, which may take the row for another class than that of its cluster. A row of a cluster about
which nothing is known is fully uncertain. A row without an answer in its neighbourhood is a little more uncertain than
others. The neighbourhoods of all answers and questions together have half as many rows as there are, so they shrink
with every answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from diffclust.confidence import neighbour_shares
from diffclust.cuts import logistic_regression
from diffclust.frameworks import check_at_least, plain
from diffclust.knowledge import Knowledge
from diffclust.partition import Partition
from diffclust.threads import small_in_one_thread
from diffclust.validation import check_choice

MOST_ROWS = 5000  # among which questions are looked for
UNCOVERED = 0.1  # the uncertainty, at least, of a row with no answer in its neighbourhood
COVERAGE = 0.5  # the share of the data that the neighbourhoods of all answers and questions would cover together
LEAST_NEIGHBOURS = 3  # rows of a neighbourhood, at least
DENSITY_NEIGHBOURS = 5  # by which the density of a row's surroundings is measured, at least
CLASSIFIER_WEIGHT = 0.5  # in a row's uncertainty

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class RowQuestion(NamedTuple):
    """Which class is this row?"""

    row: int
    cluster: str  # the name of the cluster that it is in
    confidence: float  # the probability that it belongs there
    why: str


class PairQuestion(NamedTuple):
    """Are these two rows of one class?"""

    row: int
    other: int
    cluster: str  # the name of the cluster that the first row is in
    same: float  # the probability that both are of one class
    why: str


@overload
def suggest(model: Any, n: int = 20, kind: Literal["rows"] = "rows") -> list[RowQuestion]: ...
@overload
def suggest(model: Any, n: int = 20, *, kind: Literal["pairs"]) -> list[PairQuestion]: ...
@overload
def suggest(model: Any, n: int, kind: Literal["pairs"]) -> list[PairQuestion]: ...
def suggest(model: Any, n: int = 20, kind: str = "rows") -> Any:
    """The rows, or pairs of rows, to ask a person about next: a batch in which no two ask for the same thing.

    Args:
        model: a :class:`diffclust.runs.Run`, a fitted :class:`diffclust.cluster.ForestEmbedding` or
            :class:`diffclust.cluster.SpanningForestClustering`, or a :class:`diffclust.partition.Partition`.
        n: number of questions. There are fewer where fewer rows are unknown.
        kind: "rows" asks for the class of a row, "pairs" whether two rows are of one class. The second row of a pair is
            a typical row of the cluster that the first one is in.

    Returns:
        Questions, the most important first.

    Raises:
        ValueError: ``n`` or ``kind`` is wrong.
        TypeError: the model is of another type, or ``n`` is no integer.

    Example:
        >>> from diffclust.partition import partition
        >>> x = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [9.0]])
        >>> found = partition(x, Knowledge.join([-1, 0, -1, -1, -1, -1, 1]), n_clusters=3)
        >>> [(asked.row, asked.why) for asked in suggest(found, n=1)]
        [(4, 'nothing is known about cluster 1 (3 rows)')]
    """
    check_choice("kind", kind, ("rows", "pairs"))
    check_at_least("n", n)
    state = _state_of(model)
    return _ask_rows(state, n) if kind == "rows" else _ask_pairs(state, n)


@dataclass(frozen=True, eq=False)
class _State:
    """What is asked about: points (n, d) or distances (n, n), their clusters (n,), and what is known."""

    points: NDArray[Any]
    metric: str
    clusters: NDArray[Any]
    names: list[str]
    confidence: Floats
    knowledge: Knowledge
    closed: NDArray[np.bool_]  # rows that need not be asked about

    @property
    def is_new(self) -> NDArray[np.bool_]:
        """(clusters,) whether nothing is known about a cluster."""
        new = np.ones(len(self.names), bool)
        new[self.clusters[self.knowledge.group >= 0]] = False
        return new


def _state_of(model: Any) -> _State:
    if hasattr(model, "fit") and not hasattr(model, "partition_"):
        raise TypeError(f"{type(model).__name__} is not fitted: call its fit first.")
    found = getattr(model, "partition_", model)
    if isinstance(found, Partition):
        names = getattr(model, "cluster_numbers_", range(found.n_clusters))
        points = found.distances() if found.metric == "precomputed" else found.points
        confidence = found.probabilities()[np.arange(len(points)), found.clusters]
        known, closed = found.knowledge, found.knowledge.labels >= 0
        return _State(points, found.metric, found.clusters, [str(name) for name in names], confidence, known, closed)
    if not hasattr(model, "known"):
        raise TypeError(f"model must be a run, a fitted estimator or a partition, got {type(model).__name__}.")
    known = model.knowledge()
    closed = (known.labels >= 0) | (model.known.held_out >= 0)
    return _State(model.embeddings, "euclidean", model.clusters, model.names, model.confidence, known, closed)


# ----------------------------------------------------------------------------------------------------------------- Rows


def _ask_rows(state: _State, n: int) -> list[RowQuestion]:
    return [
        RowQuestion(row, state.names[state.clusters[row]], float(state.confidence[row]), why)
        for row, why in _chosen(state, n)
    ]


@small_in_one_thread
def _chosen(state: _State, n: int) -> list[tuple[int, str]]:
    """The rows to ask about, each with the reason."""
    rows = _some_rows(state)
    clusters, closed = state.clusters[rows], state.closed[rows]
    answered = state.knowledge.group[rows] >= 0
    near, central = _neighbourhoods(state, rows, n)
    uncovered = np.ones(len(rows), bool)
    uncovered[near[answered].ravel()] = False
    uncertain = (_uncertainty(state)[rows] + UNCOVERED * uncovered) * ~closed
    is_new = state.is_new
    rivals = _rivals(state)
    questions = []
    for _ in range(min(n, int((~closed).sum()))):
        worth = np.where(is_new[clusters] & ~closed, 1.0, uncertain)[near].mean(1) + 1e-3 * central
        best = int(np.where(closed, -1, worth).argmax())
        row, cluster = int(rows[best]), int(clusters[best])
        questions.append((row, _reason(state, row, bool(is_new[cluster]), int(rivals[row]))))
        is_new[cluster] = False
        closed[best] = True
        uncertain[near[best]] = 0
    return questions


def _uncertainty(state: _State) -> Floats:
    """(n,) by the probability of a row's cluster and by a classifier of the answers so far, from 0 to 1.5."""
    from sklearn.preprocessing import StandardScaler

    uncertain = 1 - state.confidence
    known = state.knowledge.labels >= 0
    labels = state.knowledge.labels[known]
    if state.metric == "precomputed" or len(np.unique(labels)) < 2:
        return uncertain
    points = plain(StandardScaler()).fit_transform(np.asarray(state.points, np.float64))
    model = logistic_regression(points[known], labels)
    # 0 where it is sure of the class of most answers in the cluster, 1 where another is as likely, 2 at most.
    chances = model.predict_proba(points)
    votes = np.zeros((len(state.names), chances.shape[1]))
    np.add.at(votes, (state.clusters[known], np.searchsorted(model.classes_, labels)), 1)
    rows = np.flatnonzero(votes.max(1)[state.clusters])  # in a cluster without an answer every class is another one
    own = (rows, votes.argmax(1)[state.clusters[rows]])
    chance = np.zeros(len(chances))
    chance[rows] = chances[own]
    chances[own] = 0
    return (1 - CLASSIFIER_WEIGHT) * uncertain + CLASSIFIER_WEIGHT * (1 - chance + chances.max(1))


def _neighbourhoods(state: _State, rows: Ints, n: int) -> tuple[Ints, Floats]:
    """The neighbourhoods of some rows, and how central these are there.

    Returns:
        (rows, size) positions of the nearest rows, each among its own; (rows,) from 0 to 1: one where rows are densest.
    """
    from sklearn.neighbors import NearestNeighbors

    answers = int((state.knowledge.group >= 0).sum()) + n
    size = min(max(int(COVERAGE * len(rows) / answers), LEAST_NEIGHBOURS), len(rows))
    metric = "euclidean" if state.metric == "sqeuclidean" else state.metric
    points = state.points[np.ix_(rows, rows)] if metric == "precomputed" else state.points[rows]
    model = NearestNeighbors(n_neighbors=min(max(size, DENSITY_NEIGHBOURS), len(rows)), metric=metric)
    distance, near = model.fit(points).kneighbors(points)
    reach = distance.mean(1)
    return near[:, :size], 1 - reach / max(reach.max(), np.finfo(np.float64).tiny)


def _some_rows(state: _State) -> Ints:
    """All rows, or of very many those with a label and a sample of the others, uncertain ones rather than sure ones."""
    n = len(state.clusters)
    if n <= MOST_ROWS:
        return np.arange(n)
    chance = np.random.default_rng(0).random(n) / (1 - state.confidence + UNCOVERED)
    chance[state.knowledge.labels >= 0] = 0
    return np.sort(np.argsort(chance, kind="stable")[:MOST_ROWS])


def _reason(state: _State, row: int, is_new: bool, rival: int) -> str:
    """Why a row is asked about, for a person."""
    number = int(state.clusters[row])
    name = state.names[number]
    if is_new:
        return f"nothing is known about cluster {name} ({int((state.clusters == number).sum())} rows)"
    if rival >= 0:
        return f"between {name} and {state.names[rival]}"
    return f"no answer near it in cluster {name}"


def _rivals(state: _State) -> Ints:
    """(n,) the other cluster that most neighbours of a row are in, -1 where all are in its own."""
    shares = neighbour_shares(state.points, state.clusters, len(state.names), state.metric)
    shares[np.arange(len(shares)), state.clusters] = 0
    return np.where(shares.max(1) > 0, shares.argmax(1), -1)


# ---------------------------------------------------------------------------------------------------------------- Pairs


def _ask_pairs(state: _State, n: int) -> list[PairQuestion]:
    """Each row that would be asked about, beside a typical row of its cluster.

    Where it is that row itself, or the answer is known, a typical row of the nearest other cluster stands beside it.

    Returns:
        The questions.
    """
    typical = _typical_rows(state)
    nearest = _nearest_clusters(state, typical)
    questions: list[PairQuestion] = []
    asked: set[tuple[int, int]] = set()
    closed = state.closed.copy()
    for row in np.flatnonzero(state.knowledge.group >= 0).tolist():  # of others nothing is known
        own = int(state.clusters[row])
        others = (int(typical[own]), int(typical[nearest[own]]))
        closed[row] |= all(row == other or _is_known(state.knowledge, row, other) for other in others)
    for row, _ in _chosen(replace(state, closed=closed), 2 * n):
        own = int(state.clusters[row])
        for other, same in ((typical[own], state.confidence[row]), (typical[nearest[own]], 1 - state.confidence[row])):
            pair = (min(row, other), max(row, other))
            if row != other and pair not in asked and not _is_known(state.knowledge, row, other):
                asked.add(pair)
                why = f"whether it is of cluster {state.names[state.clusters[other]]}"
                questions.append(PairQuestion(row, int(other), state.names[own], float(same), why))
                break
    return questions[:n]


def _typical_rows(state: _State) -> Ints:
    """(clusters,) the labelled or surest row that is nearest to the middle of each cluster."""
    typical = np.zeros(len(state.names), np.int64)
    for number in range(len(state.names)):
        rows = np.flatnonzero(state.clusters == number)
        known = rows[state.knowledge.group[rows] >= 0]
        rows = known if len(known) else rows[state.confidence[rows] >= np.median(state.confidence[rows])]
        if state.metric == "precomputed":
            middle = state.points[rows][:, state.clusters == number].sum(1)
        else:
            middle = ((state.points[rows] - state.points[state.clusters == number].mean(0)) ** 2).sum(1)
        typical[number] = rows[middle.argmin()]
    return typical


def _nearest_clusters(state: _State, typical: Ints) -> Ints:
    """(clusters,) the other cluster whose typical row is nearest."""
    if state.metric == "precomputed":
        distance = np.array(state.points[np.ix_(typical, typical)], np.float64)
    else:
        middles = np.asarray(state.points[typical], np.float64)
        distance = ((middles[:, None] - middles) ** 2).sum(2)
    np.fill_diagonal(distance, np.inf)
    return distance.argmin(1)


def _is_known(knowledge: Knowledge, row: int, other: int) -> bool:
    """Whether what is known says that two rows belong together, or apart."""
    first, second = knowledge.group[row], knowledge.group[other]
    return bool(min(first, second) >= 0 and (first == second or knowledge.apart[first, second]))
