"""PyTorch profiler traces (Chrome's JSON), plain or gzip: totals of events, read as a stream."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from scalebook.logs.dialects.dialect import Dialect
from scalebook.logs.job import Job
from scalebook.logs.numbers import number
from scalebook.logs.source import Source
from scalebook.measure.anatomy.breakdown import fault_of, reduce_trace
from scalebook.measure.anatomy.events import Event, EventReader
from scalebook.measure.anatomy.trace import Trace

_MOST_NAMES = 20_000
_TOP = 20
_DOCUMENT = re.compile(r'\s*[\[{]\s*["{]')
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_MICROSECONDS = 1e6


@dataclass(slots=True)
class _Totals:
    categories: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    kernels: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    steps: list[float] = field(default_factory=list[float])

    def add(self, event: Event) -> None:
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


_PROCESS = re.compile(r"'name': '(GPU|COPY)\s?\d*'")  # rocprof


def _place(event: Event, devices: dict[str, str]) -> None:
    """Give an event without a category that of its process: rocprof names processes by device."""
    process = str(event.get("pid"))
    named = _PROCESS.search(str(event.get("args")))
    if event.get("name") == "process_name" and named:
        devices[process] = "kernel" if named[1] == "GPU" else "gpu_memcpy"
    elif process in devices:
        event["cat"] = devices[process]
        for name in ("ts", "dur"):
            event[name] = number(str(event.get(name)))


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

    def read(self, source: Source) -> list[Job]:
        """Return one job without steps; its details hold the totals and the anatomy of a step."""
        reader, totals, trace = EventReader(source.texts()), _Totals(), Trace()
        devices: dict[str, str] = {}
        for event in reader.events():
            if event.get("name") == "process_name" or "cat" not in event:
                _place(event, devices)
            totals.add(event)
            trace.add(event)
        job = self.out.job
        for line in reader.broken_lines:
            job.note(f"{source.path.name} line {line}: not valid JSON; the event was left out.")
        job.counts.broken_records = reader.broken
        self._distributed(reader.distributed)
        self._keep(totals)
        rank = job.details.get("rank")
        found = reduce_trace(
            trace, rank=rank if isinstance(rank, int) else None, fault=fault_of(reader)
        )
        job.details["breakdown"] = found.model_dump(mode="json")
        for note in source.notes:
            job.note(note)
        return self.out.close()

    def _distributed(self, info: Event) -> None:
        world, rank = info.get("world_size"), info.get("rank")
        if isinstance(world, int) and world > 0:
            self.out.tell("world_size", world)
        if isinstance(rank, int) and rank >= 0:
            self.out.job.details["rank"] = rank

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
