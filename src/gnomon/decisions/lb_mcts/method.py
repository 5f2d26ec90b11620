"""LB-MCTS: one search tree shared by Bayesian optimisation and a language model, for algorithm selection and tuning."""

from __future__ import annotations

import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from gnomon.decisions.lb_mcts import memory, prompt
from gnomon.decisions.lb_mcts.evaluate import EvaluationError, Worker, cross_validated
from gnomon.decisions.lb_mcts.llm import LLM, Prior, Request, backend
from gnomon.decisions.lb_mcts.proposers import by_language, by_surrogate, expected, fitted, fresh, seeded
from gnomon.decisions.lb_mcts.sklearn_space import SklearnSpace, sklearn_space
from gnomon.decisions.lb_mcts.space import CASHSpace, Config
from gnomon.decisions.lb_mcts.surrogate import Surrogate, reliability
from gnomon.decisions.lb_mcts.tree import SearchTree, Trial, scores

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

log = logging.getLogger(__name__)

POLICIES = ("adaptive", "linear", "fixed", "bandit", "alternate")
JUDGES = 5  # trials of an algorithm from which its surrogate picks among the language model's candidates
RETRIES = 3  # proposals after one that was tried already
NOTABLE, EVERY = 0.05, 5  # a change of score, and every how many trials, that get a reflection
_CHOICES = {"policy": POLICIES, "memory": memory.KINDS, "surrogate": ("forest", "gp"), "tree_score": ("range", "rank"),
            "direction": ("minimize", "maximize")}  # fmt: skip


class SpaceExhausted(RuntimeError):
    """Every configuration of every algorithm was tried."""


class LBMCTS(BaseEstimator):
    r"""Tree search over algorithms and their tuning trajectories, whose proposals come from an LLM first and from BO as it earns trust.

    Minimises f(a, x) over algorithms a and configurations x. A tree has one child per algorithm and below it tried configurations,
    each a refinement of its parent. Each iteration walks down by :math:`Q + c\sqrt{\ln N_{parent}/N}`, with
    :math:`Q = (1-w)\,\mathrm{mean} + w\max` of the subtree's scores, to a node that may still widen, asks one proposer for a
    configuration of that algorithm given the node, evaluates it and hangs it below. Bayesian optimisation is asked with probability
    :math:`\rho = \rho_{min} + (\rho_{max} - \rho_{min})\max(0, \tau) n_a/(n_a + n_0)`, tau Kendall's rank correlation of the surrogate's
    out-of-bag predictions.

    Parameters
    ----------
    space : CASHSpace, optional
        What is searched (default: :func:`sklearn_space` for classification). :meth:`fit` needs one with ``build``.
    llm : str, LLM or None
        "prior" (a table of documented defaults; no model), "embedded" (a small model that scores), a model reference
        (``"endpoint:http://host/v1#name"``, a folder, a hub name), a back end such as :class:`Replay`, or None: BO alone.
    n_trials : int
        Evaluations, at least 1.
    scoring : str or callable, optional
        As scikit-learn takes it; by default balanced accuracy, or r2 for regression.
    cv : int or splitter
        Folds (shuffled, stratified for classification).
    timeout_per_trial : float or None
        Seconds; each evaluation then runs in a process of its own that can be ended. None: in this process, unlimited.
    random_state : int or None
        The same seed gives the same trials.
    policy : {"adaptive", "linear", "fixed", "bandit", "alternate"}
        Of rho: by reliability; t/T; the number ``rho``; Thompson sampling on "improved the node"; BO and LLM in turns.
    rho : (float, float) or float
        Least and largest rho; for ``"fixed"`` the number.
    n0 : float
        Trials at which a perfect surrogate counts one half.
    surrogate : {"forest", "gp"}
    memory : {"selective", "no_path", "full"}
        What the language model sees; see :func:`gnomon.decisions.lb_mcts.memory.remember`.
    memory_size : int
        Most entries.
    reflections : bool
        Whether lessons are written and shown.
    node_bias : bool
        Whether half of BO's neighbours are those of the node.
    n_llm : int
        Candidates per call, among which expected improvement chooses once the algorithm has 5 trials.
    c, best_weight, widening, max_depth
        Of the tree; see :class:`gnomon.decisions.lb_mcts.tree.SearchTree`.
    tree_score : {"range", "rank"}
        How losses become scores.
    direction : {"minimize", "maximize"}
        Of what is told to :meth:`tell` or returned in :meth:`minimize`; :meth:`fit` takes it from the scorer.
    name : str
        Of the data set, told to the language model unless ``anonymise``: known names leak what it remembers of them.
    anonymise : bool
    llm_fallback : bool
        Where the language model cannot be reached: warn and go on with "prior", instead of a ConnectionError.
    callback : callable, optional
        Called with each :class:`Trial` once it is told.

    Attributes
    ----------
    trials_ : DataFrame
        One row per trial: algorithm, config, loss (negated where it is maximised), proposer, rho, node, seconds, tokens.
    tree_ : networkx.DiGraph
    best_config_ : dict
        ``{"algorithm", "config"}``; :meth:`SklearnSpace.build` makes the estimator.
    best_estimator_, best_score_
        Refit on all data, and its cross-validated score (after :meth:`fit`).

    References
    ----------
    Xu, Qian, Tung, Lu, Cui, "Tree-Structured Synergy of Large Language Models and Bayesian Optimization for Efficient CASH",
    arXiv 2601.12355.

    Examples
    --------
    >>> opt = LBMCTS(CASHSpace({"parabola": {"x": (-3.0, 3.0)}, "constant": {"c": (1.0, 2.0)}}), n_trials=40)
    >>> best = opt.minimize(lambda algorithm, config: (config["x"] - 1) ** 2 if algorithm == "parabola" else config["c"])
    >>> best.algorithm, bool(best.loss < 0.05)
    ('parabola', True)
    """

    def __init__(self, space: CASHSpace | None = None, llm: Any = "prior", n_trials: int = 60, scoring: Any = None, cv: Any = 3,
                 timeout_per_trial: float | None = 30, random_state: int | None = 0, *, policy: str = "adaptive",
                 rho: Any = (0.1, 0.9), n0: float = 8.0, surrogate: str = "forest", memory: str = "selective",
                 memory_size: int = 12, reflections: bool = True, node_bias: bool = True, n_llm: int = 3, c: float = 0.7,
                 best_weight: float = 0.5, widening: tuple[float, float] = (1.0, 0.5), max_depth: int = 5,
                 tree_score: str = "range",
                 direction: str = "minimize", name: str = "", anonymise: bool = True, llm_fallback: bool = False,
                 callback: Callable[[Trial], Any] | None = None):  # fmt: skip
        self.space, self.llm, self.n_trials, self.scoring, self.cv = space, llm, n_trials, scoring, cv
        self.timeout_per_trial, self.random_state = timeout_per_trial, random_state
        self.policy, self.rho, self.n0, self.surrogate = policy, rho, n0, surrogate
        self.memory, self.memory_size, self.reflections = memory, memory_size, reflections
        self.node_bias, self.n_llm, self.c, self.best_weight, self.widening = node_bias, n_llm, c, best_weight, widening
        self.max_depth, self.tree_score, self.direction = max_depth, tree_score, direction
        self.name, self.anonymise, self.llm_fallback, self.callback = name, anonymise, llm_fallback, callback

    # --- any objective ---

    def ask(self) -> Trial:
        """The next trial: ``trial.algorithm`` and ``trial.config`` are to be evaluated. Several may be open at once.

        Raises
        ------
        SpaceExhausted
            When nothing is left to try.
        """
        if not hasattr(self, "_tree"):
            self._begin({})
        begin, waited = time.perf_counter(), 0.0
        y = self._scores()
        while len(self._closed) < len(self._space):
            waiting = {t.algorithm for t in self._open.values() if not self._of(t.algorithm)}
            ruled_out = self._closed | waiting if self._closed | waiting < set(self._space) else self._closed
            node = self._tree.select(y, self._order, ruled_out)
            trial = self._propose(node)
            waited += trial.llm_seconds
            if trial.key:
                self._seen.add(trial.key)
                self._open[trial.number] = trial
                self._asked += 1
                trial.overhead = time.perf_counter() - begin - waited
                return trial
            self._closed.add(trial.algorithm)
        raise SpaceExhausted(f"all {len(self._told)} configurations of the space were tried")

    def tell(self, trial: Trial, loss: float | None, *, error: str = "", seconds: float = math.nan) -> None:
        """What became of a trial; a loss that is None, NaN or infinite is a failure.

        Raises
        ------
        ValueError
            For a trial that is not open.
        """
        number = getattr(trial, "number", -1)
        if self._started().get(number) is not trial:
            raise ValueError(f"trial: {trial!r} is not open; expected one that ask() gave and that was not told yet")
        del self._open[number]
        begin = time.perf_counter()
        value = math.nan if loss is None else float(loss)
        good = math.isfinite(value) and not error
        trial.status, trial.seconds, trial.error = "done" if good else "failed", seconds, error
        trial.loss = (value if self.direction == "minimize" else -value) if good else math.nan
        above = self._tree.trials[trial.parent]
        before = (
            above.loss
            if above is not None
            else min((t.loss for t in self._of(trial.algorithm) if t.ok), default=math.nan)
        )
        self._wins[trial.proposer][0 if trial.loss < before or (good and math.isnan(before)) else 1] += 1
        self._told.append(trial)
        self._by_algorithm[trial.algorithm].append(trial)
        self._tree.add(trial)
        waited = trial.llm_seconds
        if self.reflections:
            self._reflect(trial, above)
        trial.overhead += time.perf_counter() - begin - (trial.llm_seconds - waited)
        if self.callback is not None:
            self.callback(trial)

    def minimize(self, fn: Callable[[str, Config], float], space: CASHSpace | None = None,
                 card: Mapping[str, Any] | None = None) -> Trial:  # fmt: skip
        """Evaluate ``fn(algorithm, config)`` ``n_trials`` times (or maximise it, by ``direction``); an error is a failed trial.

        Parameters
        ----------
        fn : callable
        space : CASHSpace, optional
            In place of the constructor's.
        card : mapping, optional
            What the language model is told of the task.

        Returns
        -------
        Trial
            The best one.

        Raises
        ------
        RuntimeError
            When every trial failed.
        """
        self._begin(dict(card or {}), space)
        return self._loop(lambda trial: fn(trial.algorithm, dict(trial.config)))

    def _loop(self, evaluate: Callable[[Trial], float]) -> Trial:
        for _ in range(self.n_trials):
            try:
                trial = self.ask()
            except SpaceExhausted as done:
                warnings.warn(f"{done}; the search ends early", RuntimeWarning, stacklevel=3)
                break
            begin = time.perf_counter()
            try:
                loss, error = evaluate(trial), ""
            except Exception as raised:  # whatever a person's function does, the search goes on
                loss, error = (
                    math.nan,
                    str(raised) if isinstance(raised, EvaluationError) else f"{type(raised).__name__}: {raised}",
                )
                log.info("trial %d failed: %s", trial.number, error)
            self.tell(trial, loss, error=error, seconds=time.perf_counter() - begin)
        return self._best()

    # --- a table ---

    def fit(self, X: Any, y: Any) -> LBMCTS:
        """Search by cross-validation on a table, then refit the best configuration on all of it.

        Parameters
        ----------
        X : array_like (n, p)
            Numbers; NaN is a missing value.
        y : array_like (n,)

        Raises
        ------
        ValueError
            For input that scikit-learn refuses, one class, an unknown scoring, or missing values that algorithms reject.
        RuntimeError
            When every trial failed.
        """
        from sklearn.metrics import get_scorer
        from sklearn.model_selection import KFold, StratifiedKFold, check_cv
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import validate_data

        space = self._checked_space(self.space)
        if not callable(getattr(space, "build", None)):
            raise TypeError(
                f"space: a {type(space).__name__} makes no estimators; expected one with build(config), as sklearn_space()"
            )
        classify = getattr(space, "task", "classification") == "classification"
        table, target = validate_data(self, X, y, ensure_all_finite="allow-nan", ensure_min_samples=2)
        if classify:
            check_classification_targets(target)
            self.classes_ = np.unique(target)
            if len(self.classes_) < 2:
                raise ValueError(f"y: got one class ({self.classes_[0]!r}); expected at least 2 classes")
        if isinstance(space, SklearnSpace) and space.rejects_nan and np.isnan(table).any():
            raise ValueError(
                f"X: contains NaN, which {', '.join(space.rejects_nan)} reject; use sklearn_space(impute=True)"
            )
        scoring = self.scoring or ("balanced_accuracy" if classify else "r2")
        self._scorer = scorer = get_scorer(scoring) if isinstance(scoring, str) else scoring
        folds = self.cv
        if isinstance(folds, int):
            kind = StratifiedKFold if classify else KFold
            folds = kind(folds, shuffle=True, random_state=self.random_state)
        splits = list(check_cv(folds, target, classifier=classify).split(table, target))
        card = prompt.describe(
            table, target, str(scoring), "" if self.anonymise else self.name, getattr(space, "task", "")
        )
        self._begin(card, space)
        with Worker(_score, (table, target, splits, scorer), self.timeout_per_trial) as worker:
            found = self._loop(lambda trial: self._sign * worker(self._estimator(trial)))
        self.best_score_ = -found.loss
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in the search
            self.best_estimator_ = self._estimator(found).fit(table, target)
        return self

    def _estimator(self, trial: Trial) -> Any:
        build: Any = self._space
        return build.build({"algorithm": trial.algorithm, "config": trial.config})

    @property
    def _sign(self) -> float:
        return -1.0 if self.direction == "minimize" else 1.0  # scorers: larger is better

    def _fitted(self, X: Any) -> tuple[Any, np.ndarray]:
        from sklearn.utils.validation import validate_data

        if not hasattr(self, "best_estimator_"):
            raise NotFittedError("this LBMCTS has no estimator yet: call fit(X, y)")
        return self.best_estimator_, validate_data(self, X, reset=False, ensure_all_finite="allow-nan")

    def predict(self, X: Any) -> np.ndarray:
        """By the refit estimator."""
        model, table = self._fitted(X)
        return np.asarray(model.predict(table))

    def predict_proba(self, X: Any) -> np.ndarray:
        """By the refit estimator, where it has probabilities."""
        model, table = self._fitted(X)
        return np.asarray(model.predict_proba(table))

    def score(self, X: Any, y: Any) -> float:
        """The metric of the search on other rows, by the refit estimator."""
        model, table = self._fitted(X)
        return float(self._scorer(model, table, y))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, RegressorTags

        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor" if getattr(self.space, "task", "") == "regression" else "classifier"
        tags.classifier_tags = ClassifierTags() if tags.estimator_type == "classifier" else None
        tags.regressor_tags = RegressorTags() if tags.estimator_type == "regressor" else None
        tags.target_tags.required = True
        tags.input_tags.allow_nan = not getattr(self.space, "rejects_nan", [])
        return tags

    # --- what was found ---

    def _best(self) -> Trial:
        good = [t for t in self._told if t.ok]
        if not good:
            last = self._told[-1].error if self._told else "none was made"
            raise RuntimeError(f"every trial failed; the last: {last}")
        best = min(good, key=lambda t: (t.loss, t.number))
        self.best_config_: dict[str, Any] = {"algorithm": best.algorithm, "config": dict(best.config)}
        return best

    @property
    def trials_(self) -> pd.DataFrame:
        """One row per told trial, in order of asking."""
        import pandas as pd

        self._started()
        hidden = ("vector", "key")
        rows = [
            {k: v for k, v in vars(t).items() if k not in hidden} for t in sorted(self._told, key=lambda t: t.number)
        ]
        for row in rows:
            row["config"] = json.dumps(row["config"])
        return pd.DataFrame(rows)

    @property
    def tree_(self) -> nx.DiGraph:
        """The tree: nodes with ``kind``, ``label``, visits ``N``, value sum ``W``, ``best`` score and, of trials, what became of them."""
        import networkx as nx

        self._started()
        graph, y = nx.DiGraph(), self._scores()
        N, W, top = self._tree.statistics(y)
        for node, trial in enumerate(self._tree.trials):
            label = "root" if node == 0 else json.dumps(trial.config) if trial else self._tree.algorithm(node)
            about = {"kind": "root" if node == 0 else "trial" if trial else "algorithm", "label": label, "depth": self._tree.depth[node],
                     "N": int(N[node]), "W": float(W[node]), "best": float(top[node]) if N[node] else None}  # fmt: skip
            if trial:
                about |= {"trial": trial.number, "loss": trial.loss if trial.ok else None, "proposer": trial.proposer,
                          "reflection": trial.reflection}  # fmt: skip
            graph.add_node(node, **about)
            if node:
                graph.add_edge(self._tree.parent[node], node)
        return graph

    # --- inside ---

    def _checked_space(self, space: Any) -> CASHSpace:
        if space is None:
            return sklearn_space()
        return space if isinstance(space, CASHSpace) else CASHSpace(space)

    def _begin(self, card: dict[str, Any], space: CASHSpace | None = None) -> None:
        """Check the options and start anew."""
        for option, known in _CHOICES.items():
            if getattr(self, option) not in known:
                raise ValueError(f"{option}: got {getattr(self, option)!r}; expected one of {', '.join(known)}")
        for option, least in (("n_trials", 1), ("n_llm", 1), ("max_depth", 2), ("memory_size", 1)):
            value = getattr(self, option)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise ValueError(f"{option}: got {value!r}; expected an integer of at least {least}")
        span = np.atleast_1d(np.asarray(self.rho, float))
        if self.policy == "fixed" and span.size != 1:
            raise ValueError(f"rho: got {self.rho!r}; policy='fixed' expects one number in [0, 1]")
        if self.policy != "fixed" and span.size != 2:
            raise ValueError(f"rho: got {self.rho!r}; expected a pair (least, largest)")
        if not (np.all((span >= 0) & (span <= 1)) and span[0] <= span[-1]):
            raise ValueError(f"rho: got {self.rho!r}; expected 0 <= least <= largest <= 1")
        if self.timeout_per_trial is not None and not self.timeout_per_trial > 0:
            raise ValueError(f"timeout_per_trial: got {self.timeout_per_trial!r}; expected seconds above 0, or None")
        self._space = self._checked_space(self.space if space is None else space)
        self._llm = self._connected(backend(self.llm))
        self._card = card
        names = list(self._space)
        self._order = (self._llm or Prior()).order(names, card)
        if sorted(self._order) != sorted(names):
            raise ValueError(f"llm: its order {self._order} is not one of the algorithms {names}")
        self._seed = int(np.random.default_rng(self.random_state).integers(2**31))
        self._policy_rng, self._bo_rng, self._llm_rng = (seeded(self._seed, i) for i in range(3))
        self._tree = SearchTree(names, self.c, self.best_weight, self.widening, self.max_depth)
        self._told: list[Trial] = []
        self._open: dict[int, Trial] = {}
        self._by_algorithm: dict[str, list[Trial]] = {n: [] for n in names}
        self._seen: set[str] = set()
        self._closed: set[str] = set()
        self._asked = 0
        self._wins = {"bo": [0, 0], "llm": [0, 0]}
        self._surrogates: dict[str, tuple[int, Surrogate | None, float]] = {}

    def _connected(self, llm: LLM | None) -> LLM | None:
        if llm is None:
            return None
        try:
            llm.start()
        except ConnectionError as error:
            if not self.llm_fallback:
                raise
            warnings.warn(f"{error}; the search goes on with the prior table", RuntimeWarning, stacklevel=4)
            return Prior()
        return llm

    def _started(self) -> dict[int, Trial]:
        if not hasattr(self, "_open"):
            raise NotFittedError("this LBMCTS has not begun: call fit, minimize or ask")
        return self._open

    def _of(self, algorithm: str) -> list[Trial]:
        return self._by_algorithm[algorithm]

    def _scores(self) -> np.ndarray:
        """Scores of the told trials, in node order."""
        return scores([t.loss for t in self._told], self.tree_score)

    def _surrogate(self, algorithm: str) -> tuple[Surrogate | None, float]:
        """The algorithm's surrogate and its reliability, fitted anew when it has another trial."""
        trials = self._of(algorithm)
        n, found, r = self._surrogates.get(algorithm, (-1, None, 0.0))
        if n != len(trials):
            found = fitted(self._space[algorithm], trials, self.surrogate, self._seed)
            r = 0.0
            if found is not None:
                r = reliability(found.held_out(), np.array([t.loss for t in trials if t.ok]), self.n0)
            self._surrogates[algorithm] = (len(trials), found, r)
        return found, r

    def _share(self, r: float) -> float:
        """rho: with which probability Bayesian optimisation is asked."""
        if self._llm is None:
            return 1.0
        if self.policy == "adaptive":
            low, high = self.rho
            return float(low + (high - low) * r)
        if self.policy == "linear":
            return min(self._asked / self.n_trials, 1.0)
        if self.policy == "alternate":
            return float(self._asked % 2 == 0)
        if self.policy == "bandit":
            bo, llm = (self._policy_rng.beta(1 + won, 1 + lost) for won, lost in (self._wins["bo"], self._wins["llm"]))
            return float(bo > llm)
        return float(np.atleast_1d(self.rho)[0])

    def _propose(self, node: int) -> Trial:
        """A configuration below the node; its key is empty when the algorithm has nothing left."""
        algorithm = self._tree.algorithm(node)
        space = self._space[algorithm]
        surrogate, r = self._surrogate(algorithm)
        rho = self._share(r)
        trial = Trial(self._asked, algorithm, {}, "", np.empty(0), node, rho=rho, reliability=r)
        trial.proposer = "bo" if self._policy_rng.random() < rho else "llm"
        config = None
        if trial.proposer == "llm" and self._llm is not None:
            config, trial.source = self._by_llm(node, surrogate, trial)
        if (
            config is None and trial.source != "random"
        ):  # BO's turn, or the language model gave nothing that can be read
            config, trial.source = self._by_surrogate(node, surrogate, algorithm)
        if config is not None:
            trial.config, trial.key, trial.vector = config, space.key(config), space.vector(config)
        return trial

    def _by_surrogate(self, node: int, surrogate: Surrogate | None, algorithm: str) -> tuple[Config | None, str]:
        above = self._tree.trials[node]
        vector = above.vector if above is not None and self.node_bias else None
        return by_surrogate(self._space[algorithm], surrogate, self._of(algorithm), vector, self._seen, self._bo_rng)

    def _by_llm(self, node: int, surrogate: Surrogate | None, trial: Trial) -> tuple[Config | None, str]:
        assert self._llm is not None
        space, trials, above = self._space[trial.algorithm], self._of(trial.algorithm), self._tree.trials[node]
        y = dict(zip((t.number for t in self._told), self._scores(), strict=True))
        siblings = [
            t
            for n in self._tree.children[self._tree.parent[node]]
            if (t := self._tree.trials[n]) is not None and n != node
        ]
        memo = memory.remember(
            space, self._tree.path(node), trials, siblings, lambda t: float(y[t.number]), self.memory, self.memory_size
        )
        request = Request(space, above.config if above else None, memo, self._card, trials, not trials,
                          max(self.n_trials - self._asked, 0), 0, self._llm_rng)  # fmt: skip
        judged = surrogate is not None and sum(t.ok for t in trials) >= JUDGES
        found = by_language(self._llm, request, self._seen, self.n_llm if judged else 1, RETRIES, trial)
        if found is None:
            return None, ""
        if not found:
            # a generator of its own: what a back end draws must not matter, so that a transcript can stand in for it
            return fresh(space, self._seen, seeded(self._seed, 3, self._asked)), "random"
        if judged and len(found) > 1 and surrogate is not None:
            vectors = np.array([space.vector(c) for c in found])
            return found[int(np.argmax(expected(surrogate, space, vectors, trials)))], self._llm.name
        return found[0], self._llm.name

    def _reflect(self, trial: Trial, above: Trial | None) -> None:
        """A lesson from a trial that failed, that the language model proposed to notable effect, or that is every fifth."""
        y = self._scores()
        gain = float(y[-1] - y[self._told.index(above)]) if above is not None and above.ok and trial.ok else None
        notable = trial.proposer == "llm" and gain is not None and abs(gain) > NOTABLE
        if not (notable or not trial.ok or len(self._told) % EVERY == 0):
            return
        answer = self._llm.reflect(prompt.reflection(trial, above, gain)) if self._llm is not None else None
        if answer is None:
            trial.reflection = prompt.lesson(trial, above, gain)
            return
        trial.reflection = " ".join("".join(answer.texts[:1]).split())[:200]
        trial.prompt_tokens += answer.prompt_tokens
        trial.completion_tokens += answer.completion_tokens
        trial.llm_seconds += answer.seconds


def _score(X: np.ndarray, y: np.ndarray, splits: Any, scorer: Any, estimator: Any) -> float:
    return cross_validated(estimator, X, y, splits, scorer)
