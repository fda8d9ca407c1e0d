"""Rules about profiled steps."""

from __future__ import annotations

from collections.abc import Iterator

from scalebook.facts.legality.problem import Case, Problem


def all_ranks(case: Case) -> Iterator[Problem]:
    """Asking which ranks to profile does nothing without steps to profile."""
    if case.config.profile_all_ranks and not case.config.profile_steps:
        yield Problem(
            "profile_all_ranks",
            "profile_all_ranks=True without profile_steps: nothing is profiled. "
            "Set profile_steps=2.",
            "warning",
        )


RULES = (all_ranks,)
