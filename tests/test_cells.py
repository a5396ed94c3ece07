"""Single cells: what stands for them, what is written into an AnnData object, and the command line."""

import json
import warnings

import numpy as np
import pytest
from scipy import sparse

anndata = pytest.importorskip("anndata")
pytest.importorskip("lightning")
pd = pytest.importorskip("pandas")

import diffclust as dc  # noqa: E402
from diffclust.tables import read_table  # noqa: E402
from diffclust.tables.cells import log_normalise  # noqa: E402

N_CELLS, N_GENES = 90, 20
BARCODES = [f"AACG{number:04}-1" for number in range(N_CELLS)]
QUICK = {"n_clusters": 3, "n_steps": 15, "cut": "k-means"}


@pytest.fixture(autouse=True)
def _strings_as_objects():
    """anndata up to 0.12.6 cannot write the strings of pandas 3, and later ones do not install beside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pd.option_context("future.infer_string", False):
            yield


def make_cells(form=sparse.csr_matrix):
    """Three types of 30 cells with genes of their own; two types are annotated, for some cells."""
    rng = np.random.default_rng(0)
    types = np.arange(N_CELLS) % 3
    rates = np.ones((N_CELLS, N_GENES))
    rates[np.arange(N_CELLS)[:, None], 5 * types[:, None] + np.arange(5)] = 12
    cells = anndata.AnnData(
        form(rng.poisson(rates).astype(np.float32)),
        pd.DataFrame(index=BARCODES),
        pd.DataFrame(index=[f"gene{number}" for number in range(N_GENES)]),
    )
    known = np.array(["B cell", "T cell", "Unknown"])[types]
    cells.obs["cell_type"] = pd.Categorical(np.where(np.arange(N_CELLS) < 45, known, "Unknown"))
    cells.obs["batch"] = pd.Categorical(np.where(np.arange(N_CELLS) % 2, "one", "two"))
    cells.obs["depth"] = np.asarray(cells.X.sum(1)).ravel()
    cells.layers["counts"] = cells.X.copy()
    cells.obsp["graph"] = sparse.eye(N_CELLS, format="csr")
    cells.uns["about"] = {"tissue": "blood"}
    return cells


def same(a, b):
    return (a != b).nnz == 0 if sparse.issparse(a) else np.array_equal(a, b)


# ------------------------------------------------------------------------------------------------------------- in place


def test_a_fit_is_written_as_scverse_packages_do_and_all_else_stays(tmp_path):
    cells, before = make_cells(), make_cells()
    model = dc.cells.fit(cells, "cell_type", **QUICK)
    cells.write_h5ad(tmp_path / "cells.h5ad")
    again = anndata.read_h5ad(tmp_path / "cells.h5ad")
    assert again.obs["diffclust"].dtype == "category"
    assert again.obs["diffclust"].tolist() == ["B cell", "T cell", "new 1"] * 30
    for name, values in (("confidence", model.probabilities_), ("novelty", model.novelty_)):
        np.testing.assert_array_equal(again.obs[f"diffclust_{name}"], values)
    np.testing.assert_array_equal(again.obsm["X_diffclust"], model.embedding_)
    assert again.uns["diffclust"]["params"]["labels"] == "cell_type"
    assert again.uns["diffclust"]["evidence"]["cut"] == "k-means"
    assert again.obs_names.tolist() == BARCODES
    for name in before.obs:
        pd.testing.assert_series_equal(again.obs[name], before.obs[name])
    assert same(again.X, before.X)
    assert same(again.layers["counts"], before.layers["counts"])
    assert same(again.obsp["graph"], before.obsp["graph"])
    assert again.uns["about"] == before.uns["about"]


def test_scanpy_ranks_the_genes_of_each_cluster():
    scanpy = pytest.importorskip("scanpy")
    cells = make_cells()
    dc.cells.fit(cells, "cell_type", key_added="found", **QUICK)
    ranked = scanpy.get.rank_genes_groups_df(cells, "new 1", key="found_markers")
    assert set(ranked["names"][:5]) == {f"gene{number}" for number in range(10, 15)}


def test_another_word_for_unknown_and_missing_values():
    cells = make_cells()
    values = cells.obs["cell_type"].astype(object).replace("Unknown", "to do")
    values.iloc[-1] = np.nan
    cells.obs["cell_type"] = values
    model = dc.cells.fit(cells, "cell_type", unlabeled_category="to do", **QUICK)
    assert model.classes_.tolist() == ["B cell", "T cell"]
    with pytest.raises(ValueError, match=r"no column 'type' in obs\. It has cell_type, batch"):
        dc.cells.fit(cells, "type")


# ------------------------------------------------------------------------------------------------ what stands for cells


def test_counts_are_log_normalised_sparse_as_dense():
    cells = make_cells()
    dense = cells.X.toarray()
    expected = np.log1p(dense / dense.sum(1, keepdims=True) * np.median(dense.sum(1)))
    np.testing.assert_allclose(log_normalise(cells.X).toarray(), expected, rtol=1e-6)
    np.testing.assert_allclose(log_normalise(dense), expected, rtol=1e-6)


def test_components_keep_the_distances_of_all_genes():
    """With as many components as genes less one; the one that is left out is the smallest."""
    table = read_table(make_cells(), "cell_type")
    logged = log_normalise(make_cells().X).toarray()
    assert table.features.shape == (N_CELLS, N_GENES - 1)
    singular = np.linalg.svd(logged, compute_uv=False)
    np.testing.assert_allclose((table.features**2).sum(), (singular[:-1] ** 2).sum(), rtol=1e-3)
    dense = read_table(make_cells(np.asarray), "cell_type")
    np.testing.assert_allclose(np.abs(dense.features), np.abs(table.features), atol=1e-3)


def test_a_representation_of_obsm_comes_first():
    cells = make_cells()
    cells.obsm["X_pca"] = np.random.default_rng(1).normal(size=(N_CELLS, 4)).astype(np.float32)
    cells.obsm["X_other"] = cells.obsm["X_pca"][:, :2] * 2
    np.testing.assert_array_equal(read_table(cells).features, cells.obsm["X_pca"])
    np.testing.assert_array_equal(read_table(cells, use_rep="X_other").features, cells.obsm["X_other"])
    layer, whole = (read_table(cells, use_rep=name) for name in ("counts", "X"))
    np.testing.assert_array_equal(layer.features, whole.features)
    assert layer.sentences[0].startswith("counts holds counts: they are log-normalised.")
    with pytest.raises(ValueError, match=r"use_rep='X_umap': .* It has X_pca, X_other, counts, X\."):
        read_table(cells, use_rep="X_umap")


def test_genes_that_vary_most_stand_for_many():
    cells = make_cells()
    cells.var["highly_variable"] = np.arange(N_GENES) < 6
    table = read_table(cells)
    assert table.encoding["genes"] == [f"gene{number}" for number in range(6)]
    assert "5 components (TruncatedSVD) of the 6 of 20 genes marked as highly variable" in table.sentences[0]


def test_new_cells_are_represented_as_the_first_ones_were():
    """Genes are found by name. The depth of a cell does not matter, but the run's median of it does."""
    table = read_table(make_cells())
    few = make_cells()[[7, 3]][:, [f"gene{number}" for number in reversed(range(N_GENES))]].copy()
    again = read_table(few, at_least=1, encoding=json.loads(json.dumps(table.encoding)))
    np.testing.assert_allclose(again.features, table.features[[7, 3]], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"must have the genes of the run: it lacks gene0, gene1, gene2"):
        read_table(few[:, :10], at_least=1, encoding=table.encoding)
    with pytest.raises(ValueError, match=r"is an \.h5ad file, but the run was made from another form of data, columns"):
        read_table(few, at_least=1, encoding={"kind": "columns"})


def test_a_file_has_barcodes_labels_and_other_columns(tmp_path):
    make_cells().write_h5ad(tmp_path / "cells.h5ad")
    table = read_table(tmp_path / "cells.h5ad", "cell_type")
    assert table.row_names == BARCODES
    assert table.class_names == ["B cell", "T cell"]
    assert list(table.groupings) == ["batch"]
    matrix, genes = table.measured
    assert matrix.shape == (N_CELLS, len(genes))
    (tmp_path / "broken.h5ad").write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"broken\.h5ad cannot be read as an \.h5ad file"):
        read_table(tmp_path / "broken.h5ad")


def test_a_run_on_a_file_names_marker_genes_and_places_new_cells(tmp_path):
    from diffclust.runs import fit_run

    make_cells().write_h5ad(tmp_path / "cells.h5ad")
    config = dc.training.TrainingConfig(n_clusters=3, n_steps=15, device="cpu")
    table = read_table(tmp_path / "cells.h5ad", "cell_type")
    fit_run(table, config, tmp_path / "run", cut="k-means", progress=False, report=False, say=lambda text: None)
    run = dc.load_run(tmp_path / "run")
    described = json.loads((tmp_path / "run" / "clusters.json").read_text("utf-8"))
    genes = {cluster["name"]: {each["column"] for each in cluster["telling"]} for cluster in described}
    assert genes["T cell"] == {f"gene{number}" for number in range(5, 10)}
    assert described[0]["typical"][0]["id"] in BARCODES
    np.testing.assert_array_equal(run.cluster(make_cells()), run.clusters)
