"""GeoSPRINT's study from end to end at smoke scale; using it from the command line and from a file; its small worlds."""

from __future__ import annotations

import json
import shlex
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gnomon import catalog, cli
from gnomon.sampling import GeoSprint, NoiseSchedule
from gnomon.sampling.geosprint.study import worlds
from gnomon.sampling.geosprint.study.distances import frechet, mmd
from gnomon.study.check import check
from gnomon.study.runner import Running


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """Where the command and the example find their input."""
    from diffusers import DDIMPipeline, DDPMScheduler, UNet2DModel

    folder = tmp_path_factory.mktemp("person")
    torch.manual_seed(0)
    net = UNet2DModel(sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8),
                      down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2, norm_num_groups=4,
                      add_attention=False)  # fmt: skip
    DDIMPipeline(net, DDPMScheduler()).save_pretrained(folder / "pipeline")
    states = np.random.default_rng(0).normal(size=(31, 4, 3, 2)).cumsum(0)
    np.save(folder / "x.npy", states)
    np.save(folder / "pickle.npy", np.array([{}], object), allow_pickle=True)
    return folder


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    running = Running(jobs=1, results=tmp_path_factory.mktemp("results"))
    return check(catalog.find("geosprint"), scale="smoke", running=running)


@pytest.fixture
def gnomon(pipeline, monkeypatch, capsys):
    """The command line in this process (torch is loaded but once): exit code, output and errors of a line."""

    def call(line):
        monkeypatch.chdir(pipeline)
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return SimpleNamespace(
            returncode=stop.value.code or 0, **dict(zip(("stdout", "stderr"), capsys.readouterr(), strict=True))
        )

    return call


def test_smoke_scale_runs_from_end_to_end(smoke):
    verdicts = {v.id: v.verdict for v in smoke.verdicts}
    for name in ("same-calls", "same-calls-mnist", "pilot-calls", "amortised", "amortised-cheap"):
        assert verdicts[name] == "holds", name
    assert "fails" not in verdicts.values()
    assert smoke.figure is not None
    digits = smoke.tables["Digits"]
    assert len(set(digits["contender"])) == 25
    assert np.isfinite(digits[["fd", "rmse", "mmd"]].to_numpy(float)).all()
    means = digits.groupby("contender")["fd"].mean()
    assert means["geosprint"] < means["uniform"]
    assert len(smoke.tables["Models"]) == 12
    profile = smoke.tables["Profiles"]
    exact = profile[profile["world"] == "mixture"].sort_values("t")
    assert exact["r"].iloc[:5].mean() > exact["r"].iloc[-5:].mean()  # bends at the low-noise end


def test_command(pipeline, gnomon):
    study = catalog.find("geosprint").study()
    done = gnomon(study.command)
    assert done.returncode == 0, done.stderr
    for text in ("alpha_traj", "NFE 12; pilot NFE 200", "mean r", "redundant"):
        assert text in done.stdout, text
    kept = json.loads((pipeline / "out" / "steps.json").read_text())
    assert len(kept) == 12
    assert (kept[0], kept[-1]) == (999, 0)
    assert len((pipeline / "out" / "profile.csv").read_text().splitlines()) == 51
    assert (pipeline / "profile.svg").stat().st_size > 1000
    again = gnomon(study.command)
    assert again.returncode == 2
    assert "exists" in again.stderr


def test_example(pipeline, monkeypatch, capsys):
    monkeypatch.chdir(pipeline)
    exec(catalog.find("geosprint").study().example, {})
    assert capsys.readouterr().out.strip().endswith("(1, 8, 8, 1) 999 0 200")


def test_trajectories_from_a_file(pipeline, gnomon):
    done = gnomon("gnomon run geosprint --trajectories x.npy --nfe 8 --rule prune --beside --json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    want = GeoSprint(8, rule="prune").fit_trajectories(np.load(pipeline / "x.npy")).timesteps_
    assert shown["steps"] == ", ".join(map(str, want))
    assert "no pilot was run" in shown["straightness and cost"]
    assert [row["schedule"] for row in shown["beside"]] == ["geosprint", "uniform", "quadratic"]
    assert sum(row["steps"] for row in shown["where the trajectories bend"]) == 8


def test_own_model_beside_other_steps(pipeline):
    study = catalog.find("geosprint").study()
    inputs = study.Run(model=str(pipeline / "pipeline"), nfe=5, n_pilot=2, grid=21)
    outcome = study().run(inputs, beside=True)
    assert all(found.error > 0 for found in outcome.results.values())
    assert "RMSE to the fine grid" in study().present(outcome)["beside"]


@pytest.mark.parametrize(("line", "message"), [
    ("", "give --model or --trajectories"),
    ("--trajectories none.npy", "an .npy file that exists"),
    ("--trajectories pickle.npy", "cannot be read as .npy"),
    ("--trajectories x.npy --nfe 1001", "n_steps: got 1001 with 1000 training steps"),
    ("--trajectories x.npy --rule prune --nfe 40", "n_steps: got 40 with 31 states"),
    ("--model nowhere", "nowhere cannot be loaded"),
])  # fmt: skip
def test_mistakes_on_the_command_line(gnomon, line, message):
    done = gnomon(f"gnomon run geosprint {line}")
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())


def test_the_paper_scale_needs_a_model(pipeline):
    study = catalog.find("geosprint").study()
    with pytest.raises(ValueError, match="needs your own diffusers pipeline"):
        study.Inputs.at("paper")
    with pytest.raises(ValueError, match="the others take none"):
        study.Inputs.at("laptop", model=str(pipeline / "pipeline"))


# --- the small worlds ------------------------------------------------------------------------------------------------


def test_the_mixture_predicts_its_own_noise():
    """epshat = -s grad log p_t, against automatic differentiation of the noised density."""
    rng = np.random.default_rng(0)
    weights = {
        "weights": np.array([0.3, 0.7]),
        "means": rng.normal(size=(2, 3)),
        "variances": rng.uniform(0.1, 1, (2, 3)),
    }
    world = worlds.mixture_world(weights)
    for t in (0, 300, 999):
        a, s = worlds.VP.data[t], worlds.VP.noise[t]
        parts = torch.distributions.Independent(torch.distributions.Normal(
            a * torch.from_numpy(weights["means"]), (a * a * torch.from_numpy(weights["variances"]) + s * s).sqrt()), 1)  # fmt: skip
        density = torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(torch.from_numpy(weights["weights"])), parts
        )
        x = torch.from_numpy(rng.normal(size=(5, 3))).requires_grad_()
        (gradient,) = torch.autograd.grad(density.log_prob(x).sum(), x)
        torch.testing.assert_close(world(x.detach(), torch.full((5,), t)), -s * gradient)
    assert world.calls == 3


def test_distances():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2))
    assert frechet(x, x) < 1e-9
    assert frechet(x, x + [3, 4]) == pytest.approx(25)
    assert frechet(x, 2 * x) == pytest.approx((x.std(0, ddof=1) ** 2).sum(), rel=0.02)
    y = rng.normal(size=(300, 2))
    assert abs(mmd(x[:300], y)) < 0.2
    assert mmd(x[:300], y + 1) > 0.5


def test_flows_reach_the_data_and_digits_are_whole():
    flows = worlds.train_flows(64, 0, pairs=200)
    assert sorted(flows["1-RF"]) == sorted(flows["2-RF"]) == [2, 4, 8, 16, 32, 64]
    path = worlds.flow_path(flows["2-RF"][64], torch.randn(5, 64), 10)
    assert path.shape == (11, 5, 64)
    x, y = worlds.mnist16()
    assert x.shape == (5000, 1, 16, 16)
    assert (x.min(), x.max()) == (-1, 1)
    assert set(np.bincount(y.numpy())) == {500}
    assert sum(p.numel() for p in worlds.unet().parameters()) == 263_025


def test_unipc_reads_the_schedule_of_the_world():
    """The betas that are handed to diffusers give the schedule back."""
    from diffusers import UniPCMultistepScheduler

    abar = worlds.VP.data**2
    scheduler = UniPCMultistepScheduler(1000, trained_betas=1 - abar / np.concatenate([[1.0], abar[:-1]]))
    np.testing.assert_allclose(scheduler.alphas_cumprod, abar, rtol=1e-4)
    assert len(NoiseSchedule.read(scheduler)) == 1000
