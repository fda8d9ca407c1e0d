"""Identities and limits, which are data, and the quantities that follow from them."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice, product
from typing import Any, Literal

from scalebook.audit.printed import Printed
from scalebook.measure.intervals import Interval, point

Shape = Literal["product", "complement", "excess"]

_COMPLEMENT = re.compile(r"1 - (\w+)")
_EXCESS = re.compile(r"(\w+) - 1")


@dataclass(frozen=True, slots=True)
class Product:
    """A constant times powers (1 or -1) of quantities."""

    constant: float
    powers: tuple[tuple[str, int], ...]

    def value(self, known: Mapping[str, Interval]) -> Interval:
        """Return the product, every quantity taken from ``known``."""
        result = point(self.constant)
        for name, power in self.powers:
            result = result * known[name] if power > 0 else result / known[name]
        return result

    def names(self) -> tuple[str, ...]:
        """Return the quantities in the order in which they are written."""
        return tuple(name for name, _ in self.powers)


@dataclass(frozen=True, slots=True)
class Identity:
    """``subject = right``, ``subject = 1 - right`` or ``subject = right - 1``."""

    text: str
    subject: str
    right: Product
    shape: Shape
    whole: bool = False  # the subject over the stated sizes leaves whole numbers
    claimed: bool = False  # for rows that state the subject only: others have a shorter way
    last: bool = False  # accuses no field that an identity before it has judged

    @property
    def names(self) -> tuple[str, ...]:
        """Every quantity, the subject first."""
        return (self.subject, *self.right.names())

    def solve(self, target: str, known: Mapping[str, Interval]) -> Interval:
        """Return ``target`` from the other quantities."""
        if target == self.subject:
            return self._shaped(self.right.value(known), -1)
        left = self._shaped(known[self.subject], 1)
        rest = Product(
            self.right.constant, tuple(item for item in self.right.powers if item[0] != target)
        )
        others = rest.value(known)
        return left / others if dict(self.right.powers)[target] > 0 else others / left

    def _shaped(self, value: Interval, excess: int) -> Interval:
        if self.shape == "complement":
            return point(1) + -value
        return value + point(excess) if self.shape == "excess" else value

    def expression(self, target: str) -> str:
        """Return the right side of ``target = ...`` in words of the equation."""
        if target == self.subject:
            return self.text.partition(" = ")[2]
        if self.shape == "complement":
            return f"1 - {self.subject}"
        if self.shape == "excess":
            return f"{self.subject} + 1"
        if dict(self.right.powers)[target] < 0:
            over = _written(self.right.constant, self.right.powers, leave_out=target)
            return f"{over} / {self.subject}"
        inverse = tuple((name, -power) for name, power in self.right.powers)
        return _written(1 / self.right.constant, ((self.subject, 1), *inverse), leave_out=target)


@dataclass(frozen=True, slots=True)
class Limit:
    """``left <= right``; ``needs`` are words that the row must have for the limit to count."""

    text: str
    left: Product
    right: Product
    needs: tuple[tuple[str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every quantity of both sides."""
        return (*self.left.names(), *self.right.names())


def _written(constant: float, powers: tuple[tuple[str, int], ...], leave_out: str) -> str:
    over = [name for name, power in powers if power > 0 and name != leave_out]
    under = [name for name, power in powers if power < 0 and name != leave_out]
    divisor = 1 / constant  # 1 / 3600 reads better than 0.000277778
    if 10 < divisor < 1e6 and divisor == round(divisor, 6):
        constant, under = 1, [*under, f"{divisor:g}"]
    text = " * ".join(([] if constant == 1 else [f"{constant:g}"]) + over) or "1"
    return " / ".join([text, *under])


def parse_product(text: str) -> Product:
    """Return the product that ``2 * a * b / c`` writes."""
    constant = 1.0
    powers: list[tuple[str, int]] = []
    for operator, factor in re.findall(r"([*/]?)\s*([\w.+-]+)", text):
        power = -1 if operator == "/" else 1
        if factor[0].isdigit():
            constant *= float(factor) ** power
        else:
            powers.append((factor, power))
    return Product(constant, tuple(powers))


def parse_identity(text: str, **rules: bool) -> Identity:
    """Return the identity that an equation writes; ``rules`` are its fields of yes or no."""
    subject, _, right = text.partition(" = ")
    patterns: dict[Shape, re.Pattern[str]] = {"complement": _COMPLEMENT, "excess": _EXCESS}
    for shape, pattern in patterns.items():
        if match := pattern.fullmatch(right):
            return Identity(text, subject, Product(1.0, ((match[1], 1),)), shape, **rules)
    return Identity(text, subject, parse_product(right), "product", **rules)


@cache
def _data() -> dict[str, Any]:
    path = files("scalebook.audit").joinpath("identities.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def identities() -> tuple[Identity, ...]:
    """Return every identity, in the order in which missing quantities are derived."""
    rows = (dict(row) for row in _data()["identities"])
    return tuple(parse_identity(row.pop("equation"), **row) for row in rows)


@cache
def limits() -> tuple[Limit, ...]:
    """Return every physical limit."""
    found: list[Limit] = []
    for row in _data()["limits"]:
        left, _, right = row["equation"].partition(" <= ")
        needs = tuple(row.get("needs", {}).items())
        found.append(Limit(row["equation"], parse_product(left), parse_product(right), needs))
    return tuple(found)


def behind() -> dict[str, list[str]]:
    """Return, by field, the quantities that the catalog knows by it."""
    return _data()["behind"]


Origin = Literal["stated", "catalog", "base", "derived"]

MOST_COMBINATIONS = 128  # of alternatives that one identity is tried with


@dataclass(frozen=True, slots=True)
class Fact:
    """One possible value of a quantity, and where it comes from.

    Alternatives of one quantity differ in ``variant`` (a FLOPs convention, a dense or a sparse
    peak). Those that are not ``legitimate`` only explain how a wrong claim came about.
    Verdicts rest on ``interval``; the arithmetic is shown with ``value`` and its ``text``. A
    ``bound`` has ends only, no value of its own: what lies between them is possible.
    """

    quantity: str
    interval: Interval
    value: float  # from numbers as written, whatever they were rounded from
    text: str
    origin: Origin
    claimed: Interval | None = None  # what it may stand for where digits were cut, not rounded
    variant: str = ""
    legitimate: bool = True
    bound: bool = False
    steps: tuple[str, ...] = ()  # the arithmetic behind a derived value
    inputs: frozenset[str] = frozenset()  # quantities of the row that it rests on

    @property
    def is_stated(self) -> bool:
        """Whether the row itself, or its table, states it."""
        return self.origin == "stated"

    @property
    def cut(self) -> Interval:
        """The interval if printed digits were cut off instead of rounded."""
        return self.claimed or self.interval

    @property
    def shown(self) -> float:
        """The value that a reader of ``text`` computes with: where that is rounded, so is this."""
        if self.text != show(self.value):
            return self.value
        return float(self.text.replace(",", ""))


Facts = dict[str, tuple[Fact, ...]]


def show(value: float) -> str:
    """Return a number with six significant digits and all before the point, thousands separated."""
    if abs(value) < 1e-15:  # what is left of 1 - 1
        return "0"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.6g}"
    decimals = max(0, 5 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def operand(printed: Printed) -> str:
    """Return a printed value as arithmetic shows it, of a range its middle."""
    plain = printed.text.removeprefix("=").strip()
    return f"{show(printed.value)} (middle of {plain})" if printed.between else plain


def in_unit(text: str, scale: float) -> str:
    """Return a number or a name over the ``scale`` of a unit: ``688,387 / 3600``."""
    if scale == 1:
        return text
    return f"{text} / {scale:.10g}" if scale > 1 else f"{text} * {1 / scale:.10g}"


def combinations(names: tuple[str, ...], facts: Facts) -> Iterator[dict[str, Fact]]:
    """Yield every choice of one alternative for each name, the preferred ones first."""
    unique = tuple(dict.fromkeys(names))
    for chosen in islice(product(*(facts[name] for name in unique)), MOST_COMBINATIONS):
        yield dict(zip(unique, chosen, strict=True))


def intervals(chosen: Mapping[str, Fact]) -> dict[str, Interval]:
    """Return the interval of each chosen fact."""
    return {name: fact.interval for name, fact in chosen.items()}


def shown(chosen: Mapping[str, Fact]) -> dict[str, Interval]:
    """Return each chosen fact as the one number that is shown of it."""
    return {name: point(fact.shown) for name, fact in chosen.items()}


def substitute(expression: str, chosen: Mapping[str, Fact]) -> str:
    """Return an expression with every quantity replaced by its value."""
    texts = {name: fact.text for name, fact in chosen.items()}
    return re.sub(r"[a-z_]\w*", lambda match: texts.get(match[0], match[0]), expression)


def solve(identity: Identity, target: str, facts: Facts) -> tuple[Fact, ...]:
    """Return ``target`` from the identity under every combination of alternatives."""
    others = tuple(name for name in identity.names if name != target)
    expression = identity.expression(target)
    found: list[Fact] = []
    for chosen in combinations(others, facts):
        interval = identity.solve(target, intervals(chosen))
        value = identity.solve(target, shown(chosen)).middle
        sides = (target, expression, substitute(expression, chosen), show(value))
        step = " = ".join(dict.fromkeys(sides))  # of "listed = stated = 9 = 9" one 9 is enough
        rests = list(chosen.values())
        earlier = dict.fromkeys(line for fact in rests for line in fact.steps)
        found.append(
            Fact(
                target, interval, value, show(value), "derived",
                identity.solve(target, {name: fact.cut for name, fact in chosen.items()}),
                variant=", ".join(dict.fromkeys(fact.variant for fact in rests if fact.variant)),
                legitimate=all(fact.legitimate for fact in rests),
                bound=any(fact.bound for fact in rests),
                steps=(*earlier, step),
                inputs=frozenset(one for n, fact in chosen.items() for one in fact.inputs or {n}),
            )
        )  # fmt: skip
    return tuple(found)


def evaluate(side: Product, chosen: Mapping[str, Fact]) -> tuple[Interval, str]:
    """Return one side of a limit, and the one number that is shown of it."""
    return side.value(intervals(chosen)), show(side.value(shown(chosen)).middle)


def derive(facts: Facts, identities: tuple[Identity, ...], counts: frozenset[str]) -> set[Identity]:
    """Add to ``facts`` everything that follows; return the identities that were used up by it.

    A quantity that is known already is never derived again, so this ends. A count that would
    come out as a fraction is left out.
    """
    used: set[Identity] = set()
    while True:
        ready = [
            (identity, missing[0])
            for identity in identities
            if len(missing := [name for name in identity.names if name not in facts]) == 1
        ]
        # What follows from counts and assumptions alone comes first: it is no claim of the row.
        # Then what an identity defines, so that what it is defined from stays to be checked.
        ready.sort(key=lambda pair: (not _exact(*pair, facts), pair[1] != pair[0].subject))
        for identity, target in ready:
            found = solve(identity, target, facts)
            if target in counts:
                found = tuple(fact for fact in found if _maybe_whole(fact.interval, fact.cut))
            if found:
                facts[target] = found
                used.add(identity)
                break
        else:
            return used


def _exact(identity: Identity, target: str, facts: Facts) -> bool:
    return all(facts[name][0].interval.exact for name in identity.names if name != target)


def _maybe_whole(*intervals: Interval) -> bool:
    """Return whether a count may lie between the ends of the intervals."""
    low, high = min(one.low for one in intervals), max(one.high for one in intervals)
    return not math.isfinite(low) or math.ceil(low * (1 - 1e-9)) <= high * (1 + 1e-9)
