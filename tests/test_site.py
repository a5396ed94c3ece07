"""The built site: no broken link, and a walk through it in a real browser.

``make docs`` builds it and runs these tests. Elsewhere DIFFCLUST_SITE names the folder; without it they are skipped.
The browser is Debian's: apt-get install chromium chromium-driver. Without it the walk is skipped, unless
DIFFCLUST_BROWSER=required; DIFFCLUST_BROWSER=off skips it in any case. With DIFFCLUST_SCREENSHOTS, a folder, it leaves
pictures there.
"""

import functools
import http.server
import os
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

if "DIFFCLUST_SITE" not in os.environ:
    pytest.skip("DIFFCLUST_SITE does not name a built site", allow_module_level=True)

SITE = Path(os.environ["DIFFCLUST_SITE"]).resolve()
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


class Page(HTMLParser):
    """The links of a page, and the places in it that links can lead to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], {"", "top"}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.anchors.add(attributes["id"])
        if tag == "a" and "name" in attributes:
            self.anchors.add(attributes["name"])
        # rel: pages that other programs look for
        if tag in ("a", "img", "script", "iframe", "link") and attributes.get("rel") not in ("canonical", "preconnect"):
            link = attributes.get("href") or attributes.get("src")
            if link:
                self.links.append(link)


@functools.cache
def pages():
    found = {path: Page(path) for path in sorted(SITE.rglob("*.html")) if "_static" not in path.parts}
    assert len(found) > 50
    return found


def test_no_internal_link_is_broken():
    broken = []
    for path, page in pages().items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                broken.append(f"{path.relative_to(SITE)}: {link}")
            elif target in pages() and unquote(parts.fragment) not in pages()[target].anchors:
                broken.append(f"{path.relative_to(SITE)}: {link} (no such place in the page)")
    assert not broken, "\n".join(broken)


def test_every_example_ran_and_has_a_picture_a_script_and_a_notebook():
    names = {path.stem for path in EXAMPLES.glob("*.py")} - {"many_ranks", "jax_devices"}
    assert len(names) >= 10
    for name in names:
        page = (SITE / "gallery" / f"{name}.html").read_text("utf-8")
        assert "Total running time of the script" in page, name
        assert f"sphx_glr_{name}_001.png" in page, name
        assert f"{name}.ipynb" in page, name


def test_the_report_is_a_real_one():
    assert (SITE / "report" / "report.html").stat().st_size > 100_000


@pytest.fixture(scope="module")
def address():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def wait_for(browser, selector):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.expected_conditions import presence_of_element_located
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, 60).until(presence_of_element_located((By.CSS_SELECTOR, selector)))


def click(browser, selector):
    """By the script: a bar at the top may lie over what is clicked."""
    element = wait_for(browser, selector)
    browser.execute_script("arguments[0].click()", element)


def photograph(browser, name):
    if "DIFFCLUST_SCREENSHOTS" in os.environ:
        folder = Path(os.environ["DIFFCLUST_SCREENSHOTS"])
        folder.mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(str(folder / f"{name}.png"))


def is_wider_than_the_window(browser):
    return browser.execute_script("return document.documentElement.scrollWidth > window.innerWidth + 1")


def test_a_walk_from_the_start_page(browser, address):
    browser.set_window_size(1300, 1000)
    browser.get(f"{address}/index.html")
    photograph(browser, "start")
    click(browser, ".bd-header a[href='gallery/index.html']")
    assert "Gallery" in browser.title
    photograph(browser, "gallery")
    click(browser, ".sphx-glr-thumbcontainer a[href*='two_moons']")
    assert "Two moons" in browser.title
    assert browser.execute_script("return document.querySelector('.sphx-glr-single-img').naturalWidth") > 100
    photograph(browser, "example")
    click(browser, ".bd-header a[href='../reference/index.html']")
    click(browser, "a[href='generated/diffclust.Hierarchy.html']")
    assert "from_points" in wait_for(browser, "article").text
    photograph(browser, "api")


def test_search_finds_a_name(browser, address):
    browser.get(f"{address}/search.html?q=soft_memberships")
    found = wait_for(browser, "#search-results li a")
    assert "soft_memberships" in browser.execute_script("return document.querySelector('#search-results').textContent")
    assert found.get_attribute("href").startswith(address)
    photograph(browser, "search")


def test_the_live_report_answers(browser, address):
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(f"{address}/report-live.html")
    browser.switch_to.frame(wait_for(browser, "iframe.live-report"))
    wait_for(browser, "#k")
    table = "return document.querySelector('#clusters').textContent"
    before = browser.execute_script(table)
    wait_for(browser, "#k").send_keys("\ue010")  # End: as many clusters as there can be
    # The page draws in the next frame, which may take a while on a busy machine.
    WebDriverWait(browser, 60).until(lambda browser: browser.execute_script(table) != before)
    browser.switch_to.default_content()
    photograph(browser, "report")


@pytest.mark.parametrize(
    "page",
    ["index.html", "gallery/index.html", "gallery/two_moons.html", "reference/generated/diffclust.Hierarchy.html"],
)
def test_a_phone_shows_the_page_without_scrolling_sideways(browser, address, page):
    browser.set_window_size(390, 844)
    browser.get(f"{address}/{page}")
    photograph(browser, "phone-" + page.replace("/", "-").removesuffix(".html"))
    assert not is_wider_than_the_window(browser)
