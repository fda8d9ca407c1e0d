"""Equations between quantities: read from identities.toml, solved for any of their quantities."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

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

    @property
    def names(self) -> tuple[str, ...]:
        """Every quantity, the subject first."""
        return (self.subject, *self.right.names())

    def solve(self, target: str, known: Mapping[str, Interval]) -> Interval:
        """Return ``target`` from the other quantities."""
        if target == self.subject:
            return self._forward(self.right.value(known))
        left = self._backward(known[self.subject])
        rest = Product(
            self.right.constant, tuple(item for item in self.right.powers if item[0] != target)
        )
        others = rest.value(known)
        return left / others if dict(self.right.powers)[target] > 0 else others / left

    def _forward(self, value: Interval) -> Interval:
        if self.shape == "complement":
            return point(1) + -value
        return value + point(-1) if self.shape == "excess" else value

    def _backward(self, value: Interval) -> Interval:
        if self.shape == "complement":
            return point(1) + -value
        return value + point(1) if self.shape == "excess" else value

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


def parse_identity(text: str, *, whole: bool = False, claimed: bool = False) -> Identity:
    """Return the identity that an equation writes."""
    subject, _, right = text.partition(" = ")
    patterns: tuple[tuple[re.Pattern[str], Shape], ...] = (
        (_COMPLEMENT, "complement"),
        (_EXCESS, "excess"),
    )
    for pattern, shape in patterns:
        match = pattern.fullmatch(right)
        if match:
            return Identity(text, subject, Product(1.0, ((match[1], 1),)), shape, whole, claimed)
    return Identity(text, subject, parse_product(right), "product", whole, claimed)


@cache
def _data() -> dict[str, Any]:
    path = files("scalebook.audit").joinpath("identities.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def identities() -> tuple[Identity, ...]:
    """Return every identity, in the order in which missing quantities are derived."""
    return tuple(
        parse_identity(
            row["equation"], whole=row.get("whole", False), claimed=row.get("claimed", False)
        )
        for row in _data()["identities"]
    )


@cache
def limits() -> tuple[Limit, ...]:
    """Return every physical limit."""
    found: list[Limit] = []
    for row in _data()["limits"]:
        left, _, right = row["equation"].partition(" <= ")
        needs = tuple(row.get("needs", {}).items())
        found.append(Limit(row["equation"], parse_product(left), parse_product(right), needs))
    return tuple(found)
