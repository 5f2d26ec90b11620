from .spacer import SpaceR as SpaceR
from .spacer import spacer_estimate as spacer_estimate
from .spacer import spacer_partitioned as spacer_partitioned
from .two_level_softmax import TwoLevelSoftmax as TwoLevelSoftmax
from .two_level_softmax import sampled_softmax_loss as sampled_softmax_loss
from .two_level_softmax import two_level_logits as two_level_logits
