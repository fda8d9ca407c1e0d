"""Copies of run directories that name no user, host or place on a disk."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, cast

from scalebook import scrub, untrusted
from scalebook.store import read_object

HOST = "host"  # stands for every name of a host
MOST_BYTES = 64 * untrusted.MIB  # of a known file, which is held as a whole
_KNOWN = frozenset(
    {
        *("record.json", "config.json", "observed.json", "breakdown.json", "drill.json"),
        *("probe.json", "steps.jsonl", "telemetry.jsonl", "checkpoints.jsonl", "run.ipynb"),
        *("train.log", "probe.log"),
    }
)
_TEXT = frozenset({".json", ".jsonl", ".ipynb", ".log", ".txt", ".md", ".csv", ".toml"})
_MOST_UNKNOWN = untrusted.MIB  # bytes of a text file of another name
_PLAIN = re.compile(r"[\w@+][\w.@+-]*", re.ASCII)  # a name that checksums and addresses can hold

_NAME = r"[A-Za-z][\w-]*(?:\.[\w-]+)*"
# torchrun's report of failures, Slurm's and torch's variables, and the options of launchers.
_LABELLED = re.compile(
    r"(?i)((?<![A-Za-z])(?:host(?:_?name)?|(?:SLURM\w*_)?node_?(?:name|list)|MASTER_ADDR|"
    r"SLURM_LAUNCH_NODE_IPADDR|rdzv[_-]endpoint|master[_-]addr)[\"']?"
    # Behind a blank only what can be no word: with a port, or gpu-17.cluster.example.
    r"(?:\s*[=:]\s*|\s+(?=\S+:\d|[\w-]{0,60}\d[\w-]{0,60}\.[a-z][\w-]{0,60}\.[a-z]))"
    rf"[\"']?)({_NAME}(?:\[[\d,-]+\])?)"
)
_BRACKETED = re.compile(rf"(\[)({_NAME})(?=\]:\d)")  # torch: connect to [node17]:29500
_NCCL = re.compile(rf"(?m)(^|[\s|])({_NAME})(?=:\d+:\d+ \[\d+\] )")  # node17:314:402 [0] NCCL INFO
_HOSTS = (_LABELLED, _BRACKETED, _NCCL)
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_NOT_HOSTS = frozenset({"localhost", "none", "null", "true", "false", HOST})
_HASH = re.compile(r"[0-9a-f]{8,}")
_HOME = re.compile(r"(?<![\w.~-])/(?:home/|Users/)[^/\s\"'<>|:;,)\]]+|(?<![\w.~/-])/root(?![\w.-])")
_PATH = re.compile(r"(?<![\w.~:/<…-])/(?:[\w.@+%=-]+/)+(?:([\w.@+%=-]+))?")
_WINDOWS = re.compile(r"\b[A-Za-z]:\\(?:[^\\\s\"']+\\)+")
_HOST_NAMES = frozenset({"host", "hostname", "host_name", "nodename", "node_name", "master_addr"})


@dataclass(frozen=True, slots=True)
class Copied:
    """The files of a run that were copied, as names in its folder, and how many were not."""

    files: tuple[str, ...]
    left_out: int
    secrets: tuple[tuple[str, int, tuple[str, ...]], ...] = ()  # file, line, kinds


def hosts_in(texts: Iterable[str]) -> frozenset[str]:
    """Return the names of hosts that texts give, and that of this machine.

    A name without digit, dash or point is only replaced where it is labelled: it may be a word.
    """
    each = (pattern.finditer(text) for text in texts for pattern in _HOSTS)
    found = {match[2] for matches in each for match in matches}
    likely = {name for name in found if re.search(r"[\d.-]", name) and _is_host(name)}
    own = socket.gethostname()
    known = len(own) > 2 and _is_host(own)
    return frozenset(likely | ({own, own.partition(".")[0]} if known else set[str]()))


def _is_host(name: str) -> bool:
    return name.lower() not in _NOT_HOSTS and not _HASH.fullmatch(name)


def clean_text(text: str, hosts: Iterable[str] = ()) -> str:
    """Return a text without names of hosts, home directories and the folders of absolute paths."""
    for pattern in _HOSTS:
        text = pattern.sub(lambda m: f"{m[1]}{HOST}" if _is_host(m[2]) else m[0], text)
    for name in sorted(hosts, key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", HOST, text)
    text = _ADDRESS.sub(_masked_address, text)
    text = _HOME.sub(
        "~", text.replace(str(Path.home()), "~") if len(str(Path.home())) > 5 else text
    )
    text = _PATH.sub(lambda match: f"…/{match[1] or ''}", text)
    return _WINDOWS.sub("…/", text)


def _masked_address(match: re.Match[str]) -> str:
    """Return a host for a private address, or one with a port; versions have four parts too."""
    try:
        address = IPv4Address(match[0])
    except ValueError:
        return match[0]
    if address.is_loopback or address.is_unspecified:
        return match[0]
    named = re.match(r"\]?:\d", match.string[match.end() :])
    return HOST if address.is_private or named else match[0]


def clean_value(value: Any, hosts: Iterable[str] = ()) -> Any:
    """Return a value of JSON with every text in it cleaned; its names stay."""
    if isinstance(value, str):
        return clean_text(value, hosts)
    if isinstance(value, list):
        return [clean_value(item, hosts) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            name: HOST
            if isinstance(one, str) and name.lower() in _HOST_NAMES and _is_host(one)
            else clean_value(one, hosts)
            for name, one in cast("dict[str, Any]", value).items()
        }
    return value


def is_plain(name: str) -> bool:
    """Return whether a name can stand in checksums and addresses as it is."""
    return bool(_PLAIN.fullmatch(name))


def copied_files(directory: Path) -> tuple[tuple[Path, ...], int]:
    """Return the files of a run directory that a copy holds, and how many files it leaves out.

    Left out are links, files in folders, large files of unknown names and binary files.
    """
    chosen: list[Path] = []
    left_out = 0
    for path in sorted(directory.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        if path.parent == directory and _is_copied(path):
            chosen.append(path)
        else:
            left_out += 1
    return tuple(chosen), left_out


def _is_copied(path: Path) -> bool:
    if path.is_symlink() or not path.is_file() or not is_plain(path.name):
        return False
    most = MOST_BYTES if path.name in _KNOWN else _MOST_UNKNOWN
    return path.suffix in _TEXT and path.stat().st_size <= most


def texts(directories: Iterable[Path]) -> Iterator[str]:
    """Yield the text of each file that would be copied, and the command of a record as one line.

    Telemetry holds numbers only.
    """
    for directory in directories:
        for path in copied_files(directory)[0]:
            if path.name not in ("telemetry.jsonl", "steps.jsonl"):
                yield untrusted.read_text(path, MOST_BYTES)
            command = read_object(path).get("command") if path.name == "record.json" else None
            if isinstance(command, list):
                yield " ".join(map(str, cast("list[Any]", command)))


def copy(directory: Path, target: Path, hosts: Iterable[str]) -> Copied:
    """Write the cleaned files of a run to a new folder; return which, and what looks secret.

    Raises:
        OSError: a file cannot be read or written.
    """
    chosen, left_out = copied_files(directory)
    target.mkdir(parents=True)
    secrets: list[tuple[str, int, tuple[str, ...]]] = []
    for path in chosen:
        text = untrusted.read_text(path, MOST_BYTES)
        numbered = enumerate(text.split("\n"), start=1)
        secrets += [(path.name, n, found) for n, line in numbered if (found := scrub.kinds(line))]
        (target / path.name).write_text(clean_file(path.name, text, hosts), encoding="utf-8")
    return Copied(tuple(path.name for path in chosen), left_out, tuple(secrets))


def clean_file(name: str, text: str, hosts: Iterable[str]) -> str:
    """Return the cleaned text of a file; JSON keeps its form where nothing is removed."""
    if name.endswith(".jsonl"):
        return "".join(_clean_json(line, hosts) for line in text.splitlines(keepends=True))
    if name.endswith((".json", ".ipynb")):
        return _clean_json(text, hosts, indent=1)
    return clean_text(text, hosts)


def _clean_json(text: str, hosts: Iterable[str], indent: int | None = None) -> str:
    try:
        value = json.loads(text)
        clean = clean_value(value, hosts)
    except (ValueError, RecursionError):  # cut off: cleaned as text
        return clean_text(text, hosts)
    return text if clean == value else json.dumps(clean, indent=indent) + "\n"
