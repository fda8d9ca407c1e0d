"""What each switch is worth: runs that differ from an optimised one in that switch alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalebook.identity import VERSIONS
from scalebook.measure.verdicts import Verdict
from scalebook.report.base.comparisons import (
    Member,
    Pair,
    fastest,
    grouped,
    mean_rate,
    side_name,
    work_key,
)
from scalebook.report.base.naming import changes_in_words, setting_words, sized
from scalebook.settings import named, names

Repeats = tuple[Member, ...]
SIZES = named("layout", "size")
# Ways of doing the same step: those that may be what an ablation switches.
SWITCHES = (*names("kernel"), "data_parallel_sharding", "layer_spec")
# As asked for, in addition to the work and the sizes.
FIXED = tuple(n for n in named("where it differs", "off default") if n not in SWITCHES)
# Of what differs here nobody knows what a switch is worth. Whether Transformer Engine is installed
# decides whose layers run where that was left open.
STOOD_ON = ("accelerator", *VERSIONS)
IN_HEAD = ("work", "side")  # what every name begins with


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch: its value in the optimised configuration, the other, and the rates' verdict.

    ``pair`` has the optimised configuration as A.
    """

    name: str
    value: str
    other: str
    pair: Pair

    @property
    def label(self) -> str:
        """The switch in words: ``fused attention: on, not off``."""
        return f"{self.words}: {self.value}, not {self.other}"

    @property
    def choice(self) -> str:
        """Both values, neither of them preferred: ``recompute: none or pointwise``."""
        return f"{self.words}: {self.value} or {self.other}"

    @property
    def words(self) -> str:
        """The switch as labels call it: ``fused RoPE``."""
        return setting_words(self.name).removesuffix(" in")  # gradients in bf16

    @property
    def verdict(self) -> Verdict | None:
        """What the optimised value is worth: its rate over that with the other value."""
        return self.pair.verdict


@dataclass(frozen=True, slots=True)
class Ablation:
    """The switches of one optimised configuration, the largest worth first.

    ``plain`` is the configuration with the most switches changed at once, as A over B with the
    optimised one; None where no run changes several.
    """

    name: str
    optimised: Repeats
    switches: tuple[Switch, ...]
    plain: Pair | None
    plain_changes: tuple[str, ...] = ()


def changed(a: Member, b: Member) -> tuple[str, ...]:
    """Return the switches that were set otherwise and ran otherwise.

    A switch that was left open on both sides is no change, even if it came out differently: what
    made it so is the change.
    """
    asked_a, asked_b = a.record.asked, b.record.asked
    was_a, was_b = a.record.in_force, b.record.in_force
    return tuple(
        name
        for name in SWITCHES
        if asked_a.get(name) != asked_b.get(name) and was_a.get(name) != was_b.get(name)
    )


def ablations(items: Sequence[Member]) -> tuple[Ablation, ...]:
    """Return the ablation of each group of runs that differ in switches alone."""
    groups = grouped(items, _group_key).values()
    found = [one for group in groups if (one := _ablation(group)) is not None]
    names = _names([one.optimised[0] for one in found])
    return tuple(replace(one, name=name) for one, name in zip(found, names, strict=True))


def _group_key(item: Member) -> str | None:
    shared = _shared(item)
    return json.dumps(shared, default=str) if shared else None


def _switched(item: Member) -> str:
    """Return the values of all switches as they were asked for."""
    return json.dumps([item.record.asked.get(name) for name in SWITCHES])


def _shared(item: Member) -> dict[str, Any]:
    """Return what the runs of an ablation have in common, by name; nothing where it is unknown.

    That is the work, the side, every setting as it was asked for that is no switch, and the device
    and versions that the run stood on. Left out is what leaves the speed of a step alone: how many
    steps there are, the learning rate, the seed, what is profiled or saved beside them.
    """
    work = work_key(item)
    if work is None or not item.record.requested:
        return {}
    asked = {name: item.record.asked.get(name) for name in FIXED}
    sizes = {name: item.row.get(name) for name in SIZES}
    stood_on = {name: item.record.environment.get(name) for name in STOOD_ON}
    return {"work": work, "side": side_name(item.row)} | sizes | asked | stood_on


def _names(items: Sequence[Member]) -> Iterator[str]:
    """Yield what the groups of these runs are called, each with what tells it from the others."""
    for item in items:
        head, own = _name(item), _shared(item)
        alike = [_shared(other) for other in items if _name(other) == head]
        differ = (name for name in own if any(other.get(name) != own[name] for other in alike))
        # each by itself: of several words some would be cut
        told = (changes_in_words([(name, own[name])])[0] for name in differ if name not in IN_HEAD)
        yield ", ".join([head, *told])


def _ablation(group: Repeats) -> Ablation | None:
    """Return the ablation of a group; None where no two of its runs differ in one switch.

    The optimised configuration is the one that most others differ from in a single switch. Of
    configurations of the same switches, such as two numbers of steps, the fastest counts.
    """
    certain = [item for item in group if item.estimate is not None]
    configurations = [fastest(same) for same in grouped(certain, _switched).values()]
    if len(configurations) < 2:
        return None
    ranked = sorted(
        configurations, key=lambda one: (-_neighbours(one, configurations), -mean_rate(one))
    )
    best = ranked[0]
    if _neighbours(best, configurations) == 0:
        return None
    switches = sorted(_switches(best, configurations), key=_worth, reverse=True)
    most = max(configurations, key=lambda one: len(changed(best[0], one[0])))
    changes = changed(best[0], most[0])
    plain = _pair(best, most) if len(changes) > 1 else None
    return Ablation(_name(best[0]), best, tuple(switches), plain, changes if plain else ())


def _neighbours(one: Repeats, configurations: Sequence[Repeats]) -> int:
    return sum(len(changed(one[0], other[0])) == 1 for other in configurations)


def _switches(best: Repeats, configurations: Sequence[Repeats]) -> Iterator[Switch]:
    for other in configurations:
        names = changed(best[0], other[0])
        if len(names) == 1:
            value, instead = (
                _text(side[0].record.in_force.get(names[0])) for side in (best, other)
            )
            yield Switch(names[0], value, instead, _pair(best, other))


def _pair(best: Repeats, other: Repeats) -> Pair:
    return Pair("as named", "optimised", "changed", best, other)


def _worth(item: Switch) -> float:
    return item.verdict.ratio if item.verdict else 0.0


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _name(item: Member) -> str:
    row = item.row
    what = f"{row['model']} on {side_name(row)}"
    return f"{what}, {sized(row)}, {row['precision']}, sequence {row['sequence_length']:,}"
