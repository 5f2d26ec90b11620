"""Stable 1-semiseparable masks and the split-sequence state space dual (SSD) layer.

A linear-time layer with a scalar decay (Mamba-2, RetNet, GLA and their kin) multiplies its scores by the mask
``L[i, j] = exp(a[j+1] + ... + a[i])``. The usual way to it, a difference of prefix sums, loses every digit after one
strong decay, and on a GPU, where the scan is a tree, gives entries above one, infinities and NaN. Here the mask is
built hierarchically from products of numbers in [0, 1], with one exponential a token and nothing subtracted: it is
both more accurate and faster. Around it stand the SSD layer whose parallel split is independent of its compute tile,
its backward pass, its decode step and a Mamba-2 block.

Use it to train or serve such a layer where decays are strong or sequences packed (``a = -inf`` is a hard reset), to
measure what the difference form does to the decays of your own model (:func:`segsum_report`), or to convert a
``transformers`` Mamba-2 in place (:func:`use_semiseparable`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
