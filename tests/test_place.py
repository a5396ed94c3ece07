"""Rows of files in pieces: the same as all at once, in any form; and on the partitions of Dask and Ray."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

pytest.importorskip("lightning")
pd = pytest.importorskip("pandas")

from diffclust.runs import fit_run, load_run, place, place_file  # noqa: E402
from diffclust.tables import read_table  # noqa: E402
from diffclust.training import TrainingConfig  # noqa: E402
from diffclust.training.data import as_rows  # noqa: E402

CONFIG = TrainingConfig(n_clusters=3, n_steps=5, batch_size=16, backbone="linear", device="cpu")


def make_frame(n, seed=0):
    """Two columns of numbers, a category whose values look like numbers in some pieces, an id and a label."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n) % 3
    columns = rng.normal(size=(n, 2)) + 6 * np.eye(3)[kind][:, :2]
    shop = np.where(np.arange(n) < n // 3, "01", np.array(["x", "y"])[np.arange(n) % 2])
    frame = pd.DataFrame(columns, columns=["width", "height"]).assign(shop=shop, key=[f"r{i}" for i in range(n)])
    return frame.assign(kind=np.where(np.arange(n) < n // 2, kind, -1))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    table = read_table(make_frame(60), "kind")
    fit_run(table, CONFIG, folder / "run", report=False, progress=False, cut="k-means", say=lambda text: None)
    return load_run(folder / "run")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """New rows in files, in pieces of seven."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(place, "PIECE_ROWS", 7)
    frame = make_frame(40, seed=1)
    frame.to_csv("new.csv", index=False)
    frame.to_csv("new.csv.gz", index=False)
    frame.to_parquet("new.parquet", index=False)
    return frame


@pytest.mark.parametrize("source", ["new.csv", "new.csv.gz", "new.parquet"])
def test_pieces_of_a_file_are_placed_as_the_whole_table(run, files, source):
    assert place_file(run, Path(source), Path("placed.csv")) == (40, int(run.place(files).unlike.sum()))
    found = pd.read_csv("placed.csv", dtype={"id": str})
    whole = run.place_frame(files)
    assert list(found.columns) == ["row", "cluster", "name", "confidence", "novelty", "id", "unlike"]
    assert found["row"].tolist() == list(range(40))
    assert found["id"].tolist() == files["key"].tolist()
    assert found["cluster"].tolist() == whole["cluster"].tolist()
    assert found["confidence"].tolist() == whole["confidence"].tolist()


def test_parquet_out_has_the_columns_of_csv_out(run, files):
    place_file(run, Path("new.csv"), Path("placed.csv"))
    place_file(run, Path("new.csv"), Path("placed.parquet"))
    table = pd.read_parquet("placed.parquet")
    table["unlike"] = table["unlike"].astype(int)
    expected = pd.read_csv("placed.csv", dtype={"name": str})
    pd.testing.assert_frame_equal(table.astype({"name": str, "id": str}), expected)


def test_out_is_no_other_form_and_nothing_that_is_read(run, files):
    for out in ("placed.xlsx", "placed.csv.gz", "placed.tsv"):
        with pytest.raises(ValueError, match=r"placed\..* must be a \.csv or \.parquet file"):
            place_file(run, Path("new.csv"), Path(out))
    Path("link.csv").symlink_to("new.csv")
    for out in ("new.csv", "link.csv", run.folder / "clusters.csv"):
        before = Path(out).read_bytes()
        with pytest.raises(ValueError, match=r"\.csv is read here, and would be overwritten"):
            place_file(run, Path("new.csv"), Path(out))
        assert Path(out).read_bytes() == before


def test_npy_in_pieces(run, files):
    features = read_table(files, "kind", encoding=run.encoding).features
    np.save("new.npy", features)
    place_file(run, Path("new.npy"), Path("placed.csv"))
    assert pd.read_csv("placed.csv")["cluster"].tolist() == run.cluster(features).tolist()


def test_error_names_the_row_and_leaves_no_file(run, files):
    text = Path("new.csv").read_text().splitlines()
    text[20] = "x" + text[20]
    Path("bad.csv").write_text("\n".join(text))
    with pytest.raises(ValueError, match=r"bad.csv, from row 14 on: column 'width' is 'x.*, in row 5"):
        place_file(run, Path("bad.csv"), Path("placed.csv"))
    assert not list(Path().glob("*placed*"))
    pd.DataFrame({"height": [1.0]}).to_csv("lacks.csv", index=False)
    with pytest.raises(ValueError, match="it lacks width"):
        place_file(run, Path("lacks.csv"), Path("placed.csv"))


def test_remark_about_a_column_is_made_once(run, files):
    files.assign(shop="nowhere").to_csv("other.csv", index=False)
    said = []
    place_file(run, Path("other.csv"), Path("placed.csv"), say=said.append)
    assert len(said) == 1
    assert "'shop'" in said[0]


def test_no_rows_are_a_frame_with_the_same_columns_and_types(run, files):
    some, none = run.place_frame(files), run.place_frame(files.head(0))
    assert len(none) == 0
    assert none.dtypes.equals(some.dtypes)


def as_csv(frame):
    """Placed rows as the command writes them."""
    text = io.StringIO()
    frame = frame.reset_index(drop=True).rename_axis("row").reset_index()
    frame["unlike"] = frame["unlike"].astype(int)
    for column in ("confidence", "novelty"):
        frame[column] = frame[column].map("{:.4f}".format)
    frame.to_csv(text, index=False)
    return text.getvalue()


def lines_of_page(start):
    """The block of code on the page about big data that begins so, with samples of 20 rows."""
    page = (Path(__file__).parents[1] / "docs" / "big-data.md").read_text("utf-8")
    blocks = [block for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if start in block]
    assert len(blocks) == 1
    return blocks[0].replace("30_000", "20")


def test_sample_of_the_page_keeps_all_labelled_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("big").mkdir()
    frame = make_frame(90).assign(kind=np.where(np.arange(90) % 9 == 0, "x", ""))
    frame[:40].to_parquet("big/1.parquet", index=False)
    frame[40:].to_parquet("big/2.parquet", index=False)
    exec(lines_of_page("import pyarrow.dataset"), {})
    found = pd.read_parquet("sample.parquet")
    assert (found["kind"] == "x").sum() == 10
    assert (found["kind"] == "").sum() == 20
    assert found["key"].is_unique


def test_lines_of_the_page_train_on_a_mapped_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    truth = np.arange(300) % 10
    np.save("big.npy", (np.random.default_rng(0).normal(size=(300, 12)) + 20 * np.eye(12)[truth]).astype(np.float32))
    np.save("labels.npy", np.where(np.arange(300) < 40, truth, -1))
    exec(lines_of_page("mmap_mode").replace("neighbours=0", "neighbours=0, n_steps=5, device='cpu'"), {})
    found = np.loadtxt("clusters.txt", int)
    assert len(found) == 300
    assert adjusted_rand_score(truth, found) > 0.9


def test_rows_of_a_mapped_file_are_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5, 3), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert as_rows(mapped).data_ptr() == mapped.ctypes.data


@pytest.mark.slow
def test_dask_gives_the_same_bytes(run, files):
    dataframe = pytest.importorskip("dask.dataframe")
    place_file(run, Path("new.parquet"), Path("placed.csv"))
    rows = dataframe.from_pandas(files, npartitions=3)
    placed = rows.map_partitions(run.place_frame, meta=run.place_frame(rows.head(0)))
    assert as_csv(placed.compute(scheduler="processes", num_workers=1)) == Path("placed.csv").read_text()


@pytest.mark.slow
def test_ray_gives_the_same_bytes(run, files, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    place_file(run, Path("new.parquet"), Path("placed.csv"))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        rows = ray.data.from_pandas([files[:20], files[20:]])
        placed = rows.map_batches(run.place_frame, batch_format="pandas", batch_size=10).to_pandas()
    finally:
        ray.shutdown()
    assert as_csv(placed) == Path("placed.csv").read_text()
