"""The wrapper: a language model that answers or abstains, and says what is guaranteed."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from gnomon.guarantees.conformal_abstention.certificates import (
    CERTIFICATES,
    RISKY,
    SMALL_BATCH,
    WEIGHTED,
    Certificate,
    Rule,
    Sample,
    Target,
    certify,
    expected_coverage,
    frontier,
    least_calibration,
    small_batch,
)
from gnomon.guarantees.conformal_abstention.judging import Answers, alias_match
from gnomon.guarantees.conformal_abstention.scores import COMBINED, combiner, nearest_correct, out_of_fold
from gnomon.guarantees.conformal_abstention.shift import Drift, drift_test
from gnomon.guarantees.conformal_abstention.thresholds import check_labels, check_scores, check_share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnomon.guarantees.conformal_abstention.generation import Responses

log = logging.getLogger(__name__)

PLAIN = ("logprob", "first_logprob", "entropy", "margin")  # scores that nothing is fitted for
Judge = Callable[[str, str, Answers], bool]


@dataclass(frozen=True)
class AbstainResult:
    """One answer, or none.

    Attributes
    ----------
    text : str or None
        The response; None where the wrapper abstains.
    score : float
    answered : bool
    guarantee : str
        What holds of the answers, and over what.
    """

    text: str | None
    score: float
    answered: bool
    guarantee: str


class ConformalAbstainer(BaseEstimator):
    """Answer where a score reaches a calibrated threshold, abstain elsewhere, with a finite-sample certificate.

    Labelled questions are split once: on the *fit split* the score is fitted and every level, grid and fixed
    threshold chosen; the rest *calibrates*. New questions must be exchangeable with the calibration ones.

    Parameters
    ----------
    correctness : float
        Wanted share of correct ones among the answers, in (0, 1).
    participation : float, optional
        Wanted share of answered questions; required by ``"both"`` and ``"ratio"``.
    certificate : {"fdr", "pac", "both", "ratio", "bayes"}
        ``"fdr"`` for batches: the expected share of wrong answers; ``"pac"`` for decisions at once, right but for a
        share ``delta`` of calibration sets; ``"both"``: participation chosen, correctness reported; ``"ratio"``:
        participation and joint error in expectation; ``"bayes"``: for a base rate that is known to change.
    eps : float, optional
        Joint error of ``"ratio"``; by default (1 - correctness) participation.
    delta : float
        Of ``"pac"``, ``"both"`` and ``"bayes"``: how often, over calibration sets, the statement may fail.
    batch : int
        Questions that ``"fdr"`` decides together; more than it are cut into batches of this size or a little more.
    score : str
        ``"geometry"`` (logistic regression on log-probability and geometry), its alternatives ``"product"`` and
        ``"gbdt"``, ``"isotonic"`` (of the log-probability); or unfitted ``"logprob"``, ``"first_logprob"``,
        ``"entropy"``, ``"margin"``, ``"self-consistency"`` (endpoints).
    fit_share : float
        Share of the labelled data in the fit split.
    groups : callable, optional
        Topic of a question; thresholds are then calibrated within each topic (Mondrian).
    max_new_tokens, batch_size : int
        Of the generation.
    random_state : int
        Draws the split, the tie-breakers and the bootstrap.

    Attributes
    ----------
    certificate_ : Certificate, or dict of group to Certificate
    threshold_ : float, or dict of group to float
        NaN where a batch decides jointly (``"fdr"``).
    expected_coverage_ : float
        Share that will be answered, by simulation on the fit split.
    infeasible_ : bool
        Whether the target was out of reach on this calibration set.
    infeasible_probability_ : float
        Of ``"ratio"``.
    frontier_ : DataFrame
        What participation is compatible with what joint error (see :func:`~.certificates.frontier`).
    accuracy_ : float
        Of the labelled responses, without abstention.
    calibration_scores_ : array
    responses_ : DataFrame
        After :meth:`fit`: question, response, correct, split; for a person to check.

    Notes
    -----
    The form of participation and correctness guarantees is that of "Geometry-Calibrated Conformal Abstention for
    Language Models" (arXiv 2604.27914); thresholds are those of conformal prediction, conformal risk control and
    conformal selection.
    """

    def __init__(self, correctness: float = 0.75, participation: float | None = None,
                 certificate: Literal["fdr", "pac", "both", "ratio", "bayes"] = "fdr", eps: float | None = None, delta: float = 0.1,
                 batch: int = 200, score: str = "geometry", fit_share: float = 0.4,
                 groups: Callable[[str], Hashable] | None = None, max_new_tokens: int = 12, batch_size: int = 16,
                 random_state: int = 0):  # fmt: skip
        self.correctness = correctness
        self.participation = participation
        self.certificate = certificate
        self.eps = eps
        self.delta = delta
        self.batch = batch
        self.score = score
        self.fit_share = fit_share
        self.groups = groups
        self.max_new_tokens = max_new_tokens
        self.batch_size = batch_size
        self.random_state = random_state

    # --- from scores ---

    def fit_scores(
        self, S: Any, C: Any, *, split: Any = None, ids: Any = None, groups: Any = None, weights: Any = None
    ) -> Self:
        """Calibrate from scores, or features, and labels alone.

        Parameters
        ----------
        S : array_like (n,) or (n, p)
            Scores that were fixed beforehand; or features (base confidence first), from which ``score`` fits one on
            the fit split.
        C : array_like (n,) of 0/1
            Whether each response was correct.
        split : array_like (n,) of bool, optional
            True where an item belongs to the fit split (default: drawn at random).
        ids : array_like (n,), optional
            Names of the questions; one in both splits is an error.
        groups : array_like (n,), optional
            Topics.
        weights : array_like (n,), optional
            Likelihood ratios of the questions to come over the calibration ones, for ``"fdr"`` and ``"ratio"``.

        Raises
        ------
        ValueError
            For parameters out of range, scores that are not finite, too few items for the certificate (the message
            says how many it needs), one class only where a score is fitted, and ids that lie in both splits.
        """
        target, X = self.target(), check_scores(S, "S", columns=True)
        C = check_labels(C, len(X))
        rng = np.random.default_rng(self.random_state)
        chosen = self._split(len(X), split, rng)
        if ids is not None:
            ids = np.asarray(ids)
            if ids.shape != (len(X),):
                raise ValueError(f"ids: got shape {ids.shape}; expected ({len(X)},), one for each score")
            if both := set(ids[chosen].tolist()) & set(ids[~chosen].tolist()):
                raise ValueError(
                    f"ids: {sorted(map(str, both))[0]!r} lies in the fit and in the calibration split; expected each question once"
                )
        if (w := weights) is not None:
            w = self._weights(w, len(X), "weights")
        self._combiner, S_fit, S_cal = self._combine(X, C, chosen)
        u = rng.random(len(X))
        fit = Sample(S_fit, C[chosen], u[chosen])
        cal = Sample(S_cal, C[~chosen], u[~chosen], None if w is None else w[~chosen])
        self._certify(fit, cal, None if groups is None else np.asarray(groups)[~chosen], target, rng)
        self.accuracy_, self.calibration_scores_, self.n_features_in_ = (
            float(C.mean()),
            S_cal,
            1 if X.ndim == 1 else X.shape[1],
        )
        return self

    def decide(self, S_new: Any, groups: Any = None, weights: Any = None) -> NDArray[np.bool_]:
        """Which new scores (M,), or features (M, p), are answered.

        Parameters
        ----------
        S_new : array_like
            As in :meth:`fit_scores`. ``"fdr"`` decides them in batches, in the order given.
        groups, weights : array_like (M,), optional
            As in :meth:`fit_scores`.

        Warns
        -----
        UserWarning
            With ``"fdr"`` and fewer than 50 questions in a batch.
        """
        return self._decide(self.scores(S_new), groups, weights)[0]

    def scores(self, S_new: Any) -> NDArray[np.float64]:
        """The confidence score (M,) of new features (M, p); scores (M,) stay as they are."""
        self._fitted()
        X = check_scores(S_new, "S_new", columns=True)
        columns = 1 if X.ndim == 1 else X.shape[1]
        if columns != self.n_features_in_:
            raise ValueError(f"S_new: got {columns} columns; expected {self.n_features_in_} as in fit")
        if self._combiner is not None:
            return np.asarray(self._combiner.score(X if X.ndim == 2 else X[:, None]), float)
        return X if X.ndim == 1 else X[:, 0]

    def drift(self, S_new: Any) -> Drift:
        """Kolmogorov-Smirnov test of unlabelled new scores against those of calibration."""
        return drift_test(self.calibration_scores_, self.scores(S_new))

    # --- from a model ---

    def fit(self, model: Any, tokenizer: Any, questions: Sequence[str], answers: Sequence[Answers], judge: Judge | None = None, *,
            ids: Any = None, reference: Any = None) -> Self:  # fmt: skip
        """Let a model answer labelled questions, judge its answers, and calibrate.

        Parameters
        ----------
        model : PreTrainedModel or gnomon.models.Endpoint
        tokenizer : PreTrainedTokenizerBase or None
            None for an endpoint.
        questions : sequence of str
            Prompts that the model continues; the first line of its continuation is the answer.
        answers : sequence of (str or sequence of str)
            Accepted answers of each question; an empty sequence where no answer is right.
        judge : callable, optional
            ``judge(question, response, answer) -> bool``; by default a normalised match of the whole response.
        ids : array_like, optional
            As in :meth:`fit_scores`; by default the questions themselves.
        reference : Reference, optional
            Of :func:`~.geometry.text_reference`, where it was made before.

        Raises
        ------
        TypeError
            For an endpoint with a score that needs hidden states.
        """
        questions, answers = list(questions), list(answers)
        if len(questions) != len(answers):
            raise ValueError(f"answers: got {len(answers)} for {len(questions)} questions; expected one for each")
        self.target()
        self._model, self._tokenizer, self._reference = model, tokenizer, reference
        found = self._respond(questions)
        if empty := sum(not t for t in found.texts):
            warnings.warn(
                f"{empty} of {len(questions)} responses are empty; they count as wrong", UserWarning, stacklevel=2
            )
        decide = judge or alias_match
        C = np.array(
            [bool(t) and bool(decide(q, t, a)) for q, t, a in zip(questions, found.texts, answers, strict=True)]
        )
        chosen = self._split(len(questions), None, np.random.default_rng(self.random_state))
        self._bank = None if found.states is None else found.states[chosen & C]
        groups = None if self.groups is None else [self.groups(q) for q in questions]
        self.fit_scores(
            self._features(found, chosen), C, split=chosen, ids=questions if ids is None else ids, groups=groups
        )
        import pandas as pd

        self.responses_ = pd.DataFrame({"question": questions, "response": found.texts, "correct": C,
                                        "split": np.where(chosen, "fit", "calibration")})  # fmt: skip
        return self

    def answer(self, questions: str | Sequence[str], weights: Any = None) -> list[AbstainResult]:
        """Answer new questions, or abstain.

        Parameters
        ----------
        questions : str or sequence of str
            With ``"fdr"`` give 50 or more at once.
        weights : array_like, optional
            As in :meth:`decide`.

        Returns
        -------
        list of AbstainResult
            In the order of the questions. An empty response that reaches the threshold counts as an (empty, wrong)
            answer, as it did in calibration.
        """
        self._fitted()
        if not hasattr(self, "_model"):
            raise NotFittedError("this abstainer was fitted on scores; use decide(), or fit() with a model")
        questions = [questions] if isinstance(questions, str) else list(questions)
        if not questions:
            return []
        found = self._respond(questions)
        S = self.scores(self._features(found))
        groups = None if self.groups is None else [self.groups(q) for q in questions]
        answered, said = self._decide(S, groups, weights)
        return [
            AbstainResult(t if a else None, float(s), bool(a), g)
            for t, s, a, g in zip(found.texts, S, answered, said, strict=True)
        ]

    # --- how ---

    def target(self) -> Target:
        """What is asked for; raises a ValueError for parameters out of range."""
        c, delta = check_share("correctness", self.correctness), check_share("delta", self.delta)
        check_share("fit_share", self.fit_share)
        if self.certificate not in CERTIFICATES:
            raise ValueError(f"certificate: got {self.certificate!r}; expected one of {', '.join(CERTIFICATES)}")
        if self.score not in (*COMBINED, *PLAIN, "self-consistency"):
            raise ValueError(
                f"score: got {self.score!r}; expected one of {', '.join([*COMBINED, *PLAIN, 'self-consistency'])}"
            )
        if self.participation is None and self.certificate in ("both", "ratio"):
            raise ValueError(
                f"participation: got None; certificate {self.certificate!r} needs the share of questions to answer, in (0, 1)"
            )
        if not isinstance(self.batch, int | np.integer) or self.batch < 1:
            raise ValueError(f"batch: got {self.batch!r}; expected an integer of 1 or more")
        share = None if self.participation is None else check_share("participation", self.participation)
        eps = None if self.eps is None else check_share("eps", self.eps)
        if self.certificate == "ratio" and eps is None and share is not None:
            eps = (1 - c) * share
        return Target(c, share, eps, delta)

    def _split(self, n: int, split: Any, rng: np.random.Generator) -> NDArray[np.bool_]:
        if split is not None:
            chosen = check_labels(split, n)
        else:
            chosen = np.zeros(n, bool)
            chosen[rng.permutation(n)[: round(self.fit_share * n)]] = True
        if not chosen.any() or chosen.all():
            raise ValueError(
                f"S: {n} items give a fit split of {chosen.sum()} and {n - chosen.sum()} to calibrate; expected both to hold some"
            )
        return chosen

    def _combine(self, X: Any, C: Any, chosen: Any) -> tuple[Any, Any, Any]:
        """The combiner (None where scores are taken as they are), and both splits' scores; the fit split's out of fold."""
        fitted = self.score in COMBINED and (X.ndim == 2 or self.score == "isotonic")
        if not fitted:
            S = X if X.ndim == 1 else X[:, 0]
            return None, S[chosen], S[~chosen]
        X = X if X.ndim == 2 else X[:, None]
        if C[chosen].all() or not C[chosen].any():
            raise ValueError(
                f"C: all {chosen.sum()} labels of the fit split are {int(C[chosen][0])}; score={self.score!r} needs both classes (a plain score does not)"
            )
        model = combiner(self.score)
        model.fit(X[chosen], C[chosen].astype(float))
        return (
            model,
            out_of_fold(self.score, X[chosen], C[chosen].astype(float), self.random_state),
            model.score(X[~chosen]),
        )

    def _weights(self, weights: Any, n: int, name: str) -> NDArray[np.float64]:
        w = check_scores(weights, name)
        if w.shape != (n,) or (w < 0).any() or not w.sum() > 0:
            raise ValueError(
                f"{name}: expected {n} non-negative numbers, not all 0; got shape {w.shape}, least {w.min():g}"
            )
        if self.certificate not in WEIGHTED:
            raise ValueError(
                f"{name}: certificate {self.certificate!r} counts i.i.d. items and takes none; {' and '.join(WEIGHTED)} do"
            )
        return w

    def _certify(self, fit: Sample, cal: Sample, groups: Any, target: Target, rng: np.random.Generator) -> None:
        need = least_calibration(self.certificate, target)
        parts: dict[Any, Any] = (
            {None: np.ones(len(cal.S), bool)}
            if groups is None
            else {g: groups == g for g in dict.fromkeys(groups.tolist())}
        )
        self._rules: dict[Any, Rule] = {}
        for group, own in parts.items():
            n = int(own.sum())
            if n < need:
                where = "" if group is None else f" in group {group!r}"
                raise ValueError(
                    f"S: {n} calibration items{where}; certificate {self.certificate!r} at correctness {self.correctness:g} needs at least {need} to answer at all"
                )
            self._rules[group] = certify(self.certificate, cal.take(own), fit, target, rng)
        rules, per_group = self._rules, groups is not None
        self.certificate_: Any = {g: r.certificate for g, r in rules.items()} if per_group else rules[None].certificate
        cuts = {
            g: math.nan if r.threshold is None or r.calibration.weights is not None else r.threshold.score
            for g, r in rules.items()
        }
        self.threshold_: Any = cuts if per_group else cuts[None]
        sizes = {g: int(own.sum()) for g, own in parts.items()}
        plain = fit._replace(weights=None)
        self.expected_coverage_ = float(np.average(
            [expected_coverage(self.certificate, plain, n, self.batch, target, rng) for n in sizes.values()], weights=list(sizes.values())))  # fmt: skip
        self.infeasible_ = any(r.certificate.infeasible for r in rules.values())
        self.frontier_ = frontier(plain, min(sizes.values()), rng)
        self._tell(sizes)

    def _tell(self, sizes: dict[Any, int]) -> None:
        """Warnings of what would otherwise be a silent disappointment."""
        certificates = [r.certificate for r in self._rules.values()]
        if self.certificate == "ratio":
            self.infeasible_probability_ = max(c.values["infeasible_probability"] for c in certificates)
            if self.infeasible_probability_ > RISKY:
                warnings.warn(
                    f"with probability {self.infeasible_probability_:.2f} a calibration set does not meet both levels; participation is only guaranteed less that. "
                    "See frontier_ for pairs that go together", UserWarning, stacklevel=4)  # fmt: skip
        if self.expected_coverage_ < 0.05:
            hint = (
                "a sharper score, 1,000 or more calibration items, or certificate='fdr' with batches"
                if self.certificate == "pac"
                else "a lower correctness or a sharper score"
            )
            warnings.warn(f"about {self.expected_coverage_:.1%} of the questions will be answered with {min(sizes.values())} calibration items; {hint} would help",
                          UserWarning, stacklevel=4)  # fmt: skip

    def _decide(self, S: Any, groups: Any, weights: Any) -> tuple[NDArray[np.bool_], list[str]]:
        n = len(S)
        weighted = any(r.calibration.weights is not None for r in self._rules.values())
        if weighted != (weights is not None):
            raise ValueError(
                f"weights: expected {'one for each new item, as fit_scores was given some' if weighted else 'none, as fit_scores was given none'}"
            )
        w = None if weights is None else self._weights(weights, n, "weights")
        if (None in self._rules) != (groups is None):
            raise ValueError(
                f"groups: expected {'none, as fit_scores was given none' if None in self._rules else 'one for each new item'}"
            )
        topic = np.full(n, None) if groups is None else np.asarray(groups, object)
        if len(topic) != n:
            raise ValueError(f"groups: got {len(topic)} for {n} items")
        if unknown := [g for g in dict.fromkeys(topic.tolist()) if g not in self._rules]:
            raise ValueError(
                f"groups: {unknown[0]!r} was not calibrated; known are {', '.join(map(repr, self._rules))}"
            )
        u = np.random.default_rng([self.random_state, 1]).random(n)
        answered, said = np.zeros(n, bool), [""] * n
        for group, rule in self._rules.items():
            at = np.flatnonzero(np.array([g == group for g in topic.tolist()], bool))
            pieces = np.array_split(at, max(1, len(at) // self.batch)) if rule.certificate.kind == "fdr" else [at]
            for piece in pieces:
                if not len(piece):
                    continue
                certificate: Certificate = rule.certificate
                if certificate.kind == "fdr" and len(piece) < SMALL_BATCH:
                    certificate = small_batch(rule, len(piece))
                    warnings.warn(f"a batch of {len(piece)} questions: 'fdr' needs {SMALL_BATCH} or more to say anything of the share of wrong answers",
                                  UserWarning, stacklevel=4)  # fmt: skip
                answered[piece] = rule.decide(S[piece], u[piece], None if w is None else w[piece])
                for i in piece:
                    said[i] = str(certificate)
        return answered, said

    def _respond(self, questions: list[str]) -> Responses:
        from gnomon.guarantees.conformal_abstention.generation import respond
        from gnomon.models import Endpoint

        if isinstance(self._model, Endpoint):
            from gnomon.guarantees.conformal_abstention.remote import respond_remotely

            return respond_remotely(self._model, questions, self.score, self.max_new_tokens)
        if self.score == "self-consistency":
            raise TypeError("score='self-consistency' is for endpoints; of a model at hand use 'geometry' or 'logprob'")
        if self._needs_states and self._reference is None:
            from gnomon.guarantees.conformal_abstention.geometry import text_reference

            self._reference = text_reference(self._model, self._tokenizer)
        return respond(self._model, self._tokenizer, questions, reference=self._reference if self._needs_states else None,
                       max_new_tokens=self.max_new_tokens, batch_size=self.batch_size)  # fmt: skip

    @property
    def _needs_states(self) -> bool:
        return self.score in ("geometry", "product", "gbdt")

    def _features(self, found: Responses, chosen: Any = None) -> NDArray[np.float64]:
        """Scores (n,), or log-probability, geometry and nearness to correct states (n, 13)."""
        base = found.confidence
        if self.score in PLAIN:
            sign = -1.0 if self.score == "entropy" else 1.0
            return np.asarray(sign * base[:, PLAIN.index(self.score)])
        if found.geometry is None or found.states is None:
            return np.asarray(base[:, 0])
        near = nearest_correct(found.states, self._bank)  # type: ignore[arg-type]
        if chosen is not None:  # an item of the fit split is no neighbour of its own
            near[chosen] = nearest_correct(found.states[chosen], self._bank, same=True)  # type: ignore[arg-type]
        return np.column_stack([base[:, 0], found.geometry, near])

    def _fitted(self) -> None:
        if not hasattr(self, "_rules"):
            raise NotFittedError("this ConformalAbstainer is not fitted yet; call fit or fit_scores")
