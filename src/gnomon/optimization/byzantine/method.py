"""Robust training with any solver: the clients' gradients become one inexact gradient, and that is all a solver sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import array_api_compat
import numpy as np

from gnomon.optimization.byzantine import solvers
from gnomon.optimization.byzantine.aggregators import (
    NNM,
    Aggregator,
    Chain,
    TrimmedMean,
    certified_kappa,
    check_liars,
    namespace,
)
from gnomon.optimization.byzantine.attacks import Attack
from gnomon.optimization.byzantine.certificate import certificate, heterogeneity_of, largest_curvature
from gnomon.optimization.byzantine.losses import Inner, TorchLoss, ZeroLoss, as_loss
from gnomon.optimization.byzantine.oracle import RobustOracle

SOLVERS = ("pigs", "aeg", "gd", "nesterov", "heavy_ball")
MARGIN = 1.1  # over the curvature at x_0


class RobustTrainer:
    """Trains a model with clients of whom up to f lie, in few rounds of communication.

    Parameters
    ----------
    solver : {"pigs", "aeg", "gd", "nesterov", "heavy_ball"}
        ``pigs`` and ``aeg`` need a loss at the server that resembles the clients' objective; ``aeg`` is for high accuracy.
    aggregator : Aggregator, optional
        By default ``Chain(NNM(f), TrimmedMean(f))``.
    f : int
        Bound on the liars; more than 2 f clients are needed.
    eta : float or "auto"
        Step: 1 / L for ``gd``, ``nesterov`` and ``heavy_ball``; 1 / Delta for ``pigs``; for ``aeg`` 1 / Lp. "auto" takes
        the constant for 1.1 times the curvature at x_0, by power iteration on the clients' merged Hessian products.
    mu : float, optional
        Strong convexity; needed by ``aeg`` and ``nesterov``, and for the certificate's floor.
    server_loss : optional
        What the server minimises by itself: a callable x -> (value, gradient), (model_fn, X, y), a loss of
        :mod:`gnomon.optimization.byzantine.losses` (``QuadraticLoss`` is solved exactly), or 0 for none.
    max_rounds : int
        The most rounds of communication (those of "auto" not counted: see ``setup_rounds_``).
    tol : float
        Stop when the merged gradient is no longer than this.
    attack : Attack, optional
        Simulation: f liars join the clients.
    worker_momentum : float
        In [0, 1): memory of the average that each client sends (a baseline).
    smoothness, similarity : float, optional
        L and Delta where they are known: spares "auto" its estimates.
    group : ProcessGroup, optional
        One client a rank (torch.distributed); ``fit`` then takes this rank's client alone. ``"world"`` for all ranks.
    random_state : int
        Of the power iteration.

    Attributes
    ----------
    x_ : ndarray (d,) or Tensor
        The trained parameters, of the kind of ``x0``.
    history_ : DataFrame
        A row for each iterate: ``round``, ``objective`` (of the honest clients; NaN where only gradients are known),
        ``grad_norm`` and ``oracle_error`` of the last round (squared distance of the merged gradient from the honest mean,
        where it is known who is honest), ``inner_evaluations`` so far.
    certificate_ : Certificate
        From the points that were visited.
    setup_rounds_ : int
        Rounds spent on estimating constants.
    eta_ : float
        The step that was used.

    Examples
    --------
    >>> import numpy as np
    >>> clients = [lambda x, c=c: x - c for c in np.arange(5.0)[:, None] * np.ones(3)]
    >>> RobustTrainer("gd", TrimmedMean(1), f=1, mu=1.0, tol=1e-9).fit(clients, np.zeros(3)).x_.round(6)
    array([2., 2., 2.])
    """

    def __init__(self, solver: Literal["pigs", "aeg", "gd", "nesterov", "heavy_ball"] = "pigs",
                 aggregator: Aggregator | None = None, f: int = 0, eta: float | Literal["auto"] = "auto",
                 mu: float | None = None, server_loss: Any = None, max_rounds: int = 500, tol: float = 1e-6, *,
                 attack: Attack | None = None, worker_momentum: float = 0.0, smoothness: float | None = None,
                 similarity: float | None = None, group: Any = None, random_state: int = 0):  # fmt: skip
        self.solver, self.aggregator, self.f, self.eta, self.mu = solver, aggregator, f, eta, mu
        self.server_loss, self.max_rounds, self.tol = server_loss, max_rounds, tol
        self.attack, self.worker_momentum, self.group, self.random_state = attack, worker_momentum, group, random_state
        self.smoothness, self.similarity = smoothness, similarity

    def fit(self, clients: Any, x0: Any, *, honest: Sequence[int] | None = None) -> RobustTrainer:
        """Train.

        Parameters
        ----------
        clients : list, or an object with ``gradients(x)`` (and ``values(x)``)
            Callables x (d,) -> gradient (d,), or triples (model_fn, X, y) with model_fn(x, X, y) a scalar torch function.
        x0 : array_like (d,)
            Start; callables get, and ``x_`` is, what this is: an array or a tensor.
        honest : sequence of int, optional
            Which of them are honest, where that is known: the history then speaks of them.

        Raises
        ------
        ValueError
            For an unknown solver; n <= 2f; mu missing or <= 0 where it is needed; ``pigs`` and ``aeg`` without
            ``server_loss``; ragged gradients; more than f clients that send NaN or infinity; x0 not finite.
        TypeError
            For clients or a server loss of another kind.
        RuntimeError
            Where the inner problem cannot be solved.
        """
        import pandas as pd

        self._check()
        start = np.array(x0.detach().cpu() if array_api_compat.is_torch_array(x0) else x0, dtype=float)
        if start.ndim != 1 or len(start) == 0 or not np.isfinite(start).all():
            raise ValueError(f"x0: expected a vector of finite numbers, got shape {start.shape}")
        gather, values, n = _messages(clients, x0, self.group)
        n += self.f if self.attack is not None else 0
        check_liars(n, self.f)
        rule = self.aggregator or (Chain(NNM(self.f), TrimmedMean(self.f)))
        oracle = RobustOracle(gather, rule, self.f, self.attack, self.worker_momentum, honest)
        inner = Inner(ZeroLoss() if self.server_loss is None else as_loss(self.server_loss))
        self.setup_rounds_ = 0
        constant = self._constant(oracle, inner, start)
        self.eta_ = 1 / constant if constant else math.inf

        rows = []
        for x in self._iterates(oracle, inner, start):
            last = oracle.log[-1] if oracle.log else {"squared_norm": math.nan, "squared_error": math.nan}
            objective = float(values(x)[_ids(honest)].mean()) if values else math.nan
            rows.append({"round": oracle.rounds, "objective": objective,
                         "grad_norm": math.sqrt(last["squared_norm"]), "oracle_error": last["squared_error"],
                         "inner_evaluations": inner.evaluations})  # fmt: skip
            if oracle.rounds + (2 if self.solver == "aeg" else 1) > self.max_rounds or self._done:
                break
        self.history_ = pd.DataFrame(rows)
        self.x_ = namespace(x0).asarray(x, dtype=x0.dtype) if array_api_compat.is_torch_array(x0) else x
        self.certificate_ = self._certificate(oracle, rule, n, constant)
        return self

    def _iterates(self, oracle: RobustOracle, inner: Inner, x: np.ndarray) -> Iterator[np.ndarray]:
        self._done = False

        def asked(at: np.ndarray) -> np.ndarray:
            g = oracle(at)
            self._done = self._done or float(np.linalg.norm(g)) <= self.tol
            return g

        mu = self.mu or 0.0
        if self.solver == "gd":
            return solvers.gradient_descent(asked, x, self.eta_)
        if self.solver == "heavy_ball":
            return solvers.heavy_ball(asked, x, self.eta_)
        if self.solver == "nesterov":
            return solvers.nesterov(asked, x, self.eta_, mu)
        if self.solver == "pigs":
            return solvers.pigs(asked, x, self.eta_, inner)
        return solvers.aeg(asked, x, 1 / self.eta_ if self.eta_ < math.inf else mu / 4, mu, inner)

    def _check(self) -> None:
        if self.solver not in SOLVERS:
            raise ValueError(f"solver: got {self.solver!r}; expected one of {', '.join(SOLVERS)}")
        if self.solver in ("pigs", "aeg") and self.server_loss is None:
            raise ValueError(f"server_loss: {self.solver} needs one (0 for none: the standard setting)")
        if self.solver in ("aeg", "nesterov") and (self.mu is None or not self.mu > 0):
            raise ValueError(f"mu: {self.solver} needs a number > 0, got {self.mu}")
        if self.mu is not None and not (math.isfinite(self.mu) and self.mu > 0):
            raise ValueError(f"mu: got {self.mu}; expected a number > 0 or None")
        if self.eta != "auto" and not (isinstance(self.eta, int | float) and self.eta > 0):
            raise ValueError(f"eta: got {self.eta!r}; expected a number > 0 or 'auto'")
        if self.max_rounds < 1:
            raise ValueError(f"max_rounds: got {self.max_rounds}; expected a number >= 1")

    def _constant(self, oracle: RobustOracle, inner: Inner, x: np.ndarray) -> float:
        """L or Delta, by what the solver needs: given, implied by eta, or estimated at x."""
        if self.eta != "auto":
            return 1 / float(self.eta)
        near = self.solver in ("pigs", "aeg") and not isinstance(inner.loss, ZeroLoss)
        if (given := self.similarity if near else self.smoothness) is not None:
            return given
        h = 1e-5 * (1 + float(np.linalg.norm(x)))

        def product(v: np.ndarray) -> np.ndarray:
            self.setup_rounds_ += 2
            ahead, behind = oracle.gather(x + h * v), oracle.gather(x - h * v)
            merged = oracle.merge((np.asarray(ahead) - np.asarray(behind)) / (2 * h), x)
            if near:
                merged = merged - (inner.gradient(x + h * v) - inner.gradient(x - h * v)) / (2 * h)
            return merged

        found = MARGIN * largest_curvature(product, len(x), 50, 1e-3, self.random_state)
        inner.evaluations = 0
        return max(found, 1e-12)

    def _certificate(self, oracle: RobustOracle, rule: Aggregator, n: int, constant: float) -> Any:
        log = [entry for entry in oracle.log if all(math.isfinite(entry[k]) for k in ("dispersion", "squared_norm"))]
        if not log:
            raise ValueError("the run left the range of floating-point numbers before its first round was over")
        G, B = heterogeneity_of([e["dispersion"] for e in log], [e["squared_norm"] for e in log])
        try:
            kappa = certified_kappa(rule, n, self.f)
        except ValueError:  # nothing is proved for this rule
            kappa = math.nan
        known = {"similarity" if self.solver in ("pigs", "aeg") else "smoothness": constant}
        given = {"smoothness": self.smoothness, "similarity": self.similarity}
        return certificate(kappa, G, B, n, self.f, mu=self.mu, **{**{k: v for k, v in given.items() if v}, **known})


def _ids(honest: Sequence[int] | None) -> Any:
    return slice(None) if honest is None else np.asarray(honest)


def _messages(
    clients: Any, x0: Any, group: Any
) -> tuple[Callable[[np.ndarray], Any], Callable[[np.ndarray], Any] | None, int]:
    """How to ask all clients for their gradients, for their losses (None: unknown), and how many there are."""
    if hasattr(clients, "gradients"):
        return clients.gradients, getattr(clients, "values", None), len(clients)
    each, losses = [], []
    for client in clients:
        if isinstance(client, Sequence) and len(client) == 3 and callable(client[0]):
            losses.append(TorchLoss(*client))
            each.append(lambda x, loss=losses[-1]: loss.value_and_grad(x)[1])
        elif callable(client):
            each.append(client)
        else:
            raise TypeError(
                f"clients: got {type(client).__name__}; expected callables x -> gradient, or (model_fn, X, y)"
            )
    if not each:
        raise ValueError("clients: got none")
    tensors = array_api_compat.is_torch_array(x0)

    def local(x: np.ndarray) -> list[np.ndarray]:
        shown = namespace(x0).asarray(x, dtype=x0.dtype) if tensors else x
        given = [shown if not isinstance(c, Sequence) else x for c in clients]
        answers = [ask(at) for ask, at in zip(each, given, strict=True)]
        return [np.asarray(a.detach().cpu() if hasattr(a, "detach") else a, dtype=float) for a in answers]

    values = (lambda x: np.array([loss.value_and_grad(x)[0] for loss in losses])) if len(losses) == len(each) else None
    if group is None:
        return local, values, len(each)
    if len(each) != 1:
        raise ValueError(f"clients: got {len(each)}; with a process group each rank brings one")
    import torch.distributed as dist

    from gnomon.optimization.byzantine.distributed import gathered_array

    ranks = None if group == "world" else group
    return (lambda x: gathered_array(local(x)[0], ranks)), None, dist.get_world_size(ranks)
