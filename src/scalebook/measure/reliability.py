"""What a run records about its checkpoints, its restarts and a drill: schemas and readers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scalebook import untrusted

CHECKPOINTS_FILE = "checkpoints.jsonl"
CHECKPOINTS = "checkpoints"  # the folder that holds them, in the run's directory
UNFINISHED = ".saving-"  # prefix of one that is being saved; after it stands the step
DRILL_FILE = "drill.json"


class CheckpointRecord(BaseModel):
    """One line of checkpoints.jsonl: a checkpoint that was saved whole, or loaded.

    ``seconds`` is the wall time from begin to end: of a save until the checkpoint would survive a
    kill. Training waited for ``blocking_seconds`` of it. The end of an asynchronous save is
    noticed between two steps, so its ``seconds`` are rounded up to that moment.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["save", "load"]
    step: int  # steps done, counted from 1
    seconds: float
    blocking_seconds: float
    size_bytes: int
    asynchronous: bool = False
    restart: int = 0  # how often the processes had been started again
    started_at: str  # UTC, ISO 8601
    finished_at: str

    @property
    def gib_per_second(self) -> float | None:
        """The rate over the whole save or load in GiB/s; None where no time passed."""
        return self.size_bytes / self.seconds / 2**30 if self.seconds > 0 else None


class DrillRecord(BaseModel):
    """drill.json: what happened after a rank was killed. Times are wall seconds.

    From the kill on: ``detection_seconds`` until torchrun saw that the rank was gone,
    ``start_seconds`` until new processes existed, ``build_seconds`` until they had met and built
    the model, ``load_seconds`` until the checkpoint was loaded, ``step_seconds`` until a step was
    finished. A part is None where nothing told when it ended; ``notes`` say why.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    kill_rank: int
    kill_during: Literal["step", "save"]
    killed_at: str  # UTC, ISO 8601
    last_step: int  # the last one finished before the kill
    resumed_step: int | None = None  # of the checkpoint that was loaded; None: none was
    steps_lost: int | None = None  # finished before the kill and done again
    detection_seconds: float | None = None
    start_seconds: float | None = None
    build_seconds: float | None = None
    load_seconds: float | None = None
    step_seconds: float | None = None
    next_step_seconds: float | None = None  # kill to the next finished step
    regained_seconds: float | None = None  # kill to the first step that had not been done before
    reference_run: str | None = None  # the same configuration, not interrupted
    compared_steps: int = 0  # losses compared with the reference and between steps done twice
    largest_loss_difference: float | None = None
    identical: bool | None = None  # every compared loss is the same number
    passed: bool = False
    notes: tuple[str, ...] = ()


def read_checkpoints(directory: Path) -> tuple[tuple[CheckpointRecord, ...], tuple[str, ...]]:
    """Return the readable lines of a run's checkpoints.jsonl and a sentence for each other."""
    path = directory / CHECKPOINTS_FILE
    found: list[CheckpointRecord] = []
    problems: list[str] = []
    try:
        for number, line in enumerate(untrusted.lines(path), start=1):
            try:
                found.append(CheckpointRecord.model_validate_json(line))
            except ValidationError:
                problems.append(f"{path.name} line {number} is not a checkpoint record")
    except FileNotFoundError:
        pass
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    return tuple(found), tuple(problems)


def read_drill(directory: Path) -> DrillRecord | None:
    """Return what a drill measured in a run's directory; None where it was none, or is broken."""
    try:
        return DrillRecord.model_validate_json(untrusted.read_bytes(directory / DRILL_FILE))
    except (OSError, ValidationError):
        return None
