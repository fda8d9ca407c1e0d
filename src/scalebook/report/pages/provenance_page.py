"""The page of provenance: how each run was made, what is not equal between runs, what is broken."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, cast

from scalebook.measure.verdicts.differences import differences
from scalebook.record import RunRecord
from scalebook.report.base.frames import ReportData, records
from scalebook.report.base.html_tables import RAN, RUN, Column, Row, table, text
from scalebook.report.base.markup import Fragment, Markup, bullets, callout, paragraphs, run_link
from scalebook.report.base.quantities import NONE, count

MOST_ROWS = 500
_VERSIONS = (
    "scalebook", "python", "torch", "cuda", "rocm", "nccl", "rccl", "triton", "megatron_core",
    "transformer_engine", "driver",
)  # fmt: skip

Records = Mapping[str, RunRecord]


def read(data: ReportData) -> dict[str, RunRecord]:
    """Return the record of each run."""
    return records(data)


def overview(data: ReportData, found: Records) -> Fragment:
    """Return how many runs, commits and images there are, and what could not be read."""
    if not found:
        return paragraphs("No run could be read, so there is nothing to trace.")
    commits = {_known_commit(one) for one in found.values()}
    images = {_flat(one.environment.get("container")) for one in found.values()}
    items = [
        Markup("{} of {} and {}.").format(
            count(len(found), "run"),
            count(len(commits - {None}), "commit"),
            count(len(images - {""}), "image"),
        )
    ]
    without = sum(_known_commit(one) is None for one in found.values())
    if without:
        items.append(Markup("{} no commit.").format(count(without, "run records", "runs record")))
    if data.problems:
        items.append(
            Markup("{} could not be read; the reasons stand below.").format(
                count(len(data.problems), "part of the run files", "parts of the run files")
            )
        )
    return bullets(items)


def runs(data: ReportData, found: Records) -> Fragment:
    """Return each run's command, versions, image, environment variables and commit."""
    if not found:
        return Fragment(Markup(""))
    folders = dict(data.runs.select("run_id", "folder").iter_rows())
    rows = [
        {**_row(one), "folder": folders[run_id]} for run_id, one in list(found.items())[:MOST_ROWS]
    ]
    columns = (
        *(RUN, RAN),
        Column("started_at", "Started, UTC", _started, numeric=False),
        Column("git_commit", "Commit", _commit, numeric=False),
        text("torch", "PyTorch"),
        Column("versions", "Versions", _folded("versions"), numeric=False),
        Column("command", "Command", _folded("command"), numeric=False),
        Column("variables", "Variables", _folded("variables"), numeric=False),
        Column("image", "Image", _folded("image"), numeric=False),
        Column("again", "Again with", _again, numeric=False, wide=True),
        text("source", "Source"),
        text("folder", "Folder"),
    )
    shown = table(data.with_work(rows), columns, "provenance")
    if len(found) <= MOST_ROWS:
        return shown
    cut = paragraphs(f"The first {MOST_ROWS} of {len(found)} runs are shown.")
    return Fragment(shown.html + cut.html)


def _known_commit(one: RunRecord) -> str | None:
    """Return the commit of a run; None where its record holds none, or something else."""
    commit = one.environment.get("git_commit")
    return commit if isinstance(commit, str) and commit else None


def _row(one: RunRecord) -> dict[str, Any]:
    environment = one.environment
    named = ((name, environment.get(name)) for name in _VERSIONS)
    made_here = one.source in ("measured", "inferred")
    return {
        "run_id": one.run_id,
        "source": one.source,
        "status": one.status,
        "started_at": one.started_at,
        "git_commit": _known_commit(one),
        "torch": environment.get("torch"),
        "versions": ", ".join(f"{name} {value}" for name, value in named if value) or NONE,
        "image": _flat(environment.get("container")),
        "command": shlex.join(one.command),
        "variables": _flat(environment.get("variables")),
        "again": shlex.join(("scalebook", "reproduce", one.run_id)) if made_here else None,
    }


def _flat(value: Any) -> str:
    """Return a mapping of a record as text, in the order of its names; nothing for none."""
    if not isinstance(value, dict):
        return str(value or "")
    items = cast("dict[str, Any]", value).items()
    return ", ".join(f"{name}={one}" for name, one in sorted(items) if one is not None)


def _started(row: Row) -> str:
    """Return when a run started, to the minute; the exact time goes with the cell."""
    return str(row["started_at"] or NONE)[:16].replace("T", " ")


def _commit(row: Row) -> Markup | str:
    commit = row["git_commit"]
    return NONE if commit is None else Markup("<code>{}</code>").format(_short(str(commit)))


def _short(text: str) -> str:
    """Return a text with every hash of a commit cut to its first 12 digits."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", text)


def _folded(key: str) -> Any:
    def write(row: Row) -> Markup | str:
        if not row[key]:
            return NONE
        shown = Markup("<details><summary>show</summary><code>{}</code></details>")
        return shown.format(row[key])

    return write


def _again(row: Row) -> Markup:
    if row["again"] is None:
        return Markup("no command of Scalebook made it")
    return Markup("<code>{}</code>").format(row["again"])


def unequal(found: Records) -> Fragment:
    """Return every version, device and variable that is not equal over the runs of one platform."""
    platforms: dict[str, list[RunRecord]] = {}
    for one in found.values():
        platforms.setdefault(str(one.setting("platform") or "unknown platform"), []).append(one)
    rows = [row for name, group in platforms.items() for row in _unequal(name, group)]
    if not rows:
        return paragraphs("Versions, devices and variables are equal over the runs of a platform.")
    columns = (
        *(text("platform", "Platform"), text("name", "What")),
        Column("values", "Values and runs", lambda row: row["values"], numeric=False, wide=True),
    )
    return table(rows[:MOST_ROWS], columns, "unequal")


def _unequal(platform: str, group: list[RunRecord]) -> list[dict[str, Any]]:
    """Return what differs in the surroundings of these runs; settings are the other pages' part."""
    bare = [one.model_copy(update={"requested": {}, "observed": {}}) for one in group]
    names = dict.fromkeys(item.name for one in bare[1:] for item in differences([bare[0]], [one]))
    return [{"platform": platform, "name": name, "values": _values(bare, name)} for name in names]


def _values(group: list[RunRecord], name: str) -> str:
    """Return the values of a dotted name, each with how many runs have it."""
    counts: dict[str, int] = {}
    for one in group:
        value: Any = one.environment
        for part in name.split("."):
            value = cast("dict[str, Any]", value).get(part) if isinstance(value, dict) else None
        words = "none" if value is None else _short(str(value))
        counts[words] = counts.get(words, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{words} ({count(many, 'run')})" for words, many in ranked)


def otherwise(data: ReportData) -> Fragment:
    """Return the runs whose trainer read back another setting than was asked for."""
    if not data.differences:
        return paragraphs("Every measured run ran as it was asked for, as far as it was read back.")
    return bullets(
        Markup("{}: {}").format(run_link(run_id), " ".join(said))
        for run_id, said in data.differences.items()
    )


def broken(data: ReportData) -> Fragment:
    """Return the run directories and lines that could not be read, each with the reason."""
    if not data.problems:
        return paragraphs("Every run directory could be read whole.")
    return callout("Not readable", data.problems)
