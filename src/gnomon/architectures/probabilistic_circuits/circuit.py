"""A probabilistic circuit on one vtree, as an estimator: fit it, then ask it anything exactly."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor

from gnomon.architectures.probabilistic_circuits import inference
from gnomon.architectures.probabilistic_circuits.data import MOST, check_alphabets, check_symbols, states
from gnomon.architectures.probabilistic_circuits.learning import fit_module
from gnomon.architectures.probabilistic_circuits.module import CircuitModule
from gnomon.architectures.probabilistic_circuits.trees import Vtree

_ROWS = 2**23  # numbers held at once by the values of one chunk
_QUERY = 2**16  # joint states of a query
_STEP = {"em": 1.0, "adam": 0.1}


class Density(BaseEstimator):  # type: ignore[misc]
    """Fitting and the queries that need log-likelihoods only; circuits and mixtures of circuits share them."""

    sizes_: tuple[int, ...]
    module_: Any

    def fit(
        self,
        X: ArrayLike,
        y: Any = None,
        *,
        optimizer: str = "em",
        n_steps: int = 200,
        batch_size: int | None = None,
        step: float | None = None,
        pseudocount: float = 0.0,
        restarts: int = 1,
        warm_start: bool = False,
        random_state: int | None = None,
        dtype: str = "float64",
    ) -> Self:
        """Maximise the likelihood.

        Parameters
        ----------
        X : array of int [n, T]
            Symbols; -1 is missing (marginalised exactly).
        optimizer : {"em", "adam"}
            Expected flows from one backward pass, or gradient steps on the logits.
        n_steps : int
            Steps; of ``em`` passes over the data unless ``batch_size`` is given.
        batch_size : int, optional
            Rows of each step (default: all).
        step : float, optional
            ``em``: share of the new weights (default 1 on all rows, .05 on batches). ``adam``: learning rate
            (default .1), falling along a half cosine.
        pseudocount : float
            ``em``: added to the flows of every unit, so that unseen symbols keep some probability; 0 is maximum
            likelihood.
        restarts : int
            The best of so many random starts, by the likelihood of X.
        warm_start : bool
            Start from the present weights instead: the vtree, the width, the product and the alphabets stay as fitted.
        random_state : int, optional
            Seed of starts and batches.
        dtype : {"float64", "float32"}
            Of the training; the fitted circuit is always float64.

        Returns
        -------
        self
            With ``module_``, ``sizes_``, ``n_features_in_``, ``loss_curve_`` (mean log-likelihood of each step's batch
            before the step) and ``log_likelihood_`` (of X, a row).
        """
        if optimizer not in _STEP:
            raise ValueError(f"optimizer {optimizer!r}: expected 'em' or 'adam'")
        for name, value in (("n_steps", n_steps), ("restarts", restarts), ("batch_size", batch_size or 1)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}: got {value!r}; expected an integer of at least 1")
        if step is None:
            step = 0.05 if optimizer == "em" and batch_size is not None else _STEP[optimizer]
        if not 0 < step <= (1 if optimizer == "em" else math.inf):
            raise ValueError(f"step: got {step!r}; expected a number in (0, 1] for em, positive for adam")
        if not 0 <= pseudocount < math.inf:
            raise ValueError(f"pseudocount: got {pseudocount!r}; expected a number of at least 0")
        if dtype not in ("float64", "float32"):
            raise ValueError(f"dtype {dtype!r}: expected 'float64' or 'float32'")
        sizes = self._warm_sizes() if warm_start else self._sizes(np.asarray(X))
        rows = torch.from_numpy(check_symbols(X, sizes))
        if not len(rows):
            raise ValueError("X: got no rows; expected at least one")
        generator = torch.Generator().manual_seed(0 if random_state is None else int(random_state))
        best: tuple[float, Any, list[float]] | None = None
        for _ in range(restarts):
            if warm_start:
                module = self._fitted()
            else:
                module = self._module(sizes)
                module.randomize(generator, rows)
            module = module.to(getattr(torch, dtype))
            curve = fit_module(
                module,
                rows,
                optimizer,
                n_steps=n_steps,
                batch_size=batch_size,
                step=step,
                pseudocount=pseudocount,
                generator=generator,
            )
            module = module.double()
            reached = float(_chunked(module, rows).mean())
            if best is None or reached > best[0]:
                best = (reached, module, curve)
        assert best is not None
        self.log_likelihood_, module, self.loss_curve_ = best
        return self._keep(module, sizes)

    def initialize(self, X: ArrayLike | None = None, random_state: int | None = None) -> Self:
        """A random circuit, unfitted: logits of standard deviation 1, leaves from rows of X where given."""
        sizes = self._sizes(None if X is None else np.asarray(X))
        module = self._module(sizes)
        rows = None if X is None else torch.from_numpy(check_symbols(X, sizes))
        module.randomize(torch.Generator().manual_seed(0 if random_state is None else int(random_state)), rows)
        return self._keep(module.double(), sizes)

    def _keep(self, module: Any, sizes: tuple[int, ...]) -> Self:
        self.module_, self.sizes_, self.n_features_in_ = module.requires_grad_(True), sizes, len(sizes)
        self._kept_form = self._form()
        return self

    def _form(self) -> dict[str, str]:
        """The parameters that the weights' shapes and places depend on; alphabets are kept as ``sizes_``."""
        return {k: repr(v) for k, v in self.get_params(deep=False).items() if k != "n_symbols"}

    def _warm_sizes(self) -> tuple[int, ...]:
        """The fitted alphabets, or ValueError where a parameter was changed since."""
        self._fitted()
        if changed := [k for k, v in self._form().items() if self._kept_form[k] != v]:
            raise ValueError(f"warm_start: {', '.join(changed)} changed since the weights were made; fit without it")
        return self.sizes_

    def _sizes(self, X: np.ndarray | None) -> tuple[int, ...]:
        raise NotImplementedError

    def _module(self, sizes: tuple[int, ...]) -> Any:
        raise NotImplementedError

    def _fitted(self) -> Any:
        if not hasattr(self, "module_"):
            raise NotFittedError(f"this {type(self).__name__} has no weights yet: call fit or initialize first")
        return self.module_

    def _rows(self, X: ArrayLike) -> Tensor:
        self._fitted()
        return torch.from_numpy(check_symbols(X, self.sizes_))

    @property
    def n_parameters(self) -> int:
        """Weights, those beyond an alphabet not counted."""
        return sum(int(torch.isfinite(p).sum()) for p in self._fitted().parameters())

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """log p(x) in nats [n]; any marginal where symbols are missing (-1)."""
        return _chunked(self._fitted(), self._rows(X)).numpy()

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Mean log-likelihood of a row, in nats."""
        return float(self.score_samples(X).mean())

    def conditional(self, X: ArrayLike, query: Sequence[int], given: Sequence[int]) -> np.ndarray:
        """p(x_query | x_given) for every row, all other variables marginalised.

        Parameters
        ----------
        X : array of int [n, T]
            Only the columns ``given`` are read; a missing one conditions nothing.
        query, given : sequence of int
            Disjoint variables.

        Returns
        -------
        array [n, V_q1, V_q2, ...]
            NaN where the evidence has probability 0.
        """
        self._fitted()
        T = len(self.sizes_)
        query, given = [int(v) for v in query], [int(v) for v in given]
        for name, several in (("query", query), ("given", given)):
            if len(set(several)) != len(several) or not all(0 <= v < T for v in several):
                raise ValueError(f"{name}: got {several}; expected distinct variables in [0, {T})")
        if not query:
            raise ValueError("query: got none; expected at least one variable")
        if both := sorted(set(query) & set(given)):
            raise ValueError(f"query: variables {both} are given too")
        array = np.asarray(X)
        if array.ndim != 2 or array.shape[1] != T:
            raise ValueError(f"X: got shape {array.shape}; expected [n, {T}]")
        evidence = np.full((len(array), T), -1)
        if given:
            evidence[:, given] = check_symbols(array[:, given], [self.sizes_[v] for v in given])
        asked = [self.sizes_[v] for v in query]
        if math.prod(asked) > _QUERY:
            raise ValueError(f"query: {math.prod(asked)} joint states are more than {_QUERY}; ask for fewer variables")
        table = states(asked)
        full = np.repeat(evidence, len(table), 0)
        full[:, query] = np.tile(table, (len(array), 1))
        logs = torch.from_numpy(self.score_samples(full)).reshape(len(array), -1)
        return logs.softmax(-1).reshape(len(array), *asked).numpy()


class Circuit(Density):
    """A smooth, structured-decomposable probabilistic circuit with categorical leaves.

    Parameters
    ----------
    vtree : Vtree, or nested pairs
        How scopes split, over the variables 0 .. T-1 (see :func:`~gnomon.architectures.vtree`).
    n_symbols : int or sequence of int, optional
        Size of the alphabet, or of each variable's. Default: the largest symbol of the data and one.
    width : int
        R, the units of every node: the nonnegative rank of the circuit's distribution across every cut of its vtree
        is at most R.
    product : {"cp", "tucker"}
        Products of one left and one right mixture, or mixtures of all R x R products (R times the weights).

    Attributes
    ----------
    module_ : torch.nn.Module
        The weights (float64); ``module_(x)`` is differentiable.
    sizes_, n_features_in_, loss_curve_, log_likelihood_
        See :meth:`fit`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0, 0], [1, 1]] * 20)
    >>> pc = Circuit((0, 1), n_symbols=2, width=2).fit(X, random_state=0)
    >>> pc.conditional(X[:2], query=[1], given=[0]).round(2)
    array([[1., 0.],
           [0., 1.]])
    """

    def __init__(
        self, vtree: Any, n_symbols: int | Sequence[int] | None = None, width: int = 16, product: str = "cp"
    ) -> None:
        self.vtree = vtree
        self.n_symbols = n_symbols
        self.width = width
        self.product = product

    def _sizes(self, X: np.ndarray | None) -> tuple[int, ...]:
        tree = self._tree()
        T = len(tree.variables)
        if missing := sorted(set(range(max(tree.variables) + 1)) - set(tree.variables)):
            raise ValueError(f"vtree: variables {missing} are missing; expected all of 0 .. {max(tree.variables)}")
        if X is not None and X.ndim == 2 and X.shape[1] > T:
            raise ValueError(f"vtree: variables {list(range(T, X.shape[1]))} of X are missing")
        if X is not None and X.ndim == 2 and X.shape[1] < T:
            raise ValueError(f"X: got {X.shape[1]} columns; the vtree has {T} variables")
        if not isinstance(self.width, int | np.integer) or self.width < 1:
            raise ValueError(f"width: got {self.width!r}; expected an integer of at least 1")
        if self.product not in ("cp", "tucker"):
            raise ValueError(f"product {self.product!r}: expected 'cp' or 'tucker'")
        if self.n_symbols is None:
            if X is None:
                raise ValueError("n_symbols: needed where there are no data")
            return (int(check_symbols(X).max(initial=0)) + 1,) * T
        return check_alphabets(self.n_symbols, T)

    def _tree(self) -> Vtree:
        return self.vtree if isinstance(self.vtree, Vtree) else Vtree(self.vtree)

    def _module(self, sizes: tuple[int, ...]) -> CircuitModule:
        return CircuitModule(self._tree(), sizes, int(self.width), self.product)

    @classmethod
    def from_weights(
        cls, vtree: Any, leaf: ArrayLike, weight: ArrayLike, root: ArrayLike, n_symbols: Any = None, product: str = "cp"
    ) -> Circuit:
        """A circuit with given weights, in the layout of `CircuitModule`; rows sum to 1 and may hold zeros.

        Parameters
        ----------
        leaf : array [T, R, V]
        weight : array [T-1, 2, R, R], or [T-1, R, R * R] for tucker
            In the order of ``Vtree(...).nodes``.
        root : array [R]
        """
        parts = [torch.as_tensor(np.asarray(w, dtype=np.float64)) for w in (leaf, weight, root)]
        made = cls(vtree, n_symbols or parts[0].shape[-1], parts[0].shape[1], product)
        sizes = made._sizes(None)
        module = made._module(sizes).double()
        for name, w, p in zip(
            ("leaf", "weight", "root"), parts, (module.leaf, module.weight, module.root), strict=True
        ):
            if w.shape != p.shape:
                raise ValueError(f"{name}: got shape {tuple(w.shape)}; expected {tuple(p.shape)}")
            if not torch.isfinite(w).all() or (w < 0).any() or (w.numel() and (w.sum(-1) - 1).abs().max() > 1e-6):
                raise ValueError(f"{name}: expected rows of numbers >= 0 that sum to 1")
        module.set_weights([w.log() for w in parts])
        return made._keep(module, sizes)

    def save(self, path: str | Path) -> None:
        """Write vtree and weights as one safetensors file, whole or not at all."""
        from safetensors.torch import save_file

        module = self._fitted()
        told = {"vtree": self._tree().tree, "n_symbols": self.sizes_, "width": module.width, "product": module.product}
        part = Path(f"{path}.part")
        save_file({k: v.contiguous() for k, v in module.state_dict().items()}, part, {"circuit": json.dumps(told)})
        os.replace(part, path)

    @classmethod
    def load(cls, path: str | Path) -> Circuit:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            When the file holds no circuit.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), "pt") as file:
                told = json.loads((file.metadata() or {})["circuit"])
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            made = cls(Vtree(told["vtree"]), told["n_symbols"], told["width"], told["product"])
            module = made._module(tuple(told["n_symbols"])).double()
            module.load_state_dict(state)
        except (SafetensorError, KeyError, TypeError, RuntimeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} holds no circuit ({error})") from error
        return made._keep(module, tuple(told["n_symbols"]))

    # --- queries ---

    def autoregressive(self, X: ArrayLike) -> np.ndarray:
        """log p(x_t = v | x_<t) [n, T, V] for every symbol v, by one incremental pass.

        O(T R^2) for a linear vtree, O(T R^2 log T) for a balanced one. ``c_t``, the posterior weights of the input
        units of variable t, is what the circuit knows of the past (:meth:`contexts`); its prediction is the mixture
        of their rows by these weights.
        """
        return inference.autoregressive(self._fitted(), self._rows(X)).numpy()

    def contexts(self, X: ArrayLike) -> np.ndarray:
        """The posterior weights [n, T, R] of each variable's input units given the variables before it."""
        return inference.contexts(self._fitted(), self._rows(X)).numpy()

    def sample(self, n_samples: int = 1, *, given: ArrayLike | None = None,
               random_state: int | None = None) -> np.ndarray:  # fmt: skip
        """Independent draws [n_samples, T]; with ``given`` [n, T] (-1 missing) draws of what is missing, one a row."""
        module = self._fitted()
        rows = torch.full((n_samples, len(self.sizes_)), -1) if given is None else self._rows(given)
        generator = torch.Generator().manual_seed(0 if random_state is None else int(random_state))
        return inference.descend(module, rows, inference.draw(generator), best=False).numpy()

    def most_probable(self, X: ArrayLike) -> np.ndarray:
        """Fill what is missing [n, T] with the most probable symbols *together with* the units that explain them.

        This is the exact MAP where the circuit is deterministic (a Chow-Liu tree); elsewhere MAP is NP-hard.
        """
        return inference.descend(self._fitted(), self._rows(X), inference.largest, best=True).numpy()

    def joint(self) -> np.ndarray:
        """p(x) for every x, with one axis for each variable (at most 2^22 states)."""
        self._fitted()
        if (count := math.prod(self.sizes_)) > MOST:
            raise ValueError(f"{count} states are more than the {MOST} that are enumerated; sample instead")
        return inference.joint(self.module_).numpy()

    def leaf_entropies(self) -> np.ndarray:
        """Entropy in nats of each input unit's row [T, R]."""
        log = self._fitted().leaf.detach().log_softmax(-1)
        return torch.where(log > -torch.inf, -log.exp() * log, 0).sum(-1).numpy()

    def log_inner_product(self, other: Circuit) -> float:
        """log of the sum over x of p(x) q(x), for a circuit of the same vtree and product layer: O(T R^3)."""
        return inference.log_inner_product(self._fitted(), self._partner(other))

    def kl_divergence(self, other: Circuit, method: str = "enumerate") -> float:
        """KL(p || q) in nats against a circuit of the same vtree and product layer.

        Parameters
        ----------
        method : {"enumerate", "latent"}
            ``enumerate`` sums over at most 2^22 states. ``latent`` is the KL of symbols and units together, O(T R^2):
            an upper bound (data processing), and exact where both circuits are deterministic over the same supports.
            For other circuits the KL needs the logarithm of a sum at every sum unit: no polynomial algorithm is known.
        """
        partner = self._partner(other, same_width=method == "latent")
        if method == "latent":
            return inference.latent_kl(self._fitted(), partner)
        if method != "enumerate":
            raise ValueError(f"method {method!r}: expected 'enumerate' or 'latent'")
        p, q = self.joint().ravel(), other.joint().ravel()
        return float(np.sum(p[p > 0] * (np.log(p[p > 0]) - np.log(q[p > 0]))))

    def _partner(self, other: Circuit, same_width: bool = False) -> CircuitModule:
        module: CircuitModule = other._fitted()
        mine: CircuitModule = self._fitted()
        if (module.tree, module.sizes, module.product) != (mine.tree, mine.sizes, mine.product):
            raise ValueError("other: expected a circuit of the same vtree, alphabets and product layer")
        if same_width and module.width != mine.width:
            raise ValueError(f"other: got width {module.width}; expected {mine.width}")
        return module


def _chunked(module: Any, rows: Tensor) -> Tensor:
    parts = getattr(module, "parts", [module])
    most = max(1, _ROWS // (2 * parts[0].width * max(1, len(parts[0].sizes))))
    with torch.no_grad():
        return torch.cat([module(rows[i : i + most]) for i in range(0, len(rows), most)]) if len(rows) else (
            torch.zeros(0, dtype=torch.float64))  # fmt: skip
