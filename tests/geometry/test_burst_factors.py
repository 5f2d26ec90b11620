"""Oracles of burst factor analysis: exact likelihoods, brute force, hand cases, and every kind of bad input."""

from __future__ import annotations

import gzip
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, gammaln
from sklearn.base import clone
from sklearn.decomposition import FactorAnalysis
from sklearn.exceptions import NotFittedError

from gnomon import datasets
from gnomon.geometry import (
    BurstFactorAnalysis,
    burst_code_report,
    burst_test,
    parse_bursts,
    read_spikes,
    simulate_bursts,
    simulate_mechanism,
    simulate_rate_code,
)
from gnomon.geometry.burst_factors import inference
from gnomon.geometry.burst_factors.baselines import (
    fraction_fa,
    gpfa,
    poisson_factors,
    poisson_surprise,
    rate_fa,
    rate_nmf,
    rate_pca,
    stacked_fa,
)
from gnomon.geometry.burst_factors.channels import burst_channel, event_channel
from gnomon.geometry.burst_factors.kernels import gauss_hermite, redraw_marks, softplus_moments, tridiagonal
from gnomon.geometry.burst_factors.method import LIKELIHOODS, one_standard_error
from gnomon.geometry.burst_factors.permutation import _lags, _shifted, residuals, statistic
from gnomon.geometry.burst_factors.spikes import logisi_threshold

ms = 1e-3


@pytest.fixture(scope="module")
def counts():
    return simulate_bursts(15, 80, random_state=0)


@pytest.fixture(scope="module")
def fitted(counts):
    return BurstFactorAnalysis(2, 1).fit(counts.E, counts.B)


# --- parsing ---------------------------------------------------------------------------------------------------------


def test_parsing_by_hand():
    times = ms * np.array([0, 10, 100, 200, 205, 211, 400.0])
    E, B, S = parse_bursts([times], bin_size=0.5)
    assert (E.item(), B.item(), S.item()) == (4, 2, 7)
    E, B, S = parse_bursts({"a": times}, bin_size=0.1)
    assert E.ravel().tolist() == [1, 1, 1, 0, 1]
    assert B.ravel().tolist() == [1, 0, 1, 0, 0]
    assert S.ravel().tolist() == [2, 1, 3, 0, 1]


@pytest.mark.parametrize("start", [0.0, 0.1, 0.2, 123.4])
def test_an_interval_equal_to_theta_is_no_burst(start):
    _, B, _ = parse_bursts([np.array([start, start + 0.016])], 1.0)
    assert B.sum() == 0
    _, B, _ = parse_bursts([np.array([start, start + 0.015])], 1.0)
    assert B.sum() == 1


def test_an_edge_of_a_bin_cuts_no_burst():
    E, B, S = parse_bursts([np.array([0.245, 0.252, 0.26])], 0.25)
    assert E.ravel().tolist() == [1, 0]
    assert B.ravel().tolist() == [1, 0]
    assert S.ravel().tolist() == [1, 2]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.floats(0.002, 0.2))
@settings(max_examples=40, deadline=None)
def test_counts_hang_together(times, theta):
    times = np.sort(np.array(times))
    E, B, S = parse_bursts([times], 0.5, theta)
    runs = np.split(times, np.flatnonzero(np.diff(times) >= theta - 1e-9) + 1)
    assert E.sum() == len(runs)
    assert B.sum() == sum(len(r) > 1 for r in runs)
    assert S.sum() == len(times)
    assert ((B >= 0) & (B <= E)).all()


def test_trials_and_stretches():
    times = np.array([0.1, 1.1, 1.11, 2.3, 3.05])
    E, B, _ = parse_bursts([times], 0.5, trials=[(1, 2), (3, 4.2)])
    assert E.ravel().tolist() == [1, 0, 1, 0]
    assert B.ravel().tolist() == [1, 0, 0, 0]
    assert len(parse_bursts([times], 0.5, t_start=0.0, t_stop=2.3)[0]) == 4
    assert parse_bursts([times - 1], 0.5)[0].sum() == 4
    with pytest.raises(ValueError, match="at least one bin"):
        parse_bursts([times], 0.5, trials=[(1, 1.2)])


def test_logisi_threshold_lies_in_the_valley():
    rng = np.random.default_rng(0)
    gaps = np.where(
        rng.random(4000) < 0.5, rng.lognormal(np.log(0.005), 0.25, 4000), rng.lognormal(np.log(0.5), 0.4, 4000)
    )
    times = np.cumsum(gaps)
    limit = logisi_threshold(times)
    assert 0.009 < limit < 0.2
    _, B, _ = parse_bursts([times], 1.0, "logisi")
    assert B.sum() == parse_bursts([times], 1.0, limit)[1].sum()
    assert logisi_threshold(np.cumsum(rng.exponential(0.1, 4000))) == 0.016
    assert logisi_threshold(times[:5]) == 0.016


def test_neo_trains_bring_their_units_and_limits():
    neo = pytest.importorskip("neo")
    train = neo.SpikeTrain([1010.0, 1015.0, 1900.0], units="ms", t_start=1000.0, t_stop=2000.0)
    E, B, S = parse_bursts([train], 0.25)
    assert E.ravel().tolist() == [1, 0, 0, 1]
    assert B.sum() == 1
    assert S.sum() == 3


def test_reading_files(tmp_path):
    trains = {"a": [0.1, 0.2], "b": [0.3]}
    (tmp_path / "x.json").write_text(json.dumps(trains))
    with gzip.open(tmp_path / "list.json.gz", "wt") as file:
        json.dump(list(trains.values()), file)
    np.savez(tmp_path / "x.npz", **trains)
    (tmp_path / "x.txt").write_text("a\tb\n0.1\t0.3\n0.2\t\n")
    (tmp_path / "line.tsv").write_text("a\tb\t0.1\t0.3\t0.2\t ")
    for name in ("x.json", "x.npz", "x.txt", "line.tsv"):
        assert {k: v.tolist() for k, v in read_spikes(tmp_path / name).items()} == trains, name
    assert list(read_spikes(tmp_path / "list.json.gz")) == ["0", "1"]
    np.savez(tmp_path / "pickle.npz", a=np.array([{}]))
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.txt").write_text("1\t2\n3\t4\n")
    (tmp_path / "x.csv").touch()
    for name, message in (("none.json", "is no file"), ("pickle.npz", "cannot be read"), ("bad.json", "cannot be read"),
                          ("bad.txt", "no row of names"), ("x.csv", "ends in .json")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            read_spikes(tmp_path / name)


def test_reading_nwb(tmp_path):
    pynwb = pytest.importorskip("pynwb")
    import datetime

    file = pynwb.NWBFile("a", "b", datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    for times in ([0.1, 0.2], [0.3]):
        file.add_unit(spike_times=times)
    with pynwb.NWBHDF5IO(str(tmp_path / "x.nwb"), "w") as io:
        io.write(file)
    assert [v.tolist() for v in read_spikes(tmp_path / "x.nwb").values()] == [[0.1, 0.2], [0.3]]


def test_the_recordings():
    try:
        culture = datasets.data_file("burst_factors", "hippocampus_DIV15.txt.gz")
        retina = datasets.data_file("burst_factors", "retina_P9.txt.gz")
    except FileNotFoundError as reason:
        pytest.skip(str(reason))
    E, B, S = parse_bursts(read_spikes(culture), 1.0, 0.02)
    assert (E.shape, S.sum(), (E.sum(1) >= 5).sum()) == ((912, 61), 208_279, 342)
    E, B, S = parse_bursts(read_spikes(retina), 1.0, 0.02)
    assert E.shape[1] == 26
    assert S.sum() == 26_911
    assert (B[E.sum(1) >= 5].sum(0) >= 20).sum() == 23


# --- likelihoods -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_poisson_splitting(seed):
    rng = np.random.default_rng(seed)
    rate, p = rng.gamma(2, 3, (4, 3)), rng.random((4, 3))
    E = rng.poisson(rate).astype(float)
    B = rng.binomial(E.astype(int), p).astype(float)
    zero = np.zeros_like(rate)
    joint = event_channel("poisson-binomial", E, B, 0.5).moments(np.log(rate / 0.5), zero)[0]
    joint = joint + burst_channel("poisson-binomial", E, B, 0.5).moments(np.log(p / (1 - p)), zero)[0]
    split = event_channel("rates", E, B, 0.5).moments(np.log(rate * (1 - p) / 0.5), zero)[0]
    split = split + burst_channel("rates", E, B, 0.5).moments(np.log(rate * p / 0.5), zero)[0]
    np.testing.assert_allclose(joint, split, atol=1e-10, rtol=1e-10)
    np.testing.assert_allclose(joint, stats.poisson.logpmf(E, rate) + stats.binom.logpmf(B, E, p), atol=1e-9)


def test_softplus_moments_against_a_fine_rule():
    rng = np.random.default_rng(0)
    a, v = rng.normal(0, 6, 300), np.exp(rng.uniform(-9, 0, 300))
    n = rng.integers(0, 9, 300).astype(float)
    k = np.minimum(n, 2.0)
    nodes, weights = gauss_hermite(80)
    at = a[:, None] + np.sqrt(v)[:, None] * nodes
    value, slope, curvature = softplus_moments(k, n, a, v)
    np.testing.assert_allclose(value, k * a - n * (np.logaddexp(0, at) @ weights), atol=3e-9)
    np.testing.assert_allclose(slope, k - n * (expit(at) @ weights), atol=1e-8)
    np.testing.assert_allclose(curvature, n * ((expit(at) * expit(-at)) @ weights), atol=1e-7)
    far = softplus_moments(np.ones(4), np.ones(4), np.array([-800.0, 800.0, 0, 50]), np.array([1.0, 1.0, 1e7, 0]))[0]
    assert np.isfinite(far).all()
    assert (far <= 0).all()


def test_dispersed_likelihoods_are_those_of_scipy():
    rng = np.random.default_rng(1)
    E = rng.integers(0, 9, (6, 3)).astype(float)
    B = rng.binomial(E.astype(int), 0.4).astype(float)
    a, zero = rng.normal(size=(6, 3)), np.zeros((6, 3))
    r = np.array([0.5, 3.0, 40.0])
    nb = replace(event_channel("negbin-betabinomial", E, B, 0.5), dispersion=r)
    mean = 0.5 * np.exp(a)
    np.testing.assert_allclose(nb.moments(a, zero)[0], stats.nbinom.logpmf(E, r, r / (r + mean)), atol=1e-10)
    bb = replace(burst_channel("negbin-betabinomial", E, B, 0.5), dispersion=r)
    p = expit(a)
    expected = stats.betabinom.logpmf(B, E.astype(int), r * p, r * (1 - p))
    np.testing.assert_allclose(bb.moments(a, zero)[0], expected, atol=1e-9)
    np.testing.assert_allclose(bb.predictive(a, zero), expected, atol=1e-9)
    tight = replace(bb, dispersion=np.full(3, 1e6)).moments(a, zero)[0]
    np.testing.assert_allclose(tight, stats.binom.logpmf(B, E, p), atol=1e-4)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_slopes_by_finite_differences(likelihood):
    rng = np.random.default_rng(2)
    E = rng.integers(0, 9, (5, 3)).astype(float)
    B = rng.binomial(E.astype(int), 0.4).astype(float)
    a, v, h = rng.normal(size=(5, 3)), rng.uniform(0.05, 0.19, (5, 3)), 1e-5
    for channel in (event_channel(likelihood, E, B, 0.5), burst_channel(likelihood, E, B, 0.5)):
        _, slope, curvature = channel.moments(a, v)
        by_mean = (channel.moments(a + h, v)[0] - channel.moments(a - h, v)[0]) / (2 * h)
        np.testing.assert_allclose(slope, by_mean, atol=1e-6)
        by_variance = (channel.moments(a, v + h)[0] - channel.moments(a, v - h)[0]) / (2 * h)  # Price: half of -w
        keep = curvature > 1e-9  # negative curvature of the beta-binomial is cut
        np.testing.assert_allclose(-curvature[keep] / 2, by_variance[keep], atol=1e-4)


# --- the bound -------------------------------------------------------------------------------------------------------


def _random_model(counts, seed=3):
    rng = np.random.default_rng(seed)
    fa = BurstFactorAnalysis(2, 1, max_iter=1).fit(counts.E, counts.B)
    fa.event_loadings_, fa.burst_loadings_ = 0.3 * rng.normal(size=(15, 2)), 0.6 * rng.normal(size=(15, 1))
    fa.coupling_ = np.array([[0.3], [-0.2]])
    return fa


def test_gradients_of_the_bound(counts):
    """By the means, covariances, intercepts and loadings, against central differences."""
    fa = _random_model(counts)
    E, B = counts.E.astype(float), counts.B.astype(float)
    parts, prior = fa._model(E, B)
    rng = np.random.default_rng(0)
    T, k, h = len(E), 3, 1e-5
    A = 0.2 * rng.normal(size=(T, k, k))
    V = A @ A.transpose(0, 2, 1) + 0.05 * np.eye(k)
    m = 0.5 * rng.normal(size=(T, k))

    def bound(m, V, parts):
        J = np.linalg.inv(V)
        q = inference.State(m, J - prior.precision, V, np.linalg.slogdet(J)[1])
        return inference.bound(parts, prior, q)

    found = inference.expected(parts, m, V)
    g, W = inference._gradient(parts, found, T, k)
    move = rng.normal(size=(T, k))
    numeric = (bound(m + h * move, V, parts) - bound(m - h * move, V, parts)) / (2 * h)
    assert np.isclose(((g - m @ prior.precision) * move).sum(), numeric, rtol=1e-6)
    move = rng.normal(size=(T, k, k))
    move = move + move.transpose(0, 2, 1)
    numeric = (bound(m, V + h * move, parts) - bound(m, V - h * move, parts)) / (2 * h)
    analytic = 0.5 * ((np.linalg.inv(V) - prior.precision - W) * move).sum()
    assert np.isclose(analytic, numeric, rtol=1e-6)
    for c, part in enumerate(parts):
        _, slope, curvature = found[c]
        block = V[:, part.columns][:, :, part.columns]
        by_loadings = slope.T @ m[:, part.columns] - np.einsum("tn,tij,nj->ni", curvature, block, part.loadings)
        for name, analytic in (("intercept", slope.sum(0)), ("loadings", by_loadings)):
            move = rng.normal(size=analytic.shape)
            ends = [bound(m, V, [replace(p, **{name: getattr(p, name) + s * h * move}) if p is part else p for p in parts])
                    for s in (1, -1)]  # fmt: skip
            assert np.isclose((analytic * move).sum(), (ends[0] - ends[1]) / (2 * h), rtol=1e-6), (c, name)


@pytest.mark.parametrize("options", [
    *({"likelihood": name} for name in LIKELIHOODS),
    {"coupling": False}, {"timescale": 3.0}, {"timescale": [2.0, 3.0, 5.0]}, {"offset": "chance", "bin_size": 0.25},
    {"burst_drive": "both"}, {"burst_drive": "event"}, {"ridge": 0.0},
])  # fmt: skip
def test_the_bound_never_falls(counts, options):
    T = 40 if options.get("likelihood") == "negbin-betabinomial" else 80
    fa = BurstFactorAnalysis(2, 1, tol=1e-9, max_iter=25, **options).fit(counts.E[:T], counts.B[:T])
    assert len(fa.elbo_) > 3
    assert (np.diff(fa.elbo_) >= -1e-9 * abs(fa.elbo_[-1])).all()
    assert np.isfinite(fa.transform(counts.E[:T], counts.B[:T])[0]).all()


@pytest.mark.parametrize("block", ["event", "burst"])
def test_the_bound_lies_just_below_the_likelihood(counts, block):
    """One factor: the likelihood of each bin by quadrature."""
    E, B = counts.E.astype(float), counts.B.astype(float)
    fa = BurstFactorAnalysis(int(block == "event"), int(block == "burst")).fit(E, B)
    z, weight = gauss_hermite(150)
    mu, C = fa.event_intercept_, fa.event_loadings_.sum(1)
    nu, D = fa.burst_intercept_, fa.burst_loadings_.sum(1)
    rate, odds = mu + z[:, None] * C, nu + z[:, None] * D
    logs = (E[:, None] * rate - np.exp(rate) - gammaln(E[:, None] + 1)).sum(2)
    choose = gammaln(E + 1) - gammaln(B + 1) - gammaln(E - B + 1)
    logs += (B[:, None] * odds - E[:, None] * np.logaddexp(0, odds) + choose[:, None]).sum(2)
    peak = logs.max(1)
    exact = float((peak + np.log(np.exp(logs - peak[:, None]) @ weight)).sum())
    bound = fa.elbo(E, B)
    assert bound <= exact + 1e-8 * abs(exact)
    assert exact - bound < 0.01 * abs(exact)


def test_without_factors_the_intercepts_are_closed_forms(counts):
    fa = BurstFactorAnalysis(0, 0, bin_size=0.25).fit(counts.E, counts.B)
    np.testing.assert_allclose(fa.event_intercept_, np.log(counts.E.mean(0) / 0.25), atol=1e-10)
    p = counts.B.sum(0) / counts.E.sum(0)
    np.testing.assert_allclose(fa.burst_intercept_, np.log(p / (1 - p)), atol=1e-10)
    assert fa.transform(counts.E, counts.B)[0].shape == (80, 0)
    assert abs(fa.score(counts.E, counts.B)) < 1e-12


def test_uncoupled_channels_do_not_touch(counts):
    options = {"coupling": False, "tol": 1e-12}
    both = BurstFactorAnalysis(2, 1, **options).fit(counts.E, counts.B)
    events = BurstFactorAnalysis(2, 0, **options).fit(counts.E, counts.B)
    bursts = BurstFactorAnalysis(0, 1, **options).fit(counts.E, counts.B)
    np.testing.assert_allclose(both.x_, events.x_, atol=1e-6)
    np.testing.assert_allclose(both.y_, bursts.y_, atol=1e-6)
    # the joint inference, which knows both channels at once, gives the same
    x, y = both.transform(counts.E, counts.B)
    np.testing.assert_allclose(x, events.transform(counts.E, counts.B)[0], atol=1e-6)
    np.testing.assert_allclose(y, bursts.transform(counts.E, counts.B)[1], atol=1e-6)
    np.testing.assert_allclose(x, both.x_, atol=1e-4)


def test_gaussian_is_factor_analysis(counts):
    E, B = counts.E.astype(float), counts.B.astype(float)
    Y = 2 * np.sqrt(E + 3 / 8)
    peer = FactorAnalysis(2, tol=1e-8, max_iter=5000, svd_method="lapack").fit(Y)
    fa = BurstFactorAnalysis(2, 1, likelihood="gaussian", coupling=False, tol=1e-12, max_iter=3000).fit(E, B)
    best = fa.elbo(E, B)

    def burst_block(model):
        y = np.arcsin(np.sqrt((B + 3 / 8) / (E + 3 / 4)))
        noise = model.burst_dispersion_
        logs = -0.5 * (np.log(2 * np.pi * noise) + (y - model.burst_intercept_) ** 2 / noise)
        return float(logs[E > 0].sum())

    at = BurstFactorAnalysis(2, 1, likelihood="gaussian", coupling=False, max_iter=1).fit(E, B)
    at.event_intercept_, at.event_loadings_, at.event_dispersion_ = peer.mean_, peer.components_.T, peer.noise_variance_
    at.burst_loadings_ = np.zeros((15, 1))
    theirs = peer.score(Y) * len(Y)
    assert abs(at.elbo(E, B) - burst_block(at) - theirs) < 1e-8 * abs(theirs)
    fa.burst_loadings_ = np.zeros((15, 1))
    ours = fa.elbo(E, B) - burst_block(fa)
    assert ours >= theirs - 1e-4
    assert best > ours


def test_rotations_within_a_block_are_free_and_mixing_is_not(counts):
    fa = _random_model(counts)
    before = fa.elbo(counts.E, counts.B)
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    turned = _random_model(counts)
    turned.event_loadings_, turned.coupling_ = fa.event_loadings_ @ Q.T, Q @ fa.coupling_
    assert abs(turned.elbo(counts.E, counts.B) - before) < 1e-10 * abs(before)
    parts, prior = fa._model(counts.E.astype(float), counts.B.astype(float))
    mix = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    wide = [
        replace(p, columns=np.arange(3), loadings=np.eye(3)[p.columns].T.dot(p.loadings.T).T @ mix.T) for p in parts
    ]
    q = inference.e_step(
        wide, inference.Prior(np.eye(3)), inference.start_state(wide, prior, np.zeros((80, 3))), 50, 1e-12
    )
    free = BurstFactorAnalysis(2, 1, coupling=False, max_iter=1).fit(counts.E, counts.B)
    free.event_loadings_, free.burst_loadings_ = fa.event_loadings_, fa.burst_loadings_
    free.event_intercept_, free.burst_intercept_ = fa.event_intercept_, fa.burst_intercept_
    same = free.elbo(counts.E, counts.B)  # a rotation of everything is only free when the loadings may mix too
    assert abs(inference.bound(wide, inference.Prior(np.eye(3)), q) - same) < 1e-6 * abs(same)
    blocked = [replace(p, loadings=w.loadings[:, p.columns]) for p, w in zip(parts, wide, strict=True)]
    q = inference.e_step(blocked, prior, inference.start_state(blocked, prior, np.zeros((80, 3))), 50, 1e-12)
    assert abs(inference.bound(blocked, prior, q) - before) > 1


def test_canonical_form(fitted, counts):
    for L in (fitted.event_loadings_, fitted.burst_loadings_):
        G = L.T @ L
        np.testing.assert_allclose(G, np.diag(np.diag(G)), atol=1e-9)
        assert (np.diff(np.diag(G)) <= 0).all()
        assert (L[np.abs(L).argmax(0), np.arange(L.shape[1])] > 0).all()
    assert fitted.canonical_correlations_.max() < 1
    x, y = fitted.transform(counts.E, counts.B)
    np.testing.assert_allclose(x, fitted.x_, atol=1e-3)
    np.testing.assert_allclose(y, fitted.y_, atol=1e-3)
    np.testing.assert_allclose((fitted.x_**2).mean(0), 1, atol=0.25)


def test_time_series_posterior_is_that_of_the_dense_gaussian():
    rng = np.random.default_rng(0)
    T, k = 7, 2
    J = np.stack([(lambda a: a @ a.T + 4 * np.eye(k))(rng.normal(size=(k, k))) for _ in range(T)])
    off, h = 0.5 * rng.normal(size=(k, k)), rng.normal(size=(T, k))
    dense = np.zeros((T * k, T * k))
    for t in range(T):
        dense[t * k : t * k + k, t * k : t * k + k] = J[t]
        if t + 1 < T:
            dense[t * k : t * k + k, t * k + k : t * k + 2 * k] = off
            dense[t * k + k : t * k + 2 * k, t * k : t * k + k] = off.T
    m, V, logdet = tridiagonal(J, h, off)
    np.testing.assert_allclose(m.ravel(), np.linalg.solve(dense, h.ravel()), atol=1e-10)
    inverse = np.linalg.inv(dense)
    np.testing.assert_allclose(V, [inverse[t * k : t * k + k, t * k : t * k + k] for t in range(T)], atol=1e-10)
    assert np.isclose(logdet, np.linalg.slogdet(dense)[1])
    # the prior's own precision is the inverse of the AR(1) covariance
    prior = inference.Prior(np.array([[1, 0.4], [0.4, 1]]), np.array([0.8, 0.3]))
    chain = inference._Chain(prior, T)
    _, V, logdet = tridiagonal(chain.diagonal, np.zeros((T, k)), chain.off)
    root = np.sqrt(1 - prior.phi**2)
    stationary = prior.covariance * np.outer(root, root) / (1 - np.outer(prior.phi, prior.phi))
    np.testing.assert_allclose(V, np.broadcast_to(stationary, V.shape), atol=1e-10)
    assert np.isclose(logdet, chain.logdet)


def test_a_short_timescale_is_none(counts, fitted):
    short = BurstFactorAnalysis(2, 1, timescale=1e-3, tol=1e-9).fit(counts.E, counts.B)
    flat = BurstFactorAnalysis(2, 1, tol=1e-9).fit(counts.E, counts.B)
    assert np.isclose(short.elbo_[-1], flat.elbo_[-1], rtol=1e-4)
    for k in range(2):
        assert abs(np.corrcoef(short.x_[:, k], flat.x_[:, k])[0, 1]) > 0.99


def test_slow_factors_are_found_better_with_their_timescale():
    m = simulate_mechanism(15, 120, 1, 1, time_constant=2.0, random_state=0)
    r = [
        np.corrcoef(BurstFactorAnalysis(1, 1, timescale=t).fit(m.E, m.B).y_[:, 0], m.y[:, 0])[0, 1] ** 2
        for t in (None, 8.0)
    ]
    assert r[1] > r[0]


# --- symmetries and missing data -------------------------------------------------------------------------------------


def test_permutations_of_neurons_and_bins(counts, fitted):
    rng = np.random.default_rng(0)
    neurons, bins = rng.permutation(15), rng.permutation(80)
    other = BurstFactorAnalysis(2, 1).fit(counts.E[:, neurons], counts.B[:, neurons])
    np.testing.assert_allclose(other.event_loadings_, fitted.event_loadings_[neurons], atol=1e-6)
    np.testing.assert_allclose(other.y_, fitted.y_, atol=1e-6)
    other = BurstFactorAnalysis(2, 1).fit(counts.E[bins], counts.B[bins])
    np.testing.assert_allclose(other.burst_loadings_, fitted.burst_loadings_, atol=1e-6)
    np.testing.assert_allclose(other.x_, fitted.x_[bins], atol=1e-6)
    R = residuals(counts.E, counts.B)
    assert np.isclose(statistic(R), statistic(residuals(counts.E[bins][:, neurons], counts.B[bins][:, neurons])))


def test_a_silent_neuron_changes_nothing(counts, fitted):
    E, B = (np.insert(x, 4, 0, axis=1) for x in (counts.E, counts.B))
    with pytest.warns(UserWarning, match=r"zero loadings: \[4\]"):
        other = BurstFactorAnalysis(2, 1).fit(E, B)
    np.testing.assert_array_equal(np.delete(other.burst_loadings_, 4, 0), fitted.burst_loadings_)
    np.testing.assert_array_equal(other.x_, fitted.x_)
    assert not other.event_loadings_[4].any()
    assert not other.burst_loadings_[4].any()
    assert statistic(residuals(E, B)) == statistic(residuals(counts.E, counts.B))
    assert other.score(E, B) == fitted.score(counts.E, counts.B)


def test_neurons_without_bursts_or_with_nothing_else(counts):
    B = counts.B.copy()
    B[:, 0], B[:, 1] = 0, counts.E[:, 1]
    for likelihood in LIKELIHOODS:
        quiet = r"\[0, 1\]" if likelihood == "rates" else r"\[0\]"  # neuron 1 has no single spikes
        with pytest.warns(UserWarning, match="zero loadings: " + quiet):
            fa = BurstFactorAnalysis(1, 1, likelihood=likelihood, max_iter=2).fit(counts.E, B)
        assert not fa.burst_loadings_[:2].any()
        assert fa.event_loadings_[0].any()
        assert np.isfinite(fa.score(counts.E, B))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_missing_neuron_is_skipped(counts, likelihood):
    fa = BurstFactorAnalysis(2, 1, likelihood=likelihood, max_iter=3).fit(counts.E[:40], counts.B[:40])
    E, B = counts.E[:30].astype(float), counts.B[:30].astype(float)
    E[:, 3] = np.nan
    x, y = fa.transform(E, B)
    without = BurstFactorAnalysis(2, 1, likelihood=likelihood, max_iter=1).fit(counts.E[:40, np.arange(15) != 3],
                                                                              counts.B[:40, np.arange(15) != 3])  # fmt: skip
    keep = np.arange(15) != 3
    for name in ("intercept_", "loadings_", "dispersion_"):
        for channel in ("event_", "burst_"):
            setattr(without, channel + name, getattr(fa, channel + name)[keep])
    without.coupling_ = fa.coupling_
    other = without.transform(counts.E[:30, keep], counts.B[:30, keep])
    np.testing.assert_allclose(x, other[0], atol=1e-7)
    np.testing.assert_allclose(y, other[1], atol=1e-7)
    E[:, 3], E[::3, 5] = counts.E[:30, 3], np.nan
    assert np.isfinite(BurstFactorAnalysis(1, 1, likelihood=likelihood, max_iter=3).fit(E, B).x_).all()


# --- tests of burst coding -------------------------------------------------------------------------------------------


def test_hypergeometric_by_hand():
    rng = np.random.default_rng(0)
    E = np.array([[2], [1]])
    draws = np.array([redraw_marks(E, np.array([1]), rng)[:, 0] for _ in range(6000)])
    assert set(map(tuple, draws)) == {(1, 0), (0, 1)}
    assert abs((draws[:, 0] == 1).mean() - 2 / 3) < 4 * np.sqrt(2 / 9 / 6000)


def test_redraws_have_the_moments_of_the_hypergeometric(counts):
    rng = np.random.default_rng(0)
    E, total = counts.E.astype(np.int64), counts.B.sum(0).astype(np.int64)
    draws = np.array([redraw_marks(E, total, rng) for _ in range(800)])
    assert (draws.sum(1) == total).all()
    assert (draws <= E).all()
    M, p = E.sum(0), total / E.sum(0)
    variance = E * p * (1 - p) * (M - E) / (M - 1)
    z = (draws.mean(0) - E * p) / np.sqrt(np.maximum(variance, 1e-9) / 800)
    assert abs(z).max() < 5
    np.testing.assert_allclose(draws.var(0).sum(), variance.sum(), rtol=0.05)


def test_constant_probabilities_of_nought_and_one():
    E = np.full((40, 3), 4)
    B = np.stack([np.zeros(40), np.full(40, 4), np.zeros(40)], 1)
    assert burst_test(E, B, n_perm=19).statistic == 0
    assert burst_test(E, B, n_perm=19).pvalue == 1
    assert burst_test(E, B, "shift", n_perm=19).pvalue == 1


def test_statistic_is_the_top_eigenvalue(counts):
    p = counts.B.sum(0) / counts.E.sum(0)
    R = (counts.B - counts.E * p) / np.sqrt(np.maximum(counts.E, 1e-300) * p * (1 - p))
    R[counts.E == 0] = 0
    assert np.isclose(burst_test(counts.E, counts.B, n_perm=1).statistic, np.linalg.eigvalsh(R.T @ R / 80)[-1])
    assert np.isclose(statistic(R[:10]), np.linalg.norm(R[:10], 2) ** 2 / 10)


def test_p_values_are_uniform_under_the_null():
    """Kolmogorov-Smirnov on p less a uniform jitter of one step, which is exactly uniform."""
    rng = np.random.default_rng(5)
    found = []
    for seed in range(150):
        s = simulate_bursts(6, 30, burst_amplitude=0, events_per_bin=2, random_state=seed)
        found.append(burst_test(s.E, s.B, n_perm=19, random_state=seed).pvalue - rng.random() / 20)
    assert stats.kstest(found, "uniform").pvalue > 0.01


def test_shifts_keep_each_column_and_their_lags(counts):
    R = residuals(counts.E, counts.B)
    lags = np.arange(15) + 10
    moved = _shifted(R, lags)
    for i in range(15):
        np.testing.assert_array_equal(moved[:, i], np.roll(R[:, i], lags[i]))
    assert (_lags(80, None).min(), _lags(80, None).max()) == (10, 70)
    trials = np.repeat(np.arange(8), 10)
    assert _lags(80, trials).tolist() == list(range(10, 80, 10))
    assert burst_test(counts.E, counts.B, "shift", 19, trials=trials).pvalue == 0.05
    for wrong, message in ((np.r_[trials[1:], 7], "equally long"), (trials % 4, "one piece"), (trials[:9], "shape")):
        with pytest.raises(ValueError, match=message):
            burst_test(counts.E, counts.B, "shift", 19, trials=wrong)
    with pytest.raises(ValueError, match="39 bins; the shift null needs at least 40"):
        burst_test(counts.E[:39], counts.B[:39], "shift", 19)


def test_the_three_nulls_tell_codes_apart():
    code = simulate_bursts(20, 150, burst_amplitude=0.8, random_state=0)
    drift = simulate_bursts(20, 200, burst_amplitude=0, drift=0.8, random_state=1)
    rate = simulate_rate_code(15, 120, random_state=0)
    assert burst_test(code.E, code.B, "marks", 39).pvalue == 1 / 40
    assert burst_test(code.E, code.B, "shift", 39).pvalue == 1 / 40
    assert burst_test(drift.E, drift.B, "marks", 39).pvalue == 1 / 40
    assert burst_test(drift.E, drift.B, "shift", 39).pvalue > 0.1
    assert burst_test(rate.E, rate.B, "marks", 39).pvalue == 1 / 40
    jitter = burst_test(rate.E, rate.B, "jitter", 39, rate.trains, 0.25, t_start=0.0)
    assert jitter.pvalue > 0.1
    assert abs(jitter.statistic - jitter.null_mean) < 4 * jitter.null_std
    assert burst_test(rate.E, rate.B, "jitter", 39, rate.trains, 0.25, t_start=0.0) == jitter


def test_jitter_needs_the_spikes_that_gave_the_counts():
    rate = simulate_rate_code(4, 60, random_state=0)
    with pytest.raises(ValueError, match="redraws spike times"):
        burst_test(rate.E, rate.B, "jitter", 9)
    with pytest.raises(ValueError, match="do not give E"):
        burst_test(rate.E, rate.B, "jitter", 9, rate.trains, 0.25, theta=0.005, t_start=0.0)
    with pytest.raises(ValueError, match="3 neurons; the counts have 4"):
        burst_test(rate.E, rate.B, "jitter", 9, rate.trains[:3], 0.25)
    with pytest.raises(ValueError, match="jitter_window"):
        burst_test(rate.E, rate.B, "jitter", 9, rate.trains, 0.25, jitter_window=-1.0)
    with pytest.raises(ValueError, match="null: got 'x'"):
        burst_test(rate.E, rate.B, "x")
    with pytest.raises(ValueError, match="n_perm: got 0"):
        burst_test(rate.E, rate.B, n_perm=0)
    with pytest.raises(ValueError, match="missing"):
        burst_test(np.full((40, 2), np.nan), np.zeros((40, 2)))


# --- choosing, reporting, sampling -----------------------------------------------------------------------------------


def test_factors_are_recovered():
    s = simulate_bursts(25, 200, rate_silent=True, random_state=0)
    fa = BurstFactorAnalysis(2, 1).fit(s.E, s.B)
    assert np.corrcoef(fa.y_[:, 0], s.y[:, 0])[0, 1] ** 2 > 0.85
    assert np.corrcoef(rate_fa(s.E, s.B, s.S, 1)[:, 0], s.y[:, 0])[0, 1] ** 2 < 0.1


def test_select_finds_the_numbers_of_factors():
    s = simulate_bursts(20, 160, 1, 1, random_state=0)
    fa = BurstFactorAnalysis(coupling=False)
    found = fa.select(s.E, s.B, n_event=range(3), n_burst=range(3))
    assert (found.n_event, found.n_burst, fa.n_event, fa.n_burst) == (1, 1, 1, 1)
    assert abs(found.burst_bits["bits"][0]) < 1e-9
    none = simulate_bursts(20, 160, 1, 1, burst_amplitude=0, random_state=0)
    assert BurstFactorAnalysis(coupling=False).select(none.E, none.B, [1], range(2)).n_burst == 0


def test_one_standard_error_rule():
    rng = np.random.default_rng(0)
    base = rng.normal(size=100)
    gains = {0: base, 1: base + 1, 2: base + 1 + 0.001 + rng.normal(size=100) * 0.1, 3: base + 0.5}
    assert one_standard_error(gains)[0] == 1
    assert one_standard_error({0: base, 1: base - 1})[0] == 0


def test_report_tells_a_burst_code_from_a_rate_code():
    s = simulate_bursts(20, 160, 1, 1, random_state=0)
    table = burst_code_report(s.E, s.B, 1, 1, n_boot=99)
    assert list(table.index) == ["constant", "rate factors", "burst factors", "both"]
    assert abs(table["bits"]["constant"]) < 1e-9
    assert table["over_rate_low"]["burst factors"] > 0
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(160, 1))  # bursts that follow the rate factor
    E = rng.poisson(6 * np.exp(0.4 * shared @ rng.normal(size=(1, 20))))
    B = rng.binomial(E, expit(-1 + 0.8 * shared @ rng.normal(size=(1, 20))))
    table = burst_code_report(E, B, 1, 1, n_boot=99)
    assert table["low"]["rate factors"] > 0.1
    assert table["over_rate_low"]["burst factors"] < 0.02


def test_coupling_is_learned():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1))
    y = 0.7 * x + np.sqrt(1 - 0.49) * rng.normal(size=(300, 1))
    E = rng.poisson(8 * np.exp(0.4 * x @ rng.normal(size=(1, 25))))
    B = rng.binomial(E, expit(-0.5 + 0.8 * y @ rng.normal(size=(1, 25))))
    assert abs(BurstFactorAnalysis(1, 1).fit(E, B).canonical_correlations_[0] - 0.7) < 0.12
    assert BurstFactorAnalysis(1, 1, coupling=False).fit(E, B).canonical_correlations_[0] == 0


def test_chance_offset_is_the_probability_of_a_short_interval(counts):
    fa = BurstFactorAnalysis(1, 1, offset="chance", bin_size=0.25, theta=0.016).fit(counts.E, counts.B)
    alone = BurstFactorAnalysis(1, 0, bin_size=0.25).fit(counts.E, counts.B)
    x = alone.transform(counts.E, counts.B)[0]
    p = 1 - np.exp(-0.016 * np.exp(alone.event_intercept_ + x @ alone.event_loadings_.T))
    np.testing.assert_allclose(
        fa._offset(counts.E.astype(float), counts.B.astype(float)), np.log(p / (1 - p)), atol=1e-8
    )
    rate = simulate_rate_code(15, 150, random_state=1)
    fair = BurstFactorAnalysis(1, 0, offset="chance", bin_size=0.25).fit(rate.E, rate.B)
    plain = BurstFactorAnalysis(1, 0, bin_size=0.25).fit(rate.E, rate.B)
    assert fair.score(rate.E, rate.B) > plain.score(rate.E, rate.B)


@pytest.mark.parametrize("likelihood", ["poisson-binomial", "negbin-betabinomial", "rates"])
def test_samples_have_the_moments_of_the_counts(counts, likelihood):
    fa = BurstFactorAnalysis(1, 1, likelihood=likelihood, max_iter=4).fit(counts.E[:40], counts.B[:40])
    E, B = fa.sample(3000, random_state=1)
    assert ((B >= 0) & (B <= E)).all()
    assert abs(E.mean() / counts.E[:40].mean() - 1) < 0.15
    assert abs(B.sum() / E.sum() - counts.B[:40].sum() / counts.E[:40].sum()) < 0.04


def test_a_sample_of_slow_factors_is_slow(counts):
    fa = BurstFactorAnalysis(1, 0, timescale=20.0, max_iter=2).fit(counts.E, counts.B)
    z = fa._draw_factors(4000, np.random.default_rng(0))[:, 0]
    assert abs(np.corrcoef(z[1:], z[:-1])[0, 1] - np.exp(-1 / 20)) < 0.03


# --- baselines -------------------------------------------------------------------------------------------------------


def test_baselines_give_factors(counts):
    for f in (rate_fa, stacked_fa, fraction_fa, rate_pca, rate_nmf, poisson_factors):
        z = f(counts.E, counts.B, counts.S, 2)
        assert z.shape == (80, 2)
        assert np.isfinite(z).all()


def test_gpfa_is_elephants(counts):
    pytest.importorskip("elephant")
    assert gpfa(counts.E, counts.B, counts.S, 2).shape == (80, 2)


def test_poisson_surprise_finds_a_planted_burst():
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.15, 0.25, 100))
    times = np.sort(np.r_[times, times[50] + ms * np.array([4, 8, 12])])
    first, size = poisson_surprise(times)
    assert (size > 1).sum() == 1
    assert size.max() == 4
    assert times[first[size.argmax()]] == times[50]
    assert size.sum() == len(times)
    assert poisson_surprise(times[:2])[1].tolist() == [1, 1]


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_counts():
    E = np.full((30, 3), 2.0)
    for where, e, b, message in (((4, 1), 2, 3, r"B: 3 bursts of 2 events at \(t, i\) = \(4, 1\)"),
                                 ((5, 0), -1, 0, r"E: -1 at \(t, i\) = \(5, 0\)"),
                                 ((6, 2), 1.5, 1, r"E: 1.5 at \(t, i\) = \(6, 2\)"),
                                 ((7, 2), 2, 0.5, r"B: 0.5 at"), ((7, 2), np.inf, 1, "E: inf at")):  # fmt: skip
        bad_E, bad_B = E.copy(), np.ones((30, 3))
        bad_E[where], bad_B[where] = e, b
        with pytest.raises(ValueError, match=message):
            BurstFactorAnalysis(1, 1).fit(bad_E, bad_B)
    with pytest.raises(ValueError, match="alike"):
        BurstFactorAnalysis(1, 1).fit(E, E[:5])
    with pytest.raises(ValueError, match="19 bins; expected at least 20"):
        BurstFactorAnalysis(1, 1).fit(E[:19], E[:19] / 2)


@pytest.mark.parametrize(("options", "message"), [
    ({"n_event": 4}, r"n_event: got 4; expected at most min\(bins, neurons\) = 3"),
    ({"n_burst": -1}, "n_burst: got -1"), ({"n_event": 1.5}, "n_event: got 1.5"), ({"likelihood": "x"}, "likelihood: got 'x'"),
    ({"ridge": -1}, "ridge: got -1"), ({"timescale": [1.0]}, "timescale"), ({"timescale": -1.0}, "timescale"),
    ({"offset": "x"}, "offset: got 'x'"), ({"offset": "chance", "likelihood": "rates"}, "log odds"),
    ({"burst_drive": "x"}, "burst_drive"), ({"bin_size": 0}, "bin_size"), ({"tol": np.nan}, "tol"),
    ({"max_iter": 0}, "max_iter"),
])  # fmt: skip
def test_bad_options(options, message):
    rng = np.random.default_rng(0)
    E = rng.integers(1, 5, (30, 3))
    with pytest.raises(ValueError, match=message):
        BurstFactorAnalysis(**{"n_event": 1, "n_burst": 1, **options}).fit(E, rng.binomial(E, 0.5))


def test_bad_spike_times():
    for times, message in (([0.1, np.nan], "neuron 1: not finite at position 1"), ([0.2, 0.1], "neuron 1: not sorted at"),
                           ([[0.1]], "one dimension")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            parse_bursts([[0.1, 0.2], times], 0.25)
    with pytest.raises(ValueError, match="neuron 'b'"):
        parse_bursts({"a": [0.1], "b": [0.2, 0.1]}, 0.25)
    with pytest.warns(UserWarning, match="no shorter than a bin"):
        parse_bursts([[0.1, 0.2]], 0.01)
    with pytest.warns(UserWarning, match="are the spike times in seconds"):
        parse_bursts([[100.0, 220.0, 400.0]], 1.0)
    for options, message in (({"bin_size": 0}, "bin_size"), ({"theta": -1.0}, "theta"), ({"theta": "x"}, "theta")):
        with pytest.raises(ValueError, match=message):
            parse_bursts([[0.1]], **options)
    with pytest.raises(ValueError, match="no neurons"):
        parse_bursts([])
    with pytest.raises(ValueError, match="no spikes"):
        parse_bursts([[]])
    with pytest.raises(TypeError, match="expected a list"):
        parse_bursts(3)


def test_estimator_manners(counts):
    """scikit-learn's own checks feed one matrix of floats; this one is fitted on two of counts, so these by hand."""
    fa = BurstFactorAnalysis(3, 2, ridge=0.5)
    assert clone(fa).get_params() == fa.get_params()
    with pytest.raises(NotFittedError):
        fa.transform(counts.E, counts.B)
    with pytest.raises(NotFittedError):
        fa.sample(3)
    one, two = (BurstFactorAnalysis(2, 1).fit(counts.E, counts.B) for _ in range(2))
    np.testing.assert_array_equal(one.x_, two.x_)
    with pytest.raises(ValueError, match="14 neurons; fitted on 15"):
        one.transform(counts.E[:, 1:], counts.B[:, 1:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BurstFactorAnalysis(2, 1).fit(counts.E, counts.B)
