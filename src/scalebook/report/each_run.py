"""What is made of each run's own steps for a page, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from scalebook.errors import ScalebookError
from scalebook.frames import ReportData
from scalebook.store import Run, read_run, run_directories


class OfRun(Protocol):
    """Something that names its run."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        ...


Made = TypeVar("Made", bound=OfRun)


def of_completed(data: ReportData, make: Callable[[Run], Made]) -> tuple[Made, ...]:
    """Return what ``make`` makes of each run that has a throughput."""
    wanted: list[str] = data.completed["run_id"].to_list()
    found: dict[str, Made] = {}
    for directory in run_directories(data.folder):
        try:
            one = make(read_run(directory))
        except (ScalebookError, ArithmeticError, TypeError, ValueError, LookupError):
            continue  # what is odd about the record is said where the runs are read
        found.setdefault(one.run_id, one)
    return tuple(found[run_id] for run_id in wanted if run_id in found)
