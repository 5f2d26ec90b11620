"""The experiments: views whose pairs are known, taken apart, and what each method makes of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gnomon import study
from gnomon.geometry.ucca import baselines, sources
from gnomon.geometry.ucca.assignment import ascend, doubly_stochastic, permutation_matrix
from gnomon.geometry.ucca.cca import Basis, canonical, cross_covariance, paired_correlations, projections
from gnomon.geometry.ucca.kernels import Array, low_rank, overlap, view_kernel
from gnomon.geometry.ucca.method import UCCA
from gnomon.geometry.ucca.search import View, search

K, D, RIDGE, TRAIN = 5, 15, 0.1, 400
ALL_NUMERALS = [f"{a}-{b}" for i, a in enumerate(sources.NUMERALS) for b in sources.NUMERALS[i + 1 :]]
HARD = ["fou-kar", "fou-zer"]
RECOVERED = 0.9  # of supervised CCA: what counts as success


@dataclass
class Problem:
    """Two training sets in unrelated order, test pairs, and the truth that no contender is shown.

    ``partner`` is the row of Y that belongs to each row of X (-1: none there), ``Y_paired`` the partners themselves.
    """

    X: Array
    Y: Array
    X_test: Array
    Y_test: Array
    partner: Array
    Y_paired: Array
    labels_x: Array
    labels_y: Array
    runs: int = 1
    nulls: int = 0
    rounds: int = 60

    def correlation(self, coupling: Any, Y: Array | None = None) -> float:
        """Mean test correlation of the ridge CCA under a coupling of X with Y."""
        Y = self.Y if Y is None else Y
        x, y = Basis.of(self.X, D), Basis.of(Y, D)
        cross = cross_covariance(x.coordinates(self.X), y.coordinates(Y), coupling)
        A, B = projections(x, y, cross, K, RIDGE)
        return float(paired_correlations((self.X_test - x.mean) @ A, (self.Y_test - y.mean) @ B).mean())

    def supervised(self) -> float:
        """The same with the true pairs."""
        return self.correlation(np.arange(len(self.X)), self.Y_paired)

    def row(self, coupling: Any) -> dict[str, float]:
        """Correlation, its ratio to supervised CCA, and how much of the pairing is right."""
        pairing = coupling if coupling.ndim == 1 else coupling.argmax(axis=1)
        known = self.partner >= 0
        value, upper = self.correlation(coupling), self.supervised()
        right = float(np.mean(pairing[known] == self.partner[known])) if known.any() else float("nan")
        return {"correlation": value, "ratio": value / upper, "supervised": upper, "accuracy": right,
                "same_class": float(np.mean(self.labels_x == self.labels_y[pairing]))}  # fmt: skip

    def true_score(self) -> float:
        """The score of the true pairs."""
        return overlap(view_kernel(self.X, "rbf"), view_kernel(self.Y_paired, "rbf"), np.arange(len(self.X)))


def taken_apart(views: sources.Views, n: int, rng: np.random.Generator, overlap_share: float = 1.0) -> Problem:
    """n training rows of each view, of which a share are of the same items, in unrelated order; the rest is for tests."""
    X, Y, labels = views
    rows = rng.permutation(len(X))
    shared = round(overlap_share * n)
    if 2 * n - shared >= len(X):
        raise ValueError(f"n: got {n}; the {len(X)} items leave none for tests")
    mine, other = rows[:n], np.concatenate([rows[:shared], rows[n : 2 * n - shared]])
    test = rows[2 * n - shared :]
    order = rng.permutation(n)
    partner = np.where(np.arange(n) < shared, np.argsort(order), -1)
    return Problem(X[mine], Y[other][order], X[test], Y[test], partner, Y[mine], labels[mine], labels[other][order])


# --- contenders: (X, Y, rng) -> a coupling ----------------------------------------------------------------------------


@dataclass
class Ours:
    """UCCA with so many rounds at most (None: as the inputs say)."""

    rounds: int | None = None

    def fit(self, problem: Problem, rng: np.random.Generator) -> UCCA:
        rounds = problem.rounds if self.rounds is None else min(self.rounds, problem.rounds)
        model = UCCA(K, n_pca=D, max_rounds=rounds, n_runs=problem.runs, n_null=problem.nulls, ridge=RIDGE,
                     random_state=int(rng.integers(2**31)))  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # constant pixels
            return model.fit(problem.X, problem.Y)


SUPERVISED = "supervised"
UCCA_ = "ucca"
ENTROPIC = {"entropic GW": baselines.entropic_gw, "entropic GW, 0.001": partial(baselines.entropic_gw, epsilon=1e-3)}
BASELINES: dict[str, Any] = {
    **ENTROPIC,
    "GW": baselines.gromov_wasserstein,
    "descriptors": baselines.descriptors,
    "matching CCA": baselines.matching_cca,
    "matching CCA, random start": partial(baselines.matching_cca, start="random"),
    "kernelized sorting": baselines.sorted_kernels,
    "FAQ, rbf": baselines.faq_barycentre,
    "FAQ, linear": partial(baselines.faq_barycentre, kernel="linear"),
    "Wasserstein-Procrustes": baselines.wasserstein_procrustes,
    "VecMap": baselines.vecmap,
    "ICA quantiles": baselines.ica_quantiles,
    "spectral": baselines.spectral,
    "linear MMD": baselines.linear_mmd,
    "adversarial": baselines.adversarial,
    "random": baselines.random_pairing,
}
FEW = {UCCA_: Ours(), "starts alone": Ours(0), SUPERVISED: SUPERVISED, "entropic GW": baselines.entropic_gw}


class Aligned(study.Experiment):
    """What all experiments on taken-apart pairs share."""

    metrics = {
        "correlation": study.higher(),
        "ratio": study.higher(),
        "accuracy": study.higher(),
        "score": study.higher(),
    }

    @study.stage(version=1, inputs=(), cell=("task",), seeded=False)
    def population(self, inputs, cell, seed):
        return tuple(sources.load(cell.task))

    def problem(self, inputs, cell, rng, share=1.0):
        found = taken_apart(sources.Views(*self.population(inputs, cell)), cell.n, rng, share)
        found.rounds = inputs.max_rounds
        return found

    def prepare(self, inputs, cell, rng):
        found = self.problem(inputs, cell, rng)
        found.runs = inputs.other_runs
        return found

    def measure(self, problem, contender, rng):
        if isinstance(contender, Ours):
            return [measured(problem, contender.fit(problem, rng))]
        if contender == SUPERVISED:
            value = problem.supervised()
            return [
                {
                    "correlation": value,
                    "ratio": 1.0,
                    "supervised": value,
                    "accuracy": 1.0,
                    "score": problem.true_score(),
                }
            ]
        coupling = contender(problem.X, problem.Y, rng)
        pairing = coupling if coupling.ndim == 1 else None
        score = float("nan")
        if pairing is not None:
            score = overlap(view_kernel(problem.X, "rbf"), view_kernel(problem.Y, "rbf"), pairing)
        return [{**problem.row(coupling), "score": score}]


def measured(problem: Problem, model: UCCA) -> dict[str, Any]:
    """What UCCA found, and what its other runs would have given."""
    each = [problem.correlation(p) for p in model.run_pairings_]
    found = problem.row(model.pairing_)
    return {**found, "score": model.score_, "regret": max(each) - found["correlation"], "agreement": model.agreement_,
            "stability": model.stability_, "confidence": model.confidence_, "status": model.status_,
            "null_score": float(model.null_scores_.mean()) if len(model.null_scores_) else float("nan"),
            "rounds": float(np.mean(model.n_rounds_))}  # fmt: skip


class Recovery(Aligned):
    """MNIST pixels against gradient histograms: is what was taken apart put together, and by whom?"""

    cells = study.grid(task=["gradients"], n=[TRAIN, 800])
    contenders = {UCCA_: Ours(), "starts alone": Ours(0), SUPERVISED: SUPERVISED, **BASELINES}
    metrics = {**Aligned.metrics, "regret": study.lower()}

    def prepare(self, inputs, cell, rng):
        found = self.problem(inputs, cell, rng)
        found.runs = inputs.runs
        return found


class Pairs(Aligned):
    """Other pairs of views: image halves, digits, text, layers of a network, genes, mixed latents."""

    cells = study.grid(task=["halves", "digits", "text", "layers", "genes", "latents-0.1", "latents-0.5"], n=[TRAIN])
    contenders = FEW


class Numerals(Aligned):
    """Views of handwritten numerals."""

    cells = study.grid(task=["fac-pix", "kar-fac", "kar*-fac"], n=[TRAIN])
    contenders = {UCCA_: Ours(), SUPERVISED: SUPERVISED, "entropic GW": baselines.entropic_gw}


class Threshold(Aligned):
    """Does UCCA succeed where, and only where, the true pairing's score exceeds what a shapeless view can be made to reach?"""

    cells = study.grid(task=ALL_NUMERALS, n=[TRAIN])
    contenders = {UCCA_: Ours()}
    metrics = {"true_score": study.Metric(), "spurious": study.Metric()}
    seeds = 1

    def prepare(self, inputs, cell, rng):
        found = self.problem(inputs, cell, rng)
        found.nulls = 1
        return found

    def measure(self, problem, contender, rng):
        row = measured(problem, contender.fit(problem, rng))
        true, spurious = problem.true_score(), row["null_score"]
        return [{"true_score": true, "spurious": spurious, "found": row["score"], "recovered": row["ratio"], "matched": row["accuracy"],
                 "success": row["ratio"] >= RECOVERED, "predicted": true > spurious + 0.03}]  # fmt: skip


class Unpaired(Aligned):
    """The two views come from different items: how little overlap is enough?"""

    cells = study.grid(task=["gradients", "text"], n=[TRAIN], overlap=[1.0, 0.75, 0.5, 0.0])
    contenders = {UCCA_: Ours(), SUPERVISED: SUPERVISED, "entropic GW": baselines.entropic_gw}

    def prepare(self, inputs, cell, rng):
        return self.problem(inputs, cell, rng, cell.overlap)


class Diagnosis(Aligned):
    """What UCCA says of its own result, beside how good it is."""

    cells = study.grid(task=["gradients", "text"], n=[TRAIN])
    contenders = {UCCA_: Ours()}
    seeds = 1

    def prepare(self, inputs, cell, rng):
        found = self.problem(inputs, cell, rng)
        found.runs, found.nulls = inputs.runs, inputs.nulls
        return found


class Landscape(Aligned):
    """Every local optimum that one run visits: does the score rank them as the test correlation does?"""

    cells = study.grid(task=["gradients"], n=[TRAIN])
    contenders = {UCCA_: search}
    metrics = {"optimum_score": study.higher(), "optimum_correlation": study.higher()}

    def measure(self, problem, contender, rng):
        x, y = (View.of(Z, D) for Z in (problem.X, problem.Y))
        found = contender(x, y, rng, max_rounds=problem.rounds)
        return [{"optimum": i, "round": o.round, "optimum_score": o.score, "optimum_correlation": problem.correlation(o.pairing)}
                for i, o in enumerate(found.visited)]  # fmt: skip


class Theory(Aligned):
    """The identities that tie the quadratic assignment problem to CCA, on the data themselves."""

    cells = study.grid(task=["gradients", "halves", "digits", "text", "layers", "genes", "latents-0.1", "latents-0.5", *ALL_NUMERALS],
                       n=[200])  # fmt: skip
    contenders = {UCCA_: UCCA}
    metrics = {"qap_error": study.lower(), "gradient_error": study.lower()}
    seeds = 0

    def measure(self, problem, contender, rng):
        X, Y = (Basis.of(Z, D).coordinates(Z) for Z in (problem.X, problem.Y))
        n, pairing = len(X), rng.permutation(len(X))
        U, rho, V = canonical(X, Y, pairing)
        K_x, K_y = X @ X.T, Y @ Y.T
        total, value = n**2 * float(np.sum(rho**2)), overlap(K_x, K_y, pairing)
        gradient = 2 * K_x @ K_y[pairing]
        step = 2 * n * (X @ U * rho) @ (Y @ V).T
        rbf_x, rbf_y = view_kernel(problem.X, "rbf"), view_kernel(problem.Y, "rbf")
        F_x, F_y = low_rank(rbf_x), low_rank(rbf_y)
        starts = [doubly_stochastic(permutation_matrix(rng.permutation(n))) for _ in range(10)]
        wrong = max(overlap(rbf_x, rbf_y, ascend(F_x, F_y, start)) for start in starts)
        return [{"qap_error": abs(value / total - 1), "gradient_error": float(np.abs(gradient - step).max() / np.abs(gradient).max()),
                 "self_score": overlap(rbf_x, rbf_x, np.arange(n)), "true_score_here": problem.true_score(), "wrong_score": wrong}]  # fmt: skip
