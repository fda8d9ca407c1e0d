"""How runs are called: only from their settings, in charts, tables and sentences.

A run has a name, which is unique among the runs it is ranked with, and a label, which is unique
in a report: the model, what tells this group from others of the model, and the name. A setting off
its default that changes memory or speed is named also where the split alone would tell runs apart.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, TypeVar

import polars as pl

from scalebook import identity
from scalebook.config import DEFAULTS
from scalebook.errors import CatalogError
from scalebook.facts import catalog
from scalebook.facts.catalog.load import Signature, signature
from scalebook.record import RunRecord
from scalebook.report.base.markup import Markup, code, join, short_id
from scalebook.settings import SETTINGS, named

Row = Mapping[str, Any]

_SPLIT = (
    *((row.short, row.name) for row in SETTINGS.values() if row.short),
    ("DP", "data_parallel_size"),
)


def units(platform: str | None) -> tuple[str, str]:
    """Return one and many of what a rank of a platform is: a process on ``cpu``, else a GPU."""
    return ("process", "processes") if platform == "cpu" else ("GPU", "GPUs")


def split_name(row: Row) -> str:
    """Return the parallelism in short, sizes of 1 left out: ``TP2 DP4 SP``, or ``1 GPU``."""
    parts = [f"{short}{row[name]}" for short, name in _SPLIT if (row.get(name) or 1) > 1]
    if row.get("sequence_parallel"):
        parts.append("SP")
    if row.get("data_parallel_sharding") == "full":
        parts.append("FSDP")
    world_size = row.get("world_size")
    if not parts and world_size is None:
        return "split unknown"
    return " ".join(parts) or f"{world_size} {units(row.get('platform'))[world_size != 1]}"


def sized(row: Row) -> str:
    """Return the split and how many ranks it has: ``TP2 DP4 on 8 GPUs``, ``1 process``."""
    split, world_size = split_name(row), row.get("world_size")
    if split[0].isdigit() or world_size is None:
        return split
    return f"{split} on {world_size} {units(row.get('platform'))[world_size != 1]}"


def in_words(row: Row) -> str:
    """Return what a run is called in a sentence: ``TP2 DP4 on 8 GPUs, no fused attention``."""
    name = row.get("name") or split_name(row)
    rest = name.removeprefix(split_name(row)).partition(" [")[0]
    return sized(row) + rest.replace(" · ", ", ")


def with_options(row: Row, record: RunRecord) -> str:
    """Return a layout with the options that its name must not hide, none of them a batch size."""
    options = ((name, record.in_force.get(name)) for name in TELLING)
    changed = [(name, value) for name, value in options if value not in (None, DEFAULTS[name])]
    words = ", ".join(map(brief, changes_in_words(changed, None)))
    return f"{split_name(row)} ({words})" if words else split_name(row)


# What a run must be known to have done before it is set against another.
WORK = {
    "model": "model",
    "platform": "platform",
    "precision": "precision",
    "sequence_length": "sequence length",
}


def group_name(row: Row) -> str:
    """Return what must agree before two runs are ranked: the work, the device and the engine.

    A run of which a part is unknown has a group of its own: unknown equals nothing.
    """
    engine, source = row.get("engine"), row.get("source")
    length = sequence_words(row) if row.get("sequence_length") else None
    details = [precision_title(row.get("precision")), length]
    details += [engine] if engine not in (None, "megatron") else []
    details += [source] if source not in (None, "measured") else []
    details += [f"run {row.get('run_id')}"] if any(row.get(name) is None for name in WORK) else []
    what = f"{model_title(row.get('model'))} on {platform_title(row.get('platform'))}"
    inside = ", ".join(str(detail) for detail in details if detail)
    return f"{what} ({inside})" if inside else what


def sequence_words(row: Row) -> str:
    """Return the tokens of a sample, and how many documents share it: ``sequence 8,192``."""
    length, packed = row.get("sequence_length"), row.get("packed_documents") or 1
    inside = f" of {packed} documents" if packed > 1 else ""
    return f"sequence {length:,}{inside}" if length else "sequence unknown"


_TITLE = re.compile(r"([a-z]+?)-?(\d[\d.]*)?-((?:\d+x)?\d+(?:\.\d+)?[bm](?:-a\d+b)?)")
_PRECISION = re.compile(r"(?<![\w.=-])(?:(?:mx|nv)?fp(?:4|8|16|32)|[bt]f(?:16|32))(?![\w-]|\.\w)")
_FAMILY = {"gpt": "GPT", "mpt": "MPT"}


def model_title(name: str | None) -> str:
    """Return a model as its makers write it: ``Llama 3.1 8B``, ``8 layers of Llama 3.1 8B``.

    A name of another form stays as it is, apart from its layers.
    """
    whole, _, layers = (name or "unknown model").partition("@")
    found = _TITLE.fullmatch(whole)
    title = whole
    if found is not None:
        family, version, size = found.groups()
        sized = size.upper().replace("X", "x")
        title = " ".join(
            part for part in (_FAMILY.get(family, family.capitalize()), version, sized) if part
        )
    if whole.startswith("deepseek-"):
        title = "DeepSeek " + whole.removeprefix("deepseek-").replace("-", " ").title()
    many = "1 layer" if layers == "1" else f"{layers} layers"
    return f"{many} of {title}" if layers else title


def verb(model: str, word: str) -> str:
    """Return what a model does, or several of its layers do: ``keeps``, ``keep``."""
    several = "@" in model and not model.endswith("@1")
    return word if several else f"{word}{'es' if word.endswith('h') else 's'}"


def is_whole(row: Row) -> bool:
    """Return whether a run trained all layers of its model."""
    return "@" not in str(row["model"])


def on(row: Row) -> str:
    """Return what a run trained, and on what: ``Llama 3.1 8B on 4 H200 GPUs``."""
    return f"{model_title(row['model'])} on {devices(row)}"


def work_words(row: Row) -> str:
    """Return what a run is compared by, and its configuration: ``BF16, sequence 8,192 · DP4``."""
    precision = precision_title(row.get("precision")) or "unknown precision"
    return f"{precision}, {sequence_words(row)} · {row.get('name') or split_name(row)}"


def devices(row: Row) -> str:
    """Return what a run ran on: ``4 H200 GPUs``, ``one H200``, ``1 CPU process``."""
    size, device = row["world_size"], platform_title(row["platform"])
    one, many = units(row["platform"])
    unit = one if size == 1 else many
    return f"one {device}" if unit == "GPU" else f"{size} {device} {unit}"


def has_experts(name: str | None) -> bool:
    """Return whether the catalog says that a model is a mixture of experts."""
    try:
        return name is not None and catalog.model(name).moe is not None
    except CatalogError:
        return False


UNKNOWN_PLATFORM = "unknown platform"
_PLURAL = re.compile(r"s\b")


def platform_title(name: str | None) -> str:
    """Return a platform as its maker writes it: ``H200``."""
    if not name or name.startswith(UNKNOWN_PLATFORM):
        return name or UNKNOWN_PLATFORM
    device = re.split(r"[,\[]", name)[0]  # an engine or a source may follow
    return device.upper() + name.removeprefix(device)


def precision_title(name: str | None) -> str | None:
    """Return a precision as papers write it: ``BF16``."""
    return _PRECISION.sub(lambda found: found[0].upper(), name) if name else None


TITLES = {"model": model_title, "platform": platform_title, "precision": precision_title}


# What a reader may type: the name of a setting or a fact, with a value or without, or a flag.
_TYPED = re.compile(
    r"(?<![\w./-])(?:--[a-z][a-z-]*(?: [a-z]+\d+(?: or [a-z]+\d+)?)?|(?:environment\.)?"
    r"(?P<name>[a-z][a-z0-9]*(?:_[a-z0-9]+)*)(?:=(?P<value>\w+(?:\.\w+)?))?)(?![\w/(-]|\.[a-z])"
)


def titled(text: str) -> str:
    """Return a text of another part of the package with names as readers and makers write them."""
    return _titled(text, signature())


@lru_cache(maxsize=10_000)
def _titled(text: str, users: Signature) -> str:
    del users  # their files may add models
    models = _either(tuple(one.name for one in catalog.models()))
    named = models.sub(lambda found: model_title(found[0]), _TYPED.sub(_in_words, text))
    return precision_title(named) or ""


def sentence(text: str) -> str:
    """Return a sentence of another part of the package as readers know its names."""
    return headed(titled(text))


def headed(words: str) -> str:
    """Return words with a capital first letter; an abbreviation stays as it is."""
    return words[:1].upper() + words[1:]


def _in_words(found: re.Match[str]) -> str:
    name, value = found["name"] or "", found["value"]
    if name in SETTINGS and value is not None:
        return _change_in_words(name, int(value) if value.isdigit() else value)
    words = setting_words(name) + (f" {value}" if value else "")
    return words if "_" in name else found[0]


def typed(text: str) -> Markup:
    """Return an advice in which what a reader is to type stands as code."""
    return join((code(part) if i % 2 else part for i, part in enumerate(parted(text))), "")


def parted(text: str) -> list[str]:
    """Return the parts of an advice: words and what to type, in turns."""
    parts, end = list[str](), 0
    for found in _TYPED.finditer(text):
        if found["name"] is None or found["value"] or "_" in found["name"]:
            parts += [text[end : found.start()], found[0]]
            end = found.end()
    return [*parts, text[end:]]


def convention_title(name: str | None) -> str:
    """Return a convention of counting FLOPs as readers call it: ``Megatron causal``."""
    return _CONVENTIONS.get(name or "") or (name or "unknown").replace("_", " ").capitalize()


_CONVENTIONS = {
    "palm_6n": "PaLM 6N", "six_n": "6N", "llm_foundry": "LLM Foundry", "torchtitan": "torchtitan",
    "hf_total_flos": "Hugging Face total FLOPs",
}  # fmt: skip


@cache
def _either(names: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"(?<![\w.=-])(?:{longest_first})(?![\w@-])")


TELLING_VALUES = {  # settings whose value says it all
    ("layer_spec", "transformer_engine"): "Transformer Engine's layers",
    ("layer_spec", "torch"): "torch's layers",
    ("window_attention", "fused"): "fused windows",
    ("window_attention", "masked"): "windows by a mask",
    ("window_attention", "unknown"): "windows by an unknown kernel",
    ("context_parallel_communication", "all_gather"): "keys gathered first",
    ("context_parallel_communication", "overlapped_all_gather"): "keys gathered behind attention",
    ("pipeline_transfers", "queued"): "transfers queued",
    ("pipeline_transfers", "unknown"): "a wait after each transfer",
    ("tensor_pieces", "exchanged"): "pieces exchanged by two ranks",
    ("tensor_pieces", "unknown"): "pieces by torch's operators",
    ("norm_kernel", "torch"): "norms by torch's kernel",
    ("norm_kernel", "unknown"): "norms by another kernel",
    **{("recompute", mode): f"{mode} recomputation" for mode in ("full", "pointwise", "selective")},
}
OFF = (None, False, "off", "none")
MOST_CHANGES = 3  # deviations named one by one
VERSION_WORDS = {"megatron_core": "megatron-core", "transformer_engine": "Transformer Engine"}


def changes_in_words(
    changes: Sequence[tuple[str, Any]], most: int | None = MOST_CHANGES
) -> list[str]:
    """Return changes in words, many switches of one kind together; with ``most`` None, all."""
    fusions = [name for name, value in changes if name.startswith("fused_") and value in OFF]
    together = [f"{len(fusions)} fusions off"] if len(fusions) > 2 else []
    rest = [change for change in changes if not together or change[0] not in fusions]
    words = together + [_change_in_words(name, value) for name, value in rest]
    if most is None or len(words) <= most:
        return words
    return [*words[: most - 1], f"{len(words) - most + 1} more"]


_BRIEF = (  # what a small chart calls a part of a name
    (r"global batch (\d+)", r"batch \1"),
    (r"(\w+) recomputation", r"\1 recompute"),
    (r"gradients in (\w+)", r"\1 gradients"),
    (r"(\d+) layers? offloaded", r"offload \1"),
    (r"(\d+) layers? in the last stage", r"last stage \1"),
)


def brief(text: str) -> str:
    """Return a part of a name in the fewest words: ``batch 32``, ``offload 20``."""
    for pattern, short in _BRIEF:
        if found := re.fullmatch(pattern, text):
            return found.expand(short)
    return text


def apart(names: Sequence[Sequence[str]]) -> list[int]:
    """Return how many parts of each name distinguish it from the others, one at least."""
    taken = [1] * len(names)
    while True:
        short = [tuple(own[:many]) for own, many in zip(names, taken, strict=True)]
        longer = [
            place
            for place, own in enumerate(names)
            if short.count(short[place]) > 1 and taken[place] < len(own)
        ]
        if not longer:
            return taken
        for place in longer:
            taken[place] += 1


def setting_words(name: str) -> str:
    """Return a setting as readers call it: ``CUDA graph``."""
    row = SETTINGS.get(name)
    if row or name in VERSION_WORDS:
        return row.words if row else VERSION_WORDS[name]
    return _UNITS.sub(lambda f: _UNIT_WORDS.get(f[0], f[0].upper()), name.replace("_", " "))


_UNITS = re.compile(r"\b(?:tflops per second|flops|gpus?|cpu|[mh]fu|[gt]b|kwh|pue)\b")
_UNIT_WORDS = {"tflops per second": "TFLOP/s", "flops": "FLOPs", "gpus": "GPUs", "kwh": "kWh"}


def fact_words(name: str) -> str:
    """Return a recorded fact as readers call it: ``CPU cores``, or the name of a variable."""
    group, _, own = name.rpartition(".")
    return own if group == "variables" else setting_words(own)


def _change_in_words(name: str, value: Any) -> str:
    if (name, str(value)) in TELLING_VALUES:
        return TELLING_VALUES[name, str(value)]
    word = setting_words(name)
    if name in SETTINGS and SETTINGS[name].counted:
        # 2 layers offloaded, 1 layer offloaded
        return f"{value} {word if str(value) != '1' else _PLURAL.sub('', word, count=1)}"
    if value in OFF:
        return f"no {word}"
    plain = str(value).replace("_attn", " attention").replace("_", " ").replace(",", ", ")
    return word if value is True or value == "on" else f"{word} {precision_title(plain)}"


def series_words(texts: Sequence[str]) -> list[str]:
    """Return what distinguishes each key of ``identity.series`` from the first: empty for that."""
    keys: list[dict[str, Any]] = [json.loads(text) if text else {} for text in texts]
    first = keys[0] if keys else {}
    found: list[str] = []
    for one in keys:
        changes = [
            (name, one.get(name, DEFAULTS.get(name)))
            for name in dict.fromkeys([*first, *one])
            if one.get(name) != first.get(name)
        ]
        known = [(name, value) for name, value in changes if value is not None]
        found.append(" · ".join(changes_in_words(known)) if known else "")
    return found


Item = TypeVar("Item")

NO_STRATEGY = (None, "", "custom")
# In the name of a group, in the layout, or in no name.
NAMED = frozenset(named("group", "layout", "size", "never"))
SIZES = named("size")
TELLING = named("off default")
NO_USUAL = frozenset({"fp8_recipe"})  # where runs differ in these, each says what it has
# Named only where nothing else tells two runs apart.
MINOR = frozenset({*named("last"), *identity.VERSIONS, *identity.KERNELS, "image"})
# What an ingested log tells of a run that was asked nothing.
RAN = (*SIZES, "recompute", "data_parallel_sharding")


@dataclass(slots=True)
class _Named:
    """One run on its way to a name: its settings, and the parts of the name so far."""

    row: Row
    settings: Mapping[str, Any]
    identity: str | None = None  # what its repeats share
    chosen: frozenset[str] = frozenset()  # switches that were asked for, not left at "auto"
    telling: frozenset[str] = frozenset()  # settings to name, whatever its neighbours have
    parts: list[str] = field(default_factory=list[str])
    number: str = ""  # among the repeats of its configuration: "repeat 2"

    @property
    def name(self) -> str:
        return " · ".join(self.parts)


def with_labels(runs: pl.DataFrame, records: Mapping[str, RunRecord]) -> pl.DataFrame:
    """Return the runs with ``name``, ``label`` and ``configuration_name`` of each."""
    found = labels(list(runs.iter_rows(named=True)), records)
    columns = ("name", "label", "configuration_name")
    texts = zip(columns, zip(*found, strict=True) if found else ((), (), ()), strict=True)
    return runs.with_columns(pl.Series(column, values, pl.String) for column, values in texts)


def labels(rows: Sequence[Row], records: Mapping[str, RunRecord]) -> list[tuple[str, str, str]]:
    """Return name, label and configuration's name of each run; the first run is the usual one.

    The configuration's name is the name without the number of a repeat.
    """
    runs = [_begin(row, records.get(row["run_id"])) for row in rows]
    for run, names in zip(runs, _telling(runs), strict=True):
        run.telling = names
    for alike in identity.alike(runs, lambda run: (run.row.get("group"), run.name)):
        _tell_apart(alike)
    heads = dict(_heads(rows))
    found = [_label(heads[_group(run.row)], run) for run in runs]
    seen = Counter(label for _, label, _ in found)
    return [
        (name + more, label + more, own)
        for (name, label, own), run in zip(found, runs, strict=True)
        for more in ["" if seen[label] == 1 else f" · {short_id(run.row['run_id'])}"]
    ]


def _begin(row: Row, record: RunRecord | None) -> _Named:
    requested = record.requested if record else {}
    chosen = frozenset(name for name, value in requested.items() if value in ("on", "off"))
    strategy = row.get("strategy")
    parts = [split_name(row)]
    parts += [str(strategy).replace("_", " ")] if strategy not in NO_STRATEGY else []
    known = identity.repeat(record) if record else None
    return _Named(row, _settings(row, record), known, chosen, parts=parts)


def _telling(runs: Sequence[_Named]) -> Iterator[frozenset[str]]:
    """Yield the settings of each run that its name must not hide, even if its split is unique.

    Those are what is off its default while not all runs of its model share it, and what is not
    usual in its group: a switch that was asked for, whose layers ran, an FP8 recipe.
    """
    models = _grouped(runs, lambda run: run.row.get("model"))
    groups = _grouped(runs, lambda run: run.row.get("group"))
    varying = {model: [n for n in TELLING if _vary(same, n)] for model, same in models.items()}
    usual = {group: _usual(same) for group, same in groups.items()}
    for run in runs:
        named = [
            name
            for name in varying[run.row.get("model")]
            if run.settings.get(name) not in (None, DEFAULTS[name])
        ]
        common = usual[run.row.get("group")]
        unlike = (
            name for name in (*run.chosen, "layer_spec") if run.settings.get(name) is not None
        )
        yield frozenset([*named, *(n for n in unlike if run.settings[n] != common[n])])


def _vary(runs: Sequence[_Named], name: str) -> bool:
    return len({repr(run.settings.get(name, DEFAULTS[name])) for run in runs}) > 1


def _usual(runs: Sequence[_Named]) -> dict[str, Any]:
    """Return the value of each switch that most runs have, the first of equally many."""
    names = {"layer_spec", *(name for run in runs for name in run.chosen)}
    known = {
        name: Counter(v for run in runs if (v := run.settings.get(name)) is not None)
        for name in names
    }
    return {name: values.most_common(1)[0][0] for name, values in known.items() if values}


def _label(head: Sequence[str], run: _Named) -> tuple[str, str, str]:
    source = run.row.get("source")
    mark = "" if source in (None, "measured") else f" [{source}]"
    number = [run.number] if run.number else []
    name = " · ".join([run.name, *number])
    return name + mark, " · ".join([*head, name]) + mark, run.name + mark


def _settings(row: Row, record: RunRecord | None) -> dict[str, Any]:
    """Return every setting as requested, or as it ran where that was left open."""
    if record is None:
        return {name: row.get(name) for name in RAN}
    # What a switch that did not exist yet would have come to, nobody knows.
    asked = record.asked
    known = {
        name: value
        for name, value in record.in_force.items()
        if name in record.requested or asked[name] != "auto"
    }
    ran = {name: record.observed.get(name) for name in RAN}
    kernels = {name: record.observed.get(name) or "unknown" for name in identity.KERNELS}
    software = identity.software(record)
    if software["torch"] and not software["transformer_engine"]:  # it is not there
        software["transformer_engine"] = "none"
    return {**ran, **kernels, **known, **software}


def _tell_apart(alike: Sequence[_Named]) -> None:
    """Add to each of several runs of one name what differs between them."""
    groups = [list(alike)]
    for size in SIZES:
        groups = [part for runs in groups for part in _by_size(runs, size, SETTINGS[size].words)]
    # Also between runs of two sizes: else what a switch does would pass for what the size does.
    _name_changes(alike, minor=False)
    for runs in groups:
        for same in identity.alike(runs, lambda run: run.name):
            _name_changes(same, minor=True)
            for equal in identity.alike(same, lambda run: run.name):
                _number(equal)


def _by_size(runs: Sequence[_Named], size: str, word: str) -> Iterator[list[_Named]]:
    parts = identity.alike(runs, lambda run: repr(run.settings.get(size)))
    for part in parts:
        value = part[0].settings.get(size)
        if len(parts) > 1 and value is not None:
            for run in part:
                run.parts.append(f"{word} {value}")
        yield part


def _name_changes(runs: Sequence[_Named], *, minor: bool) -> None:
    """Add the settings of each run that are telling, or not the usual ones of these runs."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in NAMED)
    changed: dict[int, list[tuple[str, Any]]] = {}
    for name in names:
        if (name in MINOR) != minor:
            continue
        telling = [not minor and name in run.telling for run in runs]
        values = [repr(run.settings.get(name)) for run in runs]
        known = Counter(
            value
            for value, told in zip(values, telling, strict=True)
            if value != "None" and not told
        )
        # of a setting that a record does not know nothing is said
        differ = len(known) > 1 or (name in NO_USUAL and len({*values} - {"None"}) > 1)
        usual = max(known, key=lambda value: (known[value], -values.index(value)), default="None")
        for i, value in enumerate(values):
            unusual = differ and value != "None" and (value != usual or name in NO_USUAL)
            if telling[i] or unusual:
                changed.setdefault(i, []).append((name, runs[i].settings[name]))
    for i, changes in changed.items():
        told = any(name in runs[i].telling for name, _ in changes)
        runs[i].parts += changes_in_words(changes, None if told else MOST_CHANGES)


def _number(equal: Sequence[_Named]) -> None:
    """Number the repeats of one configuration, in the order in which they were made.

    Runs that are not told apart by any setting and yet are not of one configuration (a record
    that does not know its settings) get their id.
    """
    made = sorted(equal, key=lambda run: (run.settings.get("repeat") or 0, run.row["run_id"]))
    first, *others = identity.alike(made, lambda run: run.identity)
    for i, run in enumerate(first[1:], 2):
        run.number = f"repeat {i}"
    for run in (run for same in others for run in same):
        run.parts.append(short_id(run.row["run_id"]))


def _group(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("model", "group"))


def _heads(rows: Sequence[Row]) -> Iterator[tuple[tuple[Any, ...], list[str]]]:
    """Yield each group with what its labels begin with: its model and what only it has."""
    groups = {_group(row): row for row in rows}
    for same in identity.alike(groups.items(), lambda item: (item[0][0],)):
        usual = Counter(row.get("precision") for _, row in same).most_common(1)[0][0]
        facts = [list(_facts(row, usual)) for _, row in same]
        vary = [len({fact[i] for fact in facts}) > 1 for i in range(len(facts[0]))]
        for (group, row), fact in zip(same, facts, strict=True):
            more = [text for text, differs in zip(fact, vary, strict=True) if differs and text]
            yield group, [model_title(row.get("model")), *more]


def _facts(row: Row, usual_precision: Any) -> Iterator[str]:
    length, precision = row.get("sequence_length"), row.get("precision")
    yield platform_title(row.get("platform"))
    yield str(row.get("engine") or "")
    yield "" if precision == usual_precision else precision_title(precision) or "unknown precision"
    yield "" if length is None else f"seq {length:,}"


def _grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Return the items of equal keys together, in the order of their first."""
    found: dict[Any, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
