"""What a token budget takes: time, money, energy, carbon. Only from inputs that somebody stated.

Every input is a range, which a single number is too, and every answer carries the range through.
An answer whose inputs were not all stated has no value and names what is missing. Each input
enters an answer once, so the ends of the range are exact; its estimate is that of the inputs'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from scalebook.errors import ClaimError
from scalebook.measure.intervals import Interval, point, read_numeral

SECONDS_PER_DAY = 86_400
SECONDS_PER_MONTH = SECONDS_PER_DAY * 365.25 / 12
SMALLEST, LARGEST = 1e-30, 1e30  # products of such stay finite
FRACTIONS = ("preemption_overhead",)
AT_LEAST_ONE = ("pue",)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the reader states. None means not stated; nothing stands in for it.

    ``other_*`` describe a second platform at the same job. Prices are in any one currency.
    """

    tokens: Interval | None = None  # tokens to train on
    tokens_per_second: Interval | None = None  # of all GPUs together
    sequence_length: Interval | None = None  # tokens per sample
    gpus: Interval | None = None
    price_per_gpu_hour: Interval | None = None  # on demand
    spot_price_per_gpu_hour: Interval | None = None
    reserved_price_per_gpu_hour: Interval | None = None
    storage_tb: Interval | None = None  # held while training runs: data, checkpoints, logs
    price_per_tb_month: Interval | None = None  # of that storage
    transferred_tb: Interval | None = None  # that a network is charged for, such as egress
    price_per_transferred_tb: Interval | None = None
    preemption_overhead: Interval | None = None  # extra time as a fraction of the undisturbed time
    watts_per_gpu: Interval | None = None  # mean draw of a GPU with its share of the node
    pue: Interval | None = None  # facility energy over IT energy, 1 or more
    grid_kg_per_kwh: Interval | None = None  # CO2 equivalent
    other_tokens_per_second: Interval | None = None
    other_gpus: Interval | None = None

    def __post_init__(self) -> None:
        """Refuse ranges that cannot be: rates and sizes above 0, PUE from 1, overhead from 0."""
        for name, value in self.stated().items():
            lowest, words = SMALLEST, "above 0"
            if name in FRACTIONS:
                lowest, words = 0.0, "0 or more"
            if name in AT_LEAST_ONE:
                lowest, words = 1.0, "1 or more"
            if not lowest <= value.low <= value.high <= LARGEST:
                raise ClaimError(f"{name}={value.low:g} must be a number, {words}.")

    def stated(self) -> dict[str, Interval]:
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True, slots=True)
class Answer:
    """One quantity: its range in ``unit``, or None with what was not stated."""

    name: str
    unit: str
    formula: str
    value: Interval | None
    missing: tuple[str, ...] = ()

    @property
    def reason(self) -> str | None:
        """Why there is no value; None where there is one."""
        return f"needs {', '.join(self.missing)}" if self.missing else None


@dataclass(frozen=True, slots=True)
class _Product:
    """An answer as constant x product of inputs / product of inputs (``1+x`` adds one)."""

    name: str
    unit: str
    constant: float
    over: tuple[str, ...]
    under: tuple[str, ...] = ()


def _product(
    name: str, unit: str, constant: float, over: str, under: str = "tokens_per_second"
) -> _Product:
    """Return an answer from the names of its inputs, with spaces between them."""
    return _Product(name, unit, constant, tuple(over.split()), tuple(under.split()))


_DAY, _HOUR, _KWH = 1 / SECONDS_PER_DAY, 1 / 3600.0, 1 / 3600.0 / 1000
# Days and money first: what a reader came for.
ANSWERS = (
    _product("training_days", "days", _DAY, "tokens"),
    _product("training_days_with_preemptions", "days", _DAY, "tokens 1+preemption_overhead"),
    _product("cost", "currency", _HOUR, "tokens gpus price_per_gpu_hour"),
    _product(
        "cost_spot", "currency", _HOUR, "tokens gpus spot_price_per_gpu_hour 1+preemption_overhead"
    ),
    _product("cost_reserved", "currency", _HOUR, "tokens gpus reserved_price_per_gpu_hour"),
    _product(
        "cost_storage", "currency", 1 / SECONDS_PER_MONTH, "tokens storage_tb price_per_tb_month"
    ),
    _product("cost_transfer", "currency", 1, "transferred_tb price_per_transferred_tb", ""),
    _product("tokens_per_day", "tokens", SECONDS_PER_DAY, "tokens_per_second", ""),
    _product(
        "samples_per_day", "samples", SECONDS_PER_DAY, "tokens_per_second", "sequence_length"
    ),
    _product("training_seconds", "s", 1, "tokens"),
    _product("gpu_hours", "GPU h", _HOUR, "tokens gpus"),
    _product("tokens_per_dollar", "tokens", 3600.0, "tokens_per_second", "gpus price_per_gpu_hour"),
    _product(
        "tokens_per_dollar_spot", "tokens", 3600.0, "tokens_per_second",
        "gpus spot_price_per_gpu_hour 1+preemption_overhead",
    ),
    _product(  # above it the other platform costs more per token
        "break_even_price_per_gpu_hour", "currency", 1,
        "price_per_gpu_hour other_tokens_per_second gpus", "tokens_per_second other_gpus",
    ),
    _product("energy", "kWh", _KWH, "tokens gpus watts_per_gpu pue"),
    _product("energy_per_token", "J", 1, "gpus watts_per_gpu pue"),
    _product("carbon", "kg CO2e", _KWH, "tokens gpus watts_per_gpu pue grid_kg_per_kwh"),
)  # fmt: skip


def answers(inputs: Inputs) -> tuple[Answer, ...]:
    """Return every answer, those without a value with what is missing."""
    stated = inputs.stated()
    return tuple(_answer(product, stated) for product in ANSWERS)


def answer(name: str, inputs: Inputs) -> Answer:
    """Return one answer by its name, such as ``tokens_per_dollar``."""
    return next(one for one in answers(inputs) if one.name == name)


def _answer(product: _Product, stated: Mapping[str, Interval]) -> Answer:
    names = [name.removeprefix("1+") for name in (*product.over, *product.under)]
    missing = tuple(name for name in names if name not in stated)
    value = None
    if not missing:
        value, middle = point(product.constant), product.constant
        for by in (_factor(name, stated) for name in product.over):
            value, middle = value * by, middle * by.middle
        for by in (_factor(name, stated) for name in product.under):
            value, middle = value / by, middle / by.middle
        value = Interval(value.low, value.high, middle)
    return Answer(product.name, product.unit, _formula(product), value, missing)


def _factor(name: str, stated: Mapping[str, Interval]) -> Interval:
    value = stated[name.removeprefix("1+")]
    return point(1) + value if name.startswith("1+") else value


def _formula(product: _Product) -> str:
    """Return the formula for people, its unit conversion left out."""
    top, below = (
        " x ".join(f"(1 + {name[2:]})" if name[1] == "+" else name for name in names)
        for names in (product.over, product.under)
    )
    if len(product.under) > 1:
        return f"{top} / ({below})"
    return f"{top} / {below}" if below else top


def read_range(text: str) -> Interval:
    """Return a stated number or range: ``2.5``, ``1T``, ``12%``, ``2.1..2.6``.

    Raises:
        ClaimError: an end is no number, or the ends are out of order.
    """
    first, dots, last = text.partition("..")
    low = read_numeral(first).value
    return Interval(low, read_numeral(last).value if dots else low)
