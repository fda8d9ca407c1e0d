"""What a trace holds that an anatomy needs, collected event by event into flat arrays.

Read for it: the format that torch's profiler (Kineto) writes. ``ts`` and ``dur`` are microseconds.
``cat`` is ``kernel``, ``gpu_memcpy`` or ``gpu_memset`` on a device; ``*_runtime`` or ``*_driver``
for the calls that launch them, tied together by ``args.correlation``; ``cpu_op`` and
``user_annotation`` on the host. Roctracer's events (AMD) have the same names.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, cast

from scalebook.measure.anatomy.events import Event
from scalebook.measure.anatomy.kinds import PIPELINE, STEP, TORCH_STEP, phase_of
from scalebook.record import number_of

MOST_EVENTS = 4_000_000  # of one sort: some hundred bytes each
MOST_NAMES = 20_000
LONGEST_NAME = 300
OTHER_NAMES = "(other names)"
DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
# Calls with a correlation that launch nothing: half of all, so they are not kept.
_NO_LAUNCH = ("Event", "Synchronize", "StreamWait", "GetDevice", "StreamIsCapturing")


@dataclass(slots=True)
class EventRows:
    """Events of one sort, one column per field. ``where`` is a device and stream, or a thread."""

    start: array[float] = field(default_factory=lambda: array("d"))
    stop: array[float] = field(default_factory=lambda: array("d"))
    where: array[int] = field(default_factory=lambda: array("q"))
    name: array[int] = field(default_factory=lambda: array("q"))
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.start)

    def add(self, start: float, stop: float, where: int, name: int) -> bool:
        """Add a row; False where there are too many already."""
        if len(self.start) >= MOST_EVENTS:
            self.dropped += 1
            return False
        self.start.append(start)
        self.stop.append(stop)
        self.where.append(where)
        self.name.append(name)
        return True


@dataclass(slots=True)
class Trace:
    """The events of one process. Mutable: events are added one by one."""

    names: list[str] = field(default_factory=list[str])
    places: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    kernels: EventRows = field(default_factory=EventRows)  # also copies and fills
    correlations: array[int] = field(
        default_factory=lambda: array("q")
    )  # of each kernel, 0 without one
    collectives: dict[int, int] = field(default_factory=dict[int, int])  # kernel -> torch's name
    launches: EventRows = field(default_factory=EventRows)
    launch_of: dict[int, int] = field(default_factory=dict[int, int])  # correlation -> launch
    ranges: EventRows = field(default_factory=EventRows)  # those that mark a phase or a wait
    steps: EventRows = field(default_factory=EventRows)
    operators: EventRows = field(default_factory=EventRows)  # torch's own, and gloo's work
    invalid: int = 0  # events of a device or a host whose times are no times
    invalid_kernels: int = 0  # of them, on a device
    timed: int = 0  # the others
    _name_numbers: dict[str, int] = field(default_factory=dict[str, int])
    _place_numbers: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def add(self, event: Event) -> None:
        """Take one event of the file; those that say nothing of a step's time are passed over."""
        if event.get("ph") != "X":
            return
        category, name = event.get("cat"), event.get("name")
        if not isinstance(category, str) or not isinstance(name, str):
            return
        start, length = _time(event.get("ts")), _time(event.get("dur"))
        on_device = category in DEVICE_CATEGORIES
        zero = on_device and not start and not length  # no event of a device is both
        if start is None or length is None or length < 0 or zero:
            self.invalid += 1
            self.invalid_kernels += on_device
            return
        self.timed += 1
        stop = start + length
        if on_device:
            self._kernel(event, name, start, stop)
        elif category.endswith(("_runtime", "_driver")):
            self._launch(event, name, start, stop)
        elif category in ("cpu_op", "user_annotation"):
            self._host(event, name, start, stop)

    @property
    def dropped(self) -> int:
        """How many events were left out because there were too many."""
        sorts = (self.kernels, self.launches, self.ranges, self.steps, self.operators)
        return sum(rows.dropped for rows in sorts)

    def _kernel(self, event: Event, name: str, start: float, stop: float) -> None:
        arguments = _arguments(event)
        device = arguments.get("device", event.get("pid"))
        stream = arguments.get("stream", event.get("tid"))
        if self.kernels.add(start, stop, self._place(device, stream), self._name(name)):
            self.correlations.append(_whole(arguments.get("correlation")))
            collective = arguments.get("Collective name")
            if isinstance(collective, str):
                self.collectives[len(self.kernels) - 1] = self._name(collective)

    def _launch(self, event: Event, name: str, start: float, stop: float) -> None:
        correlation = _whole(_arguments(event).get("correlation"))
        if not correlation or any(part in name for part in _NO_LAUNCH):
            return
        number = len(self.launches)
        if self.launches.add(start, stop, self._thread(event), self._name(name)):
            self.launch_of[correlation] = number

    def _host(self, event: Event, name: str, start: float, stop: float) -> None:
        where = self._thread(event)
        if name == STEP or name.startswith(TORCH_STEP):
            self.steps.add(start, stop, where, self._name(name))
        elif phase_of(name) is not None or name == PIPELINE:
            self.ranges.add(start, stop, where, self._name(name))
        elif name.startswith(("aten::", "gloo:", "c10d::", "mkldnn::")):
            self.operators.add(start, stop, where, self._name(name))

    def _name(self, name: str) -> int:
        name = name[:LONGEST_NAME]
        number = self._name_numbers.get(name)
        if number is None:
            if len(self.names) >= MOST_NAMES:
                name = OTHER_NAMES
            number = self._name_numbers.setdefault(name, len(self.names))
            if number == len(self.names):
                self.names.append(name)
        return number

    def _thread(self, event: Event) -> int:
        return self._place(event.get("pid"), event.get("tid"))

    def _place(self, outer: Any, inner: Any) -> int:
        key = (str(outer)[:80], str(inner)[:80])
        number = self._place_numbers.setdefault(key, len(self.places))
        if number == len(self.places):
            self.places.append(key)
        return number


def _time(value: Any) -> float | None:
    time = number_of(value)
    return time if time is not None and abs(time) < 1e18 else None


def _arguments(event: Event) -> Event:
    arguments: object = event.get("args")
    return cast(Event, arguments) if isinstance(arguments, dict) else {}


def _whole(value: Any) -> int:
    """Return a correlation, 0 (which no launch has) where there is none."""
    return value if isinstance(value, int) and 0 < value < 1 << 62 else 0
