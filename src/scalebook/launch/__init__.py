"""RunConfig -> the command and the environment that start its training, as plain data."""

from __future__ import annotations

from scalebook.launch.command import Launch, Variable
from scalebook.launch.torchrun import TRAINER, direct, require_trainer, unavailable
from scalebook.launch.variables import performance_variables, variables

__all__ = [
    "TRAINER",
    "Launch",
    "Variable",
    "direct",
    "performance_variables",
    "require_trainer",
    "unavailable",
    "variables",
]
