"""torchrun on one node: starts the processes of its module, passes signals on, and ends as it does.

The imports of torchrun itself take most of the time of a run whose trainer does little. It starts
the run of the repeat REAL_REPEAT nevertheless. What is started finds the real torch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

HERE = str(Path(__file__).parents[2])


def become_torchrun() -> None:
    """Be replaced by torchrun where the run is the one that it has to start."""
    repeat = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())["repeat"]
    if os.environ.get("REAL_REPEAT") == str(repeat):
        command = (sys.executable, "-m", "torch.distributed.run", *sys.argv[1:])
        os.execv(sys.executable, command)


def main() -> int:
    """Start what follows the option -m, in a session of its own, as often as was asked for."""
    places = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(place for place in places if place != HERE)
    become_torchrun()
    command = (sys.executable, *sys.argv[sys.argv.index("-m") :])
    size = int(sys.argv[sys.argv.index("--nproc-per-node") + 1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    if size > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    started: list[subprocess.Popen[bytes]] = []
    for rank in map(str, range(size)):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(size)}
        ranks |= {"LOCAL_WORLD_SIZE": str(size), **meeting}
        one = subprocess.Popen(command, env=os.environ | ranks, start_new_session=True)
        started.append(one)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: [one.send_signal(number) for one in started])
    return max([one.wait() for one in started], key=abs)


if __name__ == "__main__":
    sys.exit(main())
