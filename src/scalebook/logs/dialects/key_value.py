"""Trainers that print a step as key and value pairs: nanochat, nanoGPT, verl, OLMo-core, others."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import ClassVar

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import (
    MISSING,
    alternatives,
    clock_of,
    integer,
    names,
    number,
    scaled,
    whole,
)
from scalebook.logs.pairs import bar_seconds, bar_state, seconds_from, tokens_from_totals

_VALUE = r"([-+]?[\d.,]+(?:[eE][-+]?\d+)?|-?(?:[Nn]a[Nn]|[Ii]nf))"


class Nanochat(LineDialect):
    """``step 00050/200000 (0.03%) | loss: .. | dt: 1343.33ms | tok/sec: 12,196 | ..``.

    The rate is of the job. ``tokens / micro-batch`` over that of one rank is the number of ranks.
    """

    name = "nanochat"
    markers = ("tok/sec:",)
    signature = re.compile(r"\bstep \d+(?:/\d+)? [^\n]{0,200}\| dt: [\d.,]+ ?m?s \| tok/sec: ")
    first_number = 0
    _RANK = re.compile(r"Tokens / micro-batch / rank: (\d+) x (\d+) = ([\d,]+)")
    _ALL = re.compile(r"Tokens / micro-batch: ([\d,]+)")
    _TOTAL = re.compile(r"Total batch size ([\d,]+) => gradient accumulation steps: (\d+)")

    def __init__(self) -> None:
        super().__init__()
        self._of_rank = self._total = 0

    def line(self, line: str) -> bool:
        """Take a record, or one of the lines on the batch."""
        if "tok/sec:" not in line or "step " not in line:
            if "atch" in line:
                self._batch(line)
            return False
        row, total = Pairs.of(line)
        if self.cut and "tokens_per_second" not in row:
            self.out.job.counts.broken_records += 1
        else:
            self.out.step(row, total=total)
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
    """nanoGPT and its kin (build-nanogpt, llm.c, llama2.c, modded-nanogpt); rates are of the job.

    nanoGPT's time is that of the last iteration; modded-nanogpt prints the time since the start.
    """

    name = "nanogpt"
    markers = (", time ", "ms |", "tok/sec:", "step_avg:")
    _NUMBER = r"-?[\d.,]+(?:e[-+]?\d+)?|nan|-?inf"
    signature = re.compile(
        rf"\biter (?P<step>\d+): loss (?P<loss>{_NUMBER}), time (?P<ms>[\d.]+)ms"
        rf"(?:, mfu (?P<mfu>-?[\d.]+)%)?"
        rf"|\bstep +(?P<step2>\d+)(?:/(?P<total>\d+))? \| (?:train )?loss:? +(?P<loss2>{_NUMBER})\b"
        rf"[^\n]{{0,120}}\| (?:dt: )?(?P<ms2>[\d.]+) ?ms \|(?: *(?P<mfu2>-?[\d.]+)% bf16 MFU \|)?"
        rf" *(?:tok/sec: *(?P<rate>[\d.,]+)|(?P<rate2>[\d.,]+) tok/s)"
        rf"|^(?P<step4>\d+) \| loss (?P<loss4>{_NUMBER}) \| lr [\d.e+-]+ \| (?P<ms4>[\d.]+)ms"
        rf"(?: \| mfu (?P<mfu4>-?[\d.]+)%)?"  # llama2.c
        rf"|\bstep:(?P<step3>\d+)/(?P<total2>\d+) (?:train_loss:(?P<loss3>{_NUMBER}) )?"
        rf"train_time:(?P<since>[\d.]+)ms step_avg:",
        re.MULTILINE,
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
        cells = {name.rstrip("234"): text for name, text in found.groupdict().items() if text}
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
    _row: dict[str, float] | None = None  # of the line before

    def line(self, line: str) -> bool:
        """Take a record. The loss of a policy is kept, although it need not fall."""
        found = self._RECORD.search(line) if "step:" in line else None
        before, self._row = self._row or {}, None
        if found is None and not (before and " - " in line):
            return False
        text = line[found.end() :] if found else line
        cells = {key.strip(" -"): number(value) for key, value in self._PAIR.findall(text)}
        row = {ours: cells[key] for key, ours in reversed(self._COLUMNS.items()) if key in cells}
        if found is None:  # a terminal wrapped the record
            for column in row.keys() - before.keys():
                self.out.job.table.amend(column, row[column])
        elif row and not (self.cut and "seconds" not in row):
            head = {"step": float(found[1]), "clock": self.clock(line[: found.start()])}
            self.out.step(head | row)
            self._row = row
        return True


class Slime(LineDialect):
    """``perf 2: {'perf/step_time': ..}`` and ``step 2: {'train/loss': ..}``: RL in rollouts.

    A rollout is a record; it may be trained on in several steps. Its time holds the generation.
    Tokens per second and TFLOP/s are of the training of the actor: they give the tokens of a step.
    """

    name = "slime"
    markers = ("'perf/", "'train/")
    signature = re.compile(r"\bperf \d+: \{[^\n]{0,4000}'perf/(?:step|actor_train|train)_time'")
    first_number = 0
    _RECORD = re.compile(r"\b(perf|step) (\d+): \{")
    _PAIR = re.compile(rf"'([\w/-]{{1,60}})': {_VALUE}")
    _COLUMNS: ClassVar = names("slime")

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, dict[int, dict[str, float]]] = {"perf": {}, "step": {}}

    def line(self, line: str) -> bool:
        """Take what one of the two lines says."""
        found = self._RECORD.search(line) if "'perf/" in line or "'train/" in line else None
        if found is None:
            return False
        cells = {key: number(value) for key, value in self._PAIR.findall(line[found.end() :])}
        row = self._rows[found[1]].setdefault(integer(found[2]), {"clock": clock_of(line)})
        row.update({col: cells[key] for key, col in self._COLUMNS.items() if key in cells})
        rate, time = (cells.get(f"perf/actor_train_{one}", 0) for one in ("tok_per_s", "time"))
        if rate * time > 0:
            row["tokens_in_step"] = rate * time
        self.out.goes_on()
        return True

    def finish(self) -> None:
        """Hand out the rollouts that have a time, each with the loss of its first step."""
        rollouts, steps = self._rows["perf"], self._rows["step"]
        each = max(1, round((max(steps, default=0) + 1) / (max(rollouts, default=0) + 1)))
        for rollout, row in rollouts.items():
            if "seconds" in row:
                loss = steps.get(rollout * each, {})
                self.out.step({**loss, **row, "step": float(rollout)})


class OLMoCore(LineDialect):
    """``[step=10/1000,epoch=1,..]`` with indented ``key=value`` lines below it."""

    name = "olmo-core"
    markers = ("[step=",)
    signature = re.compile(r"\[step=\d+/[\d?]+[^\]\n]{0,80}\]\s+[^\n=]{1,200}=")
    _RECORD = re.compile(r"\[step=(\d+)(?:/(\d+))?[^\]\n]{0,80}\]")
    _COLUMNS: ClassVar = names("olmo-core")
    _PAIR = re.compile(rf"(?:^|\s)({'|'.join(map(re.escape, _COLUMNS))})={_VALUE}\s*$")

    def __init__(self) -> None:
        super().__init__()
        self._row: dict[str, float] = {}
        self._steps: int | None = None

    def line(self, line: str) -> bool:
        """Take the head of a record or a line of the one that is open."""
        found = self._RECORD.search(line)
        if found:
            self._emit()
            self._row = {"step": float(found[1]), "clock": self.clock(line[: found.start()])}
            self._steps = integer(found[2]) if found[2] else None
            return True
        pair = self._PAIR.search(line) if self._row else None
        if pair is None or self.cut:
            return pair is not None
        self._row.setdefault(*_cell(self._COLUMNS[pair[1]], number(pair[2]), "%"))
        return True

    def _emit(self) -> None:
        row, self._row = self._row, {}
        if len(row) > 2:
            self.out.step(row, total=self._steps)

    def finish(self) -> None:
        """Read the record that is open, and take step times from the clock if none are printed."""
        self._emit()
        super().finish()
        for job in self.out.jobs:
            tokens_from_totals(job)


class NeMoRL(OLMoCore):
    """``=== Step 1/10 ===`` with ``Loss: ..`` and ``Total step time: ..`` in lines below it."""

    name = "nemo-rl"
    markers = ("Total step time: ",)
    signature = re.compile(r"Total step time: [\d.]+s")
    _RECORD = re.compile(r"={5,} Step (\d+)/(\d+) ={5,}")
    _COLUMNS: ClassVar = names("nemo-rl")
    _PAIR = re.compile(rf"^\W*({'|'.join(map(re.escape, _COLUMNS))}): +{_VALUE}")


class Pairs(LineDialect):
    """Any line such as ``iteration: 4 | loss: 2.5 | step time: 1.2s``, ``step=4,loss=2.5,tgs=..``.

    The last dialect that is tried: two such lines with rising steps make a log, and so do three
    without steps, which are counted. A bar of tqdm that shows a loss is such a line.
    """

    name = "key-value"
    markers = ("oss", "LOSS")
    signature = re.compile(r"loss", re.IGNORECASE)
    _STEP = re.compile(
        r"(?<![\w/])(?:global[ _]?)?(?:step|iter|iters|iteration|num_updates)(?:\s*[:=#]\s*|\s+)\[?"
        r"(\d{1,9})(?![\d.]|\s?m?s\b)(?:\s*(?:/|of)\s*(\d{1,9}))?"
        r"|\bIter\(train\) *\[ *(\d{1,9})/(\d{1,9})\]",  # MMEngine and XTuner
        re.IGNORECASE,
    )
    _BATCH = re.compile(r"\b[Bb]atch[ :=#]+(\d{1,9})\b(?! *[/.x])")
    _EPOCH = re.compile(r"\bEpoch(?:\(train\))?:? *\[(\d{1,6})\] *\[ *(\d{1,9})/(\d{1,9})\]")
    _FEWEST, _FEWEST_COUNTED = 2, 3
    _MOST_SEARCHED = 20_000  # lines

    def __init__(self) -> None:
        super().__init__()
        self._stepped = self._counted = False

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether enough lines hold a loss and a time or a rate, at a step that rises if at any."""
        if not super().recognises(text):
            return False
        last, count, without, stamped = -1.0, 0, 0, 0
        for line in text.split("\n", cls._MOST_SEARCHED)[: cls._MOST_SEARCHED]:
            row, _ = cls.of(line)
            if "loss" in row and row.keys() & _TIMED:
                step = row.get("step", MISSING)
                without += "step" not in row
                count = count + 1 if step > last else int("step" in row)
                last = step if "step" in row else last
            elif "loss" in row and row.get("step", MISSING) > last and clock_of(line) > 0:
                last, stamped = row["step"], stamped + 1
            if count >= cls._FEWEST or max(without, stamped) >= cls._FEWEST_COUNTED:
                return True
        return False

    @classmethod
    def _at(cls, line: str, row: dict[str, float]) -> int | None:
        """Add the step that a line states, if any; return the steps in all."""
        if found := cls._STEP.search(line):
            row["step"] = float(integer(found[1] or found[3]))
            return integer(found[2] or found[4]) if found[2] or found[4] else None
        if found := cls._EPOCH.search(line):
            epoch, done, each = (float(integer(digits)) for digits in found.groups())
            row["step"] = max(epoch - 1, 0) * each + done
        elif found := cls._BATCH.search(line):
            row["step"] = float(integer(found[1]))
        elif bar := bar_state(line):
            row["step"] = float(bar[0])
            return bar[1]
        return None

    @classmethod
    def of(cls, line: str) -> tuple[dict[str, float], int | None]:
        """Return the columns of a line and the steps in all; no step where it states none."""
        row: dict[str, float] = {}
        if len(line) > _LONGEST_PAIRS or ("oss" not in line and "LOSS" not in line):
            return row, None
        bar, _, behind = line.rpartition("]")
        line = behind if "oss" in behind and bar_state(bar) else line  # drawn before the record
        total = cls._at(line, row)
        for key, text, unit in _named().findall(line):
            column, scale = _columns()[_plain(key)]
            row.setdefault(*_cell(column, scaled(text.upper()) * scale, unit.lower()))
        if "wpb" not in line and "wps" in line:  # of a job by fairseq, of a GPU by Lingua
            row["tokens_per_second_per_gpu"] = row.pop("tokens_per_second", MISSING)
        row.pop("", None)
        if "loss" in row and "it" in line and not math.isnan(seconds := bar_seconds(line)):
            row.setdefault("seconds", seconds)
        return row, total

    def line(self, line: str) -> bool:
        """Take a record."""
        row, total = self.of(line)
        loss, timed = "loss" in row, bool(row.keys() & _TIMED)
        timed = timed and (loss or "valid" not in line)
        if not (loss or timed) if "step" in row else self._stepped or not (loss and timed):
            return False
        if self.cut and not timed:
            self.out.job.counts.broken_records += 1
            return True
        self._stepped = self._stepped or "step" in row
        self._counted = self._counted or "step" not in row
        row["clock"] = self.clock(line)
        if row.get("step") == 0 and not len(self.out.job.table):
            self.out.job.first_number = 0
        self.out.step(row, total=total)
        return True

    def finish(self) -> None:
        """Take rates from totals of tokens, and say where records were counted."""
        super().finish()
        for job in self.out.jobs:
            tokens_from_totals(job)
            if self._counted:
                job.note("The records carry no step number: they are counted in file order.")


_TIMED = {
    *("seconds", "tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second"),
    "samples_per_second_per_gpu",
}
_KINDS = {"t": "tokens_per_second", "s": "samples_per_second", "i": "iterations_per_second"}


def _cell(column: str, value: float, unit: str) -> tuple[str, float]:
    """Return a column and its value by the unit behind the figure; no column if it needs one."""
    if unit.endswith("/s"):  # PaddleNLP: ips is of a device
        kind = _KINDS[unit[0]]
        column = kind if column == "by_unit" else column.replace("tokens_per_second", kind)
    if column == "by_unit":
        return "", value
    if column == "iterations_per_second":
        return "seconds", 1 / value if value > 0 else MISSING
    if column == "seconds" and unit == "ms":
        return column, value * 1e-3
    if column == "mfu" and (unit == "%" or value > 1):
        return column, value * 0.01
    if column == "tflops_per_gpu" and value > _FLOPS:
        return column, value * 1e-12
    return column, value


_LONGEST_PAIRS = 4000
_FLOPS = 1e9  # above it, what is called flops is in FLOP/s


def _plain(key: str) -> str:
    return re.sub("[-_ ]+", " ", key.lower())


@cache
def _columns() -> dict[str, tuple[str, float]]:
    """Return what a line may call a column, in lower case with blanks -> ours and its scale."""
    found = {name: (column, 1.0) for column, of in alternatives("key-value").items() for name in of}
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
        rf"(?<![\w/-])(?<!val )(?<!valid )(?<!validation )(?<!test )(?!(?<=[a-z] )time\b)({names})"
        r"(?:\s*[:=]\s*|\s+)"
        r"([-+]?\d+(?:,\d{3}(?!\d))*(?:\.\d+)?(?:[eE][-+]?\d+)?(?:[KM](?![a-z/]))?|-?(?:nan|inf)\b)(?![\d:])"
        r"\s*(ms\b|%|(?:tok(?:en)?s?|samples?|seqs?|sequences?|it)/s|)",
        re.IGNORECASE,
    )
