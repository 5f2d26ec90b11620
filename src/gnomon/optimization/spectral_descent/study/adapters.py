"""LoRA on a real model: what each optimiser does to the spectra of the adapters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.optimization.spectral_descent.study.contenders import ADAPTERS
from gnomon.optimization.spectral_descent.study.material import Material, gather, targets
from gnomon.study import Experiment, grid, higher, lower

if TYPE_CHECKING:
    import pandas as pd

LATE = 4  # steps from which spectra are compared


def adapt(material: Material, make: Callable[[Any], Any], *, rank: int, alpha: int, steps: int, batch: int, seed: int,
          every: int = 3) -> tuple[Any, list[dict[str, Any]]]:  # fmt: skip
    """Train adapters on the query and value projections of the material's model.

    Returns
    -------
    net : peft.PeftModel
        Trained.
    rows : list of dict
        One for each step (from 1) and layer: spectrum, loss of the batch, and the held-out loss at step 1 and at every
        ``every``-th step (NaN between).
    """
    import peft
    import torch

    from gnomon.optimization.spectral_descent.lora import LoraSpectrum

    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets(material.model), lora_dropout=0.0)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        net = peft.get_peft_model(material.model, config)
    optimizer = make([p for p in net.parameters() if p.requires_grad])
    spectrum = LoraSpectrum(net)
    order = np.random.default_rng(seed)
    queue: list[int] = []
    net.eval()  # no dropout: the same loss for every contender
    rows = []
    for step in range(1, steps + 1):
        while len(queue) < batch:
            queue += order.permutation(len(material.train)).tolist()
        chosen, queue = queue[:batch], queue[batch:]
        given = {key: torch.cat([material.train[i][key] for i in chosen]) for key in material.train[0]}
        loss = net(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        held = held_out(net, material) if step == 1 or step % every == 0 or step == steps else np.nan
        common = {"step": step, "loss": float(loss.detach()), "held": held}
        rows += [{**common, **row} for row in spectrum.table().drop(columns="rank").to_dict("records")]
    return net, rows


def held_out(net: Any, material: Material) -> float:
    """Mean loss of the held-out batches."""
    import torch

    with torch.no_grad():
        return float(np.mean([float(net(**batch).loss) for batch in material.held]))


class Adapters(Experiment):
    """Muon against AdamW at one learning rate, the same start and the same batches."""

    contenders = {name: ADAPTERS[name] for name in ("muon", "adamw")}
    metrics = {"flatness": higher(), "effective_rank": higher(), "held": lower("nats"), "loss": lower("nats"),
               "low_flatness": higher(), "low_rank": higher(), "final_held": lower("nats")}  # fmt: skip

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "inputs": inputs,
            "lr": cell.get("lr", inputs.lr),
            "steps": self.steps(inputs),
            "seed": int(rng.integers(2**31)),
        }

    def steps(self, inputs: Any) -> int:
        """How long each run is."""
        return int(inputs.steps)

    def measure(self, problem: dict[str, Any], contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        given = problem["inputs"]
        material = gather(given.model, given.task, given.text, given.window, given.batch)
        yield from adapt(material, lambda p: contender(p, lr=problem["lr"]), rank=given.rank, alpha=given.alpha,
                         steps=problem["steps"], batch=given.batch, seed=problem["seed"])[1]  # fmt: skip


class LearningRates(Adapters):
    """The same at three learning rates, shorter, with SGD beside: one seed, reported and not judged."""

    cells = grid(lr=[5e-4, 2e-3, 8e-3])
    contenders = ADAPTERS
    seeds = 1

    def steps(self, inputs: Any) -> int:
        return max(LATE, int(inputs.steps) // 3)


def uniformity(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Medians over adapters by step; the lowest of them by run; Muon against AdamW by pair of adapters and at one loss."""
    import pandas as pd

    steps = rows.groupby(["contender", "seed", "step"], as_index=False)[
        ["flatness", "effective_rank", "loss", "held"]
    ].median()
    runs = steps.groupby(["contender", "seed"], as_index=False).agg(
        low_flatness=("flatness", "min"), low_rank=("effective_rank", "min")
    )
    final = steps[steps["step"] == steps["step"].max()][["contender", "seed", "held"]].rename(
        columns={"held": "final_held"}
    )
    found: dict[str, Any] = {"Medians": steps, "Uniformity": runs.merge(final, on=["contender", "seed"])}
    if {"muon", "adamw"} <= set(rows["contender"]):
        late = rows[rows["step"] >= LATE].pivot_table("flatness", ["seed", "step", "layer"], "contender").reset_index()
        late["flatter"] = (late["adamw"] < late["muon"]).astype(float)
        pairs = late.groupby("seed", as_index=False)["flatter"].mean()
        matched = [{"seed": seed, **_matched(part)} for seed, part in steps.groupby("seed")]
        found |= {"Pairs": pairs, "Matched": pd.DataFrame(matched)}
    return found


def _matched(steps: pd.DataFrame) -> dict[str, float]:
    """Muon's flatness at its end over AdamW's where it first has the same held-out loss (or at its end, if it never has)."""
    muon, adamw = (steps[steps["contender"] == name].sort_values("step") for name in ("muon", "adamw"))
    known = adamw.dropna(subset=["held"])
    loss = float(muon["held"].dropna().iloc[-1])
    times, losses = known["step"].to_numpy(float), np.minimum.accumulate(known["held"].to_numpy(float))
    reached = losses <= loss
    at = float(times[-1])
    if reached.any():
        k = int(reached.argmax())
        at = float(times[k])
        if k and losses[k - 1] > losses[k]:
            at = float(np.interp(loss, [losses[k], losses[k - 1]], [times[k], times[k - 1]]))
    other = float(np.interp(at, adamw["step"], adamw["flatness"]))
    return {
        "flatness_ratio": float(muon["flatness"].iloc[-1]) / other,
        "same_loss": float(reached.any()),
        "at_step": at,
    }
