from .ghosted_layers import GhostedLayer as GhostedLayer
from .ghosted_layers import GhostedLayers as GhostedLayers
from .ghosted_layers import fit_operator as fit_operator
from .ghosted_layers import layer_similarity as layer_similarity
