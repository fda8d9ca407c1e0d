"""The cheap split of every step: time marks around its parts, read after the step has ended.

On a GPU a mark is an event on the compute stream, which costs the host some microseconds and the
device nothing; the step synchronises at its end anyway, so reading them waits for nothing. On a CPU
it is the clock. Megatron-Core calls ``config.timers`` around its own parts (forward, backward,
sends between stages, reduction of gradients) in every schedule: ``Marks`` stands in for them.

While the profiler runs, the same marks write ranges into its trace.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from scalebook.config import RunConfig
    from scalebook.train.world import World

Item = TypeVar("Item")

# ``schedule`` is what Megatron-Core's schedule does outside of the parts before it.
PARTS = ("data", "forward", "backward", "pipeline", "gradients", "optimizer", "schedule")
PREFIX = "scalebook."  # of the ranges in a trace: see scalebook.measure.anatomy.kinds

# Names that Megatron-Core gives to its timers. All others that end so are waits between stages.
_MEGATRON = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "all-grads-sync": "gradients",
    "conditional-embedder-grads-all-reduce": "gradients",
    "non-tensor-parallel-grads-all-reduce": "gradients",
    "embedding-grads-all-reduce": "gradients",
}
_BETWEEN_STAGES = ("-recv", "-send")

_cuda: Any = torch.cuda
_range: Any = torch.autograd.profiler.record_function


class HostClock:
    """Points in time: taken now, read when the step has ended. A CPU's, one after the other."""

    def now(self) -> float:
        """Return this moment."""
        return time.perf_counter()

    def between(self, start: Any, stop: Any) -> float:
        """Return the seconds between two moments."""
        return float(stop - start)

    def forget(self) -> None:
        """Do nothing."""


class DeviceClock:
    """Moments in the device's compute stream, as events that are used again each step."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._used = 0

    def now(self) -> Any:
        """Return an event that happens when the stream has come this far."""
        if self._used == len(self._events):
            self._events.append(_cuda.Event(enable_timing=True))
        event = self._events[self._used]
        self._used += 1
        event.record()
        return event

    def between(self, start: Any, stop: Any) -> float:
        """Return the seconds between two events that have happened."""
        return float(start.elapsed_time(stop)) / 1e3

    def forget(self) -> None:
        """Let the events be used again."""
        self._used = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """One part of a step, as a context or as a timer of Megatron-Core."""

    marks: Marks
    part: str | None  # None: not wanted

    def start(self, barrier: bool = False) -> None:
        """Begin the part; never waits for other ranks, whatever is asked."""
        self.marks.begin(self.part)

    def stop(self, barrier: bool = False) -> None:
        """End the part."""
        self.marks.end(self.part)

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass(slots=True)
class Marks:
    """The marks of the step at hand. ``clock`` None: no split; ``annotate``: write ranges."""

    clock: HostClock | DeviceClock | None
    on_gpu: bool = False
    annotate: bool = False
    _open: list[tuple[str, Any, Any]] = field(default_factory=list[tuple[str, Any, Any]])
    _done: list[tuple[str, str | None, Any, Any]] = field(
        default_factory=list[tuple[str, str | None, Any, Any]]
    )

    def __call__(self, name: str, log_level: int | None = None) -> Mark:
        """Return the timer of a name that Megatron-Core uses."""
        part = _MEGATRON.get(name)
        if part is None and name.endswith(_BETWEEN_STAGES):
            part = "pipeline"
        return Mark(self, part)

    def part(self, name: str) -> Mark:
        """Return a context for a part of the step."""
        return Mark(self, name)

    def over(self, part: str, items: Iterator[Item]) -> Generator[Item]:
        """Yield items, marking the time that each takes to come."""
        while True:
            with self.part(part):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def begin(self, part: str | None) -> None:
        """Begin a part, inside of the part that is open if any."""
        if part is None or (self.clock is None and not self.annotate) or self._captured():
            return
        span = None
        if self.annotate:
            span = _range(PREFIX + part)
            span.__enter__()
        self._open.append((part, self.clock.now() if self.clock else None, span))

    def end(self, part: str | None) -> None:
        """End a part; one that was not begun is passed over."""
        if not self._open or self._open[-1][0] != part or self._captured():
            return
        begun, start, span = self._open.pop()
        if self.clock is not None and start is not None:
            outer = self._open[-1][0] if self._open else None
            self._done.append((begun, outer, start, self.clock.now()))
        if span is not None:
            span.__exit__(None, None, None)

    def take(self) -> dict[str, float]:
        """Return the seconds of each part since the last call, each without parts inside of it.

        Empty where there is no split. On a GPU everything asked of it must be done.
        """
        if self.clock is None:
            return {}
        seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        for part, outer, start, stop in self._done:
            time_taken = self.clock.between(start, stop)
            seconds[part] += time_taken
            if outer is not None:
                seconds[outer] -= time_taken
        self._done.clear()
        self.clock.forget()
        return seconds

    def _captured(self) -> bool:
        """Return whether a graph is being captured: an event in it would time nothing."""
        return self.on_gpu and bool(_cuda.is_current_stream_capturing())


def marks_for(config: RunConfig, world: World) -> Marks:
    """Return the marks that a configuration asks for."""
    if not config.step_split:
        return Marks(None, world.on_gpu)
    return Marks(DeviceClock() if world.on_gpu else HostClock(), world.on_gpu)


def attach(marks: Marks, transformer: Any, config: RunConfig) -> None:
    """Let Megatron-Core's schedules call the marks, where there is anything to mark."""
    transformer.timers = marks if config.step_split or config.profile_steps else None
