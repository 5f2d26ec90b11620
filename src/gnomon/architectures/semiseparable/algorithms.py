"""Every way to the mask, by name."""

from __future__ import annotations

from typing import Any

__all__ = ["ALGORITHMS"]

#: Options of :func:`gnomon.architectures.segsum`.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "hier": {"method": "hier"},
    "hier_log": {"method": "hier", "form": "log"},
    "direct": {"method": "direct"},
    "diff_sequential": {"method": "diff", "scan": "sequential"},
    "diff_kogge_stone": {"method": "diff", "scan": "kogge_stone"},
    "diff_blelloch": {"method": "diff", "scan": "blelloch"},
    "diff_clamped": {"method": "diff_clamped", "scan": "blelloch"},
}
