"""RunConfig -> the command and the environment that start its training, as plain data."""

from __future__ import annotations

from scalebook.running.command import Launch, Variable
from scalebook.running.launch.torchrun import (
    TRAINER,
    direct,
    require_trainer,
    unavailable,
    variables,
)

__all__ = [
    "TRAINER",
    "Launch",
    "Variable",
    "direct",
    "require_trainer",
    "unavailable",
    "variables",
]
