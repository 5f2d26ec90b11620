"""Spectral gradient descent (Muon) on factorised matrices: the optimiser, its flow, and what it does to a spectrum.

Muon steps along the polar factor of the gradient. On a product A B, as in LoRA, that makes the square roots of all
singular values grow at one and the same rate, so that the smallest is learnt first, where gradient descent learns
the largest first and leaves the others behind. :class:`SpectralDescent` is the optimiser, with the exact, smoothed or
Newton-Schulz polar map and all parameters of one shape in one batched call; :func:`spectral_flow` integrates its
continuous limit on ``1/2 ||AB - Y||_F^2`` and says where it ended; :class:`SpectralFactorization` is a scikit-learn
transformer that is trained by it; :class:`LoraSpectrum` and :class:`SpectrumCallback` show whether the adapters of a
``peft`` model grow uniformly or one direction at a time.

Use it to fine-tune adapters or other factorised layers with Muon on CPU or GPU (only 2-D parameters: give the others
to AdamW), or to see what an optimiser does to the spectrum of your own adapters.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
