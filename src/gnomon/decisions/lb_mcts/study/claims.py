"""What must come out: the sheet's claims, with its prototype's figures beside them."""

from __future__ import annotations

from typing import Any

from gnomon.decisions.lb_mcts.study.experiments import COLD
from gnomon.study import always, better, correlates, estimate, rate

SHEET = "Sheet's prototype (25 trials, 4 seeds; digits, breast cancer, wine): "
REGRET: dict[str, Any] = {"table": "Regret"}
OTHERS = ["random", "tpe", "smac", "plain mcts"]
TOLERANCE = 0.005  # balanced error


def _short_prompts(rows: Any) -> Any:
    """600 less the tokens of the longest prompt of a trial; what was proposed without the model has none."""
    return 600 - rows["longest_prompt"]


def _all_embedded(rows: Any) -> Any:
    return (rows["contender"] == "embedded").to_numpy()


CLAIMS = [
    # 1: better than the others
    better(
        "area",
        "lb-mcts",
        OTHERS,
        **REGRET,
        id="anytime",
        text="The regret averaged over all trials is lower than that of random search, TPE, SMAC and plain tree search",
        paper=SHEET + "SMAC and TPE were not run; the paper has 104 AMLB tasks",
    ),
    better(
        "final",
        "lb-mcts",
        OTHERS,
        **REGRET,
        id="final",
        text="The regret after the last trial is lower than that of random search, TPE, SMAC and plain tree search",
        paper=SHEET + "hybrid .0008, .0006, .0000, random .0015, .0083, .0079",
    ),
    better(
        "test",
        "lb-mcts",
        OTHERS,
        **REGRET,
        report=True,
        id="test-error",
        text="The balanced error of the refit on held-out rows, against the same",
    ),
    # 2: the cold start
    better(
        "area10",
        "lb-mcts",
        "rho = 1",
        **REGRET,
        id="cold-start",
        text=f"Over the first {COLD} trials the regret is lower than with Bayesian optimisation alone in the same tree",
        paper=SHEET + "hybrid .0155, .0046, .0044, BO .0746, .0499, .0651",
    ),
    better(
        "area10",
        "lb-mcts",
        "wrong defaults",
        table="Cold",
        id="priors-matter",
        text=f"Over the first {COLD} trials documented defaults are better than defaults drawn at random",
    ),
    better(
        "area10",
        "rho = 1",
        "wrong defaults",
        by=-TOLERANCE,
        table="Cold",
        id="wrong-priors",
        text=f"The gain over Bayesian optimisation alone vanishes with wrong defaults: it is at most {TOLERANCE}",
        paper="Control: each default redrawn uniformly in its range, four tables",
    ),
    # 3: the shift from prior knowledge to BO
    estimate(
        "rho_trend",
        at_least=0.5,
        table="Trend",
        id="rho-rises",
        text="Spearman's correlation of rho with the trial, over 60 trials, is at least 0.5",
        paper="The share of BO grows as surrogates become reliable; " + SHEET + "mean rho from .10 to .20, .40, .27",
    ),
    rate(
        "more_bo",
        at_least=0.8,
        table="Trend",
        id="later-bo",
        text="Bayesian optimisation proposes more in the last third than in the first in at least 80 % of the runs",
    ),
    correlates(
        "reliability",
        "held_out_tau",
        at_least=0.0,
        table="Informative",
        id="reliability-informed",
        text="Algorithms whose surrogate ranks unseen configurations better have the higher reliability",
    ),
    # 4: better than both ends
    better(
        "final",
        "lb-mcts",
        ["rho = 0", "rho = 1"],
        **REGRET,
        id="hybrid-final",
        text="After the last trial the hybrid's regret is lower than that of the prior alone and of Bayesian optimisation alone",
        paper=SHEET + "hybrid .0008, .0006, .0000, prior .0007, .0011, .0012, BO .0021, .0037, .0082",
    ),
    better(
        "area",
        "lb-mcts",
        ["rho = 0", "rho = 1"],
        by=-TOLERANCE,
        **REGRET,
        id="hybrid-anytime",
        text=f"Averaged over all trials the hybrid's regret is at most {TOLERANCE} above that of either end",
        paper=SHEET + ".0083, .0024, .0022 against at least .0062, .0018, .0025",
    ),
    *(
        better(
            "area",
            "lb-mcts",
            other,
            **REGRET,
            report=True,
            id=f"against-{other.replace(' ', '-')}",
            text=f"Ablation, regret averaged over all trials: against {what}",
        )
        for other, what in (
            ("flat memory", "the last trials as memory, whatever their place in the tree"),
            ("no path memory", "a memory without the path"),
            ("no reflection", "no reflections (the prior table reads none, so the two are the same with it)"),
            ("linear", "a share of BO that grows with time alone"),
            ("bandit", "a bandit over the two proposers"),
            ("no tree", "algorithms without trees below"),
            ("llm only", "the prior alone with a flat history"),
            ("alternating", "BO and the prior in turns"),
            ("gp", "Gaussian processes as surrogates"),
        )
    ),
    better(
        "area",
        "lb-mcts",
        ["optuna gp", "cfo", "blendsearch", "rising bandit"],
        **REGRET,
        report=True,
        id="other-peers",
        text="Regret averaged over all trials: against optuna's GP, FLAML's CFO and BlendSearch, rising bandits",
    ),
    # 5: robustness
    always("finished", **REGRET, id="no-crash", text="Every search makes all its trials, with any language model"),
    better(
        "final",
        "garbage",
        "rho = 1",
        by=-TOLERANCE,
        **REGRET,
        id="garbage",
        text=f"With a language model that only writes garbage the final error is at most {TOLERANCE} above that of BO alone",
    ),
    better(
        "final",
        "adversary",
        "rho = 1",
        by=-0.01,
        **REGRET,
        id="adversary",
        text="A language model that proposes the worst known configuration costs at most 0.01",
    ),
    better(
        "final",
        "adversary, moved",
        "rho = 1",
        by=-0.01,
        **REGRET,
        id="adversary-moved",
        text="One that proposes the worst known configuration with one parameter changed, so that it is no duplicate, costs at most 0.01",
    ),
    # a real model
    always(
        _short_prompts,
        table="RealModel",
        on=_all_embedded,
        id="short-prompts",
        text="The embedded model is never shown more than 600 tokens",
    ),
    better(
        "final",
        "embedded",
        "rho = 1",
        table="Real",
        report=True,
        id="embedded",
        text="A model of 135M parameters that scores candidates, against BO alone, on one table and seed",
    ),
]
