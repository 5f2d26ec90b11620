"""What small models learn: recall under interference, needles, language. One budget and one recipe for every mixer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon import datasets, study
from gnomon.architectures.gated_deltanet2.study.contenders import variants

EVERY = ("gdn2", "kda", "gdn", "erase-only", "write-only", "mamba2", "mamba3-siso", "mamba3-mimo", "transformer")
CURVE = 50  # steps between two points of a learning curve
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "intermediate_size": 64}


def _start(problem: Any, contender: Any, **sizes: Any) -> tuple[Any, np.random.Generator]:
    """A new model and the data's generator: the same seeds for all contenders of a problem."""
    import torch

    torch.manual_seed(problem.initialisation)
    return contender(hybrid=problem.hybrid, **sizes), np.random.default_rng(problem.data)


def _problem(inputs: Any, hybrid: bool, rng: np.random.Generator, **more: Any) -> SimpleNamespace:
    initialisation, data, test = (int(n) for n in rng.integers(2**31, size=3))
    return SimpleNamespace(inputs=inputs, hybrid=hybrid, initialisation=initialisation, data=data, test=test, **more)


class Recall(study.Experiment):
    """How soon, and how well, is a value recalled by its key among 12 pairs? Trained on 4, then 8, then 12."""

    cells = study.grid(task=["mqar", "rebinding"])
    contenders = variants(*EVERY)
    metrics = {"accuracy": study.higher()}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return cell.task == "mqar" or contender in ("gdn2", "kda")

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        steps = inputs.steps if cell.task == "mqar" else inputs.steps // 2
        return _problem(inputs, False, rng, task=cell.task, steps=steps)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        from gnomon.architectures.gated_deltanet2.diagnostics import gate_statistics
        from gnomon.architectures.gated_deltanet2.tasks import KEYS, RECALL, VALUES
        from gnomon.architectures.gated_deltanet2.training import answer, as_tensors, train

        task, steps = RECALL[problem.task], problem.steps
        model, data = _start(problem, contender, vocab_size=KEYS + VALUES, head_dim=8, **SMALL)
        test = task(np.random.default_rng(problem.test), problem.inputs.rows, 12)
        rows: list[dict[str, Any]] = []

        def look(done: int) -> None:
            if done % CURVE == 0 or done == steps:
                rows.append({"step": done, "place": -1, "updates": -1, "accuracy": float(answer(model, test).mean())})

        train(model, lambda step: as_tensors(task(data, 32, (4, 8, 12)[3 * step // steps])), steps, 8e-3, look)
        right = answer(model, test)
        for axis in ("place", "updates"):
            of = getattr(test, axis)
            rows += [{"step": steps, "place": -1, "updates": -1, axis: int(n), "accuracy": float(right[of == n].mean())}
                     for n in np.unique(of)]  # fmt: skip
        gates = gate_statistics(model, torch.from_numpy(test.tokens[:64]))
        return [{**row, **gates} for row in rows]


class Needles(study.Experiment):
    """Is one binding found again after filler, alone or among four others, up to four times the length of training?"""

    cells = study.grid(arch=["recurrent", "hybrid"])
    contenders = variants(*EVERY)
    metrics = {"found": study.higher()}
    # (length, rows, needles, queries) of each quarter of the training; tests are as the last but with one query.
    curriculum = ((12, 96, 4, 4), (24, 48, 8, 8), (48, 24, 8, 8), (128, 12, 8, 8))

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return _problem(inputs, cell.arch == "hybrid", rng)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        from gnomon.architectures.gated_deltanet2.tasks import FILLERS, NEEDLE_KEYS, NEEDLE_VALUES, NEEDLES, needles
        from gnomon.architectures.gated_deltanet2.training import answer, as_tensors, train

        steps = problem.inputs.needle_steps
        vocabulary = NEEDLE_KEYS + NEEDLE_VALUES + FILLERS
        model, data = _start(problem, contender, vocab_size=vocabulary, head_dim=16, sliding_window=32, **SMALL)

        def batch(step: int) -> Any:
            length, rows, pairs, asked = self.curriculum[len(self.curriculum) * step // steps]
            return as_tensors(needles(data, rows, length, pairs, asked))

        train(model, batch, steps, 8e-3)
        test = np.random.default_rng(problem.test)
        return [
            {"kind": kind, "times": times,
             "found": float(answer(model, needles(test, problem.inputs.rows // 2, 128 * times, pairs)).mean())}
            for kind, pairs in NEEDLES.items() for times in (1, 2, 4)
        ]  # fmt: skip


class Language(study.Experiment):
    """Which mixer predicts held-out text best, at one number of parameters, alone and with sliding attention?"""

    cells = study.grid(arch=["recurrent", "hybrid"])
    contenders = variants(*EVERY)
    metrics = {"nll": study.lower("nats")}

    @study.stage(version=1, inputs=("vocabulary",), cell=(), seeded=False)
    def corpus(self, inputs: Any, cell: Any, seed: int | None) -> dict[str, np.ndarray]:
        """Tokens of Wikipedia articles to train on, of held-out ones, and of the King James Bible."""
        from gnomon.architectures.gated_deltanet2.text import encode, learn_tokenizer

        articles = datasets.wikipedia()
        training, held_out = "\n\n".join(articles[:-15]), "\n\n".join(articles[-15:])
        tokenizer = learn_tokenizer(training, inputs.vocabulary)
        bible = "\n".join(datasets.king_james())[:400_000]
        return {"train": encode(tokenizer, training), "wikipedia": encode(tokenizer, held_out),
                "king james": encode(tokenizer, bible)}  # fmt: skip

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return _problem(inputs, cell.arch == "hybrid", rng, corpus=self.corpus(inputs, cell))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        from gnomon.architectures.gated_deltanet2.training import held_out_nll, train, windows

        given = problem.inputs
        model, data = _start(
            problem, contender, vocab_size=given.vocabulary, hidden_size=given.width, num_hidden_layers=given.depth,
            num_heads=given.heads, head_dim=given.head_dim, sliding_window=min(2048, given.length // 2),
        )  # fmt: skip
        text = {name: torch.from_numpy(tokens) for name, tokens in problem.corpus.items()}
        train(model, windows(text["train"], given.batch, given.length, data), given.lm_steps, given.lr)
        return [{"corpus": name, "nll": held_out_nll(model, text[name], given.rows // 4, given.length)}
                for name in ("wikipedia", "king james")]  # fmt: skip
