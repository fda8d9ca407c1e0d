"""A stand-in for a CPU's energy counters: with this folder on PYTHONPATH each run is sampled.

``FAKE_POWERCAP`` names a folder like /sys/class/powercap; ``counters`` writes one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

with suppress(ImportError, KeyError):  # another interpreter than the project's, or not asked for
    from scalebook.running.devices.rapl import RAPL

    _root, *_rest = RAPL.__init__.__defaults__ or ()
    RAPL.__init__.__defaults__ = (Path(os.environ["FAKE_POWERCAP"]), *_rest)
