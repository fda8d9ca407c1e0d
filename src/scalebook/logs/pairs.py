"""``key: value`` pairs that trainers print in one line, and times that they leave to the clock."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

from scalebook.logs.job import COLUMNS, Job
from scalebook.logs.numbers import MISSING, alternatives, clock_seconds, integer, number, scaled

BAR = re.compile(
    r"(\d{1,12})/(\d{1,12}) \[((?:\d+ days?, )?[\d:]+)<[^,\]]*,\s*([\d.]+|\?)\s*(s/it|it/s)"
)  # tqdm: done, total, elapsed, rate
_LOGGED = re.compile(  # by tqdm_loggable: 45.0it/1.20kit rate:1.3s/it remaining:12:40 elapsed:01:02
    r"([\d.]+k?)it/([\d.]+k?)it rate: ?([\d.?]+)(s/it|it/s) remaining:\S+ elapsed:([\d:]+)"
)
# A difference of time stamps is used when it is this many times finer than what it measures.
_FINE_ENOUGH = 20
_FEWEST_PARTS, _USUAL = 8, 1.2
_SAME_TOKENS = 0.01
_FIXED = 0.1  # of a mean since the start
_OF_RECORD = 0.15  # between a printed time and the time stamps of records


def pairs(
    pattern: re.Pattern[str], text: str, known: Mapping[str, tuple[str, float]]
) -> dict[str, float]:
    """Return the columns of the pairs that a pattern (key, value) finds, by their keys."""
    row: dict[str, float] = {}
    for key, value in pattern.findall(text):
        if key in known:
            row.setdefault(known[key][0], number(value) * known[key][1])
    return row


def _drawn(text: str) -> re.Match[str] | None:
    return BAR.search(_LOGGED.sub(_as_drawn, text) if "it rate:" in text else text)


def _as_drawn(found: re.Match[str]) -> str:
    done, total = (f"{scaled(one.upper()):.0f}" for one in found.group(1, 2))
    return f"{done}/{total} [{found[5]}<?, {found[3]}{found[4]}]"


def bar_seconds(text: str) -> float:
    """Return seconds an iteration from a tqdm bar (smoothed and rounded), NaN without one."""
    found = _drawn(text)
    rate = number(found[4]) if found else MISSING
    if found is None or not rate > 0:
        return MISSING
    return rate if found[5] == "s/it" else 1 / rate


def bar_state(text: str) -> tuple[int, int, float] | None:
    """Return done, total and elapsed seconds of a tqdm bar, None without one."""
    found = _drawn(text)
    return (integer(found[1]), integer(found[2]), clock_seconds(found[3])) if found else None


def differences(job: Job, column: str) -> list[float]:
    """Return what a running total gained a step since the row before; NaN where it cannot tell."""
    totals, steps = job.table.column(column), job.table.column("step")
    gained = [MISSING] * len(totals)
    for row in range(1, len(totals)):
        count = steps[row] - steps[row - 1]
        count = 1.0 if math.isnan(count) else count
        gain = totals[row] - totals[row - 1]
        if gain > 0 and count > 0:
            gained[row] = gain / count
    return gained


def seconds_from(job: Job, column: str, resolution: float, origin: str) -> None:
    """Give rows their step time from a clock or a run time that the records carry.

    Left missing, with a note, where the clock is too coarse for the steps.
    """
    if job.table.has("seconds") or not job.table.has(column) or len(job.table) < 2:
        return
    seconds = differences(job, column)
    clock = pairwise(job.table.column(column))
    spans = sorted(b - a for (a, b), each in zip(clock, seconds[1:], strict=True) if each > 0)
    if not spans or spans[len(spans) // 2] < _FINE_ENOUGH * resolution:
        _mean_of(job, column, resolution, origin)
        return
    job.table.set_column("seconds", seconds)
    usual = statistics.median(each for each in seconds if each > 0)
    job.details["seconds_from"] = origin
    job.details["seconds_within"] = usual * resolution / spans[len(spans) // 2]
    job.note(f"No step time is printed: it is the difference of {origin}.")


def _proportional(times: Sequence[float], steps: Sequence[float]) -> bool:
    """Whether times are those since the start: three or more, as many times a mean as steps."""
    means = [one / step for one, step in zip(times, steps, strict=True) if step > 0 and one > 0]
    several = len(means) == len(times) > 2 and steps[-1] > 2 * steps[0]
    return several and max(means) < (1 + _FIXED) * min(means)


def _mean_of(job: Job, column: str, resolution: float, origin: str) -> None:
    """Give all rows the mean step time of a clock that is too coarse for each of them.

    What takes longer than usual by the clock, such as an evaluation, is left out.
    """
    clock, steps = job.table.column(column), job.table.column("step")
    parts: list[tuple[float, float]] = []  # seconds and steps, long enough for the clock
    start = 0
    for row in range(1, len(clock)):
        span, count = clock[row] - clock[start], steps[row] - steps[start]
        if span >= _FINE_ENOUGH * resolution and count > 0:
            parts.append((span, count))
            start = row
    if len(parts) < _FEWEST_PARTS or len(job.attempts) > 1:
        job.note(f"No step time is printed, and the {origin} are too coarse for one.")
        return
    usual = statistics.median(span / count for span, count in parts)
    kept = [one for one in parts if one[0] <= _USUAL * usual * one[1]]
    seconds = sum(span for span, _ in kept) / sum(count for _, count in kept)
    job.table.set_column("seconds", [seconds] * len(clock))
    job.details |= {"seconds_from": origin, "seconds_within": seconds / _FINE_ENOUGH}
    job.note(f"No step time is printed, and the {origin} are coarse: it is their mean.")


def by_the_clock(job: Job, *, bare: bool = False) -> None:
    """Take times that rise as far as steps count as a clock, and by the clock ms for ms.

    ``bare``: no line has a unit of seconds. Then whole numbers of hundreds are ms without a clock.
    """
    table, known = job.table, job.table.values("seconds")
    times = list(table.column("seconds"))
    rises = len(known) > 4 and known == sorted(known) and known[-1] > len(known) / 2 * known[0]
    if rises or _proportional(times, table.column("step")):
        table.set_column("clock", times)
        table.set_column("seconds", [MISSING] * len(times))
        seconds_from(job, "clock", 0.1 if any(t % 1 for t in known) else 1.0, "printed run times")
    clock, steps, usual = table.column("clock"), table.column("step"), table.median("seconds")
    if usual is None or len(job.attempts) > 1:
        return
    span, count = clock[-1] - clock[0], steps[-1] - steps[0]
    if math.isnan(span) and bare and all(one >= 100 and one % 1 == 0 for one in known):
        table.set_column("seconds", [value * 1e-3 for value in table.column("seconds")])
        job.note("The step time has no unit. Whole numbers of hundreds are taken as milliseconds.")
    short = 1 <= span < 5 and usual * count > 100 * (span + 2)  # which leaves no other unit
    if not (count > 0 and (span >= 5 or short)):  # false for NaN
        return
    times, factor = table.column("seconds"), 1000.0 if short else usual / (span / count)
    each = statistics.median(after - before for before, after in pairwise(steps))
    if each > 1 and abs(factor / each - 1) < min(_OF_RECORD, abs(factor / 1000 - 1)):
        times = [value / each for value in times]
        job.note(f"By the time stamps, the printed time is that of the {each:g} steps of a record.")
        if table.has("tokens_in_step"):
            both = zip(table.column("tokens_in_step"), times, strict=True)
            table.set_column("tokens_per_second", [n / t if t > 0 else MISSING for n, t in both])
    elif 100 < factor < 1500:
        times = [value * 1e-3 for value in times]
        job.note("The step time has no unit. By the time stamps it is in milliseconds.")
    table.set_column("seconds", times)


def tokens_from_totals(job: Job) -> None:
    """Give rows their tokens per second from the running total of tokens that they carry.

    A printed rate counts, unless it is the total over the time since the start.
    """
    table = job.table
    tokens, times = differences(job, "consumed_tokens"), table.column("seconds")
    if table.has("tokens_per_second") and not (_since_start(job) and table.has("seconds")):
        return
    if not table.has("consumed_tokens"):
        return
    if len(tokens) > 2 and table.column("step")[0] > 0:  # counted from the start, not resumed
        since = table.column("consumed_tokens")[0] / table.column("step")[0]
        usual = statistics.median(tokens[1:])
        tokens[0] = since if abs(since / usual - 1) < _SAME_TOKENS else MISSING
    rates = (n / s if s > 0 else MISSING for n, s in zip(tokens, times, strict=True))
    table.set_column("tokens_per_second", rates)


def _since_start(job: Job) -> bool:
    """Whether the printed tokens per second are the total over the time since a start."""
    names = ("tokens_per_second", "clock", "consumed_tokens")
    rows = zip(*map(job.table.column, names), strict=True)
    off = [abs(rate * since / total - 1) for rate, since, total in rows if total > 0]
    return len(off) > 1 and max(off) < _SAME_TOKENS  # false for NaN


# What a table of rows and the option --map call a column -> ours and its scale.
TARGETS: dict[str, tuple[str, float]] = {
    **{name: (name, 1.0) for name in COLUMNS if name not in ("clock", "held", "not_finite")},
    "step_seconds": ("seconds", 1.0),
    "step_milliseconds": ("seconds", 1e-3),
    **{n: (n, 1.0) for n in ("iterations_per_second", "allocated_bytes", "reserved_bytes")},
    "tflops_per_second_per_gpu": ("tflops_per_gpu", 1.0),
    "time": ("clock", 1.0),
    "mfu_percent": ("mfu", 0.01),
}
RATES = {
    *("tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second"),
    "samples_per_second_per_gpu",
}
TIMED = {"seconds", *RATES}
_STEP = re.compile(
    r"(?<![\w/])(?<!inner )(?<!micro )(?:global[ _]?)?"
    r"(?:step|iter|iters|iteration|num_updates|update(?=[=:]))['\"]?(?:\s*[:=#]\s*|\s+)\[?['\"]?"
    r"(\d{1,3}(?:,\d{3})+(?![,\d])|\d{1,9})(?![\d.]|\s?m?s\b)"
    r"(?:\s*(?:/|of)\s*(\d{1,3}(?:,\d{3})+(?![,\d])|\d{1,9}))?"
    r"|(?:^|[\[(])(\d{1,9})/(\d{1,9})[\])]?(?=[ :,|-]{1,4}(?:\w{1,20}[ _/])?loss\b)"
    r"|\bIter\(train\) *\[ *(\d{1,9})/(\d{1,9})\]"  # MMEngine and XTuner
    r"|\bminiE \d+ s (\d{1,9})\b"  # RWKV-LM
    r"|\b(?:logging_writer\.py:\d+\] |train)\[(\d{1,9})\]",  # clu, T5X
    re.IGNORECASE,
)
_BATCH = re.compile(r"(?<![\w/])[Bb]atch[ :=#]+(\d{1,9})\b(?! *[/.x])")
_EPOCH = re.compile(
    r"\bEpoch(?:\(train\))?:? *\[ *(?P<epoch>\d{1,6})(?:/ *(?P<epochs>\d{1,6}))?\](?:, step:)? *"
    r"[\[(] *(?P<done>\d{1,9})/ *(?P<each>\d{1,9})[\])]"
    r"|\bepoch (?P<epoch_>\d{3}):? +(?P<done_>\d{1,9}) / (?P<each_>\d{1,9})\b(?!.*num_updates)"
)
# A rate without a name: | 37.3k tok/s |
_BARE = re.compile(
    r"(?i)(?:^|[|,;(]) *(\d[\d,]*(?:\.\d+)? ?[kM]?) ?((?:tok(?:en)?s?|samples?|seqs?|it|)/s)(?:ec)?"
    r"(/gpu|/device|)\b(?!/)"
)
# A time with its unit and no name, or only that of the step: | 37.3s |, iter: 37.3s
_BARE_TIME = re.compile(
    r"(?:[|(,] *|\b(?:iter|step|batch|took)[:= ]+)([\d.]{1,12}) ?(m?)s"
    r"(?:/(?:step|iter|it|iteration)\b|(?= *[|,();]| *$))"
)
_SAMPLES = re.compile(r"\bTrain Epoch: \d+ \[ *(\d+)/\d+ \(")  # of an epoch
_EVALUATES = re.compile(
    r"(?:^\W{0,9}\[|\bProgress on: ?(?:\w+/)?)(?:val|valid|validation|eval|test)\b"
    r"|^\W{0,9}(?:val|eval|test|predict)[a-z]*\b[^|%\n]{0,20}: {1,3}\d+%",  # a bar
    re.IGNORECASE,
)
_KINDS = {"t": "tokens_per_second", "s": "samples_per_second", "i": "iterations_per_second"}


def cell(column: str, value: float, unit: str) -> tuple[str, float]:
    """Return a column and its value by the unit behind the figure; no column if it needs one."""
    if "/s" in unit:  # PaddleNLP: ips is of a device
        kind, each = _KINDS[unit[0]], "_per_gpu" if unit.endswith(("gpu", "device")) else ""
        column = kind + each if column == "by_unit" else column.replace("tokens_per_second", kind)
    scale = _GIB.get(unit, 1.0)
    if column.endswith("_bytes"):  # what a unit behind it would mean is not certain
        column, scale = "" if unit else column.replace("_bytes", "_gib"), 2**-30
    elif column == "by_unit" or (column.endswith("_gib") and unit not in _GIB):
        column = ""
    elif column == "iterations_per_second":
        column, value = "seconds", 1 / value if value > 0 else MISSING
    elif column == "seconds":
        scale = _SECONDS.get(unit, 1.0)
    elif column == "mfu" and (unit == "%" or value > 1):
        scale = 0.01
    elif column == "tflops_per_gpu" and value > _FLOPS:
        scale = 1e-12
    return column, value * scale


_SECONDS = {"ms": 1e-3, "us": 1e-6, "min": 60.0}
_GIB = {"gib": 1.0, "mib": 1 / 1024, "gb": 1e9 / 2**30, "mb": 1e6 / 2**30}
_LONGEST_PAIRS = 4000
_FLOPS = 1e9  # above it, what is called flops is in FLOP/s


@cache
def _columns() -> dict[str, tuple[str, float]]:
    """Return what a line may call a column, in lower case with blanks -> ours and its scale."""
    found = {
        name.replace("_", " "): TARGETS[target]
        for target, of in alternatives("rows").items()
        for name in of
        if target not in ("step", "time", "global_batch_size", "consumed_samples")
        and name != "tps"  # of a job or of a GPU
    } | {name: (column, 1.0) for column, of in alternatives("key-value").items() for name in of}
    times = [name for name, (column, _) in found.items() if column == "seconds"]
    found |= {f"ms/{each}": ("seconds", 1e-3) for each in ("batch", "step", "iter")}
    for unit, scale in (("ms", 1e-3), ("s", 1.0)):
        found |= {f"{t}{u}": ("seconds", scale) for t in times for u in (f" ({unit})", f" {unit}")}
    return found


@cache
def _named() -> re.Pattern[str]:
    """Return a pattern of a known name, its value and the unit behind it.

    A bare ``time`` behind another word (total time) is another time.
    """
    longest = sorted(_columns(), key=len, reverse=True)
    names = "|".join(re.escape(name).replace("\\ ", "[-_ ]+") for name in longest)
    return re.compile(
        rf"(?<![\w/-])(?<!val )(?<!valid )(?<!validation )(?<!test )(?!(?<=[a-z] )time\b)"
        r"(?:(?:train|training|perf|performance|metrics?|timings?|throughput|speed|stats)[/.])?"
        rf"({names})"
        r"['\"]?(?:\s*[:=]\s*|\s+)['\"]?"
        r"([-+]?\d+(?:,\d{3}(?!\d))*(?:\.\d+)?(?:[eE][-+]?\d+)?"
        r"(?:[KM](?![a-z/])| ?[KM](?=tok))?|-?(?:nan|inf)\b)(?![\d:]|-\d)"
        r"(?:/[\d.]+(?= [GM]iB))?\s*"  # of the memory of the device
        r"((?:ms|us|min)\b|%|[GM]i?B\b|(?:tok(?:en)?s?|samples?|seqs?|sequences?|it)/s(?:ec)?"
        r"(?:/(?:gpu|device))?(?![\w/]|\s*[:=])|)",
        re.IGNORECASE,
    )


def _step_at(line: str, row: dict[str, float]) -> int | None:
    """Add the step that a line states, if any; return the steps in all."""
    if found := _EPOCH.search(line):  # before steps: these are steps of an epoch
        part = {name.rstrip("_"): digits for name, digits in found.groupdict().items() if digits}
        epoch, epochs, done, each = (
            integer(part.get(name, "0")) for name in ("epoch", "epochs", "done", "each")
        )
        row["step"] = float(max(epoch - 1, 0) * each + done)
        return epochs * each or None
    if found := _STEP.search(line):
        step = found[1] or found[3] or found[5] or found[7] or found[8]
        row["step"] = float(integer(step.replace(",", "")))
        total = found[2] or found[4] or found[6]
        return integer(total.replace(",", "")) if total else None
    if found := _BATCH.search(line):
        row["step"] = float(integer(found[1]))
    elif bar := bar_state(line):
        row["step"] = float(bar[0])
        return bar[1]
    return None


def pairs_of(line: str) -> tuple[dict[str, float], int | None]:
    """Return the columns of a line and the steps in all; no step where it states none."""
    row: dict[str, float] = {}
    if len(line) > _LONGEST_PAIRS or not any(one in line for one in ("oss", "LOSS", "Reward")):
        return row, None
    if ("[" in line or "Progress on" in line) and _EVALUATES.search(line):
        return row, None
    bar, _, behind = line.rpartition("]")
    drawn = bar_state(bar) if "oss" in behind else None  # before the record
    line = behind if drawn else line
    total = _step_at(line, row) or (drawn and drawn[1])
    for key, text, unit in _named().findall(line):
        column, scale = _columns()[re.sub("[-_ ]+", " ", key.lower())]
        row.setdefault(*cell(column, scaled(text.upper()) * scale, unit.lower()))
    for figure, unit, each in _BARE.findall(line):
        kind = unit.lower() if unit[0] != "/" else f"samples{unit}"
        row.setdefault(*cell("by_unit", scaled(figure.upper()), kind + each.lower()))
    if bare := _BARE_TIME.search(line):
        row.setdefault("seconds", number(bare[1]) * (1e-3 if bare[2] else 1.0))
    if samples := _SAMPLES.search(line):
        row.setdefault("consumed_samples", number(samples[1]))
    rate = row.get("tokens_per_second", MISSING)
    if "wps" in line and "tokens_in_step" in row and rate > 0:  # fairseq: its ups has two digits
        row["seconds"] = row["tokens_in_step"] / rate
    elif "wps" in line:  # of a GPU by Lingua
        row["tokens_per_second_per_gpu"] = row.pop("tokens_per_second", MISSING)
    row.pop("", None)
    if "loss" in row and "it" in line and not math.isnan(seconds := bar_seconds(line)):
        row.setdefault("seconds", seconds)
    return row, total
