"""Byzantine-robust training: clients may lie, and the model is still trained in few rounds, with a certificate.

The server merges the clients' gradients by a rule that f liars cannot steer (nearest-neighbour mixing and a trimmed mean by
default). The merged gradient is an inexact gradient of the honest clients' objective, and every solver that stands an
inexact gradient becomes a robust one: gradient descent, Nesterov's, a proximal method that uses data at the server to need
far fewer rounds (``pigs``), and its accelerated form (``aeg``). The certificate says how inexact, and what floor follows.

Use it for federated or multi-party training of convex models where some parties may be faulty or malicious:
:class:`ByzantineClassifier` for tables, :class:`RobustTrainer` for gradients of your own, :func:`robust_all_reduce` on
torch.distributed, :func:`to_flower_strategy` in Flower. :class:`InexactOracle` serves compressed or quantised gradients.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
