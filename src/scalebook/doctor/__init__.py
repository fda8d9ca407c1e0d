"""What of this machine would spoil a run, and how to mend it: facts are read, then judged."""

from __future__ import annotations

from scalebook.doctor.facts import GpuState, MachineFacts
from scalebook.doctor.findings import CheckResult, Level

__all__ = ["CheckResult", "GpuState", "Level", "MachineFacts"]
