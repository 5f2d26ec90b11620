"""Conformal abstention: when a language model should answer, with finite-sample guarantees.

A few hundred questions with known answers calibrate a threshold on the model's confidence; the wrapped model answers above it and
abstains below. Certificates bound, for finite samples and any score, the share of questions that are answered and the share of answers
that are right. The score may be a log-probability, or one sharpened by the geometry of the hidden states that emit the answer.

Use it in front of a language model that should rather say nothing than invent: :class:`ConformalAbstainer` takes a transformers
model, an OpenAI-compatible endpoint, or scores alone. ``certificate="fdr"`` is for batches, ``"pac"`` for decisions at once. The statements
hold for the stream of questions, not for a single one, and only for questions like those of calibration (:func:`drift_test`,
:func:`density_ratio`, groups).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
