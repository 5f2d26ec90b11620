"""Makes ``AutoConfig`` and ``AutoModelForCausalLM`` know these models, without importing transformers for it."""

from __future__ import annotations

import importlib
from typing import Any

import wrapt

MODEL_TYPE = "gnomon-gated-deltanet2"  # without gnomon it is unknown, so that loading fails


def when_transformers_loads() -> None:
    """Register right after transformers is imported, or at once where it already is.

    Importing ``gnomon.architectures`` calls this; it takes no time and loads neither torch nor transformers.
    """
    wrapt.register_post_import_hook(_import_model, "transformers")


def _import_model(package: Any) -> None:
    """The module registers its classes when it has been imported (it may be what is importing transformers now)."""
    importlib.import_module("gnomon.architectures.gated_deltanet2.model")
