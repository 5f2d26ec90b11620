"""On what adapters are trained: a language model or a classifier, and text."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator

from gnomon import datasets, models

if TYPE_CHECKING:
    from pathlib import Path

    import torch

RANDOM_VERSION = 1
HELD = 1  # batches that are never trained on
TARGETS = (("q_proj", "v_proj"), ("query", "value"), ("q_lin", "v_lin"), ("c_attn",))  # of attention, by family


def _model_ref(value: str) -> str:
    return value if value == "random" else models.check_ref(value)


class _ByContent:
    """Records name the model by its content."""

    @staticmethod
    def identity(ref: str) -> str:
        return f"random-{RANDOM_VERSION}" if ref == "random" else models.identity(ref)


Model = Annotated[str, AfterValidator(_model_ref), _ByContent()]


class Material(NamedTuple):
    """A model of one's own (it may be trained), its tokenizer, batches to train on and batches that are held out."""

    model: Any
    tokenizer: Any
    train: list[dict[str, torch.Tensor]]
    held: list[dict[str, torch.Tensor]]


def gather(ref: str, task: str, text: Path | None, window: int, batch: int) -> Material:
    """The material of a task; the first batch is held out.

    Raises
    ------
    ValueError
        For a model or text that does not serve the task.
    """
    if task == "causal":
        model, tokenizer, rows = _causal(ref, text, window)
    else:
        model, tokenizer, rows = _classification(ref, text, window)
    held = HELD * batch
    if len(rows["input_ids"]) < held + batch:
        raise ValueError(f"text: {len(rows['input_ids'])} windows or sentences; at least {held + batch} are needed")
    return Material(model, tokenizer, [{k: v[i : i + 1] for k, v in rows.items()} for i in range(held, len(rows["input_ids"]))],
                    [{k: v[:held] for k, v in rows.items()}])  # fmt: skip


def targets(model: Any) -> list[str]:
    """The names of the query and value projections of a model's attention."""
    inside = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    for names in TARGETS:
        if inside.issuperset(names):
            return list(names)
    raise ValueError(f"model: no query and value projections found; looked for {', '.join(map('/'.join, TARGETS))}")


def _causal(ref: str, text: Path | None, window: int) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    import torch

    whole = descriptions() if text is None else datasets.text_file(text)
    if ref == "random":
        ids = np.frombuffer(whole.encode(), np.uint8)[: 64 * window].astype(np.int64)
        tokens = torch.from_numpy(ids[: len(ids) // window * window].reshape(-1, window))
        return random_llama(), None, {"input_ids": tokens, "labels": tokens}
    lm = models.load(ref)
    tokens = models.encode(lm.tokenizer, [whole], window)
    return lm.copy(), lm.tokenizer, {"input_ids": tokens, "labels": tokens}


def _classification(ref: str, text: Path | None, window: int) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """Any encoder with a classification head; the text is a CSV or TSV file with the columns sentence and label."""
    import pandas as pd
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if text is None:
        raise ValueError("text: a classifier needs a CSV or TSV file with the columns sentence and label")
    if not (os.path.isabs(ref) or "/" in ref) or ref.startswith("endpoint:"):
        raise ValueError(f"model: {ref!r} is no encoder; a classifier is a folder or a hub name")
    table = pd.read_csv(text, sep=None, engine="python")
    if not {"sentence", "label"} <= set(table.columns):
        raise ValueError(
            f"text: {text} has the columns {', '.join(map(str, table.columns))}; expected sentence and label"
        )
    names = sorted(table["label"].unique().tolist())
    if len(names) < 2:
        raise ValueError(f"text: {text} has {len(names)} label; at least 2 are needed")
    options: dict[str, Any] = {"local_files_only": os.path.isabs(ref), "trust_remote_code": False}
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of a head that the checkpoint lacks
        model = AutoModelForSequenceClassification.from_pretrained(
            ref, num_labels=len(names), use_safetensors=True, **options
        )
    tokenizer = AutoTokenizer.from_pretrained(ref, **options)
    rows = tokenizer(table["sentence"].astype(str).tolist(), truncation=True, max_length=window, padding="max_length",
                     return_tensors="pt")  # fmt: skip
    labels = torch.tensor([names.index(label) for label in table["label"].tolist()])
    return model, tokenizer, {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask, "labels": labels}


@functools.cache
def descriptions() -> str:
    """The descriptions of scikit-learn's data sets: about 4,700 tokens of expository English."""
    from sklearn import datasets as toys

    return "\n\n".join(getattr(toys, f"load_{name}")().DESCR for name in (
        "iris", "wine", "digits", "breast_cancer", "diabetes", "linnerud"))  # fmt: skip


def random_llama() -> Any:
    """The smoke scale's model: an untrained Llama of 2 blocks that reads bytes. It proves that everything runs."""
    import torch
    import transformers

    config = transformers.LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                      initializer_range=0.08, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config)
