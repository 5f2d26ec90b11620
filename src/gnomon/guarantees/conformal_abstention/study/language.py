"""What a language model made of the questions: computed once, shared by all that read it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnomon import models
from gnomon.guarantees.conformal_abstention import baselines
from gnomon.guarantees.conformal_abstention.generation import respond, sample
from gnomon.guarantees.conformal_abstention.geometry import text_reference
from gnomon.guarantees.conformal_abstention.judging import alias_match, aliases
from gnomon.guarantees.conformal_abstention.scores import nearest_correct
from gnomon.guarantees.conformal_abstention.study.material import KINDS, Question, questions
from gnomon.study import Experiment, stage


def asked(inputs: Any) -> list[Question]:
    """The study's own questions, or those of a file: lines of {"question", "answer", "topic"}."""
    if inputs.qa is None:
        return questions(inputs.questions, inputs.draw)
    from gnomon.guarantees.conformal_abstention.study.person import read

    return [Question(q, tuple(aliases(a)), t, q) for q, a, t in read(inputs.qa)]


def subset(n: int, inputs: Any) -> np.ndarray:
    """The fixed random questions of the methods that sample, or ask again."""
    return np.sort(np.random.default_rng([11, inputs.draw]).permutation(n)[: inputs.sampled])


MODEL = ("model", "qa", "questions", "draw", "windows")


class Sampled(Experiment):
    """Random answers to the fixed random questions, and answers to a prompt that allows refusal."""

    @stage(version=2, inputs=(*MODEL, "sampled"), cell=(), seeded=False)
    def samples(self, inputs: Any, cell: Any, seed: Any) -> dict[str, Any]:
        lm, found = models.load(inputs.model), asked(inputs)
        prompts = [found[i].prompt for i in subset(len(found), inputs)]
        drawn = sample(lm.model, lm.tokenizer, prompts, share_prompt=True, random_state=inputs.draw)
        return {
            "samples": drawn,
            "entropy": baselines.semantic_entropy(drawn),
            "refuses": baselines.refuses(lm.model, lm.tokenizer, prompts),
        }


class Language(Experiment):
    """Greedy answers with confidences and geometry."""

    @stage(version=2, inputs=MODEL, cell=(), seeded=False)
    def answers(self, inputs: Any, cell: Any, seed: Any) -> dict[str, Any]:
        lm, found = models.load(inputs.model), asked(inputs)
        reference = text_reference(lm.model, lm.tokenizer, windows=inputs.windows)
        said = respond(lm.model, lm.tokenizer, [q.prompt for q in found], reference=reference)
        correct = [alias_match(q.prompt, t, q.answers) for q, t in zip(found, said.texts, strict=True)]
        return {
            "texts": said.texts,
            "correct": np.array(correct),
            "kind": np.array([q.kind for q in found]),
            "confidence": said.confidence,
            "geometry": said.geometry,
            "states": said.states,
        }


def features(data: dict[str, Any], columns: str, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features of train and test items: any of "logprob", "log-probabilities", "kind", "geometry", joined by " + ".

    Nearness to correct states is measured against the train items alone.
    """
    made: list[tuple[np.ndarray, np.ndarray]] = []
    confidence, correct, states = data["confidence"], data["correct"], data["states"]
    for name in columns.split(" + "):
        if name == "geometry":
            bank = states[train[correct[train]]]
            near = nearest_correct(states[train], bank, same=True), nearest_correct(states[test], bank)
            own, others = (
                np.column_stack([data["geometry"][at], x]) for at, x in zip((train, test), near, strict=True)
            )
            made.append((own, others))
            continue
        values = {"logprob": lambda: confidence[:, :1], "log-probabilities": lambda: confidence,
                  "kind": lambda: (data["kind"][:, None] == np.array(KINDS)).astype(float)}[name]()  # fmt: skip
        made.append((values[train], values[test]))
    return np.hstack([m[0] for m in made]), np.hstack([m[1] for m in made])
