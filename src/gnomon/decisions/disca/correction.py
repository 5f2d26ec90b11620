r"""The correction itself: how far a base model's gap moves when personas disagree. Pure, on arrays.

For a base gap :math:`d_0` and persona gaps :math:`d_1 .. d_n` with standard deviation s, the shift :math:`\epsilon = z s`
has the gains :math:`g_i = (|d_0 - d_i| - |d_0 + \epsilon - d_i|)/s` for the personas and :math:`g_0 = -|\epsilon|/s` for the
base. With the value function v of prospect theory,

.. math:: U = (1 - \lambda) \frac1n \sum_i v(g_i) + \lambda v(g_0), \qquad
          D = E_w[\epsilon], \quad w(\epsilon) \propto \varphi(z) e^{U / \eta},

and the gap becomes :math:`d_0 + \mathrm{clip}(r D, \pm c s)` with the reliability r of D over personas left out in turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

POINTS = 401  # of the grid on [-3, 3] standard deviations
REACH = 3.0
CONSENSUS = 1e-9  # a spread below is none: the base model is left alone
CHUNK = 4096  # questions at a time in the reference: 4096 x 4 x 401 numbers are 53 MB
TOLERANCE = 0.25  # of the spread: what two passes of sampling may differ by
ESTIMATORS = ("quadrature", "importance")
RELIABILITIES = ("jackknife", "passes", "both", "none")

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Loss:
    """The value function and its weights.

    Parameters
    ----------
    lam : float
        Weight of the base model's own loss, in [0, 1].
    kappa : float
        Loss aversion, >= 1.
    eta : float
        Temperature of the weights, > 0.
    power : float
        Exponent of the value function, in (0, 1].

    Raises
    ------
    ValueError
        For a value out of its range.
    """

    lam: float = 0.3
    kappa: float = 2.25
    eta: float = 0.5
    power: float = 0.88

    def __post_init__(self) -> None:
        checks = (
            ("lam", 0 <= self.lam <= 1, "a number in [0, 1]"),
            ("kappa", self.kappa >= 1, "a number >= 1 (losses weigh at least as much as gains)"),
            ("eta", self.eta > 0, "a number > 0"),
            ("power", 0 < self.power <= 1, "a number in (0, 1]"),
        )
        for name, good, expected in checks:
            if not good or not (math.isfinite(getattr(self, name)) or name == "eta"):
                raise ValueError(f"{name}: got {getattr(self, name)!r}; expected {expected}")


class Correction(NamedTuple):
    """What became of each question; every field has the questions' shape.

    Attributes
    ----------
    gap : ndarray
        The corrected gap d_0 + shift.
    shift : ndarray
        What was added, after shrinkage and bound.
    raw : ndarray
        D before both.
    reliability : ndarray
        In [0, 1].
    spread : ndarray
        The personas' standard deviation (n - 1).
    bounded : ndarray of bool
        Where the bound was at work.
    """

    gap: Array
    shift: Array
    raw: Array
    reliability: Array
    spread: Array
    bounded: np.ndarray[Any, np.dtype[np.bool_]]


def value(x: ArrayLike, kappa: float = 2.25, power: float = 0.88) -> Array:
    """The value function of prospect theory: x^power for gains, -kappa (-x)^power for losses."""
    x = np.asarray(x, float)
    return np.where(x >= 0, 1.0, -kappa) * np.abs(x) ** power


def checked(d0: ArrayLike, gaps: ArrayLike) -> tuple[Array, Array]:
    """Base gaps (...,) and persona gaps (..., n) as arrays of float64.

    Raises
    ------
    ValueError
        For fewer than two personas, shapes that do not fit, NaN and infinity.
    """
    base, panel = np.asarray(d0, np.float64), np.asarray(gaps, np.float64)
    if panel.ndim < 1 or panel.shape[-1] < 2:
        raise ValueError(f"persona_gaps: got shape {panel.shape}; expected at least 2 personas on the last axis")
    if panel.shape[:-1] != base.shape:
        raise ValueError(f"persona_gaps: got shape {panel.shape}; expected {base.shape} and the personas behind")
    for name, array in (("d0", base), ("persona_gaps", panel)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: holds NaN or infinity; expected finite gaps")
    return base, panel


def reference_shift(u: Array, z: Array, weight: Array, loss: Loss) -> Array:
    """E_w[z] for standardised personas u (N, n) over nodes z (N or 1, m): the equation, in numpy."""
    gains = np.abs(u)[:, :, None] - np.abs(z[:, None, :] - u[:, :, None])
    of_panel = value(gains, loss.kappa, loss.power).mean(1)
    U = (1 - loss.lam) * of_panel + loss.lam * value(-np.abs(z), loss.kappa, loss.power)
    U = U / loss.eta
    w = weight * np.exp(U - U.max(1, keepdims=True))
    return (w * z).sum(1) / w.sum(1)  # type: ignore[no-any-return]


def grid() -> tuple[Array, Array]:
    """Nodes on [-3, 3] and their normal density."""
    z = np.linspace(-REACH, REACH, POINTS)
    return z, np.exp(-0.5 * z * z)


def _spread(panel: Array) -> Array:
    return panel.std(-1, ddof=1)  # type: ignore[no-any-return]


def _standard(base: Array, panel: Array, spread: Array) -> Array:
    """(d_i - d_0) / s, 0 where there is consensus."""
    safe = np.where(spread < CONSENSUS, 1.0, spread)
    return np.where((spread < CONSENSUS)[..., None], 0.0, (panel - base[..., None]) / safe[..., None])


def _shifts(base: Array, panel: Array, spread: Array, loss: Loss, backend: str) -> Array:
    """D (N,) by quadrature for base (N,), panel (N, n)."""
    u = _standard(base, panel, spread)
    z, weight = grid()
    if backend == "numba":
        from gnomon.decisions.disca.fast import shifts

        found = shifts(u, z, weight, loss.lam, loss.kappa, loss.eta, loss.power)
    else:
        parts = [reference_shift(u[i : i + CHUNK], z[None], weight[None], loss) for i in range(0, len(u), CHUNK)]
        found = np.concatenate(parts) if parts else np.zeros(0)
    return np.where(spread < CONSENSUS, 0.0, spread * found)


def _passes(base: Array, panel: Array, spread: Array, loss: Loss, draws: int, rng: np.random.Generator) -> Array:
    """D (2, N) by two independent passes of self-normalised draws of the normal cut to [-3, 3]."""
    from scipy.special import ndtr, ndtri

    u = _standard(base, panel, spread)
    found = np.empty((2, len(u)))
    step = max(1, CHUNK * POINTS // draws)
    for one in range(2):
        for i in range(0, len(u), step):
            part = u[i : i + step]
            z = ndtri(rng.uniform(ndtr(-REACH), ndtr(REACH), size=(len(part), draws)))
            found[one, i : i + step] = reference_shift(part, z, np.ones_like(z), loss)
    return np.where(spread < CONSENSUS, 0.0, spread * found)


def _jackknife(
    base: Array, panel: Array, spread: Array, raw: Array, loss: Loss, backend: str, own_spreads: bool
) -> Array:
    """D^2 / (D^2 + sd_J^2): 1 where no persona matters, towards 0 where leaving one out changes the answer.

    Every panel without one persona has a spread of its own, unless that is a fixed step or the panel is one persona.
    """
    n = panel.shape[1]
    found = np.empty((n, len(base)))
    for i in range(n):
        left = np.delete(panel, i, axis=1)
        found[i] = _shifts(base, left, _spread(left) if own_spreads and n > 2 else spread, loss, backend)
    variance = (n - 1) / n * ((found - found.mean(0)) ** 2).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(raw == 0, 0.0, raw**2 / (raw**2 + variance))


def correct(
    d0: ArrayLike, persona_gaps: ArrayLike, *, lam: float = 0.3, kappa: float = 2.25, eta: float = 0.5, power: float = 0.88,
    bound: float = 1.0, reliability: str = "jackknife", estimator: str = "quadrature", draws: int = 128,
    magnitude: float | None = None, backend: str = "numba", random_state: int | np.random.Generator | None = 0,
) -> Correction:  # fmt: skip
    """Correct base gaps by the disagreement of personas.

    Parameters
    ----------
    d0 : array_like (...,)
        Gaps log p(A) - log p(B) of the base model, in nats.
    persona_gaps : array_like (..., n), n >= 2
        The same under each persona.
    lam, kappa, eta, power : float
        See :class:`Loss`.
    bound : float
        Largest shift in standard deviations of the personas, > 0; ``inf`` for none.
    reliability : {"jackknife", "passes", "both", "none"}
        What D is shrunk by: the jackknife over personas, the agreement of two passes of sampling (importance only), both,
        or nothing.
    estimator : {"quadrature", "importance"}
        401 points on [-3, 3] (exact and the same each time), or draws.
    draws : int
        Draws in each of the two passes of ``importance``.
    magnitude : float, optional
        A fixed step in place of the spread s (an ablation): D and the bound are in units of it.
    backend : {"numba", "numpy"}
        Compiled, or the short reference.
    random_state : int, Generator or None
        Of ``importance``.

    Returns
    -------
    Correction

    Raises
    ------
    ValueError
        For bad shapes, NaN, or an option out of its range.

    Notes
    -----
    Adding a constant to all gaps changes no shift, a common positive factor scales it, exchanged signs exchange it. Where
    the personas agree (spread below 1e-9) the shift is 0, wherever they stand.
    """
    loss = Loss(lam, kappa, eta, power)
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator: got {estimator!r}; expected one of {', '.join(ESTIMATORS)}")
    if reliability not in RELIABILITIES:
        raise ValueError(f"reliability: got {reliability!r}; expected one of {', '.join(RELIABILITIES)}")
    if reliability in ("passes", "both") and estimator != "importance":
        raise ValueError(f"reliability: {reliability!r} compares two passes of sampling; use estimator='importance'")
    if backend not in ("numba", "numpy"):
        raise ValueError(f"backend: got {backend!r}; expected 'numba' or 'numpy'")
    if not bound > 0:
        raise ValueError(f"bound: got {bound!r}; expected a number > 0")
    if not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError(f"draws: got {draws!r}; expected an integer of at least 1")
    if magnitude is not None and not (math.isfinite(magnitude) and magnitude > 0):
        raise ValueError(f"magnitude: got {magnitude!r}; expected a number > 0")
    base, panel = checked(d0, persona_gaps)
    shape, base, panel = base.shape, base.reshape(-1), panel.reshape(-1, panel.shape[-1])
    own = _spread(panel)
    spread = own if magnitude is None else np.where(own < CONSENSUS, own, magnitude)
    shrink = np.ones_like(base)
    if estimator == "quadrature":
        raw = _shifts(base, panel, spread, loss, backend)
    else:
        first, second = _passes(base, panel, spread, loss, int(draws), np.random.default_rng(random_state))
        raw = (first + second) / 2
        if reliability in ("passes", "both"):
            width = np.where(spread < CONSENSUS, 1.0, TOLERANCE * spread)
            shrink = np.exp(-(((first - second) / width) ** 2) / 2)
    if reliability in ("jackknife", "both"):
        shrink = shrink * _jackknife(base, panel, spread, raw, loss, backend, own_spreads=magnitude is None)
    wanted = shrink * raw
    shift = np.clip(wanted, -bound * spread, bound * spread) if math.isfinite(bound) else wanted
    cut = np.abs(wanted) > np.abs(shift)
    return Correction((base + shift).reshape(shape), shift.reshape(shape), raw.reshape(shape), shrink.reshape(shape),
                      own.reshape(shape), cut.reshape(shape))  # fmt: skip
