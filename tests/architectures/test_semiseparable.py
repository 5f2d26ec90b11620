"""Oracles of the mask, the scores and the layer."""

import math
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnomon.architectures import decayed_scores, io_bytes, plan_split, segsum, segsum_report, ssd, ssd_step
from gnomon.architectures.semiseparable import ssd_scan
from gnomon.architectures.semiseparable.baselines import attention, dense, recurrence, ssd_minimal
from gnomon.architectures.semiseparable.mask import FORMS, METHODS
from gnomon.architectures.semiseparable.scans import SCANS, prefix_sum

EPS = torch.finfo(torch.float32).eps
VARIANTS = [
    *({"method": "hier", "form": f, "block": b} for f in FORMS for b in (5, 8, 16, 32, 64)),
    {"method": "direct"},
    *({"method": m, "scan": s} for m in ("diff", "diff_clamped") for s in SCANS),
]


def benign(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return -0.1 * torch.rand(*shape, generator=generator, dtype=dtype)


def problem(b=2, T=48, h=4, P=3, g=2, N=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x, B, C = (torch.randn(*s, generator=generator, dtype=dtype) for s in ((b, T, h, P), (b, T, g, N), (b, T, g, N)))
    return x, -torch.rand(b, T, h, generator=generator, dtype=dtype), B, C


# --- the mask --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_hand_cases_and_agreement(variant, backend):
    def mask(a):
        return segsum(a, **variant, backend=backend)

    torch.testing.assert_close(mask(torch.zeros(9)), torch.ones(9, 9).tril(), rtol=0, atol=0)
    i = torch.arange(33, dtype=torch.float64)
    powers = torch.where(i[:, None] >= i, 0.9 ** (i[:, None] - i), 0.0)
    torch.testing.assert_close(mask(torch.full((33,), math.log(0.9), dtype=torch.float64)), powers, rtol=1e-13, atol=0)
    hand = mask(torch.tensor([-9.0, math.log(0.5), math.log(0.25)], dtype=torch.float64))
    expected = torch.tensor([[1, 0, 0], [0.5, 1, 0], [0.125, 0.25, 1]], dtype=torch.float64)
    torch.testing.assert_close(hand, expected, rtol=1e-14, atol=0)
    for length in (1, 2, 50, 64):
        a = benign(3, length)
        torch.testing.assert_close(mask(a), segsum(a, "direct"), rtol=1e-12, atol=1e-12)


def test_definition():
    a = benign(12)
    mask = segsum(a, "direct")
    for i in range(12):
        for j in range(12):
            expected = math.exp(float(a[j + 1 : i + 1].sum())) if i >= j else 0.0
            assert float(mask[i, j]) == pytest.approx(expected, rel=1e-14)


def test_exponents():
    a = benign(2, 20)
    a[0, 7] = -torch.inf
    exponent = segsum(a, log=True)
    assert torch.equal(exponent, segsum(a, log=True, form="log"))
    assert torch.equal(exponent[0].exp(), segsum(a[0], form="log"))
    assert torch.isneginf(exponent[..., 3, 9]).all()
    assert torch.isneginf(exponent[0, 7:, :7]).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31), length=st.integers(2, 70), block=st.sampled_from([1, 5, 8, 16, 32, 64]),
    low=st.floats(-8, 7), span=st.floats(0, 16), backend=st.sampled_from(["torch", "numba"]),
)  # fmt: skip
def test_semigroup_and_order(seed, length, block, low, span, backend):
    rng = np.random.default_rng(seed)
    a = torch.from_numpy(-(10 ** rng.uniform(low, min(low + span, 8), (2, length))).astype(np.float32))
    mask = segsum(a, block=block, backend=backend)
    assert (mask <= 1).all()
    assert torch.equal(mask, mask.tril())
    assert (mask.diagonal(dim1=-2, dim2=-1) == 1).all()
    # Exactly monotone, down the columns and along the rows: the running association has no slack.
    below = torch.ones(length, length, dtype=torch.bool).tril()
    assert (mask[:, 1:] <= mask[:, :-1])[:, below[:-1]].all()
    assert (mask[:, :, :-1] <= mask[:, :, 1:])[:, below[:, 1:]].all()
    i, k, j = np.sort(rng.integers(0, length, (3, 200)), axis=0)[::-1].copy()
    whole, product = mask[:, i, j].double(), mask[:, i, k].double() * mask[:, k, j].double()
    counts = product > 1e-30
    bound = torch.from_numpy(2.0 * (i - j + 2)) * EPS * product
    assert ((whole - product).abs() <= bound)[counts].all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), low=st.floats(-8, 7), span=st.floats(0, 16))
def test_relative_error_grows_with_the_distance_only(seed, low, span):
    rng = np.random.default_rng(seed)
    a = torch.from_numpy(-(10 ** rng.uniform(low, min(low + span, 8), (1, 96))).astype(np.float32))
    truth, mask = segsum(a.double(), "direct"), segsum(a).double()
    i = torch.arange(96)
    bound = (i[:, None] - i + 3) * EPS
    counts = truth > 1e-30
    assert (((mask - truth).abs() / truth) <= bound)[counts].all()


def test_rank_one_blocks_and_bidiagonal_inverse():
    a = benign(48)
    mask = segsum(a)
    singular = torch.linalg.svdvals(mask[16:32, :16])
    assert singular[1] <= 1e-15 * singular[0] * 16
    step = torch.zeros_like(mask)
    step.diagonal(-1).copy_(a[1:].exp())
    identity = torch.eye(48, dtype=mask.dtype)
    torch.testing.assert_close(mask @ (identity - step), identity, rtol=0, atol=1e-14)


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("where", [[0], [5], [16], [31], [3, 4, 20]])
def test_hard_resets(where, backend):
    a = benign(32)
    cut = a.clone()
    cut[where] = -torch.inf
    expected = segsum(a, "direct")
    for k in where:
        expected[k:, :k] = 0
    for variant in ({"form": "product"}, {"form": "log"}, {"method": "direct"}):
        mask = segsum(cut, **variant, block=8, backend=backend)
        assert (mask[expected == 0] == 0).all()
        torch.testing.assert_close(mask, expected, rtol=1e-13, atol=0)
    assert segsum(cut, "diff", backend=backend).isnan().any()


@pytest.mark.parametrize("variant", [{}, {"form": "log"}, {"method": "direct"}])
def test_mask_gradients(variant):
    a = benign(2, 11).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: segsum(a, **variant, block=4, validate=False), a)
    weight = torch.randn(2, 11, 11, dtype=a.dtype, generator=torch.Generator().manual_seed(1))
    cut = a.detach().clone()
    cut[:, 5] = -torch.inf
    cut.requires_grad_()
    (gradient,) = torch.autograd.grad((segsum(cut, **variant, block=4) * weight).sum(), cut)
    assert gradient.isfinite().all()
    assert (gradient[:, 5] == 0).all()


def test_masked_before_the_exponential():
    a = torch.full((40,), -50.0, requires_grad=True)  # exp of the upper triangle would be infinite
    for method in METHODS:
        (gradient,) = torch.autograd.grad(segsum(a, method).sum(), a)
        assert gradient.isfinite().all()


def test_half_precision_is_promoted():
    a = benign(3, 40, dtype=torch.float32).bfloat16()
    assert torch.equal(segsum(a), segsum(a.float()))
    assert segsum(a.half()).dtype == torch.float32


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("length", [1, 2, 7, 16, 50])
def test_scans(scan, length):
    a = torch.randn(3, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    torch.testing.assert_close(prefix_sum(a, scan), a.cumsum(-1))


def test_tree_scans_break_the_difference_form_and_not_the_others():
    rng = np.random.default_rng(0)
    a = -rng.uniform(0, 1e-3, (40, 256)).astype(np.float32)
    for row in a:
        row[rng.choice(256, 8, replace=False)] = -1e4
    report = segsum_report(a)
    assert (report.loc[["diff_kogge_stone", "diff_blelloch"], "violations"] > 0).all()
    assert (report.loc[["diff_kogge_stone", "diff_blelloch", "diff_clamped"], "max_error"] > 1e-3).all()
    assert (
        (report.loc[["hier", "hier_log", "direct"], ["violations", "disorder", "inf", "nan", "wrong"]] == 0).all().all()
    )
    assert report.loc["hier", "max_error"] <= 5e-6
    assert report.loc["diff_clamped", "violations"] == 0
    wide = -(10 ** rng.uniform(-6, 10, (60, 256))).astype(np.float32)
    report = segsum_report(wide, ["diff_kogge_stone", "diff_blelloch", "hier"])
    assert (report.loc[["diff_kogge_stone", "diff_blelloch"], "inf"] > 0).all()
    assert report.loc["hier", "inf"] == 0


def test_torch_and_numba_agree_on_every_rounding_of_the_difference():
    a = torch.from_numpy(-(10 ** np.random.default_rng(0).uniform(-3, 3, (3, 50))).astype(np.float32))
    for scan in SCANS:
        exponent, mask = segsum(a, "diff", scan=scan, log=True), segsum(a, "diff", scan=scan, backend="numba")
        torch.testing.assert_close(exponent.exp(), mask, rtol=1e-6, atol=1e-37)


def test_report_on_chunks():
    a = benign(2, 100, dtype=torch.float32)
    report = segsum_report(a, ["hier"], chunk_size=32)
    assert report.loc["hier", "chunks"] == 6
    assert len(segsum_report(a.numpy(), limit=1)) == 7
    with pytest.raises(ValueError, match="must be among"):
        segsum_report(a, ["tree"])
    with pytest.raises(ValueError, match="from 1 to 100"):
        segsum_report(a, chunk_size=200)
    with pytest.raises(ValueError, match="no chunk"):
        segsum_report(a[:0])


# --- channel-wise decay ----------------------------------------------------------------------------------------------


def scores_by_definition(x, y, a, strict):
    decays = torch.stack([segsum(c, "direct", validate=False) for c in a.unbind(-1)], -1)
    return torch.einsum("...id,...jd,...ijd->...ij", x, y, decays).tril(-1 if strict else 0)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("length", "block"), [(1, 16), (7, 3), (32, 8), (50, 16), (20, 64)])
def test_decayed_scores(length, block, strict):
    generator = torch.Generator().manual_seed(length)
    x, y, w = (torch.randn(2, length, n, dtype=torch.float64, generator=generator) for n in (3, 3, length))
    a = -torch.rand(2, length, 3, dtype=torch.float64, generator=generator)
    inputs = [t.requires_grad_() for t in (x, y, a)]
    fast, slow = decayed_scores(*inputs, strict, block=block), scores_by_definition(*inputs, strict)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad((fast * w).sum(), inputs), torch.autograd.grad((slow * w).sum(), inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_decayed_scores_resets_and_gradcheck():
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(9, 2, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    a = -torch.rand(9, 2, dtype=torch.float64, generator=generator)
    assert torch.autograd.gradcheck(
        lambda x, y, a: decayed_scores(x, y, a, block=4, validate=False), (x, y, a.clone().requires_grad_())
    )
    a[5] = -torch.inf
    a.requires_grad_()
    scores = decayed_scores(x, y, a, block=4)
    assert (scores[5:, :5] == 0).all()
    gradient = torch.autograd.grad(scores.sum(), a)[0]
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient[5], torch.zeros(2, dtype=a.dtype), rtol=0, atol=1e-13)


def test_decayed_scores_bad_input():
    x = torch.ones(4, 2)
    with pytest.raises(ValueError, match="share a shape"):
        decayed_scores(x, x, torch.zeros(4))
    with pytest.raises(ValueError, match="log-decay must be <= 0"):
        decayed_scores(x, x, x)
    with pytest.raises(ValueError, match="block"):
        decayed_scores(x, x, -x, block=0)
    assert decayed_scores(x[:0], x[:0], x[:0]).shape == (0, 0)


# --- the layer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize(
    ("T", "chunk", "split"),
    [(48, 16, "auto"), (48, 16, 16), (45, 16, 32), (7, 16, "auto"), (1, 8, "auto"), (48, 48, 1)],
)
def test_layer_equals_recurrence_dense_and_minimal(T, chunk, split, backend):
    x, a, B, C = problem(T=T)
    y = ssd_scan(x, a, B, C, chunk_size=chunk, split=split, backend=backend)
    torch.testing.assert_close(y, recurrence(x, a, B, C), rtol=0, atol=1e-12)
    torch.testing.assert_close(y, dense(x, a, B, C), rtol=0, atol=1e-12)
    if T % chunk == 0:
        torch.testing.assert_close(y, ssd_minimal(x, a, B, C, chunk), rtol=0, atol=1e-12)


def test_minimal_listing_equals_the_official_one():
    official = pytest.importorskip("mamba_ssm.modules.ssd_minimal", reason="mamba-ssm (CUDA only) is not installed")
    x, a, B, C = problem(g=4)
    torch.testing.assert_close(ssd_minimal(x, a, B, C, 16), official.ssd_minimal_discrete(x, a, B, C, 16)[0])


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("options", [{"segsum": "direct"}, {"form": "log"}, {"segsum": "diff", "scan": "blelloch"},
                                     {"segsum": "diff_clamped"}], ids=str)  # fmt: skip
def test_layer_with_every_mask(options, backend):
    inputs = problem()
    y = ssd_scan(*inputs, chunk_size=16, split=16, backend=backend, **options)
    torch.testing.assert_close(y, recurrence(*inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_tile_and_split_never_change_the_result(backend):
    inputs = problem(b=1, T=256, h=2, P=8, g=1, N=8, dtype=torch.float32)
    truth = recurrence(*(t.double() for t in inputs))
    for chunk in (16, 64, 256):
        for split in (16, 64, 128, 1000):
            y = ssd_scan(*inputs, chunk_size=chunk, split=split, backend=backend)
            assert (y - truth).abs().max() <= 1e-5 * truth.abs().max()


def test_numba_threads_share_the_heads(monkeypatch):
    inputs = problem(T=40)
    alone = ssd_scan(*inputs, chunk_size=16, backend="numba")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.testing.assert_close(ssd_scan(*inputs, chunk_size=16, split=80, backend="numba"), alone, rtol=0, atol=1e-13)


@pytest.mark.parametrize("split", [4, 8, 16])
def test_layer_gradients(split):
    inputs = [t.requires_grad_() for t in problem(b=2, T=11, h=2, P=2, g=1, N=2)]
    state = torch.randn(2, 2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *t: ssd_scan(*t[:4], chunk_size=4, block=2, split=split, initial_state=t[4], return_final_state=True,
                            validate=False),
        (*inputs, state),
    )  # fmt: skip


def test_layer_gradients_equal_those_through_the_dense_direct_form():
    x, a, B, C = problem(T=40)
    a = a.clone()
    a[:, 7] = -torch.inf
    a[:, 20] = -60.0
    inputs = [t.requires_grad_() for t in (x, a, B, C)]
    weight = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    mine = torch.autograd.grad((ssd_scan(*inputs, chunk_size=16, split=16) * weight).sum(), inputs)
    theirs = torch.autograd.grad((dense(*inputs) * weight).sum(), inputs)
    for one, other in zip(mine, theirs, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    assert mine[1][:, 7].abs().max() <= 1e-12


def test_initial_state_continues_a_sequence():
    x, a, B, C = problem()
    whole, last = ssd_scan(x, a, B, C, chunk_size=16, return_final_state=True)
    cut = 21
    first, state = ssd_scan(*(t[:, :cut] for t in (x, a, B, C)), chunk_size=16, split=16, return_final_state=True)
    rest, end = ssd_scan(
        *(t[:, cut:] for t in (x, a, B, C)), chunk_size=16, initial_state=state, return_final_state=True
    )
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=0, atol=1e-12)
    y, state = first[:, :0], torch.zeros_like(state)
    for t in range(5):
        y, state = ssd_step(state, x[:, t], a[:, t], B[:, t], C[:, t])
        torch.testing.assert_close(y, whole[:, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_packed_sequences_equal_separate_calls(backend):
    inputs = [t.requires_grad_() for t in problem(b=1, T=50)]
    cuts = [0, 13, 13, 14, 50]
    states = torch.randn(4, 4, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    options = {"chunk_size": 8, "split": 16, "return_final_state": True, "backend": backend}
    y, last = ssd_scan(*inputs, cu_seqlens=torch.tensor(cuts), initial_state=states, **options)
    pieces, ends = [], []
    for k, (start, stop) in enumerate(pairwise(cuts)):
        piece, end = ssd_scan(*(t[:, start:stop] for t in inputs), initial_state=states[k : k + 1], **options)
        pieces.append(piece)
        ends.append(end)
    torch.testing.assert_close(y, torch.cat(pieces, 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(last, torch.cat(ends), rtol=0, atol=1e-12)
    packed = torch.autograd.grad(y.square().sum() + last.sum(), inputs)
    separate = torch.autograd.grad(torch.cat(pieces, 1).square().sum() + torch.cat(ends).sum(), inputs)
    for one, other in zip(packed, separate, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_empty_sequence_gives_empty_output_and_the_initial_state():
    inputs = [t.requires_grad_() for t in problem(T=0)]
    state = torch.randn(2, 4, 3, 5, dtype=torch.float64).requires_grad_()
    y, last = ssd_scan(*inputs, initial_state=state, return_final_state=True)
    assert y.shape == (2, 0, 4, 3)
    assert torch.equal(last, state)
    last.sum().backward()
    assert (state.grad == 1).all()


def test_wrapper_discretises_in_the_order_of_mamba():
    x, a, B, C = problem()
    generator = torch.Generator().manual_seed(4)
    dt = torch.randn(*a.shape, dtype=a.dtype, generator=generator)
    A, D, bias = -torch.rand(4, dtype=a.dtype), torch.randn(4, dtype=a.dtype), torch.randn(4, dtype=a.dtype)
    z = torch.randn(*x.shape, dtype=x.dtype, generator=generator)
    y = ssd(x, dt, A, B, C, D, z, bias, True, (0.3, 0.9), chunk_size=16)
    step = torch.nn.functional.softplus(dt + bias).clamp(0.3, 0.9)
    expected = recurrence(x * step[..., None], step * A, B, C) + D[:, None] * x
    torch.testing.assert_close(y, expected * torch.nn.functional.silu(z), rtol=0, atol=1e-12)
    nothing = ssd(x, step, A, torch.zeros_like(B), C, D)
    torch.testing.assert_close(nothing, D[:, None] * x, rtol=0, atol=1e-15)


def test_bfloat16_keeps_its_dtype_and_a_float32_state():
    x, a, B, C = (t.bfloat16() for t in problem())
    y, state = ssd_scan(x, a, B, C, return_final_state=True)
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    exact = recurrence(x.double(), a.double(), B.double(), C.double())
    assert (y.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


def test_compiles():
    a = benign(16)
    compiled = torch.compile(lambda a: segsum(a).sum(), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(a), segsum(a).sum())
    assert compiled(-a) > 0  # no check inside a graph


def test_attention_peer_is_causal():
    x, a, B, C = problem(T=8)
    y = attention(x, a, B, C)
    torch.testing.assert_close(y[:, 0], x[:, 0])
    changed = x.clone()
    changed[:, 5:] += 1
    torch.testing.assert_close(attention(changed, a, B, C)[:, :5], y[:, :5])


# --- plan ------------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(*(st.integers(1, n) for n in (5000, 128, 4, 16, 200)))
def test_plan_is_the_longest_split_that_feeds_the_workers(T, Q, b, h, workers):
    chosen, tiles = plan_split(T, Q, b, h, workers), -(-T // Q)
    enough = [m * Q for m in range(1, tiles + 1) if b * h * -(-T // (m * Q)) >= workers]
    assert chosen == (max(enough) if enough else Q)


def test_plan_edges():
    assert plan_split(1000, 64, 1, 1, 1) == 1024
    assert plan_split(4096, 64, 2, 8, 16) == 4096
    assert plan_split(128, 64, 1, 1, 1000) == 64
    assert plan_split(0, 64, 1, 1, 8) == 64
    with pytest.raises(ValueError, match="Q must be at least 1"):
        plan_split(10, 0, 1, 1, 1)
    with pytest.raises(ValueError, match="T must"):
        plan_split(-1, 1, 1, 1, 1)


@pytest.mark.parametrize("m", [1, 2, 8])
def test_boundary_traffic_falls_as_the_split_grows(m):
    shape = {"b": 2, "T": 4096, "h": 8, "P": 64, "N": 128, "g": 1, "Q": 64}
    classic, split = io_bytes(**shape, Ls=64), io_bytes(**shape, Ls=64 * m)
    assert classic["boundary"] == m * split["boundary"] == 4 * 2 * 8 * 64 * 128 * 2 * 64
    assert split["total"] == sum(v for k, v in split.items() if k != "total")
    whole = io_bytes(**shape, Ls=4096)
    assert whole["boundary"] == whole["pass1"] == whole["pass2"] == 0
    assert whole["pass3"] == 2 * 4096 * (2 * (2 * 8 * 64 + 2 * 128) + 4 * 8)
    with pytest.raises(ValueError, match="multiple of Q"):
        io_bytes(**shape, Ls=100)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "tree"}, "method must be one of hier, direct, diff, diff_clamped"),
        ({"scan": "serial"}, "scan must be one of sequential, kogge_stone, blelloch"),
        ({"form": "ratio"}, "form must be one of product, log"),
        ({"backend": "cuda"}, "backend must be one of torch, numba, triton"),
        ({"block": 0}, "block must be at least 1, got 0"),
        ({"backend": "numba", "log": True}, "without exponents or gradients"),
    ],
)
def test_bad_options_of_the_mask(options, message):
    with pytest.raises(ValueError, match=message):
        segsum(torch.zeros(4), **options)


def test_bad_decays():
    with pytest.raises(ValueError, match=r"log-decay must be <= 0 \(got max 0.5\); pass dt >= 0 and A < 0"):
        segsum(torch.tensor([-1.0, 0.5]))
    with pytest.raises(ValueError, match=r"NaN, first at index \(1, 2\)"):
        segsum(torch.tensor([[-1.0, 0.0, 0.0], [-1.0, 0.0, torch.nan]]))
    with pytest.raises(TypeError, match="floating-point"):
        segsum(torch.zeros(3, dtype=torch.int64))
    assert segsum(torch.tensor([-1.0, 0.5]), validate=False)[1, 0] > 1
    assert segsum(torch.zeros(2, 0)).shape == (2, 0, 0)
    with pytest.raises(ValueError, match="log-decay"):
        ssd(torch.ones(1, 4, 2, 3), torch.ones(1, 4, 2), torch.ones(2), torch.ones(1, 4, 1, 2), torch.ones(1, 4, 1, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"segsum": "tree"}, "method must be one of"),
        ({"block": -1}, "block must be at least 1"),
        ({"split": 0}, "split must be 'auto' or at least 1"),
        ({"split": "all"}, "split must be 'auto'"),
        ({"backend": "jax"}, "backend must be one of auto"),
        ({"initial_state": torch.zeros(2, 4, 3, 6, dtype=torch.float64)}, r"initial_state must have shape \(2, 4, 3, 5\)"),
        ({"initial_state": torch.zeros(2, 4, 3, 5)}, "initial_state must be torch.float64"),
        ({"cu_seqlens": torch.tensor([0, 48])}, "batch of one"),
    ],
)  # fmt: skip
def test_bad_options_of_the_layer(change, message):
    with pytest.raises(ValueError, match=message):
        ssd_scan(*problem(), **change)


def test_bad_shapes_of_the_layer():
    x, a, B, C = problem()
    with pytest.raises(ValueError, match="3 groups of B and C must divide the 4 heads"):
        ssd_scan(x, a, B[:, :, :1].expand(-1, -1, 3, -1), C[:, :, :1].expand(-1, -1, 3, -1))
    with pytest.raises(ValueError, match="3 groups of B and C must divide the 4 heads"):
        ssd_step(torch.zeros(2, 4, 3, 5), x[:, 0], a[:, 0], torch.zeros(2, 3, 5), torch.zeros(2, 3, 5))
    with pytest.raises(ValueError, match="state must be"):
        ssd_step(torch.zeros(2, 4, 3, 4), x[:, 0], a[:, 0], B[:, 0], C[:, 0])
    with pytest.raises(ValueError, match="B and C must both be"):
        ssd_scan(x, a, B[:, 1:], C)
    with pytest.raises(ValueError, match="a must be"):
        ssd_scan(x, a[:, 1:], B, C)
    with pytest.raises(ValueError, match="x must be"):
        ssd_scan(x[0], a, B, C)
    with pytest.raises(ValueError, match="must rise from 0 to T"):
        ssd_scan(x[:1], a[:1], B[:1], C[:1], cu_seqlens=torch.tensor([0, 50]))
    with pytest.raises(ValueError, match="A must have one entry for each of 4 heads"):
        ssd(x, a, torch.zeros(3), B, C)
    with pytest.raises(ValueError, match="z must have the shape of x"):
        ssd(x, -a, -torch.ones(4, dtype=x.dtype), B, C, z=x[:, 1:])
    with pytest.raises(ValueError, match="multiple of the chunk"):
        ssd_minimal(x, a, B, C, 7)
    with pytest.raises(ValueError, match="scan must be one of"):
        prefix_sum(a, "tree")
