"""Trainers that print a step as key and value pairs: nanochat, nanoGPT, verl, OLMo-core, others."""

from __future__ import annotations

import re
from typing import ClassVar

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.dialects.rows import Rows
from scalebook.logs.numbers import (
    MISSING,
    clock_of,
    clock_seconds,
    integer,
    names,
    number,
    whole,
)
from scalebook.logs.pairs import (
    TIMED,
    bar_seconds,
    bar_state,
    by_the_clock,
    cell,
    pairs_of,
    seconds_from,
    tokens_from_totals,
)
from scalebook.logs.setting_lines import Value

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
    _MFU = re.compile(r"(?i)mfu: ([\d.]+)")
    _of_rank = 0
    _needed = frozenset({"loss"})

    def line(self, line: str) -> bool:
        """Take a record, or one of the lines on the batch."""
        row, total = pairs_of(line)
        if "step" not in row or not row.keys() & self._needed:
            if "atch" in line:
                self._batch(line)
            return False
        row["clock"] = clock_of(line)
        if mfu := self._MFU.search(line):
            row["mfu"] = number(mfu[1]) / 100  # a percentage without its sign
        if self.cut and not row.keys() & TIMED:
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
            length = self.out.job.settings.get("sequence_length", 0)
            self._derive("global_batch_size", whole(total[1]) or 0, length)

    def _derive(self, name: str, above: int, below: Value) -> None:
        if isinstance(below, int) and below and above % below == 0:
            self.out.tell(name, above // below)
            self.out.job.derived[name] = "tokens of a batch"


class PrimeRL(Nanochat):
    """``Step N | Time: 0.36s | Loss: ...`` now, ``step: N, loss: ..., mfu: ...`` before.

    The rate is a moving mean of the job. The orchestrator prints a reward: ``Step N | 22.5s | ..``.
    """

    name = "prime-rl"
    markers = ("tokens_per_second:", "tokens/s", "| Reward")
    _needed = frozenset({"loss", "seconds"})
    signature = re.compile(
        r"\bStep \d+ \| (?:Step )?Time: [\d.]+s?[^\n]{0,300}Throughput:"
        r"|\bstep: \d+, [^\n]{0,100}tokens_per_second:|\bStep \d+ \| [\d.]+s \| Reward "
    )


class NanoGPT(LineDialect):
    """nanoGPT and its kin (llm.c, llama2.c, modded-nanogpt) and tinygrad; rates are of the job.

    nanoGPT's time is that of the last iteration; modded-nanogpt prints the time since the start,
    and may time its validations alone.
    """

    name = "nanogpt"
    markers = (
        ", time ", "ms |", "tok/sec:", "step_avg:", "s run, ", " train ", " LR, ", " trl:",
        "ms avg:",
    )  # fmt: skip
    _NUMBER = r"-?[\d.,]+(?:e[-+]?\d+)?|nan|-?inf"
    signature = re.compile(
        rf"\biter (?P<step>\d+): loss (?P<loss>{_NUMBER}), time (?P<ms>[\d.]+)ms"
        rf"(?:, mfu (?P<mfu>-?[\d.]+)%)?"
        rf"|\bstep +(?P<step2>\d+)(?:/(?P<total>\d+))? \| (?:train )?loss:? +(?P<loss2>{_NUMBER})\b"
        rf"[^\n]{{0,120}}\| (?:dt: )?(?P<ms2>[\d.]+) ?ms \|(?: *(?P<mfu2>-?[\d.]+)% bf16 MFU \|)?"
        rf" *(?:tok/sec: *(?P<rate>[\d.,]+)|(?P<rate2>[\d.,]+) tok/s)"
        rf"|^(?P<step4>\d+) \| loss (?P<loss4>{_NUMBER}) \| lr [\d.e+-]+ \| (?P<ms4>[\d.]+)ms"
        rf"(?: \| mfu (?P<mfu4>-?[\d.]+)%)?"  # llama2.c
        rf"|\bstep:(?P<step3>\d+)/(?P<total2>\d+) (?:(?:train_)?loss:(?P<loss3>{_NUMBER}) )?"
        rf"(?P<val>val_loss:)?[^\n]{{0,100}}?\b(?:train_time|t):(?P<since>[\d.]+)(?P<unit>m?s)"
        rf"(?: (?:step_)?avg:|$)"
        rf"|^(?P<step2_2>\d+) train (?P<loss2_2>{_NUMBER})$"  # build-nanogpt's log.txt
        rf"|^s:(?P<step2_4>\d+) trl:(?P<loss2_4>{_NUMBER})\b"  # llm.c's main.log
        rf"|^ *(?:(?P<step2_3>\d+) +(?P<time>[\d.]+) (?P<unit2>m?s) run, (?:[^\n]{{0,160}}? )??)?"
        rf"(?P<loss2_3>{_NUMBER}) loss, +(?P<lr>[\d.e-]+) LR,"
        rf"(?:[^\n]{{0,40}} used, (?P<later>[\d.]+) s$)?",  # tinygrad
        re.MULTILINE,
    )
    first_number = _tokens = 0
    _TOKENS = re.compile(r"tokens per iteration will be: ([\d,]+)")

    def line(self, line: str) -> bool:
        """Take a record, or the tokens of an iteration."""
        found = self.signature.search(line)
        if found is None:
            tokens = self._TOKENS.search(line) if "tokens per iteration" in line else None
            self._tokens = (whole(tokens[1]) or 0) if tokens else self._tokens
            return False
        cells = {name.rstrip("_234"): text for name, text in found.groupdict().items() if text}
        if "val" in cells and number(cells["step"]) <= (self.out.job.last_step or 0):
            return True  # the validation of a step that is there
        row = {name: number(cells[name]) for name in ("step", "loss") if name in cells}
        unit = 1.0 if cells.get("unit") == "s" else 1e-3
        for name, column, scale in (
            ("ms", "seconds", 1e-3), ("mfu", "mfu", 0.01), ("rate", "tokens_per_second", 1.0),
            ("since", "clock", unit), ("time", "seconds", unit), ("later", "seconds", 1.0),
        ):  # fmt: skip
            if name in cells:
                row[column] = number(cells[name]) * scale
        shared, _ = pairs_of(line)
        if "lr" in cells:  # behind its value
            shared["learning_rate"] = number(cells["lr"])
        row |= {name: shared[name] for name in ("learning_rate", "grad_norm") if name in shared}
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
    markers = (
        "timing_s/step:", "perf/throughput:", "perf/time_per_step:", "train/loss:",
        "actor/pg_loss:",
    )  # fmt: skip
    signature = re.compile(r"\bstep:\d+ - [\w/@.-]+:\S+ - ")
    _RECORD = re.compile(r"\bstep:(\d+) - ")
    _PAIR = re.compile(rf"([\w/@.() -]{{1,80}}?):(?:np\.\w+\()?{_VALUE}")
    _COLUMNS: ClassVar = names("verl")
    _HOLDS = ("testing", "save_checkpoint")  # in the time of the step
    _row: dict[str, float] | None = None  # of the line before

    def line(self, line: str) -> bool:
        """Take a record. The loss of a policy is kept, although it need not fall."""
        found = self._RECORD.search(line) if "step:" in line else None
        before, self._row = self._row or {}, None
        if found is None and not (before and " - " in line):
            return False
        text = line[found.end() :] if found else line
        cells = {key.strip(" -"): number(value) for key, value in self._PAIR.findall(text)}
        own = {ours: cells[key] for key, ours in reversed(self._COLUMNS.items()) if key in cells}
        row = own if found is None else Rows().row(cells) | own
        if "timing_s/gen" in cells:
            self.out.job.note(
                "A step holds the generation of its samples (reinforcement learning)."
            )
        bar, total = bar_state(line), None
        if bar and "seconds" not in row:  # of its supervised trainer; it shows the step before
            row["seconds"], total = bar_seconds(line), bar[1]
            row["tokens_per_second"] = row.get("tokens_in_step", MISSING) / row["seconds"]
        if found is None:  # a terminal wrapped the record
            for column in row.keys() - before.keys():
                self.out.job.table.amend(column, row[column])
        elif row and not (self.cut and "seconds" not in row and len(self.out.job.table)):
            head = {"step": float(found[1]), "clock": self.clock(line[: found.start()])}
            self.out.held |= any(cells.get(f"timing_s/{name}", 0) > 0 for name in self._HOLDS)
            self.out.step(row | head, total=total)
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
        unit = "mb" if "(MB)" in pair[1] else "%"
        self._row.setdefault(*cell(self._COLUMNS[pair[1]], number(pair[2]), unit))
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
    _FEWEST, _FEWEST_COUNTED = 2, 3
    _MOST_SEARCHED = 20_000  # lines
    _SECONDS = re.compile(r"\d ?s(?:ec\w*)?\b|\b(?:s|sec|seconds)[)\]]|/it\b|it/")
    _NOTEBOOK = re.compile(r"\[ *([1-9]\d*)/\d+ ([\d:]+), Epoch ")  # what a Trainer shows
    _SINCE = re.compile(r", step = \d+ \(([\d.]+) sec\)")  # of an Estimator: the steps before
    _EPOCH = re.compile(r"(?i)\bepoch\W{0,3}(\d{1,6})(?![\d.])")
    _unit, _mean = False, MISSING
    _counts = (-2, 0, 0, 0)  # epoch, step and first step in it, steps before
    _VALIDATES = re.compile(r"(?i)\bval(?:id|\b)")

    _stepped = _counted = _ahead = False
    _bar: float = 0.0
    _columns_before = frozenset[str]()

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether enough lines hold a loss and a time or a rate, at a step that rises if at any."""
        if not super().recognises(text):
            return False
        last, count, without, other, before = -1.0, 0, 0, 0.0, MISSING
        for line in text.split("\n", cls._MOST_SEARCHED)[: cls._MOST_SEARCHED]:
            row, total = pairs_of(line)
            if "loss" in row and row.keys() & TIMED:
                step = row.get("step", MISSING)
                without += "step" not in row
                count = count + 1 if step > last else int("step" in row)
                last = step if "step" in row else last
            elif "loss" in row and row.get("step", MISSING) > last:
                record = total or row.keys() & {"learning_rate", "grad_norm"} or clock_of(line) > 0
                other += 1.0 if record else 0.6 * (row["loss"] != before)  # prose repeats itself
                last, before = row["step"], row["loss"]
            if count >= cls._FEWEST or max(without, other) >= cls._FEWEST_COUNTED:
                return True
        return False

    def line(self, line: str) -> bool:
        """Take a record."""
        row, total = pairs_of(line)
        if ", Epoch" in line and (shown := self._NOTEBOOK.search(line)):
            self._mean = clock_seconds(shown[2]) / integer(shown[1])
        if " sec)" in line and (since := self._SINCE.search(line)):
            count = row.get("step", MISSING) - (self.out.job.last_step or 0)
            row["seconds"] = number(since[1]) / count if count > 0 else MISSING
        loss, timed = "loss" in row, bool(row.keys() & TIMED)
        timed = timed and (loss or not self._VALIDATES.search(line))
        if not (loss or timed) if "step" in row else self._stepped or not (loss and timed):
            return False
        if self.cut and not timed and row.keys() != self._columns_before:
            self.out.job.counts.broken_records += 1
            return True
        drawn = bar_state(line) if loss else None
        bar = drawn if drawn and drawn[0] == row.get("step") else None
        if "step" in row and (past := self._past(line, int(row["step"]), total)):
            row["step"], total = row["step"] + past, total and total + past
        if bar:
            self._ahead = self._ahead or bar[0] == 0  # it shows the loss of the step to come
            if row["step"] == self._bar and not self._ahead:  # drawn first with the loss before
                self.out.job.table.amend("loss", row["loss"])
            if row["step"] == self._bar or (self._ahead and bar[0] == 0):
                return True
            self._bar = row["step"]
        self._columns_before = frozenset(row)
        self._unit = self._unit or bool(self._SECONDS.search(line))
        self._stepped = self._stepped or "step" in row
        self._counted = self._counted or "step" not in row
        row["clock"] = self.clock(line)
        if row.get("step") == 0 and not len(self.out.job.table):
            self.out.job.first_number = 0
        self.out.step(row, total=total)
        return True

    def _past(self, line: str, step: int, total: int | None) -> int:
        """Return the steps of the epochs before, where those of an epoch count afresh."""
        if (found := self._EPOCH.search(line)) is None:
            return 0
        epoch, (before, last, first, past) = integer(found[1]), self._counts
        if epoch > before >= 0 and (step <= last or past):
            past += (total or last + (first == 0)) * (epoch - before)
        elif epoch < before or before < 0:
            past, first = 0, step
        self._counts = epoch, step, first, past
        return past

    def finish(self) -> None:
        """Take rates from totals of tokens, and say where records were counted."""
        super().finish()
        for job in self.out.jobs:
            by_the_clock(job, bare=not self._unit)
            if self._mean > 0 and not job.table.has("seconds"):
                job.table.set_column("seconds", [self._mean] * len(job.table))
                job.note("The step time is the mean of the whole run: no other was printed.")
            tokens_from_totals(job)
            batch = job.settings.get("global_batch_size")
            samples = job.table.column("consumed_samples")
            if self._counted and isinstance(batch, int) and job.table.has("consumed_samples"):
                job.table.set_column("step", (one / batch for one in samples))
            elif self._counted:
                job.note("The records carry no step number: they are counted in file order.")
