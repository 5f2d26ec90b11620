from .hyperplanarity import ProfileStream as ProfileStream
from .hyperplanarity import hyperplanarity_profile as hyperplanarity_profile
from .method import GeoSprint as GeoSprint
from .noising import NoiseSchedule as NoiseSchedule
from .samplers import ddim_sample as ddim_sample
from .samplers import dpm_solver_pp as dpm_solver_pp
from .straightness import trajectory_projection_score as trajectory_projection_score
from .straightness import trajectory_report as trajectory_report
