"""What is run: pairs made from one table, single cells, images, and the refinement against exact transport."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np

from gnomon import study
from gnomon.geometry.fosta import cells as cell_data
from gnomon.geometry.fosta import splits
from gnomon.geometry.fosta.baselines import ALIGNERS, FORESTED
from gnomon.geometry.fosta.forest import ForestKernel
from gnomon.geometry.fosta.metrics import alignment_score, foscttm, label_transfer
from gnomon.geometry.fosta.semantic import semantic_vectors
from gnomon.geometry.fosta.transport import hierarchical_assignment, semantic_coupling

MAIN = ("fosta", "MALI", "Euclidean")
EVERYWHERE = (*MAIN, "exact", "random coupling", "predict_proba", "Procrustes")  # the others on the split "noise" alone
DIMENSIONS = 5  # of every embedding that is scored


def aligned(pair: splits.Pair, contender: Any, n_estimators: int) -> np.ndarray:
    """The embedding of a pair; contenders that need forests share those of the problem."""
    name = next((n for n, c in ALIGNERS.items() if c is contender), None)
    shared = {"kernels": pair.kernels(n_estimators)} if name in FORESTED else {}
    return contender(pair.XA, pair.XB, pair.yA, pair.yB, n_components=DIMENSIONS, random_state=pair.seed, **shared)


def scored(pair: splits.Pair, Z: np.ndarray) -> dict[str, float]:
    """Label transfer to the masked rows, mixing, and (where partners are known) correspondence over all rows."""
    n = len(pair.XA)
    row = {
        "transfer": label_transfer(Z[:n], pair.yA, Z[n:][pair.hidden], pair.truth_b[pair.hidden]),
        "alignment": alignment_score(Z, np.repeat([0, 1], (n, len(Z) - n))),
    }
    return row | ({"foscttm": foscttm(Z[:n], Z[n:])} if pair.paired else {})


class Pairs(study.Experiment):
    """Alignments of two domains made from one table."""

    metrics = {"transfer": study.higher(), "foscttm": study.lower(), "alignment": study.higher()}
    contenders = ALIGNERS

    def measure(self, problem, contender, rng):
        pair, n_estimators = problem
        return [scored(pair, aligned(pair, contender, n_estimators))]


class Splits(Pairs):
    """Do labels and partners meet, by the way in which one table is divided?"""

    cells = study.grid(table=list(splits.TABLES), split=list(splits.SPLITS))

    def includes(self, inputs, cell, contender):
        if cell.split == "noise" or contender not in ALIGNERS:
            return True
        return contender in (EVERYWHERE if cell.split == "random" else (*MAIN, "Procrustes"))

    def prepare(self, inputs, cell, rng):
        return splits.pair(cell.table, cell.split, rng), inputs.n_estimators


class Sweep(Pairs):
    """Does the advantage over Euclidean semantics grow with the number of noise features?"""

    cells = study.grid(table=["wine", "digits"], multiple=[0, 1, 4, 16])
    contenders = {name: ALIGNERS[name] for name in ("fosta", "Euclidean")}

    def prepare(self, inputs, cell, rng):
        return splits.pair(cell.table, "noise", rng, multiple=float(cell.multiple)), inputs.n_estimators


class Priors(Pairs):
    """Does the division by class priors help when one class is rare in one domain?"""

    cells = study.grid(table=["wine", "breast", "digits"])
    contenders = {name: ALIGNERS[name] for name in ("fosta", "no prior")}

    def prepare(self, inputs, cell, rng):
        return splits.thinned(splits.pair(cell.table, "noise", rng), rng), inputs.n_estimators


class Scarcity(Pairs):
    """How much label transfer is lost when fewer labels of B are known?"""

    cells = study.grid(table=["wine", "breast", "digits"], share=[0.2, 0.5, 0.8])
    contenders = {"fosta": ALIGNERS["fosta"]}

    def prepare(self, inputs, cell, rng):
        return splits.pair(cell.table, "noise", rng, share=cell.share), inputs.n_estimators


class Images(Pairs):
    """Pixels and gradient histograms of the same digits: more rows than are laid out in full."""

    cells = study.grid(modality=["pixels and gradients"])
    contenders = {name: ALIGNERS[name] for name in MAIN}

    def prepare(self, inputs, cell, rng):
        return splits.images(rng, inputs.images), inputs.n_estimators


class SingleCell(study.Experiment):
    """Blood cells in two batches with a known effect, one type missing from one batch."""

    cells = study.grid(effect=["simulated"])
    contenders = cell_data.CORRECTIONS
    metrics = {
        "aggregate": study.higher(),
        "mixing": study.higher(),
        "biology": study.higher(),
        "separation": study.higher(),
    }

    def includes(self, inputs, cell, contender):
        return contender not in ("scanorama", "BBKNN") or importlib.util.find_spec(contender.lower()) is not None

    def prepare(self, inputs, cell, rng):
        return cell_data.simulated(rng), inputs.n_estimators

    def measure(self, problem, contender, rng):
        batches, n_estimators = problem
        Z = contender(batches, **({"n_estimators": n_estimators} if contender is cell_data.fosta else {}))
        scores = cell_data.integration_scores(Z, batches.batch, batches.truth, batches.scored)
        return [scores | {"separation": cell_data.separation(Z, batches.truth, cell_data.ABSENT)}]


class SecondBatch(SingleCell):
    """Blood cells beside immune cells of another laboratory: labels of the second batch come from marker genes."""

    cells = study.grid(effect=["real"])
    metrics = {"real_mixing": study.higher(), "agreement": study.higher()}

    def prepare(self, inputs, cell, rng):
        return cell_data.real(rng), inputs.n_estimators

    def measure(self, problem, contender, rng):
        batches, n_estimators = problem
        Z = contender(batches, **({"n_estimators": n_estimators} if contender is cell_data.fosta else {}))
        known = (batches.batch == 0) & np.array([t is not None for t in batches.truth])
        mine = batches.scored
        return [{"real_mixing": alignment_score(Z, batches.batch), "ilisi": cell_data.lisi(Z, batches.batch, 90) - 1,
                 "agreement": label_transfer(Z[known], batches.truth[known].astype(str), Z[mine], batches.truth[mine].astype(str))}]  # fmt: skip


# --- the refinement --------------------------------------------------------------------------------------------------


def hiref(X: np.ndarray, Y: np.ndarray, seed: int) -> np.ndarray:
    """Hierarchical refinement as FoSTA uses it."""
    return hierarchical_assignment(X, Y, random_state=seed)


def hiref_random(X: np.ndarray, Y: np.ndarray, seed: int) -> np.ndarray:
    """With the official code's random start and long steps."""
    return hierarchical_assignment(X, Y, init="random", random_state=seed)


def exact(X: np.ndarray, Y: np.ndarray, seed: int) -> np.ndarray:
    """POT's network simplex."""
    return semantic_coupling(X, Y, solver="exact", random_state=seed).tocsr().indices


def dirichlet(n: int, rng: np.random.Generator, classes: int = 10) -> np.ndarray:
    """Semantic vectors of rows that are unsure among few classes."""
    S = rng.dirichlet(np.full(classes, 0.5), n)
    return S / np.linalg.norm(S, axis=1, keepdims=True)


class Refinement(study.Experiment):
    """How much dearer than optimal is the refined assignment?"""

    cells = study.grid(vectors=["dirichlet", "digits"], n=[2000])
    contenders = {"hiref": hiref, "hiref random": hiref_random, "exact": exact}
    metrics = {"cost": study.lower()}

    @study.stage(version=1, inputs=(), cell=("n",))
    def digits(self, inputs, cell, seed):
        """GAP semantic vectors of pixels and of gradient histograms of different digits, half of the labels masked."""
        rng = np.random.default_rng(seed)
        pair = splits.images(rng, 2 * cell.n)
        found = []
        for X, rows in ((pair.XA, slice(None, cell.n)), (pair.XB, slice(cell.n, None))):
            kernel = ForestKernel(100, random_state=pair.seed).fit(X[rows], pair.yB[rows])
            found.append(semantic_vectors(kernel.kernel_, kernel.codes_, np.arange(len(kernel.classes_))))
        return found

    def prepare(self, inputs, cell, rng):
        both = self.digits(inputs, cell) if cell.vectors == "digits" else [dirichlet(cell.n, rng) for _ in range(2)]
        return both, int(rng.integers(2**31))

    def measure(self, problem, contender, rng):
        (X, Y), seed = problem
        match = contender(X, Y, seed)
        return [
            {
                "cost": float(((X - Y[match]) ** 2).sum()),
                "permutation": bool((np.sort(match) == np.arange(len(X))).all()),
            }
        ]


class Growth(study.Experiment):
    """How does the time of an assignment grow with the number of rows?"""

    cells = study.grid(n=[1000, 2000, 4000, 8000, 16_000])
    contenders = {"hiref": hiref, "exact": exact}
    metrics = {"seconds": study.lower("s", log=True, timed=True)}
    repeats = 1

    def includes(self, inputs, cell, contender):
        return contender != "exact" or cell.n <= 4000

    def prepare(self, inputs, cell, rng):
        hiref(dirichlet(600, rng), dirichlet(600, rng), 0)  # compiled before it is timed
        return dirichlet(cell.n, rng), dirichlet(cell.n, rng), int(rng.integers(2**31))

    def measure(self, problem, contender, rng):
        start = time.perf_counter()
        contender(*problem)
        return [{"seconds": time.perf_counter() - start}]
