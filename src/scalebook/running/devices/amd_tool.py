"""Readings of AMD GPUs by ``amd-smi monitor``, where the module amdsmi cannot be loaded."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from scalebook.logs.dialects.amd_smi import AMDSMICSV
from scalebook.running.devices import visible
from scalebook.running.devices.sensor import Row, SensorError
from scalebook.running.devices.tools import Stream, ask, cells, near

FIRST_SECONDS = 10.0  # amd-smi takes seconds to start on a node of eight


class _Rows(AMDSMICSV):
    """The reader of amd-smi's CSV, which hands out its samples as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []

    def sample(self, row: Mapping[str, float]) -> None:
        """Keep one sample; a column without a value is left out."""
        self.rows.append({name: value for name, value in row.items() if not math.isnan(value)})


class AMDSMITool:
    """The visible GPUs as ``amd-smi monitor`` shows them, once a second at the most.

    Raises:
        SensorError: the tool is missing.
    """

    source = "amd-smi"

    def __init__(
        self, environment: Mapping[str, str], count: int | None = None, period: float = 1.0
    ) -> None:
        listed = ask("amd-smi", "list", "--csv")
        if listed is None:
            raise SensorError("amd-smi is missing or fails")
        numbers = [row[0] for row in cells(listed) if row[0].isdigit()]
        self._shown = visible.chosen("amd", [""] * len(numbers), environment)[:count]
        if not self._shown:
            raise SensorError("amd-smi shows no GPU that ROCR_ or HIP_VISIBLE_DEVICES leaves")
        # -p power, -t temperatures, -u and -m busy and clocks, -v memory
        options = ("-p", "-t", "-u", "-m", "-v", "--csv", "-w", str(max(1, round(period))))
        self._stream = Stream(("amd-smi", "monitor", *options))
        self._reader = _Rows()

    def devices(self) -> list[Row]:
        """Return the index of each GPU."""
        return [{"gpu": index} for index in self._shown]

    def read(self) -> list[Row]:
        """Return the readings that have come since the last call."""
        for line in self._stream.lines():
            self._reader.line(line)
        rows, self._reader.rows = self._reader.rows, []
        arrived = time.time()
        kept = [row for row in rows if row.get("gpu") in self._shown]
        return [
            {**row, "gpu": int(row["gpu"]), "time": near(row.get("time", arrived), arrived)}
            for row in kept
        ]

    def once(self) -> list[Row]:
        """Return the first reading of each GPU, waiting a few seconds for it."""
        deadline = time.monotonic() + FIRST_SECONDS
        while not (rows := self.read()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return rows

    def close(self) -> None:
        """End the tool."""
        self._stream.close()
