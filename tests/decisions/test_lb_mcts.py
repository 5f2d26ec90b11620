"""The tree, the memory, the surrogates, the parser and the search: the oracles of LB-MCTS."""

from __future__ import annotations

import json
import math

import ConfigSpace as cs
import numpy as np
import pytest
import scipy.stats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor

from gnomon.decisions import LBMCTS, CASHSpace, Prior, PriorTable, Recorder, Replay, sklearn_space
from gnomon.decisions.lb_mcts import prompt
from gnomon.decisions.lb_mcts.baselines import RELATIVES, Adversary, ForestBO, Garbage, PlainMCTS
from gnomon.decisions.lb_mcts.gp import GaussianProcess, MaternHamming
from gnomon.decisions.lb_mcts.llm import Request
from gnomon.decisions.lb_mcts.memory import Memory, remember
from gnomon.decisions.lb_mcts.priors import documented
from gnomon.decisions.lb_mcts.replies import ReplyError, parse
from gnomon.decisions.lb_mcts.space import AlgorithmSpace
from gnomon.decisions.lb_mcts.surrogate import RandomForest, log_ei, reliability
from gnomon.decisions.lb_mcts.tree import SearchTree, Trial, scores, ucb


def svc() -> cs.ConfigurationSpace:
    """Conditions and a forbidden clause."""
    kernel = cs.Categorical("kernel", ["rbf", "linear", "poly"], default="rbf")
    c, gamma = cs.Float("C", (1e-3, 1e3), log=True, default=1.0), cs.Float("gamma", (1e-4, 10), log=True, default=0.1)
    degree, shrinking = (
        cs.Integer("degree", (2, 5), default=3),
        cs.Categorical("shrinking", [True, False], default=True),
    )
    found = cs.ConfigurationSpace()
    found.add(
        [kernel, c, gamma, degree, shrinking, cs.OrdinalHyperparameter("size", ["s", "m", "l"], default_value="m")]
    )
    found.add([cs.InCondition(gamma, kernel, ["rbf", "poly"]), cs.EqualsCondition(degree, kernel, "poly")])
    found.add(cs.ForbiddenAndConjunction(cs.ForbiddenEqualsClause(kernel, "poly"), cs.ForbiddenEqualsClause(degree, 5)))
    return found


SVC = AlgorithmSpace("svc", svc())
SPACE = CASHSpace(
    {"svc": svc(), "knn": {"k": (1, 50), "weights": ["uniform", "distance"]}, "ridge": {"alpha": (0.0, 1.0)}}
)


def objective(algorithm: str, config: dict) -> float:
    """Least for svc with a kernel that has gamma and no degree: 0.15, at the middle of the cube."""
    v = SPACE[algorithm].vector(config)
    return float(np.nanmean((v - 0.5) ** 2) + 0.1 * (algorithm != "svc"))


def trial(
    number: int, config: dict, loss: float, space: AlgorithmSpace = SVC, parent: int = 1, reflection: str = ""
) -> Trial:
    one = Trial(
        number, space.name, config, space.key(config), space.vector(config), parent, loss=loss, reflection=reflection
    )
    one.status = "done" if math.isfinite(loss) else "failed"
    return one


def linear(c: float, **more) -> dict:
    return {"C": c, "kernel": "linear", "shrinking": True, "size": "m", **more}


# --- the tree --------------------------------------------------------------------------------------------------------


def test_ucb_by_hand():
    first, second = ucb(0.6, 10, 4, 0.7), ucb(0.7, 10, 6, 0.7)
    assert (round(first, 4), round(second, 4)) == (1.1311, 1.1336)
    assert second > first


def test_selection_takes_the_larger_bound():
    # two algorithms with 4 and 6 trials of equal scores, so that Q is 0.6 and 0.7
    tree, y = SearchTree(["a", "b"], c=0.7), []
    for i in range(10):
        one = trial(i, linear(1.0 + i), 0.0, parent=1 if i < 4 else 2)
        tree.add(one)
        y.append(0.6 if i < 4 else 0.7)
    N, W, top = tree.statistics(y)
    assert (N[0], N[1], N[2]) == (10, 4, 6)
    assert np.allclose([W[1], W[2], top[0]], [2.4, 4.2, 0.7])
    assert tree.algorithm(tree.select(y, ["a", "b"])) == "b"
    assert tree.algorithm(tree.select(y, ["a", "b"], closed={"b"})) == "a"


def test_scores():
    assert np.allclose(scores([0.0, 1.0, 2.0, 3.0, 4.0, 1e9])[:5], [1, 0.75, 0.5, 0.25, 0])  # the 80 % quantile is 4
    assert np.allclose(scores([0.3, 0.3, math.nan]), [0.5, 0.5, 0])
    assert np.allclose(scores([0.1, 0.1, 0.1, 0.1, 0.1, 7.0]), [0.5] * 5 + [0])
    assert np.allclose(scores([3.0, math.nan, 1.0, 2.0], "rank"), [0, 0, 1, 0.5])
    assert np.allclose(scores([math.nan]), [0])
    assert len(scores([])) == 0


losses = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.sampled_from([0.0, 1.0])), min_size=1, max_size=60
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    losses, st.integers(0, 5), st.sampled_from([(1.0, 0.5), (2.0, 0.3), (1.0, 0.0)]), st.sampled_from(["range", "rank"])
)
def test_the_tree_keeps_its_counts_and_limits(values, seed, widening, kind):
    opt = LBMCTS(SPACE, n_trials=len(values), random_state=seed, widening=widening, tree_score=kind, surrogate="forest")
    opt._begin({})
    for value in values:
        one = opt.ask()
        opt.tell(one, value)
        tree = opt._tree
        N, W, top = tree.statistics(opt._scores())
        assert N[0] == len(opt._told)
        assert max(tree.depth) <= 5
        for node, below in enumerate(tree.children):
            own = tree.trials[node] is not None
            assert N[node] == own + sum(N[child] for child in below)
            if node and tree.depth[node] < 4:
                assert len(below) <= max(tree.limit(int(N[node])), 1)
        assert np.isclose(W[0], opt._scores().sum())
        assert top[0] == opt._scores().max()


def test_selection_at_depth_four_always_widens():
    tree = SearchTree(["a"])
    node, y = 1, []
    for i in range(3):
        node = tree.add(trial(i, linear(1.0 + i), 0.0, parent=node))
        y.append(0.5)
    assert tree.depth[node] == 4
    for i in range(3, 8):
        tree.add(trial(i, linear(1.0 + i), 0.0, parent=node))
        y.append(1.0)
    assert max(tree.depth) == 5
    assert len(tree.children[node]) == 5
    assert [t.number for t in tree.path(node)] == [0, 1, 2]


# --- surrogates ------------------------------------------------------------------------------------------------------


def test_reliability():
    f = np.arange(8.0)
    assert reliability(2 * f + 1, f) == pytest.approx(0.5)
    assert reliability(-f, f) == 0
    assert reliability(np.zeros(8), f) == 0
    assert reliability(f, np.zeros(8)) == 0
    assert reliability(np.r_[f, math.nan], np.r_[f, 3.0]) == pytest.approx(0.5)
    assert reliability(f[:1], f[:1]) == 0


def test_rho_follows_reliability():
    opt = LBMCTS(SPACE, n_trials=5)
    opt._begin({})
    assert opt._share(0.0) == pytest.approx(0.1)
    assert opt._share(0.5) == pytest.approx(0.5)
    assert LBMCTS(SPACE, llm=None).minimize(objective).rho == 1
    linear_ = LBMCTS(SPACE, policy="linear", n_trials=10)
    linear_.minimize(objective)
    assert linear_.trials_["rho"].tolist() == pytest.approx(np.arange(10) / 10)
    turns = LBMCTS(SPACE, policy="alternate", n_trials=6)
    turns.minimize(objective)
    assert turns.trials_["proposer"].tolist() == ["bo", "llm"] * 3


def test_log_ei_is_the_closed_form():
    mean, std = np.array([0.0, 0.5, 1.0, -1.0, 3.0]), np.array([1.0, 0.2, 2.0, 0.5, 0.1])
    z = (0.3 - mean) / std
    plain = np.log(std * (z * scipy.stats.norm.cdf(z) + scipy.stats.norm.pdf(z)))
    assert np.allclose(log_ei(mean, std, 0.3)[:4], plain[:4], rtol=1e-12)
    rng = np.random.default_rng(0)
    drawn = np.maximum(0.3 - (0.5 + 0.4 * rng.standard_normal(400_000)), 0)
    error = drawn.std() / math.sqrt(len(drawn)) / drawn.mean()
    assert abs(float(log_ei(np.array([0.5]), np.array([0.4]), 0.3)[0]) - math.log(drawn.mean())) < 4 * error


def test_log_ei_far_from_the_incumbent():
    # -z^2 / 2 - log(2 pi) / 2 - 2 log |z| + log(1 - 3 / z^2 + 15 / z^4), z = -50
    z = 50.0
    series = -(z**2) / 2 - math.log(2 * math.pi) / 2 - 2 * math.log(z) + math.log1p(-3 / z**2 + 15 / z**4)
    assert float(log_ei(np.array(z), np.array(1.0), 0.0)) == pytest.approx(series, rel=1e-9)
    incumbents = np.linspace(-200, 3, 500)
    found = np.array([float(log_ei(np.array(1.0), np.array(0.1), b)) for b in incumbents])
    assert np.all(np.diff(found) > 0)
    assert np.isfinite(found).all()


def test_log_ei_without_variance():
    found = log_ei(np.array([0.2, 1.0]), np.zeros(2), 0.5)
    assert found[0] == pytest.approx(math.log(0.3))
    assert found[1] == -math.inf
    near = log_ei(np.array([0.2]), np.array([1e-9]), 0.5)
    assert near[0] == pytest.approx(math.log(0.3), abs=1e-9)


def sine(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.random((n, 4))
    return X, np.sin(5 * X[:, 0]) + X[:, 1] + 0.05 * rng.standard_normal(n)


def test_the_forest_is_scikit_learns():
    X, y = sine(80)
    new = np.random.default_rng(1).random((500, 4))
    ours = RandomForest(np.random.default_rng(0)).fit(X, y)
    theirs = RandomForestRegressor(100, min_samples_leaf=3, max_features=5 / 6, oob_score=True, random_state=0).fit(
        X, y
    )
    mean, variance = ours.predict(new)
    assert np.corrcoef(mean, theirs.predict(new))[0, 1] > 0.98
    assert np.corrcoef(ours.held_out(), theirs.oob_prediction_)[0, 1] > 0.98
    assert np.abs(mean - theirs.predict(new)).mean() < 0.1 * y.std()
    assert np.all(variance >= 0)
    again = RandomForest(np.random.default_rng(0)).fit(X, y)
    assert np.array_equal(again.predict(new)[0], mean)


def test_one_tree_of_the_forest_by_hand():
    X, y = np.array([[0.0], [0.1], [0.2], [0.8], [0.9], [1.0]]), np.array([1.0, 2.0, 3.0, 11.0, 12.0, 13.0])
    one = RandomForest(np.random.default_rng(0), trees=1).fit(X, y)
    one._samples[:] = np.arange(6)
    from gnomon.decisions.lb_mcts import forest

    fitted = forest.fit(X, y, one._samples, 3, np.full((1, 12, 2), 0.5))
    mean, variance = forest.predict(np.array([[0.1], [0.49], [0.51], [0.9]]), *fitted)
    assert mean.tolist() == [2.0, 2.0, 12.0, 12.0]
    assert np.allclose(variance, 2 / 3)


def test_the_variance_is_that_of_the_means_plus_that_within():
    X, y = sine(40)
    forest = RandomForest(np.random.default_rng(0)).fit(X, y)
    feature, threshold, left, right, mean, within = forest._fitted
    x, leaves = X[7] + 0.01, []
    for t in range(100):
        node = 0
        while feature[t, node] >= 0:
            node = left[t, node] if x[feature[t, node]] <= threshold[t, node] else right[t, node]
        leaves.append((mean[t, node], within[t, node]))
    means, variances = np.array(leaves).T
    got_mean, got = forest.predict(x[None])
    assert got_mean[0] == pytest.approx(means.mean())
    assert got[0] == pytest.approx(means.var() + variances.mean())


def test_gaussian_process():
    X, y = sine(30)
    X = np.hstack([X, np.eye(3)[np.random.default_rng(2).integers(3, size=30)]])
    kind = np.array([False] * 4 + [True] * 3)
    kernel = MaternHamming(np.array([0.5, 1.0, 2.0, 0.7, 1.3]), kind)
    K, gradient = kernel(X, eval_gradient=True)
    for j in range(5):
        step = np.zeros(5)
        step[j] = 1e-6
        up, down = (MaternHamming(np.exp(np.log(kernel.lengths) + s * step), kind)(X) for s in (1, -1))
        assert np.allclose((up - down) / 2e-6, gradient[..., j], atol=1e-6)
    assert np.allclose(np.diag(K), 1)
    assert np.linalg.eigvalsh(K).min() > -1e-10
    process = GaussianProcess(kind).fit(X, y)
    held = process.held_out()
    fixed = process._process.kernel_
    for i in (0, 7):  # leaving one out by hand, with the same kernel
        rest = np.delete(np.arange(30), i)
        A = fixed(X)[np.ix_(rest, rest)] + 1e-10 * np.eye(29)
        by_hand = fixed(X)[i, rest] @ np.linalg.solve(A, process._y[rest])
        assert held[i] == pytest.approx(process._mean + process._scale * by_hand, abs=1e-4)
    mean, variance = process.predict(X)
    assert np.corrcoef(mean, y)[0, 1] > 0.95
    assert np.all(variance > 0)


# --- the space -------------------------------------------------------------------------------------------------------


def test_vectors_and_configurations_go_both_ways():
    rng = np.random.default_rng(0)
    drawn = SVC.sample(200, rng)
    near = SVC.neighbours(drawn[0], 100, rng)
    for vector in [*drawn, *near]:
        config = SVC.config(vector)
        assert SVC.config(SVC.vector(config)) == config
        assert ("gamma" in config) == (config["kernel"] != "linear")
        assert not (config["kernel"] == "poly" and config["degree"] == 5)
        assert json.loads(json.dumps(config)) == config
    changed = [
        sum(a != b and not (np.isnan(a) and np.isnan(b)) for a, b in zip(v, drawn[0], strict=True)) for v in near
    ]
    assert len(near) > 80
    assert min(changed) <= 1


def test_every_kind_of_hyperparameter():
    found = cs.ConfigurationSpace()
    switch, weighted = (
        cs.Categorical("switch", [True, False]),
        cs.Categorical("weighted", ["a", "b"], weights=[0.9, 0.1]),
    )
    single, constant = cs.Categorical("single", ["only"]), cs.Constant("constant", "c")
    beta = cs.BetaFloatHyperparameter("beta", 2.0, 3.0, lower=0, upper=1)
    found.add([switch, weighted, single, constant, beta, cs.Categorical("mixed", [None, "sqrt", 0.5])])
    found.add(
        [
            cs.NormalFloatHyperparameter("normal", 0.0, 1.0, lower=-2, upper=2),
            cs.NormalIntegerHyperparameter("whole", 5, 2, lower=1, upper=9),
        ]
    )
    found.add([cs.EqualsCondition(single, switch, True), cs.EqualsCondition(constant, switch, True)])
    found.add(cs.OrConjunction(cs.EqualsCondition(beta, switch, True), cs.EqualsCondition(beta, weighted, "b")))
    space, rng = AlgorithmSpace("all", found), np.random.default_rng(0)
    drawn = space.sample(30, rng)
    for vector in [*drawn, *space.neighbours(drawn[0], 60, rng), *space.neighbours(drawn[1], 60, rng)]:
        config = space.config(vector)
        assert space.config(space.vector(config)) == config
        assert isinstance(config["whole"], int)
        assert ("single" in config) == config["switch"]
    assert np.isfinite(space.encode(drawn)).all()
    LBMCTS({"all": found, "few": {"z": (0, 3)}}, n_trials=20).minimize(lambda a, c: float(len(c)))


def test_features():
    rng = np.random.default_rng(1)
    x = SVC.sample(50, rng)
    X = SVC.encode(x)
    assert X.shape == (50, len(SVC.categorical_features))
    assert np.allclose(X[:, SVC.categorical_features].sum(axis=1), 2)  # kernel and shrinking
    linear_rows = [SVC.config(v)["kernel"] == "linear" for v in x]
    assert np.all(X[linear_rows].min(axis=1) == -1)
    assert X.max() <= 1


def test_gower_distance_by_hand():
    a = SVC.vector(linear(1.0))
    b = SVC.vector({**linear(10.0, size="l"), "kernel": "rbf", "gamma": 0.1})
    # C: a sixth; kernel differs; gamma active in one; degree in none; size half; shrinking equal
    assert SVC.distances(a, b[None])[0] == pytest.approx((1 / 6 + 1 + 1 + 0 + 0.5 + 0) / 6)
    assert SVC.distances(a, a[None])[0] == 0


def test_the_joint_space_splits_again():
    joint = SPACE.joint()
    joint.seed(0)
    for one in joint.sample_configuration(50):
        name, config = SPACE.split(dict(one))
        assert SPACE[name].config(SPACE[name].vector(config)) == config


def test_sklearn_spaces_build():
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True)
    X = X[::3].copy()
    X[0, 0] = math.nan
    for task in ("classification", "regression"):
        space = sklearn_space(task)
        for name in space:
            config = space[name].default
            model = space.build({"algorithm": name, **config})
            assert len(model.fit(X, y[::3].astype(float) if task == "regression" else y[::3]).predict(X)) == len(X)
            assert set(documented()["parameters"][name]) == set(config) | set(space[name].names)
    assert sum(len(s) for s in sklearn_space().values()) == 26


# --- the memory ------------------------------------------------------------------------------------------------------


def several() -> tuple[list[Trial], list[Trial]]:
    """A path of three and 20 more trials."""
    path = [trial(0, linear(1.0), 0.30), trial(1, linear(10.0), 0.288, reflection="C 1 -> 10: helped"),
            trial(2, {**linear(10.0), "size": "l"}, 0.29)]  # fmt: skip
    rest = [trial(3 + i, linear(0.01 * (i + 1)), 0.35 + 0.01 * i if i != 5 else math.nan) for i in range(20)]
    return path, rest


def test_memory():
    path, rest = several()
    found = remember(SVC, path, path + rest, rest[:6], lambda t: 0.5)
    kinds = [e.kind for e in found.entries]
    assert kinds == ["path"] * 3 + ["best"] * 3 + ["worst"] * 2 + ["near"] * 2 + ["reflection"]
    assert [e.trial.number for e in found.entries[:3]] == [0, 1, 2]
    assert "step C 1 -> 10: +0.012" in found.entries[1].text
    assert found.entries[6].trial is rest[5]  # the one that failed
    assert found.direction == {"C": 1}
    assert len({e.trial.key for e in found.entries[:-1]}) == 10
    assert remember(SVC, [], path + rest, [], lambda t: 0.5).direction == {}


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(20)), st.integers(1, 14), st.integers(0, 2))
def test_memory_does_not_depend_on_the_order_of_insertion(order, size, depth):
    path, rest = several()
    path = path[: depth + 1]
    first = remember(SVC, path, path + rest, rest, lambda t: 0.5, size=size)
    again = remember(SVC, path, [*(rest[i] for i in order), *path], [rest[i] for i in order], lambda t: 0.5, size=size)
    assert first.lines() == again.lines()
    assert len(first.entries) <= size
    assert [e.trial for e in first.entries if e.kind == "path"] == path[:size]
    assert {e.trial.algorithm for e in first.entries} == {"svc"}


def test_memory_in_a_search_is_of_one_algorithm():
    seen: list[Memory] = []

    class Spy(Prior):
        def propose(self, request: Request, n: int):
            seen.append(request.memory)
            assert {e.trial.algorithm for e in request.memory.entries} <= {request.space.name}
            assert len(request.memory.entries) <= 12
            path = [e.trial for e in request.memory.entries if e.kind == "path"]
            assert (path[-1].config if path else None) == request.node
            return super().propose(request, n)

    LBMCTS(SPACE, llm=Spy(), n_trials=40).minimize(objective)
    assert any(len(m.entries) > 6 for m in seen)


def test_ablations_of_the_memory():
    path, rest = several()
    assert [e.trial.number for e in remember(SVC, path, path + rest, [], lambda t: 0.5, "full", 5).entries] == [
        18,
        19,
        20,
        21,
        22,
    ]
    assert not [e for e in remember(SVC, path, path + rest, [], lambda t: 0.5, "no_path").entries if e.kind == "path"]


def test_prompts_are_bounded():
    opt = LBMCTS(sklearn_space(), n_trials=80, timeout_per_trial=None)
    lengths = []

    class Spy(Prior):
        def propose(self, request: Request, n: int):
            lengths.append(prompt.tokens(request.prompt()))
            assert prompt.tokens(request.prompt(200)) <= max(200, prompt.tokens(
                prompt.proposal(request.space.name, request.space, request.node, Memory(), request.card, request.left)))  # fmt: skip
            return super().propose(request, n)

    opt.set_params(llm=Spy())
    opt.minimize(lambda a, c: float(len(json.dumps(c)) % 7))
    assert max(lengths) <= 2000
    assert np.mean(lengths[-20:]) < 1.5 * np.mean(lengths[20:40])


# --- replies ---------------------------------------------------------------------------------------------------------

PARENT = {"C": 2.0, "kernel": "rbf", "gamma": 0.5, "shrinking": False, "size": "s"}
REPLIES = [
    ('{"C": 10, "kernel": "rbf", "gamma": 0.01}', {"C": 10.0, "gamma": 0.01}),
    ('```json\n{"C": 10}\n```', {"C": 10.0}),
    ('Sure! {"C": 10} I hope {this} helps.', {"C": 10.0}),
    ("{'C': 10, 'kernel': 'rbf'}", {"C": 10.0}),
    ('{"config": {"C": 10, "gamma": 1}}', {"C": 10.0, "gamma": 1.0}),
    ('{"algorithm": "svc", "hyperparameters": {"C": 3}, "reason": "more"}', {"C": 3.0}),
    ('{"C": NaN}', None),
    ('{"C": Infinity}', {"C": 1000.0}),
    ('{"C": -5}', {"C": 0.001}),
    ('{"C": 1e9, "gamma": 0}', {"C": 1000.0, "gamma": 0.0001}),
    ('{"C": "10"}', {"C": 10.0}),
    ('{"C": "1e-2 "}', {"C": 0.01}),
    ('{"C": "auto"}', None),
    ('{"C": true}', None),
    ('{"C": [1, 2]}', None),
    ('{"C": null, "gamma": 2}', {"gamma": 2.0}),
    ('{"c": 7}', {"C": 7.0}),
    ('{"kernel": "RBF", "C": 4}', {"C": 4.0}),
    ('{"kernel": "lineer"}', {"kernel": "linear", "gamma": None}),
    ('{"kernel": "sigmoid curve"}', None),
    ('{"kernel": "poly", "degree": 3.4}', {"kernel": "poly", "degree": 3}),
    ('{"kernel": "poly", "degree": 5}', None),
    ('{"kernel": "linear", "gamma": 3}', {"kernel": "linear", "gamma": None}),
    ('{"shrinking": "true"}', {"shrinking": True}),
    ('{"shrinking": true, "size": "L"}', {"shrinking": True, "size": "l"}),
    ('{"temperature": 1, "depth": 3}', None),
    ("{}", None),
    ("", None),
    ("I would raise C to 10.", None),
    ('{"C": 10', None),
    ('{"reason": "a } brace", "C": 6}', {"C": 6.0}),
    ('broken {"C": } then {"C": 8}', {"C": 8.0}),
    ('{"reason": "it\'s \\"best\\"", "C": 6,}', {"C": 6.0}),
    ('[{"C": 5}, {"C": 6}]', {"C": 5.0}),
]


@pytest.mark.parametrize(("text", "expected"), REPLIES)
def test_replies(text, expected):
    if expected is None:
        with pytest.raises(ReplyError):
            parse(text, SVC, PARENT)
        return
    want = {k: v for k, v in {**PARENT, **expected}.items() if v is not None}
    assert parse(text, SVC, PARENT) == want


def test_a_reply_without_a_parent_takes_defaults():
    assert parse('{"C": 10}', SVC) == {"C": 10.0, "kernel": "rbf", "gamma": 0.1, "shrinking": True, "size": "m"}


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=200), st.text('{}[]":,C kernelgam0123456789.-eNa\'\\', max_size=80),
                 st.dictionaries(st.sampled_from(["C", "kernel", "gamma", "degree", "size", "x"]),
                                 st.one_of(st.text(max_size=8), st.floats(), st.integers(), st.none(), st.booleans())).map(json.dumps)))  # fmt: skip
def test_any_string_gives_a_legal_configuration_or_a_failure(text):
    try:
        config = parse(text, SVC, PARENT)
    except ReplyError:
        return
    assert SVC.config(SVC.vector(config)) == config


# --- the search ------------------------------------------------------------------------------------------------------


def table(opt: LBMCTS) -> list[tuple]:
    return opt.trials_[["algorithm", "config", "loss", "proposer", "rho", "parent", "reflection"]].values.tolist()


def test_one_algorithm_and_rho_one_is_plain_bayesian_optimisation():
    def f(name, config):
        return float(np.nanmean((SVC.vector(config) - 0.4) ** 2))

    opt = LBMCTS({"svc": svc()}, n_trials=25, policy="fixed", rho=1.0, node_bias=False, random_state=3)
    opt.minimize(f)
    alone = ForestBO(SVC, random_state=3)
    found = [alone.step(f) for _ in range(25)]
    assert [json.loads(c) for c in opt.trials_["config"]] == [e.config for e in found]
    biased = LBMCTS({"svc": svc()}, n_trials=25, policy="fixed", rho=1.0, random_state=3)
    biased.minimize(f)
    assert list(biased.trials_["config"]) != list(opt.trials_["config"])


def test_the_same_seed_gives_the_same_trials():
    first, again, other = (LBMCTS(SPACE, n_trials=30, random_state=s) for s in (1, 1, 2))
    for opt in (first, again, other):
        opt.minimize(objective)
    assert json.dumps(table(first)) == json.dumps(table(again))
    assert json.dumps(table(first)) != json.dumps(table(other))


def test_ask_and_tell_equal_minimize():
    whole, steps = LBMCTS(SPACE, n_trials=25), LBMCTS(SPACE, n_trials=25)
    whole.minimize(objective)
    for _ in range(25):
        one = steps.ask()
        steps.tell(one, objective(one.algorithm, one.config))
    assert json.dumps(table(whole)) == json.dumps(table(steps))


def test_every_algorithm_is_tried_in_prior_order():
    space = sklearn_space()
    opt = LBMCTS(space, n_trials=len(space))
    opt.minimize(lambda a, c: 0.0, card={"rows": 100})
    assert list(opt.trials_["algorithm"]) == PriorTable().order(list(space), 100)
    assert PriorTable().order(list(space), 10**6)[0] == "hist_gradient_boosting"


def test_the_search_finds_the_optimum():
    opt = LBMCTS(SPACE, n_trials=60)
    best = opt.minimize(objective)
    assert best.algorithm == "svc"
    assert 0.15 <= best.loss < 0.153
    largest = LBMCTS(SPACE, n_trials=60, direction="maximize")
    assert largest.minimize(lambda a, c: -objective(a, c)).config == best.config
    assert opt.best_config_ == {"algorithm": "svc", "config": best.config}


def test_several_trials_may_be_open():
    opt = LBMCTS(SPACE, n_trials=20)
    open_ = [opt.ask() for _ in range(4)]
    assert len({t.key for t in open_}) == 4
    assert {t.algorithm for t in open_} == set(SPACE)
    with pytest.raises(ValueError, match="is not open"):
        opt.tell(trial(0, linear(1.0), 0.0), 1.0)
    for one in reversed(open_):
        opt.tell(one, objective(one.algorithm, one.config))
    with pytest.raises(ValueError, match="is not open"):
        opt.tell(open_[0], 1.0)
    assert list(opt.trials_["number"]) == [0, 1, 2, 3]


def test_failures_are_kept_out():
    def f(name, config):
        if name == "knn":
            raise MemoryError("too large")
        if name == "ridge":
            return math.nan
        return objective(name, config)

    opt = LBMCTS(SPACE, n_trials=30)
    opt.minimize(f)
    rows = opt.trials_
    failed = rows[rows["status"] == "failed"]
    assert set(failed["algorithm"]) == {"knn", "ridge"}
    assert (failed["reflection"] != "").all()
    assert "MemoryError: too large" in set(failed["error"])
    assert len(failed) < 10
    with pytest.raises(RuntimeError, match=r"every trial failed; the last: ValueError: no"):
        LBMCTS(SPACE, n_trials=4).minimize(lambda a, c: (_ for _ in ()).throw(ValueError("no")))


def test_no_duplicates_and_an_end():
    space = CASHSpace({"a": {"x": [1, 2, 3]}, "b": {"x": (1, 2)}})
    opt = LBMCTS(space, n_trials=20)
    with pytest.warns(RuntimeWarning, match="all 5 configurations of the space were tried"):
        opt.minimize(lambda a, c: float(c["x"]))
    assert sorted(opt.trials_["config"] + opt.trials_["algorithm"]) == sorted(
        [f'{{"x": {i}}}a' for i in (1, 2, 3)] + [f'{{"x": {i}}}b' for i in (1, 2)]
    )


def test_the_tree_as_a_graph():
    import networkx as nx

    opt = LBMCTS(SPACE, n_trials=20)
    opt.minimize(objective)
    graph = opt.tree_
    assert nx.is_arborescence(graph)
    assert graph.nodes[0]["N"] == 20
    assert [graph.nodes[n]["label"] for n in graph.successors(0)] == list(SPACE)
    json.dumps(nx.node_link_data(graph, edges="edges"))


def test_language_models_that_fail():
    for hostile in (Garbage(), Adversary(), Adversary(moved=True)):
        opt = LBMCTS(SPACE, llm=hostile, n_trials=30)
        best = opt.minimize(objective)
        assert best.loss < 0.2
        rows = opt.trials_
        assert (rows["failures"].sum() > 10) == isinstance(hostile, Garbage)
        assert rows["prompt_tokens"].sum() > 0


def test_relatives():
    for name, options in RELATIVES.items():
        opt = LBMCTS(SPACE, n_trials=9, **options)
        opt.minimize(objective)
        share = (opt.trials_["proposer"] == "bo").mean()
        assert name != "rho = 0" or share == 0
        assert name != "rho = 1" or share == 1
    plain = PlainMCTS(SPACE, llm=None, n_trials=20)
    plain.minimize(objective)
    assert set(plain.trials_["source"]) == {"random", "neighbour"}


# --- priors ----------------------------------------------------------------------------------------------------------


def test_priors_draw_around_documented_defaults():
    space, rng = sklearn_space()["svc"], np.random.default_rng(0)
    table_, card = PriorTable(), {"features": 20}
    exact = table_.draw(space, None, {}, card, rng, exact=True)
    assert exact == {"C": 1.0, "kernel": "rbf", "gamma": 0.05}
    drawn = [table_.draw(space, None, {}, card, rng) for _ in range(300)]
    assert all(1 <= d["C"] <= 100 for d in drawn)
    assert {d["kernel"] for d in drawn} == {"rbf", "linear"}
    node = {"C": 10.0, "kernel": "rbf", "gamma": 0.05}
    moved = [table_.draw(space, node, {"C": 1}, card, rng)["C"] for _ in range(300)]
    plain = [table_.draw(space, node, {}, card, rng)["C"] for _ in range(300)]
    assert np.median(np.log(moved)) > np.median(np.log(plain))
    assert all(table_.draw(space, node, {}, card, rng) != {} for _ in range(20))


def test_wrong_priors_keep_their_width():
    space, card = sklearn_space()["mlp"], {"features": 20}
    right = PriorTable().about(space, card)
    centres = []
    for seed in range(200):
        wrong = PriorTable(redrawn=seed).about(space, card)
        assert wrong == PriorTable(redrawn=seed).about(space, card)
        centre, low, high = wrong["alpha"]
        centres.append(centre)
        if low > 0 and high < 1:
            assert high - low == pytest.approx(right["alpha"][2] - right["alpha"][1])
    assert scipy.stats.kstest(centres, "uniform").pvalue > 1e-3


def test_an_unknown_algorithm_has_the_defaults_of_its_space():
    drawn = PriorTable().draw(SVC, None, {}, {}, np.random.default_rng(0), exact=True)
    assert (
        PriorTable({}).draw(AlgorithmSpace("mine", svc()), None, {}, {}, np.random.default_rng(0), exact=True)
        == SVC.default
    )
    assert drawn["C"] == 1.0


# --- transcripts -----------------------------------------------------------------------------------------------------


def test_replay(tmp_path):
    path = tmp_path / "transcript.jsonl"
    recorded = LBMCTS(SPACE, llm=Recorder(Prior(), path), n_trials=25)
    recorded.minimize(objective)
    for _ in range(2):
        again = LBMCTS(SPACE, llm=Replay(path), n_trials=25)
        again.minimize(objective)
        assert json.dumps(table(again)) == json.dumps(table(recorded))
    other = LBMCTS(SPACE, llm=Replay(path), n_trials=25, random_state=5)
    with pytest.raises(ValueError, match="is not the recorded one"):
        other.minimize(objective)
    with pytest.raises(ValueError, match="is written to a new file"):
        Recorder(Prior(), path)
    with pytest.raises(ValueError, match="is no file"):
        Replay(tmp_path / "none")
    (tmp_path / "no.jsonl").write_text("hello")
    with pytest.raises(ValueError, match="is no transcript"):
        Replay(tmp_path / "no.jsonl")
