"""Commands with all that they start, for the tools that soak them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from scalebook.running import processes

ROOT = Path(__file__).parents[2]
MARK = "SCALEBOOK_SOAK"  # in the environment of everything that a command starts
# On a busy machine a second may take ten.
END_SECONDS = 300.0  # after a kill, for what is left of a command to end
COMMAND_SECONDS = 1800.0
LOOK_SECONDS = 0.02  # between two looks at what a command has started
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
    ("-m fake_trainer", "rank"),
    ("scalebook.running.devices.sampler", "sampler"),
)


class BrokenError(Exception):
    """What must hold after a kill, or a thousand runs, does not."""


class LeftError(BrokenError):
    """Something that a command started keeps running."""


def start(
    arguments: tuple[str, ...],
    mark: str,
    output: Path,
    powercap: Path | None = None,
    *,
    launcher: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a command that prints to a file.

    ``powercap`` is a stand-in for energy counters, ``launcher`` asks for one for torchrun.
    """
    fakes = ROOT / "tests" / "fakes"
    # A drill looks for the rank that it kills, which takes a busy machine a second.
    seconds = "0.5" if arguments[0] == "drill" else "0.1"
    stand_in = str(fakes / "launcher") if launcher else ""
    given = (
        stand_in,
        str(fakes),
        str(fakes / "power") if powercap else "",
        os.getenv("PYTHONPATH", ""),
    )
    own = {"PYTHONPATH": os.pathsep.join(filter(None, given)), MARK: mark}
    own |= {"FAKE_POWERCAP": str(powercap), "FAKE_STEP_SECONDS": seconds} if powercap else {}
    with output.open("wb") as stream:
        return subprocess.Popen(
            (sys.executable, "-m", "scalebook", *arguments),
            env=os.environ | own,
            cwd=ROOT,
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
        )


def ended(process: subprocess.Popen[bytes], mark: str, output: Path) -> None:
    """Wait until a command and everything that it started have ended.

    Raises:
        LeftError: something keeps running.
    """
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until and (process.poll() is None or marked(mark)):
        time.sleep(0.1)
    if left := marked(mark):
        names = ", ".join(role(one) or "another" for one in left)
        raise LeftError(f"still running: {names}\n{output.read_text()[-3000:]}")


def marked(mark: str) -> list[int]:
    """Return the processes that a command started, with itself, but for those that are dead."""
    found: list[int] = []
    for path in processes.PROC.glob("[0-9]*"):
        if processes.variables(int(path.name), (MARK,)).get(MARK) == mark:
            found += [int(path.name)] if processes.state(int(path.name)) not in (None, "Z") else []
    return found


def children(process_id: int) -> list[int]:
    """Return the children of all threads of a process; none where it is gone."""
    found: list[int] = []
    with suppress(OSError):
        for task in (processes.PROC / str(process_id) / "task").iterdir():
            with suppress(OSError):
                found += [int(one) for one in (task / "children").read_text().split()]
    return found


def descendants(process_id: int) -> list[int]:
    """Return a process that runs and, after it, everything below it that runs."""
    if processes.state(process_id) in (None, "Z"):
        return []
    return [process_id, *(below for one in children(process_id) for below in descendants(one))]


def role(process_id: int) -> str:
    """Return what a process is; empty where it is not known or gone."""
    try:
        line = Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
    return next((name for text, name in ROLES if text in line), "")


def lives(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Follow a command to its end; return the seconds that each role's oldest process lived.

    Raises:
        LeftError: it does not end.
    """
    began, seen = time.monotonic(), dict[tuple[int, str], tuple[float, float]]()
    while process.poll() is None:
        now = time.monotonic()
        if now - began > COMMAND_SECONDS:
            raise LeftError(f"{role(process.pid)} did not end within {COMMAND_SECONDS:.0f} s")
        for one in descendants(process.pid):
            key = one, role(one)
            seen[key] = seen.get(key, (now, now))[0], now
        time.sleep(LOOK_SECONDS)
    found: dict[str, float] = {}
    for (_, name), (first, last) in seen.items():
        found[name] = max(found.get(name, 0.0), last - first)
    return found


def kill(process: subprocess.Popen[bytes], wanted: str, seconds: float, draw: random.Random) -> int:
    """Kill a process of a command ``seconds`` after the first of its role was born.

    Returns it; 0 where the command, or all of that role, had ended before.
    """
    born = 0.0
    while process.poll() is None:
        found = [one for one in descendants(process.pid) if role(one) == wanted]
        now = time.monotonic()
        born = born or (now if found else 0.0)
        if born and now >= born + seconds:
            for victim in draw.sample(found, 1) if found else ():
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    return victim
            return 0
        time.sleep(min(LOOK_SECONDS, max(0.001, born + seconds - now)) if born else LOOK_SECONDS)
    return 0
