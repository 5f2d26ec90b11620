"""From images to features."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from gnomon.datasets import mnist
from gnomon.geometry import ChamferMetric, FeatureExtractor
from gnomon.geometry.chamfer.features import image_files


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Networks are trained once for this file; no feature is kept from elsewhere."""
    monkeypatch.setenv("GNOMON_CACHE", str(tmp_path_factory.getbasetemp() / "features"))


@pytest.fixture(scope="module")
def digits():
    pixels, labels = mnist()
    rows = np.random.default_rng(0).permutation(5000)[:400]
    return pixels[rows].reshape(-1, 28, 28), labels[rows]


def test_digit_features_separate_digits_and_are_the_same_again(digits):
    images, labels = digits
    features = FeatureExtractor("mnist_cnn")(images)
    assert features.shape == (400, 256)
    assert (features >= 0).all()  # after the ReLU
    near = np.argsort(((features[:, None] - features[None]) ** 2).sum(-1), 1)[:, 1]
    assert (labels[near] == labels).mean() > 0.9
    kept = FeatureExtractor("mnist_cnn")(images)  # from disk
    np.testing.assert_array_equal(kept, features)
    fresh = FeatureExtractor("mnist_cnn", cache=False, batch_size=64)(images.astype(np.float32)[..., None] / 255)
    np.testing.assert_allclose(fresh, features, atol=1e-5)


def test_efficientnet_pools_1280_features(digits):
    images = np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), dtype=np.uint8)
    features = FeatureExtractor("efficientnet_lite0", cache=False)(images)
    assert features.shape == (3, 1280)
    moved = FeatureExtractor("efficientnet_lite0", cache=False)(np.moveaxis(images, -1, 1))
    np.testing.assert_allclose(moved, features)


def test_folders_of_images(digits, tmp_path):
    images, _ = digits
    for i, image in enumerate(images[:9]):
        Image.fromarray(image).save(tmp_path / f"{i:03d}.png")
    (tmp_path / "notes.txt").write_text("no image")
    assert [p.name for p in image_files(tmp_path)] == [f"{i:03d}.png" for i in range(9)]
    extract = FeatureExtractor("mnist_cnn", cache=False)
    np.testing.assert_allclose(extract(tmp_path), extract(images[:9]), atol=1e-5)
    assert FeatureExtractor("raw")(tmp_path).shape == (9, 784)  # grey stays grey
    np.testing.assert_allclose(extract(image_files(tmp_path)[:4]), extract(images[:4]), atol=1e-5)
    Image.fromarray(images[0]).resize((40, 40)).save(tmp_path / "999.png")  # another size: another batch
    assert len(extract(tmp_path)) == 10
    with pytest.raises(ValueError, match="sizes or channels differ"):
        FeatureExtractor("raw")(tmp_path)


def test_callable_raw_and_a_transformers_folder(digits, tmp_path):
    from transformers import ViTConfig, ViTModel

    images, _ = digits
    raw = FeatureExtractor("raw")(images[:5])
    np.testing.assert_allclose(raw, images[:5].reshape(5, -1) / 255, rtol=1e-6)
    means = FeatureExtractor(lambda x: x.mean((2, 3)))(images[:5])
    np.testing.assert_allclose(means[:, 0], raw.mean(1), rtol=1e-5)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTModel(ViTConfig(image_size=32, patch_size=8, **size)).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1] * 3, "image_std": [0.2] * 3}))
    features = FeatureExtractor(str(tmp_path))(images[:6])
    assert features.shape == (6, 16)
    np.testing.assert_array_equal(FeatureExtractor(str(tmp_path))(images[:6]), features)


def test_metric_takes_images(digits):
    images, _ = digits
    metric = ChamferMetric(extractor="mnist_cnn", random_state=0).fit(images[:200], holdout=images[200:300])
    report = metric.score(images[300:])
    assert report.features == "mnist_cnn"
    assert report.fidelity_ratio == pytest.approx(1, abs=0.25)
    assert metric.score(FeatureExtractor("mnist_cnn")(images[300:])).fidelity == pytest.approx(report.fidelity)


def test_bad_images(tmp_path):
    with pytest.raises(ValueError, match="model: got 'vgg'"):
        FeatureExtractor("vgg")
    with pytest.raises(ValueError, match="batch_size"):
        FeatureExtractor("raw", batch_size=0)
    extract = FeatureExtractor("raw", cache=False)
    for images, message in (
        (np.full((2, 4, 4), 200.0), r"\[0, 1\]"),
        (np.full((2, 4, 4), np.nan), r"\[0, 1\]"),
        (np.zeros((2, 4)), "shape"),
        (np.zeros((2, 5, 5, 7)), "shape"),
        (np.zeros((0, 4, 4)), "shape"),
        (tmp_path, "no images"),
        (tmp_path / "nowhere", "expected a folder"),
    ):
        with pytest.raises(ValueError, match=message):
            extract(images)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"broken\.png"):
        extract(tmp_path)
