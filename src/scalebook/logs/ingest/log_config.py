"""What a log says about its configuration, and what is supplied or follows from it."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from scalebook.errors import IngestError
from scalebook.facts import catalog
from scalebook.facts.catalog.types import ModelShape
from scalebook.logs.job import Job, in_words
from scalebook.logs.numbers import rounding
from scalebook.logs.pairs import differences
from scalebook.logs.setting_lines import Value


def only_integer(value: float, tolerance: float, grain: int = 1) -> int | None:
    """Return the one multiple of ``grain`` within a relative tolerance of a value, else None."""
    if not (0 < value < 1e15 and tolerance < 1):
        return None
    low = math.ceil(value * (1 - tolerance) / grain - 1e-12)
    high = math.floor(value * (1 + tolerance) / grain + 1e-12)
    return low * grain if low == high and low > 0 else None


def rounding_of(job: Job, name: str) -> float:
    """Return the relative error that the digits of a column leave on its median."""
    values = job.table.values(name)[:200]
    median = job.table.median(name)
    if not values or not median:
        return math.inf
    finest = min((rounding(value) * abs(value) for value in values if value), default=math.inf)
    finest = min(finest, job.finest.get(name, math.inf))
    clock = job.details.get("seconds_within") if name == "seconds" else None
    finest = max(finest, clock) if isinstance(clock, float) else finest
    return max(finest / abs(median), job.rounded)


def _quotients(job: Job, names: Sequence[str], count: int) -> list[float]:
    """Return of each row the product of the first ``count`` columns over that of the others."""
    columns = [job.table.column(name) for name in names]
    quotients: list[float] = []
    for row in zip(*columns, strict=True):
        top, bottom = math.prod(row[:count]), math.prod(row[count:])
        if top > 0 and bottom > 0:  # false for NaN
            quotients.append(top / bottom)
    return quotients


def ratio(job: Job, above: Sequence[str], below: Sequence[str]) -> tuple[float, float] | None:
    """Return the median over rows of a quotient of columns, and its relative error."""
    names = [*above, *below]
    quotients = _quotients(job, names, len(above))
    if not quotients:
        return None
    error = sum(rounding_of(job, name) for name in names)
    return statistics.median(quotients), error


def difference(job: Job, above: str, below: str) -> int | None:
    """Return the quotient of what two counters gained over the rows, if it is one whole number."""
    top, bottom = job.table.column(above), job.table.column(below)
    found: Counter[int] = Counter()
    for index in range(1, len(job.table)):
        gained, steps = top[index] - top[index - 1], bottom[index] - bottom[index - 1]
        if gained > 0 and steps > 0 and (gained / steps).is_integer():
            found[int(gained / steps)] += 1
    if not found:
        return None
    value, times = found.most_common(1)[0]
    return value if times * 2 > len(job.table) - 1 or times == sum(found.values()) else None


SPLIT = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
_EACH = "tokens_per_second_per_gpu"
# Rates of one log that different timers took agree to about this.
_NOISE = 0.015
_OTHER_BATCH = 1.9  # samples between time stamps over the batch: it is of one of two or more ranks
_FINEST = 2e-5
# Sequence lengths are multiples of this in practice: distinguishes one from rounded figures.
_SEQUENCE_GRAIN = 128


@dataclass(slots=True)
class LogConfig:
    """Settings by our names; ``provenance`` says where they come from, ``origin`` how."""

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    provenance: dict[str, str] = field(default_factory=dict[str, str])
    origin: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    window: tuple[int, int] | None = None  # first and last step that the reader chose to average

    def put(self, name: str, value: Value, provenance: str, origin: str = "") -> None:
        """Set a value and where it comes from."""
        self.values[name] = value
        self.provenance[name] = provenance
        if origin:
            self.origin[name] = origin

    def size(self, name: str) -> int | None:
        """Return a whole number, None where it is not known."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _steady(job: Job, observation: LogConfig, name: str) -> None:
    """Take a setting that the records print, and note it when it changes on the way."""
    values = [int(value) for value in job.table.values(name) if value >= 1]
    if not values:
        return
    common, _ = Counter(values).most_common(1)[0]
    observation.put(name, common, "told")
    if len(set(values)) > 1:
        observation.notes.append(
            f"The {in_words(name)} changes from {values[0]} to {values[-1]}; most are {common}."
        )


def _split(known: LogConfig) -> int | None:
    """Return the GPUs of a replica; trainers without context parallelism do not print its size."""
    tensor, pipeline, context = map(known.size, SPLIT)
    return tensor * pipeline * (context or 1) if tensor and pipeline else None


Ways: TypeAlias = Iterator[tuple[str, int | None]]  # from what, and the value that it gives


def _derive(known: LogConfig, name: str, ways: Ways) -> None:
    """Set what is not known by the first way that gives a value."""
    if known.size(name) is None:
        found = next(((origin, value) for origin, value in ways if value is not None), None)
        if found is not None:
            known.put(name, found[1], "derived", found[0])


def _worlds(job: Job, known: LogConfig) -> Ways:
    length, total, each = known.size("sequence_length"), "tokens_per_second", _EACH

    def by(above: list[str], below: list[str], scale: int | None = 1) -> int | None:
        found = ratio(job, above, below)
        if found is None or not scale:
            return None
        value, error = found[0] * scale, max(found[1], _FINEST)
        if above == ["global_batch_size"]:  # most rows must agree: a trainer may leave out padding
            sizes = sorted(_quotients(job, [*above, *below], len(above)))
            low, high = sizes[len(sizes) // 4], sizes[3 * len(sizes) // 4]
            return only_integer(value, error) if high <= low * (1 + 4 * error) else None
        small = value < 1 / (2 * _NOISE)
        return only_integer(value, error) or (only_integer(value, _NOISE) if small else None)

    samples, seconds = "samples_per_second", [_EACH, "seconds"]
    words = "over per-GPU tokens per second x step time"
    yield "total over per-GPU tokens per second", by([total], [each])
    yield "total over per-GPU samples per second", by([samples], [f"{samples}_per_gpu"])
    yield f"tokens of a step {words}", by(["tokens_in_step"], seconds)
    origin = "samples per second x sequence length over per-GPU tokens per second"
    yield origin, by([samples], [each], length)
    yield f"batch x sequence length {words}", by(["global_batch_size"], seconds, length)
    tokens = (known.size("global_batch_size") or 0) * (length or 0)
    usual = job.table.median(_EACH) or job.rates.get(_EACH, 0)
    passed = usual * (job.table.median("seconds") or 0)
    few = tokens / passed if passed > 0 else 0.0
    origin = "tokens of a step over the usual per-GPU tokens per second x step time"
    yield origin, only_integer(few, _NOISE) if few < 1 / (2 * _NOISE) else None
    sizes = [size for name in (*SPLIT, "data_parallel_size") if (size := known.size(name))]
    plain = job.dialect in (*_FINE_TUNERS, "deepspeed")  # that split no model by themselves
    both = known.size("data_parallel_size") and (len(sizes) > 1 or plain)
    yield "product of the parallel sizes", math.prod(sizes) if both else None
    nodes, local = known.size("nodes"), known.size("gpus_per_node")
    yield "nodes x GPUs per node", nodes * local if nodes and local else None
    yield "GPUs that the log says it uses", known.size("gpus_said") if not nodes else None


def _of_whole_run(job: Job, above: str, below: str) -> Ways:
    """Yield the quotient of two rates of the whole run, as rounded as a trainer prints them."""
    top, bottom = job.rates.get(above, 0.0), job.rates.get(below, 0.0)
    if top > 0 and bottom > 0:
        rates = ((above, top), (below, bottom))
        fine = sum(job.finest.get(name, math.inf) / rate for name, rate in rates)
        coarse = sum(rounding(rate) for _, rate in rates)
        for error in sorted((fine, coarse)):  # the last batch of an epoch may lack samples
            yield f"{above} over {below}", only_integer(top / bottom, error) or None


def _batches(job: Job, known: LogConfig) -> Ways:
    def by_rate(name: str, factor: int | None) -> int | None:
        found = ratio(job, [name, "seconds"], [])
        if found is None or factor is None:
            return None
        return only_integer(found[0] * factor, max(found[1], 2e-3))

    total, length = known.size("total_batch"), known.size("sequence_length")
    if total and length:
        yield "total batch in tokens", total // length if total % length == 0 else None
        yield "total batch", total if total < length else None
    gained = None if job.rounded else difference(job, "consumed_samples", "step")
    yield "samples gained over steps", gained
    yield "samples per second x step time", by_rate("samples_per_second", 1)
    by_each = by_rate("samples_per_second_per_gpu", known.size("world_size"))
    yield "per-GPU samples per second x world size x step time", by_each


def _lengths(job: Job, known: LogConfig) -> Ways:
    batch, world = known.size("global_batch_size"), known.size("world_size")

    def rounded(found: tuple[float, float] | None, scale: float | None) -> int | None:
        if found is None or not scale:
            return None
        value, error = found[0] * scale, found[1]
        exact = only_integer(value, max(error, _FINEST))
        return exact or (only_integer(value, error, _SEQUENCE_GRAIN) if error < 0.02 else None)

    def by_tokens_seen() -> int | None:
        if job.rounded:
            return rounded(ratio(job, ["consumed_tokens"], ["step"]), batch and 1 / batch)
        exact = difference(job, "consumed_tokens", "consumed_samples")
        if exact is not None or len(job.table) > 1:
            return exact
        found = ratio(job, ["consumed_tokens"], ["consumed_samples"])
        return int(found[0]) if found and found[0].is_integer() else rounded(found, 1.0)

    yield "tokens gained over samples gained", by_tokens_seen()
    tokens = ratio(job, ["tokens_per_second", "seconds"], [])
    over = "x step time over the batch"
    yield f"tokens per second {over}", rounded(tokens, batch and 1 / batch)
    tokens, share = ratio(job, [_EACH, "seconds"], []), world / batch if world and batch else None
    yield f"per-GPU tokens per second x world size {over}", rounded(tokens, share)


def observe(job: Job, supplied: Mapping[str, Value] | None = None) -> LogConfig:
    """Return the configuration of a job: printed, or derived from figures and how it is split."""
    known = LogConfig()
    for name, value in job.settings.items():
        origin = job.derived.get(name, "")
        known.put(name, value, "derived" if origin else "told", origin)
    for name in ("global_batch_size", "sequence_length"):
        _steady(job, known, name)
    for name in (supplied or {}).keys() & {*SPLIT} - known.values.keys():
        known.put(name, (supplied or {})[name], "supplied")
    complete(job, known)
    return known


def _replicas(known: LogConfig) -> Ways:
    """Yield the data-parallel size of which a batch is micro batch x accumulation."""
    sizes = map(known.size, ("micro_batch_size", "gradient_accumulation_steps"))
    each, size = math.prod(one or 0 for one in sizes), known.size("global_batch_size") or 0
    found = size // each if each and size % each == 0 else 0
    fits = found and (known.size("world_size") or found) % found == 0
    yield "batch over micro batch x accumulation", found if fits else None


def complete(job: Job, known: LogConfig) -> None:
    """Derive what follows from what is known; what is known already stays as it is."""
    batch, length, world = "global_batch_size", "sequence_length", "world_size"
    _derive(known, world, _worlds(job, known))
    _derive(known, batch, _batches(job, known))
    _derive(known, length, _lengths(job, known))
    if not known.size(world):
        _derive(known, "data_parallel_size", _replicas(known))
    _derive(known, world, _worlds(job, known))  # by the length of a sample, or by the replicas
    apart = known.size("context_parallel_size") if job.dialect in _FINE_TUNERS else None
    if (apart or 1) == 1:  # else each of the ranks that share a sample counts it
        _derive(known, batch, _of_whole_run(job, "samples_per_second", "steps_per_second"))
    _derive(known, length, _of_whole_run(job, "tokens_per_second", "samples_per_second"))
    gpus, split = known.size(world), _split(known) or apart
    if gpus and split and gpus % split == 0:
        origin = "world size over tensor x pipeline x context"
        _derive(known, "data_parallel_size", iter([(origin, gpus // split)]))
    _derive(known, "data_parallel_size", _replicas(known))
    pieces, size = known.size("num_microbatches"), known.size(batch)
    if pieces and size and size % pieces == 0:
        each, origin = size // pieces, "batch over micro batches"  # of one of each replica
        both = ("micro_batch_size", "data_parallel_size")
        for name, other in (both, both[::-1]):
            shared = known.size(other) or (1 if each == 1 else 0)
            fits = shared and each % shared == 0
            _derive(known, name, iter([(origin, each // shared if fits else None)]))
    sizes = [known.size(name) for name in ("micro_batch_size", "gradient_accumulation_steps")]
    replicas = known.size("data_parallel_size") or (gpus if job.dialect in _FINE_TUNERS else None)
    if whole := math.prod(size or 0 for size in (*sizes, replicas)):
        _derive(known, batch, iter([("micro batch x accumulation x replicas", whole)]))
    limit = known.size("sample_limit") if known.values.get("packed_sequences") is True else None
    _derive(known, length, iter([("the most tokens of a packed sample", limit)]))
    if not job.table.has(batch):
        _of_one_device(known)
    _by_samples(job, known)
    if job.total_steps is not None and "steps" not in known.values:
        known.put("steps", job.total_steps, "told")


def _by_samples(job: Job, known: LogConfig) -> None:
    """Give the rows that print samples per second the time of a step, or tokens per second."""
    batch, length = known.size("global_batch_size"), known.size("sequence_length")
    rates = job.table.column("samples_per_second")
    if job.table.has("seconds") or not job.table.has("samples_per_second"):
        return
    passed = [one * s for one, s in zip(rates, differences(job, "clock"), strict=True) if s >= 2]
    several = known.size("world_size") != 1
    if several and batch and passed and statistics.median(passed) > _OTHER_BATCH * batch:
        known.notes.append(f"By the time stamps, more samples than {batch} pass in a step.")
        del known.values["global_batch_size"], known.provenance["global_batch_size"]
        known.put("micro_batch_size", batch, "derived", "a batch smaller than that of a step")
        batch = None
    if batch:
        job.table.set_column("seconds", (batch / one if one > 0 else math.nan for one in rates))
    elif length and not job.table.has("tokens_per_second"):
        job.table.set_column("tokens_per_second", (one * length for one in rates))


def _of_one_device(known: LogConfig) -> None:
    """Take a batch with fewer samples than GPUs, where no model is split, as that of one GPU."""
    gpus, batch = known.size("world_size"), known.size("global_batch_size")
    whole = not any(map(known.size, SPLIT))
    if gpus and batch and batch < gpus and whole and "micro_batch_size" not in known.values:
        known.put("micro_batch_size", batch, "derived", "a batch of fewer samples than GPUs")
        del known.values["global_batch_size"], known.provenance["global_batch_size"]


# Options of the command whose names are not those of the settings.
OPTIONS = {"world_size": "--gpus"}
# Trainers whose logs look the same whether all weights are trained or an adapter beside them.
_FINE_TUNERS = ("hf-trainer", "hf-trainer-state", "torchtune")
SHAPE_FIELDS = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
)  # fmt: skip


def option(name: str) -> str:
    """Return the option of the command that supplies a setting."""
    return OPTIONS.get(name, "--" + name.replace("_", "-"))


def _contradiction(name: str, given: Value, known: LogConfig, where: str) -> IngestError:
    how = "states" if known.provenance[name] == "told" else "implies"
    return IngestError(
        f"{option(name)} {given} contradicts {where}, which {how} {known.values[name]}. "
        "Leave it out, or ingest the file that it belongs to."
    )


def _check_model(shape: ModelShape, known: LogConfig, where: str) -> None:
    for name in SHAPE_FIELDS:
        told = known.size(name)
        ours = getattr(shape, name)
        if told is not None and told != ours:
            raise IngestError(
                f"--model {shape.name} has {name}={ours}, but {where} states {told}. "
                f"Name the model that ran; {shape.name}@N is the same with N layers."
            )


def _check_platform(name: str, device: object, where: str, known: LogConfig) -> None:
    platform = catalog.platform(name)
    if not isinstance(device, str):
        return
    found = catalog.accelerator_for_device(device)
    if found is None:
        known.notes.append(
            f"{where} names the device '{device}', which the catalog does not know: whether it is "
            f"that of --platform {name} cannot be checked."
        )
    if found and platform.accelerator != found.name:
        raise IngestError(
            f"--platform {name} contradicts {where}, which names the device '{device}'. "
            "Leave it out, or name the platform of that device."
        )


def observe_with(job: Job, supplied: Mapping[str, Value], where: str) -> LogConfig:
    """Return the configuration of a job with what the user supplied.

    Raises:
        IngestError: something supplied contradicts the file.
        CatalogError: a supplied model or platform is unknown.
    """
    known = observe(job, supplied)
    if "trained" not in (*known.values, *supplied) and job.dialect in _FINE_TUNERS:
        known.put("trained", "unknown", "derived", "this trainer trains adapters as well")
    if not supplied:
        return known
    for name, value in supplied.items():
        if name == "trained" and value == "part" and known.values.get(name) not in (None, "all"):
            continue  # the file says which part
        if name in known.values and known.values[name] != value:
            raise _contradiction(name, value, known, where)
    for name, value in supplied.items():
        if name not in known.values:
            known.put(name, value, "supplied")
    complete(job, known)
    if "model" in supplied:
        _check_model(catalog.model(str(supplied["model"])), known, where)
    if "platform" in supplied:
        _check_platform(str(supplied["platform"]), job.details.get("device"), where, known)
    return known
