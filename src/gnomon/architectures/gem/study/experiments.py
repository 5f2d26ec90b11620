"""What is measured on the trained models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gnomon import datasets, models
from gnomon.architectures.gem.study.material import TRAINING, corpus, restored
from gnomon.architectures.gem.study.recipes import CE, JUDGED, OBJECTIVES, OTHERS, Recipe
from gnomon.architectures.gem.study.training import BATCH, ready, train
from gnomon.study import Experiment, grid, higher, lower, stage

if TYPE_CHECKING:
    from torch import Tensor

POINTS = 32  # states projected on the hull
READ = 32  # tokens of a window in which the last position is intervened on
TEXT = ("corpus", "vocabulary", "length", "windows")
SIZE = ("width", "depth", "steps")
JUDGED_CELLS = grid(objective=list(JUDGED))
TIMED_STEPS = 3


@dataclass
class Problem:
    """One trained model and held-out text."""

    model: Any
    run: dict[str, Any]
    inside: Tensor
    outside: Tensor
    fitting: Tensor

    @property
    def depth(self) -> int:
        return int(self.model.config.num_hidden_layers)


class Trained(Experiment):
    """What all readings share: the text, and one training run for each objective and seed."""

    cells: ClassVar[list[dict[str, Any]]] = JUDGED_CELLS

    @stage(version=1, inputs=TEXT, cell=(), seeded=False)
    def text(self, inputs: Any, cell: Any, seed: None) -> dict[str, Any]:
        """Token ids of the training stream and of held-out windows."""
        return corpus(inputs.corpus, inputs.vocabulary, inputs.length, inputs.windows)

    @stage(version=1, inputs=(*TEXT, *SIZE), cell=("objective",))
    def run(self, inputs: Any, cell: Any, seed: int) -> dict[str, Any]:
        """Train one model: the weights and batches of a seed are the same for every objective."""
        text = self.text(inputs, cell, 0)
        return train(OBJECTIVES[cell.objective], text, inputs.width, inputs.depth, inputs.steps, seed)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        import torch

        text, run = self.text(inputs, cell), self.run(inputs, cell)
        model = restored(run, inputs.width, inputs.depth, len(text["words"]), inputs.length)
        return Problem(model, run, *(torch.from_numpy(text[k]) for k in ("inside", "outside", "fitting")))


# --- predictions ------------------------------------------------------------------------------------------------------


def as_trained(model: Any, fitting: Tensor) -> float:
    """No temperature."""
    return 1.0


def temperature(model: Any, fitting: Tensor) -> float:
    """Temperature scaling on held-out text of its own."""
    from gnomon.architectures.gem.baselines import fit_temperature

    return fit_temperature(model, fitting)


class Predictions(Trained):
    """Perplexity and calibration on held-out text, of the training's kind and of another."""

    contenders: ClassVar[dict[str, Any]] = {"as trained": as_trained, "temperature": temperature}
    metrics = {"nll": lower("nats"), "accuracy": higher(), "brier": lower(), "ece": lower(), "aurc": lower(),
               "entropy_error": higher()}  # fmt: skip

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        from gnomon.architectures.gem.diagnostics import uncertainty

        chosen = contender(problem.model, problem.fitting)
        for domain, ids in (("in", problem.inside), ("out", problem.outside)):
            found = uncertainty(problem.model, ids, chosen).summary
            yield {"domain": domain, "temperature": chosen, **{name: found[name] for name in self.metrics}}


class Curves(Trained):
    """Held-out likelihood along the training, for comparison at equal time."""

    contenders: ClassVar[dict[str, Any]] = {"held out": None}
    metrics = {"held_nll": lower("nats"), "nll_equal_time": lower("nats")}

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        for step, nll in problem.run["curve"]:
            yield {"step": int(step), "held_nll": float(nll)}


# --- states -----------------------------------------------------------------------------------------------------------


class Geometry(Trained):
    """Where the states of each layer lie: their mixtures, the hull, and the cone that they fill."""

    contenders: ClassVar[dict[str, Any]] = {"states": None}
    metrics = {"ratio": lower(), "cosine_hm": higher(), "energy": lower(), "cosine": lower(), "centred_cosine": lower(),
               "effective_rank": higher(), "participation": higher(), "top1": lower(), "top10": lower(),
               "distance": lower(), "norm": lower()}  # fmt: skip

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        import torch

        from gnomon.architectures.gem.diagnostics import anisotropy, hull

        used = torch.from_numpy(problem.run["used"])
        inner = hull(problem.model, problem.inside, range(problem.depth))
        last = hull(problem.model, problem.inside, [problem.depth], POINTS, used)
        cones: Any = anisotropy(problem.model, problem.inside).to_dict("records")
        rows: Any = [*inner.to_dict("records"), *last.to_dict("records")]
        for row, cone in zip(rows, cones, strict=True):
            final = row["layer"] == problem.depth
            extra = {"descent": descent(problem), **problem.run["collapse"]} if final else {}
            yield {**row, **cone, "layer": int(row["layer"]), "final": final, **extra}


def descent(problem: Problem) -> float:
    """The least of F(h) - ||h - m||²/2 - F(m) over states, in units of the mean ||e||²: the theorem says >= 0."""
    from gnomon.architectures.gem.method import free_energy, mixture
    from gnomon.architectures.gem.reading import Reader

    reader = Reader(problem.model)
    _, streams = next(reader.walk(problem.inside))
    h, E = reader.head.states(streams[reader.depth]).flatten(0, 1).double(), reader.head.E.double()
    beta = reader.head.beta_value
    m = mixture(h, E, beta)
    margin = free_energy(h, E, beta) - (h - m).square().sum(-1) / 2 - free_energy(m, E, beta)
    return float(margin.min() / E.square().sum(1).mean())


def logit(model: Any, fitting: Tensor, layers: list[int]) -> dict[int, Callable[[Tensor], Tensor]]:
    """The untuned head."""
    return {}


def tuned(model: Any, fitting: Tensor, layers: list[int]) -> dict[int, Callable[[Tensor], Tensor]]:
    """An affine map a layer, trained on held-out text of its own."""
    from gnomon.architectures.gem.baselines import tuned_lens

    return tuned_lens(model, fitting, layers)


class Decoding(Trained):
    """What the model's own head reads at each layer; of the baseline also what a trained lens reads."""

    contenders: ClassVar[dict[str, Any]] = {"logit lens": logit, "tuned lens": tuned}
    metrics = {"lens_kl": lower("nats"), "lens_nll": lower("nats"), "agreement": higher(), "rank": lower(),
               "step_cosine": higher(), "settled": lower("layers")}  # fmt: skip

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender != "tuned lens" or cell.objective == CE

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        from gnomon.architectures.gem.lens import logit_lens

        inner = list(range(1, problem.depth))
        found = logit_lens(problem.model, problem.inside, translators=contender(problem.model, problem.fitting, inner))
        rows: Any = found.frame.to_dict("records")
        for row in rows:
            layer = int(row["layer"])
            kept = {k: v for k, v in row.items() if np.isfinite(v)}
            yield {**kept, "layer": layer, "inner": layer in inner, "settled": found.settled}


class Faithfulness(Trained):
    """Whether the model acts on what the untuned head reads at the middle layer."""

    contenders: ClassVar[dict[str, Any]] = {"logit lens": None}
    metrics = {"ablation": higher("nats"), "swap": higher(), "response": higher()}

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        from gnomon.architectures.gem.faithfulness import causal_faithfulness

        found = causal_faithfulness(problem.model, problem.inside[:, :READ])
        yield {"ablation": found.ablation, "swap": found.swap, "response": found.response, "positions": len(found.rows)}


# --- all other objectives, and a standard model -----------------------------------------------------------------------


class Variants(Trained):
    """Every other variant, weight and baseline, a row each; on the first seed unless all are asked for."""

    cells: ClassVar[list[dict[str, Any]]] = grid(objective=OTHERS)
    contenders: ClassVar[dict[str, Any]] = {"model": None}
    metrics = {"nll": lower("nats"), "nll_out": lower("nats"), "ece": lower(), "aurc": lower(), "ratio": lower(),
               "cosine_hm": higher(), "cosine": lower(), "lens_kl": lower("nats"), "agreement": higher(),
               "embedding_cosine": lower()}  # fmt: skip

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return inputs.full or cell.seed == 0

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        from gnomon.architectures.gem.diagnostics import anisotropy, hull, uncertainty
        from gnomon.architectures.gem.lens import logit_lens

        model, ids, last = problem.model, problem.inside, problem.depth
        scores = uncertainty(model, ids).summary
        state, cone = hull(model, ids, [last]).iloc[0], anisotropy(model, ids, [last]).iloc[0]
        lens = logit_lens(model, ids, range(1, last + 1)).frame.query("layer < @last")
        yield {**{k: scores[k] for k in ("nll", "ece", "aurc")}, "nll_out": uncertainty(model, problem.outside).summary["nll"],
               "ratio": state["ratio"], "cosine_hm": state["cosine_hm"], "cosine": cone["cosine"],
               "lens_kl": lens["lens_kl"].mean(), "agreement": lens["agreement"].mean(), **problem.run["collapse"]}  # fmt: skip


class Reference(Experiment):
    """The same readings of a standard model of 135 million parameters, trained by others."""

    contenders: ClassVar[dict[str, Any]] = {"smollm2": models.EMBEDDED}
    metrics = {
        "lens_kl": lower("nats"),
        "agreement": higher(),
        "cosine": lower(),
        "ratio": lower(),
        "cosine_hm": higher(),
    }
    seeds = 0

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> list[str]:
        return datasets.wikipedia()[TRAINING.stop :]

    def measure(self, problem: list[str], contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        from gnomon.architectures.gem.diagnostics import gem_diagnostics

        found = gem_diagnostics(contender, problem, range(0, 31, 5), length=64, tokens=256, points=0, positions=0)
        for row in found.to_frame().to_dict("records"):
            yield {k: float(v) for k, v in row.items() if np.isfinite(v)} | {"depth": row["layer"] / 30}


# --- cost -------------------------------------------------------------------------------------------------------------


class Cost(Experiment):
    """Seconds of a training step."""

    contenders: ClassVar[dict[str, Any]] = {
        name: OBJECTIVES[name] for name in ("mse 0.1", CE, "all 0.1", "mse 0.3 through")
    }
    metrics = {"step": lower("s", log=True, timed=True)}
    seeds = 1
    repeats = 5

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> tuple[Any, Tensor]:
        import torch

        ids = rng.integers(0, inputs.vocabulary, (BATCH, inputs.length))
        return inputs, torch.from_numpy(ids)

    def measure(self, problem: Any, contender: Recipe, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        inputs, ids = problem
        _, step, _ = ready(contender, inputs.width, inputs.depth, inputs.vocabulary, inputs.length, 0)
        step(ids, 1.0)  # warm
        began = time.perf_counter()
        for _ in range(TIMED_STEPS):
            step(ids, 1.0)
        yield {"step": (time.perf_counter() - began) / TIMED_STEPS}


class Memory(Experiment):
    """The most memory that a forward and backward pass of the loss holds, beyond its inputs."""

    cells: ClassVar[list[dict[str, Any]]] = grid(tokens=[4096], vocabulary=[49152])
    contenders: ClassVar[dict[str, Any]] = {"fused": "fused_gem_loss", "naive": "gem_loss"}
    metrics = {"held_mb": lower("MB", log=True)}
    seeds = 0

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> list[Tensor]:
        import torch

        arrays = rng.standard_normal((cell.tokens, 64)), 0.1 * rng.standard_normal((cell.vocabulary, 64))
        h, E = (torch.from_numpy(a.astype(np.float32)).requires_grad_() for a in arrays)
        return [h, E, torch.from_numpy(rng.integers(0, cell.vocabulary, cell.tokens))]

    def measure(self, problem: list[Tensor], contender: str, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        import torch

        from gnomon.architectures.gem.fused import fused_gem_loss
        from gnomon.architectures.gem.method import gem_loss

        call: Any = {"fused_gem_loss": fused_gem_loss, "gem_loss": gem_loss}[contender]
        if not Path("/proc/self/clear_refs").exists():
            return
        torch.autograd.grad(call(problem[0][:8], problem[1], problem[2][:8]).total, problem[:2])  # warm
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
        before = status("VmRSS")
        torch.autograd.grad(call(*problem).total, problem[:2])
        yield {"held_mb": status("VmHWM") - before}


def status(key: str) -> float:
    """A line of the system's account of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))
