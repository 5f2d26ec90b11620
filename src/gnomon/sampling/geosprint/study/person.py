"""``gnomon run``: a person's own model or trajectories, and what they see of the result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from gnomon.study import Inputs, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from gnomon.sampling.geosprint.method import GeoSprint


class Run(Inputs):
    """What a run can be told."""

    model: str | None = Field(None, description="folder or hub name of a diffusers pipeline of an unconditional U-Net")
    trajectories: Path | None = Field(None, description="states instead of a model: .npy of shape (J + 1, n, ...)")
    training_steps: int = Field(1000, ge=2, description="training steps T that the trajectories span, T - 1 to 0")
    nfe: int = Field(30, ge=2, description="network calls (listed steps)")
    rule: Literal["density", "prune"] = Field("density", description="steps by density, or the pruned fine grid")
    span: Literal["linear", "affine"] = Field(
        "linear", description="linear: variance preserving; affine: rectified flows and sigma-scaled states"
    )
    order: int = Field(2, ge=2, le=3, description="states that span the plane")
    gamma: float = Field(1.0, gt=0, description="exponent of the density")
    floor: float = Field(0.1, ge=0, le=1, description="share of the steps that is spread evenly")
    n_pilot: int = Field(16, ge=1, description="pilot trajectories")
    grid: int = Field(201, ge=4, description="states of each pilot trajectory")
    device: str = Field("cpu", description="where the network runs")
    random_state: int = Field(0, ge=0, description="seed of the pilot's noise")

    @field_validator("trajectories")
    @classmethod
    def _exists(cls, value: Path | None) -> Path | None:
        if value is not None and not value.expanduser().is_file():
            raise ValueError("expected an .npy file that exists")
        return None if value is None else value.expanduser()

    @model_validator(mode="after")
    def _one(self) -> Any:
        if (self.model is None) == (self.trajectories is None):
            raise ValueError("give --model or --trajectories, one of them")
        return self


@dataclass
class Found:
    """Steps of one rule; ``error`` is the distance of its samples from those of the whole fine grid, where known."""

    timesteps: list[int]
    error: float | None = None


def make(inputs: Run, beside: bool) -> Outcome:
    """Fit the schedule; ``beside`` also the other rules, with a model their errors from the same noise."""
    from gnomon.sampling.geosprint.method import GeoSprint

    options = {
        k: getattr(inputs, k) for k in ("rule", "span", "order", "gamma", "floor", "n_pilot", "grid", "random_state")
    }
    sprint = GeoSprint(inputs.nfe, **options)
    world = None
    if inputs.trajectories is not None:
        sprint.fit_trajectories(_states(inputs.trajectories), num_train_timesteps=inputs.training_steps)
    else:
        from gnomon.sampling.geosprint.study.worlds import own_world

        world = own_world(str(inputs.model), inputs.device)
        sprint.fit(world, world.schedule, world.shape, world.prediction_type, inputs.device)
    results = {"geosprint": Found(sprint.timesteps_)}
    if beside:
        total = int(sprint.nodes_[0]) + 1
        uniform = np.rint(np.linspace(total - 1, 0, inputs.nfe)).astype(int)
        quadratic = np.linspace((total - 1) ** 0.5, 0, inputs.nfe) ** 2
        from gnomon.sampling.geosprint.steps import distinct_steps

        results |= {"uniform": Found(uniform.tolist()), "quadratic": Found(distinct_steps(quadratic, inputs.nfe))}
        if world is not None:
            _judge(results, sprint, world, inputs)
    return Outcome(inputs, sprint, results)


def _states(path: Path) -> np.ndarray:
    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise ValueError(f"trajectories: {path} cannot be read as .npy: {error}") from error
    return np.asarray(found)


def _judge(results: dict[str, Found], sprint: GeoSprint, world: Any, inputs: Run) -> None:
    from gnomon.sampling.geosprint.samplers import ddim_sample

    x = world.noise(4, np.random.default_rng(inputs.random_state + 1)).to(inputs.device)
    fine = ddim_sample(world, x, sprint.nodes_, world.schedule, world.prediction_type)
    for found in results.values():
        got = ddim_sample(world, x, found.timesteps, world.schedule, world.prediction_type)
        found.error = float((got - fine).pow(2).mean().sqrt())


def present(outcome: Outcome) -> dict[str, Any]:
    """The steps, where the trajectories bend, how straight they are, what the pilot cost."""
    import pandas as pd

    gs: GeoSprint = outcome.problem
    listed = np.array(gs.timesteps_)
    alpha, windows = gs.report_.alpha, len(gs.report_.windows)
    borders = np.linspace(0, len(gs.nodes_) - 1, windows + 1).round().astype(int)
    rows = []
    for k in range(windows):
        a, b = borders[k], borders[k + 1]
        inside = (listed <= gs.nodes_[a]) & (listed > gs.nodes_[b])
        rows.append({"t": f"{gs.nodes_[a]} to {gs.nodes_[b]}", "mean r": float(gs.profile_[a:b].mean()),
                     "redundant": f"{gs.redundant_[a:b].mean():.0%}", "steps": int(inside.sum()) + (k == windows - 1),
                     "alpha": float(gs.report_.windows[k])})  # fmt: skip
    low, high = ("nan", "nan") if np.isnan(alpha.low) else (f"{alpha.low:.3f}", f"{alpha.high:.3f}")
    lines = [f"alpha_traj {alpha.mean:.3f} (95 % interval {low} to {high}), path / chord {gs.report_.path_ratio:.3g}, "
             f"effective dimension {gs.report_.effective_dimension:.3g}",
             f"NFE {len(listed)}; pilot NFE {gs.pilot_nfe_}, once" if gs.pilot_nfe_ else f"NFE {len(listed)}; no pilot was run"]  # fmt: skip
    shown: dict[str, Any] = {"steps": ", ".join(map(str, listed)), "where the trajectories bend": pd.DataFrame(rows),
                             "straightness and cost": "\n".join(lines)}  # fmt: skip
    if len(outcome.results) > 1:
        shown["beside"] = _beside(outcome)
    return shown


def _beside(outcome: Outcome) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for name, found in outcome.results.items():
        row: dict[str, Any] = {"schedule": name, "steps": " ".join(map(str, found.timesteps))}
        if found.error is not None:
            row["RMSE to the fine grid"] = found.error
        rows.append(row)
    return pd.DataFrame(rows)


def picture(outcome: Outcome) -> Figure:
    """The profile and the steps."""
    from matplotlib.figure import Figure

    gs: GeoSprint = outcome.problem
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(gs.nodes_[:-1], gs.profile_, label="r")
    axes.plot(gs.timesteps_, np.zeros(len(gs.timesteps_)), "|", color="C1", markersize=14, label="steps")
    axes.set(xlabel="training step t", ylabel="part of the step outside the plane, r")
    axes.invert_xaxis()
    axes.legend(frameon=False)
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """``steps.json``: the list that a scheduler's ``timesteps=`` takes; ``profile.csv``: r of each interval."""
    import pandas as pd

    gs: GeoSprint = outcome.problem
    (directory / "steps.json").write_text(json.dumps(gs.timesteps_) + "\n", encoding="utf-8")
    pd.DataFrame({"from": gs.nodes_[:-1], "to": gs.nodes_[1:], "r": gs.profile_, "redundancy": gs.redundancy_}).to_csv(
        directory / "profile.csv", index=False)  # fmt: skip
