"""The spectra of a model's LoRA adapters, without forming B A."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gnomon.optimization.spectral_descent.spectra import effective_rank, flatness, product_spectrum, stable_rank

if TYPE_CHECKING:
    import pandas as pd


class LoraSpectrum:
    """Singular values of ``scale B A`` of every LoRA adapter of a `peft` model.

    By QR of B and A' and the singular values of an r x r matrix, all adapters of one shape in one call: it costs less
    than a training step, and works beside a quantised base, whose weights it does not read.

    Parameters
    ----------
    model : torch.nn.Module
        From `peft.get_peft_model` or with adapters injected; linear, convolution and embedding layers. It is read anew at
        each call.
    adapter : str, optional
        Which adapter (default: the only one; "default" where there are several).

    Raises
    ------
    ValueError
        For a model without LoRA modules, or without that adapter.

    Examples
    --------
    >>> import torch, peft
    >>> from gnomon.optimization import LoraSpectrum
    >>> net = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(6, 4)), peft.LoraConfig(r=2, target_modules=["0"]))
    >>> spectrum = LoraSpectrum(net)
    >>> spectrum.singular_values()  # B starts at zero
    {'base_model.model.0': tensor([0., 0.])}
    """

    def __init__(self, model: nn.Module, adapter: str | None = None) -> None:
        names = {n for module in model.modules() for kind in _KINDS for n in _adapters(module, kind)}
        if not names:
            raise ValueError("model: no lora_A/lora_B found; give a peft model with LoRA adapters")
        if adapter is None:
            adapter = next(iter(names)) if len(names) == 1 else "default"
        if adapter not in names:
            raise ValueError(f"adapter: got {adapter!r}; the model has {', '.join(sorted(names))}")
        self.model, self.adapter = model, adapter

    def factors(self) -> Iterator[tuple[str, Tensor, Tensor, float]]:
        """Name, B (d_out, r), A (r, d_in) and scale (alpha / r, or as the adapter has it) of each layer."""
        modules: Any = self.model.named_modules()
        for name, module in modules:
            for kind in _KINDS:
                if self.adapter in _adapters(module, kind):
                    held: list[Any] = [getattr(module, f"{kind}_{side}")[self.adapter] for side in "AB"]
                    weights: list[Any] = [f.weight if isinstance(f, nn.Module) else f for f in held]
                    A, B = weights
                    yield name, B.detach().flatten(1), A.detach().flatten(1), float(module.scaling[self.adapter])

    @torch.no_grad()
    def singular_values(self) -> dict[str, Tensor]:
        """Layer name to its r singular values, descending, float32 (float64 for float64 adapters), on the CPU."""
        groups: dict[tuple[torch.Size, torch.Size, torch.dtype, torch.device], list[tuple[str, Tensor, Tensor, float]]]
        groups = defaultdict(list)
        for name, B, A, scale in self.factors():
            work = torch.float64 if A.dtype == torch.float64 else torch.float32
            groups[B.shape, A.shape, work, A.device].append((name, B, A, scale))
        found = {}
        for (*_, work, _device), rows in groups.items():
            B = torch.stack([row[1] for row in rows]).to(work)
            A = torch.stack([row[2] for row in rows]).to(work)
            scales = torch.tensor([row[3] for row in rows], dtype=work, device=B.device)
            d = (product_spectrum(B, A) * scales[:, None].abs()).cpu()
            found.update({row[0]: values for row, values in zip(rows, d, strict=True)})
        return {name: found[name] for name, *_ in self.factors()}

    def table(self) -> pd.DataFrame:
        """A row per layer: largest and smallest singular value, flatness, effective and stable rank (NaN while B is 0)."""
        import pandas as pd

        rows = []
        for name, values in self.singular_values().items():
            d = values.double().numpy()
            rows.append({"layer": name, "rank": len(d), "largest": d[0], "smallest": d[-1], "flatness": float(flatness(d)),
                         "effective_rank": float(effective_rank(d)), "stable_rank": float(stable_rank(d))})  # fmt: skip
        return pd.DataFrame(rows)

    def summary(self) -> dict[str, float]:
        """Medians over the layers of what `table` shows, without layers whose B is still zero (all NaN if none moved)."""
        table = self.table()
        columns = ["largest", "smallest", "flatness", "effective_rank", "stable_rank"]
        moved = table.loc[table["largest"] > 0, columns]
        return {name: float(moved[name].median()) if len(moved) else np.nan for name in columns}


_KINDS = ("lora", "lora_embedding")


def _adapters(module: nn.Module, kind: str) -> list[str]:
    """The names of a layer's adapters of a kind."""
    A, B = (getattr(module, f"{kind}_{side}", None) for side in "AB")
    if isinstance(A, nn.ModuleDict | nn.ParameterDict) and isinstance(B, nn.ModuleDict | nn.ParameterDict):
        return [name for name in A if name in B]
    return []
