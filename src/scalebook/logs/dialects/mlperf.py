"""MLPerf logging: ``:::MLLOG`` events; throughput is samples/s of the job, over blocks of steps."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from scalebook.logs.causes import Ending
from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import names

_EVENT = re.compile(r":::MLLOG\s*(\{.*)")
SIZES = names("mlperf")
_FACTS = (
    "submission_benchmark",
    "submission_platform",
    "submission_org",
    "seed",
    "target_accuracy",
)


class MLPerf(LineDialect):
    """No record a step: settings, throughput blocks, and whether the run counted."""

    name = "mlperf"
    markers = (":::MLLOG",)
    signature = re.compile(r":::MLLOG\s*\{")

    def __init__(self) -> None:
        super().__init__()
        self._throughput: list[float] = []

    def line(self, line: str) -> bool:
        """Take an event; one that is cut off is counted."""
        found = _EVENT.search(line) if ":::MLLOG" in line else None
        if found is None:
            return False
        try:
            event, _ = json.JSONDecoder().raw_decode(found[1])
        except (ValueError, RecursionError):
            self.out.job.counts.broken_records += 1
            return True
        if isinstance(event, dict):
            self._event(cast(dict[str, Any], event))
        return True

    def _event(self, event: dict[str, Any]) -> None:
        key, value, details = event.get("key"), event.get("value"), self.out.job.details
        if isinstance(key, str) and key in SIZES and isinstance(value, int) and value > 0:
            self.out.tell(SIZES[key], value)
        elif key in _FACTS and isinstance(value, str | int | float):
            details[str(key)] = value
        elif key == "tracked_stats" and isinstance(value, dict):
            rate = cast(dict[str, Any], value).get("throughput")
            if isinstance(rate, int | float) and 0 < rate < 1e15:
                self._throughput.append(float(rate))
        elif key in ("run_start", "run_stop") and isinstance(event.get("time_ms"), int):
            details[f"{key}_ms"] = event["time_ms"]
        if key == "run_stop":
            self._stop(event.get("metadata"))

    def _stop(self, metadata: object) -> None:
        told = cast(dict[str, Any], metadata).get("status") if isinstance(metadata, dict) else None
        if told == "success":
            self.out.end(Ending("completed", "run_stop: success"))
        else:
            self.out.end(
                Ending("failed", f"run_stop with status {str(told)[:40]}: no valid result")
            )

    def finish(self) -> None:
        """Keep the throughput of the last block, which covers the whole run if it completed."""
        if self._throughput:
            self.out.job.rates["samples_per_second"] = self._throughput[-1]
        start, stop = (self.out.job.details.get(f"run_{end}_ms") for end in ("start", "stop"))
        if isinstance(start, int) and isinstance(stop, int) and stop > start:
            self.out.job.details["time_to_train_seconds"] = (stop - start) / 1e3
