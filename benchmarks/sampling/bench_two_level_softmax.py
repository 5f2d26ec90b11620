"""Two-level softmax draws beside exact softmax (torch, numpy) and faiss, in one run; and how time grows with n.

    python benchmarks/sampling/bench_two_level_softmax.py [--json FILE] [--items N]

Peers: torch softmax + multinomial, numpy softmax + inverse CDF, faiss IndexFlatIP (search for 256 items: a truncated
softmax), the inverted multi-index of arXiv 2501.08563 (our implementation). One thread for all.
"""

from __future__ import annotations

import copy
import itertools
import os
import resource
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from gnomon import datasets, models
from gnomon.sampling import TwoLevelSoftmax
from gnomon.sampling.two_level_softmax.baselines import ExactSoftmax, MidxUniform, TopSoftmax
from gnomon.study import bench

CORRECTIONS = {"2LS": "none", "S-2LS": "size", "SD-2LS": "size_dispersion"}


def head() -> tuple[np.ndarray, np.ndarray]:
    """SmolLM2's output head and final hidden states on Wikipedia."""
    lm = models.load()
    parts = models.structure(lm.model)
    tokens = models.encode(lm.tokenizer, datasets.wikipedia(), 24, n=64)
    with torch.no_grad():
        hidden = parts.base(input_ids=tokens, use_cache=False).last_hidden_state[:, -1]
    return models.linear_weight(parts.head).detach().numpy().copy(), hidden.numpy()


def draws(table: bench.Table, V: np.ndarray, U: np.ndarray) -> None:
    """Time per call, for 1 and 64 queries and 1 and 10 draws each."""
    items = torch.from_numpy(V)
    start = time.perf_counter()
    base = TwoLevelSoftmax().fit(V)
    table.add(f"fit, n = {len(V)}, d = {V.shape[1]}", time.perf_counter() - start, "s")
    exact, flat = ExactSoftmax().fit(V), TopSoftmax(256, "flat").fit(V)
    ivf, midx = TopSoftmax(256, "ivf").fit(V), MidxUniform().fit(V)
    samplers = {name: copy.copy(base).set_params(correction=c) for name, c in CORRECTIONS.items()}
    for b in (1, 64):
        Q, T = U[:b], torch.from_numpy(U[:b])
        for m in (1, 10):
            calls: dict[str, Callable[[], Any]] = {
                name: (lambda s=s, m=m, Q=Q: s.sample(Q, m)) for name, s in samplers.items()
            }
            calls["torch exact"] = lambda m=m, T=T: torch.multinomial(
                torch.softmax(T @ items.T, 1), m, replacement=True
            )
            calls["numpy exact"] = lambda m=m, Q=Q: exact.sample(Q, m)
            calls["faiss flat, top 256"] = lambda m=m, Q=Q: flat.sample(Q, m)
            calls["faiss IVF, top 256"] = lambda m=m, Q=Q: ivf.sample(Q, m)
            calls["MIDX-uniform"] = lambda m=m, Q=Q: midx.sample(Q, m)
            found = bench.seconds(calls, 30 if b == 1 else 10)
            own = found["SD-2LS"]
            for name, spent in found.items():
                table.add(f"{name}, {b} queries x {m} draws", 1e3 * spent, "ms", spent / own)


def mixture(n: int, d: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """ceil(sqrt(n)) Gaussians, grouped by label, made in place."""
    rng = np.random.default_rng(0)
    K = int(np.ceil(np.sqrt(n)))
    labels = np.sort(np.concatenate([np.arange(K), rng.integers(K, size=n - K)]))
    V = np.empty((n, d), np.float32)
    ends = np.concatenate([[0], np.cumsum(np.bincount(labels))])
    for start, stop in itertools.pairwise(ends):
        rng.standard_normal(out=V[start:stop], dtype=np.float32)
        V[start:stop] *= np.float32(0.1)
        V[start:stop] += rng.standard_normal(d, dtype=np.float32) / np.float32(np.sqrt(d))
    return V, labels


def growth(table: bench.Table, largest: int) -> None:
    """Time for one draw as n grows, and the exponent."""
    sizes = [n for n in (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000) if n <= largest]
    times: dict[str, list[float]] = {"SD-2LS": [], "numpy exact": []}
    u = np.random.default_rng(1).normal(size=(1, 32)).astype(np.float32)
    for n in sizes:
        V, labels = mixture(n)
        sampler = TwoLevelSoftmax(copy=False).fit(V, labels)
        sampler.sample(u)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        exact = ExactSoftmax().fit(V)
        found = bench.seconds({"SD-2LS": lambda s=sampler: s.sample(u), "numpy exact": lambda e=exact: e.sample(u)},
                              200 if n <= 100_000 else 20)  # fmt: skip
        for name, spent in found.items():
            times[name].append(spent)
            table.add(f"{name}, one draw, n = {n:,}, d = 32", 1e3 * spent, "ms", spent / found["SD-2LS"])
        del V, labels, sampler, exact
    for name, values in times.items():
        exponent = float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
        table.add(f"{name}, exponent in n up to {sizes[-1]:,}", exponent, "")
    table.add(f"peak memory of SD-2LS, n = {sizes[-1]:,}, d = 32 (items alone {sizes[-1] * 2**-23:.2f})", peak, "GiB")


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--items", type=int, default=10_000_000, help="largest n of the growth curve")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = bench.Table()
    growth(table, options.items)  # first: its peak memory is then its own
    draws(table, *head())
    table.save(options.json)


if __name__ == "__main__":
    main()
