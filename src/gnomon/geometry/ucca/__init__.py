"""UCCA: canonical correlation analysis of two views whose row correspondence is unknown.

:class:`UCCA` takes two views of the same kind of items (two sensors, two embeddings, two feature sets) whose rows are in
no common order, and gives a pairing, linear projections that correlate for the true pairs, and a diagnosis of whether to
believe them. :func:`faq` (quadratic assignment), :func:`kernelized_sorting`, :func:`point_descriptors` and
:func:`pairing_score` are its parts.

Use it when pairs were lost or may not be used, for 20 to 3,000 rows whose clouds have a shape of their own: clusters,
skewness, unequal spacing. Gaussian clouds have none, and no method can pair them.
"""

from gnomon.geometry.ucca.assignment import FAQResult, faq
from gnomon.geometry.ucca.baselines import kernelized_sorting
from gnomon.geometry.ucca.descriptors import point_descriptors
from gnomon.geometry.ucca.kernels import pairing_score
from gnomon.geometry.ucca.method import UCCA, Evaluation

__all__ = ["UCCA", "Evaluation", "FAQResult", "faq", "kernelized_sorting", "pairing_score", "point_descriptors"]
