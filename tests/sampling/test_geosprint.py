"""GeoSPRINT's oracles: hand cases, invariances, slow references, diffusers, and bad input."""

from __future__ import annotations

import itertools
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from gnomon.sampling import (
    GeoSprint,
    NoiseSchedule,
    ProfileStream,
    ddim_sample,
    dpm_solver_pp,
    hyperplanarity_profile,
    trajectory_projection_score,
    trajectory_report,
)
from gnomon.sampling.geosprint import baselines, steps
from gnomon.sampling.geosprint.hyperplanarity import reduced, residuals
from gnomon.sampling.geosprint.reference import profile_by_qr
from gnomon.sampling.geosprint.samplers import ddim_states

ABAR = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
VP = NoiseSchedule.vp(ABAR)
LINSPACE = baselines.linspace_steps(VP, 30)


def gaussian(scale):
    """The exact noise prediction of data N(0, diag(scale^2))."""
    variance = torch.as_tensor(scale, dtype=torch.float64) ** 2

    def denoiser(x, t):
        abar = ABAR[int(t[0])]
        v = variance.to(x.dtype)
        return (1 - abar) ** 0.5 * x / (abar * v + 1 - abar)

    return denoiser


def one_point(x0):
    def denoiser(x, t):
        abar = ABAR[int(t[0])]
        return (x - abar**0.5 * x0) / (1 - abar) ** 0.5

    return denoiser


CURVED = gaussian([2.0, 1.0, 0.3, 0.05])


def walk(seed, J=12, n=3, d=5, dtype=torch.float64):
    x = torch.randn((J + 1, n, d), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.cumsum(0).to(dtype)


def noise(n, *shape, dtype=torch.float64, seed=0):
    return torch.randn((n, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# --- hyperplanarity --------------------------------------------------------------------------------------------------


def test_hand_cases():
    linear = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.float64)
    assert hyperplanarity_profile(linear)[1] == 1.0
    right = torch.tensor([[0.0, 0], [1, 0], [1, 1]], dtype=torch.float64)
    np.testing.assert_allclose(hyperplanarity_profile(right, span="affine"), 1.0)
    half = 0.5**0.5
    slanted = torch.tensor([[0.0, 0], [1, 0], [1 + half, half]], dtype=torch.float64)
    np.testing.assert_allclose(hyperplanarity_profile(slanted, span="affine"), half)
    collinear = torch.tensor([[1.0, 2], [2, 3], [5, 6]], dtype=torch.float64)
    np.testing.assert_allclose(hyperplanarity_profile(collinear, span="affine"), 0, atol=1e-15)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("span", ["linear", "affine"])
def test_qr_equals_lstsq_and_the_stream(order, span):
    X = walk(0)
    by_qr = profile_by_qr(X, order, span)
    for j in range(order - 1, len(X) - 1):
        for i in range(X.shape[1]):
            before = X[j - order + 1 : j + 1, i].T.numpy()
            step = (X[j + 1, i] - X[j, i]).numpy()
            A, b = (before, X[j + 1, i].numpy()) if span == "linear" else (before[:, :-1] - before[:, 1:], step)
            rest = b - A @ np.linalg.lstsq(A, b, rcond=None)[0]
            assert abs(by_qr[j, i] - np.linalg.norm(rest) / np.linalg.norm(step)) < 1e-10
    stream = ProfileStream(order, span)
    for x in X:
        stream.update(x)
        assert len(stream._states) <= order + 1
    np.testing.assert_allclose(stream.residuals(), by_qr, atol=1e-10)
    assert (by_qr[: order - 1] == by_qr[order - 1]).all()
    in_32 = ProfileStream(order, span)
    for x in X.float():
        in_32.update(x)
    np.testing.assert_allclose(in_32.residuals(), by_qr, atol=1e-5)


@pytest.mark.parametrize("span", ["linear", "affine"])
def test_reductions(span):
    X = walk(1)
    each = profile_by_qr(X, 2, span)
    for name, want in (("mean", each.mean(1)), ("median", np.median(each, 1)), ("q90", np.quantile(each, 0.9, axis=1))):
        np.testing.assert_allclose(hyperplanarity_profile(X, span=span, reduce=name), want, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3), span=st.sampled_from(["linear", "affine"]),
       order=st.sampled_from([2, 3]))  # fmt: skip
def test_rotation_and_scale_leave_all_as_it_is(seed, scale, span, order):
    X = walk(seed)
    Q = torch.linalg.qr(walk(seed + 1, 4, 1, 5)[:, 0])[0]
    turned = scale * X @ Q
    np.testing.assert_allclose(
        hyperplanarity_profile(turned, order, span), hyperplanarity_profile(X, order, span), atol=1e-9
    )
    for axis in ("chord", "pca"):
        before, after = trajectory_projection_score(X, axis), trajectory_projection_score(turned, axis)
        np.testing.assert_allclose(after.each, before.each, atol=1e-9)


def test_translation_moves_the_linear_span_only():
    X = walk(2)
    moved = X + torch.arange(5.0, dtype=torch.float64)
    for axis in ("chord", "pca"):
        np.testing.assert_allclose(
            trajectory_projection_score(moved, axis).each, trajectory_projection_score(X, axis).each
        )
    np.testing.assert_allclose(
        hyperplanarity_profile(moved, span="affine"), hyperplanarity_profile(X, span="affine"), atol=1e-10
    )
    assert np.abs(hyperplanarity_profile(moved) - hyperplanarity_profile(X)).max() > 0.01


def test_dependent_columns_are_dropped():
    line = torch.arange(1.0, 6, dtype=torch.float64)[:, None, None] * torch.tensor([1.0, 2, 3], dtype=torch.float64)
    for order in (2, 3):
        np.testing.assert_allclose(hyperplanarity_profile(line, order), 0, atol=1e-12)
        np.testing.assert_allclose(profile_by_qr(line, order), 0, atol=1e-12)
        np.testing.assert_allclose(hyperplanarity_profile(line.float(), order), 0, atol=1e-5)
    turn = torch.cat([line, line[-1:] + torch.tensor([0.0, 3, -2], dtype=torch.float64)])
    np.testing.assert_allclose(hyperplanarity_profile(turn)[-1], 1, atol=1e-12)  # orthogonal to all before
    still = torch.cat([line[:3], line[2:3]])
    assert hyperplanarity_profile(still)[-1] == 0


def test_one_point_of_data():
    """epshat is constant: r = 0, DDIM is exact on any schedule, and no schedule is better than another."""
    denoiser = one_point(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
    x = noise(4, 3)
    X = torch.stack(list(ddim_states(denoiser, x, steps.grid_nodes(1000, 201).tolist(), VP)))
    assert hyperplanarity_profile(X).max() < 1e-6
    for listed in ([999, 0], [999, 300, 17], LINSPACE):
        torch.testing.assert_close(
            ddim_sample(denoiser, x, listed, VP), torch.tensor([[0.5, -1.0, 2.0]] * 4, dtype=torch.float64)
        )
    with pytest.warns(UserWarning, match="degenerate"):
        gs = GeoSprint(n_steps=30, n_pilot=4).fit(denoiser, VP, (3,), dtype=torch.float64)
    assert np.abs(np.array(gs.timesteps_) - LINSPACE).max() <= 1
    with pytest.warns(UserWarning, match="degenerate"):  # in float32 too, where rounding alone makes an r
        GeoSprint(n_steps=30, n_pilot=4).fit(one_point(torch.tensor([0.5, -1.0, 2.0])), VP, (3,))


def test_isotropic_gaussian_data():
    """Every step multiplies x by a known number; the states are collinear."""
    s = 0.7
    x = noise(2, 6)
    factor, listed = 1.0, [999, 600, 100, 0]
    for t, u in pairwise(listed):
        a, b = ABAR[t], ABAR[u]
        factor *= ((a * b) ** 0.5 * s**2 + ((1 - a) * (1 - b)) ** 0.5) / (a * s**2 + 1 - a)
    *_, last = ddim_states(gaussian([s]), x, listed, VP)
    torch.testing.assert_close(last, factor * x)
    X = torch.stack(list(ddim_states(gaussian([s]), x, steps.grid_nodes(1000, 201).tolist(), VP)))
    assert hyperplanarity_profile(X).max() < 1e-6


# --- straightness ----------------------------------------------------------------------------------------------------


def arc(J, turn, rise=0.0):
    theta = np.linspace(0, turn, J + 1)
    return np.stack([np.cos(theta), np.sin(theta), rise * theta], 1)


def test_straight_lines():
    X = np.linspace(0, 1, 9)[:, None] ** 2 * np.array([1.0, -2, 3])
    for axis in ("chord", "pca"):
        assert abs(float(trajectory_projection_score(X, axis)) - 1) < 1e-12
    report = trajectory_report(X)
    assert abs(report.path_ratio - 1) < 1e-12
    assert abs(report.effective_dimension - 1) < 1e-9
    np.testing.assert_allclose(report.windows, 1)


@pytest.mark.parametrize(("J", "value"), [(2, 0.625), (10, 0.322130), (200, 0.169088)])
def test_semicircles(J, value):
    alpha = float(trajectory_projection_score(arc(J, np.pi)))
    y = 1 / np.tan(np.pi / (2 * J)) / (J + 1)
    assert abs(alpha - (1 - (J / 2) / ((J + 1) * (1 - y**2)))) < 1e-12
    assert abs(alpha - value) < 1e-6
    assert abs(trajectory_report(arc(J, np.pi), 1).path_ratio - J * np.sin(np.pi / (2 * J))) < 1e-9


def test_other_arcs():
    assert abs(float(trajectory_projection_score(arc(200, np.pi / 2))) - 0.765) < 5e-4
    assert abs(float(trajectory_projection_score(arc(200, 1.5 * np.pi))) + 0.44) < 5e-3
    helices = [float(trajectory_projection_score(arc(200, np.pi, c))) for c in (0.0, 0.2, 1.0, 3.0)]
    assert helices == sorted(helices)
    np.testing.assert_allclose(helices[1:3], [0.210, 0.641], atol=5e-4)
    assert 0 <= float(trajectory_projection_score(arc(200, 1.5 * np.pi), "pca")) <= 1


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_time_reversal(seed):
    X = walk(seed)
    for axis in ("chord", "pca"):
        np.testing.assert_allclose(trajectory_projection_score(X.flip(0), axis).each,
                                   trajectory_projection_score(X, axis).each, atol=1e-9)  # fmt: skip


def test_no_motion_and_no_chord():
    still = np.ones((5, 2, 3))
    assert float(trajectory_projection_score(still)) == 1
    assert float(trajectory_projection_score(still, "pca")) == 1
    closed = np.stack([arc(8, 2 * np.pi), np.linspace(0, 1, 9)[:, None] * np.ones(3)], 1)
    with pytest.warns(UserWarning, match="1 of 2 trajectories"):
        score = trajectory_projection_score(closed)
    assert np.isnan(score.each[0])
    assert score.mean == pytest.approx(1)
    assert np.isnan(score.low)


def test_interval_covers_the_mean():
    score = trajectory_projection_score(walk(5, n=20))
    assert score.low < score.mean < score.high


# --- steps -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 120), total=st.integers(120, 1000), grid=st.integers(4, 201),
       gamma=st.sampled_from([0.5, 1.0, 3.0]), floor=st.sampled_from([0.0, 0.1, 1.0]))  # fmt: skip
def test_steps_are_distinct_decreasing_and_keep_both_ends(seed, n, total, grid, gamma, floor):
    nodes = steps.grid_nodes(total, grid)
    profile = np.random.default_rng(seed).exponential(size=len(nodes) - 1) ** 4
    listed = steps.density_steps(profile, nodes, n, gamma, floor)
    assert len(listed) == n
    assert all(isinstance(t, int) for t in listed)
    assert np.all(np.diff(listed) < 0)
    assert (listed[0], listed[-1]) == (total - 1, 0)


def test_constant_profile_is_uniform():
    nodes = steps.grid_nodes(1000, 201)
    for n in (2, 7, 30, 89, 500):
        listed = steps.density_steps(np.full(200, 0.3), nodes, n)
        assert np.abs(np.array(listed) - np.linspace(999, 0, n)).max() <= 1.5  # both are rounded


def test_a_step_in_the_profile():
    nodes = steps.grid_nodes(1000, 201)
    profile = np.where(np.arange(200) < 100, 9.0, 1.0)
    for n in (31, 61):
        listed = np.array(steps.density_steps(profile, nodes, n, gamma=1, floor=0))
        inside = (listed[1:] >= nodes[100]).sum()
        assert abs(inside - 0.9 * (n - 1)) <= 1.5


def test_duplicates_go_to_the_largest_gap():
    assert steps.distinct_steps(np.array([9.0, 9.1, 8.9, 0.0]), 4) == [9, 6, 4, 0]
    assert steps.distinct_steps(np.array([8.0, 4.0, 4.2, 0.0]), 4) == [8, 6, 4, 0]  # of equal gaps the noisiest


def test_all_steps_is_the_full_sampler_bit_for_bit():
    gs = GeoSprint(n_steps=1000, n_pilot=4).fit(CURVED, ABAR, (4,))
    assert gs.timesteps_ == list(range(999, -1, -1))
    x = noise(3, 4, dtype=torch.float32)
    assert torch.equal(ddim_sample(CURVED, x, gs.timesteps_, VP), ddim_sample(CURVED, x, range(999, -1, -1), VP))
    assert gs.timesteps(2) == [999, 0]


@pytest.mark.parametrize(("order", "span"), [(2, "linear"), (2, "affine"), (3, "linear")])
def test_pruning_is_the_greedy_rule(order, span):
    X = walk(7, J=14)
    fast = steps.removal_order(X, order, span)
    remaining, slow = list(range(15)), []
    while len(remaining) > 2:
        part = X[remaining]
        if len(part) > order:
            r = reduced(profile_by_qr(part, order, span), "mean")
        else:
            r = [np.nan, float(residuals(list(part), span).mean())]
        node = remaining[1 + int(np.argmin(r[1:]))]
        remaining.remove(node)
        slow.append(node)
    assert fast == slow


def test_pruning_nests_and_starts_at_the_least_r():
    gs = GeoSprint(n_steps=10, rule="prune", grid=41, n_pilot=4).fit(CURVED, VP, (4,), dtype=torch.float64)
    listed = [gs.timesteps(n) for n in range(2, 42)]
    for fewer, more in pairwise(listed):
        assert set(fewer) < set(more)
    assert listed[0] == [999, 0]
    assert listed[-1] == gs.nodes_.tolist()
    least = 1 + int(np.argmin(gs.profile_[1:]))
    assert set(listed[-1]) - set(listed[-2]) == {gs.nodes_[least]}


def test_density_follows_the_profile():
    gs = GeoSprint(n_steps=30, n_pilot=8).fit(CURVED, VP, (4,))
    from scipy.stats import spearmanr

    assert spearmanr(steps.smooth(gs.profile_), steps.step_density(gs.timesteps_, gs.nodes_))[0] > 0.95


# --- the estimator ---------------------------------------------------------------------------------------------------


def test_fit_and_fit_trajectories_agree():
    gs = GeoSprint(n_steps=12, n_pilot=6, random_state=3).fit(CURVED, VP, (4,), dtype=torch.float64)
    x = torch.randn((6, 4), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    X = torch.stack(list(ddim_states(CURVED, x, gs.nodes_.tolist(), VP)))
    again = GeoSprint(n_steps=12).fit_trajectories(X)
    assert again.timesteps_ == gs.timesteps_
    np.testing.assert_allclose(again.profile_, gs.profile_)
    assert again.alpha_traj_ == pytest.approx(gs.alpha_traj_)
    assert (gs.pilot_nfe_, again.pilot_nfe_) == (6 * 200, 0)
    assert gs.redundancy_.min() == 0
    assert gs.redundant_.mean() == pytest.approx(0.5, abs=0.01)
    assert GeoSprint(threshold=1e9).fit_trajectories(X).redundant_.all()
    small = GeoSprint(n_steps=12, n_pilot=6, random_state=3, max_bytes=1).fit(CURVED, VP, (4,), dtype=torch.float64)
    assert small.timesteps_ == gs.timesteps_  # the profile sees all trajectories, the report those that fit
    assert len(small.report_.alpha.each) == 1
    shorter = GeoSprint(n_steps=12).fit_trajectories(X[::5], timesteps=gs.nodes_[::5])
    assert shorter.timesteps_[0] == 999


def test_every_prediction_type_gives_the_same():
    a, s = (lambda t: float(VP.data[int(t[0])])), (lambda t: float(VP.noise[int(t[0])]))

    def x0(x, t):
        return (x - s(t) * CURVED(x, t)) / a(t)

    kinds = {"epsilon": CURVED, "sample": x0, "v_prediction": lambda x, t: a(t) * CURVED(x, t) - s(t) * x0(x, t),
             "velocity": lambda x, t: CURVED(x, t) - x0(x, t)}  # fmt: skip
    x = noise(3, 4)
    want = ddim_sample(CURVED, x, LINSPACE, VP)
    for kind, denoiser in kinds.items():
        torch.testing.assert_close(ddim_sample(denoiser, x, LINSPACE, VP, kind), want)
        torch.testing.assert_close(
            dpm_solver_pp(denoiser, x, LINSPACE, VP, kind), dpm_solver_pp(CURVED, x, LINSPACE, VP)
        )
    same = {
        kind: GeoSprint(12, n_pilot=3).fit(d, VP, (4,), kind, dtype=torch.float64).timesteps_
        for kind, d in kinds.items()
    }
    assert len(set(map(tuple, same.values()))) == 1


def test_flow_is_euler():
    flow = NoiseSchedule.flow(100)
    x, listed = noise(3, 4), [99, 60, 20, 0]

    def velocity(x, t):
        return torch.sin(3 * x) + t[0] / 100

    y = x
    for t, u in zip(listed, [*listed[1:], -1], strict=True):
        y = y + (u - t) / 100 * velocity(y, torch.tensor([t]))
    torch.testing.assert_close(ddim_sample(velocity, x, listed, flow, "velocity"), y)
    gs = GeoSprint(8, span="affine", n_pilot=3, grid=51).fit(velocity, flow, (4,), "velocity")
    assert len(gs.timesteps_) == 8


def test_sigma_schedules():
    """VE states are VP states over sqrt(abar): the same samples from the same sigmas."""
    sigmas = np.sqrt((1 - ABAR) / ABAR)
    ve = NoiseSchedule.ve(sigmas)
    x = noise(3, 4)

    def denoiser(y, t):
        return CURVED(y * ABAR[int(t[0])] ** 0.5, t)

    got = ddim_sample(denoiser, x / ABAR[999] ** 0.5, LINSPACE, ve)
    torch.testing.assert_close(got, ddim_sample(CURVED, x, LINSPACE, VP))
    assert ve.prior == sigmas[-1]
    GeoSprint(8, span="affine", n_pilot=3).fit(denoiser, ve, (4,))


def test_outputs_of_diffusers_are_unwrapped():
    class Output:
        def __init__(self, sample):
            self.sample = sample

    x = noise(2, 4)
    torch.testing.assert_close(
        ddim_sample(lambda x, t: Output(CURVED(x, t)), x, [999, 0], VP), ddim_sample(CURVED, x, [999, 0], VP)
    )


# --- diffusers -------------------------------------------------------------------------------------------------------


def by_diffusers(scheduler, x, denoiser=CURVED):
    for t in scheduler.timesteps:
        x = scheduler.step(denoiser(x, torch.tensor([int(t)])), t, x, return_dict=False)[0]
    return x


@pytest.mark.parametrize("n", [8, 20])
def test_ddim_equals_diffusers(n):
    from diffusers import DDIMScheduler

    theirs = DDIMScheduler(clip_sample=False)
    theirs.set_timesteps(n)
    x = noise(3, 4, dtype=torch.float32)
    listed = baselines.leading_steps(VP, n)
    assert listed == theirs.timesteps.tolist()
    got = ddim_sample(CURVED, x, listed, theirs)
    torch.testing.assert_close(got, by_diffusers(theirs, x), atol=1e-5, rtol=1e-5)
    trailing = DDIMScheduler(clip_sample=False, timestep_spacing="trailing")
    trailing.set_timesteps(n)
    assert baselines.trailing_steps(VP, n) == trailing.timesteps.tolist()


@pytest.mark.parametrize("n", [5, 20])
def test_dpm_solver_equals_diffusers(n):
    from diffusers import DPMSolverMultistepScheduler, DPMSolverSinglestepScheduler

    listed = GeoSprint(n, n_pilot=4).fit(CURVED, VP, (4,)).timesteps_
    x = noise(3, 4, dtype=torch.float32)
    theirs = DPMSolverMultistepScheduler(solver_order=2, lower_order_final=True, final_sigmas_type="zero")
    theirs.set_timesteps(timesteps=listed)
    assert theirs.timesteps.tolist() == listed
    torch.testing.assert_close(dpm_solver_pp(CURVED, x, listed, VP), by_diffusers(theirs, x), atol=1e-4, rtol=1e-4)
    again = baselines.diffusers_sample(DPMSolverMultistepScheduler(solver_order=2), CURVED, x, listed)
    torch.testing.assert_close(again, dpm_solver_pp(CURVED, x, listed, VP), atol=1e-4, rtol=1e-4)
    single = DPMSolverSinglestepScheduler(solver_order=2, lower_order_final=True, final_sigmas_type="zero")
    single.set_timesteps(timesteps=listed)
    torch.testing.assert_close(
        dpm_solver_pp(CURVED, x, listed, VP, variant="2S"), by_diffusers(single, x), atol=1e-4, rtol=1e-4
    )


def test_unipc_on_a_list_is_unipc_on_its_own_steps():
    from diffusers import UniPCMultistepScheduler

    x = noise(3, 4, dtype=torch.float32)
    theirs = UniPCMultistepScheduler(final_sigmas_type="zero")
    theirs.set_timesteps(10)
    listed = theirs.timesteps.tolist()
    want = by_diffusers(theirs, x)
    got = baselines.diffusers_sample(UniPCMultistepScheduler(final_sigmas_type="zero"), CURVED, x, listed)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", ["2M", "2S"])
def test_one_step_of_dpm_solver_is_ddim(variant):
    x = noise(3, 4)
    torch.testing.assert_close(dpm_solver_pp(CURVED, x, [700], VP, variant=variant), ddim_sample(CURVED, x, [700], VP))
    torch.testing.assert_close(
        dpm_solver_pp(CURVED, x, [999, 0], VP, variant=variant), ddim_sample(CURVED, x, [999, 0], VP)
    )


def test_the_adapter_uses_the_listed_steps():
    from diffusers import DDIMScheduler, DDPMScheduler

    gs = GeoSprint(n_steps=9, n_pilot=4).fit(CURVED, DDPMScheduler(), (4,))
    scheduler = gs.as_scheduler(DDPMScheduler())
    scheduler.set_timesteps(9)
    assert scheduler.timesteps.tolist() == gs.timesteps_
    x = noise(3, 4)
    first, second = gs.timesteps_[:2]
    moved = scheduler.step(CURVED(x, torch.tensor([first])), first, x).prev_sample
    x0, eps = (
        (x - VP.noise[first] * CURVED(x, torch.tensor([first]))) / VP.data[first],
        CURVED(x, torch.tensor([first])),
    )
    torch.testing.assert_close(moved, VP.data[second] * x0 + VP.noise[second] * eps, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        by_diffusers(scheduler, x), ddim_sample(CURVED, x, gs.timesteps_, VP), atol=1e-5, rtol=1e-5
    )
    naive = DDIMScheduler(clip_sample=False)
    naive.set_timesteps(9)
    naive.timesteps = torch.tensor(gs.timesteps_)
    assert (by_diffusers(naive, x) - ddim_sample(CURVED, x, gs.timesteps_, VP)).abs().max() > 1e-2
    with pytest.raises(ValueError, match=r"num_inference_steps: got 8, the schedule lists 9"):
        scheduler.set_timesteps(8)
    with pytest.raises(ValueError, match="timestep: got 5"):
        scheduler.step(x, 5, x)
    with pytest.raises(ValueError, match="expected a diffusers scheduler"):
        gs.as_scheduler(object())
    assert len(gs.as_scheduler(DDPMScheduler(), n_steps=20).listed) == 20


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v_prediction"])
def test_the_adapter_equals_diffusers_on_equal_strides(kind):
    from diffusers import DDIMScheduler

    from gnomon.sampling.geosprint.scheduler import listed_ddim

    theirs = DDIMScheduler(prediction_type=kind, clip_sample=True)
    theirs.set_timesteps(10)
    ours = listed_ddim(theirs, theirs.timesteps.tolist(), clip_sample=True)
    ours.set_timesteps(10)
    x = noise(3, 4, dtype=torch.float32)
    for options in ({}, {"eta": 0.5, "variance_noise": noise(3, 4, dtype=torch.float32, seed=1)},
                    {"use_clipped_model_output": True}):  # fmt: skip
        for t in (900, 100, 0):
            a, b = (s.step(0.3 * x, t, x, **options) for s in (theirs, ours))
            torch.testing.assert_close(b.prev_sample, a.prev_sample, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(b.pred_original_sample, a.pred_original_sample, atol=1e-5, rtol=1e-5)


def test_the_adapter_in_a_saved_pipeline(tmp_path):
    from diffusers import DDIMPipeline, DDPMScheduler

    pipeline = DDIMPipeline(tiny_unet(), DDPMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    gs = GeoSprint(n_steps=5, n_pilot=2, grid=21).fit(pipeline.unet, pipeline.scheduler, (1, 8, 8))
    pipeline.scheduler = gs.as_scheduler(pipeline.scheduler)
    draw = lambda p: p(num_inference_steps=5, output_type="np", generator=torch.Generator().manual_seed(0)).images  # noqa: E731
    images = draw(pipeline)
    assert images.shape == (1, 8, 8, 1)
    x = torch.randn((1, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    mine = (ddim_sample(pipeline.unet, x, gs.timesteps_, VP) / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(images, mine, atol=1e-4)
    config = dict(pipeline.scheduler.config)
    again = type(pipeline.scheduler).from_config(config)
    assert again.listed == gs.timesteps_


def tiny_unet():
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    return UNet2DModel(sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8),
                       down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2, norm_num_groups=4,
                       add_attention=False)  # fmt: skip


# --- baselines -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pilot():
    return baselines.run_pilot(CURVED, VP, noise(6, 4), 101)


def test_fixed_shapes():
    rng = np.random.default_rng(0)
    for n in (2, 8, 30, 89):
        shapes = [f(VP, n) for f in (baselines.linspace_steps, baselines.quadratic_steps, baselines.cosine_steps,
                                     baselines.log_snr_steps, baselines.karras_steps)]  # fmt: skip
        for listed in (*shapes, baselines.random_steps(VP, n, rng)):
            assert len(listed) == n
            assert np.all(np.diff(listed) < 0)
            assert (listed[0], listed[-1]) == (999, 0)
    lam = VP.log_snr[baselines.log_snr_steps(VP, 8)]
    assert np.ptp(np.diff(lam)[:4]) < 0.1


def test_dynamic_programming_is_the_best_path(pilot):
    dp = baselines.DynamicProgramming(pilot)
    coarse = baselines.DynamicProgramming(baselines.run_pilot(CURVED, VP, noise(4, 4), 9))
    for n in (2, 3, 5):
        paths = {p: sum(coarse.cost[a, b] for a, b in zip((0, *p), (*p, 8), strict=True))
                 for p in itertools.combinations(range(1, 8), n - 2)}  # fmt: skip
        best = min(paths, key=paths.get)
        assert coarse.timesteps(n) == coarse.nodes[[0, *best, 8]].tolist()
    for n in (8, 30):
        listed = dp.timesteps(n)
        assert len(listed) == n
        assert (listed[0], listed[-1]) == (999, 0)
    assert abs(dp.cost[3, 4]) < 1e-12  # a step of the pilot itself


def test_adaptive_steps(pilot):
    for n in (5, 8, 30):
        listed = baselines.adaptive_steps(pilot, n)
        assert len(listed) == n
        assert np.all(np.diff(listed) < 0)
        assert (listed[0], listed[-1]) == (999, 0)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"n_steps": 1}, r"n_steps: got 1 with 1000 training steps"),
    ({"n_steps": 1001}, r"n_steps: got 1001 with 1000 training steps"),
    ({"n_steps": 60, "rule": "prune", "grid": 51}, r"n_steps: got 60 with 51 states"),
    ({"order": 4}, "order: got 4"), ({"span": "round"}, "span: got 'round'"), ({"rule": "best"}, "rule: got 'best'"),
    ({"gamma": 0}, "gamma: got 0"), ({"floor": 1.5}, "floor: got 1.5"), ({"n_pilot": 0}, "n_pilot: got 0"),
    ({"grid": 2}, "grid: got 2 states; expected at least 3"), ({"reduce": "max"}, "reduce: got 'max'"),
])  # fmt: skip
def test_bad_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        GeoSprint(**{"n_pilot": 2, "grid": 21, "n_steps": 5, **options}).fit(CURVED, VP, (4,))


def test_bad_calls():
    x = noise(2, 4)
    for sample in (ddim_sample, dpm_solver_pp):
        with pytest.raises(ValueError, match=r"got 500, 500 at index 2; expected strictly decreasing"):
            sample(CURVED, x, [999, 500, 500, 0], VP)
        with pytest.raises(ValueError, match=r"got 1000 at index 0"):
            sample(CURVED, x, [1000, 0], VP)
        with pytest.raises(ValueError, match="timesteps: got none"):
            sample(CURVED, x, [], VP)
        with pytest.raises(ValueError, match="epsilon, sample, v_prediction, velocity"):
            sample(CURVED, x, [999, 0], VP, "score")
        with pytest.raises(FloatingPointError, match="time step 500"):
            sample(lambda x, t: x * (torch.nan if t[0] == 500 else 1.0), x, [999, 500, 0], VP)
    with pytest.raises(ValueError, match="variant: got '3M'"):
        dpm_solver_pp(CURVED, x, [999, 0], VP, variant="3M")
    with pytest.raises(ValueError, match="epsilon, sample, v_prediction, velocity"):
        GeoSprint(5).fit(CURVED, VP, (4,), "score")
    with pytest.raises(FloatingPointError, match="time step 999"):
        GeoSprint(5, n_pilot=2).fit(lambda x, t: x * torch.inf, VP, (4,))
    with pytest.raises(NotFittedError):
        GeoSprint().timesteps()


@pytest.mark.parametrize(("abar", "message"), [
    ([0.9, 0.5, 0.0], r"got 0.0 at index 2; expected values in \(0, 1\)"), ([1.0, 0.5], r"got 1.0 at index 0"),
    ([0.9, 0.5, 0.6], "not monotone at index 2"), ([0.1, 0.5], "not monotone at index 1"), ([0.5], "expected"),
    ([0.5, np.nan], "not finite at index 1"),
])  # fmt: skip
def test_bad_schedules(abar, message):
    with pytest.raises(ValueError, match=message):
        GeoSprint(2).fit(CURVED, np.array(abar), (4,))


def test_other_bad_schedules():
    with pytest.raises(ValueError, match="positive"):
        NoiseSchedule.ve([0.0, 1.0])
    with pytest.raises(ValueError, match="monotone at index 1"):
        NoiseSchedule.ve([2.0, 1.0])
    with pytest.raises(ValueError, match="at least 2 steps"):
        NoiseSchedule.flow(1)
    with pytest.raises(ValueError, match="pure noise"):
        ddim_sample(CURVED, noise(2, 4), [999, 0], NoiseSchedule.flow())


def test_bad_trajectories():
    with pytest.raises(ValueError, match=r"got 2 states; expected at least 3 \(order 2\)"):
        hyperplanarity_profile(walk(0, J=1))
    with pytest.raises(ValueError, match=r"got 3 states; expected at least 4 \(order 3\)"):
        GeoSprint(3, order=3).fit_trajectories(walk(0, J=2))
    X = walk(0)
    X[4, 1, 2] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity in state 4"):
        GeoSprint(3).fit_trajectories(X)
    with pytest.raises(ValueError, match=r"got shape \(5,\)"):
        trajectory_projection_score(np.ones(5))
    with pytest.raises(ValueError, match="axis: got 'mean'"):
        trajectory_projection_score(walk(0), "mean")
    with pytest.raises(ValueError, match="expected at least 2"):
        trajectory_projection_score(np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match="windows: got 0"):
        trajectory_report(walk(0), 0)
    with pytest.raises(ValueError, match="timesteps: got 2 for 13 states"):
        GeoSprint(3).fit_trajectories(walk(0), timesteps=[999, 0])
    with pytest.raises(ValueError, match="13 states of 10 training steps"):
        GeoSprint(3).fit_trajectories(walk(0), num_train_timesteps=10)
    stream = ProfileStream()
    stream.update(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"got shape \(2, 4\) after \(2, 3\)"):
        stream.update(torch.ones(2, 4))


def test_small_schedules_and_whole_numbers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gs = GeoSprint(3).fit_trajectories(np.arange(24).reshape(4, 2, 3) ** 2, num_train_timesteps=4)
    assert gs.timesteps_[0] == 3
    short = GeoSprint(4, n_pilot=2).fit(gaussian([1.0, 0.1]), ABAR[::100], (2,))
    assert len(short.nodes_) == 10
