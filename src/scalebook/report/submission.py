"""SUBMISSION.md: who measured what, on what, and how to repeat it, computed from the records."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from scalebook import __version__
from scalebook.record import RunRecord
from scalebook.report.base.frames import VERSIONS, ReportData, flat, versions
from scalebook.report.base.quantities import NONE, count, interval, percent
from scalebook.report.base.versus import Configuration, configurations

SOFTWARE = (*(name for name in VERSIONS if name != "git_commit"), "triton")
Records = Mapping[str, RunRecord]


@dataclass(frozen=True, slots=True)
class Sender:
    """Who publishes, as stated on the command line; empty where not stated."""

    name: str = ""
    contact: str = ""


def sheet(data: ReportData, held: Records, sender: Sender, left_out: int) -> str:
    """Return the sheet in Markdown; rates are tokens/s per GPU unless a row says otherwise."""
    found = list(held.values())
    parts = (
        ("# Submission", _head(data, sender, left_out)),
        ("## Hardware", _counted(_machine(one.environment) for one in found if one.environment)),
        ("## Software", _counted(versions(one.environment, SOFTWARE) for one in found)),
        ("## Containers", _counted(flat(one.environment.get("container")) for one in found)),
        ("## Plans", _counted(flat(one.schedule.get("plan")) for one in found)),
        ("## Commits", _counted(flat(one.environment.get("git_commit")) for one in found)),
        ("## Results", _results(data)),
        ("## How to repeat", _repeat(data)),
    )
    return "\n\n".join(f"{title}\n\n{body}" for title, body in parts) + "\n"


def plain(value: Any) -> str:
    """Return a text of a record as plain text in Markdown, in one line."""
    text = " ".join(str(value).split())
    text = re.sub(r"([\\`*_{}\[\]()#+!|~$^:@-])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _head(data: ReportData, sender: Sender, left_out: int) -> str:
    status = data.runs["status"].value_counts(sort=True).iter_rows()
    ended = ", ".join(f"{many} {name}" for name, many in status)
    rows = (
        f"Submitter: {plain(sender.name) if sender.name else 'not stated'}",
        f"Contact: {plain(sender.contact) if sender.contact else 'not stated'}",
        f"Runs: {data.runs.height} ({plain(ended)})",
        f"Files left out of the copies: {left_out}",
        f"Written by Scalebook {plain(__version__)} from the records",
    )
    return _bullets(rows)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "The records name none."


def _counted(texts: Iterable[str]) -> str:
    """Return a list of the texts that runs have, each once with how many runs have it."""
    counts = Counter(filter(None, texts))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return _bullets(f"{plain(text)} ({count(many, 'run')})" for text, many in ranked)


def _machine(environment: Mapping[str, Any]) -> str:
    host = environment.get("host")
    cpu = cast("dict[str, Any]", host) if isinstance(host, dict) else {}
    device = environment.get("accelerator") or "no accelerator named"
    amount = environment.get("accelerators_per_node")
    parts = (
        f"{amount} × {device} per node" if amount else str(device),
        f"{environment['accelerator_memory_gib']} GiB each"
        if environment.get("accelerator_memory_gib")
        else "",
        f"{cpu['cpu_model']}" if cpu.get("cpu_model") else "",
        f"{cpu['memory_gib']} GiB of host memory" if cpu.get("memory_gib") else "",
    )
    return ", ".join(part for part in parts if part)


def _results(data: ReportData) -> str:
    """Return a row per configuration that has a rate: its repeats are one."""
    found = configurations(data.completed.iter_rows(named=True))
    if not found:
        return "No run has a rate."
    head = "| configuration | platform | GPUs | precision | sequence | rate (95 % interval) | MFU |"
    lines = [head + " runs |", "|---|---|---:|---|---:|---:|---:|---:|"]
    return "\n".join([*lines, *map(_result, found)])


def _result(one: Configuration) -> str:
    row = one.row
    cells = (
        *(row["name"], row["platform"], row["world_size"], row["precision"]),
        row["sequence_length"],
        interval(one.rate, *one.interval, row["rate_unit"]),
        percent(one.mean("mfu")),
        len(one.every),
    )
    return "| " + " | ".join(NONE if cell is None else plain(cell) for cell in cells) + " |"


def _repeat(data: ReportData) -> str:
    """Return the commands that print what repeats the fastest run of each configuration."""
    found = configurations(data.completed.iter_rows(named=True))
    own = [one.row["run_id"] for one in found if one.row["source"] == "measured"]
    if not own:
        return "No run was measured by Scalebook, so no command can repeat one."
    commands = [shlex.join(("scalebook", "reproduce", run_id, "--runs", "runs")) for run_id in own]
    code = "\n".join(f"    {' '.join(command.split())}" for command in commands)
    return f"Each command prints the checkout, the container and the command of a run.\n\n{code}"
