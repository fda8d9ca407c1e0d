"""What the catalog and a row itself say before the row is checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scalebook.audit import fields as vocabulary
from scalebook.audit.claimed_rows import Row
from scalebook.audit.fields import device_of, forms_of, in_petaflops
from scalebook.audit.identities import Fact, Facts, Identity, derive, identities, operand, show
from scalebook.audit.printed import APPROXIMATE, Printed
from scalebook.errors import CatalogError
from scalebook.facts import catalog
from scalebook.facts.catalog.types import TINY, Accelerator, ModelShape
from scalebook.facts.flops import (
    CONVENTIONS,
    RECOMPUTED,
    TRAINED,
    attention_width,
    flops_per_token,
    hardware_flops_per_token,
    headline_convention,
    layer_parameters,
    parameter_count,
)
from scalebook.measure.intervals import Interval, point

# Conventions differ by norms, padding and biases, and the two rates of a published row may be means
# over different steps; a figure within a percent of a convention was counted by it (the spread
# between different conventions is several percent). The same holds for parameter counts.
CONVENTION_TOLERANCE = 0.01
_LARGE, _LEAST_ACTIVE = 20e9, (0.1, 0.03)  # of the weights of a mixture, below that size and above
_MOST_CARDS = 16  # that are trained on together
_OTHER_MEMORY = 0.2  # by which a form of a device may differ from the usual: an H100 of 95 GiB
_MOST_OF_PEAK = 0.7  # that training reaches; a rate above it is of a narrower format
NEAR_PEAK = 0.002  # by which half of a sparse peak may differ from the dense one
AGAIN = ", with a second forward pass"
NAMED = "6 N of the size in its name"
NARROW = "heads as wide as the hidden size over their number"
MOST_ROUNDED = 0.15  # by which the size in a model's name may differ from a count
_SIZED = re.compile(r"(?P<name>.*\w)[ -]\(?(?P<size>\d+(\.\d+)?)B\)?", re.IGNORECASE)
_NAMED_SIZE = re.compile(r"(?<=-)(a?)(\d+(?:\.\d+)?)b(?![a-z0-9])")
LENGTHLESS = ("six_n", "hf_total_flos")  # conventions that need no sequence length
LONGEST_USUAL = 32_768  # tokens; who trains with longer samples says so
MTP = ", with its MTP module"
HARDWARE = ("hfu", "hardware_flops_per_token", "hardware_tflops_per_second_per_gpu")
LORA = re.compile(r"\b(q?lora|peft|adapters?|frozen)\b", re.IGNORECASE)
# 8x7B, 30B-A3B, MoE: names of models whose total size says nothing of their FLOPs
MIXTURE = re.compile(r"\bmoe|mixture|experts?\b|\d+x\d+(\.\d+)?b\b|-a\d+(\.\d+)?b\b", re.IGNORECASE)
WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_BUDGETS = ("tokens", "tokens_per_step")  # which somebody chooses
_MOST_PUE = 2.5  # with the rest of the nodes


def accelerator_of(row: Row) -> Accelerator | None:
    """Return the accelerator that a row names."""
    return device_of(row.words.get("accelerator", ""))


def has_memory_of_all(row: Row) -> bool:
    """Return whether the memory of a row is what all its devices have, to a tenth."""
    device, gpus, memory = accelerator_of(row), *map(row.values.get, ("gpus", "memory_gb"))
    if device is None or gpus is None or memory is None or gpus.value == 1:
        return False
    return abs(memory.value / (gpus.value * device.memory_gb) - 1) < APPROXIMATE


def model_of(row: Row) -> ModelShape | None:
    """Return the catalog's shape of the model that a row names."""
    name = row.words.get("model")
    return None if name is None else catalog.model(name)


def _has(name: str, text: str) -> bool:
    """Whether the catalog has a model or an accelerator under this name."""
    try:
        catalog.model(text) if name == "model" else device_of(text)
    except CatalogError:
        return False
    return True


_PRECISION = (
    r"(?:amp[_ ]|mx|nv)?((?:bf|fp|bfloat|float)(?:16|32|8|4))(?:[- _]?(?:mixed|mx|cs|ds|amp))?"
)


def catalog_words(name: str, cell: str) -> dict[str, str]:
    """Return a cell of words by the names of the catalog; nothing where it has none."""
    if name == "model":
        return {name: found} if (found := _model_named(cell)) else {}
    if name == "accelerator":
        device = re.sub(r"(?i)^(\d+\s*[x×]\s*)?((nvidia|amd)\s+(instinct\s+)?)?", "", cell)
        device = re.sub(r"(?i)(?<=\bv\d[pe])-\d+$", "", device)  # a slice of v5e-256
        for one in (device, re.split("[,;(]", device)[0].strip()):  # A100 80GB, single node
            if one and _has(name, one):
                return {name: one}
        return {}
    lowered = re.sub(r"^mixture.of.experts.*", "moe", cell.lower())
    lowered = "none" if name == "sharding" and lowered == "ddp" else lowered
    if name == "trained":
        whole = re.fullmatch(r"(pre-?train|sft|full).*", lowered)
        return {name: "lora" if LORA.search(cell) else "all"} if whole or LORA.search(cell) else {}
    if name == "precision":
        found = re.fullmatch(_PRECISION, lowered)
        lowered = found[1].replace("bfloat", "bf").replace("float", "fp") if found else lowered
    allowed = vocabulary.choices(name)
    return {name: lowered} if not allowed or lowered in allowed else {}


def not_in_catalog(cells: Mapping[str, str], words: Mapping[str, str]) -> list[str]:
    """Return what is not checked of a row whose model or device the catalog lacks, and why."""
    lost = {"model": ("FLOPs are", "models"), "accelerator": ("peak is", "accelerators")}
    return [
        f"the {kind} {cells[kind]!r}: its {what} not checked. 'scalebook {table}' lists those "
        f"known; add it to .scalebook.toml as [[{table}]]"
        for kind, (what, table) in lost.items()
        if re.search("^(?!(total|sum)$).*[a-z]", cells.get(kind, "").lower()) and kind not in words
    ]


def in_catalog(words: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return words by the names of the catalog, and why those that it lacks are left out."""
    known = dict(words)
    for name in ("model", "accelerator"):
        text = known.get(name, "")
        if text and not _has(name, text):
            del known[name]
            known |= catalog_words(name, text)
    return known, not_in_catalog(words, known)


def _model_named(text: str) -> str | None:
    """Return the catalog's name of a model as people write it: ``Llama 3.1 8B``."""
    wanted = re.sub(r"[^a-z0-9.]", "", text.lower().rpartition("/")[2].replace("×", "x"))
    wanted = re.sub(r"^(nvidia|meta|google|mistralai|microsoft)", "", wanted)
    wanted = re.sub(r"(instruct|chat|base|hf)(\d{4})?$", "", wanted)
    names = catalog.model_names()
    spelled = {re.sub(r"[^a-z0-9.]", "", name): shape for name, shape in names.items()}
    found = spelled.get(wanted)
    if found is None and (sized := _SIZED.fullmatch(text.strip())):  # DeepSeek V3 671B
        shorter = _model_named(sized["name"])
        count = parameter_count(catalog.model(shorter)).total if shorter else 0
        fits = count and abs(float(sized["size"]) * 1e9 / count - 1) < MOST_ROUNDED
        return shorter if fits else None
    return None if found is None or found.startswith(TINY) else found


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
        yield _fact("bytes_per_weight", WEIGHT_BYTES[precision], precision)
    for item in vocabulary.fields().values():
        whole = item.name.replace("bytes_per_parameter", "gb")
        if not {item.name, whole} <= row.values.keys():  # else of an optimizer of its own
            yield from (_fact(item.name, size, words) for words, size in item.usual.items())
    yield _fact("lowest_pue", 1, "no cooling")
    if "pue" not in row.values:
        yield _fact("pue", 1, "only the GPUs")
        words = f"a PUE of up to {_MOST_PUE:g}"
        yield _fact("pue", 1.0, words, Interval(1.0, _MOST_PUE), bound=True)


def _fact(
    quantity: str, value: float, variant: str, interval: Interval | None = None, **more: Any
) -> Fact:
    interval = interval or point(value)
    return Fact(quantity, interval, value, show(value), "catalog", variant=variant, **more)


def _count(quantity: str, value: float, variant: str, **more: Any) -> Fact:
    """Return a count as sources may round or pad it."""
    interval = point(value).widened(CONVENTION_TOLERANCE)
    return _fact(quantity, value, variant, interval, **more)


def _between(
    quantity: str, lengths: Sequence[float], variant: str, count: Callable[[float], float]
) -> Fact:
    """Return a count at the least, the stated and the most of a sequence length."""
    low, value, high = map(count, lengths)
    interval = Interval(low, high).widened(CONVENTION_TOLERANCE)
    return _fact(quantity, value, variant, interval)


def _model_facts(shape: ModelShape, row: Row) -> Iterator[Fact]:
    count = parameter_count(shape)
    without = count.embedding + count.positions
    last = layer_parameters(shape, dense=False)
    met = count.mtp - shape.mtp_layers * (last.total - last.active)
    named = {kind: float(size) * 1e9 for kind, size in _NAMED_SIZE.findall(shape.name)}
    for quantity, total, module in (
        ("parameters", count.total, count.mtp),
        ("active_parameters", count.active, met),
    ):
        no_input = (total - without, " without input embedding")
        counts: list[tuple[float, str]] = [(total, ""), no_input]
        if module:  # a checkpoint holds copies of both tables for the module too
            tables = count.embedding + count.lm_head
            counts += [(total + module, MTP), (total + module + tables, f"{MTP} and tables")]
        name_says = named.get("a" if quantity == "active_parameters" else "")
        if name_says and abs(name_says / total - 1) < MOST_ROUNDED:  # gpt-oss-120b has 116.8B
            counts.append((name_says, ", the size in its name"))
        for value, words in counts:
            yield _count(quantity, value, f"{shape.name}{words}")
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        yield _fact(name, getattr(shape, name), shape.name)
    if shape.mla is None:
        yield _fact("num_query_groups", shape.num_query_groups, shape.name)
    if shape.moe is not None:
        yield _fact("num_experts", shape.moe.num_experts, shape.name)
    yield from _flop_facts(shape, row)


def trained_weights(row: Row) -> tuple[str, ...]:
    """Return what may be trained: what the row says; where its label hints at LoRA, both."""
    stated = row.words.get("trained")
    if stated is not None:
        return (stated,) if stated in TRAINED else ()
    words = f"{row.table} {row.label} {row.words.get('note', '')}"
    return ("all", "lora") if LORA.search(words) else ("all",)


def _length(row: Row) -> Printed | None:
    """Return the sequence length where it is one to count with, unlike ``>4096``."""
    length = row.values.get("sequence_length")
    if length is None or not 0 < length.interval.low <= length.interval.high < math.inf:
        return None
    return length


def _flop_facts(shape: ModelShape, row: Row) -> Iterator[Fact]:
    """Yield FLOPs per token by convention, then what explains a wrong count.

    Without a sequence length only 6 N is a value; what attention may add is a bound.
    """
    if not trained_weights(row):
        return  # some of the weights: nobody can tell which share of the FLOPs is due
    length = _length(row)
    at = (1.0, 1.0, 1.0)
    if length:
        at = (length.interval.low, length.value, length.interval.high)
    packed = row.words.get("packed_sequences") == "yes"
    if packed:  # documents of any length, which attend only inside themselves
        at = (1.0, *at[1:])
    names = CONVENTIONS if length else [name for name in CONVENTIONS if name in LENGTHLESS]
    for trained in trained_weights(row):
        frozen = {"all": "", "forward": ", forward pass only"}.get(trained, ", frozen weights")
        frozen += ", packed documents" if packed else ""
        for modules in range(shape.mtp_layers + 1):
            for name in names:
                if trained != "all" and name in RECOMPUTED:
                    continue  # papers on pretraining counted by it
                if shape.moe is not None and name == "hf_total_flos":
                    continue  # it counts every expert: a wrong count, of those below
                count = partial(flops_per_token, shape, convention=name, mtp_layers=modules)
                again = AGAIN if name in RECOMPUTED else ""
                words = f"{name}{again}{MTP if modules else ''}{frozen}"
                yield _between("flops_per_token", at, words, partial(count, trained=trained))
                if trained == "lora":  # frameworks that take two thirds of the attention too
                    whole, words = (
                        _between("flops_per_token", at, "", count),
                        f"two thirds of {name}",
                    )
                    part = whole.interval.scaled(TRAINED["lora"])
                    yield _fact("flops_per_token", whole.value * TRAINED["lora"], words, part)
        if length is None:
            most = min(shape.max_sequence_length, LONGEST_USUAL)
            ends = (
                flops_per_token(shape, one, name, trained=trained)
                for one, name in ((1, "megatron_causal"), (most, "full_attention"))
            )
            interval = Interval(*sorted(ends)).widened(CONVENTION_TOLERANCE)
            words = f"{shape.name} at up to {most:,} tokens{frozen}; needs sequence_length"
            yield _fact("flops_per_token", interval.low, words, interval, bound=True)
    if length and any(name in row.values for name in HARDWARE):
        yield from _hardware_facts(shape, row, at)
    yield from _wrong_counts(shape, row, at[1] if length else None)


def _hardware_facts(shape: ModelShape, row: Row, at: tuple[float, float, float]) -> Iterator[Fact]:
    """Yield FLOPs that the hardware executes, by what may be recomputed."""
    stated = row.words.get("recompute")
    for trained in trained_weights(row):
        every: list[Interval] = []
        for mode in (stated,) if stated else ("none", "selective", "full"):
            for name in ("megatron_causal", "full_attention", "torchtitan"):
                count = partial(
                    hardware_flops_per_token, shape,
                    recompute=mode, convention=name, trained=trained,
                )  # fmt: skip
                fact = _between("hardware_flops_per_token", at, f"{name}, recompute {mode}", count)
                every.append(fact.interval)
                yield fact
        if stated is None:  # of some layers or modules
            low, high = min(one.low for one in every), max(one.high for one in every)
            words = "recomputation of some layers; needs recompute"
            yield _fact("hardware_flops_per_token", low, words, Interval(low, high), bound=True)


def _wrong_counts(shape: ModelShape, row: Row, length: float | None) -> Iterator[Fact]:
    """Yield the usual wrong counts of FLOPs per token, which only explain a claim."""
    count, trained = parameter_count(shape), trained_weights(row)
    named = {kind: float(size) * 1e9 for kind, size in _NAMED_SIZE.findall(shape.name)}
    size = named.get("" if shape.moe is None else "a")
    found: list[tuple[float, str]] = [(2 * count.active, "2 N, the forward pass only")]
    if size and trained == ("all",) and abs(size / count.active - 1) < MOST_ROUNDED:
        found.insert(0, (6 * size, NAMED))
    if count.total != count.active:
        found.append((6 * count.total, "6 N with every expert counted"))
        if length:
            core = 12 * shape.attention_layers * attention_width(shape) * length
            found.append((6 * count.total + core, "6 N + 12 L q s with every expert counted"))
    for mode, words in (("lora", "frozen weights, as of LoRA"), ("all", "all weights trained")):
        if mode not in trained and length:
            found.append((flops_per_token(shape, length, trained=mode), words))
    if length:
        again = hardware_flops_per_token(shape, length, "full")
        found.append((again, "full recomputation counted as useful"))
        for name in ("megatron_causal", "full_attention", "palm_6n", "six_n"):
            third = flops_per_token(shape, length, name) * 4 / 3
            found.append((third, "a second forward pass, of recomputation, counted as useful"))
        found += _wrong_shapes(shape, length)
    for value, words in found:
        yield _count("flops_per_token", value, words, legitimate=False)


def _wrong_shapes(shape: ModelShape, length: float) -> Iterator[tuple[float, str]]:
    """Yield the FLOPs per token of shapes that are taken for the model's."""
    shapes: list[tuple[ModelShape, str]] = []
    if shape.gated_mlp:
        shapes.append((replace(shape, gated_mlp=False), "a gated MLP counted as a plain one"))
    if shape.mla is None and shape.num_query_groups < shape.num_attention_heads:
        grouped = replace(shape, num_query_groups=shape.num_attention_heads)
        shapes.append((grouped, "every head counted as a key-value head"))
    narrow = shape.hidden_size // shape.num_attention_heads
    if shape.mla is None and narrow != shape.head_dim:
        shapes.append((replace(shape, head_dim=narrow), NARROW))
    first = shape.moe.first_dense_layers if shape.moe else 0
    if shape.hybrid is None and shape.num_layers // 2 > first and shape.num_layers % 2 == 0:
        half = replace(shape, num_layers=shape.num_layers // 2)
        shapes.append((half, f"{half.num_layers} of {shape.num_layers} layers"))
    for wrong, words in shapes:
        for name in dict.fromkeys(
            (headline_convention(shape), "megatron_causal", "full_attention")
        ):
            yield flops_per_token(wrong, length, name), f"{name} with {words}"


def has_experts(row: Row) -> bool:
    """Return whether a row says, or its names hint, that one token meets part of the model only."""
    if row.words.get("architecture") in ("dense", "moe"):
        return row.words["architecture"] == "moe"
    counts = (row.values.get(name) for name in ("num_experts", "expert_parallel_size"))
    if any(count is not None and count.interval.high > 1 for count in counts):
        return True
    return MIXTURE.search(f"{row.table} {row.label} {row.words.get('note', '')}") is not None


def _stated_size_facts(shape: ModelShape | None, row: Row) -> Iterator[Fact]:
    """Yield FLOPs of the size that the row itself states, which is a dense model's unless active.

    6 N, and with ``num_layers`` and ``hidden_size`` what attention adds. A model outside the
    catalog may leave out tables and add attention: a bound has both ends of that.
    """
    size = row.values.get("active_parameters") or row.values.get("parameters")
    if size is None or (
        shape is None and "active_parameters" not in row.values and has_experts(row)
    ):
        return
    if shape is not None:
        count = parameter_count(shape)
        if not size.claimed.meets(point(count.active)):
            return
    for trained in trained_weights(row):
        yield from _size_flops(size, row, trained, known_shape=shape is not None)
    yield _multiple(size, 2, "2 N, the forward pass only", legitimate=False)
    if "active_parameters" in row.doubtful:
        least = _LEAST_ACTIVE[size.value > _LARGE]
        words = f"6 N of a mixture that works with {least:.0%} of N or more"
        yield _multiple(size, 6, words, (least, 1), bound=True)


def _multiple(
    size: Printed, factor: float, words: str, ends: tuple[float, float] = (1, 1), **more: Any
) -> Fact:
    """Return ``factor`` FLOPs per token for each weight of a stated size; a bound from its ends."""
    interval, value = size.interval.scaled(factor), size.value * factor
    interval = Interval(interval.low * ends[0], interval.high * ends[1])
    more["inputs"] = frozenset({"parameters"})
    return _fact("flops_per_token", value, words, interval, **more)


def _size_flops(size: Printed, row: Row, trained: str, *, known_shape: bool) -> Iterator[Fact]:
    """Yield 6 N, 6 N with attention, and (for a model outside the catalog) their bound."""
    factor = 6 * TRAINED[trained]
    dense = "" if "active_parameters" in row.values or known_shape else ", taken as dense"
    words = {"all": "", "lora": " with frozen weights", "forward": " forward"}[trained]
    step = f"flops_per_token = {factor:g} * {operand(size)}"
    whole = f"{step} = {show(size.value * factor)}"
    yield _multiple(size, factor, f"{factor:g} N of the stated size{dense}{words}", steps=(whole,))
    if known_shape:
        return
    length, layers, hidden = (
        _length(row), row.values.get("num_layers"), row.values.get("hidden_size")
    )  # fmt: skip
    if length and layers and hidden:
        share = TRAINED[trained] if trained == "forward" else 1.0
        for per, name in ((12 * share, "12 L h s"), (6 * share, "6 L h s, causal")):
            more = layers.interval * hidden.interval * length.interval
            value = size.value * factor + per * layers.value * hidden.value * length.value
            terms = " * ".join(operand(one) for one in (layers, hidden, length))
            yield _fact(
                "flops_per_token", value, f"{factor:g} N + {name}{dense}{words}",
                size.interval.scaled(factor) + more.scaled(per),
                steps=(f"{step} + {per:g} * {terms} = {show(value)}",),
                inputs=frozenset({"parameters"}),
            )  # fmt: skip
    ends = _attention_bound(size.value, length)
    about = f"{factor:g} N, less its tables, up to {ends[1]:.3g} times that with attention{dense}"
    needs = "num_layers, hidden_size" + ("" if length else ", sequence_length")
    least = _multiple(size, factor, f"{about}{words}; needs {needs}", ends, bound=True)
    yield replace(least, value=least.interval.low, text=show(least.interval.low))
    if trained == "all":
        twice = factor * 4 / 3
        words = f"{twice:g} N{dense}: recomputation of every layer counted as useful"
        yield _multiple(size, twice, words, legitimate=False)


def _attention_bound(size: float, length: Printed | None) -> tuple[float, float]:
    """Return by what factors of 6 N a dense model's FLOPs may differ from it.

    A model of N parameters is about 12 L h^2 with h from 25 L to 100 L, so h is 1.3 to 2 times the
    cube root of N; attention may be twice as wide as h. An untied input table (of 128k rows) does
    not work, at most two fifths of N.
    """
    root = max(size, 1.0) ** (1 / 3)
    low = 1 - min(0.4, 2 * root * 128_256 / max(size, 1.0))
    high = 2.5 if length is None else 1 + length.interval.high / (3 * 1.3 * root)
    return low, high


def _device_facts(device: Accelerator, row: Row) -> Iterator[Fact]:
    yield _fact("device_memory_gb", device.memory_gb, device.name)
    if "memory_fraction" in row.values and "gb" not in row.words["accelerator"].lower():
        near = point(device.memory_gb).widened(_OTHER_MEMORY)
        yield _fact("device_memory_gb", near.middle, "a form of other memory", near, bound=True)
    # vendors and drivers count GiB or GB, and a document need not say which
    most = device.memory_gb * 2**30 / 1e9
    yield _fact("most_device_memory_gb", most, f"{device.name}, its memory in GiB")
    for name in ("tdp_watts", "memory_bandwidth_tb_per_second", "interconnect_gb_per_second"):
        if (value := getattr(device, name)) is not None:
            yield _fact(name, value, device.name)
    if row.words.get("link") == "inside node" and device.interconnect_gb_per_second is not None:
        yield _fact("peak_bandwidth_gb_per_second", device.interconnect_gb_per_second, device.name)
    yield from _peak_facts(device, row)


def _peak_facts(device: Accelerator, row: Row) -> Iterator[Fact]:
    """Yield the dense peak, the sparse one as an explanation only, and the highest possible."""
    stated = row.words.get("precision")
    name = row.words.get("peak_precision") or stated or "bf16"
    words = f"{name} dense, {device.name}" + ("" if stated else "; precision not stated")
    dense, sparse = device.peak_tflops.get(name), device.sparse_peak_tflops.get(name)
    for quantity, usual, other in (
        ("peak_tflops_per_second", dense, sparse),
        ("sparse_peak_tflops_per_second", sparse, dense),
    ):
        kinds = ("dense", "2:4 sparse")
        first, second = kinds if quantity.startswith("peak") else kinds[::-1]
        if usual is not None:
            interval = _printed_peak(usual, other or usual)
            yield _fact(quantity, usual, words.replace("dense", first), interval)
        if other is not None and usual is not None:
            variant = f"{name} {second}, {device.name}"
            yield _fact(quantity, other, variant, legitimate=False)
    rate = row.values.get("model_tflops_per_second_per_gpu")
    fast = bool(rate and dense and rate.value > _MOST_OF_PEAK * dense)
    for other in ("fp8", "bf16", "fp4"):  # a rate of one precision over the peak of another
        peak = device.peak_tflops.get(other)
        if other != name and peak is not None:
            variant = f"{other} dense, {device.name}, under a rate in {name}"
            usual = other == "bf16" and "precision" in row.given  # of text, which may be of a part
            # many take the BF16 peak for MFUs in FP8 too
            bound = "peak_precision" in row.doubtful and (fast if other == "fp8" else not usual)
            fits = usual or bound
            yield _fact("peak_tflops_per_second", peak, variant, legitimate=fits, bound=bound)
    if dense and dense * (1 - CONVENTION_TOLERANCE) < (peta := in_petaflops(dense)) < dense:
        words = f"{name} dense, {device.name}, as {peta / 1e3:g} PFLOP/s"
        yield _fact("peak_tflops_per_second", peta, words, bound=True)
    gpus = row.values.get("gpus")
    few = gpus is not None and gpus.value <= _MOST_CARDS
    for form in forms_of(row.words.get("accelerator", ""))[1:]:
        peak = form.peak_tflops.get(name)
        if peak not in (None, dense) and (few or not re.search("PCIe|NVL", form.name)):
            variant = f"{name} dense, {form.name}"
            yield _fact("peak_tflops_per_second", peak, variant, bound=True)
    candidates = [stated] if stated else ["bf16", "fp16", "fp8"]
    peaks = [device.peak_tflops[item] for item in candidates if item in device.peak_tflops]
    if peaks:
        yield _fact("highest_peak_tflops_per_second", max(peaks), device.name)


def _printed_peak(peak: float, other: float) -> Interval:
    """Return how data sheets print a peak: 989.4 as 989, 990 or half of 1,979, 2,614.9 as 2,610."""
    ends = [math.floor(peak), math.ceil(peak), float(f"{peak:.3g}")]
    ends += [half for half in (other / 2, other * 2) if abs(half / peak - 1) < NEAR_PEAK]
    return Interval(min(ends), max(ends))


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known about a row, and which identities were used up to know it."""

    row: Row
    facts: Facts
    used: frozenset[Identity]


def field_of(row: Row, quantity: str) -> vocabulary.Field | None:
    """Return the field by which a row states a quantity, the first as typed."""
    for name in row.values:
        item = vocabulary.field(name)
        if item is not None and item.quantity == quantity:
            return item
    return None


def spoken(row: Row) -> tuple[Identity, ...]:
    """Return the identities that speak about a row."""
    return tuple(
        item for item in identities() if not item.claimed or field_of(row, item.subject) is not None
    )


def know(row: Row, base: Sequence[Fact] = ()) -> Known:
    """Return everything that a row states, its base and the catalog add, and what follows."""
    facts: Facts = {}
    for fact in (*_stated(row), *base, *catalog_facts(row)):
        earlier = facts.get(fact.quantity, ())
        if fact.origin == "base" and earlier and earlier[0].origin != "base":
            continue
        facts[fact.quantity] = (*earlier, fact)
    for quantity, alternatives in facts.items():
        facts[quantity] = _ranked(alternatives)
    used = derive(facts, spoken(row), vocabulary.exact_quantities())
    return Known(row, facts, frozenset(used))


def _stated(row: Row) -> Iterator[Fact]:
    """Yield one fact a quantity that the row states; a second field of it is compared, not used."""
    seen: set[str] = set()
    for name, printed in row.values.items():
        item = vocabulary.field(name)
        if item is None or item.quantity in seen:
            continue
        seen.add(item.quantity)
        claimed = printed.input if item.quantity in _BUDGETS else printed.claimed
        if item.quantity == "tokens_per_second_per_gpu" and (samples := _samples(row, printed)):
            wide = printed.interval.widened(min(0.5 / samples, _MOST_COARSE))
            claimed = Interval(min(claimed.low, wide.low), max(claimed.high, wide.high))
        text = operand(printed) if item.scale == 1 else show(printed.value)
        known = (item.quantity, printed.interval, printed.value, text, "stated", claimed)
        yield Fact(*known, inputs=frozenset({item.quantity}))


def _samples(row: Row, rate: Printed) -> int | None:
    """Return the samples/s of all GPUs if the rate of one GPU in tokens comes from a whole number.

    Such a rate is as coarse as the samples. None where the tokens show no trace of it.
    """
    gpus, length = row.values.get("gpus"), _length(row)
    if gpus is None or length is None or length.value < _COARSE * gpus.value:
        return None
    samples = rate.value * gpus.value / length.value
    return round(samples) if samples >= _FEWEST and samples == round(samples) else None


_COARSE = 8  # tokens/s of a GPU that one sample/s is at the least
_FEWEST, _MOST_COARSE = 12, 0.025  # samples/s, of which half a one is 4 %; what is allowed


def _ranked(alternatives: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """Return a stated value as an explanation only where the catalog contradicts it."""
    stated = [fact for fact in alternatives if fact.is_stated]
    known = [fact for fact in alternatives if not fact.is_stated]
    if not stated or not known:
        return alternatives
    first = stated[0]
    known = [fact for fact in known if not fact.bound]
    claimed = first.claimed or first.interval
    if not known:
        return (first,)
    if any(fact.legitimate and claimed.meets(fact.interval) for fact in known):
        return (*stated, *known)
    words = f"{first.quantity} as stated, {first.text}"
    wrong = replace(first, variant=words, legitimate=False)
    return (*known, wrong)
