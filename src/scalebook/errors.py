"""Errors whose messages say what is wrong, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class ScalebookError(Exception):
    """Base of every error that a user can cause and fix; the command line prints one line."""


class CatalogError(ScalebookError):
    """A fact is unknown or a row of a catalog file is malformed."""


class ConfigError(ScalebookError):
    """A configuration is malformed or illegal."""


class RecordError(ScalebookError):
    """A file of a run directory cannot be read."""


class IngestError(ScalebookError):
    """A log cannot be read, or what the user supplied contradicts it."""


class TrackerError(ScalebookError):
    """A tracker did not take a run, or its client is not installed."""


class TraceError(ScalebookError):
    """A profiler's trace cannot be read."""


class LaunchError(ScalebookError):
    """Training cannot be started here, or the program that should start it is missing."""


class ReportError(ScalebookError):
    """The report cannot be built, or a page of it is not as it must be."""


class IncompleteReportError(ReportError):
    """The report is built, except for pages that failed and say so."""


class PublicationError(ReportError):
    """Runs cannot be published: something in them looks like a secret."""


class ClaimError(ScalebookError):
    """A claim, or a number that a reader states, is malformed or out of range."""


def near_path(path: Path) -> str:
    """Return the question for a mistyped path, each part the nearest in its folder; else ''."""
    found = Path(path.anchor)
    for part in path.parts[1 if path.anchor else 0 :]:
        names = [one.name for one in found.iterdir()] if found.is_dir() else []
        near = [part] if (found / part).exists() else difflib.get_close_matches(part, names, n=1)
        if not near:
            return ""
        found /= near[0]
    return f" Did you mean {str(found)!r}?"


def not_installed(name: str | None, extra: str) -> str:
    """Return the message for a package that is missing, with the extra that brings it."""
    return f"{name} is not installed. Install the extra in the clone: pip install -e '.[{extra}]'."


MOST_LISTED = 20  # names in a message; of more, the nearest
LISTS = {  # commands that list what a message has no room for
    "model": "scalebook models",
    "accelerator": "scalebook accelerators",
    "column": "scalebook columns runs",
    "dialect": "scalebook ingest --dialect list",
}


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name: the value, what is known, and the nearest match."""
    names = sorted(known)
    typed, lower = name.lower(), {one.lower(): one for one in names}  # h200 is near H200-SXM
    begun = [lower[one] for one in lower if len(name) > 1 and one.startswith(typed)]
    listed = names
    if len(names) > MOST_LISTED:
        near = difflib.get_close_matches(typed, lower, n=5, cutoff=0.0)
        listed = list(dict.fromkeys([*begun, *(lower[one] for one in near)]))[:5]
    rest = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    if rest and kind in LISTS:
        rest += f" ('{LISTS[kind]}' lists them)"
    what, of, whole = kind.partition(" of ")
    message = f"Unknown {kind} {name!r}. Known {what}s{of}{whole}: {', '.join(listed)}{rest}."
    if not begun and not difflib.get_close_matches(typed, lower, n=1):
        return message
    # Of equally near names the first in order: difflib would give the last.
    nearest = max(
        begun or names, key=lambda one: difflib.SequenceMatcher(None, one.lower(), typed).ratio()
    )
    return f"{message} Did you mean {nearest!r}?"
