"""Clusters of single cells in an AnnData object, some of them annotated."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclust.tables.cells import annotation, expression, represent


def fit(
    adata: Any,
    labels: str,
    *,
    unlabeled_category: str = "Unknown",
    n_clusters: int | str = "auto",
    use_rep: str | None = None,
    key_added: str = "diffclust",
    random_state: int = 0,
    **options: Any,
) -> Any:
    """Trains an embedding on the annotated cells, clusters all cells, and writes the result into ``adata``.

    ``obs[key_added]`` gets the cluster of each cell: the name of an annotated type, or "new 1", "new 2", ...
    ``obs[key_added + "_confidence"]`` is the probability that this is right, and ``obs[key_added + "_novelty"]`` that
    the cell is of no annotated type. ``obsm["X_" + key_added]`` is the embedding. ``uns[key_added]`` has the parameters
    and how the cut was chosen, and with scanpy installed ``uns[key_added + "_markers"]`` has its ranking of genes, for
    ``scanpy.get.rank_genes_groups_df(adata, None, key=...)``. Everything else stays as it is.

    Args:
        adata: the cells, an AnnData object.
        labels: the column of ``obs`` with the annotation.
        unlabeled_category: the value of that column for cells that are not annotated; missing values are not, either.
        n_clusters: how many clusters; "auto" chooses. More than there are annotated types leaves room for new ones.
        use_rep: a key of ``obsm``, a layer, or "X". None is "X_pca" where there is one, and else principal components
            of X. Counts are log-normalised first.
        key_added: the name of what is written.
        random_state: the same seed gives the same clusters.
        options: further arguments of :class:`diffclust.cluster.ForestEmbedding`.

    Returns:
        The fitted :class:`diffclust.cluster.ForestEmbedding`.

    Raises:
        ValueError: there is no such column or representation, or no cell is annotated.

    >>> import anndata
    >>> rng = np.random.default_rng(0)
    >>> counts = rng.poisson(np.repeat([[1.0] * 5 + [9.0] * 5, [9.0] * 5 + [1.0] * 5], 30, axis=0))
    >>> adata = anndata.AnnData(counts.astype(np.float32))
    >>> adata.obs["cell_type"] = ["T cell"] * 5 + ["Unknown"] * 50 + ["B cell"] * 5
    >>> model = fit(adata, "cell_type", n_clusters=2, n_steps=20)
    >>> adata.obs["diffclust"].value_counts().to_dict()
    {'T cell': 30, 'B cell': 30}
    """
    import pandas as pd

    from diffclust.cluster import ForestEmbedding

    values = annotation(adata, labels, "adata")
    unknown = pd.isna(values) | (values.astype(str) == unlabeled_category)
    features, _, said = represent(adata, "adata", use_rep)
    model = ForestEmbedding(n_clusters, random_state=random_state, **options)
    model.fit(features, np.where(unknown, "", values.astype(str)).astype(object))
    evidence, names = model.partition_.evidence, [str(name) for name in model.cluster_numbers_]
    # Names as objects: anndata 0.12.6 cannot write the strings of pandas 3.
    adata.obs[key_added] = pd.Categorical.from_codes(model.partition_.clusters, pd.Index(names, dtype=object))
    adata.obs[f"{key_added}_confidence"] = model.probabilities_
    adata.obs[f"{key_added}_novelty"] = model.novelty_
    adata.obsm[f"X_{key_added}"] = model.embedding_
    adata.uns[key_added] = {
        "params": {
            "labels": labels,
            "unlabeled_category": unlabeled_category,
            "n_clusters": n_clusters,
            "random_state": random_state,
            **{name: str(value) for name, value in options.items()},
        },
        "representation": " ".join(said),
        "evidence": {
            "cut": evidence.cut,
            **{f"hidden labels, {name}": score for name, score in evidence.scores.items()},
        },
    }
    ranking = rank_genes(*expression(adata), model.partition_.clusters, names)
    if ranking is not None:
        adata.uns[f"{key_added}_markers"] = ranking
    return model


def rank_genes(matrix: Any, genes: Sequence[str], clusters: NDArray[Any], names: Sequence[str]) -> Any:
    """What scanpy's ``rank_genes_groups`` (t-test) says about clusters; None where it cannot say anything.

    Args:
        matrix: (cells, genes) log-normalised expression.
        genes: their names.
        clusters: (cells,) numbers from 0.
        names: of the clusters.

    Returns:
        What scanpy writes to ``uns``: "names", "scores", ... Without scanpy, and where a cluster has one cell, None.
    """
    if find_spec("scanpy") is None or np.bincount(clusters, minlength=len(names)).min() < 2 or len(names) < 2:
        return None
    import anndata
    import pandas as pd
    import scanpy

    group = pd.Categorical.from_codes(clusters, list(names))
    cells = anndata.AnnData(matrix, pd.DataFrame({"group": group}, index=list(map(str, range(len(clusters))))))
    cells.var_names = list(genes)
    scanpy.tl.rank_genes_groups(cells, "group", method="t-test")
    return cells.uns["rank_genes_groups"]
