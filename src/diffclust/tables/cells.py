"""Single cells: .h5ad files and AnnData objects, which hold counts of genes, annotations and representations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.tables.table import listed, no_column, reason_of

FORMATS = (".h5ad",)
MOST_GENES, N_COMPONENTS = 2000, 50  # of cells that bring no representation


class Representation(NamedTuple):
    """What stands for the cells in training."""

    features: NDArray[np.float32]  # (n, d)
    encoding: dict[str, Any]  # JSON, see represent
    sentences: list[str]


def read_anndata(path: Path) -> Any:
    """The AnnData object of a file."""
    try:
        from anndata import read_h5ad
    except ImportError as error:
        raise ImportError(".h5ad files need anndata. Install it with: pip install 'diffclust[cells]'") from error
    try:
        return read_h5ad(path)
    except Exception as error:  # HDF5 and anndata raise errors of many types
        raise ValueError(f"{path} cannot be read as an .h5ad file: {reason_of(error)}.") from error


def is_anndata(x: Any) -> bool:
    """Whether x is an AnnData object."""
    return hasattr(x, "obsm") and hasattr(x, "obs_names")


def annotation(adata: Any, name: str, source: str) -> NDArray[Any]:
    """(n,) the values of a column of ``obs``."""
    if name not in adata.obs.columns:
        raise no_column(source, name, adata.obs.columns, " in obs")
    return adata.obs[name].to_numpy(object)


def groupings(adata: Any, leave_out: str | None) -> dict[str, NDArray[Any]]:
    """The other columns of ``obs`` that are texts, categories or booleans."""
    kinds = {str(name): adata.obs[name].dtype for name in adata.obs.columns if name != leave_out}
    return {name: adata.obs[name].astype(str).to_numpy(str) for name, kind in kinds.items() if kind.kind not in "iufmM"}


def expression(adata: Any) -> tuple[Any, list[str]]:
    """Log-normalised expression, (cells, genes), sparse where the counts are; and the names of the genes."""
    holder = adata if adata.raw is None else adata.raw
    matrix = holder.X
    return (log_normalise(matrix) if are_counts(matrix) else matrix), list(map(str, holder.var_names))


def represent(
    adata: Any, source: str, use_rep: str | None = None, encoding: dict[str, Any] | None = None
) -> Representation:
    """The features of cells, and how other cells get the same.

    ``use_rep`` is a key of ``obsm``, a layer, or "X". None is "X_pca" of ``obsm`` where there is one, and else X. From
    X and layers, principal components are computed; counts are log-normalised first. With the ``encoding`` of other
    cells, these get the same representation. ``source`` is for messages.
    """
    if encoding is not None:
        use_rep = encoding["use_rep"]
    use_rep = use_rep or ("X_pca" if "X_pca" in adata.obsm else "X")
    if use_rep in adata.obsm:
        features = np.asarray(adata.obsm[use_rep], np.float32)
        width = "1 column" if features.shape[1] == 1 else f"{features.shape[1]} columns"
        return Representation(
            features, {"kind": "cells", "use_rep": use_rep}, [f"Cells are represented by obsm[{use_rep!r}], {width}."]
        )
    if use_rep != "X" and use_rep not in adata.layers:
        there = listed([*adata.obsm, *adata.layers, "X"])
        raise ValueError(f"use_rep={use_rep!r}: {source} has no such representation. It has {there}.")
    matrix = adata.X if use_rep == "X" else adata.layers[use_rep]
    if matrix is None:
        raise ValueError(f"{source} has no X. Name a representation with use_rep.")
    genes = list(map(str, adata.var_names))
    if encoding is not None:
        return Representation(_project(matrix, genes, encoding, source), encoding, [])
    highly_variable = adata.var.get("highly_variable")
    chosen = None if highly_variable is None else np.flatnonzero(highly_variable.to_numpy(bool))
    return _components(matrix, genes, chosen, use_rep)


def _components(matrix: Any, genes: list[str], chosen: NDArray[np.intp] | None, use_rep: str) -> Representation:
    """Principal components of the genes that vary most, and how to find those of other cells."""
    from sklearn.decomposition import TruncatedSVD

    counts = are_counts(matrix)
    total = float(np.median(np.asarray(matrix.sum(axis=1)))) if counts else None
    logged = log_normalise(matrix, total) if total is not None else matrix
    why = "marked as highly variable"
    if chosen is None or len(chosen) == 0:
        chosen, why = np.sort(np.argsort(-_variances(logged), kind="stable")[:MOST_GENES]), "that vary most"
    few = logged[:, chosen]
    # Rounded, so that JSON stores exactly what is used here.
    rank = max(1, min(N_COMPONENTS, min(few.shape) - 1))
    components = np.round(TruncatedSVD(rank, random_state=0).fit(few).components_.astype(np.float64), 7)
    encoding = {
        "kind": "cells",
        "use_rep": use_rep,
        "total": total,
        "genes": [genes[column] for column in chosen],
        "components": components.tolist(),
    }
    of = "all genes" if len(chosen) == len(genes) else f"the {len(chosen):,} of {len(genes):,} genes {why}"
    how = f"{use_rep} holds counts: they are log-normalised. " if counts else ""
    sentence = f"{how}Cells are represented by {rank} components (TruncatedSVD) of {of}."
    return Representation(_dot(few, components), encoding, [sentence])


def _project(matrix: Any, genes: list[str], encoding: dict[str, Any], source: str) -> NDArray[np.float32]:
    """The components of other cells."""
    position = {gene: column for column, gene in enumerate(genes)}
    missing = [gene for gene in encoding["genes"] if gene not in position]
    if missing:
        raise ValueError(f"{source} must have the genes of the run: it lacks {listed(missing, 6)}.")
    logged = matrix if encoding["total"] is None else log_normalise(matrix, encoding["total"])
    return _dot(logged[:, [position[gene] for gene in encoding["genes"]]], np.array(encoding["components"]))


def _dot(matrix: Any, components: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(matrix @ components.T.astype(np.float32), np.float32)


# --------------------------------------------------------------------------------------------------------------- Counts


def are_counts(matrix: Any) -> bool:
    """Whether all values are whole numbers from 0, and not all are 0 or 1. Looks at some thousands of them."""
    values = np.asarray(matrix.data if hasattr(matrix, "tocsr") else matrix[:1000]).ravel()[:100_000]
    return len(values) > 0 and bool((values >= 0).all() and (values == np.floor(values)).all())


def log_normalise(matrix: Any, total: float | None = None) -> Any:
    """log(1 + x) of rows scaled to the sum ``total``, by default the median of the sums. Sparse stays sparse."""
    sums = np.asarray(matrix.sum(axis=1), np.float64).ravel()
    scale = (float(np.median(sums)) if total is None else total) / np.maximum(sums, 1e-12)
    if not hasattr(matrix, "tocsr"):
        return np.log1p(np.asarray(matrix) * scale[:, None]).astype(np.float32)
    scaled = matrix.tocsr().astype(np.float32, copy=True)
    scaled.data *= np.repeat(scale.astype(np.float32), np.diff(scaled.indptr))
    np.log1p(scaled.data, out=scaled.data)
    return scaled


def _variances(matrix: Any) -> NDArray[np.float64]:
    """Of each column."""
    if not hasattr(matrix, "tocsr"):
        return np.asarray(matrix).var(axis=0, dtype=np.float64)
    mean = np.asarray(matrix.mean(axis=0), np.float64).ravel()
    return np.asarray(matrix.multiply(matrix).mean(axis=0), np.float64).ravel() - mean**2
