"""What commands that train do first: record the runs whose process died."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalebook.running.console import Console


def recover_all(runs: Path, console: Console) -> None:
    """Publish what dead processes left under the runs folder, and say so line by line."""
    from scalebook.project import short
    from scalebook.running import finish_run

    for leftover in finish_run.recover(runs):
        if leftover.problem is not None:
            console.say(
                f"{short(leftover.path)} cannot be recovered and stays as it is: {leftover.problem}"
            )
        elif leftover.record is None:
            console.say(
                f"{short(leftover.path)} belongs to a running process; it is left as it is."
            )
        else:
            record = leftover.record
            console.say(f"Recovered {short(leftover.path)}: {record.status}. {record.reason or ''}")
