"""The circuit as a torch module: layers of sums and products, nodes of equal height folded into one matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.architectures.probabilistic_circuits.trees import Vtree


class _LogMix(torch.autograd.Function):
    """log(w exp(v)), shifted by the largest entry; an exact zero is -inf and passes no gradient."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, w: Tensor) -> Tensor:
        top = v.amax(-1, keepdim=True)
        top = torch.where(top == -torch.inf, torch.zeros_like(top), top)
        e = (v - top).exp_()
        y = e @ w.mT
        ctx.save_for_backward(e, w, y)
        return y.log().add_(top)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        e, w, y = ctx.saved_tensors
        share = torch.where(y > 0, g / y, 0)
        return e * (share @ w), share.mT @ e


def log_mix(v: Tensor, w: Tensor) -> Tensor:
    """``log sum_j w[k, j] exp(v[j])``: values [..., n, J] and weights [..., K, J] give [..., n, K]."""
    return _LogMix.apply(v, w)  # type: ignore[no-untyped-call, no-any-return]


class CircuitModule(nn.Module):
    """A smooth, structured-decomposable circuit: ``forward`` gives log p(x) [n], -1 being missing.

    Every leaf of the vtree has ``width`` categorical input units; every inner node has ``width`` units, which for
    ``cp`` are products of one mixture of the left and one of the right child's units (``W_l``, ``W_r``), and for
    ``tucker`` mixtures of all products of a left and a right unit. The root mixes the units of the topmost node.

    Parameters
    ----------
    tree : Vtree
        Over the variables 0 .. T-1.
    n_symbols : sequence of int
        T alphabets.
    width : int
        R.
    product : {"cp", "tucker"}
        The product layer.

    Attributes
    ----------
    leaf : Parameter [T, R, V]
        Logits of the input units; -inf beyond a variable's alphabet.
    weight : Parameter [T-1, 2, R, R], or [T-1, R, R * R] for tucker
        Logits of the mixtures, in the order of ``tree.nodes``.
    root : Parameter [R]
        Logits of the last mixture.
    """

    def __init__(self, tree: Vtree, n_symbols: Sequence[int], width: int, product: str = "cp"):
        super().__init__()
        self.tree, self.sizes, self.width, self.product = tree, tuple(n_symbols), width, product
        T, R, V, inner = len(self.sizes), width, max(n_symbols), len(tree.nodes)
        shape = (inner, 2, R, R) if product == "cp" else (inner, R, R * R)
        beyond = torch.arange(V)[None, :] >= torch.tensor(self.sizes)[:, None]
        self.leaf = nn.Parameter(torch.zeros(T, R, V).masked_fill(beyond[:, None, :], -torch.inf))
        self.weight = nn.Parameter(torch.zeros(shape))
        self.root = nn.Parameter(torch.zeros(R))

    @torch.no_grad()
    def randomize(self, generator: torch.Generator, rows: Tensor | None = None) -> None:
        """Logits of standard deviation 1; with data, unit k of every leaf leans towards the symbol of a random row."""
        for parameter in (self.leaf, self.weight, self.root):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
            parameter.copy_(torch.where(parameter == -torch.inf, parameter, noise))
        if rows is not None and len(rows):
            pick = rows[torch.randint(len(rows), (self.width,), generator=generator)]  # [R, T]
            variable, unit = torch.meshgrid(torch.arange(len(self.sizes)), torch.arange(self.width), indexing="ij")
            symbol = pick.T
            known = symbol >= 0
            self.leaf[variable[known], unit[known], symbol[known]] += 2.0

    # --- log-weights: what EM differentiates by ---

    def log_weights(self) -> list[Tensor]:
        """The normalised log-weights of `leaf`, `weight` and `root`."""
        return [p.log_softmax(-1) for p in (self.leaf, self.weight, self.root)]

    @torch.no_grad()
    def set_weights(self, logs: Sequence[Tensor]) -> None:
        for parameter, value in zip((self.leaf, self.weight, self.root), logs, strict=True):
            parameter.copy_(value)

    # --- values ---

    def leaf_values(self, x: Tensor, leaf: Tensor) -> list[Tensor]:
        """Log-values of the input units, T tensors [n, R]; 0 (the whole mass) where missing."""
        T, R, V = leaf.shape
        table = torch.cat([leaf.transpose(1, 2), leaf.new_zeros(T, 1, R)], 1).reshape(T * (V + 1), R)
        where = torch.where(x < 0, V, x) + (V + 1) * torch.arange(T, device=x.device)
        return list(nn.functional.embedding(where.T, table).unbind(0))

    def values(self, x: Tensor, logs: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Log-values [n, R] of the units of every node, by the ids of ``tree.nodes``."""
        leaf, weight, _ = self.log_weights() if logs is None else logs
        found = self.leaf_values(x, leaf)
        linear = weight.exp()
        for level in self.tree.levels:
            nodes = self.tree.nodes[level]
            if self.product == "cp":
                below = torch.stack([found[c] for _, left, right in nodes for c in (left, right)])
                mixed = log_mix(below, linear[level].flatten(0, 1))
                units = mixed.unflatten(0, (-1, 2)).sum(1)
            else:
                left = torch.stack([found[a] for _, a, _ in nodes])
                right = torch.stack([found[b] for _, _, b in nodes])
                units = log_mix((left[..., :, None] + right[..., None, :]).flatten(-2), linear[level])
            found.extend(units.unbind(0))
        return found

    def forward(self, x: Tensor, logs: Sequence[Tensor] | None = None) -> Tensor:
        logs = self.log_weights() if logs is None else logs
        return log_mix(self.values(x, logs)[-1], logs[2].exp()[None, :]).squeeze(-1)


class MixtureModule(nn.Module):
    """Circuits on several vtrees: ``forward`` gives the log-probability of their mixture [n].

    Parameters
    ----------
    parts : sequence of CircuitModule
        Over the same variables.
    selector : int, optional
        The column of x that says which part a row belongs to (missing: any); the parts do not see it.
    """

    def __init__(self, parts: Sequence[CircuitModule], selector: int | None = None):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.selector = selector
        self.weight = nn.Parameter(torch.zeros(len(parts), dtype=parts[0].root.dtype))

    def randomize(self, generator: torch.Generator, rows: Tensor | None = None) -> None:
        for part in self.parts:
            part.randomize(generator, None if rows is None else self.others(rows))  # type: ignore[operator]
        nn.init.zeros_(self.weight)

    def others(self, x: Tensor) -> Tensor:
        """The columns that the parts see."""
        return x if self.selector is None else torch.cat([x[:, : self.selector], x[:, self.selector + 1 :]], 1)

    def log_weights(self) -> list[Tensor]:
        return [self.weight.log_softmax(-1), *(w for part in self.parts for w in part.log_weights())]  # type: ignore[operator]

    @torch.no_grad()
    def set_weights(self, logs: Sequence[Tensor]) -> None:
        self.weight.copy_(logs[0])
        for i, part in enumerate(self.parts):
            part.set_weights(logs[1 + 3 * i : 4 + 3 * i])  # type: ignore[operator]

    def forward(self, x: Tensor, logs: Sequence[Tensor] | None = None) -> Tensor:
        logs = self.log_weights() if logs is None else logs
        rest = self.others(x)
        mine = [logs[1 + 3 * i : 4 + 3 * i] for i in range(len(self.parts))]
        if self.selector is None:
            return torch.stack([w + p(rest, m) for w, p, m in zip(logs[0], self.parts, mine, strict=True)]).logsumexp(0)
        chosen = x[:, self.selector]
        places, found = [], []
        for i, (part, m) in enumerate(zip(self.parts, mine, strict=True)):
            rows = (chosen == i).nonzero().squeeze(-1)
            if len(rows):
                places.append(rows)
                found.append(logs[0][i] + part(rest[rows], m))
        rows = (chosen < 0).nonzero().squeeze(-1)
        if len(rows):
            each = [w + p(rest[rows], m) for w, p, m in zip(logs[0], self.parts, mine, strict=True)]
            places.append(rows)
            found.append(torch.stack(each).logsumexp(0))
        return torch.cat(found)[torch.cat(places).argsort()]
