"""GeoSPRINT: the best images of a diffusion or flow model at a fixed number of network calls, without training.

A pilot of a few denoising trajectories shows where they leave the plane of their last states: there a sampler needs
its steps, elsewhere it can skip. The result is a decreasing list of time steps for DDIM (or any sampler), reusable for
every later sample, and a report of how straight the trajectories are (:func:`trajectory_projection_score`).

Use it for a pretrained model that predicts noise, data, v or velocity, on its own schedule; ``as_scheduler`` puts the
steps into a diffusers pipeline. The pilot costs a few thousand network calls, once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
