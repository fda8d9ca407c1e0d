"""What commands answer, and files of the kernel and drivers say, whether they are there or not."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A first call wakes a driver or a daemon, and a busy controller answers late.
ASK_SECONDS = 60.0
_LAST_SECONDS = 5.0  # for one that was ended: a driver, or a child of its own, may hold it


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What a command answered; ``code`` None: it is missing, or hung, as ``errors`` says."""

    code: int | None
    output: str
    errors: str


def ask(
    command: Sequence[str],
    seconds: float = ASK_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> CommandAnswer:
    """Return what a command answers within ``seconds``; it can read no input."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=environment,
        )
    except OSError as error:
        return CommandAnswer(None, "", str(error))
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return CommandAnswer(None, "", f"no answer within {seconds:.0f} s")
    finally:
        if process.poll() is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_LAST_SECONDS)
    return CommandAnswer(process.returncode, output, errors)


def printed(command: Sequence[str], seconds: float = ASK_SECONDS) -> str | None:
    """Return what a command prints; None where it is missing, fails or hangs."""
    answer = ask(command, seconds)
    return answer.output if answer.code == 0 else None


def said(path: Path) -> str:
    """Return what a file says; nothing where it is missing or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def said_of(path: Path, pattern: str) -> str | None:
    """Return the first group of a pattern where a file has it, None where it does not."""
    found = re.search(pattern, said(path), re.MULTILINE)
    return found[1] if found else None


def cells(text: str) -> list[list[str]]:
    """Return the cells of CSV text by line."""
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]


def number(text: object) -> float | None:
    """Return a number that a tool printed, None for what it prints instead: [N/A] and the like."""
    try:
        return float(str(text))
    except ValueError:
        return None
