"""Whether a configuration can run and means something, and every reason why not.

The rules are those that megatron-core 0.16 enforces (transformer_config, parallel_state,
schedules, moe_layer), earlier and with the values in the message, plus those without which a run
measures nothing. tests/test_legality_megatron.py compares the verdicts with megatron-core.
"""

from __future__ import annotations

from scalebook.catalog.types import Accelerator, ModelShape
from scalebook.config import RunConfig
from scalebook.legality import rules_model, rules_world
from scalebook.legality.problem import Case, Problem, Severity

__all__ = ["Problem", "Severity", "check", "is_legal"]

RULES = (*rules_model.RULES, *rules_world.RULES)


def check(
    config: RunConfig,
    shape: ModelShape,
    *,
    accelerator: Accelerator | None = None,
    gpus_per_node: int | None = None,
) -> tuple[Problem, ...]:
    """Return every rule that the configuration breaks, errors before warnings.

    Without ``accelerator`` nothing is said about what the device can do; without
    ``gpus_per_node`` nothing about how many processes a node takes.
    """
    case = Case(config, shape, accelerator, gpus_per_node)
    problems = [problem for rule in RULES for problem in rule(case)]
    return tuple(sorted(problems, key=lambda problem: problem.severity == "warning"))


def is_legal(problems: tuple[Problem, ...]) -> bool:
    """Return whether none of the problems is an error."""
    return all(problem.severity != "error" for problem in problems)
