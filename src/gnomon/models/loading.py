"""Loading: from safetensors or GGUF, kept by the process, read only."""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.models.references import EMBEDDED, check_ref, gguf_file, identity, sha256_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)


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


KEEP = 2  # models that a process keeps in memory


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
    gguf = gguf_file(ref)
    if gguf is None:
        return ref
    import torch
    from filelock import FileLock
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gnomon import cache

    models = cache.folder() / "models"
    target = models / f"{gguf.stem}-{sha256_of(gguf)[:16]}"
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
