"""The circuit evaluated as its definition reads, one unit and one row at a time: what the folded layers are tested with."""

from __future__ import annotations

from typing import Any

import numpy as np


def log_likelihood(circuit: Any, row: Any) -> float:
    """log p(x) of one row (-1 missing) of a fitted circuit, node by node in plain probabilities."""
    leaf, weight, root = (w.detach().exp().numpy() for w in circuit.module_.log_weights())
    value = {t: leaf[t, :, row[t]] if row[t] >= 0 else np.ones(leaf.shape[1]) for t in range(len(leaf))}
    for i, (node, left, right) in enumerate(circuit.module_.tree.nodes):
        if circuit.module_.product == "cp":
            value[node] = (weight[i, 0] @ value[left]) * (weight[i, 1] @ value[right])
        else:
            value[node] = weight[i] @ np.outer(value[left], value[right]).ravel()
    return float(np.log(root @ value[max(value)]))
