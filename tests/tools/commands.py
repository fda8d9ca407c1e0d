"""Commands with all that they start, for the tools that soak them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scalebook.running import processes

ROOT = Path(__file__).parents[2]
MARK = "SCALEBOOK_SOAK"  # in the environment of everything that a command starts
END_SECONDS = 90.0  # after a kill, for what is left of a command to end
COMMAND_SECONDS = 600.0
PLAN = """
[plan]
name = "soak"
[defaults]
model = "tiny-llama"
global_batch_size = 8
sequence_length = 128
steps = 10
warmup_steps = 1
world_size = 2
seed = {seed}
[[runs]]
repeat = [{repeats}]
"""
ROLES = (
    ("-m scalebook ", "command"),  # whose arguments name the trainer, too
    ("ipykernel", "kernel"),
    ("scalebook.running.guard", "guard"),
    ("torch.distributed.run", "torchrun"),
    ("fake_trainer", "rank"),
    ("sampler", "sampler"),
)


class BrokenError(Exception):
    """What must hold after a kill, or a thousand runs, does not."""


def start(arguments: tuple[str, ...], mark: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a command; return it and the file of its output."""
    places = os.pathsep.join(filter(None, (str(ROOT / "tests/fakes"), os.getenv("PYTHONPATH"))))
    output = Path(tempfile.gettempdir()) / f"soak-{mark}.log"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            (sys.executable, "-m", "scalebook", *arguments),
            env={**os.environ, "PYTHONPATH": places, MARK: mark},
            cwd=ROOT,
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
        )
    return process, output


def ended(process: subprocess.Popen[bytes], mark: str, output: Path) -> None:
    """Wait until a command and everything that it started have ended.

    Raises:
        BrokenError: something keeps running.
    """
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until and (process.poll() is None or marked(mark)):
        time.sleep(0.1)
    if left := marked(mark):
        names = ", ".join(role(one) or "another" for one in left)
        raise BrokenError(f"still running: {names}\n{output.read_text()[-3000:]}")
    output.unlink()


def whole(arguments: tuple[str, ...]) -> tuple[int, str]:
    """Run a command to its end; return its exit code and output."""
    mark = f"{os.getpid()}-whole"
    process, output = start(arguments, mark)
    code = process.wait(COMMAND_SECONDS)
    text = output.read_text(errors="replace")
    ended(process, mark, output)
    return code, text


def marked(mark: str) -> list[int]:
    """Return the processes that a command started, with itself, but for those that are dead."""
    found: list[int] = []
    for path in processes.PROC.glob("[0-9]*"):
        if processes.variables(int(path.name), (MARK,)).get(MARK) == mark:
            found += [int(path.name)] if processes.state(int(path.name)) not in (None, "Z") else []
    return found


def role(process_id: int) -> str:
    """Return what a process is; empty where it is not known or gone."""
    try:
        line = Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
    return next((name for text, name in ROLES if text in line), "")
