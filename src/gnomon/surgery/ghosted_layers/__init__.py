"""Closed-form linear recovery at the boundary of removed layers.

A decoder language model loses some of its blocks, for latency and memory, and gets most of its quality back without
training: one C x C matrix at each cut, the least-squares map between the residual stream before and after the removed
blocks, from a few thousand tokens of calibration text. Use it when you want a smaller model today and have no budget to
fine-tune; compare it with plain removal, LinearPatch and ReplaceMe, which are here too. Give a cut that removes the
block where the attention sink arises ``row_weight="sqrt", ridge=1e-2, ridge_mode="relative"`` (see the study).

>>> from gnomon.surgery import GhostedLayers
>>> short = GhostedLayers(n_remove=5).fit_transform(model, tokens)  # doctest: +SKIP
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "calibrate": ["layer_similarity"],
        "method": ["GhostedLayers", "fit_operator"],
        "model": ["GhostedLayer"],
        "moments": ["BoundaryMoments"],
        "selection": ["LayerSimilarity"],
    },
)
