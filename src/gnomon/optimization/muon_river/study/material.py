"""A small language model on bytes of source code, or a person's own."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

LIMIT = 1_500_000  # bytes of the standard library that are read
BATCH = 16


@functools.cache
def source() -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the standard library's own .py files: training, and validation (every tenth file)."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    train = b"\n".join(text for i, text in enumerate(files) if i % 10)
    held = b"\n".join(text for i, text in enumerate(files) if i % 10 == 0)
    return np.frombuffer(train[:LIMIT], np.uint8).astype(np.int64), np.frombuffer(held, np.uint8).astype(np.int64)


def small(seed: int, width: int = 64, layers: int = 2, context: int = 64) -> Any:
    """An untrained Llama that reads bytes."""
    import torch
    import transformers

    config = transformers.LlamaConfig(vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
                                      num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=context,
                                      pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config)


def own(ref: str, seed: int) -> tuple[Any, Any]:
    """A model from a folder (with weights, or a config.json alone) or a config.json, and its tokenizer (None: bytes)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    path = Path(ref).expanduser()
    folder = path.parent if path.is_file() else path
    if not (folder / "config.json").is_file():
        raise ValueError(f"model: {ref!r} is no folder with a config.json")
    tokenizer = None
    if (folder / "tokenizer.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if any(folder.glob("*.safetensors")) and path.is_dir():
        model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, local_files_only=True, trust_remote_code=False,
                                                     dtype=torch.float32)  # fmt: skip
        return model, tokenizer
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if tokenizer is None and config.vocab_size < 256:
        raise ValueError(f"model: {ref!r} has no tokenizer.json, and {config.vocab_size} tokens are too few for bytes")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False), tokenizer


def batch(tokens: np.ndarray, context: int, seed: int, step: int, size: int = BATCH) -> torch.Tensor:
    """The batch of a step: the same for every branch."""
    import torch

    starts = np.random.default_rng([seed, step]).integers(0, len(tokens) - context, size)
    return torch.from_numpy(np.stack([tokens[s : s + context] for s in starts]))


def windows(tokens: np.ndarray, context: int, most: int) -> torch.Tensor:
    """Fixed windows, spread evenly."""
    import torch

    starts = np.linspace(0, len(tokens) - context, min(most, len(tokens) // context)).astype(int)
    return torch.from_numpy(np.stack([tokens[s : s + context] for s in starts]))


def validation(model: Any, held: torch.Tensor) -> float:
    """Mean loss on the windows."""
    import torch

    with torch.no_grad():
        parts = [float(model(input_ids=part, labels=part).loss) * len(part) for part in held.split(64)]
    return sum(parts) / len(held)
