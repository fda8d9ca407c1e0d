"""What the owner of the runs states about them: prices, power, a token budget (economics.toml).

No price, power or carbon intensity has a default: a number that nobody stated is null with that
as its reason.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from scalebook import untrusted
from scalebook.errors import ClaimError
from scalebook.measure.economics import Inputs, read_range
from scalebook.measure.intervals import Interval

FILE = "economics.toml"
CLAIMS = "claims"  # the folder of printed numbers to audit, under the folder of runs too
SAMPLE = """\
# Every line may be left out; a value is a number, or a text such as "2.1..2.6", "1T" or "5%".
tokens = "1T"                        # to train on
pue = "1.15..1.3"                    # energy of the facility over energy of its computers
grid_kg_per_kwh = 0.35               # CO2 equivalent of the grid

[h100]                               # a platform, as the runs call it
price_per_gpu_hour = "2.1..2.6"      # in any one currency: replace it by yours
spot_price_per_gpu_hour = 1.2
reserved_price_per_gpu_hour = 1.6
preemption_overhead = "5%"           # extra time by preemptions
watts_per_gpu = 900                  # mean draw of a GPU with its share of the node
storage_tb = 50                      # held while training runs: data, checkpoints, logs
price_per_tb_month = 20
transferred_tb = 5                   # sent over a network that is charged for
price_per_transferred_tb = 90
"""
SHARED = ("tokens", "pue", "grid_kg_per_kwh")
EACH = (
    *("price_per_gpu_hour", "spot_price_per_gpu_hour", "reserved_price_per_gpu_hour"),
    *("preemption_overhead", "watts_per_gpu"),
    *("storage_tb", "price_per_tb_month", "transferred_tb", "price_per_transferred_tb"),
)
_LARGEST_FILE = 100_000  # bytes
_NUMBERED = re.compile(rf"{re.escape(FILE)}(-\d+)?")


@dataclass(frozen=True, slots=True)
class Stated:
    """The stated inputs: those of the job, those of each platform, and what could not be read."""

    shared: Mapping[str, Interval] = field(default_factory=dict[str, Interval])
    platforms: Mapping[str, Mapping[str, Interval]] = field(
        default_factory=dict[str, Mapping[str, Interval]]
    )
    problems: tuple[str, ...] = ()

    def of(self, platform: str | None, name: str) -> Interval | None:
        """Return an input of a platform; None where it was not stated."""
        return self.platforms.get(platform or "", {}).get(name, self.shared.get(name))


def read_stated(folder: Path) -> Stated:
    """Return the inputs of ``economics.toml`` in a folder of runs; nothing where it has none.

    Merged folders have a file each, with a number behind its name: what they state differently is
    left out, and a problem says so.

    Top level: ``tokens``, ``pue``, ``grid_kg_per_kwh``. A table a platform: prices in any one
    currency, ``preemption_overhead`` (a fraction), ``watts_per_gpu``. A value is a number, or a
    text such as "2.1..2.6" or "1T".
    """
    names = (path for path in sorted(folder.glob(f"{FILE}*")) if _NUMBERED.fullmatch(path.name))
    found = [_read(path) for path in names]
    problems = [problem for one in found for problem in one.problems]
    shared = dict(_agreed([one.shared for one in found], "", problems))
    platforms = {
        name: dict(_agreed([one.platforms.get(name, {}) for one in found], f"[{name}] ", problems))
        for name in dict.fromkeys(name for one in found for name in one.platforms)
    }
    return Stated(shared, platforms, tuple(problems))


def _agreed(
    each: Sequence[Mapping[str, Interval]], place: str, problems: list[str]
) -> Iterator[tuple[str, Interval]]:
    for name in dict.fromkeys(name for one in each for name in one):
        values = {one[name] for one in each if name in one}
        if len(values) > 1:
            problems.append(f"{FILE}: {place}{name} differs between the folders and is left out.")
        else:
            yield name, values.pop()


def _read(path: Path) -> Stated:
    try:
        content = tomllib.loads(untrusted.read_bytes(path, _LARGEST_FILE).decode())
    except OSError as error:
        return Stated(problems=(f"{FILE} cannot be read: {error.strerror}",))
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or a huge integer
        reason = " ".join(str(error).split())[:200]
        return Stated(problems=(f"{FILE} cannot be read: {reason}",))
    problems: list[str] = []
    tables = {
        name: cast("dict[str, Any]", value)
        for name, value in content.items()
        if isinstance(value, dict)
    }
    single = {name: value for name, value in content.items() if name not in tables}
    shared = dict(_inputs(single, SHARED, "", problems))
    platforms = {
        name: dict(_inputs(values, EACH, f"[{name}] ", problems)) for name, values in tables.items()
    }
    return Stated(shared, platforms, tuple(problems))


def _inputs(
    values: Mapping[str, Any], known: tuple[str, ...], place: str, problems: list[str]
) -> Iterator[tuple[str, Interval]]:
    for name, value in values.items():
        if name not in known:
            problems.append(f"{FILE}: {place}{name} is none of {', '.join(known)}.")
            continue
        try:
            found = read_range(value if isinstance(value, str) else repr(value))
            Inputs(**{name: found})  # refuses what can't be: a price below zero, a PUE below 1
        except ClaimError as error:
            problems.append(f"{FILE}: {place}{name}: {error}")
        else:
            yield name, found
