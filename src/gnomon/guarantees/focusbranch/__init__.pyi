from .bounds import ImageBounds as ImageBounds
from .bounds import NodeBounder as NodeBounder
from .coverings import covering_design as covering_design
from .method import FocusBranch as FocusBranch
from .method import L0Result as L0Result
from .method import verify_l0 as verify_l0
from .network import load_network as load_network
