"""A run: a table and some knowledge in; a folder with a trained embedding, clusters, scores and a report out.

    run = load_run("folder")
    run.embeddings, run.clusters, run.metrics, run.hierarchy.labels(12)
    run.cluster(new_rows)

``fit.py`` is the list of all steps. ``folder.py`` locks the folder, compares its settings and writes its manifest.
``baselines.py`` scores the clusters beside simple methods. ``describe.py`` says what is in each cluster.
``summary.py`` makes the metrics, remarks and the report. ``results.py`` writes the results and reads them back.
``place.py`` places the rows of a file. ``again.py`` goes on from an earlier run.

The files of the folder: ``settings.json`` (what was asked for), ``last.ckpt`` and ``log/`` (training),
``embeddings.npy``, ``hierarchy.npz``, ``clusters.csv``, ``clusters.json``, ``known.npz`` (what was told),
``suspects.csv`` (labels that look wrong), ``metrics.json``, ``report.html``. Each is written whole or not at all.
``manifest.json``, written last, has the sizes and hashes of those that ``load_run`` reads.
"""

from diffclust.runs.again import refit_input
from diffclust.runs.fit import fit_run
from diffclust.runs.folder import SETTINGS
from diffclust.runs.place import place_file
from diffclust.runs.results import Run, clusters_csv, load_run

__all__ = ["SETTINGS", "Run", "clusters_csv", "fit_run", "load_run", "place_file", "refit_input"]
