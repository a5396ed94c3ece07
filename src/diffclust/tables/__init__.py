"""Files and data frames → features, labels and pairs. Errors name the file, the column and the row.

``read.py`` takes any form and asks ``arrays.py`` (NumPy and sparse arrays), ``frames.py`` (csv, parquet, data frames),
``columns.py`` (which column of a frame is what, and how it becomes numbers) or another reader. ``known.py`` reads
labels and pairs. ``table.py`` is what all of them return.
"""

from diffclust.tables.known import encode_labels, read_labels, read_pairs
from diffclust.tables.read import read_pieces, read_table
from diffclust.tables.table import Table, listed

__all__ = ["Table", "encode_labels", "listed", "read_labels", "read_pairs", "read_pieces", "read_table"]
