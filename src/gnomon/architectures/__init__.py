"""Architectures: layers and models, each with its reference, its fast path and the study of its paper's claims."""

import lazy_loader

from gnomon.architectures.gated_deltanet2.registration import when_transformers_loads

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

when_transformers_loads()  # so that saved models load with plain AutoModelForCausalLM.from_pretrained
