"""Spans of time, and which phase of a step a moment on the host belongs to: the innermost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scalebook.measure.anatomy.kinds import PIPELINE, Phase, phase_of
from scalebook.measure.anatomy.trace import Trace


@dataclass(slots=True)
class _Line:
    """One thread's ranges, flattened: from ``times[i]`` on the phase is ``phases[i]``."""

    times: list[float] = field(default_factory=list[float])
    phases: list[Phase | None] = field(default_factory=list["Phase | None"])

    def at(self, time: float) -> Phase | None:
        """Return the phase at a moment, None outside of every range."""
        place = bisect_right(self.times, time) - 1
        return self.phases[place] if place >= 0 else None

    def turn(self, time: float, phase: Phase | None) -> None:
        """Let ``phase`` begin at ``time``."""
        if self.times and self.times[-1] >= time:
            self.phases[-1] = phase
            return
        self.times.append(time)
        self.phases.append(phase)

    def spans(self, phase: Phase) -> list[Span]:
        """Return when the phase was the innermost."""
        ends = [*self.times[1:], float("inf")]
        return [
            (start, stop)
            for start, stop, which in zip(self.times, ends, self.phases, strict=True)
            if which == phase
        ]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The phases of every thread; ``main`` is the thread that runs the steps."""

    lines: dict[int, _Line]
    main: int | None

    def phase(self, thread: int, time: float) -> Phase | None:
        """Return the phase at a moment of a thread; None where nothing marks one.

        Where the thread has no range there, the main thread's counts: it waits in its backward
        range while autograd's own thread launches the kernels.
        """
        line = self.lines.get(thread)
        found = line.at(time) if line else None
        if found is None and self.main is not None and thread != self.main:
            main = self.lines.get(self.main)
            return main.at(time) if main else None
        return found

    def data_spans(self) -> list[Span]:
        """Return when the main thread waited for data."""
        line = self.lines.get(self.main) if self.main is not None else None
        return line.spans("data") if line else []


def timeline(trace: Trace, main: int | None) -> Timeline:
    """Return the phases that the trace's ranges mark."""
    by_thread: dict[int, list[tuple[float, float, Phase]]] = {}
    rows = trace.ranges
    for row in range(len(rows)):
        name = trace.names[rows.name[row]]
        phase = phase_of(name)
        if phase is not None and name != PIPELINE:
            found = (rows.start[row], rows.stop[row], phase)
            by_thread.setdefault(rows.where[row], []).append(found)
    return Timeline({thread: _flat(ranges) for thread, ranges in by_thread.items()}, main)


def _flat(ranges: Sequence[tuple[float, float, Phase]]) -> _Line:
    """Return nested ranges as turns from one phase to the next."""
    line = _Line()
    open_ranges: list[tuple[float, Phase]] = []

    def close_until(time: float) -> None:
        while open_ranges and open_ranges[-1][0] <= time:
            stop, _ = open_ranges.pop()
            line.turn(stop, open_ranges[-1][1] if open_ranges else None)

    for start, stop, phase in sorted(ranges, key=lambda item: (item[0], -item[1])):
        close_until(start)
        line.turn(start, phase)
        open_ranges.append((stop, phase))
    close_until(float("inf"))
    return line


Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the spans without overlaps, in order; those that touch become one."""
    merged: list[Span] = []
    start = stop = 0.0
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if merged and begin <= stop:
            stop = max(stop, end)
            merged[-1] = (start, stop)
            continue
        start, stop = begin, end
        merged.append((start, stop))
    return merged


def length(spans: Iterable[Span]) -> float:
    """Return the sum of the lengths of spans."""
    return sum(stop - start for start, stop in spans)


def together(tracks: Sequence[Sequence[Span]]) -> dict[int, float]:
    """Return how long each combination of tracks lasted; bit i of a key stands for track i.

    The spans of one track must not overlap (see ``union``). Time in no track is left out.
    """
    turns: list[tuple[float, int]] = []
    for index, spans in enumerate(tracks):
        bit = 1 << index
        for start, stop in spans:
            turns.append((start, bit))
            turns.append((stop, bit))
    turns.sort()
    totals: dict[int, float] = {}
    state, before = 0, 0.0
    for time, bit in turns:
        if state and time > before:
            totals[state] = totals.get(state, 0.0) + (time - before)
        state ^= bit
        before = time
    return totals


def with_bits(totals: dict[int, float], wanted: int, without: int = 0) -> float:
    """Return how long all ``wanted`` bits lasted together while none of ``without`` did."""
    return sum(time for key, time in totals.items() if key & wanted == wanted and not key & without)
