"""Exact queries to one circuit: next symbols, whole tables, draws, best explanations, inner products, divergences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from gnomon.architectures.probabilistic_circuits.module import CircuitModule, log_mix

Pick = Callable[[Tensor], Tensor]  # log-scores [n, m] -> indices [n]


# --- left to right ---------------------------------------------------------------------------------------------------


class _Filter:
    """What is known after x_1 .. x_t, kept by node, so that one more symbol touches only what it changes.

    Upward messages of a node are remade when they are next asked for after a symbol under it was seen; downward ones
    hold until a symbol outside the node is seen. On a linear vtree this is the forward filter of an HMM, O(R^2) a
    symbol; on a balanced one O(R^2 log T) at most.
    """

    def __init__(self, module: CircuitModule, n: int):
        self.module, self.tree, self.n = module, module.tree, n
        self.leaf, weight, root = (w.detach() for w in module.log_weights())
        self.weight = weight.exp()
        inner = {node: i for i, (node, _, _) in enumerate(self.tree.nodes)}
        self.inner = inner
        self.children = {node: (left, right) for node, left, right in self.tree.nodes}
        self.top = len(module.sizes) + len(self.tree.nodes) - 1
        self.seen: set[int] = set()  # nodes with a symbol under them
        self.up: dict[int, Tensor] = {}
        self.down: dict[int, Tensor] = {self.top: root.exp().expand(n, -1)}

    def observe(self, t: int, symbols: Tensor) -> None:
        """See the symbols [n] of variable t."""
        path = self._path(t)
        self.seen.update(path)
        for node in path[:-1]:  # stale from the leaf's parent upwards
            self.up.pop(node, None)
        missing = symbols < 0
        value = self.leaf[t].T[symbols.clamp_min(0)]
        self.up[t] = value.masked_fill(missing[:, None], 0)
        kept = set(path)
        self.down = {node: d for node, d in self.down.items() if node in kept}

    def predict(self, t: int) -> Tensor:
        """Log-probabilities [n, V] of variable t: its posterior over input units times their rows."""
        posterior = self.posterior(t)
        return torch.log(posterior @ self.leaf[t].exp())

    def posterior(self, t: int) -> Tensor:
        """The context: weights [n, R] of the input units of variable t given what was seen."""
        path = self._path(t)
        start = next(i for i in reversed(range(len(path))) if path[i] in self.down)
        for above, node in zip(path[start:-1], path[start + 1 :], strict=True):
            left, right = self.children[above]
            sibling, side = (right, 0) if node == left else (left, 1)
            flow = self._through(above, self.down[above], self._value(sibling), side)
            self.down[node] = flow / flow.sum(-1, keepdim=True)
        return self.down[t]

    def _path(self, t: int) -> list[int]:
        path = [t]
        while path[-1] != self.top:
            path.append(self.tree.parent[path[-1]][0])
        return path[::-1]

    def _value(self, node: int) -> Tensor | None:
        """Log-values [n, R] of a node's units, None where nothing under it was seen (then all are 0)."""
        if node not in self.seen:
            return None
        stack = [node]
        while stack:  # children first, without recursion
            here = stack[-1]
            waiting = [c for c in self.children.get(here, ()) if c in self.seen and c not in self.up]
            if here in self.up:
                stack.pop()
            elif waiting:
                stack.extend(waiting)
            else:
                left, right = self.children[here]
                self.up[here] = self._join(here, self.up.get(left), self.up.get(right))
                stack.pop()
        return self.up[node]

    def _join(self, node: int, left: Tensor | None, right: Tensor | None) -> Tensor:
        w = self.weight[self.inner[node]]
        if self.module.product == "cp":
            parts = [log_mix(v, w[side]) for side, v in enumerate((left, right)) if v is not None]
            return parts[0] if len(parts) == 1 else parts[0] + parts[1]
        zero = self.leaf.new_zeros(self.n, self.module.width)
        a, b = (zero if v is None else v for v in (left, right))
        return log_mix((a[:, :, None] + b[:, None, :]).flatten(-2), w)

    def _through(self, node: int, above: Tensor, sibling: Tensor | None, side: int) -> Tensor:
        w = self.weight[self.inner[node]]
        if self.module.product == "cp":
            if sibling is not None:
                beside = log_mix(sibling, w[1 - side])
                above = above * (beside - beside.amax(-1, keepdim=True)).exp()
            return above @ w[side]
        R = self.module.width
        beside = above.new_zeros(self.n, R) if sibling is None else sibling
        beside = (beside - beside.amax(-1, keepdim=True)).exp()
        cube = (above @ w).view(-1, R, R)  # [n, left, right]
        return (cube @ beside[:, :, None])[..., 0] if side == 0 else (beside[:, None, :] @ cube)[:, 0]


@torch.no_grad()
def autoregressive(module: CircuitModule, x: Tensor) -> Tensor:
    """log p(x_t = v | x_<t) [n, T, V], in the order of the variables; a missing x_s conditions nothing."""
    n, T = x.shape
    state = _Filter(module, n)
    out = []
    for t in range(T):
        out.append(state.predict(t))
        state.observe(t, x[:, t])
    return torch.stack(out, 1)


@torch.no_grad()
def contexts(module: CircuitModule, x: Tensor) -> Tensor:
    """The posterior weights of the input units of each variable given those before it [n, T, R]."""
    state = _Filter(module, len(x))
    out = []
    for t in range(x.shape[1]):
        out.append(state.posterior(t))
        state.observe(t, x[:, t])
    return torch.stack(out, 1)


# --- whole tables ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def joint(module: CircuitModule) -> Tensor:
    """p(x) for every x, an array with one axis for each variable; each subtree's table is made once."""
    leaf, weight, root = module.log_weights()
    weight, R = weight.exp(), module.width
    tables = [leaf[t, :, :size].exp().T for t, size in enumerate(module.sizes)]  # [states of the scope, R]
    orders: list[list[int]] = [[t] for t in range(len(module.sizes))]
    if not module.tree.nodes:
        return tables[0] @ root.exp()
    for i, (_, left, right) in enumerate(module.tree.nodes):
        a, b, w = tables[left], tables[right], weight[i]
        orders.append(orders[left] + orders[right])
        last = i == len(module.tree.nodes) - 1
        if module.product == "cp":
            a, b = a @ w[0].T, b @ w[1].T
            if last:  # never [states, R]
                tables.append((a * root.exp()) @ b.T)
            else:
                tables.append((a[:, None] * b[None]).flatten(0, 1))
        elif last:
            tables.append(a @ (root.exp() @ w).view(R, R) @ b.T)
        else:
            tables.append(torch.einsum("ai,bj,kij->abk", a, b, w.view(R, R, R)).flatten(0, 1))
    shaped = tables[-1].reshape([module.sizes[t] for t in orders[-1]])
    return shaped.permute(*np.argsort(orders[-1]).tolist())


# --- from the root down ----------------------------------------------------------------------------------------------


@torch.no_grad()
def descend(module: CircuitModule, x: Tensor, pick: Pick, *, best: bool) -> Tensor:
    """Fill the missing symbols [n, T]: at each sum from the root down ``pick`` chooses one branch by its log-score.

    The scores are weights times the values of the branches: their sums over what lies below for a draw from the
    posterior, their maxima (``best``) for the most probable explanation.
    """
    logs = [w.detach() for w in module.log_weights()]
    values = _best_values(module, x, logs) if best else module.values(x, logs)
    leaf, weight, root = logs
    unit: dict[int, Tensor] = {len(values) - 1: pick(root + values[-1])}
    for i in reversed(range(len(module.tree.nodes))):
        node, left, right = module.tree.nodes[i]
        k, w = unit[node], weight[i]
        if module.product == "cp":
            unit[left], unit[right] = pick(w[0][k] + values[left]), pick(w[1][k] + values[right])
        else:
            pair = pick(w[k] + (values[left][:, :, None] + values[right][:, None, :]).flatten(-2))
            unit[left], unit[right] = pair // module.width, pair % module.width
    symbols = torch.stack([pick(leaf[t][unit[t]]) for t in range(len(module.sizes))], 1)
    return torch.where(x < 0, symbols, x)


def _best_values(module: CircuitModule, x: Tensor, logs: Sequence[Tensor]) -> list[Tensor]:
    leaf, weight, _ = logs
    found = [torch.where((x[:, t] < 0)[:, None], leaf[t].amax(-1), v)
             for t, v in enumerate(module.leaf_values(x, leaf))]  # fmt: skip
    for i, (_, left, right) in enumerate(module.tree.nodes):
        a, b, w = found[left], found[right], weight[i]
        if module.product == "cp":
            found.append((w[0] + a[:, None]).amax(-1) + (w[1] + b[:, None]).amax(-1))
        else:
            found.append((w + (a[:, :, None] + b[:, None, :]).flatten(-2)[:, None]).amax(-1))
    return found


def draw(generator: torch.Generator) -> Pick:
    """A branch at random, by Gumbel noise."""

    def pick(scores: Tensor) -> Tensor:
        noise = torch.rand(scores.shape, generator=generator, dtype=torch.float64).clamp_(1e-300, 1 - 1e-16)
        return (scores - (-noise.log()).log().to(scores.dtype)).argmax(-1)

    return pick


def largest(scores: Tensor) -> Tensor:
    """The best branch."""
    return scores.argmax(-1)


# --- two circuits on one vtree ---------------------------------------------------------------------------------------


@torch.no_grad()
def log_inner_product(p: CircuitModule, q: CircuitModule) -> float:
    """log of the sum over x of p(x) q(x), by the products of every two units of a node."""
    (pl, pw, pr), (ql, qw, qr) = ([w.exp() for w in m.log_weights()] for m in (p, q))
    shift = 0.0
    tables = [pl[t] @ ql[t].T for t in range(len(p.sizes))]  # [R of p, R of q]
    for i, (_, left, right) in enumerate(p.tree.nodes):
        if p.product == "cp":
            table = (pw[i, 0] @ tables[left] @ qw[i, 0].T) * (pw[i, 1] @ tables[right] @ qw[i, 1].T)
        else:
            a, b = pw[i].view(p.width, p.width, p.width), qw[i].view(q.width, q.width, q.width)
            table = torch.einsum("kij,im,jn,lmn->kl", a, tables[left], tables[right], b)
        scale = table.max()
        shift += float(scale.log())
        tables.append(table / scale)
    return shift + float((pr @ tables[-1] @ qr).log())


@torch.no_grad()
def latent_kl(p: CircuitModule, q: CircuitModule) -> float:
    """KL between the two as distributions over symbols and units chosen on the way down: by the chain rule a sum over
    the sum units of p of (chance to visit it) x KL(its weights, those of q)."""
    (pl, pw, pr), (ql, qw, qr) = p.log_weights(), q.log_weights()

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a > -torch.inf, a.exp() * (a - b), 0).sum(-1)

    total = kl(pr, qr)
    visits = {len(p.sizes) + len(p.tree.nodes) - 1: pr.exp()}
    for i in reversed(range(len(p.tree.nodes))):
        node, left, right = p.tree.nodes[i]
        v = visits.pop(node)
        if p.product == "cp":
            total = total + (v @ kl(pw[i], qw[i]).T).sum()
            visits[left], visits[right] = v @ pw[i, 0].exp(), v @ pw[i, 1].exp()
        else:
            total = total + v @ kl(pw[i], qw[i])
            pair = (v @ pw[i].exp()).view(p.width, p.width)
            visits[left], visits[right] = pair.sum(1), pair.sum(0)
    for t in range(len(p.sizes)):
        total = total + visits[t] @ kl(pl[t], ql[t])
    return float(total)
