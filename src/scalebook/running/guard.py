"""A small process between the notebook's kernel and torchrun that never leaves ranks behind.

``python -m scalebook.running.guard RUN_ID GRACE_SECONDS COMMAND...`` runs the command and answers
with its exit code (128 + n for signal n). Its standard input is a pipe from the owner: when the
owner dies, even by SIGKILL, the pipe closes and the guard ends the whole run, so that the GPUs are
free for the next one. It sleeps in select() until something happens: it costs a rank nothing.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

from scalebook.running import processes

DYING_SECONDS = 5.0  # for a killed command to be gone


def main(arguments: Sequence[str]) -> int:
    """Run a command until it ends, the owner dies or a signal comes; return its exit code."""
    run_id, grace_seconds, *command = arguments
    wake, stops = _wake_pipe(), list[int]()
    for number in processes.STOPPING:
        signal.signal(number, lambda number, _: stops.append(number))
    child = subprocess.Popen(
        command,
        env={**os.environ, processes.MARK: run_id},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    _watch(child, stops, wake)
    if child.poll() is None:
        _end(child, float(grace_seconds))
    processes.end(run_id, start=os.environ.get(processes.START))
    return exit_code(child)


def exit_code(child: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a command that has ended or was killed; 128 + n for signal n."""
    try:
        code = child.wait(DYING_SECONDS)
    except subprocess.TimeoutExpired:  # the kernel does not let it die
        code = -signal.SIGKILL
    return processes.shell_code(code)


def _wake_pipe() -> int:
    """Return a descriptor that becomes readable when any signal, also a child's end, arrives."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _watch(child: subprocess.Popen[bytes], stops: list[int], wake: int) -> None:
    """Return when the command has ended or must end."""
    owner = sys.stdin.fileno()
    while child.poll() is None and not stops:
        ready, _, _ = select.select([owner, wake], [], [])
        if wake in ready:
            os.read(wake, 512)
        if owner in ready and not os.read(owner, 512):
            return


def _end(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Ask the command to end; after the grace, kill its process group."""
    child.terminate()
    try:
        child.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
