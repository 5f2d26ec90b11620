"""Experiments: constructions, sweeps, ladders, detection, generators, cost."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import time
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon import study
from gnomon.geometry.chamfer import baselines, diagnostics, generators, spaces
from gnomon.geometry.chamfer.method import ChamferMetric
from gnomon.geometry.chamfer.study.contenders import ALL, MAIN, METRICS, Contender, balls, chamfer, swept
from gnomon.geometry.neighbors import cross_neighbors, knn


class OnImages(study.Experiment):
    """What the experiments share: features of one space, split at random by the seed.

    A contender of your own is a function ``(real, holdout, train, seed)`` of feature matrices (train may be None) that gives
    a function from a sample to a dict of named values, lower being better.
    """

    @study.stage(version=1, inputs=("rows",), cell=("space",), seeded=False)
    def features(self, inputs: Any, cell: Any, seed: int | None) -> Any:
        """Features (n, D) float32 and labels of all images of a space."""
        X, labels = spaces.images(cell.space)
        if cell.space == "efficientnet":  # slow on a processor
            kept = np.random.default_rng(0).permutation(len(X))[: 3 * min(inputs.rows, 300)]
            X, labels = X[kept], labels[kept]
        return spaces.extractor(cell.space)(X), labels

    def parts(self, inputs: Any, cell: Any, rng: np.random.Generator, share: float = 1) -> tuple[Any, spaces.Parts]:
        X, labels = self.features(inputs, cell)
        return (X, labels), spaces.split(len(X), int(share * inputs.rows), rng)


class Constructions(OnImages):
    """Samples built to fool a metric, beside fresh real data."""

    cells = study.grid(space=["pixels", "cnn", "digits", "photos", "efficientnet"])
    contenders = {name: ALL[name] for name in ("chamfer", "FD", "balls", "soft balls", "clipped balls")}
    metrics = METRICS

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return cell.space in ("cnn", "digits") or contender not in ("soft balls", "clipped balls")

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        (X, labels), parts = self.parts(inputs, cell, rng)
        real, held, fresh, _ = (X[p] for p in (parts.R, parts.H, parts.V, parts.T))
        samples = {
            "fresh": fresh,
            "moments": diagnostics.moment_matched(real, random_state=rng),
            "moments, signs": diagnostics.moment_matched(real, "rademacher", random_state=rng),
            "midpoints": diagnostics.midpoints(fresh, random_state=rng),
            "shell": diagnostics.shell_noise(fresh, 1.0, random_state=rng),
            "prototypes": diagnostics.few_prototypes(fresh, 30, random_state=rng),
            "memorised": diagnostics.memorised(real),
        }
        if cell.space != "photos":
            pool = np.concatenate([parts.V, parts.T])
            kept = diagnostics.dropped_modes(labels[pool], rng.choice(10, 5, replace=False))
            samples["half of the classes"] = X[pool[kept]]
        return SimpleNamespace(real=real, held=held, samples=samples, seed=int(rng.integers(2**31)))

    def measure(self, problem: Any, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        train = problem.real  # R itself: what a memorising generator copies
        score = contender(problem.real, problem.held, train, problem.seed)
        return [{"sample": name, **score(sample)} for name, sample in problem.samples.items()]


class Inflation(OnImages):
    """How much larger the balls are than the data."""

    cells = study.grid(space=["pixels", "cnn", "digits", "photos"])
    contenders = {"balls": diagnostics.ball_inflation}
    metrics = {"volume_excess": study.lower(log=True), "far_share": study.lower(), "probes_rejected": study.higher()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        (X, _), parts = self.parts(inputs, cell, rng)
        return X[parts.R]

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        return [vars(contender(problem, 5, n_points=300, random_state=rng))]


class Outliers(OnImages):
    """One per cent of uniform noise among the reference rows, and a sample of pure noise."""

    cells = study.grid(space=["pixels"])
    contenders = {"chamfer": chamfer, "balls": balls}
    metrics = METRICS

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        (X, _), parts = self.parts(inputs, cell, rng)
        real, held = X[parts.R], X[parts.H]
        dirty = real.copy()
        dirty[: max(1, len(real) // 100)] = rng.random((max(1, len(real) // 100), X.shape[1]))
        noise = rng.random((min(300, len(real)), X.shape[1])).astype(np.float32)
        return SimpleNamespace(
            real={"clean": real, "dirty": dirty}, held=held, noise=noise, seed=int(rng.integers(2**31))
        )

    def measure(self, problem: Any, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        return [{"reference": name, **contender(real, problem.held, None, problem.seed)(problem.noise)}
                for name, real in problem.real.items()]  # fmt: skip


def _ratio_at(real: Any, held: Any, sample: Any, k: int, seed: int) -> float:
    return ChamferMetric(k=k, random_state=seed).fit(real, holdout=held).score(sample).coverage_ratio


def _recall_at(real: Any, held: Any, sample: Any, k: int, seed: int) -> float:
    return baselines.prdc(real, sample, k)["recall"]


class Neighbourhood(OnImages):
    """How far the choice of k and of the sample sizes moves each score."""

    cells = study.grid(space=["pixels", "cnn"])
    contenders = {"chamfer": _ratio_at, "recall": _recall_at}
    metrics = {"score": study.lower(), "range": study.lower(), "relative_range": study.lower()}
    ks = (1, 3, 5, 10)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        X, labels = self.features(inputs, cell)
        order, n = rng.permutation(len(X)), min(inputs.rows, len(X) // 3)
        real, held, rest = order[:n], order[n : 2 * n], order[2 * n :]
        kept = rest[diagnostics.dropped_modes(labels[rest], rng.choice(np.unique(labels), 5, replace=False))]
        small = n // 5
        problems: list[Any] = [("fresh", s, s, real[:s], held[:s], rest[:s], self.ks) for s in (small, n)]
        problems += [("half of the classes", n, m, real, held, kept[:m], (3, 5, 10)) for m in (small, 3 * small)]
        wide = 4 * small  # 1,200 of 1,500: leaves twice as many to draw from
        others = np.concatenate([held, rest])
        problems += [("sizes", wide, m, real[:wide], others[-wide:], others[:m], (5,)) for m in (small, wide, 2 * wide)
                     if m + wide <= len(others)]  # fmt: skip
        return SimpleNamespace(X=X, problems=problems, seed=int(rng.integers(2**31)))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        return [{"sample": sample, "n": n, "m": m, "k": k,
                 "score": contender(*(problem.X[rows] for rows in (real, held, generated)), k, problem.seed)}
                for sample, n, m, real, held, generated, ks in problem.problems for k in ks]  # fmt: skip


class Ladder(OnImages):
    """Six levels of growing damage, on half as many rows: does a metric put them in order?"""

    cells = study.grid(space=["cnn", "pixels"], ladder=[*spaces.CORRUPTIONS, *spaces.SELECTIONS])
    contenders = ALL
    metrics = {"tau": study.higher()}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        """On pixels only those that the claims name: the others take long in 784 dimensions."""
        return cell.space != "pixels" or contender in MAIN or contender not in ALL

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        (X, labels), parts = self.parts(inputs, cell, rng, share=0.5)
        pool = np.concatenate([parts.V, parts.T])
        m = min(400, len(pool) * 3 // 10)
        if change := spaces.CORRUPTIONS.get(cell.ladder):
            images = spaces.images(cell.space)[0][rng.choice(pool, m, replace=False)]
            extract = spaces.extractor(cell.space)
            samples = [extract(change(images, level, rng)) for level in range(spaces.LEVELS)]
        else:
            select = spaces.SELECTIONS[cell.ladder]
            samples = [X[pool[select(labels[pool], level, m, rng)]] for level in range(spaces.LEVELS)]
        return SimpleNamespace(real=X[parts.R], held=X[parts.H], samples=samples, seed=int(rng.integers(2**31)))

    def measure(self, problem: Any, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        score = contender(problem.real, problem.held, None, problem.seed)
        return [{"level": level, "metric": name, "worse": value}
                for level, sample in enumerate(problem.samples) for name, value in swept(score(sample))]  # fmt: skip


class Detection(OnImages):
    """Small samples, fresh or slightly damaged: are they told apart, and how often is fresh data accused?"""

    cells = study.grid(space=["cnn"], ladder=["noise", "blur", "label drop", "prototypes"])
    contenders = {name: ALL[name] for name in ("chamfer", "FD", "balls", "KID", "soft balls")}
    metrics = {"auc": study.higher()}
    draws, rows = 6, 200

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        (X, labels), parts = self.parts(inputs, cell, rng, share=0.5)
        pool = np.concatenate([parts.V, parts.T])
        m = min(self.rows, len(pool) // 4)
        if change := spaces.CORRUPTIONS.get(cell.ladder):
            damaged = spaces.extractor(cell.space)(change(spaces.images(cell.space)[0][pool], 1, rng))
        samples = []
        for _ in range(self.draws):
            samples.append((False, X[rng.choice(pool, m, replace=False)]))
            if change:
                samples.append((True, damaged[rng.choice(len(pool), m, replace=False)]))
            else:
                samples.append((True, X[pool[spaces.SELECTIONS[cell.ladder](labels[pool], 2, m, rng)]]))
        return SimpleNamespace(real=X[parts.R], held=X[parts.H], samples=samples, seed=int(rng.integers(2**31)))

    def measure(self, problem: Any, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        score = contender(problem.real, problem.held, None, problem.seed)
        rows = []
        for draw, (damaged, sample) in enumerate(problem.samples):
            values = score(sample)
            alarm = {"alarm": values["p_value"] < 0.05} if "p_value" in values else {}
            rows += [{"draw": draw, "damaged": damaged, "metric": n, "worse": v, **alarm} for n, v in swept(values)]
        return rows


class Generators(OnImages):
    """Generators trained here, scored beside fresh real data."""

    cells = study.grid(space=["cnn", "pixels"])
    contenders = MAIN
    metrics = METRICS

    @study.stage(version=3, inputs=("rows",), cell=())
    def trained(self, inputs: Any, cell: Any, seed: int) -> Any:
        """The split of the digits and a sample of each generator trained on V and T."""
        X, labels = spaces.images("pixels")
        parts = spaces.split(len(X), inputs.rows, np.random.default_rng(seed))
        train = np.concatenate([parts.V, parts.T])[: 4 * inputs.rows // 3]
        flat = X.reshape(len(X), -1)
        made = generators.generate(flat[train], labels[train], len(parts.H), seed)
        return parts.R, parts.H, train, {name: (255 * sample).round().astype(np.uint8) for name, sample in made.items()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        real, held, train, made = self.trained(inputs, cell)
        X, _ = self.features(inputs, cell)
        extract = spaces.extractor(cell.space)
        samples = {name: extract(sample.reshape(-1, 28, 28)) for name, sample in made.items()}
        half = len(held) // 2  # one half is the reference, the other the fresh sample
        return SimpleNamespace(real=X[real], held=X[held[:half]], train=X[train], seed=int(rng.integers(2**31)),
                               samples={"fresh": X[held[half:]], **samples})  # fmt: skip

    def measure(self, problem: Any, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        score = contender(problem.real, problem.held, problem.train, problem.seed)
        return [{"sample": name, **score(sample)} for name, sample in problem.samples.items()]


def _package(real: Any, sample: Any) -> None:
    from prdc import compute_prdc

    with contextlib.redirect_stdout(io.StringIO()):
        compute_prdc(real, sample, 5)


def _faiss(real: Any, sample: Any) -> None:
    import faiss

    index = faiss.IndexFlatL2(real.shape[1])
    index.add(real)
    index.search(sample, 1)


def _frechet_quietly(real: Any, sample: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        baselines.fid(real, sample)


class Speed(study.Experiment):
    """Seconds on one thread, D = 2,048, single precision."""

    cells = study.grid(n=[2000])
    contenders = {
        "chamfer": lambda R, G: cross_neighbors(R, G),
        "one direction": lambda R, G: knn(G, R),
        "precision to coverage": baselines.prdc,
        "FD": _frechet_quietly,
        **({"prdc package": _package} if importlib.util.find_spec("prdc") else {}),
        **({"faiss": _faiss} if importlib.util.find_spec("faiss") else {}),
    }
    metrics = {"seconds": study.lower("s", timed=True, log=True)}
    unit, seeds, repeats = "repeat", 1, 5

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return [rng.normal(size=(cell.n, 2048)).astype(np.float32) for _ in range(2)]

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        start = time.perf_counter()
        contender(*problem)
        return [{"seconds": time.perf_counter() - start}]
