"""Repair of tree ensembles: change leaf values so that given counterexamples, and by a loop a property, provably hold.

A trained forest or gradient-boosted ensemble decides two people differently who differ in sex only, or is a policy that
can walk into a hazard. The score of an ensemble is linear in its leaf values, so that a mixed-integer linear program finds
new values that fix every counterexample and keep as much performance as can be kept; a verifier then looks for what is left.

Use :class:`TreeRepair` with a :class:`FairnessProperty`, :class:`SafetyProperty`, :class:`RobustnessProperty` or
:class:`PointProperty`, or with a list of counterexamples. Models of scikit-learn, XGBoost and LightGBM come back as what
they were, with the same trees and splits.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
