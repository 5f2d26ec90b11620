"""``gnomon run``: a gymnasium environment or a person's own table, explored in phases, and what they see of it."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field
from scipy import sparse

from gnomon.decisions.reward_free.certificate import agents_needed, blocks
from gnomon.decisions.reward_free.method import PhasedRewardFree
from gnomon.decisions.reward_free.simulators import VectorEnvironment
from gnomon.decisions.reward_free.tabular import TabularMDP, stack_rewards
from gnomon.study import Options, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _file(path: Path | None) -> Path | None:
    if path is not None and not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return None if path is None else path.expanduser()


def _pairs(text: str) -> str:
    options(text)
    return text


def options(text: str) -> dict[str, Any]:
    """``map_name=8x8,is_slippery=false`` as a dict; numbers, true and false are read as such."""
    found: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ValueError(f"{pair!r}: expected name=value, several with commas between")
        try:
            found[name.strip()] = json.loads(value.strip().lower())
        except json.JSONDecodeError:
            found[name.strip()] = value.strip()
    return found


class Run(Options):
    """What a person gives."""

    env: str = Field("FrozenLake-v1", description="a gymnasium environment with discrete spaces")
    options: Annotated[str, AfterValidator(_pairs)] = Field(
        "", description="its options: map_name=8x8,is_slippery=false"
    )
    mdp: Annotated[Path | None, AfterValidator(_file)] = Field(
        None,
        description="instead of env: npz with transitions (S, A, S) or (H, S, A, S), initial (S,) and perhaps rewards",
    )
    sampled: bool = Field(False, description="only sample the environment, even where it has a table")
    horizon: int = Field(12, ge=1, description="steps of an episode")
    phases: int | None = Field(None, description="how often agents may be re-programmed (default: horizon)")
    agents: int = Field(5000, ge=1, description="agents of each phase")
    eps: float = Field(0.1, gt=0, description="states out of reach are skipped: below eps / (4 S H^2)")
    delta: float = Field(0.05, gt=0, lt=1, description="failure probability of the certificate")
    own_data: bool = Field(False, description="estimate each step from its own phase alone, as in the paper")
    reward: Annotated[Path | None, AfterValidator(_file)] = Field(
        None, description="npy with the reward to plan for, (S, A) or (H, S, A) (default: the environment's own)"
    )
    seed: int = Field(0, ge=0, description="seed of the agents")


@dataclass
class Task:
    """What is explored: a simulator, and the table where it is known."""

    name: str
    simulator: Any
    table: TabularMDP | None
    reward: Any = None  # (S, A) or (H, S, A), in its own units


def task(inputs: Run) -> Task:
    """The world, and the reward to plan for: a file's, else the world's own where it is known."""
    found = world(inputs)
    found.reward = None if found.table is None else found.table.rewards
    if inputs.reward is not None:
        found.reward = np.load(inputs.reward, allow_pickle=False)
        sizes = (found.simulator.horizon, found.simulator.n_states, found.simulator.n_actions)
        stack_rewards([found.reward], *sizes)  # before an hour of exploring
    return found


def world(inputs: Run) -> Task:
    """Read the table, or make the environment.

    Raises
    ------
    ValueError, TypeError
        For a file without the arrays, an unknown environment, and spaces that are not discrete.
    """
    import gymnasium

    if inputs.mdp is not None:
        with np.load(inputs.mdp, allow_pickle=False) as arrays:
            if missing := {"transitions", "initial"} - set(arrays):
                raise ValueError(
                    f"mdp: {inputs.mdp.name} has no array {' and '.join(sorted(missing))}; it has {', '.join(arrays)}"
                )
            given = {name: arrays[name] for name in ("transitions", "initial", "rewards") if name in arrays}
        horizon = inputs.horizon if given["transitions"].ndim == 3 else None
        table = TabularMDP(given["transitions"], given["initial"], horizon, given.get("rewards"))
        return Task(inputs.mdp.name, table, table)
    more = options(inputs.options)
    try:
        made = gymnasium.make(inputs.env, **more)
    except (gymnasium.error.Error, TypeError, KeyError) as error:
        raise ValueError(f"env: gymnasium cannot make {inputs.env!r} with {more}: {error}") from error
    if inputs.sampled or not hasattr(made.unwrapped, "P"):
        # no limit of its own within the horizon
        make = partial(gymnasium.make, inputs.env, max_episode_steps=inputs.horizon + 1, **more)
        return Task(f"{inputs.env}, only sampled", VectorEnvironment(make, inputs.horizon), None)
    table = TabularMDP.from_gymnasium(made, inputs.horizon)
    return Task(inputs.env, table, table)


def explore(inputs: Run, beside: bool) -> Outcome:
    """Explore; ``beside`` also with fewer phases and the same total of episodes."""
    given = task(inputs)
    H = given.simulator.horizon
    ways: dict[str, int | None] = {"phased": inputs.phases}
    total = inputs.agents * len(blocks(H, inputs.phases))
    if beside:
        ways |= {
            f"{rho} phase{'s' * (rho > 1)}": rho
            for rho in sorted({H, -(-H // 2), 1} - {inputs.phases or H}, reverse=True)
        }
    results: dict[str, Any] = {}
    for name, rho in ways.items():
        m = inputs.agents if name == "phased" else max(1, total // len(blocks(H, rho)))
        explorer = PhasedRewardFree(
            rho, m, inputs.eps, inputs.delta, reuse=not inputs.own_data, random_state=inputs.seed
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "n_agents", UserWarning)  # what is shown says it
            results[name] = explorer.explore(given.simulator)
    return Outcome(inputs, given, results)


def units(reward: Any) -> tuple[float, float]:
    """The range of a reward, at least [0, 1]."""
    return min(0.0, float(np.min(reward))), max(1.0, float(np.max(reward)))


def present(outcome: Outcome) -> dict[str, Any]:
    """Phases, certificate, and the plan for the reward."""
    import pandas as pd

    given, ex = outcome.problem, outcome.result
    S, A, H = ex.model_.n_states, ex.model_.n_actions, ex.model_.horizon
    bound = min(float(H), 2 * ex.certificate_)
    trivial = " (trivial: more episodes are needed for a guarantee)" if bound >= H else ""
    needed = agents_needed(S, A, H, 1.0, outcome.inputs.delta, "reach")
    shown: dict[str, Any] = {
        "world": f"{given.name}: {S} states, {A} actions, {H} steps; {ex.n_trajectories_:,} episodes in {ex.n_phases_} phases",
        "phases": ex.phases_,
        "certificate": f"any policy's value is within {ex.certificate_:.3g} of the truth for every reward in [0, 1], a plan's within "
        f"{bound:.3g} of the best{trivial}; probability {1 - outcome.inputs.delta:g}. With reach probabilities known, theory asks for "
        f"{needed:.3g} agents a phase to be within 1",
    }
    if (short := int((ex.phases_["fewest visits"] == 0).sum())) > 0:
        shown["too few agents"] = (
            f"in {short} of {ex.n_phases_} phases some state and action that can be reached was never tried"
        )
    if given.reward is not None:
        policy, value = ex.plan(given.reward, reward_range=units(given.reward))
        here = ex.model_.occupancy(policy).sum(axis=2)
        at = here.argmax(axis=1)
        shown["plan"] = pd.DataFrame(
            {
                "step": np.arange(1, H + 1),
                "likeliest state": at,
                "its probability": here.max(axis=1),
                "action there": policy[np.arange(H), at],
            }
        )
        shown["value"] = f"in the model {value:.4g}"
        if given.table is not None:
            reward = stack_rewards([given.reward], H, S, A)
            true, best = given.table.evaluate(policy[..., None], reward)[0], given.table.optimise(reward)[1][0]
            shown["value"] += f", in the true table {true:.4g}, of the best policy {best:.4g}"
    if len(outcome.results) > 1:
        shown["equal totals"] = pd.DataFrame([_row(name, e, given.table) for name, e in outcome.results.items()])
    return shown


def _row(name: str, ex: Any, table: TabularMDP | None) -> dict[str, Any]:
    tried = np.array([(n.sum(axis=1) > 0).sum() for n in ex.counts_])
    row = {
        "": name,
        "phases": ex.n_phases_,
        "episodes": ex.n_trajectories_,
        "pairs visited": int(tried.sum()),
        "certificate": ex.certificate_,
    }
    if table is not None:
        row["largest gap over rewards, at most"] = ex.exact_gap(table)
    return row


def picture(outcome: Outcome) -> Figure:
    """How often each state was visited at each step."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    ex = outcome.result
    S, A = ex.model_.n_states, ex.model_.n_actions
    seen = np.array([np.asarray(n.sum(axis=1)).reshape(S, A).sum(axis=1) for n in ex.counts_]).T.astype(float)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(
        np.where(seen > 0, seen, np.nan), aspect="auto", norm=LogNorm(1, max(seen.max(), 2)), interpolation="nearest"
    )
    axes.set(
        xlabel="step", ylabel="state", xticks=range(ex.model_.horizon), xticklabels=range(1, ex.model_.horizon + 1)
    )
    figure.colorbar(shown, label="visits")
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """``model.npz`` (``transitions``: rows step, state, action, next state, count; ``probability`` of each; ``initial``;
    ``policy`` for the reward where there is one), ``phases.csv`` and ``summary.json``."""
    ex, given = outcome.result, outcome.problem
    rows, chances = [], []
    for h, (counts, kernel) in enumerate(zip(ex.counts_, ex.model_.kernels, strict=True)):
        found = sparse.coo_array(counts)
        pair, to = found.coords
        rows.append(np.stack([np.full(len(pair), h), *np.divmod(pair, ex.model_.n_actions), to, found.data], axis=1))
        chances.append(np.asarray(kernel[pair, to]).ravel())
    kept = {
        "transitions": np.concatenate(rows).astype(np.int64),
        "probability": np.concatenate(chances),
        "initial": ex.model_.initial,
    }
    if given.reward is not None:
        kept["policy"] = ex.plan(given.reward, reward_range=units(given.reward))[0]
    np.savez_compressed(directory / "model.npz", **kept)
    ex.phases_.to_csv(directory / "phases.csv", index=False)
    body = {"world": given.name, "certificate": ex.certificate_, "delta": ex.delta, "episodes": ex.n_trajectories_, "phases": ex.n_phases_,
            "states": ex.model_.n_states, "actions": ex.model_.n_actions, "horizon": ex.model_.horizon}  # fmt: skip
    (directory / "summary.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
