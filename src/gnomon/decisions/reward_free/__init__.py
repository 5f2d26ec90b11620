"""Reward-free exploration in few phases: many agents act in parallel copies of an MDP and are re-programmed only rarely.

No reward is known yet; afterwards any can be optimised in the learned model, with a certificate that covers all rewards at
once. In each phase agents are sent, by policies planned from the phases before, to every state that can be reached, and try
every action there; with as many phases as steps polynomially many agents are enough on every MDP, with fewer the hard ones
cost exponentially many. That is a worst case: where acting at random mixes well, one phase does as well, and the default
``reuse=True`` (each step's estimate takes the data of all phases) makes the phases cost nothing there.

Use it for simulators, robots or user tests whose policies can be changed only between rounds: :class:`PhasedRewardFree` on
a :class:`TabularMDP` (gymnasium's toy-text tables, your own arrays), on a :class:`StepFunction`, or on any gymnasium
environment with discrete spaces by sampling it. The agents never meet: they are copies in copies of one MDP, not players in
a shared one. :func:`agents_needed` says what the theory asks for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
