"""Chamfer, ball and Frechet metrics beside prdc, faiss, scikit-learn, torch.cdist, torch-fidelity and clean-fid.

    python benchmarks/geometry/bench_chamfer.py [--json FILE] [--n 10000] [--threads 2] [--clock cpu] [--quick]

Every measurement runs in a process of its own, so that its peak memory is its own; a ratio is the peer's seconds (or bytes)
over ours. torch-fidelity and clean-fid are read from benchmarks/peers/chamfer.txt where they are installed: of both only
the function that turns moments into a distance is run, on the same features.
"""

from __future__ import annotations

import ast
import contextlib
import io
import multiprocessing
import os
import resource
import sys
import warnings
from pathlib import Path

import numpy as np

from gnomon.study import bench

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks/peers/chamfer"


def features(n: int, D: int, seed: int) -> np.ndarray:
    """Rows like those of a network: many directions, falling variance, never negative."""
    rng = np.random.default_rng(seed)
    scale = (np.arange(1, D + 1) ** -0.5).astype(np.float32)
    return np.maximum(rng.standard_normal((n, D), dtype=np.float32) * scale + 0.1, 0)


# --- what is measured ------------------------------------------------------------------------------------------------


def ours_chamfer(R, G):
    from gnomon.geometry import chamfer

    chamfer(R, G)


def ours_one_direction(R, G):
    from gnomon.geometry.neighbors import knn

    knn(G, R)


def ours_prdc(R, G):
    from gnomon.geometry import prdc

    prdc(R, G)


def ours_report(R, G):
    """Fit and score with intervals, the test, the trimmed ratio and the ball metrics."""
    from gnomon.geometry import ChamferMetric

    half = len(R) // 2
    ChamferMetric(random_state=0).fit(R[:half], holdout=R[half:]).score(G[:half], also=("prdc",))


def prdc_package(R, G):
    from prdc import compute_prdc

    with contextlib.redirect_stdout(io.StringIO()):
        compute_prdc(R, G, 5)


def faiss_flat(R, G):
    import faiss

    index = faiss.IndexFlatL2(R.shape[1])
    index.add(R)
    index.search(G, 1)


def sklearn_brute(R, G):
    from sklearn.neighbors import NearestNeighbors

    NearestNeighbors(n_neighbors=1, algorithm="brute").fit(R).kneighbors(G)


def torch_cdist(R, G):
    """The full matrix and its two minima: what batched point-cloud code does."""
    import torch

    distances = torch.cdist(torch.from_numpy(R), torch.from_numpy(G))
    distances.min(0)
    distances.min(1)


def ours_frechet(R, G):
    from gnomon.geometry import fid

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return fid(R, G)


def _moments(X):
    return X.mean(0, dtype=np.float64), np.cov(X, rowvar=False, dtype=np.float64)


def torch_fidelity(R, G):
    function = peer_function(
        "torch_fidelity/metric_fid.py", "fid_statistics_to_metric", KEY_METRIC_FID="fid", vprint=lambda *_: None
    )
    (m1, s1), (m2, s2) = _moments(R), _moments(G)
    return function({"mu": m1, "sigma": s1}, {"mu": m2, "sigma": s2}, False)["fid"]


def clean_fid(R, G):
    from scipy import linalg

    class Old:  # scipy 1.18 drops the `disp` that the package passes
        isfinite = staticmethod(np.isfinite)

        @staticmethod
        def sqrtm(A, disp=True):
            root = linalg.sqrtm(A)
            return root if disp else (root, 0.0)

    function = peer_function("cleanfid/fid.py", "frechet_distance", linalg=Old)
    (m1, s1), (m2, s2) = _moments(R), _moments(G)
    return function(m1, s1, m2, s2)


def peer_file(file: str) -> Path | None:
    """A file of a peer, found without importing the package (which needs torchvision)."""
    return next((p for base in (PEERS, *map(Path, sys.path)) if (p := base / file).is_file()), None)


def peer_function(file: str, name: str, **globals_):
    """One function of a peer, compiled from its own source."""
    tree = ast.parse(peer_file(file).read_text())
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    scope = {"np": np, **globals_}
    exec(compile(ast.Module(wanted, []), file, "exec"), scope)
    return scope[name]


# --- one measurement -------------------------------------------------------------------------------------------------


def child(function, n, D, threads, repeats, clock, pipe):
    import torch

    torch.set_num_threads(threads)
    with contextlib.suppress(ImportError):
        import faiss

        faiss.omp_set_num_threads(threads)
    R, G = features(n, D, 0), features(n, D, 1)
    function(R[:64], G[:64])  # imports
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, now = [], bench.CLOCKS[clock]
    for _ in range(repeats):
        start = now()
        function(R, G)
        seconds.append(now() - start)
    pipe.send((min(seconds), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024))


def measure(function, n, D, threads, repeats, clock):
    """Least seconds, and MiB beyond the two inputs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(function, n, D, threads, repeats, clock, there))
    process.start()
    there.close()
    try:
        result = here.recv()
    except EOFError:
        raise RuntimeError(f"{function.__name__} failed") from None
    process.join()
    return result


def main():
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--n", type=int, default=10_000, help="rows of each set")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[12_500, 25_000, 50_000, 100_000], help="rows at D = 64"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it runs")
    given = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(given.threads)
    n, D = (given.n // 10, 256) if given.quick else (given.n, 2048)
    table = bench.Table()
    show = table.add

    def timed(function, n, D, repeats):
        return measure(function, n, D, given.threads, repeats, given.clock)

    print(f"n = m = {n:,}, D = {D:,}, float32, {given.threads} threads, {given.clock} seconds; ratio: peer / gnomon")
    base_s, base_mb = timed(ours_prdc, n, D, given.repeats)
    show(f"precision to coverage: gnomon, n={n}", base_s, "s")
    show(f"precision to coverage: gnomon, n={n}, memory", base_mb, "MiB")
    s, mb = timed(prdc_package, n, D, 1)
    show(f"precision to coverage: prdc package, n={n}", s, "s", s / base_s)
    show(f"precision to coverage: prdc package, n={n}, memory", mb, "MiB", mb / max(base_mb, 1))

    s, mb = timed(ours_chamfer, n, D, given.repeats)
    show(f"Chamfer, both directions: gnomon, n={n}", s, "s")
    show(f"Chamfer, both directions: gnomon, n={n}, memory", mb, "MiB")
    rate = 2.0 * n * n * D / s / 1e9
    peak = gemm_rate(given.threads, bench.CLOCKS[given.clock])
    show("share of the matrix-product rate of this machine", rate / peak, "")
    other, _ = timed(torch_cdist, n, D, given.repeats)
    show(f"Chamfer, both directions: torch.cdist, n={n}", other, "s", other / s)
    one, _ = timed(ours_one_direction, n, D, given.repeats)
    show(f"one direction: gnomon, n={n}", one, "s")
    for name, function in (("faiss IndexFlatL2", faiss_flat), ("scikit-learn NearestNeighbors", sklearn_brute)):
        other, _ = timed(function, n, D, given.repeats)
        show(f"one direction: {name}, n={n}", other, "s", other / one)
    s, mb = timed(ours_report, n, D, 1)
    show(f"whole report with intervals and balls, n={n // 2}", s, "s")

    small = n // 5
    chamfer_s, _ = timed(ours_chamfer, small, D, given.repeats)
    show(f"Chamfer, both directions: gnomon, n={small}", chamfer_s, "s")
    base_s, _ = timed(ours_frechet, small, D, 1)
    show(f"Frechet distance: gnomon, n={small} (ratio: over Chamfer)", base_s, "s", base_s / chamfer_s)
    for name, file, function in (
        ("torch-fidelity", "torch_fidelity/metric_fid.py", torch_fidelity),
        ("clean-fid", "cleanfid/fid.py", clean_fid),
    ):
        if peer_file(file) is None:
            print(
                f"{name}: left out; pip install --no-deps --target benchmarks/peers/chamfer -r benchmarks/peers/chamfer.txt"
            )
            continue
        other, _ = timed(function, small, D, 1)
        show(f"Frechet distance: {name}, n={small}", other, "s", other / base_s)

    sizes = [size // 10 for size in given.sizes] if given.quick else given.sizes
    times = []
    for size in sizes:
        s, mb = timed(ours_chamfer, size, 64, 1)
        times.append(s)
        show(f"Chamfer, both directions: gnomon, n={size}, D=64", s, "s")
    show(f"memory beyond the inputs at n={sizes[-1]}, D=64", mb, "MiB")
    show("exponent of the cost in n (D=64)", float(np.polyfit(np.log(sizes), np.log(times), 1)[0]), "")

    table.save(given.json)


def gemm_rate(threads, now):
    """GFLOP/s of a float32 product of the size that the blocks have."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.rand(2048, 2048), torch.rand(2048, 2048)
    seconds = []
    for _ in range(8):
        start = now()
        a @ b.T
        seconds.append(now() - start)
    return 2.0 * 2048**3 / min(seconds) / 1e9


if __name__ == "__main__":
    main()
