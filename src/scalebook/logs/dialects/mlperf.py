"""MLPerf logging: ``:::MLLOG`` events; throughput is samples/s of the job, over blocks of steps."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from scalebook.facts import catalog
from scalebook.logs.causes import Ending
from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, names
from scalebook.logs.pairs import seconds_from

_EVENT = re.compile(r":::MLLOG\s*(\{.*)")
SIZES = names("mlperf")
_STATS, _MODELS = names("mlperf-stats"), names("mlperf-models")
_FACTS = ("submission_benchmark", "submission_platform")


class MLPerf(LineDialect):
    """Losses and step times by the samples so far, throughput blocks, whether the run counted.

    Samples over the batch are the steps; a time that is missing is the difference of two events.
    """

    name = "mlperf"
    markers = (":::MLLOG",)
    signature = re.compile(r":::MLLOG\s*\{")

    def __init__(self) -> None:
        super().__init__()
        self._throughput: list[float] = []
        self._rows: dict[int, dict[str, float]] = {}  # by samples
        self._fixed = True  # whether every sample has the length that is stated

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
            self._submission(str(key), str(value))
        elif key in ("tracked_stats", "train_loss"):
            stats = cast(dict[str, Any], value) if isinstance(value, dict) else {str(key): value}
            rate = stats.get("throughput")
            if isinstance(rate, int | float) and 0 < rate < 1e15:
                self._throughput.append(float(rate))
            if "global_valid_toks" in stats:  # rollouts: their length is a limit
                self._fixed = False
            self._record(event, {_STATS[name]: stats[name] for name in stats if name in _STATS})
        if key == "run_stop":
            self._stop(event.get("metadata"))

    def _submission(self, key: str, value: str) -> None:
        """Take the model from the benchmark and the device from the platform."""
        if key == "submission_benchmark" and value in _MODELS:
            self.out.tell("model", _MODELS[value])
        if key == "submission_benchmark" and value.endswith("_lora"):
            self.out.tell("trained", "lora")
        if key == "submission_platform":
            known = catalog.accelerators()
            start, end = r"(?i)(?:^|[^a-z]|\dx)", r"(?![a-z\d])"
            found = [one for one in known if re.search(start + re.escape(one.name) + end, value)]
            if len(found) == 1:
                self.out.job.details.setdefault("device", found[0].device_names[0])

    def _record(self, event: dict[str, Any], stats: dict[str, Any]) -> None:
        """Add figures to the record of the samples that an event names."""
        metadata = event.get("metadata")
        told = cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {}
        stats |= {"learning_rate": told.get("lr")}
        row = {name: float(one) for name, one in stats.items() if isinstance(one, int | float)}
        samples, time = told.get("samples_count"), event.get("time_ms")
        length = self.out.job.settings.get("sequence_length")
        if "step" in told and self._of_gpt3() and isinstance(length, int):  # counts tokens
            samples = told["step"] / length if isinstance(told["step"], int) else None
        if row and isinstance(samples, int | float) and 0 <= samples < 1e15:
            latest = max(self._rows, default=0)
            if samples >= latest:
                row["clock"] = time / 1e3 if isinstance(time, int) else MISSING
                self._rows.setdefault(int(samples), row).update(row)
            elif "seconds" in row:  # of a block, with the number of its samples
                self._rows[latest].setdefault("seconds", row["seconds"])

    def _stop(self, metadata: object) -> None:
        told = cast(dict[str, Any], metadata).get("status") if isinstance(metadata, dict) else None
        bad = Ending("failed", f"run_stop with status {str(told)[:40]}: no valid result")
        self.out.end(Ending("completed", "run_stop: success") if told == "success" else bad)

    def _of_gpt3(self) -> bool:
        return self.out.job.details.get("submission_benchmark") == "gpt3"

    def finish(self) -> None:
        """Keep the throughput of the last block, which covers the whole run if it completed."""
        if not self._fixed:
            self.out.job.settings.pop("sequence_length", None)
        batch = self.out.job.settings.get("global_batch_size")
        batch = batch if isinstance(batch, int) else 0
        for samples, row in sorted(self._rows.items()) if batch else ():
            if samples == 0:
                self.out.job.first_number = 0
            self.out.step({**row, "step": float(samples // batch)})
        for job in self.out.jobs:
            seconds_from(job, "clock", 1e-3, "time stamps")
        if self._throughput:  # NeMo's of GPT-3 counts tokens
            name = "tokens_per_second" if self._of_gpt3() else "samples_per_second"
            self.out.job.rates[name] = self._throughput[-1]
