"""Geometry of the hidden states that emit an answer: proximity, rotation and alignment with the common direction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnomon import datasets
from gnomon.models import Structure, encode, linear_weight, structure

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FEATURES = ("proximity", "proximity_gap", "rotation", "rotation_middle", "rotation_last", "rotation_net", "mlp_share",
            "alignment_middle", "alignment_last", "energy_middle", "energy_last")  # fmt: skip
BEFORE_MLP = (
    "pre_feedforward_layernorm",
    "post_attention_layernorm",
    "ln_2",
)  # its input is the stream behind attention


class Reference(NamedTuple):
    """Where states of generic text lie.

    Attributes
    ----------
    mean : Tensor (L + 1, d)
        Unit mean state at each layer, position 0 left out (its norm is massive).
    principal : Tensor (L + 1, 3, d)
        Orthonormal directions of largest variance.
    """

    mean: Tensor
    principal: Tensor


class States(NamedTuple):
    """States of one position of each row: around each block, behind its attention, and after the final norm."""

    stream: Tensor  # (L + 1, B, d)
    middle: Tensor  # (L, B, d)
    final: Tensor  # (B, d)


class Probe:
    """Keeps the last position of each layer while it is switched on: O(L d) a row.

    Under left padding the last position is every row's own last token.
    """

    def __init__(self, model: PreTrainedModel):
        self.parts: Structure = structure(model)
        self.on = False
        self._stream: list[Tensor] = []
        self._middle: list[Tensor] = []

    @contextmanager
    def attached(self) -> Iterator[Probe]:
        """Hooks on the blocks, removed on leaving."""

        def keep(into: list[Tensor], value: Any) -> None:
            if self.on:
                value = value[0] if isinstance(value, tuple) else value
                into.append(value[:, -1].detach().float().clone())

        with ExitStack() as stack:
            for i, block in enumerate(self.parts.blocks):
                if i == 0:
                    first = block.register_forward_pre_hook(
                        lambda m, args, kwargs: keep(self._stream, args[0] if args else kwargs["hidden_states"]), with_kwargs=True)  # fmt: skip
                    stack.callback(first.remove)
                handle = block.register_forward_hook(lambda m, args, out: keep(self._stream, out))
                stack.callback(handle.remove)
                norm = before_mlp(block).register_forward_pre_hook(lambda m, args: keep(self._middle, args[0]))
                stack.callback(norm.remove)
            yield self

    def take(self) -> States:
        """The states of the last forward pass."""
        import torch

        stream, middle = torch.stack(self._stream), torch.stack(self._middle)
        self._stream.clear()
        self._middle.clear()
        weight: Any = self.parts.norm.weight
        final = self.parts.norm(stream[-1].to(weight.device, weight.dtype)).float()
        return States(stream, middle, final)


def before_mlp(block: Any) -> Any:
    """The norm whose input is the residual stream between attention and MLP."""
    for name in BEFORE_MLP:
        if (found := getattr(block, name, None)) is not None:
            return found
    raise TypeError(
        f"the block {type(block).__name__} has no norm before its MLP among {', '.join(BEFORE_MLP)}; use score='logprob'"
    )


def angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle between the last dimensions, in radians; exact for small ones (Kahan): 2 atan2(|a' - b'|, |a' + b'|)."""
    import torch

    a, b = unit(a), unit(b)
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def unit(x: Tensor) -> Tensor:
    """Divided by its length; zero stays zero."""
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)


def state_features(states: States, emitted: Tensor, runner_up: Tensor, reference: Reference | None) -> Tensor:
    """The columns of ``FEATURES`` for each row.

    Parameters
    ----------
    states : States
        L blocks, B rows.
    emitted, runner_up : Tensor (B, d)
        Unembedding rows of the emitted token and of the second-best one.
    reference : Reference or None
        None leaves the four alignment columns at 0.

    Returns
    -------
    Tensor (B, 11), float64
        Angles in radians, cosines in [-1, 1], shares in [0, 1].
    """
    import torch

    h, mid = states.stream.double(), states.middle.double()
    layers = len(mid)
    middle, last = slice(layers // 3, 2 * layers // 3), slice(2 * layers // 3, layers)
    near, other = ((unit(states.final.double()) * unit(w.double())).sum(-1) for w in (emitted, runner_up))
    theta = angle(h[:-1], h[1:])  # (L, B)
    by_attention, by_mlp = angle(h[:-1], mid)[middle].sum(0), angle(mid, h[1:])[middle].sum(0)
    columns = [near, near - other, theta.sum(0), theta[middle].sum(0), theta[last].sum(0), angle(h[min(1, layers)], h[layers - 1]),
               by_mlp / (by_mlp + by_attention).clamp_min(1e-30)]  # fmt: skip
    if reference is None:
        columns += [torch.zeros_like(near)] * 4
    else:
        towards = unit(h)
        cosine = (towards * unit(reference.mean.double())[:, None]).sum(-1).clamp(-1, 1)
        energy = torch.einsum("lbd,lkd->lbk", towards, reference.principal.double()).square().sum(-1).clamp(0, 1)
        columns += [cosine[middle].mean(0), cosine[last].mean(0), energy[middle].mean(0), energy[last].mean(0)]
    return torch.stack(columns, -1)


def text_reference(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str] | None = None,
                   windows: int = 32, length: int = 128, batch_size: int = 8) -> Reference:  # fmt: skip
    """Mean and principal directions of the states of generic text.

    Parameters
    ----------
    texts : sequence of str, optional
        By default the Wikipedia articles that gnomon reads.
    windows, length : int
        Windows and tokens in each; position 0 of each is left out.
    """
    import torch
    from scipy.sparse.linalg import svds

    parts = structure(model)
    tokens = encode(tokenizer, datasets.wikipedia() if texts is None else texts, length, n=windows)
    found: list[list[Tensor]] = [[] for _ in range(len(parts.blocks) + 1)]
    with torch.no_grad(), ExitStack() as stack:

        def keep(i, value):
            return found[i].append((value[0] if isinstance(value, tuple) else value)[:, 1:].float().cpu())

        for i, block in enumerate(parts.blocks):
            if i == 0:
                first = block.register_forward_pre_hook(lambda m, args, kwargs: keep(0, args[0] if args else kwargs["hidden_states"]), with_kwargs=True)  # fmt: skip
                stack.callback(first.remove)
            stack.callback(block.register_forward_hook(lambda m, args, out, i=i: keep(i + 1, out)).remove)
        for batch in torch.split(tokens, batch_size):
            parts.base(input_ids=batch.to(parts.embed.weight.device), use_cache=False)
    means, directions = [], []
    for layer in range(len(found)):
        rows = torch.cat(found[layer]).flatten(0, 1)
        found[layer] = []
        means.append(unit(rows.double().mean(0)).float())
        some = rows[:: max(1, len(rows) // 1024)].double()  # enough for three directions
        _, _, top = svds(
            (some - some.mean(0)).numpy(), k=min(3, *(s - 1 for s in some.shape)), v0=np.ones(min(some.shape))
        )
        directions.append(torch.from_numpy(top.copy()).float())
    return Reference(torch.stack(means), torch.stack(directions))


def unembedding(parts: Structure, tokens: torch.Tensor) -> Tensor:
    """Rows (B, d) of the output head."""
    return linear_weight(parts.head)[tokens].float()


def geometry_features(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], *,
                      reference: Reference | None = None, tokens: str = "first", max_new_tokens: int = 12, batch_size: int = 16,
                      use_cache: bool = True) -> Any:  # fmt: skip
    """Geometry of a model's states while it answers, and its usual confidences beside.

    Parameters
    ----------
    model, tokenizer
        A causal language model of transformers.
    prompts : sequence of str
    reference : Reference, optional
        Of :func:`text_reference`; made from the library's default text when not given.
    tokens : {"first", "mean"}
        At the position that emits the first answer token, or averaged over all answer tokens.
    max_new_tokens, batch_size : int
    use_cache : bool
        Keys and values; False computes each prefix anew (the same numbers, slower).

    Returns
    -------
    DataFrame
        A row for each prompt: ``response``, the confidences ``logprob`` (mean over answer tokens, nats),
        ``first_logprob``, ``entropy`` (nats, of the first token), ``margin`` (difference of its two largest
        probabilities), and the columns of ``FEATURES``.
    """
    import pandas as pd

    from gnomon.guarantees.conformal_abstention.generation import CONFIDENCES, respond

    if tokens not in ("first", "mean"):
        raise ValueError(f"tokens: got {tokens!r}; expected 'first' or 'mean'")
    reference = text_reference(model, tokenizer) if reference is None else reference
    found = respond(model, tokenizer, prompts, reference=reference, max_new_tokens=max_new_tokens, batch_size=batch_size,
                    average=tokens == "mean", use_cache=use_cache)  # fmt: skip
    assert found.geometry is not None
    assert found.average is not None
    values = np.hstack([found.confidence, found.average if tokens == "mean" else found.geometry])
    table = pd.DataFrame(values, columns=[*CONFIDENCES, *FEATURES])
    table.insert(0, "response", found.texts)
    return table
