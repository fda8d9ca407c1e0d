"""PyTorch profiler traces (Chrome's JSON), plain or gzip: totals of events, read as a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from scalebook.logs.dialect import Dialect
from scalebook.logs.job import Job
from scalebook.logs.source import Source

_LONGEST_EVENT = 1 << 20
_LONGEST_HEAD = 1 << 16
_BLANKS = re.compile(r"[\s,]*")
_MOST_NAMES = 20_000
_TOP = 20
_NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{)")
_DISTRIBUTED = re.compile(r'"distributedInfo"\s*:\s*(\{[^{}]*\})')
_START = re.compile(r'"traceEvents"\s*:\s*\[')
_DOCUMENT = re.compile(r'\s*[\[{]\s*["{]')
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_MICROSECONDS = 1e6


@dataclass(slots=True)
class _Stream:
    """A text that grows while it is read from ``at`` on; what lies far behind is dropped."""

    pieces: Iterator[str]
    buffer: str = ""
    at: int = 0
    lines: int = 0  # dropped so far

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        piece = next(self.pieces, None)
        if self.at:
            self.lines += self.buffer.count("\n", 0, self.at)
        self.buffer = self.buffer[self.at :] + (piece or "")
        self.at = 0
        return piece is not None

    def skip(self, blanks: re.Pattern[str]) -> str:
        """Move past blanks and return the character there, empty at the end of the buffer."""
        found = blanks.match(self.buffer, self.at)
        self.at = found.end() if found else self.at
        return self.buffer[self.at : self.at + 1]

    def line_of(self, position: int) -> int:
        """Return the line number of a position in the buffer, from 1."""
        return self.lines + self.buffer.count("\n", 0, position) + 1


@dataclass(slots=True)
class _Totals:
    categories: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    kernels: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    steps: list[float] = field(default_factory=list[float])

    def add(self, event: dict[str, Any]) -> None:
        duration, name = event.get("dur"), event.get("name")
        if event.get("ph") != "X" or not isinstance(duration, int | float):
            return
        if not 0 <= duration < 1e18 or not isinstance(name, str):
            return
        on_device = event.get("pid") == "CUDA functions"  # traces of old
        category = "kernel" if on_device else str(event.get("cat", "other")).lower()[:40]
        _count(self.categories, category, duration)
        if category in _DEVICE:
            _count(self.kernels, name[:200], duration)
        is_step = name.startswith("ProfilerStep") and not category.startswith("gpu_")
        if is_step and len(self.steps) < _MOST_NAMES:
            self.steps.append(duration / _MICROSECONDS)


def _count(totals: dict[str, list[float]], name: str, duration: float) -> None:
    if name in totals or len(totals) < _MOST_NAMES:
        entry = totals.setdefault(name, [0, 0.0])
        entry[0] += 1
        entry[1] += duration / _MICROSECONDS


class Kineto(Dialect):
    """Totals by category and the longest kernels; times in the file are microseconds."""

    name = "kineto"
    kind: ClassVar[str] = "trace"
    markers = ('"traceEvents"', '"ph"')
    signature = re.compile(r'"(?:ph|traceEvents)"\s*:')

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether a text begins as a document and holds events."""
        return bool(_DOCUMENT.match(text)) and super().recognises(text)

    def __init__(self) -> None:
        super().__init__()
        self._decoder = json.JSONDecoder()
        self._fault = 0  # line of the last fault

    def read(self, source: Source) -> list[Job]:
        """Return one job without steps, with the totals in its details."""
        stream, totals = _Stream(source.texts()), _Totals()
        self._seek(stream)
        broken = 0
        while True:
            event = self._event(stream)
            if event is None:
                break
            if not event:
                broken += 1
                self.out.job.note(
                    f"{source.path.name} line {self._fault}: not valid JSON; "
                    "the event was left out."
                )
                continue
            totals.add(event)
        self.out.job.counts.broken_records = broken
        self._keep(totals)
        for note in source.notes:
            self.out.job.note(note)
        return self.out.close()

    def _seek(self, stream: _Stream) -> None:
        """Move behind the bracket before the first event."""
        stream.more()
        if stream.skip(_BLANKS) == "[":
            stream.at += 1
            return
        while True:
            start = _START.search(stream.buffer, stream.at)
            info = _DISTRIBUTED.search(
                stream.buffer, stream.at, start.start() if start else 1 << 62
            )
            if info:
                self._distributed(info[1])
            if start:
                stream.at = start.end()
                return
            stream.at = max(len(stream.buffer) - _LONGEST_HEAD, 0)
            if not stream.more():
                return

    def _distributed(self, text: str) -> None:
        try:
            info = json.loads(text)
        except ValueError:
            return
        for key, ours in (("world_size", "world_size"), ("rank", "rank")):
            value = info.get(key)
            if isinstance(value, int) and value >= 0:
                if ours == "world_size" and value > 0:
                    self.out.tell(ours, value)
                else:
                    self.out.job.details[ours] = value

    def _event(self, stream: _Stream) -> dict[str, Any] | None:
        """Return the next event, an empty one where it is not JSON, None at the end."""
        while (sign := stream.skip(_BLANKS)) != "{":
            if sign or not stream.more():
                return None
        while True:
            try:
                event, stream.at = self._decoder.raw_decode(stream.buffer, stream.at)
            except (ValueError, RecursionError) as error:
                after = _NEXT_EVENT.search(stream.buffer, stream.at)
                whole = after is not None or len(stream.buffer) - stream.at > _LONGEST_EVENT
                if not whole and stream.more():
                    continue
                where = error.pos if isinstance(error, json.JSONDecodeError) else stream.at
                self._fault = stream.line_of(where)
                stream.at = after.end() if after else len(stream.buffer)
                return {}
            return cast(dict[str, Any], event) if isinstance(event, dict) else {}

    def _keep(self, totals: _Totals) -> None:
        device = sum(totals.categories.get(name, [0, 0.0])[1] for name in _DEVICE)
        communication = sum(
            entry[1] for name, entry in totals.kernels.items() if "ccl" in name.lower()
        )
        longest = sorted(totals.kernels.items(), key=lambda item: -item[1][1])[:_TOP]
        self.out.job.details["trace"] = {
            "categories": {
                name: {"events": int(entry[0]), "seconds": entry[1]}
                for name, entry in sorted(totals.categories.items())
            },
            "device_seconds": device,
            "communication_seconds": communication,
            "step_seconds": totals.steps,
            "longest_kernels": [
                {"name": name, "events": int(entry[0]), "seconds": entry[1]}
                for name, entry in longest
            ],
        }
