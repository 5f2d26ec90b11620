"""GeoSPRINT's samplers beside diffusers' DDIM, DPM-Solver++ and UniPC in one run; and Gram-Schmidt beside LAPACK's QR.

    python benchmarks/sampling/bench_geosprint.py [--json FILE]

A ratio is this implementation over the peer: below 1 it is faster. One thread for all.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from gnomon.sampling import GeoSprint, ProfileStream, ddim_sample, dpm_solver_pp
from gnomon.sampling.geosprint.baselines import diffusers_sample, leading_steps, linspace_steps
from gnomon.sampling.geosprint.hyperplanarity import residuals
from gnomon.sampling.geosprint.reference import profile_by_qr
from gnomon.sampling.geosprint.study.worlds import VP, unet

ROOT = Path(__file__).resolve().parents[1]


def interleaved(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Least CPU seconds of each call on one thread, every one in turn: what other processes do then counts little."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: float(np.min(t)) for name, t in times.items()}


def by_diffusers(scheduler: Any, net: Any, x: torch.Tensor) -> torch.Tensor:
    """The loop of a diffusers pipeline."""
    with torch.no_grad():
        for t in scheduler.timesteps:
            x = scheduler.step(net(x, t).sample, t, x, return_dict=False)[0]
    return x


def samplers(n: int = 10, images: int = 8) -> list[dict[str, Any]]:
    """Time per image at equal numbers of calls, small U-Net at 16 x 16."""
    from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, UniPCMultistepScheduler

    net, x = unet().eval(), torch.randn(images, 1, 16, 16)
    gs = GeoSprint(n, n_pilot=2, grid=51).fit(net, VP, (1, 16, 16))
    listed = linspace_steps(VP, n)

    def ddim() -> Any:
        scheduler = DDIMScheduler(clip_sample=False)
        scheduler.set_timesteps(n)
        return by_diffusers(scheduler, net, x)

    def adapted() -> Any:
        scheduler = gs.as_scheduler(DDIMScheduler())
        scheduler.set_timesteps(n)
        return by_diffusers(scheduler, net, x)

    times = interleaved({
        "gnomon DDIM": lambda: ddim_sample(net, x, leading_steps(VP, n), VP),
        "gnomon DDIM, GeoSPRINT steps": lambda: ddim_sample(net, x, gs.timesteps_, VP),
        "gnomon scheduler in a diffusers loop": adapted,
        "gnomon DPM-Solver++ 2M": lambda: dpm_solver_pp(net, x, listed, VP),
        "diffusers DDIM": ddim,
        "diffusers DPM-Solver++ 2M": lambda: diffusers_sample(DPMSolverMultistepScheduler(solver_order=2), net, x, listed),
        "diffusers UniPC": lambda: diffusers_sample(UniPCMultistepScheduler(), net, x, listed),
    }, 7)  # fmt: skip
    peer = {name: times["diffusers DPM-Solver++ 2M" if "DPM" in name else "diffusers DDIM"] for name in times}
    return [{"name": f"{name}, {n} calls, per image", "value": seconds / images, "unit": "s",
             "ratio": seconds / peer[name] if name.startswith("gnomon") else None} for name, seconds in times.items()]  # fmt: skip


def overhead(n: int = 50) -> list[dict[str, Any]]:
    """Per step beside a network that costs nothing: what the sampler itself takes, and as a share of the U-Net's call."""
    from diffusers import DDIMScheduler

    x = torch.randn(16, 1, 16, 16)
    net = unet().eval()
    free = lambda x, t: x  # noqa: E731

    def ddim() -> torch.Tensor:
        scheduler, y = DDIMScheduler(clip_sample=False), x
        scheduler.set_timesteps(n)
        with torch.no_grad():
            for t in scheduler.timesteps:
                y = scheduler.step(y, t, y, return_dict=False)[0]
        return y

    with torch.no_grad():
        times = interleaved({"gnomon": lambda: ddim_sample(free, x, leading_steps(VP, n), VP), "diffusers": ddim,
                             "network": lambda: net(x, 10)}, 15)  # fmt: skip
    more = (times["gnomon"] - times["diffusers"]) / n / times["network"]
    return [
        {"name": "gnomon DDIM, sampler alone, per step", "value": times["gnomon"] / n, "unit": "s",
         "ratio": times["gnomon"] / times["diffusers"]},
        {"name": "diffusers DDIM, scheduler alone, per step", "value": times["diffusers"] / n, "unit": "s", "ratio": None},
        {"name": "gnomon over diffusers per step, as a share of a U-Net call (target: at most 0.02)", "value": more,
         "unit": "", "ratio": None},
    ]  # fmt: skip


def tests() -> list[dict[str, Any]]:
    """One hyperplanarity test of a batch, and a whole profile, by Gram-Schmidt and by torch.linalg.qr."""
    rows = []
    for d, batch in ((256, 64), (3072, 16), (196_608, 4)):
        states = [torch.randn(batch, d)]
        for _ in range(2):
            states.append(states[-1] + 0.05 * torch.randn(batch, d))
        X = torch.stack(states)
        times = interleaved(
            {"Gram-Schmidt": lambda s=states: residuals(s, "linear"), "QR": lambda X=X: profile_by_qr(X)}, 7
        )
        off = float(np.abs(residuals(states, "linear").numpy() - profile_by_qr(X)[-1]).max())
        rows += [
            {"name": f"Gram-Schmidt, d = {d}, {batch} trajectories", "value": times["Gram-Schmidt"], "unit": "s",
             "ratio": times["Gram-Schmidt"] / times["QR"]},
            {"name": f"torch.linalg.qr, d = {d}, {batch} trajectories", "value": times["QR"], "unit": "s", "ratio": None},
            {"name": f"largest difference, d = {d}", "value": off, "unit": "", "ratio": None},
        ]  # fmt: skip
    net, x = unet().eval(), torch.randn(64, 1, 16, 16)
    stream = ProfileStream()
    for _ in range(3):
        stream.update(torch.randn(64, 256))
    with torch.no_grad():
        state = torch.randn(64, 256)
        times = interleaved({"test": lambda: stream.update(state + 1), "network": lambda: net(x, 10)}, 9)
    rows.append({"name": "test / network call, U-Net, 64 trajectories (target: at most 0.02)",
                 "value": times["test"] / times["network"], "unit": "", "ratio": None})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "sampling" / "geosprint.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [*samplers(), *overhead(), *tests()]
    for row in rows:
        ratio = "" if row["ratio"] is None else f"   {row['ratio']:.3f} x the peer"
        print(f"{row['name']:<90} {row['value']:.4g} {row['unit']}{ratio}")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
