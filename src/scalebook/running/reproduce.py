"""How to reproduce a recorded run, and how this machine differs from the recorded one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scalebook import host, project, scrub
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, RecordError
from scalebook.plan.defaults import given
from scalebook.record import RunRecord, object_of
from scalebook.running.container import contents, rules
from scalebook.running.devices import detect
from scalebook.settings import assigned

_PACKAGES = ("torch", "megatron_core", "transformer_engine")
_COMPARED = (
    *("scalebook", "git_commit", "python", *_PACKAGES),
    *("accelerator", "accelerators_per_node"),
)
_VERSIONS = (
    *("scalebook", "python", "torch", "cuda", "rocm", "nccl", "rccl", "driver"),
    *_PACKAGES[1:],
)
_COMMIT = re.compile(r"[0-9a-f]{7,64}(?:-dirty)?")
_HOST = ("cpu_model", "cpu_cores", "memory_gib", "kernel", "architecture")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to do to reproduce a run. Commands are argv; ``differences`` are name, then, now."""

    run_id: str
    config_hash: str
    command: tuple[str, ...]
    papermill: tuple[str, ...]
    git_commit: str | None
    image: dict[str, Any]
    versions: dict[str, Any]
    variables: dict[str, str]  # to set: recorded, and not the launcher's own
    unset: tuple[str, ...]  # set here, and not when the run was made
    differences: tuple[tuple[str, Any, Any], ...]
    notes: tuple[str, ...]


def recipe(
    record: RunRecord, surroundings: Mapping[str, Any], variables: Mapping[str, str]
) -> Recipe:
    """Return how to reproduce a run on a machine with these surroundings and variables.

    Raises:
        RecordError: the run was not made by Scalebook, or its configuration is not whole.
    """
    config = _config(record)
    then = record.environment
    wanted = _variables(then)
    own = {variable.name: variable.value for variable in rules.variables(config)}
    here = host.performance_variables(variables)
    return Recipe(
        run_id=record.run_id,
        config_hash=config.config_hash(),
        command=command(config, pruned=record.source == "inferred"),
        papermill=papermill(config),
        git_commit=_commit(then),
        image=object_of(then.get("container")),
        versions={name: then[name] for name in _VERSIONS if then.get(name) is not None},
        variables={
            name: value
            for name, value in wanted.items()
            if value != here.get(name, own.get(name)) and value != scrub.MASK
        },
        unset=tuple(name for name in here if name not in {**wanted, **own}) if wanted else (),
        differences=tuple(_differences(then, surroundings)),
        notes=tuple(_notes(record, config, wanted)),
    )


def _config(record: RunRecord) -> RunConfig:
    if record.source not in ("measured", "inferred"):
        raise RecordError(
            f"Run {record.run_id} is {record.source}: no command of Scalebook made it. Only "
            "measured runs can be reproduced."
        )
    try:
        return RunConfig.from_parameters(record.requested)
    except ConfigError as error:
        raise RecordError(
            f"The configuration of run {record.run_id} is not one of this version: {error}"
        ) from error


def command(config: RunConfig, *, pruned: bool = False) -> tuple[str, ...]:
    """Return the command line of ``scalebook run`` that runs this very configuration."""
    fields = {name: value for name, value in given(config).items() if name != "platform"}
    flags = (word for text in assigned(fields) for word in ("--set", text))
    more = ("--no-prune",) if pruned else ()
    return ("scalebook", "run", "--platform", config.platform, "--rerun", *more, *flags)


def papermill(config: RunConfig) -> tuple[str, ...]:
    """Return the command line of papermill that does the same; texts are passed as they are."""
    flags: list[str] = []
    for name, value in given(config).items():
        flags += ["-r" if isinstance(value, str) else "-p", name, str(value)]
    return ("papermill", str(project.TRAIN_NOTEBOOK), "out.ipynb", *flags)


def _variables(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the recorded performance variables; a record of others may hold any name."""
    found = object_of(environment.get("variables"))
    texts = {name: value for name, value in found.items() if isinstance(value, str)}
    return {n: v for n, v in host.performance_variables(texts).items() if n.isidentifier()}


def _commit(environment: Mapping[str, Any]) -> str | None:
    """Return the commit of a record, None where it has none or the text is not a commit."""
    commit = environment.get("git_commit")
    return commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else None


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each fact that was recorded and is another here: name, then, now (None: not here)."""
    for name in _COMPARED:
        if name in then and then[name] != now.get(name):
            yield name, then[name], now.get(name)
    before, here = object_of(then.get("host")), object_of(now.get("host"))
    for name in _HOST:
        if name in before and before[name] != here.get(name):
            yield f"host.{name}", before[name], here.get(name)


def _notes(record: RunRecord, config: RunConfig, wanted: Mapping[str, str]) -> Iterator[str]:
    commit = _commit(record.environment)
    if commit is None:
        yield "The record names no commit: which code ran is not known."
    elif commit.endswith("-dirty"):
        yield "Files differed from the commit when the run was made: the exact code is not known."
    if record.config_hash not in (None, config.config_hash()):
        yield (
            f"The record's hash is {record.config_hash}: it was made by a version that hashes the "
            "same fields otherwise, or was changed since."
        )
    if record.source == "inferred":
        yield f"This configuration never ran: {record.reason}"
    if record.requested.get("data"):
        yield f"The dataset {record.requested['data']!r} must be there, with the same content."
    masked = [name for name, value in wanted.items() if value == scrub.MASK]
    if masked:
        yield f"Secret, and so not recorded: {', '.join(masked)}."
    if not wanted:
        yield "The record contains no environment variables."
    if record.differences:
        names = ", ".join(str(one.get("name")) for one in record.differences)
        yield f"The recorded run differs from its request ({names}). The command repeats it."


def surroundings(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return this machine's counterpart of what a record stores, without loading torch."""
    machine, versions = detect.detect(), contents.versions()
    return {
        **host.facts(variables, project.root()),
        **{name: versions[name] for name in _PACKAGES},
        "accelerator": machine.device_name,
        "accelerators_per_node": machine.count,
    }


def lines(found: Recipe) -> Iterator[str]:
    """Yield the recipe as a shell script whose comments say the rest."""
    yield _comment(f"Run {found.run_id}, configuration {found.config_hash}")
    for name, value in {**found.versions, **found.image}.items():
        yield _comment(f"{name} {value}")
    if found.git_commit:
        yield f"git checkout {shlex.quote(found.git_commit.removesuffix('-dirty'))}"
    for name in found.unset:
        yield f"unset {shlex.quote(name)}"
    for name, value in found.variables.items():
        yield f"export {shlex.quote(name)}={shlex.quote(value)}"
    yield shlex.join(found.command)
    yield _comment(f"or: {shlex.join(found.papermill)}")
    for note in found.notes:
        yield _comment(f"note: {note}")
    for name, then, now in found.differences:
        yield _comment(f"differs here: {name}: recorded {then!r}, here {now!r}")
    if not found.differences:
        yield _comment("This machine's versions and hardware are those of the record.")


def _comment(text: str) -> str:
    """Return a comment of a shell script: one line, whatever a record holds."""
    return "# " + "".join(c if c.isprintable() else " " for c in text)
