"""What to start: a command and the variables that it is started with, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable that the launcher sets unless the user already has."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: ``command`` as argv, and the variables to start it with."""

    command: tuple[str, ...]
    variables: tuple[Variable, ...]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of the command; what the user set wins."""
        return {variable.name: variable.value for variable in self.variables} | dict(base)
