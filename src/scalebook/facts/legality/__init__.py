"""Whether a configuration can run and means something, and every reason why not.

The rules are those that megatron-core 0.16 enforces (transformer_config, parallel_state,
schedules, moe_layer), earlier and with the values in the message, plus those without which a run
measures nothing. tests/facts/test_legality_megatron.py compares the verdicts with megatron-core.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts.legality import fit, neighbours, rules_device, rules_model, rules_world
from scalebook.facts.legality.fit import Fit
from scalebook.facts.legality.neighbours import changes
from scalebook.facts.legality.problem import Case, Problem, Severity
from scalebook.facts.memory import MemoryEstimate

__all__ = [
    "Case", "Fit", "Problem", "Severity", "changes", "check", "fitting", "is_legal", "nearest",
    "refuse",
]  # fmt: skip

RULES = (*rules_model.RULES, *rules_world.RULES, *rules_device.RULES)


def check(case: Case) -> tuple[Problem, ...]:
    """Return every rule that the configuration breaks, errors before warnings."""
    answers = ((rule.__name__, one) for rule in RULES for one in rule(case))
    problems = [Problem(name, one) if isinstance(one, str) else one for name, one in answers]
    return tuple(sorted(problems, key=lambda problem: problem.severity == "warning"))


def is_legal(problems: tuple[Problem, ...]) -> bool:
    """Return whether none of the problems is an error."""
    return all(problem.severity != "error" for problem in problems)


def refuse(case: Case) -> None:
    """Refuse an illegal configuration, in the words of ``check``.

    Raises:
        ConfigError: a rule forbids the configuration.
    """
    problems = check(case)
    errors = [problem.message for problem in problems if problem.severity == "error"]
    if errors:
        raise ConfigError(" ".join(errors))


def nearest(case: Case, *, limit: int = 3) -> tuple[RunConfig, ...]:
    """Return up to ``limit`` legal configurations that change least, the nearest first.

    Empty where the configuration is legal already, or where the model itself breaks a rule.
    """

    def accepts(candidate: RunConfig) -> bool:
        return is_legal(check(case.of(candidate)))

    return () if accepts(case.config) else tuple(neighbours.search(case, accepts)[:limit])


def fitting(case: Case) -> tuple[MemoryEstimate, Fit]:
    """Return the predicted memory of a legal configuration and whether it fits the device.

    Where it does not, or nearly, the verdict's ``advice`` names legal changes that make it fit.
    """

    def needed(config: RunConfig) -> MemoryEstimate:
        return fit.estimate(config, case.shape)

    estimate = needed(case.config)
    verdict = fit.verdict(estimate.total_gib, case.accelerator)
    if verdict.fits or verdict.capacity_gib is None:
        return estimate, verdict

    def fits(candidate: RunConfig) -> bool:
        problems = check(case.of(candidate))
        slow = any(problem.rule == "tensor_inside_node" for problem in problems)
        if slow or not is_legal(problems):
            return False
        return bool(fit.verdict(needed(candidate).total_gib, case.accelerator).fits)

    found = fit.remedies(case, fits)
    advice = (fit.describe(case.config, one, needed(one).total_gib) for one in found)
    return estimate, replace(verdict, advice=tuple(islice(advice, fit.MAX_ADVICE)))
