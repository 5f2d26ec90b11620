"""Verdicts: equal to exhaustive search on small networks, confirmed where falsified, honest where not decided."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from gnomon.guarantees import FocusBranch, verify_l0
from gnomon.guarantees.focusbranch import leaf
from gnomon.guarantees.focusbranch.attack import Attack
from gnomon.guarantees.focusbranch.baselines import (
    BallMilp,
    BruteForce,
    Calzone,
    CoVerD,
    Hull,
    IncrementalCalzone,
    TopCoVerD,
)
from gnomon.guarantees.focusbranch.bounds import BOX, ImageBounds, NodeBounds
from gnomon.guarantees.focusbranch.families import masks_of
from gnomon.guarantees.focusbranch.network import load_network
from gnomon.guarantees.focusbranch.plan import Plan, Planner, Successes, falling, sizes
from gnomon.guarantees.focusbranch.search import Options, Search, chain_from

torch.set_num_threads(1)


def small(seed, v=10, scale=1.5):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(v, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        for p in model.parameters():
            p *= scale
        x = torch.rand(v)
        return model, x.numpy(), int(model(x).argmax())


def least_margin(model, x, y, t):
    """Over a fine grid of every set of t pixels: an upper bound of the least margin, near it."""
    steps = np.linspace(0, 1, 21) if t == 1 else np.linspace(0, 1, 7)
    grid = np.array(list(itertools.product(steps, repeat=t)), np.float32)
    best = math.inf
    for pixels in itertools.combinations(range(len(x)), t):
        images = np.repeat(x[None], len(grid), 0)
        images[:, pixels] = grid
        with torch.no_grad():
            scores = model(torch.from_numpy(images)).numpy()
        best = min(best, float((scores[:, [y]] - np.delete(scores, y, 1)).min()))
    return best


def confirmed(model, x, y, t, result):
    found = result.adversarial
    assert found.dtype == np.float32
    assert (found.reshape(x.shape) != x).sum() <= t
    assert ((found >= 0) & (found <= 1)).all()
    with torch.no_grad():
        assert int(model(torch.from_numpy(found)[None]).argmax()) != y


WAYS = {
    "auto": lambda t: FocusBranch(t), "levels": lambda t: FocusBranch(t, "levels"), "no pruning": lambda t: FocusBranch(t, "levels", prune=False),
    "parents": lambda t: FocusBranch(t, "levels", reuse="parent"), "no reuse": lambda t: FocusBranch(t, "levels", reuse=None),
    "no attack": lambda t: FocusBranch(t, falsify=False), "l = t": lambda t: FocusBranch(t, "calzone"),
    "lift": lambda t: FocusBranch(t, [(1, 1), (5, 2)] if t > 1 else [(4, 1)], falsify=False),
    "blocks": lambda t: FocusBranch(t, [(6, t), (t + 1, t)], falsify=False), "slopes": lambda t: FocusBranch(t, alpha_steps=2),
    "calzone": lambda t: Calzone(t), "coverd": lambda t: CoVerD(t), "top-t": lambda t: TopCoVerD(t),
    "rounds": lambda t: IncrementalCalzone(t), "brute": lambda t: BruteForce(t, falsify=False), "ball": lambda t: BallMilp(t),
}  # fmt: skip


@pytest.mark.parametrize(("seed", "t"), [(0, 1), (1, 2), (2, 1), (3, 2), (4, 2), (5, 2)])
def test_all_verifiers_agree_with_exhaustive_search(seed, t):
    model, x, y = small(seed)
    least = least_margin(model, x, y, t)
    network = load_network(model, x.shape)
    for name, way in WAYS.items():
        found = way(t).verify(network, x, y)
        assert found.status in ("verified", "falsified"), (name, found)
        if least <= 0:
            assert found.status == "falsified", name
        if found.status == "falsified":
            confirmed(model, x, y, t, found)
        else:
            assert least > 0


def test_three_pixels_with_and_without_pruning():
    model, x, y = small(1)
    network = load_network(model, x.shape)
    results = [FocusBranch(3, **o).verify(network, x, y) for o in
               ({}, {"strategy": "levels"}, {"strategy": "levels", "prune": False}, {"strategy": [(2, 2), (6, 3)]},
                {"strategy": [(4, 1), (1, 1), (4, 2), (2, 2)]}, {"strategy": "calzone"})]  # fmt: skip
    assert len({r.status for r in results}) == 1
    pruned, whole = results[1], results[2]
    assert pruned.counts.concrete <= whole.counts.concrete
    assert sum(pruned.nodes_by_level.values()) == pruned.counts.calls


def test_a_verdict_does_not_hang_on_the_order_of_pixels():
    model, x, y = small(4)
    order = np.random.default_rng(0).permutation(len(x))
    other = nn.Sequential(*model)
    first = nn.Linear(len(x), 12)
    with torch.no_grad():
        first.weight.copy_(model[0].weight[:, order])
        first.bias.copy_(model[0].bias)
    other[0] = first
    for t in (1, 2):
        assert FocusBranch(t).verify(model, x, y).status == FocusBranch(t).verify(other, x[order], y).status


def test_colour_convolution():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 3, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(12, 3))
    x = torch.rand(3, 4, 4).numpy()
    y = int(model(torch.from_numpy(x)[None]).argmax())
    found = {name: WAYS[name](2).verify(model, x, y) for name in ("auto", "levels", "brute", "calzone")}
    assert len({r.status for r in found.values()}) == 1
    if found["auto"].status == "falsified":
        assert (found["auto"].adversarial != x).any(0).sum() <= 2


# --- leaves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_program_is_exact(seed):
    """On a 2-2-2 network: its dual bound is the least over the pieces, by a fine grid."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        for p in model.parameters():
            p *= 3
    x = torch.rand(2).double()
    grid = torch.cartesian_prod(torch.linspace(0, 1, 401), torch.linspace(0, 1, 401)).double()
    with torch.no_grad():
        scores = model(grid)
        y = int(model(x).argmax())
    least = float((scores[:, y] - scores[:, 1 - y]).min())
    network = load_network(model, (2,)).to(torch.float64)
    bounds = ImageBounds(network, x, y, 2, ball=False).bound(np.ones((1, 2), bool), BOX)
    for pixels in (np.arange(2), None):
        program = leaf.Program(network, x[None], bounds, pixels, 2)
        dual, variables = program.least(y, 1 - y, 10)
        assert dual <= least + 1e-6
        assert dual == pytest.approx(least, abs=0.05)
        image = program.image(x[None], variables, pixels is None)
        with torch.no_grad():
            here = model(image[0])
        assert float(here[y] - here[1 - y]) == pytest.approx(dual, abs=1e-4)


def test_the_program_of_a_max_pool_and_a_residual_step():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.pool, self.c = (
                nn.Conv2d(1, 2, 2),
                nn.Conv2d(2, 2, 3, padding=1),
                nn.MaxPool2d(2, 1),
                nn.Linear(8, 2),
            )

        def forward(self, x):
            x = torch.relu(self.a(x))
            return self.c(torch.flatten(self.pool(x + self.b(x)), 1))

    torch.manual_seed(0)
    model = Net()
    x = torch.rand(1, 4, 4)
    y = int(model(x[None]).argmax())
    network = load_network(model, (1, 4, 4)).to(torch.float64)
    pixels = np.array([5, 10])
    bounds = ImageBounds(network, x.double(), y, 2, ball=False).bound(masks_of(pixels[None], 16), BOX)
    dual, _ = leaf.Program(network, x.reshape(1, 16), bounds, pixels, 2).least(y, 1 - y, 20)
    grid = torch.cartesian_prod(torch.linspace(0, 1, 101), torch.linspace(0, 1, 101))
    images = x.reshape(1, 16).repeat(len(grid), 1)
    images[:, pixels] = grid
    with torch.no_grad():
        scores = model(images.reshape(-1, 1, 4, 4))
    least = float((scores[:, y] - scores[:, 1 - y]).min())
    assert least - 0.02 <= dual <= least + 1e-5


def test_an_incumbent_counts_only_when_the_model_confirms_it():
    model, x, y = small(3)
    network = load_network(model, x.shape)
    double = network.to(torch.float64)
    root = ImageBounds(double, torch.from_numpy(x), y, 2).root
    attack = Attack(network.to(torch.float32), torch.from_numpy(x), y)
    attack.confirmed = lambda flat, t: None
    assert leaf.decide(double, attack, root, None, 2, 20).status in ("safe", "unknown")
    huge = NodeBounds(root.margins * 0 + 1, root.lower, root.upper)
    assert leaf.decide(double, attack, huge, None, 2, 20).status == "safe"  # no class is open


# --- the plan --------------------------------------------------------------------------------------------------------


def told(rates, trials=10_000):
    found = Successes()
    for (k, l), p in rates.items():
        found.add((k, l), trials, round(p * trials))
    return found


def test_rates_fall_with_size():
    assert falling([0.9, 0.95, 0.2], [1, 1, 1]) == pytest.approx([0.925, 0.925, 0.2])
    assert falling([0.1, 0.2, 0.9], [1, 1, 2]) == pytest.approx([0.525] * 3)
    counted = told({(4, 2): 0.3, (8, 2): 0.5, (2, 2): 0.9}).rates(2)
    assert counted[4] == pytest.approx(counted[8])
    assert counted[2] > 0.89
    assert sizes(64, 2) == sorted(sizes(64, 2))
    assert sizes(64, 2)[0] == 2
    assert sizes(5, 5) == [5]


def test_the_plan_stops_where_all_is_safe():
    plan = Planner(64, 2, told({(1, 1): 1.0, (16, 1): 1.0, (2, 2): 1.0}), 50).best()
    assert plan.states[0] == (16, 1)
    assert plan.calls == pytest.approx(4, abs=0.2)


def test_the_plan_with_no_hope_counts_all_leaves():
    planner = Planner(20, 2, told({(1, 1): 0.0, (2, 2): 0.0}), 100)
    for plan in planner.starts():
        assert plan.leaves == pytest.approx(math.comb(20, 2), rel=0.01)
    assert planner.best().states == ((2, 2),)  # nothing is gained by looking at single pixels first


def test_the_plan_is_the_least_of_all_chains():
    """Three sizes at each of two levels: by enumeration of all chains."""
    rates = {(1, 1): 0.7, (4, 1): 0.4, (8, 1): 0.1, (2, 2): 0.95, (4, 2): 0.8, (8, 2): 0.5}
    planner = Planner(16, 2, told(rates), 30)

    def cost(state, parent):
        p = planner.rate[state]
        gain = min(max((p - parent) / (1 - parent), 0), 1)
        if state == (2, 2):
            return 1 + (1 - gain) * 30
        return 1 + (1 - gain) * min(
            n * cost(child, planner.met(1) if state == (1, 1) else p) for child, n in planner.children(state)
        )

    from gnomon.guarantees.focusbranch.coverings import covering_size

    totals = {s: covering_size(16, *s) * cost(s, 0.0) for s in rates}
    best = planner.best()
    assert best.states[0] == min(totals, key=totals.get)
    assert planner.cost(best) == pytest.approx(min(totals.values()))


def test_pruning_is_part_of_the_plan():
    rates = {(1, 1): 0.8, (2, 2): 0.99}
    with_, without = (Planner(64, 2, told(rates), 10, prune=p).shadow(1) for p in (True, False))
    assert with_ == pytest.approx(math.comb(64, 2) * 0.2**2 / (64 * 0.2), rel=0.01)
    assert without == pytest.approx(math.comb(64, 2) * (1 - 0.8**2) / (64 * 0.2), rel=0.01)


def test_sampled_clusters_tell_how_open_sets_meet():
    found = told({(2, 2): 0.5, (3, 3): 0.99})
    alone = Planner(30, 3, found, 1).met(2)
    assert alone == pytest.approx(1 - 0.5**3, rel=0.01)
    found.add_clusters(
        2, np.repeat([[False] * 3, [True] * 3], 500, axis=0)
    )  # pairs of a triple are all open or all safe
    assert Planner(30, 3, found, 1).met(2) == pytest.approx(0.5, rel=0.01)
    assert Planner(30, 3, found, 1, prune=False).met(2) == pytest.approx(0.5, rel=0.01)


def test_chains():
    assert chain_from([(1, 1)], 3) == ((1, 1), (2, 2), (3, 3))
    assert chain_from([(9, 2), (4, 2)], 3) == ((9, 2), (4, 2), (2, 2), (3, 3))
    for wrong in ([(4, 2), (9, 2)], [(4, 2), (4, 1)], [(4, 5)], [(2, 2), (2, 3)], [(4, 0)]):
        with pytest.raises(ValueError, match="strategy"):
            chain_from(wrong, 3)


def test_sampling_is_paid_by_the_search():
    model, x, y = small(1, v=14)
    search = Search(
        Options(t=3, falsify=False, exact=False),
        load_network(model, x.shape),
        torch.from_numpy(x),
        y,
        np.random.default_rng(0),
    )
    plan = search.plan()
    assert isinstance(plan, Plan)
    concrete = 4 + 6 + 4
    assert search.counts.sampling <= concrete or search.counts.sampling <= 0.2 * plan.calls + concrete
    assert search.counts.calls == search.counts.sampling
    for l, family in search.safe_sets.items():  # what was sampled safe is safe
        if len(family) and l < 3:  # those of level 3 may have been proved as leaves
            assert (search.slow.bound(masks_of(family.sets, 14), l).margins > 0).all()


# --- what is not decided ---------------------------------------------------------------------------------------------


def hard():
    """An image that takes long: open after the bound of the ball, not falsified."""
    for seed in range(50):
        model, x, y = small(seed, v=30, scale=1.3)
        found = FocusBranch(2, leaf=None).verify(model, x, y)
        if found.status == "unknown":
            return model, x, y, found
    raise AssertionError


def test_open_sets_are_named():
    model, x, y, found = hard()
    assert found.remaining
    assert all(len(s) == 2 for s in found.remaining)
    assert "stay open" in found.reason
    ticks = iter(range(100_000))
    late = FocusBranch(2, timeout=2, clock=lambda: next(ticks) * 0.2).verify(model, x, y)
    assert late.status == "timeout"
    assert "not decided within 2 s" in late.reason
    hull = Hull(2).verify(model, x, y)
    assert (hull.status, hull.counts.calls) == ("unknown", 1)


def test_an_interrupt_reports_what_was_done():
    model, x, y, _ = hard()

    def stop(what, done, of):
        raise KeyboardInterrupt

    found = FocusBranch(2, "levels", progress=stop).verify(model, x, y)
    assert (found.status, found.reason) == ("unknown", "interrupted")
    table = verify_l0(model, np.stack([x, x]), np.array([y, y]), 2, strategy="levels", progress=stop)
    assert len(table) == 1


def test_calls_stay_the_same_from_run_to_run():
    model, x, y, _ = hard()
    a, b = (FocusBranch(2, "levels", leaf=None, random_state=3).verify(model, x, y) for _ in range(2))
    assert a.counts.calls == b.counts.calls
    assert a.nodes_by_level == b.nodes_by_level


def test_misclassified_and_no_change():
    model, x, y = small(0)
    found = FocusBranch(1).verify(model, x, (y + 1) % 3)
    assert (found.status, found.counts.calls) == ("misclassified", 0)
    assert FocusBranch(0).verify(model, x, y).status == "verified"


def test_many_images():
    model, x, y = small(1)
    table = verify_l0(model, np.stack([x, x, x[::-1]]), np.array([y, (y + 1) % 3, y]), 1)
    assert table["status"].tolist()[:2] == [FocusBranch(1).verify(model, x, y).status, "misclassified"]
    assert list(table.columns[:4]) == ["image", "label", "status", "seconds"]
    with pytest.raises(ValueError, match="labels: got int64 of shape"):
        verify_l0(model, np.stack([x, x]), np.array([y]), 1)
    with pytest.raises(ValueError, match="images: got shape"):
        verify_l0(model, x, np.array([y]), 1)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"t": -1}, "t: got -1"), ({"t": 1.5}, "t: got 1.5"), ({"t": 1, "timeout": 0}, "timeout: got 0"),
    ({"t": 1, "leaf_timeout": -2}, "leaf_timeout: got -2"), ({"t": 1, "samples": 0}, "samples: got 0"),
    ({"t": 1, "strategy": "best"}, "strategy: got 'best'"), ({"t": 1, "leaf": "gurobi"}, "leaf: got 'gurobi'"),
    ({"t": 1, "reuse": "all"}, "reuse: got 'all'"), ({"t": 1, "covering": "table"}, "covering: got 'table'"),
    ({"t": 1, "strategy": [(4, 2)]}, "strategy: got"), ({"t": 1, "batch_size": True}, "batch_size: got True"),
])  # fmt: skip
def test_wrong_options(arguments, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        FocusBranch(**arguments)


def test_wrong_inputs():
    model, x, y = small(0)
    for image, label, t, message in ((x * 2, y, 1, "image: got values from"), (x[:5], y, 1, "model: 0 takes 10 numbers and gets"),
                                     (x, 3, 1, "label: got 3"), (x, y, 11, "t: got 11"), (x[None], y, 1, "image: got shape"),
                                     (np.full(10, np.nan), y, 1, "image: got values")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            FocusBranch(t).verify(model, image, label)
    with pytest.raises(TypeError, match="model: got int"):
        FocusBranch(1).verify(3, x, y)
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"parameter 2\.weight holds NaN"):
        FocusBranch(1).verify(model, x, y)
