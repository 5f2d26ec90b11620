"""The study of two-level softmax sampling."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, field_validator

from gnomon import study
from gnomon.sampling.two_level_softmax.method import TwoLevelSoftmax
from gnomon.sampling.two_level_softmax.study import data
from gnomon.sampling.two_level_softmax.study.experiments import (
    Draws,
    ExactCases,
    Fidelity,
    Geometry,
    GivenPartitions,
    Growth,
    Proposals,
    Speed,
)
from gnomon.sampling.two_level_softmax.study.language import Gradient, Training
from gnomon.sampling.two_level_softmax.vectors import VectorPath, read_vectors

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FIVE = ["head", *data.UNIT]
METHODS = {
    "2LS": {"correction": "none"},
    "S-2LS": {"correction": "size"},
    "SD-2LS": {"correction": "size_dispersion"},
}
CELL = ["data", "partition", "beta"]


def _bounds_hold(rows: pd.DataFrame) -> pd.Series:
    """KL <= min(r, r^2/8) and TV <= tanh(r/4) for the range r of the log-errors."""
    return rows[["kl_slack", "tv_slack"]].min(axis=1) + 1e-9


def _same_as_2ls(rows: pd.DataFrame) -> pd.Series:
    """The law of the draws is that of 2LS: no total variation between them."""
    return 1e-6 - rows["from_2ls"]


def _exact(rows: pd.DataFrame) -> pd.Series:
    """No divergence from the exact softmax."""
    return 1e-10 - rows["kl"]


class TwoLevelSoftmaxStudy(study.Study):
    """Is the bias of two-level sampling the predicted one, and do the corrections remove it at no cost?"""

    title = "Two-level softmax sampling with size and dispersion correction"
    paper = (
        "Size- and Dispersion-Corrected Two-Level Softmax Sampling, ICML 2026 workshop version, OpenReview cAKUmGp8dv"
    )
    bibtex = """@inproceedings{twolevelsoftmax2026,
  title = {Size- and Dispersion-Corrected Two-Level Softmax Sampling},
  year = {2026},
  note = {OpenReview cAKUmGp8dv}
}"""
    question = (
        "Drawing a cluster by the softmax of its centroid's score and then an item inside it is fast but biased. Are its "
        "two causes, the size and the dispersion of clusters, all of the bias, and do cheap corrections remove it?"
    )
    method = (
        "The logit of a cluster is beta <u, mu_c> (2LS), plus log n_c (S-2LS), plus beta^2/2 times a model of the variance "
        "of the scores inside it (SD-2LS): the first three terms of the exact log-mass. Inside a cluster the draw is "
        "exact, so every divergence over items is one over clusters and is computed exactly."
    )
    departures = (
        "Only the paper's abstract was available: the decomposition, the correction formulas, the bounds and the "
        "dispersion models are a reconstruction.",
        "The ceiling of `clip` never binds on the models that average the covariance (isotropic, diagonal, low-rank, "
        "full): no variance of a cluster exceeds its squared radius. It can bind on the fitted ones only.",
        "Time per draw includes the item's draw, and a size-corrected sampler visits larger clusters, as it should: what "
        "the correction itself costs is the time of the cluster logits, measured beside it.",
        "MiniLM embeds 4,300 sentences of the excerpt, and the word2vec vocabulary is that of its sentences.",
        "von Mises-Fisher exploration has no closed-form probabilities: it is compared by the frequencies of draws.",
    )
    command = "gnomon run two-level-softmax --items items.npy --queries queries.npy --beta 10 --samples 10"
    example = """
import numpy as np
from gnomon.sampling import TwoLevelSoftmax

items, queries = np.load("items.npy"), np.load("queries.npy")
sampler = TwoLevelSoftmax(beta=10.0).fit(items).fit_calibration(queries[:10])
ids, log_q = sampler.sample(queries[10:], n_samples=5)
exact, _ = sampler.sample(queries[10:], n_samples=5, corrected=True)  # Metropolis-Hastings: the exact softmax
print(ids.shape, sampler.divergence(queries[10:]).kl.mean())
"""

    class Inputs(study.Inputs):
        seeds: int = Field(5, ge=1, description="k-means seeds")
        n_queries: int = Field(200, ge=1, description="scored queries")
        n_calibration: int = Field(100, ge=1, description="further queries for the calibrated models")
        n_draws: int = Field(100_000, ge=1, description="draws for the empirical total variation")
        max_items: int = Field(0, ge=0, description="items kept of each data set (0: all)")
        items: VectorPath | None = Field(None, description="your own items, .npy or .fvecs (paper scale)")
        queries: VectorPath | None = Field(None, description="your own queries, .npy or .fvecs (paper scale)")
        beta: float = Field(10.0, ge=0, allow_inf_nan=False, description="inverse temperature for your own vectors")
        vocabulary: int = Field(8000, ge=100, description="words of the small language model")
        base_steps: int = Field(500, ge=1, description="training steps before gradients are compared")
        train_steps: int = Field(150, ge=1, description="training steps with each proposal")
        batches: int = Field(50, ge=1, description="batches at which gradients are compared")
        scales = {
            "smoke": {
                "seeds": 2, "n_queries": 32, "n_calibration": 16, "max_items": 2000, "n_draws": 2000, "vocabulary": 500,
                "base_steps": 5, "train_steps": 5, "batches": 3,
                "Fidelity": {"cells": {"data": ["mnist"], "partition": ["kmeans"], "beta": [5]}},
                "GivenPartitions": {"cells": {"data": ["mnist"], "beta": [10]}},
                "Geometry": {"cells": {"data": ["mnist"], "beta": [5]}},
                "Gradient": {"seeds": 1}, "Training": {"seeds": 1, "contenders": ["SD-calibrated", "2LS", "unigram"]},
                "Proposals": {"cells": {"data": ["mnist"]}},
                "Speed": False,
                "Growth": {"cells": {"n": [10_000]}},
            },
            "laptop": {"Gradient": {"seeds": 3}, "Training": {"seeds": 1}},
            "extended": {"base_steps": 1000, "train_steps": 3000, "Gradient": {"seeds": 5}, "Training": {"seeds": 3}},
            "paper": {
                "seeds": 3,
                "Fidelity": {"cells": [{"data": "own", "partition": "kmeans", "beta": 0}]},
                "Geometry": {"cells": [{"data": "own", "partition": "kmeans", "beta": 0}]},
                **dict.fromkeys(["GivenPartitions", "Proposals", "Draws", "Speed", "Gradient", "Training"], False),
            },
        }  # fmt: skip

    class Run(study.Inputs):
        items: VectorPath = Field(description="item vectors (n, d), .npy or .fvecs")
        queries: VectorPath = Field(description="query vectors (b, d), .npy or .fvecs")
        beta: float = Field(1.0, description="inverse temperature")
        samples: int = Field(10, ge=1, description="draws for each query")
        clusters: int | None = Field(None, ge=1, description="K (default: the square root of the number of items)")
        dispersion: str = Field("auto", description="model of the dispersion for SD-2LS")
        calibrate: VectorPath | None = Field(None, description="further queries to calibrate the dispersion on")
        seed: int = Field(0, ge=0, description="seed of the clustering and the draws")

        @field_validator("beta")
        @classmethod
        def _finite(cls, value: float) -> float:
            if not 0 <= value < np.inf:
                raise ValueError("expected a finite inverse temperature >= 0")
            return value

    experiments = [Fidelity, GivenPartitions, Geometry, Proposals, Draws, ExactCases, Gradient, Training, Speed,
                   Growth]  # fmt: skip

    claims = [
        # 1: both corrections beat 2LS
        *(
            study.better("kl", name, than=["2LS"], on={"data": FIVE, "beta": [1, 5, 10]}, each=CELL, table="Fidelity",
                         id=f"{name.lower()}-beats-2ls", text=f"{name} is closer to the exact softmax than 2LS on all "
                         "five sets at every K, up to beta = 10", paper="abstract: both corrections reduce the bias")
            for name in ("S-2LS", "SD-isotropic", "SD-calibrated")
        ),
        *(
            study.better("kl", name, than=["2LS"], on={"data": list(data.UNIT), "beta": 20}, each=["data", "partition"],
                         table="Fidelity", report=True, id=f"{name.lower()}-against-2ls-at-20",
                         text=f"{name} against 2LS at beta = 20")
            for name in ("S-2LS", "SD-isotropic", "SD-calibrated")
        ),
        study.better("kl", "S-2LS", than=["2LS"], on={"partition": ["thinned", "letter"]}, each=CELL,
                     table="GivenPartitions", report=True, id="s-2ls-on-unequal-classes",
                     text="S-2LS against 2LS on thinned digit classes and first letters"),
        # 2: dispersion beats size alone, unit vectors
        *(
            study.better("kl", name, than=["S-2LS"], on={"data": list(data.UNIT), "beta": [5, 10, 20]}, each=CELL,
                         table="Fidelity", id=f"{name.lower()}-beats-s-2ls",
                         text=f"{name} is closer to the exact softmax than S-2LS on unit vectors")
            for name in ("SD-isotropic", "SD-diagonal")
        ),
        study.better("kl", "SD-full", than=["S-2LS"], on={"data": list(data.UNIT), "beta": [5, 10]}, each=CELL,
                     table="Fidelity", id="sd-full-beats-s-2ls", text="the exact variance beats S-2LS up to beta = 10"),
        study.better("kl", "SD-full", than=["S-2LS"], on={"data": list(data.UNIT), "beta": 20}, each=CELL,
                     table="Fidelity", report=True, id="sd-full-against-s-2ls-at-20",
                     text="the exact variance against S-2LS at beta = 20, where R is large"),
        # 3: the head, where the raw cumulant overshoots
        *(
            study.better("kl", name, than=["S-2LS"], on={"data": ["head", "mnist"]}, each=CELL, table="Fidelity",
                         id=f"{name.lower()}-beats-s-2ls-held-out",
                         text=f"{name} beats S-2LS on held-out queries on the output head and MNIST")
            for name in ("SD-calibrated", "SD-offset")
        ),
        *(
            study.better("kl", name, than=["S-2LS"], on={"data": ["embed", "word2vec", "minilm", "wordllama"]}, each=CELL,
                         table="Fidelity", report=True, id=f"{name.lower()}-against-s-2ls-elsewhere",
                         text=f"{name} against S-2LS on the other sets")
            for name in ("SD-calibrated", "SD-offset")
        ),
        *(
            study.worse("kl", name, than=["S-2LS"], on={"data": "head"}, each="partition", table="Fidelity", report=True,
                        id=f"{name.lower()}-overshoots-on-the-head",
                        text=f"{name} is worse than S-2LS on the output head, where R is large")
            for name in ("SD-isotropic", "SD-diagonal")
        ),
        # 4: the bias is the predicted one
        study.between("size_slope", "2LS", 0.9, 1.1, on={"beta": 5, "data": list(data.UNIT)}, each=["data", "partition"],
                      table="Fidelity",
                      id="bias-follows-size", text="the log-mass error of 2LS grows with log n_c at slope 1 (beta = 5)"),
        study.between("dispersion_slope", "S-2LS", 0.8, 1.3, on={"beta": 5, "data": list(data.UNIT)},
                      table="Fidelity", each=["data", "partition"], id="bias-follows-dispersion",
                      text="what size leaves grows with beta^2 Var_c / 2 at slope 1 (beta = 5)"),
        *(
            study.between(f"{what}_slope", name, low, high, on={"beta": [10, 20], "data": list(data.UNIT)}, each=CELL,
                          table="Fidelity", report=True, id=f"{what}-slope-at-larger-beta",
                          text=f"the {what} slope at beta = 10 and 20, where higher cumulants matter")
            for what, name, low, high in (("size", "2LS", 0.9, 1.1), ("dispersion", "S-2LS", 0.8, 1.3))
        ),
        # 5: equal sizes and singletons
        study.always(_same_as_2ls, on={"partition": "class", "contender": "S-2LS"}, table="GivenPartitions",
                     id="equal-sizes", text="on clusters of equal size S-2LS is 2LS"),
        *(
            study.better("kl", name, than=["2LS"], on={"partition": "class", "beta": 10}, table="GivenPartitions",
                         id=f"{name.lower()}-on-equal-sizes", text=f"on clusters of equal size {name} still improves")
            for name in ("SD-isotropic", "SD-diagonal")
        ),
        study.always(_exact, on={"case": "singletons"}, table="ExactCases", id="singletons-exact",
                     text="with one item a cluster all three are exact"),
        study.always(_exact, on={"case": "identical", "contender": ["S-2LS", "SD-isotropic"]}, table="ExactCases",
                     id="identical-exact", text="with identical items in each cluster S-2LS and SD-2LS are exact"),
        study.always(_bounds_hold, table="Fidelity", id="bounds-hold",
                     text="KL <= min(r, r^2/8) and TV <= tanh(r/4), r the range of the log-errors"),
        # 6: time
        study.better("seconds", "S-2LS", than=["2LS"], factor=1 / 1.05, on={"batch": 1}, id="s-2ls-overhead",
                     text="a draw of S-2LS takes at most 5 % longer than one of 2LS",
                     paper="abstract: negligible overhead"),
        study.better("seconds", "SD-isotropic", than=["2LS"], factor=1 / 1.1, on={"batch": 1}, id="sd-overhead",
                     text="a draw of SD-2LS (isotropic) takes at most 10 % longer than one of 2LS",
                     paper="abstract: negligible overhead"),
        study.better("logits_seconds", "S-2LS", than=["2LS"], on={"batch": [1, 64]}, each="batch", report=True,
                     id="s-2ls-logits-overhead", text="the cluster logits of S-2LS against those of 2LS"),
        study.better("logits_seconds", "SD-isotropic", than=["2LS"], on={"batch": [1, 64]}, each="batch", report=True,
                     id="sd-logits-overhead", text="the cluster logits of SD-2LS (isotropic) against those of 2LS"),
        study.better("seconds", "2LS", than=["exact"], factor=5, on={"batch": 1}, id="faster-than-exact",
                     text="a single draw is five times as fast as the exact softmax at n = 49,152"),
        study.better("seconds", "2LS", than=["exact"], factor=2, on={"batch": 64}, id="faster-than-exact-in-batches",
                     text="64 draws at once are twice as fast as the exact softmax"),
        *(
            study.slope("growth_seconds", name, along="n", at_most=0.65, id=f"{name.lower()}-growth",
                        text=f"the time of {name} grows with n at an exponent of at most 0.65")
            for name in ("2LS", "S-2LS", "SD-isotropic")
        ),
        study.slope("growth_seconds", "exact", along="n", between=(0.8, 1.2), report=True, id="exact-growth",
                    text="the time of the exact softmax grows in proportion to n"),
        # 7: down-stream
        *(
            study.better("cosine", name, than=["2LS"], id=f"{name.lower()}-gradient",
                         text=f"the sampled gradient with {name} is closer to the full one than with 2LS")
            for name in ("S-2LS", "SD-isotropic", "SD-calibrated")
        ),
        study.better("perplexity", "SD-isotropic", than=["2LS", "S-2LS", "unigram", "uniform"], report=True,
                     id="perplexity-ordering", text="perplexity after training with each proposal"),
        # beside the other proposals
        study.better("tv", "SD-calibrated", than=["MIDX-uniform", "uniform"], each="data", table="Proposals", report=True,
                     id="beside-other-proposals", text="SD-2LS against MIDX-uniform and uniform proposals"),
        study.at_least("effective_rank", "k-means", 0, on={"beta": [1, 5]}, each="data", report=True,
                       id="effective-rank", text="effective rank of the clusters' covariance"),
    ]  # fmt: skip

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """KL of each method on each set, and time against n."""
        from matplotlib import pyplot as plt

        found = tables.get("Fidelity")
        if found is None or found.empty:
            return None
        growth = tables.get("Growth")
        figure, axes = plt.subplots(1, 2, figsize=(12, 4.5), width_ratios=(3, 1.2), layout="constrained")
        rows = found[found["partition"] == "kmeans"]
        means = rows.groupby(["data", "beta", "contender"], observed=True)["kl"].mean().unstack()
        names = [n for n in reversed(Fidelity.contenders) if n in means]
        for i, name in enumerate(names):
            axes[0].scatter(np.arange(len(means)) + (i - 3) * 0.1, means[name].clip(lower=1e-7), s=20, color=f"C{i}",
                            label=name)  # fmt: skip
        axes[0].set_yscale("log")
        axes[0].set_xticks(
            range(len(means)), [f"{d} {b:g}" for d, b in means.index], fontsize=7, rotation=40, ha="right"
        )
        axes[0].set(xlabel="data set and inverse temperature", ylabel="KL(p || q), nats", title="K = sqrt(n)")
        axes[0].grid(alpha=0.3)
        if growth is not None and not growth.empty:
            times = growth.groupby(["contender", "n"])["growth_seconds"].median().unstack(0) * 1e3
            for curve in times:
                color = f"C{names.index(str(curve))}" if curve in names else "k"
                axes[1].loglog(times.index, times[curve], "o-", ms=3, color=color, label=str(curve))
            axes[1].set(xlabel="items n, d = 32", ylabel="ms for one draw", title="exact softmax in black")
            axes[1].grid(alpha=0.3)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize=8)
        return figure

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        """Fit the three methods on a person's own vectors; draw with SD-2LS."""
        items, queries = read_vectors(inputs.items), read_vectors(inputs.queries)
        if items.shape[1] != queries.shape[1]:
            raise ValueError(f"queries: {queries.shape[1]} dimensions, the items have {items.shape[1]}")
        dtype = np.float64 if items.dtype == np.float64 else np.float32
        U = np.asarray(queries, dtype)
        base = TwoLevelSoftmax(n_clusters=inputs.clusters, beta=inputs.beta, random_state=inputs.seed).fit(
            np.asarray(items, dtype)
        )
        if inputs.calibrate is not None:
            base.fit_calibration(np.asarray(read_vectors(inputs.calibrate), dtype))
        rows = {}
        for name, parameters in METHODS.items():
            base.set_params(**parameters, dispersion=inputs.dispersion)
            found = base.divergence(U)
            base.sample(U[:1], inputs.samples)  # compile and warm up
            start = time.perf_counter()
            ids, log_q = base.sample(U, inputs.samples)
            rows[name] = {"method": name, **{k: float(getattr(found, k).mean()) for k in ("kl", "kl_reverse", "tv", "chi2")},
                          "us per draw": 1e6 * (time.perf_counter() - start) / ids.size}  # fmt: skip
        base.set_params(**METHODS["SD-2LS"])
        return study.Outcome(inputs, U, {"SD-2LS": {"sampler": base, "ids": ids, "log_q": log_q, "rows": rows}})

    def present(self, outcome: study.Outcome) -> Any:
        import pandas as pd

        result = outcome.result
        sizes = result["sampler"].partition_.sizes
        R = result["sampler"].bounds(outcome.problem).R
        lines = (
            f"{sizes.sum()} items in {len(sizes)} clusters of {sizes.min()} to {sizes.max()} (median {np.median(sizes):g}); "
            f"R = beta (max - min of the scores in a cluster): median {np.median(R):.3g}, at most {R.max():.3g}"
        )
        table = pd.DataFrame(list(result["rows"].values()))
        return [lines, table, f"first query, SD-2LS: {' '.join(map(str, result['ids'][0][:10]))}"]

    def picture(self, outcome: study.Outcome) -> Figure | None:
        """Mass of each cluster under the exact softmax and under the proposal, over all queries."""
        from matplotlib import pyplot as plt

        sampler: TwoLevelSoftmax = outcome.result["sampler"]
        exact = sampler.get_params() | {"correction": "exact"}
        before = sampler.get_params()
        mass = {}
        for name, parameters in {"exact": exact, **{n: before | p for n, p in METHODS.items()}}.items():
            mass[name] = np.exp(sampler.set_params(**parameters).cluster_log_prob(outcome.problem)).ravel()
        sampler.set_params(**before)
        figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
        for name in METHODS:
            axis.loglog(mass["exact"], mass[name], ".", ms=3, label=name)
        ends = [max(1e-12, mass["exact"].min()), 1]
        axis.plot(ends, ends, "k-", lw=0.7)
        axis.set(xlabel="P(cluster), exact softmax", ylabel="Q(cluster), proposal")
        axis.legend()
        return figure

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        """``draws.npz`` (ids, log_q) and ``sampler.npz`` (``TwoLevelSoftmax.load``)."""
        result = outcome.result
        np.savez(directory / "draws.npz", ids=result["ids"], log_q=result["log_q"])
        result["sampler"].save(directory / "sampler.npz")
