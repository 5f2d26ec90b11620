"""Which layers go: similarity of the layers' inputs, and the three criteria."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

Criterion = Literal["streamline", "shortgpt", "angular"]
CRITERIA = ("streamline", "shortgpt", "angular")


@dataclass(frozen=True)
class LayerSimilarity:
    """How much the residual stream changes between the inputs of any two layers of a model with L blocks.

    Index l < L is the input of block l, index L that of the final norm.

    Attributes
    ----------
    cosine : ndarray (L+1, L+1)
        Mean cosine over all tokens.
    angular : ndarray (L+1, L+1)
        Mean of arccos(cosine) / pi over the last tokens of the sequences, in 0..1.
    first_norm, median_norm : ndarray (L+1,)
        Mean norm of the sequences' first tokens, and median norm of all others.
    tokens : int
    """

    cosine: np.ndarray
    angular: np.ndarray
    first_norm: np.ndarray
    median_norm: np.ndarray
    tokens: int

    @property
    def layers(self) -> int:
        """Number of blocks L."""
        return len(self.cosine) - 1

    @property
    def block_influence(self) -> np.ndarray:
        """BI_l = 1 - mean cosine of the input and the output of block l (ShortGPT), shape (L,)."""
        return np.asarray(1 - np.diagonal(self.cosine, 1))

    @property
    def sink_ratio(self) -> np.ndarray:
        """rho_l: norm of first tokens over the median of the others, shape (L+1,)."""
        return np.asarray(self.first_norm / self.median_norm)

    @property
    def sink_block(self) -> int:
        """The block after which the first token stands out most against before: argmax rho_(l+1) / rho_l."""
        return int(np.argmax(self.sink_ratio[1:] / self.sink_ratio[:-1]))

    def sink_table(self) -> pd.DataFrame:
        """One row per layer input: norms, their ratio, and how much the block raises the ratio."""
        ratio = self.sink_ratio
        growth = np.append(ratio[1:] / ratio[:-1], np.nan)
        return pd.DataFrame({"layer": np.arange(len(ratio)), "first_token_norm": self.first_norm,
                             "median_norm": self.median_norm, "ratio": ratio, "growth": growth})  # fmt: skip

    def crosses_sink(self, removed: list[int]) -> bool:
        """Whether a cut removes the block that makes the sink."""
        return self.sink_block in removed

    def choose(self, n: int, criterion: Criterion = "streamline", allow_last: bool = False) -> list[int]:
        """The n blocks to remove, ascending; ties go to the lowest index.

        Parameters
        ----------
        n : int
            0 <= n < L - 1.
        criterion : {"streamline", "shortgpt", "angular"}
            The run of n blocks whose ends are most similar by cosine (LLM-Streamline; it starts at block 1 or later);
            the n blocks of least influence (ShortGPT); the run with the smallest angular distance at last tokens
            (Gromov et al.).
        allow_last : bool
            Let the last block go too.
        """
        check_count(n, self.layers)
        if criterion not in CRITERIA:
            raise ValueError(f"criterion: got {criterion!r}; expected one of {', '.join(CRITERIA)}")
        if n == 0:
            return []
        last = self.layers if allow_last else self.layers - 1
        if criterion == "shortgpt":
            return sorted(np.argsort(self.block_influence[:last], kind="stable")[:n].tolist())
        starts = np.arange(1, last - n + 1)
        if criterion == "streamline":
            start = starts[np.argmax(self.cosine[starts, starts + n])]
        else:
            start = starts[np.argmin(self.angular[starts, starts + n])]
        return list(range(int(start), int(start) + n))


class SimilaritySums:
    """Accumulates :class:`LayerSimilarity` over chunks; keeps no activations, only the norms of the tokens."""

    def __init__(self, layers: int):
        self.cosine = torch.zeros(layers + 1, layers + 1, dtype=torch.float64)
        self.angular = torch.zeros(layers + 1, layers + 1, dtype=torch.float64)
        self.first: list[Tensor] = []
        self.others: list[Tensor] = []
        self.tokens = 0

    def update(self, states: dict[int, Tensor], mask: Tensor | None = None) -> None:
        """Add a chunk: the inputs (B, T, C) of all layers, and of the final norm."""
        for one in range(len(states[0])):
            token = slice(None) if mask is None else mask[one].bool()
            stack = torch.stack([states[layer][one][token].float() for layer in range(len(states))])  # (L+1, T, C)
            norms = stack.norm(dim=-1)
            stack = stack / norms.clamp_min(1e-12)[..., None]
            flat = stack.flatten(1)
            self.cosine += (flat @ flat.T).double().cpu()
            last = stack[:, -1].double()
            self.angular += torch.arccos((last @ last.T).clamp(-1, 1)).cpu() / torch.pi
            self.first.append(norms[:, 0].double().cpu())
            self.others.append(norms[:, 1:].cpu())
            self.tokens += stack.shape[1]

    def result(self) -> LayerSimilarity:
        """The means so far."""
        sequences = len(self.first)
        others = torch.cat(self.others, 1).double()
        if others.shape[1] == 0:
            raise ValueError("calibration: every sequence has a single token; nothing to compare the first tokens with")
        return LayerSimilarity(
            (self.cosine / self.tokens).numpy(),
            (self.angular / sequences).fill_diagonal_(0.0).numpy(),
            torch.stack(self.first).mean(0).numpy(),
            others.median(1).values.numpy(),
            self.tokens,
        )


# --- lists of layers --------------------------------------------------------------------------------------------------


def check_count(n: int, layers: int) -> None:
    """Raise unless a model of L layers can lose n."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(f"n_remove: got {n!r}; expected an integer")
    if n < 0 or n >= layers - 1:
        raise ValueError(f"n_remove: got {n}; the model has L = {layers} blocks, so 0 to {max(layers - 2, 0)} can go")


def parse_layers(value: Any, layers: int) -> list[int]:
    """A list of block indices, or ``"20:25"`` (half-open), as an ascending list.

    Raises
    ------
    ValueError
        For anything else, duplicates, indices outside 0..L-1, or too many blocks; the message names them.
    """
    if isinstance(value, str):
        start, colon, stop = value.partition(":")
        if not colon or not start.strip().isdigit() or not stop.strip().isdigit():
            raise ValueError(f"layers: got {value!r}; expected 'A:B' (blocks A to B - 1) or a list of indices")
        if int(start) >= int(stop):
            raise ValueError(f"layers: {value!r} is an empty range; expected 'A:B' with A < B")
        chosen = list(range(int(start), int(stop))) if int(stop) <= layers else [int(start), int(stop) - 1]
    else:
        try:
            chosen = [int(i) for i in value]
        except (TypeError, ValueError):
            raise ValueError(f"layers: got {value!r}; expected 'A:B' or a list of indices") from None
    outside = sorted({i for i in chosen if not 0 <= i < layers})
    if outside:
        raise ValueError(f"layers: {_listed(outside)} out of range; the model has blocks 0 to {layers - 1}")
    twice = sorted({i for i in chosen if chosen.count(i) > 1})
    if twice:
        raise ValueError(f"layers: {_listed(twice)} given more than once")
    check_count(len(chosen), layers)
    return sorted(chosen)


def _listed(indices: list[int]) -> str:
    return ", ".join(map(str, indices))


def runs(removed: list[int]) -> list[tuple[int, int]]:
    """Maximal runs of adjacent blocks as (first removed, first kept after them)."""
    found: list[tuple[int, int]] = []
    for layer in removed:
        if found and found[-1][1] == layer:
            found[-1] = (found[-1][0], layer + 1)
        else:
            found.append((layer, layer + 1))
    return found
