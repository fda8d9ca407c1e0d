"""A folder to publish: the report, cleaned copies of its runs, an index, checksums and a sheet.

The sheet is SUBMISSION.md: who measured what, on what, and how to repeat it, from the records.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook import __version__, scrub, settings
from scalebook.errors import PublicationError, ReportError
from scalebook.record import RunRecord, object_of
from scalebook.report import cleaned
from scalebook.report.base.frames import VERSIONS, ReportData, flat, records, versions
from scalebook.report.base.naming import WORK
from scalebook.report.base.quantities import NONE, count, interval, percent
from scalebook.report.base.versus import Configuration, configurations
from scalebook.report.cleaned import Copied
from scalebook.report.pages.studies import studies
from scalebook.report.site import build_cache
from scalebook.report.site.builder import Places, build
from scalebook.store import read_object, run_directories

FORMAT = "scalebook-publication"
FORMAT_VERSION = 1
INDEX = "index.json"
SUMS = "SHA256SUMS"
SHEET = "SUBMISSION.md"
_COUNTED = ("data_parallel_size", "micro_batch_size", "global_batch_size", "recompute")
LAYOUT = tuple(dict.fromkeys((*settings.names("layout"), *_COUNTED)))
COLUMNS = (
    *("run_id", *WORK, "accelerator", "world_size", "nodes"),
    "tokens_per_second", "rate", "rate_low", "rate_high", "rate_unit", "mfu",
    "mfu_reason", "flops_convention", "source", "status", "reason",
)  # fmt: skip
SOFTWARE = (*(name for name in VERSIONS if name != "git_commit"), "triton")


@dataclass(frozen=True, slots=True)
class Sender:
    """Who publishes, as stated on the command line; empty where not stated."""

    name: str = ""
    contact: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """What was published: where, how many runs, and how many files were left out."""

    folder: Path
    runs: int
    left_out: int


def is_publication(folder: Path) -> bool:
    """Return whether a folder holds a publication of Scalebook."""
    return read_object(folder / INDEX).get("format") == FORMAT


def publish(runs: Path, target: Path, project: Path, sender: Sender) -> Published:
    """Write the publication of a folder of runs, in the place of an older one.

    Raises:
        PublicationError: something looks like a secret; each file and line is named.
        ReportError: there is no run, the report is not fit, or the folder is not a publication.
    """
    _refuse(runs, target)
    stage = target.absolute().with_name(f".{target.name}.{os.urandom(6).hex()}.tmp")
    stage.mkdir(parents=True)
    try:
        copied = _copy_runs(runs, stage / "runs")
        left_out = sum(one.left_out for one in copied.values())
        site = stage / "site"
        build(Places(stage / "runs", site, project), "preview")
        (stage / "runs").rename(site / "runs")
        data, _ = build_cache.load(site / "runs", project / "reports" / ".cache")
        text = sheet(data, records(data), sender, left_out)
        (site / SHEET).write_text(text, encoding="utf-8")
        found = index(data, _by_run(site / "runs", copied), left_out)
        text = json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False)
        (site / INDEX).write_text(f"{text}\n", encoding="utf-8")
        (site / SUMS).write_text(sums(site), encoding="utf-8")
        _refuse_secrets(site)
        _put(site, target.absolute(), stage)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Published(target, data.runs.height, left_out)


def _refuse(runs: Path, target: Path) -> None:
    here, there = runs.resolve(), target.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise ReportError(f"{target} and the runs in {runs} overlap. Choose another folder.")
    taken = target.is_symlink() or target.is_file()
    if taken or (target.is_dir() and any(target.iterdir()) and not is_publication(target)):
        raise ReportError(f"{target} is not a publication of Scalebook. Choose another folder.")


def _copy_runs(runs: Path, target: Path) -> dict[str, Copied]:
    """Copy every run, cleaned; return what was copied by the name of the run's folder."""
    found = [path for path in run_directories(runs) if not path.is_symlink()]
    if not found:
        raise ReportError(f"{runs} contains no run. Give the folder of runs with --runs.")
    odd = next((path.name for path in found if not cleaned.is_plain(path.name)), None)
    if odd is not None:
        raise ReportError(
            f"The run folder {odd!r} has a name that cannot be part of an address. Rename it."
        )
    hosts = cleaned.hosts_in(cleaned.texts(found))
    copied = {path.name: cleaned.copy(path, target / path.name, hosts) for path in found}
    secrets = [
        f"{name}/{file}:{line}: {', '.join(kinds)}"
        for name, one in copied.items()
        for file, line, kinds in one.secrets
    ]
    _raise_secrets(secrets)
    return copied


def _raise_secrets(places: list[str]) -> None:
    if places:
        raise PublicationError(
            "Nothing was published: this looks like secrets. Remove them from the runs.\n"
            + "\n".join(places)
        )


def _by_run(runs: Path, copied: Mapping[str, Copied]) -> dict[str, list[str]]:
    """Return the files of each run by run id, as addresses in the publication."""
    return {
        str(read_object(runs / folder / "record.json").get("run_id")): [
            f"runs/{folder}/{name}" for name in one.files
        ]
        for folder, one in copied.items()
    }


def index(data: ReportData, files: Mapping[str, list[str]], left_out: int) -> dict[str, Any]:
    """Return studies and a row per run, for machines: rates are in ``rate_unit``, ends of 95 %."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "scalebook": __version__,
        "files_left_out": left_out,
        "studies": [
            {
                "kind": one.kind,
                "plan": ", ".join(one.plans) or None,
                "question": one.question,
                "sentence": one.verdict.striptags(),
                "run_ids": list(one.run_ids),
            }
            for one in studies(data)
        ],
        "runs": [
            {name: row[name] for name in COLUMNS}
            | {"layout": {name: row.get(name) for name in LAYOUT}}
            | {"files": files.get(row["run_id"], [])}
            for row in data.runs.iter_rows(named=True)
        ],
        "problems": list(data.problems),
    }


def sums(folder: Path) -> str:
    """Return a line of ``sha256sum`` for every file of a folder, by name."""
    lines: list[str] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != SUMS:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            lines.append(f"{digest}  {path.relative_to(folder)}\n")
    return "".join(lines)


def _refuse_secrets(site: Path) -> None:
    """Look through what was derived from records; the report's scripts are the project's own."""
    places = [
        f"{path.relative_to(site)}:{line}: {', '.join(kinds)}"
        for path, line, kinds in scrub.in_folder(site / "runs")
    ]
    for name in (INDEX, SHEET, "data/runs.csv"):
        lines = (site / name).read_text(encoding="utf-8").splitlines()
        places += [
            f"{name}:{n}: {', '.join(kinds)}"
            for n, line in enumerate(lines, start=1)
            if (kinds := scrub.kinds(line))
        ]
    _raise_secrets(places)


def _put(site: Path, target: Path, stage: Path) -> None:
    """Rename the finished folder to its name; the older publication is removed after that."""
    old = stage / "old"
    if target.exists():
        target.rename(old)
    try:
        site.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def sheet(data: ReportData, held: Mapping[str, RunRecord], sender: Sender, left_out: int) -> str:
    """Return the sheet in Markdown; rates are tokens/s per GPU unless a row says otherwise."""
    found, rated = list(held.values()), configurations(data.completed.iter_rows(named=True))
    parts = (
        ("# Submission", _head(data, sender, left_out)),
        ("## Hardware", _counted(_machine(one.environment) for one in found if one.environment)),
        ("## Software", _counted(versions(one.environment, SOFTWARE) for one in found)),
        ("## Containers", _counted(flat(one.environment.get("container")) for one in found)),
        ("## Plans", _counted(flat(one.schedule.get("plan")) for one in found)),
        ("## Commits", _counted(flat(one.environment.get("git_commit")) for one in found)),
        ("## Results", _results(rated)),
        ("## How to repeat", _repeat(rated)),
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
        f"Submitter: {plain(sender.name or 'not stated')}",
        f"Contact: {plain(sender.contact or 'not stated')}",
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
    cpu = object_of(environment.get("host"))
    device = environment.get("accelerator") or "no accelerator named"
    amount = environment.get("accelerators_per_node")
    told = (
        (environment.get("accelerator_memory_gib"), "{} GiB each"),
        (cpu.get("cpu_model"), "{}"),
        (cpu.get("memory_gib"), "{} GiB of host memory"),
    )
    first = f"{amount} × {device} per node" if amount else str(device)
    return ", ".join([first, *(words.format(value) for value, words in told if value)])


def _results(found: Sequence[Configuration]) -> str:
    """Return a row per configuration that has a rate: its repeats are one."""
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


def _repeat(found: Sequence[Configuration]) -> str:
    """Return the commands that print what repeats the fastest run of each configuration."""
    own = [one.row["run_id"] for one in found if one.row["source"] == "measured"]
    if not own:
        return "No run was measured by Scalebook, so no command can repeat one."
    commands = [shlex.join(("scalebook", "reproduce", run_id, "--runs", "runs")) for run_id in own]
    code = "\n".join(f"    {' '.join(command.split())}" for command in commands)
    return f"Each command prints the checkout, the container and the command of a run.\n\n{code}"
