"""Check a table: its rows, their base row, one another, their sum, and what stays unchecked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from scalebook.audit import fields as vocabulary
from scalebook.audit.claimed_rows import Check, Row, Table, check_of
from scalebook.audit.identities import Fact, behind, identities, operand, show
from scalebook.audit.knowledge import Known, accelerator_of, has_experts, know, model_of
from scalebook.audit.row_checks import OF_ONE, check_row, compare, judged
from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.legality import Case, Problem, check
from scalebook.measure.intervals import point
from scalebook.settings import PARALLEL_SIZES

# Rules that a table of sizes can break. Uneven layers are only noted: Megatron takes a layout of
# stages. The batch, the schedule and the steps are left out: such tables seldom give them.
UNEVEN = "layers"
RULES = ("attention_heads", "key_value_groups", "ffn", "experts", "world_size")


def judge_words(known: Known) -> Iterator[Check]:
    """Yield a check of the sizes against legality, and of the architecture against the catalog."""
    shape = model_of(known.row)
    if shape is None:
        return
    claimed = known.row.words.get("architecture")
    if claimed is not None:
        kind = "dense" if shape.moe is None else "moe"
        verdict = "holds" if claimed.lower() == kind else "contradicts"
        yield check_of(
            known.row, "architecture", "architecture of the catalog", verdict,
            note=f"{shape.name} is {kind}",
        )  # fmt: skip
    yield from _legality(known.row, shape)


def _legality(row: Row, shape: ModelShape) -> Iterator[Check]:
    stated = [name for name in PARALLEL_SIZES if name in row.values]
    if not stated or not all(row.values[name].interval.exact for name in stated):
        return
    says_legal = row.words.get("legal", "yes").lower() == "yes"
    field = "legal" if "legal" in row.words else stated[0]
    absurd, found = _absurd(row), ()
    if not absurd:
        try:
            found = _problems(row, shape)
        except ConfigError as error:
            absurd = f"no machine can have these sizes: {error}"
    if absurd:
        yield check_of(row, field, "legality", "impossible" if says_legal else "holds", note=absurd)
        return
    problems = [item for item in found if item.rule in (*RULES, UNEVEN)]
    errors = [item for item in problems if item.severity == "error" and item.rule != UNEVEN]
    verdict = "holds" if says_legal == (not errors) else "contradicts"
    if verdict == "holds" and says_legal and problems:  # uneven stages, which some trainers take
        verdict = "possible"
    note = " ".join(item.message for item in errors or problems)
    if not errors and not says_legal:
        note = f"these sizes fit {shape.name}"
    yield check_of(row, field, "legality", verdict, note=note)


def _absurd(row: Row) -> str | None:
    """Return which stated size can be none at all, None where each is a number of processes."""
    for name in (*PARALLEL_SIZES, "gpus"):
        value = row.values.get(name)
        if value is None or not value.interval.exact:
            continue
        size = value.interval.low
        if not (1 <= size < math.inf and size == int(size)):
            return f"{name}={value.text} is not a whole number of at least 1"
    return None


def _problems(row: Row, shape: ModelShape) -> tuple[Problem, ...]:
    """Return every rule that the stated sizes break; whatever is not stated is made to fit.

    Raises:
        ConfigError: a size is beyond what a configuration can have.
    """
    sizes = {
        name: int(row.values[name].interval.low) for name in PARALLEL_SIZES if name in row.values
    }
    tensor = sizes.get("tensor_parallel_size", 1)
    context = sizes.get("context_parallel_size", 1)
    model_parallel = tensor * context * sizes.get("pipeline_parallel_size", 1)
    gpus = row.values.get("gpus")
    world = int(gpus.interval.low) if gpus and gpus.interval.exact else 0
    parameters = {
        "platform": row.words.get("accelerator", "cpu"),
        "model": shape.name,
        "world_size": world or model_parallel * sizes.get("expert_parallel_size", 1),
        "global_batch_size": max(1, (world or model_parallel) // model_parallel),
        "sequence_length": 2 * context * tensor,
        "sequence_parallel": tensor > 1,
        **sizes,
    }
    config = RunConfig.from_parameters(parameters)
    return check(Case(config, shape, accelerator=accelerator_of(row)))


def unchecked(
    known: Known, checks: Sequence[Check], summed: frozenset[str] = frozenset()
) -> Iterator[Check]:
    """Yield a verdict for every claimed field that took part in no check, with what it needs.

    ``summed`` fields took part in the check of their table's total.
    """
    rules = " ".join(f"{check.rule} {check.arithmetic} {check.field}" for check in checks)
    touched = set(re.split(r"[^\w]+", rules))
    if any(check.rule == "legality" for check in checks):
        touched.update(PARALLEL_SIZES)
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
    facts = known.facts.items()
    stated = {name for name, alternatives in facts if alternatives[0].origin != "derived"}
    missing = [[name for name in names if name not in stated] for names in lists]
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


# Which row of a document is the base of the others
_SPEEDS = (
    "tokens_per_second", "samples_per_second", "tokens_per_second_per_gpu", "step_seconds",
    "elapsed_seconds",
)  # fmt: skip


def base_of(rows: Sequence[Row]) -> str | None:
    """Return the row that speed-ups refer to: the smallest, if it says 100 % or 1."""
    sizes = [(row.values.get("gpus") or row.values.get("nodes"), row) for row in rows]
    sized = [(size.value, at) for at, (size, _) in enumerate(sizes) if size]
    first = rows[min(sized)[1]] if len(sized) > 1 else None
    said = [first.values.get(name) for name in _COMPARED] if first else []
    ones = [row for row in rows for name in _COMPARED if _says_one(row, name)]
    if first and any(one is not None and one.value == 1 for one in said) and len(ones) == 1:
        return first.label
    return next((row.label for name in _COMPARED if (row := _said_base(rows, name))), None)


_COMPARED = ("speedup", "scaling_efficiency")


def _said_base(rows: Sequence[Row], compared: str) -> Row | None:
    """Return the one row compared as 1, if most others' is that of their rate over this one's."""
    ones = [row for row in rows if _says_one(row, compared)]
    if len(ones) != 1:
        return None
    fits = list[bool]()
    for row, name in product(rows, _SPEEDS):
        base, here, claimed = ones[0].values.get(name), *map(row.values.get, (name, compared))
        if row is ones[0] or not (base and here and claimed and min(here.value, base.value) > 0):
            continue
        times = (base, here) if name.endswith("_seconds") else (here, base)
        speedup, sizes = times[0].interval / times[1].interval, (ones[0], row)
        if compared == "scaling_efficiency" and not name.endswith("_per_gpu"):
            gpus = [one.values["gpus"].interval for one in sizes if "gpus" in one.values]
            speedup = speedup * gpus[0] / gpus[1] if len(gpus) == 2 else point(0)
        fits.append(claimed.claimed.meets(speedup))
    return ones[0] if sum(fits) * 2 >= len(fits) > 0 else None


def _says_one(row: Row, compared: str) -> bool:
    return (own := row.values.get(compared)) is not None and own.value == 1


SUM = "sum of the rows above"
TOTAL = re.compile(r"(grand |sub-?)?total\b|sum$", re.IGNORECASE)  # begins the label of one
SIZELESS = ("gpus", "mfu")


def check_table(table: Table) -> list[Check]:
    """Return every check of a table's rows, in their order.

    Without a precision an MFU may be of the FP8 peak, and one in FP8 of the BF16 peak, unless
    another of the table holds.
    """
    rows = (replace(row, doubtful=row.doubtful - {"peak_precision"}) for row in table.rows)
    checks = _checks(replace(table, rows=tuple(rows)))
    verdicts = {one.verdict for one in checks if one.field == "mfu"}
    if "holds" in verdicts or "contradicts" not in verdicts:
        return checks
    narrow = ("fp8", "fp4")
    rows = (
        replace(row, doubtful=row.doubtful | {"peak_precision"})
        if row.words.get("precision") in narrow and "peak_precision" not in row.words
        else row
        for row in table.rows
    )
    return _checks(replace(table, rows=tuple(rows)))


def _checks(table: Table) -> list[Check]:
    base = next((row for row in table.rows if row.label == table.base), None)
    facts = _base_facts(base)
    known = [know(row, (*_own_base(row), *_comparable(row, base, facts))) for row in table.rows]
    every = list[list[Check]]()
    for index, item in enumerate(known):
        found = [*check_row(item), *judge_words(item)]
        found.extend(_same(table, known, index))
        if item.row.label == table.total:
            sums = list(_sum(known, index))
            fits = len(sums) == 1 or any(one.verdict == "holds" for one in sums)
            wrong = {
                one.field for checks in every for one in checks if one.verdict == "contradicts"
            }
            found += [one for one in sums if fits and one.field not in wrong]
        every.append(found)
    summed, checks = _summed(table), list[Check]()
    pairs = list(zip(known, every, strict=True))
    holding = [(item.row, one) for item, found in pairs for one in found if one.verdict == "holds"]
    confirmed = {name for row, one in holding for name in _doubts(row, one)}
    confirmed |= {_ALL for _, one in holding if {_ALL, "gpus"} <= _words(one)}
    held = {one.rule for row, one in holding if row.label != table.base}
    for item, found in pairs:
        meant = [one for one in found if not _of_another_rate(one, found, held)]
        sure = [_unless_doubted(item.row, one, confirmed) for one in meant]
        checks.extend((*sure, *unchecked(item, sure, summed)))
    return checks


def _of_another_rate(check: Check, checks: Sequence[Check], held: set[str]) -> bool:
    """Return whether another rate fits, as of an efficiency of TFLOP/s, and this one no row."""
    if check.verdict != "contradicts" or check.rule in held:
        return False
    last = {(one.text, check.field, "holds") for one in identities() if one.last}
    fits = any((one.rule, one.field, one.verdict) in last for one in checks)
    return fits and check.rule.startswith(f"{check.field} = ")


def _doubts(row: Row, check: Check) -> list[str]:
    """Return the doubtful fields of a row that a check rests on."""
    words = _words(check)
    items = ((name, vocabulary.field(name)) for name in sorted(row.doubtful))
    return [
        name
        for name, item in items
        if words & {name, item.quantity if item else name, *behind().get(name, ())}
    ]


_ALL = "tokens_per_second"


def _words(check: Check) -> set[str]:
    return set(re.findall(r"[a-z_]+", f"{check.rule} {check.arithmetic} {check.field}"))


def _unless_doubted(row: Row, check: Check, confirmed: set[str]) -> Check:
    """Return a check; an accusation only if all that it rests on is sure or confirmed."""
    doubts = [name for name in _doubts(row, check) if name not in confirmed]
    if OF_ONE in check.note and _ALL in row.bare - confirmed and _ALL in _words(check):
        doubts.append(_ALL)  # the heading names no GPU, and the claim fits a rate of one
    if check.rule == SUM:
        return check
    if check.verdict not in ("contradicts", "impossible") or not doubts:
        return check
    note = f"rests on {', '.join(doubts)}, which may be of something else"
    return replace(check, verdict="not checkable", note=note)


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
    facts = know(base).facts
    names = re.compile(rf"\b({'|'.join(facts)})\b")
    return tuple(
        replace(fact, quantity=name, origin="base", inputs=frozenset(), steps=steps)
        for quantity, alternatives in facts.items()
        if (name := vocabulary.BASE + quantity) in wanted
        for fact in alternatives
        for steps in [tuple(names.sub(rf"{vocabulary.BASE}\1", step) for step in fact.steps)]
    )


def _own_base(row: Row) -> tuple[Fact, ...]:
    """Return what the base that a row states itself, by base_ fields, states or implies."""
    stated = (name.partition(vocabulary.BASE)[2] for name in row.values)
    values = {name: row.values[vocabulary.BASE + name] for name in stated if name}
    return _base_facts(replace(row, values=values) if values else None)


def _comparable(row: Row, base: Row | None, facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """Return the base facts that a row can be compared with.

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
        inputs = {name for fact in here.facts[quantity] for name in fact.inputs}
        field = judged(here.row, (quantity, *sorted(inputs)))
        if field is None:
            continue
        expected = first.facts[quantity][0]
        mine = here.facts[quantity][0]
        verdict = "holds" if mine.interval.meets(expected.interval) else "contradicts"
        arithmetic = "; ".join(dict.fromkeys((*expected.steps, *mine.steps)))
        rule = f"same {quantity} as {first.row.label!r}"
        note = f"{show(mine.value)} against {show(expected.value)}"
        yield check_of(here.row, field.name, rule, verdict, arithmetic=arithmetic, note=note)


def _sum(known: list[Known], index: int) -> Iterator[Check]:
    """Compare the total row with the sum of the others, for quantities that add up."""
    row = known[index].row
    every = (other.row for other in known if other.row is not row)
    others = [one for one in every if not TOTAL.match(one.label)]
    items = [one for one in others if not re.match(r"[-–•↳└]", one.label)]  # less their parts
    for name in row.values:
        item = vocabulary.field(name)
        if item is None or not item.total:
            continue
        parts = [one.values[name] for one in items or others if name in one.values]
        if len(parts) < 2:
            continue
        total = sum((part.interval for part in parts), start=point(0.0))
        terms = " + ".join(operand(part) for part in parts)
        value = sum(part.value for part in parts)
        step = f"{name} = {terms} = {show(value / item.scale)}"
        fact = Fact(item.quantity, total, value, show(value), "derived", steps=(step,))
        found = compare(row, item, SUM, (fact,))
        if len(parts) == len(items or others) or found.verdict == "holds":  # else a part is missing
            yield found
