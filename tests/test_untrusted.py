"""A bad file of a runs folder costs its own row only; nothing is read or written through a link."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TextIO, cast

import pytest

from scalebook import store, untrusted
from scalebook.audit import load_claims
from scalebook.cli import main
from scalebook.cli.terminal import VisibleText
from scalebook.errors import ClaimError, IngestError
from scalebook.logs import source
from scalebook.logs.dialects.registry import read
from scalebook.measure.diagnosis import Measured, measured
from scalebook.measure.probes.files import read_probes
from scalebook.measure.reliability import read_checkpoints, read_drill
from scalebook.measure.telemetry.readings import read as read_telemetry
from scalebook.query import CommandAnswer
from scalebook.report.base import frames
from scalebook.report.base.stated import read_stated
from scalebook.running import finish_run, live
from scalebook.running.cluster import jobs, node_logs
from scalebook.running.console import Console

EXAMPLES = Path(__file__).parents[1] / "runs" / "examples"
DRILL = "20261128-085855-llama3.1-8b-2-w2-397731cb3d8c"
PROFILED = "20261128-084352-llama3.1-8b-8-w4-3d8b2ed3ed14"
SAMPLED = "20261128-022021-llama3.1-8b-2-w1-7edfdce034a2"
PROBE = "20261128-021940-h100-w4"
BAD, GOOD = "bad", "good"
OF_A_RUN = (
    *("record.json", "steps.jsonl", "telemetry.jsonl", "checkpoints.jsonl", "drill.json"),
    *("profile/breakdown.json", "train.log", "config.json", "observed.json", "run.ipynb"),
)
OF_A_FOLDER = {
    "probe.json": f"probes/{PROBE}/probe.json",
    "claims": "claims/own.toml",
    "economics.toml": "economics.toml",
}
ECONOMICS = 'pue = 1.2\ntokens = "1T"\n[h100]\nwatts_per_gpu = 700\n'
CLAIMS = 'title = "T"\n[[tables]]\ncolumns = ["label", "mfu"]\nrows = [["a", "40%"]]\n'


def _link(to: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.unlink()
        path.symlink_to(to)

    return make


def _special(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: _write(path, change(path.read_bytes()))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _outside(path: Path) -> None:
    secret = path.parents[{"profile": 3, "runs": 1}.get(path.parent.name, 2)] / "outside"
    secret.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(secret)


def _wrong(value: object) -> object:
    """Return a value of JSON with every number, text and list in it of another kind."""
    if isinstance(value, dict):
        return {key: _wrong(item) for key, item in value.items()}
    return {"a": [value]} if not isinstance(value, list) else "text"


def _wrong_types(path: Path) -> None:
    if path.suffix in (".json", ".ipynb"):
        path.write_text(json.dumps(_wrong(json.loads(path.read_text()))))
    else:
        lines = path.read_text().splitlines()
        is_object = path.suffix == ".jsonl"
        told = (json.dumps(_wrong(json.loads(x))) if is_object else "= 7 [[" for x in lines)
        path.write_text("\n".join(told))


def _number(text: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        for digit in b"123456789":
            data = data.replace(b": %c" % digit, b": " + text + b', "x": %c' % digit, 1)
        return data.replace(b":1", b":" + text + b',"x":1', 3)

    return change


_VALUE = re.compile(rb'([:=]) ?("[^"\n]*"|-?[0-9][0-9.e+-]*|true|false)')
DAMAGES = {
    "empty": _bytes(lambda _: b""),
    "truncated": _bytes(lambda data: data[: len(data) // 2]),
    "zero bytes": _bytes(lambda data: b"\0" * len(data)),
    "deep": _bytes(lambda _: b"[" * 200_000),
    "deep objects": _bytes(lambda _: b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
    "byte order mark": _bytes(lambda data: b"\xef\xbb\xbf" + data),
    "UTF-16": _bytes(lambda data: data.decode().encode("utf-16")),
    "not UTF-8": _bytes(lambda data: data.replace(b"e", b"\xff")),
    "NaN": _bytes(_number(b"NaN")),
    "10^400": _bytes(_number(b"1" + b"0" * 400)),
    "5,000 digits": _bytes(_number(b"1" * 5000)),
    "doubled keys": _bytes(lambda data: data.replace(b"{", b'{"step":{},"run_id":7,', 1)),
    "wrong types": _wrong_types,
    "lines of Windows": _bytes(lambda data: data.replace(b"\n", b"\r\n")),
    "text without end": _bytes(lambda data: data.replace(b'": "', b'": "' + b"A" * 300_000, 2)),
    "zeros": _bytes(lambda data: _VALUE.sub(rb"\1 0", data)),
    "lists": _bytes(lambda data: _VALUE.sub(rb"\1 []", data)),
    "a time that is none": _bytes(lambda data: data.replace(b'_at":', b'_at":"x","y":')),
    "link out": _outside,
    "link to nothing": _link("nowhere"),
    "link to itself": _special(lambda path: path.symlink_to(path.name)),
    "link to a device": _link("/dev/zero"),
    "pipe": _special(os.mkfifo),
    "directory": _special(Path.mkdir),
    "too large": lambda path: os.truncate(path, untrusted.LINES_BYTES + 1),
}


def _bad(path: Path, number: int = 0) -> str:
    """Make a run that has every file, with a name of its own; return its id."""
    shutil.copytree(EXAMPLES / DRILL, path)
    (path / "profile").mkdir(exist_ok=True)
    shutil.copy(EXAMPLES / PROFILED / "profile" / "breakdown.json", path / "profile")
    lines = (EXAMPLES / SAMPLED / "telemetry.jsonl").read_text().splitlines(keepends=True)
    (path / "telemetry.jsonl").write_text("".join(lines[:40]))
    shutil.copy(EXAMPLES / PROFILED / "run.ipynb", path)
    name = f"{DRILL[:-2]}{number:02d}" if number else DRILL
    record = path / "record.json"
    record.write_text(record.read_text().replace(DRILL, name))
    return name


@pytest.fixture(scope="module")
def whole() -> Measured:
    """The figures of the good run."""
    answer = measured(store.read_run(EXAMPLES / PROFILED))
    assert isinstance(answer, Measured)
    return answer


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A folder with all kinds of files and one run."""
    runs = tmp_path / "runs"
    shutil.copytree(EXAMPLES / PROFILED, runs / GOOD)
    shutil.copytree(EXAMPLES / "probes" / PROBE, runs / "probes" / PROBE)
    (runs / "claims").mkdir()
    (runs / "claims" / "own.toml").write_text(CLAIMS)
    (runs / "economics.toml").write_text(ECONOMICS)
    return runs


@pytest.fixture
def runs(sound: Path) -> Path:
    """The same with a run to damage."""
    _bad(sound / BAD)
    return sound


def listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Return the rows that the command lists, by run, and what it says of the others."""
    assert main(["list", "--json", "--runs", str(runs)]) == 0
    shown = capsys.readouterr()
    return {row["run_id"]: row for row in json.loads(shown.out)}, shown.err


@pytest.mark.parametrize("file", OF_A_RUN)
def test_a_damaged_file_of_a_run_costs_its_own_row_only(
    sound: Path, whole: Measured, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every damage in a run of its own."""
    names: dict[str, str] = {}
    for number, (damage, change) in enumerate(DAMAGES.items(), 1):
        names[damage] = _bad(sound / damage, number)
        change(sound / damage / file)
    began = time.monotonic()
    rows, said = listed(sound, capsys)
    assert rows[PROFILED]["tokens_per_second"] == whole.metrics.tokens_per_second
    # Each other run is a row or a sentence, never nothing.
    unseen = {
        damage: name
        for damage, name in names.items()
        if not any(name in row for row in rows) and str(sound / damage) not in said
    }
    assert not unseen
    assert PROFILED in set(frames.load(sound).runs["run_id"])
    for directory in store.run_directories(sound):
        read_checkpoints(directory)
        read_drill(directory)
        read_telemetry(directory)
    assert time.monotonic() - began < 20 * len(DAMAGES)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", OF_A_FOLDER)
def test_a_damaged_file_of_a_folder_costs_no_run(
    sound: Path, whole: Measured, file: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[damage](sound / OF_A_FOLDER[file])
    began = time.monotonic()
    rows, _ = listed(sound, capsys)
    assert rows[PROFILED]["tokens_per_second"] == whole.metrics.tokens_per_second
    assert PROFILED in set(frames.load(sound).runs["run_id"])
    read_probes(sound)
    inputs = read_stated(sound)
    if file != "economics.toml":
        assert not inputs.problems
    elif damage not in ("empty", "truncated"):  # what it states, or why that is not known
        assert inputs.problems or inputs.of("h100", "pue") is not None
    try:
        load_claims(sound / "claims" / "own.toml")
    except ClaimError as error:
        assert "own.toml" in str(error)
    assert time.monotonic() - began < 20


OF_ONE = (
    *(["compare", GOOD], ["diagnose"], ["reproduce"]),
    ["export", "--to", "csv:o"],
)
OF_RUNS = (
    *(["gate", "--baseline", "runs"], ["status", "--all"], ["feasibility"], ["recover"]),
    ["predict", "--model", "llama3.1-8b", "--platform", "h200", "--gpus", "8"],
    # Two GPUs have few layouts, and the run at hand is of that model.
    ["recommend", "--model", "llama3.1-8b@2", "--platform", "h200", "--gpus", "2"],
)


def test_every_command_on_runs_has_an_answer_to_damaged_ones(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every damage in a run of its own; what reads all runs meets them all at once."""
    halves = _bytes(lambda data: data.replace(b'": "', b'": "\\ud800', 5))
    kinds = ("wrong types", "zeros", "lists", "NaN", "10^400", "surrogates", "pipe")
    files = ("record.json", "steps.jsonl", "telemetry.jsonl")
    monkeypatch.chdir(sound.parent)
    for number, (file, damage) in enumerate(product(files, kinds), 1):
        name = f"{damage} in {file}"
        _bad(sound / name, number)
        (halves if damage == "surrogates" else DAMAGES[damage])(sound / name / file)
        for command in OF_ONE:
            assert main([*command, name, "--runs", "runs"]) in (0, 1, 2), (command, name)
    for command in OF_RUNS:
        assert main([*command, "--runs", "runs"]) in (0, 1, 2), command


# Files of a run that has not been recorded; each is there, and each may be damaged.
UNFINISHED: dict[str, object] = {
    "config.json": {"model": "tiny-llama", "world_size": 2, "engine": "megatron", "steps": 5},
    "job.json": {"scheduler": "slurm", "job_id": "7", "submitted_at": "2033", "runs": 1},
    "launch.json": {"command": ["python"], "environment": {"slurm": {"job_id": "7"}}},
    "exit.json": {"exit_code": 1, "stop": None, "memory_kills": 0, "memory_killed": []},
    "exit.node1.json": {"exit_code": 1, "stop": ["timeout", "x"], "memory_kills": 1},
    "schedule.json": {"place": 1, "seed": 2, "notes": ["a"]},
    "plan.json": {"name": "p", "total": 2, "done": 0, "failed": 0, "to_do": 1},
    "observed.json": {"observed": {"world_size": 2}, "environment": {"torch": "2"}},
    "steps.jsonl": {"step": 1, "phase": "measured", "step_seconds": 1, "tokens": 64},
    "telemetry.jsonl": {"kind": "sampler", "source": "nvml"},
    "train.log": "step 1",
    "train.log.node1": "step 1",
    "record.json": {},
    "run.ipynb": {"cells": []},
}
ODD = {
    "a list": "[]",
    "a number": "7",
    "half a character": json.dumps(
        dict.fromkeys(("model", "started_at", "name", "order"), "�")
        | {"exit_code": 1, "stop": ["failed", "\ud800"], "notes": ["\udfff"], "command": ["\ud800"]}
        | {"environment": {"a": "\ud800", "slurm": {"state": "\ud800"}}, "job_id": "7"}
    ),
    "no numbers inside": '{"environment": {"a": [NaN, 1e999]}, "observed": {"seed": -Infinity},'
    ' "job_id": "7", "exit_code": 1, "seed": NaN, "place": NaN}',
    "an end that no run has": '{"exit_code": 1, "stop": ["nonsense", "x"], "memory_kills": -5}',
}


def _unfinished(runs: Path, name: str) -> Path:
    partial = store.partial_path(runs, name)
    partial.mkdir(parents=True)
    for file, value in UNFINISHED.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (partial / file).write_text(f"{text}\n")
    return partial


def _ended(_: Sequence[str]) -> CommandAnswer:
    return CommandAnswer(0, "JobId=7 JobState=TIMEOUT Reason=None", "")


@pytest.mark.parametrize("of_a_job", [True, False], ids=["of a job", "of no job"])
@pytest.mark.parametrize("file", UNFINISHED)
def test_a_damaged_file_of_an_unfinished_run_keeps_no_other_from_its_record(
    tmp_path: Path, file: str, of_a_job: bool
) -> None:
    """Every damage in a run of its own, and one run without any."""
    damages = [*(DAMAGES if of_a_job else ("wrong types", "NaN", "pipe", "directory")), *ODD]
    if file.startswith("train.log") and of_a_job:
        damages.remove("too large")  # whatever trainers print is kept
    places: dict[Path, str] = {}
    for number, damage in enumerate(damages):
        bad = _unfinished(tmp_path, f"{number}-bad")
        places[tmp_path / f"{number}-bad"] = damage
        DAMAGES[damage](bad / file) if damage in DAMAGES else (bad / file).write_text(ODD[damage])
    good = _unfinished(tmp_path, "99-good")
    "\n".join(live.table(live.Monitor(tmp_path).snapshot())).encode()
    if of_a_job:
        settled = jobs.settle(tmp_path, _ended)
    else:
        for partial in store.partial_directories(tmp_path):
            if partial == good or file != "job.json":
                (partial / "job.json").unlink()
            os.utime(partial, (0, 0))
        settled = finish_run.recover(tmp_path)
    assert tmp_path / "99-good" in {one.path for one in settled}
    for one in settled:  # a whole record, or a reason and everything as it was
        if one.record is not None:
            assert store.read_run(one.path).record.run_id == one.path.name, places.get(one.path)
        else:
            assert one.path != good and one.path.exists(), one


@pytest.mark.parametrize("damage", ["link out", "link to a device", "pipe", "directory"])
@pytest.mark.parametrize("file", ["steps.jsonl", "checkpoints.jsonl", "telemetry.jsonl"])
def test_what_is_no_file_is_named_with_its_reason(runs: Path, file: str, damage: str) -> None:
    DAMAGES[damage](runs / BAD / file)
    said = {
        "steps.jsonl": store.read_steps(runs / BAD / file)[1],
        "checkpoints.jsonl": read_checkpoints(runs / BAD)[1],
        "telemetry.jsonl": (str(read_telemetry(runs / BAD).reason),),
    }[file]
    assert len(said) == 1
    assert said[0].startswith(f"{file} cannot be read: it is a ")


@pytest.mark.parametrize("damage", ["link out", "link to nothing", "link to a device", "pipe"])
def test_a_record_that_is_no_file_is_a_sentence(runs: Path, damage: str) -> None:
    DAMAGES[damage](runs / BAD / "record.json")
    found, problems = store.read_runs(runs)
    assert [run.path.name for run in found] == [GOOD]
    assert len(problems) == 1
    assert f"{BAD}/record.json cannot be read: it is a " in problems[0]


def test_a_file_that_the_user_names_may_be_a_link_but_not_a_device(runs: Path) -> None:
    named = runs / "link.toml"
    named.symlink_to(runs / "claims" / "own.toml")
    assert load_claims(named, follow=True).title == "T"
    with pytest.raises(ClaimError, match="device"):
        load_claims(Path("/dev/zero"), follow=True)
    with pytest.raises(ClaimError, match="it is a link"):
        load_claims(named)


@pytest.mark.parametrize(
    "change",
    [
        {"reason": "x" * 2_000_000},
        {"requested": {"model": "m" * 2_000_000}},
        {"environment": {f"k{number}": 1 for number in range(200_000)}},
        {"notes": ["n"] * 1_000_000},
    ],
    ids=["reason", "model", "keys", "notes"],
)
def test_a_record_with_more_than_any_run_has_to_say_is_a_sentence(
    runs: Path, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    path = runs / BAD / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["list", "--runs", str(runs)]) == 0
    shown = capsys.readouterr()
    assert PROFILED in shown.out and f"{BAD}/record.json cannot be read: it is larger" in shown.err
    assert len(shown.out) + len(shown.err) < 20_000


def test_a_name_without_end_makes_no_other_row_longer(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((runs / BAD / "record.json").read_text())
    record["requested"]["model"] = record["observed"]["model"] = "A" * 300_000
    (runs / BAD / "record.json").write_text(json.dumps(record))
    assert main(["list", "--runs", str(runs)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 2000


def test_of_many_lines_that_are_no_steps_the_first_are_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("x\n" * 100_000)
    problems = store.read_steps(path)[1]
    assert problems[0] == "steps.jsonl line 1 is not a step record"
    assert problems[-1] == "steps.jsonl has 99,980 more lines that are not step records"
    assert len(problems) == 21


def test_of_a_line_without_end_only_the_beginning_is_held(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"x" * (3 * untrusted.LONGEST_LINE) + b"\n{}\n")
    found = list(untrusted.lines(path))
    assert [len(line) for line in found] == [untrusted.LONGEST_LINE, 2]


# What a terminal obeys: a title, an empty screen, colours by one byte, text from right to left.
COMMANDS = "\x1b]0;t\x07\x1b[2J\x9b31m\u202egnp\u2066\x7f\U000e0041"


def test_a_text_of_others_is_shown_and_not_obeyed() -> None:
    assert (
        untrusted.visible("a\tb\n\u00e9 \u65e5 \u2013 95\u00a0%")
        == "a\tb\n\u00e9 \u65e5 \u2013 95\u00a0%"
    )
    shown = untrusted.visible(COMMANDS)
    assert shown.isascii() and shown.isprintable()
    assert json.loads(f'"{shown}"') == COMMANDS


def test_no_name_and_no_sentence_of_others_commands_the_terminal(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((runs / BAD / "record.json").read_text())
    record |= {"run_id": f"x{COMMANDS}", "status": "failed", "reason": f"r {COMMANDS}"}
    record["requested"] |= {"model": f"m{COMMANDS}"}
    (runs / BAD / "record.json").write_text(json.dumps(record))
    shutil.copytree(runs / BAD, runs / f"n{COMMANDS}")
    left = store.partial_path(runs, f"p{COMMANDS}")
    shutil.copytree(runs / BAD, left)
    os.utime(left, (0, 0))
    (runs / f"u{COMMANDS}").mkdir()
    (runs / f"u{COMMANDS}" / "record.json").write_text("{")
    place = ["--runs", str(runs)]
    for command in (["list"], ["status", "--all"], ["recover"], ["diagnose", BAD]):
        main([*command, *place])
        printed = capsys.readouterr()
        text = printed.out + printed.err
        assert "\\u001b" in text
        assert not [one for one in text if not one.isprintable() and one not in "\n\t"]
    main(["list", "--json", *place])
    rows = json.loads(capsys.readouterr().out)
    assert f"x{COMMANDS}" in {row["run_id"] for row in rows}


def test_what_moves_the_cursor_itself_still_does() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    console = Console(cast("TextIO", VisibleText(terminal)))
    console.live("step 1")
    console.live("step 2")
    console.say(f"done {COMMANDS}")
    assert "\x1b[J" in terminal.getvalue() or "\x1b[K" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()


# Packed logs.


def _zipped(*contents: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, content in enumerate(contents):
            archive.writestr(f"{number}.log", content)
    return packed.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zip": _zipped,
}
LOG = Path(__file__).with_name("logs") / "megatron_2024.log"


@pytest.mark.parametrize("suffix", PACK)
def test_a_packed_log_gives_the_run_of_the_plain_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.log.{suffix}"
    content = LOG.read_bytes()
    half = len(content) // 2
    parts = (content,) if suffix == "zip" else (content[:half], content[half:])
    path.write_bytes(b"".join(map(PACK[suffix], parts)))
    found, plain = read(path), read(LOG)
    assert found.digest == plain.digest
    assert len(found.jobs[0].table) == len(plain.jobs[0].table) > 0


@pytest.mark.parametrize("suffix", PACK)
def test_a_packed_bomb_is_refused_after_a_bounded_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(source, "BOMB_BYTES", 1 << 20)
    path = tmp_path / f"bomb.log.{suffix}"
    path.write_bytes(PACK[suffix](b"\0" * (64 << 20)))
    read = 0
    with pytest.raises(IngestError, match="unpacks to more than"):
        for piece in source.Source(path).pieces():
            read += len(piece)
            assert len(piece) <= source.CHUNK_BYTES
    assert read < 50 << 20


@pytest.mark.parametrize("suffix", PACK)
def test_damaged_packed_data_raises_nothing_else(tmp_path: Path, suffix: str) -> None:
    packed = bytearray(PACK[suffix](LOG.read_bytes()))
    path = tmp_path / f"a.log.{suffix}"
    for place in (*range(4, len(packed), 11), *range(len(packed) - 90, len(packed))):
        damaged = packed.copy()
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        try:
            list(source.Source(path).pieces())
        except IngestError as error:
            assert path.name in str(error)
    path.write_bytes(packed[: len(packed) // 2])
    cut = source.Source(path)
    list(cut.pieces())
    assert any("damaged or ends early" in note for note in cut.notes)


def test_an_archive_of_several_logs_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "logs.zip"
    path.write_bytes(_zipped(b"a", b"b"))
    with pytest.raises(IngestError, match=r"holds 2 files.*name the folder"):
        list(source.Source(path).pieces())


# What recover and publishing write.


@pytest.fixture
def partial(runs: Path) -> Path:
    """A run that was killed before it had a record."""
    path = store.partial_path(runs, "killed")
    shutil.copytree(EXAMPLES / DRILL, path)
    (path / "record.json").unlink()
    os.utime(path, (0, 0))
    return path


@pytest.mark.parametrize(
    "name", ["train.log", "steps.jsonl", "owner.json", ".record.json.tmp", "record.json", "extra"]
)
def test_recover_leaves_what_holds_a_link_that_leads_out(partial: Path, name: str) -> None:
    outside = partial.parents[1] / "outside"
    outside.write_text("theirs\n")
    (partial / name).unlink(missing_ok=True)
    (partial / name).symlink_to(outside)
    (found,) = finish_run.recover(partial.parent)
    assert found.problem == f"{name} is a link that leads out of it"
    assert partial.is_dir()
    assert outside.read_text() == "theirs\n"


def test_recover_publishes_what_holds_no_link(partial: Path) -> None:
    (partial / f".record.json.{'0' * 16}.tmp").write_text("{")
    os.utime(partial, (0, 0))
    (found,) = finish_run.recover(partial.parent)
    assert found.record is not None
    assert not [path for path in found.path.iterdir() if path.name.startswith(".")]


def test_the_owner_of_a_directory_is_not_written_into_another_name_of_a_file(partial: Path) -> None:
    outside = partial.parents[1] / "outside"
    outside.write_text("theirs\n")
    os.link(outside, partial / "owner.json")
    finish_run.recover(partial.parent)
    assert outside.read_text() == "theirs\n"


def test_a_record_is_written_past_a_link_of_a_foreseeable_name(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs\n")
    for name in (".record.json.tmp", "record.json"):
        (tmp_path / name).symlink_to(outside)
    store.write_json(tmp_path / "record.json", {"a": 1})
    assert outside.read_text() == "theirs\n"
    assert not (tmp_path / "record.json").is_symlink()
    assert json.loads((tmp_path / "record.json").read_text()) == {"a": 1}


def test_logs_of_nodes_are_merged_past_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log.node1").write_text("node 1\n")
    for name in ("train.log", ".train.log.tmp", "train.log.node2"):
        (tmp_path / "run" / name).symlink_to(outside)
    node_logs.merge(tmp_path / "run")
    assert outside.read_text() == "theirs\n"
    merged = (tmp_path / "run" / "train.log").read_text()
    assert "node 1\n" in merged and "theirs" not in merged


def test_a_failed_write_leaves_the_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        store.write_json(path, float("nan"))
    with pytest.raises(RuntimeError), untrusted.replaced(path) as stream:
        stream.write(b"half")
        raise RuntimeError  # as a full disk does
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("damage", ["link out", "link to a device", "pipe", "directory"])
def test_stated_inputs_that_are_no_file_are_named_with_their_reason(
    runs: Path, damage: str
) -> None:
    DAMAGES[damage](runs / "economics.toml")
    (problem,) = read_stated(runs).problems
    assert problem.startswith("economics.toml cannot be read: it is a ")
