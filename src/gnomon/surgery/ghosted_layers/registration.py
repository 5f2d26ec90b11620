"""Makes ``AutoConfig`` and ``AutoModelForCausalLM`` know ghosted models, without importing transformers for it."""

from __future__ import annotations

import importlib
from typing import Any

import wrapt

PREFIX = "gnomon-ghosted-"  # of config.model_type: without gnomon it is unknown, so that loading fails
AUTO = "transformers.models.auto"


def when_transformers_loads() -> None:
    """Register as soon as transformers' auto classes are imported; at once where they already are.

    Importing ``gnomon.surgery`` calls this. It takes no time and loads neither torch nor transformers.
    """
    wrapt.register_post_import_hook(_register, f"{AUTO}.modeling_auto")
    wrapt.register_post_import_hook(_import_models, f"{AUTO}.configuration_auto")


def _import_models(configurations: Any) -> None:
    """Who asks for ``AutoConfig`` alone gets the models too: their import registers both."""
    importlib.import_module(f"{AUTO}.modeling_auto")


def _register(auto: Any) -> None:
    from gnomon.surgery.ghosted_layers.model import FAMILIES, config_class, model_class

    configurations = importlib.import_module(f"{AUTO}.configuration_auto")
    for family in FAMILIES:
        configurations.AutoConfig.register(PREFIX + family, config_class(family), exist_ok=True)
        auto.AutoModelForCausalLM.register(config_class(family), model_class(family), exist_ok=True)
