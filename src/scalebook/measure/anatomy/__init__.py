"""The anatomy of a training step: a profiler's trace reduced to what its time went to.

This is profile/breakdown.json as it is kept and read back; ``breakdown`` makes it of a trace.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scalebook import untrusted
from scalebook.errors import TraceError
from scalebook.measure.anatomy.kinds import of_layout
from scalebook.parallelism import Parallelism

SCHEMA_VERSION = 1
BREAKDOWN_FILE = "breakdown.json"
MOST_BYTES = 16 << 20
Device = Literal["gpu", "cpu"]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Parts(_Row):
    """The step, divided: seconds of one step, which add up to ``step_seconds``.

    On a GPU: what the device did at each moment. Compute kernels and copies belong to the phase
    whose host code launched them; ``exposed_communication_seconds`` is when only communication
    kernels ran; ``data_seconds`` is copies of input and waiting for it; ``idle_seconds`` is when
    nothing ran at all. On a CPU operators stand for kernels, and idle is time between them.
    """

    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    exposed_communication_seconds: float | None = None
    data_seconds: float | None = None
    idle_seconds: float | None = None


class TopKernel(_Row):
    """One name: seconds and calls a step, the time of all its streams added up."""

    name: str
    seconds: float
    calls: float
    kind: str


class Breakdown(_Row):
    """A profiled step of one rank. Seconds are of one step, the mean of ``steps``.

    ``reason`` says why values are null. Sums over kernels (``kinds``, ``top_kernels``) count
    kernels that run at the same time twice; all other seconds are wall time.
    """

    schema_version: int = SCHEMA_VERSION
    rank: int | None = None
    device: Device | None = None
    steps: int = 0
    step_seconds: float | None = None
    parts: Parts = Parts()
    communication_seconds: float | None = None  # at least one communication kernel ran
    overlapped_communication_seconds: float | None = None  # while a compute kernel ran
    exposed_by_collective: dict[str, float] = {}  # all_reduce, send_receive, ...
    kernel_seconds: float | None = None  # at least one compute kernel or copy ran
    launch_gap_seconds: float | None = None  # idle until the host launched the next kernel
    kinds: dict[str, float] = {}  # gemm, attention, norm, elementwise, optimizer, ...
    top_kernels: tuple[TopKernel, ...] = ()
    kernels_per_step: float | None = None
    uncorrelated_kernels: int = 0  # whose launch is not in the trace; their neighbours' phase
    unmarked_seconds: float | None = None  # compute that no range marks, counted as forward
    each_step_seconds: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str | None = None
    trace: str | None = None  # file name in the same folder; None where it was not kept


def read_breakdown(path: Path, layout: Parallelism | None = None) -> Breakdown:
    """Return the breakdown in a file, its exchanges named by ``layout`` where that is known.

    Raises:
        TraceError: the file is missing, too large, or does not hold a breakdown.
    """
    try:
        found = Breakdown.model_validate_json(untrusted.read_bytes(path, MOST_BYTES))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{path} contains no breakdown: {where}: {first['msg']}.") from error
    if layout is None:
        return found
    named = of_layout(found.exposed_by_collective, layout)
    return found.model_copy(update={"exposed_by_collective": named})
