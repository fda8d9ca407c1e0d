"""MaxText: seconds of a step, rates of a device; asynchronous dispatch makes the first too fast."""

from __future__ import annotations

import re

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, integer, names
from scalebook.logs.pairs import pairs
from scalebook.settings import PARALLEL_SIZES

_RECORD = re.compile(r"completed step: (\d+), ")
_PAIR = re.compile(r"\b([\w/]{1,24}): *([-+\d.eE]+|-?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?))")
_TOLD = re.compile(
    r"\b(Num_devices|max_target_length|global_batch_size_to_train_on|per_device_batch_size"
    r"|(?:dcn|ici)_(?:tensor|pipeline|context|expert)_parallelism)(?:: |=)(\d+)(?:\.0)?(?![\d.])"
)
_OURS = names("maxtext-sizes")
_COLUMNS = names("maxtext")


class MaxText(LineDialect):
    """``completed step: N, seconds: ..., TFLOP/s/device: ..., Tokens/s/device: ..., loss: ...``."""

    name = "maxtext"
    markers = ("completed step:",)
    signature = re.compile(r"completed step: \d+, seconds: ")
    first_number = 0

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[str, int] = {}  # of a device, and degrees inside and between slices

    def line(self, line: str) -> bool:
        """Take a record, or a size from the configuration."""
        found = _RECORD.search(line) if "completed step" in line else None
        if found is None:
            for name, value in _TOLD.findall(line):
                if name in _OURS:
                    self.out.tell(_OURS[name], integer(value))
                else:
                    self._sizes[name] = integer(value)
            return False
        text = line[found.end() :]
        row = pairs(_PAIR, text.rpartition(",")[0] if self.cut else text, _COLUMNS)
        if not row.get("seconds", -1) > 0:
            self.out.job.counts.broken_records += 1
        else:
            self.out.step({"step": float(found[1]), **row})
        return True

    def finish(self) -> None:
        """Take the degrees, and leave out weights that change: they are not a step's tokens."""
        degrees: dict[str, int] = {}
        for name, size in self._sizes.items():
            if name.endswith("_parallelism"):
                ours = f"{name.split('_')[1]}_parallel_size"
                degrees[ours] = degrees.get(ours, 1) * size
        micro = self._sizes.get("per_device_batch_size", 0)
        if micro and not any(degrees.get(name, 1) > 1 for name in PARALLEL_SIZES):
            degrees["micro_batch_size"] = micro
        for job in self.out.jobs:
            job.settings = {**degrees, **job.settings}
        for table in (job.table for job in self.out.jobs):
            if len(set(table.values("tokens_in_step"))) > 1:
                table.set_column("tokens_in_step", [MISSING] * len(table))
