"""Trainers that print a step as key and value pairs: nanochat, nanoGPT, verl, OLMo-core, others."""

from __future__ import annotations

import re
from functools import cache
from typing import ClassVar

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, alternatives, clock_of, integer, names, number, whole
from scalebook.logs.pairs import seconds_from, tokens_from_totals

_VALUE = r"([-+]?[\d.,]+(?:[eE][-+]?\d+)?|-?(?:[Nn]a[Nn]|[Ii]nf))"


class Nanochat(LineDialect):
    """``step 00050/200000 (0.03%) | loss: .. | dt: 1343.33ms | tok/sec: 12,196 | ..``.

    The rate is of the job. ``tokens / micro-batch`` over that of one rank is the number of ranks.
    """

    name = "nanochat"
    markers = ("tok/sec:",)
    signature = re.compile(r"\bstep \d+(?:/\d+)? [^\n]{0,200}\| dt: [\d.,]+ ?m?s \| tok/sec: ")
    first_number = 0
    _RECORD = re.compile(r"\bstep (\d+)(?:/(\d+))? [^\n|]*\|")
    _RANK = re.compile(r"Tokens / micro-batch / rank: (\d+) x (\d+) = ([\d,]+)")
    _ALL = re.compile(r"Tokens / micro-batch: ([\d,]+)")
    _TOTAL = re.compile(r"Total batch size ([\d,]+) => gradient accumulation steps: (\d+)")

    def __init__(self) -> None:
        super().__init__()
        self._of_rank = self._total = 0

    def line(self, line: str) -> bool:
        """Take a record, or one of the lines on the batch."""
        found = self._RECORD.search(line) if "tok/sec:" in line else None
        if found is None:
            if "atch" in line:
                self._batch(line)
            return False
        row = {"step": float(found[1])}
        for field in line[found.end() :].split("|"):
            key, _, text = field.partition(":")
            key, text = key.strip(), text.strip()
            if key == "dt":
                row["seconds"] = number(text) * (1e-3 if text.endswith("ms") else 1.0)
            elif key in ("loss", "grad norm", "tok/sec"):
                column = {"loss": "loss", "grad norm": "grad_norm"}.get(key, "tokens_per_second")
                row[column] = number(text)
        if self.cut and "tokens_per_second" not in row:
            self.out.job.counts.broken_records += 1
            return True
        self.out.step(row, total=integer(found[2]) if found[2] else None)
        return True

    def _batch(self, line: str) -> None:
        rank, every, total = (one.search(line) for one in (self._RANK, self._ALL, self._TOTAL))
        if rank:
            self._of_rank = whole(rank[3]) or 0
            self.out.tell("micro_batch_size", integer(rank[1]))
            self.out.tell("sequence_length", integer(rank[2]))
        elif every and self._of_rank:
            self._derive("world_size", whole(every[1]) or 0, self._of_rank)
        elif total:
            self._derive("global_batch_size", whole(total[1]) or 0, self._length())

    def _length(self) -> int:
        length = self.out.job.settings.get("sequence_length")
        return length if isinstance(length, int) else 0

    def _derive(self, name: str, above: int, below: int) -> None:
        if below and above % below == 0:
            self.out.tell(name, above // below)
            self.out.job.derived[name] = "tokens of a batch"


class NanoGPT(LineDialect):
    """nanoGPT and what came of it: build-nanogpt, llm.c and modded-nanogpt; rates are of the job.

    nanoGPT's time is that of the last iteration; modded-nanogpt prints the time since the start.
    """

    name = "nanogpt"
    markers = ("ms, mfu", "ms |", "tok/sec:", "step_avg:")
    _NUMBER = r"-?[\d.,]+(?:e[-+]?\d+)?|nan|-?inf"
    signature = re.compile(
        rf"\biter (?P<step>\d+): loss (?P<loss>{_NUMBER}), time (?P<ms>[\d.]+)ms"
        rf"(?:, mfu (?P<mfu>-?[\d.]+)%)?"
        rf"|\bstep +(?P<step2>\d+)(?:/(?P<total>\d+))? \| (?:train )?loss:? +(?P<loss2>{_NUMBER})\b"
        rf"[^\n]{{0,120}}\| (?:dt: )?(?P<ms2>[\d.]+) ?ms \|(?: *(?P<mfu2>-?[\d.]+)% bf16 MFU \|)?"
        rf" *(?:tok/sec: *(?P<rate>[\d.,]+)|(?P<rate2>[\d.,]+) tok/s)"
        rf"|\bstep:(?P<step3>\d+)/(?P<total2>\d+) (?:train_loss:(?P<loss3>{_NUMBER}) )?"
        rf"train_time:(?P<since>[\d.]+)ms step_avg:"
    )
    first_number = 0
    _TOKENS = re.compile(r"tokens per iteration will be: ([\d,]+)")

    def __init__(self) -> None:
        super().__init__()
        self._tokens = 0

    def line(self, line: str) -> bool:
        """Take a record, or the tokens of an iteration."""
        found = self.signature.search(line)
        if found is None:
            told = self._TOKENS.search(line) if "tokens per iteration" in line else None
            self._tokens = (whole(told[1]) or 0) if told else self._tokens
            return False
        cells = {name.rstrip("23"): text for name, text in found.groupdict().items() if text}
        if self.cut and found.end() == len(line):
            self.out.job.counts.broken_records += 1
            return True
        row = {name: number(cells[name]) for name in ("step", "loss") if name in cells}
        for name, column, scale in (
            ("ms", "seconds", 1e-3), ("since", "clock", 1e-3), ("mfu", "mfu", 0.01),
            ("rate", "tokens_per_second", 1.0),
        ):  # fmt: skip
            if name in cells:
                row[column] = number(cells[name]) * scale
        if self._tokens and row.get("seconds", 0) > 0:
            row["tokens_per_second"] = self._tokens / row["seconds"]
        self.out.step(row, total=integer(cells["total"]) if "total" in cells else None)
        return True

    def finish(self) -> None:
        """Take step times from the time since the start where that is what is printed."""
        for job in self.out.jobs:
            seconds_from(job, "clock", 1e-3, "printed run times")


class Verl(LineDialect):
    """``step:12 - actor/loss:.. - perf/throughput:.. - timing_s/step:..``: rates of a GPU."""

    name = "verl"
    markers = ("timing_s/step:", "perf/throughput:", "perf/time_per_step:", "train/loss:")
    signature = re.compile(r"\bstep:\d+ - [\w/@.-]+:\S+ - ")
    _RECORD = re.compile(r"\bstep:(\d+) - ")
    _PAIR = re.compile(rf"([\w/@.() -]{{1,80}}?):(?:np\.\w+\()?{_VALUE}")
    _COLUMNS: ClassVar = names("verl")

    def line(self, line: str) -> bool:
        """Take a record. The loss of a policy is kept, although it need not fall."""
        found = self._RECORD.search(line) if "step:" in line else None
        if found is None:
            return False
        cells = {key.strip(" -"): number(value) for key, value in self._PAIR.findall(
            line[found.end() :])}  # fmt: skip
        row = {"step": float(found[1]), "clock": clock_of(line[: found.start()])}
        for key, column in self._COLUMNS.items():
            if key in cells:
                row.setdefault(column, cells[key])
        if len(row) > 2 and not (self.cut and "seconds" not in row):
            self.out.step(row)
        return True

    def finish(self) -> None:
        """Take step times from the clock where none are printed."""
        for job in self.out.jobs:
            seconds_from(job, "clock", 1.0, "time stamps")


class OLMoCore(LineDialect):
    """``[step=10/1000,epoch=1,..]`` with indented ``key=value`` lines below it."""

    name = "olmo-core"
    markers = ("[step=",)
    signature = re.compile(r"\[step=\d+/[\d?]+[^\]\n]{0,80}\](?:\n|\s)+[^\n=]{1,80}=")
    _RECORD = re.compile(r"\[step=(\d+)(?:/(\d+))?[^\]\n]{0,80}\]")
    _PAIR = re.compile(rf"\s*([\w/().% -]{{1,80}}?)={_VALUE}\s*$")
    _COLUMNS: ClassVar = names("olmo-core")

    def __init__(self) -> None:
        super().__init__()
        self._row: dict[str, float] = {}
        self._steps: int | None = None

    def line(self, line: str) -> bool:
        """Take the head of a record or a line of the one that is open."""
        found = self._RECORD.search(line) if "[step=" in line else None
        if found:
            self._emit()
            self._row = {"step": float(found[1]), "clock": clock_of(line[: found.start()])}
            self._steps = integer(found[2]) if found[2] else None
            return True
        pair = self._PAIR.match(line) if self._row and "=" in line else None
        column = self._COLUMNS.get(pair[1].strip()) if pair else None
        if pair is None or column is None or self.cut:
            return pair is not None
        value = number(pair[2])
        if column == "seconds":  # batches per second
            value = 1 / value if value > 0 else MISSING
        self._row.setdefault(column, value / 100 if column == "mfu" else value)
        return True

    def _emit(self) -> None:
        row, self._row = self._row, {}
        if len(row) > 2:
            self.out.step(row, total=self._steps)

    def finish(self) -> None:
        """Read the record that is open, and take step times from the clock if none are printed."""
        self._emit()
        for job in self.out.jobs:
            seconds_from(job, "clock", 1.0, "time stamps")
            tokens_from_totals(job)


class Pairs(LineDialect):
    """Any line such as ``iteration: 4 | loss: 2.5 | step time: 1.2s``, ``step=4,loss=2.5,tgs=..``.

    The last dialect that is tried: three such lines with rising steps make a log.
    """

    name = "key-value"
    markers = ("step", "Step", "iter", "Iter", "num_updates")
    signature = re.compile(r"loss", re.IGNORECASE)
    _STEP = re.compile(
        r"(?<![\w/])(?:global[ _]?)?(?:step|iter|iteration|num_updates)(?:\s*[:=#]\s*|\s+)\[?"
        r"(\d{1,9})(?![\d.]|\s?m?s\b)(?:\s*(?:/|of)\s*(\d{1,9}))?",
        re.IGNORECASE,
    )
    _FEWEST = 3
    _MOST_SEARCHED = 20_000  # lines

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether enough lines hold a loss and a time or a rate at a step that rises."""
        if not super().recognises(text):
            return False
        last, count = -1.0, 0
        for line in text.split("\n", cls._MOST_SEARCHED)[: cls._MOST_SEARCHED]:
            found = cls._read(line) if "oss" in line or "LOSS" in line else None
            row = found[0] if found else {}
            if "loss" in row and row.keys() & _TIMED:
                count = count + 1 if row["step"] > last else 1
                last = row["step"]
            if count >= cls._FEWEST:
                return True
        return False

    @classmethod
    def _read(cls, line: str) -> tuple[dict[str, float], int | None] | None:
        """Return the columns of a line and the steps in all, None where it has no step."""
        step = cls._STEP.search(line) if len(line) <= 4000 else None
        if step is None:
            return None
        row = {"step": float(integer(step[1]))}
        for key, text, unit in _named().findall(line):
            column, scale = _columns()[key.lower()]
            value = number(text)
            if column == "iterations_per_second":
                column, value = "seconds", 1 / value if value > 0 else MISSING
            elif column == "seconds" and unit.lower() == "ms":
                scale = 1e-3
            elif column == "mfu" and ("%" in unit or value > 1):
                scale = 0.01
            row.setdefault(column, value * scale)
        return row, integer(step[2]) if step[2] else None

    def line(self, line: str) -> bool:
        """Take a record."""
        found = self._read(line) if any(marker in line for marker in self.markers) else None
        if found is None or not ("loss" in found[0] or found[0].keys() & _TIMED):
            return False
        row, total = found
        if self.cut and not row.keys() & _TIMED:
            self.out.job.counts.broken_records += 1
            return True
        row["clock"] = self.clock(line)
        if row["step"] == 0 and not len(self.out.job.table):
            self.out.job.first_number = 0
        self.out.step(row, total=total)
        return True

    def finish(self) -> None:
        """Take step times from the clock where none are printed."""
        self.seconds_by_clock()
        for job in self.out.jobs:
            tokens_from_totals(job)


_TIMED = {"seconds", "tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second"}


@cache
def _columns() -> dict[str, tuple[str, float]]:
    """Return what a line may call a column, in lower case -> ours and its scale."""
    found = {name: (column, 1.0) for column, of in alternatives("key-value").items() for name in of}
    times = [name for name, (column, _) in found.items() if column == "seconds"]
    for unit, scale in (("ms", 1e-3), ("s", 1.0)):
        found |= {f"{t}{u}": ("seconds", scale) for t in times for u in (f" ({unit})", f"_{unit}")}
    return found


@cache
def _named() -> re.Pattern[str]:
    """Return a pattern of a known name, its value and the unit behind it."""
    longest = sorted(_columns(), key=len, reverse=True)
    return re.compile(
        rf"(?<![\w/])(?<!val )(?<!validation )(?<!test )({'|'.join(map(re.escape, longest))})"
        r"(?:\s*[:=]\s*|\s+)"
        r"([-+]?\d+(?:,\d{3}(?!\d))*(?:\.\d+)?(?:[eE][-+]?\d+)?|-?(?:nan|inf)\b)"
        r"\s*(ms\b|%|)",
        re.IGNORECASE,
    )
