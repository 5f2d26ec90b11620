from .agreement import agreement as agreement
from .batches import BatchShortfall as BatchShortfall
from .batches import batch_shortfall as batch_shortfall
from .batches import proportionality_report as proportionality_report
from .choices import Voters as Voters
from .choices import fit_voters as fit_voters
from .method import AngularMean as AngularMean
