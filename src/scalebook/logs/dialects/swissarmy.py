"""SwissArmyTransformer on DeepSpeed: keys without colons, speed in samples a minute and GPU."""

from __future__ import annotations

import re

from scalebook.logs.bar_fields import RECORD
from scalebook.logs.dialects.deepspeed import SKIPPED, TIMER
from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import integer, number

_LOSS = re.compile(r"\|\s*total loss ([-+\d.eE]+|-?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?))")
_TIME = re.compile(r"elapsed time per iteration \(ms\): ([\d.]+) *\|")
_RATE = re.compile(r"\|\s*learning rate ([\d.eE+-]+)")
_SPEED = re.compile(r"\|\s*speed ([\d.]+) samples/\(min\*GPU\)")


class SwissArmy(LineDialect):
    """``iteration N/M | ... | total loss x | ... |speed y samples/(min*GPU)``."""

    name = "swissarmytransformer"
    markers = ("samples/(min*GPU)",)
    signature = re.compile(r"iteration +\d+/ *\d+ \|[^\n]{0,400}samples/\(min\*GPU\)")

    def __init__(self) -> None:
        super().__init__()
        self._job_rate: tuple[float, float] | None = None

    def line(self, line: str) -> bool:
        """Take a record; DeepSpeed's timer line of the same step gives the rate of the job."""
        timer = TIMER.search(line) if "SamplesPerSec=" in line else None
        if timer:
            self._job_rate = (number(timer[1]), number(timer[3] or timer[2]))
            return True
        skipped = SKIPPED.search(line) if "skipped=" in line else None
        if skipped:
            self.out.job.skipped_in_all = integer(skipped[2])
            return True
        found = RECORD.search(line) if "iteration" in line else None
        time = _TIME.search(line) if found else None
        if found is None or time is None:
            return False
        self.out.digits("seconds", time[1], 1e-3)
        row = {"step": number(found[1]), "seconds": number(time[1]) / 1e3}
        for name, pattern in (("loss", _LOSS), ("learning_rate", _RATE)):
            value = pattern.search(line)
            if value:
                row[name] = number(value[1])
        speed = _SPEED.search(line)
        if speed:
            row["samples_per_second_per_gpu"] = number(speed[1]) / 60
            self.out.digits("samples_per_second_per_gpu", speed[1], 1 / 60)
        if self._job_rate and self._job_rate[0] == row["step"]:
            row["samples_per_second"] = self._job_rate[1]
        self.out.step(row, total=integer(found[2]))
        return True
