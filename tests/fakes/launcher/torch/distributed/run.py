"""torchrun of one process: starts its module, passes signals on, and ends as it does.

The imports of torchrun itself take most of the time of a run whose trainer does little.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main() -> int:
    """Start what follows the option -m in a session of its own."""
    command = (sys.executable, *sys.argv[sys.argv.index("-m") :])
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    process = subprocess.Popen(command, env=os.environ | ranks, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
