"""The cool-down between two runs: a number of seconds, or until every GPU is cool enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from scalebook.plan import Plan
from scalebook.plan.schedule import CoolDown
from scalebook.running.devices import telemetry

LONGEST_SECONDS = 900.0  # a room may be warmer than what was asked for
READ_SECONDS = 2.0  # between two readings of the temperature: each starts a tool
POLL_SECONDS = 0.2
NO_TEMPERATURE = (
    "No temperature can be read here (nvidia-smi and amd-smi report none): the run did not wait. "
    "Give seconds instead of a temperature, such as --cool-down 60s."
)

Thermometer = Callable[[], float | None]
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Waited:
    """What a cool-down was: ``celsius`` of the hottest GPU at its end, None where unknown."""

    asked: str
    seconds: float
    celsius: float | None
    note: str | None = None  # what a reader should know: the wait was none, or ended too early

    def value(self) -> dict[str, Any]:
        """Return the wait as records keep it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The order of a plan's runs, as every record of them keeps it."""

    plan: str = ""
    order: str = "planned"
    seed: int | None = None
    runs: int = 0  # of the whole plan, also those that are done
    repeats: int | None = None  # None: as the runs say themselves
    cool_down: CoolDown | None = None
    kind: str = ""
    question: str = ""

    @classmethod
    def of(cls, plan: Plan) -> Scheduled:
        """Return the order of a plan."""
        times = plan.schedule
        runs = len(plan.runs)
        order = (times.order, times.seed, runs, times.repeats, times.cool_down)
        return cls(plan.name, *order, plan.kind, plan.question)

    def place(self, number: int, waited: Waited | None) -> dict[str, Any]:
        """Return what the record of the run at a place of the order keeps; empty without a plan."""
        if not self.plan:
            return {}
        notes = [f"Runs were in a random order within each repeat, seed {self.seed}."]
        notes = notes if self.order == "random" else []
        asked = {"kind": self.kind, "question": self.question}
        return {
            "plan": self.plan,
            **{name: text for name, text in asked.items() if text},
            "order": self.order,
            "seed": self.seed,
            "place": number,
            "of": self.runs,
            "repeats": self.repeats,
            "cool_down": waited.value() if waited else None,
            "notes": notes + ([waited.note] if waited and waited.note else []),
        }


def wait(
    cool_down: CoolDown,
    ended: Callable[[], bool],
    show: Show = lambda _: None,
    temperature: Thermometer = telemetry.temperature_celsius,
) -> Waited:
    """Wait as requested and return what was waited for; ``ended`` cuts the wait short."""
    start = time.monotonic()
    if cool_down.seconds is not None:
        while not ended() and (left := start + cool_down.seconds - time.monotonic()) > 0:
            show(f"cooling down: {left:.0f} s left")
            time.sleep(min(POLL_SECONDS, left))
        return Waited(str(cool_down), _since(start), temperature())
    return _until_cold(cool_down, ended, show, temperature)


def _until_cold(
    cool_down: CoolDown, ended: Callable[[], bool], show: Show, temperature: Thermometer
) -> Waited:
    start, goal = time.monotonic(), cool_down.celsius or 0.0
    while True:
        celsius = temperature()
        if celsius is None:
            return Waited(str(cool_down), _since(start), None, NO_TEMPERATURE)
        waited = _since(start)
        if celsius <= goal or ended():
            return Waited(str(cool_down), waited, celsius)
        if waited > LONGEST_SECONDS:
            note = f"Still {celsius:g} °C after {waited:.0f} s: the run started above {goal:g} °C."
            return Waited(str(cool_down), waited, celsius, note)
        show(f"cooling down: {celsius:g} °C, until {goal:g} °C")
        pause = time.monotonic() + READ_SECONDS
        while not ended() and time.monotonic() < pause:
            time.sleep(POLL_SECONDS)


def _since(start: float) -> float:
    return round(time.monotonic() - start, 1)
