"""The back ends that propose with prior knowledge: an endpoint, a local model, an embedded one by scoring, a table, a transcript."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special

from gnomon.decisions.lb_mcts import prompt
from gnomon.decisions.lb_mcts.memory import Memory
from gnomon.decisions.lb_mcts.priors import PriorTable
from gnomon.decisions.lb_mcts.space import AlgorithmSpace, Config
from gnomon.decisions.lb_mcts.tree import Trial
from gnomon.models import EMBEDDED, Endpoint, check_ref

log = logging.getLogger(__name__)


@dataclass
class Request:
    """What a back end is asked: a configuration for one algorithm, given a node.

    Attributes
    ----------
    space : AlgorithmSpace
    node : dict or None
        The configuration to refine; None at an algorithm.
    memory : Memory
    card : mapping
        The task card.
    trials : sequence of Trial
        All told trials of the algorithm (prompts show the memory only).
    first : bool
        Whether the algorithm was never tried.
    left, attempt : int
        Evaluations left; proposals for this trial so far.
    rng : numpy.random.Generator
    """

    space: AlgorithmSpace
    node: Config | None
    memory: Memory
    card: Mapping[str, Any]
    trials: Sequence[Trial]
    first: bool
    left: int
    attempt: int
    rng: np.random.Generator

    def prompt(self, most: int = 2000, count: Callable[[str], int] | None = None) -> str:
        """The request in words, of at most ``most`` tokens."""
        return prompt.proposal(self.space.name, self.space, self.node, self.memory, self.card, self.left, self.attempt,
                               most=most, count=count)  # fmt: skip


@dataclass
class Answer:
    """Texts of a back end, and what they cost: tokens of so many prompts together, none where no language model was asked."""

    texts: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    prompts: int = 1


class LLM:
    """A back end. Subclasses give :meth:`propose`; ``name`` is what reports say."""

    name = "?"

    def start(self) -> None:
        """Raise ConnectionError where the back end cannot answer."""

    def order(self, algorithms: list[str], card: Mapping[str, Any]) -> list[str]:
        """In which order algorithms are first tried."""
        return PriorTable().order(algorithms, card.get("rows"))

    def propose(self, request: Request, n: int) -> Answer:
        """Up to ``n`` texts, each of which should hold one JSON object."""
        raise NotImplementedError

    def reflect(self, text: str) -> Answer | None:
        """A one-line lesson; None: the template is used."""
        return None


class Prior(LLM):
    """The table of documented defaults: no language model at all.

    Parameters
    ----------
    table : PriorTable, optional
    """

    name = "prior"

    def __init__(self, table: PriorTable | None = None):
        self.table = table or PriorTable()

    def order(self, algorithms: list[str], card: Mapping[str, Any]) -> list[str]:
        return self.table.order(algorithms, card.get("rows"))

    def propose(self, request: Request, n: int) -> Answer:
        draws = [self.table.draw(request.space, request.node, request.memory.direction, request.card, request.rng,
                                 exact=request.first and request.attempt == 0 and i == 0) for i in range(n)]  # fmt: skip
        return Answer([json.dumps(c) for c in draws])


class Chat(LLM):
    """A model behind an OpenAI-compatible server.

    Parameters
    ----------
    endpoint : Endpoint
    temperature : float
        Of proposals; reflections are greedy.
    """

    def __init__(self, endpoint: Endpoint, temperature: float = 0.7):
        self.endpoint, self.temperature, self.name = endpoint, temperature, f"endpoint:{endpoint.name}"

    def start(self) -> None:
        try:
            self.endpoint.chat("Say yes.", max_new_tokens=1)
        except RuntimeError as error:
            raise ConnectionError(
                f"llm: {error} (a key is read from the environment variable OPENAI_API_KEY; llm_fallback=True goes on with the prior table)"
            ) from None

    def propose(self, request: Request, n: int) -> Answer:
        return self._ask(request.prompt(), n, 300, self.temperature)

    def reflect(self, text: str) -> Answer:
        return self._ask(text, 1, 60, 0.0)

    def _ask(self, text: str, n: int, most: int, temperature: float) -> Answer:
        begin, answer = time.perf_counter(), Answer(prompts=n)
        for _ in range(n):
            try:
                found = self.endpoint.chat(text, max_new_tokens=most, temperature=temperature).text
            except RuntimeError as error:
                log.warning("the language model gave no answer: %s", error)
                found = ""
            answer.texts.append(found)
            answer.prompt_tokens += prompt.tokens(text)
            answer.completion_tokens += prompt.tokens(found)
        answer.seconds = time.perf_counter() - begin
        return answer


class Local(LLM):
    """A Hugging Face model on this machine, greedy: one candidate a call."""

    def __init__(self, ref: str):
        self.ref = self.name = ref

    def propose(self, request: Request, n: int) -> Answer:
        return self._ask(request.prompt(count=self._count), 200)

    def reflect(self, text: str) -> Answer:
        return self._ask(text, 40)

    def _count(self, text: str) -> int:
        from gnomon.models import load

        return len(load(self.ref).tokenizer(text).input_ids)

    def _ask(self, text: str, most: int) -> Answer:
        from gnomon.models import generate, load

        begin, lm = time.perf_counter(), load(self.ref)
        shown: Any = text
        if getattr(lm.tokenizer, "chat_template", None):
            shown = lm.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
        found = str(generate(lm.model, lm.tokenizer, shown, max_new_tokens=most))
        return Answer([found], self._count(shown), self._count(found), time.perf_counter() - begin)


class Embedded(LLM):
    """A small model that chooses instead of writing: neighbours of the node as JSON lines, scored after the prompt.

    The score is the mean log-likelihood of a line's tokens; one is drawn by softmax at ``temperature``. Free generation of a model of
    135M parameters is not usable.

    Parameters
    ----------
    ref : str
        See :mod:`gnomon.models`.
    candidates : int
        Neighbours that are scored.
    temperature : float
        In nats a token, positive.
    most : int
        Tokens of a prompt.
    """

    def __init__(self, ref: str = EMBEDDED, candidates: int = 16, temperature: float = 0.1, most: int = 600):
        self.ref, self.candidates, self.temperature, self.most = check_ref(ref), candidates, temperature, most
        self.name = "embedded" if ref == EMBEDDED else f"embedded:{ref}"

    def propose(self, request: Request, n: int) -> Answer:
        begin, space = time.perf_counter(), request.space
        around = space.vector(request.node or space.default)
        found = space.neighbours(around, self.candidates - 1, request.rng)
        vectors = np.vstack([around, found]) if request.node is None else found
        lines = list(dict.fromkeys(json.dumps(space.config(v)) for v in vectors)) or [json.dumps(space.default)]
        text = request.prompt(self.most, self._count) + "\n"
        scores = self.score(text, lines)
        chances = scipy.special.softmax(scores / self.temperature)
        count = min(n, int((chances > 0).sum()))
        chosen = request.rng.choice(len(lines), count, replace=False, p=chances)
        return Answer([lines[i] for i in chosen], self._count(text), 0, time.perf_counter() - begin)

    def _count(self, text: str) -> int:
        from gnomon.models import load

        return len(load(self.ref).tokenizer(text).input_ids)

    def score(self, text: str, lines: Sequence[str]) -> np.ndarray:
        """Mean log-likelihood (m,) of each line's tokens after the text, in nats; the text is read once."""
        import torch

        from gnomon.models import load

        lm = load(self.ref)
        context = lm.tokenizer(text).input_ids
        rows = [lm.tokenizer(line, add_special_tokens=False).input_ids for line in lines]
        width = max(map(len, rows))
        pad = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows])
        model: Any = lm.model
        with torch.no_grad():
            head = model(torch.tensor([context]), use_cache=True)
            head.cache.batch_repeat_interleave(len(rows))
            rest = model(pad, cache=head.cache, use_cache=True).logits[:, :-1]
            logits = torch.cat([head.logits[:, -1:].expand(len(rows), 1, -1), rest], dim=1)
            each = torch.log_softmax(logits.float(), -1).gather(-1, pad[..., None])[..., 0]
        return np.array([float(each[i, : len(r)].mean()) for i, r in enumerate(rows)])


# --- transcripts -----------------------------------------------------------------------------------------------------


class Recorder(LLM):
    """Passes everything on to another back end and writes its answers to a transcript (JSON lines).

    Parameters
    ----------
    llm : LLM
    path : path
        A new file.
    """

    def __init__(self, llm: LLM, path: str | Path):
        self.llm, self.path, self.name = llm, Path(path), llm.name
        if self.path.exists():
            raise ValueError(f"path: {self.path} exists; a transcript is written to a new file")

    def start(self) -> None:
        self.llm.start()

    def order(self, algorithms: list[str], card: Mapping[str, Any]) -> list[str]:
        found = self.llm.order(algorithms, card)
        self._write({"order": found})
        return found

    def propose(self, request: Request, n: int) -> Answer:
        answer = self.llm.propose(request, n)
        self._write({"asked": _digest(request.prompt(), n), **vars(answer)})
        return answer

    def reflect(self, text: str) -> Answer | None:
        answer = self.llm.reflect(text)
        self._write({"asked": _digest(text, 0), **vars(answer or Answer())})
        return answer

    def _write(self, entry: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


class Replay(LLM):
    """Answers from a transcript, so that a search with a language model can be repeated without it.

    Parameters
    ----------
    path : path
        A transcript of :class:`Recorder`.

    Raises
    ------
    ValueError
        Where the file is no transcript; in a search, where a question differs from the recorded one.
    """

    def __init__(self, path: str | Path):
        self.path, self.name = Path(path), f"replay:{Path(path).name}"
        if not self.path.is_file():
            raise ValueError(f"path: {self.path} is no file; expected a transcript of Recorder")
        self.start()

    def start(self) -> None:
        try:
            self._entries = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
            self._order = self._entries[0]["order"]
        except (ValueError, LookupError, TypeError):
            raise ValueError(f"path: {self.path} is no transcript of Recorder") from None
        self._at = 1

    def order(self, algorithms: list[str], card: Mapping[str, Any]) -> list[str]:
        return list(self._order)

    def propose(self, request: Request, n: int) -> Answer:
        return self._next(_digest(request.prompt(), n))

    def reflect(self, text: str) -> Answer | None:
        answer = self._next(_digest(text, 0))
        return answer if answer.texts else None

    def _next(self, asked: str) -> Answer:
        entry = self._entries[self._at] if self._at < len(self._entries) else {}
        if entry.get("asked") != asked:
            raise ValueError(
                f"{self.path}: question {self._at} is not the recorded one; it fits the same data, space and seed only"
            )
        self._at += 1
        return Answer(**{k: v for k, v in entry.items() if k != "asked"})


def _digest(text: str, n: int) -> str:
    return hashlib.sha256(f"{n}\n{text}".encode()).hexdigest()[:20]


def backend(llm: Any) -> LLM | None:
    """A back end by its name: "prior", "embedded", a model reference (see :mod:`gnomon.models`), a back end itself, None.

    Raises
    ------
    ValueError, TypeError
        For anything else.
    """
    if llm is None or isinstance(llm, LLM):
        return llm
    if not isinstance(llm, str):
        raise TypeError(
            f"llm: got {type(llm).__name__}; expected 'prior', 'embedded', a model reference, a back end or None"
        )
    if llm in ("prior", "embedded"):
        return Prior() if llm == "prior" else Embedded()
    if llm.startswith("embedded:"):
        return Embedded(llm)
    if llm.startswith("endpoint:"):
        return Chat(Endpoint.from_ref(llm))
    try:
        return Local(check_ref(llm))
    except ValueError as error:
        raise ValueError(f"llm: got {llm!r}; expected 'prior', 'embedded' or a model reference ({error})") from None
