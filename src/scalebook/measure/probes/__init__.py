"""What a machine can reach, as ``scalebook probe`` measured it, apart from any training.

This is the schema of probe.json: what a probe asks and finds. Rates are medians over rounds of
back-to-back calls; ``best`` is the fastest round, ``spread`` the distance between the quartiles of
the rounds over their median.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1

Positive = Annotated[float, Field(gt=0)]
Size = Annotated[int, Field(gt=0)]
Status = Literal["completed", "timeout", "failed", "interrupted"]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class ProbeRequest(_Row):
    """What to probe. ``seconds`` is the time to measure in; start-up comes on top."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    platform: str
    world_size: int = Field(ge=1)
    models: tuple[str, ...] = Field(default=(), strict=False)
    seconds: float = Field(gt=0)
    micro_batch_size: int = Field(default=1, ge=1)
    sequence_length: int = Field(ge=1)


class MachineIdentity(_Row):
    """Which machine and software, without names: hashes of the host's and the devices' own ids.

    ``processes`` is set only on a CPU, whose processes share the cores that the others use.
    """

    host: str
    devices: tuple[str, ...] = ()
    accelerator: str | None = None
    torch: str
    cuda: str | None = None
    rocm: str | None = None
    processes: int | None = None

    def covers(self, other: MachineIdentity) -> bool:
        """Return whether what was measured here holds for the devices and software of another."""
        names = ("accelerator", "torch", "cuda", "rocm", "processes")
        if any(getattr(self, name) != getattr(other, name) for name in names):
            return False
        if self.devices and other.devices:
            return set(other.devices) <= set(self.devices)
        return self.host == other.host


class Matmul(_Row):
    """One matrix product [m, k] x [k, n]; with ``model`` it is a layer's, else one of the sweep.

    ``layout`` says which transposes the operands have in memory: ``forward`` x W^T, ``dgrad``
    dy W, ``wgrad`` dy^T x, ``wgrad_accumulate`` the same added to an fp32 sum.
    """

    precision: str
    m: Size
    n: Size
    k: Size
    tflops: Positive
    tflops_best: Positive
    spread: float
    calls: int
    model: str | None = None
    layer: str | None = None
    layout: str = "forward"
    tensor_parallel_size: int | None = None
    count: int | None = None  # such products in one micro batch of the whole model

    @property
    def flops(self) -> float:
        """Floating-point operations of one call."""
        return 2.0 * self.m * self.n * self.k


class Sample(_Row):
    """Clocks, power and temperature of one device, as its driver says at one moment."""

    device: int
    moment: Literal["idle", "loaded"]
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


class Sustained(_Row):
    """The rate of one product repeated for seconds: clocks fall under load, and so does it."""

    precision: str
    m: Size
    n: Size
    k: Size
    seconds: Positive
    burst_tflops: Positive  # the first quarter of a second, after a rest
    sustained_tflops: Positive  # the second half of the time
    series_tflops: tuple[float, ...] = ()  # over time, equal parts
    rank_tflops: tuple[float, ...] = ()  # sustained, by rank: all ran at the same time
    samples: tuple[Sample, ...] = ()


class Copy(_Row):
    """Bytes moved per second; on one device bytes read and bytes written both count."""

    kind: Literal["device_to_device", "host_to_device", "device_to_host"]
    bytes: Size  # of the buffer
    gib_per_second: Positive
    gib_per_second_best: Positive
    spread: float


class Attention(_Row):
    """Causal attention by one of torch's kernels; half of the s x s products are counted."""

    precision: str
    backend: str
    direction: Literal["forward", "forward_backward"]
    batch: int
    heads: int
    groups: int
    sequence_length: int
    head_dim: int
    tflops: Positive
    tflops_best: Positive
    spread: float


class Collective(_Row):
    """A collective over groups of neighbouring ranks that all ran at the same time.

    ``bytes`` and both rates are as nccl-tests defines them (doc/PERFORMANCE.md): the whole
    buffer, GB = 10^9 bytes; the bus rate is what a link carries. ``seconds`` is the slowest rank's.
    """

    operation: str
    group_size: Size
    bytes: Size
    seconds: Positive
    algorithm_gb_per_second: Positive
    bus_gb_per_second: Positive
    spread: float


class Topology(_Row):
    """How the devices of the node are linked, in the words of the vendor's tool; may be empty."""

    devices: tuple[str, ...] = ()
    links: tuple[tuple[str, ...], ...] = ()  # one row per device, one column per device
    nvlink_gb_per_second: dict[str, tuple[float, ...]] = {}  # of each active link, by device


class Skipped(_Row):
    """What was not measured, and why."""

    what: str
    reason: str


class Ceilings(_Row):
    """The summary that belongs to the environment of training runs on the same machine.

    A rate is the median of the best shape or size. Null where it was not measured.
    """

    probe: str
    matmul_tflops: dict[str, float] = {}  # by precision
    sustained_matmul_tflops: dict[str, float] = {}
    model_matmul_tflops: dict[str, float] = {}  # "model/tpN/precision", a micro batch's products
    copy_gib_per_second: float | None = None
    all_reduce_bus_gb_per_second: dict[str, float] = {}  # by group size


class Probe(_Row):
    """probe.json: what one probe was asked and what it found."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["probe"] = "probe"
    probe_id: str
    status: Status = "interrupted"  # until its launcher has seen it end
    reason: str | None = None
    log_tail: tuple[str, ...] = ()
    started_at: str | None = None
    finished_at: str | None = None
    request: ProbeRequest
    identity: MachineIdentity | None = None
    environment: dict[str, Any] = {}
    topology: Topology = Topology()
    matmuls: tuple[Matmul, ...] = ()
    sustained: tuple[Sustained, ...] = ()
    copies: tuple[Copy, ...] = ()
    attention: tuple[Attention, ...] = ()
    collectives: tuple[Collective, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    ceilings: Ceilings | None = None

    @property
    def sweep(self) -> tuple[Matmul, ...]:
        """The products that belong to no model."""
        return tuple(row for row in self.matmuls if row.model is None)

    @property
    def layers(self) -> tuple[Matmul, ...]:
        return tuple(row for row in self.matmuls if row.model is not None)
