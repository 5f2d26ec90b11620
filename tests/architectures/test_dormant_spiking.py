"""Oracles of the neuron: hand cases, the plain neuron, sleep and waking, gradients, bad input."""

import copy
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnomon.architectures import DormantLIF, dormant_lif
from gnomon.architectures.dormant_spiking import SpikingClassifier, mlp, reset, wake_steps
from gnomon.architectures.dormant_spiking.baselines import lif
from gnomon.architectures.dormant_spiking.surrogate import SURROGATES, primitive, slope, step

BACKENDS = ["torch", "numba"]
KINDS = [{"wake": "leak"}, {"wake": "never"}, {"wake": "after", "n": 1}, {"wake": "after", "n": 3}]
by_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(map(str, k.values())))


def currents(*shape, seed=0, dtype=torch.float64, scale=1.5):
    return scale * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# --- hand cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_hand_case(backend):
    current = torch.tensor([-2.0, 3, 3, 3]).reshape(4, 1, 1)

    def run(**options):
        trace = dormant_lif(current, tau=2.0, backend=backend, **options)
        return trace.spikes.flatten().tolist(), trace.membrane.flatten().tolist(), trace.awake.flatten().tolist()

    assert run(v_dormant=-math.inf)[0] == [0, 1, 1, 1]
    spikes, v, awake = run(v_dormant=-0.5)
    assert v[:3] == [-2, -1, -0.5]
    assert awake == [1, 0, 0, 1]  # the gate at 0 is open: awake at the fourth step, h = 2.75
    assert spikes == [0, 0, 0, 1]
    assert wake_steps(-2.0, -0.5, 0.5) == 2
    spikes, v, awake = run(v_dormant=-0.5, wake="never")
    assert spikes == [0, 0, 0, 0]
    assert v == [-2, -2, -2, -2]
    assert awake == [1, 0, 0, 0]
    spikes, v, awake = run(v_dormant=-0.5, wake="after", n=2)
    assert awake == [1, 0, 0, 1]
    assert v[:3] == [-2, -2, -0.5]
    assert spikes == [0, 0, 0, 1]  # h = -0.25 + 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_of_both_steps_are_open(backend):
    trace = dormant_lif(torch.tensor([1.0, -0.25, 0.125]).reshape(3, 1, 1), v_dormant=-0.25, backend=backend)
    assert trace.spikes.flatten().tolist() == [1, 0, 0]
    assert trace.awake.flatten().tolist() == [1, 1, 1]  # v = -0.25 = v_dormant


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_threshold_it_is_the_plain_neuron_bitwise(soft, surrogate, dtype):
    x, y = (currents(7, 4, 6, dtype=dtype).requires_grad_() for _ in range(2))
    trace = dormant_lif(x, v_reset=None if soft else 0.0, v_dormant=-math.inf, surrogate=surrogate, backend="torch")
    spikes, membrane = lif(y, soft=soft, surrogate=surrogate)
    assert torch.equal(trace.spikes, spikes)
    assert torch.equal(trace.membrane, membrane)
    assert (trace.awake == 1).all()
    weight = currents(7, 4, 6, seed=1, dtype=dtype)
    (mine,) = torch.autograd.grad((trace.spikes * weight).sum(), x)
    (theirs,) = torch.autograd.grad((spikes * weight).sum(), y)
    assert torch.equal(mine, theirs)


def test_a_threshold_just_below_0_puts_every_negative_neuron_to_sleep():
    x = currents(5, 3, 50)
    trace = dormant_lif(x, v_dormant=-1e-300)
    before = torch.cat([torch.zeros_like(x[:1]), trace.membrane[:-1]])
    assert torch.equal(trace.awake == 0, before < 0)


def test_spikingjelly_agrees():
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    surrogate = pytest.importorskip("spikingjelly.activation_based.surrogate")
    for tau in (2.0, 1.3, 5.0):
        for v_reset in (0.0, None, -0.125):
            theirs = neuron.LIFNode(tau=tau, decay_input=False, v_reset=v_reset, step_mode="m",
                                    surrogate_function=surrogate.ATan(2.0))  # fmt: skip
            mine = DormantLIF(tau=tau, v_reset=v_reset, v_dormant=-math.inf, learn_v_dormant=False)
            x, y = (currents(8, 5, 30, dtype=torch.float32).requires_grad_() for _ in range(2))
            ours, other = mine(x), theirs(y)
            assert torch.equal(ours, other)
            torch.testing.assert_close(mine.state.membrane, theirs.v, rtol=0, atol=1e-6)
            weight = currents(8, 5, 30, seed=3, dtype=torch.float32)
            (ours * weight).sum().backward()
            (other * weight).sum().backward()
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-5)


# --- sleep -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31), v=st.floats(-60, -0.01), leak=st.floats(0.05, 0.97), dormant=st.floats(-2, -0.005),
    single=st.booleans(), backend=st.sampled_from(BACKENDS),
)  # fmt: skip
def test_a_sleeper_is_silent_for_exactly_the_closed_form_number_of_steps(seed, v, leak, dormant, single, backend):
    dtype, kind = (torch.float32, np.float32) if single else (torch.float64, np.float64)
    leak = 1 - 1 / (1 / (1 - leak))  # as the neuron gets it from tau
    n = int(wake_steps(np.array([v], kind), dormant, leak)[0])
    current = currents(n + 3, 1, 1, seed=seed, dtype=dtype, scale=50.0)
    current[0] = v
    trace = dormant_lif(current, tau=1 / (1 - leak), v_dormant=dormant, backend=backend)
    asleep = (trace.awake.flatten() == 0).tolist()
    assert asleep[1 : n + 1] == [True] * n
    assert not asleep[n + 1]
    assert trace.spikes[: n + 1].sum() == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wake_steps_at_near_ties(dtype):
    for leak in (0.5, 0.9, 0.7, 0.99):
        v = (dtype(-0.25) / dtype(leak) ** np.arange(1, 30)).astype(dtype)
        found = wake_steps(v, -0.25, leak)
        for start, n in zip(v, found, strict=True):
            product, steps = start, 0
            while product < dtype(-0.25):
                product, steps = product * dtype(leak), steps + 1
            assert n == steps
    assert wake_steps(np.array([0.0, 1.0, -0.25]), -0.25, 0.5).tolist() == [0, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_awake_fraction_never_rises_where_nobody_wakes(backend):
    trace = dormant_lif(currents(20, 4, 50), wake="never", backend=backend)
    assert (trace.awake[1:] <= trace.awake[:-1]).all()
    assert (trace.awake[-1] == 0).any()
    asleep = trace.awake == 0
    assert (trace.membrane[1:] == trace.membrane[:-1])[asleep[1:]].all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_timed_sleep_lasts_exactly_n_steps_and_goes_on_from_the_threshold(backend):
    x = currents(30, 2, 40, scale=2.0)
    trace = dormant_lif(x, wake="after", n=3, v_dormant=-0.3, backend=backend)
    before = torch.cat([torch.zeros_like(x[:1]), trace.membrane[:-1]])
    for b in range(2):
        for i in range(40):
            t = 0
            while t < 30:
                if before[t, b, i] >= -0.3:
                    assert trace.awake[t, b, i] == 1
                    t += 1
                    continue
                assert (trace.awake[t : t + 3, b, i] == 0).all()
                if t + 3 < 30:
                    assert before[t + 3, b, i] == -0.3
                    assert trace.awake[t + 3, b, i] == 1
                t += 3


@by_kind
def test_batch_order_and_company_change_nothing(kind):
    x = currents(9, 6, 12, dtype=torch.float32)
    whole = dormant_lif(x, **kind)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    mixed = dormant_lif(x[:, order], **kind)
    for a, b in zip(whole[:3], mixed[:3], strict=True):
        assert torch.equal(a[:, order], b)
    alone = torch.cat([dormant_lif(x[:, i : i + 1], **kind).spikes for i in range(6)], 1)
    assert torch.equal(whole.spikes, alone)


@by_kind
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_one_by_one_and_in_parts(kind, backend):
    x = currents(11, 3, 8)
    whole = dormant_lif(x, backend=backend, **kind)
    state, parts = None, []
    for piece in x.split([4, 1, 6]):
        trace = dormant_lif(piece, backend=backend, state=state, **kind)
        state = trace.state
        parts.append(trace.spikes)
    assert torch.equal(torch.cat(parts), whole.spikes)
    single = DormantLIF(step_mode="s", learn_v_dormant=False, backend=backend, **kind)
    assert torch.equal(torch.stack([single(step) for step in x]), whole.spikes)


# --- the two paths, and gradients ------------------------------------------------------------------------------------


@by_kind
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_path_equals_the_loop_in_values_and_gradients(kind, soft, surrogate, dtype):
    for flags in ({}, {"detach_reset": True}, {"detach_gate": True}):
        found = []
        for backend in BACKENDS:
            x = currents(7, 3, 5, dtype=dtype).requires_grad_()
            tau = torch.tensor(1.7, dtype=dtype, requires_grad=True)
            dormant = torch.linspace(-0.6, -0.1, 5, dtype=dtype).requires_grad_()
            options = {"tau": tau, "v_reset": None if soft else 0.0, "v_dormant": dormant, "surrogate": surrogate,
                       "backend": backend, **kind, **flags}  # fmt: skip
            first = dormant_lif(x, **options)
            second = dormant_lif(0.7 * x, state=first.state, **options)
            weights = [currents(7, 3, 5, seed=s, dtype=dtype) for s in range(1, 5)]
            loss = sum((a * w).sum() for a, w in zip((*first[:3], second.spikes), weights, strict=True))
            gradients = torch.autograd.grad(loss, (x, tau, dormant), materialize_grads=True)
            found.append(((*first[:3], *second[:3]), gradients))
        (values, gradients), (fast_values, fast_gradients) = found
        for a, b in zip(values, fast_values, strict=True):
            assert torch.equal(a, b)
        bound = 1e-10 if dtype == torch.float64 else 1e-4
        for a, b in zip(gradients, fast_gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=bound, atol=bound * float(a.abs().max()))


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_surrogates_are_the_derivatives_of_steps_from_0_to_1(surrogate):
    x = torch.linspace(-2, 2, 41, dtype=torch.float64).add(1e-3).requires_grad_()
    for alpha in (1.0, 2.0, 4.0):
        assert torch.autograd.gradcheck(lambda x, a=alpha: step(x, surrogate, a, smooth=True), x)
        (gradient,) = torch.autograd.grad(primitive(x, surrogate, alpha).sum(), x)
        torch.testing.assert_close(gradient, slope(x.detach(), surrogate, alpha))
        ends = primitive(torch.tensor([-1e9, 0, 1e9], dtype=torch.float64), surrogate, alpha)
        torch.testing.assert_close(ends, torch.tensor([0, 0.5, 1], dtype=torch.float64))


@pytest.mark.parametrize("wake", ["leak", "never"])
@pytest.mark.parametrize("v_reset", [0.0, None, -0.1])
def test_the_smooth_network_passes_gradcheck(wake, v_reset):
    x = currents(4, 2, 3).requires_grad_()
    tau = torch.tensor(1.8, dtype=torch.float64, requires_grad=True)
    dormant = torch.tensor([-0.3, -0.5, -0.15], dtype=torch.float64, requires_grad=True)

    def run(x, tau, dormant):
        trace = dormant_lif(x, tau=tau, v_dormant=dormant, v_reset=v_reset, wake=wake, smooth=True)
        return trace.spikes, trace.awake, trace.membrane

    assert torch.autograd.gradcheck(run, (x, tau, dormant))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("flags", [{}, {"detach_reset": True}, {"detach_gate": True}], ids=str)
def test_gradient_by_hand_over_three_steps(backend, flags):
    """dh/dI = g, dh/dv = leak + r I, ds/dh = g p, ds/dv = step(h - 1) r, d/dthreshold = -(the terms with r)."""
    leak, theta_d = 1 - 1 / 2.5, -0.2
    inputs, weights = [-0.3, 1.4, 0.9], [0.5, -1.0, 2.0]  # asleep at the second step, awake at the third

    def derivative(x):
        return 1 / (1 + (math.pi * x) ** 2)

    v, dv, dtheta = 0.0, [0.0] * 3, 0.0  # dv: of v by each input
    expected, expected_theta = [0.0] * 3, 0.0
    for t, (x, w) in enumerate(zip(inputs, weights, strict=True)):
        g = float(v >= theta_d)
        r = 0.0 if flags.get("detach_gate") else derivative(v - theta_d)
        h = leak * v + g * x
        over, p = float(h >= 1), derivative(h - 1)
        s = g * over
        dh = [(leak + r * x) * d for d in dv]
        dh[t] += g
        ds = [g * p * a + over * r * d for a, d in zip(dh, dv, strict=True)]
        dh_theta = (leak + r * x) * dtheta - r * x
        ds_theta = g * p * dh_theta + over * r * (dtheta - 1)
        expected = [e + w * d for e, d in zip(expected, ds, strict=True)]
        expected_theta += w * ds_theta
        back = 0.0 if flags.get("detach_reset") else 1.0
        dv = [a * (1 - s) - back * h * b for a, b in zip(dh, ds, strict=True)]
        dtheta = dh_theta * (1 - s) - back * h * ds_theta
        v = h * (1 - s)
    current = torch.tensor(inputs, dtype=torch.float64).reshape(3, 1, 1).requires_grad_()
    dormant = torch.tensor(theta_d, dtype=torch.float64, requires_grad=True)
    trace = dormant_lif(current, tau=2.5, v_dormant=dormant, backend=backend, **flags)
    assert trace.awake.flatten().tolist() == [1, 0, 1]
    loss = (trace.spikes.flatten() * torch.tensor(weights, dtype=torch.float64)).sum()
    mine, mine_theta = torch.autograd.grad(loss, (current, dormant), materialize_grads=True)
    np.testing.assert_allclose(mine.flatten(), expected, rtol=1e-12)
    np.testing.assert_allclose(mine_theta, expected_theta, rtol=1e-12, atol=1e-15)


def test_all_asleep_gives_silence_and_no_gradient_to_the_input():
    x = torch.full((4, 2, 3), -5.0)
    x[1:] = 100.0
    x.requires_grad_()
    trace = dormant_lif(x, wake="never", detach_gate=True)
    assert trace.spikes.sum() == 0
    (gradient,) = torch.autograd.grad(trace.spikes.sum(), x)
    assert (gradient[1:] == 0).all()


def test_threads_share_the_batch(monkeypatch):
    x = currents(5, 70, 500, dtype=torch.float32)

    def run():
        y = x.clone().requires_grad_()
        dormant = torch.tensor(-0.25, requires_grad=True)
        spikes = dormant_lif(y, v_dormant=dormant).spikes
        return spikes, *torch.autograd.grad(spikes.sum(), (y, dormant))

    alone = run()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for a, b in zip(alone, run(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=0)


def test_other_shapes_and_layouts():
    x = currents(4, 3, 2, 5, 6)
    whole = dormant_lif(x)
    assert torch.equal(dormant_lif(x.transpose(3, 4)).spikes, whole.spikes.transpose(3, 4))
    assert torch.equal(dormant_lif(x[:, 0, 0, 0, 0]).spikes, whole.spikes[:, 0, 0, 0, 0])
    assert torch.equal(dormant_lif(x[:, :, 0, 0, 0]).spikes, whole.spikes[:, :, 0, 0, 0])
    half = dormant_lif(x.bfloat16())
    assert half.spikes.dtype == torch.bfloat16


# --- the module ------------------------------------------------------------------------------------------------------


def test_learned_thresholds_and_leak():
    neuron = DormantLIF(tau=3.0, v_dormant=-0.25, learn_tau=True, channels=4)
    assert torch.allclose(neuron.v_dormant, torch.full((4,), -0.25))
    assert neuron.tau.item() == pytest.approx(3.0)
    x = currents(5, 2, 4, 3, dtype=torch.float32)
    neuron(x).sum().backward()
    assert neuron.rho.grad.shape == (4,)
    assert neuron.w.grad is not None
    plain = dormant_lif(x, tau=3.0)
    neuron.reset()
    torch.testing.assert_close(neuron(x), plain.spikes)
    neuron.set_v_dormant(-0.5)
    assert torch.allclose(neuron.v_dormant, torch.full((4,), -0.5))
    other = DormantLIF(v_dormant=-1.0, learn_tau=True, channels=4)
    other.load_state_dict(neuron.state_dict())
    assert torch.equal(other.v_dormant, neuron.v_dormant)
    assert "v_dormant=-0.25" in repr(DormantLIF())
    below = DormantLIF(v_reset=-0.3, v_dormant=-0.4)
    with torch.no_grad():
        below.rho.fill_(-20)
    assert below.v_dormant.item() <= -0.3  # whatever is learned, a neuron that fired stays awake


def test_detached_gate_learns_no_threshold():
    neuron = DormantLIF(detach_gate=True)
    neuron(currents(5, 2, 4, dtype=torch.float32)).sum().backward()
    assert neuron.rho.grad is None or neuron.rho.grad == 0
    neuron = DormantLIF()
    neuron(currents(5, 2, 4, dtype=torch.float32)).sum().backward()
    assert neuron.rho.grad != 0


def test_state_lasts_until_reset():
    net = mlp([4, 5, 3])
    x = currents(6, 2, 4, dtype=torch.float32)
    net.eval()
    first = net(x)
    assert net[2].state is not None
    second = net(x)
    reset(net)
    assert net[2].state is None
    torch.testing.assert_close(net(x), first)
    assert copy.deepcopy(net)[2].state is None
    assert second.shape == (6, 2, 3)
    neuron = DormantLIF()
    neuron(x)
    reset(neuron)
    assert neuron.state is None


def test_resting_membrane_other_than_0():
    x = currents(6, 2, 9)
    shifted = dormant_lif(x, v_threshold=0.8, v_reset=-0.2, v_dormant=-0.5)
    plain = dormant_lif(x, v_threshold=1.0, v_reset=0.0, v_dormant=-0.3)
    assert torch.equal(shifted.spikes, plain.spikes)
    torch.testing.assert_close(shifted.membrane, plain.membrane - 0.2)


def test_silent_layer_warns_once():
    neuron = DormantLIF(wake="never", v_dormant=-0.1)
    x = torch.full((100, 1, 5), -3.0)
    with pytest.warns(UserWarning, match="awake in only 1.0%"):
        neuron(x)
    neuron.reset()
    neuron(x)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"v_dormant": 0.0}, "v_dormant must be negative"),
        ({"v_dormant": 0.5}, "v_dormant must be negative"),
        ({"v_dormant": math.nan}, "v_dormant must be negative"),
        ({"v_dormant": -0.25, "v_reset": -0.5}, "every neuron that fired would sleep"),
        ({"tau": 1.0}, "tau: got 1.0"),
        ({"tau": 0.5}, "above 1"),
        ({"wake": "input"}, "would read every input"),
        ({"wake": "soon"}, "leak, never, after"),
        ({"wake": "after"}, "n: got None"),
        ({"wake": "after", "n": 0}, "n: got 0"),
        ({"n": 3}, "n: got 3 with wake='leak'"),
        ({"surrogate": "box"}, "atan, sigmoid, triangle"),
        ({"alpha": -1.0}, "alpha"),
        ({"v_threshold": 0.0}, "v_threshold"),
        ({"v_threshold": 0.5, "v_reset": 0.7}, "v_threshold"),
        ({"backend": "jax"}, "backend"),
    ],
)
def test_constants_that_make_no_neuron(options, says):
    with pytest.raises(ValueError, match=says):
        dormant_lif(torch.zeros(2, 1, 1), **options)
    with pytest.raises(ValueError, match=says):
        DormantLIF(**options)


def test_bad_currents():
    neuron = DormantLIF()
    with pytest.raises(ValueError, match=r"\(6, 3\); in multi-step mode it is \[T, B, ...\]"):
        neuron(torch.zeros(6, 3))
    with pytest.raises(ValueError, match=r"expected \[B, ...\]"):
        DormantLIF(step_mode="s")(torch.zeros(3))
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.zeros(3, 2, 4)
        x[1, 1, 2] = bad
        for backend in BACKENDS:
            with pytest.raises(ValueError, match="NaN or infinity"):
                dormant_lif(x, backend=backend)
    for shape in ((0, 2, 3), (4, 0, 3), (4, 2, 0)):
        with pytest.raises(ValueError, match="none of these zero"):
            dormant_lif(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"torch\.int64"):
        dormant_lif(torch.zeros(3, 2, 4, dtype=torch.int64))
    neuron(torch.zeros(3, 2, 4))
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        neuron(torch.zeros(3, 5, 4))
    with pytest.raises(RuntimeError, match="float64"):
        neuron(torch.zeros(3, 2, 4, dtype=torch.float64))
    neuron.reset()
    neuron(torch.zeros(3, 5, 4))
    with pytest.raises(ValueError, match="this layer was made for 3"):
        DormantLIF(channels=3)(torch.zeros(3, 2, 4))
    with pytest.raises(ValueError, match="does not fit one sample"):
        dormant_lif(torch.zeros(3, 2, 4), v_dormant=torch.full((3,), -0.2))
    with pytest.raises(ValueError, match="float32 or float64"):
        dormant_lif(torch.zeros(3, 2, 4).half(), backend="numba")
    with pytest.raises(ValueError, match="step_mode"):
        DormantLIF(step_mode="x")
    with pytest.raises(ValueError, match="finite number"):
        DormantLIF(v_dormant=-math.inf)
    with pytest.raises(ValueError, match="channels"):
        DormantLIF(channels=4, learn_v_dormant=False)
    with pytest.raises(ValueError, match="v_dormant must be negative"):
        neuron.set_v_dormant(0.1)
    for v, dormant, leak, says in (
        ([math.nan], -0.2, 0.5, "NaN"),
        ([-1.0], 0.2, 0.5, "negative"),
        ([-1.0], -0.2, 1.0, "between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=says):
            wake_steps(v, dormant, leak)
    with pytest.raises(ValueError, match="steps"):
        SpikingClassifier(mlp([2, 3, 2]), 0)
    with pytest.raises(ValueError, match="sizes"):
        mlp([2, 3])
