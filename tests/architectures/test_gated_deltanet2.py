"""Oracles of the rule, its forms and its family."""

import itertools
import math
import warnings
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional as F

from gnomon.architectures import gated_delta_rule, gated_delta_rule2, gated_delta_rule2_step, kda, transition_norm
from gnomon.architectures.gated_deltanet2 import baselines, fast_weight_step
from gnomon.architectures.gated_deltanet2.mamba3 import trapezoidal
from gnomon.architectures.gated_deltanet2.norms import BOUND

FAST = ("chunk", "numba")


def problem(B=2, T=37, H=2, K=5, V=3, depth=0.5, seed=0, dtype=torch.float64, state=True):
    """q, k, v, g, b, w and a state: unit keys, gates in [0, 1], log-decays down to -depth."""
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=dtype)
    uniform = partial(torch.rand, generator=generator, dtype=dtype)
    q, k = (F.normalize(normal(B, T, H, K), dim=-1) for _ in range(2))
    inputs = [q, k, normal(B, T, H, V), -depth * uniform(B, T, H, K), uniform(B, T, H, K), uniform(B, T, H, V)]
    return [*inputs, normal(B, H, K, V)] if state else inputs


def run(inputs, mode, **options):
    *inputs, state = inputs
    return gated_delta_rule2(*inputs, initial_state=state, mode=mode, validate=False, **options)


def with_gradients(inputs, mode, **options):
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        o, S = run(leaves, mode, **options)
    generator = torch.Generator().manual_seed(9)
    weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in (o, S)]
    gradients = torch.autograd.grad((o * weights[0]).sum() + (S * weights[1]).sum(), leaves)
    return (o.detach(), S.detach()), gradients


def relative(a, b):
    return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-300))


# --- by hand ---------------------------------------------------------------------------------------------------------


def step_of(S, k, v, g, b, w):
    S, k, v, g, b, w = (torch.tensor(t, dtype=torch.float64) for t in (S, k, v, g, b, w))
    return fast_weight_step(S, k, v, g, b, w)


def test_one_channel_by_hand():
    assert float(step_of([[2.0]], [1.0], [4.0], [0.0], [0.25], [0.5]).state) == 3.5
    S = [[1.0, 2.0], [3.0, 4.0]]
    for b1 in (0.0, 0.3, 1.0):
        assert step_of(S, [1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [b1, 0.7], [1.0, 1.0]).state[1].tolist() == [3.0, 4.0]


def test_two_channels_by_hand():
    step = step_of([[1.0], [2.0]], [0.6, 0.8], [3.0], [math.log(0.5), 0.0], [1.0, 0.0], [0.5])
    torch.testing.assert_close(step.forgotten[:, 0].tolist(), [0.5, 2.0])
    assert float(step.read) == pytest.approx(0.3)
    assert float(step.residual) == pytest.approx(1.2)
    assert step.state[:, 0].tolist() == pytest.approx([1.22, 2.96])
    assert float(step.strength) == pytest.approx(0.36)
    found = float(step.state[0, 0] * 0.6)
    assert found == pytest.approx(0.732)
    assert found == pytest.approx(0.64 * 0.3 + 0.36 * 1.5)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), K=st.integers(1, 8), V=st.integers(1, 5))
def test_reading_at_the_gated_key(seed, K, V):
    _, k, v, g, b, w, S = problem(1, 1, 1, K, V, seed=seed)
    step = fast_weight_step(S[:, 0], k[:, 0, 0], v[:, 0, 0], g[:, 0, 0], b[:, 0, 0], w[:, 0, 0])
    eta = step.strength[:, None]
    assert 0 <= float(eta) <= 1 + 1e-12
    read = ((b * k)[:, 0, 0, None] @ step.state)[:, 0]
    torch.testing.assert_close(read, (1 - eta) * step.read + eta * (w * v)[:, 0, 0], rtol=1e-12, atol=1e-12)


def test_an_equal_gate_is_a_gradient_step():
    _, k, v, g, _, _, S = problem(1, 1, 1, 5, 3)
    k, v, g, S = k[0, 0, 0], v[0, 0, 0], g[0, 0, 0], S[0, 0]
    forgotten = (g.exp()[:, None] * S).requires_grad_()
    (gradient,) = torch.autograd.grad((forgotten.T @ k - v).square().sum() / 2, forgotten)
    beta = 0.3
    step = fast_weight_step(S, k, v, g, torch.full_like(k, beta), torch.full_like(v, beta))
    torch.testing.assert_close(step.state, (forgotten - beta * gradient).detach(), rtol=1e-13, atol=1e-14)


# --- the forms agree -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", FAST)
@pytest.mark.parametrize("depth", [0.0, 0.3, 60.0])
@pytest.mark.parametrize("T", [1, 37, 130])
def test_forms_equal_the_recurrence(mode, depth, T):
    inputs = problem(T=T, K=6, V=4, depth=depth)
    (o, S), gradients = with_gradients(inputs, "recurrent")
    for tiles in [{}] if mode == "numba" else [{}, {"chunk_size": 16}, {"chunk_size": 32, "sub_chunk": 32}]:
        (o2, S2), gradients2 = with_gradients(inputs, mode, **tiles)
        assert float((o2 - o).abs().max()) <= 1e-12
        assert float((S2 - S).abs().max()) <= 1e-12
        for name, mine, theirs in zip("qkvgbwS", gradients2, gradients, strict=True):
            if float(theirs.abs().max()) > 0:
                assert relative(mine, theirs) <= 1e-10, name
    single = [t.float() for t in inputs]
    assert max(relative(a, b) for a, b in zip(run(single, mode), (o, S), strict=True)) <= 5e-6


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31), T=st.integers(1, 90), K=st.integers(1, 9), V=st.integers(1, 9), mode=st.sampled_from(FAST),
    depth=st.sampled_from([0.0, 0.1, 2.0, 60.0]), chunk=st.integers(1, 70), block=st.integers(1, 20),
)  # fmt: skip
def test_forms_agree_whatever_the_shape(seed, T, K, V, mode, depth, chunk, block):
    inputs = problem(1, T, 2, K, V, depth, seed)
    (o, S), gradients = with_gradients(inputs, "recurrent")
    (o2, S2), gradients2 = with_gradients(inputs, mode, chunk_size=chunk, sub_chunk=block)
    torch.testing.assert_close(o2, o, rtol=0, atol=1e-12)
    torch.testing.assert_close(S2, S, rtol=0, atol=1e-12)
    for mine, theirs in zip(gradients2, gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-11)


def test_tiles_and_checkpoints_change_nothing():
    inputs = problem(T=100)
    (o, S), gradients = with_gradients(inputs, "chunk", chunk_size=64, sub_chunk=16)
    for options in ({"chunk_size": 16, "sub_chunk": 8}, {"chunk_size": 32, "sub_chunk": 32}, {"checkpoint": True}):
        (o2, S2), gradients2 = with_gradients(inputs, "chunk", **options)
        for a, b in zip((o2, S2, *gradients2), (o, S, *gradients), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mode", ["recurrent", *FAST])
def test_gradcheck(mode):
    inputs = [t.requires_grad_() for t in problem(1, 7, 1, 3, 2, depth=1.0)]
    assert torch.autograd.gradcheck(lambda *t: run(t, mode, chunk_size=4, sub_chunk=2), inputs)


@pytest.mark.parametrize("mode", ["recurrent", *FAST])
def test_resets(mode):
    inputs = problem(T=40)
    inputs[3][:, [11, 20]] = -torch.inf
    (o, S), gradients = with_gradients(inputs, mode, chunk_size=16)
    q, k, v, _, _, w, _ = inputs
    alone = (q[:, 20] * k[:, 20]).sum(-1, keepdim=True) * (w * v)[:, 20] * q.shape[-1] ** -0.5
    torch.testing.assert_close(o[:, 20], alone, rtol=1e-12, atol=1e-14)
    after = [t[:, 20:] for t in inputs[:6]]
    torch.testing.assert_close(S, run([*after, torch.zeros_like(S)], mode)[1], rtol=1e-12, atol=1e-14)
    assert all(g.isfinite().all() for g in gradients)
    assert float(gradients[3][:, [11, 20]].abs().max()) <= 1e-14


@pytest.mark.parametrize("mode", ["recurrent", *FAST])
def test_a_sequence_may_be_cut_and_packed(mode):
    q, k, v, g, b, w, S0 = inputs = problem(1, 50)
    o, S = run(inputs, mode)
    first, middle = run([*(t[:, :23] for t in inputs[:6]), S0], mode)
    second, last = run([*(t[:, 23:] for t in inputs[:6]), middle], mode)
    torch.testing.assert_close(torch.cat([first, second], 1), o, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(last, S, rtol=1e-12, atol=1e-13)

    cuts = torch.tensor([0, 7, 8, 50])
    states = torch.randn(3, 2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    leaves = [t.clone().requires_grad_() for t in (q, k, v, g, b, w, states)]
    packed, ends = run(leaves, mode, cu_seqlens=cuts)
    apart = [run([*(t[:, i:j] for t in leaves[:6]), leaves[6][n : n + 1]], mode)
             for n, (i, j) in enumerate(itertools.pairwise(cuts.tolist()))]  # fmt: skip
    torch.testing.assert_close(packed, torch.cat([o for o, _ in apart], 1), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(ends, torch.cat([S for _, S in apart]), rtol=1e-12, atol=1e-13)
    mine = torch.autograd.grad(packed.square().sum() + ends.sum(), leaves)
    theirs = torch.autograd.grad(sum(o.square().sum() + S.sum() for o, S in apart), leaves)
    for a, b_ in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b_, rtol=1e-10, atol=1e-11)


def test_token_by_token():
    *inputs, state = problem(T=20, dtype=torch.float32)
    o, S = run([*inputs, state], "chunk")
    for t in range(20):
        out, state = gated_delta_rule2_step(*(x[:, t] for x in inputs), state)
        torch.testing.assert_close(out, o[:, t], rtol=0, atol=1e-5)
    torch.testing.assert_close(state, S, rtol=0, atol=1e-5)


def test_threads_change_nothing():
    inputs, before = problem(T=70), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        (o, S), gradients = with_gradients(inputs, "numba")
        torch.set_num_threads(3)
        (o2, S2), gradients2 = with_gradients(inputs, "numba")
    finally:
        torch.set_num_threads(before)
    for a, b in zip((o, S, *gradients), (o2, S2, *gradients2), strict=True):
        assert torch.equal(a, b)


def test_what_has_faded_is_zero_and_nan_is_not_hidden():
    inputs = problem(1, 300, 1, 4, 4, dtype=torch.float32)
    inputs[3].fill_(-1.0)
    inputs[2].zero_()
    state = run(inputs, "numba")[1]
    assert (state == 0).all()  # e^-300 of it would be a subnormal number, and slow
    inputs[2][0, 5] = torch.nan
    assert run(inputs, "numba")[0][0, 5:].isnan().all()


# --- symmetries and special gates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", FAST)
def test_symmetries(mode):
    q, k, v, g, b, w, S = inputs = problem()
    o, _ = run(inputs, mode)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(0))
    permuted = [q[..., order], k[..., order], v, g[..., order], b[..., order], w, S[:, :, order]]
    torch.testing.assert_close(run(permuted, mode)[0], o, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(run([-q, -k, v, g, b, w, -S], mode)[0], o, rtol=1e-12, atol=1e-13)
    assert float((run([-q, -k, v, g, b, w, S], mode)[0] - o).abs().max()) > 1e-2


@pytest.mark.parametrize("mode", FAST)
def test_special_gates(mode):
    q, k, v, g, b, w, S = problem(T=12)
    zero, one = torch.zeros_like(b), torch.ones_like(b)
    # b = 1: a read with k right after the write returns exactly z.
    o, _ = run([k, k, v, g, one, w, S], mode, scale=1.0)
    torch.testing.assert_close(o, w * v, rtol=1e-12, atol=1e-12)
    # b = 0: purely additive.
    _, end = run([q, k, v, zero, zero, w, S], mode)
    torch.testing.assert_close(end, S + torch.einsum("bthk,bthv->bhkv", k, w * v), rtol=1e-12, atol=1e-12)
    # b = w = 0: it fades and no more.
    _, end = run([q, k, v, g, zero, torch.zeros_like(w), S], mode)
    torch.testing.assert_close(end, g.sum(1).exp()[..., None] * S, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("mode", ["recurrent", *FAST])
def test_family(mode):
    q, k, v, g, _, _, _ = problem(1, 40, 1, 6, 4)
    generator = torch.Generator().manual_seed(4)
    beta, a = (torch.rand(1, 40, 1, dtype=torch.float64, generator=generator) for _ in range(2))
    a = -a
    row = [t[0, :, 0] for t in (q, k, v, g)]
    zero, one = torch.zeros_like(g), torch.ones_like(v)
    options = {"scale": 1.0, "mode": mode}
    wide = a[..., None].expand_as(g)
    cases = {
        "kda": (kda(q, k, v, g, beta, **options), baselines.kimi_delta(*row, beta[0, :, 0])),
        "gdn": (gated_delta_rule(q, k, v, a, beta, **options),
                baselines.gated_delta_net(*row[:3], a[0, :, 0], beta[0, :, 0])),
        "delta": (kda(q, k, v, zero, beta, **options), baselines.delta_net(*row[:3], beta[0, :, 0])),
        "gla": (gated_delta_rule2(q, k, v, g, zero, one, **options), baselines.gla(*row)),
        "mamba2": (gated_delta_rule2(q, k, v, -2.0 * beta[..., None].expand_as(g), zero, beta[..., None].expand_as(v),
                                     **options), baselines.mamba2(*row[:3], beta[0, :, 0], -2.0)),
        "gdn by hand": (gated_delta_rule2(q, k, v, wide, beta[..., None].expand_as(k), beta[..., None].expand_as(v),
                                          **options), baselines.gated_delta_net(*row[:3], a[0, :, 0], beta[0, :, 0])),
    }  # fmt: skip
    for name, ((o, _), expected) in cases.items():
        assert float((o[0, :, 0] - expected).abs().max()) <= 1e-12, name


def test_fla():
    """Against the naive operators of flash-linear-attention, in its layout and in float32."""
    pytest.importorskip("fla")
    from fla.ops.gdn2.naive import naive_chunk_gdn2, naive_recurrent_gdn2
    from fla.ops.kda.naive import naive_recurrent_kda

    q, k, v, g, b, w, S = problem(2, 96, 2, 16, 16, depth=0.1, dtype=torch.float32)
    for mode in ("recurrent", *FAST):
        o, end = run([q, k, v, g, b, w, S], mode)
        for theirs in (naive_recurrent_gdn2, naive_chunk_gdn2):
            o2, end2 = theirs(q, k, v, g, b, w, initial_state=S, output_final_state=True)
            assert float((o - o2).abs().max()) <= 1e-6
            assert float((end - end2).abs().max()) <= 1e-6
        o, end = kda(q, k, v, g, b[..., 0], initial_state=S, mode=mode)
        o2, end2 = naive_recurrent_kda(q, k, v, g, b[..., 0], initial_state=S, output_final_state=True)
        assert float((o - o2).abs().max()) <= 1e-6
        assert float((end - end2).abs().max()) <= 1e-6


@pytest.mark.parametrize("rank", [1, 3])
def test_mamba3_is_its_recurrence(rank):
    generator = torch.Generator().manual_seed(rank)
    q, k = (torch.randn(1, 9, 2, rank, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    v = torch.randn(1, 9, 2, rank, 3, dtype=torch.float64, generator=generator)
    step, A, lam = (torch.rand(1, 9, 2, dtype=torch.float64, generator=generator) for _ in range(3))
    state, before, rows = torch.zeros(1, 2, 4, 3, dtype=torch.float64), torch.zeros(1, 2, 4, 3).double(), []
    for t in range(9):
        entry = torch.einsum("bhrk,bhrv->bhkv", k[:, t], v[:, t])
        alpha = (-A[:, t] * step[:, t]).exp()[..., None, None]
        now, late = (lam * step)[:, t, :, None, None], ((1 - lam) * step)[:, t, :, None, None]
        state = alpha * state + late * alpha * before + now * entry
        before = entry
        rows.append(q[:, t] @ state)
    torch.testing.assert_close(trapezoidal(q, k, v, step, -A, lam), torch.stack(rows, 1), rtol=1e-12, atol=1e-12)


# --- the norm of a step ----------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), K=st.integers(2, 9))
def test_transition_norm(seed, K):
    rng = np.random.default_rng(seed)
    k = F.normalize(torch.from_numpy(rng.standard_normal((6, K))), dim=-1)
    b = torch.from_numpy(rng.random((6, K)))
    dense = torch.eye(K).double() - k[:, :, None] * (b * k)[:, None]
    torch.testing.assert_close(transition_norm(k, b), torch.linalg.matrix_norm(dense, 2), rtol=1e-9, atol=0)
    assert (transition_norm(k, b) <= BOUND + 1e-12).all()
    assert (transition_norm(k, b[:, :1].expand_as(b)) <= 1 + 1e-12).all()
    g = -torch.from_numpy(rng.random((6, K)))
    torch.testing.assert_close(
        transition_norm(k, b, g), torch.linalg.matrix_norm(dense * g.exp()[:, None], 2), rtol=1e-9, atol=0
    )
    assert (transition_norm(k, 2 * b) >= 1 - 1e-9).all()


def test_the_bound_is_attained():
    k = torch.tensor([3**-0.5, (2 / 3) ** 0.5], dtype=torch.float64)
    assert float(transition_norm(k, torch.tensor([1.0, 0.0]).double())) == pytest.approx(2 / 3**0.5, rel=1e-12)
    assert float(transition_norm(torch.ones(1), torch.tensor([0.3]))) == pytest.approx(0.7)


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input():
    q, k, v, g, b, w, S = problem(1, 8)
    call = gated_delta_rule2
    with pytest.raises(ValueError, match="g is a log-decay and must be <= 0"):
        call(q, k, v, -g, b, w)
    with pytest.raises(ValueError, match="g is a log-decay"):
        call(q, k, v, g * torch.nan, b, w)
    with pytest.raises(ValueError, match=r"use gnomon.architectures.kda, or expand"):
        call(q, k, v, g, b[..., 0], w)
    with pytest.raises(ValueError, match=r"w must be .*architectures.kda, or expand"):
        call(q, k, v, g, b, w[..., 0])
    with pytest.raises(
        ValueError, match=r"initial_state must be \(1, 2, 5, 3\) for k \(1, 8, 2, 5\), got \(1, 2, 4, 3\)"
    ):
        call(q, k, v, g, b, w, initial_state=S[:, :, :4])
    for offsets in ([0, 3, 3, 8], [0, 5, 4, 8], [1, 8], [0, 7], [0]):
        with pytest.raises(ValueError, match="must increase from 0 to 8"):
            call(q, k, v, g, b, w, cu_seqlens=torch.tensor(offsets))
    with pytest.raises(ValueError, match="batch of 1, got a batch of 2"):
        call(*problem(2, 8, state=False), cu_seqlens=torch.tensor([0, 8]))
    with pytest.raises(ValueError, match="v must be finite"):
        call(q, k, v * torch.inf, g, b, w)
    with pytest.raises(ValueError, match=r"k must be \[B, T, H, K\]"):
        call(q[0], k[0], v, g, b, w)
    with pytest.raises(ValueError, match="v must be"):
        call(q, k, v[:, :4], g, b, w)
    with pytest.raises(ValueError, match="q must be"):
        call(q[..., :2], k, v, g, b, w)
    with pytest.raises(ValueError, match="mode must be one of"):
        call(q, k, v, g, b, w, mode="fast")
    with pytest.raises(ValueError, match="sub_chunk must be at least 1"):
        call(q, k, v, g, b, w, sub_chunk=0)
    with pytest.raises(TypeError, match="q must be a floating-point tensor"):
        call(q.long(), k, v, g, b, w)
    with pytest.raises(ValueError, match="beta must be"):
        kda(q, k, v, g, b)
    with pytest.raises(ValueError, match="g must be"):
        gated_delta_rule(q, k, v, g, b[..., 0])
    with pytest.raises(ValueError, match="state must be"):
        gated_delta_rule2_step(*(t[:, 0] for t in (q, k, v, g, b, w)), S[:, :1])
    with pytest.raises(ValueError, match="w must be"):
        gated_delta_rule2_step(*(t[:, 0] for t in (q, k, v, g, b, b)), S)
    with pytest.raises(ValueError, match="unit length"):
        transition_norm(2 * k, b)
    with pytest.raises(ValueError, match="shape of k"):
        transition_norm(k, b[..., :2])
    with pytest.raises(ValueError, match="log-decay"):
        transition_norm(k, b, -g)


def test_long_training_in_the_recurrent_mode_warns():
    inputs = [t.requires_grad_() for t in problem(1, 513, 1, 2, 2)]
    with pytest.warns(UserWarning, match="513 tokens in mode='recurrent'"):
        run(inputs, "recurrent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(inputs, "chunk")
        run([t.detach() for t in inputs], "recurrent")


@pytest.mark.parametrize("mode", ["recurrent", *FAST])
def test_dtypes_layouts_and_no_tokens(mode):
    *inputs, S = problem(1, 20)
    o, end = gated_delta_rule2(*inputs, initial_state=S, mode=mode)
    mixed = [inputs[0].half(), inputs[1].float(), inputs[2].bfloat16(), *inputs[3:]]
    low, state = gated_delta_rule2(*mixed, initial_state=S, mode=mode)
    assert (low.dtype, state.dtype, o.dtype, end.dtype) == (torch.bfloat16, torch.float32, torch.float64, torch.float64)
    assert relative(low, o) <= 2e-2
    turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs]
    torch.testing.assert_close(gated_delta_rule2(*turned, initial_state=S, mode=mode)[0], o)
    empty, state = gated_delta_rule2(*(t[:, :0] for t in inputs), initial_state=S, mode=mode)
    assert empty.shape == (1, 0, 2, 3)
    assert torch.equal(state, S)
    assert gated_delta_rule2(*inputs, mode=mode, output_final_state=False)[1] is None


def test_normalisation_of_a_row_of_zeros():
    q, k, *rest = [t.requires_grad_() for t in problem(1, 6, state=False)]
    with torch.no_grad():
        k[:, 0] = 0
    o, _ = gated_delta_rule2(3 * q, k, *rest, use_qk_l2norm=True)
    assert torch.autograd.grad(o.sum(), k)[0].isfinite().all()
    torch.testing.assert_close(o, gated_delta_rule2(q, k, *rest, use_qk_l2norm=True)[0], rtol=1e-5, atol=1e-6)
