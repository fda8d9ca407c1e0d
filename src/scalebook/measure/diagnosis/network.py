"""Rules on communication: what of it is exposed, what could hide it, what could do without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scalebook.measure.anatomy.kinds import COLLECTIVES
from scalebook.measure.diagnosis.evidence import Evidence, Finding, Value, finding, percent
from scalebook.measure.diagnosis.memory_use import fits_with
from scalebook.measure.diagnosis.pipeline import waiting_of

SMALLEST = 0.05  # of the step; the seed of this list calls 0.3 heavy
GB = 1e9


def exposed_communication_rule(found: Evidence) -> Iterator[Finding]:
    """Yield the communication that no computation hides, but that between stages."""
    split = found.split
    if split is None or split.communication is None or split.communication < SMALLEST:
        return
    share = split.communication
    what = "Exposed communication" if split.source == "profile" else "The gradient all-reduce"
    name = split.largest_collective
    largest = f", most of it {COLLECTIVES.get(name, name)}" if name else ""
    rate, words = _rate(found)
    yield finding(
        f"{what} takes {percent(share)} of the step{largest}.{words}",
        *_against(found),
        measured=share,
        evidence={"exposed_communication_fraction": share, "sent_gb_per_second": rate},
    )


def _rate(found: Evidence) -> tuple[float | None, str]:
    """Return the rate (GB/s) at which a rank sent while communication ran, and a sentence."""
    sent, split = found.sent(), found.split
    if sent is None or split is None or not split.collective_seconds or not sent.total:
        return None, ""
    rate = sent.total / GB / split.collective_seconds
    words = f" A rank sends {sent.total / GB:.3g} GB per step, {rate:.3g} GB/s while communicating"
    ceiling = found.ceiling("all_reduce_bus_gb_per_second", str(found.metrics.world_size))
    if ceiling:
        words += f"; the probe of the machine reached {ceiling:.3g} GB/s in an all-reduce"
        if rate < ceiling / 2:
            words += ": messages are small, or ranks wait for each other"
    return rate, f"{words}."


def _against(found: Evidence) -> Iterator[str]:
    """Yield what may lessen communication in this layout."""
    split, batches = found.parallelism, found.num_microbatches
    if split is None:
        yield "Compare the layout with one of smaller tensor and context parallel sizes."
        return
    if split.tensor_parallel_size > 1:
        yield (
            f"tensor_parallel_size={split.tensor_parallel_size} communicates in every layer: a "
            "smaller size, or overlap_tensor_parallel."
        )
    if split.context_parallel_size > 1:
        yield "A smaller context_parallel_size, where the sequence then fits."
    if split.expert_parallel_size > 1:
        yield "A smaller expert_parallel_size, where the experts then fit."
        if split.world_size > (found.gpus_per_node or split.world_size):
            yield "Keep expert_parallel_size within a node: tokens then cross no network."
    if split.data_parallel_size > 1:
        few = f" (now {batches})" if batches else ""
        yield (
            f"More micro batches per step{few}: gradients are reduced once per step, however "
            "many there are."
        )
    yield "Check the links of the node: 'scalebook probe' measures what they reach."


def waits_between_stages_rule(found: Evidence) -> Iterator[Finding]:
    """Yield what stages wait for each other beyond what the schedule explains."""
    waits, layout = waiting_of(found), found.parallelism
    if waits is None or waits.stages < SMALLEST:
        return
    experts = layout is not None and layout.expert_parallel_size > 1
    unnamed = experts and found.split is not None and not found.split.exchanges_named
    note = " The all-to-all of experts is in it: the profile does not name it." if unnamed else ""
    yield finding(
        f"Stages wait for each other {percent(waits.stages)} of the step longer than the "
        f"bubble and the output layer explain.{note}",
        "Look for a slow rank, and for stages whose layers are not of one kind.",
        "Check that neighbouring stages are linked as well as the probe says.",
        measured=waits.stages,
    )


def overlap_off_rule(found: Evidence) -> Iterator[Finding]:
    """Yield which overlap of gradients or weights is off, where it could hide something."""
    split, share = found.parallelism, found.split.communication if found.split else None
    if split is None or split.data_parallel_size * split.context_parallel_size < 2:
        return
    names = ["overlap_grad_reduce"]
    names += ["overlap_param_gather"] if split.data_parallel_sharding == "optimizer" else []
    off = [name for name in names if found.record.is_on(name) is False]
    if not off or (share is not None and share < 0.01):
        return
    yield finding(
        f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off: what the "
        f"{split.data_parallel_size} replicas exchange is sent while nothing else runs.",
        *(f"Turn {name} on." for name in off),
        measured=share,
        evidence=dict.fromkeys(off, False),
    )


def tensor_parallel_size_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that half the tensor-parallel size would fit into memory."""
    split, batches = found.parallelism, found.num_microbatches
    if split is None or split.tensor_parallel_size < 2 or not batches or batches % 2:
        return
    size = split.tensor_parallel_size // 2
    fewer = replace(
        split, tensor_parallel_size=size, sequence_parallel=split.sequence_parallel and size > 1
    )
    changed = replace(found, parallelism=fewer)
    need = fits_with(changed, num_microbatches=batches // 2, measured=found)
    if split.tensor_parallel_size % 2 or need is None or not need.fits:
        return
    sent = found.sent()
    evidence: dict[str, Value] = {"predicted_gib": need.gib, "device_gib": need.of_gib}
    words = ""
    if sent is not None and sent.tensor:
        evidence["tensor_parallel_gb"] = sent.tensor / GB
        words = f" sends {sent.tensor / GB:.3g} GB per rank and step and"
    yield finding(
        f"tensor_parallel_size={split.tensor_parallel_size}{words} cuts every matrix product "
        f"into {split.tensor_parallel_size} narrow ones. The model would fit "
        f"with tensor_parallel_size={size} too: {need.gib:.3g} of {need.of_gib:.3g} GiB "
        "predicted.",
        f"Try tensor_parallel_size={size} with twice the data parallel size.",
        "Where the model fits, the layout with the least communication is fastest.",
        evidence=evidence,
    )


def tensor_parallel_across_nodes_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that tensor parallelism crosses nodes."""
    split, per_node = found.parallelism, found.gpus_per_node
    if split is None or per_node is None or split.tensor_parallel_size <= per_node:
        return
    yield finding(
        f"tensor_parallel_size={split.tensor_parallel_size} is larger than a node of "
        f"{per_node} GPUs: what every layer exchanges crosses the network between nodes.",
        f"Keep tensor_parallel_size at {per_node} or below; use pipeline stages across.",
        evidence={"gpus_per_node": per_node},
    )


def sequence_parallel_off_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that norms are computed by every tensor-parallel rank."""
    split = found.parallelism
    off = found.record.is_on("sequence_parallel") is False  # a log may not say
    if split is None or split.tensor_parallel_size < 2 or split.sequence_parallel or not off:
        return
    yield finding(
        f"Each of {split.tensor_parallel_size} tensor-parallel ranks computes and keeps the "
        "norms and residuals of the whole sequence.",
        "Turn sequence_parallel on: it costs no communication in the forward pass.",
        evidence={"sequence_parallel": False},
    )


def collective_backend_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that collectives on GPUs go through the host."""
    backend = found.record.environment.get("backend")
    if not found.on_gpu or backend != "gloo" or (found.metrics.world_size or 1) < 2:
        return
    yield finding(
        "Collectives between GPUs went through gloo, which copies them through the host.",
        "Use NCCL or RCCL: check that torch was built with it.",
        evidence={"backend": "gloo"},
    )
