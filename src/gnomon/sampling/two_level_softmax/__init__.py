"""Two-level softmax sampling, corrected for the size and the dispersion of clusters.

Draws items from p(i|u) proportional to exp(beta <u, v_i>) in time about sqrt(n) of a pass over all n: first a cluster,
then an item inside it. Use it for exploration in recommendation, for the negatives of a sampled softmax or to propose
tokens, where n is tens of thousands or more and an exact softmax is too slow. Every draw comes with its exact proposal
probability, so that estimates can be reweighted, and ``corrected=True`` turns proposals into draws from the exact
softmax by Metropolis-Hastings. For a few thousand items the exact softmax is simpler and fast enough.
"""

from .loss import sampled_softmax_loss
from .method import Bounds, Divergence, TwoLevelSoftmax, two_level_logits

__all__ = ["Bounds", "Divergence", "TwoLevelSoftmax", "sampled_softmax_loss", "two_level_logits"]
