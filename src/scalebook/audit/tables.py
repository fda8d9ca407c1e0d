"""Check a table: its rows one by one, against its base row, against one another, and their sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scalebook.audit import fields as vocabulary
from scalebook.audit.engine import check_row, compare
from scalebook.audit.facts import Fact, operand, show
from scalebook.audit.identities import identities
from scalebook.audit.judgements import judge_words
from scalebook.audit.known import Known, field_of, know
from scalebook.audit.rows import Row, Table
from scalebook.audit.unchecked import unchecked
from scalebook.audit.verdicts import Check, check_of
from scalebook.measure.intervals import point

SIZELESS = ("gpus", "mfu")


def check_table(table: Table) -> list[Check]:
    """Return every check of a table's rows, in their order."""
    base = next((row for row in table.rows if row.label == table.base), None)
    facts = _base_facts(base)
    known = [know(row, _comparable(row, base, facts)) for row in table.rows]
    checks: list[Check] = []
    summed = _summed(table)
    for index, item in enumerate(known):
        found = [*check_row(item), *judge_words(item)]
        found.extend(_same(table, known, index))
        if item.row.label == table.total:
            found.extend(_sum(known, index))
        checks.extend((*found, *unchecked(item, found, summed)))
    return checks


def _summed(table: Table) -> frozenset[str]:
    """Return the fields that the table's total adds up; its parts are checked by it."""
    total = next((row for row in table.rows if row.label == table.total), None)
    names = total.values if total is not None else ()
    items = ((name, vocabulary.field(name)) for name in names)
    return frozenset(name for name, item in items if item is not None and item.total)


def _base_facts(base: Row | None) -> tuple[Fact, ...]:
    """Return what the base row states or implies, as base_ quantities of the other rows."""
    if base is None:
        return ()
    wanted = {name for identity in identities() for name in identity.names}
    facts: list[Fact] = []
    for quantity, alternatives in know(base).facts.items():
        name = vocabulary.BASE + quantity
        if name in wanted:
            for fact in alternatives:
                facts.append(replace(fact, quantity=name, origin="base", inputs=frozenset()))
    return tuple(facts)


def _comparable(row: Row, base: Row | None, facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """Return the base facts that a row can be held against.

    Tokens and steps of another model are other work: then only sizes and utilisation compare.
    """
    if base is None or _model(row) == _model(base):
        return facts
    return tuple(fact for fact in facts if fact.quantity.removeprefix(vocabulary.BASE) in SIZELESS)


def _model(row: Row) -> tuple[str | None, ...]:
    sizes = (row.values.get("parameters"), row.values.get("active_parameters"))
    return (row.words.get("model"), *(size.text if size else None for size in sizes))


def _same(table: Table, known: list[Known], index: int) -> Iterator[Check]:
    """Compare what the source gives as one and the same with the first row that has it."""
    for quantity in table.same:
        holders = [i for i, item in enumerate(known) if quantity in item.facts]
        if index not in holders or index == holders[0]:
            continue
        first, here = known[holders[0]], known[index]
        field = _witness(here, quantity)
        if field is None:
            continue
        expected = first.facts[quantity][0]
        mine = here.facts[quantity][0]
        verdict = "holds" if mine.interval.meets(expected.interval) else "contradicts"
        arithmetic = "; ".join(dict.fromkeys((*expected.steps, *mine.steps)))
        yield check_of(
            here.row,
            field.name,
            f"same {quantity} as {first.row.label!r}",
            verdict,
            arithmetic=arithmetic,
            note=f"{show(mine.value)} against {show(expected.value)}",
        )


def _witness(known: Known, quantity: str) -> vocabulary.Field | None:
    """Return the claimed field that a quantity rests on, rather a rounded one than a count."""
    inputs = {name for fact in known.facts[quantity] for name in fact.inputs}
    items = [field_of(known.row, name) for name in (quantity, *sorted(inputs))]
    claimed = [item for item in items if item is not None and item.name not in known.row.given]
    return next((item for item in claimed if not item.exact), claimed[0] if claimed else None)


def _sum(known: list[Known], index: int) -> Iterator[Check]:
    """Compare the total row with the sum of the others, for quantities that add up."""
    row = known[index].row
    for name in row.values:
        item = vocabulary.field(name)
        if item is None or not item.total:
            continue
        parts = [other.row.values[name] for other in known if other.row is not row]
        total = sum((part.interval for part in parts), start=point(0.0))
        terms = " + ".join(operand(part) for part in parts)
        value = sum(part.value for part in parts)
        step = f"{name} = {terms} = {show(value / item.scale)}"
        fact = Fact(item.quantity, total, value, show(value), "derived", steps=(step,))
        yield compare(row, item, "sum of the rows above", (fact,))
