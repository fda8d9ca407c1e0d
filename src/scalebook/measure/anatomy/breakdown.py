"""A trace -> what the time of a step went to.

Our own reduction and not HolisticTraceAnalysis: that needs pandas and plotly in the training
image, reads whole traces into memory, knows neither the phases of a step nor the CPU, and counts
an overlap of several streams by its own rules; the sums here are one sweep over sorted spans.

At each moment of a step exactly one thing counts: compute if any compute kernel runs (divided
evenly where kernels of several phases run at once), else communication if any such kernel runs,
else waiting for data if the host was fetching it, else idle. So the parts add up to the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from scalebook.measure.anatomy import Breakdown, Device, Parts, TopKernel
from scalebook.measure.anatomy.events import EventReader, pieces
from scalebook.measure.anatomy.kinds import (
    PHASES,
    PIPELINE,
    SENDS,
    STEP,
    Phase,
    collective_of,
    kind_of,
    phase_of,
)
from scalebook.measure.anatomy.trace import EventRows, Trace


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
        phase = phase_of(trace.names[rows.name[row]])
        if phase is not None:
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
    totals: dict[int, float] = {}
    state = 0
    for (before, bit), (time, _) in pairwise(sorted(turns)):
        state ^= bit
        if state and time > before:
            totals[state] = totals.get(state, 0.0) + (time - before)
    return totals


def with_bits(totals: dict[int, float], wanted: int, any_of: int = -1, without: int = 0) -> float:
    """Return how long all ``wanted`` bits lasted with any of ``any_of``, none of ``without``."""
    return sum(
        time
        for key, time in totals.items()
        if key & wanted == wanted and key & any_of and not key & without
    )


TOP = 20
_MICROSECOND = 1e-6
_MOST_INVALID = 0.02  # a share of events without a valid time, above which nothing can be said
_MOST_INSIDE = 0.2  # of those within another of their stream: one wrong length covers many
_WINDOW, _COMMUNICATION, _DATA = 1, 2, 4
_PHASE_BITS = tuple(8 << index for index in range(len(PHASES)))
_COMPUTE = sum(_PHASE_BITS)


def reduce_file(path: Path, *, rank: int | None = None, device: Device | None = None) -> Breakdown:
    """Return the breakdown of a trace file; one that ends early has null values and a reason.

    ``device`` is what the program ran on, if known: the trace must hold its events.

    Raises:
        TraceError: the file cannot be read at all.
    """
    reader, trace = EventReader(pieces(path)), Trace()
    for event in reader.events():
        trace.add(event)
    known = reader.distributed.get("rank")
    if rank is None and isinstance(known, int):
        rank = known
    fault = fault_of(reader)
    if fault is None and device == "gpu" and not len(trace.kernels):
        fault = "The profiler saw no kernel: it may not have the right to trace this GPU."
    return reduce_trace(trace, rank=rank, fault=fault)


def fault_of(reader: EventReader) -> str | None:
    """Return why the events of a file are not all there, None where they are."""
    if not reader.complete:
        return "The trace ends early: some of what ran in its steps is missing."
    if reader.broken:
        return f"{reader.broken} events of the trace are not JSON: their time is missing."
    return None


def reduce_trace(trace: Trace, *, rank: int | None = None, fault: str | None = None) -> Breakdown:
    """Return the breakdown of a trace's steps, in seconds of one step."""
    if fault is None and trace.dropped:
        fault = f"The trace holds {trace.dropped:,} events too many. Profile fewer steps."
    if fault is None and len(trace.launches) and not len(trace.kernels):
        fault = "The trace holds launches and no kernel: what the device did is not known."
    fault = fault or _invalid(trace)
    if fault is not None:
        return Breakdown(rank=rank, reason=fault)
    windows, main = steps_of(trace)
    notes: list[str] = []
    if not windows:
        rows = trace.kernels if len(trace.kernels) else trace.operators
        windows = union([(min(rows.start), max(rows.stop))]) if len(rows) else []
        notes.append("The trace marks no steps: its whole length counts as one.")
    if not windows:
        return Breakdown(rank=rank, reason="The trace contains no kernel and no operator.")
    if trace.invalid:
        notes.append(f"{trace.invalid:,} events without a valid time were left out.")
    phases, window = timeline(trace, main), (windows[0][0], windows[-1][1])
    find = device_work if len(trace.kernels) else host_work
    work = find(trace, phases, window)
    if not work.tasks:
        return Breakdown(rank=rank, reason="No kernel and no operator ran in the trace's steps.")
    result = _measured(trace, work, windows, phases.data_spans())
    return result.model_copy(update={"rank": rank, "notes": (*notes, *work.notes)})


def _invalid(trace: Trace) -> str | None:
    """Return why events with wrong times make a breakdown wrong; None where they are few."""
    kernels = trace.invalid_kernels + len(trace.kernels)
    no_time = "events have no valid time (neither start nor length, or text)"
    inside = "device events lie within another of their stream, whose length is wrong"
    for bad, every, share, what in (
        (trace.invalid_kernels, kernels, _MOST_INVALID, f"device {no_time}"),
        (trace.invalid, trace.invalid + trace.timed, _MOST_INVALID, no_time),
        (_inside_others(trace), kernels, max(_MOST_INSIDE, 10 / max(kernels, 1)), inside),
    ):
        if bad > share * every:
            return f"{bad:,} of {every:,} {what}: what ran is not known. Profile again."
    return None


def _inside_others(trace: Trace) -> int:
    """Return how many kernels run within another of their stream; those of one graph may."""
    rows, inside = trace.kernels, 0
    longest: dict[int, int] = {}  # of each stream, the row that ends last so far
    for row in sorted(range(len(rows)), key=lambda row: (rows.start[row], -rows.stop[row])):
        other = longest.setdefault(rows.where[row], row)
        if rows.stop[row] >= rows.stop[other]:
            longest[rows.where[row]] = row
        elif not 0 < trace.correlations[row] == trace.correlations[other]:
            inside += rows.start[row] > rows.start[other]
    return inside


def _measured(
    trace: Trace, work: Work, windows: Sequence[Span], data_waits: Sequence[Span]
) -> Breakdown:
    scale = _MICROSECOND / len(windows)
    origin = windows[0][0]  # small numbers: sums of microseconds since 1970 lose digits
    inside = _moved(windows, origin)
    compute = [_moved(work.compute[phase], origin) for phase in PHASES]
    communication = _moved(
        union(span for spans in work.communication.values() for span in spans), origin
    )
    totals = together([inside, communication, _moved(data_waits, origin), *compute])
    parts = _parts(totals, scale)
    busy = union(span for spans in compute for span in spans)
    exposed = {
        name: scale * with_bits(together([inside, _moved(spans, origin), busy]), 3, without=4)
        for name, spans in sorted(work.communication.items())
    }
    both = with_bits(totals, _WINDOW | _COMMUNICATION, _COMPUTE)
    kinds, top = _named(trace, work, scale, len(windows))
    gaps = scale * _launch_gaps(work.tasks, windows) if work.device == "gpu" else None
    return Breakdown(
        device=work.device,
        steps=len(windows),
        step_seconds=scale * length(inside),
        parts=parts,
        communication_seconds=scale * with_bits(totals, _WINDOW | _COMMUNICATION),
        overlapped_communication_seconds=scale * both,
        exposed_by_collective=exposed,
        kernel_seconds=scale * with_bits(totals, _WINDOW, _COMPUTE),
        launch_gap_seconds=gaps,
        unmarked_seconds=scale * with_bits(together([inside, _moved(work.unmarked, origin)]), 3),
        kinds=kinds,
        top_kernels=top,
        kernels_per_step=len(work.tasks) / len(windows),
        uncorrelated_kernels=work.uncorrelated,
        each_step_seconds=tuple((stop - start) * _MICROSECOND for start, stop in windows),
    )


def _moved(spans: Iterable[Span], origin: float) -> list[Span]:
    return [(start - origin, stop - origin) for start, stop in spans]


def _parts(totals: dict[int, float], scale: float) -> Parts:
    """Return the parts of a step from how long each combination lasted."""
    phases: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
    exposed = waiting = idle = 0.0
    for key, time in totals.items():
        if not key & _WINDOW:
            continue
        active: list[Phase] = [
            phase for phase, bit in zip(PHASES, _PHASE_BITS, strict=True) if key & bit
        ]
        for phase in active:
            phases[phase] += time / len(active)
        if active:
            continue
        if key & _COMMUNICATION:
            exposed += time
        elif key & _DATA:
            waiting += time
        else:
            idle += time
    return Parts(
        forward_seconds=scale * phases["forward"],
        backward_seconds=scale * phases["backward"],
        optimizer_seconds=scale * phases["optimizer"],
        exposed_communication_seconds=scale * exposed,
        data_seconds=scale * (phases["data"] + waiting),
        idle_seconds=scale * idle,
    )


def _launch_gaps(tasks: Sequence[Task], windows: Sequence[Span]) -> float:
    """Return microseconds in which the device was idle because nothing was asked of it.

    A gap counts where the kernel that ends it was launched after the gap had begun; a gap before
    a kernel that was waiting already is the device's own. After a step's last kernel the device
    waits for the host.
    """
    total, place = 0.0, 0
    ordered = sorted(tasks, key=lambda task: task.start)
    for start, stop in windows:
        free = start  # from when on the device is free
        while place < len(ordered) and ordered[place].start < stop:
            task = ordered[place]
            place += 1
            late = task.launched is not None and task.launched >= free
            if task.start > free and late:
                total += task.start - free
            free = max(free, task.stop)
        total += max(stop - free, 0.0)
    return total


def _named(
    trace: Trace, work: Work, scale: float, steps: int
) -> tuple[dict[str, float], tuple[TopKernel, ...]]:
    """Return seconds of a step by kind of work, and the names that take most of it."""
    lengths = ((task, task.stop - task.start) for task in work.tasks)
    seconds: dict[int, float] = {}
    calls: Counter[int] = Counter()
    for task, time in self_times(work.tasks) if work.device == "cpu" else lengths:
        seconds[task.name] = seconds.get(task.name, 0.0) + scale * time
        calls[task.name] += 1
    every = [
        TopKernel(
            name=trace.names[name],
            seconds=time,
            calls=calls[name] / steps,
            kind=kind_of(trace.names[name]),
        )
        for name, time in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    kinds: dict[str, float] = {}
    for one in every:
        kinds[one.kind] = kinds.get(one.kind, 0.0) + one.seconds
    return dict(sorted(kinds.items(), key=lambda item: -item[1])), tuple(every[:TOP])


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel, a copy or an operator; ``launched`` is when the host asked for it, if known."""

    start: float
    stop: float
    name: int
    stream: int
    launched: float | None
    phase: Phase | None
    collective: str = ""  # as torch names it, if it does


@dataclass(slots=True)
class Work:
    """Everything that ran inside the steps. Spans of one list do not overlap."""

    device: Device
    tasks: list[Task]
    compute: dict[Phase, list[Span]]
    unmarked: list[Span]  # compute that no range marks; it is in ``compute["forward"]`` too
    communication: dict[str, list[Span]]  # by collective
    uncorrelated: int = 0
    notes: list[str] = field(default_factory=list[str])


def steps_of(trace: Trace) -> tuple[list[Span], int | None]:
    """Return the steps in order and the thread that ran them (by its number).

    Where the trainer marked its steps, its marks count; else those of torch's profiler schedule.
    """
    rows = trace.steps
    own = any(trace.names[name] == STEP for name in rows.name)
    chosen = [row for row in range(len(rows)) if (trace.names[rows.name[row]] == STEP) == own]
    if not chosen:
        return [], None
    main = rows.where[min(chosen, key=lambda row: rows.start[row])]
    spans = sorted((rows.start[row], rows.stop[row]) for row in chosen if rows.where[row] == main)
    found: list[Span] = []
    for start, stop in spans:
        begin = max(start, found[-1][1]) if found else start
        if stop > begin:
            found.append((begin, stop))
    return found, main


def device_work(trace: Trace, phases: Timeline, window: Span) -> Work:
    """Return what the busiest device of a trace did between two moments."""
    rows = trace.kernels
    inside = list(_within(rows, window))
    devices = Counter(trace.places[rows.where[row]][0] for row in inside)
    device = devices.most_common(1)[0][0] if devices else ""
    chosen = [row for row in inside if trace.places[rows.where[row]][0] == device]
    chosen.sort(key=lambda row: rows.start[row])
    tasks: list[Task] = []
    last: dict[int, Phase | None] = {}
    uncorrelated = 0
    for row in chosen:
        stream = rows.where[row]
        number = trace.launch_of.get(trace.correlations[row])
        if number is None:
            uncorrelated += 1
            launched, phase = None, last.get(stream)
        else:
            launched = trace.launches.start[number]
            phase = phases.phase(trace.launches.where[number], launched)
            last[stream] = phase
        task = _task(rows, row, launched, phase)
        named = trace.collectives.get(row)
        tasks.append(task if named is None else replace(task, collective=trace.names[named]))
    work = _sorted_out(trace, "gpu", tasks)
    work.uncorrelated = uncorrelated
    if len(devices) > 1:
        work.notes.append(f"The trace holds {len(devices)} devices; this is device {device}.")
    return work


def host_work(trace: Trace, phases: Timeline, window: Span) -> Work:
    """Return what ran on the host between two moments: operators, and gloo's work and waits."""
    rows = trace.operators
    tasks = [
        _task(rows, row, rows.start[row], phases.phase(rows.where[row], rows.start[row]))
        for row in _within(rows, window)
    ]
    work = _sorted_out(trace, "cpu", tasks)
    waits = [
        (trace.ranges.start[row], trace.ranges.stop[row])
        for row in _within(trace.ranges, window)
        if trace.names[trace.ranges.name[row]] == PIPELINE
    ]
    if waits:
        known = work.communication.get(SENDS, [])
        work.communication[SENDS] = union([*known, *waits])
    return work


def self_times(tasks: Sequence[Task]) -> Iterator[tuple[Task, float]]:
    """Yield each task and its time without the tasks nested in it (same stream or thread)."""
    open_tasks: dict[int, list[tuple[Task, list[float]]]] = {}
    for task in sorted(tasks, key=lambda task: (task.start, -task.stop)):
        stack = open_tasks.setdefault(task.stream, [])
        while stack and stack[-1][0].stop <= task.start:
            done, nested = stack.pop()
            yield done, max(done.stop - done.start - sum(nested), 0.0)
        if stack:
            stack[-1][1].append(min(task.stop, stack[-1][0].stop) - task.start)
        stack.append((task, []))
    for stack in open_tasks.values():
        for done, nested in stack:
            yield done, max(done.stop - done.start - sum(nested), 0.0)


def _within(rows: EventRows, window: Span) -> Iterator[int]:
    low, high = window
    return (row for row in range(len(rows)) if rows.start[row] < high and rows.stop[row] > low)


def _task(rows: EventRows, row: int, launched: float | None, phase: Phase | None) -> Task:
    return Task(rows.start[row], rows.stop[row], rows.name[row], rows.where[row], launched, phase)


def _sorted_out(trace: Trace, device: Device, tasks: list[Task]) -> Work:
    compute: dict[Phase, list[Span]] = {phase: [] for phase in PHASES}
    communication: dict[str, list[Span]] = {}
    unmarked: list[Span] = []
    for task in tasks:
        name, span = trace.names[task.name], (task.start, task.stop)
        if kind_of(name) == "communication":
            collective = collective_of(name, task.collective)
            communication.setdefault(collective, []).append(span)
            continue
        compute[task.phase or "forward"].append(span)
        if task.phase is None:
            unmarked.append(span)
    return Work(
        device,
        tasks,
        {phase: union(spans) for phase, spans in compute.items()},
        union(unmarked),
        {name: union(spans) for name, spans in communication.items()},
    )
