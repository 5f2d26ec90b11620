from .distributed import spacer_partitioned as spacer_partitioned
from .method import SpaceR as SpaceR
from .method import spacer_estimate as spacer_estimate
