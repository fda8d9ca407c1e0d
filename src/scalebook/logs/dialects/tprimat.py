"""TPrimat result files, both schemas: lists of step times with the configuration next to them."""

from __future__ import annotations

import re
from typing import Any, cast

from scalebook.logs.dialects.dialect import JSONDialect
from scalebook.logs.numbers import LARGEST, MISSING, names

_SIZES = names("tprimat")
_GB_IN_GIB = 1e9 / 2**30


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _numbers(document: dict[str, Any], *names: str) -> list[float]:
    for name in names:
        value = document.get(name)
        if isinstance(value, list):
            return [_number(item) for item in cast(list[Any], value)]
    return []


def _number(item: object) -> float:
    if isinstance(item, bool) or not isinstance(item, int | float):
        return MISSING
    return float(item) if abs(item) < LARGEST else MISSING


class TPrimat(JSONDialect):
    """The means of the file leave out the first step only; its rates come from them."""

    name = "tprimat"
    markers = ("performance_metrics",)
    signature = re.compile(r"\"(?:training_config|raw_step_times|step_times|gpu_info)\"\s*:")

    def document(self, document: dict[str, Any]) -> None:
        """Take one result."""
        for section in ("training_config", "parallelism_config"):
            for key, value in _section(document, section).items():
                if key in _SIZES and isinstance(value, int) and value > 0:
                    self.out.tell(_SIZES[key], value)
        info = _section(document, "gpu_info")
        if isinstance(info.get("device_name"), str):
            self.out.job.details["device"] = str(info["device_name"])[:80]
        times = _numbers(document, "step_times", "raw_step_times")
        losses = _numbers(document, "loss_values")
        rates = _numbers(document, "learning_rates")
        for index, seconds in enumerate(times):
            if not seconds > 0:
                self.out.job.counts.broken_records += 1
                continue
            row = {"step": float(index + 1), "seconds": seconds}
            if len(losses) == len(times):
                row["loss"] = losses[index]
            if len(rates) == len(times):
                row["learning_rate"] = rates[index]
            self.out.step(row, total=len(times))
        for name, values in (("loss_values", losses), ("learning_rates", rates)):
            if values and len(values) != len(times):
                self.out.job.note(f"{name} has {len(values)} entries for {len(times)} steps.")
        self._whole_run(document)

    def _whole_run(self, document: dict[str, Any]) -> None:
        metrics = _section(document, "performance_metrics")
        for name in ("tokens_per_second", "tokens_per_second_per_gpu"):
            value = _number(metrics.get(name))
            if value > 0:
                self.out.job.rates[name] = value
        memory = _section(document, "memory_metrics")
        for kind in ("allocated", "reserved"):
            value = _number(memory.get(f"peak_memory_{kind}_gb"))
            if value > 0:
                self.out.job.details[f"peak_{kind}_gib"] = value * _GB_IN_GIB
        if len(self.out.job.table):
            self.out.job.finished = True
