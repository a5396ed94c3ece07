"""Puts the page and its data into one file."""

from __future__ import annotations

import html
import json
import os
import re
from importlib.resources import files
from pathlib import Path

import diffclust
from diffclust.files import write_atomically
from diffclust.report.data import ReportData
from diffclust.report.payload import make_payload

SCRIPTS = ("data.js", "maps.js", "figures.js", "ask.js", "main.js")  # joined to one module, in this order


def write_report(data: ReportData, path: str | os.PathLike[str]) -> None:
    """Writes the report of a run to ``path``. The file needs nothing else: it opens without a network."""
    write_atomically(Path(path), render(data))


def render(data: ReportData) -> str:
    """The page as a string."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("The report is drawn with Plotly: pip install 'diffclust[fit]'.") from error

    page = files("diffclust.report") / "page"
    parts = {
        "title": html.escape(data.title),
        "version": html.escape(diffclust.__version__),
        "css": (page / "report.css").read_text("utf-8"),
        "plotly": get_plotlyjs(),
        "data": _script_safe(json.dumps(make_payload(data), allow_nan=False, separators=(",", ":"))),
        "js": "\n".join((page / script).read_text("utf-8") for script in SCRIPTS),
    }
    template = (page / "template.html").read_text("utf-8")
    # One pass, so that braces in the inserted texts are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _script_safe(text: str) -> str:
    """JSON that cannot end the <script> it stands in, whatever the names in it are."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
