"""The report of a run: one HTML file that opens offline and shows whether to believe the clusters.

``data.py`` says what goes in, ``payload.py`` turns it into what the page draws (with ``cuts.py``: every clustering of
the hierarchy; ``rows.py``: which rows are shown; ``maps.py``: where; ``images.py``: their pictures), ``page/`` is the
page itself, and ``write.py`` puts them together.
"""

from diffclust.report.data import ReportData
from diffclust.report.write import write_report

__all__ = ["ReportData", "write_report"]
