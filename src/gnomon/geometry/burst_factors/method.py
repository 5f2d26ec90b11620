"""Burst factor analysis: latent variables of the events, and others of the probability that an event is a burst.

    x_t in R^ke, y_t in R^kb,  (x_t, y_t) ~ N(0, [[I, P], [P', I]])
    E_ti ~ Poisson(Delta exp(mu_i + c_i' x_t)),   B_ti | E_ti ~ Binomial(E_ti, sigma(nu_i + d_i' y_t))

Which factor drives which channel is fixed, so x and y are each free up to a rotation, and no mixing of them is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from gnomon.geometry.burst_factors import inference
from gnomon.geometry.burst_factors.channels import Channel, burst_channel, event_channel
from gnomon.geometry.burst_factors.inference import Loaded, Prior, State
from gnomon.geometry.burst_factors.spikes import FALLBACK

Array = NDArray[np.float64]
LIKELIHOODS = ("poisson-binomial", "negbin-betabinomial", "rates", "gaussian")
DRIVES = ("burst", "event", "both")
MIN_BINS, FOLDS, GROUPS = 20, 4, 5
REGRESSION = 10  # Newton steps of a burst channel whose factors are given


def check_counts(E: ArrayLike, B: ArrayLike) -> tuple[Array, Array]:
    """Counts as floats, NaN where either is missing; ValueError names the first bad (t, i)."""
    E, B = np.asarray(E, float), np.asarray(B, float)
    if E.ndim != 2 or E.shape != B.shape:
        raise ValueError(f"E, B: shapes {E.shape} and {B.shape}; expected two arrays (bins, neurons) alike")
    seen = ~(np.isnan(E) | np.isnan(B))
    E, B = np.where(seen, E, np.nan), np.where(seen, B, np.nan)
    for name, x in (("E", E), ("B", B)):
        with np.errstate(invalid="ignore"):
            wrong = seen & ((x < 0) | (x != np.floor(x)) | np.isinf(x))
        if wrong.any():
            t, i = map(int, np.argwhere(wrong)[0])
            raise ValueError(f"{name}: {x[t, i]:g} at (t, i) = ({t}, {i}); expected counts")
    if (more := seen & (B > E)).any():
        t, i = map(int, np.argwhere(more)[0])
        raise ValueError(f"B: {B[t, i]:g} bursts of {E[t, i]:g} events at (t, i) = ({t}, {i}); expected B <= E")
    return E, B


@dataclass(frozen=True)
class HeldOut:
    """Held-out log-likelihoods of bursts given events by bin (nats): of the model, and of a constant probability."""

    model: Array
    constant: Array
    events: Array  # the same difference for the events, nats
    bursts: Array
    total: Array

    @property
    def bits(self) -> float:
        """Bits per burst over the constant probability."""
        return _per(self.model - self.constant, self.bursts)

    @property
    def event_bits(self) -> float:
        """Bits per event over the constant rate."""
        return _per(self.events, self.total)


def _per(nats: Array, count: Array) -> float:
    return float(nats.sum() / np.log(2) / count.sum()) if count.sum() else 0.0


@dataclass(frozen=True)
class Selection:
    """What :meth:`BurstFactorAnalysis.select` found: numbers of factors, and the table by number (DataFrames)."""

    n_event: int
    n_burst: int
    event_bits: Any
    burst_bits: Any


class BurstFactorAnalysis(BaseEstimator):
    """Factors of event counts and factors of burst probability, by variational EM.

    Parameters
    ----------
    n_event, n_burst : int
        Numbers of event factors x and burst factors y.
    likelihood : {"poisson-binomial", "negbin-betabinomial", "rates", "gaussian"}
        "negbin-betabinomial" has a dispersion for each neuron; "rates" takes single spikes and bursts as two Poisson
        counts with factors of their own; "gaussian" takes Anscombe's 2 sqrt(E + 3/8) and
        asin sqrt((B + 3/8) / (E + 3/4)) with diagonal noise (exact EM by maximum likelihood: no ridge).
    coupling : bool
        Whether x and y may be correlated within a bin (P is learned); without it the two channels are fitted apart.
    ridge : float
        Penalty of the squared loadings, >= 0.
    timescale : float or sequence of float, optional
        Bins after which an AR(1) factor's correlation is 1/e; one for all, or one for each event, then burst factor.
        By default bins are independent.
    offset : None or "chance"
        "chance": the burst log odds start from logit(1 - exp(-r theta)), r the event rate that a fit to E alone gives:
        what a pure rate code with short intervals would show.
    burst_drive : {"burst", "event", "both"}
        What drives the burst probability: y; only x, as the events alone tell it (a regression on the rate code, which
        bursts cannot bend); or both x and y (then P = 0, since only one of the two is identified).
    bin_size, theta : float
        Seconds: the unit of the rates exp(mu), and the interval limit that the counts were parsed with (of use to
        "chance" only).
    max_iter, tol : int, float
        EM stops when the bound gains less than ``tol`` relative.
    random_state : int or Generator
        Folds and groups of the held-out scores.

    Attributes
    ----------
    event_loadings_, burst_loadings_ : (N, k)
        C and D in canonical form: orthogonal columns by falling strength, the largest entry of each positive.
    event_intercept_, burst_intercept_ : (N,)
        mu and nu; logs of a rate per second, log odds.
    event_dispersion_, burst_dispersion_ : (N,)
        Of the likelihoods that have one.
    coupling_ : (n_event, n_burst)
        P; its singular values are ``canonical_correlations_``.
    x_, y_ : (T, k)
        Posterior means of the training bins.
    elbo_ : (n_iter,)
        The bound, less the ridge, after each iteration. It never falls.
    kept_ : (N,) bool
        Neurons with both a burst and a single spike; the others have zero burst loadings (those without events zero
        event loadings too).

    Notes
    -----
    After Friedenberger, Cao and Naud (bioRxiv 10.64898/2026.05.11.724260). Time O(iterations T (N k^2 + k^3)), memory
    O(T N + T k^2). NaN marks a neuron missing in a bin. Not a transformer of scikit-learn's protocol: it is fitted on
    two matrices of counts.
    """

    def __init__(self, n_event: int = 2, n_burst: int = 1, *, likelihood: str = "poisson-binomial", coupling: bool = True,
                 ridge: float = 1.0, timescale: float | Sequence[float] | None = None, offset: str | None = None,
                 burst_drive: str = "burst", bin_size: float = 1.0, theta: float = FALLBACK, max_iter: int = 100,
                 tol: float = 1e-5, random_state: Any = 0):  # fmt: skip
        self.n_event = n_event
        self.n_burst = n_burst
        self.likelihood = likelihood
        self.coupling = coupling
        self.ridge = ridge
        self.timescale = timescale
        self.offset = offset
        self.burst_drive = burst_drive
        self.bin_size = bin_size
        self.theta = theta
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    # --- fitting ---

    def fit(self, E: ArrayLike, B: ArrayLike) -> Self:
        """Fit to events ``E`` and bursts ``B``, both (T, N), 0 <= B <= E, NaN where missing.

        Raises
        ------
        ValueError
            Counts that are no counts or B > E, with (t, i); fewer than 20 bins; more factors than bins or neurons.
        """
        E, B = check_counts(E, B)
        self._check(E.shape)
        events, bursts = np.nansum(E, 0), np.nansum(B, 0)
        self._active = (events - bursts if self.likelihood == "rates" else events) > 0
        self.kept_ = (bursts > 0) & (bursts < events)
        if (quiet := np.flatnonzero(~self._active | (bursts == 0))).size:
            warnings.warn(f"neurons without events or bursts, kept with zero loadings: {quiet.tolist()}", UserWarning,
                          stacklevel=2)  # fmt: skip
        self.baseline_ = np.log((bursts + 0.5 * ~self.kept_) / (events - bursts + 0.5 * ~self.kept_))
        self._chance = None
        if self.offset == "chance":
            alone = {"offset": None, "n_burst": 0, "burst_drive": "burst", "timescale": None}
            self._chance = type(self)(**{**self.get_params(), **alone})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                self._chance.fit(E, B)
        parts = self._parts(E, B)
        if self.burst_drive == "event":
            self._fit_parts(parts, [[0]])
        else:
            self._fit_parts(parts, [[0, 1]] if self.coupling or self.burst_drive == "both" else [[0], [1]])
        return self

    def _check(self, shape: tuple[int, ...]) -> None:
        T, N = shape
        for name in ("n_event", "n_burst"):
            k = getattr(self, name)
            if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
                raise ValueError(f"{name}: got {k!r}; expected an integer >= 0")
            if k > min(T, N):
                raise ValueError(f"{name}: got {k}; expected at most min(bins, neurons) = {min(T, N)}")
        if T < MIN_BINS:
            raise ValueError(f"E: {T} bins; expected at least {MIN_BINS}")
        for name, known in (("likelihood", LIKELIHOODS), ("burst_drive", DRIVES), ("offset", (None, "chance"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; expected one of {', '.join(map(repr, known))}")
        for name, least in (("ridge", 0), ("tol", 0), ("max_iter", 1)):
            if not least <= getattr(self, name) < np.inf:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; expected a finite number >= {least}")
        for name in ("bin_size", "theta"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; expected a positive number of seconds")
        if self.offset and self.likelihood != "poisson-binomial" and self.likelihood != "negbin-betabinomial":
            raise ValueError(f"offset: 'chance' is a log odds; likelihood {self.likelihood!r} has none")

    def _phi(self) -> Array | None:
        if self.timescale is None:
            return None
        k = self.n_event + self.n_burst
        tau = np.asarray(self.timescale, float)
        if tau.shape not in ((), (k,)) or not (np.isfinite(tau) & (tau > 0)).all():
            raise ValueError(f"timescale: got {self.timescale!r}; expected a positive number of bins, or {k} of them")
        return np.exp(-1 / np.broadcast_to(tau, (k,)))

    @property
    def _columns(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        x, y = np.arange(self.n_event), self.n_event + np.arange(self.n_burst)
        return x, {"burst": y, "event": x, "both": np.r_[x, y]}[self.burst_drive]

    def _channels(self, E: Array, B: Array) -> list[Channel]:
        """The channels over the neurons that say something in them."""
        a, b = self._active, self.kept_
        return [event_channel(self.likelihood, E[:, a], B[:, a], self.bin_size),
                burst_channel(self.likelihood, E[:, b], B[:, b], self.bin_size)]  # fmt: skip

    def _offset(self, E: Array, B: Array) -> Array | None:
        """logit(1 - exp(-r theta)) of the kept neurons."""
        if self._chance is None:
            return None
        x, _ = self._chance.transform(E, B)
        rate = np.exp(self._chance.event_intercept_ + x @ self._chance.event_loadings_.T)[:, self.kept_]
        return np.asarray(np.log(np.expm1(np.maximum(rate * self.theta, 1e-12))))  # logit(1 - e^-u) = log(e^u - 1)

    def _parts(self, E: Array, B: Array) -> list[Loaded]:
        channels, offset = self._channels(E, B), self._offset(E, B)
        starts = [c.start() for c in channels]
        self.event_baseline_ = np.full(E.shape[1], -np.inf)
        self.event_baseline_[self._active] = starts[0]
        if offset is not None:
            starts[1] = starts[1] - offset.mean(0)
        zero = [np.zeros((len(s), len(c))) for s, c in zip(starts, self._columns, strict=True)]
        return [Loaded(channels[0], self._columns[0], starts[0], zero[0]),
                Loaded(channels[1], self._columns[1], starts[1], zero[1], offset)]  # fmt: skip

    def _fit_parts(self, parts: list[Loaded], together: list[list[int]]) -> None:
        k, blocks = self.n_event + self.n_burst, (self.n_event, self.n_burst)
        T = len(parts[0].channel.count)
        prior = Prior(np.eye(k), self._phi())
        ridge = 0.0 if self.likelihood == "gaussian" else self.ridge
        coupling = self.coupling and self.burst_drive == "burst"
        m, traces = np.zeros((T, k)), []
        for group in together:
            chosen = [parts[g] for g in group]
            own = _initialised(chosen, prior, blocks)
            fitted, prior, q, trace = inference.fit(own, prior, _begin(own, prior, T, k), blocks=blocks,
                                                    coupling=coupling, ridge=ridge, max_iter=self.max_iter,
                                                    tol=self.tol)  # fmt: skip
            for g, part in zip(group, fitted, strict=True):
                parts[g] = part
            used = np.unique(np.concatenate([parts[g].columns for g in group])).astype(int)
            m[:, used] = q.m[:, used]
            traces.append(trace)
        if self.burst_drive == "event":  # a regression on the x that the events alone give
            parts[1] = replace(parts[1], step=np.full(len(parts[1].intercept), np.log(2.0)))
            for _ in range(REGRESSION):
                parts[1] = inference.m_step(parts[1], q, ridge)
        longest = max(map(len, traces))
        self.elbo_ = sum(np.array(t + t[-1:] * (longest - len(t))) for t in traces)
        self.n_iter_ = longest
        self._keep(parts, prior, m)

    def _keep(self, parts: list[Loaded], prior: Prior, m: Array) -> None:
        """Parameters of all neurons, in canonical form."""
        N, (cx, cy) = len(self._active), self._columns
        rotation = np.eye(self.n_event + self.n_burst)
        x, y = np.arange(self.n_event), self.n_event + np.arange(self.n_burst)
        rotation[np.ix_(x, x)] = self._canonical(parts[0].loadings, x)
        if self.burst_drive != "event":
            rotation[np.ix_(y, y)] = self._canonical(parts[1].loadings[:, -len(y) :] if len(y) else np.zeros((0, 0)), y)
        turned = [p.loadings @ rotation[np.ix_(p.columns, p.columns)] for p in parts]
        self.event_loadings_, self.burst_loadings_ = np.zeros((N, len(cx))), np.zeros((N, len(cy)))
        self.event_loadings_[self._active], self.burst_loadings_[self.kept_] = turned
        self.event_intercept_, self.burst_intercept_ = np.full(N, -np.inf), self.baseline_.copy()
        self.event_intercept_[self._active], self.burst_intercept_[self.kept_] = parts[0].intercept, parts[1].intercept
        self.event_dispersion_, self.burst_dispersion_ = np.full(N, np.nan), np.full(N, np.nan)
        if parts[0].channel.dispersed:
            self.event_dispersion_[self._active] = parts[0].channel.dispersion
            self.burst_dispersion_[self.kept_] = parts[1].channel.dispersion
        covariance = rotation.T @ prior.covariance @ rotation
        self.coupling_ = covariance[: self.n_event, self.n_event :]
        m = m @ rotation
        self.x_, self.y_ = m[:, : self.n_event], m[:, self.n_event :]

    @property
    def canonical_correlations_(self) -> Array:
        """Singular values of P: how much the burst code shares with the rate code."""
        check_is_fitted(self, "coupling_")
        return np.asarray(np.linalg.svd(self.coupling_, compute_uv=False))

    def _canonical(self, L: Array, block: NDArray[np.intp]) -> Array:
        """The rotation that makes the columns of L orthogonal; signs only where time scales tell factors apart."""
        k = len(block)
        phi = self._phi()
        if k == 0 or not len(L):
            return np.eye(k)
        V = np.eye(k) if phi is not None and np.ptp(phi[block]) > 0 else np.linalg.svd(L, full_matrices=False)[2].T
        if V.shape[1] < k:  # fewer neurons that say something than factors
            V = np.linalg.svd(L, full_matrices=True)[2].T
        turned = L @ V
        largest = turned[np.abs(turned).argmax(0), np.arange(k)]
        return np.asarray(V * np.where(largest < 0, -1.0, 1.0))

    # --- using ---

    def _model(self, E: Array, B: Array) -> tuple[list[Loaded], Prior]:
        """The fitted model on these counts."""
        channels, offset = self._channels(E, B), self._offset(E, B)
        rows = (self._active, self.kept_)
        values = ((self.event_intercept_, self.event_loadings_, self.event_dispersion_),
                  (self.burst_intercept_, self.burst_loadings_, self.burst_dispersion_))  # fmt: skip
        parts = []
        for channel, keep, columns, (b, L, dispersion), o in zip(channels, rows, self._columns, values, (None, offset),
                                                                 strict=True):  # fmt: skip
            if channel.dispersed:
                channel = replace(channel, dispersion=dispersion[keep])
            parts.append(Loaded(channel, columns, b[keep], L[keep], o))
        P = self.coupling_
        covariance = np.block([[np.eye(self.n_event), P], [P.T, np.eye(self.n_burst)]])
        return parts, Prior(covariance, self._phi())

    def _posterior(self, E: Array, B: Array, tol: float = 1e-12) -> tuple[list[Loaded], Prior, State]:
        parts, prior = self._model(E, B)
        telling = parts[:1] if self.burst_drive == "event" else parts
        q = _begin(telling, prior, len(E), self.n_event + self.n_burst)
        return parts, prior, inference.e_step(telling, prior, q, 50, tol)

    def _checked(self, E: ArrayLike, B: ArrayLike) -> tuple[Array, Array]:
        check_is_fitted(self, "coupling_")
        E, B = check_counts(E, B)
        if E.shape[1] != len(self._active):
            raise ValueError(f"E: {E.shape[1]} neurons; fitted on {len(self._active)}")
        return E, B

    def transform(self, E: ArrayLike, B: ArrayLike) -> tuple[Array, Array]:
        """Posterior means (x, y) of new bins under the fitted loadings."""
        q = self._posterior(*self._checked(E, B))[2]
        return q.m[:, : self.n_event], q.m[:, self.n_event :]

    def fit_transform(self, E: ArrayLike, B: ArrayLike) -> tuple[Array, Array]:
        """Fit, and the posterior means (x, y) of the same bins."""
        return self.fit(E, B).transform(E, B)

    def elbo(self, E: ArrayLike, B: ArrayLike) -> float:
        """Lower bound of the log-likelihood of these bins, nats (of "gaussian" the log-likelihood itself)."""
        return inference.bound(*self._posterior(*self._checked(E, B)))

    def score(self, E: ArrayLike, B: ArrayLike) -> float:
        """Bits per burst over each neuron's constant burst probability, bursts predicted from the other neurons.

        A fifth of the neurons at a time is left out of the inference of x and y, and predicted given its own events.
        Give bins that the fit has not seen.
        """
        return self.held_out(E, B).bits

    def held_out(self, E: ArrayLike, B: ArrayLike) -> HeldOut:
        """The log-likelihoods behind :meth:`score`, by bin."""
        E, B = self._checked(E, B)
        bursts, total = np.nansum(B[:, self.kept_], 1), np.nansum(E[:, self._active], 1)
        model, constant, events = np.zeros(len(E)), np.zeros(len(E)), np.zeros(len(E))
        order = np.random.default_rng(self.random_state).permutation(np.flatnonzero(self._active))
        base = self.baseline_
        for group in np.array_split(order, min(GROUPS, len(order))):
            left = E.copy()
            left[:, group] = np.nan
            q = self._posterior(left, B, 1e-8)[2]
            member = np.isin(np.arange(E.shape[1]), group)
            parts = self._model(E, B)[0]
            a, v = parts[0].predictor(q.m, q.V)
            of = member[self._active]
            events += _event_gain(parts[0].channel.at(columns=of), a[:, of], v[:, of],
                                  self.event_baseline_[self._active][of])  # fmt: skip
            of = member[self.kept_]
            channel, a, v = self._burst_odds(parts, q, E, B)
            constant += _binomial(B[:, self.kept_][:, of], E[:, self.kept_][:, of], base[self.kept_][of])
            model += channel.at(columns=of).predictive(a[:, of], v[:, of]).sum(1)  # type: ignore[attr-defined]
        return HeldOut(model, constant, events, bursts, total)

    def _burst_odds(self, parts: list[Loaded], q: State, E: Array, B: Array) -> tuple[Channel, Array, Array]:
        """Mean and variance of the log odds of a burst given an event, and the binomial channel that they enter."""
        burst = parts[1]
        a, v = burst.predictor(q.m, q.V)
        if self.likelihood == "gaussian":
            p = np.clip(np.sin(np.clip(a, 0, np.pi / 2)) ** 2, 1e-6, 1 - 1e-6)
            a, v = np.log(p / (1 - p)), np.zeros_like(v)
        elif self.likelihood == "rates":  # p = bursts / (bursts + singles)
            inner = self.kept_[self._active]
            L = np.zeros((inner.sum(), self.n_event + self.n_burst))
            L[:, parts[1].columns] += burst.loadings
            L[:, parts[0].columns] -= parts[0].loadings[inner]
            a = q.m @ L.T + burst.intercept - parts[0].intercept[inner]
            v = np.einsum("ni,tij,nj->tn", L, q.V, L)
        else:
            return burst.channel, a, v
        kept = self.kept_
        return burst_channel("poisson-binomial", E[:, kept], B[:, kept], 1.0), a, v

    def sample(self, T: int, random_state: Any = None) -> tuple[Array, Array]:
        """Counts (E, B), each (T, N), drawn from the fitted model ("gaussian" has no counts)."""
        check_is_fitted(self, "coupling_")
        if self.likelihood == "gaussian":
            raise ValueError("likelihood: 'gaussian' is a model of transformed counts; it cannot draw counts")
        if self._chance is not None:
            raise ValueError("offset: 'chance' depends on given events; drawing needs offset=None")
        rng = np.random.default_rng(self.random_state if random_state is None else random_state)
        z = self._draw_factors(T, rng)
        cx, cy = self._columns
        a = np.exp(self.event_intercept_ + z[:, cx] @ self.event_loadings_.T) * self.bin_size
        odds = self.burst_intercept_ + z[:, cy] @ self.burst_loadings_.T
        if self.likelihood == "rates":
            bursts = rng.poisson(np.where(self.kept_, self.bin_size * np.exp(odds), 0))
            return (rng.poisson(a) + bursts).astype(float), bursts.astype(float)
        p = np.where(self.kept_, expit(odds), np.exp(self.baseline_) / (1 + np.exp(self.baseline_)))
        if self.likelihood == "negbin-betabinomial":
            r, s = np.nan_to_num(self.event_dispersion_, nan=1.0), np.nan_to_num(self.burst_dispersion_, nan=1e6)
            a, p = a * rng.gamma(r, 1 / r, a.shape), rng.beta(np.maximum(s * p, 1e-9), np.maximum(s * (1 - p), 1e-9))
        E = rng.poisson(a)
        return E.astype(float), rng.binomial(E, p).astype(float)

    def _draw_factors(self, T: int, rng: np.random.Generator) -> Array:
        P = self.coupling_
        root = np.linalg.cholesky(np.block([[np.eye(self.n_event), P], [P.T, np.eye(self.n_burst)]]))
        noise, phi = rng.normal(size=(T, len(root))) @ root.T, self._phi()
        if phi is None:
            return noise
        z = noise.copy()
        for t in range(1, T):
            z[t] = phi * z[t - 1] + np.sqrt(1 - phi**2) * noise[t]
        return z

    # --- choosing the numbers of factors ---

    def cross_validate(self, E: ArrayLike, B: ArrayLike, folds: int = FOLDS) -> HeldOut:
        """Co-smoothing: fit on the other folds of bins, score each fold; by bin in the order given."""
        E, B = check_counts(E, B)
        T = len(E)
        found = [np.zeros(T) for _ in range(5)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for held in self._folds(T, folds):
                train = np.setdiff1d(np.arange(T), held)
                one = type(self)(**self.get_params()).fit(E[train], B[train]).held_out(E[held], B[held])
                for whole, part in zip(
                    found, (one.model, one.constant, one.events, one.bursts, one.total), strict=True
                ):
                    whole[held] = part
        return HeldOut(*found)

    def _folds(self, T: int, folds: int) -> list[NDArray[np.intp]]:
        """Random bins; of a time series stretches."""
        order = np.arange(T)
        if self.timescale is None:
            order = np.random.default_rng(self.random_state).permutation(T)
        return [np.sort(part) for part in np.array_split(order, folds)]

    def select(self, E: ArrayLike, B: ArrayLike, n_event: Iterable[int] = range(5), n_burst: Iterable[int] = range(4),
               folds: int = FOLDS) -> Selection:  # fmt: skip
        """Numbers of factors by co-smoothing and the one-standard-error rule; sets ``n_event`` and ``n_burst``.

        First the event factors, by bits per event with no burst factor; then the burst factors, by bits per burst. The
        standard error is that of the paired difference to the best, over bins.
        """
        chosen, tables = {"n_event": 0, "n_burst": 0}, []
        for name, numbers in (("n_event", n_event), ("n_burst", n_burst)):
            found = {}
            for k in sorted(numbers):
                trial = type(self)(**{**self.get_params(), **chosen, name: k})
                held = trial.cross_validate(E, B, folds)
                gain, per = (
                    (held.events, held.total) if name == "n_event" else (held.model - held.constant, held.bursts)
                )
                found[k] = gain / np.log(2) / max(float(per.mean()), 1e-12)
            chosen[name], table = one_standard_error(found)
            tables.append(table)
        self.set_params(**chosen)
        return Selection(chosen["n_event"], chosen["n_burst"], *tables)


def one_standard_error(found: dict[int, Array]) -> tuple[int, Any]:
    """The smallest number whose mean is within one standard error of the best, and the table (DataFrame).

    The standard error is that of the bin-by-bin difference to the best one.
    """
    import pandas as pd

    best = max(found, key=lambda k: found[k].mean())
    rows = []
    for k, gain in found.items():
        behind = found[best] - gain
        rows.append({"factors": k, "bits": gain.mean(), "behind": behind.mean(),
                     "standard_error": behind.std(ddof=1) / np.sqrt(len(behind))})  # fmt: skip
    table = pd.DataFrame(rows)
    within = table["behind"] <= table["standard_error"]
    return int(table["factors"][within].min()), table


def _binomial(k: Array, n: Array, odds: Array) -> Array:
    """log p(k | n, sigma(odds)) by bin."""
    a = np.broadcast_to(odds, k.shape).copy()
    return np.asarray(burst_channel("poisson-binomial", n, k, 1.0).moments(a, np.zeros(k.shape))[0].sum(1))


def _event_gain(channel: Channel, a: Array, v: Array, constant: Array) -> Array:
    """Expected log-likelihood of a group's events above that of its constant rate, by bin."""
    flat = np.broadcast_to(constant, a.shape).copy()
    return np.asarray((channel.moments(a, v)[0] - channel.moments(flat, np.zeros_like(flat))[0]).sum(1))


# --- where EM starts -------------------------------------------------------------------------------------------------


def _begin(parts: list[Loaded], prior: Prior, T: int, k: int) -> State:
    return inference.start_state(parts, prior, np.zeros((T, k)))


def _initialised(parts: list[Loaded], prior: Prior, blocks: tuple[int, int]) -> list[Loaded]:
    """Loadings by the leading singular vectors of the Pearson residuals, less the variance that noise has.

    A channel driven by the factors of another one too starts from zero on those.
    """
    started = []
    taken: set[int] = set()
    for part in parts:
        own = np.array([j for j, c in enumerate(part.columns) if int(c) not in taken], int)
        L = part.loadings.copy()
        if len(own) and len(L):
            a = np.broadcast_to(part.intercept, part.channel.count.shape) + (0 if part.offset is None else part.offset)
            _, slope, curvature = part.channel.moments(np.array(a), np.zeros(a.shape))
            scale = np.sqrt(np.maximum(curvature, 1e-12))
            residual = np.where(curvature > 1e-12, slope / scale, 0.0)
            _, s, Vt = np.linalg.svd(residual, full_matrices=False)
            k = min(len(own), len(s))
            strength = np.sqrt(np.maximum(s[:k] ** 2 / len(residual) - 1, 0.05))
            weight = np.sqrt(np.maximum((curvature).mean(0), 1e-6))
            L[:, own[:k]] = Vt[:k].T * strength / weight[:, None]
        started.append(replace(part, loadings=L))
        taken |= set(map(int, part.columns))
    return started
