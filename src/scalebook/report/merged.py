"""Several folders of runs as one: links to their runs, and the folder that each came from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from scalebook import untrusted
from scalebook.errors import ReportError
from scalebook.measure.probes.files import FOLDER as PROBES
from scalebook.measure.probes.files import probe_directories
from scalebook.report.base.frames import SOURCES
from scalebook.report.base.stated import CLAIMS
from scalebook.report.base.stated import FILE as ECONOMICS
from scalebook.report.cleaned import clean_file
from scalebook.report.site import build_cache
from scalebook.store import read_object, run_directories


def one_folder(folders: Sequence[Path], cache: Path) -> Path:
    """Return a folder that holds every run of these folders, the same for the same folders.

    Of several it is one of links in the cache, brought up to date; a single one is taken as it is.

    Raises:
        ReportError: a folder has no run, or two runs of one id differ; both are named.
    """
    places = [_place(folder).resolve() for folder in folders]
    if len(set(places)) == 1:
        return places[0]
    name = hashlib.sha256(repr(places).encode(errors="surrogateescape")).hexdigest()[:24]
    target = cache / "merged" / name
    _own(target.parent)
    merge(folders, target)
    os.utime(target)  # in use: the least used are forgotten
    build_cache.forget_old(target)
    return target


def merge(folders: Sequence[Path], target: Path) -> None:
    """Fill a folder with links to the runs, probes, prices and claims of folders, each run id once.

    A folder is one of runs, or a publication, whose runs are in ``runs``. Links that are right stay
    and each other one is replaced at once: several builds may do this at the same time.
    """
    known: dict[str, Path] = {}
    links: dict[str, Path | None] = {PROBES: None}
    probes: dict[str, Path] = {}
    files: dict[str, Path] = {}  # to copy: what is a link is not read
    sources: dict[str, str] = {}
    for folder, label in zip(folders, labels(folders), strict=True):
        place = _place(folder)
        for path in run_directories(place):
            run_id = str(read_object(path / "record.json").get("run_id") or path.resolve())
            if (before := known.get(run_id)) is not None:
                _require_equal(run_id, before, path)
                continue
            known[run_id] = path
            name = _free(links, path.name)
            links[name], sources[name] = path, label
        for path in probe_directories(place):
            probes.setdefault(path.name, path)
        if untrusted.is_there(place / ECONOMICS):
            files[_free(files, ECONOMICS)] = place / ECONOMICS
        for path in sorted((place / CLAIMS).glob("*.*")):
            own = f"{CLAIMS}/{path.name}"
            files[f"{CLAIMS}/{label.replace('/', '-')}-{path.name}" if own in files else own] = path
    _link(target, links | dict.fromkeys(name.partition("/")[0] for name in files))
    _link(target / PROBES, probes)
    _copy(target, files)
    with untrusted.replaced(target / SOURCES) as stream:
        stream.write(json.dumps(sources).encode())


def _link(folder: Path, links: Mapping[str, Path | None]) -> None:
    """Make these links, and those names of None that it has, all that a folder shows."""
    _own(folder)
    for path in folder.iterdir():
        if path.name not in links and not path.name.startswith("."):
            untrusted.remove(path)
    for name, path in links.items():
        link, wanted = folder / name, path and path.resolve()
        if wanted is None or (link.is_symlink() and link.readlink() == wanted):
            continue
        if link.is_dir() and not link.is_symlink():
            untrusted.remove(link)
        temporary = folder / f".{os.urandom(8).hex()}.tmp"
        temporary.symlink_to(wanted, target_is_directory=True)
        temporary.replace(link)


def _copy(folder: Path, files: Mapping[str, Path]) -> None:
    """Make these files of a folder copies, those of its claims the only ones."""
    for path in (folder / CLAIMS).glob("*"):
        if f"{CLAIMS}/{path.name}" not in files:
            untrusted.remove(path)
    for name, source in files.items():
        try:
            content = untrusted.read_bytes(source)
        except OSError as error:
            raise ReportError(f"{source} cannot be read: {error.strerror}.") from error
        path = folder / name
        _own(path.parent)
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
            with untrusted.replaced(path) as stream:
                stream.write(content)


def _own(folder: Path) -> None:
    """Create a folder where there is none, or a link: what that leads to is not the cache's."""
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def labels(folders: Sequence[Path]) -> list[str]:
    """Return what each folder is called: its name, with those above it until names differ."""
    places = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(place.parts) for place in places) + 1):
        found = ["/".join(place.parts[-depth:]) for place in places]
        if len(set(found)) == len(set(places)):
            return found
    return [str(place) for place in places]


def _place(folder: Path) -> Path:
    """Return where the runs of a folder of runs or of a publication are."""
    for place in (folder, folder / "runs"):
        if next(run_directories(place), None) is not None:
            return place
    said = "Give folders of runs or publications; 'scalebook ingest' reads logs."
    raise ReportError(f"{folder} contains no run. {said}")


def _free(taken: Collection[str], name: str) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def _require_equal(run_id: str, one: Path, other: Path) -> None:
    if content(one) != content(other):
        raise ReportError(
            f"Run {run_id} is in {one} and in {other} with different content. Remove one of them."
        )


def content(directory: Path) -> str:
    """Return a hash of record and steps as a publication holds them: a cleaned copy is equal."""
    digest = hashlib.sha256()
    for name in ("record.json", "steps.jsonl"):
        try:
            text = untrusted.read_text(directory / name, untrusted.LINES_BYTES)
        except OSError:
            text = ""
        clean = clean_file(name, text, ())
        digest.update(json.dumps(read(clean), sort_keys=True).encode())
    return digest.hexdigest()


def read(text: str) -> list[object]:
    """Return the JSON values of a text, one or one per line; other lines stay text."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return [_value(line) for line in text.splitlines()]


def _value(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line
