"""What a run leaves on disk: the schema of record.json and of a line of steps.jsonl."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from scalebook.config import RunConfig
from scalebook.errors import LaunchError

SCHEMA_VERSION = 1

Status = Literal[
    "completed", "out_of_memory", "timeout", "illegal", "failed", "diverged", "interrupted"
]
# inferred: nothing ran; a smaller configuration ran out of memory (inferred_from)
Source = Literal["measured", "ingested", "simulated", "published", "inferred"]
Phase = Literal["startup", "warmup", "measured", "profiled"]


class StepRecord(BaseModel):
    """One optimizer step. ``step`` counts from 1; times are wall seconds of the slowest rank."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: int
    phase: Phase
    step_seconds: float | None  # None where an ingested log does not tell it; ours always do
    tokens: int | None  # over all ranks; None as above
    loss: float | None = None  # None where it was not finite or not printed
    grad_norm: float | None = None
    learning_rate: float | None = None
    allocated_gib: float | None = None  # peak over ranks so far, torch allocator
    reserved_gib: float | None = None
    rank_step_seconds: tuple[float, ...] = ()  # by global rank
    # Mean over ranks: data, forward, ...; what is left of the step is outside of them.
    part_seconds: dict[str, float] = {}
    # Tokens of the busiest ranks' experts over the mean of all: 1 where the router spreads them
    # evenly. None where every rank holds all experts.
    expert_load: float | None = None
    skipped: bool = False  # the optimizer refused the step (non-finite gradient)
    finished_at: str | None = None  # UTC, ISO 8601
    # Of step_seconds: waited before the step for a checkpoint. None: the run saves none.
    checkpoint_seconds: float | None = None
    restart: int = 0  # how often the processes had been started again after one died


_DEFAULTS = {
    name: field.get_default(call_default_factory=True)
    for name, field in RunConfig.model_fields.items()
    if not field.is_required()
}  # of what a user can ask for


class RunRecord(BaseModel):
    """record.json: the whole story of one run, except its steps and its log."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = SCHEMA_VERSION
    run_id: str
    config_hash: str | None
    source: Source = "measured"
    status: Status
    reason: str | None = None  # a sentence for a person; None when completed
    cause: str | None = None  # its kind, of running/causes.py: gpu_memory, collective_timeout, ...
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
        if not self.requested or self.source in ("ingested", "published"):
            return self.requested
        return _DEFAULTS | self.requested

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
        """Return what ran (observed) or else what was asked for; None where neither says."""
        value = self.observed.get(name)
        return self.asked.get(name) if value is None else value

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
