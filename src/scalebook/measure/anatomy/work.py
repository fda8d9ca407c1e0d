"""What ran when: a trace's kernels (or, on a CPU, its operators) as spans by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scalebook.measure.anatomy.kinds import PHASES, PIPELINE, STEP, Phase, collective_of, kind_of
from scalebook.measure.anatomy.spans import Span, union
from scalebook.measure.anatomy.timeline import Timeline
from scalebook.measure.anatomy.trace import EventRows, Trace


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel, a copy or an operator; ``launched`` is when the host asked for it, if known."""

    start: float
    stop: float
    name: int
    stream: int
    launched: float | None
    phase: Phase | None


@dataclass(slots=True)
class Work:
    """Everything that ran inside the steps. Spans of one list do not overlap."""

    device: str
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
        tasks.append(_task(rows, row, launched, phase))
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
        known = work.communication.get("send_receive", [])
        work.communication["send_receive"] = union([*known, *waits])
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


def _sorted_out(trace: Trace, device: str, tasks: list[Task]) -> Work:
    compute: dict[Phase, list[Span]] = {phase: [] for phase in PHASES}
    communication: dict[str, list[Span]] = {}
    unmarked: list[Span] = []
    for task in tasks:
        name, span = trace.names[task.name], (task.start, task.stop)
        if kind_of(name) == "communication":
            communication.setdefault(collective_of(name), []).append(span)
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
