"""What to start: a command and the variables that it is started with, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scalebook.host import ASKED


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable that the launcher sets unless somebody already has.

    A value in ``replaces`` is one that an image bakes in, which nobody chose for this run: it is
    replaced, unless the user asked for it by name.
    """

    name: str
    value: str
    reason: str
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: ``command`` as argv, and the variables to start it with."""

    command: tuple[str, ...]
    variables: tuple[Variable, ...]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of the command; what the user set wins."""
        asked = base.get(ASKED, "").split()
        result = dict(base)
        for variable in self.variables:
            baked = base.get(variable.name) in variable.replaces and variable.name not in asked
            if variable.name not in base or baked:
                result[variable.name] = variable.value
        return result
