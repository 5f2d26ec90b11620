"""Down-stream: the head of a tiny word-level language model, trained with sampled softmax."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnomon import datasets, study
from gnomon.sampling.two_level_softmax.baselines import ExactSoftmax, MidxUniform, Popularity, Uniform
from gnomon.sampling.two_level_softmax.loss import sampled_softmax_loss
from gnomon.sampling.two_level_softmax.method import TwoLevelSoftmax

if TYPE_CHECKING:
    import torch
    from torch import nn

CONTEXT, WIDTH, NEGATIVES, BATCH = 4, 64, 64, 128


def windows(vocabulary: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Word ids (N, CONTEXT + 1) of the Wikipedia excerpt, of training and of held-out articles; the last is predicted."""
    texts = [re.findall("[a-z]+", text.lower()) for text in datasets.wikipedia()]
    common = [w for w, _ in Counter(w for text in texts for w in text).most_common(vocabulary - 1)]
    number = {w: i + 1 for i, w in enumerate(common)}  # 0: any other word
    cut: list[list[NDArray[np.int64]]] = [[], []]
    for i, text in enumerate(texts):
        ids = np.array([number.get(w, 0) for w in text])
        cut[i % 5 == 0].append(np.lib.stride_tricks.sliding_window_view(ids, CONTEXT + 1))
    train, held = (np.concatenate(c) for c in cut)
    return train, held[np.random.default_rng(0).permutation(len(held))[:2000]]


def network(vocabulary: int, seed: int) -> nn.Module:
    """Embeddings of the words before, a hidden layer, and a linear head without bias: Bengio's model, small."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    body = nn.Sequential(nn.Embedding(vocabulary, WIDTH), nn.Flatten(), nn.Linear(CONTEXT * WIDTH, WIDTH), nn.Tanh())
    return nn.ModuleDict({"body": body, "head": nn.Linear(WIDTH, vocabulary, bias=False)})


def full_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional as F

    return F.cross_entropy(model["head"](model["body"](batch[:, :-1])), batch[:, -1])


def train(model: Any, windows: NDArray[np.int64], steps: int, seed: int, loss: Callable[..., Any]) -> None:
    """Adam over random batches."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        batch = torch.from_numpy(windows[rng.integers(len(windows), size=BATCH)])
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()


# a contender is f(head (n, d), counts, queries, seed): a sampler fitted to the head
Maker = Callable[[NDArray[Any], NDArray[Any], NDArray[Any], int], Any]


def two_level(correction: str, dispersion: str = "isotropic") -> Maker:
    def make(head: NDArray[Any], counts: NDArray[Any], queries: NDArray[Any], seed: int) -> Any:
        sampler = TwoLevelSoftmax(correction, dispersion, random_state=seed).fit(head)
        return sampler.fit_calibration(queries) if dispersion == "calibrated" else sampler

    return make


MAKERS: dict[str, Maker] = {
    "SD-isotropic": two_level("size_dispersion"),
    "SD-calibrated": two_level("size_dispersion", "calibrated"),
    "S-2LS": two_level("size"),
    "2LS": two_level("none"),
    "MIDX-uniform": lambda head, counts, queries, seed: MidxUniform(random_state=seed).fit(head),
    "unigram": lambda head, counts, queries, seed: Popularity(counts, random_state=seed).fit(head),
    "uniform": lambda head, counts, queries, seed: Uniform(random_state=seed).fit(head),
    "exact": lambda head, counts, queries, seed: ExactSoftmax(random_state=seed).fit(head),
}


class Language(study.Experiment):
    """The corpus and a model part of the way through its training."""

    @study.stage(version=1, inputs=("vocabulary", "base_steps"), cell=())
    def base(self, inputs: Any, cell: study.Cell, seed: int | None) -> dict[str, Any]:
        words, held = windows(inputs.vocabulary)
        model = network(inputs.vocabulary, seed or 0)
        train(model, words, inputs.base_steps, seed or 0, full_loss)
        counts = np.bincount(words[:, -1], minlength=inputs.vocabulary) + 1
        return {"words": words.astype(np.int32), "held": held, "counts": counts, "state": model.state_dict()}


class Gradient(Language):
    """The gradient of the sampled loss beside the full one, over batches at the same parameters."""

    contenders = MAKERS
    metrics = {"cosine": study.higher()}
    unit = ("seed", "batch")

    def prepare(self, inputs: Any, cell: study.Cell, rng: np.random.Generator) -> dict[str, Any]:
        import torch

        found = self.base(inputs, cell)
        model: Any = network(inputs.vocabulary, 0)
        model.load_state_dict(found["state"])
        words = found["words"].astype(np.int64)
        batches = [torch.from_numpy(words[rng.integers(len(words), size=BATCH)]) for _ in range(inputs.batches)]
        with torch.no_grad():
            queries = model["body"](torch.from_numpy(words[rng.integers(len(words), size=100)])[:, :-1]).numpy()
        full = [flat_gradient(model, full_loss(model, batch)) for batch in batches]
        return {"model": model, "batches": batches, "full": full, "counts": found["counts"], "queries": queries,
                "seed": int(rng.integers(2**31))}  # fmt: skip

    def measure(self, problem: dict[str, Any], contender: Maker, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
        from torch.nn import functional as F

        model = problem["model"]
        head = model["head"].weight
        sampler = contender(head.detach().numpy(), problem["counts"], problem["queries"], problem["seed"])
        for i, (batch, full) in enumerate(zip(problem["batches"], problem["full"], strict=True)):
            loss = sampled_softmax_loss(model["body"](batch[:, :-1]), batch[:, -1], head, sampler, NEGATIVES)
            yield {"batch": i, "cosine": F.cosine_similarity(flat_gradient(model, loss), full, dim=0).item()}


def flat_gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


class Training(Language):
    """Perplexity on held-out articles after as many steps of training with each proposal."""

    contenders = MAKERS
    metrics = {"perplexity": study.lower(log=True)}

    def prepare(self, inputs: Any, cell: study.Cell, rng: np.random.Generator) -> dict[str, Any]:
        return {**self.base(inputs, cell), "steps": inputs.train_steps, "seed": int(rng.integers(2**31)),
                "vocabulary": inputs.vocabulary}  # fmt: skip

    def measure(self, problem: dict[str, Any], contender: Maker, rng: np.random.Generator) -> Iterable[dict[str, Any]]:
        import torch

        model: Any = network(problem["vocabulary"], problem["seed"])
        words = problem["words"].astype(np.int64)
        sampler: Any = None
        step = 0

        def loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
            nonlocal sampler, step
            hidden = model["body"](batch[:, :-1])
            if step % 50 == 0:  # the head moves: the sampler follows
                head = model["head"].weight.detach().numpy().copy()
                sampler = contender(head, problem["counts"], hidden.detach().numpy(), problem["seed"])
            step += 1
            return sampled_softmax_loss(hidden, batch[:, -1], model["head"].weight, sampler, NEGATIVES)

        train(model, words, problem["steps"], problem["seed"], loss)
        with torch.no_grad():
            return [{"perplexity": full_loss(model, torch.from_numpy(problem["held"])).exp().item()}]
