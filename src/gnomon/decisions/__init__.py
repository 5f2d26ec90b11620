"""Decisions: bandits, exploration, search and social choice, each beside its baselines and the study of its paper's claims."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
