"""Keep home directories and secrets out of what a run leaves on disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

MASK = "***"
# A part of a name between underscores: HF_TOKEN and AWS_SECRET_ACCESS_KEY, not TOKENS_PER_SECOND.
_PARTS = r"(?:[A-Z0-9]*TOKEN|[A-Z0-9]*SECRET|[A-Z0-9]*PASSWORD|PASSWD|(?:API|ACCESS|AUTH|)KEY)"
_NAME = re.compile(rf"(?:\w*[_-])?{_PARTS}(?:[_-]\w*)?", re.IGNORECASE)
# In a log a name in small letters is mostly a tokenizer's (eos_token): only plain secrets count.
_IN_TEXT = rf"(?:(?:\w*_)?{_PARTS}(?:_\w*)?|(?:\w*_)?(?:password|passwd|secret|api_key|auth_token))"
_ASSIGNMENT = re.compile(rf"\b({_IN_TEXT}[\"']?\s*[=:]\s*[\"']?)[^\s\"',]+")
_URL_PASSWORD = re.compile(r"(\w+://[^\s/:@]+):[^\s/@]+@")
_SHORTEST_SECRET = 6  # a shorter value, such as "1", would mask what is no secret


def is_secret(name: str) -> bool:
    """Return whether a variable of this name may hold a secret."""
    return bool(_NAME.fullmatch(name))


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
