"""Environment variables that a run needs, each with the reason."""

from __future__ import annotations

from scalebook.config import RunConfig
from scalebook.running.command import Variable
from scalebook.running.container import rules


def variables(config: RunConfig) -> tuple[Variable, ...]:
    """Return the variables that a run needs on the devices of its platform (env.toml)."""
    values = rules.values_of(config)
    return tuple(
        Variable(rule.name, rule.value, rule.reason, rule.replaces)
        for rule in rules.rules(str(values["vendor"]))
        if rule.applies(values)
    )
