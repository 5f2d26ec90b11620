"""Synthetic worlds with known truth; a language model's answers: ranking, splits, shift and cost."""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar

import numpy as np

from gnomon import models, stats
from gnomon.guarantees.conformal_abstention import baselines
from gnomon.guarantees.conformal_abstention.certificates import Rule, Sample, Target, certify
from gnomon.guarantees.conformal_abstention.generation import respond, sample
from gnomon.guarantees.conformal_abstention.geometry import Reference, text_reference
from gnomon.guarantees.conformal_abstention.scores import combiner, logistic, nearest_correct, out_of_fold
from gnomon.guarantees.conformal_abstention.shift import density_ratio
from gnomon.guarantees.conformal_abstention.study.language import MODEL, Language, Sampled, asked, features, subset
from gnomon.guarantees.conformal_abstention.study.synthetic import SIZES, TARGET, WAYS, WORLDS, blocks
from gnomon.guarantees.conformal_abstention.thresholds import ALWAYS, Threshold
from gnomon.study import Experiment, higher, lower, stage


class Synthetic(Experiment):
    """Do the statements hold where the truth is known, for informative, sharp, useless and reversed scores?

    A contender of your own is a function ``(calibration, fit split, target) -> Threshold``.
    """

    cells = [{"world": w, "n": n} for w, sizes in SIZES.items() for n in sizes]
    contenders = WAYS
    metrics = {
        "answered": higher(),
        "joint": lower(),
        "wrong_share": lower(),
        "violated": lower(),
        "infeasible": lower(),
    }
    unit = "block"
    seeds = 0

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return WORLDS[cell.world], cell.n, inputs.draws, [int(rng.integers(2**31)), inputs.draw]

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        world, n, draws, seed = problem
        return list(blocks(contender, world, n, draws, np.random.default_rng(seed)))  # the same draws for all


# --- which answers are right -----------------------------------------------------------------------------------------

FITTED = ("logprob + geometry", "log-probabilities", "log-probabilities + geometry", "geometry", "log-probabilities + kind",
          "log-probabilities + kind + geometry")  # fmt: skip
SINGLE = {"logprob": 0, "first log-probability": 1, "entropy": 2, "margin": 3}
GEOMETRY = {"proximity": 0, "middle rotation": 3, "MLP's share": 6, "last alignment": 8}
ASKED = ("P(True)", "self-consistency", "semantic entropy", "refusal prompt")
FOLDS = 10


class Ranking(Language, Sampled):
    """Which score tells right answers from wrong ones? Fitted scores by 10-fold cross-validation.

    A contender of your own is a function ``(data, train, test) -> scores of the test items``.
    """

    contenders: ClassVar[dict[str, Any]] = {
        name: name
        for name in (*FITTED, *SINGLE, *GEOMETRY, "nearest correct", "product", "gbdt", "linear probe", *ASKED)
    }
    metrics = {"score": higher()}
    unit = "question"
    seeds = 0

    @stage(version=2, inputs=(*MODEL, "sampled"), cell=(), seeded=False)
    def asking(self, inputs: Any, cell: Any, seed: Any) -> np.ndarray:
        lm, found, data = models.load(inputs.model), asked(inputs), self.answers(inputs, cell)
        at = subset(len(found), inputs)
        return baselines.p_true(lm.model, lm.tokenizer, [found[i].prompt for i in at], [data["texts"][i] for i in at])

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        data = self.answers(inputs, cell)
        at = subset(len(data["correct"]), inputs)
        drawn = self.samples(inputs, cell)
        repeated = {
            "P(True)": self.asking(inputs, cell),
            "self-consistency": baselines.self_consistency([data["texts"][i] for i in at], drawn["samples"]),
            "semantic entropy": drawn["entropy"],
            "refusal prompt": -drawn["refuses"].astype(float),
        }
        return data, at, repeated

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        data, at, repeated = problem
        n = len(data["correct"])
        if contender in repeated:
            scores = np.full(n, np.nan)
            scores[at] = repeated[contender]
        elif contender in SINGLE:
            scores = (-1 if contender == "entropy" else 1) * data["confidence"][:, SINGLE[contender]]
        elif contender in GEOMETRY:
            scores = data["geometry"][:, GEOMETRY[contender]]
        else:
            scores = cross_validated(data, contender)
        drawn = np.isin(np.arange(n), at)
        return [{"question": i, "kind": str(data["kind"][i]), "correct": int(data["correct"][i]), "sampled": bool(drawn[i]), "score": float(s)}
                for i, s in enumerate(scores) if np.isfinite(s)]  # fmt: skip


def cross_validated(data: dict[str, Any], contender: Any) -> np.ndarray:
    """Out-of-fold scores of every question."""
    from sklearn.model_selection import StratifiedKFold

    correct = data["correct"]
    scores = np.full(len(correct), np.nan)
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(correct, correct):
        if callable(contender):
            scores[test] = contender(data, train, test)
        elif contender == "linear probe":
            scores[test] = (
                baselines.LinearProbe().fit(data["states"][train], correct[train]).score(data["states"][test])
            )
        elif contender == "nearest correct":
            scores[test] = nearest_correct(data["states"][test], data["states"][train[correct[train]]])
        elif contender in ("product", "gbdt"):
            X, X_test = features(data, "logprob + geometry", train, test)
            scores[test] = combiner(contender).fit(X, correct[train].astype(float)).score(X_test)
        else:
            X, X_test = features(data, contender, train, test)
            scores[test] = logistic().fit(X, correct[train]).decision_function(X_test)
    return scores


# --- the guarantees on real answers ----------------------------------------------------------------------------------

KINDS = ("both", "ratio", "pac", "fdr", "bayes")
SHARES = (0.4, 0.3)  # fit, calibrate; the rest tests


class Splits(Language):
    """Random splits of the questions into fit, calibration and test: what is answered, and how much of it is right?

    A contender of your own is a function ``(data, train, test) -> scores of the test items``.
    """

    contenders: ClassVar[dict[str, Any]] = {name: name for name in ("logprob + geometry", "logprob", "noise")}
    metrics = {
        "answered": higher(),
        "kept": higher(),
        "joint": lower(),
        "wrong_share": lower(),
        "auroc": higher(),
        "coverage": higher(),
    }
    unit = "split"
    seeds = 0

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return self.answers(inputs, cell), inputs.splits, [int(rng.integers(2**31)), inputs.draw]

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        data, splits, seed = problem
        draw = np.random.default_rng(seed)  # the same splits for all
        correct, rows = data["correct"], []
        for split in range(splits):
            order, u = draw.permutation(len(correct)), draw.random(len(correct))
            fit, cal, test = np.split(order, np.round(np.cumsum(SHARES) * len(order)).astype(int))
            if correct[fit].all() or not correct[fit].any():
                continue
            S = scored(data, contender, fit, cal, test, draw)
            shown = {"split": split, **quality(S[2], correct[test])}
            parts = [Sample(s, correct[at], u[at]) for s, at in zip(S, (fit, cal, test), strict=True)]
            for way, answered in decisions(parts, data, fit, cal, contender).items():
                rows.append(
                    {
                        **shown,
                        "way": way,
                        **outcome(answered, correct[test]),
                        "invented": invented(data, test, answered),
                    }
                )
                rows[-1]["infeasible"] = float(way == "ratio" and infeasible(parts[1]))
        return rows


def scored(data: dict[str, Any], contender: Any, fit: np.ndarray, cal: np.ndarray, test: np.ndarray,
           rng: np.random.Generator) -> list[np.ndarray]:  # fmt: skip
    """Scores of the three parts; those of the fit split out of fold."""
    later = np.concatenate([cal, test])
    if callable(contender):
        own, others = np.asarray(contender(data, fit, fit), float), np.asarray(contender(data, fit, later), float)
    elif contender == "noise":
        own, others = rng.random(len(fit)), rng.random(len(later))
    elif contender == "logprob":
        own, others = data["confidence"][fit, 0], data["confidence"][later, 0]
    else:
        X, X_later = features(data, contender, fit, later)
        right = data["correct"][fit].astype(float)
        own, others = out_of_fold("geometry", X, right), combiner("geometry").fit(X, right).score(X_later)
    return [own, others[: len(cal)], others[len(cal) :]]


def decisions(
    parts: list[Sample], data: dict[str, Any], fit: np.ndarray, cal: np.ndarray, contender: Any
) -> dict[str, np.ndarray]:
    """What every certificate and baseline answers on one split."""
    fitted, calibration, new = parts
    made: dict[str, Rule | Threshold] = {kind: certify(kind, calibration, fitted, TARGET, None) for kind in KINDS}
    made |= {name: WAYS[name](calibration, fitted, TARGET) for name in ("participation", "joint", "uncorrected")}
    made["always"] = ALWAYS
    found = {
        name: way.decide(new.S, new.u) if isinstance(way, Rule) else way.accepts(new.S, new.u)
        for name, way in made.items()
    }
    if contender == "logprob":
        labelled = np.concatenate([fit, cal])
        scale = baselines.TemperatureScaled().fit(data["confidence"][labelled, 0], data["correct"][labelled])
        found["temperature"] = scale.probability(new.S) >= TARGET.correctness
    return found


def infeasible(calibration: Sample) -> bool:
    """Whether ``ratio`` cannot meet both levels on this calibration set."""
    return certify("ratio", calibration, calibration, TARGET, None).certificate.infeasible


def outcome(answered: np.ndarray, correct: np.ndarray) -> dict[str, float]:
    """Share answered, wrong among all and among the answers (0 without any), right among the answers (NaN without any)."""
    many, wrong = int(answered.sum()), int((answered & ~correct).sum())
    return {"answered": many / len(correct), "joint": wrong / len(correct), "wrong_share": wrong / max(1, many),
            "kept": 1 - wrong / max(1, many), "right": 1 - wrong / many if many else math.nan}  # fmt: skip


def invented(data: dict[str, Any], test: np.ndarray, answered: np.ndarray) -> float:
    """Share of the invented names on which it abstains."""
    names = data["kind"][test] == "invented"
    return float(1 - answered[names].mean()) if names.any() else math.nan


def quality(S: np.ndarray, correct: np.ndarray) -> dict[str, float]:
    """AUROC, average precision, area under risk-coverage, largest coverage at 75 %, accuracy at coverages."""
    from sklearn.metrics import average_precision_score

    order = np.argsort(-S, kind="stable")
    share = np.cumsum(correct[order]) / np.arange(1, len(order) + 1)
    good = np.flatnonzero(share >= TARGET.correctness)
    both = bool(correct.any() and not correct.all())
    return {"auroc": stats.auroc(correct, S) if both else math.nan, "auprc": float(average_precision_score(correct, S)) if both else math.nan,
            "aurc": float((1 - share).mean()), "coverage": (good[-1] + 1) / len(order) if len(good) else 0.0,
            **{f"accuracy_{c}": float(share[max(0, round(c / 100 * len(order)) - 1)]) for c in (25, 50, 100)}}  # fmt: skip


LABELLED = 60  # capitals that Mondrian thresholds get


class Shift(Language):
    """Calibrated on cities, used on capitals: what breaks, and what mends it?"""

    contenders: ClassVar[dict[str, Any]] = {name: name for name in ("mondrian", "plain", "weighted")}
    metrics = {"kept": higher(), "answered": higher(), "right": higher()}
    unit = "split"
    seeds = 0

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return self.answers(inputs, cell), inputs.splits, [int(rng.integers(2**31)), inputs.draw]

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        data, splits, seed = problem
        draw = np.random.default_rng(seed)
        cities, capitals = (np.flatnonzero(data["kind"] == kind) for kind in ("city", "capital"))
        target, rows = Target(TARGET.correctness), []
        for split in range(splits):
            fit, cal = np.split(draw.permutation(cities), [round(0.4 * len(cities))])
            labelled, test = np.split(draw.permutation(capitals), [min(LABELLED, len(capitals) // 2)])
            right, u = data["correct"][fit].astype(float), draw.random(len(data["correct"]))
            if right.all() or not right.any():
                continue
            used = labelled if contender == "mondrian" else cal
            X, later = features(data, "logprob + geometry", fit, np.concatenate([used, test]))
            S = combiner("geometry").fit(X, right).score(later)
            w, w_new = (
                density_ratio(later[: len(used)], later[len(used) :]) if contender == "weighted" else (None, None)
            )
            calibration = Sample(S[: len(used)], data["correct"][used], u[used], w)
            ways: dict[str, Any] = {"fdr": certify("fdr", calibration, calibration, target, None)}
            if contender != "weighted":
                ways |= {way: WAYS[way](calibration, calibration, TARGET) for way in ("participation", "joint")}
            new, right_new = (S[len(used) :], u[test]), data["correct"][test]
            for way, rule in ways.items():
                answered = rule.decide(*new, w_new) if isinstance(rule, Rule) else rule.accepts(*new)
                rows.append({"split": split, "way": way, **outcome(answered, right_new)})
        return rows


# --- what it costs ---------------------------------------------------------------------------------------------------

TIMED = 4  # questions


class Cost(Experiment):
    """Processor seconds for a few questions: one greedy generation, the same with geometry, and what samples five times."""

    contenders: ClassVar[dict[str, Any]] = {
        name: name
        for name in (
            "logprob + geometry",
            "greedy",
            "self-consistency",
            "semantic entropy",
            "self-consistency, prompt read once",
        )
    }
    metrics = {"seconds": lower("s", log=True, timed=True)}
    unit = "repeat"
    seeds = 0
    repeats = 6

    @stage(version=1, inputs=("model", "windows"), cell=(), seeded=False)
    def reference(self, inputs: Any, cell: Any, seed: Any) -> dict[str, Any]:
        lm = models.load(inputs.model)
        return text_reference(lm.model, lm.tokenizer, windows=inputs.windows)._asdict()

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        found, lm = asked(inputs), models.load(inputs.model)
        prompts = [q.prompt for q in found[:TIMED]]
        respond(lm.model, lm.tokenizer, prompts[:1])  # warm
        embed = baselines.sentence_embeddings
        embed(["warm"])
        return lm, Reference(**self.reference(inputs, cell)), prompts, embed

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        lm, reference, prompts, embed = problem
        geometry = contender == "logprob + geometry"
        started = time.process_time()
        said = respond(lm.model, lm.tokenizer, prompts, reference=reference if geometry else None)
        if contender in ("self-consistency", "semantic entropy", "self-consistency, prompt read once"):
            drawn = sample(lm.model, lm.tokenizer, prompts, share_prompt="once" in contender)
            if contender == "semantic entropy":
                baselines.semantic_entropy(drawn, embed)
            else:
                baselines.self_consistency(said.texts, drawn)
        return [{"seconds": time.process_time() - started}]
