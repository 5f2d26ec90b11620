"""Studies: what is compared on what, and what must come out.

>>> from gnomon import study
>>> study.better("nll", "ghosted", than=["none"], each=["n"], paper="Table 1").text
'ghosted has better nll than none (for each n)'
"""

from gnomon.study.claims import (
    Claim,
    always,
    at_least,
    at_most,
    better,
    between,
    beyond,
    close,
    correlates,
    estimate,
    ordered,
    rate,
    slope,
    worse,
)
from gnomon.study.judge import Verdict, judge
from gnomon.study.protocol import Cell, Experiment, Inputs, Metric, Options, Outcome, Study, grid, higher, lower, stage

__all__ = [
    "Cell",
    "Claim",
    "Experiment",
    "Inputs",
    "Metric",
    "Options",
    "Outcome",
    "Study",
    "Verdict",
    "always",
    "at_least",
    "at_most",
    "better",
    "between",
    "beyond",
    "close",
    "correlates",
    "estimate",
    "grid",
    "higher",
    "judge",
    "lower",
    "ordered",
    "rate",
    "slope",
    "stage",
    "worse",
]
