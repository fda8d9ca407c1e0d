"""The anatomy of a training step: a profiler's trace reduced to what its time went to."""

from scalebook.measure.anatomy.breakdown import fault_of, reduce_file, reduce_trace
from scalebook.measure.anatomy.events import EventReader
from scalebook.measure.anatomy.result import (
    BREAKDOWN_FILE,
    Breakdown,
    Parts,
    TopKernel,
    read_breakdown,
)
from scalebook.measure.anatomy.trace import Trace

__all__ = [
    "BREAKDOWN_FILE", "Breakdown", "EventReader", "Parts", "TopKernel", "Trace", "fault_of",
    "read_breakdown", "reduce_file", "reduce_trace",
]  # fmt: skip
