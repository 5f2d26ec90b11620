"""Is it right: masks, layers downstream, split states."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon import datasets, models, study
from gnomon.architectures.semiseparable.algorithms import ALGORITHMS
from gnomon.architectures.semiseparable.plan import io_bytes
from gnomon.architectures.semiseparable.study.contenders import Layer, Mask, as_layer
from gnomon.architectures.semiseparable.study.data import STRESS, stress


class Masks(study.Experiment):
    """What the experiments on masks share: log-decays, a contender, its errors against direct sums in float64.

    A contender of your own is a function of log-decays, a float32 tensor [chunks, Q], that gives masks [chunks, Q, Q].
    """

    contenders = {
        "hier": Mask(ALGORITHMS["hier"]),
        "hier, block 8": Mask({"method": "hier", "block": 8}),
        "hier, block 32": Mask({"method": "hier", "block": 32}),
        **{name: Mask(options) for name, options in ALGORITHMS.items() if name != "hier"},
    }
    metrics = {
        "max_error": study.lower(log=True),
        "median_error": study.lower(log=True),
        "median_eps": study.lower("eps"),
        "violations": study.lower("entries"),
        "disorder": study.lower("pairs"),
        "inf": study.lower("entries"),
        "nan": study.lower("entries"),
        "wrong": study.lower("share of chunks"),
    }

    def measure(self, problem: Any, contender: Callable[..., Any], rng: np.random.Generator) -> list[dict[str, Any]]:
        from gnomon.architectures.semiseparable.report import measures

        row = measures(contender(problem.a).numpy(), problem.truth)
        row["median_eps"] = row["median_error"] / float(np.finfo(np.float32).eps)
        for name in ("max_error", "median_error"):  # an error of exactly 0 has no logarithm
            row[name] = max(row[name], 1e-12)
        return [row]


def _problem(a: Any) -> SimpleNamespace:
    from gnomon.architectures.semiseparable.report import exact

    return SimpleNamespace(a=a, truth=exact(a))


class Stability(Masks):
    """How wrong is each algorithm on decays made to break it?"""

    cells = [
        *study.grid(data=STRESS, Q=[256], dtype=["float32"]),
        *study.grid(data=["benign", "1e-6..1e6"], Q=[64, 128], dtype=["float32"]),
        {"data": "1e-6..1e6", "Q": 256, "dtype": "bfloat16"},
    ]

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        a = torch.from_numpy(stress(cell.data, inputs.chunks, cell.Q, rng).astype(np.float32))
        return _problem(a.to(getattr(torch, cell.dtype)).float())  # a half is promoted before anything else


class Harvested(Masks):
    """And on the decays of a language model: one trained here on Wikipedia, or ``--model``."""

    cells = study.grid(Q=[64, 256])

    @study.stage(version=1, inputs=("model", "steps"), cell=(), seeded=False)
    def decays(self, inputs: Any, cell: Any, seed: int | None) -> dict[str, Any]:
        """Log-decays [rows, T] of every layer and head on held-out articles."""
        from gnomon.architectures.semiseparable.harvest import harvest, train, windows

        articles = datasets.wikipedia()
        held_out = "\n\n".join(articles[-10:])
        if inputs.model is None:
            data: Any = held_out.encode()
            model = train("\n\n".join(articles[:-10]).encode(), inputs.steps)
        else:
            model, data = converted(inputs.model, held_out)
        a, nll = harvest(model, windows(data, 8, 512))
        return {"a": a.reshape(-1, a.shape[-1]), "nll": nll}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        a = self.decays(inputs, cell)["a"]
        chunks = a[:, : a.shape[1] // cell.Q * cell.Q].reshape(-1, cell.Q)
        return _problem(
            torch.from_numpy(chunks[rng.choice(len(chunks), min(inputs.chunks, len(chunks)), replace=False)])
        )


def converted(ref: str, text: str) -> tuple[Any, list[int]]:
    """A transformers Mamba-2 on this layer, and a text in its tokens."""
    from gnomon.architectures.semiseparable.mixer import use_semiseparable

    lm = models.load(ref)
    return use_semiseparable(lm.copy()), lm.tokenizer(text)["input_ids"]


class Downstream(study.Experiment):
    """What the mask's error does to a layer in float32."""

    cells = study.grid(data=STRESS)
    contenders = {name: Layer(as_layer(options)) for name, options in ALGORITHMS.items()}
    metrics = {"y_error": study.lower(log=True), "not_finite": study.lower("share")}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        length, heads, width, size = inputs.tokens, 4, 16, 16
        a = stress(cell.data, heads, length, rng).T[None]
        x, B, C = (rng.standard_normal((1, length, *s)) for s in ((heads, width), (1, size), (1, size)))
        single = [torch.from_numpy(np.ascontiguousarray(t)).float() for t in (x, a, B, C)]
        exact = Layer({"segsum": "direct", "backend": "torch"})(*(t.double() for t in single))
        return SimpleNamespace(inputs=single, exact=exact.numpy())

    def measure(self, problem: Any, contender: Callable[..., Any], rng: np.random.Generator) -> list[dict[str, Any]]:
        y = contender(*problem.inputs).numpy()
        finite = np.isfinite(y)
        error = np.abs(y - problem.exact)[finite].max(initial=0.0) / np.abs(problem.exact).max()
        return [{"y_error": max(float(error), 1e-12), "not_finite": float(1 - finite.mean())}]


class SplitExactness(study.Experiment):
    """Does the result depend on the tile or on the split, and what crosses the splits' boundaries?"""

    cells = study.grid(Q=[64, 128, 256], Ls=[64, 128, 256, 512, 1024, 2048])
    contenders = {"split": Layer()}
    metrics = {"split_error": study.lower(), "boundary": study.lower("bytes")}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return cell.Ls >= cell.Q

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        length, heads, width, size = inputs.tokens, 4, 16, 16
        rng = np.random.default_rng([cell.seed, length])  # one problem for every tile and split
        shapes = ((1, length, heads, width), (1, length, 1, size), (1, length, 1, size))
        x, B, C = (torch.from_numpy(rng.standard_normal(s)) for s in shapes)
        a = -torch.from_numpy(rng.uniform(0, 0.1, (1, length, heads)))
        exact = Layer({"segsum": "direct", "backend": "torch"})(x, a, B, C)
        shape = {"b": 1, "T": length, "h": heads, "P": width, "N": size, "g": 1, "Q": cell.Q}
        return SimpleNamespace(inputs=[t.float() for t in (x, a, B, C)], exact=exact, shape=shape, Q=cell.Q, Ls=cell.Ls)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        y = Layer({**contender.options, "chunk_size": problem.Q, "split": problem.Ls})(*problem.inputs)
        classic = io_bytes(**problem.shape, Ls=problem.Q)["boundary"]
        boundary = io_bytes(**problem.shape, Ls=problem.Ls)["boundary"]
        splits = problem.Ls < problem.shape["T"]
        exactly = boundary * problem.Ls == classic * problem.Q if splits else boundary == 0
        scale = float(problem.exact.abs().max())
        return [
            {"split_error": float((y - problem.exact).abs().max()) / scale, "boundary": boundary, "exactly": exactly}
        ]
