"""A causal language model of these layers, alone or mixed with attention, for transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers.masking_utils import (
    create_causal_mask,
    create_recurrent_attention_mask,
    create_sliding_window_causal_mask,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from gnomon.architectures.gated_deltanet2.attention import Attention
from gnomon.architectures.gated_deltanet2.layer import GatedDeltaNet2
from gnomon.architectures.gated_deltanet2.projection import Projection
from gnomon.architectures.gated_deltanet2.registration import MODEL_TYPE

__all__ = ["GatedDeltaNet2Config", "GatedDeltaNet2ForCausalLM", "GatedDeltaNet2Model"]

LAYER_TYPES = ("gdn2", "linear_attention", "sliding_attention", "full_attention")


class GatedDeltaNet2Config(transformers.PreTrainedConfig):
    """Sizes of a :class:`GatedDeltaNet2ForCausalLM`.

    Parameters
    ----------
    vocab_size, hidden_size, num_hidden_layers : int
    intermediate_size : int, optional
        Of the SwiGLU, by default 8/3 of the width rounded up to a multiple of 8.
    head_dim, num_heads, num_v_heads, expand_v, use_short_conv, conv_size, allow_neg_eigval, erase, write, decay, out_gate
        Of each recurrent layer, see :class:`~gnomon.architectures.GatedDeltaNet2`.
    layer_types : sequence of str, optional
        For each layer ``"gdn2"`` (kept under transformers' own name for such layers, ``"linear_attention"``),
        ``"sliding_attention"`` or ``"full_attention"``; by default all ``"gdn2"``.
    sliding_window : int
        Tokens that a sliding attention layer sees.
    rope_theta : float
        Base of the rotary positions of the attention layers; their heads are even and as many as the recurrent ones.
    rms_norm_eps, initializer_range : float
    tie_word_embeddings : bool
    mode : str
        How the rule is computed, see :func:`~gnomon.architectures.gated_delta_rule2`.

    Raises
    ------
    ValueError
        For an unknown layer type, or not one a layer.
    """

    model_type = MODEL_TYPE

    def __init__(
        self, vocab_size: int = 32000, hidden_size: int = 2048, num_hidden_layers: int = 24,
        intermediate_size: int | None = None, head_dim: int = 128, num_heads: int = 16, num_v_heads: int | None = None,
        expand_v: float = 1.0, use_short_conv: bool = True, conv_size: int = 4, allow_neg_eigval: bool = False,
        erase: str = "channel", write: str = "channel", decay: str = "channel", out_gate: str = "silu",
        layer_types: Sequence[str] | None = None, sliding_window: int = 2048, rope_theta: float = 1e4,
        rms_norm_eps: float = 1e-5, initializer_range: float = 0.02, tie_word_embeddings: bool = False,
        use_cache: bool = True, mode: str = "auto", **kwargs: Any,
    ):  # fmt: skip
        kinds = ["gdn2"] * num_hidden_layers if layer_types is None else list(layer_types)
        if len(kinds) != num_hidden_layers or not set(kinds) <= set(LAYER_TYPES):
            raise ValueError(
                f"layer_types must name one of {', '.join(LAYER_TYPES)} for each of {num_hidden_layers} layers, got {kinds}"
            )
        own = {
            "vocab_size": vocab_size, "hidden_size": hidden_size, "num_hidden_layers": num_hidden_layers,
            "intermediate_size": intermediate_size or -(-8 * hidden_size // 24) * 8, "head_dim": head_dim,
            "num_heads": num_heads, "num_v_heads": num_v_heads, "expand_v": expand_v, "use_short_conv": use_short_conv,
            "conv_size": conv_size, "allow_neg_eigval": allow_neg_eigval, "erase": erase, "write": write, "decay": decay,
            "out_gate": out_gate, "sliding_window": sliding_window, "rope_theta": rope_theta,
            "rms_norm_eps": rms_norm_eps, "initializer_range": initializer_range, "mode": mode, "use_cache": use_cache,
            "layer_types": ["linear_attention" if kind == "gdn2" else kind for kind in kinds],
        }  # fmt: skip
        for name, value in own.items():
            setattr(self, name, value)
        general: dict[str, Any] = {"tie_word_embeddings": tie_word_embeddings, **kwargs}
        super().__init__(**general)

    @property
    def num_attention_heads(self) -> int:
        return self.num_heads


class Block(GradientCheckpointingLayer):
    """x + mixer(norm(x)), then x + SwiGLU(norm(x))."""

    def __init__(self, config: GatedDeltaNet2Config, index: int):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.mixer: nn.Module
        if config.layer_types[index] == "linear_attention":
            self.mixer = GatedDeltaNet2(
                width, config.head_dim, config.num_heads, config.num_v_heads, config.expand_v, config.use_short_conv,
                config.conv_size, config.allow_neg_eigval, erase=config.erase, write=config.write, decay=config.decay,
                out_gate=config.out_gate, norm_eps=config.rms_norm_eps, layer_idx=index, mode=config.mode,
            )  # fmt: skip
        else:
            self.mixer = Attention(width, config.head_dim, config.num_heads, config.rope_theta, index)
        self.mixer_norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.mlp_norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.gate_up_proj = nn.Linear(width, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        x = x + self.mixer(self.mixer_norm(x), **context)
        gate, up = self.gate_up_proj(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down_proj(F.silu(gate) * up)


class GatedDeltaNet2PreTrainedModel(PreTrainedModel):
    config_class = GatedDeltaNet2Config
    config: GatedDeltaNet2Config
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]
    _supports_sdpa = True
    _is_stateful = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, GatedDeltaNet2 | Projection):
            # What came from a file stays, also when other weights of the layer did not.
            loaded = [(p, p.clone()) for p in module.parameters() if getattr(p, "_is_hf_initialized", False)]
            module.reset_parameters()
            for parameter, value in loaded:
                parameter.copy_(value)
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
        elif isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)


class GatedDeltaNet2Model(GatedDeltaNet2PreTrainedModel):
    """Embedding, blocks and final norm."""

    def __init__(self, config: GatedDeltaNet2Config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, cache: Cache | None = None, inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None, **_: Any,
    ) -> BaseModelOutputWithPast:  # fmt: skip
        """States of every token; see :meth:`GatedDeltaNet2ForCausalLM.forward`."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, one of the two")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.training and torch.is_grad_enabled() and self.is_activation_checkpointing:
            use_cache, cache = False, None  # recomputing a block would update its cache a second time
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        kinds = set(self.config.layer_types)
        recurrent = kinds == {"linear_attention"}  # knows no positions, and its cache no length
        if position_ids is None and attention_mask is not None and attention_mask.ndim == 2:
            # Counted from the first real token, so that padding on the left changes nothing.
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -x.shape[1] :]
        elif position_ids is None and not recurrent:
            seen = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(seen, seen + x.shape[1], device=x.device)[None]
        about = {"config": self.config, "inputs_embeds": x, "attention_mask": attention_mask, "cache": cache,
                 "position_ids": position_ids}  # fmt: skip
        makers = {"linear_attention": create_recurrent_attention_mask, "full_attention": create_causal_mask,
                  "sliding_attention": create_sliding_window_causal_mask}  # fmt: skip
        masks = {kind: makers[kind](**about) for kind in kinds}
        for kind, layer in zip(self.config.layer_types, self.layers, strict=True):
            context = {} if kind == "linear_attention" else {"position_ids": position_ids}
            x = layer(x, cache=cache, attention_mask=masks[kind], **context)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), cache=cache)


class GatedDeltaNet2ForCausalLM(GatedDeltaNet2PreTrainedModel, GenerationMixin):
    """Gated DeltaNet-2 as a language model: pre-norm blocks with SwiGLU, generation with a cache of constant size.

    Saved and loaded by ``save_pretrained`` and ``AutoModelForCausalLM`` (importing ``gnomon.architectures`` makes
    transformers know it). Padding, on the left, changes no result. A layer's cache is its state, in float32, and the
    last inputs of its convolution.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: GatedDeltaNet2Config):
        super().__init__(config)
        self.model = GatedDeltaNet2Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, cache: Cache | None = None, inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None, use_cache: bool | None = None, logits_to_keep: int | Tensor = 0, **kwargs: Any,
    ) -> CausalLMOutputWithPast:  # fmt: skip
        """Logits of the next token.

        Parameters
        ----------
        input_ids : Tensor, shape [B, T]
        attention_mask : Tensor, shape [B, T] (with a cache: all tokens so far), optional
            0 for padding.
        position_ids, cache, inputs_embeds, use_cache, logits_to_keep
            As everywhere in transformers.
        labels : Tensor, shape [B, T], optional
            The same tokens; -100 where no loss is taken. The shift is made here.

        Returns
        -------
        CausalLMOutputWithPast
        """
        # The configuration's own wish for a cache is for generation; a plain forward pass needs none.
        use_cache = self.config.use_cache and not self.training and labels is None if use_cache is None else use_cache
        out = self.model(input_ids, attention_mask, position_ids, cache, inputs_embeds, use_cache)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(out.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=out.cache)


transformers.AutoConfig.register(MODEL_TYPE, GatedDeltaNet2Config, exist_ok=True)
transformers.AutoModel.register(GatedDeltaNet2Config, GatedDeltaNet2Model, exist_ok=True)
transformers.AutoModelForCausalLM.register(GatedDeltaNet2Config, GatedDeltaNet2ForCausalLM, exist_ok=True)
