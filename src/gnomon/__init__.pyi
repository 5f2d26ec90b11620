from . import activations as activations
from . import architectures as architectures
from . import cache as cache
from . import catalog as catalog
from . import datasets as datasets
from . import decisions as decisions
from . import geometry as geometry
from . import guarantees as guarantees
from . import linalg as linalg
from . import models as models
from . import optimization as optimization
from . import sampling as sampling
from . import stats as stats
from . import study as study
from . import surgery as surgery
from ._front import check as check
from ._front import records as records

__version__: str
