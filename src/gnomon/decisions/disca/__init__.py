"""Cultural alignment of a language model without training: its answers move as far as a country's personas disagree.

One model serves many countries. A few personas of a country answer beside the base model; where they disagree the base's
answer is moved by a loss-averse weighing of all shifts, at most as far as they disagree and less where one persona alone
makes the difference. Where they agree nothing moves, so that a bias which all personas share does no harm.

Use :class:`DISCA` with a local model or an endpoint, :class:`PersonaPanel` for the personas (grounded in your own World
Values Survey file, or by name alone), :func:`correct` on gaps of your own, and :func:`moral_scenarios` with
:func:`misalignment` to compare a model with what people in 130 countries preferred.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
