"""Environments from gymnasium and from functions, baselines, public names, and what bad input gets."""

from __future__ import annotations

import math
import warnings

import gymnasium
import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

import gnomon.decisions as decisions
from gnomon.decisions import (
    PhasedRewardFree,
    StepFunction,
    TabularMDP,
    VectorEnvironment,
    agents_needed,
    combination_lock,
)
from gnomon.decisions.reward_free.baselines import RFUCRL, GenerativeModel, OracleReach, RFExpress, UCBVIZero
from gnomon.decisions.reward_free.environments import corridor, random_mdp, riverswim, tree

LAKE = TabularMDP.from_gymnasium("FrozenLake-v1", horizon=6, map_name="4x4")


def test_public_names():
    for name in ("PhasedRewardFree", "TabularMDP", "combination_lock", "agents_needed", "RFUCRL", "riverswim"):
        assert getattr(decisions, name).__module__.startswith("gnomon.decisions.reward_free")


# --- environments ----------------------------------------------------------------------------------------------------


def test_tables_of_gymnasium():
    """Holes and the goal are absorbing; reward is that of stepping on to the goal."""
    assert (LAKE.n_states, LAKE.n_actions, LAKE.horizon) == (16, 4, 6)
    for end in (5, 7, 11, 12, 15):
        assert (LAKE.kernels[0][4 * end : 4 * end + 4, end] == 1).all()
    assert LAKE.rewards[0, 14].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    assert LAKE.rewards.sum() == pytest.approx(6 * 1)
    cliff = TabularMDP.from_gymnasium("CliffWalking-v1", horizon=13)
    assert cliff.initial.argmax() == 36
    assert cliff.optimise(cliff.rewards[..., None])[1] == pytest.approx(-13)  # the shortest way round
    assert (cliff.rewards.min(), cliff.rewards.max()) == (-100, 0)  # 0: at the goal, for ever
    taxi = TabularMDP.from_gymnasium("Taxi-v4", horizon=15)
    assert taxi.n_states == 500
    assert sparse.issparse(taxi.kernels[0])
    assert taxi.initial[taxi.initial > 0].size == 300


def test_a_terminal_state_that_can_also_be_passed_gets_a_copy_that_ends():
    class Passing(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)
        initial_state_distrib = np.array([1.0, 0.0])
        P = {0: {0: [(1.0, 1, 0.0, False)], 1: [(1.0, 1, 1.0, True)]},
             1: {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 1, 0.5, False)]}}  # fmt: skip

    mdp = TabularMDP.from_gymnasium(Passing(), horizon=3)
    assert mdp.n_states == 3
    assert mdp.kernels[0].reshape(3, 2, 3)[0].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert mdp.optimise(mdp.rewards[..., None])[1] == pytest.approx(1)  # end now, or pass and earn two halves


def test_an_environment_that_is_only_sampled_is_learned_like_its_table():
    def make():
        return gymnasium.make("FrozenLake-v1", map_name="4x4")

    sampled = PhasedRewardFree(n_phases=2, n_agents=400, random_state=0).explore(env_fn=make, horizon=6)
    assert sampled.model_.initial.tolist() == np.eye(16)[0].tolist()
    assert [n.sum() for n in sampled.counts_] == [800] * 6
    for h in range(6):
        seen, true = sampled.counts_[h], LAKE.kernels[h]
        assert (seen[true == 0] == 0).all()  # nothing that cannot happen; ended episodes stay where they are
        row = np.argmax(seen.sum(1) * (true.max(1) < 1))
        n = seen[row].sum()
        assert (np.abs(seen[row] / n - true[row]) < 4 / math.sqrt(n)).all()
    limited = VectorEnvironment(lambda: gymnasium.make("FrozenLake-v1", max_episode_steps=2), 6, 8)
    with pytest.raises(ValueError, match="cut at step 2 of 6"):
        PhasedRewardFree(1, 20).explore(limited)


def test_worlds():
    lock = combination_lock(4, 3, 0)
    assert lock.optimise(lock.rewards[..., None])[1] == [1.0]
    assert lock.reach(3)[0].tolist() == [1, 1]
    leaves = tree(3, 2, 0)
    assert leaves.n_states == 15
    assert (leaves.optimise(leaves.rewards[..., None])[1] == [1.0]).all()
    assert sum(leaves.reach(2)[0]) == 4  # each node of a level
    assert corridor(4, 2, 5, 0).optimise(corridor(4, 2, 5, 0).rewards[..., None])[1] == [2.0]
    calm, rough = riverswim(), riverswim(drift=0.35, H=20)
    assert calm.reach(11)[0][5] > 0.2
    assert rough.kernels[0][3 * 2 + 1].tolist() == pytest.approx([0, 0, 0.35, 0.3, 0.35, 0])
    assert np.stack(random_mdp(3, 2, 4, 0).kernels).std(axis=0).min() > 0  # other transitions at each step


# --- baselines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "scale"), [(RFUCRL, 0.01), (RFExpress, 0.001), (UCBVIZero, 0.01)])
def test_sequential_learners_count_their_episodes_and_find_their_way(make, scale):
    lock = combination_lock(6, 3, 1)
    ex = make(600, scale=scale, random_state=0).explore(lock)
    assert [n.sum() for n in ex.counts_] == [600] * 6
    assert (ex.n_trajectories_, ex.n_phases_) == (600, 600)
    assert ex.plan(lock.rewards)[1] == 1  # uniform exploration finds it in 600 of 729 with probability .56
    visited = ex.counts_[5][: lock.n_actions].sum()
    assert visited > 20  # and goes there again and again
    again = make(600, scale=scale, random_state=0).explore(lock)
    assert all((a == b).all() for a, b in zip(ex.counts_, again.counts_, strict=True))


def test_bonuses_are_those_of_the_papers():
    S, A, H, n = 3, 2, 4, 50
    for make, expected in (
        (
            RFUCRL(10),
            H * math.sqrt(2 * (math.log(2 * S * A * H / 0.05) + (S - 1) * math.log(math.e * (1 + n / (S - 1)))) / n),
        ),
        (RFExpress(10), 15 * H**2 * (math.log(3 * S * A * H / 0.05) + S * math.log(8 * math.e * (n + 1))) / n),
        (UCBVIZero(10), 7 * H * math.log(5 * S * A * H * 10 / 0.05) / math.sqrt(n)),
    ):
        root, linear, b0, b1, b2, b3, growth = make._bonus(S, A, H)
        beta = b0 + b1 * math.log(b2 * (1 + n / b3))
        assert root * math.sqrt(beta / n) + linear * beta / n == pytest.approx(expected)
        assert growth == (1 / H if isinstance(make, RFExpress) else 0)


def test_a_generator_samples_evenly():
    ex = GenerativeModel(100, random_state=0).explore(random_mdp(3, 2, 4, 0))
    assert [sorted(set(n.sum(1).tolist())) for n in ex.counts_] == [[16, 17]] * 4
    assert sum(n.sum() for n in ex.counts_) == 100 * 4


# --- plans -----------------------------------------------------------------------------------------------------------


def test_plans_in_other_units():
    cliff = TabularMDP.from_gymnasium("CliffWalking-v1", horizon=14)
    ex = PhasedRewardFree(n_agents=500, random_state=0).explore(cliff)
    policy, value = ex.plan(cliff.rewards, reward_range=(-100, 0))
    assert policy.shape == (14, 48)
    assert value == pytest.approx(-13)
    unit, scaled = ex.plan((cliff.rewards + 100) / 100)
    assert (unit == policy).all()
    assert scaled * 100 - 14 * 100 == pytest.approx(value)
    with pytest.raises(ValueError, match=r"from -100 to 0, expected them in \[0, 1\]; give reward_range"):
        ex.plan(cliff.rewards)


def test_how_many_agents():
    assert agents_needed(2, 3, 4, 0.5, 0.1, "paper") == pytest.approx(2**6 * 4**6 * 3 * math.log(240) / 0.25)
    assert agents_needed(2, 3, 4, 0.5, 0.1, "reach") == 6 * math.ceil(8 * 4**4 * 2**3 * math.log(480) / 0.25)
    assert agents_needed(2, 3, 12, 0.5, 0.1, "lower", n_phases=4) == pytest.approx(27)
    assert agents_needed(2, 3, 12, 0.5, 0.1, "lower") == pytest.approx(3)


def test_agents_of_a_reach_count_are_enough():
    """On a known start and a small MDP: the simulation lemma's m keeps every gap below eps."""
    mdp = random_mdp(2, 2, 2, 0)
    m = int(agents_needed(2, 2, 2, 0.5, 0.05, "reach"))
    ex = PhasedRewardFree(n_agents=m, random_state=0).explore(mdp)
    assert ex.exact_gap(mdp) < 0.5


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"n_phases": 7}, "n_phases 7: expected a whole number from 1 to the horizon 6"),
    ({"n_phases": 0}, "n_phases 0"),
    ({"n_phases": 2.5}, "n_phases 2.5"),
    ({"n_agents": 0}, "n_agents 0"),
    ({"n_agents": 1.5}, "n_agents 1.5"),
    ({"eps": 0}, "eps 0: expected a positive number"),
    ({"eps": -1.0}, "eps -1.0"),
    ({"eps": math.nan}, "eps nan"),
    ({"delta": 1.0}, r"delta 1.0: expected a number in \(0, 1\)"),
    ({"design": "even"}, "design 'even': expected 'split' or 'random'"),
])  # fmt: skip
def test_parameters_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        PhasedRewardFree(**{"n_agents": 50, **options}).explore(LAKE)


@pytest.mark.filterwarnings("ignore:n_agents")
def test_too_few_agents_are_told_how_many_are_needed():
    with pytest.warns(
        UserWarning, match=r"n_agents 9: phase 2 has 3 states to visit and 4 actions each.*12 are needed"
    ):
        PhasedRewardFree(n_agents=9, random_state=1).explore(LAKE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PhasedRewardFree(n_agents=64, random_state=0).explore(LAKE)


def test_transitions_that_are_none():
    P = np.full((2, 3, 2), 0.5)
    wrong = np.stack([P] * 4)
    wrong[2, 1, 0] = [0.5, 0.4]
    with pytest.raises(ValueError, match=r"\(h, s, a\) = \(2, 1, 0\) sums to 0.9"):
        TabularMDP(wrong, [1, 0])
    wrong[2, 1, 0] = [1.5, -0.5]
    with pytest.raises(ValueError, match=r"\(2, 1, 0\) has a negative probability"):
        TabularMDP(wrong, [1, 0])
    P[0, 2] = [np.nan, 1]
    with pytest.raises(ValueError, match=r"\(0, 0, 2\)"):
        TabularMDP(P, [1, 0], 3)
    fine = np.full((2, 3, 2), 0.5)
    for arguments, message in (
        ((fine, [1, 0]), "horizon: transitions that are the same at every step need one"),
        ((fine, [1, 0], 0), "horizon 0"),
        ((np.stack([fine] * 4), [1, 0], 5), "horizon 5: the transitions are given for 4 steps"),
        ((fine[0], [1, 0], 3), "expected .S, A, S. or .H, S, A, S."),
        ((fine, [0.5, 0.4], 3), "initial: expected 2 probabilities"),
        ((fine, [1, 0, 0], 3), "initial: expected 2 probabilities"),
        ((fine, [1, 0], 3, np.zeros((3, 2))), "reward: shape"),
    ):
        with pytest.raises(ValueError, match=message):
            TabularMDP(*arguments)


def test_rewards_that_are_none():
    ex = PhasedRewardFree(1, 50, random_state=0).explore(LAKE)
    for reward, message in ((np.full((16, 4), 1.5), r"from 1.5 to 1.5, expected them in \[0, 1\]"), (np.zeros((4, 16)), "shape"),
                            (np.full((16, 4), np.nan), "64 values are not finite")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            ex.plan(reward)
    with pytest.raises(ValueError, match="reward_range"):
        ex.plan(np.zeros((16, 4)), reward_range=(1, 1))
    with pytest.raises(ValueError, match=r"truth: has .S, A, H. = .2, 3, 6., but .16, 4, 6. was explored"):
        ex.exact_gap(combination_lock(6, 3))


def test_before_exploring():
    for use in (
        lambda e: e.plan(np.zeros((16, 4))),
        lambda e: e.certificate_,
        lambda e: e.phases_,
        lambda e: e.exact_gap(LAKE),
    ):
        with pytest.raises(NotFittedError, match="has not explored yet"):
            use(PhasedRewardFree())


def test_what_is_no_environment():
    box = gymnasium.make("CartPole-v1")
    with pytest.raises(TypeError, match="tabular only: the observation space is Box"):
        TabularMDP.from_gymnasium(box, horizon=5)
    with pytest.raises(TypeError, match="tabular only"):
        PhasedRewardFree().explore(box)
    with pytest.raises(TypeError, match="tabular only"):
        PhasedRewardFree().explore(env_fn=lambda: gymnasium.make("CartPole-v1"), horizon=5)
    with pytest.raises(TypeError, match="tabular only"):
        TabularMDP.from_gymnasium("Blackjack-v1", horizon=5)
    with pytest.raises(TypeError, match=r"from_gymnasium\(env, horizon"):
        PhasedRewardFree().explore(gymnasium.make("FrozenLake-v1"))
    with pytest.raises(TypeError, match="either a simulator, or env_fn="):
        PhasedRewardFree().explore()
    with pytest.raises(TypeError, match="needs horizon="):
        PhasedRewardFree().explore(env_fn=lambda: gymnasium.make("FrozenLake-v1"))
    with pytest.raises(TypeError, match="int is no simulator"):
        PhasedRewardFree().explore(3)
    for baseline in (OracleReach(n_agents=10), GenerativeModel(10), RFUCRL(10)):
        with pytest.raises(TypeError, match="needs a TabularMDP"):
            baseline.explore(StepFunction(2, 2, 2, lambda s, a, h, rng: s))


def test_step_functions_are_checked():
    with pytest.raises(ValueError, match="step_fn: gave float64 of shape"):
        PhasedRewardFree(1, 5).explore(StepFunction(2, 2, 2, lambda s, a, h, rng: s * 0.5))
    with pytest.raises(ValueError, match="expected 5 states from 0 to 1"):
        PhasedRewardFree(1, 5).explore(StepFunction(2, 2, 2, lambda s, a, h, rng: s + 5))
    with pytest.raises(ValueError, match="start 2"):
        StepFunction(2, 2, 2, lambda s, a, h, rng: s, start=2)
    with pytest.raises(ValueError, match="n_states 0"):
        StepFunction(0, 2, 2, lambda s, a, h, rng: s)
    drawn = StepFunction(2, 2, 2, lambda s, a, h, rng: 1 - s, start=lambda n, rng: rng.integers(2, size=n))
    assert PhasedRewardFree(n_agents=2000, random_state=0).explore(drawn).model_.initial == pytest.approx(
        [0.5, 0.5], abs=0.05
    )


@pytest.mark.parametrize(("make", "message"), [
    (lambda: combination_lock(0, 2), "H 0"), (lambda: combination_lock(3, 1), "A 1"), (lambda: tree(30, 2), "at most 100,000"),
    (lambda: corridor(1, 2, 3), "length 1"), (lambda: riverswim(drift=0.9), "drift 0.9"), (lambda: random_mdp(0, 1, 1), "S 0"),
    (lambda: agents_needed(2, 2, 2, 0.1, 0.1, "all"), "kind 'all'"), (lambda: agents_needed(2, 2, 2, 0.0), "eps 0.0"),
    (lambda: agents_needed(0, 2, 2, 0.1), "S 0"), (lambda: RFUCRL(10, scale=0).explore(LAKE), "scale 0"),
    (lambda: RFUCRL(0).explore(LAKE), "n_trajectories 0"), (lambda: VectorEnvironment(dict, 0), "horizon 0"),
])  # fmt: skip
def test_numbers_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
