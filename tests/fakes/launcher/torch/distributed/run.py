"""torchrun on one node: starts the processes of its module, passes signals on, and ends as it does.

The imports of torchrun itself take most of the time of a run whose trainer does little.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main() -> int:
    """Start what follows the option -m, in a session of its own, as often as was asked for."""
    command = (sys.executable, *sys.argv[sys.argv.index("-m") :])
    size = int(sys.argv[sys.argv.index("--nproc-per-node") + 1])
    started: list[subprocess.Popen[bytes]] = []
    for rank in map(str, range(size)):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(size)}
        ranks |= {"LOCAL_WORLD_SIZE": str(size)}
        one = subprocess.Popen(command, env=os.environ | ranks, start_new_session=True)
        started.append(one)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: [one.send_signal(number) for one in started])
    return max([one.wait() for one in started], key=abs)


if __name__ == "__main__":
    sys.exit(main())
