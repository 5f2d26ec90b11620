"""The falsifier: few-pixel attacks. Whatever it finds is confirmed by the person's own model."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from gnomon.guarantees.focusbranch.network import Network

CORNERS = 64  # most corners of a set's box that are all tried
CANDIDATES = 1024  # pixels that the greedy attack looks at
CHUNK = 4096  # images evaluated at a time


def margin(network: Network, images: Tensor, label: int) -> Tensor:
    """f_y less the largest other score, (n,)."""
    scores = network(images)
    rest = scores.clone()
    rest[:, label] = -math.inf
    return scores[:, label] - rest.amax(1)


class Attack:
    """Attacks on one image.

    Parameters
    ----------
    network : Network
        In float32.
    image : tensor (*shape)
        x.
    label : int
        y.
    """

    def __init__(self, network: Network, image: Tensor, label: int):
        self.network, self.label = network, label
        self.shape, self.c, self.v = network.shape, network.channels, network.pixels
        self.x = image.reshape(self.c, self.v)
        self.corners = (
            torch.tensor(list(itertools.product((0.0, 1.0), repeat=self.c))) if self.c <= 4 else torch.eye(self.c)
        )

    def margins(self, flat: Tensor) -> Tensor:
        """Margins (n,) of images (n, c, v)."""
        with torch.no_grad():
            parts = [margin(self.network, part.reshape(-1, *self.shape), self.label) for part in flat.split(CHUNK)]
        return torch.cat(parts)

    def confirmed(self, flat: Tensor, t: int) -> np.ndarray | None:
        """The image as float32 if it differs in at most t pixels, lies in [0, 1] and the real model errs on it."""
        flat = flat.float().clamp(0, 1)
        if int((flat != self.x).any(0).sum()) > t:
            return None
        found = flat.reshape(self.shape)
        scores = self.network.real(found[None])[0]
        if int(scores.argmax()) == self.label:
            return None
        result: np.ndarray = found.numpy().copy()
        return result

    def _first(self, flat: Tensor, margins: Tensor, t: int) -> np.ndarray | None:
        for i in torch.argsort(margins)[:5].tolist():
            if margins[i] <= 0 and (found := self.confirmed(flat[i], t)) is not None:
                return found
        return None

    def gradient(self, t: int) -> np.ndarray | None:
        """Against each class, the t pixels that gain most to first order, moved to their better corner."""
        x = self.x.clone().requires_grad_()
        scores = self.network(x.reshape(1, *self.shape))[0]
        tried = []
        for j in range(len(scores)):
            if j == self.label:
                continue
            (slope,) = torch.autograd.grad(scores[self.label] - scores[j], x, retain_graph=True)
            low, high = -slope * self.x, slope * (1 - self.x)
            best = torch.minimum(low, high).sum(0).topk(min(t, self.v), largest=False).indices
            moved = self.x.clone()
            moved[:, best] = (slope < 0).float()[:, best]
            tried.append(moved)
        flat = torch.stack(tried)
        return self._first(flat, self.margins(flat), t)

    def greedy(self, t: int, beam: int = 4) -> np.ndarray | None:
        """Pixel after pixel the one whose best corner lowers the margin most, with a beam."""
        front = [(self.x, frozenset[int]())]
        pixels = self._steepest(CANDIDATES)
        for _ in range(t):
            tried: list[tuple[float, Tensor, frozenset[int]]] = []
            for base, used in front:
                flat = (
                    base.expand(len(pixels) * len(self.corners), -1, -1)
                    .clone()
                    .reshape(len(pixels), -1, self.c, self.v)
                )
                for i, p in enumerate(pixels):
                    flat[i, :, :, p] = self.corners
                flat = flat.reshape(-1, self.c, self.v)
                margins = self.margins(flat)
                for i in torch.argsort(margins)[: 2 * beam].tolist():
                    tried.append((float(margins[i]), flat[i], used | {pixels[i // len(self.corners)]}))
            tried.sort(key=lambda item: item[0])
            front, seen = [], set()
            for value, flat, used in tried:
                if value <= 0 and (found := self.confirmed(flat, t)) is not None:
                    return found
                if used not in seen and len(front) < beam:
                    seen.add(used)
                    front.append((flat, used))
        return None

    def _steepest(self, n: int) -> list[int]:
        """The n pixels whose change gains most to first order."""
        if self.v <= n:
            return list(range(self.v))
        x = self.x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(margin(self.network, x.reshape(1, *self.shape), self.label).sum(), x)
        return torch.minimum(-slope * self.x, slope * (1 - self.x)).sum(0).topk(n, largest=False).indices.tolist()

    def quick(self, t: int) -> np.ndarray | None:
        """Before a search."""
        found = self.gradient(t)
        return self.greedy(t) if found is None else found

    def on_sets(self, sets: np.ndarray, rng: np.random.Generator, steps: int = 5) -> np.ndarray | None:
        """Corners of each set's box, and projected gradient from the better ones.

        Parameters
        ----------
        sets : int array (n, t)
            Pixels that may change.
        """
        n, t = sets.shape
        free = self.c * t
        if 2**free <= CORNERS:
            corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=free)))
        else:
            corners = torch.from_numpy(rng.integers(0, 2, (CORNERS // 2, free)).astype(np.float32))
        at = torch.from_numpy(np.ascontiguousarray(sets, np.int64))
        per = max(1, CHUNK // len(corners))
        for start in range(0, n, per):
            some = at[start : start + per]
            flat = self.x.expand(len(some), len(corners), -1, -1).clone()
            places = some[:, None, None, :].expand(-1, len(corners), self.c, -1)
            flat.scatter_(3, places, corners.reshape(1, len(corners), self.c, t).expand(len(some), -1, -1, -1))
            margins = self.margins(flat.reshape(-1, self.c, self.v)).reshape(len(some), -1)
            best = margins.argmin(1)
            chosen = flat[torch.arange(len(some)), best]
            if (found := self._first(chosen, margins.amin(1), t)) is not None:
                return found
            if (found := self._descend(chosen, some, t, steps)) is not None:
                return found
        return None

    def _descend(self, flat: Tensor, sets: Tensor, t: int, steps: int) -> np.ndarray | None:
        """Signed projected gradient on each set's own pixels."""
        mask = torch.zeros(len(flat), 1, self.v).scatter_(2, sets[:, None, :], 1.0)
        for step in range(steps):
            flat = flat.detach().requires_grad_()
            margins = margin(self.network, flat.reshape(-1, *self.shape), self.label)
            if (found := self._first(flat.detach(), margins.detach(), t)) is not None:
                return found
            (slope,) = torch.autograd.grad(margins.sum(), flat)
            flat = (flat - 0.5 / (step + 1) * slope.sign() * mask).clamp(0, 1)
        return self._first(flat.detach(), self.margins(flat.detach()), t)
