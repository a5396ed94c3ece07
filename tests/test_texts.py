"""A column of texts through the command line, with a tiny model that is made here. Nothing is downloaded."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightning")
pd = pytest.importorskip("pandas")

from typer.testing import CliRunner  # noqa: E402

import diffclust as dc  # noqa: E402
from diffclust import cli  # noqa: E402
from diffclust.runs.describe import telling_words  # noqa: E402
from diffclust.tables import read_table, texts  # noqa: E402
from diffclust.tables.texts import TextColumn  # noqa: E402
from tickets import make_model, tickets  # noqa: E402

FAST = ["--steps", "30", "--batch-size", "32", "--draws", "3", "--device", "cpu", "--quiet", "--cut", "k-means"]
NAMES = np.array(["wifi", "money", "paper"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("sentence_transformers")  # not at the top: it takes seconds to import
    folder = tmp_path_factory.mktemp("model")
    make_model(folder / "bert").save(str(folder / "whole"))
    return str(folder / "whole")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages, topics = tickets(60, n_fillers=1)
    labels = np.where((np.arange(60) < 30) & (topics < 2), NAMES[topics], "")
    numbers = [f"t{number}" for number in range(60)]
    pd.DataFrame({"message": messages, "ticket_id": numbers, "intent": labels, "year": 2024}).to_csv(
        "tickets.csv", index=False
    )


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(each) for each in arguments])


def fit(model, *more):
    columns = ["--text", "message", "--labels", "intent", "--model", model]
    return call("fit", "tickets.csv", *columns, "--clusters", "3", *FAST, *more)


@pytest.mark.slow
def test_texts_in_clusters_words_and_places_of_new_texts_out(model):
    result = fit(model)
    assert result.exit_code == 0, (result.output, result.exception)
    run = dc.load_run("diffclust-run")
    assert run.settings["config"]["scaling"] == "unit"
    assert run.settings["encoding"] == {"kind": "text", "column": "message", "model": model, "id": "ticket_id"}
    described = json.loads(Path("diffclust-run/clusters.json").read_text())
    table = pd.read_csv("tickets.csv")
    for cluster in described:
        typical = cluster["typical"][0]
        assert typical["text"] == table["message"][typical["row"]]
        assert typical["id"] == table["ticket_id"][typical["row"]]
    by_name = {cluster["name"]: " ".join(each["column"] for each in cluster["telling"]) for cluster in described}
    assert any(word in by_name["wifi"] for word in ("router", "signal", "network", "cable"))
    page = Path("diffclust-run/report.html").read_text("utf-8")
    assert described[0]["typical"][0]["text"] in page
    placed = call("cluster", "diffclust-run", "tickets.csv", "--model", model, "--out", "placed.csv", "-q")
    assert placed.exit_code == 0, placed.output
    found = pd.read_csv("placed.csv")
    assert found["cluster"].tolist() == run.clusters.tolist()
    assert found["id"].tolist() == table["ticket_id"].tolist()


@pytest.mark.slow
def test_vectors_are_kept_in_the_run_and_not_made_again(model, monkeypatch):
    assert fit(model).exit_code == 0
    vectors = next(Path("diffclust-run").glob("texts-*.npy"))
    assert np.load(vectors).shape == (60, 16)
    Path("diffclust-run/manifest.json").unlink()  # as if it had been interrupted
    monkeypatch.setattr(texts, "embed_texts", lambda *arguments, **options: pytest.fail("embedded again"))
    again = fit(model, "--resume")
    assert again.exit_code == 0, (again.output, again.exception)


def test_other_texts_and_other_models_have_other_files():
    names = {
        texts.vectors_file(Path("run"), each, model).name
        for each in (["a", "b"], ["ab"], ["a", "c"])
        for model in ("small", "large")
    }
    assert len(names) == 6


@pytest.mark.slow
def test_a_folder_that_a_run_names_is_opened_only_if_it_is_named_again(model):
    assert fit(model).exit_code == 0
    refused = call("cluster", "diffclust-run", "tickets.csv")
    assert refused.exit_code == 2
    assert f"name it again: --model {model}" in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "massage"], "has no column 'massage'. It has message, ticket_id, intent, year."),
        pytest.param(
            ["--text", "message", "--model", "no/such-model"],
            "--model no/such-model cannot be loaded:",
            marks=pytest.mark.slow,
        ),
        (["--model", "small"], "--model small reads texts: name their column, --text COLUMN."),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, monkeypatch):
    if "no/such-model" in arguments:
        pytest.importorskip("sentence_transformers")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = call("fit", "tickets.csv", *arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_blank_text_and_array_without_columns(model):
    frame = pd.DataFrame({"message": ["router off", " ", "card lost"]})
    with pytest.raises(ValueError, match="'message' is blank in row 1"):
        read_table(frame, text=TextColumn("message", model))
    np.save("x.npy", np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"text='message' is for a table with columns, but x.npy is an array"):
        read_table("x.npy", text="message")


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"diffclust\[text\]"):
        texts.embed_texts(["a"], "small")


def test_telling_words_are_those_of_class_based_tfidf():
    messages, topics = tickets(90, seed=3)
    found = telling_words(messages, topics, 3)
    joined = [
        " ".join(text for text, topic in zip(messages, topics, strict=True) if topic == each) for each in range(3)
    ]
    for number, words in enumerate(found):
        first = words[0].column
        counts = [text.split().count(first) for text in joined]
        assert counts[number] == max(counts) == sum(counts)  # a word of this topic alone
        share = np.mean(
            [first in text.split() for text, topic in zip(messages, topics, strict=True) if topic == number]
        )
        assert words[0].here == pytest.approx(share)
    assert telling_words(["a b", "c d"], np.array([0, 1]), 2) == [[], []]
