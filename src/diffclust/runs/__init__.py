"""A run: a table and some knowledge in; a folder with a trained embedding, clusters, scores and a report out.

    run = load_run("folder")
    run.embeddings, run.clusters, run.metrics, run.hierarchy.labels(12)
    run.cluster(new_rows)

``fit.py`` trains, clusters and writes; ``baselines.py`` scores other methods on the same rows; ``folder.py`` is the
folder itself: its lock, its settings, its manifest; ``load.py`` reads a finished run back.

The files of the folder: ``settings.json`` (what was asked for), ``last.ckpt`` and ``log/`` (training),
``embeddings.npy``, ``hierarchy.npz``, ``clusters.csv``, ``metrics.json``, ``report.html``. Each is written whole
or not at all, and ``manifest.json``, written last, has the sizes and hashes of those that are read back.
"""

from diffclust.runs.fit import fit_run
from diffclust.runs.folder import SETTINGS
from diffclust.runs.load import Run, load_run

__all__ = ["SETTINGS", "Run", "fit_run", "load_run"]
