"""Rules on what the host does: launching kernels, fetching data, the optimizer, its cores."""

from __future__ import annotations

from collections.abc import Iterator

from scalebook.measure.diagnosis.evidence import Evidence, Finding, number, percent
from scalebook.measure.diagnosis.pipeline import waiting_of
from scalebook.record import object_of

GAPS, DATA, OPTIMIZER = 0.03, 0.02, 0.08  # smallest shares of the step that are worth a sentence


def launch_rule(found: Evidence) -> Iterator[Finding]:
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
    yield Finding(
        rule="launch_gaps",
        says=(
            f"The device waited {percent(gaps)} of the step for the host to launch "
            f"its next kernel.{words}"
        ),
        advice=(
            "A larger micro batch makes each kernel longer, for as many launches.",
            "cuda_graph=on replays a micro batch with one launch; fused kernels are fewer.",
            "Look for other work on the host's cores, and for slow ones.",
        ),
        step_fraction=gaps,
        basis="measured",
        evidence={"kernels_per_step": split.kernels_per_step},
    )


def data_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the step waited for its data."""
    split = found.split
    if split is None or split.data is None or split.data < DATA:
        return
    synthetic = not found.record.setting("data")
    kept = "synthetic tokens" if synthetic else "the indexed dataset"
    yield Finding(
        rule="data",
        says=f"Fetching {kept} takes {percent(split.data)} of the step.",
        advice=("Look for other work on the host's cores, which make the tokens.",)
        if synthetic
        else (
            "Keep the dataset on a local disk or in memory, and read ahead of the step.",
            "Compare with synthetic tokens (data empty): the difference is the data's.",
        ),
        step_fraction=split.data,
        basis="measured",
    )


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
    if (
        sizes is not None
        and sizes.data_parallel_sharding == "none"
        and sizes.data_parallel_size > 1
    ):
        advice.append("data_parallel_sharding=optimizer: each replica then updates only its share.")
    advice.append("fused_optimizer=on, where the kernel is available.")
    yield Finding(
        rule="optimizer",
        says=f"The optimizer takes {percent(split.optimizer)} of the step.",
        advice=tuple(advice),
        step_fraction=split.optimizer,
        basis="measured",
        evidence={"num_microbatches": batches},
    )


def cores_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the processes of a CPU run are more than its cores."""
    cores = number(object_of(found.record.environment.get("host")).get("cpu_cores"))
    world = found.metrics.world_size
    if found.on_gpu or cores is None or world is None or world <= cores:
        return
    yield Finding(
        rule="cpu_cores",
        says=f"{world} processes shared {cores:.0f} cores: they took turns.",
        advice=(f"Use {cores:.0f} processes or fewer to compare step times on this machine.",),
        step_fraction=1 - cores / world,
        basis="computed",
        evidence={"cpu_cores": cores, "world_size": world},
    )
