"""Phased reward-free exploration: the method's oracles, closed forms and certificates."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

from gnomon.decisions.reward_free.baselines import GenerativeModel, OracleReach, UniformExploration
from gnomon.decisions.reward_free.certificate import blocks, gap_bound, lock_agents, lock_success, value_error
from gnomon.decisions.reward_free.environments import combination_lock, corridor, opened, random_mdp, riverswim, tree
from gnomon.decisions.reward_free.method import PhasedRewardFree, frequencies, threshold
from gnomon.decisions.reward_free.simulators import StepFunction
from gnomon.decisions.reward_free.tabular import Model, TabularMDP


def rewards_of(mdp, rng, k=20):
    """Random rewards and indicators."""
    shape = (mdp.horizon, mdp.n_states, mdp.n_actions)
    found = rng.random((*shape, 2 * k))
    found[..., k:] = 0
    for j in range(k):
        found[tuple(rng.integers(n) for n in shape)][k + j] = 1
    return found


def share_opened(runs, H, A, **options):
    """How often a phased exploration opens locks with uniform secrets."""
    found = 0
    for r in range(runs):
        lock = combination_lock(H, A, r)
        found += opened(PhasedRewardFree(random_state=10_000 + r, **options).explore(lock).counts_, lock)
    return found / runs


# --- the model -------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_reach_is_that_of_the_best_deterministic_policy(seed):
    mdp = random_mdp(3, 2, 3, seed)
    best = np.zeros((3, 3))
    for choice in itertools.product(range(2), repeat=9):
        here, policy = mdp.initial, np.reshape(choice, (3, 3))
        for h in range(3):
            best[h] = np.maximum(best[h], here)
            here = here @ mdp.kernels[h][np.arange(3) * 2 + policy[h]]
    for layer in range(3):
        reach, policies = mdp.reach(layer)
        assert reach == pytest.approx(best[layer], abs=1e-12)
        for target in range(3):  # and the policies do it
            policy = np.zeros((3, 3), dtype=int)
            policy[:layer] = policies[:, target]
            assert mdp.occupancy(policy)[layer, target].sum() == pytest.approx(reach[target], abs=1e-12)


def test_planning_is_that_of_brute_force_and_ties_go_to_the_smallest_action():
    mdp, rng = random_mdp(3, 2, 3, 5), np.random.default_rng(0)
    rewards = rewards_of(mdp, rng)
    policies, values = mdp.optimise(rewards)
    every = np.array(list(itertools.product(range(2), repeat=9))).reshape(-1, 3, 3)
    for k in range(rewards.shape[-1]):
        of_all = [(mdp.occupancy(p) * rewards[..., k]).sum() for p in every]
        assert values[k] == pytest.approx(max(of_all))
    assert mdp.evaluate(policies, rewards) == pytest.approx(values)
    assert (mdp.optimise(np.ones((3, 3, 2, 1)))[0] == 0).all()


def test_sparse_and_dense_models_agree():
    """65 states are kept sparse; the same numbers in a plain array give the same."""
    rng = np.random.default_rng(0)
    P = rng.random((65, 2, 65)) * (rng.random((65, 2, 65)) < 0.1)
    P[:, :, 0] += 0.1
    P /= P.sum(-1, keepdims=True)
    mdp = TabularMDP(P, np.eye(65)[0], horizon=5)
    assert sparse.issparse(mdp.kernels[0])
    plain = Model([P.reshape(130, 65)] * 5, mdp.initial)
    rewards = rng.random((5, 65, 2, 3))
    assert mdp.optimise(rewards)[1] == pytest.approx(plain.optimise(rewards)[1])
    assert mdp.reach(4)[0] == pytest.approx(plain.reach(4)[0])
    ex = PhasedRewardFree(n_agents=3000, random_state=0).explore(mdp)
    dense = Model([k.toarray() for k in ex.model_.kernels], ex.model_.initial)
    assert gap_bound(mdp, ex.model_) == pytest.approx(gap_bound(plain, dense))
    counts = [np.asarray(n.toarray()) for n in ex.counts_]
    assert ex.certificate_ == pytest.approx(value_error(counts, dense, 0.05))
    assert ex.plan(rewards[..., 0])[1] == pytest.approx(dense.optimise(rewards[..., :1])[1][0])
    again = TabularMDP(sparse.csr_array(P.reshape(130, 65)), mdp.initial, horizon=5)
    assert again.optimise(rewards)[1] == pytest.approx(mdp.optimise(rewards)[1])


def test_simulated_transitions_follow_the_table():
    mdp, rng = riverswim(), np.random.default_rng(0)
    for state, action in ((0, 1), (3, 1), (5, 1)):
        seen = np.bincount(mdp.step(np.full(20_000, state), np.full(20_000, action), 0, rng), minlength=6)
        expected = mdp.kernels[0][state * 2 + action]
        assert (seen[expected == 0] == 0).all()
        assert stats.chisquare(seen[expected > 0], 20_000 * expected[expected > 0]).pvalue > 1e-3


# --- exploring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mdp", [combination_lock(5, 3, 1), corridor(5, 2, 6, 2), tree(3, 2, 3)], ids=["lock", "corridor", "tree"]
)
@pytest.mark.parametrize("reuse", [True, False])
def test_a_deterministic_mdp_is_learned_exactly(mdp, reuse):
    """With m >= S A: every reachable pair of every step."""
    m = mdp.n_states * mdp.n_actions
    ex = PhasedRewardFree(n_agents=m, reuse=reuse, random_state=0).explore(mdp)
    for h in range(mdp.horizon):
        reachable = np.repeat(mdp.reach(h)[0] > 0, mdp.n_actions)
        assert (ex.model_.kernels[h][reachable] == mdp.kernels[h][reachable]).all()
        assert (ex.model_.kernels[h][~reachable] == 0).all()
    assert ex.exact_gap(mdp, rewards_of(mdp, np.random.default_rng(0))) == pytest.approx(0, abs=1e-12)
    assert ex.exact_gap(mdp) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("rho", "expected"), [(2, 0.615157), (1, 0.22752)])
def test_a_lock_opens_as_often_as_the_closed_form_says(rho, expected):
    m = {2: 8, 1: 4}[rho]
    assert lock_success(m, 2, [4 // rho] * rho) == pytest.approx(expected, abs=5e-6)
    share = share_opened(1000, 4, 2, n_phases=rho, n_agents=m, reuse=False)
    assert abs(share - expected) < 3.5 * math.sqrt(expected * (1 - expected) / 1000)


@pytest.mark.parametrize(("m", "design", "expected"), [(4, "split", 0.125), (6, "split", 0.421875), (8, "split", 1.0)])
@pytest.mark.filterwarnings("ignore:n_agents")
def test_shared_out_actions_open_a_lock_with_one_phase_a_step(m, design, expected):
    assert min(1, m / 4) * min(1, m / 8) ** 3 == expected
    share = share_opened(400, 4, 4, n_agents=m, design=design, reuse=False)
    assert abs(share - expected) <= 3.5 * math.sqrt(expected * (1 - expected) / 400)


def test_drawn_actions_open_a_lock_less_often():
    expected = (1 - 0.5**4) * (1 - 0.5**2) ** 3
    assert expected == pytest.approx(0.395508, abs=1e-6)
    assert lock_success(4, 2, [1] * 4) == pytest.approx(expected)
    share = share_opened(1000, 4, 2, n_agents=4, design="random", reuse=False)
    assert abs(share - expected) < 3.5 * math.sqrt(expected * (1 - expected) / 1000)


def test_roots_of_the_closed_form():
    roots = {A: [lock_agents(A, [12 // rho] * rho) for rho in (2, 3, 4, 6)] for A in (2, 3)}
    assert roots[2] == pytest.approx([115.4, 41.0, 24.4, 14.4], rel=4e-3)
    assert roots[3] == pytest.approx([1324, 213, 86.4, 35.1], rel=4e-3)
    for A, slope in ((2, 0.751), (3, 0.826)):
        fitted = np.polyfit([6, 4, 3, 2], np.log(roots[A]), 1)[0] / math.log(A)
        assert fitted == pytest.approx(slope, abs=2e-3)


@pytest.mark.parametrize("reuse", [True, False])
def test_counts_are_the_agents_of_the_phases_used(reuse):
    mdp = random_mdp(4, 2, 5, 0)
    for rho, used in ((5, 5), (2, 2), (1, 1)):
        ex = PhasedRewardFree(rho, 100, reuse=reuse, random_state=0).explore(mdp)
        assert [n.sum() for n in ex.counts_] == [100 * used if reuse else 100] * 5
        assert ex.n_trajectories_ == 100 * used
        assert ex.phases_["last step"].tolist()[-1] == 5
    assert blocks(7, 3) == [(0, 3), (3, 6), (6, 7)]
    assert blocks(5, 4) == [(0, 2), (2, 4), (4, 5)]


def test_the_same_seed_gives_the_same_counts():
    mdp = riverswim(H=6)
    runs = [PhasedRewardFree(3, 500, random_state=s).explore(mdp).counts_ for s in (0, 0, 1)]
    assert all((a == b).all() for a, b in zip(runs[0], runs[1], strict=True))
    assert any((a != b).any() for a, b in zip(runs[0], runs[2], strict=True))


def layer_by_layer(mdp, m, eps, rng):
    """The algorithm as the paper states it, in loops; draws in the same order as the batched one."""
    S, A, H = mdp.n_states, mdp.n_actions, mdp.horizon
    N = np.zeros((H, S, A, S))
    for h in range(H):
        P = N / np.maximum(N.sum(-1, keepdims=True), 1)
        ways = {}
        for target in range(S):
            V, way = np.eye(S)[target], {}
            for t in reversed(range(h)):
                new = np.zeros(S)
                for x in range(S):
                    Q = [sum(P[t, x, a, y] * V[y] for y in range(S)) for a in range(A)]
                    way[t, x], new[x] = int(np.argmax(Q)), max(Q)
                V = new
            if mdp.initial @ V >= eps / (4 * S * H**2):
                ways[target] = way
        places = list(ways)
        states = mdp.start(m, rng)
        for t in range(H):
            if t < h:
                actions = np.array([ways[places[i % len(places)]][t, states[i]] for i in range(m)])
            elif t == h:
                actions = np.array([i // len(places) % A for i in range(m)])
            else:
                actions = rng.integers(A, size=m)
            following = mdp.step(states, actions, t, rng)
            for s, a, y in zip(states, actions, following, strict=True):
                N[t, s, a, y] += 1
            states = following
    return N.reshape(H, S * A, S)


@pytest.mark.parametrize(
    "mdp", [riverswim(4, 5), corridor(4, 3, 5, 0), random_mdp(4, 2, 4, 1)], ids=["river", "corridor", "random"]
)
def test_as_many_phases_as_steps_is_the_layer_algorithm_call_for_call(mdp):
    expected = layer_by_layer(mdp, 150, 0.1, np.random.default_rng(3))
    for rho in (None, mdp.horizon):
        found = PhasedRewardFree(rho, 150, random_state=3).explore(mdp).counts_
        assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_one_phase_is_uniform_exploration_call_for_call():
    mdp, rng = random_mdp(4, 3, 5, 1), np.random.default_rng(3)
    expected, states = np.zeros((5, 12, 4)), mdp.start(200, rng)
    for h in range(5):
        actions = rng.integers(3, size=200)
        following = mdp.step(states, actions, h, rng)
        np.add.at(expected[h], (states * 3 + actions, following), 1)
        states = following
    for make in (PhasedRewardFree(1, 200, random_state=3), UniformExploration(200, random_state=3)):
        assert all((a == b).all() for a, b in zip(make.explore(mdp).counts_, expected, strict=True))


def test_actions_are_shared_out_evenly():
    """At the block's first step every significant pair has its agents; the remainder goes to the first pairs."""
    lock = combination_lock(4, 3, 0)
    counts = PhasedRewardFree(n_agents=13, reuse=False, random_state=0).explore(lock).counts_
    assert counts[0].sum(1).tolist() == [5, 4, 4, 0, 0, 0]
    for n in counts[1:]:
        assert n.sum(1).tolist() == [3, 2, 2, 2, 2, 2]


def one_by_one(mdp):
    """A simulator that steps agents one at a time."""

    def step(states, actions, h, rng):
        return np.array(
            [
                rng.choice(mdp.n_states, p=mdp.kernels[h][s * mdp.n_actions + a])
                for s, a in zip(states, actions, strict=True)
            ]
        )

    return StepFunction(mdp.n_states, mdp.n_actions, mdp.horizon, step, 0, max_batch=7)


def test_agents_in_batches_and_one_by_one_agree():
    mdp = corridor(4, 2, 4, 0)
    both = [PhasedRewardFree(n_agents=40, random_state=0).explore(e) for e in (mdp, one_by_one(mdp))]
    reached = [np.array([n.sum(1) > 0 for n in ex.counts_]) for ex in both]
    assert (reached[0] == reached[1]).all()
    assert all((a == b).all() for a, b in zip(both[0].model_.kernels, both[1].model_.kernels, strict=True))
    mdp = random_mdp(3, 2, 3, 0)
    batched, single = (UniformExploration(3000, random_state=0).explore(e).counts_ for e in (mdp, one_by_one(mdp)))
    for a, b in zip(batched, single, strict=True):
        seen = np.array([a.ravel(), b.ravel()])
        assert stats.chi2_contingency(seen[:, seen.sum(0) > 0]).pvalue > 1e-3


def test_an_agents_own_share_is_exact_on_a_deterministic_simulator():
    lock = combination_lock(4, 2, 0)
    counts = [
        PhasedRewardFree(n_agents=8, reuse=False, random_state=0).explore(e).counts_ for e in (lock, one_by_one(lock))
    ]
    assert all((a == b).all() for a, b in zip(*counts, strict=True))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31))
def test_other_names_for_states_and_actions_change_nothing_else(seed):
    """What is made of the counts: model, reach, plans and certificates."""
    rng = np.random.default_rng(seed)
    mdp = random_mdp(4, 3, 4, rng)
    ex = PhasedRewardFree(n_agents=300, random_state=0).explore(mdp)
    states, actions = rng.permutation(4), rng.permutation(3)
    row = (states[:, None] * 3 + actions).ravel()

    def renamed(matrix):
        return matrix[row][:, states]

    counts = [renamed(n) for n in ex.counts_]
    model, truth = (Model([renamed(k) for k in m.kernels], m.initial[states]) for m in (ex.model_, mdp))
    assert all((frequencies(n) == k).all() for n, k in zip(counts, model.kernels, strict=True))
    assert model.reach(3)[0] == pytest.approx(ex.model_.reach(3)[0][states])
    assert value_error(counts, model, 0.05) == pytest.approx(ex.certificate_)
    assert gap_bound(truth, model) == pytest.approx(ex.exact_gap(mdp))
    reward = rng.random((4, 4, 3))
    policy, value = ex.plan(reward)
    renamed_policy, again = model.optimise(reward[:, states][:, :, actions][..., None])
    assert again[0] == pytest.approx(value)
    assert (actions[renamed_policy[:, :, 0]] == policy[:, states]).all()


@pytest.mark.filterwarnings("ignore:n_agents")
def test_states_out_of_reach_get_no_agents():
    """Below eps / (4 S H^2) a state is skipped; a large eps skips more."""
    mdp = riverswim(H=8)
    assert threshold(0.1, 6, 8) == pytest.approx(0.1 / (4 * 6 * 64))
    wide = PhasedRewardFree(n_agents=5000, eps=1e-6, random_state=0).explore(mdp).phases_["states"].tolist()
    narrow = PhasedRewardFree(n_agents=5000, eps=200.0, random_state=0).explore(mdp).phases_["states"].tolist()
    assert wide[:2] == [1, 2]
    assert narrow[-1] < wide[-1] <= 6
    assert all(a <= b for a, b in zip(narrow, wide, strict=True))


# --- certificates ----------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([5, 50, 2000]), st.sampled_from([1, 2, 4]))
@pytest.mark.filterwarnings("ignore:n_agents")
def test_bounds_cover_the_gap(seed, m, rho):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(4, 2, 4, rng)
    ex = PhasedRewardFree(rho, m, random_state=seed).explore(mdp)
    worst = ex.exact_gap(mdp, rewards_of(mdp, rng)).max()
    assert -1e-12 <= worst <= ex.exact_gap(mdp) + 1e-12
    assert worst <= 2 * ex.certificate_
    policy = rng.integers(2, size=(4, 4, 1))
    for r in rng.random((5, 4, 4, 2, 1)):
        assert abs(mdp.evaluate(policy, r) - ex.model_.evaluate(policy, r))[0] <= ex.certificate_ + 1e-12


def test_more_counts_never_raise_the_certificate():
    mdp = random_mdp(4, 2, 4, 0)
    found = []
    for visits in (0, 1, 10, 100, 3000, 1_000_000, 10**9):
        counts = [k * visits for k in mdp.kernels]
        found.append(value_error(counts, mdp if visits else Model([0 * k for k in mdp.kernels], mdp.initial), 0.05))
    assert found[0] == 3
    assert found == sorted(found, reverse=True)
    beta = math.log(3 * 4 * 2 * 4 / 0.05) + 4 * math.log(8 * math.e * 3001)
    assert found[4] == pytest.approx(
        (3 + 2 + 1) / 2 * math.sqrt(2 * beta / 3000)
    )  # alike everywhere, so the steps add up
    assert found[3] == pytest.approx(2.63, abs=0.01)
    assert found[-1] < 0.01


def test_a_first_state_that_is_learned_costs_a_step_of_the_certificate():
    mdp = random_mdp(3, 2, 3, 0)
    start = np.array([0.5, 0.3, 0.2])
    mdp = TabularMDP(np.stack(mdp.kernels).reshape(3, 3, 2, 3), start)
    known, learned = (
        PhasedRewardFree(n_agents=40_000, known_start=k, random_state=0).explore(mdp) for k in (True, False)
    )
    assert known.model_.initial.tolist() == start.tolist()
    assert learned.model_.initial == pytest.approx(start, abs=0.01)
    assert known.certificate_ < learned.certificate_ < known.certificate_ + 0.5
    assert learned.phases_["states"].tolist() == [1, 3, 3]
    worst = learned.exact_gap(mdp, rewards_of(mdp, np.random.default_rng(0))).max()
    assert worst <= learned.exact_gap(mdp)


def test_phases_help_where_the_way_must_be_known_first():
    """The hard worlds: one secret a step; without phases nobody gets far."""
    for mdp in (combination_lock(10, 3, 0), corridor(10, 3, 11, 0)):
        rewards = np.stack([np.broadcast_to(mdp.rewards, (mdp.horizon, mdp.n_states, 3))], axis=-1)
        ways = [PhasedRewardFree(n_agents=100, random_state=0), UniformExploration(100 * mdp.horizon, random_state=0)]
        ways += [OracleReach(n_agents=100, random_state=0), GenerativeModel(100 * mdp.horizon, random_state=0)]
        gaps = [float(e.explore(mdp).exact_gap(mdp, rewards)[0]) for e in ways]
        assert (gaps[0], gaps[2], gaps[3]) == (0, 0, 0)
        assert gaps[1] >= 1
