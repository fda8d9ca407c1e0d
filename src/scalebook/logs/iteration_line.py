"""The ``iteration N/M | key: value | ...`` line of Megatron and its forks, and its reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from scalebook.logs import causes
from scalebook.logs.collect import LARGEST
from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, clock_of, columns, integer, number, scaled
from scalebook.logs.setting_lines import NAMED_PIECES, PIECES

RECORD = re.compile(r"\biteration[:=]?[ \t]+(\d+)[ \t]*/[ \t]*(\d+)[ \t]*\|")
_PLAIN = re.compile(r" *[\d.eE+-]+ *")
_WHOLE = re.compile(r"\d $")  # a figure that a blank ends
_SPACE = re.compile(r"\s+")
COLUMN_OF = columns("iteration-line")

# Keys that carry nothing we keep, but that tell a wrapped line from another one.
_OTHER_KEYS = {"lossscale", "numzeros", "paramsnorm", "memusages", "batchsize", "approxflopspergpu"}
_TIMES = {"elapsedtimeperiteration", "iterationtime", "timeperiteration"}
_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_IN_UNITS = ("tflops_per_gpu", "device_gib", "reserved_gib")  # a letter behind them is not a factor
_TFLOPS_BARE = re.compile(r"\s*([\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU")


def column_of(key: str) -> tuple[str, float] | None:
    """Return the column of a key and its scale; forks spell rates in their own ways."""
    found = COLUMN_OF.get(key) or COLUMN_OF.get(key.replace("_", ""))
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


def _split(text: str) -> tuple[str, str]:
    """Return the name and the value of a field: ``lm loss: 5.1``, ``=5.1``, or ``lm loss 5.1``."""
    name, colon, value = text.partition(":")
    if not colon:
        name, colon, value = text.partition("=")
    if not colon:
        name, _, value = text.rstrip().rpartition(" ")
    return name, value


def _column(name: str, value: str) -> tuple[str, float] | None:
    """Return the column of a field and its scale; MFU may be a percentage or a fraction."""
    key = key_of(name)
    found = column_of(key) or _timed(key, value)
    return ("mfu", 1.0) if key == "mfu" and "%" not in value and number(value) <= 1 else found


def _field(text: str, row: dict[str, float], digits: Digits) -> None:
    name, value = _split(text)
    if bare := _TFLOPS_BARE.match(text):
        row.setdefault("tflops_per_gpu", number(bare[1]))
        return
    key = key_of(name)
    if key == "approxflopspergpu":
        row["tflops_per_gpu"] = scaled(_SPACE.sub("", value)) / 1e12
        return
    column = _column(name, value)
    if column is None or column[0] in row:
        return
    figure = _SPACE.sub("", value)
    plain = number(figure)
    value = plain if column[0] in _IN_UNITS else scaled(figure)  # 1.25B
    row[column[0]] = value * column[1]
    digits(column[0], figure, column[1] * (value / plain if value else 1.0))


def read_fields(line: str, digits: Digits, *, cut: bool) -> dict[str, float] | None:
    """Return the row of an iteration line; None if it is another or its step time is incomplete.

    A whole line that has a loss and no time at all is a record.

    ``cut``: the text ends inside this line, so that its last field may lack digits. ``digits``
    is told every figure as printed.
    """
    found = RECORD.search(line)
    if found is None:
        return None
    row: dict[str, float] = {"step": float(found[1])}
    fields = line[found.end() :].split("|")
    if cut and fields and not _WHOLE.search(fields[-1]):
        fields.pop()
    before = line[: found.start()]
    if "|" in before:
        fields = before.rpartition("]")[2].split("|")[:-1] + fields
    for text in fields[:64]:
        _field(text, row, digits)
    whole = not cut and line.rstrip().endswith("|") and "seconds" not in row
    return row if row.get("seconds", 0) > 0 or (whole and "loss" in row) else None


def layout(line: str, total: int) -> tuple[re.Pattern[str], list[tuple[str, float]]] | None:
    """Return a pattern for all lines built like this one, and the columns of its groups.

    One compiled pattern over a whole piece of text reads a log many times faster than a search
    for every field on every line. A line that does not fit is read field by field.
    """
    found = RECORD.search(line)
    if found is None or "|" in line[: found.start()] or not line.rstrip().endswith("|"):
        return None
    pattern = rf"iteration[:=]? ++(\d++) *+/ *+{total} *+\|"
    columns: list[tuple[str, float]] = [("step", 1.0)]
    keys = {key_of(_split(text)[0]) for text in line.split("|")}
    taken = {"step"}
    if "globalbatchsize" in keys and "consumedtokens" not in keys:
        taken.add("consumed_samples")  # only ever used to derive these two
    for text in line[found.end() :].rstrip().split("|")[:-1]:
        name, value = _split(text)
        column = _column(name, value)
        if column and column[0] not in _IN_UNITS and scaled(value) != number(value):
            return None  # with a factor behind it
        if column is None or column[0] in taken:
            pattern += r"[^|\n]*+\|"
        else:
            plain = _PLAIN.fullmatch(value)
            pattern += rf" *+{re.escape(name.strip())}[:=]? *+([\d.eE+-]++)"
            pattern += r" *+\|" if plain else r"[^|\n]*+\|"
            columns.append(column)
            taken.add(column[0])
    if "seconds" not in taken:
        return None
    return re.compile(pattern + r" *(?:\n|\Z)"), columns


_WORLD = re.compile(r"rank-\d+/(\d+)\]")
_MEMORY = re.compile(
    r"memory \(MB\) \| allocated: [\d.]+ \| max allocated: ([\d.]+) \| reserved: [\d.]+"
    r" \| max reserved: ([\d.]+)"
    r"|memory \(GB\) \|.*?\bmem-max-allocated-gigabytes: ([\d.]+).*?"
    r"\bmem-max-reserved-gigabytes: ([\d.]+)"
)
_EFFECTIVE = re.compile(r"Effective Tera Flops per GPU: ([\d.]+)")
STEP_TIME = re.compile(r"Step Time ?: ?([\d.]+) ?s")
STEP_TFLOPS = re.compile(r"([\d.]{1,12}) ?(?:MODEL_)?TFLOP/s/GPU")
_LOUD = (*PIECES["loud"], *NAMED_PIECES)
_MIB_A_GIB = 1024.0
_LONGEST_RECORD = 4000
_FEW = 64
MARKERS = ("iteration",)


def _goes_on(record: str, line: str) -> bool:
    """Whether a line is the next piece of a record: the field that it completes is one of ours."""
    line = line.partition("\n")[0]
    if (":" not in line and "|" not in line) or len(record) > _LONGEST_RECORD:
        return False
    if line.lstrip().startswith("[") or RECORD.search(line):
        return False
    tail = record.rpartition("|")[2]
    first = line.partition("|")[0]
    if ":" in tail:  # wrapped inside a value
        figure = _PLAIN.fullmatch(first) and (tail.endswith(":") or "|" in line)
        return bool(figure) and is_key(key_of(tail.partition(":")[0]))
    return ":" in first and is_key(key_of((tail + first).partition(":")[0]))


def _floats(texts: list[str]) -> list[float]:
    """Return numbers; a column of one value, as many are, is converted once."""
    first = texts[0]
    if texts.count(first) == len(texts):
        return [float(first)] * len(texts)
    return list(map(float, texts))


class IterationDialect(LineDialect):
    """Iteration lines, whole or wrapped, with the lines around them that belong to them."""

    markers = MARKERS

    def __init__(self) -> None:
        super().__init__()
        self.out.every_job(logs_multiples=True, loss_expected=True)
        self._open, self._open_cut = "", False  # a record that the next line may go on with
        self._pattern: re.Pattern[str] | None = None
        self._columns: list[tuple[str, float]] = []
        self._total: int | None = None
        self._line_world: int | None = None
        self._step_time: tuple[float, float] | None = None

    def text(self, text: str) -> None:
        """Take a piece of text: lines of a known layout at once, the others one by one.

        In a small piece every line is read by itself: there every detail may matter.
        """
        if text.count("iteration") < _FEW or not self._split(text):
            super().text(text)

    def _split(self, text: str) -> bool:
        """Read the records by their layout; return False, having read nothing, if none fits."""
        if self._pattern is None and not self._learn(text):
            return False
        assert self._pattern is not None
        parts = self._pattern.split(text)
        width = len(self._columns) + 1
        if len(parts) == 1:
            self._learn(text)  # for the next piece
            return False
        rests = parts[::width]
        between = "".join(rests)
        worlds = set(_WORLD.findall(between)) if "rank-" in between else set[str]()
        if len(worlds) > 1:
            return False
        try:
            columns = [_floats(parts[group::width]) for group in range(1, width)]
        except ValueError:
            return False
        self._line_world = integer(worlds.pop()) if worlds else None
        self._take(rests, columns, between)
        return True

    def _take(self, rests: Sequence[str], columns: list[list[float]], between: str) -> None:
        """Take what stands between the records, and the records, in file order."""
        loud = causes.mentions_ending(between) or causes.holds_up(between)
        loud = loud or any(piece in between for piece in _LOUD)
        marks = [bool(rest[: rest.rfind("\n") + 1].strip()) for rest in rests]
        start = 0
        if loud or self._open or "iteration" in between:
            for row, rest in enumerate(rests[:-1]):
                body = rest[: rest.rfind("\n") + 1]
                if body and (loud or self._open or "iteration" in body):
                    self._rows(columns, start, row, marks)
                    start = row
                    super().text(body)
        self._rows(columns, start, len(rests) - 1, marks)
        if rests[-1]:
            super().text(rests[-1])

    def _rows(
        self, columns: list[list[float]], start: int, end: int, marks: Sequence[bool]
    ) -> None:
        if start == end:
            return
        self._flush()
        rows: dict[str, list[float]] = {}
        for (name, scale), values in zip(self._columns, columns, strict=True):
            part = values[start:end]
            rows[name] = part if scale == 1.0 else [value * scale for value in part]
        same_world = self._line_world in (None, self.out.job.world)
        many = end - start > 1 and self._step_time is None and same_world
        if many and self.out.batch(rows, self._total):
            return
        for index in range(end - start):
            if marks[start + index]:
                self.out.mark()
            row = {name: values[index] for name, values in rows.items()}
            self._emit(row, self._total, self._line_world)

    def _learn(self, text: str) -> bool:
        """Learn the layout of the next whole record in a text."""
        found = RECORD.search(text)
        if found is None:
            return False
        start = text.rfind("\n", 0, found.start()) + 1
        end = text.find("\n", found.end())
        learnt = layout(text[start:end], integer(found[2])) if end > 0 else None
        if learnt and _goes_on(text[start:end], text[end + 1 : end + 1 + _LONGEST_RECORD]):
            return False  # records are wrapped here
        if learnt is None or (self._pattern and learnt[0].pattern == self._pattern.pattern):
            return False
        read_fields(text[start:end], self.out.digits, cut=False)
        self._pattern, self._columns = learnt
        self._total = integer(found[2])
        return True

    def line(self, line: str) -> bool:
        """Take an iteration line, a piece of a wrapped one, or a line that belongs to one."""
        if self._open:
            if _goes_on(self._open, line):
                self._open += line
                self._open_cut = self.cut
                return True
            self._flush()
        if "iteration" in line and RECORD.search(line):
            self._open, self._open_cut = line, self.cut
            return True
        return self._beside(line)

    def _flush(self) -> None:
        """Read the record that is open."""
        text, self._open = self._open, ""
        if not text:
            return
        row = read_fields(text, self.out.digits, cut=self._open_cut)
        found = RECORD.search(text)
        if row is None or found is None:
            self.out.job.counts.broken_records += 1
            return
        tail = text.rpartition("|")[2].strip()  # half a name: a paste that ends inside the record
        if (self._open_cut or (tail and ":" not in tail)) and "loss" not in row:
            self.out.job.details["cut"] = True
        row["clock"] = clock_of(text)
        world = _WORLD.search(text)
        self._emit(row, integer(found[2]), integer(world[1]) if world else None)
        self._note_pair(text, found.end())

    def _note_pair(self, text: str, start: int) -> None:
        """Note that the trainer prints the last value and a mean: they show the log interval."""
        for field in text[start:].split("|"):
            name, _, value = field.partition(":")
            if COLUMN_OF.get(key_of(name), ("", 0))[0] == "seconds" and "/" in value:
                last, _, mean = value.partition("/")
                if number(last) != number(mean):
                    self.out.job.details.setdefault("mean_differs_at", self.out.job.last_step)

    def _emit(self, row: dict[str, float], total: int | None, world: int | None = None) -> None:
        if self._step_time is not None:
            seconds, tflops = self._step_time
            if abs(seconds - row.get("seconds", MISSING)) <= max(0.006, 0.02 * seconds):
                row.setdefault("tflops_per_gpu", tflops)
            self._step_time = None
        self.out.step(row, total=total, world=world)
        self._world(world)

    def _world(self, world: int | None) -> None:
        if world and world <= LARGEST and len(self.out.job.table):
            self.out.job.settings["world_size"] = world
            self.out.job.world = world

    def _beside(self, line: str) -> bool:
        """Take a line that carries figures of the record before or behind it."""
        if "memory (MB)" in line or "memory (GB)" in line:
            details = self.out.job.details
            for *mebi, allocated, reserved in _MEMORY.findall(line):
                values = zip(("allocated", "reserved"), mebi, (allocated, reserved), strict=True)
                for name, small, large in values:
                    gib = number(small) / _MIB_A_GIB if small else number(large) * 1e9 / 2**30
                    key = f"peak_{name}_gib"
                    known = details.get(key)
                    details[key] = max(gib, known) if isinstance(known, float) else gib
            return True
        if "Step Time" in line:
            seconds, tflops = STEP_TIME.search(line), STEP_TFLOPS.search(line)
            if seconds and tflops:
                self._step_time = (number(seconds[1]), number(tflops[1]))
                return True
        effective = _EFFECTIVE.search(line) if "Effective Tera" in line else None
        if effective and len(self.out.job.table):
            self.out.job.table.amend("tflops_per_gpu", number(effective[1]))
        return False

    def finish(self) -> None:
        """Read the record that is still open."""
        self._flush()
