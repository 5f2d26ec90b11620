from . import (
    activations,
    architectures,
    cache,
    catalog,
    datasets,
    linalg,
    models,
    sampling,
    stats,
    study,
    surgery,
)
from ._front import check, records

__version__: str
