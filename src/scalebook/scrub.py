"""Keep home directories and secrets out of what a run leaves on disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

MASK = "***"
_SECRET_NAME = r"[\w-]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_KEY)\w*"
_ASSIGNMENT = re.compile(rf"\b({_SECRET_NAME}[\"']?\s*[=:]\s*[\"']?)[^\s\"',]+", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(\w+://[^\s/:@]+):[^\s/@]+@")
_NAME = re.compile(rf"^(?:{_SECRET_NAME}|KEY)$", re.IGNORECASE)
_SHORTEST_SECRET = 6  # a shorter value, such as "1", would mask what is no secret


def is_secret(name: str) -> bool:
    """Return whether a variable of this name may hold a secret."""
    return bool(_NAME.match(name))


def scrub(text: str, environment: Mapping[str, str], home: Path | None = None) -> str:
    """Return the text with secret values masked and the home directory written as ``~``."""
    for name, value in environment.items():
        if is_secret(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, MASK)
    text = _ASSIGNMENT.sub(rf"\1{MASK}", text)
    text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    place = str(home or environment.get("HOME", ""))
    if len(place) > 1:
        text = re.sub(rf"{re.escape(place)}(?=/|\b|$)", "~", text)
    return text


def scrub_all(
    lines: Iterable[str], environment: Mapping[str, str], home: Path | None = None
) -> tuple[str, ...]:
    """Return every line scrubbed."""
    return tuple(scrub(line, environment, home) for line in lines)


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the values of secret names masked."""
    return {name: MASK if is_secret(name) else value for name, value in variables.items()}
