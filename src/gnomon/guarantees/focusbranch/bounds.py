"""Certified lower bounds of a classifier's margins over nodes: CROWN, made concrete on each node's own set.

One backward pass a layer. A bound of many nodes of one image shares what does not depend on the node: the first layer's
functions, and every neuron whose sign is certain on the ball that holds all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.guarantees.focusbranch import concretise
from gnomon.guarantees.focusbranch.network import (
    Add,
    Conv,
    Input,
    Linear,
    MaxPool,
    Network,
    Relu,
    Reshape,
    Scale,
    Step,
    load_network,
)

BUDGET = 2_000_000  # coefficients held at a time: larger blocks leave the cache
BOX = np.iinfo(np.int64).max  # as l: every pixel of S may change, whatever t


@dataclass
class NodeBounds:
    """What is known on each of B nodes.

    Attributes
    ----------
    margins : tensor (B, classes - 1)
        Lower bounds of the label's score less each other class's, in the order of the classes.
    lower, upper : dict of int to tensor (B, n)
        Bounds of what goes into each ReLU or MaxPool, by step.
    """

    margins: Tensor
    lower: dict[int, Tensor]
    upper: dict[int, Tensor]

    def __getitem__(self, rows: Any) -> NodeBounds:
        return NodeBounds(self.margins[rows], {i: x[rows] for i, x in self.lower.items()},
                          {i: x[rows] for i, x in self.upper.items()})  # fmt: skip


def stack(parts: Sequence[NodeBounds]) -> NodeBounds:
    """Several as one."""
    if len(parts) == 1:
        return parts[0]
    return NodeBounds(torch.cat([p.margins for p in parts]), {i: torch.cat([p.lower[i] for p in parts]) for i in parts[0].lower},
                      {i: torch.cat([p.upper[i] for p in parts]) for i in parts[0].upper})  # fmt: skip


@dataclass
class Lines:
    """Of a ReLU (B, n): lower line ``slope z``, upper line ``upper z + intercept``."""

    slope: Tensor
    upper: Tensor
    intercept: Tensor


@dataclass
class Picks:
    """Of a MaxPool (B, n): the input that is the lower line, whether it is the upper line too, and else the constant above."""

    index: Tensor
    certain: Tensor
    top: Tensor


def relu_lines(lower: Tensor, upper: Tensor) -> Lines:
    """The adaptive relaxation: lower slope 1 where the upper bound is larger than the lower one's size, else 0."""
    width = upper - lower
    above = torch.where(lower >= 0, 1.0, torch.where(upper <= 0, 0.0, upper / width.clamp_min(1e-30)))
    slope = torch.where(lower >= 0, 1.0, torch.where(upper <= 0, 0.0, (upper > -lower).to(lower.dtype)))
    intercept = torch.where((lower < 0) & (upper > 0), -above * lower, 0.0)
    return Lines(slope.to(lower.dtype), above.to(lower.dtype), intercept.to(lower.dtype))


@dataclass
class Rows:
    """Linear functions of one step's output, carried down to the first steps that are not affine: the same for all nodes.

    ``above`` holds their coefficients (1, R, n) there, ``image`` those of the input (1, R, c, v) or None.
    """

    above: dict[int, Tensor]
    image: Tensor | None
    constant: Tensor
    shared: concretise.Shared | None = None


@dataclass
class Window:
    """The same for neurons of a convolution, restricted to the part of the image that they see.

    ``above`` (1, R, K) are coefficients at step ``at`` of the columns ``index`` (R, K), ``size`` the window (c, h, w) and
    ``origin`` its corner (R, 2).
    """

    at: int
    above: Tensor
    index: np.ndarray
    size: tuple[int, int, int]
    origin: np.ndarray
    constant: Tensor
    shared: concretise.Shared | None = None


class ImageBounds:
    """Bounds of one image and label over any nodes of its ball of t pixels.

    Parameters
    ----------
    network : Network
        In the precision to compute in.
    image : tensor, of the shape of one image
        x in [0, 1].
    label : int
        y.
    t : int
        Most pixels that change.
    ball : bool
        Bound the whole ball first, and no neuron again whose sign is certain there (valid for nodes, which lie in the
        ball, not for boxes).
    alpha_steps : int
        Steps of Adam on the lower slopes of the margins.
    """

    def __init__(self, network: Network, image: Tensor, label: int, t: int, ball: bool = True, alpha_steps: int = 0):
        self.network, self.label, self.t, self.alpha_steps = network, label, t, alpha_steps
        self.steps = network.steps
        self.dtype = next(s.weight.dtype for s in self.steps if isinstance(s, Linear | Conv))
        self.device = next(s.weight.device for s in self.steps if isinstance(s, Linear | Conv))
        self.image = image.to(self.device, self.dtype).reshape(network.channels, network.pixels)
        self._pixels = np.arange(network.pixels)[None]
        self._rows: dict[int, Rows | Window] = {}
        self._matrices: dict[Any, tuple[Tensor, tuple[int, int, int]]] = {}
        self.kinks = [i for i, s in enumerate(self.steps) if isinstance(s, Relu | MaxPool)]
        self.sources = sorted({self.steps[i].inputs[0] for i in self.kinks})
        last = len(self.steps) - 1
        contrast = -torch.eye(network.classes, dtype=self.dtype, device=self.device)
        contrast[:, label] += 1
        others = [j for j in range(network.classes) if j != label]
        self._margins = self._affine(last, contrast[others][None])
        scores = network(image.to(self.device, self.dtype)[None])[0]
        self.at_image = float((scores[label] - scores[others]).min())
        self._open = {i: np.arange(math.prod(self.steps[i].shape)) for i in self.sources}
        self.root: NodeBounds | None = None
        if ball:
            self.root = self.bound(np.zeros((1, network.pixels), bool), 0)
            for i in self.sources:
                if all(isinstance(self.steps[k], Relu) for k in self.kinks if self.steps[k].inputs[0] == i):
                    lower, upper = self.root.lower[i][0], self.root.upper[i][0]
                    self._open[i] = torch.nonzero((lower < 0) & (upper > 0)).flatten().cpu().numpy()
            self._rows.clear()

    # --- the bound ---

    def bound(self, masks: np.ndarray, l: int | np.ndarray, parent: NodeBounds | None = None,
              given: NodeBounds | None = None) -> NodeBounds:  # fmt: skip
        """Bounds on nodes.

        Parameters
        ----------
        masks : bool array (B, v)
            S of each node.
        l : int or array (B,)
            Of each node, in 0..t; ``BOX`` for the box of all changes of S.
        parent : NodeBounds of 1 or B nodes, optional
            Known on sets that contain these nodes: kept wherever it is tighter.
        given : NodeBounds of 1 or B nodes, optional
            Bounds of all that goes into a ReLU or MaxPool, not computed again.

        Returns
        -------
        NodeBounds
        """
        masks = np.ascontiguousarray(masks, bool)
        levels = np.ascontiguousarray(np.broadcast_to(np.asarray(l, np.int64), len(masks)))
        size = self.block()
        parts = []
        for start in range(0, len(masks), size):
            rows = slice(start, start + size)
            some = [p if p is None or len(p.margins) == 1 else p[rows] for p in (parent, given)]
            parts.append(self._bound(masks[rows], levels[rows], *some))
        return stack(parts)

    def block(self) -> int:
        """How many nodes are bounded at a time: so many that their coefficients stay in the cache."""
        widest = 1
        for i in self.sources:
            rows = self._rows_of(i)
            wide = 2 * len(self._open[i])
            if isinstance(rows, Window):
                wide *= rows.above.shape[2]
            else:
                wide *= max((math.prod(self.steps[k].shape) for k in rows.above), default=1)
            widest = max(widest, wide)
        return max(1, min(512, BUDGET // widest))

    def _bound(
        self, masks: np.ndarray, l: np.ndarray, parent: NodeBounds | None, given: NodeBounds | None
    ) -> NodeBounds:
        n = len(masks)
        known = parent if parent is not None else self.root
        lower: dict[int, Tensor] = {}
        upper: dict[int, Tensor] = {}
        lines: dict[int, Lines | Picks] = {}
        for i in self.sources:
            if given is not None:
                low, high = given.lower[i].expand(n, -1), given.upper[i].expand(n, -1)
            else:
                low, high = self._source(i, masks, l, lines, known)
            lower[i], upper[i] = low, high
            for k in self.kinks:
                if self.steps[k].inputs[0] == i:
                    lines[k] = (
                        self._picks(k, low, high) if isinstance(self.steps[k], MaxPool) else relu_lines(low, high)
                    )
        margins = self._least(self._margins, masks, l, lines)
        if self.alpha_steps and given is None:
            margins = torch.maximum(margins, self._optimised(masks, l, lines))
        if parent is not None:
            margins = torch.maximum(margins, parent.margins)
        return NodeBounds(margins, lower, upper)

    def _source(self, i: int, masks: np.ndarray, l: np.ndarray, lines: dict[int, Any], known: NodeBounds | None
                ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Lower and upper bounds (B, n) of the output of step i."""
        n, open_ = len(masks), self._open[i]
        rows = torch.from_numpy(open_).to(self.device)
        if known is None:
            shape = (n, math.prod(self.steps[i].shape))
            low, high = (torch.full(shape, v, dtype=self.dtype, device=self.device) for v in (-math.inf, math.inf))
        else:
            low, high = (known.lower[i].expand(n, -1).clone(), known.upper[i].expand(n, -1).clone())
        if len(open_) == 0:
            return low, high
        least = self._least(self._rows_of(i), masks, l, lines)
        fresh_low, fresh_high = least[:, : len(open_)], -least[:, len(open_) :]
        if known is None:
            low[:, rows], high[:, rows] = fresh_low, fresh_high
        else:
            low[:, rows] = torch.maximum(low[:, rows], fresh_low)
            high[:, rows] = torch.minimum(high[:, rows], fresh_high)
        return low, torch.maximum(high, low)  # they may cross by rounding

    def _picks(self, k: int, low: Tensor, high: Tensor) -> Picks:
        step = self.steps[k]
        assert isinstance(step, MaxPool)
        members = step.windows(self.steps[step.inputs[0]].shape).to(self.device)
        outside, at = members < 0, members.clamp_min(0)
        lows = torch.where(outside, -math.inf, low[:, at])
        highs = torch.where(outside, -math.inf, high[:, at])
        best = lows.argmax(-1)
        rest = highs.scatter(-1, best[..., None], -math.inf).amax(-1)
        chosen = torch.gather(at.expand(len(low), -1, -1), -1, best[..., None])[..., 0]
        return Picks(chosen, lows.amax(-1) >= rest, highs.amax(-1))

    # --- the least value of linear functions over nodes ---

    def _rows_of(self, i: int) -> Rows | Window:
        """What goes into a kink and its negative, for the neurons whose sign is open."""
        if i not in self._rows:
            window = self._window(i) if self.device.type == "cpu" else None
            if window is None:
                shape = self.steps[i].shape
                unit = torch.zeros(len(self._open[i]), math.prod(shape), dtype=self.dtype, device=self.device)
                unit[range(len(unit)), self._open[i]] = 1
                self._rows[i] = self._affine(i, torch.cat([unit, -unit])[None].reshape(1, -1, *shape))
            else:
                self._rows[i] = window
        return self._rows[i]

    def _affine(self, start: int, coefficients: Tensor) -> Rows:
        above: dict[int, Tensor] = {}
        constant = torch.zeros(coefficients.shape[:2], dtype=self.dtype, device=self.device)
        image, constant = self._down({start: coefficients}, constant, None, above)
        rows = Rows(above, image, constant)
        if not above and self.device.type == "cpu" and image is not None:
            rows.shared = concretise.Shared(image[0].numpy(), constant[0].numpy(), self.image.numpy(), self._pixels)
        return rows

    def _least(self, rows: Rows | Window, masks: np.ndarray, l: np.ndarray, lines: dict[int, Any]) -> Tensor:
        if isinstance(rows, Window):
            return self._least_window(rows, masks, l, lines)
        if rows.shared is not None:
            return torch.from_numpy(rows.shared(masks, l, self.t))
        start = {k: v.clone() if v.shape[0] > 1 else v for k, v in rows.above.items()}
        constant = rows.constant.expand(len(masks), -1).clone()
        image, constant = self._down(start, constant, lines, None, rows.image)
        if image is None:
            return constant
        return self._concrete(image, constant, masks, l)

    def _concrete(self, image: Tensor, constant: Tensor, masks: np.ndarray, l: np.ndarray) -> Tensor:
        if self.device.type == "cpu" and not image.requires_grad:
            image = image.expand(len(masks), -1, -1, -1)
            return torch.from_numpy(concretise.compiled(image.numpy(), constant.numpy(), self.image.numpy(), self._pixels,
                                                        masks, l, self.t))  # fmt: skip
        sets, levels = (torch.from_numpy(a.copy()).to(self.device) for a in (masks, l))
        return concretise.reference(image, constant, self.image, sets, levels, self.t)

    def _down(self, a: dict[int, Tensor], constant: Tensor, lines: dict[int, Any] | None, above: dict[int, Tensor] | None,
              image: Tensor | None = None) -> tuple[Tensor | None, Tensor]:  # fmt: skip
        """Carry coefficients down; without lines stop at kinks and leave what has come there in ``above``."""
        if image is not None:
            a = {**a, 0: image.reshape(*image.shape[:2], *self.network.shape)}
        for i in range(max(a, default=0), 0, -1):
            if (here := a.pop(i, None)) is None:
                continue
            step = self.steps[i]
            extra: Tensor | None
            if isinstance(step, Relu | MaxPool):
                if lines is None:
                    assert above is not None
                    above[i] = here.flatten(2)
                    continue
                below, extra = self._kink(step, here.flatten(2), lines[i])
            else:
                below, extra = _affine_back(step, here, self.steps)
            if extra is not None:
                constant = constant + extra
            for j in step.inputs:
                a[j] = a[j] + below if j in a else below
        found = a.get(0)
        return None if found is None else found.reshape(*found.shape[:2], *self.image.shape), constant

    def _kink(self, step: Step, a: Tensor, lines: Any) -> tuple[Tensor, Tensor]:
        shape = self.steps[step.inputs[0]].shape
        if isinstance(lines, Picks):
            n, rows = len(lines.index), a.shape[1]
            low, high = a.clamp(min=0), a.clamp(max=0)
            through = low + high * lines.certain[:, None, :]
            extra = ((high * ~lines.certain[:, None, :]) * lines.top[:, None, :]).sum(-1)
            below = torch.zeros(n, rows, math.prod(shape), dtype=a.dtype, device=a.device)
            below = below.scatter_add(-1, lines.index[:, None, :].expand(n, rows, -1), through.expand(n, rows, -1))
            return below.reshape(n, rows, *shape), extra
        if a.device.type == "cpu" and not a.requires_grad and not lines.slope.requires_grad:
            n = max(len(lines.slope), len(a))
            out, extra = torch.empty(n, *a.shape[1:], dtype=a.dtype), torch.zeros(n, a.shape[1], dtype=a.dtype)
            concretise.relu_back_whole(a.contiguous().numpy(), lines.slope.numpy(), lines.upper.numpy(), lines.intercept.numpy(),
                                       out.numpy(), extra.numpy())  # fmt: skip
            return out.reshape(n, a.shape[1], *shape), extra
        slope, above, intercept = (
            x if x.dim() == 3 else x[:, None] for x in (lines.slope, lines.upper, lines.intercept)
        )
        low, high = a.clamp(min=0), a.clamp(max=0)
        below = low * slope + high * above
        return below.reshape(*below.shape[:2], *shape), (high * intercept).sum(-1)

    # --- receptive fields ---

    def _window(self, i: int) -> Window | None:
        """Where only convolutions, scales and ReLUs lie below a convolution: its neurons by their receptive fields."""
        step = self.steps[i]
        chain = [i]
        while chain[-1] != 0:
            below = self.steps[chain[-1]]
            simple = isinstance(below, Relu | Scale) or (
                isinstance(below, Conv) and below.groups == 1 and below.dilation == (1, 1)
            )
            if not simple:
                return None
            chain.append(below.inputs[0])
        if not isinstance(step, Conv) or len(self._open[i]) == 0:
            return None
        channel, row, column = np.unravel_index(self._open[i], step.shape)
        weight = step.weight[torch.from_numpy(channel)]
        corner = np.stack([row * step.stride[0] - step.padding[0], column * step.stride[1] - step.padding[1]], 1)
        above = torch.cat([weight, -weight]).flatten(1)[None]
        bias = step.bias[torch.from_numpy(channel)]
        c, h, w = (int(n) for n in weight.shape[1:])
        window = Window(step.inputs[0], above, np.empty(0), (c, h, w), np.concatenate([corner, corner]),
                        torch.cat([bias, -bias])[None])  # fmt: skip
        window.index = self._columns_of(window)
        window.above = window.above * torch.from_numpy(window.index >= 0)
        while not isinstance(self.steps[window.at], Relu | Input):
            window = self._window_down(window)
        return window

    def _columns_of(self, window: Window) -> np.ndarray:
        """Which neuron of its step each column of a window is, -1 outside the image: (R, K)."""
        c, h, w = window.size
        shape = self.steps[window.at].shape
        row = window.origin[:, 0, None] + np.arange(h)
        column = window.origin[:, 1, None] + np.arange(w)
        good = ((row >= 0) & (row < shape[1]))[:, :, None] & ((column >= 0) & (column < shape[2]))[:, None, :]
        flat = row[:, :, None] * shape[2] + column[:, None, :]
        index = np.arange(c)[None, :, None, None] * (shape[1] * shape[2]) + flat[:, None]
        return np.where(good[:, None], index, -1).reshape(len(window.origin), -1)

    def _window_down(self, window: Window) -> Window:
        """Through one affine step."""
        step, n = self.steps[window.at], window.above.shape
        if isinstance(step, Scale):
            at = torch.from_numpy(np.maximum(window.index, 0))
            scale, offset = step.scale.flatten()[at], step.offset.flatten()[at]
            return Window(step.inputs[0], window.above * scale, window.index, window.size, window.origin,
                          window.constant + (window.above * offset).sum(-1))  # fmt: skip
        assert isinstance(step, Conv)
        matrix, size = self._matrix(window.at, window.size)
        bias = step.bias.repeat_interleave(window.size[1] * window.size[2])
        origin = window.origin * np.array(step.stride) - np.array(step.padding)
        below = Window(step.inputs[0], (window.above.reshape(-1, n[2]) @ matrix).reshape(n[0], n[1], -1), window.index, size, origin,
                       window.constant + window.above @ bias)  # fmt: skip
        below.index = self._index(window.at, below)
        if (below.index < 0).any():
            below.above = below.above * torch.from_numpy(below.index >= 0)
        return below

    def _index(self, at: int, window: Window) -> np.ndarray:
        key = ("index", at, len(window.origin), window.size, window.origin.tobytes())
        if key not in self._matrices:
            self._matrices[key] = self._columns_of(window)  # type: ignore[assignment]
        found: Any = self._matrices[key]
        return np.asarray(found)

    def _matrix(self, at: int, size: tuple[int, int, int]) -> tuple[Tensor, tuple[int, int, int]]:
        """Transposed convolution of a window as a matrix, and the size of the window below."""
        if (at, size) not in self._matrices:
            step = self.steps[at]
            assert isinstance(step, Conv)
            unit = torch.eye(math.prod(size), dtype=self.dtype).reshape(-1, *size)
            below = F.conv_transpose2d(unit, step.weight, None, step.stride)
            c, h, w = (int(n) for n in below.shape[1:])
            self._matrices[at, size] = (below.flatten(1).contiguous(), (c, h, w))
        return self._matrices[at, size]

    def _least_window(self, window: Window, masks: np.ndarray, l: np.ndarray, lines: dict[int, Any]) -> Tensor:
        n = len(masks)
        constant = window.constant.expand(n, -1).clone()
        here = Window(window.at, window.above, window.index, window.size, window.origin, constant)
        while not isinstance(self.steps[here.at], Input):
            step = self.steps[here.at]
            if isinstance(step, Relu):
                line = lines[here.at]
                out = torch.empty(n, *here.above.shape[1:], dtype=self.dtype)
                extra = torch.zeros(n, here.above.shape[1], dtype=self.dtype)
                concretise.relu_back(here.above.numpy(), line.slope.numpy(), line.upper.numpy(), line.intercept.numpy(), here.index,
                                     out.numpy(), extra.numpy())  # fmt: skip
                here = Window(step.inputs[0], out, here.index, here.size, here.origin, here.constant + extra)
            else:
                here = self._window_down(here)
        c, h, w = here.size
        if here.above.shape[0] == 1:  # no ReLU on the way: the same for all nodes
            if window.shared is None:
                window.shared = concretise.Shared(here.above.reshape(-1, c, h * w).numpy(), here.constant[0].numpy(),
                                                  self.image.numpy(), here.index[:, : h * w])  # fmt: skip
            return torch.from_numpy(window.shared(masks, l, self.t))
        image = here.above.expand(n, -1, -1).reshape(n, -1, c, h * w)
        pixels = np.ascontiguousarray(here.index[:, : h * w])
        return torch.from_numpy(concretise.compiled(image.numpy(), here.constant.numpy(), self.image.numpy(), pixels, masks,
                                                    l, self.t))  # fmt: skip

    # --- slopes chosen by gradient ---

    def _optimised(self, masks: np.ndarray, l: np.ndarray, lines: dict[int, Any]) -> Tensor:
        """Margins with the lower slopes of open ReLUs chosen for each node and class by projected Adam."""
        rows = self.network.classes - 1
        slopes = {k: line.slope[:, None].repeat(1, rows, 1) for k, line in lines.items() if isinstance(line, Lines)}
        loose = {k: (lines[k].intercept > 0)[:, None] for k in slopes}
        best = torch.full((len(masks), rows), -math.inf, dtype=self.dtype, device=self.device)
        with torch.enable_grad():
            for slope in slopes.values():
                slope.requires_grad_()
            adam = torch.optim.Adam(list(slopes.values()), lr=0.1)
            for _ in range(self.alpha_steps):
                own = {
                    k: Lines(slopes[k], line.upper, line.intercept) if k in slopes else line
                    for k, line in lines.items()
                }
                image, constant = self._down(
                    dict(self._margins.above), self._margins.constant, own, None, self._margins.image
                )
                if image is None:
                    return best
                margins = self._concrete(image.expand(len(masks), -1, -1, -1), constant, masks, l)
                best = torch.maximum(best, margins.detach())
                adam.zero_grad()
                if not margins.requires_grad:
                    return best
                (-margins.sum()).backward()
                adam.step()
                with torch.no_grad():
                    for k, slope in slopes.items():
                        slope.copy_(torch.where(loose[k], slope.clamp(0, 1), lines[k].slope[:, None]))
        return best


def _affine_back(step: Step, a: Tensor, steps: list[Step]) -> tuple[Tensor, Tensor | None]:
    """Coefficients (B, R, *out) of an affine step's output as those of its input (B, R, *in), and what the offset adds (B, R)."""
    shape = steps[step.inputs[0]].shape
    match step:
        case Linear():
            return a @ step.weight, a @ step.bias
        case Conv():
            flat = a.reshape(-1, *a.shape[2:])
            extra = [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, s, p, d, k in
                     zip(shape[1:], step.shape[1:], step.stride, step.padding, step.dilation, step.weight.shape[2:], strict=True)]  # fmt: skip
            below = F.conv_transpose2d(
                flat, step.weight, None, step.stride, step.padding, extra, step.groups, step.dilation
            )
            return below.reshape(*a.shape[:2], *shape), a.sum((-1, -2)) @ step.bias
        case Scale():
            return a * step.scale, (a * step.offset).flatten(2).sum(-1)
        case Reshape():
            return a.reshape(*a.shape[:2], *shape), None
        case Add():
            return a, None
    raise TypeError(f"model: no bounds for {type(step).__name__}")


class NodeBounder:
    """Margins of a classifier over nodes, batched.

    Parameters
    ----------
    model : torch.nn.Module, path of an ONNX file or Network
        The classifier.
    dtype : torch.dtype
        float32 screens, float64 proves.
    alpha_steps : int
        Steps of projected Adam on the lower slopes of the margins' ReLUs.
    """

    def __init__(self, model: Any, dtype: torch.dtype = torch.float32, alpha_steps: int = 0):
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype: got {dtype}; expected torch.float32 or torch.float64")
        if not isinstance(alpha_steps, int) or alpha_steps < 0:
            raise ValueError(f"alpha_steps: got {alpha_steps!r}; expected an integer of 0 or more")
        self.model, self.dtype, self.alpha_steps = model, dtype, alpha_steps

    def at(self, image: Any, label: int, t: int, ball: bool = True) -> ImageBounds:
        """The bounds of one image, to be asked for many batches of nodes."""
        x, network = checked_image(self.model, image)
        y = checked_label(label, network)
        checked_t(t, network)
        return ImageBounds(network.to(self.dtype), x, y, t, ball, self.alpha_steps)

    def __call__(self, image: Any, label: int, masks: Any, l: Any, t: int, parent: NodeBounds | None = None) -> Tensor:
        """Lower bounds (B, classes - 1) of f_y - f_j over the nodes (S, l) of an image.

        Parameters
        ----------
        image : array (c, H, W) or (v,)
            In [0, 1].
        label : int
            y.
        masks : bool array (B, v)
            S of each node.
        l : int or array (B,)
            At most t - l changed pixels lie outside S.
        t : int
            Most pixels that change.
        parent : NodeBounds, optional
            As in :meth:`ImageBounds.bound`.

        Raises
        ------
        ValueError
            For an image outside [0, 1] or of another shape, t or l out of range, masks of another shape.
        """
        own = self.at(image, label, t, ball=False)
        sets, levels = np.asarray(masks), np.asarray(l)
        if sets.dtype != bool or sets.ndim != 2 or sets.shape[1] != own.network.pixels:
            raise ValueError(
                f"masks: got {sets.dtype} of shape {sets.shape}; expected bool of shape (B, {own.network.pixels})"
            )
        if (
            levels.dtype.kind not in "iu"
            or ((levels < 0) | (levels > t)).any()
            or levels.shape not in ((), (len(sets),))
        ):
            raise ValueError(f"l: got {l!r}; expected an integer in 0..t={t}, or one for each node")
        return own.bound(sets, levels, parent).margins


def checked_image(model: Any, image: Any) -> tuple[Tensor, Network]:
    """The image as a float32 tensor, and the network that takes it."""
    x = torch.as_tensor(np.asarray(image, dtype=np.float32))
    if x.dim() not in (1, 3):
        raise ValueError(f"image: got shape {tuple(x.shape)}; expected (channels, height, width) or (pixels,)")
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise ValueError(f"image: got values from {float(x.min()):g} to {float(x.max()):g}; expected numbers in [0, 1]")
    return x, load_network(model, tuple(x.shape))


def checked_label(label: Any, network: Network) -> int:
    """The label as an int in range."""
    if isinstance(label, bool) or not isinstance(label, int | np.integer) or not 0 <= label < network.classes:
        raise ValueError(f"label: got {label!r}; expected an integer in 0..{network.classes - 1}")
    return int(label)


def checked_t(t: Any, network: Network) -> int:
    """t as an int in range."""
    if isinstance(t, bool) or not isinstance(t, int | np.integer) or not 0 <= t <= network.pixels:
        raise ValueError(f"t: got {t!r}; expected an integer in 0..{network.pixels}, the pixels of the image")
    return int(t)
