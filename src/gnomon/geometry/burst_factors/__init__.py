"""Burst factors: latent variables of a population's events, and separate ones of its bursts.

From spike times: :func:`parse_bursts` counts events and bursts, :class:`BurstFactorAnalysis` finds factors that drive
the event rates and factors that drive the probability that an event is a burst, with their loadings and their relation;
:func:`burst_test` and :func:`burst_code_report` tell whether there is a shared burst code at all, beyond private drift,
beyond what rates make by chance, and beyond the rate code. No external covariate is needed.

Use it for simultaneous recordings of many neurons; for two or three cells the parsing and the tests still serve.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
