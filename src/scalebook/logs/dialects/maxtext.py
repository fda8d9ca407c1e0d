"""MaxText: seconds of a step, rates of a device; asynchronous dispatch makes the first too fast."""

from __future__ import annotations

import math
import re

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, columns, integer, names
from scalebook.logs.pairs import pairs
from scalebook.settings import PARALLEL_SIZES

_RECORD = re.compile(r"completed step: (\d+), ")
_PAIR = re.compile(r"\b([\w/]{1,24}): *([-+\d.eE]+|-?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?))")
_ACCUMULATED = "gradient_accumulation_steps"
_TOLD = re.compile(
    r"\b(Num_devices|max_target_length|global_batch_size_to_train_on|per_device_batch_size"
    rf"|{_ACCUMULATED}"
    r"|(?:dcn|ici)_(?:tensor|pipeline|context|expert)_parallelism)(?:: |=)(\d+)(?:\.0)?(?![\d.])"
)
_OURS = names("maxtext-sizes")
_COLUMNS = columns("maxtext")


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
                self._sizes[name] = integer(value)
                kind = name[4:]
                if name in _OURS:
                    self.out.tell(_OURS[name], integer(value))
                elif kind.endswith("_parallelism"):
                    both = (self._sizes.get(f"{one}_{kind}", 1) for one in ("dcn", "ici"))
                    self.out.job.settings[kind.replace("ism", "_size")] = math.prod(both)
            return False
        row = pairs(_PAIR, line[found.end() :], _COLUMNS)
        if not row.get("seconds", -1) > 0:
            self.out.job.counts.broken_records += 1
        else:
            self.out.step({"step": float(found[1]), **row})
        return True

    def finish(self) -> None:
        """Leave out weights that change: they are not the tokens of a step."""
        settings, micro = self.out.jobs[0].settings, self._sizes.get("per_device_batch_size")
        world = settings.get("world_size")
        if micro and isinstance(world, int) and "global_batch_size" not in settings:
            settings["global_batch_size"] = micro * world * self._sizes.get(_ACCUMULATED, 1)
            self.out.jobs[0].derived["global_batch_size"] = "batch of a device x devices"
        if micro and all(settings.get(name, 1) == 1 for name in PARALLEL_SIZES):
            settings["micro_batch_size"] = micro
        for table in (job.table for job in self.out.jobs):
            if len(set(table.values("tokens_in_step"))) > 1:
                table.set_column("tokens_in_step", [MISSING] * len(table))
