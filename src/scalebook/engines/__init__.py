"""Vendors' own trainers: a RunConfig in their words, their start, and what their logs say.

``nemo`` and ``primus`` run under the same launcher as our trainer and leave the same run directory;
their steps come out of their logs, through the readers of ``scalebook.logs``. What a configuration
asks for and an engine does not support is an error, never left out.
"""

from __future__ import annotations

from scalebook.engines.mapping import TRAINERS, check, missing

__all__ = ["TRAINERS", "check", "missing"]
