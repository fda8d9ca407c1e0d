"""What ends a plan before its last run: a signal, or that its time is used up."""

from __future__ import annotations

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from scalebook.running.outcome import signal_name


@dataclass(slots=True)
class Stop:
    """Whether the plan must end: by a signal, or because its time is used up."""

    deadline: float | None = None
    signals: list[int] = field(default_factory=lambda: [])

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal; that the terminal was closed is told more than once and counts once."""
        if number != signal.SIGHUP or number not in self.signals:
            self.signals.append(number)

    def sentence(self, extra_seconds: float = 0.0) -> str | None:
        """Return why a run must end now, None while it may go on.

        ``extra_seconds`` are granted beyond the budget, not against a signal.
        """
        if self.signals:
            return f"'scalebook run' was ended by {signal_name(self.signals[0])}"
        if self.deadline is not None and time.monotonic() > self.deadline + extra_seconds:
            return "The time budget of the plan was used up"
        return None

    @property
    def exit_code(self) -> int | None:
        """128 + the first signal, None where none came."""
        return 128 + self.signals[0] if self.signals else None


@contextmanager
def stop_on_signals(budget_seconds: float | None) -> Generator[Stop]:
    """Yield what SIGINT, SIGTERM and SIGHUP set meanwhile; the handlers from before come back.

    SIGHUP (the terminal was closed) stays ignored where it is: under nohup.
    """
    deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
    stop = Stop(deadline)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
