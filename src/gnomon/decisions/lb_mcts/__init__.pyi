from .llm import LLM as LLM
from .llm import Prior as Prior
from .llm import Recorder as Recorder
from .llm import Replay as Replay
from .method import LBMCTS as LBMCTS
from .priors import PriorTable as PriorTable
from .sklearn_space import sklearn_space as sklearn_space
from .space import CASHSpace as CASHSpace
