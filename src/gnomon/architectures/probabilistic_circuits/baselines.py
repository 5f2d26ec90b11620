"""What circuits are compared with: Transformers and LSTMs, n-grams, the HMM recursion, the Chow-Liu tree."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from gnomon.architectures.probabilistic_circuits.circuit import Circuit
from gnomon.architectures.probabilistic_circuits.data import MOST, check_alphabets, check_symbols, states
from gnomon.architectures.probabilistic_circuits.trees import mutual_information, tree_edges

# --- neural next-token predictors ------------------------------------------------------------------------------------


class TransformerContext(nn.Module):
    """A decoder: tokens [n, L] -> contexts [n, L, d], the one at t made of the tokens before t.

    PyTorch's own layers, pre-norm, learned positions, no dropout.
    """

    def __init__(self, n_tokens: int, width: int, length: int, n_layers: int = 2, n_heads: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens + 1, width)  # the last one begins a sequence
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, n_heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                                           norm_first=True)  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, n_layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.mask: Tensor
        self.register_buffer("mask", torch.full((length, length), -torch.inf).triu(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        n, L = tokens.shape
        start = torch.full((n, 1), self.embedding.num_embeddings - 1, device=tokens.device)
        h = self.embedding(torch.cat([start, tokens[:, :-1]], 1)) + self.position[:L]
        out: Tensor = self.layers(h, mask=self.mask[:L, :L], is_causal=True)
        return out


class LSTMContext(nn.Module):
    """The same by an LSTM."""

    def __init__(self, n_tokens: int, width: int):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens + 1, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        start = torch.full((len(tokens), 1), self.embedding.num_embeddings - 1, device=tokens.device)
        out: Tensor = self.lstm(self.embedding(torch.cat([start, tokens[:, :-1]], 1)))[0]
        return out


class JointTransformer(BaseEstimator):  # type: ignore[misc]
    """A Transformer as a density over T symbols, with the interface of a circuit (no marginals: nothing may be missing).

    Parameters
    ----------
    n_symbols : int or sequence of int, optional
        Alphabets (default: the largest symbol of the data and one); symbols beyond a variable's own are masked.
    width, n_layers, n_heads : int
        d, depth and heads.
    """

    def __init__(self, n_symbols: int | Sequence[int] | None = None, width: int = 32, n_layers: int = 2,
                 n_heads: int = 4) -> None:  # fmt: skip
        self.n_symbols = n_symbols
        self.width = width
        self.n_layers = n_layers
        self.n_heads = n_heads

    def fit(self, X: ArrayLike, y: Any = None, *, n_steps: int = 800, batch_size: int = 256, step: float = 6e-3,
            random_state: int | None = None) -> Self:  # fmt: skip
        """Adam with a short warm-up and a half cosine, on batches of rows."""
        rows = check_symbols(X)
        if (rows < 0).any():
            raise ValueError("X: a Transformer has no marginals; expected no missing symbols (-1)")
        T = rows.shape[1]
        sizes = check_alphabets(int(rows.max(initial=0)) + 1 if self.n_symbols is None else self.n_symbols, T)
        check_symbols(rows, sizes)
        generator = torch.Generator().manual_seed(0 if random_state is None else int(random_state))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            body = TransformerContext(max(sizes), self.width, T, self.n_layers, self.n_heads)
            self.module_ = nn.ModuleDict({"body": body, "head": nn.Linear(self.width, max(sizes))})
        self.sizes_, self.n_features_in_ = sizes, T
        data = torch.from_numpy(rows)
        adam = torch.optim.Adam(self.module_.parameters(), lr=step)
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda s: warm_cosine(s, n_steps))
        self.loss_curve_ = []
        for _ in range(n_steps):
            batch = data[torch.randint(len(data), (min(batch_size, len(data)),), generator=generator)]
            loss = -self._logs(batch).gather(-1, batch[..., None]).sum((1, 2)).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
            self.loss_curve_.append(-float(loss.detach()))
        return self

    @property
    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.module_.parameters())

    def _logs(self, x: Tensor) -> Tensor:
        if not hasattr(self, "module_"):
            raise NotFittedError("this JointTransformer has no weights yet: call fit first")
        logits = self.module_["head"](self.module_["body"](x))
        beyond = torch.arange(logits.shape[-1]) >= torch.tensor(self.sizes_)[:, None]
        return logits.masked_fill(beyond, -torch.inf).log_softmax(-1)  # type: ignore[no-any-return]

    @torch.no_grad()
    def autoregressive(self, X: ArrayLike) -> np.ndarray:
        """log p(x_t = v | x_<t) [n, T, V]."""
        rows = torch.from_numpy(check_symbols(X, self.sizes_))
        return torch.cat([self._logs(part) for part in rows.split(4096)]).double().numpy()

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """log p(x) in nats [n]."""
        rows = check_symbols(X, self.sizes_)
        return np.take_along_axis(self.autoregressive(rows), rows[..., None], -1)[..., 0].sum(1)  # type: ignore[no-any-return]

    def joint(self) -> np.ndarray:
        """p(x) for every x (at most 2^22 states): one pass over the prefixes."""
        if math.prod(self.sizes_) > MOST:
            raise ValueError(
                f"{math.prod(self.sizes_)} states are more than the {MOST} that are enumerated; sample instead"
            )
        *before, last = self.sizes_
        prefix = np.column_stack([states(before), np.zeros(math.prod(before), int)])
        logs = self.autoregressive(prefix)
        said = np.take_along_axis(logs[:, :-1], prefix[:, :-1, None], -1)[..., 0].sum(1)
        return np.exp(said[:, None] + logs[:, -1, :last]).reshape(self.sizes_)


def warm_cosine(step: int, steps: int) -> float:
    """The factor of a learning rate: up over the first tenth (50 steps at most), then down a half cosine."""
    warm = max(1, min(50, steps // 10))
    return (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


# --- counts ----------------------------------------------------------------------------------------------------------


class KneserNey:
    """Interpolated Kneser-Ney n-grams of a token stream.

    Each order discounts its counts by D = n1 / (n1 + 2 n2) and gives the freed mass to the order below, which counts in
    how many contexts a token follows; below the unigram lies the uniform distribution.

    Parameters
    ----------
    vocab_size : int
    order : int
        n of the n-gram.
    """

    def __init__(self, vocab_size: int, order: int = 3) -> None:
        if order < 1:
            raise ValueError(f"order: got {order!r}; expected an integer of at least 1")
        self.vocab_size, self.order = vocab_size, order

    def fit(self, tokens: ArrayLike) -> Self:
        stream = np.asarray(tokens).tolist()
        grams: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(self.order)]
        for n in range(1, self.order + 1):
            grams[n - 1] = Counter(zip(*(stream[i:] for i in range(n)), strict=False))
        for n in range(1, self.order):  # below the top: distinct left neighbours
            grams[n - 1] = Counter(gram[1:] for gram in grams[n])
        self._followers: list[dict[tuple[int, ...], dict[int, int]]] = []
        self._totals: list[dict[tuple[int, ...], int]] = []
        self._discounts = []
        for counts in grams:
            followers: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
            for gram, count in counts.items():
                followers[gram[:-1]][gram[-1]] = count
            once, twice = (sum(c == k for c in counts.values()) for k in (1, 2))
            self._followers.append(dict(followers))
            self._totals.append({context: sum(f.values()) for context, f in followers.items()})
            self._discounts.append(once / (once + 2 * twice) if once else 0.5)
        return self

    def probability(self, token: int, context: Sequence[int] = ()) -> float:
        """p(token | the last order - 1 tokens of the context)."""
        p = 1 / self.vocab_size
        for n in range(1, self.order + 1):
            if n - 1 > len(context):
                break
            key = tuple(context[len(context) - (n - 1) :])
            followers = self._followers[n - 1].get(key)
            if followers is None:
                break
            D, total = self._discounts[n - 1], self._totals[n - 1][key]
            p = (max(followers.get(token, 0) - D, 0) + D * len(followers) * p) / total
        return p

    def log_prob(self, tokens: ArrayLike) -> np.ndarray:
        """log p of each token of windows [n, L] given those before it in its window."""
        return np.array([[math.log(self.probability(row[t], row[max(0, t - self.order + 1) : t]))
                          for t in range(len(row))] for row in np.asarray(tokens).tolist()])  # fmt: skip


# --- exact recursions and trees --------------------------------------------------------------------------------------


def hmm_log_likelihood(X: ArrayLike, initial: ArrayLike, transition: ArrayLike, emission: ArrayLike) -> np.ndarray:
    """log p(x) [n] by the forward algorithm: initial [R], transition [R, R] and emission [R, V], rows summing to 1."""
    A, B = np.asarray(transition, dtype=np.float64), np.asarray(emission, dtype=np.float64)
    rows = check_symbols(X, (B.shape[1],) * np.asarray(X).shape[1])
    state, total = np.repeat(np.asarray(initial, dtype=np.float64)[None], len(rows), 0), np.zeros(len(rows))
    for t in range(rows.shape[1]):
        if t:
            state = state @ A
        state = state * np.where(rows[:, t, None] < 0, 1.0, B.T[np.maximum(rows[:, t], 0)])
        mass = state.sum(1)
        total += np.log(mass)
        state = state / mass[:, None]
    return total


def chow_liu_tree(X: ArrayLike, n_symbols: int | None = None, *, smoothing: float = 0.1) -> Circuit:
    """The Chow-Liu tree of data as a circuit: the best tree-shaped model, in closed form, and deterministic.

    Unit k of the node of a variable stands for the *state of its parent*, so that the leaves are one-hot and the
    mixtures the conditional tables; MAP by :meth:`Circuit.most_probable` is exact.

    Parameters
    ----------
    X : array of int [n, T]
        Missing symbols (-1) are left out of the counts.
    n_symbols : int, optional
        V, one for all.
    smoothing : float
        Added to every count.
    """
    rows = check_symbols(X)
    T, V = rows.shape[1], int(rows.max(initial=0)) + 1 if n_symbols is None else int(n_symbols)
    check_symbols(rows, (V,) * T)
    if not smoothing > 0:
        raise ValueError(f"smoothing: got {smoothing!r}; expected a positive number")
    neighbours: list[list[int]] = [[] for _ in range(T)]
    for a, b in tree_edges(mutual_information(rows)):
        neighbours[a].append(b)
        neighbours[b].append(a)
    parent, order = {0: -1}, [0]
    for v in order:
        for c in neighbours[v]:
            if c not in parent:
                parent[c] = v
                order.append(c)
    eye = np.eye(V)
    seen = [(rows[:, t, None] == np.arange(V)).astype(np.float64) for t in range(T)]
    tree: dict[int, Any] = {v: v for v in range(T)}
    weight: dict[Any, np.ndarray] = {}
    for v in reversed(order[1:]):
        p = parent[v]
        table = seen[p].T @ seen[v] + smoothing
        table /= table.sum(1, keepdims=True)
        tree[p] = (tree[p], tree[v])
        weight[tree[p]] = np.stack([eye, table])
    root = seen[0].sum(0) + smoothing
    made = Circuit(tree[0], V, V)
    nodes = made._tree()
    named = _subtrees(tree[0])
    weights = np.stack([weight[named[frozenset(nodes.scopes[n])]] for n, _, _ in nodes.nodes]) if T > 1 else (
        np.zeros((0, 2, V, V)))  # fmt: skip
    return Circuit.from_weights(nodes, np.repeat(eye[None], T, 0), weights, root / root.sum())


def _subtrees(tree: Any) -> dict[frozenset[int], Any]:
    """Every inner subtree by its scope."""
    found: dict[frozenset[int], Any] = {}

    def visit(node: Any) -> frozenset[int]:
        if not isinstance(node, tuple):
            return frozenset([node])
        scope = visit(node[0]) | visit(node[1])
        found[scope] = node
        return scope

    visit(tree)
    return found
