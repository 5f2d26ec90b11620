"""Boosting from joint guarantees on false positives and false negatives.

A weak learner promises that its (FP, FN), as joint probabilities, lie in a set Z on every distribution. This says whether such a
promise can be boosted at all, at which class balance and in how many rounds (:func:`boostable`); boosts any scikit-learn
classifier and finds that balance by itself (:class:`ZBoostClassifier`), with a threshold that keeps a target rate; and makes a
learner that is right only with probability above 2/3 a reliable one (:func:`amplify`, by an exact :func:`centerpoint`).

Use it where the two mistakes mean different things (diagnosis, fraud) and a learner is strong on one of them only: a promise
of 55 % FP and 5 % FN is boostable, although AdaBoost gets nothing from it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
