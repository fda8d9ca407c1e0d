"""Words of a bash script: quoted, whatever a user called something, or meant for the shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from scalebook.errors import LaunchError

_PLACE = re.compile(r"@([A-Z_]+)@")


class Expression(str):
    """A word that the job's shell has to expand, such as ``"$HEAD_NODE:$PORT"``: left as it is."""

    __slots__ = ()


def quoted(word: str) -> str:
    """Return a word as bash reads it back unchanged; an ``Expression`` as it stands."""
    if isinstance(word, Expression):
        return str(word)
    plain = shlex.quote(word)
    return f"'{word}'" if plain == word and "," in word else plain  # no comma between elements


def array(name: str, words: Iterable[str]) -> str:
    """Return the assignment of a bash array."""
    return f"{name}=({' '.join(quoted(word) for word in words)})"


def assignment(name: str, value: str) -> str:
    """Return the assignment of a bash variable."""
    return f"{name}={quoted(value)}"


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return a template with each ``@NAME@`` replaced, once: values are not looked through.

    Raises:
        LaunchError: the template has a place that no value is given for, or lacks one.
    """
    places = set(_PLACE.findall(template))
    if places != set(values):
        odd = ", ".join(sorted(places ^ set(values)))
        raise LaunchError(
            f"The template of the job script has other places than expected: {odd}. "
            "Restore containers/slurm/job.sbatch."
        )
    return _PLACE.sub(lambda found: values[found[1]], template)


def safe_path(path: str, forbidden: str, why: str) -> str:
    """Return a path without line ends and the characters that some other program splits at.

    Raises:
        LaunchError: it holds one of them.
    """
    bad = sorted({character for character in path if character in forbidden or character < " "})
    if bad:
        raise LaunchError(
            f"The path {path!r} holds {' '.join(map(repr, bad))}, which {why} cannot take. "
            "Use a folder without."
        )
    return path
