"""What is in each cluster: the columns that tell it apart, its typical rows, and the run from a table to new rows."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import sparse

pd = pytest.importorskip("pandas")
pytest.importorskip("lightning")

import diffclust as dc  # noqa: E402
from diffclust import report, training  # noqa: E402
from diffclust.files import write_atomically  # noqa: E402
from diffclust.runs import fit_run, summary  # noqa: E402
from diffclust.runs.describe import describe_clusters, telling_columns  # noqa: E402
from diffclust.tables import Table, read_table  # noqa: E402

CLUSTERS = np.array([0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([2011, 2011, 2011, 2019, 2019, 2019], "2011 here, 2019 elsewhere"),
        ([1.7e9, 1.7e9, 1.7e9, 1.70006e9, 1.70006e9, 1.70006e9], "1700000000 here, 1700060000 elsewhere"),
        ([10.001, 10.001, 10.001, 10.002, 10.002, 10.002], "10.001 here, 10.002 elsewhere"),
        ([999.7, 999.7, 999.7, 5, 5, 5], "1000 here, 5 elsewhere"),
        ([-28712.4, -28712.4, -28712.4, 0.25, 0.25, 0.25], "-28712 here, 0.25 elsewhere"),
    ],
)
def test_values_that_differ_are_shown_so_and_without_exponents(values, text):
    assert telling_columns(np.array(values)[:, None], ["x"], CLUSTERS, 2)[0][0].text == f"x: {text}"


def test_the_clearest_column_comes_first_and_equal_ones_are_not_named():
    same, clear, weak = [1, 2, 3, 1, 2, 3], [5, 5, 6, 1, 1, 2], [1, 2, 3, 2, 3, 4]
    found = telling_columns(np.stack([same, weak, clear], 1), ["same", "weak", "clear"], CLUSTERS, 2)
    assert [each.column for each in found[0]] == ["clear", "weak"]
    assert found[0][0].text == "clear: 5.33 here, 1.33 elsewhere"
    assert found[0][0].difference == -found[1][0].difference > 0
    assert found[0][0].difference == pytest.approx(4 / np.std(clear))


def test_shares_and_dates_are_written_as_such():
    red, day = [1, 1, 1, 0, 0, 1], [0, 1, 2, 365, 366, 367]
    features = np.stack([red, day], 1)
    found = telling_columns(features, ["colour = red", "when"], CLUSTERS, 2, ["category", "date"])
    assert {each.text for each in found[1]} == {
        "colour = red: 33 % here, 100 % elsewhere",
        "when: 1971-01-02 here, 1970-01-02 elsewhere",
    }


def test_sparse_columns_tell_the_same_and_vectors_tell_nothing():
    values = np.random.default_rng(0).poisson(1.0, (60, 9)).astype(np.float32)
    clusters, names = np.arange(60) % 3, [f"gene{number}" for number in range(9)]
    dense = telling_columns(values, names, clusters, 3)
    thin = telling_columns(sparse.csr_matrix(values), names, clusters, 3)
    assert [[each.column for each in cluster] for cluster in thin] == [[each.column for each in c] for c in dense]
    np.testing.assert_allclose(
        [each.difference for cluster in thin for each in cluster],
        [each.difference for cluster in dense for each in cluster],
    )
    assert telling_columns(values, names, clusters, 3, ["vector"] * 9) == [[], [], []]


def test_typical_rows_are_in_the_middle_and_have_their_ids():
    embeddings = np.array([[0.0], [1], [5], [10], [11], [18]])
    table = Table(np.zeros((6, 2), np.float32), np.full(6, -1), [], "rows", row_names=list("abcdef"))
    first, second = describe_clusters(table, CLUSTERS, ["x", "y"], embeddings)
    assert [each["id"] for each in first["typical"]] == ["b", "a", "c"]
    assert second["typical"][0] == {"row": 4, "id": "e"}
    assert (second["name"], second["rows"], second["telling"]) == ("y", 3, [])


# -------------------------------------------------------------------------------------------------------------- the run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a table with ids, a category and a missing number; the data of its report; and the table."""
    rng = np.random.default_rng(0)
    kind = np.arange(36) % 2
    frame = pd.DataFrame(
        {
            "id": [f"item {number}" for number in range(36)],
            "width": rng.normal(8 * kind),
            "colour": np.where(kind, "red", "blue"),
            "kind": np.where(np.arange(36) < 12, np.array(["cat", "dog"])[kind], ""),
        }
    )
    frame.loc[5, "width"] = np.nan
    seen, folder = [], tmp_path_factory.mktemp("run") / "run"
    config = training.TrainingConfig(batch_size=16, n_draws=3, n_steps=6, device="cpu", n_clusters=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_report", lambda data, path: (seen.append(data), write_atomically(path, "")))
        fit_run(
            read_table(frame, "kind"),
            config,
            folder,
            cut="forest",
            progress=False,
            say=lambda text: None,
        )
    return dc.load_run(folder), seen[0], frame


def test_files_of_a_run_have_ids_and_what_tells_clusters_apart(run):
    found, _, frame = run
    written = pd.read_csv(found.folder / "clusters.csv")
    assert written["id"].tolist() == frame["id"].tolist()
    described = json.loads((found.folder / "clusters.json").read_text("utf-8"))
    assert [cluster["name"] for cluster in described] == ["cat", "dog"]
    assert {each["text"] for each in described[1]["telling"]} >= {"colour = red: 100 % here, 0 % elsewhere"}
    assert found.metrics["reading"][-1] == "Missing values become the median of their column: 'width'."


def test_new_rows_of_a_frame_go_through_the_encoding_of_the_run(run):
    found, _, frame = run
    new = frame.drop(columns=["kind", "id"])[["colour", "width"]]
    np.testing.assert_array_equal(found.cluster(new), found.clusters)
    np.testing.assert_array_equal(found.place(new).clusters, found.clusters)
    polars = pytest.importorskip("polars")
    np.testing.assert_array_equal(found.cluster(polars.from_pandas(new)), found.clusters)
    with pytest.raises(ValueError, match="it lacks width"):
        found.cluster(new[["colour"]])


def test_the_report_shows_names_telling_columns_and_other_columns_as_colours(run):
    payload = report.payload.make_payload(run[1])
    assert payload["rows"]["name"][3] == "item 3"
    assert ["colour = red", "100 % here, 0 % elsewhere"] in payload["described"][1]["telling"]
    (colours,) = payload["groupings"]
    assert (colours["name"], colours["groups"], colours["sizes"]) == ("colour", ["blue", "red"], [18, 18])
    assert "Categories become a 0 or 1 for each value: 'colour'." in payload["reading"]
    many = dataclasses.replace(run[1], groupings={"id": np.arange(36).astype(str), "one": np.full(36, "x")})
    assert len(report.payload.make_payload(many)["groupings"]) == 1  # 36 colours are enough; one group says nothing


def test_a_question_about_a_row_shows_dates_and_categories_as_they_were():
    frame = pd.DataFrame(
        {
            "plan": ["basic", "plus", "basic", "pro"],
            "since": pd.to_datetime(["2024-05-01", "2024-05-02", "2024-05-03", "2025-01-01"]),
            "spend": [1.0, 2.0, 3.0, 4.5],
        }
    )
    facts = summary._row_facts(read_table(pd.concat([frame] * 3, ignore_index=True)), [1, 3])
    assert dict(facts[3]) == {"plan": "pro", "since": "2025-01-01", "spend": "4.5"}
    assert ("plan", "plus") in facts[1]
