"""GeoSPRINT's samplers beside diffusers' DDIM, DPM-Solver++ and UniPC in one run; and Gram-Schmidt beside LAPACK's QR.

    python benchmarks/sampling/bench_geosprint.py [--json FILE]

A ratio is a time over that of this implementation. One thread for all, processor time.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from gnomon.sampling import GeoSprint, ProfileStream, ddim_sample, dpm_solver_pp
from gnomon.sampling.geosprint.baselines import diffusers_sample, leading_steps, linspace_steps
from gnomon.sampling.geosprint.hyperplanarity import residuals
from gnomon.sampling.geosprint.reference import profile_by_qr
from gnomon.sampling.geosprint.study.worlds import VP, unet
from gnomon.study import bench


def timed(calls: dict[str, Any], repeats: int) -> dict[str, float]:
    return bench.seconds(calls, repeats, clock="cpu")  # one thread: what other processes do then counts little


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

    times = timed({
        "gnomon DDIM": lambda: ddim_sample(net, x, leading_steps(VP, n), VP),
        "gnomon DDIM, GeoSPRINT steps": lambda: ddim_sample(net, x, gs.timesteps_, VP),
        "gnomon scheduler in a diffusers loop": adapted,
        "gnomon DPM-Solver++ 2M": lambda: dpm_solver_pp(net, x, listed, VP),
        "diffusers DDIM": ddim,
        "diffusers DPM-Solver++ 2M": lambda: diffusers_sample(DPMSolverMultistepScheduler(solver_order=2), net, x, listed),
        "diffusers UniPC": lambda: diffusers_sample(UniPCMultistepScheduler(), net, x, listed),
    }, 7)  # fmt: skip
    ours = {name: "gnomon DPM-Solver++ 2M" if "DPM" in name or "UniPC" in name else "gnomon DDIM" for name in times}
    return [{"name": f"{name}, {n} calls, per image", "value": seconds / images, "unit": "s",
             "ratio": None if name == ours[name] else seconds / times[ours[name]]} for name, seconds in times.items()]  # fmt: skip


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
        times = timed({"gnomon": lambda: ddim_sample(free, x, leading_steps(VP, n), VP), "diffusers": ddim,
                             "network": lambda: net(x, 10)}, 15)  # fmt: skip
    more = (times["gnomon"] - times["diffusers"]) / n / times["network"]
    return [
        {"name": "gnomon DDIM, sampler alone, per step", "value": times["gnomon"] / n, "unit": "s", "ratio": None},
        {"name": "diffusers DDIM, scheduler alone, per step", "value": times["diffusers"] / n, "unit": "s",
         "ratio": times["diffusers"] / times["gnomon"]},
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
        times = timed({"Gram-Schmidt": lambda s=states: residuals(s, "linear"), "QR": lambda X=X: profile_by_qr(X)}, 7)
        off = float(np.abs(residuals(states, "linear").numpy() - profile_by_qr(X)[-1]).max())
        rows += [
            {"name": f"Gram-Schmidt, d = {d}, {batch} trajectories", "value": times["Gram-Schmidt"], "unit": "s", "ratio": None},
            {"name": f"torch.linalg.qr, d = {d}, {batch} trajectories", "value": times["QR"], "unit": "s",
             "ratio": times["QR"] / times["Gram-Schmidt"]},
            {"name": f"largest difference, d = {d}", "value": off, "unit": "", "ratio": None},
        ]  # fmt: skip
    net, x = unet().eval(), torch.randn(64, 1, 16, 16)
    stream = ProfileStream()
    for _ in range(3):
        stream.update(torch.randn(64, 256))
    with torch.no_grad():
        state = torch.randn(64, 256)
        times = timed({"test": lambda: stream.update(state + 1), "network": lambda: net(x, 10)}, 9)
    rows.append({"name": "test / network call, U-Net, 64 trajectories (target: at most 0.02)",
                 "value": times["test"] / times["network"], "unit": "", "ratio": None})  # fmt: skip
    return rows


def main() -> None:
    options = bench.parser(__file__, __doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = bench.Table()
    for row in [*samplers(), *overhead(), *tests()]:
        table.add(**row)
    table.save(options.json)


if __name__ == "__main__":
    main()
