"""What is measured: divergences on data, exact cases, draws, and time."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnomon import study
from gnomon.sampling.two_level_softmax import partition as groups
from gnomon.sampling.two_level_softmax.baselines import (
    ExactSoftmax,
    MidxUniform,
    Popularity,
    TopSoftmax,
    Uniform,
    VonMisesFisher,
)
from gnomon.sampling.two_level_softmax.method import (
    ClusterStatistics,
    TwoLevelSoftmax,
    _inverse_cdf,
    cluster_divergence,
    kl_bound,
    tv_bound,
    two_level_logits,
)
from gnomon.sampling.two_level_softmax.study import data
from gnomon.sampling.two_level_softmax.vectors import read_vectors

KMEANS = {"kmeans-half": 0.5, "kmeans": 1.0, "kmeans-twice": 2.0}  # K in multiples of sqrt(n)
BETAS = [5, 10, 20]


def corrected(base: TwoLevelSoftmax, U: NDArray[Any], exact: ClusterStatistics, **parameters: Any) -> NDArray[Any]:
    """log Q (b, K) of one method, from a fitted and calibrated sampler."""
    return copy.copy(base).set_params(**parameters).cluster_log_prob(U)


def exact_variance(base: TwoLevelSoftmax, U: NDArray[Any], exact: ClusterStatistics) -> NDArray[Any]:
    """As ``dispersion="full"``, from the statistics that the study has already."""
    return two_level_logits(exact.mean, base.partition_.sizes, exact.variance, beta=base.beta)


def method(correction: str, dispersion: str = "auto") -> Callable[..., NDArray[Any]]:
    return functools.partial(corrected, correction=correction, dispersion=dispersion)


TWO_LEVEL = {
    "SD-isotropic": method("size_dispersion", "isotropic"),
    "SD-diagonal": method("size_dispersion", "diagonal"),
    "SD-full": exact_variance,
    "SD-calibrated": method("size_dispersion", "calibrated"),
    "SD-offset": method("size_dispersion", "offset"),
    "S-2LS": method("size"),
    "2LS": method("none"),
}


class OnData(study.Experiment):
    """The vectors, made once."""

    @study.stage(version=1, inputs=("max_items", "n_queries", "n_calibration", "items", "queries"), cell=("data",),
                 seeded=False)  # fmt: skip
    def vectors(self, inputs: Any, cell: study.Cell, seed: int | None) -> dict[str, NDArray[Any]]:
        limit = inputs.max_items or None
        if cell["data"] != "own":
            return data.load(cell["data"], limit, inputs.n_queries, inputs.n_calibration)
        if inputs.items is None or inputs.queries is None:
            raise ValueError("items, queries: this scale runs on your own vectors; give both as .npy or .fvecs")
        queries = np.asarray(read_vectors(inputs.queries)[: inputs.n_queries + inputs.n_calibration], np.float32)
        if len(queries) < 2:
            raise ValueError(
                f"queries: {inputs.queries} holds {len(queries)}; expected some to score, some to calibrate"
            )
        cut = round(len(queries) * inputs.n_queries / (inputs.n_queries + inputs.n_calibration))
        items = np.asarray(read_vectors(inputs.items)[:limit], np.float32)
        return {"items": items, "queries": queries[:cut], "calibration": queries[cut:]}


class Clustered(OnData):
    """Their k-means labels, a stage for each seed."""

    @study.stage(version=1, inputs=("max_items", "n_queries", "n_calibration", "items", "queries"),
                 cell=("data", "partition"))  # fmt: skip
    def labels(self, inputs: Any, cell: study.Cell, seed: int | None) -> NDArray[np.int64]:
        V = self.vectors(inputs, cell)["items"]
        K = max(2, round(KMEANS[cell["partition"]] * np.sqrt(len(V))))
        return groups.cluster(V, K, "kmeans", np.random.default_rng(seed))


class Problem(NamedTuple):
    """One partition of one data set at one beta, calibrated on queries that are not scored."""

    base: TwoLevelSoftmax
    U: NDArray[Any]
    exact: ClusterStatistics


def prepared(V: NDArray[Any], labels: NDArray[Any], U: NDArray[Any], sample: NDArray[Any], beta: float) -> Problem:
    base = TwoLevelSoftmax(beta=beta).fit(V, labels).fit_calibration(sample)
    return Problem(base, U, base.cluster_statistics(U))


def divergence_rows(problem: Problem, contender: Any, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
    """A row for each query: divergences over clusters, which are those over items."""
    logits = contender(problem.base, problem.U, problem.exact)
    log_z = problem.exact.log_z
    found = cluster_divergence(log_z, logits)
    drawn = _inverse_cdf(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True), rng.random((len(logits), 256)))
    weights = np.take_along_axis(log_z - logits, drawn, 1)
    weights = np.exp(weights - weights.max(1, keepdims=True))
    effective = weights.sum(1) ** 2 / np.square(weights).sum(1)
    from_2ls = cluster_divergence(logits, corrected(*problem, correction="none")).tv
    error, partition = log_z - logits, problem.base.partition_
    on_size = _slopes(np.broadcast_to(partition.log_sizes, error.shape), error)
    on_dispersion = _slopes(problem.base.beta**2 / 2 * problem.exact.variance, error)
    for q in range(len(logits)):
        yield {"query": q, "kl": found.kl[q], "kl_reverse": found.kl_reverse[q], "tv": found.tv[q],
               "chi2": min(found.chi2[q], 1e300), "ess": effective[q], "size_slope": on_size[q],
               "dispersion_slope": on_dispersion[q], "from_2ls": from_2ls[q],
               "kl_slack": kl_bound(found.range[q]) - found.kl[q],
               "tv_slack": tv_bound(found.range[q]) - found.tv[q]}  # fmt: skip


def _slopes(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Least-squares slope of y on x in each row; NaN where x does not vary."""
    x = x - x.mean(1, keepdims=True)
    square = np.square(x).sum(1)
    return np.divide((x * y).sum(1), square, out=np.full(len(x), np.nan), where=square > 1e-12)


class Fidelity(Clustered):
    """How far is each proposal from the exact softmax, on real vectors clustered by k-means?

    A contender is ``f(base, U, exact) -> log Q (b, K)``: ``base`` a fitted and calibrated sampler, ``exact`` the
    statistics of the scores in each cluster.
    """

    cells = (study.grid(data=["head"], partition=list(KMEANS), beta=[1])
             + study.grid(data=[*data.UNIT, "wordllama"], partition=list(KMEANS), beta=BETAS))  # fmt: skip
    contenders = TWO_LEVEL
    metrics = {"kl": study.lower("nats"), "kl_reverse": study.lower("nats"), "tv": study.lower(),
               "ess": study.higher("draws of 256"), "size_slope": study.Metric(),
               "dispersion_slope": study.Metric()}  # fmt: skip
    unit = ("seed", "query")

    def prepare(self, inputs: Any, cell: study.Cell, rng: np.random.Generator) -> Problem:
        found = self.vectors(inputs, cell)
        beta = inputs.beta if cell["data"] == "own" else float(cell["beta"])
        return prepared(found["items"], self.labels(inputs, cell), found["queries"], found["calibration"], beta)

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
        return divergence_rows(problem, contender, rng)


class GivenPartitions(OnData):
    """The same on partitions that nobody clustered: digit classes, thinned digit classes, first letters."""

    cells = (study.grid(data=["mnist"], partition=["class", "thinned"], beta=BETAS)
             + study.grid(data=["word2vec"], partition=["letter"], beta=BETAS))  # fmt: skip
    contenders = TWO_LEVEL
    metrics = Fidelity.metrics
    unit = "query"
    seeds = 1

    def prepare(self, inputs: Any, cell: study.Cell, rng: np.random.Generator) -> Problem:
        found = self.vectors(inputs, cell)
        labels = found["letters" if cell["partition"] == "letter" else "classes"]
        kept = np.ones(len(labels), dtype=bool)
        if cell["partition"] == "thinned":  # class c keeps a share of 1 / (c + 1)
            for c in range(10):
                kept[np.flatnonzero(labels == c)[np.sum(labels == c) // (c + 1) :]] = False
        labels = np.unique(labels[kept], return_inverse=True)[1]
        return prepared(found["items"][kept], labels, found["queries"], found["calibration"], float(cell["beta"]))

    measure = Fidelity.measure


class Geometry(Clustered):
    """What the clusters look like: sizes, effective rank, R; and the weights that calibration finds."""

    cells = [c for c in Fidelity.cells if c["partition"] == "kmeans"]
    contenders = {"k-means": TwoLevelSoftmax}
    metrics = {"effective_rank": study.Metric(), "R": study.Metric(), "largest": study.Metric("items"),
               "smallest": study.Metric("items"), "a1": study.Metric(), "a2": study.Metric()}  # fmt: skip
    unit = "query"
    seeds = 1
    prepare = Fidelity.prepare

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
        base, U, exact = problem
        sizes, (a1, a2) = base.partition_.sizes, base.calibration_
        rank = float(np.average(base.effective_ranks(), weights=sizes))
        for q in range(len(U)):
            yield {"query": q, "effective_rank": rank, "R": base.beta * exact.spread[q].max(), "a1": a1, "a2": a2,
                   "largest": int(sizes.max()), "smallest": int(sizes.min())}  # fmt: skip


# --- proposals that are not two-level --------------------------------------------------------------------------------


def two_level(correction: str) -> Callable[..., Any]:
    def make(found: dict[str, Any], beta: float, seed: int) -> Any:
        sampler = TwoLevelSoftmax(correction, beta=beta, random_state=seed).fit(found["items"], found["labels"])
        return sampler.fit_calibration(found["calibration"]) if correction == "size_dispersion" else sampler

    return make


def baseline(kind: Any, **parameters: Any) -> Callable[..., Any]:
    return lambda found, beta, seed: kind(beta=beta, random_state=seed, **parameters).fit(found["items"])


PROPOSALS = {
    "SD-calibrated": two_level("size_dispersion"),
    "S-2LS": two_level("size"),
    "2LS": two_level("none"),
    "MIDX-uniform": baseline(MidxUniform),
    "unigram": lambda found, beta, seed: Popularity(found["counts"], beta, seed).fit(found["items"]),
    "uniform": baseline(Uniform),
    "top-256 IVF": baseline(TopSoftmax, top=256),
    "top-256 Gumbel": baseline(TopSoftmax, top=256, index="flat", gumbel=True),
    "vMF": baseline(VonMisesFisher),
    "exact": baseline(ExactSoftmax),
}


class Proposals(Clustered):
    """Two-level proposals beside uniform, unigram, inverted multi-index and truncated ones.

    A contender is ``f(found, beta, seed)``: a sampler fitted to ``found["items"]`` with ``log_prob(U)`` over all items.
    """

    cells = [{"data": "head", "partition": "kmeans", "beta": 1}, {"data": "word2vec", "partition": "kmeans", "beta": 10},
             {"data": "mnist", "partition": "kmeans", "beta": 10}]  # fmt: skip
    contenders = {name: made for name, made in PROPOSALS.items() if name != "vMF"}
    metrics = {"kl": study.lower("nats"), "tv": study.lower(), "ess": study.higher("draws of 256")}
    unit = "query"
    seeds = 1

    def includes(self, inputs: Any, cell: study.Cell, contender: str) -> bool:
        return contender != "unigram" or cell["data"] in ("head", "word2vec")

    def prepare(self, inputs: Any, cell: study.Cell, rng: np.random.Generator) -> dict[str, Any]:
        found = {**self.vectors(inputs, cell), "labels": self.labels(inputs, cell), "seed": cell.seed}
        found["beta"] = float(cell["beta"])
        found["log_p"] = ExactSoftmax(found["beta"]).fit(found["items"]).log_prob(found["queries"][:50])
        return found

    def measure(self, problem: dict[str, Any], contender: Any, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
        log_p = problem["log_p"]
        U = problem["queries"][: len(log_p)]
        log_q = contender(problem, problem["beta"], problem["seed"]).log_prob(U)
        drawn = _inverse_cdf(log_q, rng.random((len(U), 256)))
        weights = np.exp(np.take_along_axis(log_p - log_q, drawn, 1))
        for q in range(len(U)):
            p = np.exp(log_p[q])
            missed = p[np.isneginf(log_q[q])].sum()
            kl = np.inf if missed > 0 else max(0.0, float(p @ (log_p[q] - log_q[q])))
            yield {"query": q, "kl": kl, "tv": np.abs(p - np.exp(log_q[q])).sum() / 2, "missed": missed,
                   "ess": weights[q].sum() ** 2 / np.square(weights[q]).sum()}  # fmt: skip


class Draws(Clustered):
    """100,000 real draws for a query: how far are their cluster frequencies from the exact softmax?"""

    cells = [{"data": "mnist", "partition": "kmeans"}]
    contenders = {name: made for name, made in PROPOSALS.items() if name != "unigram"}
    metrics = {"empirical_tv": study.lower()}
    unit = "query"
    seeds = 1

    def prepare(self, inputs: Any, cell: study.Cell, rng: np.random.Generator) -> dict[str, Any]:
        return {**self.vectors(inputs, cell), "labels": self.labels(inputs, cell), "seed": cell.seed,
                "draws": inputs.n_draws}  # fmt: skip

    def measure(self, problem: dict[str, Any], contender: Any, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
        labels, U = problem["labels"], problem["queries"][:5]
        sampler = contender(problem, 10.0, int(rng.integers(2**31)))
        p = np.exp(ExactSoftmax(10.0).fit(problem["items"]).log_prob(U))
        for q in range(len(U)):
            ids, _ = sampler.sample(U[q : q + 1], problem["draws"])
            counts = np.bincount(labels[ids[0]], minlength=labels.max() + 1)
            yield {"query": q,
                   "empirical_tv": np.abs(np.bincount(labels, p[q]) - counts / len(ids[0])).sum() / 2}  # fmt: skip


# --- exact cases -----------------------------------------------------------------------------------------------------


class ExactCases(study.Experiment):
    """Partitions on which a method must be exact."""

    cells = study.grid(case=["singletons", "identical"])
    contenders = {
        "SD-isotropic": method("size_dispersion", "isotropic"),
        "S-2LS": method("size"),
        "2LS": method("none"),
    }
    metrics = {"kl": study.lower("nats")}
    seeds = 0

    def prepare(self, inputs: Any, cell: study.Cell, rng: np.random.Generator) -> Problem:
        labels = np.arange(200) if cell["case"] == "singletons" else np.repeat(np.arange(10), np.arange(1, 11))
        V, U = rng.normal(size=(labels.max() + 1, 8))[labels], rng.normal(size=(20, 8))
        return prepared(V, labels, U, U, 2.0)

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
        return divergence_rows(problem, contender, rng)


# --- time ------------------------------------------------------------------------------------------------------------


def _timed(call: Callable[[], Any], least: float = 0.02) -> float:
    """Median seconds of a call, over at least ``least`` seconds and three calls, after one to warm up."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


class Timing(NamedTuple):
    base: TwoLevelSoftmax
    exact: ExactSoftmax
    U: NDArray[Any]


def draw_with(correction: str, dispersion: str = "isotropic") -> Callable[..., Any]:
    def call(problem: Timing) -> tuple[Callable[[], Any], Callable[[], Any]]:
        sampler = copy.copy(problem.base).set_params(correction=correction, dispersion=dispersion)
        return lambda: sampler.sample(problem.U), lambda: sampler.cluster_log_prob(problem.U)

    return call


TIMED = {
    "SD-isotropic": draw_with("size_dispersion"),
    "SD-diagonal": draw_with("size_dispersion", "diagonal"),
    "S-2LS": draw_with("size"),
    "2LS": draw_with("none"),
    "exact": lambda problem: (lambda: problem.exact.sample(problem.U), lambda: problem.exact.log_prob(problem.U)),
}


class Speed(Clustered):
    """Time per call of one draw for each of 1 or 64 queries, on the output head."""

    cells = [{"data": "head", "partition": "kmeans", "batch": b} for b in (1, 64)]
    contenders = TIMED
    metrics = {
        "seconds": study.lower("s", timed=True, log=True),
        "logits_seconds": study.lower("s", timed=True, log=True),
    }
    unit = "repeat"
    seeds = 1
    repeats = 30

    def prepare(self, inputs: Any, cell: study.Cell, rng: np.random.Generator) -> Timing:
        found = self.vectors(inputs, cell)
        base = TwoLevelSoftmax().fit(found["items"], self.labels(inputs, cell))
        return Timing(base, ExactSoftmax().fit(found["items"]), found["queries"][: cell["batch"]])

    def measure(self, problem: Timing, contender: Any, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
        draw, logits = contender(problem)
        return [{"seconds": _timed(draw), "logits_seconds": _timed(logits, 0.005)}]


class Growth(study.Experiment):
    """Time per query against the number of items: mixtures of sqrt(n) Gaussians in 32 dimensions, labels given."""

    cells = study.grid(n=[10_000, 30_000, 100_000, 300_000, 1_000_000])
    contenders = {name: TIMED[name] for name in ("SD-isotropic", "S-2LS", "2LS", "exact")}
    metrics = {"growth_seconds": study.lower("s", timed=True, log=True)}
    unit = "repeat"
    seeds = 1
    repeats = 5

    def prepare(self, inputs: Any, cell: study.Cell, rng: np.random.Generator) -> Timing:
        V, labels = mixture(cell["n"], 32, rng)
        base = TwoLevelSoftmax(copy=False).fit(V, labels)
        return Timing(base, ExactSoftmax().fit(V), rng.normal(size=(1, 32)).astype(np.float32))

    def measure(self, problem: Timing, contender: Any, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
        return [{"growth_seconds": _timed(contender(problem)[0])}]


def mixture(n: int, d: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """n items around ceil(sqrt(n)) centres, in the order of their labels."""
    K = int(np.ceil(np.sqrt(n)))
    labels = np.sort(np.concatenate([np.arange(K), rng.integers(K, size=n - K)]))
    V = rng.standard_normal((n, d), dtype=np.float32)
    V *= 0.1
    V += rng.standard_normal((K, d), dtype=np.float32)[labels] / np.float32(np.sqrt(d))
    return V, labels
