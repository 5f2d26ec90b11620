"""Muon on river-valley landscapes: fast early, overshooting late, and an optimiser of two stages.

The polar factor of the gradient has no scale: along a flat direction (the river) Muon moves at unit speed however small
the slope, but it cannot stop at the bottom, where only steps below twice the Newton distance decrease the loss.
:class:`TwoStage` trains with Muon and hands its matrices over to an optimiser that sees scale, at a step, at a fraction
of training, or when nothing is travelled any more; :class:`MuonThenAdamW` sets that up for a model;
:class:`MixedSpikedSensing` is the landscape on which all of it can be computed; :class:`RiverMonitor` tells in any
training run whether updates still travel or only bounce.

Use it to finish a Muon run without a schedule that must know the horizon, or to see whether yours is past its river.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
