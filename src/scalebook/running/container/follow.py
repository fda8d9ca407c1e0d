"""Start a command in a container, pass signals on, and leave no container behind.

What runs inside is ``scalebook run`` itself, for the whole plan: it writes the records, so that
they are whole whatever becomes of the process out here. Its standard input is a pipe from here:
where this process dies, even by SIGKILL, the pipe closes and the plan inside ends (see ``follow``).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scalebook.errors import LaunchError
from scalebook.running import processes
from scalebook.running.container.commands import EngineCommand

OWNER = "SCALEBOOK_OWNER"  # "stdin": end with the standard input
PATIENCE_SECONDS = 75.0  # longer than an engine waits between SIGTERM and SIGKILL
POLL_SECONDS = 0.1
CANNOT_START = 125  # docker and podman: the engine itself failed


def run(
    command: EngineCommand, cleanup: tuple[str, ...], caller: Mapping[str, str] = os.environ
) -> int:
    """Run a container until it ends; return its exit code, 128 + n after signal n.

    ``cleanup`` is the argv that removes the container, empty for engines whose containers are
    plain processes.

    Raises:
        LaunchError: the engine could not start the container.
    """
    received: list[int] = []
    with processes.handled(lambda number, _: received.append(number)), scratch(command):
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.PIPE,
            env=command.full_environment(caller),
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
        )
        try:
            _wait(process, received)
        finally:
            _end(process, cleanup, interrupted=bool(received))
    if process.returncode == CANNOT_START and cleanup:
        raise LaunchError(f"{command.argv[0]} could not start the container; it says why above.")
    return processes.shell_code(process.returncode)


@contextmanager
def scratch(command: EngineCommand) -> Generator[None]:
    """Hold the folder that an engine needs for /tmp, for as long as its command runs."""
    if command.scratch is not None:
        command.scratch.mkdir(mode=0o700)
    try:
        yield
    finally:
        if command.scratch is not None:
            shutil.rmtree(command.scratch, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], received: list[int]) -> None:
    """Return when the process has ended, or did not within the patience after a signal."""
    passed = 0
    deadline: float | None = None
    while process.poll() is None:
        for number in received[passed:]:
            passed += 1
            process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
            deadline = deadline or time.monotonic() + PATIENCE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(POLL_SECONDS)


def _end(process: subprocess.Popen[bytes], cleanup: tuple[str, ...], *, interrupted: bool) -> None:
    """End what is left of the engine's process and its container."""
    if process.stdin is not None:
        process.stdin.close()
    ended = process.poll() is not None
    if not ended:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if cleanup and (interrupted or not ended or process.returncode < 0):
        subprocess.run(cleanup, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def follow(environment: Mapping[str, str] = os.environ) -> None:
    """Settle in a container that ``run`` started: make its home, and end with its starter.

    This process gets SIGTERM when its standard input closes.
    """
    if environment.get(OWNER) == "stdin":
        if home := environment.get("HOME"):
            Path(home).mkdir(parents=True, exist_ok=True)
        threading.Thread(target=_read_to_end, daemon=True).start()


def _read_to_end() -> None:
    while os.read(sys.stdin.fileno(), 512):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
