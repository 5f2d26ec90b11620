"""Ghosted Layers: remove blocks of a language model and put the closed-form linear operator at each boundary."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import torch
from torch import Tensor

from gnomon import models
from gnomon.surgery.ghosted_layers.baselines import CLASSES, replaceme, replaceme_cosine
from gnomon.surgery.ghosted_layers.calibrate import Batch, Pair, batches, collect, layer_inputs
from gnomon.surgery.ghosted_layers.hadamard import rotation
from gnomon.surgery.ghosted_layers.model import shorten
from gnomon.surgery.ghosted_layers.moments import BoundaryMoments, RowWeight, weight_function
from gnomon.surgery.ghosted_layers.registration import when_transformers_loads
from gnomon.surgery.ghosted_layers.selection import CRITERIA, LayerSimilarity, check_count, parse_layers, runs
from gnomon.surgery.ghosted_layers.solve import Operator, describe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OPERATORS = (*CLASSES, "affine", "replaceme", "replaceme-cosine")
RIDGED = ("ghost", "low-rank")  # classes whose solution takes a ridge


def fit_operator(stats: BoundaryMoments | Any, Y: Any = None, kind: str = "ghost", *, skip_first: bool = False,
                 row_weight: RowWeight = "none", **options: Any) -> Operator:  # fmt: skip
    r"""The optimum of one class of boundary operators, :math:`\min_{W, b} \|\mathrm{diag}(w)(X W + b - Y)\|_F^2`.

    Parameters
    ----------
    stats : BoundaryMoments or array (N, C)
        The boundary's statistics, or X_pre itself (one sequence; (B, T, C) for several).
    Y : array like X, optional
        X_post, when ``stats`` is X_pre.
    kind : str
        "ghost" (unconstrained), "affine" (with an intercept), "identity", "scalar", "shift", "diagonal", "symmetric",
        "orthogonal", "low-rank", "linearpatch-d" or "linearpatch-r".
    skip_first : bool
        Fit without the first token of each sequence.
    row_weight : {"none", "sqrt", "norm"} or callable
        For arrays; statistics bring their own.
    **options
        ``ridge`` and ``ridge_mode`` (ghost, affine, low-rank), ``solver`` (ghost, affine), ``rank`` (low-rank),
        ``ratio`` (LinearPatch).

    Returns
    -------
    Operator
        ``(W, b)``, float64, row-vector convention ``x @ W + b``.

    References
    ----------
    "Ghosted Layers", arXiv 2605.15491, the closed form W* = I + (X'X + e I)^-1 X'D.
    """
    if kind == "affine":
        kind, options = "ghost", {**options, "affine": True}
    kind = "identity" if kind == "none" else kind
    if kind not in CLASSES:
        raise ValueError(f"kind: got {kind!r}; expected one of {', '.join(CLASSES)}, affine")
    if not isinstance(stats, BoundaryMoments):
        stats = _from_arrays(stats, Y, kind, row_weight)
    elif Y is not None:
        raise ValueError("Y: must not be given beside statistics")
    if stats.n == 0:
        raise ValueError("stats: holds no tokens")
    return CLASSES[kind](stats, stats.fitted(skip_first), **options)


def _from_arrays(X: Any, Y: Any, kind: str, row_weight: RowWeight) -> BoundaryMoments:
    if Y is None:
        raise ValueError("Y: needed beside an array X")
    pre, post = torch.as_tensor(X).detach(), torch.as_tensor(Y).detach()
    if pre.shape != post.shape or pre.dim() not in (2, 3) or not pre.numel():
        raise ValueError(f"X, Y: got shapes {tuple(pre.shape)} and {tuple(post.shape)}; expected two alike, (N, C)")
    if pre.dim() == 2:
        pre, post = pre[None], post[None]
    size = pre.shape[-1]
    turn = rotation(size) if kind == "linearpatch-r" else None
    patch = kind == "linearpatch-d"
    stats = BoundaryMoments(size, row_weight=row_weight, scales=patch, rotation=turn, device=pre.device)
    stats.update(pre, post)
    return stats


class GhostedLayers:
    r"""Remove blocks of a decoder language model and recover it with one linear map per boundary, without training.

    With X_pre the residual stream that enters the removed blocks of the unpruned model and X_post the stream that
    leaves them, the operator is :math:`W^* = \arg\min_W \|X_{pre} W - X_{post}\|_F^2`, solved from streamed sums in
    float64 and applied in float32 between the two surviving neighbours.

    Parameters
    ----------
    n_remove : int
        Blocks to remove.
    criterion : {"streamline", "shortgpt", "angular"}
        Which ones (see :meth:`LayerSimilarity.choose`).
    layers : list of int or str, optional
        The blocks themselves, as indices or as "20:25" (half-open); overrides ``n_remove`` and ``criterion``.
    operator : str
        A class of :func:`fit_operator`; "none" for plain removal; "replaceme" or "replaceme-cosine", which are folded
        into the MLP of the block before the cut and add no parameters.
    per : {"run", "layer"}
        One operator per maximal run of adjacent removed blocks, or one per removed block (adjacent ones are
        multiplied).
    solver, ridge, ridge_mode
        Of the least squares: see :func:`gnomon.surgery.ghosted_layers.solve.solve`.
    row_weight : {"none", "sqrt", "norm"} or callable
        Weights of the tokens: 1, ||x_post||^(-1/2), ||x_post||^(-1), or a function of X_post.
    skip_first : bool
        Fit without the first token of each sequence (it is applied to them all the same).
    allow_last : bool
        Let the last block be removed; the operator then stands before the final norm.
    stats_dtype : {"float64", "float32"}
        Type of the products within a chunk; sums and solutions are float64.
    batch_size : int
        Sequences in a forward pass.
    copy : bool
        False consumes the given model instead of copying the blocks that stay.
    options : mapping, optional
        Further options of the operator: ``rank``, ``ratio``, and of replaceme-cosine ``epochs``, ``lr``, ``batch``.

    Attributes
    ----------
    removed_ : list of int
        The removed blocks (old indices).
    operators_ : dict of int to Operator
        ``(W, b)`` by the *new* index of the block that follows (L' for the final norm). For ReplaceMe T, by the new
        index of the block that it is folded into.
    similarity_ : LayerSimilarity or None
        What a criterion chose by.
    stats_ : dict of (int, int) to BoundaryMoments
    report_ : DataFrame
        One row per fitted operator: relative residual on the calibration tokens, with the row weights, without first
        tokens, and on held-out tokens; the operator's anti-symmetric share (and what noise has), effective rank and
        spectral norm; seconds to solve.

    References
    ----------
    "Ghosted Layers: Unconstrained Activation Alignment for Recovering Layer-Pruned LLMs", arXiv 2605.15491.

    Examples
    --------
    >>> ghost = GhostedLayers(n_remove=5)
    >>> short = ghost.fit_transform(model, tokens)  # doctest: +SKIP
    >>> short.save_pretrained("short")  # doctest: +SKIP
    >>> same = GhostedLayers.from_pretrained("short")  # doctest: +SKIP
    """

    def __init__(self, n_remove: int = 7, criterion: Literal["streamline", "shortgpt", "angular"] = "streamline",
                 layers: list[int] | str | None = None, operator: str = "ghost", per: Literal["run", "layer"] = "run",
                 solver: Literal["ridge", "pinv"] = "ridge", ridge: float = 1e-6,
                 ridge_mode: Literal["absolute", "relative"] = "absolute", row_weight: RowWeight = "none",
                 skip_first: bool = False, allow_last: bool = False,
                 stats_dtype: Literal["float64", "float32"] = "float64", batch_size: int = 4, copy: bool = True,
                 options: Mapping[str, Any] | None = None):  # fmt: skip
        self.n_remove = n_remove
        self.criterion = criterion
        self.layers = layers
        self.operator = operator
        self.per = per
        self.solver = solver
        self.ridge = ridge
        self.ridge_mode = ridge_mode
        self.row_weight = row_weight
        self.skip_first = skip_first
        self.allow_last = allow_last
        self.stats_dtype = stats_dtype
        self.batch_size = batch_size
        self.copy = copy
        self.options = options

    def fit_transform(self, model: PreTrainedModel, calibration: Any, tokenizer: PreTrainedTokenizerBase | None = None,
                      held_out: Any = None) -> PreTrainedModel:  # fmt: skip
        """Choose the blocks, fit the operators on the dense model's activations, and return the shorter model.

        Parameters
        ----------
        model : PreTrainedModel
            A causal language model of a supported family, left as it is unless ``copy=False``.
        calibration : LongTensor (N, T), list of str, or iterable of batches
            Text that the model should stay good at; 16 C tokens or more are advised.
        tokenizer : optional
            For text.
        held_out : like ``calibration``, optional
            Other tokens, for the held-out residuals of the report.

        Raises
        ------
        ValueError, TypeError
            For impossible settings, layers that the model does not have, or an architecture that is not supported.
        FloatingPointError
            For activations that are not finite.
        """
        self._check()
        depth = len(models.structure(model).blocks)
        data = batches(calibration, tokenizer, self.batch_size)
        chosen = self._explicit(depth)
        self.stats_, self.similarity_ = self._calibrate(model, data, chosen, depth)
        if chosen is None:
            assert self.similarity_ is not None
            chosen = self._accept(self.similarity_.choose(self.n_remove, self.criterion, self.allow_last), depth)
            if missing := [p for p in self._pairs(chosen) if p not in self.stats_]:  # runs are known only now
                self.stats_.update(self._collect(model, data, missing))
        pairs = self._pairs(chosen)
        self.removed_ = chosen
        self.stats_ = {pair: self.stats_[pair] for pair in pairs}
        self._warn(next(iter(self.stats_.values()), None))
        fresh = {} if held_out is None else self._collect(model, batches(held_out, tokenizer, self.batch_size), pairs)
        if self.operator.startswith("replaceme"):
            return self._fold(model, data, fresh)
        return self._insert(model, fresh)

    @staticmethod
    def from_pretrained(path: str | Path, **kwargs: Any) -> PreTrainedModel:
        """Load what ``save_pretrained`` wrote, as ``AutoModelForCausalLM`` does after ``import gnomon.surgery``."""
        from transformers import AutoModelForCausalLM

        when_transformers_loads()
        loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, **kwargs)
        return loaded

    # --- checks ---

    def _check(self) -> None:
        if self.operator not in (*OPERATORS, "none"):
            raise ValueError(f"operator: got {self.operator!r}; expected one of {', '.join(OPERATORS)}, none")
        if self.per not in ("run", "layer"):
            raise ValueError(f"per: got {self.per!r}; expected 'run' or 'layer'")
        if self.criterion not in CRITERIA:
            raise ValueError(f"criterion: got {self.criterion!r}; expected one of {', '.join(CRITERIA)}")
        if self.stats_dtype not in ("float64", "float32"):
            raise ValueError(f"stats_dtype: got {self.stats_dtype!r}; expected 'float64' or 'float32'")
        if self.solver not in ("ridge", "pinv"):
            raise ValueError(f"solver: got {self.solver!r}; expected 'ridge' or 'pinv'")
        if self.ridge_mode not in ("absolute", "relative"):
            raise ValueError(f"ridge_mode: got {self.ridge_mode!r}; expected 'absolute' or 'relative'")
        if not 0 <= self.ridge < float("inf"):
            raise ValueError(f"ridge: got {self.ridge}; expected a finite number >= 0")
        weight_function(self.row_weight)

    def _explicit(self, depth: int) -> list[int] | None:
        """The blocks where they do not depend on the data."""
        if self.layers is None:
            check_count(self.n_remove, depth)
            return [] if self.n_remove == 0 else None
        return self._accept(parse_layers(self.layers, depth), depth)

    def _accept(self, chosen: list[int], depth: int) -> list[int]:
        if depth - 1 in chosen and not self.allow_last:
            raise ValueError(f"layers: {depth - 1} is the last block; allow_last=True lets it go")
        if self.operator.startswith("replaceme") and 0 in chosen:
            raise ValueError("layers: ReplaceMe is folded into the block before the cut, and layer 0 has none")
        return chosen

    def _warn(self, stats: BoundaryMoments | None) -> None:
        if stats is None or self.operator in ("none", "identity"):
            return
        if stats.n < stats.size:
            warnings.warn(
                f"{stats.n} calibration tokens: N < C = {stats.size}, rank-deficient", UserWarning, stacklevel=3
            )
        elif stats.n < 4 * stats.size and self.ridge_mode == "absolute":
            warnings.warn(f"{stats.n} calibration tokens are fewer than 4 C = {4 * stats.size}; "
                          'ridge_mode="relative", ridge=1e-3 is advised', UserWarning, stacklevel=3)  # fmt: skip

    # --- calibration ---

    def _pairs(self, removed: list[int]) -> list[Pair]:
        return runs(removed) if self.per == "run" else [(layer, layer + 1) for layer in removed]

    def _calibrate(self, model: PreTrainedModel, data: list[Batch], chosen: list[int] | None, depth: int,
                   ) -> tuple[dict[Pair, BoundaryMoments], LayerSimilarity | None]:  # fmt: skip
        """One pass: for the blocks that were named, or for every candidate of a criterion."""
        if chosen is not None:
            return (self._collect(model, data, self._pairs(chosen)) if chosen else {}), None
        last = depth if self.allow_last else depth - 1
        if self.per == "layer" or self.n_remove == 1:
            candidates = [(layer, layer + 1) for layer in range(last)]
        elif self.criterion == "shortgpt":  # any run may come out: their sums wait for a second pass
            candidates = []
        else:
            candidates = [(start, start + self.n_remove) for start in range(1, last - self.n_remove + 1)]
        return collect(model, data, candidates, similarity=True, **self._what(model))

    def _collect(self, model: PreTrainedModel, data: list[Batch], pairs: list[Pair]) -> dict[Pair, BoundaryMoments]:
        return collect(model, data, pairs, **self._what(model))[0]

    def _what(self, model: PreTrainedModel) -> dict[str, Any]:
        size = models.structure(model).hidden_size
        return {
            "row_weight": self.row_weight,
            "scales": self.operator == "linearpatch-d",
            "rotation": rotation(size) if self.operator == "linearpatch-r" else None,
            "mlp": self.operator.startswith("replaceme"),
            "products": self.stats_dtype,
        }

    # --- operators ---

    def solve(self, stats: BoundaryMoments) -> Operator:
        """The operator of one boundary."""
        options = dict(self.options or {})
        if self.operator.startswith("linearpatch"):  # the official code averages sequences where there is one cut
            options.setdefault("ratio", "sequence" if len(getattr(self, "stats_", ())) <= 1 else "overall")
        if self.operator in (*RIDGED, "affine"):
            options = {"ridge": self.ridge, "ridge_mode": self.ridge_mode, **options}
        if self.operator in ("ghost", "affine"):
            options.setdefault("solver", self.solver)
        return fit_operator(stats, kind=self.operator, skip_first=self.skip_first, **options)

    def _insert(self, model: PreTrainedModel, fresh: dict[Pair, BoundaryMoments]) -> PreTrainedModel:
        before: dict[int, Operator] = {}
        rows = []
        open_run: Operator | None = None
        for (start, end), stats in self.stats_.items():
            began = time.perf_counter()
            operator = self.solve(stats)
            seconds = time.perf_counter() - began
            held_out = {"held_out": _residual(operator, fresh.get((start, end)))}
            rows.append({**self._row((start, end), stats, seconds), **self._residuals(operator, stats), **held_out,
                         **describe(operator.weight)})  # fmt: skip
            composed = operator if open_run is None else open_run.then(operator)
            open_run = composed if end in self.removed_ else None
            if open_run is None:
                before[end] = composed
        self.report_ = pd.DataFrame(rows)
        plain = self.operator in ("none", "identity")
        keep: Any = "copy" if self.copy else "consume"
        self.operators_ = {end - sum(r < end for r in self.removed_): o for end, o in before.items()}
        return shorten(model, self.removed_, {} if plain else before, keep=keep)

    def _fold(self, model: PreTrainedModel, data: list[Batch], fresh: dict[Pair, BoundaryMoments]) -> PreTrainedModel:
        """ReplaceMe: one T per run, in the weights of the block before it."""
        if self.per != "run":
            raise ValueError("per: ReplaceMe folds one map per run of removed blocks; expected 'run'")
        if hasattr(models.structure(model).blocks[0], "post_feedforward_layernorm"):
            raise TypeError("replaceme: a norm follows the MLP of this family, so that nothing can be folded into it")
        folds, rows = {}, []
        for (start, end), stats in self.stats_.items():
            began = time.perf_counter()
            if self.operator == "replaceme":
                matrix = replaceme(stats, ridge=self.ridge)
            else:
                matrix = replaceme_cosine(*_activations(model, data, (start, end)), **dict(self.options or {}))
            seconds = time.perf_counter() - began
            folds[start - 1] = matrix
            change = matrix - torch.eye(stats.size, dtype=matrix.dtype, device=matrix.device)
            inside, outside = (_mlp_residual(change, s) for s in (stats, fresh.get((start, end))))
            rows.append({**self._row((start, end), stats, seconds), "residual": inside, "held_out": outside,
                         **describe(matrix)})  # fmt: skip
        self.report_ = pd.DataFrame(rows)
        self.operators_ = {i - sum(r < i for r in self.removed_): Operator(t, t.new_zeros(len(t)))
                           for i, t in folds.items()}  # fmt: skip
        return shorten(model, self.removed_, {}, folds, keep="copy" if self.copy else "consume")

    def _row(self, pair: Pair, stats: BoundaryMoments, seconds: float) -> dict[str, Any]:
        start, end = pair
        return {"removed": f"{start}:{end}", "before": end - sum(r < end for r in self.removed_), "tokens": stats.n,
                "seconds": seconds}  # fmt: skip

    @staticmethod
    def _residuals(operator: Operator, stats: BoundaryMoments) -> dict[str, float]:
        return {
            "residual": stats.residual(*operator),
            "residual_weighted": stats.residual(*operator, weighted=stats.weighted_rest is not None),
            "residual_without_first": stats.residual(*operator, first=False),
        }


def _residual(operator: Operator, stats: BoundaryMoments | None) -> float:
    return float("nan") if stats is None else stats.residual(*operator)


def _mlp_residual(change: Tensor, stats: BoundaryMoments | None) -> float:
    if stats is None or stats.mlp is None:
        return float("nan")
    return stats.mlp.residual(change) / stats.mlp.y_square


def _activations(model: PreTrainedModel, data: list[Batch], pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
    """A, X_pre and X_post of all tokens: what a loss that is no sum of squares needs."""
    found: list[tuple[Tensor, ...]] = []
    start, end = pair
    for batch in data:
        states, written = layer_inputs(model, batch, {start, end}, {start - 1})
        token = slice(None) if batch.mask is None else batch.mask.bool().to(states[start].device)
        found.append(
            tuple(
                value[token].reshape(-1, value.shape[-1]) for value in (written[start - 1], states[start], states[end])
            )
        )
    mlp, pre, post = (torch.cat(parts) for parts in zip(*found, strict=True))
    return mlp, pre, post
