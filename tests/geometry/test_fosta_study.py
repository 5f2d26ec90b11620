"""The study of FoSTA at smoke scale, its pairs, baselines, cells and scores, the command and the example."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shlex
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from gnomon import catalog, cli
from gnomon.geometry.fosta import baselines, cells, splits
from gnomon.geometry.fosta.metrics import label_transfer
from gnomon.geometry.fosta.study import FoSTAStudy, experiments, person, tables
from gnomon.study import Cell
from gnomon.study.check import check
from gnomon.study.runner import Running

SYSTEM = catalog.find("fosta")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    return check(SYSTEM, scale="smoke", running=Running(jobs=1, results=tmp_path_factory.mktemp("results")))


def test_smoke_runs_and_its_identities_hold(smoke):
    verdicts = {v.id: v.verdict for v in smoke.verdicts}
    assert verdicts["bijection"] == "holds"
    assert not [name for name, verdict in verdicts.items() if verdict == "fails"]
    assert set(verdicts) == {c.id for c in FoSTAStudy.claims}
    assert smoke.figure.startswith("<?xml")


def test_derived_tables_on_hand_made_numbers():
    rows = [{"table": "wine", "split": split, "seed": s, "contender": c, "foscttm": f}
            for s in range(2) for split, c, f in (("noise", "fosta", 0.1), ("noise", "MALI", 0.2), ("noise", "Euclidean", 0.3),
                                                  ("random", "fosta", 0.2), ("random", "MALI", 0.19), ("random", "Euclidean", 0.3))]  # fmt: skip
    sweep = [{"table": "wine", "seed": 0, "multiple": m, "contender": c, "transfer": t}
             for m, c, t in ((0, "fosta", 0.9), (0, "Euclidean", 0.95), (4, "fosta", 0.9), (4, "Euclidean", 0.7))]  # fmt: skip
    scarce = [{"table": "wine", "seed": 0, "share": s, "transfer": t} for s, t in ((0.2, 0.95), (0.5, 0.9), (0.8, 0.8))]
    costs = [
        {"vectors": "dirichlet", "n": 9, "seed": 0, "contender": c, "cost": x}
        for c, x in (("hiref", 6.0), ("exact", 5.0))
    ]
    found = tables.derived({"Splits": pd.DataFrame(rows), "Sweep": pd.DataFrame(sweep), "Scarcity": pd.DataFrame(scarce),
                            "Refinement": pd.DataFrame(costs)})  # fmt: skip
    np.testing.assert_allclose(found["Correspondence"].set_index("split")["room"][["noise", "random"]], [0.105, -0.005])
    np.testing.assert_allclose(found["Advantage"]["advantage"], [-0.05, 0.2])
    np.testing.assert_allclose(found["Drops"]["drop"], 0.15)
    np.testing.assert_allclose(found["Excess"]["ratio"], 1.2)


# --- pairs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", splits.SPLITS)
def test_splits(split):
    rng = np.random.default_rng(0)
    X, y = splits.table("wine", rng)
    A, B = splits.divided(X, y, split, rng)
    assert len(A) == len(B) == 178
    if split == "noise":
        np.testing.assert_array_equal(A, B[:, :13])
        assert 13 / B.shape[1] == pytest.approx(splits.SIGNAL_SHARE, abs=0.01)
    elif split == "rotate":
        np.testing.assert_allclose(A @ A.T, B @ B.T, atol=1e-10)
    elif split == "distort":
        assert (B - A).std() == pytest.approx(0.5, abs=0.02)
    else:
        columns = {tuple(c) for c in A.T} | {tuple(c) for c in B.T}
        assert columns == {tuple(c) for c in X.T}
        assert A.shape[1] + B.shape[1] == 13
    if split == "importance":
        assert label_transfer(A[::2], y[::2], A[1::2], y[1::2]) > label_transfer(B[::2], y[::2], B[1::2], y[1::2])


def test_masks_leave_two_of_each_class():
    y = np.repeat([0, 1, 2], (50, 46, 4))
    for seed in range(20):
        labels, hidden = splits.masked(y, 0.9, np.random.default_rng(seed))
        np.testing.assert_array_equal(np.isnan(labels), hidden)
        assert np.bincount(y[~hidden]).min() >= 2


def test_thinning_keeps_a_fifth_of_one_class():
    pair = splits.pair("digits", "noise", np.random.default_rng(0))
    thin = splits.thinned(pair, np.random.default_rng(1))
    before, after = np.bincount(pair.truth_b), np.bincount(thin.truth_b)
    (rare,) = np.flatnonzero(before != after)
    assert after[rare] == pytest.approx(0.2 * before[rare], abs=1)
    assert not thin.paired
    np.testing.assert_array_equal(np.isnan(thin.yB), thin.hidden)


def test_gradient_histograms_tell_directions():
    stripes = np.zeros((2, 28, 28))
    stripes[0] = np.arange(28)[:, None] % 14 / 14
    stripes[1] = np.arange(28)[None] % 14 / 14
    H = splits.gradient_histograms(stripes).reshape(2, 16, 8).sum(1)
    assert H[0].argmax() == 4  # a quarter turn
    assert H[1].argmax() == 0 or H[1].argmax() == 7
    assert splits.images(np.random.default_rng(0), 60).XB.shape == (60, 128)


# --- baselines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in baselines.ALIGNERS if n not in ("GW", "random coupling")])
def test_every_aligner_carries_labels(name):
    """Far above the share of the largest class, 1/3, on the turned iris data."""
    pair = splits.pair("iris", "rotate", np.random.default_rng(0))
    shared = {"n_estimators": 60} if name in baselines.FORESTED else {}
    Z = baselines.ALIGNERS[name](pair.XA, pair.XB, pair.yA, pair.yB, n_components=3, random_state=0, **shared)
    assert len(Z) == 300
    assert np.isfinite(Z).all()
    assert label_transfer(Z[:150], pair.yA, Z[150:][pair.hidden], pair.truth_b[pair.hidden]) > 0.6


def test_gromov_matches_a_turned_copy_and_partial_keeps_its_mass():
    X = np.random.default_rng(0).gamma(1.0, size=(40, 2))
    C = baselines.geodesic(X)
    plan = baselines.partial_gromov(C, C, 1 - np.eye(40), 0.8)
    assert plan.sum() == pytest.approx(0.8)
    assert (plan >= 0).all()
    assert plan.sum(1).max() <= 1 / 40 + 1e-9
    assert np.trace(plan) == pytest.approx(0.8, abs=0.05)  # the prior says who is who
    pair = splits.pair("iris", "rotate", np.random.default_rng(0))
    assert baselines.gromov(pair.XA, pair.XB, pair.yA, pair.yB, n_components=2, random_state=0).shape == (300, 2)


def test_procrustes_undoes_a_turn():
    X, y = load_wine(return_X_y=True)
    X = splits.standardised(X)[:, :3]
    turned = 2 * X @ np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0] + 5
    Z = baselines.procrustes(X, turned, y, y, n_components=3, random_state=0)
    centres = [[half[y == c].mean(0) for c in range(3)] for half in (Z[:178], Z[178:])]
    np.testing.assert_allclose(*centres, atol=1e-8)


# --- cells -----------------------------------------------------------------------------------------------------------


def test_simulated_batches():
    batches = cells.simulated(np.random.default_rng(0))
    second = batches.batch == 1
    assert not (batches.truth[second] == cells.ABSENT).any()
    assert (batches.truth[~second] == cells.ABSENT).any()
    np.testing.assert_array_equal([t is None for t in batches.given], batches.scored)
    assert batches.scored.mean() == pytest.approx(0.5, abs=0.01)
    assert abs(batches.X[second].mean() - batches.X[~second].mean()) > 0.05


def test_marker_types_by_hand():
    genes = np.array([g for gs in cells.MARKERS.values() for g in gs])
    kinds = list(cells.MARKERS)
    X = np.stack([np.isin(genes, cells.MARKERS[k]) * 3.0 for k in kinds] * 3)
    found, margin = cells.marker_types(X, genes)
    assert list(found) == kinds * 3
    assert (margin > 1).all()


@pytest.mark.skipif(not (Path(os.environ.get("GNOMON_DATA", "none")) / "fosta/immune_559.npz").is_file(),
                    reason="needs fosta/immune_559.npz under GNOMON_DATA")  # fmt: skip
def test_real_batches_keep_labels_back():
    batches = cells.real(np.random.default_rng(0))
    assert batches.X.shape == (1259, 764)
    assert batches.batch.sum() == 559
    assert all(t is None for t in batches.given[batches.scored])
    assert {t for t in batches.given if t is not None} == set(cells.MARKERS)
    row = experiments.SecondBatch().measure((batches, 60), cells.uncorrected, None)[0]
    assert row["real_mixing"] < 0.2


def test_scores_of_mixed_and_parted_batches():
    rng = np.random.default_rng(0)
    kind, batch = np.arange(400) % 2, np.arange(400) // 2 % 2
    everything = np.ones(400, dtype=bool)
    mixed = rng.normal(size=(400, 3)) + 8 * kind[:, None] * [1, 0, 0]
    parted = mixed + 30 * batch[:, None] * [0, 1, 0]
    good, bad = (cells.integration_scores(Z, batch, kind, everything) for Z in (mixed, parted))
    assert good["nmi"] == good["ari"] == 1
    assert good["clisi"] == pytest.approx(1, abs=0.02)
    assert good["ilisi"] > 0.8
    assert bad["ilisi"] == pytest.approx(0, abs=0.02)
    assert good["silhouette_batch"] > 0.9 > bad["silhouette_batch"]
    assert good["aggregate"] == pytest.approx(0.4 * good["mixing"] + 0.6 * good["biology"])
    assert cells.separation(mixed, kind.astype(str), "1") > 0.5


def test_connectivity_by_hand():
    line = np.array([[0.0], [1], [2], [100], [101], [102]])
    assert cells.graph_connectivity(line, np.zeros(6), 2) == 0.5
    assert cells.graph_connectivity(line, np.array([0, 0, 0, 1, 1, 1]), 2) == 1


@pytest.mark.parametrize("name", ["harmony", "combat", "scanorama"])
def test_corrections_mix_batches(name):
    if name == "scanorama" and importlib.util.find_spec(name) is None:
        pytest.skip("scanorama is not installed")
    batches = cells.simulated(np.random.default_rng(0))
    Z = cells.CORRECTIONS[name](batches)
    assert Z.shape == (len(batches.X), cells.COMPONENTS)
    assert cells.lisi(Z, batches.batch, 90) > cells.lisi(cells.uncorrected(batches), batches.batch, 90) + 0.2


def test_fosta_on_cells_and_images_at_small_scale():
    inputs = FoSTAStudy.Inputs(n_estimators=50, images=150)
    pair, trees = experiments.Images().prepare(inputs, Cell({"modality": "x"}, 0), np.random.default_rng(0))
    (row,) = experiments.Images().measure((pair, trees), baselines.fosta, np.random.default_rng(0))
    assert row["transfer"] > 0.4
    few = experiments.SingleCell().prepare(inputs, Cell({"effect": "simulated"}, 0), np.random.default_rng(0))
    (row,) = experiments.SingleCell().measure(few, cells.fosta, np.random.default_rng(0))
    assert row["separation"] > 0


def test_refinement_on_real_vectors():
    cell = Cell({"vectors": "digits", "n": 150}, 0)
    both, seed = experiments.Refinement().prepare(FoSTAStudy.Inputs(), cell, np.random.default_rng(0))
    rows = {
        n: experiments.Refinement().measure((both, seed), c, None)[0]
        for n, c in experiments.Refinement.contenders.items()
    }
    assert all(r["permutation"] for r in rows.values())
    assert rows["hiref"]["cost"] >= rows["exact"]["cost"] - 1e-9


# --- gnomon run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    X, y = load_wine(return_X_y=True)
    kind = np.array(["barolo", "grignolino", "barbera"], dtype=object)[y]
    pd.DataFrame(X[:, :6], columns=list("abcdef")).assign(kind=kind).to_csv(tmp_path / "a.csv", index=False)
    kind[np.random.default_rng(0).random(178) < 0.5] = ""
    pd.DataFrame(X[:, 6:], columns=list("ghijklm")).assign(kind=kind).to_csv(tmp_path / "b.csv", index=False)
    return tmp_path


def invoke(words):
    from typer.testing import CliRunner

    return CliRunner().invoke(cli.build(words), words)


def test_command_of_the_page(files, monkeypatch):
    monkeypatch.chdir(files)
    done = invoke([*shlex.split(FoSTAStudy.command)[1:], "--figure", "f.svg", "--save", "out"])
    assert done.exit_code == 0, done.output
    for word in ("alignment score", "labels filled in", "least certain rows", "barolo"):
        assert word in done.output
    assert (files / "f.svg").stat().st_size > 1000
    kept = pd.read_csv(files / "out" / "labels.csv")
    truth = np.array(["barolo", "grignolino", "barbera"])[load_wine(return_X_y=True)[1]]
    b = kept[kept["domain"] == "b"]
    assert np.mean(b["label"].to_numpy() == truth) > 0.85
    assert {"z1", "z2", "share"} <= set(kept)
    from scipy import sparse

    assert sparse.load_npz(files / "out" / "coupling.npz").shape == (178, 178)


def test_run_beside(files):
    outcome = FoSTAStudy().run(
        FoSTAStudy.Run(a=files / "a.csv", b=files / "b.csv", label="kind", n_estimators=60), beside=True
    )
    beside = FoSTAStudy().present(outcome)["beside, on labels held back"].set_index("contender")
    assert set(beside.index) == set(baselines.ALIGNERS)
    assert beside.loc["fosta", "held-out labels"] > 0.8


def test_run_on_cells(tmp_path):
    from anndata import AnnData

    batches = cells.simulated(np.random.default_rng(0))
    rows = np.random.default_rng(1).permutation(len(batches.X))[:260]
    obs = pd.DataFrame({"lab": batches.batch[rows].astype(str), "kind": pd.Categorical(batches.given[rows])},
                       index=[f"c{i}" for i in rows])  # fmt: skip
    AnnData(batches.X[rows][:, :120].astype(np.float32), obs=obs).write_h5ad(tmp_path / "c.h5ad")
    options = FoSTAStudy.Run(h5ad=tmp_path / "c.h5ad", batch_key="lab", label_key="kind", n_estimators=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rare types
        outcome = FoSTAStudy().run(options, beside=True)
    shown = FoSTAStudy().present(outcome)
    assert set(shown["beside, on labels held back"]["contender"]) == {"fosta", "harmony", "combat", "uncorrected"}
    (tmp_path / "out").mkdir()
    FoSTAStudy().save(outcome, tmp_path / "out")
    import anndata

    kept = anndata.read_h5ad(tmp_path / "out" / "aligned.h5ad")
    assert kept.obsm["X_fosta"].shape == (260, 2)
    assert FoSTAStudy().picture(outcome) is not None


@pytest.mark.parametrize(("options", "says"), [
    ({}, "either --a FILE"), ({"a": "a.csv"}, "either --a FILE"), ({"h5ad": "none.h5ad"}, "does not exist"),
    ({"a": "a.csv", "b": "none.csv", "label": "kind"}, "does not exist"),
    ({"a": "a.csv", "b": "b.csv", "label": "kind", "h5ad": "a.csv"}, "either --a FILE"),
])  # fmt: skip
def test_run_options(files, monkeypatch, options, says):
    monkeypatch.chdir(files)
    with pytest.raises(ValueError, match=says):
        FoSTAStudy.Run(**options)


def test_tables_that_do_not_fit(files):
    with pytest.raises(ValueError, match="no column 'type'"):
        person.read_table(files / "a.csv", "type")
    (files / "w.csv").write_text("x,kind\nred,1\n")
    with pytest.raises(ValueError, match="the columns x hold something else"):
        person.read_table(files / "w.csv", "kind")


def test_example_of_the_page():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(FoSTAStudy.example, "example", "exec"), {})
    assert "of the missing labels are right" in out.getvalue()
