"""Geometric Embedding Mixture: pre-training that draws hidden states into the hull of the token embeddings.

Pre-train, or go on pre-training, a causal language model whose final hidden state is asked to equal the mixture of token
embeddings that it predicts: one loss, one trainer, and the suite of diagnostics (calibration, anisotropy, hull, logit
lens, causal faithfulness) for any transformers model. Use it when you want hidden states that can be read with the model's
own head; at the small scale of the study it does what it says to the geometry, while its effect on calibration and on
early layers is what the recorded evidence says.

>>> from gnomon.architectures import GEMTrainer, gem_diagnostics
>>> GEMTrainer(model=model, args=args, train_dataset=data, gem_lambda=0.1).train()  # doctest: +SKIP
>>> gem_diagnostics(model, tokens).to_frame()  # doctest: +SKIP
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "diagnostics": ["anisotropy", "gem_diagnostics", "hull", "uncertainty"],
        "faithfulness": ["causal_faithfulness"],
        "fused": ["fused_gem_loss"],
        "head": ["attach_scale", "fold_scale", "scale_rule"],
        "projection": ["hull_distance"],
        "lens": ["logit_lens"],
        "method": ["free_energy", "gem_loss", "mixture", "settle"],
        "objective": ["GEMObjective"],
        "trainer": ["GEMTrainer"],
    },
)
