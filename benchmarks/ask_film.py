"""Fit, ask, click, download, fit again, in a real browser: ``python benchmarks/ask_film.py results/ask_film.png``.

Handwritten digits with 100 labels, three of the ten digits never labelled. The reader's clicks are made by Selenium:
the true digit of each picture, or "cannot tell" for every tenth. Needs selenium, and Chromium with its driver.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from diffclust import cli

SIZE = (1180, 1000)
FIT = ("--steps", "150", "--quiet")


def run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "diffclust", *words], check=True)


def open_browser(downloads: Path) -> webdriver.Chrome:
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={SIZE[0]},{SIZE[1]}")
    browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)})
    return browser


def show(browser: webdriver.Chrome, selector: str, picture: Path, block: str = "start") -> Path:
    script = "document.querySelector(arguments[0]).scrollIntoView({block: arguments[1], behavior: 'instant'})"
    browser.execute_script(script, selector, block)
    time.sleep(0.5)
    browser.save_screenshot(str(picture))
    return picture


def answer(browser: webdriver.Chrome, truth: np.ndarray) -> None:
    """A click on the class of each row, or its name typed where it has no button."""
    for position, card in enumerate(browser.find_elements(By.CSS_SELECTOR, "#ask-rows .card")):
        row = int(card.find_element(By.CSS_SELECTOR, ".look b").text.removeprefix("row "))
        if position % 10 == 9:
            continue
        buttons = {button.text: button for button in card.find_elements(By.TAG_NAME, "button")}
        name = str(truth[row])
        if name in buttons:
            browser.execute_script("arguments[0].click()", buttons[name])
        else:
            card.find_element(By.TAG_NAME, "input").send_keys(name)


def film(pictures: list[tuple[str, Path]], path: Path) -> None:
    """The pictures side by side, smaller, with a line of text above each."""
    width, height = 560, round(560 * SIZE[1] / SIZE[0])
    sheet = Image.new("RGB", (3 * width + 40, 2 * (height + 30) + 10), "white")
    for position, (text, picture) in enumerate(pictures):
        left, top = 10 + position % 3 * (width + 10), position // 3 * (height + 30)
        ImageDraw.Draw(sheet).text((left, top + 8), f"{position + 1}. {text}", fill="black", font_size=16)
        sheet.paste(
            Image.open(picture).convert("RGB").resize((width, height), Image.Resampling.LANCZOS), (left, top + 30)
        )
    sheet.quantize(128).save(path, optimize=True)


def main(path: Path) -> None:
    table, truth = cli.digits(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "digits.npy", table.features)
        np.save(folder / "labels.npy", table.labels)
        given = (str(folder / "digits.npy"), "--labels", str(folder / "labels.npy"))
        run("fit", *given, "--clusters", "10", "--out", str(folder / "first"), *FIT)
        browser = open_browser(folder)
        try:
            browser.get((folder / "first" / "report.html").as_uri())
            time.sleep(3)  # until the figures are drawn
            shots = [("diffclust fit: three digits have no label", show(browser, "body", folder / "1.png"))]
            shots.append(("the report asks about 20 rows", show(browser, "#ask-section", folder / "2.png")))
            answer(browser, truth)
            shots.append(("click a class, or type a new one", show(browser, "#ask-section", folder / "3.png")))
            browser.execute_script("document.querySelector('#save').click()")
            shots.append(("save answers.csv", show(browser, "#go-on", folder / "4.png", "end")))
            while not (folder / "answers.csv").exists():
                time.sleep(0.1)
            more = ("--more", str(folder / "answers.csv"), "--warm", str(folder / "first"))
            run("fit", *given, *more, "--out", str(folder / "second"), *FIT)
            browser.get((folder / "second" / "report.html").as_uri())
            time.sleep(3)
            shots.append(("diffclust fit --more answers.csv --warm first", show(browser, "body", folder / "5.png")))
        finally:
            browser.quit()
        film(shots, path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
