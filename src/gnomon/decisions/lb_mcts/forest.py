"""A random forest for few points, compiled: regression trees on bootstrap samples that keep mean and variance of leaves.

As in SMAC: split points are drawn uniformly between the two neighbouring values, five sixths of the features are looked at in a
split, and a forest's variance is that of its trees' means plus the mean variance within leaves.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
from numba import njit

LEAF = -1


@njit(cache=True, nogil=True)
def sort(keys, values, size):
    """Insertion sort of two arrays by the first: nodes are small, and nothing is allocated."""
    for i in range(1, size):
        key, value = keys[i], values[i]
        j = i - 1
        while j >= 0 and keys[j] > key:
            keys[j + 1], values[j + 1] = keys[j], values[j]
            j -= 1
        keys[j + 1], values[j + 1] = key, value


@njit(cache=True, nogil=True)
def grow(X, y, sample, min_leaf, uniforms, feature, threshold, left, right, mean, variance):
    """Grow one tree on the rows ``sample``; fills the node arrays.

    ``uniforms`` (nodes, tried + 1) decides which features a node looks at, and where between two values it cuts.
    """
    n, tried = sample.size, uniforms.shape[1] - 1
    rows = sample.copy()
    keys, values = np.empty(n), np.empty(n)
    columns = np.arange(X.shape[1])
    starts, stops = np.zeros(2 * n, np.int64), np.zeros(2 * n, np.int64)
    stops[0] = n
    count, node = 1, 0
    while node < count:
        start, stop = starts[node], stops[node]
        size = stop - start
        total = 0.0
        for i in range(start, stop):
            total += y[rows[i]]
        mean[node] = total / size
        spread = 0.0
        for i in range(start, stop):
            spread += (y[rows[i]] - mean[node]) ** 2
        variance[node] = spread / size
        feature[node] = LEAF
        best, at, lower, upper = 1e-12 * spread, LEAF, 0.0, 0.0
        if size >= 2 * min_leaf and spread > 0:
            for k in range(tried):  # a partial shuffle
                other = k + int(uniforms[node, k] * (columns.size - k))
                columns[k], columns[other] = columns[other], columns[k]
                for i in range(size):
                    keys[i], values[i] = X[rows[start + i], columns[k]], y[rows[start + i]] - mean[node]
                sort(keys, values, size)
                below = 0.0
                for i in range(size - min_leaf):
                    below += values[i]
                    if i + 1 >= min_leaf and keys[i] < keys[i + 1]:
                        gain = below**2 * size / ((i + 1.0) * (size - i - 1.0))
                        if gain > best:
                            best, at, lower, upper = gain, columns[k], keys[i], keys[i + 1]
        if at != LEAF:
            cut = lower + (upper - lower) * uniforms[node, tried]
            if cut >= upper:  # rounding
                cut = lower
            feature[node], threshold[node] = at, cut
            low, high = start, stop - 1
            while low <= high:
                if X[rows[low], at] <= cut:
                    low += 1
                else:
                    rows[low], rows[high] = rows[high], rows[low]
                    high -= 1
            left[node], right[node] = count, count + 1
            starts[count], stops[count] = start, low
            starts[count + 1], stops[count + 1] = low, stop
            count += 2
        node += 1


@njit(cache=True, nogil=True)
def descend(x, feature, threshold, left, right):
    """The leaf of one row."""
    node = 0
    while feature[node] != LEAF:
        node = left[node] if x[feature[node]] <= threshold[node] else right[node]
    return node


@njit(cache=True, nogil=True)
def fit(X, y, samples, min_leaf, uniforms):
    """All trees: arrays (T, 2n) of features, thresholds, children, means and variances."""
    trees, n = samples.shape
    feature = np.full((trees, 2 * n), LEAF, np.int64)
    left, right = np.zeros((trees, 2 * n), np.int64), np.zeros((trees, 2 * n), np.int64)
    threshold, mean, variance = np.zeros((trees, 2 * n)), np.zeros((trees, 2 * n)), np.zeros((trees, 2 * n))
    for t in range(trees):
        grow(X, y, samples[t], min_leaf, uniforms[t], feature[t], threshold[t], left[t], right[t], mean[t], variance[t])
    return feature, threshold, left, right, mean, variance


@njit(cache=True, nogil=True)
def predict(X, feature, threshold, left, right, mean, variance):
    """Mean (m,) and variance (m,) for rows (m, F)."""
    trees = feature.shape[0]
    out, spread = np.zeros(len(X)), np.zeros(len(X))
    for i in range(len(X)):
        first = second = within = 0.0
        for t in range(trees):
            leaf = descend(X[i], feature[t], threshold[t], left[t], right[t])
            first += mean[t, leaf]
            second += mean[t, leaf] ** 2
            within += variance[t, leaf]
        out[i] = first / trees
        spread[i] = max(second / trees - out[i] ** 2, 0.0) + within / trees
    return out, spread


@njit(cache=True, nogil=True)
def out_of_bag(X, samples, feature, threshold, left, right, mean):
    """For each training row the mean over the trees whose bootstrap left it out; NaN where there is none."""
    trees, n = samples.shape
    total, votes = np.zeros(n), np.zeros(n)
    inside = np.zeros(n, np.bool_)
    for t in range(trees):
        inside[:] = False
        for i in samples[t]:
            inside[i] = True
        for i in range(n):
            if not inside[i]:
                total[i] += mean[t, descend(X[i], feature[t], threshold[t], left[t], right[t])]
                votes[i] += 1
    for i in range(n):
        total[i] = total[i] / votes[i] if votes[i] > 0 else np.nan
    return total
