"""What must come out: the sheet's claims, with its prototype's figures beside them."""

from __future__ import annotations

from typing import Any

from sklearn.metrics import average_precision_score

from gnomon import stats
from gnomon.study import Claim, always, at_least, at_most, better, estimate, worse

SHEET = "Sheet's prototype: "
TABLE: dict[str, Any] = {"table": "Scores", "unit": "question"}
SHIFT: dict[str, Any] = {"table": "Shift", "on": {"way": "fdr"}}
FDR: dict[str, Any] = {"table": "Splits", "on": {"way": "fdr"}}


def gain(score: str, base: str, of: Any = stats.auroc) -> Any:
    """By how much one score's AUROC (or average precision) exceeds another's, over the same questions."""
    return lambda rows: float(of(rows["correct"], rows[score]) - of(rows["correct"], rows[base]))


def level(score: str) -> Any:
    """A score's AUROC."""
    return lambda rows: float(stats.auroc(rows["correct"], rows[score]))


def pooled(rows: Any) -> float:
    """Share right among the answers of all splits together."""
    return float(1 - rows["joint"].sum() / max(rows["answered"].sum(), 1e-12))


def low_quantile(column: str) -> Any:
    """Its 5 % quantile over splits."""
    return lambda rows: float(rows[column].quantile(0.05))


def slack(rows: Any) -> Any:
    """By how much the bound is kept, three Monte Carlo errors allowed."""
    return rows["slack"]


def validity(statement: str, text: str) -> Claim:
    """Claim 1 for one statement, over all worlds and sizes."""
    return always(slack, table="Validity", on={"statement": statement}, id="valid-" + statement.replace(" ", "-"), text=text, paper="Theorems on participation and correctness")  # fmt: skip


def power(way: str, n: int, world: str, figure: str, column: str = "answered") -> Claim:
    """A figure of claim 2."""
    return at_least(column, way, 0, table="Synthetic", on={"world": world, "n": n}, report=True,
                    id=f"power-{way.replace(' ', '-')}-{world}-{n}{'' if column == 'answered' else '-' + column.replace('_', '-')}",
                    text=f"{way}, {world} score, n = {n}: {'share answered' if column == 'answered' else 'share of wrong answers'}",
                    paper=SHEET + figure)  # fmt: skip


CLAIMS = [
    # 1: validity
    validity(
        "participation",
        "P(answer) >= 0.5 for the quantile and for both, for every score and n (within 3 Monte Carlo errors; also over the splits)",
    ),
    validity("joint error", "P(answer and wrong) <= 0.125 for risk control and for ratio, for every score and n"),
    validity(
        "within a class", "P(answer | correct) >= 0.8 and P(answer | wrong) <= 0.2 by thresholds within the class"
    ),
    validity("false discovery rate", "The expected share of wrong ones among the answers of a batch is at most 0.25"),
    validity("both", "both fails in at most 0.1 of the calibration draws"),
    validity("pac", "pac fails in at most 0.1 of the calibration draws, from the fixed start and from the top"),
    validity("bayes", "bayes fails in at most 0.1 of the calibration draws"),
    validity("ratio", "ratio's three statements hold with the true q"),
    # 2: the correction matters, and what it costs
    at_least(
        "violated",
        "uncorrected",
        0.3,
        table="Synthetic",
        on={"world": "informative", "n": [100, 1000]},
        each=["n"],
        id="uncorrected-violates",
        text="The uncorrected empirical threshold misses 75 % correctness in over 30 % of the draws",
        paper=SHEET + "57 % at n = 100, 48 % at n = 1000",
    ),
    *(power("pac", n, "informative", f) for n, f in ((100, ".02"), (400, ".07"), (1000, ".106"))),
    *(power("pac", n, "sharp", f) for n, f in ((100, ".52"), (400, ".56"), (1000, ".56"))),
    *(
        power("pac from the top", n, "informative", f)
        for n, f in ((100, ".002"), (200, ".021"), (400, ".059"), (1000, ".125"))
    ),
    *(power("fdr", n, "informative", ".256-.258, the best possible being .246") for n in (100, 1000)),
    *(power("fdr", n, "informative", ".234-.248", "wrong_share") for n in (100, 1000)),
    # 3: geometry
    *(
        estimate(
            gain(f"{base} + geometry", base),
            at_least=0,
            **TABLE,
            id=f"geometry-beyond-{name}",
            text=f"Geometry raises the AUROC of {base}",
            paper=SHEET + figure,
        )
        for base, name, figure in (
            ("log-probabilities", "log-probabilities", ".872 - .842 = .029 [.008, .051]"),
            ("logprob", "logprob", ".866 - .834 [.002, .059]"),
            ("log-probabilities + kind", "kind", ".022 [.005, .041]"),
        )
    ),
    *(
        estimate(
            gain("log-probabilities + geometry", "log-probabilities"),
            at_least=0,
            **TABLE,
            on={"kind": kinds},
            report=True,
            id=f"geometry-within-{name}",
            text=f"The same among {name} alone",
            paper=SHEET + figure,
        )
        for name, kinds, figure in (
            ("capitals", ["capital"], ".858 -> .886"),
            ("cities", ["city"], ".824 -> .848"),
            ("capitals-and-cities", ["capital", "city"], ".842 -> .872"),
        )
    ),
    estimate(
        gain("logprob + geometry", "logprob", average_precision_score),
        at_least=0,
        **TABLE,
        id="geometry-auprc",
        text="Geometry raises the average precision of logprob",
        paper="Abstract: better AUROC and AUPRC",
    ),
    *(
        estimate(
            level(name),
            at_least=0,
            **TABLE,
            report=True,
            id="auroc-" + name.replace(" + ", "-").replace(" ", "-"),
            text=f"AUROC of {name}",
            paper=SHEET + figure if figure else "",
        )
        for name, figure in (
            ("first log-probability", "0.843"),
            ("logprob", "0.834"),
            ("geometry", "0.825"),
            ("log-probabilities", "0.842"),
            ("log-probabilities + geometry", "0.872"),
            ("logprob + geometry", "0.866"),
            ("proximity", "0.697"),
            ("middle rotation", "0.613"),
            ("last alignment", "0.372 (negative sign)"),
            ("nearest correct", ""),
            ("linear probe", ""),
            ("product", ""),
            ("gbdt", ""),
        )
    ),
    # 4: selective answering
    *(
        at_least(
            "answered",
            name,
            0,
            **FDR,
            report=True,
            id=f"selective-{short}",
            text=f"Share answered at 75 % correctness (fdr), {name}",
            paper=SHEET + figure,
        )
        for name, short, figure in (("logprob", "confidence", "0.40"), ("logprob + geometry", "geometry", "0.44"))
    ),
    better(
        "answered",
        "logprob + geometry",
        "logprob",
        **FDR,
        report=True,
        id="selective-gain",
        text="Share answered gained by geometry (fdr)",
        paper=SHEET + "0.04",
    ),
    *(
        claim
        for name, short in (("logprob", "confidence"), ("logprob + geometry", "geometry"))
        for claim in (
            at_least(
                "kept",
                name,
                0,
                **FDR,
                report=True,
                id=f"selective-correct-{short}",
                paper="Abstract: 75 %",
                text=f"Realised correctness of the answers, {name} (fdr, mean over splits; 1 without answers)",
            ),
            estimate(
                low_quantile("kept"),
                name,
                at_least=0,
                **FDR,
                report=True,
                id=f"selective-low-{short}",
                text=f"The same, 5 % quantile over splits, {name}",
            ),
            at_least(
                "coverage",
                name,
                0,
                **FDR,
                report=True,
                id=f"coverage-{short}",
                text=f"Largest share of the test questions with 75 % right among them, {name}",
            ),
            at_least(
                "aurc", name, 0, **FDR, report=True, id=f"aurc-{short}", text=f"Area under risk over coverage, {name}"
            ),
        )
    ),
    at_least(
        "right",
        "logprob",
        0,
        table="Splits",
        on={"way": "always"},
        report=True,
        id="without-abstention",
        text="Accuracy without abstention",
        paper=SHEET + "0.42",
    ),
    estimate(
        pooled,
        "logprob",
        at_least=0,
        table="Splits",
        on={"way": "temperature"},
        report=True,
        id="temperature-scaled",
        text="Realised correctness at temperature-scaled probability >= 0.75 (answers of all splits)",
    ),
    *(
        at_least(
            f"accuracy_{share}",
            name,
            0,
            **FDR,
            report=True,
            id=f"accuracy-{share}-{short}",
            text=f"Accuracy of the {share} % most confident answers, {name}",
            paper=SHEET + figure,
        )
        for name, short, share, figure in (
            ("logprob", "confidence", 25, "0.84"),
            ("logprob + geometry", "geometry", 25, "0.85"),
            ("logprob", "confidence", 50, "0.67"),
            ("logprob + geometry", "geometry", 50, "0.70"),
        )
    ),
    at_least(
        "invented",
        "logprob + geometry",
        0,
        **FDR,
        report=True,
        id="invented-names",
        text="Share of invented names on which it abstains (fdr, with geometry)",
    ),
    # 5: shift
    at_most(
        "kept",
        "plain",
        0.75,
        **SHIFT,
        id="shift-breaks",
        paper="The sheet's",
        text="Calibrated on cities the plain guarantee breaks on capitals: mean share right (1 where nothing is answered) below 0.75",
    ),
    estimate(
        pooled,
        "plain",
        at_least=0,
        **SHIFT,
        report=True,
        id="shift-realised",
        text="Realised correctness on capitals, plain (answers of all splits)",
    ),
    at_least(
        "answered", "plain", 0, **SHIFT, report=True, id="shift-answers", text="Share of capitals answered, plain"
    ),
    at_least(
        "kept",
        "mondrian",
        0.72,
        **SHIFT,
        id="mondrian-restores",
        paper="The sheet's",
        text="Thresholds from 60 labelled capitals restore 75 % within 3 points (mean over the splits)",
    ),
    estimate(
        pooled,
        "mondrian",
        at_least=0,
        **SHIFT,
        report=True,
        id="mondrian-realised",
        text="Realised correctness on capitals, own thresholds (answers of all splits)",
    ),
    at_least(
        "answered",
        "mondrian",
        0,
        **SHIFT,
        report=True,
        id="mondrian-answers",
        text="Share of capitals answered with their own thresholds",
    ),
    at_least(
        "kept",
        "weighted",
        0.72,
        **SHIFT,
        id="weights-restore",
        paper="The sheet's: judged apart, may fail",
        text="Weights by an estimated density ratio restore 75 % within 3 points",
    ),
    at_least(
        "answered",
        "weighted",
        0,
        **SHIFT,
        report=True,
        id="weights-answer",
        text="Share of capitals answered with weights",
    ),
    *(
        at_least(
            "answered",
            name,
            0,
            table="Shift",
            on={"way": "participation"},
            report=True,
            id=f"shift-participation-{name}",
            text=f"Share of capitals answered where half were to be, {name}",
        )
        for name in ("plain", "mondrian")
    ),
    # 6: cost
    better(
        "seconds",
        "logprob + geometry",
        "greedy",
        factor=1 / 1.1,
        table="Cost",
        id="sampling-free",
        text="Geometry and log-probability cost at most 1.1 x one greedy generation",
        paper="Sampling-free",
    ),
    worse(
        "seconds",
        {"contender": "self-consistency"},
        "greedy",
        factor=4,
        table="Cost",
        id="samples-cost",
        text="Self-consistency costs at least 4 x one greedy generation",
    ),
    worse(
        "seconds",
        {"contender": "semantic entropy"},
        "greedy",
        factor=4,
        table="Cost",
        id="entropy-costs",
        text="Semantic entropy costs at least 4 x one greedy generation",
    ),
    worse(
        "seconds",
        {"contender": "self-consistency, prompt read once"},
        "greedy",
        factor=4,
        table="Cost",
        report=True,
        id="samples-cost-shared",
        text="The same for self-consistency that reads each prompt once for its five samples",
    ),
    *(
        estimate(
            level(name),
            at_least=0,
            **TABLE,
            on={"sampled": True},
            report=True,
            id=f"sampled-auroc-{short}",
            text=f"AUROC of {name} on the fixed random questions",
        )
        for name, short in (
            ("logprob", "logprob"),
            ("logprob + geometry", "geometry"),
            ("P(True)", "p-true"),
            ("self-consistency", "self-consistency"),
            ("semantic entropy", "semantic-entropy"),
            ("refusal prompt", "refusal-prompt"),
        )
    ),
]
