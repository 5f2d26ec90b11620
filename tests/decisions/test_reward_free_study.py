"""The study of phased exploration at smoke scale, its parts, the command and the example."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from gnomon import catalog
from gnomon.decisions.reward_free.baselines import GenerativeModel, RFExpress
from gnomon.decisions.reward_free.certificate import lock_agents
from gnomon.decisions.reward_free.environments import combination_lock
from gnomon.decisions.reward_free.method import PhasedRewardFree
from gnomon.decisions.reward_free.study.contenders import PAPER, PARALLEL, PHASED
from gnomon.decisions.reward_free.study.experiments import Budgets, Exploring, Large, Locks, Sequential, problem
from gnomon.decisions.reward_free.study.locks import agents_for_half, share_opened
from gnomon.decisions.reward_free.study.material import HORIZONS, WORLDS, adversary, judged, world, worlds
from gnomon.decisions.reward_free.study.person import options
from gnomon.decisions.reward_free.study.tables import exponents, success
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running


def test_smoke_scale_runs_from_end_to_end(tmp_path):
    found = check(catalog.find("reward-free"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v.verdict for v in found.verdicts}
    tables = ("rates", "budgets", "sequential", "certificates")
    assert {verdicts[f"{what}-{t}"] for t in tables for what in ("certificate", "bound")} == {"holds"}
    assert "fails" not in verdicts.values()
    assert found.figure is not None
    gaps = found.tables["Budgets"].groupby(["world", "contender"])["gap"].mean()
    assert gaps["lock", "phased"] == 0 < gaps["lock", "uniform"]
    assert gaps["random", PHASED] < gaps["random", PAPER]
    assert (found.tables["Success"]["runs"] == 40).all()
    assert found.tables["Exponents"]["exponent"].between(0, 2).all()


def test_worlds_and_families_of_rewards():
    rng = np.random.default_rng(0)
    for name in (*WORLDS, "taxi"):
        for mdp in worlds(name, rng):
            assert mdp.horizon == HORIZONS[name]
        assert len(worlds(name, rng)) == (2 if name == "random" else 1)
    at = world(worlds("cliffwalking", rng)[0], rng)
    assert at.rewards.shape == (16, 48, 4, 101)
    assert (at.rewards.min(), at.rewards.max()) == (0, 1)
    assert (at.rewards[..., 51:].sum((0, 1, 2)) == 1).all()
    assert len(np.unique(at.rewards[..., 51:].reshape(-1, 50).argmax(0))) == 50
    small = world(worlds("lock", rng)[0], rng).rewards[..., 51:]  # 72 pairs
    assert small.sum() == 50


def test_the_adversary_finds_what_the_families_miss():
    """It never exceeds the bound, and is at least where it starts."""
    rng = np.random.default_rng(0)
    at = world(worlds("frozenlake 4x4", rng)[0], rng)
    ex = PhasedRewardFree(n_agents=100, random_state=0).explore(at.mdp)
    row = judged(ex, at)
    assert row["gap"] <= row["adversarial"] + 1e-12 <= row["worst"] + 2e-12 <= row["bound"] + 3e-12
    assert row["adversarial"] > 1.05 * row["gap"]
    assert adversary(at.mdp, at.mdp, at.rewards[..., 0]) == 0
    assert judged(GenerativeModel(10**6, random_state=0).explore(at.mdp), at)["worst"] < 0.02


def test_equal_totals():
    total = 12 * 100
    for make in PARALLEL.values():
        ex = make(total, 12, 0)
        assert getattr(ex, "n_trajectories", None) == total or ex.n_agents * (ex.n_phases or 12) == total
    assert [PARALLEL[n](total, 12, 0).n_phases for n in ("uniform", "2 phases", "H/2 phases")] == [1, 2, 6]


def test_the_search_for_the_agents_that_open_half():
    rng = np.random.default_rng(0)
    found, fewest = agents_for_half(4, 2, 2, 200, rng, reuse=False)
    assert fewest - 1 <= found <= fewest
    assert found == pytest.approx(lock_agents(2, [2, 2]), rel=0.25)
    assert agents_for_half(4, 2, 4, 20, rng, reuse=False)[1] == 3  # whole agents: 2 never open it, 3 always do
    assert share_opened(3, 2, 3, 4, 20, rng, reuse=False) == 1


def test_derived_tables():
    rows = pd.DataFrame({"what": ["share", "share", "root", "root"], "A": 2, "rho": [2, 2, 2, 4], "contender": PAPER, "seed": [0, 1, 0, 0],
                         "m": [10, 10, np.nan, np.nan], "runs": [50, 50, np.nan, np.nan], "share": [0.4, 0.6, np.nan, np.nan],
                         "expected": [0.6, 0.6, np.nan, np.nan], "agents": [np.nan, np.nan, 64, 8.0], "length": [np.nan, np.nan, 6, 3]})  # fmt: skip
    pooled = success(rows)
    assert pooled["share"].tolist() == [0.5]
    assert pooled["z"].tolist() == pytest.approx([-0.1 / np.sqrt(0.24 / 100)])
    assert exponents(rows)["exponent"].tolist() == pytest.approx([1.0])


def test_the_scale_of_a_bonus_is_chosen_where_it_is_not_judged():
    inputs = catalog.find("reward-free").study().Inputs.at("smoke")
    cell = Cell({"world": "riverswim", "agents": 20}, 0)
    made = Sequential().prepare(inputs, cell, np.random.default_rng(0))
    assert set(made.scales) == {"rf-ucrl", "rf-express", "ucbvi-zero"}
    made.scales["rf-express"] = 0.01
    (row,) = Sequential().measure(made, Sequential.contenders["rf-express"], np.random.default_rng(0))
    assert (row["scale"], row["trials"], row["trajectories"]) == (0.01, 4, 240)
    again = RFExpress(240, scale=0.01, random_state=np.random.default_rng(0)).explore(made.found[0].mdp)
    assert judged(again, made.found[0])["worst"] == row["worst"]


def test_scales_and_a_contender_of_ones_own():
    study = catalog.find("reward-free").study()
    laptop, extended = (study.Inputs.at(s) for s in ("laptop", "extended"))
    big = Cell({"world": "lock", "agents": 10_000}, 0)
    assert not Budgets().includes(laptop, big, "2 phases")
    assert Budgets().includes(extended, big, "2 phases")
    assert Budgets().includes(laptop, big, "mine")
    assert not Locks().includes(laptop, Cell({"A": 2, "rho": 2}, 0), "mine")

    def mine(total, H, seed):
        return PhasedRewardFree(2, total // 2, random_state=seed)

    (row,) = Exploring().measure(problem("lock", 600, np.random.default_rng(0)), mine, np.random.default_rng(0))
    assert row["phases"] == 2


def test_taxi_is_kept_sparse():
    rng = np.random.default_rng(0)
    (row,) = Large().measure(problem("taxi", 15 * 2000, rng), PARALLEL["uniform"], rng)
    assert 0 < row["worst"] <= row["bound"] <= 15


@pytest.fixture
def robot(tmp_path):
    """Where the command and the example find their input: six rooms in a row, and a motor that slips."""
    here, P = np.arange(6), np.zeros((6, 2, 6))
    P[here, 0, np.maximum(here - 1, 0)] = 1
    P[here, 1, np.minimum(here + 1, 5)] = 0.9
    P[here, 1, here] += 0.1
    np.savez(tmp_path / "robot.npz", transitions=P, initial=np.eye(6)[0])
    reward = np.zeros((6, 2))
    reward[5] = 2.0
    np.save(tmp_path / "reward.npy", reward)
    return tmp_path


def test_command(robot, command_line):
    study = catalog.find("reward-free").study()
    words = study.command.split()[1:]
    code, shown, _ = command_line(robot, *words, "--beside", "--figure", "out.svg")
    assert code == 0
    for text in ("16 states, 4 actions, 12 steps; 60,000 episodes in 12 phases", "agents needed", "for every reward in [0, 1]",
                 "likeliest state", "of the best policy 0.06849", "6 phases", "1 phase", "pairs visited"):  # fmt: skip
        assert text in shown, text
    with np.load(robot / "model" / "model.npz") as kept:
        rows = kept["transitions"]
        assert rows[:, 4].sum() == 60_000 * 12
        first = rows[:, 0] == 0
        assert kept["probability"][first].sum() == pytest.approx(len(np.unique(rows[first, 1:3], axis=0)))
        assert kept["policy"].shape == (12, 16)
    assert json.loads((robot / "model" / "summary.json").read_text())["phases"] == 12
    assert len(pd.read_csv(robot / "model" / "phases.csv")) == 12
    assert (robot / "out.svg").stat().st_size > 1000
    assert command_line(robot, *words)[0] == 2  # nothing is overwritten


def test_command_on_a_table_and_on_samples(robot, command_line):
    code, shown, _ = command_line(robot, "run", "reward-free", "--mdp", "robot.npz", "--horizon", "8", "--reward", "reward.npy",
                                  "--phases", "4", "--agents", "4000", "--own-data")  # fmt: skip
    assert code == 0
    assert "robot.npz: 6 states, 2 actions, 8 steps; 16,000 episodes in 4 phases" in shown
    assert "of the best policy 4.901" in shown
    code, shown, _ = command_line(robot, "run", "reward-free", "--sampled", "--horizon", "3", "--agents", "64",
                                  "--options", "is_slippery=false")  # fmt: skip
    assert code == 0
    assert "only sampled: 16 states, 4 actions, 3 steps; 192 episodes in 3 phases" in shown
    assert "best policy" not in shown
    assert "too few agents" not in shown
    code, shown, _ = command_line(robot, "run", "reward-free", "--agents", "20")
    assert code == 0
    assert "some state and action that can be reached was never tried" in shown


def test_example(robot):
    study = catalog.find("reward-free").study()
    words = [sys.executable, "-W", "ignore", "-c", study.example]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=robot)
    assert done.returncode == 0, done.stderr
    assert "certificate" in done.stdout
    assert (
        "first action 1, value 0.5" in done.stdout
    )  # to the right: the last room in five steps that do not slip, .9^5 = .59


@pytest.mark.parametrize(("line", "message"), [
    ("--env CartPole-v1", "tabular only: the observation space is Box"),
    ("--env Nope-v0", "gymnasium cannot make 'Nope-v0'"),
    ("--options map_size=4", "gymnasium cannot make 'FrozenLake-v1' with {'map_size': 4}"),
    ("--options map", "expected name=value"),
    ("--phases 13", "n_phases 13: expected a whole number from 1 to the horizon 12"),
    ("--mdp none.npz", "none.npz is no file"),
    ("--mdp other.npz", "other.npz has no array initial and transitions; it has P"),
    ("--reward reward.npy", r"reward: shape (6, 2), expected (16, 4) or (12, 16, 4)"),
    ("--eps 0", "greater than 0"),
])  # fmt: skip
def test_mistakes_on_the_command_line(robot, command_line, line, message):
    np.savez(robot / "other.npz", P=np.eye(2))
    code, _, wrong = command_line(robot, "run", "reward-free", *line.split())
    assert code == 2
    assert message in " ".join(wrong.split())


def test_options_are_read_as_what_they_are():
    assert options("map_name=8x8,is_slippery=False, n=3,p=0.5") == {
        "map_name": "8x8",
        "is_slippery": False,
        "n": 3,
        "p": 0.5,
    }
    assert options("") == {}
    assert combination_lock(2, 2, 0).secret_.shape == (2,)
