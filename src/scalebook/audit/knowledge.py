"""What the catalog and the conventions of the field say about a row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from scalebook import catalog
from scalebook.audit.facts import Fact, operand, show
from scalebook.audit.rows import Row
from scalebook.catalog.types import Accelerator, ModelShape
from scalebook.errors import CatalogError
from scalebook.flops import CONVENTIONS, flops_per_token, parameter_count
from scalebook.intervals import Interval, point

# Conventions differ by norms, padding and biases; a published figure that is within half a
# percent of one was counted by it (the spread between different conventions is several percent).
# The same holds for parameter counts, which the names of models round.
CONVENTION_TOLERANCE = 0.005

WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}

# Weights, gradients, 32-bit master weights and two Adam moments: ZeRO (arXiv 1910.02054,
# section 3.1) counts 16; with 32-bit gradients, as Megatron accumulates them, 18.
STATE_BYTES = ((16, "Adam, 16-bit gradients"), (18, "Adam, 32-bit gradients"))

CHECKPOINT_BYTES = (
    (2, "16-bit weights"),
    (4, "32-bit weights"),
    (12, "32-bit weights and moments"),
    (14, "16-bit weights, 32-bit master weights and moments"),
)


def accelerator_of(row: Row) -> Accelerator | None:
    """Return the accelerator that a row names by its own, a platform's or a driver's name."""
    name = row.words.get("accelerator")
    if name is None:
        return None
    found = catalog.accelerator_for_device(name)
    if found is not None:
        return found
    platforms = {item.name: item.accelerator for item in catalog.platforms()}
    target = platforms.get(name.lower(), name)
    if target is None:
        return None
    return catalog.accelerator(target)


def model_of(row: Row) -> ModelShape | None:
    """Return the catalog's shape of the model that a row names."""
    name = row.words.get("model")
    return None if name is None else catalog.model(name)


def unknown_names(row: Row) -> str | None:
    """Return why a model or accelerator of the row is not in the catalog; None if all are."""
    try:
        model_of(row)
        accelerator_of(row)
    except CatalogError as error:
        return str(error)
    return None


def catalog_facts(row: Row) -> Iterator[Fact]:
    """Yield all that the catalog and the conventions know about a row, alternatives included."""
    shape, device = model_of(row), accelerator_of(row)
    if shape is not None:
        yield from _model_facts(shape, row)
    yield from _stated_size_facts(shape, row)
    if device is not None:
        yield from _device_facts(device, row)
    if row.words.get("precision") in WEIGHT_BYTES:
        precision = row.words["precision"]
        yield _known("bytes_per_weight", WEIGHT_BYTES[precision], precision)
    for size, words in STATE_BYTES:
        yield _known("state_bytes_per_parameter", size, words)
    for size, words in CHECKPOINT_BYTES:
        yield _known("checkpoint_bytes_per_parameter", size, words)


def _known(quantity: str, value: float, variant: str = "", *, legitimate: bool = True) -> Fact:
    return _fact(quantity, point(value), value, variant, legitimate=legitimate)


def _fact(
    quantity: str, interval: Interval, value: float, variant: str, *, legitimate: bool = True
) -> Fact:
    return Fact(
        quantity, interval, value, show(value), "catalog", variant=variant, legitimate=legitimate
    )


def _model_facts(shape: ModelShape, row: Row) -> Iterator[Fact]:
    count = parameter_count(shape)
    without = count.embedding + count.positions
    for quantity, total in (("parameters", count.total), ("active_parameters", count.active)):
        for value, words in ((total, ""), (total - without, " without input embedding")):
            interval = point(value).widened(CONVENTION_TOLERANCE)
            yield _fact(quantity, interval, value, f"{shape.name}{words}")
    yield _known("num_layers", shape.num_layers, shape.name)
    yield _known("num_attention_heads", shape.num_attention_heads, shape.name)
    if shape.mla is None:
        yield _known("num_query_groups", shape.num_query_groups, shape.name)
    if shape.moe is not None:
        yield _known("num_experts", shape.moe.num_experts, shape.name)
    yield from _flop_facts(shape, row)


def _flop_facts(shape: ModelShape, row: Row) -> Iterator[Fact]:
    """Yield FLOPs per token by convention; without a sequence length only 6 N can be told."""
    length = row.values.get("sequence_length")
    span = length.interval if length else None
    if span is not None and not 0 < span.low <= span.high < math.inf:
        length = None  # such as ">4096": no length to count with
    for name in CONVENTIONS:
        if length is None and name != "six_n":
            continue
        lengths = (length.interval.low, length.value, length.interval.high) if length else (1,) * 3
        low, value, high = (flops_per_token(shape, one, name) for one in lengths)
        interval = Interval(low, high).widened(CONVENTION_TOLERANCE)
        yield _fact("flops_per_token", interval, value, name)
    active = parameter_count(shape).active
    yield _known("flops_per_token", 2 * active, "2 N, the forward pass alone", legitimate=False)


def _stated_size_facts(shape: ModelShape | None, row: Row) -> Iterator[Fact]:
    """Yield 6 N FLOPs of the size that the row itself states, dense unless it says otherwise."""
    size = row.values.get("active_parameters") or row.values.get("parameters")
    if size is None:
        return
    if shape is not None and not size.claimed.meets(point(parameter_count(shape).active)):
        return
    dense = "" if "active_parameters" in row.values or shape is not None else ", taken as dense"
    for factor, words, legitimate in (
        (6, f"6 N of the stated size{dense}", True),
        (2, "2 N, the forward pass alone", False),
    ):
        interval, value = size.interval.scaled(factor), size.value * factor
        step = f"flops_per_token = {factor} * {operand(size)} = {show(value)}"
        yield replace(
            _fact("flops_per_token", interval, value, words, legitimate=legitimate),
            steps=(step,),
            inputs=frozenset({"parameters"}),
        )


def _device_facts(device: Accelerator, row: Row) -> Iterator[Fact]:
    yield _known("device_memory_gb", device.memory_gb, device.name)
    optional = (
        ("tdp_watts", device.tdp_watts),
        ("memory_bandwidth_tb_per_second", device.memory_bandwidth_tb_per_second),
        ("interconnect_gb_per_second", device.interconnect_gb_per_second),
    )
    for quantity, value in optional:
        if value is not None:
            yield _known(quantity, value, device.name)
    if row.words.get("link") == "inside node" and device.interconnect_gb_per_second is not None:
        yield _known("peak_bandwidth_gb_per_second", device.interconnect_gb_per_second, device.name)
    yield from _peak_facts(device, row)


def _peak_facts(device: Accelerator, row: Row) -> Iterator[Fact]:
    """Yield the dense peak, the sparse one as an explanation only, and the highest possible."""
    stated = row.words.get("precision")
    name = stated or "bf16"
    words = f"{name} dense, {device.name}" + ("" if stated else "; precision not stated")
    dense, sparse = device.peak_tflops.get(name), device.sparse_peak_tflops.get(name)
    for quantity, usual, other in (
        ("peak_tflops_per_second", dense, sparse),
        ("sparse_peak_tflops_per_second", sparse, dense),
    ):
        kinds = ("dense", "2:4 sparse")
        first, second = kinds if quantity.startswith("peak") else kinds[::-1]
        if usual is not None:
            yield _known(quantity, usual, words.replace("dense", first))
        if other is not None and usual is not None:
            variant = f"{name} {second}, {device.name}"
            yield _known(quantity, other, variant, legitimate=False)
    candidates = [stated] if stated else ["bf16", "fp16", "fp8"]
    peaks = [device.peak_tflops[item] for item in candidates if item in device.peak_tflops]
    if peaks:
        yield _known("highest_peak_tflops_per_second", max(peaks), device.name)
