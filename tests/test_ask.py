"""What to label next, answers, labels that look wrong, and names that stay."""

import numpy as np
import pytest

import diffclust as dc
from diffclust.answers import questions_csv, read_answers
from diffclust.continuation import continue_clusters, continue_colours, match_rows, row_keys
from diffclust.mistakes import label_chances, suspect_labels, suspect_pairs
from diffclust.partition import partition
from diffclust.suggestions import PairQuestion, RowQuestion, _State, _uncertainty
from diffclust.tables import read_labels, read_pairs


def blobs(n=40, k=4, spread=0.5):
    """k blobs of n rows on a line, four apart; and their classes."""
    truth = np.repeat(np.arange(k), n)
    noise = np.random.default_rng(0).normal(size=(n * k, 2))
    return np.stack([4.0 * truth, 0 * truth], 1) + spread * noise, truth


def told(truth, rows):
    known = np.full(len(truth), -1)
    known[rows] = truth[rows]
    return known


# ----------------------------------------------------------------------------------------------------------- questions


def test_each_cluster_without_an_answer_is_asked_about_first_and_once():
    x, truth = blobs()
    found = partition(x, dc.Knowledge.join(told(truth, [0])), 4)
    questions = dc.suggest(found, 6)
    assert sorted(truth[[asked.row for asked in questions[:3]]]) == [1, 2, 3]
    assert [asked.why.startswith("nothing is known") for asked in questions] == [True] * 3 + [False] * 3


def test_the_first_row_of_a_new_cluster_is_typical():
    x, truth = blobs()
    found = partition(x, dc.Knowledge.join(told(truth, [0, 41, 81])), 4)
    (asked,) = dc.suggest(found, 1)
    distance = np.linalg.norm(x[truth == 3] - x[truth == 3].mean(0), axis=1)
    assert distance[asked.row - 120] < np.median(distance)


def test_rows_between_clusters_come_before_rows_inside_them():
    x, truth = blobs(spread=1.0)
    known = told(truth, np.concatenate([np.flatnonzero(truth == c)[:8] for c in range(4)]))
    questions = dc.suggest(partition(x, dc.Knowledge.join(known), 4), 8)
    from_border = np.abs((x[:, 0] + 2) % 4 - 2)  # 2 in the middle between two blobs
    assert np.mean(from_border[[asked.row for asked in questions]]) > np.mean(from_border)


def test_a_row_that_looks_like_another_class_than_its_cluster_is_uncertain():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)) + 9 * np.repeat([0, 1], 30)[:, None]
    labels = np.full(60, -1)
    labels[[*range(10), *range(30, 40)]] = np.repeat([4, 7], 10)
    clusters = np.repeat([0, 1], [31, 29])  # row 30 is in the cluster of the others' class
    labels[30] = -1
    known, closed = dc.Knowledge.join(labels), labels >= 0
    state = _State(x, "euclidean", clusters, ["a", "b"], np.ones(60), known, closed)
    uncertain = _uncertainty(state)
    assert uncertain[30] > 0.9
    assert np.delete(uncertain, 30).max() < 0.3


def test_uncertainty_does_not_depend_on_the_numbers_of_classes():
    """Also not in a cluster in which no row is labelled, of which some rows are near one class, some near another."""
    x = np.random.default_rng(0).normal(size=(90, 3))
    x[:, 0] += np.repeat([9, -9, 3, -3], [30, 30, 15, 15])
    clusters = np.repeat([0, 1, 2], 30)
    found = []
    for first, second in ((4, 7), (7, 4)):
        labels = np.full(90, -1)
        labels[[*range(10), *range(30, 40)]] = np.repeat([first, second], 10)
        known = dc.Knowledge.join(labels)
        state = _State(x, "euclidean", clusters, ["a", "b", "c"], np.ones(90), known, labels >= 0)
        found.append(_uncertainty(state))
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


def test_questions_are_new_rows_and_all_different():
    x, truth = blobs()
    known = told(truth, np.arange(0, 160, 3))
    rows = [asked.row for asked in dc.suggest(partition(x, dc.Knowledge.join(known), 4), 1000)]
    assert sorted(rows) == np.flatnonzero(known < 0).tolist()


def test_equal_rows_are_asked_about_once_before_others():
    x = np.repeat([[0.0], [1.0], [5.0], [6.0]], 10, axis=0)
    questions = dc.suggest(partition(x, None, 2), 4)
    assert len({x[asked.row, 0] for asked in questions}) == 4


@pytest.mark.parametrize("metric", ["precomputed", "cosine", "manhattan"])
@pytest.mark.parametrize("kind", ["rows", "pairs"])
def test_other_metrics(metric, kind):
    x, truth = blobs(10)
    x = x + 1.0
    matrix = np.abs(x[:, None] - x).sum(2) if metric == "precomputed" else x
    found = partition(matrix, dc.Knowledge.join(told(truth, [0, 10])), 4, metric=metric)
    assert len(dc.suggest(found, 5, kind)) == 5


def test_of_many_rows_a_sample_is_looked_at(monkeypatch):
    from diffclust import suggestions

    monkeypatch.setattr(suggestions, "MOST_ROWS", 60)
    x, truth = blobs()
    questions = dc.suggest(partition(x, dc.Knowledge.join(told(truth, [0])), 4), 10)
    assert set(truth[[asked.row for asked in questions]]) == {0, 1, 2, 3}


def test_questions_about_pairs_do_not_run_dry_while_rows_are_unknown():
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 20)
    x = rng.normal(size=(60, 2)) + 3 * np.eye(3, 2)[truth]
    pairs = np.empty((0, 2), int)
    for _ in range(4):
        same = truth[pairs[:, 0]] == truth[pairs[:, 1]]
        found = partition(x, dc.Knowledge.join(np.full(60, -1), pairs[same], pairs[~same]), 3, cut="k-means")
        asked = dc.suggest(found, 12, "pairs")
        assert len(asked) == 12
        pairs = np.concatenate([pairs, [question[:2] for question in asked]])


def test_pairs_ask_what_is_not_known():
    x, truth = blobs()
    known = dc.Knowledge.join(told(truth, [0, 40]), must_link=[(1, 2), (80, 81)])
    found = partition(x, known, 4)
    questions = dc.suggest(found, 12, "pairs")
    pairs = {tuple(sorted((asked.row, asked.other))) for asked in questions}
    assert len(pairs) == len(questions) == 12
    assert not {(0, 40), (1, 2), (80, 81)} & pairs


def test_estimators_name_their_clusters():
    x, _ = blobs(10)
    y = np.where(np.arange(40) == 0, "cat", "")
    model = dc.cluster.SpanningForestClustering(4).fit(x, y)
    assert {asked.cluster for asked in dc.suggest(model, 3)} == {"new 1", "new 2", "new 3"}


def test_wrong_arguments_are_named():
    found = partition(blobs(5)[0], None, 4)
    with pytest.raises(ValueError, match="kind must be one of 'rows', 'pairs', got 'columns'"):
        dc.suggest(found, 3, "columns")
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        dc.suggest(found, 0)
    for n in (2.5, "3", None, True):
        with pytest.raises(TypeError, match="n must be an integer, got"):
            dc.suggest(found, n)
    with pytest.raises(TypeError, match="SpanningForestClustering is not fitted: call its fit first"):
        dc.suggest(dc.cluster.SpanningForestClustering(2))
    with pytest.raises(TypeError, match="model must be a run, a fitted estimator or a partition, got int"):
        dc.suggest(7)


@pytest.mark.slow
def test_asking_beats_random_rows():
    x, truth = blobs(30, 6, spread=1.1)
    scores = {}
    for how in ("ours", "random"):
        known = np.full(len(truth), -1)
        for step in range(5):
            found = partition(x, dc.Knowledge.join(known), 6, cut="k-means")
            rows = (
                [asked.row for asked in dc.suggest(found, 6)]
                if how == "ours"
                else np.random.default_rng(step).choice(np.flatnonzero(known < 0), 6, replace=False)
            )
            known[rows] = truth[rows]
        found = partition(x, dc.Knowledge.join(known), 6, cut="k-means")
        scores[how] = dc.metrics.clustering_scores(truth, found.clusters)["ari"]
    assert scores["ours"] > scores["random"]


# ------------------------------------------------------------------------------------------------------------- answers

ROWS = [RowQuestion(3, "new 1", 0.5, "a, b"), RowQuestion(0, "=x", 0.25, "c")]
PAIRS = [PairQuestion(3, 1, "new 1", 0.5, "why"), PairQuestion(0, 2, "x", 0.25, "why")]


def filled(text, *answers):
    header, *lines = text.splitlines()
    return "\n".join([header, *(line + answer for line, answer in zip(lines, answers, strict=True))])


def test_filled_in_questions_are_labels(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text(filled(questions_csv(ROWS), "cat", ""))
    assert read_answers(path, 4).labels == {3: "cat"}
    assert read_labels(path, 4).tolist() == ["", "", "", "cat"]
    with pytest.raises(ValueError, match=r"line 2: row must be a row number from 0 to 2, got '3'"):
        read_answers(path, 3)


def test_labels_that_are_no_answers_or_two(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("row,label\n0,?\n1,Unsure\n2,cat\n2,cat\n")
    assert read_answers(path, 4).labels == {2: "cat"}
    path.write_text("row,label\n2,cat\n2,dog\n")
    with pytest.raises(ValueError, match="line 3: row 2 has two labels, 'cat' and 'dog'"):
        read_answers(path, 4)
    path.write_bytes("row,label\n2,Mäuse\n".encode("latin-1"))
    with pytest.raises(ValueError, match="not a text file in UTF-8"):
        read_answers(path, 4)


def test_filled_in_pairs_are_pairs(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text(filled(questions_csv(PAIRS), "Same", "different"))
    found = read_answers(path, 4)
    assert (list(found.must_link), list(found.cannot_link)) == ([(3, 1)], [(0, 2)])
    assert read_pairs(path, 4, "must_link")[0] == [(3, 1)]
    assert read_pairs(path, 4, "cannot_link")[0] == [(0, 2)]
    path.write_text(filled(questions_csv(PAIRS), "maybe", ""))
    with pytest.raises(ValueError, match=r"line 2: answer must be same, different or empty, got 'maybe'"):
        read_answers(path, 4)


def test_ids_count_before_row_numbers(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text(filled(questions_csv(ROWS, ["a", "b", "c", "d"]), "cat", "dog"))
    assert read_answers(path, 4, ["d", "c", "b", "a"]).labels == {0: "cat", 3: "dog"}
    with pytest.raises(ValueError, match="no row of the data has the id 'd'"):
        read_answers(path, 4, ["a", "b", "c", "e"])


def test_ids_of_several_rows_give_way_to_row_numbers(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("row,id,label\n0,a,cat\n1,a,dog\n0,c,eel\n")
    assert read_answers(path, 3, ["a", "a", "c"]).labels == {0: "cat", 1: "dog", 2: "eel"}


def test_other_tables_are_not_answers(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="must have the columns row and label, or row, other and answer"):
        read_answers(path, 4)


# ------------------------------------------------------------------------------------------------------------ mistakes


def test_flipped_labels_look_wrong():
    _, truth = blobs()
    x = 4 * np.eye(4)[truth] + 0.5 * np.random.default_rng(0).normal(size=(160, 4))
    labels, wrong = truth.copy(), [7, 60, 130]
    labels[wrong] = (labels[wrong] + 1) % 4
    found = partition(x, dc.Knowledge.join(labels), 4)
    suspects = suspect_labels(found, list("abcd"))
    assert sorted(suspect.row for suspect in suspects) == wrong
    assert [("abcd"[labels[s.row]], "abcd"[truth[s.row]]) for s in suspects] == [(s.given, s.instead) for s in suspects]
    assert all(suspect.probability < 0.2 for suspect in suspects)


def test_the_only_label_of_a_class_is_not_judged():
    x, truth = blobs(10)
    known = told(truth, [*range(5), *range(10, 15), 20])
    chances = label_chances(partition(x, dc.Knowledge.join(known), 4))
    assert np.isnan(chances[20]).all()
    np.testing.assert_allclose(chances[:5].sum(1), 1)
    assert np.isnan(chances[5:10]).all()  # no label


@pytest.mark.parametrize("labels", [[], [0], [0, 0, 0], [0, 1]])
def test_few_labels_are_not_judged(labels):
    x, _ = blobs(5)
    known = np.full(20, -1)
    known[: len(labels)] = labels
    assert suspect_labels(partition(x, dc.Knowledge.join(known), 4), ["a", "b"]) == []


def test_pairs_across_clusters_look_wrong():
    x, _ = blobs()
    must_link, cannot_link = [(0, 1), (40, 41), (5, 100)], [(0, 50), (120, 121)]
    found = partition(x, dc.Knowledge.join(np.full(160, -1), must_link, cannot_link), 4)
    wrong = {(each.row, each.other, each.given) for each in suspect_pairs(found)}
    assert wrong == {(5, 100, "same"), (120, 121, "different")}


def test_hidden_labels_are_judged_by_embeddings_that_did_not_see_them():
    x, truth = blobs()
    labels = truth.copy()
    labels[3] = 2
    found = partition(x, dc.Knowledge.join(labels), 4, cut="auto", retrain=lambda known: x)
    chances = found.evidence.hidden_chances
    judged = ~np.isnan(chances).any(1)
    assert 0.5 < judged.mean() < 0.9  # each of three splits hides a third
    others = judged & (np.arange(160) != 3)
    assert (chances[others].argmax(1) == truth[others]).all()


# --------------------------------------------------------------------------------------------------------------- names


def test_clusters_keep_the_numbers_of_those_that_they_continue():
    old = np.repeat([2, 0, 1], 10)
    new = np.repeat([0, 1, 2], 10)
    new[0] = 2  # one row moved
    found = continue_clusters(new, old)
    assert found.continues.tolist() == [2, 0, 1]
    assert (found.split, found.merged) == ([], [])
    x = np.repeat([[0.0], [5.0], [9.0]], 10, axis=0)
    assert (partition(x, None, 3).like(old).clusters == old).all()


def test_a_split_and_a_merge_are_said():
    old = np.repeat([0, 1, 2], [20, 10, 10])
    new = np.repeat([0, 1, 2, 2], [12, 8, 10, 10])
    found = continue_clusters(new, old)
    assert found.continues.tolist() == [0, -1, 1]
    assert found.sentences(["a", "b", "c"], ["a", "d", "b"]) == [
        "Cluster a was split: a part of it is now d.",
        "Cluster c is now a part of b.",
    ]


def test_names_and_colours_of_gone_clusters_are_not_given_again():
    old = np.repeat([0, 1, 2], [10, 10, 1])
    new = np.append(np.repeat([0, 1], 10), [2])
    new[20] = 1
    new = np.append(new, [2, 2, 2])
    old = np.append(old, [-1, -1, -1])
    found = continue_clusters(new, old)
    assert found.continues.tolist() == [0, 1, -1]
    names = found.names(["cat", "new 1", "new 2"], np.array([0, -1, -1]), ["new 1", "new 2", "new 3"])
    assert names == ["cat", "new 2", "new 4"]
    assert continue_colours(found.continues, [0, 1, 2]) == [0, 1, 3]


def test_fewer_clusters_are_still_numbered_from_zero():
    found = continue_clusters(np.repeat([0, 1], 5), np.repeat([3, 1], 5))
    assert found.numbers().tolist() == [0, 1]


def test_rows_are_found_again_by_their_features():
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    x[5] = x[4]
    order = np.random.default_rng(1).permutation(20)
    found = match_rows(row_keys(x[order]), row_keys(x))
    assert (x[found] == x[order]).all()
    assert sorted(found) == list(range(20))
    assert (match_rows(row_keys(x + 1), row_keys(x)) == -1).all()
