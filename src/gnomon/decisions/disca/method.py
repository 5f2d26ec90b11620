"""DISCA: answers of a model, corrected towards a country by the disagreement of its personas."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gnomon.decisions.disca.correction import ESTIMATORS, RELIABILITIES, Correction, Loss, correct
from gnomon.decisions.disca.personas import PersonaPanel
from gnomon.decisions.disca.sources import Source, source

LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
REFUSED = 0.05  # of the probability; less than this on all labels together is a refusal
UNCLEAR = 0.05  # nats a token: an answer that tells no option apart by more is mapped to neither


@dataclass(frozen=True)
class Decision:
    """What became of one question with K options.

    Attributes
    ----------
    options : list of str
    probabilities : ndarray (K,)
        After the correction.
    base : ndarray (K,)
        The base model's log-probabilities of the options, up to a constant, mean over both orders.
    base_probabilities : ndarray (K,)
    persona_gaps : ndarray (K - 1, n)
        Gaps of each option but the base's favourite (for two options: the one gap option 0 - option 1 (1, n)).
    spread, correction, reliability : ndarray (K - 1,)
        The personas' standard deviation, what was added to each gap, and how far it was trusted.
    order_bias : float
        Mean over options of half the difference between the two orders, in nats: what averaging cancelled.
    mass : float
        Probability on all labels together under the base prompt, mean over both orders.
    refused : bool
        Whether that is below 5 %: the probabilities then speak of an answer the model hardly gives.
    grounded : bool
        Whether survey data made the panel.
    calls : int
        Prompts that this question cost.
    """

    options: list[str]
    probabilities: np.ndarray
    base: np.ndarray
    base_probabilities: np.ndarray
    persona_gaps: np.ndarray
    spread: np.ndarray
    correction: np.ndarray
    reliability: np.ndarray
    order_bias: float
    mass: float
    refused: bool
    grounded: bool
    calls: int


@dataclass(frozen=True)
class OpenDecision:
    """The chosen answer among sampled candidates.

    Attributes
    ----------
    answer : str
    candidates : list of str
    probabilities, base_probabilities : ndarray (candidates,)
    sides : ndarray (options,) or None
        Corrected probability of the candidates that choose each option, where options were given.
    neither : float
        Corrected probability of candidates that choose no option clearly.
    grounded : bool
    calls : int
    """

    answer: str
    candidates: list[str]
    probabilities: np.ndarray
    base_probabilities: np.ndarray
    sides: np.ndarray | None
    neither: float
    grounded: bool
    calls: int


@dataclass(frozen=True)
class Reading:
    """Log-probabilities of the options under one instruction: (questions, K) with the order bias and the mass (questions,)."""

    logs: np.ndarray
    bias: np.ndarray
    mass: np.ndarray


def prompt(question: str, options: Sequence[str]) -> str:
    """The question with lettered options, up to the slot of the answer.

    This wording leaves a small instruct model 97 % of its probability on the letters, "Answer:" 3 %.
    """
    lines = "\n".join(f"Option {LABELS[i]}: {option}" for i, option in enumerate(options))
    return f"{question}\n{lines}\nI choose option"


def check_options(question: str, options: Sequence[str]) -> None:
    """Raise ValueError unless there are 2 to 26 different options and a question."""
    if isinstance(options, str) or not 2 <= len(options) <= len(LABELS):
        raise ValueError(f"options: got {options!r}; expected 2 to {len(LABELS)} texts")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question: got {question!r}; expected a text")
    plain = [o.strip().lower() for o in options]
    if "" in plain or len(set(plain)) < len(plain):
        raise ValueError(f"options: got {list(options)!r}; expected texts that all differ")


class DISCA:
    """Disagreement-informed steering: a few more calls a question, no training, no weights.

    Parameters
    ----------
    model : str, LM, Endpoint, PreTrainedModel or Source
        A reference ("embedded", a folder, "endpoint:http://host/v1#name", a hub name) or what it stands for.
    panel : PersonaPanel
        At least two personas.
    lam, kappa, eta, power, bound, reliability, estimator, draws, random_state
        See :func:`gnomon.decisions.disca.correction.correct`.
    temperature : float
        Divides the final gaps.
    tokenizer : optional
        Where ``model`` is a transformers model.
    n_samples : int
        For endpoints without log-probabilities: answers to count for each prompt.

    Notes
    -----
    Answers to the same prompt are kept by its hash, so that a question asked again, or the base model under another
    panel, costs no call. The result never says what a culture "is": the panel is a model's idea of people.
    """

    def __init__(
        self, model: Any = "embedded", panel: PersonaPanel | None = None, *, lam: float = 0.3, kappa: float = 2.25,
        eta: float = 0.5, power: float = 0.88, bound: float = 1.0, reliability: str = "jackknife",
        estimator: str = "quadrature", draws: int = 128, temperature: float = 1.0, tokenizer: Any = None,
        n_samples: int = 0, random_state: int | None = 0,
    ) -> None:  # fmt: skip
        Loss(lam, kappa, eta, power)
        if not bound > 0:
            raise ValueError(f"bound: got {bound!r}; expected a number > 0")
        if reliability not in RELIABILITIES or estimator not in ESTIMATORS:
            raise ValueError(f"reliability, estimator: got {reliability!r}, {estimator!r}; expected one of "
                             f"{', '.join(RELIABILITIES)} and of {', '.join(ESTIMATORS)}")  # fmt: skip
        if not temperature > 0:
            raise ValueError(f"temperature: got {temperature!r}; expected a number > 0")
        if panel is not None and not isinstance(panel, PersonaPanel):
            raise TypeError(f"panel: got {type(panel).__name__}; expected a PersonaPanel (from_texts makes one)")
        self.model, self.panel, self.tokenizer, self.n_samples = model, panel, tokenizer, n_samples
        self.lam, self.kappa, self.eta, self.power, self.bound = lam, kappa, eta, power, bound
        self.reliability, self.estimator, self.draws = reliability, estimator, draws
        self.temperature, self.random_state = temperature, random_state
        self._source: Source | None = None
        self._kept: dict[str, np.ndarray] = {}
        self.calls_ = 0

    # --- the correction alone ---

    def correct(self, d0: ArrayLike, persona_gaps: ArrayLike) -> Correction:
        """The pure correction of gaps (...,) by persona gaps (..., n); no model is asked."""
        return correct(d0, persona_gaps, lam=self.lam, kappa=self.kappa, eta=self.eta, power=self.power, bound=self.bound,
                       reliability=self.reliability, estimator=self.estimator, draws=self.draws,
                       random_state=self.random_state)  # fmt: skip

    # --- asking ---

    @property
    def source(self) -> Source:
        """What answers; loaded when first asked."""
        if self._source is None:
            self._source = source(self.model, self.tokenizer, self.n_samples)
        return self._source

    def _asked(self, system: str, prompts: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        keys = [hashlib.sha256(repr((self.source.name, system, p, labels)).encode()).hexdigest() for p in prompts]
        new = [i for i, k in enumerate(keys) if k not in self._kept]
        if new:
            found = self.source.label_logprobs(system, [prompts[i] for i in new], labels)
            self._kept.update({keys[i]: row for i, row in zip(new, found, strict=True)})
            self.calls_ += len(new)
        return np.stack([self._kept[k] for k in keys])

    def read(self, system: str, questions: Sequence[tuple[str, Sequence[str]]]) -> Reading:
        """Log-probabilities of the options under an instruction, mean over both orders of the options.

        Parameters
        ----------
        system : str
            The persona, or "" for the base model.
        questions : sequence of (question, options)
            All with the same number of options.
        """
        for question, options in questions:
            check_options(question, options)
        if len({len(o) for _, o in questions}) != 1:
            raise ValueError("questions: expected one number of options for all that are read together")
        labels = LABELS[: len(questions[0][1])]
        plain = self._asked(system, [prompt(q, o) for q, o in questions], labels)
        turned = self._asked(system, [prompt(q, o[::-1]) for q, o in questions], labels)[:, ::-1]
        mass = (np.exp(plain).sum(1) + np.exp(turned).sum(1)) / 2
        centre = plain - plain.mean(1, keepdims=True), turned - turned.mean(1, keepdims=True)
        return Reading((plain + turned) / 2, np.abs(centre[0] - centre[1]).mean(1) / 2, mass)

    def _needs_panel(self) -> PersonaPanel:
        if self.panel is None:
            raise ValueError("panel: none was given; expected a PersonaPanel, such as PersonaPanel.generic('VNM')")
        return self.panel

    # --- deciding ---

    def decide(self, question: str, options: Sequence[str]) -> Decision:
        """Probabilities of the options, corrected.

        Raises
        ------
        ValueError
            For options that are equal, fewer than two, or whose labels begin with one token; without a panel; for an
            endpoint that gives no log-probabilities and ``n_samples=0``.
        """
        return self.decide_many([(question, options)])[0]

    def decide_many(self, questions: Sequence[tuple[str, Sequence[str]]]) -> list[Decision]:
        """:meth:`decide` for many questions, each prompt's prefix computed once a batch."""
        panel = self._needs_panel()
        for question, options in questions:
            check_options(question, options)
        found: dict[int, Decision] = {}
        for size in sorted({len(o) for _, o in questions}):
            at = [i for i, (_, o) in enumerate(questions) if len(o) == size]
            part = [questions[i] for i in at]
            before = self.calls_
            base = self.read("", part)
            personas = np.stack([self.read(text, part).logs for text in panel.texts], axis=-1)  # (questions, K, n)
            calls = (self.calls_ - before) / len(part)
            for row, i in enumerate(at):
                found[i] = self._decided(list(part[row][1]), base, personas[row], row, round(calls))
        return [found[i] for i in range(len(questions))]

    def _decided(self, options: list[str], base: Reading, personas: np.ndarray, row: int, calls: int) -> Decision:
        logs = base.logs[row]
        rest, gaps, panel_gaps = against_favourite(logs, personas)
        moved = self.correct(gaps, panel_gaps)
        scores = np.zeros(len(options))
        scores[rest] = moved.gap
        if len(options) == 2 and rest[0] == 1:  # the one gap is told as option 0 - option 1
            panel_gaps, moved = -panel_gaps, moved._replace(shift=-moved.shift)
        return Decision(options, softmax(scores / self.temperature), logs, softmax(logs / self.temperature), panel_gaps,
                        moved.spread, moved.shift, moved.reliability, float(base.bias[row]), float(base.mass[row]),
                        bool(base.mass[row] < REFUSED), self._needs_panel().grounded, calls)  # fmt: skip

    def decide_open(
        self, question: str, options: Sequence[str] | None = None, n_candidates: int = 6, max_new_tokens: int = 24
    ) -> OpenDecision:
        """Answer in words: candidates are drawn from the base prompt, scored under base and personas, and corrected.

        Parameters
        ----------
        question : str
        options : sequence of str, optional
            Two sides; each candidate is mapped to the one that the base model completes "In short, this answer chooses"
            with, and its probability goes there.
        n_candidates, max_new_tokens : int
        """
        panel = self._needs_panel()
        if n_candidates < 2:
            raise ValueError(f"n_candidates: got {n_candidates}; expected at least 2")
        if options is not None:
            check_options(question, options)
        asked = f"{question}\nAnswer:"
        drawn = self.source.sample("", asked, n_candidates, max_new_tokens, self.random_state or 0)
        candidates = list(dict.fromkeys(c.split("\n")[0].strip() for c in drawn))
        candidates = [c for c in candidates if c]
        calls = n_candidates
        if not candidates:
            raise ValueError(f"model: {self.source.name} gave only empty answers to {question!r}")
        base = self.source.score("", asked, candidates)
        personas = np.stack([self.source.score(text, asked, candidates) for text in panel.texts], axis=-1)
        calls += (1 + len(panel)) * len(candidates)
        scores = np.zeros(len(candidates))
        if len(candidates) > 1:
            rest, gaps, panel_gaps = against_favourite(base, personas)
            scores[rest] = self.correct(gaps, panel_gaps).gap
        p = softmax(scores / self.temperature)
        sides, neither = None, 0.0
        if options is not None:
            sides = np.zeros(len(options))
            for candidate, mass in zip(candidates, p, strict=True):
                told = self.source.score("", f"{asked} {candidate}\nIn short, this answer chooses", list(options))
                best = np.argsort(told)[::-1]
                if told[best[0]] - told[best[1]] < UNCLEAR:
                    neither += float(mass)
                else:
                    sides[best[0]] += mass
            calls += len(candidates) * len(options)
        self.calls_ += calls
        return OpenDecision(candidates[int(p.argmax())], candidates, p, softmax(base / self.temperature), sides, neither,
                            panel.grounded, calls)  # fmt: skip


def against_favourite(logs: np.ndarray, personas: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The other options (K - 1,), their gaps to the base's favourite (K - 1,), and the personas' (K - 1, n)."""
    favourite = int(logs.argmax())
    rest = np.array([k for k in range(len(logs)) if k != favourite])
    return rest, logs[rest] - logs[favourite], personas[rest] - personas[favourite]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()  # type: ignore[no-any-return]
