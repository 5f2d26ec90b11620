from .evidence import log_e_value as log_e_value
from .matrix import PreferenceMatrix as PreferenceMatrix
from .method import TGITE as TGITE
from .simulation import Simulation as Simulation
from .simulation import simulate as simulate
