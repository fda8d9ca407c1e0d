"""Everything that is known about a row before it is checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scalebook.audit import fields as vocabulary
from scalebook.audit.facts import Fact, Facts, derive, operand, show
from scalebook.audit.identities import Identity, identities
from scalebook.audit.knowledge import catalog_facts
from scalebook.audit.rows import Row


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known about a row, and which identities were used up to know it."""

    row: Row
    facts: Facts
    used: frozenset[Identity]


def field_of(row: Row, quantity: str) -> vocabulary.Field | None:
    """Return the field by which a row states a quantity, the first as typed."""
    for name in row.values:
        item = vocabulary.field(name)
        if item is not None and item.quantity == quantity:
            return item
    return None


def spoken(row: Row) -> tuple[Identity, ...]:
    """Return the identities that speak about a row."""
    return tuple(
        item for item in identities() if not item.claimed or field_of(row, item.subject) is not None
    )


def know(row: Row, base: Sequence[Fact] = ()) -> Known:
    """Return everything that a row states, its base and the catalog add, and what follows."""
    facts: Facts = {}
    for fact in (*_stated(row), *base, *catalog_facts(row)):
        earlier = facts.get(fact.quantity, ())
        if fact.origin == "base" and earlier and earlier[0].origin != "base":
            continue
        facts[fact.quantity] = (*earlier, fact)
    for quantity, alternatives in facts.items():
        facts[quantity] = _ranked(alternatives)
    used = derive(facts, spoken(row), vocabulary.exact_quantities())
    return Known(row, facts, frozenset(used))


def _stated(row: Row) -> Iterator[Fact]:
    """Yield one fact a quantity that the row states; a second field of it is compared, not used."""
    seen: set[str] = set()
    for name, printed in row.values.items():
        item = vocabulary.field(name)
        if item is None or item.quantity in seen:
            continue
        seen.add(item.quantity)
        yield Fact(
            item.quantity,
            printed.interval,
            printed.value,
            operand(printed) if item.scale == 1 else show(printed.value),
            "given" if name in row.given else "stated",
            printed.claimed,
            inputs=frozenset({item.quantity}),
        )


def _ranked(alternatives: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """Return a stated value as an explanation only where the catalog contradicts it."""
    stated = [fact for fact in alternatives if fact.is_stated]
    known = [fact for fact in alternatives if not fact.is_stated]
    if not stated or not known:
        return alternatives
    first = stated[0]
    known = [fact for fact in known if not fact.bound]
    claimed = first.claimed or first.interval
    if not known:
        return (first,)
    if any(fact.legitimate and claimed.meets(fact.interval) for fact in known):
        return (*stated, *known)
    words = f"{first.quantity} as stated, {first.text}"
    wrong = replace(first, variant=words, legitimate=False)
    return (*known, wrong)
