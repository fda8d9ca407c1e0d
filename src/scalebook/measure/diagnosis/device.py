"""Rules on the devices and on their host, which launches kernels and fetches data."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from scalebook.facts import catalog
from scalebook.measure.diagnosis.evidence import Evidence, Finding, finding, listed, number, percent
from scalebook.measure.diagnosis.pipeline import waiting_of
from scalebook.measure.telemetry import flags
from scalebook.measure.telemetry.throttling import HEAT, POWER, SHARE, share_of
from scalebook.record import object_of
from scalebook.settings import SWITCHES, is_on

SMALLEST = 0.03
FUSIONS = tuple(
    name for name in SWITCHES if name.startswith("fused_") and name != "fused_attention"
)
STRAGGLER = 0.02


def matmul_ceiling_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the machine's best matrix product is below the peak that MFU divides by."""
    metrics = found.metrics
    peak, best, mfu = metrics.peak_tflops_per_second, metrics.measured_matmul_tflops, metrics.mfu
    if not peak or not best or not mfu:
        return
    share = (metrics.hfu or mfu) * (peak / best - 1)
    if share < SMALLEST:
        return
    yield finding(
        f"The best matrix product that a probe saw on this machine reaches {best:.4g} of the "
        f"{peak:.4g} TFLOP/s peak: an MFU above {percent(best / peak)} is out of reach here; "
        f"this run is at {percent(mfu * peak / best)} of the reachable.",
        "Compare runs of this machine by matmul_fraction, which leaves this out.",
        computed=min(share, 1.0),
        evidence={"measured_matmul_tflops": best, "peak_tflops_per_second": peak},
    )


def matmul_shapes_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the products of this model and split are slower than the machine's best."""
    metrics, hfu = found.metrics, found.metrics.hfu or found.metrics.mfu
    peak, best = metrics.peak_tflops_per_second, metrics.measured_matmul_tflops
    key = f"{metrics.model}/tp{metrics.tensor_parallel_size}/{metrics.precision}"
    own = found.ceiling("model_matmul_tflops", key)
    if not peak or not best or not own or not hfu or own > 0.93 * best:
        return
    share = hfu * peak * (1 / own - 1 / best)
    advice = ["A larger micro batch gives the products more rows."]
    if (metrics.tensor_parallel_size or 1) > 1:
        advice.append("A smaller tensor_parallel_size gives them more columns.")
    yield finding(
        f"The matrix products of this model at tensor_parallel_size="
        f"{metrics.tensor_parallel_size} reach {own:.4g} TFLOP/s in the probe, the best shapes "
        f"{best:.4g}.",
        *advice,
        computed=min(share, 1.0),
        evidence={"model_matmul_tflops": own, "measured_matmul_tflops": best},
    )


def clocks_rule(found: Evidence) -> Iterator[Finding]:
    """Yield what held the clocks down while steps were measured."""
    devices, clocks = found.devices, found.devices.clocks
    held = [
        name
        for name, reasons in (("power_cap", POWER), ("heat", HEAT))
        if (share_of(devices, reasons) or 0.0) >= SHARE
    ]
    falling = clocks is not None and clocks.falling is not None
    sentences = [one for one in flags(devices) if one not in devices.notes]
    if not (held or falling) or not sentences:
        return
    lost, peak = None, found.peak_clock_mhz
    if clocks is not None and peak is not None:
        compute = found.split.compute if found.split else None
        lost = max(1 - clocks.mean_mhz / peak, 0.0) * (min(compute, 1.0) if compute else 1.0)
    stated = () if lost is None else (f"The peak is stated at {peak:,.0f} MHz.",)
    if lost:
        stated += (f"At it, forward and backward would save up to {percent(lost)} of the step.",)
    elif lost == 0:
        stated += ("The mean is not below it: against the peak, nothing is lost.",)
    board = found.device.tdp_watts if found.device else None
    own = board is not None and (devices.power_cap_watts or 0) >= board
    power = "The cap is the board's own: compare energy per token as well."
    advice = {
        "power_cap": power if own else "Raise the power cap, or compare energy per token as well.",
        "heat": "Improve the cooling, and let the machine cool down between runs.",
    }
    yield finding(
        " ".join((*sentences, *stated)),
        *([advice[name] for name in held] or ["Measure longer, from when the clocks are steady."]),
        computed=lost,
        evidence={
            "mean_clock_mhz": clocks.mean_mhz if clocks else None,
            "max_clock_mhz": clocks.highest_possible_mhz if clocks else None,
            "peak_clock_mhz": peak,
        },
    )


def slow_device_rule(found: Evidence) -> Iterator[Finding]:
    """Yield a device whose clock is below that of the others, which all wait for it.

    Stages of a pipeline do different work, which leaves their devices different clocks.
    """
    clocks, split = found.devices.clocks, found.parallelism
    staged = split is not None and split.pipeline_parallel_size > 1
    if clocks is None or len(clocks.by_device) < 2 or staged:
        return
    (name, slowest), *others = sorted(clocks.by_device, key=lambda pair: pair[1])
    usual = median(value for _, value in others)
    if slowest > (1 - SMALLEST) * usual:
        return
    rest = "the other device at" if len(others) == 1 else "the median of the other devices was"
    yield finding(
        f"{name} ran at {slowest:,.0f} MHz, {rest} {usual:,.0f} MHz: "
        f"{'it waits' if len(others) == 1 else 'they wait'} for {name}.",
        f"Look at the cooling and the power of {name}, or leave it out.",
        measured=1 - slowest / usual,
        evidence={"slowest_clock_mhz": slowest, "median_clock_mhz": usual},
    )


def straggler_rule(found: Evidence) -> Iterator[Finding]:
    """Yield a rank whose steps take longer than those of the others."""
    seconds = found.rank_seconds
    if len(seconds) < 2:
        return
    slowest, usual = max(seconds), median(seconds)
    share = 1 - usual / slowest if slowest > 0 else 0.0
    if share < STRAGGLER:
        return
    yield finding(
        f"Steps of rank {seconds.index(slowest)} take {slowest:.4g} s on average, those of the "
        f"median rank {usual:.4g} s.",
        "Look at that rank's GPU (clocks, links) and at the load of its host.",
        measured=share,
        evidence={"slowest_rank": seconds.index(slowest)},
    )


def precision_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that a lower precision has a higher peak on this device."""
    device, precision = found.metrics.accelerator, found.metrics.precision
    peak = found.metrics.peak_tflops_per_second
    if not found.on_gpu or device is None or precision != "fp32" or not peak:
        return
    faster, _ = catalog.peak_tflops(device, "bf16")
    if faster is None or faster < 1.5 * peak:
        return
    yield finding(
        f"fp32 has a peak of {peak:.4g} TFLOP/s on {device}, bf16 one of {faster:.4g}: "
        f"{faster / peak:.3g} times as much.",
        "Train in bf16 with fp32 master weights, which halves memory traffic too.",
        evidence={"peak_tflops_per_second": peak, "bf16_peak_tflops_per_second": faster},
    )


def attention_kernel_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that attention is not fused, or which fusions were off."""
    record = found.record
    unfused = record.is_on("fused_attention") is False
    if found.on_gpu and (unfused or record.observed.get("attention_kernel") == "math"):
        yield finding(
            "Attention ran as separate products with a matrix of scores in memory.",
            "Use a fused (flash) attention: fused_attention=on says why it cannot run.",
            evidence={"attention_kernel": "math"},
        )
    off = [name for name in FUSIONS if record.is_on(name) is False] if found.on_gpu else []
    if off:
        asked = [name for name in off if is_on(record.asked.get(name)) is False]
        words = "Leave {} at 'auto', which is on where it can be."
        yield finding(
            f"Not in force in this run: {listed(off)}.",
            *((words.format(listed(asked)),) if asked else ()),
            rule="fusions_off",
            evidence=dict.fromkeys(off, "off"),
        )


GAPS, DATA, OPTIMIZER = 0.03, 0.02, 0.08  # smallest shares of the step that are worth a sentence


def launch_gaps_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the device waited for the host to ask it for something."""
    split = found.split
    waits, gaps = waiting_of(found), split.launch_gaps if split else None
    if gaps is not None and split is not None and split.idle is not None and waits is not None:
        gaps = min(gaps, waits.idle or 0.0)  # beyond what stages wait for each other
    if split is None or gaps is None or gaps < GAPS:
        return
    words = ""
    if split.kernels_per_step and split.kernel_seconds:
        mean = split.kernel_seconds / split.kernels_per_step * 1e6
        words = f" {split.kernels_per_step:,.0f} kernels per step take {mean:.3g} µs on average."
    yield finding(
        f"The device waited {percent(gaps)} of the step for the host to launch "
        f"its next kernel.{words}",
        "A larger micro batch makes each kernel longer, for as many launches.",
        "cuda_graph=on replays a micro batch with one launch; fused kernels are fewer.",
        "Look for other work on the host's cores, and for slow ones.",
        measured=gaps,
        evidence={"kernels_per_step": split.kernels_per_step},
    )


def data_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the step waited for its data."""
    split = found.split
    if split is None or split.data is None or split.data < DATA:
        return
    kept = "synthetic tokens"
    advice = ["Look for other work on the host's cores, which make the tokens."]
    if found.record.setting("data"):
        kept = "the indexed dataset"
        advice = [
            "Keep the dataset on a local disk or in memory, and read ahead of the step.",
            "Compare with synthetic tokens (data empty): the difference is the data's.",
        ]
    what = f"Fetching {kept} takes {percent(split.data)} of the step."
    yield finding(what, *advice, measured=split.data)


def optimizer_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the optimizer takes much of the step."""
    split, batches = found.split, found.num_microbatches
    if split is None or split.optimizer is None or split.optimizer < OPTIMIZER:
        return
    advice = [
        f"More micro batches per step{f' (now {batches})' if batches else ''}: the optimizer runs "
        "once a step, however many there are."
    ]
    sizes = found.parallelism
    if sizes and sizes.data_parallel_sharding == "none" and sizes.data_parallel_size > 1:
        advice.append("data_parallel_sharding=optimizer: each replica then updates only its share.")
    advice.append("fused_optimizer=on, where the kernel is available.")
    yield finding(
        f"The optimizer takes {percent(split.optimizer)} of the step.",
        *advice,
        measured=split.optimizer,
        evidence={"num_microbatches": batches},
    )


def cpu_cores_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the processes of a CPU run are more than its cores."""
    cores = number(object_of(found.record.environment.get("host")).get("cpu_cores"))
    world = found.metrics.world_size
    if found.on_gpu or cores is None or world is None or world <= cores:
        return
    yield finding(
        f"{world} processes shared {cores:.0f} cores: they took turns.",
        f"Use {cores:.0f} processes or fewer to compare step times on this machine.",
        computed=1 - cores / world,
        evidence={"cpu_cores": cores, "world_size": world},
    )
