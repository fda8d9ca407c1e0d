"""Why a stated field could not be checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from scalebook.audit import fields as vocabulary
from scalebook.audit.identities import identities
from scalebook.audit.judgements import SIZES
from scalebook.audit.knowledge import has_experts
from scalebook.audit.known import Known
from scalebook.audit.verdicts import Check, check_of


def unchecked(
    known: Known, checks: Sequence[Check], summed: frozenset[str] = frozenset()
) -> Iterator[Check]:
    """Yield a verdict for every claimed field that took part in no check, with what it needs.

    ``summed`` fields took part in the check of their table's total.
    """
    rules = " ".join(f"{check.rule} {check.arithmetic} {check.field}" for check in checks)
    touched = set(re.split(r"[^\w]+", rules))
    if any(check.rule == "legality" for check in checks):
        touched.update(SIZES)
    if "flops_per_token" in touched:  # the catalog counts them from these
        touched.update(("sequence_length", "parameters", "active_parameters"))
    for name in known.row.values:
        item = vocabulary.field(name)
        if item is None or name in known.row.given or name in summed:
            continue
        if item.quantity not in touched and name not in touched:
            note = _needs(known, item.quantity)
            yield check_of(known.row, name, "", "not checkable", note=note)


def _needs(known: Known, quantity: str) -> str:
    """Return the shortest list of quantities that, if stated, would let an identity speak."""
    lists = [
        sorted({part for name in identity.names for part in _written(name, quantity)})
        for identity in identities()
        if quantity in identity.names
    ]
    missing = [[name for name in names if not _independent(known, name)] for names in lists]
    shortest = min((names for names in missing if names), key=len, default=list[str]())
    counted = known.facts.get("flops_per_token", ())
    unknown = "parameters" in known.row.values and all(one.origin == "derived" for one in counted)
    asked = quantity == "parameters" or "flops_per_token" in shortest
    if unknown and asked and has_experts(known.row):
        return "needs active_parameters: a token meets only some of the experts"
    return f"needs {', '.join(shortest)}" if shortest else "no identity uses it"


def _written(name: str, quantity: str) -> list[str]:
    """Return a quantity, or those that it comes from where it is only a step of the arithmetic."""
    if name == quantity:
        return []
    if vocabulary.field(name) is not None:
        return [name]
    sources = (item.right.names() for item in identities() if item.subject == name)
    return [part for part in next(sources, ()) if part != quantity]


def _independent(known: Known, name: str) -> bool:
    facts = known.facts.get(name, ())
    return bool(facts) and facts[0].origin != "derived"
