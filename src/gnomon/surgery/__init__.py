"""Surgery: edit a trained transformer without training it."""

import lazy_loader

from gnomon.surgery.ghosted_layers.registration import when_transformers_loads

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

when_transformers_loads()  # so that saved models load with plain AutoModelForCausalLM.from_pretrained
