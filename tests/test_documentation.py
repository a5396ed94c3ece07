"""The pages of the site: their code runs, and their numbers are those of the csv files."""

import contextlib
import csv
import io
import re
import statistics
import sys
import types
from pathlib import Path

import pytest
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [DOCS / "start.md", DOCS / "text.md", *sorted((DOCS / "coming-from").glob("*.md"))]
RUNNABLE = [page for page in PAGES if page.name != "index.md"]


def code(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_the_lines_run(page):
    blocks = code(page)
    assert blocks
    for block in blocks:
        for name in set(re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)):
            pytest.importorskip(name)
        if "metric_learning" in block:
            pytest.importorskip("pytorch_metric_learning")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, str(page), "exec"), {})


def test_the_ten_lines_of_the_readme_run():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    (block,) = code(ROOT / "README.md")
    images, digits = load_digits(return_X_y=True)
    points = torch.tensor(images / 16, dtype=torch.float32)
    loader = [(points[rows], torch.tensor(digits)[rows]) for rows in torch.arange(1792).split(128)]
    names = {"loader": loader, "test_points": points}
    exec(compile(block, "README.md", "exec"), names)
    assert names["clusters"].max() == 9


@pytest.mark.parametrize("page", [page for page in RUNNABLE if page.parent.name == "coming-from"], ids=lambda p: p.stem)
def test_a_page_of_coming_from_is_short_and_says_when_to_stay(page):
    text = page.read_text("utf-8")
    assert "**Stay with" in text
    assert len(code(page)) == 1
    assert len([line for line in code(page)[0].splitlines() if line and "import" not in line]) <= 10


def test_lines_fit():
    """But for tables, pictures and commands, which cannot be broken."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md"), *DOCS.glob("coming-from/*.md")]:
        lines = page.read_text("utf-8").splitlines()
        assert [line for line in lines if len(line) > 120 and not line.startswith(("|", "![", "python -m"))] == [], page


# ------------------------------------------------------------------------------------------------------------- numbers


def read(name):
    with (ROOT / "results" / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mean_ari(method, share):
    found = [
        float(row["ari"]) for row in read("small_sets.csv") if row["method"] == method and float(row["share"]) == share
    ]
    return f"{statistics.fmean(found):.3f}"


def test_numbers_of_the_small_sets_are_those_of_the_file():
    limits = (DOCS / "limits.md").read_text("utf-8")
    for method in ("forest", "robust forest", "k-means", "Ward", "Gaussian mixture"):
        assert mean_ari(method, 0.0) in limits, method
    assert mean_ari("ForestEmbedding", 0.01) in limits
    readme = (ROOT / "README.md").read_text("utf-8")
    for share in (0.01, 0.05, 0.2):
        assert f"{mean_ari('ForestEmbedding', share)}" in readme, share
    for method in ("forest", "Gaussian mixture"):
        assert mean_ari(method, 0.0) in readme, method


def test_speeds_of_the_readme_are_those_of_the_files():
    readme = (ROOT / "README.md").read_text("utf-8")
    for row in read("points.csv"):
        assert f"{float(row['ratio']):.1f}x" in readme, row
    times = {int(row["points"]): float(row["ms"]) for row in read("gpu.csv") if row["kind"] == "points"}
    for n, digits in ((64, 3), (256, 2), (1024, 1), (8192, 0)):
        assert f"{times[n]:.{digits}f} ms" in readme, n


# ----------------------------------------------------------------------------------------- pages that the build writes


@pytest.fixture
def build_pages(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "build_pages", raising=False)
    import build_pages

    return build_pages


def test_every_public_name_has_a_page(build_pages):
    pytest.importorskip("lightning")
    pytest.importorskip("pytorch_metric_learning")
    import diffclust

    names = {module: build_pages.public_names(module, listed) for _, module, listed in build_pages.REFERENCE}
    shown = {name for name in diffclust.__all__ if not isinstance(getattr(diffclust, name), types.ModuleType)}
    assert set(names["diffclust"]) == shown
    assert {"ForestEmbedding", "SpanningForestClustering"} <= set(names["diffclust.cluster"])


def test_tables_are_made_from_the_files(build_pages, tmp_path):
    build_pages.write_results(tmp_path / "results")
    text = (tmp_path / "results" / "tables.md").read_text("utf-8")
    assert f"| ForestEmbedding |  | **{mean_ari('ForestEmbedding', 0.01)}** |" in text
    shown = set(re.findall(r"From \[(\w+\.csv)\]", text))
    assert shown == {path.name for path in (ROOT / "results").glob("*.csv")}


def test_the_reading_order_has_every_example(build_pages):
    names = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"many_ranks", "jax_devices"}
    assert set(build_pages.READING_ORDER) == names


def test_links_of_the_repository_become_links_of_the_site(build_pages):
    source = ["[a](../results/README.md) [b](../examples/two_moons.py) [c](../examples/many_ranks.py) [d](design.md)"]
    build_pages.rewrite_links(None, "page", source)
    address = f"{build_pages.REPOSITORY}/blob/main/examples/many_ranks.py"
    assert source[0] == f"[a](/results/README.md) [b](/gallery/two_moons.rst) [c]({address}) [d](design.md)"


def test_publishing_keeps_a_folder_for_each_version(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(DOCS))
    import publish

    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("page")
    pages = tmp_path / "pages"
    pages.mkdir()
    for version in ("dev", "v0.9.0", "v0.10.0"):
        publish.place(tmp_path / "site", version, pages)
    assert "url=v0.10.0/" in (pages / "index.html").read_text()
    assert (pages / "v0.9.0" / "index.html").exists()
    assert '"version": "dev"' in (pages / "switcher.json").read_text()
