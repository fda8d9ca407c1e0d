"""The kinds of work that a training step is made of, and what is believed of each before any run.

Amounts are kept in *reference seconds*: what the work would take at the figures of the catalog
(dense peak, memory bandwidth, half of the bidirectional link, the network's line rate). A kind's
*slowness* is then a number near 1: its seconds for each reference second. It carries over between
devices of one architecture, whose figures differ, and is what the runs are fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from scalebook.config import RunConfig
from scalebook.facts.catalog.types import Accelerator, ModelShape
from scalebook.facts.flops import graph_by_default
from scalebook.measure.metrics.repeats import DEVICE_SPREAD
from scalebook.measure.probes import Probe
from scalebook.parallelism import experts_need_no_host
from scalebook.settings import SWITCHES


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of work: its slowness before any run, and the standard deviation of that belief."""

    name: str
    words: str
    slowness: float
    deviation: float


# Deviations are wide on purpose: a dozen runs must be able to overrule them. Kinds that overlap
# with computation have a slowness below 1: the share that still shows.
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("gemm", "matrix products", 1.40, 0.25),
        Kind("gemm_fp8", "matrix products in FP8", 1.55, 0.35),
        # On CUDA cores: what tensor cores lose to their power limit says nothing about them.
        Kind("gemm_fp32", "matrix products in FP32", 1.30, 0.25),
        Kind("gemm_outputs", "results of matrix products", 1.0, 0.7),
        Kind("gemm_traffic", "operands of matrix products", 0.50, 0.40),
        Kind("attention", "attention", 2.2, 0.7),
        Kind("expert_gemm", "matrix products of experts", 1.8, 0.6),
        # Nothing at first: the committed run on 4 expert ranks slows from 0.8 to 1.3 s in 18 steps.
        Kind("uneven_experts", "waits for the rank with most tokens", 0.2, 0.25),
        Kind("expert_gradients", "sums of experts' gradients", 1.1, 0.3),
        Kind("expert_launch", "launches of experts' kernels", 1.0, 0.2),
        Kind("routing", "routing of tokens to experts", 1.5, 0.8),
        Kind("elementwise", "element-wise kernels", 1.25, 0.4),
        Kind("kernels", "starts and ends of kernels", 1.0, 0.7),
        Kind("optimizer", "optimizer", 1.25, 0.4),
        Kind("step", "fixed time of a step", 1.0, 1.0),
        Kind("waiting", "waits for the slowest device", 1.0, 0.3),
        Kind("launch", "kernel launches", 1.0, 0.7),
        Kind("tensor_exposed", "tensor-parallel communication", 1.3, 0.7),
        Kind("tensor_piece", "first pieces of overlapped collectives", 1.5, 1.0),
        Kind("tensor_sums", "sums of pieces of tensor-parallel collectives", 2.4, 1.2),
        Kind("tensor_overlapped", "overlapped tensor-parallel communication", 0.5, 0.5),
        # The first of engines with Transformer Engine's user buffers, which no run here has.
        Kind("tensor_unhidden", "collectives that user buffers do not hide", 1.3, 0.6),
        Kind("tensor_hidden", "collectives behind products", 0.1, 0.1),
        Kind("tensor_latency", "latency of tensor-parallel collectives", 0.5, 0.4),
        Kind("context", "overlapped context-parallel communication", 0.5, 0.4),
        Kind("context_exposed", "context-parallel communication", 1.3, 0.5),
        # By two products of cuDNN's kernel: 7.4 and 7.7 ms for the halves of 16,384 tokens on an
        # H200, where half of the whole takes 7.0.
        Kind("context_attention", "attention by chunks of a sequence", 0.2, 0.2),
        Kind("expert_exchange", "all-to-all of experts", 1.4, 0.5),
        Kind("pipeline", "transfers between stages", 1.3, 0.6),
        Kind("data_exposed", "exposed data-parallel communication", 1.2, 0.4),
        Kind("data_hidden", "hidden data-parallel communication", 0.10, 0.10),
        Kind("network_exposed", "exposed communication between nodes", 1.2, 0.4),
        Kind("network_hidden", "hidden communication between nodes", 0.05, 0.05),
        Kind("sharding", "copies of fully sharded parameters", 1.5, 1.2),
        Kind("sharded_optimizer", "optimizer of fully sharded parameters", 1.5, 1.0),
        Kind("offload", "copies to host memory and back", 0.15, 0.15),
        Kind("fp8_cast", "casts to FP8", 1.2, 0.6),
        Kind("fp8_scaling", "scaling factors of FP8 outside the delayed recipe", 1.2, 0.7),
        Kind("fp8_blockwise", "block scaling of FP8 products", 0.3, 0.3),
        Kind("fp8_weights", "gathers of FP8 weights", 1.0, 1.0),
        Kind("fused_attention_off", "attention that is not fused", 1.0, 0.7),
        Kind("fused_norm_off", "norms that are not fused", 1.0, 0.7),
        Kind("fused_rope_off", "rotary embedding that is not fused", 1.0, 0.7),
        Kind("fused_activation_off", "activation that is not fused", 1.0, 0.7),
        Kind("fused_cross_entropy_off", "cross entropy that is not fused", 1.0, 0.7),
        Kind("fused_weight_gradient_off", "weight gradients that are not fused", 1.0, 0.7),
        Kind("fused_optimizer_off", "optimizer that is not fused", 1.0, 0.7),
    )
}

# What runs observe of kernels that later ones replaced.
KERNELS = {
    "window_attention": "fused",
    "context_parallel_communication": "overlapped_all_gather",
    "rotary_embedding": "while_split",
    "pipeline_transfers": "queued",
    "tensor_pieces": "exchanged",
    "token_counts": "device",
    "norm_kernel": "torch",
}


def in_transformer_engine(config: RunConfig) -> bool:
    """Return whether Transformer Engine's kernels compute the layers: always in FP8."""
    return config.precision == "fp8" or config.layer_spec == "transformer_engine"


def switches(
    config: RunConfig, shape: ModelShape, ran: Mapping[str, object] | None = None
) -> dict[str, bool]:
    """Return which options are on: as a run recorded them, else as the trainer would decide."""
    sharded = config.data_parallel_sharding
    tensor = config.tensor_parallel_size > 1
    spread = tensor and config.sequence_parallel
    stages = config.pipeline_parallel_size > 1
    engine = in_transformer_engine(config)
    alone = experts_need_no_host(
        shape.num_experts, config.expert_parallel_size, config.expert_tensor_parallel_size
    )
    # train/model/switches.py holds these and more: it asks torch, which this must not import.
    no_graph = bool(
        (shape.moe and not (alone and (shape.mlp_bias or not shape.moe.router_bias)))
        or config.offload_layers
        or config.mtp_layers
        or config.num_microbatches < 2
        or config.fused_weight_gradient == "off"
        or config.virtual_pipeline_parallel_size > 1
    )
    graph = graph_by_default(config, shape) and not (sharded == "full" or engine or no_graph)
    fusable = shape.gated_mlp or (shape.activation == "gelu" and shape.mlp_bias)
    auto = dict.fromkeys(SWITCHES, True) | {
        "fused_weight_gradient": sharded != "full" or config.engine != "megatron",
        "grouped_gemm": shape.moe is not None,
        "overlap_param_gather": sharded == "optimizer" and not stages,
        # Pieces that Python launches are slower than whole collectives.
        "overlap_tensor_parallel": graph and config.cuda_graph != "off" and spread,
        "fused_activation": fusable or config.engine != "megatron",
        "cuda_graph": graph,
    }
    found: dict[str, bool] = {}
    for name in SWITCHES:
        seen = (ran or {}).get(name)
        asked = getattr(config, name)
        decided = auto[name] if asked == "auto" else asked == "on"
        found[name] = decided if seen is None else seen in ("on", True)
    found |= {name: ran is None or ran.get(name) == now for name, now in KERNELS.items()}
    between = shape.qk_norm or shape.mla is not None or shape.learned_positions or engine
    turned = not between and shape.num_query_groups >= config.tensor_parallel_size
    found["rotary_embedding"] &= turned and found["fused_rope"] and config.engine == "megatron"
    return found | {"token_counts": alone and found["token_counts"]}


COMMUNICATION = (
    *("tensor_exposed", "tensor_piece", "tensor_overlapped", "tensor_unhidden", "tensor_hidden"),
    *("tensor_sums", "tensor_latency", "context", "context_exposed", "expert_exchange", "pipeline"),
    *("data_exposed", "data_hidden", "network_exposed", "network_hidden"),
)


def believed(seconds: Mapping[str, float]) -> float:
    """Return what work takes as believed before any run: decides what is slowest and hidden."""
    return sum(KINDS[kind].slowness * value for kind, value in seconds.items())


# What a device of another architecture or vendor may differ by, on top of a kind's own deviation.
FOREIGN = 0.25
_VAGUE = 1.5  # a CPU's figures are guesses: each slowness may be several times as large


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Reference rates of one device: FLOP/s by precision and bytes/s; not what it reaches."""

    flops_per_second: Mapping[str, float]
    memory_bytes_per_second: float
    link_bytes_per_second: float  # one direction, inside a node
    host_bytes_per_second: float
    network_bytes_per_second: float  # one direction, between nodes, per device
    gpus_per_node: int
    is_gpu: bool = True
    best_share: Mapping[str, float] = field(default_factory=dict[str, float])  # of the peak

    def flops(self, precision: str) -> float:
        """Return the peak (FLOP/s) of a precision, of bf16 where it has none of its own."""
        peaks = self.flops_per_second
        return peaks.get(precision) or peaks.get("bf16") or max(peaks.values())


# A process of a small machine: orders of magnitude, so that CPU runs have something to scale.
CPU = MachineRates({"fp32": 1e11, "bf16": 1e11}, 2e10, 5e9, 1e10, 1e9, 8, is_gpu=False)
_HOST_BYTES_PER_SECOND = 55e9  # PCIe 5.0 x16: 63 GB/s less the overhead of its packets
DEFAULT_NETWORK_GBPS = 400.0


def machine(
    device: Accelerator | None, gpus_per_node: int, network_gbps: float | None = None
) -> MachineRates:
    """Return the reference rates of a device (None: a CPU) from the catalog's figures."""
    network = (network_gbps or DEFAULT_NETWORK_GBPS) * 1e9 / 8
    if device is None:
        return CPU
    return MachineRates(
        flops_per_second={name: peak * 1e12 for name, peak in device.peak_tflops.items()},
        memory_bytes_per_second=(device.memory_bandwidth_tb_per_second or 2.0) * 1e12,
        link_bytes_per_second=(device.interconnect_gb_per_second or 64) * 1e9 / 2,
        host_bytes_per_second=_HOST_BYTES_PER_SECOND,
        network_bytes_per_second=network,
        gpus_per_node=gpus_per_node,
        best_share={
            name: best / device.peak_tflops[name]
            for name, best in device.best_product_tflops.items()
        },
    )


_HOST_SPREAD = 0.15  # relative, of the speed of hosts: experts take 14 to 16 ms, and 19 on one
Launches = list[tuple[float, float]]  # the host's seconds, and the device's that hide them


def waits(launches: Launches) -> float:
    """Return the seconds of a host that a device's do not hide."""
    return sum(max(host - busy, 0.0) for host, busy in launches)


def unsure(launches: Launches) -> float:
    """Return the standard deviation of these waits if hosts differ as normal values do."""
    found, normal = 0.0, NormalDist()
    for host, busy in launches:
        spread, mean = _HOST_SPREAD * host, host - busy
        if spread > 0:
            below, at = normal.cdf(mean / spread), spread * normal.pdf(mean / spread)
            first, second = mean * below + at, (mean**2 + spread**2) * below + mean * at
            found += max(second - first**2, 0.0) ** 0.5
    return found


def slowest_of(ranks: int) -> float:
    """Return how much slower than the mean the slowest of N devices is, as a fraction.

    The expected largest of n normal values (Blom 1958), in standard deviations, times theirs.
    """
    return DEVICE_SPREAD * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


@dataclass(frozen=True, slots=True)
class Belief:
    """Slowness of each kind before runs: mean and standard deviation; what it is taken from."""

    mean: Mapping[str, float]
    deviation: Mapping[str, float]
    probe_id: str | None = None
    vague: bool = False  # a guess: small models, whose launches take the time, may hide a kind


def belief(reference: MachineRates, probe: Probe | None = None) -> Belief:
    """Return what is believed of each kind: a probe's rates where there is one."""
    mean = {name: kind.slowness for name, kind in KINDS.items()}
    deviation = {name: kind.deviation for name, kind in KINDS.items()}
    if not reference.is_gpu:
        deviation = {name: _VAGUE * max(value, 1.0) for name, value in mean.items()}
    for name, slower in _of_the_peak(reference).items():
        mean[name], deviation[name] = mean[name] * slower, deviation[name] * slower
    found = {} if probe is None else _probed(probe, reference)
    for name, (value, share) in found.items():
        mean[name], deviation[name] = value, share * value
    return Belief(mean, deviation, probe.probe_id if probe else None, not reference.is_gpu)


# The share of its dense peak that the best product reaches on an H100, whose slowness KINDS holds.
_H100_SHARE = {"bf16": 794.5 / 989.4, "fp8": 1402.6 / 1978.9}


def _of_the_peak(reference: MachineRates) -> dict[str, float]:
    """Return how much further than on an H100 the work of tensor cores stays below the peak."""
    shares = reference.best_share
    if "bf16" not in shares:
        return {}
    usual = _H100_SHARE["bf16"] / shares["bf16"]
    eight = _H100_SHARE["fp8"] / shares["fp8"] if "fp8" in shares else usual
    return {**dict.fromkeys(("gemm", "expert_gemm", "attention"), usual), "gemm_fp8": eight}


def _probed(probe: Probe, reference: MachineRates) -> dict[str, tuple[float, float]]:
    """Return slowness and relative deviation of the kinds that a probe has measured."""
    found: dict[str, tuple[float, float]] = {}
    made = probe.ceilings
    if made is not None:
        rates = [rate for key, rate in made.model_matmul_tflops.items() if key.endswith("/bf16")]
        best = max(rates, default=made.matmul_tflops.get("bf16", 0.0))
        if best and "bf16" in reference.flops_per_second:
            # In training clocks fall and operands are not in the cache: a few percent slower.
            found["gemm"] = (1.05 * reference.flops("bf16") / (best * 1e12), 0.08)
        eight = [rate for key, rate in made.model_matmul_tflops.items() if key.endswith("/fp8")]
        if eight and "fp8" in reference.flops_per_second:
            found["gemm_fp8"] = (1.1 * reference.flops("fp8") / (max(eight) * 1e12), 0.15)
        if made.copy_gib_per_second:
            slow = reference.memory_bytes_per_second / (made.copy_gib_per_second * 2**30)
            found["elementwise"] = (1.1 * slow, 0.25)
            found["optimizer"] = (1.1 * slow, 0.25)
    return found
