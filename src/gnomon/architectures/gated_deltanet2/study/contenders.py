"""What is compared: ways to compute the rule, and models with other mixers. Imports wait until one is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Form:
    """(q, k, v, g, b, w, S) -> (o, S): one way to compute the rule, with a scale of 1."""

    mode: str
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *inputs: Any) -> Any:
        from gnomon.architectures.gated_deltanet2.rule import gated_delta_rule2

        return gated_delta_rule2(  # type: ignore[misc]
            *inputs[:6], scale=1.0, initial_state=inputs[6], mode=self.mode, validate=False, **self.options
        )


@dataclass(frozen=True)
class Fla:
    """The same by a naive operator of flash-linear-attention, where it is installed."""

    name: str

    def load(self) -> Any:
        """The operator; its import takes seconds, which no timed call should see."""
        import importlib
        import warnings

        with warnings.catch_warnings():  # it misses a GPU
            warnings.simplefilter("ignore", UserWarning)
            module = importlib.import_module(f"fla.ops.{'kda' if 'kda' in self.name else 'gdn2'}.naive")
        return getattr(module, self.name)

    def __call__(self, *inputs: Any) -> Any:
        inputs = inputs if "kda" not in self.name else (*inputs[:4], inputs[4][..., 0], inputs[6])
        return self.load()(*inputs[:-1], scale=1.0, initial_state=inputs[-1], output_final_state=True)


@dataclass(frozen=True)
class Variant:
    """(hybrid, match, sizes) -> a causal language model; see ``baselines.build``. A contender of one's own is the same."""

    name: str

    def __call__(self, **options: Any) -> Any:
        from gnomon.architectures.gated_deltanet2.baselines import build

        return build(self.name, **options)


def variants(*names: str) -> dict[str, Variant]:
    return {name: Variant(name) for name in names}
