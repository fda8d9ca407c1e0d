"""A folder to publish: the report, cleaned copies of its runs, an index, checksums and a sheet."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook import __version__, scrub, settings
from scalebook.errors import PublicationError, ReportError
from scalebook.report import cleaned
from scalebook.report.base import frames
from scalebook.report.base.naming import WORK
from scalebook.report.cleaned import Copied
from scalebook.report.pages.studies import studies
from scalebook.report.site import build_cache
from scalebook.report.site.builder import Places, build
from scalebook.report.submission import Sender, sheet
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
        site = _report(stage, project)
        data, _ = build_cache.load(site / "runs", project / "reports" / ".cache")
        files = {name: one.files for name, one in copied.items()}
        _write(site, data, files, sender, sum(one.left_out for one in copied.values()))
        _refuse_secrets(site)
        _put(site, target.absolute(), stage)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Published(target, data.runs.height, sum(one.left_out for one in copied.values()))


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


def _report(stage: Path, project: Path) -> Path:
    """Build the report from the copies; return its folder, with the runs moved into it."""
    site = stage / "site"
    build(Places(stage / "runs", site, project), "preview")
    (stage / "runs").rename(site / "runs")
    return site


def _write(
    site: Path,
    data: frames.ReportData,
    files: Mapping[str, tuple[str, ...]],
    sender: Sender,
    left_out: int,
) -> None:
    held = frames.records(data)
    (site / SHEET).write_text(sheet(data, held, sender, left_out), encoding="utf-8")
    found = index(data, _by_run(site / "runs", files), left_out)
    text = json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False)
    (site / INDEX).write_text(f"{text}\n", encoding="utf-8")
    (site / SUMS).write_text(sums(site), encoding="utf-8")


def _by_run(runs: Path, files: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Return the files of each run by run id, as addresses in the publication."""
    return {
        str(read_object(runs / folder / "record.json").get("run_id")): [
            f"runs/{folder}/{name}" for name in names
        ]
        for folder, names in files.items()
    }


def index(data: frames.ReportData, files: Mapping[str, list[str]], left_out: int) -> dict[str, Any]:
    """Return studies and a row per run, for machines; rates are in ``rate_unit``."""
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
        "runs": [_row(row, files) for row in data.runs.iter_rows(named=True)],
        "problems": list(data.problems),
    }


def _row(row: Mapping[str, Any], files: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return a run: what it trained, where, how fast (with the 95 % interval), and its files."""
    return {
        **{name: row[name] for name in COLUMNS},
        "layout": {name: row.get(name) for name in LAYOUT},
        "files": files.get(row["run_id"], []),
    }


def sums(folder: Path) -> str:
    """Return a line of ``sha256sum`` for every file of a folder, by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    return "".join(f"{_digest(path)}  {path.relative_to(folder)}\n" for path in paths)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
