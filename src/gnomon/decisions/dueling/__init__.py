"""Dueling bandits by TG-ITE: the best of N options when all one can ask is "which of these two?".

A knock-out tree whose confidence grows as its matches get fewer finds a candidate; fresh duels, tested by e-values that may be
looked at at any time, verify it without a union bound over the arms; then the candidate stays in every duel, so that a wrong one
is found out and a right one costs nothing. Duels grow in proportion to the number of options, not faster, and only one thing is
assumed: some option beats every other more often than not.

Use :class:`TGITE` to choose among rankers, prompts, recipes or policies by comparisons: with people (ask and tell, saved to a
file between sessions) or in a simulation (:func:`simulate` on a :class:`PreferenceMatrix` from votes or test scores). It names the
best option with a stated error, or keeps showing good pairs while it learns, or both.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
