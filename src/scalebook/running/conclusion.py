"""Turn what a run left in its directory into its record, however it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from scalebook import scrub, store
from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.record import RunRecord, Status
from scalebook.running import outcome, progress

LAUNCH_FILE = "launch.json"  # command, environment, started_at: written before the start
LOG_LINES = 2000  # enough to look over the tracebacks of many ranks


def now() -> str:
    """Return the time as it stands in records: UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_id(directory: Path) -> str:
    """Return the run that a partial or published directory holds."""
    return directory.name.removeprefix(store.PARTIAL_PREFIX)


def conclude(
    directory: Path,
    *,
    exit_code: int | None = None,
    stop: tuple[Status, str] | None = None,
    host_memory_kills: int = 0,
    finished_at: str | None = None,
) -> RunRecord:
    """Write and return the record of a run that has ended; ``finished_at`` defaults to now."""
    requested = read_object(directory / "config.json")
    steps, unreadable = store.read_steps(directory / "steps.jsonl")
    result = outcome.classify(
        outcome.Evidence(
            exit_code=exit_code,
            steps_done=max((step.step for step in steps), default=0),
            steps_asked=requested.get("steps"),
            log=progress.last_lines(directory / "train.log", LOG_LINES),
            stop=stop,
            host_memory_kills=host_memory_kills,
        )
    )
    launch = read_object(directory / LAUNCH_FILE)
    trainer = read_object(directory / "observed.json")
    observed: dict[str, Any] = trainer.get("observed") or {}
    record = RunRecord(
        run_id=run_id(directory),
        config_hash=hash_of(requested),
        status=result.status,
        reason=_clean(result.reason) if result.reason else None,
        log_tail=scrub.scrub_all(result.log_tail, os.environ),
        exit_code=exit_code,
        requested=requested,
        observed=observed,
        environment=_environment(launch.get("environment"), trainer.get("environment")),
        started_at=launch.get("started_at"),
        finished_at=finished_at or now(),
        command=tuple(launch.get("command", ())),
        notes=(*unreadable, *differences(requested, observed)),
    )
    store.write_record(directory, record)
    (directory / LAUNCH_FILE).unlink(missing_ok=True)
    return record


def differences(requested: Mapping[str, Any], observed: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each setting that ran otherwise than it was asked for."""
    return tuple(
        f"{name}: asked for {value!r}, ran with {observed[name]!r}."
        for name, value in requested.items()
        if observed.get(name) is not None and observed[name] != value
    )


def _environment(launcher: Any, trainer: Any) -> dict[str, Any]:
    """Return what launcher and trainer say of the environment; the trainer's word counts."""
    merged: dict[str, Any] = {**(launcher or {}), **(trainer or {})}
    variables = merged.get("variables")
    if isinstance(variables, dict):
        merged["variables"] = scrub.without_secrets(cast("dict[str, str]", variables))
    return merged


def _clean(reason: str) -> str:
    """Return one line without home directories and secrets."""
    return " ".join(scrub.scrub(reason, os.environ).split())


def write_launch(directory: Path, command: tuple[str, ...], environment: Mapping[str, Any]) -> None:
    """Keep what is known before the start, for whoever concludes the run.

    The command is written with the directory's final name, under which it can be given again.
    """
    final = (part.replace(directory.name, run_id(directory)) for part in command)
    value = {
        "command": list(scrub.scrub_all(final, os.environ)),
        "environment": dict(environment),
        "started_at": now(),
    }
    store.write_json(directory / LAUNCH_FILE, value)


def read_object(path: Path) -> dict[str, Any]:
    """Return a JSON object of a run directory; empty where the file is missing or cut off."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def hash_of(requested: Mapping[str, Any]) -> str | None:
    """Return the configuration's hash, None where the configuration was not left whole."""
    try:
        return RunConfig.from_parameters(requested).config_hash()
    except ConfigError:
        return None
