"""``gnomon run``: a person's own two views."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from gnomon import study
from gnomon.geometry.ucca import baselines
from gnomon.geometry.ucca.cca import Basis, cross_covariance, projections
from gnomon.geometry.ucca.kernels import Array
from gnomon.geometry.ucca.method import UCCA

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def load(path: Path) -> Array:
    """An array from a ``.npy`` file, or from a ``.csv`` of numbers with a header line."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist; expected a .npy or .csv file")
    if path.suffix == ".npy":
        found: Array = np.load(path, allow_pickle=False)
        return found
    if path.suffix == ".csv":
        import pandas as pd

        return pd.read_csv(path).to_numpy(np.float64)
    raise ValueError(f"{path}: expected a file that ends in .npy or .csv")


def _readable(path: Path) -> Path:
    load(path)
    return path


ArrayPath = Annotated[Path, AfterValidator(_readable)]


class Run(study.protocol.Options):
    """What a person gives."""

    x: ArrayPath = Field(..., description="first view, rows by features (.npy or .csv)")
    y: ArrayPath = Field(..., description="second view, rows in any order")
    components: int = Field(5, ge=1, description="projections")
    n_pca: int = Field(15, ge=1, description="principal components of each view")
    runs: int = Field(3, ge=1, description="independent searches, of which the best score is kept")
    nulls: int = Field(5, ge=0, description="searches of shapeless views, for the confidence")
    rounds: int = Field(60, ge=0, description="rounds of a search at most")
    unequal: bool = Field(False, description="accept views of different sizes")
    standardize: bool = Field(False, description="give the features unit variance first")
    soft: bool = Field(False, description="project under a transport plan in place of a pairing")
    pairs: ArrayPath | None = Field(None, description="true row of y for each row of x (.npy), for an evaluation")
    seed: int = Field(0, ge=0, description="random seed")


def _columns(path: Path) -> Array:
    Z = load(path)
    return Z[:, None] if Z.ndim == 1 else Z


def run(inputs: Any, beside: bool) -> study.Outcome:
    """Fit, and evaluate where the true pairs are given; ``beside`` adds entropic Gromov-Wasserstein and random pairs."""
    from rich.console import Console
    from rich.progress import track

    X, Y = _columns(inputs.x), _columns(inputs.y)
    truth = None if inputs.pairs is None else _truth(load(inputs.pairs), len(X), len(Y))
    if beside and len(X) != len(Y):
        raise ValueError("--beside needs views of one size")
    model = UCCA(inputs.components, n_pca=inputs.n_pca, n_runs=inputs.runs, n_null=inputs.nulls, max_rounds=inputs.rounds,
                 bijective=not inputs.unequal, standardize=inputs.standardize, soft=inputs.soft, random_state=inputs.seed)  # fmt: skip
    shown = sys.stderr.isatty()
    model._fit(
        X, Y, lambda jobs: track(jobs, "searching", console=Console(stderr=True), transient=True, disable=not shown)
    )
    results: dict[str, Any] = {"ucca": {"model": model, "evaluation": None, "accuracy": None}}
    if truth is not None:
        known = truth >= 0
        results["ucca"]["evaluation"] = model.evaluate(X[known], Y[truth[known]])
        results["ucca"]["accuracy"] = float(np.mean(model.pairing_[known] == truth[known]))
    if beside:
        rng = np.random.default_rng(inputs.seed)
        for name, contender in (("entropic GW", baselines.entropic_gw), ("random", baselines.random_pairing)):
            results[name] = _other(X, Y, contender(X, Y, rng), truth, model)
    return study.Outcome(inputs, (X, Y, truth), results)


def _truth(pairs: Array, n: int, m: int) -> Array:
    truth = np.asarray(pairs)
    if truth.shape != (n,) or not np.all(truth == np.round(truth)) or truth.min() < -1 or truth.max() >= m:
        raise ValueError(f"--pairs: got shape {truth.shape}; expected {n} rows of y, 0 to {m - 1} (or -1: none)")
    return truth.astype(np.int64)


def _other(X: Array, Y: Array, coupling: Any, truth: Any, model: UCCA) -> dict[str, Any]:
    """Projections under another coupling, by the same CCA."""
    from gnomon.geometry.ucca.cca import paired_correlations

    x, y = (Basis.of(Z, model.n_pca, standardize=model.standardize) for Z in (X, Y))
    cross = cross_covariance(x.coordinates(X), y.coordinates(Y), coupling)
    A, B = projections(x, y, cross, model.n_components, model.ridge)
    found: dict[str, Any] = {"correlation": None, "accuracy": None}
    if truth is not None:
        known = truth >= 0
        pairing = coupling if coupling.ndim == 1 else coupling.argmax(axis=1)
        P, Q = (X[known] - x.mean) @ A, (Y[truth[known]] - y.mean) @ B
        found = {
            "correlation": float(paired_correlations(P, Q).mean()),
            "accuracy": float(np.mean(pairing[known] == truth[known])),
        }
    return found


def present(outcome: study.Outcome) -> Any:
    """Status, score, nulls and agreement; correlations; the evaluation."""
    import pandas as pd

    found = outcome.result
    model: UCCA = found["model"]
    says = {"paired": "a pairing was found: the runs agree on it",
            "distribution": "the distributions were matched, the rows were not: use the projections, not the pairing",
            "failed": "nothing vouches for this result: do not use it"}[model.status_]  # fmt: skip
    null = ", ".join(f"{s:.3f}" for s in model.null_scores_) or "none"
    shown: list[Any] = [
        f"status {model.status_}: {says}",
        f"score {model.score_:.3f} (runs {', '.join(f'{s:.3f}' for s in model.run_scores_)}; nulls {null}; "
        f"confidence {model.confidence_:.1f})",
        f"agreement of the runs {model.agreement_:.2f}, stability of the projections {model.stability_:.2f}",
        pd.DataFrame(
            {"component": np.arange(1, len(model.correlations_) + 1), "in-sample correlation": model.correlations_}
        ),
    ]
    evaluation = found["evaluation"]
    if evaluation is not None:
        shown.append(f"on the true pairs of the fitted rows: mean correlation {evaluation.correlation:.3f}, {evaluation.ratio:.2f} of "
                     f"supervised CCA ({evaluation.supervised:.3f}); {found['accuracy']:.0%} of the rows paired right")  # fmt: skip
    others = [{"contender": n, **r} for n, r in outcome.results.items() if n != "ucca"]
    if others:
        own = {"contender": "ucca", "correlation": evaluation and evaluation.correlation, "accuracy": found["accuracy"]}
        shown.append(pd.DataFrame([own, *others]))
    return shown


def picture(outcome: study.Outcome) -> Figure:
    """Both views in the first two components, paired points joined."""
    from matplotlib.figure import Figure

    X, Y, _ = outcome.problem
    model: UCCA = outcome.result["model"]
    figure = Figure(figsize=(5 * min(2, model.n_components), 4), layout="constrained")
    P, Q = model.transform(X, Y)
    paired = np.flatnonzero(model.pairing_ >= 0)
    for j, axis in enumerate(np.atleast_1d(figure.subplots(1, min(2, model.n_components)))):
        axis.plot(P[paired, j], Q[model.pairing_[paired], j], ".", markersize=4)
        axis.set(
            xlabel=f"x, component {j + 1}",
            ylabel=f"paired y, component {j + 1}",
            title=f"in-sample r = {model.correlations_[j]:.2f}",
        )
    return figure


def save(outcome: study.Outcome, directory: Path) -> None:
    """``ucca.npz``: maps, means, pairing, scores."""
    model: UCCA = outcome.result["model"]
    np.savez_compressed(directory / "ucca.npz", A=model.x_rotations_, B=model.y_rotations_, x_mean=model.x_mean_, y_mean=model.y_mean_,
                        pairing=model.pairing_, correlations=model.correlations_, score=model.score_, null_scores=model.null_scores_,
                        run_scores=model.run_scores_, agreement=model.agreement_, stability=model.stability_,
                        status=model.status_)  # fmt: skip
