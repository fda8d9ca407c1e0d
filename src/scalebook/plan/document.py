"""A plan, and its file: what cannot be meant there is refused in one line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from scalebook import untrusted
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, near_path, unknown
from scalebook.facts import legality
from scalebook.facts.legality import Fit, Problem
from scalebook.facts.memory import MemoryEstimate
from scalebook.plan.schedule import KEYS as SCHEDULE_KEYS
from scalebook.plan.schedule import Schedule, read_schedule, shuffled
from scalebook.settings import PARALLEL_SIZES

# Keys of a table beside the fields of RunConfig (the platform comes from the caller).
EXTRA_KEYS = ("global_batch_size_per_gpu", "platforms")
KEYS = (*(name for name in RunConfig.model_fields if name != "platform"), *EXTRA_KEYS)
# What a plan asks. Each kind has one form of answer in the report; the question is in words.
KINDS = (
    *("headline", "scaling", "strategies", "ablation", "map"),
    *("precision", "experts", "prediction", "correctness", "drill", "tune"),
)
LONGEST_QUESTION = 120  # characters

_HEAD = ("name", "description", "kind", "question", *SCHEDULE_KEYS)

# Two ways to say one thing: a key of either displaces those of the other.
_RIVALS = (
    (frozenset({"strategy"}), frozenset(PARALLEL_SIZES)),
    (frozenset({"global_batch_size"}), frozenset({"global_batch_size_per_gpu"})),
    (frozenset({"order"}), frozenset({"order_seed"})),
)

Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One configuration of a plan with its verdict; illegal ones stay, with their reason."""

    config: RunConfig
    problems: tuple[Problem, ...]
    memory: MemoryEstimate | None = None  # None where the run is illegal
    fit: Fit | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the predicted memory fits; None where it is unknown (``fit.reason``)."""
        return self.fit.fits if self.fit else None

    @property
    def legal(self) -> bool:
        """Whether nothing forbids the run."""
        return legality.is_legal(self.problems)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, in the order of running it."""

    name: str
    description: str
    runs: tuple[PlannedRun, ...]
    schedule: Schedule = field(default_factory=Schedule)
    kind: str = ""  # one of KINDS; empty where the plan does not say
    question: str = ""

    def shuffled(self, seed: int) -> Plan:
        """Return the plan in the random order of a seed, which its schedule then names."""
        by_hash = {run.config.config_hash(): run for run in self.runs}
        order = shuffled((run.config for run in self.runs), seed)
        runs = tuple(by_hash[config.config_hash()] for config in order)
        return replace(self, runs=runs, schedule=replace(self.schedule, seed=seed))


def read_document(
    path: Path,
    overrides: Mapping[str, Any] | None = None,
    scheduled: Mapping[str, Any] | None = None,
) -> tuple[Plan, list[Table]]:
    """Return the plan in a TOML file, without its runs, and one table of fields per [[runs]].

    Every table has the defaults below it, ``overrides`` above; ``scheduled`` is above the schedule.

    Raises:
        ConfigError: the file is missing or no TOML, or a key or its value is not allowed.
    """
    content = _parse(path)
    _refuse_unknown(path, "section", content, ("plan", "defaults", "runs"))
    head = _table(path, content, "plan")
    _refuse_unknown(path, "key of [plan]", head, _HEAD)
    defaults = _table(path, content, "defaults")
    _refuse_unknown(path, "key of [defaults]", defaults, KEYS)
    runs = content.get("runs")
    if not isinstance(runs, list) or not runs:
        raise ConfigError(f"{path}: no [[runs]] table. Add at least one.")
    tables: list[Table] = []
    for number, run in enumerate(cast("list[Any]", runs), start=1):
        where = f"[[runs]] {number}"
        if not isinstance(run, dict):
            raise ConfigError(f"{path}: runs must be tables. Write [[runs]] above each.")
        table = cast("Table", run)
        _refuse_unknown(path, f"key of {where}", table, KEYS)
        for layer, name in ((defaults, "[defaults]"), (table, where)):
            _refuse_conflicts(path, name, layer, head)
        tables.append(displace(displace(defaults, table), overrides or {}))
    times = {name: head[name] for name in SCHEDULE_KEYS if name in head}
    try:
        schedule = read_schedule(displace(times, scheduled or {}))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    name, description = _text(path, head, "name", path.stem), _text(path, head, "description", "")
    asked = _kind(path, head), _question(path, head)
    return Plan(name, description, (), schedule, *asked), tables


def displace(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Return ``below`` with ``above`` on top; keys that say the same displace one another."""
    gone: set[str] = set()
    for one, other in _RIVALS:
        gone |= other if one & above.keys() else frozenset()
        gone |= one if other & above.keys() else frozenset()
    return {name: value for name, value in below.items() if name not in gone} | dict(above)


def _parse(path: Path) -> Table:
    try:
        return tomllib.loads(untrusted.read_bytes(path, follow=True).decode())
    except OSError as error:
        near = "" if path.exists() else near_path(path)
        raise ConfigError(f"Plan {path} cannot be read: {error.strerror}.{near}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"Plan {path} is not valid TOML: {error}.") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"Plan {path} is nested too deeply, or a number is too long.") from error


def _table(path: Path, content: Table, name: str) -> Table:
    value = content.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {name} must be a table. Write [{name}] above its keys.")
    return cast("Table", value)


def _text(path: Path, head: Table, name: str, default: str) -> str:
    value = head.get(name, default)
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {name}={value!r} of [plan] must be text.")
    return value


def _kind(path: Path, head: Table) -> str:
    kind = _text(path, head, "kind", "")
    if kind and kind not in KINDS:
        raise ConfigError(f"{path}: {unknown('kind of [plan]', kind, KINDS)}")
    return kind


def _question(path: Path, head: Table) -> str:
    question = _text(path, head, "question", "").strip()
    if question and (len(question) > LONGEST_QUESTION or not question.endswith("?")):
        raise ConfigError(
            f"{path}: question={question!r} of [plan] must be one question of at most "
            f"{LONGEST_QUESTION} characters that ends in '?'."
        )
    return question


def _refuse_unknown(path: Path, kind: str, table: Table, known: tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            reason = unknown(kind, name, known)
            here, near = (get_close_matches(name.lower(), of, 1, 0.75) for of in (known, KEYS))
            if name == "platform":
                reason = f"platform is not a {kind}: choose it with --platform."
            elif near and not here:
                reason = f"{name!r} is not a {kind}. Settings belong into [defaults] or [[runs]]."
                reason += "" if name in KEYS else f" Did you mean {near[0]!r}?"
            raise ConfigError(f"{path}: {reason}")


def _refuse_conflicts(path: Path, where: str, table: Table, head: Table) -> None:
    named = [size for size in PARALLEL_SIZES if size in table]
    if "strategy" in table and named:
        raise ConfigError(f"{path}: {where} has both strategy and {named[0]}. Keep one of them.")
    if {"global_batch_size", "global_batch_size_per_gpu"} <= table.keys():
        raise ConfigError(
            f"{path}: {where} has both global_batch_size and global_batch_size_per_gpu. "
            "Keep the first for strong scaling, the second for weak scaling."
        )
    if "repeat" in table and "repeats" in head:
        raise ConfigError(
            f"{path}: {where} has repeat and [plan] has repeats. Keep one of them: repeats runs "
            "every configuration that many times."
        )
