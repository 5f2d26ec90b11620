"""Probabilistic circuits, queried exactly, measured against Transformers: where they fall short and by how much.

A circuit of sums and products over a tree of variables (:class:`Circuit`) answers any marginal, conditional or
completion exactly, which no Transformer can; in return its distribution across each cut of its tree is a mixture of
``width`` products. Here are the circuits (folded layers, EM and Adam, one-pass left-to-right prediction), sums of
circuits on several trees (:class:`VtreeSum`), next-token models that exchange encoder and head with Transformers
(:class:`PCLanguageModel`), and provable lower bounds: of a mixture head (:func:`output_bound`), of a cut
(:func:`context_bound`), of every tree at once (:func:`vtree_certificate`), next to the measured rank
(:func:`separation_rank`).

Use it to model discrete data with any entry missing, to see which tree suits them, and to learn, before training
longer, whether a gap to a Transformer is one of the tree, the width or the optimiser.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
