"""What a record says of a run whose processes torchrun had to start again."""

from __future__ import annotations

import itertools
from pathlib import Path

from scalebook import store


def notes(directory: Path) -> tuple[str, ...]:
    """Return a sentence for each time that the processes were started again and made a step."""
    lines, _ = store.read_step_lines(directory / "steps.jsonl")
    said: list[str] = []
    for before, after in itertools.pairwise(lines):
        if after.restart <= before.restart:
            continue
        again = max(before.step - after.step + 1, 0)
        said.append(
            f"A process died after step {before.step} and all were started again: "
            f"{again} {'step was' if again == 1 else 'steps were'} done twice."
        )
    return tuple(said)
