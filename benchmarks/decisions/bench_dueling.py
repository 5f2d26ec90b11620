"""TG-ITE in blocks, duel by duel and asked one by one, beside duelpy on the same matrix, and its memory at N = 100,000.

    python benchmarks/decisions/bench_dueling.py [--json FILE] [--duels 5000] [--repeats 2]

Without ``duelpy`` (see requirements-peers.txt) its lines are left out. Times are processor seconds by default; a ratio is a
time over that of TG-ITE in blocks. A duel of duelpy draws from the same matrix and counts the same regret.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gnomon.decisions import TGITE, PreferenceMatrix, simulate
from gnomon.decisions.dueling import peers
from gnomon.decisions.dueling.baselines import relative_ucb, winner_stays_strong, winner_stays_weak
from gnomon.study import bench

PEERS = ("WS-W", "WS-S", "RUCB", "MergeRUCB", "Beat the Mean", "RMED1", "Double Thompson")


def asked(matrix: PreferenceMatrix, duels: int) -> Callable[[], Any]:
    def call() -> None:
        alg, judge = TGITE(matrix.n_arms, "weak", random_state=0), np.random.default_rng(0)
        for _ in range(duels):
            i, j = alg.ask()
            alg.tell(i if judge.random() < matrix.p[i, j] else j)

    return call


def by_the_duel(matrix: PreferenceMatrix, duels: int) -> dict[str, Callable[[], Any]]:
    n = matrix.n_arms
    calls: dict[str, Callable[[], Any]] = {
        "TG-ITE weak, in blocks": lambda: simulate(TGITE(n, "weak", random_state=0), matrix, duels, random_state=0),
        "TG-ITE strong, in blocks": lambda: simulate(TGITE(n, "strong", random_state=0), matrix, duels, random_state=0),
        "TG-ITE weak, duel by duel": lambda: simulate(
            TGITE(n, "weak", random_state=0), matrix, duels, block=False, random_state=0
        ),
        "TG-ITE weak, ask and tell": asked(matrix, duels),
        "WS-W (here, Numba)": lambda: winner_stays_weak(matrix, duels, random_state=0),
        "WS-S (here, Numba)": lambda: winner_stays_strong(matrix, duels, random_state=0),
        "RUCB (here, Numba)": lambda: relative_ucb(matrix, duels, random_state=0),
    }
    if peers.available():
        for name in PEERS:
            calls[f"duelpy {name}"] = lambda name=name: peers.duelpy(name, matrix, duels, random_state=0)  # type: ignore[misc]
    else:
        print("duelpy: left out, it is not installed")
    return calls


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.set_defaults(clock="cpu")
    parser.add_argument("--duels", type=int, default=5000, help="horizon beside duelpy")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    table = bench.Table()

    for n in (16, 64):
        matrix = PreferenceMatrix.cyclic(n, random_state=0)
        times = bench.seconds(by_the_duel(matrix, options.duels), options.repeats, clock=options.clock)
        own = next(iter(times.values()))
        for name, spent in times.items():
            table.add(
                f"N = {n}, {options.duels:,} duels: {name}", 1e6 * spent / options.duels, "us a duel", spent / own
            )

    wide = PreferenceMatrix.cyclic(1000, random_state=0)
    for objective in ("weak", "strong", "joint"):
        spent = bench.seconds({objective: lambda objective=objective: simulate(
            TGITE(1000, objective, random_state=0), wide, 10**6, random_state=0)}, options.repeats, clock=options.clock)  # fmt: skip
        table.add(f"N = 1,000, 10^6 duels: TG-ITE {objective}", spent[objective], "s")
    flat = PreferenceMatrix.flat(256, random_state=0)
    six = {"bai": lambda: [simulate(TGITE(256, random_state=s), flat, random_state=s) for s in range(6)]}
    table.add("N = 256: six identifications in blocks", bench.seconds(six, options.repeats, clock=options.clock)["bai"], "s",
              duels=sum(found.n_duels for found in six["bai"]()))  # fmt: skip

    scores = np.random.default_rng(0).uniform(size=100_000)
    scores[7] += 1
    huge = PreferenceMatrix.bradley_terry(scores)
    alg = TGITE(100_000, random_state=0)

    def identify() -> None:
        nonlocal alg
        alg = TGITE(100_000, random_state=0)
        simulate(alg, huge, random_state=0)

    table.add("N = 100,000: one identification", bench.seconds({"bai": identify}, 1, clock=options.clock, warm=False)["bai"], "s",
              duels=alg.n_duels_)  # fmt: skip
    kept = (alg._keys, alg._wins, alg._trace, alg._arms, alg._order)
    table.add("N = 100,000: memory of the bandit (book, trace, orders)", sum(a.nbytes for a in kept) / 2**20, "MB")
    table.save(options.json)


if __name__ == "__main__":
    main()
