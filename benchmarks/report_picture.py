"""The picture of a report in the README: ``python benchmarks/report_picture.py RUN/report.html results/report.png``.

Needs selenium, and Chromium with its driver.
"""

import sys
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service


def main(report: Path, picture: Path) -> None:
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1180,1400"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        browser.get(report.resolve().as_uri())
        time.sleep(3)  # until the figures are drawn
        browser.save_screenshot(str(picture))
    finally:
        browser.quit()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
