"""LB-MCTS on tables, its back ends and baselines, and what bad input gets."""

from __future__ import annotations

import http.server
import json
import math
import os
import threading
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError

import gnomon.decisions as decisions
from gnomon import models
from gnomon.decisions import LBMCTS, CASHSpace, Prior, PriorTable, sklearn_space
from gnomon.decisions.lb_mcts.baselines import (
    RandomSearch,
    flaml_search,
    optuna_search,
    random_search,
    rising_bandit,
    smac,
)
from gnomon.decisions.lb_mcts.evaluate import EvaluationError, Worker
from gnomon.decisions.lb_mcts.llm import Embedded, Local, Request, backend
from gnomon.decisions.lb_mcts.memory import Memory

X, Y = load_iris(return_X_y=True)
X, Y = X[::2], Y[::2]
SMALL = ["svc", "knn", "gaussian_nb"]
TWO = CASHSpace({"a": {"x": (0.0, 1.0), "k": ["p", "q"]}, "b": {"n": (1, 9)}})


def loss(algorithm: str, config: dict) -> float:
    return (config["x"] - 0.3) ** 2 + 0.1 * (config["k"] == "q") if algorithm == "a" else 0.5 + 0.01 * config["n"]


def test_public_names():
    for name in ("LBMCTS", "CASHSpace", "sklearn_space", "Prior", "PriorTable", "Recorder", "Replay"):
        assert getattr(decisions, name).__module__.startswith("gnomon.decisions.lb_mcts")


# --- tables ----------------------------------------------------------------------------------------------------------


def test_a_table():
    opt = LBMCTS(sklearn_space(algorithms=SMALL), n_trials=12, timeout_per_trial=None).fit(X, Y)
    assert opt.best_score_ > 0.93
    assert opt.best_score_ == -opt.trials_["loss"].min()
    assert (opt.predict(X) == Y).mean() > 0.93
    assert opt.classes_.tolist() == [0, 1, 2]
    assert opt.n_features_in_ == 4
    again = sklearn_space().build(json.loads(json.dumps(opt.best_config_))).fit(X, Y)
    assert np.array_equal(again.predict(X), opt.predict(X))
    copy = clone(opt)
    assert not hasattr(copy, "best_estimator_")
    assert json.dumps(copy.fit(X, Y).best_config_) == json.dumps(opt.best_config_)


def test_scoring_has_its_own_direction():
    opt = LBMCTS(
        sklearn_space(algorithms=SMALL),
        n_trials=6,
        scoring="neg_log_loss",
        timeout_per_trial=None,
        direction="maximize",
    )
    opt.set_params(space=sklearn_space(algorithms=["knn", "gaussian_nb"])).fit(X, Y)
    assert -1 < opt.best_score_ < 0
    assert opt.best_score_ == -opt.trials_["loss"].min()
    assert opt.predict_proba(X).shape == (len(X), 3)


def test_regression_and_missing_values():
    holes = X.copy()
    holes[::7, 1] = math.nan
    opt = LBMCTS(sklearn_space("regression", ["ridge", "knn"]), n_trials=6, timeout_per_trial=None).fit(holes, X[:, 3])
    assert opt.best_score_ > 0.8
    strict = LBMCTS(sklearn_space(algorithms=SMALL, impute=False), n_trials=3)
    with pytest.raises(ValueError, match="contains NaN, which svc, knn, gaussian_nb reject"):
        strict.fit(holes, Y)
    alone = LBMCTS(
        sklearn_space(algorithms=["hist_gradient_boosting"], impute=False), n_trials=1, timeout_per_trial=None
    )
    assert alone.fit(holes, Y).best_score_ > 0.3


def test_a_worker_outlives_what_it_runs():
    def slow(argument):  # sent by value: the process need not import this file
        if argument == "sleep":
            time.sleep(60)
        if argument == "die":
            os._exit(3)
        if argument == "raise":
            raise ValueError("no such thing")
        return argument

    with Worker(slow, (), timeout=2.0) as worker:
        assert worker("fine") == "fine"
        with pytest.raises(EvaluationError, match="timed out after 2 s"):
            worker("sleep")
        with pytest.raises(EvaluationError, match="ValueError: no such thing"):
            worker("raise")
        with pytest.raises(EvaluationError, match="the process died"):
            worker("die")
        assert worker("fine again") == "fine again"
    with Worker(slow, (), timeout=None) as here, pytest.raises(EvaluationError, match="no such thing"):
        here("raise")


def test_a_table_in_a_process_of_its_own():
    own = LBMCTS(sklearn_space(algorithms=["knn", "gaussian_nb"]), n_trials=4, timeout_per_trial=60).fit(X, Y)
    here = LBMCTS(sklearn_space(algorithms=["knn", "gaussian_nb"]), n_trials=4, timeout_per_trial=None).fit(X, Y)
    assert own.trials_["loss"].tolist() == here.trials_["loss"].tolist()


def test_it_is_an_estimator():
    from sklearn.base import is_classifier, is_regressor
    from sklearn.model_selection import cross_val_score

    table = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    opt = LBMCTS(sklearn_space(algorithms=["knn", "gaussian_nb"]), n_trials=3, timeout_per_trial=None).fit(table, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(opt.predict(table), opt.predict(table.copy()))
    assert opt.score(table, Y) == pytest.approx((opt.predict(table) == Y).mean())  # the classes are of equal size
    assert is_classifier(opt)
    assert is_regressor(LBMCTS(sklearn_space("regression")))
    assert cross_val_score(opt, table, Y, cv=2).min() > 0.8
    with pytest.raises(ValueError, match="feature names"):
        opt.predict(table.rename(columns={"a": "z"}))


# --- baselines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", [random_search, smac, optuna_search, flaml_search, rising_bandit,
                                    lambda *a: optuna_search(*a, sampler="gp"),
                                    lambda *a: flaml_search(*a, search="blendsearch")],
                         ids=["random", "smac", "tpe", "cfo", "rising", "gp", "blendsearch"])  # fmt: skip
def test_searches(search):
    def sometimes(algorithm, config):
        if algorithm == "b" and config["n"] > 5:
            raise ValueError("large")
        return loss(algorithm, config)

    found = search(sometimes, TWO, 10, 1)
    assert len(found) == 10
    for one in found:
        TWO[one.algorithm].vector(one.config)
        assert math.isnan(one.loss) == (one.algorithm == "b" and one.config["n"] > 5)
    assert np.nanmin([e.loss for e in found]) < 0.6


def test_rising_bandits_drop_what_cannot_win():
    found = rising_bandit(loss, TWO, 40, 0)
    assert sum(e.algorithm == "b" for e in found) < 15


def test_rising_bandits_end_where_nothing_is_left():
    found = rising_bandit(lambda a, c: float(a == "b"), CASHSpace({"a": {"n": (0, 2)}, "b": {"x": (0.0, 1.0)}}), 12, 0)
    assert sum(e.algorithm == "a" for e in found) == 3


def test_random_search_is_uniform():
    opt = RandomSearch(TWO, llm=None, n_trials=30)
    opt.minimize(loss)
    counts = opt.trials_["algorithm"].value_counts()
    assert set(counts.index) == {"a", "b"}
    assert set(opt.trials_["parent"]) == {1, 2}


# --- an endpoint -----------------------------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server that answers with a configuration, counting and keeping what it is asked."""

    asked: list[str] = []
    status = 200

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][0]["content"]
        type(self).asked.append(text)
        config = {"x": round(0.1 + len(self.asked) / 100, 2), "k": "P", "n": 3, "reason": "it is better"}
        answer = "Raise it further." if "lesson" in text else json.dumps(config)
        found = {"id": "1", "object": "chat.completion", "created": 0, "model": "m",
                 "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}]}  # fmt: skip
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found if self.status == 200 else {"error": {"message": "no key"}}).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setattr(Server, "asked", [])
    monkeypatch.setattr(Server, "status", 200)
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"endpoint:http://127.0.0.1:{found.server_port}/v1#m"
    found.shutdown()
    found.server_close()


def test_an_endpoint(server):
    opt = LBMCTS(TWO, llm=server, n_trials=14, name="secretdata", random_state=1)
    opt.minimize(loss, card={"rows": 100, "metric": "balanced_accuracy"})
    rows = opt.trials_
    by_model = rows[rows["source"] == "endpoint:m"]
    assert len(by_model) > 5
    assert (by_model["prompt_tokens"] > 50).all()
    assert "Raise it further." in set(rows["reflection"])
    assert rows["llm_seconds"].sum() > 0
    prompts = [t for t in Server.asked if "You tune" in t]
    assert all("rows 100, metric balanced_accuracy" in t for t in prompts)
    assert any("[path]" in t for t in prompts)
    kept = rows.to_csv() + json.dumps(dict(opt.tree_.nodes(data=True)))
    assert "secret" not in kept + "".join(Server.asked)


def test_anonymous_unless_told():
    seen = []

    class Spy(Prior):
        def propose(self, request, n):
            seen.append(request.prompt())
            return super().propose(request, n)

    common = {"llm": Spy(), "n_trials": 2, "name": "iris", "timeout_per_trial": None}
    LBMCTS(sklearn_space(algorithms=SMALL), **common).fit(X, Y)
    assert "iris" not in " ".join(seen)
    LBMCTS(sklearn_space(algorithms=SMALL), anonymise=False, **common).fit(X, Y)
    assert "name iris" in seen[-1]
    assert "classes [0.333, 0.333, 0.333], metric balanced_accuracy" in seen[-1]


def test_an_endpoint_that_refuses(server, monkeypatch):
    monkeypatch.setattr(Server, "status", 401)
    with pytest.raises(ConnectionError, match="OPENAI_API_KEY") as raised:
        LBMCTS(TWO, llm=server, n_trials=3).minimize(loss)
    assert "sk-very-secret" not in str(raised.value)
    with pytest.warns(RuntimeWarning, match="goes on with the prior table"):
        LBMCTS(TWO, llm=server, n_trials=3, llm_fallback=True).minimize(loss)


def test_an_endpoint_that_is_not_there(monkeypatch):
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *a, **k: 0.0)
    with pytest.raises(ConnectionError, match=r"llm: http://127\.0\.0\.1:9/v1"):
        LBMCTS(TWO, llm="endpoint:http://127.0.0.1:9/v1#m").minimize(loss)


# --- the embedded model ----------------------------------------------------------------------------------------------


def request(node=None) -> Request:
    return Request(TWO["a"], node, Memory(), {"rows": 50}, [], node is None, 5, 0, np.random.default_rng(0))


@pytest.mark.timeout(300)  # the model may have to be converted first
def test_the_embedded_model_scores():
    llm = Embedded(candidates=5)
    lines = ['{"x": 0.5, "k": "p"}', '{"x": 0.25, "k": "q"}', '{"x": 0.123456, "k": "p"}']
    text = "Propose a configuration.\n"
    lm = models.load(models.EMBEDDED)
    want = models.log_likelihood(lm.model, lm.tokenizer, [text] * 3, lines, per_token=True)
    assert np.allclose(llm.score(text, lines), want.numpy(), atol=1e-3)
    answer = llm.propose(request({"x": 0.5, "k": "p"}), 2)
    assert len(set(answer.texts)) == 2
    assert 0 < answer.prompt_tokens <= 600
    for found in answer.texts:
        TWO["a"].vector(json.loads(found))
    cold = Embedded(candidates=4, temperature=1e-6)  # takes the likeliest
    first = cold.propose(request(), 1)
    assert first.texts == cold.propose(request(), 1).texts


def test_a_local_model_is_asked_in_its_own_format(monkeypatch):
    class Tokenizer:
        chat_template = "yes"

        def __call__(self, text):
            return type("Tokens", (), {"input_ids": text.split()})

        def apply_chat_template(self, messages, tokenize, add_generation_prompt):
            return f"<user> {messages[0]['content']} <assistant>"

    shown = []

    def generate(model, tokenizer, text, max_new_tokens):
        shown.append(text)
        return 'Of course: {"x": 0.25, "k": "q"}'

    monkeypatch.setattr(models, "load", lambda ref: type("LM", (), {"model": None, "tokenizer": Tokenizer()}))
    monkeypatch.setattr(models, "generate", generate)
    answer = Local("some/model").propose(request({"x": 0.5, "k": "p"}), 3)
    assert answer.texts == ['Of course: {"x": 0.25, "k": "q"}']
    assert shown[0].startswith("<user> You tune")
    assert answer.prompt_tokens == len(shown[0].split())
    assert answer.completion_tokens == 6
    opt = LBMCTS(TWO, llm=Local("some/model"), n_trials=5)
    opt.minimize(loss)
    assert {"x": 0.25, "k": "q"} in [json.loads(c) for c in opt.trials_["config"]]


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: CASHSpace({}), ValueError, "the space is empty"),
    (lambda: CASHSpace([1]), TypeError, "expected a mapping"),
    (lambda: CASHSpace({"a": {"x": (3.0, 1.0)}}), ValueError, r"'a' has bounds \(3.0, 1.0\) for 'x'; expected lower < upper"),
    (lambda: CASHSpace({"a": {"x": []}}), ValueError, "'a' cannot be read by ConfigSpace"),
    (lambda: CASHSpace({"a": 3}), TypeError, "expected a ConfigurationSpace or a mapping"),
    (lambda: TWO["c"], ValueError, "algorithm: got 'c'; the space has a, b"),
    (lambda: TWO["a"].vector({"x": 0.5}), ValueError, "'a' does not hold"),
    (lambda: TWO["a"].vector({"x": 5.0, "k": "p"}), ValueError, "'a' does not hold"),
    (lambda: sklearn_space("ranking"), ValueError, "task: got 'ranking'; expected one of classification, regression"),
    (lambda: sklearn_space(algorithms=["svm"]), ValueError, "unknown 'svm'; classification has logistic_regression, svc"),
    (lambda: sklearn_space().build({"C": 1.0}), ValueError, "no 'algorithm'"),
    (lambda: sklearn_space().build({"algorithm": "svc", "C": -1.0, "kernel": "linear"}), ValueError, "'svc' does not hold"),
    (lambda: LBMCTS(TWO, n_trials=0).minimize(loss), ValueError, "n_trials: got 0; expected an integer of at least 1"),
    (lambda: LBMCTS(TWO, n_trials=2.5).minimize(loss), ValueError, "n_trials: got 2.5"),
    (lambda: LBMCTS(TWO, policy="greedy").minimize(loss), ValueError, "policy: got 'greedy'; expected one of adaptive"),
    (lambda: LBMCTS(TWO, policy="fixed").minimize(loss), ValueError, "policy='fixed' expects one number"),
    (lambda: LBMCTS(TWO, rho=0.5).minimize(loss), ValueError, "rho: got 0.5; expected a pair"),
    (lambda: LBMCTS(TWO, rho=(0.9, 0.1)).minimize(loss), ValueError, "0 <= least <= largest <= 1"),
    (lambda: LBMCTS(TWO, direction="up").minimize(loss), ValueError, "direction: got 'up'"),
    (lambda: LBMCTS(TWO, memory="all").minimize(loss), ValueError, "memory: got 'all'"),
    (lambda: LBMCTS(TWO, surrogate="tree").minimize(loss), ValueError, "surrogate: got 'tree'"),
    (lambda: LBMCTS(TWO, timeout_per_trial=-1).minimize(loss), ValueError, "timeout_per_trial: got -1"),
    (lambda: LBMCTS(TWO, llm="gpt").minimize(loss), ValueError, "llm: got 'gpt'; expected 'prior', 'embedded'"),
    (lambda: LBMCTS(TWO, llm=3).minimize(loss), TypeError, "llm: got int"),
    (lambda: LBMCTS(TWO).fit(X, Y), TypeError, "makes no estimators"),
    (lambda: LBMCTS(sklearn_space()).fit(X, np.zeros(len(X))), ValueError, "y: got one class"),
    (lambda: LBMCTS(sklearn_space()).fit(X[:, 0], Y), ValueError, "Expected 2D array"),
    (lambda: LBMCTS(sklearn_space()).fit(X, Y[:5]), ValueError, "inconsistent numbers of samples"),
    (lambda: LBMCTS(sklearn_space()).fit(np.where(X > 5, np.inf, X), Y), ValueError, "infinity"),
    (lambda: LBMCTS(sklearn_space(), scoring="goodness").fit(X, Y), ValueError, "goodness"),
    (lambda: LBMCTS(sklearn_space()).predict(X), NotFittedError, "call fit"),
    (lambda: LBMCTS(TWO).trials_, NotFittedError, "has not begun"),
])  # fmt: skip
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_failing_fit_does_not_end_the_search():
    few = sklearn_space(algorithms=["knn", "discriminant"])
    tiny, labels = X[::8], Y[::8]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = LBMCTS(few, n_trials=15, timeout_per_trial=None, cv=2).fit(tiny, labels)
    assert (opt.trials_["status"] == "failed").any()
    assert (opt.trials_.query("status == 'failed'")["error"].str.len() > 10).all()


def test_back_ends_by_name():
    assert backend(None) is None
    assert backend("prior").name == "prior"
    assert backend("embedded").name == "embedded"
    assert backend("endpoint:http://h/v1#big").name == "endpoint:big"
    own = Prior(PriorTable({"order": {"small": ["b", "a"]}}))
    assert backend(own) is own
    opt = LBMCTS(TWO, llm=own, n_trials=2)
    opt.minimize(loss)
    assert opt.trials_["algorithm"].tolist() == ["b", "a"]


def test_log_ei_of_scipy_in_the_far_tail():
    from gnomon.decisions.lb_mcts.surrogate import log_ei

    z = np.linspace(-30, 5, 200)
    want = scipy.stats.norm.logpdf(z) + np.log1p(z * np.exp(scipy.stats.norm.logcdf(z) - scipy.stats.norm.logpdf(z)))
    assert np.allclose(log_ei(-z, np.ones(200), 0.0)[z > -15], want[z > -15], atol=1e-6)
