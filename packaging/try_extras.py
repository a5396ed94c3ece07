"""Installs what was built into empty environments: the wheel with each extra alone, and the sdist.

Each time it runs something that the extra is for. Of the sdist that is what README.md starts with: its command and its
ten lines.

python packaging/try_extras.py dist              # all of them
python packaging/try_extras.py dist core sdist   # these
"""

import argparse
import os
import re
import subprocess
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CORE = """
import numpy as np, diffclust as dc
points = np.concatenate([np.zeros((5, 2)), np.ones((5, 2))]) + np.linspace(0, 0.1, 10)[:, None]
assert dc.Hierarchy.from_points(points).labels(2).tolist() == [0] * 5 + [1] * 5
assert dc.cluster.SpanningForestClustering(2).fit(points).n_clusters_ == 2
"""
# What each extra is for, as Python, with what CORE has imported.
TRIALS = {
    "core": "",
    "torch": """
import torch
loss = dc.nn.PartialFenchelYoungLoss(n_clusters=2, seed=0)
x = torch.randn(12, 3, requires_grad=True)
loss(x, torch.tensor([0, 0, 1, 1] + [-1] * 8)).backward()
assert x.grad.isfinite().all()
""",
    "jax": """
import jax
value = lambda s: dc.partial_fenchel_young_loss(s, dc.Constraints.from_labels([0, 1, -1]), 2, seed=jax.random.key(0))
assert jax.numpy.isfinite(jax.grad(value)(jax.numpy.zeros((3, 3)))).all()
""",
    "fit": """
import pathlib, subprocess, sys
y = np.array([0, 0, -1, -1, -1, 1, 1, -1, -1, -1])
assert dc.cluster.ForestEmbedding(2, n_steps=5, random_state=0).fit(points, y).n_clusters_ == 2
subprocess.run([pathlib.Path(sys.executable).with_name("diffclust"), "fit", "--out", "run", "--quiet"], check=True)
assert dc.load_run("run").clusters.shape == (1797,)
""",
    "text": """
import torch
from diffclust.tables.texts import embed_texts
loss = dc.sentence_transformers.PartialFenchelYoungLoss(lambda x: {"sentence_embedding": x}, n_clusters=2)
assert loss([torch.randn(6, 3)], torch.tensor([0, 0, 1, 1, -1, -1])).isfinite()
try:
    embed_texts(["a text"], "no/such/model")
except ValueError as error:
    assert "cannot be loaded" in str(error)
""",
    "neighbors": """
many = np.random.default_rng(0).normal(size=(500, 4))
assert dc.Hierarchy.from_points(many, n_neighbors=10).labels(3).max() == 2
""",
    "cells": """
import anndata
adata = anndata.AnnData(np.random.default_rng(0).poisson(3.0, (10, 6)).astype(np.float32))
adata.obsm["X_pca"] = points.astype(np.float32)
adata.obs["cell_type"] = ["T cell"] * 2 + ["Unknown"] * 6 + ["B cell"] * 2
dc.cells.fit(adata, "cell_type", n_clusters=2, n_steps=5, cut="forest")
assert adata.obs["diffclust"].tolist() == ["T cell"] * 5 + ["B cell"] * 5
""",
    "metric-learning": """
import torch
loss = dc.metric_learning.PartialFenchelYoungLoss(n_clusters=2)
assert loss(torch.randn(8, 3), torch.tensor([0, 0, 1, 1, -1, -1, -1, -1])).isfinite()
""",
}
TEN_LINES = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)[0]
TRIALS["torch"] += f"""
from sklearn.datasets import load_digits
images, digits = load_digits(return_X_y=True)
test_points = torch.tensor(images / 16, dtype=torch.float32)
loader = [(test_points[rows], torch.tensor(digits)[rows]) for rows in torch.arange(1792).split(128)]
{TEN_LINES}
assert clusters.max() == 9
"""


def in_turn(*names: str) -> str:
    """Several trials, each in names of its own: the ten lines give "points" another meaning."""
    return "\n".join(f"exec({CORE + TRIALS[name]!r}, {{}})" for name in names)


TRIALS["all"] = in_turn(*TRIALS)
TRIALS["sdist"] = in_turn("fit", "torch")


def try_extra(extra: str, dist: Path, folder: Path) -> tuple[float, float]:
    """Seconds to install and to run."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    (built,) = dist.glob("*.tar.gz" if extra == "sdist" else "*.whl")
    spec = {"core": str(built), "sdist": f"{built}[fit]"}.get(extra, f"{built}[{extra}]")
    # --no-compile: most modules of torch are never imported here.
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    started = time.perf_counter()
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), spec], check=True)
    installed = time.perf_counter()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([str(python), "-c", CORE + TRIALS[extra]], check=True, cwd=folder, env=clean)
    return installed - started, time.perf_counter() - installed


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path, help="the folder of one wheel and one sdist")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"of {', '.join(TRIALS)} (default: all of these)")
    arguments = parser.parse_args()
    unknown = set(arguments.extras) - set(TRIALS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Give some of {', '.join(TRIALS)}.")
    for extra in arguments.extras or TRIALS:
        with tempfile.TemporaryDirectory() as folder:
            install, run = try_extra(extra, arguments.dist.resolve(), Path(folder))
        print(f"{extra}: installed alone in {install:.0f} s, ran in {run:.0f} s", flush=True)


if __name__ == "__main__":
    main()
