"""The report: what goes into the page, and the page itself in a real browser with the network cut.

The browser is Debian's: apt-get install chromium chromium-driver. Without it those tests are skipped, unless
DIFFCLUST_BROWSER=required; DIFFCLUST_BROWSER=off skips them in any case.
"""

import base64
import dataclasses
import html
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sklearn
from PIL import Image

import diffclust as dc
from diffclust.answers import read_answers
from diffclust.evidence import Evidence
from diffclust.files import write_atomically
from diffclust.mistakes import Suspect
from diffclust.report import Asked, ReportData, maps, payload, write, write_report
from diffclust.report.images import sprite_sheet
from diffclust.report.rows import choose_rows, edges_between
from diffclust.report.slider import cut, guards, renumber, slider_range
from diffclust.stability import soft_connectivity
from diffclust.suggestions import PairQuestion, RowQuestion

pytest.importorskip("plotly")

PAGE = Path(write.__file__).parent / "page"
EVIL = "</script><script>window.stolen = 1</script>"


def make_data(n=150, n_clusters=6, guard=5, images=False, labelled=30, withheld=2, **changes):
    """Blobs on a circle; the last classes are never labelled."""
    random = np.random.default_rng(0)
    truth = np.arange(n) % n_clusters
    angle = 2 * np.pi * truth / n_clusters
    embeddings = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1) + 0.08 * random.normal(size=(n, 3))
    known = np.where((truth < n_clusters - withheld) & (np.arange(n) < labelled), truth, -1)
    hierarchy = dc.Hierarchy.from_similarity(dc.negative_squared_distances(embeddings))
    if (known >= 0).any():
        hierarchy = hierarchy.constrained(dc.Constraints.from_labels(known))
    raw = random.random((n, 8, 8)) if images else random.normal(size=(n, 5)) + truth[:, None]
    values = {
        "title": "Blobs & <b>more</b>", "raw": raw, "embeddings": embeddings, "hierarchy": hierarchy,
        "n_clusters": n_clusters, "min_cluster_size": guard, "clusters": hierarchy.labels(n_clusters, guard),
        "confidence": np.linspace(0.5, 1, n), "known": known, "truth": truth,
        "class_names": [EVIL, "<b>six</b>", *(f"class {c}" for c in range(2, n_clusters))],
        "curves": {"loss <i>": [(step, 1 / (step + 1)) for step in range(1000)], "broken": [(0, np.nan), (1, np.inf)]},
        "scores": [{"method": "k-means", "ours": False, "error": 0.2, "ari": 0.5, "accuracy": np.nan},
                   {"method": "diffclust", "ours": True, "error": 0.1, "ari": 0.9}],
        "facts": {"seed": "0", EVIL: EVIL}, "row_names": None, "how_to_load": "load()",
    }  # fmt: skip
    return ReportData(**{**values, **changes})


def edge_cases():
    return {
        "one point": make_data(1, 1, 1, labelled=0, withheld=0, truth=None, curves={}, scores=[], facts={}),
        "two equal points": make_data(2, 2, 1, labelled=0, embeddings=np.ones((2, 4)), raw=np.ones((2, 3)), truth=None),
        "one cluster": make_data(40, 1, 1, labelled=3, withheld=0),
        "k = n": make_data(35, 35, 1, labelled=0, withheld=0),
        "nothing known": make_data(labelled=0, truth=None, class_names=[], curves={}, scores=[], facts={}),
        "NaN in the data": make_data(raw=np.full((150, 3), np.nan), confidence=np.full(150, np.nan)),
        "colour images": make_data(raw=np.zeros((150, 4, 6, 3), np.uint8), row_names=[f"<i>{i}" for i in range(150)]),
    }  # fmt: skip


def same_clusters(a, b):
    return len(np.unique(a)) == len(np.unique(b)) == len(np.unique(np.stack([a, b]), axis=1).T)


# ------------------------------------------------------------------------------------------------------ what goes in


@pytest.mark.parametrize("labelled", [0, 30])
def test_cuts_are_the_clusterings_of_the_hierarchy(labelled):
    data = make_data(labelled=labelled)
    first, last = slider_range(data.hierarchy, data.n_clusters)
    for guard in guards(150, data.min_cluster_size):
        cuts = renumber(cut(data.hierarchy, guard, first, last), data.clusters, data.n_clusters)
        assert (cuts.first, cuts.last) == (first, min(last, data.hierarchy.feasible_clusters(guard)[1]))
        labels = [cuts.labels(k) for k in range(cuts.first, cuts.last + 1)]
        for k, found in enumerate(labels, cuts.first):
            assert same_clusters(found, data.hierarchy.labels(k, guard))
        for coarse, fine in pairwise(labels):  # one cluster loses its smaller part, all other rows keep their number
            moved = fine != coarse
            assert len(np.unique(coarse[moved])) == len(np.unique(fine[moved])) == 1
            assert moved.sum() <= (fine == coarse[moved][0]).sum()


def test_cluster_numbers_are_those_of_the_run():
    data = make_data()
    first, last = slider_range(data.hierarchy, data.n_clusters)
    cuts = renumber(cut(data.hierarchy, data.min_cluster_size, first, last), data.clusters, data.n_clusters)
    assert (cuts.labels(data.n_clusters) == data.clusters).all()
    assert sorted(np.unique(cuts.finest)) == list(range(cuts.last))


def test_slider_has_the_chosen_k_and_is_not_endless():
    tree = dc.Hierarchy(5000, np.stack([np.arange(4999), np.arange(1, 5000)], 1).astype(np.int32), np.zeros(4999))
    for k in (1, 10, 50, 3000, 5000):
        first, last = slider_range(tree, k)
        assert first <= k <= last
        assert last - first < 100


def test_rows_are_in_proportion_and_no_cluster_is_missing():
    clusters = np.repeat([0, 1, 2], [9000, 900, 100])
    rare = np.zeros(10000, np.int64)
    rare[7] = 1
    rows = choose_rows(1000, clusters, np.zeros(10000, bool), [rare])
    assert len(rows) == len(set(rows)) == 1000
    assert 7 in rows
    assert np.abs(np.bincount(clusters[rows]) - [900, 90, 10]).max() <= 4
    assert (rows == choose_rows(1000, clusters, np.zeros(10000, bool), [rare])).all()


def test_labelled_rows_are_seen_more_often():
    labelled = np.arange(10000) < 200
    rows = choose_rows(1000, np.zeros(10000, np.int64), labelled)
    assert 60 <= labelled[rows].sum() <= 90


def test_all_edges_are_shown_with_all_rows():
    data = make_data()
    edges, must_link = edges_between(data.hierarchy, np.arange(150))
    assert (edges == data.hierarchy.edges).all()
    assert must_link.sum() == data.hierarchy.n_fixed


def test_edges_between_some_rows_are_a_forest_within_the_clusters():
    data = make_data(labelled=0)
    rows = np.arange(0, 150, 4)
    edges, _ = edges_between(data.hierarchy, rows)
    tree = dc.Hierarchy(len(rows), edges.astype(np.int32), np.zeros(len(edges)))
    assert len(edges) == len(rows) - 1
    assert tree.labels(1).max() == 0  # connected, so with these many edges a tree


def test_positions_are_the_same_again_and_bounded():
    points = np.random.default_rng(0).normal(size=(60, 80))
    first, how = maps.positions(points)
    assert "t-SNE" in how
    assert np.abs(first).max() == 1
    assert (first == maps.positions(points)[0]).all()
    assert maps.positions(points[:, :1])[0].shape == (60, 2)
    assert maps.positions(points[:9])[1] == "two principal components"
    assert maps.positions(0 * points)[1] == "nothing: all rows are equal"
    with sklearn.config_context(transform_output="pandas"):
        assert (first == maps.positions(points)[0]).all()


def test_soft_connectivity_without_a_guard_is_the_operator():
    similarity = dc.standardize(dc.negative_squared_distances(make_data(40).embeddings))
    found = soft_connectivity(similarity, 6, n_draws=20, seed=3)
    assert np.allclose(found, dc.perturbed_connectivity(similarity, 6, n_draws=20, seed=3), atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 7, 4), (5, 7, 4, 1), (5, 200, 100, 3), (5, 7, 4, 2), (5, 7, 4, 4)])
def test_sprites(shape):
    sheet = sprite_sheet(np.random.default_rng(0).normal(size=shape))
    assert sheet["url"].startswith("data:image/webp;base64,")
    assert sheet["columns"] == 3
    assert (sheet["width"], sheet["height"]) == ((32, 64) if shape[1] == 200 else (4, 7))
    with Image.open(io.BytesIO(base64.b64decode(sheet["url"].partition(",")[2]))) as drawn:
        assert drawn.size == (3 * sheet["width"], 2 * sheet["height"])  # five images in rows of three


def test_wrong_lengths_are_named():
    with pytest.raises(ValueError, match="known must have one entry for each of the hierarchy's 150 points, got 3"):
        make_data(known=np.zeros(3, int), clusters=np.zeros(150, int))
    with pytest.raises(ValueError, match=r"raw must have shape .* got \(150,\)"):
        make_data(raw=np.zeros(150))


# --------------------------------------------------------------------------------------------------------- the file


def data_of(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


@pytest.mark.parametrize("case", list(edge_cases()))
def test_edge_cases_give_a_page(case):
    page = write.render(edge_cases()[case])
    data_of(page)  # NaN would already have been an error on writing
    assert page.rstrip().endswith("</html>")


def test_names_cannot_become_code():
    data = make_data(title=EVIL)
    page = write.render(data)
    assert EVIL not in page
    assert html.escape(EVIL) in page
    assert page.count("</script>") == 3
    assert data_of(page)["classes"][0]["name"] == EVIL


def unpacked(packed):
    return np.frombuffer(base64.b64decode(packed["data"]), "<" + packed["type"])


def test_numbers_of_the_page_are_those_of_the_run(monkeypatch):
    monkeypatch.setattr(payload, "MOST_SHOWN", 60)
    monkeypatch.setattr(payload, "MATRIX_ROWS", 30)
    known = np.full(150, -1)
    known[:30] = np.arange(30) % 6  # as the truth, and class 0 counts as any other
    data = make_data(known=known, withheld=0)
    page = data_of(write.render(data))
    assert (page["nRows"], page["nClusters"], page["guard"], page["labelled"]) == (150, 6, 5, 30)
    assert page["sure"] == {"mean": pytest.approx(0.75), "share": pytest.approx((data.confidence >= 0.9).mean())}
    rows = unpacked(page["rows"]["row"])
    assert len(rows) == len(set(rows)) == 60
    np.testing.assert_allclose(unpacked(page["rows"]["confidence"]), data.confidence[rows], rtol=1e-6)
    np.testing.assert_array_equal(unpacked(page["rows"]["known"]), known[rows])
    np.testing.assert_array_equal(unpacked(page["rows"]["truth"]), data.truth[rows])
    for cuts in page["cuts"]:
        assert sum(cuts["size"]) == 150
        assert sum(cuts["confidence"]) == pytest.approx(data.confidence.sum(), abs=0.01)
        assert sum(number for _, _, number in cuts["known"]) == 30
        per_class = np.zeros(6, int)
        for _, kind, number in cuts["truth"]:
            per_class[kind] += number
        assert per_class.tolist() == [25] * 6
    matrix = page["matrix"]
    shown, percent = unpacked(matrix["shown"]), unpacked(matrix["percent"]).reshape(30, 30)
    assert len(set(shown)) == 30
    np.testing.assert_array_equal(unpacked(matrix["cluster"]), data.clusters[rows[shown]])
    assert (np.diff(unpacked(matrix["cluster"])) >= 0).all()
    np.testing.assert_array_equal(percent, percent.T)
    assert (np.diag(percent) == 100).all()


@pytest.mark.parametrize("length", [1, 400, 401, 1000])
def test_long_curves_are_thinned_and_keep_their_ends(length):
    (curve,) = payload._curves({"loss": [(step, step / 2) for step in range(length)], "nothing": []})
    assert (curve["x"][0], curve["x"][-1]) == (0, length - 1)
    assert curve["x"] == sorted(set(curve["x"]))
    assert curve["y"] == [x / 2 for x in curve["x"]]
    assert length / 3 < len(curve["x"]) <= min(length, 401)


def test_same_run_same_page():
    assert write.render(make_data()) == write.render(make_data())


def test_a_kill_leaves_no_half_file(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("the one before")
    code = (
        "import os, pathlib, signal; from diffclust.files import write_atomically; "
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL); "
        f"write_atomically(pathlib.Path({str(path)!r}), 'x' * 1_000_000)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert path.read_text() == "the one before"


def test_an_error_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(handle):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "report.html", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_many_points_make_a_small_file_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "ITERATIONS", 250)
    n = 50_000
    random = np.random.default_rng(0)
    clusters = np.sort(random.integers(0, 10, n))
    chain = np.stack([np.arange(n - 1), np.arange(1, n)], 1).astype(np.int32)
    weights = -random.random(n - 1) - 5 * (clusters[1:] != clusters[:-1])
    order = np.argsort(-weights)
    data = ReportData(
        "Many", random.integers(0, 255, (n, 28, 28), np.uint8), random.normal(size=(n, 8)) + 4 * clusters[:, None],
        dc.Hierarchy(n, chain[order], weights[order]), 10, 100, clusters, np.ones(n), np.full(n, -1), None, [], {}, [],
        {}, None, "runs/many",
    )  # fmt: skip
    start = time.perf_counter()
    write_report(data, tmp_path / "report.html")
    assert time.perf_counter() - start < 60
    assert (tmp_path / "report.html").stat().st_size < 15e6


# ------------------------------------------------------------------------------------------------------ the browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(make_data(images=True), path)
    return path


@pytest.fixture
def page(browser, report):
    return open_page(browser, report)


def open_page(browser, path, width=1300, scheme="light"):
    browser.get_log("performance"), browser.get_log("browser")  # forget the page before
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(path.as_uri())
    wait(browser, "return document.documentElement.dataset.ready === 'true'")
    return browser


def wait(browser, script, timeout=15):
    end = time.monotonic() + timeout
    while not (found := browser.execute_script(script)):
        assert time.monotonic() < end, f"never true: {script}"
        time.sleep(0.03)
    return found


def text(page, selector):
    return page.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def press(page, selector, keys):
    """Keys on a focused control, and a picture later: the page draws once per frame."""
    from selenium.webdriver.common.by import By

    page.find_element(By.CSS_SELECTOR, selector).send_keys(keys)
    page.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")


def click(page, selector):
    page.execute_script("document.querySelector(arguments[0]).click()", selector)
    page.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")


def colours(page, plot="map-0"):
    """Fills of the dots that are drawn."""
    script = "return [...new Set([...document.querySelectorAll(arguments[0])].map((e) => getComputedStyle(e).fill))]"
    return set(page.execute_script(script, f"#{plot} .points path.point"))


def problems(page):
    return [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requests(page):
    messages = (json.loads(entry["message"])["message"] for entry in page.get_log("performance"))
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith(("data:", "blob:"))]


def test_page_loads_alone_and_without_complaints(page, report):
    assert problems(page) == []
    assert requests(page) == [report.as_uri()]
    assert page.execute_script("return window.stolen") is None
    assert text(page, "h1") == "Blobs & <b>more</b>"
    for plot in ("map-0", "map-1", "dendrogram", "matrix", "curve-0"):
        assert page.execute_script("return document.querySelectorAll(`#${arguments[0]} svg`).length", plot) > 0
    assert "2 classes were never labelled (class 4, class 5)" in text(page, "#summary")
    assert page.execute_script("return document.querySelectorAll('tr.ours').length") == 1


def test_slider_over_k_changes_the_number_of_colours(page):
    from selenium.webdriver.common.keys import Keys

    assert len(colours(page)) == len(colours(page, "map-1")) == 6
    before = colours(page)
    press(page, "#k", Keys.ARROW_RIGHT)
    assert text(page, "#k-value") == "7"
    assert before < colours(page)  # the others keep theirs
    assert page.execute_script("return document.querySelectorAll('#dendrogram path.point').length") == 7
    assert len(colours(page)) == len(colours(page, "map-1")) == 7
    press(page, "#k", Keys.HOME)
    lowest = int(text(page, "#k-value"))
    assert len(colours(page)) == lowest == 4  # the labelled classes stay apart
    assert page.execute_script("return document.querySelectorAll('#clusters tbody tr').length") == lowest
    click(page, "#reset")
    assert colours(page) == before
    assert "own choice" in text(page, "#say")


def test_clusters_have_the_names_of_their_classes(page):
    from selenium.webdriver.common.keys import Keys

    def names():
        return page.execute_script("return [...document.querySelectorAll('#clusters .tag')].map((e) => e.textContent)")

    own = [EVIL, "<b>six</b>", "class 2", "class 3", "new 1", "new 2"]
    assert sorted(names()) == sorted(own)
    on_map = page.execute_script("return [...document.querySelectorAll('#map-0 .textpoint')].map((e) => e.textContent)")
    assert sorted(on_map) == sorted([f"{EVIL[:23]}…", *own[1:]])
    press(page, "#k", Keys.HOME)
    assert sorted(names()) == sorted(own[:4])  # classes that nobody labelled have joined the others
    press(page, "#guard", Keys.HOME)
    press(page, "#k", Keys.END)
    assert set(own[:4]) < set(names())
    assert len(set(names())) == int(text(page, "#k-value"))
    assert problems(page) == []


def test_every_k_up_to_thirty_has_its_colours(page):
    from selenium.webdriver.common.keys import Keys

    press(page, "#guard", Keys.HOME)
    press(page, "#k", Keys.END)
    k = int(text(page, "#k-value"))
    assert k >= 30
    assert len(colours(page)) == k


def test_slider_for_the_smallest_cluster_says_what_cannot_be_reached(page):
    from selenium.webdriver.common.keys import Keys

    press(page, "#k", Keys.END)
    press(page, "#guard", Keys.END)
    said = re.match(r"(\d+) clusters of at least (\d+) rows cannot be reached: .* at most (\d+)", text(page, "#say"))
    assert said
    assert int(said[2]) == 20
    assert len(colours(page)) == int(said[3]) < int(said[1])
    sizes = page.execute_script("return [...document.querySelectorAll('#clusters .size')].map((e) => +e.textContent)")
    assert len(sizes) == int(said[3])
    assert sum(sizes) == 150
    assert page.execute_script("return document.querySelector('#guard').ariaValueText ?? ''") == "at least 20 rows"


def test_colour_by(page):
    click(page, "[name=colour-by][value=known]")
    assert len(colours(page)) == 5  # four labelled classes, and grey
    assert EVIL in text(page, "#legend")
    click(page, "[name=colour-by][value=truth]")
    assert len(colours(page)) == 6
    click(page, "[name=colour-by][value=confidence]")
    assert len(colours(page)) > 50
    click(page, "[name=colour-by][value=cluster]")
    click(page, ".chip")
    script = "return [...document.querySelectorAll('#map-0 path.point')].filter((e) => e.style.opacity < 0.2).length"
    assert page.execute_script(script) == 125  # all but the 25 rows of the one that was pressed
    assert problems(page) == []


def test_withheld_classes_are_marked_by_symbol(page):
    shapes = page.execute_script(
        "return [...document.querySelectorAll('#map-0 path.point')].map((e) => e.getAttribute('d'))"
    )
    assert sum("A" not in shape for shape in shapes) == 50  # not round: diamonds


def test_edges_on_demand(page):
    script = "return document.querySelector('#map-0').data.slice(0, 2).map((trace) => trace.x.length / 3)"
    assert page.execute_script(script) == [0, 0]
    click(page, "#edges")
    data = make_data()
    kept = data.clusters[data.hierarchy.edges]
    assert page.execute_script(script) == [
        data.hierarchy.n_fixed,
        (kept[:, 0] == kept[:, 1]).sum() - data.hierarchy.n_fixed,
    ]
    drawn = page.execute_script("return document.querySelectorAll('#map-0 .js-line').length")
    assert drawn == 150 - data.n_clusters  # one line for each edge of a forest


def hover(page, plot, script):
    """Move the real pointer to a place of a plot, in client coordinates."""
    from selenium.webdriver import ActionChains

    page.execute_script(
        "document.getElementById(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", plot
    )
    x, y = page.execute_script(script)
    actions = ActionChains(page)
    actions.w3c_actions.pointer_action.move_to_location(int(x) - 40, int(y) - 40)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    actions.perform()
    wait(page, "return !document.querySelector('#tip').hidden")


def test_hover_shows_the_row_and_its_image(page):
    hover(
        page,
        "map-0",
        """
        const box = document.querySelectorAll("#map-0 path.point")[149].getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];""",
    )
    shown = text(page, "#tip")
    assert re.fullmatch(r"row\d+cluster(class \d|new \d|<.+)label.+truth.+confidence\d+ %", shown)
    assert page.execute_script("""
        const style = getComputedStyle(document.querySelector("#tip .picture"));
        return style.backgroundImage.startsWith('url("data:image/webp') && parseFloat(style.width) > 50;""")
    assert page.execute_script("return document.querySelectorAll('.ring').length") == 2  # on both maps
    hover(
        page,
        "matrix",
        """
        const box = document.querySelector("#matrix .heatmaplayer image, #matrix .hm image").getBoundingClientRect();
        return [box.x + box.width / 3, box.y + box.height / 3];""",
    )
    wait(page, "return document.querySelector('#tip').textContent.includes('of draws')")
    assert problems(page) == []


def test_dark_by_preference_and_by_button(browser, report):
    paper = "return getComputedStyle(document.body).backgroundColor"
    page = open_page(browser, report, scheme="dark")
    dark = page.execute_script(paper)
    click(page, "#theme")
    light = page.execute_script(paper)
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (dark, light)]
    assert brightness[0] < 150 < 600 < brightness[1]
    assert len(colours(page)) == 6
    assert problems(page) == []


def test_a_phone_does_not_scroll_sideways(browser, report):
    page = open_page(browser, report, width=390)
    assert page.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    boxes = page.execute_script(
        "return ['map-0', 'map-1'].map((id) => document.getElementById(id).getBoundingClientRect())"
    )
    assert boxes[0]["bottom"] < boxes[1]["top"]  # one below the other
    assert all(box["width"] > 300 for box in boxes)


@pytest.mark.parametrize("width", [390, 1300])
def test_long_names_stay_inside(browser, tmp_path, width):
    name = "https://example.org/" + "a" * 130
    asked = Asked(rows=[RowQuestion(7, name, 0.4, f"between {name} and class 2")])
    described = [{"cluster": 0, "name": name, "rows": 9, "telling": [], "typical": [{"row": 0, "id": name}]}]
    names = [name, *(f"class {c}" for c in range(1, 6))]
    warnings = [f"The cluster of class {name} may hold a class that nobody labelled."]
    data = make_data(class_names=names, asked=asked, described=described, warnings=warnings, reading=[name])
    write_report(data, tmp_path / "report.html")
    page = open_page(browser, tmp_path / "report.html", width)
    outside = """
        const right = (e) => e.getBoundingClientRect().right;
        const boxes = [...document.querySelectorAll("section:not(.controls), .card, #headline")];
        return boxes.filter((box) => [...box.querySelectorAll("p, b, em, td, span, li, button")]
          .some((e) => e.offsetParent !== null && right(e) > right(box) + 1)).map((box) => box.id || box.className);
    """
    assert page.execute_script(outside) == []
    assert page.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0


def test_scores_say_on_how_many_rows_they_are(browser, report, tmp_path):
    assert text(open_page(browser, report), "#tiles").endswith("agreement (ARI)0.900")
    write_report(make_data(scored_rows=7), tmp_path / "report.html")
    page = open_page(browser, tmp_path / "report.html")
    assert text(page, "#tiles").endswith("agreement (ARI), 7 rows0.900")
    assert "Scored on 7 rows whose labels nobody was told." in text(page, "#scores-section")


EVIDENCE = Evidence(
    cut="k-means", scores={"forest": 0.5, "k-means": 0.71}, agreement={"forest": 0.6, "k-means": 0.8}, new_classes=0.71,
    n_hidden=9, n_clusters=6, candidates={4: 0.5, 5: 0.7, 6: 0.72, 7: 0.71, 8: 0.3}, interval=(5, 7),
)  # fmt: skip
RELIABILITY = {
    "rows": 40,
    "expected_calibration_error": 0.05,
    "bins": [
        {"low": 0.5, "high": 0.6, "rows": 10, "confidence": 0.55, "right": 0.5},
        {"low": 0.9, "high": 1.0, "rows": 30, "confidence": 0.95, "right": 0.9},
    ],
}


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        ("vote", "all of them voted, and so did classifiers"),
        ("pairs", "a model of the rows and the pairs together"),
    ],
)
def test_the_page_says_that_no_single_cut_was_taken(browser, tmp_path, cut, said):
    write_report(make_data(evidence=dataclasses.replace(EVIDENCE, cut=cut)), tmp_path / "report.html")
    assert said in text(open_page(browser, tmp_path / "report.html"), "#made")


def test_the_page_says_which_cuts_tell_new_rows_from_known_ones(browser, tmp_path):
    evidence = dataclasses.replace(EVIDENCE, novelty={"forest": 0.55, "k-means": 0.9})
    write_report(make_data(evidence=evidence), tmp_path / "report.html")
    page = open_page(browser, tmp_path / "report.html")
    assert "it tells new rows from known ones as trees do" in text(page, "#made")
    assert text(page, "#cuts .taken") == "k-means0.7100.8000.900"


def test_the_page_says_how_far_to_trust_it(browser, tmp_path):
    data = make_data(
        evidence=EVIDENCE, reliability=RELIABILITY, headline=["ARI 0.90 of <b>labelled</b> classes."], warnings=[EVIL]
    )
    write_report(data, tmp_path / "report.html")
    for width in (1300, 390):
        page = open_page(browser, tmp_path / "report.html", width=width)
        assert text(page, "#headline") == "ARI 0.90 of <b>labelled</b> classes." + EVIL
        assert text(page, "#tiles").endswith("ARI with classes hidden0.710")
        assert "Taken was k-means" in text(page, "#made")
        assert text(page, "#cuts .taken") == "k-means0.7100.800"
        assert "make 5 to 7 clusters likely (shaded). The run took 6 (dashed)." in text(page, "#numbers-note")
        assert page.execute_script("return document.querySelectorAll('#numbers .point').length") == 5
        assert "40 rows" in text(page, "#reliability-note")
        assert "Expected calibration error: 0.050" in text(page, "#reliability-note")
        drawn = "return [...document.querySelectorAll('#reliability .textpoint')].map((e) => e.textContent)"
        assert page.execute_script(drawn) == ["10", "30"]
        assert "calibrated on labels that were hidden" in text(page, "#clusters-section")
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        assert problems(page) == []


def test_one_labelled_class_hides_no_class(browser, tmp_path):
    known = np.where(np.arange(150) % 30 == 0, 0, -1)
    write_report(make_data(known=known, evidence=EVIDENCE, truth=None), tmp_path / "report.html")
    page = open_page(browser, tmp_path / "report.html")
    assert "The second one is an ARI." in text(page, "#made")
    assert "perfect" not in text(page, "#made")
    assert not page.execute_script("return document.getElementById('numbers-part').offsetHeight")
    assert problems(page) == []


def test_the_page_says_what_is_in_each_cluster_and_colours_by_a_column(browser, tmp_path):
    telling = [{"column": EVIL, "text": f"{EVIL}: 5 here, 2 elsewhere"}]
    described = [{"cluster": c, "telling": telling, "typical": [{"row": 7, "id": EVIL}]} for c in range(6)]
    batch = np.where(np.arange(150) % 2, EVIL, "second")
    data = make_data(described=described, reading=[EVIL], groupings={"batch <i>": batch})
    write_report(data, tmp_path / "page.html")
    page = open_page(browser, tmp_path / "page.html")
    assert f"{EVIL} 5 here, 2 elsewhere{EVIL}" in text(page, "#described tbody tr")
    assert text(page, "#reading") == EVIL
    assert text(page, "#colour-column") == "a column …batch <i>"
    choose = "const s = document.querySelector('#colour-column'); s.value = 0; s.dispatchEvent(new Event('change'))"
    page.execute_script(choose)
    wait(page, "return document.querySelectorAll('#legend .chip').length === 2")
    assert len(colours(page)) == 2
    assert text(page, "#legend .chip small") == "75 rows"
    click(page, "input[value=cluster]")
    assert len(colours(page)) == 6
    assert problems(page) == []
    assert page.execute_script("return window.stolen") is None


def test_what_was_not_measured_is_not_shown(page):
    shown = "return !!document.getElementById(arguments[0]).offsetHeight"
    parts = ("headline", "made-section", "reliability-section", "described-section", "reading-section", "colour-column")
    assert not any(page.execute_script(shown, id) for id in parts)


ASKED = Asked(
    rows=[RowQuestion(7, "class 3", 0.4, "between class 3 and class 2"), RowQuestion(149, "new 1", 0.9, EVIL)],
    pairs=[PairQuestion(11, 12, "new 2", 0.5, "whether it is of cluster new 2")],
    suspects=[Suspect(3, "class 3", "class 2", 0.02, "labelled class 3, but class 2 is more likely")],
    facts={7: [("height", "1.5"), ("<b>", EVIL)]},
    command="diffclust fit DATA --more answers.csv --warm runs/blobs",
)


@pytest.fixture
def downloads(browser, tmp_path):
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    return tmp_path


def saved(folder):
    """The file that the page saves; it has another name until it is whole."""
    end = time.monotonic() + 15
    while not (path := folder / "answers.csv").exists():
        assert time.monotonic() < end, list(folder.iterdir())
        time.sleep(0.05)
    return path


@pytest.mark.parametrize("ids", [False, True])
def test_answers_in_the_page_are_a_file_that_fit_reads(browser, tmp_path, downloads, ids):
    names = [f"id {row}" for row in range(150)] if ids else None
    write_report(make_data(images=True, asked=ASKED, row_names=names), tmp_path / "report.html")
    page = open_page(browser, tmp_path / "report.html")
    assert page.execute_script("return document.querySelectorAll('#ask-section .card .picture').length") == 5
    assert text(page, "#ask-rows .card:first-child dl") == f"height1.5<b>{EVIL}"
    assert text(page, "#suspects-title") == "This label looks wrong"
    assert page.execute_script("return document.querySelector('#save').disabled")
    click(page, "#ask-rows .card:first-child .choices button:nth-child(2)")
    press(page, "#ask-rows .card:nth-child(2) input", '=a "new", class')
    click(page, "#ask-pairs .choices button:nth-child(2)")
    click(page, "#ask-suspects .choices button:nth-child(3)")
    assert text(page, "#answered") == "4 answers"
    click(page, "#save")
    found = read_answers(saved(downloads), 150, names)
    assert found.labels == {7: "<b>six</b>", 149: '=a "new", class', 3: "class 2"}
    assert (found.must_link, found.cannot_link) == ([], [(11, 12)])
    assert "--warm runs/blobs" in text(page, "#go-on")
    click(page, "#ask-rows .card:first-child .choices button:nth-child(2)")  # pressed again: no answer
    assert text(page, "#answered") == "3 answers"
    assert page.execute_script("return window.stolen") is None
    assert requests(page) == [(tmp_path / "report.html").as_uri()]
    assert problems(page) == []


def test_without_questions_nothing_is_asked(page):
    assert not page.execute_script("return document.getElementById('ask-section').offsetHeight")


def test_questions_fit_on_a_phone(browser, tmp_path):
    write_report(make_data(asked=ASKED), tmp_path / "report.html")
    page = open_page(browser, tmp_path / "report.html", width=390)
    click(page, "#ask-pairs-part summary")
    assert page.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [390, 390]


def test_clusters_have_the_names_and_colours_that_the_run_gave_them(browser, tmp_path):
    from selenium.webdriver.common.keys import Keys

    own = ["class 0", "class 1", "class 2", "class 3", "new 7", "new 3"]
    data = make_data(class_names=[f"class {c}" for c in range(6)])
    names = [
        own[data.known[data.clusters == c].max()] if (data.known[data.clusters == c] >= 0).any() else ""
        for c in range(6)
    ]
    new = [c for c in range(6) if not names[c]]
    names[new[0]], names[new[1]] = own[4:]
    write_report(
        dataclasses.replace(data, cluster_names=names, cluster_colours=[5, 4, 3, 2, 1, 30]), tmp_path / "a.html"
    )
    page = open_page(browser, tmp_path / "a.html")
    script = """return [...document.querySelectorAll("#clusters .tag")]
        .map((e) => [e.textContent, e.querySelector(".swatch").style.background])"""
    shown = page.execute_script(script)
    assert [name for name, _ in shown] == names
    palette = re.findall(r'"(#[0-9a-f]{6})"', (PAGE / "data.js").read_text())
    assert [_hex(colour) for _, colour in shown] == [palette[c] for c in (5, 4, 3, 2, 1, 30)]
    press(page, "#k", Keys.ARROW_RIGHT)
    more = page.execute_script(script)
    assert len({colour for _, colour in more}) == 7
    assert set(map(tuple, shown)) < set(map(tuple, more))


def test_clusters_of_pairs_have_the_names_of_the_files(browser, tmp_path):
    from selenium.webdriver.common.keys import Keys

    names = [f"new {c + 1}" for c in range(6)]
    write_report(make_data(labelled=0, cluster_names=names), tmp_path / "a.html")
    page = open_page(browser, tmp_path / "a.html")
    script = "return [...document.querySelectorAll('#clusters .tag')].map((e) => e.textContent)"
    assert page.execute_script(script) == names
    press(page, "#k", Keys.ARROW_RIGHT)
    assert page.execute_script(script) == [*names, "new 7"]


def _hex(colour):
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour)[:3])


def test_copy_button_says_that_it_copied(page):
    click(page, "#copy")
    wait(page, "return document.querySelector('#copy').textContent === 'Copied'")


def test_controls_have_names(page):
    unnamed = page.execute_script("""
        return [...document.querySelectorAll("input, button")]
          .filter((e) => !e.labels?.length && !e.textContent.trim() && !e.ariaLabel).map((e) => e.outerHTML);""")
    assert unnamed == []


def test_edge_cases_in_the_browser(browser, tmp_path):
    for case, data in edge_cases().items():
        path = tmp_path / "report.html"
        write_report(data, path)
        page = open_page(browser, path)
        assert problems(page) == [], case
        n_groups = len(np.unique(data.clusters))
        assert page.execute_script("return document.querySelectorAll('#clusters tbody tr').length") == n_groups, case
