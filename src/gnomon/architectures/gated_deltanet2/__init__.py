"""Gated DeltaNet-2: linear attention that erases by key channel and writes by value channel.

A linear-time token mixer keeps a matrix S for each head instead of all past tokens. Gated DeltaNet and KDA edit it: one
gate a token says both how much of what the key finds is erased and how much of the new value is written. Here the two
are told apart, and each acts channel by channel: ``S_t = (I - k (b * k)^T) Diag(exp g) S_{t-1} + k (w * v)^T``. Around
the rule stand four ways to compute it (the definition, the chunkwise form, a compiled recurrence for CPUs, Triton
kernels), the layer, and a causal language model for transformers that may mix in sliding-window attention.

Use it where attention was, to train or serve models of long sequences with O(T) training and constant memory in
decoding; or, with other choices of gates, as KDA, Gated DeltaNet, DeltaNet, Mamba-2's recurrence or gated linear
attention in one and the same block.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
