"""Check one row against the catalog, against every identity, and against limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from scalebook.audit import fields as vocabulary
from scalebook.audit.claimed_rows import Check, Row, Verdict, check_of
from scalebook.audit.device_tables import otherwise_printed
from scalebook.audit.identities import (
    Fact,
    Identity,
    Limit,
    combinations,
    evaluate,
    in_unit,
    limits,
    operand,
    show,
    solve,
)
from scalebook.audit.knowledge import AGAIN, NAMED, NARROW, Known, field_of, spoken
from scalebook.measure.intervals import point

AN_HFU = "holds if recomputation counts, which makes it an HFU"
CUT = "holds if digits of the inputs were cut off, or the inputs come from rounded numbers"


def check_row(known: Known) -> list[Check]:
    """Return every check of a row on its own; fields that none speaks about come last."""
    checks = [*_twice(known.row), *_against_catalog(known)]
    for identity in spoken(known.row):
        if identity.whole:
            checks.extend(_whole(known, identity))
        if identity not in known.used and all(name in known.facts for name in identity.names):
            judged = {one.field for one in checks} if identity.last else set[str]()
            stated = any(field_of(known.row, name) for name in identity.right.names())
            held = set[str]() if stated else judged  # what follows from another rate says no more
            checks += [
                one
                for one in _against_identity(known, identity)
                if one.field not in (held if one.verdict == "holds" else judged)
            ]
    broken: set[str] = set()  # one broken limit is enough to say of a field
    for limit in limits():
        if all(name in known.facts for name in limit.names):
            found = [one for one in _against_limit(known, limit) if one.field not in broken]
            broken |= {one.field for one in found if one.verdict == "impossible"}
            checks.extend(found)
    return checks


def _twice(row: Row) -> Iterator[Check]:
    """Compare fields that state one quantity in two units."""
    first: dict[str, str] = {}
    for name in row.values:
        item = vocabulary.field(name)
        if item is None:
            continue
        other = first.setdefault(item.quantity, name)
        if other != name:
            yield compare(row, item, f"{name} = {other}", (_said_as(row, other, item),))


def _said_as(row: Row, other: str, item: vocabulary.Field) -> Fact:
    """Return what one field states as what a second field of the quantity should say."""
    stated, unit = row.values[other], vocabulary.field(other)
    scale = item.scale / (unit.scale if unit else 1)
    value, shown = stated.value, show(stated.value / item.scale)
    sides = (item.name, in_unit(other, scale), in_unit(operand(stated), scale), shown)
    step = " = ".join(dict.fromkeys(sides))
    return Fact(item.quantity, stated.interval, value, show(value), "derived", steps=(step,))


def _against_catalog(known: Known) -> Iterator[Check]:
    for quantity, alternatives in known.facts.items():
        item = field_of(known.row, quantity)
        facts = tuple(fact for fact in alternatives if fact.origin == "catalog")
        known_peak = any(fact.legitimate for fact in facts)  # of this precision
        if item is not None and known_peak and item.name not in known.row.given:
            right = (*facts, *otherwise_printed(quantity, known.row))
            yield compare(known.row, item, f"{quantity} of the catalog", right)


def judged(row: Row, quantities: Iterable[str]) -> vocabulary.Field | None:
    """Return the field by which a row claims one of some quantities, the first that fits.

    What was chosen or counted is rather an input than a claim, and so is a model's size, which the
    catalog knows too.
    """
    items = [field_of(row, name) for name in quantities]
    claimed = [item for item in items if item is not None and item.name not in row.given]
    known = ("parameters", "flops_per_token")
    return min(
        claimed,
        key=lambda item: (row.values[item.name].interval.exact, item.quantity in known),
        default=None,
    )


def _subject(known: Known, identity: Identity) -> vocabulary.Field | None:
    """Return the field that an identity judges: its left side, or else the last one stated.

    A field that another quantity of the identity was derived from is no independent witness.
    """
    compared = any(name.startswith(vocabulary.BASE) for name in identity.names)
    names = (
        name
        for name in (identity.subject, *reversed(identity.right.names()))
        if not (compared and name in ("elapsed_seconds", "step_seconds"))  # of as much work?
        and not any(
            name in fact.inputs
            for other in identity.names
            if other != name
            for fact in known.facts[other]
        )
    )
    return judged(known.row, names)


def _against_identity(known: Known, identity: Identity) -> Iterator[Check]:
    item = _subject(known, identity)
    if item is None:
        return
    right = solve(identity, item.quantity, known.facts)
    found = compare(known.row, item, identity.text, right)
    if found.verdict == "contradicts":
        excused = _rounded_before(known, item, identity, right) or _by_a_factor(
            known.row, item, identity, right
        )
        found = excused or found
    if found.verdict == "contradicts" and item.exact:
        notes = (found.note, *_instead(known, identity))
        found = replace(found, note="; ".join(filter(None, notes)))
    yield found


_GB_OF_GIB = point(1e9 / 2**30)
_SIZES = ("weights_gb", "state_gb", "state_gb_per_gpu", "checkpoint_gb")


def _by_a_factor(
    row: Row, item: vocabulary.Field, identity: Identity, right: Sequence[Fact]
) -> Check | None:
    """Return that a claim fits where one of its quantities is written in another sense."""
    pue, experts = row.values.get("pue"), row.values.get("expert_parallel_size")
    factor, verdict, note = _GB_OF_GIB, "possible", "holds if the GB are GiB"
    if item.quantity == "carbon_kg" and pue is not None:
        factor, note = pue.interval, "holds if the PUE is not in the energy"
    elif identity.subject == "gpus" and "data_parallel_size" in identity.names and experts:
        factor, verdict = experts.interval, "holds"
        note = "holds if data_parallel_size counts the replicas of the experts"
    elif item.name not in _SIZES:
        return None
    claimed, proper = row.values[item.name].claimed, (one for one in right if one.legitimate)
    fact = next((one for one in proper if claimed.meets(one.interval * factor)), None)
    return fact and _check(row, item, fact, rule=identity.text, verdict=verdict, note=note)


def _instead(known: Known, identity: Identity) -> Iterator[str]:
    """Yield which other stated counts would settle a broken identity, each with its value."""
    for name in identity.right.names():
        other = field_of(known.row, name)
        if other is not None and other.exact and all(one in known.facts for one in identity.names):
            value = solve(identity, name, known.facts)[0].value
            if 1 <= value < math.inf and value == int(value):
                yield f"or {other.name} should be {show(value)}"


def _rounded_before(
    known: Known, item: vocabulary.Field, identity: Identity, right: Sequence[Fact]
) -> Check | None:
    """Return that a field holds if the source computed it from a number that it had rounded.

    Such as a total from the rounded rate of one GPU: it is as exact as that rate, whichever
    identity judges it. None where no other identity confirms the field.
    """
    claimed = known.row.values[item.name].claimed
    for other in spoken(known.row):
        if other is identity or item.quantity not in other.names:
            continue
        if not all(name in known.facts for name in other.names):
            continue
        for fact in solve(other, item.quantity, known.facts):
            own = item.quantity in fact.inputs or not fact.legitimate or fact.bound
            if own or not claimed.meets(fact.interval):
                continue
            fits = [one for one in right if one.legitimate and one.interval.meets(fact.interval)]
            if fits:
                note = f"holds if computed from rounded numbers: {other.text}"
                return _check(
                    known.row, item, fits[0], rule=identity.text, verdict="holds", note=note
                )
    return None


def compare(row: Row, item: vocabulary.Field, rule: str, right: Sequence[Fact]) -> Check:
    """Return whether a stated field meets one of the alternatives that it should equal."""
    claimed = row.values[item.name].claimed
    right = [fact for fact in right if not (fact.bound and AGAIN in fact.variant)] or right
    proper = [fact for fact in right if fact.legitimate]
    exact = [fact for fact in proper if not fact.bound]
    for facts, cut in ((exact, ""), (exact, CUT), (proper, "")):
        wide = cut or facts is proper
        within = (one for one in facts if claimed.meets(one.cut if wide else one.interval))
        if (fits := next(within, None)) is not None:
            again = item.quantity == "mfu" and AGAIN in fits.variant
            verdict = "possible" if fits.bound or again else "holds"
            note = "; ".join(filter(None, (fits.variant, AN_HFU if again else cut)))
            return _check(row, item, fits, rule=rule, verdict=verdict, note=note)
    explained = next((fact for fact in right if claimed.meets(fact.interval)), None)
    if explained is not None and _excused(row, item, explained):
        note = f"holds if counted so: {explained.variant}"
        return _check(row, item, explained, rule=rule, verdict="possible", note=note)
    best = min(proper or right, key=lambda fact: fact.quantity != item.quantity)
    note = _explanation(row, best, proper, explained, item)
    return _check(row, item, best, rule=rule, verdict="contradicts", note=note)


_SLIPS = {1000: "ms, K, M", 10**6: "M", 100: "%", 60: "minutes", 3600: "hours", 24: "days"}
OF_ONE = "of all GPUs or of one?"
_SLIP = 0.01  # by which a factor may differ from that of a unit


def _slip(row: Row, stated: float, right: Sequence[float], count: bool = False) -> str | None:
    """Return which slip of a unit the factor between a claim and one of its right values is."""
    gpus = row.values.get("gpus")
    rates = gpus is not None and gpus.interval.exact and not count
    every = int(gpus.value) if gpus and rates and gpus.value > 1 else 0
    ratios = [max(stated / one, one / stated) for one in right if stated > 0 and one > 0]
    for factor in (every, *_SLIPS):
        if factor and any(abs(one / factor - 1) < _SLIP for one in ratios):
            if factor == every:
                return f"a factor of {every:,}, the number of GPUs: {OF_ONE}"
            return f"a factor of {factor:,}: a unit ({_SLIPS[factor]}) in the claim or in an input?"
    return None


def _excused(row: Row, item: vocabulary.Field, explained: Fact) -> bool:
    """Return whether a source may well mean a count that is not one of the model's FLOPs.

    TFLOPS without a word on what is counted may hold recomputation, if no MFU follows from them;
    frameworks take heads for as wide as the hidden size over their number, and sources the model
    for as large as its name says.
    """
    if NARROW in explained.variant or NAMED in explained.variant:
        return True
    again = "counted as useful" in explained.variant
    return again and item.name in row.bare and "mfu" not in row.values


def _explanation(
    row: Row, best: Fact, proper: Sequence[Fact], explained: Fact | None, item: vocabulary.Field
) -> str:
    """Return which alternative is shown, what the others say, and which wrong one fits."""
    parts = [best.variant] if best.variant else []
    if explained is not None and explained.variant:
        parts.append(f"the claim fits {explained.variant}")
    stated = row.values[item.name]
    times, unit = (100, " %") if "%" in stated.text else (1, "")
    others = [
        f"{' to '.join(show(one * times) for one in _ends_of(fact, item))}{unit} ({fact.variant})"
        for fact in sorted(proper, key=lambda one: one.bound)[:6]
        if fact is not best and fact.variant
    ]
    if others and explained is None:
        parts.append(f"or {', '.join(others)}")
    right = [best.value, *(fact.value for fact in proper if not fact.bound)]
    if explained is None and (slip := _slip(row, stated.value, right, item.exact)):
        parts.append(slip)
    return "; ".join(parts)


def _check(
    row: Row, item: vocabulary.Field, right: Fact, *, rule: str, verdict: Verdict, note: str
) -> Check:
    interval, value = right.interval.scaled(1 / item.scale), _value_of(right, item)
    whole = item.exact and abs(value) < math.inf and value == int(value)
    # a count is given as one, 9 and not 9.0; what is computed from shown numbers may leave an
    # exact interval by their rounding
    return check_of(
        row, item.name, rule, verdict, note=note,
        expected=int(value) if whole else _finite(value),
        expected_low=_finite(min(interval.low, value)),
        expected_high=_finite(max(interval.high, value)),
        arithmetic="; ".join((*right.steps, *_unit_step(right, item))),
    )  # fmt: skip


def _value_of(right: Fact, item: vocabulary.Field) -> float:
    """Return the value in the unit of the field."""
    return right.value if item.scale == 1 else right.shown / item.scale


def _ends_of(fact: Fact, item: vocabulary.Field) -> tuple[float, ...]:
    """Return what a fact may be, in the unit of the field: its value, or the ends of a bound."""
    ends = tuple(float(f"{end:.3g}") for end in (fact.interval.low, fact.interval.high))
    known = fact.bound and item.scale == 1 and ends[0] < ends[1] < math.inf
    return ends if known else (_value_of(fact, item),)


def _unit_step(right: Fact, item: vocabulary.Field) -> Iterator[str]:
    """Yield the step to the unit of the field, where that is not the base unit."""
    if item.scale != 1 and right.quantity == item.quantity:
        sides = (item.name, in_unit(item.quantity, item.scale), in_unit(right.text, item.scale))
        yield " = ".join((*sides, show(_value_of(right, item))))


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _whole(known: Known, identity: Identity) -> Iterator[Check]:
    """Check that the sizes divide where some of them are not stated.

    Of several that are not, the product is known only where the replicas are stated.
    """
    facts, row = known.facts, known.row
    stated = [name for name in identity.names if field_of(row, name) is not None]
    first, *more = [name for name in identity.right.names() if name not in stated] or [""]
    item = field_of(row, identity.subject)
    if item is None or not first or len(stated) < 2:
        return
    if more and "data_parallel_size" not in stated:
        return
    known_names = [name for name in identity.names if name not in (first, *more)]
    if any(name not in facts or not facts[name][0].interval.exact for name in known_names):
        return
    one = dict.fromkeys(more, (Fact(first, point(1), 1.0, "1", "derived"),))
    (fact, *_) = solve(identity, first, {**facts, **one})
    whole = abs(fact.interval.middle - round(fact.interval.middle)) < 1e-9
    if more and whole and fact.value != 1:  # any of them may be it
        return
    left = " * ".join((first, *more))
    for name in stated if (first, *more) == ("context_parallel_size",) and fact.value == 1 else ():
        yield check_of(row, name, identity.text, "holds", arithmetic=fact.steps[-1])
    verdict, note = ("holds", "") if whole else ("contradicts", f"{left} is not a whole number")
    steps = "; ".join(fact.steps)
    yield check_of(row, item.name, f"whole {left}", verdict, arithmetic=steps, note=note)


def _against_limit(known: Known, limit: Limit) -> Iterator[Check]:
    """Say impossible when every legitimate reading breaks a limit.

    That a limit is kept is said too. A constant limit (a fraction of 1) is for stated values alone:
    a derived fraction may be one of a peak that was not meant.
    """
    row = known.row
    if any(row.words.get(key) != value for key, value in limit.needs):
        return
    if not limit.right.names() and any(field_of(row, name) is None for name in limit.left.names()):
        return
    of = {name: {one for fact in known.facts[name] for one in fact.inputs} for name in limit.names}
    if any((of[name] - {name}) & of.keys() for name in of):  # rate x time / time is the rate
        return
    readings = [
        chosen
        for chosen in combinations(limit.names, known.facts)
        if all(fact.legitimate for fact in chosen.values())
    ]
    item = _limited_field(known, limit)
    if item is None or not readings:
        return
    sides = [(evaluate(limit.left, chosen), evaluate(limit.right, chosen)) for chosen in readings]
    broken = all(left.low > right.high * (1 + 1e-9) for (left, _), (right, _) in sides)
    if broken or limit.right.names():  # that a fraction is below 1 is no news
        text = " against ".join(shown for _, shown in sides[0])
        steps = dict.fromkeys(line for fact in readings[0].values() for line in fact.steps)
        arithmetic = "; ".join((*steps, f"{limit.text}: {text}"))
        verdict = "impossible" if broken else "possible"
        note = ", ".join(fact.variant for fact in readings[0].values() if fact.variant)
        yield check_of(row, item.name, limit.text, verdict, arithmetic=arithmetic, note=note)


def _limited_field(known: Known, limit: Limit) -> vocabulary.Field | None:
    """Return the field that a limit judges: the last one of its left side that the row claims."""
    names = [name for name in reversed(limit.left.names()) if name in known.facts]
    if not any(known.facts[name][0].inputs for name in names):  # a constant of the catalog
        names = list(limit.right.names())
    inputs = [name for key in names for fact in known.facts[key] for name in sorted(fact.inputs)]
    return judged(known.row, (*names, *inputs))
