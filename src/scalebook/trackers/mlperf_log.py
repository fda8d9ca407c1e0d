"""MLPerf logging lines, written: settings, the loss of each step, the steady rate, the end.

The form is that of the package mlperf_logging (mllog); the keys of settings are those that
published LLM submissions print. ``scalebook ingest`` reads such lines as the dialect mlperf.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalebook.logs.dialects.mlperf import SIZES
from scalebook.trackers.exported import RunExport
from scalebook.untrusted import appended

# Settings -> keys of published submissions; the first of several is in use today.
_KEYS = {ours: key for key, ours in reversed(SIZES.items())} | {"seed": "seed"}


def write(run: RunExport, place: str) -> None:
    """Add the lines of a run to the end of a file.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f":::MLLOG {json.dumps(event)}\n" for event in _events(run))
    with appended(path) as stream:
        stream.write(text.encode())


def _events(run: RunExport) -> Iterator[dict[str, Any]]:
    """Yield the events of a run in the order of their times."""
    start, end = run.seconds
    sizes = {key: run.parameters.get(name) for name, key in _KEYS.items()}
    world, nodes = run.parameters.get("world_size"), run.parameters.get("nodes")
    if isinstance(world, int) and isinstance(nodes, int) and nodes and world % nodes == 0:
        sizes |= {"number_of_nodes": nodes, "accelerators_per_node": world // nodes}
    model = str(run.parameters.get("model", "unknown"))
    facts = {"submission_benchmark": model, "submission_platform": run.tags.get("accelerator", "")}
    for key, value in {**facts, **sizes}.items():
        if value not in (None, ""):
            yield _event(key, value, start)
    yield _event("run_start", None, start, kind="INTERVAL_START")
    batch = run.parameters.get("global_batch_size")
    for step in run.steps:
        where = {"step_num": step.step}
        if isinstance(batch, int):
            where["samples_count"] = step.step * batch
        if "loss" in step.values:
            yield _event("train_loss", step.values["loss"], step.finished_at_seconds, where)
    rate = _samples_per_second(run)
    if rate is not None:
        yield _event("tracked_stats", {"throughput": rate}, end, {"unit": "samples/s"})
    if run.summary:
        yield _event("tracked_stats", run.summary, end)
    status = "success" if run.tags["status"] == "completed" else "aborted"
    yield _event("run_stop", None, end, {"status": status}, kind="INTERVAL_END")


def _samples_per_second(run: RunExport) -> float | None:
    """Return the steady rate of the whole job, None without one."""
    each, length = run.summary.get("steady_tokens_per_second_per_gpu"), run.parameters
    world, tokens = length.get("world_size"), length.get("sequence_length")
    if each is None or not isinstance(world, int) or not isinstance(tokens, int) or not tokens:
        return None
    return each * world / tokens


def _event(
    key: str, value: object, seconds: float, about: dict[str, Any] | None = None,
    *, kind: str = "POINT_IN_TIME",
) -> dict[str, Any]:  # fmt: skip
    return {
        "namespace": "",
        "time_ms": int(1e3 * seconds),
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": {"file": "scalebook", "lineno": 0, **(about or {})},
    }
