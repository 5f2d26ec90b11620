"""Thresholds and certificates beside conformal libraries, and geometry beside plain generation, in one run.

    python benchmarks/guarantees/bench_conformal_abstention.py [--json FILE] [--scores N]

Peers: crepes (conformal p-values) and MAPIE (conformal risk control), where they are installed; torchcp needs torchvision, which does
not live in this environment, and is left out. MAPIE's controller needs a matrix of scores x thresholds, so it is compared at 2,000 scores.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from gnomon import models
from gnomon.guarantees.conformal_abstention.certificates import CERTIFICATES, Sample, Target, certify
from gnomon.guarantees.conformal_abstention.generation import respond, sample
from gnomon.guarantees.conformal_abstention.geometry import text_reference
from gnomon.guarantees.conformal_abstention.study.material import questions
from gnomon.guarantees.conformal_abstention.study.synthetic import WORLDS
from gnomon.guarantees.conformal_abstention.thresholds import joint_threshold, participation_threshold
from gnomon.study import bench

TARGET = Target(0.75, 0.5, 0.125, 0.1)
MAPIE_SIZE = 2000


def certificates(table: bench.Table, n: int, options: Any) -> None:
    """Fit and decide: n calibration scores, a fit split of two thirds, batches of 200."""
    rng = np.random.default_rng(0)
    world = WORLDS["informative"]
    cal, fit, new = world.draw(n, rng), world.draw(n * 2 // 3, rng), world.draw(200, rng)
    calls = {
        kind: lambda kind=kind: certify(kind, cal, fit, TARGET, np.random.default_rng(0)).decide(new.S, new.u)
        for kind in CERTIFICATES
    }
    times = bench.seconds(calls, options.repeats, clock=options.clock)
    for kind, spent in times.items():
        table.add(f"certificate {kind}, {n:,} scores", spent * 1e3, "ms")
    table.add(f"all five certificates, {n:,} scores (target: below 200 ms)", sum(times.values()) * 1e3, "ms")


def peers(table: bench.Table, n: int, options: Any) -> None:
    """The same thresholds from crepes and MAPIE."""
    rng = np.random.default_rng(1)
    cal, new = WORLDS["informative"].draw(n, rng), WORLDS["informative"].draw(n, rng)
    small = Sample(cal.S[:MAPIE_SIZE], cal.C[:MAPIE_SIZE], cal.u[:MAPIE_SIZE])
    if importlib.util.find_spec("crepes"):
        import crepes

        theirs = crepes.ConformalClassifier()
        calls = {
            "ours": lambda: participation_threshold(cal.S, 0.3).accepts(new.S),
            "crepes": lambda: (
                np.ravel(theirs.fit(alphas=-cal.S).predict_p(-new.S[:, None], smoothing=False)) > 0.3 + 1e-12
            ),
        }
        assert (calls["ours"]() == calls["crepes"]()).all()
        table.times(
            f"participation of {n:,} on {n:,} scores, the same decisions",
            bench.seconds(calls, options.repeats, clock=options.clock),
        )
    else:
        print("crepes: left out, it is not installed")
    if importlib.util.find_spec("mapie"):
        from mapie.risk_control.methods import find_best_predict_param, get_r_hat_plus

        def mapie() -> float:
            lambdas = np.unique(np.append(small.S, np.nextafter(small.S, 2)))
            risks = ((small.S[:, None] >= lambdas) & ~small.C[:, None]).astype(float)
            _, bound = get_r_hat_plus(risks, lambdas, "crc", None, None, 0.25)
            return float(np.ravel(find_best_predict_param(lambdas, bound, np.array([0.125 + 1e-9])))[0])

        calls = {"ours": lambda: joint_threshold(small.S, small.C, 0.125).score, "MAPIE": mapie}
        assert calls["ours"]() == calls["MAPIE"]()
        table.times(
            f"risk control of {MAPIE_SIZE:,} scores, the same threshold", bench.seconds(calls, 2, clock=options.clock)
        )
    else:
        print("MAPIE: left out, it is not installed")
    print("torchcp: left out, it needs torchvision, which does not live in this environment")


def generation(table: bench.Table, count: int, options: Any) -> None:
    """Geometry's share of a generation, and what samples cost."""
    lm = models.load()
    reference = text_reference(lm.model, lm.tokenizer, windows=4)
    prompts = [q.prompt for q in questions(40, 2)][:count]
    calls = {
        "greedy with log-probability and geometry": lambda: respond(lm.model, lm.tokenizer, prompts, reference=reference),
        "greedy alone (target: ours at most 1.1 x)": lambda: respond(lm.model, lm.tokenizer, prompts),
        "transformers generate": lambda: models.generate(lm.model, lm.tokenizer, prompts, max_new_tokens=12),
        "greedy and five samples": lambda: (respond(lm.model, lm.tokenizer, prompts), sample(lm.model, lm.tokenizer, prompts)),
        "greedy and five samples, prompts read once": lambda: (respond(lm.model, lm.tokenizer, prompts),
                                                               sample(lm.model, lm.tokenizer, prompts, share_prompt=True)),
    }  # fmt: skip
    table.times(f"{count} questions, SmolLM2-135M", bench.seconds(calls, 3, clock=options.clock))


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.set_defaults(clock="cpu")
    parser.add_argument("--scores", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    table = bench.Table()
    certificates(table, options.scores, options)
    peers(table, options.scores, options)
    generation(table, options.questions, options)
    table.save(options.json)


if __name__ == "__main__":
    main()
