"""GeoSPRINT: geometric step pruning for inference in trajectories."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from gnomon.sampling.geosprint.hyperplanarity import ProfileStream, Reduce, Span, reduced, trajectories
from gnomon.sampling.geosprint.noising import Denoiser, NoiseSchedule, check_prediction
from gnomon.sampling.geosprint.samplers import check_timesteps, ddim_states
from gnomon.sampling.geosprint.steps import density_steps, grid_nodes, removal_order
from gnomon.sampling.geosprint.straightness import TrajectoryReport, trajectory_report


class GeoSprint(BaseEstimator):
    """Time steps for a fixed number of network calls, from the geometry of a pilot of denoising trajectories.

    Parameters
    ----------
    n_steps : int
        N, the listed times, each one network call (NFE). :meth:`timesteps` gives other budgets at no cost.
    order : {2, 3}
        m: how many states span the plane of the hyperplanarity test.
    span : {"linear", "affine"}
        "linear" for variance-preserving coordinates; "affine" for rectified flows and sigma-scaled coordinates.
    rule : {"density", "prune"}
        Steps by the profile's density; or the fine grid less its most redundant steps, one by one.
    gamma : float
        Exponent of the density: 1, or 1/2 (which equidistributes the local error of a step).
    floor : float
        eta in [0, 1], the share of the steps that is spread evenly.
    threshold : float, optional
        tau: a step with r <= tau is redundant (default: the median of r).
    n_pilot : int
        Pilot trajectories, usually 16 to 64.
    grid : int
        States of each pilot trajectory, J + 1.
    reduce : {"mean", "median", "q90"}
        Of r over trajectories.
    max_bytes : int
        States are kept (for ``report_`` and ``rule="prune"``) of as many trajectories as fit; the profile streams.
    random_state : int
        Seed of the pilot's noise.

    Attributes
    ----------
    timesteps_ : list of int
        Strictly decreasing, from T - 1 to 0: what a scheduler's ``timesteps=`` takes.
    profile_ : ndarray of shape (J,)
        r of each interval of the grid ``nodes_``.
    redundancy_ : ndarray of shape (J,)
        1 - r / max r.
    redundant_ : ndarray of bool, shape (J,)
        r <= tau.
    alpha_traj_ : float
        Straightness of the pilot, :func:`trajectory_projection_score`.
    report_ : TrajectoryReport
        Its interval, by window of time, path length, effective dimension.
    pilot_nfe_ : int
        Network calls that the pilot cost, counted per trajectory: n_pilot x J (0 for stored trajectories).
    schedule_ : NoiseSchedule or None
        What it was fitted on.

    Notes
    -----
    NeurIPS 2026 abstract "GeoSPRINT: Geometric Step Pruning for Inference in Trajectories"; the exact test, the
    density and the pruning rule are reconstructed.

    Examples
    --------
    >>> import numpy as np, torch
    >>> abar = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    >>> def blobs(x, t):  # the exact noise prediction of data N(0, diag(1, 0.01))
    ...     a, s = abar[t[0]] ** 0.5, (1 - abar[t[0]]) ** 0.5
    ...     return s * x / (a * a * torch.tensor([1.0, 0.01]) + s * s)
    >>> gs = GeoSprint(n_steps=6, n_pilot=8).fit(blobs, abar, shape=(2,))
    >>> gs.timesteps_[0], gs.timesteps_[-1], len(gs.timesteps_), gs.pilot_nfe_
    (999, 0, 6, 1600)
    """

    def __init__(self, n_steps: int = 30, order: int = 2, span: Span = "linear",
                 rule: Literal["density", "prune"] = "density", gamma: float = 1.0, floor: float = 0.1,
                 threshold: float | None = None, n_pilot: int = 64, grid: int = 201, reduce: Reduce = "mean",
                 max_bytes: int = 2**30, random_state: int = 0):  # fmt: skip
        self.n_steps = n_steps
        self.order = order
        self.span = span
        self.rule = rule
        self.gamma = gamma
        self.floor = floor
        self.threshold = threshold
        self.n_pilot = n_pilot
        self.grid = grid
        self.reduce = reduce
        self.max_bytes = max_bytes
        self.random_state = random_state

    def fit(self, denoiser: Denoiser, schedule: Any, shape: tuple[int, ...], prediction_type: str | None = None,
            device: Any = None, dtype: torch.dtype = torch.float32) -> GeoSprint:  # fmt: skip
        """Run the pilot and make the schedule.

        Parameters
        ----------
        denoiser : callable
            ``denoiser(x, t)``, x of shape ``(n, *shape)``, t a long tensor (n,) of training steps 0..T - 1.
        schedule : NoiseSchedule, array of alpha-bars (T,), or diffusers scheduler
            The training schedule.
        shape : tuple of int
            Of one sample, (3, 32, 32).
        prediction_type : {"epsilon", "sample", "v_prediction", "velocity"}, optional
            Default: what a diffusers scheduler says, else "epsilon".
        device, dtype
            Of the states.

        Raises
        ------
        ValueError
            For parameters out of range (``n_steps`` with T, too).
        FloatingPointError
            When the denoiser gives NaN or infinity, with the step.
        """
        prediction_type = check_prediction(prediction_type or _predicts(schedule))
        process = NoiseSchedule.read(schedule)
        self._check(len(process))
        nodes = grid_nodes(len(process), self.grid)
        # drawn on the CPU, so that the same seed is the same pilot on every device
        noise = torch.randn((self.n_pilot, *shape), generator=torch.Generator().manual_seed(self.random_state),
                            dtype=torch.float64)  # fmt: skip
        x = (process.prior * noise).to(device=device, dtype=dtype)
        keep = max(1, min(self.n_pilot, self.max_bytes // max(1, len(nodes) * x[0].numel() * x.element_size())))
        stream, kept = ProfileStream(self.order, self.span), []
        for state in ddim_states(denoiser, x, nodes.tolist(), process, prediction_type):
            stream.update(state)
            kept.append(state[:keep].reshape(keep, -1).clone())
        self.schedule_: NoiseSchedule | None = process
        self.pilot_nfe_ = self.n_pilot * (len(nodes) - 1)
        return self._finish(stream, torch.stack(kept), nodes, len(process))

    def fit_trajectories(self, X: Any, timesteps: Any = None, num_train_timesteps: int = 1000) -> GeoSprint:
        """Make the schedule from states that are already at hand.

        Parameters
        ----------
        X : array_like or Tensor of shape (J + 1, n, ...)
            States from noise to data; the final x0hat is not among them.
        timesteps : sequence of int, optional
            Their J + 1 training steps, decreasing (default: evenly from T - 1 to 0).
        num_train_timesteps : int
            T.
        """
        x = trajectories(X)
        if timesteps is None and len(x) > num_train_timesteps:
            raise ValueError(f"X: got {len(x)} states of {num_train_timesteps} training steps; give timesteps")
        nodes = (grid_nodes(num_train_timesteps, len(x)) if timesteps is None
                 else np.array(check_timesteps(timesteps, num_train_timesteps)))  # fmt: skip
        if len(nodes) != len(x):
            raise ValueError(f"timesteps: got {len(nodes)} for {len(x)} states")
        self._check(num_train_timesteps)
        stream = ProfileStream(self.order, self.span)
        for state in x:
            stream.update(state)
        self.schedule_ = None
        self.pilot_nfe_ = 0
        return self._finish(stream, x, nodes, num_train_timesteps)

    def timesteps(self, n_steps: int | None = None) -> list[int]:
        """The schedule for another number of network calls, from the same pilot.

        Raises
        ------
        NotFittedError
            Before :meth:`fit`.
        ValueError
            For fewer than 2 steps, more than there are training steps, or (``rule="prune"``) more than states.
        """
        if not hasattr(self, "profile_"):
            raise NotFittedError("GeoSprint: call fit or fit_trajectories first")
        n = self.n_steps if n_steps is None else n_steps
        nodes, total = self.nodes_, int(self.nodes_[0] - self.nodes_[-1]) + 1
        _check_steps(n, total, "training steps")
        if self.rule == "prune":
            _check_steps(n, len(nodes), "states of the pilot (rule='prune')")
            gone = set(self._dropped[: len(nodes) - n])
            return [int(t) for i, t in enumerate(nodes) if i not in gone]
        with warnings.catch_warnings():
            if hasattr(self, "timesteps_"):  # said once, by fit
                warnings.simplefilter("ignore", UserWarning)
            return density_steps(self.profile_, nodes, n, self.gamma, self.floor, self._tolerance)

    def as_scheduler(self, scheduler: Any, n_steps: int | None = None, clip_sample: bool = False) -> Any:
        """A diffusers DDIM scheduler that takes these steps; ``pipeline(..., num_inference_steps=n_steps)``.

        Parameters
        ----------
        scheduler : diffusers scheduler
            The pipeline's own: its training schedule and prediction type are kept.
        n_steps : int, optional
            Another budget.
        clip_sample : bool
            Clip x0hat; it changes the geometry that the pilot saw, so it is off.
        """
        from gnomon.sampling.geosprint.scheduler import listed_ddim

        return listed_ddim(scheduler, self.timesteps(n_steps), clip_sample)

    # --- inside ---

    def _check(self, total: int) -> None:
        _check_steps(self.n_steps, total, "training steps")
        if self.rule not in ("density", "prune"):
            raise ValueError(f"rule: got {self.rule!r}; expected 'density' or 'prune'")
        if not (np.isfinite(self.gamma) and self.gamma > 0):
            raise ValueError(f"gamma: got {self.gamma}; expected a positive number")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor: got {self.floor}; expected a share in [0, 1]")
        if self.n_pilot < 1:
            raise ValueError(f"n_pilot: got {self.n_pilot}; expected at least 1 trajectory")
        if self.grid < self.order + 1:
            raise ValueError(f"grid: got {self.grid} states; expected at least {self.order + 1} (order {self.order})")

    def _finish(self, stream: ProfileStream, states: torch.Tensor, nodes: np.ndarray, total: int) -> GeoSprint:
        self.__dict__.pop("timesteps_", None)
        self.nodes_ = nodes
        self.profile_ = reduced(stream.residuals(), self.reduce)
        self._tolerance = 1e-6 if states.dtype == torch.float64 else 1e-4  # rounding alone makes such an r
        largest = self.profile_.max()
        self.redundancy_ = 1 - self.profile_ / largest if largest > 0 else np.ones_like(self.profile_)
        self.threshold_ = float(np.median(self.profile_)) if self.threshold is None else self.threshold
        self.redundant_ = self.profile_ <= self.threshold_
        self.report_: TrajectoryReport = trajectory_report(states, min(4, len(states) - 1))
        self.alpha_traj_ = self.report_.alpha.mean
        if self.rule == "prune":
            self._dropped = removal_order(states, self.order, self.span, self.reduce)
        self.timesteps_: list[int] = self.timesteps()
        return self


def _check_steps(n: int, most: int, of: str) -> None:
    if not 2 <= n <= most:
        raise ValueError(f"n_steps: got {n} with {most} {of}; expected 2 to {most}")


def _predicts(schedule: Any) -> str:
    return str(getattr(getattr(schedule, "config", None), "prediction_type", "epsilon"))
