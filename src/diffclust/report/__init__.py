"""The report of a run: one HTML file that opens offline and shows whether to believe the clusters.

``data.py`` is the input. ``payload.py`` turns it into what the page draws, with ``slider.py`` (the clusters at every
position of the sliders), ``rows.py`` (the rows that are shown), ``maps.py`` (their positions) and ``images.py`` (their
pictures). ``page/`` is the page itself, and ``write.py`` puts everything into one file.
"""

from diffclust.report.data import Asked, ReportData
from diffclust.report.write import write_report

__all__ = ["Asked", "ReportData", "write_report"]
