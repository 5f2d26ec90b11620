"""Fitting one boundary: this implementation against the official arithmetic, on the same activations.

Usage: python benchmarks/surgery/bench_ghosted_layers.py [--json FILE] [--official CHECKOUT] [--tokens N] [--repeats R]

The work is the operator of one boundary from N activations of width 576. Peers:

* ``official arithmetic``: all activations in float64, X'X and X'D, ``torch.linalg.solve``; re-implemented here from the
  paper's description, since the official repository carries no licence to copy from and has no package.
* ``official code``: the repository itself, run from a checkout that you give with ``--official``, in an environment of
  its own under ``benchmarks/peers/`` (made on first use from ``benchmarks/peers/ghosted_layers_official.txt``).

Every run is a process of its own with one thread, in turn, so that a drift of the machine meets all alike. Seconds are the
process's CPU time; peak memory is its high-water mark beyond the activations.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import numpy as np

from gnomon.study import bench

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / "peers"
WIDTH, SEQUENCE, CHUNK = 576, 256, 8  # channels; tokens of a sequence; sequences in a chunk
OURS = ("gnomon, float64", "gnomon, float32")
REFERENCE = "official arithmetic (re-implemented)"
OFFICIAL = "official code"


# --- one run, in a process of its own ---------------------------------------------------------------------------------


def status(key: str) -> float:
    """A line of /proc/self/status, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return float("nan")


def gnomon(pre, post, products: str):
    from gnomon.surgery import fit_operator
    from gnomon.surgery.ghosted_layers.moments import BoundaryMoments

    stats = BoundaryMoments(WIDTH, products=products)
    pre, post = pre.view(-1, SEQUENCE, WIDTH), post.view(-1, SEQUENCE, WIDTH)
    for at in range(0, len(pre), CHUNK):
        stats.update(pre[at : at + CHUNK], post[at : at + CHUNK])
    return fit_operator(stats).weight


def arithmetic(pre, post):
    import torch

    x, y = pre.double(), post.double()
    gap = y - x
    gram, cross = x.T @ x, x.T @ gap
    eye = torch.eye(WIDTH, dtype=torch.float64)
    return eye + torch.linalg.solve(gram + 1e-6 * eye, cross)


def worker(name: str, activations: str, out: str) -> None:
    import torch

    torch.set_num_threads(1)
    run = {OURS[0]: lambda x, y: gnomon(x, y, "float64"), OURS[1]: lambda x, y: gnomon(x, y, "float32"),
           REFERENCE: arithmetic}[name]  # fmt: skip
    with np.load(activations) as given:
        pre, post = torch.from_numpy(given["pre"]), torch.from_numpy(given["post"])
    run(pre[: SEQUENCE * CHUNK], post[: SEQUENCE * CHUNK])  # warm
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS:")
    began = time.process_time()
    weight = run(pre, post)
    seconds = time.process_time() - began
    np.savez(out, weight=weight.numpy(), seconds=seconds, peak=status("VmHWM:") - before)


# --- all of them ------------------------------------------------------------------------------------------------------


def peer_python() -> Path:
    """The interpreter of the official code's own environment; made on first use."""
    folder = PEERS / "ghosted_layers_official" / ".venv"
    python = folder / "bin" / "python"
    if not python.exists():
        print("making the official code's environment (once) ...", flush=True)
        venv.create(folder, with_pip=True)
        pins = PEERS / "ghosted_layers_official.txt"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--requirement", pins], check=True)
    return python


def activations(tokens: int, path: Path) -> None:
    """A residual stream like a language model's: a falling spectrum, large first tokens, a change that is linear in part."""
    rng = np.random.default_rng(0)
    scale = (np.arange(1, WIDTH + 1) ** -0.5).astype(np.float32)
    basis = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
    pre = (rng.standard_normal((tokens, WIDTH), np.float32) * scale) @ basis
    pre[::SEQUENCE] *= 100
    turn = np.eye(WIDTH, dtype=np.float32) + 0.3 * rng.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5
    np.savez(path, pre=pre, post=pre @ turn + 0.05 * rng.standard_normal((tokens, WIDTH), np.float32))


def excess(weight: np.ndarray, best: np.ndarray, data: Path) -> float:
    """How much larger than the peer's the sum of squares of an operator is, relative."""
    with np.load(data) as given:
        loss = [
            float(((given["pre"] @ w.astype(np.float32) - given["post"]) ** 2).sum(dtype=float)) for w in (weight, best)
        ]
    return loss[0] / loss[1] - 1


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--official", type=Path, help="a checkout of the official repository")
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
        return
    if given.tokens % SEQUENCE:
        parser.error(f"--tokens must be a multiple of {SEQUENCE}")
    if given.official and not (given.official / "lib" / "recovery.py").is_file():
        parser.error(f"--official: {given.official} holds no lib/recovery.py")
    names = [*OURS, REFERENCE, *([OFFICIAL] if given.official else [])]
    commands = {name: [sys.executable, __file__, "--worker", name] for name in names}
    if given.official:
        commands[OFFICIAL] = [peer_python(), PEERS / "ghosted_layers_official.py", given.official.resolve()]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    weights = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as room:
        data, out = Path(room) / "activations.npz", Path(room) / "out.npz"
        activations(given.tokens, data)
        for repeat in range(given.repeats):
            for name in names:
                print(f"\rrepeat {repeat + 1}/{given.repeats}: {name:40}", end="", file=sys.stderr, flush=True)
                subprocess.run([*commands[name], data, out], check=True, env=environment, stdout=subprocess.DEVNULL)
                with np.load(out) as result:
                    found[name].append({"seconds": float(result["seconds"]), "peak": float(result["peak"])})
                    weights[name] = result["weight"]
        peer = OFFICIAL if given.official else REFERENCE
        lost = {name: excess(weights[name], weights[peer], data) for name in names}
    print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    shown = bench.Table()
    for name, runs in found.items():
        # neighbours in time
        ratios = [run["seconds"] / other["seconds"] for run, other in zip(runs, found[peer], strict=True)]
        memory = float(np.median([run["peak"] for run in runs]))
        shown.add(f"one boundary, {given.tokens:,} tokens x {WIDTH}: {name}",
                  float(np.median([run["seconds"] for run in runs])), "s", float(1 / np.median(ratios)),
                  peak_mb=round(memory, 1), excess_loss=float(f"{lost[name]:.1e}"))  # fmt: skip
    if not given.official:
        print("peer: the official arithmetic, re-implemented; --official CHECKOUT runs the official code itself")
    print("LinearPatch and ReplaceMe have no fitting kernel to time; their operators are baselines of the study")
    shown.save(given.json)


if __name__ == "__main__":
    main()
