"""What a model says of given tokens: log-likelihoods and perplexity, the logits a bounded number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnomon.models.structure import linear_weight, output_head, structure
from gnomon.models.tokens import padded

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CHUNK = 2**24  # logits held at once: 64 MB in float32, 64 positions of a head of 262,144


def head_logits(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """The model's logits for final hidden states (after the final norm), with Gemma's soft cap where there is one.

    Parameters
    ----------
    hidden : Tensor (..., C)

    Returns
    -------
    Tensor (..., V)
    """
    import torch

    logits: torch.Tensor = output_head(model)(hidden)
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _chunked_nll(model: PreTrainedModel, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log p(targets) (M,) for hidden states (M, C), a bounded number of logits at a time."""
    import torch
    import torch.nn.functional as F

    rows = max(1, CHUNK // linear_weight(output_head(model)).shape[0])
    pieces = zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    parts = [F.cross_entropy(head_logits(model, h).float(), t, reduction="none") for h, t in pieces]
    return torch.cat(parts) if parts else hidden.new_zeros(0, dtype=torch.float32)


def _check_tokens(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    import torch

    if not isinstance(tokens, torch.Tensor):
        raise TypeError(f"tokens: expected an integer tensor (N, L), got {type(tokens).__name__}")
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens: expected integers (N, L), got {tokens.dtype} of shape {tuple(tokens.shape)}")
    if tokens.shape[0] == 0 or tokens.shape[1] < 2:
        raise ValueError(f"tokens: expected at least one row of at least 2 tokens, got shape {tuple(tokens.shape)}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise ValueError(f"tokens: values must lie in 0..{vocabulary - 1}, got {low}..{high}")
    return tokens.long()


def token_nll(model: PreTrainedModel, tokens: torch.Tensor, batch_size: int = 4) -> torch.Tensor:
    """Negative log-likelihood of each token given those before it in its row, in nats.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model (see :func:`structure`).
    tokens : LongTensor (N, L)
    batch_size : int
        Rows in a forward pass. The logits are computed a bounded number of positions at a time.

    Returns
    -------
    Tensor (N, L - 1), float32, on the CPU
        Column j belongs to token j + 1.
    """
    import torch

    if batch_size < 1:
        raise ValueError(f"batch_size: got {batch_size}; expected at least 1")
    parts = structure(model)
    tokens = _check_tokens(tokens, parts.embed.num_embeddings)
    rows = []
    with torch.no_grad():
        for batch in torch.split(tokens, batch_size):
            batch = batch.to(parts.embed.weight.device)
            hidden = parts.base(input_ids=batch, use_cache=False).last_hidden_state[:, :-1]
            nll = _chunked_nll(model, hidden.flatten(0, 1), batch[:, 1:].flatten())
            rows.append(nll.view(len(batch), -1).cpu())
    return torch.cat(rows)


def perplexity(model: PreTrainedModel, tokens: torch.Tensor, batch_size: int = 4) -> float:
    """exp of the mean of :func:`token_nll` (the first token of each row is given, not predicted)."""
    return math.exp(token_nll(model, tokens, batch_size).double().mean().item())


def log_likelihood(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    continuations: Sequence[str],
    *,
    per_token: bool = False,
    batch_size: int = 8,
) -> torch.Tensor:
    """log p(continuation | prompt) for each pair, in nats.

    Prompt and continuation are tokenised together, and what lies beyond the tokens of the prompt alone is scored;
    spaces that end a prompt go to its continuation, where byte-pair vocabularies have them. An empty prompt stands for
    the start of a text (the tokenizer's BOS, else its EOS token).

    Parameters
    ----------
    prompts, continuations : sequence of str, of equal length
    per_token : bool
        Divide by the number of the continuation's tokens.

    Returns
    -------
    Tensor (N,), float64
    """
    import torch

    if isinstance(prompts, str) or isinstance(continuations, str):
        raise TypeError("prompts, continuations: expected sequences of str, got one str")
    if len(prompts) != len(continuations):
        raise ValueError(f"continuations: expected one for each of {len(prompts)} prompts, got {len(continuations)}")
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    rows: list[tuple[list[int], int]] = []
    for i, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        stripped = prompt.rstrip(" ")
        context = tokenizer(stripped).input_ids if stripped else []
        whole = tokenizer(prompt + continuation).input_ids
        if not context:
            special = tokenizer("").input_ids
            whole, context = (whole, special) if special else ([start, *whole], [start])
        if len(whole) <= len(context):
            raise ValueError(f"continuations[{i}]: {continuation!r} adds no token to its prompt")
        rows.append((whole, len(context)))
    parts = structure(model)
    scores = torch.empty(len(rows), dtype=torch.float64)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))  # little padding in a batch
    with torch.no_grad():
        for at in range(0, len(order), batch_size):
            chosen = order[at : at + batch_size]
            ids = padded([rows[i][0] for i in chosen], 0)  # on the right: causal attention never sees it
            ids = ids.to(parts.embed.weight.device)
            hidden = parts.base(input_ids=ids, use_cache=False).last_hidden_state
            for row, i in enumerate(chosen):
                whole, first = rows[i]
                nll = _chunked_nll(model, hidden[row, first - 1 : len(whole) - 1], ids[row, first : len(whole)])
                scores[i] = -(nll.double().mean() if per_token else nll.double().sum()).cpu()
    return scores
