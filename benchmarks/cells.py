"""Time and memory of ``dc.cells.fit`` on many made-up cells, kept sparse.

python benchmarks/cells.py                    # 100,000 cells, 2,000 genes, a tenth of the counts above zero
python benchmarks/cells.py --cells 20000

Ten types raise 60 genes each; 2 % of the cells of eight types are annotated, two types are new. Prints seconds of the
processor, the peak of the memory of the whole process, and the ARI on cells without an annotation.
"""

import argparse
import resource
import time

import anndata
import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

import diffclust as dc

N_GENES, N_TYPES, N_RAISED = 2000, 10, 60


def make_cells(n_cells: int, seed: int = 0) -> tuple[anndata.AnnData, np.ndarray]:
    """Sparse counts with annotations of some cells, and the types of all."""
    rng = np.random.default_rng(seed)
    types = rng.integers(0, N_TYPES, n_cells)
    base = rng.gamma(0.3, 0.4, N_GENES)
    rates = np.tile(base, (N_TYPES, 1))
    for rate in rates:
        genes = rng.choice(N_GENES, N_RAISED, replace=False)
        rate[genes] = 4 * rate[genes] + 0.15
    blocks = [sparse.csr_matrix(rng.poisson(rates[part]).astype(np.float32)) for part in np.array_split(types, 20)]
    adata = anndata.AnnData(sparse.vstack(blocks).tocsr())
    annotated = (rng.random(n_cells) < 0.02) & (types < 8)
    adata.obs["cell_type"] = pd.Categorical(np.where(annotated, [f"type {t}" for t in types], "Unknown"))
    return adata, types


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=100_000)
    adata, types = make_cells(parser.parse_args().cells)
    print(f"{adata.n_obs:,} cells, {adata.n_vars:,} genes, {adata.X.nnz / np.prod(adata.shape):.0%} above zero")
    started = time.process_time()
    dc.cells.fit(adata, "cell_type", n_clusters=N_TYPES)
    seconds, peak = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    hidden = (adata.obs["cell_type"] == "Unknown").to_numpy()
    ari = adjusted_rand_score(types[hidden], adata.obs["diffclust"][hidden])
    print(f"{seconds:.0f} s of the processor, peak {peak:.2f} GB, ARI {ari:.3f}")


if __name__ == "__main__":
    main()
