"""From a profile to time steps: by density, or by pruning the fine grid."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from gnomon.sampling.geosprint.hyperplanarity import Reduce, Span, reduced, residuals

WIDTH = 5  # of the moving average


def grid_nodes(total: int, grid: int) -> np.ndarray:
    """Times of the fine grid: ``grid`` of them (all T where there are fewer), from T - 1 to 0."""
    return np.linspace(total - 1, 0, min(grid, total)).round().astype(int)


def smooth(profile: np.ndarray, width: int = WIDTH) -> np.ndarray:
    """Moving average, edges padded with their own value."""
    return np.convolve(np.pad(profile, width // 2, mode="edge"), np.ones(width) / width, mode="valid")


def interval_weights(profile: np.ndarray, gamma: float, floor: float) -> np.ndarray:
    """The share of the steps that each interval of the grid gets: (1 - eta) r^gamma / sum r^gamma + eta / J."""
    powered = smooth(profile) ** gamma
    return (1 - floor) * powered / powered.sum() + floor / len(profile)


def density_steps(profile: np.ndarray, nodes: np.ndarray, n_steps: int, gamma: float = 1.0, floor: float = 0.1,
                  tolerance: float = 1e-6) -> list[int]:  # fmt: skip
    """N distinct time steps, dense where the profile is high; both ends of the grid are among them.

    Parameters
    ----------
    profile : ndarray of shape (J,)
        r of each interval of the grid.
    nodes : ndarray of shape (J + 1,)
        Decreasing times.
    n_steps : int
        N, from 2 to the number of times there are.
    gamma : float
        Exponent of the density; 1/2 equidistributes the local error h^2 r, 1 also weighs how it propagates.
    floor : float
        eta in [0, 1]: the share that is spread evenly.
    tolerance : float
        A profile that is nowhere above it says nothing: uniform steps, with a UserWarning.
    """
    if profile.max() <= tolerance:
        warnings.warn(f"the profile is degenerate (r at most {profile.max():.2g}): any steps are exact, uniform ones are "
                      "given", UserWarning, stacklevel=2)  # fmt: skip
        weights = np.abs(np.diff(nodes)) / (nodes[0] - nodes[-1])
    else:
        weights = interval_weights(profile, gamma, floor)
    cumulative = np.concatenate([[0.0], np.cumsum(weights)])
    times = np.interp(np.linspace(0, cumulative[-1], n_steps), cumulative, nodes.astype(float))
    return distinct_steps(times, n_steps)


def distinct_steps(times: np.ndarray, n_steps: int) -> list[int]:
    """Rounded; duplicates go to the (floor) midpoint of the largest gap that remains, of equal ones the noisiest."""
    kept = sorted(set(np.rint(times).astype(int).tolist()), reverse=True)
    gaps = [(-(a - b), -a, b) for a, b in pairwise(kept)]
    heapq.heapify(gaps)
    while len(kept) < n_steps:
        _, start, end = heapq.heappop(gaps)
        middle = (-start + end) // 2
        kept.append(middle)
        heapq.heappush(gaps, (-(-start - middle), start, middle))
        heapq.heappush(gaps, (-(middle - end), -middle, end))
    return sorted(kept, reverse=True)


def removal_order(states: torch.Tensor, order: int = 2, span: Span = "linear", reduce: Reduce = "mean") -> list[int]:
    """Interior nodes of stored trajectories (J + 1, n, d) in the order in which pruning drops them.

    The node that goes is the one whose r, evaluated on the nodes that remain, is least; of equals the noisiest. A lazy
    heap: a removal changes the cost of its neighbours only, and outdated entries are skipped when they come up.
    """
    remaining = list(range(len(states)))
    cost: dict[int, float] = {}
    heap: list[tuple[float, int]] = []

    def evaluate(node: int) -> float:
        """r of the interval after the node (as in the profile, the first ones bear the value of the next)."""
        at = max(remaining.index(node), min(order - 1, len(remaining) - 2))
        window = [states[i] for i in remaining[max(0, at - order + 1) : at + 2]]
        return float(reduced(residuals(window, span).cpu().numpy().astype(np.float64), reduce))

    def renew(nodes: Sequence[int]) -> None:
        for node in nodes:
            cost[node] = evaluate(node)
            heapq.heappush(heap, (cost[node], node))

    renew(remaining[1:-1])
    dropped: list[int] = []
    while len(remaining) > 2:
        value, node = heapq.heappop(heap)
        if cost.get(node) != value:
            continue
        at = remaining.index(node)
        del remaining[at], cost[node]
        dropped.append(node)
        # windows of the node before and of the next m - 1 hold the removed one; the first m - 1 borrow each other's
        first = max(1, at - 1)
        first = 1 if first < order else first
        renew(remaining[first : min(max(at + order - 1, order), len(remaining) - 1)])
    return dropped


def step_density(timesteps: Sequence[int], nodes: np.ndarray) -> np.ndarray:
    """1 / width of the scheduled step over the middle of each grid interval, shape (J,)."""
    middle = (nodes[:-1] + nodes[1:]) / 2
    ascending = np.asarray(timesteps)[::-1]
    at = np.clip(np.searchsorted(ascending, middle, side="right"), 1, len(ascending) - 1)
    return np.asarray(1.0 / (ascending[at] - ascending[at - 1]))
