"""FoSTA: two labelled data sets of different features, aligned by forests, semantic transport and diffusion.

Use it when two assays, laboratories or modalities share a label vocabulary but neither features nor rows, and when most
features may have nothing to do with the labels: it gives one embedding, a coupling of rows, and labels carried over.
"""

from gnomon.geometry.fosta.forest import ForestKernel
from gnomon.geometry.fosta.method import FoSTA, LabelTransfer
from gnomon.geometry.fosta.metrics import alignment_score, foscttm
from gnomon.geometry.fosta.transport import hierarchical_assignment, semantic_coupling

__all__ = [
    "FoSTA",
    "ForestKernel",
    "LabelTransfer",
    "alignment_score",
    "foscttm",
    "hierarchical_assignment",
    "semantic_coupling",
]
