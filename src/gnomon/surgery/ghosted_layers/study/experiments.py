"""What is measured, and where."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from gnomon import datasets, models
from gnomon.study import Experiment, grid, higher, lower, stage
from gnomon.surgery.ghosted_layers.study.contenders import CLASSES, GHOST, MAIN, NONE, Recipe, relative
from gnomon.surgery.ghosted_layers.study.material import CALIBRATION, HELD_OUT, articles, dense_model, one_each, windows

if TYPE_CHECKING:
    from torch import Tensor

    from gnomon.surgery.ghosted_layers.moments import BoundaryMoments
    from gnomon.surgery.ghosted_layers.solve import Operator

CUTS = {
    "smoke": grid(criterion=["streamline", "shortgpt"], n=[2]),
    "paper": grid(criterion=["streamline", "shortgpt"], n=[7, 11]),
    "other": grid(criterion=["streamline"], n=[3, 5, 8]) + grid(criterion=["shortgpt"], n=[5]),
}
SWEPT = {"smoke": "streamline-2", "paper": "streamline-7", "other": "streamline-5"}  # by the calibration sweep
SIZES = [1.25, 2, 4, 8, 16, 32]
SMOKE_SIZES = [2, 8]
PREFILL = 128  # tokens of a timed prompt
KL_STRIDE = 16  # the divergence is taken at every sixteenth token: two softmaxes of the whole vocabulary


class Cut(NamedTuple):
    """The removed blocks, their runs, and whether the block that makes the attention sink is among them."""

    removed: list[int]
    runs: list[tuple[int, int]]
    crosses: bool


@dataclass
class Problem:
    """One cut of one model, with calibration statistics and held-out tokens."""

    model: Any
    cut: Cut
    stats: dict[tuple[int, int], BoundaryMoments]
    held: dict[str, Any]  # what the stage ``held_out`` keeps

    def made_by(self, contender: Any) -> dict[tuple[int, int], Any]:
        """The contender's operator at each boundary."""
        return {run: contender(stats) for run, stats in self.stats.items()}


class Cuts(Experiment):
    """What all experiments share: the cuts, and the dense model on the held-out articles."""

    unit: ClassVar[str | tuple[str, ...]] = ("seed", "window")
    cluster: ClassVar[str | None] = "article"

    @stage(version=1, inputs=("model", "window"), cell=(), seeded=False)
    def similarity(self, inputs: Any, cell: Any, seed: None) -> dict[str, Any]:
        """Similarity of the layers on a draw of its own, the same for every seed, so that a cell is one cut."""
        from gnomon.surgery.ghosted_layers.calibrate import layer_similarity

        ids = windows(articles(inputs.model)[CALIBRATION], inputs.window, 12, np.random.default_rng(260515491))
        return vars(layer_similarity(dense_model(inputs.model), _tensor(ids)))

    @stage(version=3, inputs=("model", "window", "evaluation", "scale"), cell=())
    def held_out(self, inputs: Any, cell: Any, seed: int) -> dict[str, Any]:
        """The dense model on one window of each held-out article: its states where a tail enters, its predictions."""
        import torch

        from gnomon.surgery.ghosted_layers.calibrate import Batch, layer_inputs
        from gnomon.surgery.ghosted_layers.evaluation import Tail, final_states, score
        from gnomon.surgery.ghosted_layers.model import shorten

        model = dense_model(inputs.model)
        ids = _tensor(one_each(articles(inputs.model)[HELD_OUT], inputs.evaluation, np.random.default_rng([seed, 2])))
        runs = [run for cut in self.cuts(inputs, cell, seed).values() for run in cut.runs]
        starts, ends = {start for start, _ in runs}, {end for _, end in runs}
        before = {start - 1 for start in starts}
        found = [layer_inputs(model, Batch(part), starts | ends | before, before) for part in torch.split(ids, 16)]
        states, written = ({k: torch.cat([f[i][k] for f in found]) for k in found[0][i]} for i in (0, 1))
        last = max(ends)
        final = final_states(Tail(shorten(model, range(last), keep="share"), last), states[last], ids)
        dense = score(model, final, ids)
        return {"ids": ids, "states": states, "written": written, "final": final, "nll": dense.nll, "top": dense.top}

    def cuts(self, inputs: Any, cell: Any, seed: int | None) -> dict[str, Cut]:
        """Every cut of this scale by its name."""
        from gnomon.surgery.ghosted_layers.selection import LayerSimilarity, runs

        table = LayerSimilarity(**self.similarity(inputs, cell, seed or 0))
        found = {}
        for cut in CUTS.get(inputs.scale, CUTS["other"]):
            removed = table.choose(cut["n"], cut["criterion"])
            found[_name(cut)] = Cut(removed, runs(removed), table.crosses_sink(removed))
        return found


class Boundaries(Cuts):
    """One cut, with the calibration statistics of a seed."""

    @stage(version=2, inputs=("model", "window", "calibration", "scale"), cell=())
    def statistics(self, inputs: Any, cell: Any, seed: int) -> dict[tuple[int, int], BoundaryMoments]:
        """The sums of every boundary of every cut, from one pass over this seed's calibration windows."""
        from gnomon.surgery.ghosted_layers.calibrate import batches, collect
        from gnomon.surgery.ghosted_layers.hadamard import rotation

        model = dense_model(inputs.model)
        ids = windows(articles(inputs.model)[CALIBRATION], inputs.window, inputs.calibration // inputs.window,
                       np.random.default_rng([seed, 1]))  # fmt: skip
        pairs = {run for cut in self.cuts(inputs, cell, seed).values() for run in cut.runs}
        turn = rotation(models.structure(model).hidden_size)
        return collect(model, batches(_tensor(ids)), pairs, row_weight="sqrt", scales=True, rotation=turn, mlp=True)[0]

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        cut = self.cuts(inputs, cell, cell.seed)[_name(cell)]
        every = self.statistics(inputs, cell)
        return Problem(
            dense_model(inputs.model), cut, {run: every[run] for run in cut.runs}, self.held_out(inputs, cell)
        )

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        dense = isinstance(contender, Recipe) and contender.kind == "dense"
        yield from evaluate(problem, None if dense else problem.made_by(contender))


def _name(cell: Any) -> str:
    return f"{cell['criterion']}-{cell['n']}"


def _tensor(ids: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(ids))


def split(made: dict[tuple[int, int], Any]) -> tuple[dict[int, Operator], dict[int, Tensor]]:
    """What contenders made, by where it goes: (W, b) before a block, T into one."""
    from gnomon.surgery.ghosted_layers.solve import Operator

    operators = {end: Operator(*o) for (_, end), o in made.items() if isinstance(o, tuple)}
    folds = {start - 1: o for (start, _), o in made.items() if not isinstance(o, tuple)}
    return operators, folds


def evaluate(
    problem: Problem, made: dict[tuple[int, int], Any] | None, language: bool = True
) -> Iterator[dict[str, Any]]:
    """Rows per held-out window: likelihood, accuracy, agreement and divergence, and the residuals of the operators."""
    from gnomon.surgery.ghosted_layers.evaluation import divergence, final_states, score, tail

    held, model = problem.held, problem.model
    ids = held["ids"]
    columns: dict[str, Any] = {}
    if language:
        if made is None:
            final, nll, top = held["final"], held["nll"], held["top"]
        else:
            part = tail(model, problem.cut.removed, *split(made))
            final = final_states(part, held["states"][part.entrance], ids)
            nll, top = score(model, final, ids)
        columns |= {"nll": nll.mean(1), "top1": (top == ids[:, 1:]).float().mean(1),
                    "agreement": (top == held["top"]).float().mean(1),
                    "kl": divergence(model, held["final"][:, ::KL_STRIDE], final[:, ::KL_STRIDE]).mean(1)}  # fmt: skip
    if made is not None:
        columns["residual"], columns["residual_rest"] = _residuals(problem, made)
    for window in range(len(ids)):
        yield {"window": window, "article": window, "crosses": problem.cut.crosses,
               **{name: float(values[window]) for name, values in columns.items()}}  # fmt: skip


def _residuals(problem: Problem, made: dict[tuple[int, int], Any]) -> list[Tensor]:
    """||XW + b - Y||^2 of each window, relative to the mean over windows of ||Y - X||^2, summed over the boundaries.

    Its mean over windows is the held-out relative residual: 1 for plain removal. First of all tokens, then without the
    first token of each window.
    """
    import torch

    states, written = problem.held["states"], problem.held["written"]
    sums = []
    for (start, end), operator in made.items():
        x, y = states[start], states[end]
        if isinstance(operator, tuple):
            predicted = x @ operator[0].to(x) + operator[1].to(x)
        else:
            a = written[start - 1]
            predicted = x - a + a @ operator.to(a)
        sums.append([(value - y).square_().sum(-1, dtype=torch.float64) for value in (predicted, x)])
    errors, gaps = (sum(parts) for parts in zip(*sums, strict=True))
    return [errors[:, skip:].sum(1) / gaps[:, skip:].sum(1).mean() for skip in (0, 1)]


LANGUAGE = {
    "nll": lower("nats"),
    "top1": higher(),
    "agreement": higher(),
    "kl": lower("nats"),
    "residual": lower(),
    "residual_rest": lower(),
}


class Recovery(Boundaries):
    """Does the unconstrained operator recover a layer-pruned model better than the constrained ones?"""

    cells = CUTS["other"]
    contenders = MAIN
    metrics = LANGUAGE


class Operators(Boundaries):
    """What each constraint on the operator costs, on one calibration draw."""

    cells = grid(criterion=["streamline"], n=[5, 8])
    contenders = CLASSES
    metrics = LANGUAGE
    seeds = 1

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return cell.n != 8 or contender in ("ghost", "symmetric")


class Optimality(Boundaries):
    """In-sample residuals of every class, from the statistics alone: the theorem says how they are ordered."""

    cells = CUTS["other"]
    contenders = {**CLASSES, **{name: MAIN[name] for name in ("linearpatch-d", "linearpatch-r", "none")}}
    metrics = {"in_sample": lower(), "share": lower()}
    unit, cluster = "seed", None

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> dict[tuple[int, int], BoundaryMoments]:
        every = self.statistics(inputs, cell)
        return {run: every[run] for run in self.cuts(inputs, cell, cell.seed)[_name(cell)].runs}

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        for (start, end), stats in problem.items():
            operator = contender(stats)
            yield {"boundary": f"{start}:{end}", "in_sample": stats.residual(*operator), **_shares(operator)}


class CalibrationSize(Cuts):
    """How many tokens the operator needs, and what a ridge does when there are few."""

    cells = grid(size=SIZES)
    contenders = {"ridge 1e-6": GHOST, "relative 1e-3": relative(1e-3), "relative 1e-2": relative(1e-2)}
    metrics = {**LANGUAGE, "share": lower()}
    seeds = 1

    @stage(version=1, inputs=("model", "window", "scale"), cell=())
    def growing(self, inputs: Any, cell: Any, seed: int) -> dict[float, BoundaryMoments]:
        """The statistics of one boundary after N = size x C tokens, for each size."""
        import copy

        from gnomon.surgery.ghosted_layers.calibrate import Batch, layer_inputs
        from gnomon.surgery.ghosted_layers.moments import BoundaryMoments

        model, window = dense_model(inputs.model), inputs.window
        (run,) = self.swept(inputs, cell, seed).runs
        width = models.structure(model).hidden_size
        sizes = SIZES if inputs.scale != "smoke" else SMOKE_SIZES
        wanted = {size: divmod(round(size * width), window) for size in sizes}  # whole windows, and a part of one more
        ids = windows(articles(inputs.model)[CALIBRATION], window, max(w for w, _ in wanted.values()) + 1,
                       np.random.default_rng([seed, 3]))  # fmt: skip
        stats, found = BoundaryMoments(width), {}
        for i, row in enumerate(_tensor(ids)):
            states, _ = layer_inputs(model, Batch(row[None]), run)
            pre, post = (states[layer] for layer in run)
            for size, (whole, rest) in wanted.items():
                if whole == i:
                    found[size] = copy.deepcopy(stats)
                    if rest:
                        found[size].update(pre[:, :rest], post[:, :rest])
            stats.update(pre, post)
        return found

    def swept(self, inputs: Any, cell: Any, seed: int | None) -> Cut:
        """The cut of the sweep."""
        return self.cuts(inputs, cell, seed)[SWEPT.get(inputs.scale, SWEPT["other"])]

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        cut = self.swept(inputs, cell, cell.seed)
        stats = {cut.runs[0]: self.growing(inputs, cell)[cell.size]}
        return Problem(dense_model(inputs.model), cut, stats, self.held_out(inputs, cell))

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        made = problem.made_by(contender)
        (operator,) = made.values()
        for row in evaluate(problem, made, language=contender is GHOST):
            yield {**row, **_shares(operator)}


class Efficiency(Boundaries):
    """What the saving of plain pruning is worth once the operator is paid for."""

    cells = grid(criterion=["streamline"], n=[5])
    contenders = {name: MAIN[name] for name in ("ghost", "linearpatch-r", "none", "dense")}
    metrics = {"prefill": lower("s", log=True, timed=True), "saving": higher("s", timed=True), "parameters": lower()}
    unit, cluster = "seed", None
    seeds = 1

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        import torch

        from gnomon.surgery.ghosted_layers.model import shorten

        model, removed = problem.model, problem.cut.removed
        dense = isinstance(contender, Recipe) and contender.kind == "dense"
        plain = contender is NONE
        short = (
            model
            if dense
            else shorten(model, removed, *split({} if plain else problem.made_by(contender)), keep="share")
        )
        ids = problem.held["ids"].flatten()[None, :PREFILL]
        with torch.no_grad():
            short(ids, use_cache=True, logits_to_keep=1)  # warm
            began = time.perf_counter()
            short(ids, use_cache=True, logits_to_keep=1)
            seconds = time.perf_counter() - began
        parts = models.structure(model)
        block = sum(p.numel() for p in parts.blocks[removed[0]].parameters())
        before, after = (sum(p.numel() for p in m.parameters()) for m in (model, short))
        added = 0 if dense or plain else parts.hidden_size**2 * len(problem.cut.runs)
        yield {"prefill": seconds, "parameters": after,
               "as_computed": after == before - (0 if dense else block * len(removed)) + added,
               "saving_kept": 1 - added / (block * len(removed))}  # fmt: skip


class ZeroShot(Boundaries):
    """Which of two sentences is grammatical: the 300 minimal pairs of BLiMP that GNOMON_DATA holds."""

    cells = grid(criterion=["streamline"], n=[5])
    contenders = {name: MAIN[name] for name in ("ghost", "linearpatch-d", "linearpatch-r", "none", "dense")}
    metrics = {"correct": higher()}
    unit, cluster = ("seed", "pair"), None
    seeds = 1

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        try:
            return inputs.model != "random" and len(datasets.blimp_pairs()) > 0
        except FileNotFoundError:
            return False

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> tuple[Problem, Any, Any]:
        return super().prepare(inputs, cell, rng), models.load(inputs.model).tokenizer, datasets.blimp_pairs()

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        from gnomon.surgery.ghosted_layers.model import shorten

        (given, tokenizer, pairs), short = problem, problem[0].model
        if not (isinstance(contender, Recipe) and contender.kind == "dense"):
            short = shorten(short, given.cut.removed, *split(given.made_by(contender)), keep="share")
        texts = [*pairs["good"], *pairs["bad"]]
        scores = models.log_likelihood(short, tokenizer, [""] * len(texts), texts, batch_size=32)
        good, bad = scores.view(2, -1)
        for pair, (won, paradigm) in enumerate(zip(good > bad, pairs["paradigm"], strict=True)):
            yield {"pair": pair, "paradigm": paradigm, "correct": int(won)}


def _shares(operator: Any) -> dict[str, float]:
    from gnomon.surgery.ghosted_layers.solve import antisymmetric_share, noise_share

    return {"share": antisymmetric_share(operator[0]), "noise_share": noise_share(len(operator[0]))}
