"""The one interface of all readers: of lines, of JSON documents, and of text without records."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from scalebook.logs import causes, setting_lines
from scalebook.logs.collect import Collector
from scalebook.logs.job import Job
from scalebook.logs.numbers import clock_of, has_fraction, number
from scalebook.logs.pairs import seconds_from
from scalebook.logs.source import LONGEST_LINE, Source, split_rank

RUNS_TABLE = '"Name","State",'  # how W&B's table of runs begins, which has no steps


class Dialect(ABC):
    """Reads one kind of file; a new object for every file.

    ``markers`` are literal pieces of which a file of this kind holds at least one; ``signature``
    is what a record looks like, searched only where a marker was found. ``kind`` says what comes
    out: jobs of training, telemetry samples, or a profiler's trace.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "training"
    markers: ClassVar[tuple[str, ...]]
    signature: ClassVar[re.Pattern[str]]
    first_number: ClassVar[int] = 1  # what the trainer calls its first step
    mapping: ClassVar[Mapping[str, str]] = {}  # target -> the user's name of a column

    def __init__(self) -> None:
        self.out = Collector(self.name, self.first_number)
        self._of_job = self.out.job
        self._alike = Counter[str]()  # lines of this job by what they are without digits

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether a piece of text holds a record of this dialect."""
        return any(marker in text for marker in cls.markers) and bool(cls.signature.search(text))

    @abstractmethod
    def read(self, source: Source) -> list[Job]:
        """Return the jobs of a file."""


# Lines that differ in digits only; of one job, more than this say nothing new of its settings.
_OFTEN, _LONGEST_KIND, _MOST_KINDS = 100, 200, 10_000
_SCRIPT = re.compile(  # the source of a trainer, which a line of = ends
    r'\A[=\s]*(?:import \w+|from [\w.]+ import |"{3})[^\0]*?\n={40,}\n'
    r"|^(?:(?:import [\w., ]+|from [\w.]+ import .*)\n){2}[^\0]*?\n={40,}\n",
    re.MULTILINE,
)
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789.,"))
_LAST = re.compile(r"[\d.,eE+-]*\d[\d.,eE+-]*$")


def _without_scripts(text: str) -> str:
    """Return a text without source code, whose defaults set nothing of the run."""
    if "import " not in text or "\n" + "=" * 40 not in text:
        return text
    return _SCRIPT.sub(lambda found: found[0] if "\n```" in found[0] else "\n", text)


def _whole(line: str, before: str) -> str:
    """Return a line that may be cut off without its last figure, unless it is as the one before."""
    found, other = _LAST.search(line[-40:]), _LAST.search(before[-40:])
    if found is None:
        return line
    figure, known = found[0], other[0] if other else ""
    digits = [len(one.rpartition(".")[2]) for one in (figure, known)]
    alike = digits[0] == digits[1] and ("." in figure) == ("." in known)
    return line if alike else line[: len(line) - len(figure)]


class LineDialect(Dialect):
    """A dialect that is read line by line."""

    assignments: ClassVar[bool] = True  # whether ``name: value`` lines tell the configuration
    cut = False
    rank: int | None = None  # whose log this is
    traceback = False  # the exception that ends it comes soon
    ignored = False  # it is one that Python ignores
    _evaluation = math.inf  # how deep a dump's section on it is indented
    _evaluates = False  # whether a line is in such a section
    _last_taken = ""  # the last line that was a record
    _fine: bool | None = None  # whether every clock had parts of a second; None: none was read

    @abstractmethod
    def line(self, line: str) -> bool:
        """Take what one line holds; return False if it is not a record of this dialect."""

    def finish(self) -> None:
        """Do what has to wait for the end: step times by the clock, where no time is printed."""
        for job in self.out.jobs if self._fine is not None else ():
            seconds_from(job, "clock", 1e-3 if self._fine else 1.0, "time stamps")

    def clock(self, line: str) -> float:
        """Return the time that a record was printed at, NaN where its line has none."""
        clock = clock_of(line)
        self._fine = self._fine is not False and (has_fraction(line) or math.isnan(clock))
        return clock

    def read(self, source: Source) -> list[Job]:
        """Return the jobs of a file."""
        for text in source.texts():
            self.rank = source.rank
            self.text(_without_scripts(text))
        ending, finished = self.out.job.ending, self.out.job.finished
        self.finish()
        if ending and not self.out.job.ending:  # it stood behind records kept until now
            self.out.job.ending, self.out.job.finished = ending, finished
        jobs = self.out.close()
        for note in source.notes:
            jobs[-1].note(note)
        return jobs

    def text(self, text: str) -> None:
        """Take a piece of text that ends at a line end."""
        endings = self.traceback or causes.mentions_ending(text)
        dumps = any(piece in text for piece in (".. ", *setting_lines.PIECES["groups"]))
        holds = causes.holds_up(text)
        fenced = "```" in text
        stated = any(piece in text for piece in setting_lines.PIECES["stated"])
        if "Processes:" in text and (gpus := setting_lines.busy_gpus(text)):
            self.out.tell("gpus_said", gpus, weak=True)
        pieces = (*setting_lines.device_pieces(), *setting_lines.NAMED_PIECES)
        named = [piece for piece in pieces if piece in text]
        lines = text.split("\n")
        last = len(lines) - 1
        for index, line in enumerate(lines):
            if not line:
                continue
            if len(line) > LONGEST_LINE:
                self.out.job.note(f"Lines of more than {LONGEST_LINE:,} characters were left out.")
                continue
            self.cut = index == last  # the text ends without a line end: the line may be cut off
            taken = self.line(_whole(line, self._last_taken) if self.cut else line)
            if named and any(piece in line for piece in named) and not self._often(line):
                self._named(line, lines[index + 1] if index < last else "")
            if taken:
                self._last_taken = line
            else:
                self.out.mark()
                if fenced and line.lstrip("> ").startswith("```"):
                    self.out.quoted = True
                if holds and causes.holds_up(line):
                    self.out.held = True
                self.other(line, endings=endings, dumps=dumps)
                if (
                    stated or any(one in line for one in setting_lines.PIECES["memory"])
                ) and not self._evaluates:
                    self._stated(line)

    def _often(self, line: str) -> bool:
        """Whether a hundred lines of the job were like this one: it says nothing new of it."""
        if self._of_job is not self.out.job or len(self._alike) > _MOST_KINDS:
            self._of_job, self._alike = self.out.job, Counter[str]()
        kind = line[:_LONGEST_KIND].translate(_NO_DIGITS)
        self._alike[kind] += 1
        return self._alike[kind] > _OFTEN

    def _stated(self, line: str) -> None:
        """Take sizes and the peak of memory in words that trainers share."""
        if any(one in line for one in setting_lines.PIECES["stated"]) and not self._often(line):
            for name, value in setting_lines.stated(line):
                self.out.tell(name, value, weak=True)
            for name, value in setting_lines.banner(line):
                self.out.tell(name, value)
            if rate := setting_lines.RATE_OF_RUN.match(line):
                self.out.job.rates["tokens_per_second_per_gpu"] = number(rate[1])
        if peak := setting_lines.peak_gib(line):
            known = self.out.job.details.get("peak_allocated_gib")
            self.out.job.details["peak_allocated_gib"] = max(
                peak, known if isinstance(known, float) else 0.0
            )

    def other(self, line: str, *, endings: bool, dumps: bool) -> None:
        """Take what a line that is not a record says: a setting, or how the run ended."""
        if dumps:
            for name, value in setting_lines.scan(line):
                self.out.tell(name, value)
        if endings:
            self.ending(line)
        if "mbs" in line or "gbs" in line:
            for name, size in setting_lines.batch_in_name(line):
                self.out.tell(name, size, weak=True)
        if ":" in line or "=" in line or "  " in line or "|" in line:
            text = split_rank(line)[1]
            deep = len(text) - len(text.lstrip())
            self._evaluates = deep > self._evaluation
            if not self._evaluates:
                self._evaluation = deep if setting_lines.EVALUATION.match(text[:160]) else math.inf
            told = (
                setting_lines.assigned(text) if self.assignments and not self._evaluates else None
            )
            if told:
                self.out.tell(*told, weak=True)

    def ending(self, line: str) -> None:
        """Note what a line says about the end of the run."""
        rank, text = split_rank(line)
        text = text if rank is None else text.removeprefix(" ")
        if text.startswith("Exception ignored in"):  # as the interpreter exits: no failure
            self.ignored = True
        elif self.ignored:
            self.ignored = causes.TRACEBACK in line or text[:1] in (" ", "\t")
            return
        found = causes.ending(line, self.rank)
        if found:
            self.out.end(found)
        if causes.TRACEBACK in line:
            self.traceback = True
        elif self.traceback and text[:1] not in ("", " ", "\t"):
            self.traceback = False
            raised = causes.exception(text)
            if raised:
                self.out.end(raised)

    def _named(self, line: str, after: str) -> None:
        """Note what a line says of the device, of a part that is trained, and of packing."""
        if found := setting_lines.device_in(f"{line}\n{after}"):
            self.out.device(found)
        if part := setting_lines.partial_training(line):
            self.out.tell("trained", part, weak=part == "all")
        if setting_lines.packs(line):
            self.out.tell("packed_sequences", True)


LARGEST_DOCUMENT = 64 << 20  # characters; a results file takes far less


class JSONDialect(Dialect):
    """Reads a whole document of bounded size; one that is not JSON becomes a note with its line."""

    def read(self, source: Source) -> list[Job]:
        """Return the jobs of a file."""
        pieces: list[str] = []
        size = 0
        for text in source.texts():
            pieces.append(text)
            size += len(text)
            if size > LARGEST_DOCUMENT:
                self.out.job.note("The document is larger than 64 MiB and was not read.")
                return self.out.close()
        try:
            document = json.loads("".join(pieces))
        except ValueError as error:
            self.out.job.note(f"{source.path.name} is not valid JSON: {error}.")
        except RecursionError:
            self.out.job.note(f"{source.path.name} is nested too deeply.")
        else:
            for part in cast(list[Any], document if isinstance(document, list) else [document]):
                if isinstance(part, dict):
                    self.document(cast(dict[str, Any], part))
        return self.out.close()

    def document(self, document: dict[str, Any]) -> None:
        """Take one document."""
        raise NotImplementedError


class Plain(LineDialect):
    """Has no records."""

    name = "unknown"
    markers = ()
    signature = re.compile(r"(?!)")

    def line(self, line: str) -> bool:
        """Take nothing: every line is looked at for settings and endings."""
        return False
