"""The fields of an ``iteration N/M | key: value | ...`` line, of Megatron and its forks."""

from __future__ import annotations

import re
from collections.abc import Callable

from scalebook.logs.numbers import MISSING, number, scaled

RECORD = re.compile(r"\biteration:?[ \t]+(\d+)[ \t]*/[ \t]*(\d+)[ \t]*\|")
_PLAIN = re.compile(r" *[\d.eE+-]+ *")
_SPACE = re.compile(r"\s+")
_GIB = 1.0  # what these logs call GB is GiB
COLUMN_OF = {
    "consumedsamples": ("consumed_samples", 1.0),
    "consumedtokens": ("consumed_tokens", 1.0),
    "elapsedtimeperiteration(ms)": ("seconds", 1e-3),
    "elapsedtimeperiteration(s)": ("seconds", 1.0),
    "learningrate": ("learning_rate", 1.0),
    "globalbatchsize": ("global_batch_size", 1.0),
    "gloablbatchsize": ("global_batch_size", 1.0),  # so printed by a fork
    "lmloss": ("loss", 1.0),
    "lm-loss": ("loss", 1.0),
    "lm_loss": ("loss", 1.0),
    "loss": ("loss", 1.0),
    "trainloss": ("loss", 1.0),
    "gradnorm": ("grad_norm", 1.0),
    "actualseqlen": ("sequence_length", 1.0),
    "numberofskippediterations": ("skipped", 1.0),
    "numberofnaniterations": ("nan", 1.0),
    "samplespersecond": ("samples_per_second", 1.0),
    "samples/sec": ("samples_per_second", 1.0),
    "tflops": ("tflops_per_gpu", 1.0),
    "tflop/s/gpu": ("tflops_per_gpu", 1.0),
    "throughputpergpu(tflop/s/gpu)": ("tflops_per_gpu", 1.0),
    "computepergpu(tflop/s/gpu)": ("tflops_per_gpu", 1.0),
    "tokenspergpu(tokens/s/gpu)": ("tokens_per_second_per_gpu", 1.0),
    "tokens/s/gpuinst/harmonicmean": ("tokens_per_second_per_gpu", 1.0),
    "tokenspergpupersecond(tgs)": ("tokens_per_second_per_gpu", 1.0),
    "tokens/sec/gpu": ("tokens_per_second_per_gpu", 1.0),
    "tokens/s/gpu": ("tokens_per_second_per_gpu", 1.0),
    "hipmemusage/free/total/usage_ratio": ("device_gib", _GIB),
    "rocmmemusage/free/total/usage_ratio": ("device_gib", _GIB),
}

# Keys that carry nothing we keep, but that tell a wrapped line from another one.
_OTHER_KEYS = {"lossscale", "numzeros", "paramsnorm", "memusages", "batchsize", "approxflopspergpu"}
_TIMES = {"elapsedtimeperiteration", "iterationtime", "timeperiteration"}
_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_TFLOPS_BARE = re.compile(r"\s*([\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU")


def column_of(key: str) -> tuple[str, float] | None:
    """Return the column of a key and its scale; forks spell rates in their own ways."""
    found = COLUMN_OF.get(key)
    if found or "loss" in key or "hardware" in key:
        return found
    if "tflop" in key:
        return "tflops_per_gpu", 1.0
    a_second = "/s" in key or "persec" in key or "per-sec" in key or "per_sec" in key
    if "token" in key and a_second:
        return ("tokens_per_second_per_gpu" if "gpu" in key else "tokens_per_second"), 1.0
    return None


def key_of(text: str) -> str:
    """Return a key without its blanks: a line may be wrapped inside one."""
    return _SPACE.sub("", text).lower()


def is_key(key: str) -> bool:
    """Whether a key (as from ``key_of``) belongs to an iteration line."""
    return column_of(key) is not None or key in _OTHER_KEYS or key in _TIMES or key.endswith("loss")


def _timed(key: str, value: str) -> tuple[str, float] | None:
    """Return the column of a step time whose unit stands behind the value, with its scale."""
    if key not in _TIMES:
        return None
    unit = value.strip().lower().rpartition(" ")[2].lstrip("0123456789.,e+-")
    return ("seconds", _UNITS[unit]) if unit in _UNITS else None


Digits = Callable[[str, str, float], None]


def _field(text: str, row: dict[str, float], digits: Digits) -> None:
    name, colon, value = text.partition(":")
    if not colon:
        bare = _TFLOPS_BARE.match(text)
        if bare:
            row.setdefault("tflops_per_gpu", number(bare[1]))
        return
    key = key_of(name)
    if key == "approxflopspergpu":
        row["tflops_per_gpu"] = scaled(_SPACE.sub("", value)) / 1e12
        return
    column = column_of(key) or _timed(key, value)
    if column is None or column[0] in row:
        return
    figure = _SPACE.sub("", value)
    row[column[0]] = number(figure) * column[1]
    digits(column[0], figure, column[1])


def read_fields(line: str, digits: Digits, *, cut: bool) -> dict[str, float] | None:
    """Return the row of an iteration line; None where it is none or its step time is not whole.

    ``cut``: the text ends inside this line, so that its last field may lack digits. ``digits``
    is told every figure as printed.
    """
    found = RECORD.search(line)
    if found is None:
        return None
    row: dict[str, float] = {"step": float(found[1])}
    fields = line[found.end() :].split("|")
    if cut and fields:
        fields.pop()
    before = line[: found.start()]
    if "|" in before:
        fields = before.split("|")[:-1] + fields
    for text in fields[:64]:
        _field(text, row, digits)
    seconds = row.get("seconds", MISSING)
    return row if seconds > 0 else None


def layout(line: str, total: int) -> tuple[re.Pattern[str], list[tuple[str, float]]] | None:
    """Return a pattern for all lines built like this one, and the columns of its groups.

    One compiled pattern over a whole piece of text reads a log many times faster than a search
    for every field on every line. A line that does not fit is read field by field.
    """
    found = RECORD.search(line)
    if found is None or "|" in line[: found.start()] or not line.rstrip().endswith("|"):
        return None
    pattern = rf"iteration:? ++(\d++) *+/ *+{total} *+\|"
    columns: list[tuple[str, float]] = [("step", 1.0)]
    keys = {key_of(text.partition(":")[0]) for text in line.split("|")}
    taken = {"step"}
    if "globalbatchsize" in keys and "consumedtokens" not in keys:
        taken.add("consumed_samples")  # only ever used to derive these two
    for text in line[found.end() :].rstrip().split("|")[:-1]:
        name, colon, value = text.partition(":")
        column = column_of(key_of(name)) if colon else None
        if column is None or column[0] in taken:
            pattern += r"[^|\n]*+\|"
        else:
            plain = _PLAIN.fullmatch(value)
            pattern += rf" *+{re.escape(name.strip())}: *+([\d.eE+-]++)"
            pattern += r" *+\|" if plain else r"[^|\n]*+\|"
            columns.append(column)
            taken.add(column[0])
    if "seconds" not in taken:
        return None
    return re.compile(pattern + r" *(?:\n|\Z)"), columns
