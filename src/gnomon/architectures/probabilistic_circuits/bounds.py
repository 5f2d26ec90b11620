"""What no circuit of a given width can do: lower bounds for the output head and for the context, and certificates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from gnomon.architectures.probabilistic_circuits.data import check_symbols
from gnomon.architectures.probabilistic_circuits.trees import Vtree, mutual_information

Matching = Iterable[tuple[int, int]]


def _count(name: str, value: int, least: int = 1) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: got {value!r}; expected an integer of at least {least}")
    return int(value)


# --- the output bottleneck -------------------------------------------------------------------------------------------


def output_bound(n_symbols: int, width: int, *, exact: bool = False) -> float:
    r"""Least NLL in nats of a mixture head on a bijection: V equiprobable contexts, each with its own next symbol.

    A prediction :math:`\sum_k \pi_k B_k` gives symbol v at most :math:`\max_k B_{kv}`, and these sum to at most R. By
    Jensen's inequality the NLL is at least :math:`\log(V / R)` for any encoder (O3). The optimum puts the symbols into R
    groups of sizes :math:`n_k` as equal as can be: :math:`\frac1V \sum_k n_k \log n_k`; the two agree where R divides V.

    Parameters
    ----------
    n_symbols, width : int
        V and R.
    exact : bool
        The optimum instead of the bound.
    """
    V, R = _count("n_symbols", n_symbols), _count("width", width)
    if not exact:
        return max(0.0, math.log(V / R))
    small, larger = divmod(V, R)
    sizes = [small + 1] * larger + [small] * (R - larger)
    return sum(n * math.log(n) for n in sizes if n) / V


class Factorization(NamedTuple):
    """The best prediction of given contexts through a head of width R.

    Attributes
    ----------
    nll : float
        Nats a symbol, of the best start.
    prediction : array [contexts, V]
        Its probabilities.
    every : array
        The NLL of each start.
    """

    nll: float
    prediction: np.ndarray
    every: np.ndarray


def best_mixture_nll(
    P: ArrayLike, width: int, *, weights: ArrayLike | None = None, n_steps: int = 500, restarts: int = 20,
    random_state: int | None = None,
) -> Factorization:  # fmt: skip
    r"""The least NLL with R categorical experts: a nonnegative factorisation of the conditionals, by EM (O4).

    Minimises :math:`-\sum_c \rho_c \sum_v P_{cv} \log (\Pi B)_{cv}` over row-stochastic :math:`\Pi` [contexts, R] and
    B [R, V]. The problem is not convex: the result is an upper bound of the minimum, the best of ``restarts``.

    Parameters
    ----------
    P : array [contexts, V]
        Conditional distributions of the next symbol (rows sum to 1).
    width : int
        R.
    weights : array [contexts], optional
        How frequent each context is (default: equally).
    """
    P, rho, R = _conditionals(P, weights, width)
    generator = torch.Generator().manual_seed(0 if random_state is None else random_state)
    N = torch.from_numpy(P * rho[:, None])
    shapes = ((restarts, len(P), R), (restarts, R, P.shape[1]))
    Pi, B = (torch.randn(s, generator=generator, dtype=torch.float64).softmax(-1) for s in shapes)
    tiny = torch.finfo(torch.float64).tiny
    for _ in range(n_steps):
        ratio = N / (Pi @ B).clamp_min(tiny)
        Pi, B = Pi * (ratio @ B.mT), B * (Pi.mT @ ratio)
        Pi, B = (w / w.sum(-1, keepdim=True).clamp_min(tiny) for w in (Pi, B))
    Q = Pi @ B
    every = -(N * Q.clamp_min(tiny).log()).sum((1, 2))
    best = int(every.argmin())
    return Factorization(float(every[best]), Q[best].numpy(), every.numpy())


def best_logit_nll(
    P: ArrayLike, width: int, *, weights: ArrayLike | None = None, n_steps: int = 1500, restarts: int = 10,
    random_state: int | None = None,
) -> Factorization:  # fmt: skip
    r"""The least NLL with a softmax head on contexts in the simplex: logits :math:`W^T \pi_c + \beta`, by Adam (O4).

    The log-probabilities have rank at most R + 1 over contexts, the probabilities any. Parameters as in
    :func:`best_mixture_nll`; here too the result is an upper bound of the minimum.
    """
    P, rho, R = _conditionals(P, weights, width)
    generator = torch.Generator().manual_seed(0 if random_state is None else random_state)
    N = torch.from_numpy(P * rho[:, None])
    shapes = ((restarts, len(P), R), (restarts, R, P.shape[1]))
    theta, W = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    theta, W = (0.3 * theta).requires_grad_(), (5 * W).requires_grad_()  # contexts near the middle, rows far apart
    beta = torch.zeros(restarts, 1, P.shape[1], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([theta, W, beta], lr=0.3)
    for _ in range(n_steps):
        loss = -(N * (theta.softmax(-1) @ W + beta).log_softmax(-1)).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        logs = (theta.softmax(-1) @ W + beta).log_softmax(-1)
        every = -(N * logs).sum((1, 2))
    best = int(every.argmin())
    return Factorization(float(every[best]), logs[best].exp().numpy(), every.numpy())


def _conditionals(P: ArrayLike, weights: ArrayLike | None, width: int) -> tuple[np.ndarray, np.ndarray, int]:
    table = np.asarray(P, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"P: got shape {table.shape}; expected [contexts, V]")
    if not np.isfinite(table).all() or (table < 0).any() or np.abs(table.sum(1) - 1).max() > 1e-6:
        raise ValueError("P: expected rows of probabilities that sum to 1")
    rho = np.ones(len(table)) if weights is None else np.asarray(weights, dtype=np.float64)
    if rho.shape != (len(table),) or not np.isfinite(rho).all() or (rho < 0).any() or rho.sum() <= 0:
        raise ValueError(f"weights: expected {len(table)} numbers >= 0 with a positive sum")
    return table, rho / rho.sum(), _count("width", width)


# --- the context bottleneck ------------------------------------------------------------------------------------------


def copy_entropy(n_symbols: int, noise: float) -> float:
    """Entropy in nats of a copy given its source: kept, or with probability ``noise`` replaced by any of V symbols."""
    V = _count("n_symbols", n_symbols)
    if not 0 <= noise <= 1:
        raise ValueError(f"noise: got {noise!r}; expected a number in [0, 1]")
    p = np.array([1 - noise + noise / V, *[noise / V] * (V - 1)])
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def context_bound(
    pairs: int | Sequence[int], n_symbols: int, width: int, *, noise: float = 0.0, form: str = "sharp"
) -> float:
    r"""Least KL(p || circuit) in nats where m copied pairs cross the cut of a node with R units (C3).

    Given one side of the cut the circuit's distribution of the other is a mixture of R, so the conditional NLL of the
    m copies is at least :math:`\log(N / R)`, N = V^m, of which m h is their entropy: ``simple`` gives
    :math:`\max(0, m(\log V - h) - \log R)`. ``sharp`` bounds the mass by displacement: with P(e) the probability that
    the copies differ from their sources by e, :math:`S_e = \sum_x q(x + e | x) \le R` and :math:`\sum_e S_e = N`; the
    NLL is at least :math:`-\sum_e P(e) \log(S_e / N)` at :math:`S_e = \min(R, c P(e))`.

    Parameters
    ----------
    pairs : int or sequence of int
        m; or one number for each equiprobable value of an observed cue, then the mean of the bounds.
    n_symbols, width : int
        V and R.
    noise : float
        Probability that a copy is replaced by a uniform symbol (its source included).
    form : {"sharp", "simple"}
    """
    if form not in ("sharp", "simple"):
        raise ValueError(f"form {form!r}: expected 'sharp' or 'simple'")
    if not isinstance(pairs, int | np.integer):
        several = list(pairs)
        if not several:
            raise ValueError("pairs: got none; expected at least one number")
        return float(np.mean([context_bound(m, n_symbols, width, noise=noise, form=form) for m in several]))
    m, V, R = _count("pairs", pairs, 0), _count("n_symbols", n_symbols), _count("width", width)
    entropy = copy_entropy(V, noise)
    if form == "simple":
        return max(0.0, m * (math.log(V) - entropy) - math.log(R))
    N = V**m
    if R >= N:
        return 0.0
    j = np.arange(m + 1)  # so many of the m copies differ from their source
    each = (1 - noise + noise / V) ** (m - j) * (noise / V) ** j
    count = np.array([math.comb(m, int(i)) * (V - 1) ** int(i) for i in j], dtype=np.float64)
    mass = count * each
    for full in range(m + 2):  # the likeliest displacements are full (R), the others in proportion
        rest = mass[full:].sum()
        if rest < 1e-200:
            break
        c = (N - R * count[:full].sum()) / rest
        if c * each[full] <= R:
            break
    S = np.where(j < full, R, 0.0) if rest < 1e-200 else np.where(j < full, R, c * each)
    some = mass > 1e-200
    nll = -(mass[some] * np.log(S[some] / N)).sum()
    return max(0.0, float(nll - m * entropy))


def vtree_bound(tree: Vtree, matchings: Sequence[Matching], n_symbols: int, width: int, *, noise: float = 0.0) -> float:
    """:func:`context_bound` of a circuit on this vtree: the largest over its nodes of the mean over the matchings."""
    cuts = np.array([tree.cuts(m) for m in matchings])  # [matchings, nodes below the root]
    if not cuts.size:
        return 0.0
    return max(
        context_bound([int(m) for m in node], n_symbols, width, noise=noise) for node in np.unique(cuts.T, axis=0)
    )


class Certificate(NamedTuple):
    """What every structured circuit needs.

    Attributes
    ----------
    pairs : int
        Every vtree has a node whose cut at least so many pairs of one matching cross.
    width : int
        V to that power: the units needed at that node to represent the distribution, whatever its noise below 1.
    subset : tuple of int
        A set of variables that attains it.
    by_size : dict of int to int
        The least largest cut over the subsets of each size.
    nll_gap : float
        With ``width`` given: the least KL of a circuit so wide, averaged over the cue.
    proven : bool
        False for ``method="sample"``: subsets that were not looked at may have smaller cuts.
    """

    pairs: int
    width: int
    subset: tuple[int, ...]
    by_size: dict[int, int]
    nll_gap: float
    proven: bool


def vtree_certificate(
    matchings: Sequence[Matching], n_variables: int, n_symbols: int, *, width: int = 1, noise: float = 0.0,
    method: str = "exact", n_samples: int = 20000, random_state: int | None = None,
) -> Certificate:  # fmt: skip
    r"""A lower bound on the width of *every* structured-decomposable circuit for copies along several matchings (C4).

    A cue chooses one of M matchings. Every binary tree over T leaves has a node with T/3 to 2T/3 of them, so that an
    exact representation needs :math:`R \ge V^k`, :math:`k = \min_A \max_j \mathrm{cut}_j(A)` over those subsets.

    Parameters
    ----------
    matchings : sequence of sequences of (int, int)
        Pairs of variables in [0, T); each matching uses a variable at most once.
    n_variables, n_symbols : int
        T and V.
    width, noise : int, float
        For ``nll_gap``: the KL that a circuit of this width keeps on every vtree.
    method : {"exact", "sample"}
        All subsets (T up to 20), or random ones: then the result may be too large and proves nothing.
    """
    T = _count("n_variables", n_variables, 2)
    known = [[(int(a), int(b)) for a, b in m] for m in matchings]
    if not known:
        raise ValueError("matchings: got none; expected at least one")
    for m in known:
        ends = [v for pair in m for v in pair]
        if len(set(ends)) != len(ends) or not all(0 <= v < T for v in ends):
            raise ValueError(f"matchings: {m} uses a variable twice or one outside [0, {T})")
    if method not in ("exact", "sample"):
        raise ValueError(f"method {method!r}: expected 'exact' or 'sample'")
    if method == "exact" and T > 20:
        raise ValueError(f"n_variables: {T} are more than the 20 whose subsets are enumerated; use method='sample'")
    sizes = [s for s in range(1, T) if T <= 3 * s <= 2 * T]
    if not sizes:  # two variables: either leaf is the node
        sizes = [1]
    inside = _subsets(T, sizes, None if method == "exact" else n_samples, random_state)  # [subsets, T]
    cuts = np.stack([sum((inside[:, a] ^ inside[:, b]).astype(int) for a, b in m) if m else np.zeros(len(inside), int)
                     for m in known], 1)  # fmt: skip
    most, size = cuts.max(1), inside.sum(1)
    best = int(most.argmin())
    kinds = np.unique(np.sort(cuts, 1), axis=0)
    gap = min(context_bound([int(m) for m in kind], n_symbols, width, noise=noise) for kind in kinds)
    return Certificate(
        pairs=int(most[best]),
        width=_count("n_symbols", n_symbols) ** int(most[best]),
        subset=tuple(int(v) for v in np.flatnonzero(inside[best])),
        by_size={s: int(most[size == s].min()) for s in sizes if (size == s).any()},
        nll_gap=gap,
        proven=method == "exact",
    )


def _subsets(T: int, sizes: Sequence[int], n_samples: int | None, random_state: int | None) -> np.ndarray:
    if n_samples is None:
        chosen: Iterable[Sequence[int]] = itertools.chain.from_iterable(
            itertools.combinations(range(T), s) for s in sizes
        )
        rows = list(chosen)
        inside = np.zeros((len(rows), T), dtype=bool)
        for i, row in enumerate(rows):
            inside[i, list(row)] = True
        return inside
    rng = np.random.default_rng(random_state)
    order = rng.random((_count("n_samples", n_samples), T)).argsort(1)
    return order < rng.choice(sizes, len(order))[:, None]


# --- bounds from data ------------------------------------------------------------------------------------------------


def information_bound(tree: Vtree, X: ArrayLike, width: int, *, most: int = 2) -> Mapping[str, float | int]:
    r"""Estimated least KL(p || circuit) on a vtree for data: over its nodes, the largest :math:`I_p(A; B) - \log R`.

    For any p and any circuit q with R units at the node between A and B, :math:`KL(p\|q) \ge I_p(A; B) - \log R`
    (the conditional of B given A is a mixture of R, so that :math:`E[-\log q(b|a)] \ge H_p(B) - \log R`), and the same
    for parts of A and B. Up to ``most`` variables on each side are chosen greedily, and their mutual information is
    estimated by plug-in with the Miller-Madow correction: an estimate, unlike the other bounds here.

    Returns
    -------
    dict
        ``bound`` (nats), ``information`` (nats), ``node`` (its id in the vtree, -1 where there is none).
    """
    data = check_symbols(X)
    data = data[(data >= 0).all(1)]
    best: dict[str, float | int] = {"bound": 0.0, "information": 0.0, "node": -1}
    if not len(data):
        return best
    pairwise = mutual_information(data)
    for node, _, _ in tree.nodes[:-1]:
        A = sorted(tree.scopes[node])
        B = sorted(set(tree.variables) - tree.scopes[node])
        information = 0.0
        left: list[int] = []
        right: list[int] = []
        for _ in range(most):
            open_ = [(a, b) for a in A for b in B if a not in left and b not in right]
            if not open_:
                break
            a, b = max(open_, key=lambda ab: pairwise[ab])
            found = _information(data[:, [*left, a]], data[:, [*right, b]])
            if found is None or found <= information:
                break
            information, left, right = found, [*left, a], [*right, b]
        if information > best["information"]:
            best = {"bound": max(0.0, information - math.log(width)), "information": information, "node": node}
    return best


def _information(a: np.ndarray, b: np.ndarray) -> float | None:
    """Mutual information of two tuples of columns, or None where there are too few rows to tell."""
    entropies, cells = [], []
    for part in (a, b, np.concatenate([a, b], 1)):
        counts = np.unique(part, axis=0, return_counts=True)[1]
        p = counts / len(part)
        entropies.append(float(-(p * np.log(p)).sum()) + (len(counts) - 1) / (2 * len(part)))
        cells.append(len(counts))
    return None if cells[-1] > len(a) / 5 else entropies[0] + entropies[1] - entropies[2]
