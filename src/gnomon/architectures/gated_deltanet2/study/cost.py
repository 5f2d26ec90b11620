"""What it costs: processor time of the rule, of a training step, of a decoded token. One thread, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon import study
from gnomon.architectures.gated_deltanet2.study.contenders import Fla, Form, variants
from gnomon.architectures.gated_deltanet2.study.exact import cache_bytes, problem

RECURRENCE_AT = 2048  # the one length at which the slow forms are timed


def seconds(call: Callable[[], Any], most: int = 4) -> float:
    """Processor seconds of a call on this one thread: the best of some after one to warm up; one, if it is long."""
    taken: list[float] = []
    for _ in range(most):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
        if sum(taken) > 0.5:
            break
    return min(taken)


class Forward(study.Experiment):
    """The rule alone, for one sequence of two heads of 64 x 64, in float32."""

    seeds = 1
    repeats = 5
    cells = study.grid(T=[512, 1024, 2048, 4096, 8192])
    contenders = {"chunk": Form("chunk"), "numba": Form("numba"), "recurrence": Form("recurrent"),
                  "fla naive chunk": Fla("naive_chunk_gdn2")}  # fmt: skip
    metrics = {"forward_s": study.lower("s", log=True, timed=True)}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        if contender == "fla naive chunk" and find_spec("fla") is None:
            return False
        return contender not in ("recurrence", "fla naive chunk") or inputs.slow_at == cell.T

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return SimpleNamespace(inputs=[t.float() for t in problem(rng, cell.T, 2, 64, 64, 0.3)], T=cell.T)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        if isinstance(contender, Fla):
            contender.load()
        with torch.no_grad():
            spent = seconds(lambda: contender(*problem.inputs))
        return [{"forward_s": spent, "tokens_per_s": problem.T / spent}]


class Backward(Forward):
    """The same, forward and backward."""

    repeats = 3
    contenders = {"chunk": Form("chunk"), "numba": Form("numba"), "recurrence": Form("recurrent")}
    metrics = {"both_s": study.lower("s", log=True, timed=True)}
    cells = study.grid(T=[512, 1024, 2048, 4096])

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        leaves = [t.requires_grad_() for t in problem.inputs]

        def both() -> None:
            o, state = contender(*leaves)
            torch.autograd.grad(o.sum() + state.sum(), leaves)

        spent = seconds(both)
        return [{"both_s": spent, "tokens_per_s": problem.T / spent}]


class Overhead(study.Experiment):
    """A training step of a model of two layers, four heads of 32, on 1,024 tokens: equal shapes, other gates."""

    seeds = 1
    repeats = 7
    cells = study.grid(T=[1024])
    contenders = variants("gdn2", "kda", "gdn")
    metrics = {"train_s": study.lower("s", log=True, timed=True)}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        return torch.from_numpy(rng.integers(256, size=(1, cell.T)))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        torch.manual_seed(0)
        model = contender(match=False, vocab_size=256, hidden_size=128, num_hidden_layers=2, head_dim=32, num_heads=4)
        model.train()

        def step() -> None:
            model.zero_grad()
            model(problem, labels=problem).loss.backward()

        return [{"train_s": seconds(step)}]


class Decode(study.Experiment):
    """A decoded token after a short and after a long text."""

    seeds = 1
    repeats = 5
    cells = study.grid(position=[256, 8192])
    contenders = variants("gdn2", "transformer")
    metrics = {"token_s": study.lower("s", log=True, timed=True)}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        return torch.from_numpy(rng.integers(256, size=(1, cell.position)))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        torch.manual_seed(0)
        model = contender(match=False, vocab_size=256, hidden_size=128, num_hidden_layers=2, head_dim=32, num_heads=4)
        model.eval()
        with torch.no_grad():
            cache = model(problem, use_cache=True, logits_to_keep=1).cache
            held = cache_bytes(cache)

            def some() -> None:
                for _ in range(32):
                    model(problem[:, :1], cache=cache, use_cache=True)

            spent = seconds(some) / 32
        return [{"token_s": spent, "held_bytes": held}]
