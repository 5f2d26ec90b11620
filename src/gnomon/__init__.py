"""gnomon: methods of NeurIPS 2026, importable, fast, and put to the test.

Use a method (``from gnomon.surgery import GhostedLayers``), check what its paper claims
(``gnomon.check("ghosted-layers")``), read the evidence (``gnomon.records()``, ``gnomon report``).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
