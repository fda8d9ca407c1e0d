"""What of this machine would spoil a run, and how to mend it: facts are read, then judged."""

from __future__ import annotations

from scalebook.doctor.facts import Device, Facts
from scalebook.doctor.findings import Finding, Level

__all__ = ["Device", "Facts", "Finding", "Level"]
