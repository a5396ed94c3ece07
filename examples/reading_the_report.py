"""
Reading the report
==================

``diffclust fit`` writes a folder with a report. Here a small run is made, and the pieces of its report are read
back one by one. The live report of this site is that of the digits.
"""

# %%
# A table in which 40 of 178 wines have their cultivar, and cultivar 2 is never named. Then the command
# ``diffclust fit wine.csv --labels cultivar --clusters 3 --out run``.
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

import diffclust as dc

wine = load_wine(as_frame=True)
rng = np.random.default_rng(0)
named = (wine.target < 2) & (rng.random(178) < 0.35)
folder = Path(tempfile.mkdtemp())
wine.data.assign(cultivar=wine.target.astype("Int64").where(named)).to_csv(folder / "wine.csv", index=False)
command = "fit wine.csv --labels cultivar --clusters 3 --cut forest --steps 60 --out run --quiet"
done = subprocess.run(
    [sys.executable, "-m", "diffclust", *command.split()], cwd=folder, capture_output=True, text=True, check=True
)
print(done.stdout)

# %%
# The folder. ``report.html`` opens in a browser, without a network.
for path in sorted((folder / "run").iterdir()):
    print(f"{path.name:>18} {path.stat().st_size / 1024:8.1f} KiB" if path.is_file() else f"{path.name:>18}/")

# %%
# **Scores** stand beside those of other methods on the same rows and labels. Read the ARI, the accuracy, and which rows
# are counted. The *error* alone says little: many small clusters have a low one.
run = dc.load_run(folder / "run")
for method in run.metrics["scores"]:
    print({name: round(value, 3) if isinstance(value, float) else value for name, value in method.items()})

# %%
# **Clusters, confidence, novelty.** A cluster has the name of its class, or "new". The confidence is the probability
# that a row's cluster is right, the novelty that the row is of none of the labelled classes.
figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), constrained_layout=True)
flat = run.embeddings - run.embeddings.mean(axis=0)
shown = flat @ np.linalg.svd(flat, full_matrices=False)[2][:2].T
for cluster, name in enumerate(run.names):
    axes[0].scatter(*shown[run.clusters == cluster].T, s=12, label=name)
axes[0].legend()
for axis, name in zip(axes[1:], ("confidence", "novelty"), strict=True):
    image = axis.scatter(*shown.T, c=getattr(run, name), s=12, vmin=0, vmax=1)
    axis.set_title(name)
    figure.colorbar(image, ax=axis)
plt.show()

# %%
# **The sliders** of the report cut the same tree elsewhere:
for k in (2, 3, 4, 6):
    print(k, np.bincount(run.hierarchy.labels(k, min_cluster_size=10)))

# %%
# **New rows** join the row whose embedding is nearest. ``unlike`` marks rows that are far from all of them.
placed = run.place(wine.data.to_numpy(np.float32)[:3] * np.float32([[1], [1], [3]]))
print([run.names[cluster] for cluster in placed.clusters], placed.unlike)
