"""The models on which schedules are judged: an exact score, a poor network, a small U-Net, two flows; and the judge.

All are made from digits that packages carry, with a fixed number of updates, on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from gnomon import datasets
from gnomon.sampling.geosprint.noising import NoiseSchedule

BETAS = np.linspace(1e-4, 0.02, 1000)
VP = NoiseSchedule.vp(np.cumprod(1 - BETAS))
Weights = dict[str, np.ndarray]


@dataclass
class World:
    """A denoiser that counts its calls, its schedule, and the shape of a sample."""

    network: Any
    schedule: NoiseSchedule
    shape: tuple[int, ...]
    prediction_type: str = "epsilon"
    dtype: torch.dtype = torch.float32
    calls: int = field(default=0)

    def __call__(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out = self.network(x, t)
        found: torch.Tensor = getattr(out, "sample", out)
        return found

    def noise(self, n: int, rng: np.random.Generator) -> torch.Tensor:
        """Starting states (n, *shape)."""
        return torch.from_numpy(self.schedule.prior * rng.standard_normal((n, *self.shape))).to(self.dtype)


def digits() -> np.ndarray:
    """scikit-learn's 8 x 8 digits in [-1, 1], (1797, 64)."""
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().data / 8 - 1)


def mnist16() -> tuple[torch.Tensor, torch.Tensor]:
    """MNIST padded to 32 and pooled to 16 x 16, in [-1, 1]: (5000, 1, 16, 16), shuffled, and labels."""
    pixels, labels = datasets.mnist()
    order = np.random.default_rng(0).permutation(len(pixels))
    x = torch.from_numpy(pixels[order].reshape(-1, 1, 28, 28)).float() / 127.5 - 1
    return F.avg_pool2d(F.pad(x, (2, 2, 2, 2), value=-1.0), 2), torch.from_numpy(labels[order])


# --- exact score -----------------------------------------------------------------------------------------------------


def fit_mixture(components: int) -> Weights:
    """A diagonal Gaussian mixture of the digits."""
    from sklearn.mixture import GaussianMixture

    found = GaussianMixture(components, covariance_type="diag", reg_covar=2e-3, random_state=0).fit(digits())
    return {"weights": found.weights_, "means": found.means_, "variances": found.covariances_}


def mixture_world(weights: Weights) -> World:
    """The exact noise prediction of the noised mixture: E[eps | x_t], float64."""
    log_weights, means, variances = (torch.from_numpy(weights[k]) for k in ("weights", "means", "variances"))
    log_weights = log_weights.log()

    def epsilon(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        a, s = float(VP.data[int(t[0])]), float(VP.noise[int(t[0])])
        precision = 1 / (a * a * variances + s * s)
        centre = a * means
        log_p = log_weights - 0.5 * (x**2 @ precision.T - 2 * x @ (centre * precision).T
                                     + (centre**2 * precision - precision.log()).sum(1))  # fmt: skip
        r = log_p.softmax(1)
        return s * (x * (r @ precision) - r @ (centre * precision))

    return World(epsilon, VP, (means.shape[1],), dtype=torch.float64)


# --- perceptrons: a poor noise prediction, and velocities ------------------------------------------------------------


class Perceptron(nn.Module):
    """x and a time in [0, 1] to a vector like x."""

    def __init__(self, size: int = 64, width: int = 256, times: int = 16):
        super().__init__()
        self.frequencies: torch.Tensor
        self.register_buffer("frequencies", 2.0 ** torch.arange(times // 2) * torch.pi / 2)
        self.layers = nn.Sequential(nn.Linear(size + times, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                    nn.Linear(width, size))  # fmt: skip

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        angle = time[:, None] * self.frequencies
        return self.layers(torch.cat([x, angle.sin(), angle.cos()], 1))  # type: ignore[no-any-return]


def _weights(module: nn.Module) -> Weights:
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def _load(module: nn.Module, weights: Weights) -> nn.Module:
    module.load_state_dict({name: torch.from_numpy(np.asarray(value)) for name, value in weights.items()})
    return module.eval()


def train_poor(updates: int, batch: int = 128) -> Weights:
    """A small noise predictor, trained briefly: its trajectories bend where an exact score's do not."""
    torch.manual_seed(0)
    x = torch.from_numpy(digits()).float()
    net = Perceptron()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    a, s = (torch.from_numpy(v).float() for v in (VP.data, VP.noise))
    for _ in range(updates):
        clean, noise, t = x[torch.randint(len(x), (batch,))], torch.randn(batch, 64), torch.randint(1000, (batch,))
        loss = F.mse_loss(net(a[t, None] * clean + s[t, None] * noise, t / 1000), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return _weights(net)


def poor_world(weights: Weights) -> World:
    net = _load(Perceptron(), weights)
    return World(lambda x, t: net(x, t / 1000), VP, (64,))


def train_flows(updates: int, seed: int, batch: int = 128, pairs: int = 4000) -> dict[str, dict[int, Weights]]:
    """A rectified flow and its reflow, each at six lengths of training (every length half of the next).

    The reflow learns the couples (noise, endpoint) of the longest-trained first flow.
    """
    torch.manual_seed(seed)
    x = torch.from_numpy(digits()).float()
    lengths = [max(1, updates >> k) for k in range(5, -1, -1)]

    def train(draw: Any) -> dict[int, Weights]:
        net, found = Perceptron(), {}
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        for step in range(1, updates + 1):
            clean, noise = draw()
            t = torch.rand(batch)
            loss = F.mse_loss(net((1 - t[:, None]) * clean + t[:, None] * noise, t), noise - clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step in lengths:
                found[step] = _weights(net)
        return found

    first = train(lambda: (x[torch.randint(len(x), (batch,))], torch.randn(batch, 64)))
    noise = torch.randn(pairs, 64)
    end = flow_path(first[updates], noise, 50)[-1]

    def couple() -> tuple[torch.Tensor, torch.Tensor]:
        i = torch.randint(pairs, (batch,))
        return end[i], noise[i]

    return {"1-RF": first, "2-RF": train(couple)}


def flow_path(weights: Weights, noise: torch.Tensor, steps: int) -> torch.Tensor:
    """Euler's states from noise (t = 1) to data (t = 0), (steps + 1, n, d)."""
    net = _load(Perceptron(), weights)
    path = [noise]
    with torch.no_grad():
        for k in range(steps, 0, -1):
            path.append(path[-1] - net(path[-1], torch.full((len(noise),), k / steps)) / steps)
    return torch.stack(path)


# --- a small U-Net and who judges its digits -------------------------------------------------------------------------


def unet() -> Any:
    """263,025 parameters for 16 x 16 grey images."""
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    blocks = 3
    return UNet2DModel(sample_size=16, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=8,
                       block_out_channels=(16, 32, 32), down_block_types=("DownBlock2D",) * blocks,
                       up_block_types=("UpBlock2D",) * blocks, add_attention=False)  # fmt: skip


def train_unet(updates: int, batch: int = 32) -> Weights:
    """Noise prediction on MNIST, the step size warmed up and annealed to zero."""
    x, _ = mnist16()
    net = unet()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=updates + 1)
    a, s = (torch.from_numpy(v).float() for v in (VP.data, VP.noise))
    torch.manual_seed(1)
    for _ in range(updates):
        clean, t = x[torch.randint(len(x), (batch,))], torch.randint(1000, (batch,))
        noise = torch.randn_like(clean)
        noised = a[t, None, None, None] * clean + s[t, None, None, None] * noise
        loss = F.mse_loss(net(noised, t).sample, noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        rate.step()
    return _weights(net)


def unet_world(weights: Weights | None = None) -> World:
    """``None``: as initialised, for timing."""
    net = unet().eval() if weights is None else _load(unet(), weights)
    return World(net, VP, (1, 16, 16))


class Classifier(nn.Module):
    """Ten digits; the last hidden layer (32) serves as features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
                                  nn.Linear(512, 32), nn.ReLU())  # fmt: skip
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


def train_classifier(updates: int, batch: int = 128) -> Weights:
    """On the same 5,000 digits as the U-Net."""
    torch.manual_seed(0)
    x, y = mnist16()
    net = Classifier()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(updates):
        i = torch.randint(len(x), (batch,))
        loss = F.cross_entropy(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return _weights(net)


def features(weights: Weights, x: torch.Tensor) -> tuple[np.ndarray, float]:
    """The classifier's hidden layer (n, 32), and its mean confidence in its own answer."""
    net = _load(Classifier(), weights)
    with torch.no_grad():
        hidden = net.body(x.float())  # type: ignore[operator]
        sure = net.head(hidden).softmax(1).amax(1).mean()  # type: ignore[operator]
    return hidden.numpy().astype(np.float64), float(sure)


def own_world(model: str, device: str = "cpu") -> World:
    """A person's diffusers pipeline of an unconditional U-Net: local folder or hub name; safetensors only."""
    from diffusers import DiffusionPipeline

    try:
        pipeline = DiffusionPipeline.from_pretrained(model, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"model: {model} cannot be loaded as a diffusers pipeline: {error}") from error
    net, scheduler = getattr(pipeline, "unet", None), pipeline.scheduler
    if net is None or net.config.get("cross_attention_dim") or not hasattr(scheduler, "alphas_cumprod"):
        raise ValueError(
            f"model: {model} is a {type(pipeline).__name__}; expected an unconditional U-Net with alphas_cumprod"
        )
    size = net.config.sample_size
    side = (size, size) if isinstance(size, int) else tuple(size)
    return World(net.to(device).eval(), NoiseSchedule.read(scheduler), (net.config.in_channels, *side),
                 scheduler.config.prediction_type)  # fmt: skip
