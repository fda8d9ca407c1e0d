"""What a run leaves on disk: the schema of record.json and of a line of steps.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from scalebook.config import DEFAULTS, RunConfig
from scalebook.errors import LaunchError
from scalebook.settings import is_on

SCHEMA_VERSION = 1

Status = Literal[
    "completed", "out_of_memory", "timeout", "illegal", "failed", "diverged", "interrupted"
]
# inferred: nothing ran; a smaller configuration ran out of memory (inferred_from)
Source = Literal["measured", "ingested", "simulated", "published", "inferred"]
# stalled: of an ingested log, held up by a profiler, a checkpoint, an evaluation or a compilation
Phase = Literal["startup", "warmup", "measured", "profiled", "stalled"]
PHASES: tuple[Phase, ...] = get_args(Phase)

LARGEST = 2**53  # no size, count or time of a run is larger; whole numbers to here are exact floats
_OVERFLOWS = 1e300  # sums and products of such may be no number


_NO_NUMBER = frozenset((str, bool, type(None)))  # most of a record
_NUMBERS = frozenset((int, float))


def finite(value: Any) -> Any:
    """Return a value in which each number that no sum can hold is None, to any depth."""
    if type(value) in _NO_NUMBER:
        return value
    if isinstance(value, (float, int)):
        return value if abs(value) < _OVERFLOWS else None  # false for NaN
    if type(value) is dict or isinstance(value, Mapping):  # the first takes a tenth of the time
        pairs = cast("Mapping[str, Any]", value).items()
        return {
            key: item
            if type(item) in _NO_NUMBER
            or (type(item) in _NUMBERS and -_OVERFLOWS < item < _OVERFLOWS)
            else finite(item)
            for key, item in pairs
        }
    if isinstance(value, list | tuple):
        items = [finite(item) for item in cast("Sequence[Any]", value)]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def object_of(value: Any) -> dict[str, Any]:
    """Return a value that should be an object; empty where it is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def text_of(value: Any) -> str | None:
    """Return a value that should be a text; None where it is empty or something else."""
    return value if isinstance(value, str) and value else None


def number_of(value: Any) -> float | None:
    """Return a value that should be a number; None for anything else, and where no sum holds it."""
    plain = type(value) is float or type(value) is int  # the fastest test; true is no number
    return float(value) if plain and abs(value) < _OVERFLOWS else None  # false for NaN


def seconds_between(begin: str | None, end: str | None) -> float | None:
    """Return the seconds from one time (ISO 8601) to another.

    None where one is no time, or where the clock was set back meanwhile.
    """
    try:
        passed = datetime.fromisoformat(end or "") - datetime.fromisoformat(begin or "")
    except (ValueError, TypeError):  # TypeError: only one of them names a time zone
        return None
    return passed.total_seconds() if passed.total_seconds() >= 0 else None


Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Figure = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
# What training computed: a value that is not finite is one that it may come to.
Learnt = Annotated[float | None, BeforeValidator(finite)]


class StepRecord(BaseModel):
    """One optimizer step. ``step`` counts from 1; times are wall seconds of the slowest rank."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    step: Whole
    phase: Phase
    step_seconds: Figure | None  # None where an ingested log does not tell it; ours always do
    tokens: Whole | None  # over all ranks; None as above
    # Of one GPU, where a log from elsewhere tells only that: ``tokens`` is None there.
    tokens_per_gpu: Whole | None = None
    loss: Learnt = None  # None where it was not finite or not printed
    grad_norm: Learnt = None
    learning_rate: Learnt = None
    allocated_gib: Figure | None = None  # peak over ranks so far, torch allocator
    reserved_gib: Figure | None = None
    rank_step_seconds: tuple[Figure, ...] = ()  # by global rank
    # Mean over ranks: data, forward, ...; what is left of the step is outside of them.
    part_seconds: dict[str, Figure] = {}
    # Tokens of the busiest ranks' experts over the mean of all: 1 where the router spreads them
    # evenly. None where every rank holds all experts.
    expert_load: Figure | None = None
    skipped: bool = False  # the optimizer refused the step (non-finite gradient)
    finished_at: str | None = None  # UTC, ISO 8601
    # Of step_seconds: waited before the step for a checkpoint. None: the run saves none.
    checkpoint_seconds: Figure | None = None
    restart: Whole = 0  # how often the processes had been started again after one died


def _is_text(annotation: Any) -> bool:
    """Return whether a field holds text: any, or one of several."""
    return annotation is str or all(isinstance(one, str) for one in get_args(annotation) or (0,))


_TEXTS = {name for name, field in RunConfig.model_fields.items() if _is_text(field.annotation)}
_OF_TEXT = (str, bool, type(None))  # an option may be read back as true or false


class RunRecord(BaseModel):
    """record.json: the whole story of one run, except its steps and its log."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = SCHEMA_VERSION
    run_id: str
    config_hash: str | None
    source: Source = "measured"
    status: Status
    reason: str | None = None  # a sentence; of a completed run, what failed after the last step
    cause: str | None = None  # its kind, of logs/causes.py: gpu_memory, collective_timeout, ...
    inferred_from: str | None = None  # the run that an inferred record follows from
    log_tail: tuple[str, ...] = ()
    exit_code: int | None = None
    requested: dict[str, Any] = {}  # RunConfig fields, as asked for
    observed: dict[str, Any] = {}  # the same names, read back inside the training process
    environment: dict[str, Any] = {}  # accelerator, driver, torch, megatron_core, nccl, ...
    started_at: str | None = None  # UTC, ISO 8601
    finished_at: str | None = None
    command: tuple[str, ...] = ()
    schedule: dict[str, Any] = {}  # place in its plan's order, seed, cool-down before it
    differences: tuple[dict[str, Any], ...] | None = None  # name, asked, ran; None: not compared
    notes: tuple[str, ...] = ()  # sentences for the reader that are no failure
    window: tuple[Whole, Whole] | None = None  # first and last step that a reader chose to average

    @field_validator("environment", "schedule", "differences")
    @classmethod
    def _without_infinities(cls, value: Any) -> Any:
        return finite(value)

    @field_validator("requested", "observed")
    @classmethod
    def _without_wrong_kinds(cls, value: dict[str, Any]) -> dict[str, Any]:
        known = finite(value)
        wrong = [name for name in _TEXTS if not isinstance(known.get(name), _OF_TEXT)]
        return known | dict.fromkeys(wrong) if wrong else known

    @property
    def averaged(self) -> bool:
        """Whether rates over the steps count: the run completed, or its log just stops.

        A log from elsewhere is often an excerpt, which does not say how its run ended.
        """
        excerpt = self.source == "ingested" and self.status == "interrupted"
        return excerpt or self.status == "completed"

    @property
    def asked(self) -> dict[str, Any]:
        """Settings by name as they were asked for.

        One that did not exist when the run was made stood at its default. To a log from elsewhere
        nothing is added: it tells what it tells.
        """
        return {**DEFAULTS, **self.requested} if self._has_defaults else self.requested

    @property
    def _has_defaults(self) -> bool:
        return bool(self.requested) and self.source not in ("ingested", "published")

    @property
    def in_force(self) -> dict[str, Any]:
        """Settings by name as they were asked for, as they ran where that was left open."""
        return {
            name: self.observed[name]
            if value in (None, "auto") and self.observed.get(name) is not None
            else value
            for name, value in self.asked.items()
        }

    def setting(self, name: str) -> Any:
        """Return what ran (observed) or else what was requested; None where neither says."""
        value = self.observed.get(name)
        if value is not None:
            return value
        if name in self.requested or not self._has_defaults:
            return self.requested.get(name)
        return DEFAULTS.get(name)

    @property
    def layer_spec(self) -> Any:
        """Whose layers ran: as the trainer said, else torch's where nothing else was there."""
        ran = self.observed.get("layer_spec")
        if ran is None and self.environment.get("transformer_engine", "unknown") is None:
            return "torch"
        return ran if ran is not None else self.requested.get("layer_spec")

    def is_on(self, name: str) -> bool | None:
        """Return whether a switch was on as it ran; None where that is not known.

        Reads every vocabulary that records hold: "on" and "off", true and false.
        """
        return is_on(self.setting(name))

    def summary(self) -> str:
        """Return the run in a few lines of text: what, how it ended, and the log's end if badly."""
        names = ("model", "world_size", "tensor_parallel_size", "pipeline_parallel_size")
        sizes = ", ".join(f"{name}={self.setting(name)}" for name in names)
        lines = [f"run {self.run_id}: {self.status}", f"  {sizes}"]
        lines += [f"  {self.reason}"] if self.reason else []
        return "\n".join(lines + [f"  | {line}" for line in self.log_tail])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the summary where a notebook displays the record."""
        printer.text("..." if cycle else self.summary())

    def require_completed(self) -> None:
        """Do nothing for a completed run, so that a notebook of any other ends in an error.

        Raises:
            LaunchError: the run did not complete.
        """
        if self.status != "completed":
            raise LaunchError(f"Run {self.run_id}: {self.status}. {self.reason}")
