"""The angular mean: one linear ranking rule that serves every voter in proportion to its size.

Voters (people, committee members, segments of a survey) each rank items by a linear score of their own, and one fixed
rule has to be used again and again. :class:`AngularMean` chooses the rule that minimises the weighted sum of squared
angles to the voters': every voter type of weight alpha then agrees with it on at least a share alpha of all pairs of
items, which the arithmetic mean of the weights does not guarantee.

Use it where voters disagree strongly: when their mean angle is below 80 degrees or so, all sensible rules are alike. A
share alpha of the pairs is little for a small voter: with alpha = 0.1 the guarantee allows disagreement on 90 % of the
pairs, and what it allows is below what a coin would give. :func:`proportionality_report` says what each voter really
gets, in the long run and batch by batch; :func:`fit_voters` makes voters of choices.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
