"""Structure: where the blocks, linears, norms and heads of a decoder-only transformer are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

FAMILIES = "Llama, Qwen2, Qwen3, Mistral, Gemma 1-3 and GPT-2"


@dataclass(frozen=True, eq=False)
class Structure:
    """Where the parts of a decoder-only transformer are.

    Attributes
    ----------
    base : torch.nn.Module
        The decoder: it owns the embedding, the blocks and the final norm, and gives the hidden states.
    embed, norm, head : torch.nn.Module
        Token embedding; final norm; output head (``lm_head``).
    blocks : torch.nn.ModuleList
        The decoder layers, each with an attention and an MLP.
    base_path, blocks_path : str
        Their qualified names in the model ("model", "model.layers").
    hidden_size : int
        Width of the residual stream.
    tied : bool
        Whether the head and the embedding share one matrix.
    """

    base: nn.Module
    embed: nn.Embedding
    blocks: nn.ModuleList
    norm: nn.Module
    head: nn.Module
    base_path: str
    blocks_path: str
    hidden_size: int
    tied: bool

    def attention(self, block: nn.Module) -> nn.Module:
        """The attention module of a block."""
        return _part(block, "attention")[1]

    def attention_name(self, block: nn.Module) -> str:
        """Its name within the block ("self_attn", "attn")."""
        return _part(block, "attention")[0]

    def mlp(self, block: nn.Module) -> nn.Module:
        """The MLP of a block."""
        return _part(block, "mlp")[1]

    def mlp_name(self, block: nn.Module) -> str:
        """Its name within the block ("mlp")."""
        return _part(block, "mlp")[0]

    def mlp_out(self, block: nn.Module) -> nn.Module:
        """The linear that writes the MLP's result into the residual stream (``down_proj``, ``c_proj``).

        Raises
        ------
        TypeError
            When no single linear does so (a mixture of experts).
        """
        writers = [m for m in linears(self.mlp(block)).values() if linear_weight(m).shape[0] == self.hidden_size]
        if not writers:
            name = type(self.mlp(block)).__name__
            raise TypeError(f"the MLP {name} has no linear that writes {self.hidden_size} features")
        return writers[-1]

    def linears(self, block: nn.Module) -> dict[str, nn.Module]:
        """The linears of a block by their name within it, in the order of definition."""
        return linears(block)


def linears(module: nn.Module) -> dict[str, nn.Module]:
    """Every ``nn.Linear`` and GPT-2 ``Conv1D`` inside a module, by its qualified name there."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return {name: m for name, m in module.named_modules() if name and isinstance(m, (nn.Linear, Conv1D))}


def linear_weight(linear: nn.Module) -> torch.Tensor:
    """The weight as (outputs, inputs): a view, transposed for GPT-2's ``Conv1D``; writing into it writes the layer."""
    from transformers.pytorch_utils import Conv1D

    weight: torch.Tensor = linear.weight  # type: ignore[assignment]
    return weight.T if isinstance(linear, Conv1D) else weight


def _part(block: nn.Module, what: str) -> tuple[str, nn.Module]:
    """The child of a block that is its attention or its MLP, by attribute name, else by the name of its class."""
    names = {"attention": ("self_attn", "attn", "attention", "self_attention"), "mlp": ("mlp", "feed_forward", "ffn")}
    children = dict(block.named_children())
    for name in names[what]:
        if name in children:
            return name, children[name]
    for name, child in children.items():
        if what in type(child).__name__.lower() and "norm" not in type(child).__name__.lower():
            return name, child
    raise TypeError(f"the block {type(block).__name__} has no {what}; it has {', '.join(children) or 'no children'}")


def output_head(model: PreTrainedModel) -> nn.Module:
    """The module that turns hidden states into logits."""
    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def structure(model: nn.Module) -> Structure:
    """Find the parts of a causal language model by how it is built, not by the name of its class.

    The decoder is the module that directly owns the input embedding, a list of blocks (each with an attention and an
    MLP) and a final norm.

    Raises
    ------
    TypeError
        For encoders, encoder-decoders, models without a head, and anything else that is not built so; the message
        lists the families that are.
    """
    from torch import nn
    from transformers import PreTrainedModel

    def wrong(reason: str) -> TypeError:
        return TypeError(f"{type(model).__name__}: {reason}; supported are causal language models of {FAMILIES}")

    if not isinstance(model, PreTrainedModel):
        raise wrong("not a transformers model")
    if getattr(model.config, "is_encoder_decoder", False) or not model.can_generate():
        raise wrong("an encoder, or a model without a language-model head")
    embed, head = model.get_input_embeddings(), output_head(model)
    if not isinstance(embed, nn.Embedding) or head is None:
        raise wrong("no token embedding or no language-model head")
    for path, module in model.named_modules():
        children = dict(module.named_children())
        if embed not in children.values():
            continue
        norms = [m for m in children.values() if "norm" in type(m).__name__.lower()]
        lists = [(name, m) for name, m in children.items() if isinstance(m, nn.ModuleList) and len(m)]
        for name, blocks in lists:
            try:
                for block in blocks:
                    _part(block, "attention"), _part(block, "mlp")
            except TypeError:
                continue
            if norms:
                return Structure(
                    base=module,
                    embed=embed,
                    blocks=blocks,
                    norm=norms[-1],
                    head=head,
                    base_path=path,
                    blocks_path=f"{path}.{name}" if path else name,
                    hidden_size=int(model.config.get_text_config().hidden_size),
                    tied=head.weight is embed.weight,
                )
    raise wrong("no module owns the token embedding, a list of blocks with attention and MLP, and a final norm")
