"""Going on from an earlier run: its labels, weights and names; and ``diffclust ask``."""

import csv
import dataclasses
import shlex
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightning")
torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

import diffclust as dc  # noqa: E402
from diffclust import report, training  # noqa: E402
from diffclust.answers import Answers  # noqa: E402
from diffclust.cli import app  # noqa: E402
from diffclust.files import write_atomically  # noqa: E402
from diffclust.runs import fit_run, load_run, refit_input  # noqa: E402
from diffclust.runs.summary import _how_to_go_on  # noqa: E402
from diffclust.tables import Table  # noqa: E402

N = 60
CONFIG = training.TrainingConfig(batch_size=16, n_draws=3, n_steps=6, validate_every=6, device="cpu", backbone="linear")


def make_table(labelled=(0, 4, 8, 1, 5), rows=None, ids=False):
    """Four blobs; the labels of some rows, of cats and dogs; of the rows with these numbers."""
    truth = np.arange(N) % 4
    x = (np.random.default_rng(0).normal(size=(N, 4)) + 8 * np.eye(4)[truth]).astype(np.float32)
    labels = np.full(N, -1, np.int64)
    labels[list(labelled)] = truth[list(labelled)]
    rows = np.arange(N) if rows is None else rows
    names = [f"row {row}" for row in rows] if ids else None
    return Table(x[rows], labels[rows], ["cat", "dog"], "blobs", row_names=names)


def fit(folder, table, n_clusters=4, **options):
    options = {"progress": False, "say": lambda text: None, "cut": "k-means", **options}
    return fit_run(table, dataclasses.replace(CONFIG, n_clusters=n_clusters), folder, **options)


@pytest.fixture(autouse=True)
def _no_report(monkeypatch):
    """Drawing takes longer than everything else."""
    monkeypatch.setattr(report, "write_report", lambda data, path: write_atomically(path, "<html></html>"))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_report", lambda data, path: write_atomically(path, "<html></html>"))
        folder = tmp_path_factory.mktemp("first") / "run"
        fit(folder, make_table((0, 4, 8, 12, 16, 1, 5, 9, 13, 17)), holdout=0.2)
    return load_run(folder)


def name_of_each_row(run):
    return np.array(run.names)[run.clusters]


# ------------------------------------------------------------------------------------------------------ what was told


def test_a_run_knows_what_it_was_told(first):
    known = first.known
    assert (known.labels >= 0).sum() == 8
    assert (known.held_out >= 0).sum() == 2
    assert not ((known.labels >= 0) & (known.held_out >= 0)).any()
    assert (first.knowledge().labels == known.labels).all()
    assert first.row_names is None


def test_a_run_is_not_asked_about_rows_whose_label_was_given(first):
    rows = {asked.row for asked in dc.suggest(first, N)}
    assert rows == set(range(N)) - {0, 4, 8, 12, 16, 1, 5, 9, 13, 17}


def test_answers_and_the_labels_of_the_run_come_together(first):
    order = np.random.default_rng(1).permutation(N)
    table = make_table((), order)  # no labels of its own, and the rows in another order
    answers = Answers({0: "eel"}, must_link=[(1, 2)])
    told = refit_input(table, first, answers)
    names = [told.table.class_names[label] if label >= 0 else "" for label in told.table.labels]
    place = {row: position for position, row in enumerate(order)}
    assert told.table.class_names == ["cat", "dog", "eel"]
    assert names[0] == "eel"
    assert {names[place[row]] for row in (4, 8, 12, 16) if place[row]} == {"cat"}
    assert sum(map(bool, names)) == 10 + (order[0] not in (0, 4, 8, 12, 16, 1, 5, 9, 13, 17))
    assert set(order[told.held_out]) == set(np.flatnonzero(first.known.held_out >= 0)) - {order[0]}
    assert told.must_link == [(1, 2)]


def test_an_answer_about_a_held_out_row_is_used(first):
    row = int(np.flatnonzero(first.known.held_out >= 0)[0])
    labelled = int(np.flatnonzero(first.known.labels >= 0)[0])
    told = refit_input(make_table(()), first, Answers({row: "unknown", labelled: "NA"}))
    assert told.table.class_names == refit_input(make_table(()), first, Answers()).table.class_names
    assert (told.table.labels[[row, labelled]] == -1).all()
    told = refit_input(make_table(()), first, Answers({row: "eel"}))
    assert not told.held_out[row]
    assert told.held_out.sum() == 1


def test_pairs_of_the_run_follow_their_rows(tmp_path):
    fit(tmp_path / "a", make_table((0, 1)), must_link=[(2, 6), (3, 7)], cannot_link=[(2, 3)])
    order = np.array([9, 6, 2, 3, 0, 1, 4, 5])  # row 7 is gone
    told = refit_input(make_table((), order), load_run(tmp_path / "a"), Answers())
    assert told.must_link == [(2, 1)]
    assert told.cannot_link == [(2, 3)]


def test_pairs_that_may_be_wrong_keep_their_weights_and_come_back_though_not_believed(tmp_path):
    pairs = {"must_link": [(2, 6), (3, 7), (2, 5)], "cannot_link": [(2, 3)]}  # the third one is wrong
    fit(tmp_path / "a", make_table((0, 1)), **pairs, must_weights=[np.inf, np.nan, 1.5])
    told = refit_input(make_table(()), load_run(tmp_path / "a"), Answers(must_link=[(10, 14)]))
    weights = dict(zip(told.must_link[1:], map(str, told.must_weights.tolist()), strict=True))
    assert told.must_link[0] == (10, 14)
    assert weights == {(2, 6): "inf", (3, 7): "nan", (2, 5): "1.5"}
    assert told.cannot_weights.tolist() == [np.inf]


def test_labels_that_may_be_wrong_keep_their_weights_and_come_back_though_not_believed(tmp_path):
    table = make_table(range(0, N, 2))
    labels, weights = table.labels.copy(), np.full(N, np.inf)
    labels[6], weights[[4, 6, 8]] = 0, [2.5, 1.5, np.nan]  # row 6 is of class 2
    table = dataclasses.replace(table, labels=labels, class_names=["cat", "dog", "eel"])
    run = fit(tmp_path / "a", table, label_weights=weights)
    assert run.known.labels[6] == -1
    told = refit_input(make_table(()), load_run(tmp_path / "a"), Answers({8: "cat"}))
    assert told.table.class_names[told.table.labels[6]] == "cat"
    assert dict(enumerate(told.label_weights[[4, 6, 8, 0]].tolist())) == {0: 2.5, 1: 1.5, 2: np.inf, 3: np.inf}
    same = make_table((4,))  # the table says the same as the run, or something else
    assert refit_input(same, run, Answers()).label_weights[4] == 2.5
    other = dataclasses.replace(same, labels=np.where(same.labels == 0, 1, -1))
    assert np.isinf(refit_input(other, run, Answers()).label_weights[4])


def test_rows_are_matched_by_ids_where_there_are_any(tmp_path):
    table = make_table((0, 4, 1, 5), ids=True)
    fit(tmp_path / "a", table)
    run = load_run(tmp_path / "a")
    assert run.row_names == table.row_names
    changed = dataclasses.replace(make_table((), ids=True), features=table.features + 1)
    assert (refit_input(changed, run, Answers()).table.labels >= 0).sum() == 4
    unnamed = dataclasses.replace(changed, row_names=None)
    assert (refit_input(unnamed, run, Answers()).table.labels >= 0).sum() == 0


def test_suspects_are_left_out_unless_they_are_confirmed(tmp_path):
    table = make_table(range(N))
    wrong = np.array([2, 7])
    labels = np.arange(N) % 4
    labels[wrong] = 0
    table = dataclasses.replace(table, labels=labels, class_names=["cat", "dog", "eel", "fox"])
    run = fit(tmp_path / "a", table, cut="auto")
    assert {suspect["row"] for suspect in run.metrics["suspects"]} == set(wrong)
    with (tmp_path / "a" / "suspects.csv").open() as file:
        assert {row["row"]: (row["given"], row["instead"]) for row in csv.DictReader(file)} == {
            "2": ("cat", "eel"),
            "7": ("cat", "fox"),
        }
    assert "2 labels look wrong: see suspects.csv." in run.metrics["remarks"]
    told = refit_input(table, run, Answers({7: "cat"}), drop_suspects=True).table
    assert (np.flatnonzero(told.labels < 0) == [2]).all()
    assert told.labels[7] == 0


def test_the_report_shows_the_rows_that_it_asks_about(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(report, "write_report", lambda data, path: drawn.append(data))
    fit(tmp_path / "columns", dataclasses.replace(make_table(), columns=["a", "b", "c", "d"]))
    fit(tmp_path / "texts", dataclasses.replace(make_table(), texts=[f"text {row}" for row in range(N)]))
    for data in drawn:
        assert len(data.asked.rows) == 20
        assert len(data.asked.pairs) == 10
        assert set(data.asked.facts) == set(data.asked.all_rows())
        assert list(data.cluster_names) == ["cat", "dog", "new 1", "new 2"]
    row = drawn[0].asked.rows[0].row
    values = {name: float(value) for name, value in drawn[0].asked.facts[row]}
    assert values == pytest.approx(dict(zip("abcd", make_table().features[row], strict=True)), rel=1e-3)
    assert drawn[1].asked.facts[row] == [("text", f"text {row}")]


# ------------------------------------------------------------------------------------------------------------- weights


def test_a_warm_start_has_the_weights_of_the_earlier_run(first):
    module = training.fit(
        dataclasses.replace(CONFIG, n_clusters=4, n_steps=1, learning_rate=1e-30),
        make_table().features,
        make_table().labels,
        progress=False,
        warm=first.module,
    )
    x = make_table().features + 1
    np.testing.assert_array_equal(training.embed(module, x), training.embed(first.module, x))


def test_a_warm_start_from_another_network_is_refused(first, tmp_path):
    table = dataclasses.replace(make_table(), features=make_table().features[:, :3])
    with pytest.raises(ValueError, match=r"The network of warm has .*rows of \(4,\), the new one .*rows of \(3,\)"):
        fit(tmp_path / "b", table, warm=first)
    assert not (tmp_path / "b").exists()


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("how", ["warm", "like"])
def test_clusters_of_a_second_fit_keep_names_numbers_and_colours(first, tmp_path, how):
    assert sorted(first.names) == ["cat", "dog", "new 1", "new 2"]
    order = np.random.default_rng(2).permutation(N)
    second = fit(tmp_path / "b", make_table((0, 4, 8, 1, 5), order), **{how: first})
    assert (name_of_each_row(second) == name_of_each_row(first)[order]).all()
    assert (second.clusters == first.clusters[order]).all()
    assert second.metrics["cluster_colours"] == first.metrics["cluster_colours"] == [0, 1, 2, 3]
    assert load_run(tmp_path / "b").names == second.names


def test_a_new_cluster_that_is_labelled_now_keeps_number_and_colour(first, tmp_path):
    row = int(np.flatnonzero(name_of_each_row(first) == "new 2")[0])
    told = refit_input(make_table(), first, Answers({row: "eel"}))
    second = fit(tmp_path / "b", told.table, warm=first, held_out=told.held_out)
    renamed = {"new 2": "eel"}
    assert name_of_each_row(second).tolist() == [renamed.get(name, name) for name in name_of_each_row(first)]
    assert (second.clusters == first.clusters).all()


def test_a_split_is_said_and_the_part_gets_a_fresh_name_and_colour(first, tmp_path):
    second = fit(tmp_path / "b", make_table(), n_clusters=5, like=first)
    assert set(second.names) == {*first.names, "new 3"}
    assert sorted(second.metrics["cluster_colours"]) == [0, 1, 2, 3, 4]
    assert any("was split: a part of it is now new 3" in sentence for sentence in second.metrics["remarks"])


def test_other_rows_cannot_keep_names(first, tmp_path):
    table = dataclasses.replace(make_table(), features=make_table().features + 1)
    with pytest.raises(ValueError, match=r"No row of the data is in .*: names of its clusters cannot be kept"):
        fit(tmp_path / "b", table, like=first)


# ---------------------------------------------------------------------------------------------------- the command line


def test_the_command_that_goes_on_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my data.csv").touch()
    again = "--more answers.csv --warm"
    assert _how_to_go_on("my data.csv", "a b") == f"diffclust fit 'my data.csv' {again} 'a b' --out 'a b-2'"
    assert _how_to_go_on("digits of scikit-learn", "run") == f"diffclust fit {again} run --out run-2"
    assert _how_to_go_on("The data frame", "run") == f"diffclust fit DATA {again} run --out run-2"


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_fit_ask_answer_and_fit_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = make_table()
    names = np.array(["cat", "dog", "eel", "fox"])[np.arange(N) % 4]
    with open("data.csv", "w") as file:
        file.write("a,b,c,d,kind\n")
        for x, label in zip(table.features, table.labels, strict=True):
            file.write(",".join(map(str, x)) + f",{names[label] if label >= 0 else ''}\n")
    settings = ("--batch-size", 16, "--draws", 3, "--backbone", "linear", "--device", "cpu", "--cut", "k-means", "-q")
    result = call("fit", "data.csv", "--labels", "kind", "--clusters", 4, "--steps", 6, "--out", "a", *settings)
    assert result.exit_code == 0, result.output
    result = call("ask", "a", "-n", 6, "--out", "questions.csv")
    assert result.exit_code == 0, result.output
    assert "nothing is known about cluster new 1" in " ".join(result.output.split())
    assert call("ask", "a", "-n", 6, "--out", "questions.csv").exit_code == 0  # nothing is answered yet
    for path, content in (("filled.csv", "row,label\n0,cat\n"), ("other.csv", "a,b\n1,2\n")):
        Path(path).write_text(content)
        assert "has more than unanswered questions" in call("ask", "a", "--out", path).output
        assert Path(path).read_text() == content
    assert "must be a .csv file" in call("ask", "a", "--out", "questions.xlsx").output
    with open("questions.csv") as file:
        questions = list(csv.DictReader(file))
    assert len(questions) == 6
    with open("answers.csv", "w") as file:
        file.write("row,label\n" + "".join(f"{asked['row']},{names[int(asked['row'])]}\n" for asked in questions))
    again = ("fit", "data.csv", "--labels", "kind", "--more", "answers.csv", "--warm", "a", "--steps", 3)
    result = call(*again, "--out", "b", *settings)
    assert result.exit_code == 0, result.output
    run = load_run("b")
    assert sorted(run.names) == ["cat", "dog", "eel", "fox"]
    assert (run.clusters == load_run("a").clusters).all()
    assert run.settings["clusters"] == 4
    assert (run.known.labels >= 0).sum() + (run.known.held_out >= 0).sum() == 11
    command = _how_to_go_on("data.csv", "a")  # as the report shows it: the column of labels is no feature of the run
    result = call(*shlex.split(command)[1:], "--steps", 3, *settings)
    assert result.exit_code == 0, result.output
    assert (load_run("a-2").known.labels == run.known.labels).all()
    assert load_run("a-2").metrics["reading"] == ["The columns are read as in a."]
    assert call("ask", "b", "--kind", "pairs", "-n", 3).exit_code == 0
    assert "--drop-suspects needs --warm" in call("fit", "data.csv", "--drop-suspects").output
