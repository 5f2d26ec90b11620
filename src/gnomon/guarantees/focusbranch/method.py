"""FocusBranch: few-pixel robustness, verified by branch and bound over sets of pixels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnomon.guarantees.focusbranch.attack import margin
from gnomon.guarantees.focusbranch.bounds import checked_image, checked_label, checked_t
from gnomon.guarantees.focusbranch.coverings import KINDS
from gnomon.guarantees.focusbranch.network import Network, load_network
from gnomon.guarantees.focusbranch.plan import Plan
from gnomon.guarantees.focusbranch.search import Counts, Falsified, Options, Search, Stopped, chain_from

if TYPE_CHECKING:
    import pandas as pd

STRATEGIES = ("auto", "calzone", "levels", "root")


@dataclass
class L0Result:
    """The answer for one image.

    Attributes
    ----------
    status : str
        "verified": no change of at most t pixels within [0, 1] changes the label; "falsified": ``adversarial`` does;
        "misclassified": the image itself is not given the label; "timeout" and "unknown": neither was shown.
    adversarial : array of float32, of the shape of the image, or None
        Differs from the image in at most t pixels; the model itself errs on it.
    nodes_by_level : dict of int to int
        Nodes bounded, by l (0: the whole ball).
    plan : str
        The states walked; empty where none was needed.
    predicted_seconds : float
        What the plan was expected to take in all, sampling included; NaN where nothing was predicted.
    seconds : float
        What it took.
    remaining : list of array of int
        Pixel sets of nodes that are known to be open (the first 1,000), where the answer is not certain.
    reason : str
        Why an answer is not certain.
    counts : Counts
        Bound calls, those of sampling, leaves solved, and so on.
    """

    status: str
    adversarial: np.ndarray | None = None
    nodes_by_level: dict[int, int] = field(default_factory=dict)
    plan: str = ""
    predicted_seconds: float = math.nan
    seconds: float = 0.0
    remaining: list[np.ndarray] = field(default_factory=list)
    reason: str = ""
    counts: Counts = field(default_factory=Counts)


class FocusBranch:
    """Can changing at most t pixels of an image, arbitrarily within [0, 1], change its label?

    Sound: "verified" is a proof up to the arithmetic of :mod:`~gnomon.guarantees.focusbranch.search` (float64 wherever a margin is
    close), "falsified" is confirmed by the model. Complete where every leaf is solved in time.

    Parameters
    ----------
    t : int
        Most pixels that change; a pixel is a position with all its channels.
    strategy : {"auto", "calzone", "levels", "root"} or list of (k, l)
        "auto": start and branching by sampled nodes and a dynamic program. "calzone": the same with l = t alone. "levels":
        concrete sets from one pixel on. "root": the bound of the whole ball alone. A list: sets of k pixels of which l
        change, one state after the other (then concrete sets down to the leaves).
    samples : int
        Most nodes sampled for each state.
    batch_size : int
        Nodes in hand at a time.
    leaf : {"milp", None}
        How sets of t pixels that stay open are decided; None leaves them open.
    timeout : float
        Seconds for an image.
    random_state : int, Generator or None
        Draws samples, permutations and projections.
    prune : bool
        Visit a set only if none of its subsets, nor a block around it, has been proved safe.
    reuse : {"root", "parent", None}
        Whose bounds a node's are intersected with: those of the whole ball (which also tell the neurons that need no bound of
        their own), those of its parent and the parent's margin too, or nobody's.
    covering : str
        Kind of the first covering, see :func:`~gnomon.guarantees.focusbranch.coverings.covering_design`.
    falsify : bool
        Whether attacks are tried.
    alpha_steps : int
        Steps of Adam on the lower slopes of the margins.
    leaf_timeout : float
        Seconds for a leaf.
    clock : callable
        Seconds since some time; ``time.process_time`` counts the processor's.
    progress : callable, optional
        Called with what is done, how many nodes of it, and how many are expected.

    Examples
    --------
    >>> FocusBranch(t=2).verify(model, image, label).status  # doctest: +SKIP
    'verified'
    """

    _box = False  # bound the box of S instead of the node
    _top_only = False
    _incremental = True
    _projective = False

    def __init__(self, t: int, strategy: str | Sequence[tuple[int, int]] = "auto", samples: int = 64, batch_size: int = 512,
                 leaf: str | None = "milp", timeout: float = 60.0, random_state: Any = 0, prune: bool = True,
                 reuse: str | None = "root", covering: str = "auto", falsify: bool = True, alpha_steps: int = 0,
                 leaf_timeout: float = 30.0, clock: Callable[[], float] = time.perf_counter,
                 progress: Callable[[str, int, float], None] | None = None):  # fmt: skip
        for name, value in (("samples", samples), ("batch_size", batch_size)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}: got {value!r}; expected an integer of 1 or more")
        for name, seconds in (("timeout", timeout), ("leaf_timeout", leaf_timeout)):
            if not isinstance(seconds, int | float) or not seconds > 0:
                raise ValueError(f"{name}: got {seconds!r}; expected seconds above 0")
        if isinstance(t, bool) or not isinstance(t, int | np.integer) or t < 0:
            raise ValueError(f"t: got {t!r}; expected an integer of 0 or more")
        if isinstance(strategy, str) and strategy not in STRATEGIES:
            raise ValueError(f"strategy: got {strategy!r}; expected one of {', '.join(STRATEGIES)} or a list of (k, l)")
        if leaf not in ("milp", None):
            raise ValueError(f"leaf: got {leaf!r}; expected 'milp' or None")
        if reuse not in ("root", "parent", None):
            raise ValueError(f"reuse: got {reuse!r}; expected 'root', 'parent' or None")
        if covering not in KINDS:
            raise ValueError(f"covering: got {covering!r}; expected one of {', '.join(KINDS)}")
        if not isinstance(strategy, str):
            chain_from(strategy, int(t))
        self.t, self.strategy, self.samples, self.batch_size, self.leaf = int(t), strategy, samples, batch_size, leaf
        self.timeout, self.random_state, self.prune, self.reuse = float(timeout), random_state, prune, reuse
        self.covering, self.falsify, self.alpha_steps = covering, falsify, alpha_steps
        self.leaf_timeout, self.clock, self.progress = float(leaf_timeout), clock, progress

    def verify(self, model: Any, image: Any, label: int) -> L0Result:
        """Answer for one image.

        Parameters
        ----------
        model : torch.nn.Module, path of an ONNX file or Network
            Scores of a batch of images in [0, 1]; normalisation belongs into the model.
        image : array (c, H, W) or (v,)
            In [0, 1].
        label : int
            y.

        Returns
        -------
        L0Result

        Raises
        ------
        TypeError
            For a layer that is not supported.
        ValueError
            For an image outside [0, 1] or of another shape, a label or t out of range, parameters that are not finite.
        """
        start = self.clock()
        x, network = checked_image(model, image)
        y = checked_label(label, network)
        checked_t(self.t, network)
        result = self._answer(network, x, y)
        result.seconds = self.clock() - start
        return result

    def _options(self) -> Options:
        levels = (self.t,) if self._top_only or self.strategy == "calzone" else None
        return Options(
            t=self.t, samples=self.samples, batch_size=self.batch_size, exact=self.leaf is not None, timeout=self.timeout,
            leaf_timeout=self.leaf_timeout, prune=self.prune, reuse=self.reuse or "none", covering=self.covering,
            falsify=self.falsify, alpha_steps=self.alpha_steps, box=self._box, levels=levels, incremental=self._incremental,
            projective_start=self._projective, clock=self.clock, progress=self.progress,
        )  # fmt: skip

    def _answer(self, network: Network, x: torch.Tensor, y: int) -> L0Result:
        scores = network.real(x[None])
        if int(scores[0].argmax()) != y or float(margin(network.to(torch.float32), x[None], y)) <= 0:
            return L0Result("misclassified", x.numpy().copy(), reason=f"the model says {int(scores[0].argmax())}")
        if self.t == 0:
            return L0Result("verified")
        search = Search(self._options(), network, x, y, np.random.default_rng(self.random_state))
        result = L0Result("unknown", counts=search.counts, nodes_by_level=search.counts.by_level)
        try:
            if search.root():
                result.status = "verified"
                return result
            search.falsify()
            if (plan := self._plan(search)) is None:
                result.reason = "the bound of the whole ball does not suffice, and the strategy is root alone"
                return result
            result.plan = str(plan)
            if math.isfinite(plan.calls):
                result.predicted_seconds = search.predicted(plan)
            if search.walk(plan):
                result.status = "verified"
            else:
                result.reason = "sets of pixels stay open: no exact leaf, or it ran out of its time"
        except Falsified as found:
            result.status, result.adversarial = "falsified", found.image
        except Stopped:
            result.status, result.reason = "timeout", f"not decided within {self.timeout:g} s"
        except KeyboardInterrupt:
            result.reason = "interrupted"
        if result.status in ("timeout", "unknown"):
            result.remaining = search.remaining[:1000]
        return result

    def _plan(self, search: Search) -> Plan | None:
        if self.strategy == "root":
            return None
        if self.strategy == "levels":
            return Plan(chain_from([(1, 1)], self.t))
        if not isinstance(self.strategy, str):
            return Plan(chain_from(self.strategy, self.t))
        return search.plan()


def verify_l0(model: Any, images: Any, labels: Any, t: int, **options: Any) -> pd.DataFrame:
    """:class:`FocusBranch` on many images.

    Parameters
    ----------
    model : torch.nn.Module or path of an ONNX file
        The classifier; read once.
    images : array (n, c, H, W) or (n, v)
        In [0, 1].
    labels : int array (n,)
        Their labels.
    t : int
        Most pixels that change.
    **options
        Of :class:`FocusBranch`.

    Returns
    -------
    DataFrame
        A row an image: index, label, status, seconds, bound calls, leaves, plan, reason, and the pixels changed with their
        values where it was falsified. Interrupted, it holds what was done.
    """
    import pandas as pd

    given = np.asarray(images, dtype=np.float32)
    wanted = np.asarray(labels)
    if given.ndim not in (2, 4):
        raise ValueError(f"images: got shape {given.shape}; expected (n, channels, height, width) or (n, pixels)")
    if wanted.shape != (len(given),) or wanted.dtype.kind not in "iu":
        raise ValueError(f"labels: got {wanted.dtype} of shape {wanted.shape}; expected {len(given)} integers")
    network = load_network(model, given.shape[1:])
    verifier = FocusBranch(t, **options)
    rows = []
    for i, (image, label) in enumerate(zip(given, wanted.tolist(), strict=True)):
        found = verifier.verify(network, image, label)
        rows.append(row(i, label, image, found))
        if found.reason == "interrupted":
            break
    return pd.DataFrame(rows)


def row(i: int, label: int, image: np.ndarray, found: L0Result) -> dict[str, Any]:
    """A result as a row of :func:`verify_l0`."""
    changed = "" if found.adversarial is None or found.status == "misclassified" else changes(image, found.adversarial)
    return {"image": i, "label": label, "status": found.status, "seconds": found.seconds, "bound calls": found.counts.calls,
            "leaves": found.counts.leaves, "plan": found.plan, "changed": changed, "reason": found.reason}  # fmt: skip


def changes(image: np.ndarray, adversarial: np.ndarray) -> str:
    """Which pixels differ, and their new values."""
    shape = image.shape if image.ndim == 3 else (1, 1, image.size)
    a, b = image.reshape(shape), adversarial.reshape(shape)
    where = np.argwhere((a != b).any(0))
    values = [", ".join(f"{v:.3g}" for v in b[:, r, c]) for r, c in where]
    names = [f"({r}, {c})" if image.ndim == 3 else str(c) for r, c in where]
    return "; ".join(f"{n} to {v}" for n, v in zip(names, values, strict=True))
