"""FocusBranch: can changing a few pixels of this image, in any way, change what the classifier says?

Branch and bound over sets of pixels to look at: a node says that at least l of the t changed pixels lie in a set S. Its bound
(CROWN, concrete on exactly that set) covers all its ways at once; where it fails, the set is split by covering designs or l
grows, and sets of t pixels that stay open are attacked and then decided by mixed-integer programming. Where to start and how to
branch is chosen by a few sampled nodes and a dynamic program.

Use it on torch modules or ONNX files (dense, convolutional, residual; ReLU and max pooling): :class:`FocusBranch` for an image,
:func:`verify_l0` for many. The answer is ``verified``, ``falsified`` with an image, or honestly ``unknown``. The bound alone is
:class:`NodeBounder`, the covering designs are :func:`covering_design`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
