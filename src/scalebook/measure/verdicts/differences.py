"""What differs between two runs in addition to their speed: settings, software, devices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from scalebook.record import RunRecord, object_of
from scalebook.settings import SETTINGS, named, names

# What a run is called or how often it was run makes no other configuration of it.
_NO_SETTING = named("never")
# With another value of these, runs do other work, so that their rates are not of one thing.
_WORK = (*names("work"), "world_size")
_WORK_WORDS = {
    "sequence_length": "tokens per sample", "world_size": "GPUs",
    "mtp_layers": "multi-token prediction modules",
}  # fmt: skip
# The parts of an environment that can change a speed; the rest is names, places and times.
_ENVIRONMENT = (
    "accelerator", "accelerators_per_node", "accelerator_memory_gib", "multiprocessors", "driver",
    "power_cap_watts", "torch", "cuda", "rocm", "triton", "nccl", "rccl", "backend",
    "megatron_core", "transformer_engine", "python", "scalebook", "git_commit", "container",
    "variables", "host.cpu_model", "host.cpu_cores", "host.kernel", "host.architecture", "threads",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting and its values on the two sides, as text; None where a side has none."""

    name: str
    a: str | None
    b: str | None

    def __str__(self) -> str:
        return f"{self.name}: {self.a or 'none'} against {self.b or 'none'}"


def differences(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> tuple[Difference, ...]:
    """Return every setting whose values over the runs of A are not those over the runs of B."""
    left, right = (_values(tuple(map(_Same, side))) for side in (a, b))
    names = sorted({*left, *right})
    return tuple(
        Difference(name, _shown(left.get(name)), _shown(right.get(name)))
        for name in names
        if left.get(name) != right.get(name)
    )


def other_work(found: Iterable[Difference]) -> str | None:
    """Return a sentence on the work that differs between the sides; None where none is known to.

    What a side does not tell (a log from elsewhere) is not known to differ.
    """
    parts = [
        f"{_WORK_WORDS.get(one.name, SETTINGS[one.name].words)} {one.a} against {one.b}"
        for one in found
        if one.name in _WORK and one.a is not None and one.b is not None
    ]
    return f"A and B do different work: {'; '.join(parts)}." if parts else None


def _shown(values: set[str] | None) -> str | None:
    return ", ".join(sorted(values)) if values else None


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A record as a key: which one it is, whatever it holds."""

    record: RunRecord

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.record is other.record

    def __hash__(self) -> int:
        return id(self.record)


@lru_cache(maxsize=1000)  # the same repeats are a side of many pairs
def _values(records: tuple[_Same, ...]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in records:
        for name, value in _settings(one.record).items():
            found.setdefault(name, set()).add(value)
    return found


def _settings(record: RunRecord) -> dict[str, str]:
    """Return the settings of a run by dotted name: what was observed, else what was requested."""
    asked = {name: value for name, value in _flat(record.asked) if name not in _NO_SETTING}
    return {**dict(_surroundings(record)), **asked, **dict(_flat(record.observed))}


def _surroundings(record: RunRecord) -> Iterable[tuple[str, str]]:
    for name in _ENVIRONMENT:
        *groups, own = name.split(".")
        inside = record.environment
        for group in groups:
            inside = object_of(inside.get(group))
        yield from _flat({name: inside.get(own)})


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Yield (dotted name, value as text) of each value that is not None."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(cast(Mapping[str, Any], value), f"{before}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{before}{name}", text
