"""Fits the share of rows that is expected to be right: ``SHARE_RIGHT`` of src/diffclust/confidence.py.

    python benchmarks/trust.py OUT/development/*.npz --ours --seeds 601 701 --out FILE
    python benchmarks/trust_confidence.py FILE

A case of FILE is a table, a protocol and a seed. The logit of the share that is right is linear in the numbers of
``confidence.clues``. The sum of absolute errors is least, with a little weight decay. The errors that are printed are
those on tables that were left out, all that come from the same data together.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from diffclust.confidence import clues

DECAY = 1e-3
SMOOTH = 1e-3  # of the absolute value at 0


def fit(x: np.ndarray, right: np.ndarray) -> np.ndarray:
    def cost(weights: np.ndarray) -> float:
        return float(np.sqrt((expit(x @ weights) - right) ** 2 + SMOOTH).mean() + DECAY * (weights[1:] ** 2).sum())

    return minimize(cost, np.zeros(x.shape[1])).x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    with parser.parse_args().file.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["vote"]]
    right = np.array([float(row["right"]) for row in rows])
    x = np.array(
        [
            clues(
                float(row["vote"]),
                float(row["agreement"]),
                float(row["score"]) if row["score"] else None,
                row["labelled_classes"] == "1",
            )
            for row in rows
        ]
    )
    sources = np.array([row["set"].split("-")[0].removeprefix("opt") for row in rows])  # optdigits has the digits
    protocols = np.array([row["protocol"] for row in rows])
    error = np.empty(len(rows))
    for source in np.unique(sources):
        kept = sources != source
        error[~kept] = abs(expit(x[~kept] @ fit(x[kept], right[kept])) - right[~kept])
    print("SHARE_RIGHT =", tuple(fit(x, right).round(2).tolist()), f"of {len(rows)} cases")
    for protocol in dict.fromkeys(protocols):
        print(f"{protocol}: mean error of the expected share {error[protocols == protocol].mean():.3f}")


if __name__ == "__main__":
    main()
