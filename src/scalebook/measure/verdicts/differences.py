"""What differs between two runs in addition to their speed: settings, software, devices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from scalebook.record import RunRecord
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
    left, right = _values(_Side(a)), _values(_Side(b))
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


class _Side(tuple[RunRecord, ...]):
    """Records as a key of a cache: which ones they are, not what they hold."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))


@lru_cache(maxsize=1000)  # the same repeats are a side of many pairs
def _values(records: _Side) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for record in records:
        for name, value in _settings(record).items():
            found.setdefault(name, set()).add(value)
    return found


def _settings(record: RunRecord) -> dict[str, str]:
    """Return the settings of a run by dotted name: what was observed, else what was requested."""
    asked = {name: value for name, value in _flat(record.asked) if name not in _NO_SETTING}
    environment = {
        name: value
        for name, value in _flat(record.environment)
        if any(name == kept or name.startswith(f"{kept}.") for kept in _ENVIRONMENT)
    }
    return {**environment, **asked, **dict(_flat(record.observed))}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Yield (dotted name, value as text) of each value that is not None."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(cast(Mapping[str, Any], value), f"{before}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{before}{name}", text
