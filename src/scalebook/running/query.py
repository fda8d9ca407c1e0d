"""Commands that are asked something: what they answer, whether they are there or not."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

# A first call wakes a driver or a daemon, and a busy controller answers late.
ASK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answered; ``code`` None: it is missing, or hung, as ``errors`` says."""

    code: int | None
    output: str
    errors: str


def ask(command: Sequence[str], seconds: float = ASK_SECONDS) -> Answer:
    """Return what a command answers within so many seconds; it can read no input."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Answer(None, "", f"no answer within {seconds:.0f} s")
    except OSError as error:
        return Answer(None, "", str(error))
    return Answer(done.returncode, done.stdout, done.stderr)


def printed(command: Sequence[str], seconds: float = ASK_SECONDS) -> str | None:
    """Return what a command prints; None where it is missing, fails or hangs."""
    answer = ask(command, seconds)
    return answer.output if answer.code == 0 else None
