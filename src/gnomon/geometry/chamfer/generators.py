"""Small generators of 28 x 28 digits, trained on the spot: what the study scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

VAE_EPOCHS = (1, 4, 16, 48)  # the stages that are sampled
DIFFUSION_UPDATES = 1500
GUIDANCE = (0.0, 1.0, 3.0)
STEPS = 50  # of the diffusion
COMPONENTS = 48  # principal components that the mixture and the diffusion live on


def generate(X: Array, labels: NDArray[np.int64], m: int, seed: int) -> dict[str, Array]:
    """m samples (m, 784) in [0, 1] of each generator trained on the rows of X (n, 784).

    ``gmm``: a mixture of 30 Gaussians on principal components. ``vae 1`` ... ``vae 48``: a variational autoencoder after so
    many epochs. ``ddpm 0`` ... ``ddpm 3``: a class-conditional diffusion with classifier-free guidance. ``copies``: training rows
    with a little noise.
    """
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {
        "copies": np.clip(X[rng.choice(len(X), m)] + 0.05 * rng.normal(size=(m, X.shape[1])), 0, 1)
    }
    found["gmm"] = _mixture(X, m, seed)
    found |= _autoencoder(X, m, seed)
    found |= _diffusion(X, labels, m, seed)
    return {name: sample.astype(np.float32) for name, sample in found.items()}


def _mixture(X: Array, m: int, seed: int) -> Array:
    from sklearn.decomposition import PCA
    from sklearn.mixture import GaussianMixture

    pca = PCA(COMPONENTS, random_state=seed).fit(X)
    mixture = GaussianMixture(30, reg_covar=1e-2, random_state=seed).fit(pca.transform(X).astype(np.float64))
    return np.clip(pca.inverse_transform(mixture.sample(m)[0]), 0, 1)


def _autoencoder(X: Array, m: int, seed: int, latent: int = 16) -> dict[str, Array]:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    data = torch.from_numpy(X)
    encoder = nn.Sequential(nn.Linear(X.shape[1], 256), nn.ReLU(), nn.Linear(256, 2 * latent))
    decoder = nn.Sequential(nn.Linear(latent, 256), nn.ReLU(), nn.Linear(256, X.shape[1]))
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    noise = torch.randn(m, latent)
    found = {}
    for epoch in range(1, VAE_EPOCHS[-1] + 1):
        for batch in torch.randperm(len(data)).split(64):
            x = data[batch]
            mean, log_variance = encoder(x).chunk(2, dim=1)
            z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
            fit = nn.functional.binary_cross_entropy_with_logits(decoder(z), x, reduction="sum")
            prior = 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum()
            optimiser.zero_grad()
            ((fit + prior) / len(x)).backward()
            optimiser.step()
        if epoch in VAE_EPOCHS:
            with torch.no_grad():
                found[f"vae {epoch}"] = decoder(noise).sigmoid().numpy()
    return found


def _diffusion(X: Array, labels: NDArray[np.int64], m: int, seed: int) -> dict[str, Array]:
    """A denoising diffusion on whitened principal components; label 10 stands for none."""
    import torch
    from sklearn.decomposition import PCA
    from torch import nn

    torch.manual_seed(seed)
    pca = PCA(COMPONENTS, random_state=seed).fit(X)
    scale = float(pca.transform(X).std())
    data, classes = torch.from_numpy(pca.transform(X).astype(np.float32) / scale), torch.from_numpy(labels)
    alpha = (
        torch.cos(torch.linspace(0, 1, STEPS + 1) * 0.99 * math.pi / 2) ** 2
    )  # what is left of the signal after t steps
    embedding, network = nn.Embedding(11, 32), nn.Sequential(
        nn.Linear(COMPONENTS + 32 + 2, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(),
        nn.Linear(256, COMPONENTS))  # fmt: skip

    def predict(x: Any, t: Any, label: Any) -> Any:
        angle = (t / STEPS * math.pi / 2)[:, None]
        return network(torch.cat([x, embedding(label), angle.cos(), angle.sin()], 1))

    optimiser = torch.optim.Adam([*network.parameters(), *embedding.parameters()], lr=1e-3)
    for _ in range(DIFFUSION_UPDATES):
        rows = torch.randint(len(data), (128,))
        t = torch.randint(1, STEPS + 1, (128,))
        noise = torch.randn(128, COMPONENTS)
        label = torch.where(torch.rand(128) < 0.15, 10, classes[rows])
        noisy = alpha[t].sqrt()[:, None] * data[rows] + (1 - alpha[t]).sqrt()[:, None] * noise
        loss = ((predict(noisy, t.float(), label) - noise) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    found = {}
    with torch.no_grad():
        for guidance in GUIDANCE:
            x, label = torch.randn(m, COMPONENTS), classes[torch.randint(len(classes), (m,))]
            none = torch.full_like(label, 10)
            for now in range(STEPS, 0, -1):
                time, left, next_left = torch.full((m,), float(now)), alpha[now], alpha[now - 1]
                noise = (1 + guidance) * predict(x, time, label) - guidance * predict(x, time, none)
                clean = ((x - (1 - left).sqrt() * noise) / left.sqrt()).clamp(-8, 8)
                step = left / next_left
                mean = next_left.sqrt() * (1 - step) * clean + step.sqrt() * (1 - next_left) * x
                spread = ((1 - next_left) / (1 - left) * (1 - step)).sqrt()
                x = mean / (1 - left) + spread * torch.randn_like(x)
            found[f"ddpm {guidance:g}"] = np.clip(pca.inverse_transform(x.numpy() * scale), 0, 1)
    return found
