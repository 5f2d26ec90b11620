"""FoSTA beside forestgeom (RF-GAP-Python), POT, PHATE, harmonypy and scib-metrics; growth with n and memory.

    python benchmarks/geometry/bench_fosta.py [--json FILE] [--clock cpu] [--rfgap FOLDER]

``--rfgap`` is a checkout of github.com/jakerhodes/RF-GAP-Python (GPL-3, on no index), whose package is imported from
there. One thread, but for the fits of many rows, which grow trees on two.
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402

from gnomon.study import bench  # noqa: E402

FIT = """
import re, sys, time, warnings, numpy as np
warnings.simplefilter("ignore")
from sklearn.datasets import make_classification
from gnomon.geometry import FoSTA
def peak():  # of this process alone: what getrusage gives starts from the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
n = int(sys.argv[1])
X, y = make_classification(2 * n + 200, n_features=30, n_informative=10, n_classes=10, n_clusters_per_class=1,
                           flip_y=0.05, random_state=0)
FoSTA(50, random_state=0, landmarks=50).fit(X[:100], X[100:200], y[:100], y[100:200])
X, y = X[200:], y[200:]
yb = y[n:].astype(float)
yb[np.random.default_rng(0).random(n) < 0.5] = np.nan
start = time.perf_counter()
FoSTA(300, random_state=0, n_jobs=2).fit(X[:n], X[n:, :20], y[:n], yb)
print(time.perf_counter() - start, peak())
"""


def clustered(n: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import make_classification

    return make_classification(n, n_features=30, n_informative=10, n_classes=10, n_clusters_per_class=1, flip_y=0.05,
                               random_state=0)  # fmt: skip


def kernels(table: bench.Table, options: argparse.Namespace) -> None:
    """All entries of the GAP kernel of one forest, n = 5,000."""
    from gnomon.geometry import ForestKernel

    X, y = clustered(5000)
    fit = ForestKernel(300, random_state=0, n_jobs=2).fit(X, y)
    calls: dict[str, Any] = {"ours, dense": fit.kernel_.toarray}
    peer = None
    if options.rfgap is None or not (options.rfgap / "rfgap").is_dir():
        print("forestgeom is left out: it is on no index; give --rfgap FOLDER, a checkout of RF-GAP-Python")
    else:
        sys.path.insert(0, str(options.rfgap))
        from rfgap import RFGAP, rfgap

        for name in ("_generate_sample_indices", "_generate_unsampled_indices"):
            drawn = getattr(rfgap, name)  # scikit-learn 1.9 takes weights as well
            if "sample_weight" in inspect.signature(drawn).parameters:
                setattr(rfgap, name, lambda state, n, m, drawn=drawn: drawn(state, n, m, sample_weight=None))
        peer = RFGAP(prediction_type="classification", prox_method="rfgap", matrix_type="dense", symm_mode="arithmetic",
                     n_estimators=300, random_state=0, n_jobs=2)  # fmt: skip
        peer.fit(X, y)
        calls["forestgeom, dense"] = peer.get_proximities
    table.times("GAP kernel, n 5000, 300 trees", bench.seconds(calls, 3, clock=options.clock), "s")
    if peer is not None:
        scale = fit.kernel_.scale
        theirs = np.asarray(peer.get_proximities()) * scale * scale[:, None]
        apart = np.abs(fit.kernel_.toarray() - theirs)
        np.fill_diagonal(apart, 0.0)
        table.add("GAP kernel: largest difference from forestgeom off the diagonal", float(apart.max()), "")
    V = np.eye(10)[y]
    table.times("GAP kernel times 10 columns, n 5000",
                bench.seconds({"ours, by factors": lambda: fit.kernel_ @ V, "all entries first": lambda: fit.kernel_.toarray() @ V},
                              3, clock=options.clock), "s")  # fmt: skip


def transport(table: bench.Table, options: argparse.Namespace) -> None:
    """Assignments of semantic vectors."""
    from gnomon.geometry.fosta.study.experiments import dirichlet, exact, hiref

    rng = np.random.default_rng(0)
    for n in (2000, 4000):
        X, Y = dirichlet(n, rng), dirichlet(n, rng)
        times = bench.seconds({"hierarchical refinement": lambda X=X, Y=Y: hiref(X, Y, 0), "POT emd": lambda X=X, Y=Y: exact(X, Y, 0)},
                              2, clock=options.clock, warm=n == 2000)  # fmt: skip
        table.times(f"assignment, n {n}", times, "s")
        costs = [float(((X - Y[solve(X, Y, 0)]) ** 2).sum()) for solve in (hiref, exact)]
        table.add(f"assignment, n {n}: cost over POT's", costs[0] / costs[1], "")
    sizes, spent = [1000, 2000, 4000, 8000, 16_000], []
    for n in sizes:
        X, Y = dirichlet(n, rng), dirichlet(n, rng)
        spent.append(bench.seconds({"": lambda X=X, Y=Y: hiref(X, Y, 0)}, 2, clock=options.clock, warm=False)[""])
        table.add(f"hierarchical refinement, n {n}", spent[-1], "s")
    table.add("growth of hierarchical refinement with n: exponent", slope(sizes, spent), "")


def layout(table: bench.Table, options: argparse.Namespace) -> None:
    """The embedding of one affinity of 1,000 rows."""
    import phate
    from scipy import sparse

    from gnomon.geometry.fosta import embedding
    from gnomon.geometry.fosta.forest import ExplicitKernel, ForestKernel

    X, y = clustered(1000)
    K = ForestKernel(300, random_state=0).fit(X, y).kernel_.toarray()
    W = embedding.JointAffinity([ExplicitKernel(sparse.csr_array(K))], [])

    def peer() -> Any:  # made anew: fitted to the same data again it only looks its result up
        return phate.PHATE(knn_dist="precomputed_affinity", mds_solver="smacof", n_landmark=None, verbose=0,
                           random_state=0).fit_transform(K)  # fmt: skip

    times = bench.seconds({"ours": lambda: embedding.phate(W), "phate (smacof)": peer}, 2, clock=options.clock)
    table.times("embedding of an affinity, n 1000", times, "s")


def single_cells(table: bench.Table, options: argparse.Namespace) -> None:
    """Two batches of blood cells: time and scores beside harmonypy, scores beside scib-metrics."""
    from gnomon.geometry.fosta import cells

    batches = cells.simulated(np.random.default_rng(0))
    calls = {name: lambda name=name: cells.CORRECTIONS[name](batches) for name in ("fosta", "harmony", "combat")}
    table.times("integration of 650 cells", bench.seconds(calls, 1, clock=options.clock), "s")
    for name in ("fosta", "harmony", "combat", "uncorrected"):
        Z = cells.CORRECTIONS[name](batches)
        found = cells.integration_scores(Z, batches.batch, batches.truth, batches.scored)
        table.add(f"integration of 650 cells, aggregate score: {name}", found["aggregate"], "")
    try:
        import scib_metrics
        from scib_metrics.nearest_neighbors import NeighborsResults
    except ImportError:
        print("scib-metrics is left out: it is not installed")
        return
    from gnomon.geometry.neighbors import knn

    def near(Z: np.ndarray) -> Any:
        distance, index = knn(Z, k=90)
        own = np.arange(len(Z))[:, None]
        return NeighborsResults(
            indices=np.hstack([own, index])[:, :90], distances=np.hstack([0 * distance[:, :1], distance])[:, :90]
        )

    _, codes = np.unique(batches.truth.astype(str), return_inverse=True)
    inside, own = Z[batches.scored], codes[batches.scored]
    theirs = {
        "silhouette_batch": scib_metrics.silhouette_batch(Z, codes, batches.batch),
        "ilisi": scib_metrics.ilisi_knn(near(Z), batches.batch),
        "graph_connectivity": scib_metrics.graph_connectivity(near(Z), codes),
        "silhouette_label": scib_metrics.silhouette_label(inside, own),
        "clisi": scib_metrics.clisi_knn(near(inside), own),
    }
    for name, value in theirs.items():
        table.add(f"{name}: difference from scib-metrics", abs(float(value) - found[name]), "")


def whole(table: bench.Table, options: argparse.Namespace) -> None:
    """Fits of all steps in processes of their own."""
    sizes, spent = [2500, 5000, 10_000, 20_000], []
    for n in sizes:
        done = subprocess.run([sys.executable, "-c", FIT, str(n)], capture_output=True, text=True, check=True)
        seconds, megabytes = map(float, done.stdout.split())
        spent.append(seconds)
        table.add(f"fit, 2 x {n} rows, 300 trees", seconds, "s")
        table.add(f"fit, 2 x {n} rows, 300 trees: peak memory", megabytes, "MB")
    table.add("growth of a fit with n: exponent", slope(sizes, spent), "")


def slope(n: list[int], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(n), np.log(seconds), 1)[0])


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--rfgap", type=Path, help="a checkout of RF-GAP-Python")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = bench.Table()
    for part in (transport, kernels, layout, whole, single_cells):
        part(table, options)
        table.save(options.json)


if __name__ == "__main__":
    main()
