"""PyTorch profiler traces (Chrome's JSON), plain or gzip: the anatomy of a step, as a stream."""

from __future__ import annotations

import re
from typing import ClassVar

from scalebook.logs.dialects.dialect import Dialect
from scalebook.logs.job import Job
from scalebook.logs.numbers import number
from scalebook.logs.source import Source
from scalebook.measure.anatomy.breakdown import fault_of, reduce_trace
from scalebook.measure.anatomy.events import Event, EventReader
from scalebook.measure.anatomy.trace import Trace

_DOCUMENT = re.compile(r'\s*[\[{]\s*["{]')
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


class Kineto(Dialect):
    """What the time of a step went to, by the events of one rank."""

    name = "kineto"
    kind: ClassVar[str] = "trace"
    markers = ('"traceEvents"', '"ph"')
    signature = re.compile(r'"(?:ph|traceEvents)"\s*:')

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether a text begins as a document and holds events."""
        return bool(_DOCUMENT.match(text)) and super().recognises(text)

    def read(self, source: Source) -> list[Job]:
        """Return one job without steps; its details hold the anatomy of a step."""
        reader, trace = EventReader(source.texts()), Trace()
        devices = {"CUDA functions": "kernel"}  # in old traces
        for event in reader.events():
            if event.get("name") == "process_name" or "cat" not in event:
                _place(event, devices)
            trace.add(event)
        job = self.out.job
        for line in reader.broken_lines:
            job.note(f"{source.path.name} line {line}: not valid JSON; the event was left out.")
        job.counts.broken_records = reader.broken
        world, rank = (reader.distributed.get(name) for name in ("world_size", "rank"))
        if isinstance(world, int) and world > 0:
            self.out.tell("world_size", world)
        known = rank if isinstance(rank, int) and rank >= 0 else None
        found = reduce_trace(trace, rank=known, fault=fault_of(reader))
        job.details["breakdown"] = found.model_dump(mode="json")
        for note in source.notes:
            job.note(note)
        return self.out.close()
