"""Is every form the same rule, and are the relatives what their papers say?"""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon import study
from gnomon.architectures.gated_deltanet2.study.contenders import Fla, Form


def problem(rng: np.random.Generator, T: int, H: int, K: int, V: int, depth: float, B: int = 1) -> list[Any]:
    """q, k, v, g, b, w and a state in float64: unit keys, gates in [0, 1], log-decays from -depth to 0."""
    import torch

    q, k = (rng.standard_normal((B, T, H, K)) for _ in range(2))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    arrays = [q, k, rng.standard_normal((B, T, H, V)), -depth * rng.random((B, T, H, K)), rng.random((B, T, H, K)),
              rng.random((B, T, H, V)), rng.standard_normal((B, H, K, V))]  # fmt: skip
    return [torch.from_numpy(a) for a in arrays]


class Exactness(study.Experiment):
    """Values and all seven gradients of each form against the recurrence in float64, and its values in float32."""

    seeds = 2
    cells = study.grid(T=[1, 50, 203], depth=[0.1, 2.0, 60.0])
    contenders = {"chunk": Form("chunk"), "chunk 16/16": Form("chunk", {"chunk_size": 16, "sub_chunk": 16}),
                  "checkpoint": Form("chunk", {"checkpoint": True}), "numba": Form("numba")}  # fmt: skip
    metrics = {"error": study.lower(), "gradient_error": study.lower(), "single_error": study.lower()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        tensors = problem(rng, cell.T, 2, 16, 12, cell.depth, B=2)
        weights = [torch.from_numpy(rng.standard_normal(s)) for s in ((2, cell.T, 2, 12), (2, 2, 16, 12))]
        made = SimpleNamespace(tensors=tensors, weights=weights)
        made.values, made.gradients = _differentiated(Form("recurrent"), made)
        return made

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        values, gradients = _differentiated(contender, problem)
        single = contender(*(t.float() for t in problem.tensors))
        return [
            {"error": max(float((a - b).abs().max()) for a, b in zip(values, problem.values, strict=True)),
             "gradient_error": max(map(_relative, gradients, problem.gradients)),
             "single_error": max(map(_relative, single, problem.values))}
        ]  # fmt: skip


def _differentiated(form: Any, problem: Any) -> tuple[Any, Any]:
    import torch

    leaves = [t.clone().requires_grad_() for t in problem.tensors]
    made = form(*leaves)
    loss = sum((a * b).sum() for a, b in zip(made, problem.weights, strict=True))
    return [t.detach() for t in made], torch.autograd.grad(loss, leaves)


def _relative(a: Any, b: Any) -> float:
    return float((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-300))


class Reductions(study.Experiment):
    """The relatives as special gates of the rule, against their own recurrences in float64."""

    seeds = 2
    cells = study.grid(relative=["kda", "gdn", "delta", "gla", "mamba2"])
    contenders = {"recurrent": Form("recurrent"), "chunk": Form("chunk"), "numba": Form("numba")}
    metrics = {"reduction_error": study.lower()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        from gnomon.architectures.gated_deltanet2 import baselines

        q, k, v, g, _, _, _ = problem(rng, 90, 1, 8, 6, 1.0)
        beta, a = torch.from_numpy(rng.random((1, 90, 1, 1))), -torch.from_numpy(rng.random((1, 90, 1, 1)))
        rows = [t[0, :, 0] for t in (q, k, v)]
        zero, one, wide = torch.zeros_like(k), torch.ones_like(v), a.expand_as(k)
        gates = (beta.expand_as(k), beta.expand_as(v))
        case: Any = {
            "kda": lambda: ((g, *gates), baselines.kimi_delta(*rows, g[0, :, 0], beta.flatten())),  # type: ignore[call-arg]
            "gdn": lambda: ((wide, *gates), baselines.gated_delta_net(*rows, a.flatten(), beta.flatten())),  # type: ignore[call-arg]
            "delta": lambda: ((zero, *gates), baselines.delta_net(*rows, beta.flatten())),  # type: ignore[call-arg]
            "gla": lambda: ((g, zero, one), baselines.gla(*rows, g[0, :, 0])),  # type: ignore[call-arg]
            "mamba2": lambda: (
                (-1.5 * beta.expand_as(k), zero, gates[1]),
                baselines.mamba2(*rows, beta.flatten(), -1.5),  # type: ignore[call-arg]
            ),
        }
        options, expected = case[cell.relative]()
        state = torch.zeros(1, 1, 8, 6, dtype=torch.float64)
        return SimpleNamespace(inputs=[q, k, v, *options, state], expected=expected)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        o, _ = contender(*problem.inputs)
        return [{"reduction_error": float((o[0, :, 0] - problem.expected).abs().max())}]


class Peers(study.Experiment):
    """Outputs and states against the naive operators of flash-linear-attention in float32, where it is installed."""

    seeds = 2
    cells = study.grid(peer=["naive_recurrent_gdn2", "naive_chunk_gdn2", "naive_recurrent_kda"])
    contenders = {"chunk": Form("chunk"), "numba": Form("numba")}
    metrics = {"peer_error": study.lower()}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return find_spec("fla") is not None

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        tensors = [t.float() for t in problem(rng, 150, 2, 32, 32, 0.1)]
        if "kda" in cell.peer:
            beta = tensors[4][..., :1]
            tensors[4:6] = beta.expand_as(tensors[4]), beta.expand_as(tensors[5])
        return SimpleNamespace(inputs=tensors, expected=Fla(cell.peer)(*tensors))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        found = contender(*problem.inputs)
        return [{"peer_error": max(float((a - b).abs().max()) for a, b in zip(found, problem.expected, strict=True))}]


class Stepwise(study.Experiment):
    """A model fed one token at a time against the same text at once; and what its cache weighs."""

    seeds = 1
    cells = study.grid(tokens=[64, 256])
    contenders = {"gdn2": None}
    metrics = {"step_error": study.lower(), "cache_bytes": study.lower("B")}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        from gnomon.architectures.gated_deltanet2.baselines import build

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**31)))
            model = build("gdn2", vocab_size=64, hidden_size=32, num_hidden_layers=2, head_dim=16, num_heads=2).eval()
        return SimpleNamespace(model=model, tokens=torch.from_numpy(rng.integers(64, size=(1, cell.tokens))))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        with torch.no_grad():
            for block in problem.model.model.layers:
                block.mixer.mode = "chunk"
            whole = problem.model(problem.tokens, use_cache=False).logits
            cache, rows = None, []
            for token in problem.tokens.split(1, 1):
                out = problem.model(token, cache=cache, use_cache=True)
                cache = out.cache
                rows.append(out.logits)
        error = float((torch.cat(rows, 1) - whole).abs().max())
        return [{"step_error": error, "cache_bytes": cache_bytes(cache)}]


def cache_bytes(cache: Any) -> int:
    """Bytes of states, convolution tails, keys and values that a cache holds."""
    held = 0
    for layer in cache.layers:
        kept = [*getattr(layer, "recurrent_states", {}).values(), *getattr(layer, "conv_states", {}).values(),
                getattr(layer, "keys", None), getattr(layer, "values", None)]  # fmt: skip
        held += sum(t.nbytes for t in kept if hasattr(t, "nbytes"))
    return held
