"""Algorithm selection and tuning by one search tree that a language model and Bayesian optimisation share.

A tree of algorithms and tried configurations says where to look next; what to try there comes at first from prior knowledge (a
language model behind an endpoint, a local one, or a table of documented defaults) and, as the random-forest surrogate of each
algorithm learns to rank its trials, more and more from Bayesian optimisation. Fast from the first trials, and numerical at the end.

Use it to find the algorithm and hyperparameters for a table with few evaluations: :class:`LBMCTS` is a scikit-learn estimator over
:func:`sklearn_space`; over any :class:`CASHSpace` it has ``ask`` and ``tell`` for an objective of your own.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
