"""What has its final name is on the disk, whenever the power fails: the order of the calls."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PUBLISH = """
from datetime import UTC, datetime
from training import small
from scalebook import ownership, store
from scalebook.running import finish_run
partial = store.create_partial(runs, small(), datetime.now(UTC))
with ownership.owned(partial):
    (partial / "steps.jsonl").write_text("")
    (partial / "profile").mkdir()
    (partial / "profile" / "trace.json.gz").write_bytes(b"x")
    (partial / "link").symlink_to("steps.jsonl")
    finish_run.conclude(partial, finish_run.Ended(1))
    store.publish(partial)
"""
INGEST = """
from scalebook.logs.ingest.ingestion import ingest
ingest([logs / "torchtitan.log", logs / "nanotron.csv"], runs, {})
"""
CACHE = """
from scalebook.measure import metrics_cache
metrics_cache._write(runs / "list-1", [], [], [])
"""
CHECKPOINT = """
from scalebook import untrusted
(runs / ".part" / "deep").mkdir(parents=True)
(runs / ".part" / "deep" / "weights").write_bytes(b"x")
untrusted.publish(runs / ".part", runs / "step-1")
"""
TESTS = Path(__file__).parent
CALL = re.compile(r"\b(fsync|fdatasync|rename|renameat|renameat2)\((.*)\)\s+= 0")


@dataclass(frozen=True)
class Call:
    """A call of the kernel: a file put on the disk, or given another name."""

    sync: Path | None = None
    old: Path | None = None
    new: Path | None = None


def calls(code: str, folder: Path) -> list[Call]:
    """Return what a program asked of the kernel, in its order, for files below a folder."""
    program = f"from pathlib import Path\nlogs = Path({str(TESTS / 'logs')!r})\n"
    program += f"runs = Path({str(folder)!r})\nimport sys; sys.path.insert(0, {str(TESTS)!r})\n"
    output = folder.with_name("calls")
    traced = ("-e", "trace=fsync,fdatasync,rename,renameat,renameat2")
    command = ("strace", "-f", "-y", "-s", "4096", "-o", str(output), *traced)
    done = subprocess.run(
        (*command, sys.executable, "-c", program + code),
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found = (CALL.search(line) for line in output.read_text().splitlines())
    every = [_call(match[1], match[2]) for match in found if match]
    return [call for call in every if folder in (call.sync or call.new or Path()).parents
            or folder == call.sync]  # fmt: skip


def _call(name: str, arguments: str) -> Call:
    if "sync" in name:
        return Call(sync=Path(re.search(r"<(.*)>", arguments)[1]))
    old, new = re.findall(r'"([^"]*)"', arguments)
    return Call(old=Path(old), new=Path(new))


@pytest.mark.skipif(
    shutil.which("strace") is None, reason="needs strace (Debian: apt install strace)"
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
@pytest.mark.parametrize(
    ("code", "directories"), [(PUBLISH, 1), (INGEST, 2), (CACHE, 0), (CHECKPOINT, 1)],
    ids=["publish", "ingest", "cache", "checkpoint"],
)  # fmt: skip
def test_files_are_on_the_disk_before_their_name_and_the_name_is_afterwards(
    tmp_path: Path, code: str, directories: int
):
    runs = tmp_path / "runs"
    runs.mkdir()
    found = calls(code, runs)
    renames = [(place, call) for place, call in enumerate(found) if call.new]
    published = [call for _, call in renames if call.new.is_dir()]
    assert renames
    assert len(published) == directories
    for place, call in renames:
        before = {one.sync for one in found[:place]}
        after = {one.sync for one in found[place:]}
        below = call.new.rglob("*") if call.new.is_dir() else ()
        missing = {path for path in below if not path.is_symlink()} | {call.new}
        missing = {call.old / path.relative_to(call.new) for path in missing} - before
        assert not missing, call
        assert call.new.parent in after, call
