"""What a rule answers, and what it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from scalebook.config import RunConfig
from scalebook.facts.catalog.types import Accelerator, ModelShape

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule. An error stops a run before it starts; a warning is only said."""

    rule: str
    message: str
    severity: Severity = "error"


Answers = Iterator[Problem | str]  # a sentence is an error by the name of the rule's function


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration with all that a rule needs to judge it."""

    config: RunConfig
    shape: ModelShape
    accelerator: Accelerator | None = None  # None: not known, so nothing is said about the device
    gpus_per_node: int | None = None  # None: nothing is said of how many processes a node takes

    def of(self, config: RunConfig) -> Case:
        """Return another configuration of the same model on the same device."""
        return replace(self, config=config)


def choices(values: Iterable[int]) -> str:
    """Return numbers as people list them: ``1``, ``1 or 2``, ``1, 2 or 4``."""
    words = [str(value) for value in values]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def divisors(number: int) -> list[int]:
    """Return every positive divisor, smallest first."""
    return [value for value in range(1, number + 1) if number % value == 0]
