"""Runs of trackers, written by their own clients or byte by byte, become runs of ours."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from scalebook import store
from scalebook.cli import main
from scalebook.errors import IngestError
from scalebook.logs.dialects.rows import mapped
from scalebook.logs.ingest.group import no_store
from scalebook.logs.ingest.ingestion import ingest, summaries
from scalebook.measure.metrics import measure
from scalebook.trackers import opener, tracked_run, wire
from scalebook.trackers.wandb import wait_for_end
from scalebook.trackers.wire import _masked

CONFIG = {"world_size": 4, "global_batch_size": 16, "seq_length": 1024, "micro_batch_size": 2}
STEPS = 30
SECONDS = 0.5  # of a step: 16 x 1,024 tokens / 0.5 s / 4 GPUs = 8,192 tokens/s/GPU
RATE = 8192.0


def seconds_of(step: int) -> float:
    """Return the time of a step, with the noise that a real one has."""
    return SECONDS * (1 + 0.001 * (-1) ** step)


def metrics(step: int) -> dict[str, float]:
    return {"train/loss": 5 - 0.1 * step, "step_time": seconds_of(step), "lr": 1e-3}


def only(path: Path, runs: Path, **supplied: object) -> store.Run:
    """Return the one run that a path holds, as it is ingested."""
    found, notes = ingest([path], runs, supplied, opens=opener())
    assert (len(found), notes) == (1, [])
    return store.read_run(found[0].path)


def check(run: store.Run, tracker: str, status: str = "completed") -> None:
    """Check everything that all trackers keep of the same run."""
    found = measure(run)
    assert run.record.run_id.startswith(f"ingested-{tracker}-")
    assert (run.record.source, run.record.status) == ("ingested", status)
    assert found.tokens_per_second_per_gpu == pytest.approx(RATE, rel=1e-3)
    assert (found.world_size, found.global_batch_size, found.sequence_length) == (4, 16, 1024)
    assert [step.step for step in run.steps] == list(range(1, STEPS + 1))
    assert [step.loss for step in run.steps] == pytest.approx([5 - 0.1 * n for n in range(1, 31)])
    seconds = [step.step_seconds for step in run.steps]
    assert seconds == pytest.approx([seconds_of(n) for n in range(1, 31)], rel=1e-6)


# W&B ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wandb_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wandb = pytest.importorskip("wandb", reason="pip install -e '.[trackers]'")
    folder = tmp_path_factory.mktemp("wandb")
    quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True)
    config = {**CONFIG, "optimizer": {"name": "adam"}}
    run = wandb.init(mode="offline", dir=folder, project="p", config=config, settings=quiet)
    for step in range(1, STEPS + 1):
        run.log(metrics(step), step=step)
    run.finish()
    wait_for_end(Path(run.dir).parent)
    (folder / "wandb" / "nothing.log").write_text("no training here\n")
    return folder / "wandb"


def test_a_wandb_run_gives_configuration_steps_and_end(wandb_run: Path, tmp_path: Path):
    found, notes = ingest([wandb_run], tmp_path, {}, opens=opener())
    assert len(found) == 1  # the link latest-run is not followed, nor the run's own logs read
    assert found[0].files[0].parent == wandb_run
    check(store.read_run(found[0].path), "wandb")
    assert {Path(note.partition(":")[0]).suffix for note in notes} == {".log"}


def test_a_wandb_file_is_read_by_its_name_too(wandb_run: Path, tmp_path: Path):
    file = next(wandb_run.glob("offline-run-*/*.wandb"))
    check(only(file, tmp_path), "wandb")
    assert summaries(file, {}, opens=opener())[0]["world_size"] == 4


def test_a_wandb_run_that_was_cut_off_is_read_up_to_there(wandb_run: Path, tmp_path: Path):
    file = next(wandb_run.glob("offline-run-*/*.wandb"))
    cut = tmp_path / "run-1.wandb"
    whole = file.read_bytes()
    cut.write_bytes(whole[: whole.index(f"{metrics(20)['train/loss']}".encode())])
    run = only(cut, tmp_path / "runs")
    assert run.record.status == "interrupted"
    assert 1 < len(run.steps) < STEPS
    assert "ends within a record" in str(run.record.environment["ingest"]["warnings"])


def test_what_is_supplied_may_not_contradict_a_tracker(wandb_run: Path, tmp_path: Path):
    with pytest.raises(IngestError, match="--gpus 8 contradicts"):
        ingest([wandb_run], tmp_path, {"world_size": 8}, opens=opener())


def framed(*records: bytes) -> bytes:
    """Return a .wandb file of short records."""
    out = b":W&B\xe1\xbe\x00"
    for record in records:
        out += struct.pack("<IHB", zlib.crc32(b"\x01" + record), len(record), 1) + record
    return out


def part(field: int, content: bytes) -> bytes:
    """Return a field of a message that holds text or another message, of at most 127 bytes."""
    key = field << 3 | 2
    head = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
    return head + bytes([len(content)]) + content


def item(name: str, value: str) -> bytes:
    """Return an item of a history or a configuration."""
    return part(1, part(1, name.encode()) + part(16, value.encode()))


def history(step: int, seconds: str) -> bytes:
    """Return the record of a call of ``wandb.log``."""
    cells = {"_step": str(step), "step_time": seconds, "loss": "2.5"}
    return part(2, b"".join(item(name, text) for name, text in cells.items()))


def test_records_of_wandb_are_read_without_its_client(tmp_path: Path):
    file = tmp_path / "run-x.wandb"
    config = part(5, item("world_size", "4"))
    file.write_bytes(framed(config, *(history(n, "0.5") for n in range(1, 10))))
    run = only(file, tmp_path / "runs")
    assert [step.step_seconds for step in run.steps] == [0.5] * 9
    assert run.record.observed["world_size"] == 4


@pytest.mark.parametrize("missing", [1, len(history(9, "0.5")) + 2])
def test_a_file_that_ends_within_a_record_or_its_header_says_so(missing: int, tmp_path: Path):
    file = tmp_path / "run-x.wandb"
    file.write_bytes(framed(*(history(n, "0.5") for n in range(1, 10)))[:-missing])
    run = only(file, tmp_path / "runs")
    assert len(run.steps) == 8
    assert "ends within a record" in str(run.record.environment["ingest"]["warnings"])


def test_a_damaged_record_ends_the_reading(tmp_path: Path):
    file = tmp_path / "run-x.wandb"
    whole = framed(*(history(n, "0.5") for n in range(1, 10)))
    at = whole.rindex(b"0.5")
    file.write_bytes(whole[:at] + b"9.5" + whole[at + 3 :])
    run = only(file, tmp_path / "runs")
    assert [step.step_seconds for step in run.steps] == [0.5] * 8
    assert "damaged" in str(run.record.environment["ingest"]["warnings"])


def test_a_file_that_only_has_the_name_is_refused_in_the_usual_words(tmp_path: Path):
    file = tmp_path / "run-x.wandb"
    file.write_bytes(b"no such log")
    with pytest.raises(IngestError, match=r"contains no record that the dialect wandb .*--map"):
        ingest([file], tmp_path, {}, opens=opener())


@pytest.mark.parametrize("data", [b"\x0a\xff", b"\x0b", b"\x80" * 12, b"\x0a\x05ab", b"\x80"])
def test_bytes_that_are_no_protocol_buffer_are_an_error(data: bytes):
    with pytest.raises(ValueError, match=r"cut off|kind|64 bits"):
        list(wire.fields(data))


# MLflow ------------------------------------------------------------------------------------------


def write_file_store(folder: Path, status: int = 3) -> Path:
    """Write a run as MLflow's file store does; return its folder."""
    run = folder / "0" / "0f3c"
    for name in ("metrics/train", "params", "tags"):
        (run / name).mkdir(parents=True)
    (run / "meta.yaml").write_text(f"lifecycle_stage: active\nrun_id: 0f3c\nstatus: {status}\n")
    for name, value in CONFIG.items():
        (run / "params" / name).write_text(str(value))
    for name in metrics(1):
        lines = (f"{1000 * n} {metrics(n)[name]} {n}\n" for n in range(1, STEPS + 1))
        (run / "metrics" / name).write_text("".join(lines))
    return run


def test_a_run_of_an_mlflow_folder_is_read(tmp_path: Path):
    write_file_store(tmp_path / "mlruns")
    check(only(tmp_path / "mlruns", tmp_path / "runs"), "mlflow")


@pytest.mark.parametrize(
    ("status", "ours"), [(1, "interrupted"), (4, "failed"), (5, "interrupted")]
)
def test_the_status_of_mlflow_becomes_ours(status: int, ours: str, tmp_path: Path):
    run = only(write_file_store(tmp_path / "mlruns", status), tmp_path / "runs")
    assert run.record.status == ours


def test_no_link_leads_out_of_a_folder_of_mlflow(tmp_path: Path):
    run = write_file_store(tmp_path / "mlruns")
    secret = tmp_path / "secret"
    secret.write_text("1 7.0 99\n")
    (run / "metrics" / "loss").symlink_to(secret)
    with pytest.raises(IngestError, match="it is a link"):
        ingest([run], tmp_path / "runs", {}, opens=opener())
    (run / "metrics" / "loss").unlink()
    (run / "metrics" / "more").symlink_to(tmp_path)
    check(only(run, tmp_path / "runs"), "mlflow")


def test_step_times_come_from_the_clock_where_none_was_logged(tmp_path: Path):
    run = write_file_store(tmp_path / "mlruns")
    (run / "metrics" / "step_time").unlink()
    found = only(run, tmp_path / "runs")
    assert [step.step_seconds for step in found.steps][1:] == [1.0] * (STEPS - 1)
    assert "difference of" in str(found.record.environment["ingest"]["warnings"])


def test_a_column_of_a_tracker_can_be_mapped(tmp_path: Path):
    run = write_file_store(tmp_path / "mlruns")
    (run / "metrics" / "step_time").rename(run / "metrics" / "my clock")
    dialect = mapped({"step_seconds": "my clock"})
    found, _ = ingest([run], tmp_path / "runs", {}, dialect, opener(dialect))
    check(store.read_run(found[0].path), "mlflow")


def write_sqlite(path: Path, *, nan_at: int = 0) -> Path:
    """Write the tables of MLflow's schema that matter, with two runs, one of them deleted."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(
            "CREATE TABLE runs (run_uuid TEXT, status TEXT, start_time INTEGER, lifecycle_stage"
            " TEXT); CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);"
            "CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);"
            "CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT,"
            " step INTEGER, is_nan INTEGER);"
        )
        runs = [("a", "FINISHED", 1, "active"), ("b", "FINISHED", 2, "deleted")]
        db.executemany("INSERT INTO runs VALUES (?, ?, ?, ?)", runs)
        parameters = [(name, str(value), "a") for name, value in CONFIG.items()]
        db.executemany("INSERT INTO params VALUES (?, ?, ?)", parameters)
        rows = [
            (name, value, 1000 * step, "a", step, int(step == nan_at and name == "train/loss"))
            for step in range(1, STEPS + 1)
            for name, value in metrics(step).items()
        ]
        db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    return path


def test_a_sqlite_store_is_read_and_not_written(tmp_path: Path):
    path = write_sqlite(tmp_path / "mlflow.db")
    before = path.read_bytes()
    path.chmod(0o444)
    check(only(path, tmp_path / "runs"), "mlflow")
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mlflow.db", "runs"]


def test_a_loss_that_is_not_a_number_is_a_diverged_run(tmp_path: Path):
    path = write_sqlite(tmp_path / "mlflow.db", nan_at=STEPS)
    assert only(path, tmp_path / "runs").record.status == "diverged"


def test_a_store_that_is_not_of_mlflow_or_damaged_is_refused(tmp_path: Path):
    other, broken = tmp_path / "other.db", write_sqlite(tmp_path / "broken.db")
    with closing(sqlite3.connect(other)) as db, db:
        db.execute("CREATE TABLE notes (text TEXT)")
        db.execute("CREATE VIEW metrics AS SELECT * FROM notes")
    with pytest.raises(IngestError, match="not a store of MLflow"):
        ingest([other], tmp_path / "runs", {}, opens=opener())
    data = broken.read_bytes()
    broken.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    with pytest.raises(IngestError, match=r"broken\.db cannot be read as a store of MLflow"):
        ingest([broken], tmp_path / "runs", {}, opens=opener())


def test_a_run_with_too_many_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracked_run, "MOST_VALUES", 20)
    with pytest.raises(IngestError, match="more than 20 numbers"):
        ingest([write_sqlite(tmp_path / "mlflow.db")], tmp_path / "runs", {}, opens=opener())


def test_a_store_of_mlflow_itself_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("sqlalchemy", "alembic"):
        pytest.importorskip(name, reason="pip install -e '.[test]'")
    mlflow = pytest.importorskip("mlflow", reason="pip install -e '.[trackers]'")
    monkeypatch.chdir(tmp_path)
    write_by_client(mlflow, f"sqlite:///{tmp_path}/mlflow.db")
    check(only(tmp_path / "mlflow.db", tmp_path / "runs"), "mlflow")


def test_a_folder_of_mlflow_itself_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install -e '.[trackers]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    write_by_client(mlflow, (tmp_path / "mlruns").as_uri())
    check(only(tmp_path / "mlruns", tmp_path / "runs"), "mlflow")


def write_by_client(mlflow, uri: str) -> None:
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("x")).info.run_id
    for name, value in CONFIG.items():
        client.log_param(run, name, value)
    for step in range(1, STEPS + 1):
        for name, value in metrics(step).items():
            client.log_metric(run, name, value, step=step)
    client.set_terminated(run)


# TensorBoard -------------------------------------------------------------------------------------


def event(step: int, *values: tuple[str, float]) -> bytes:
    """Return an event with plain floats."""
    summary = b""
    for tag, value in values:
        body = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
        summary += b"\x0a" + bytes([len(body)]) + body
    head = b"\x09" + struct.pack("<d", 1000.0 + step) + b"\x10" + bytes([step])
    return head + b"\x2a" + bytes([len(summary)]) + summary


def tfrecord(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return size + _masked(size) + data + _masked(data)


def test_the_checksum_is_that_of_the_standard():
    # RFC 3720, B.4: 32 bytes of zeros have CRC-32C 0x8A9136AA, and TFRecord masks it
    value = 0x8A9136AA
    masked = ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _masked(bytes(32)) == masked.to_bytes(4, "little")


def test_event_files_are_read_without_a_client(tmp_path: Path):
    folder = tmp_path / "board" / "run1"
    folder.mkdir(parents=True)
    records = [tfrecord(event(n, ("lm loss", 3.0), ("iteration-time", 0.5))) for n in range(1, 21)]
    (folder / "events.out.tfevents.1.host").write_bytes(b"".join(records[:12]))
    (folder / "events.out.tfevents.2.host").write_bytes(b"".join(records[10:])[:-9])
    run = only(tmp_path / "board", tmp_path / "runs", world_size=4)
    assert [step.step for step in run.steps] == list(range(1, 20))
    assert [step.step_seconds for step in run.steps] == [0.5] * 19
    assert "ends within a record" in str(run.record.environment["ingest"]["warnings"])


def test_a_damaged_event_ends_the_reading(tmp_path: Path):
    file = tmp_path / "events.out.tfevents.1.host"
    data = b"".join(tfrecord(event(n, ("loss", 3.0), ("step_time", 0.5))) for n in range(1, 9))
    file.write_bytes(data[:-10] + bytes([data[-10] ^ 1]) + data[-9:])
    assert len(only(file, tmp_path / "runs").steps) == 7


def test_a_huge_record_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "MOST_BYTES", 200)
    small = [tfrecord(event(n, ("loss", 3.0), ("step_time", 0.5))) for n in range(1, 5)]
    file = tmp_path / "events.out.tfevents.1.host"
    file.write_bytes(small[0] + tfrecord(bytes(500)) + b"".join(small[1:]))
    assert len(only(file, tmp_path / "runs").steps) == 4


def test_event_files_of_tensorboard_itself_are_read(tmp_path: Path):
    summary = pytest.importorskip("tensorboard.summary", reason="pip install -e '.[trackers]'")
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    summary_pb2 = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    tensor_pb2 = pytest.importorskip("tensorboard.compat.proto.tensor_pb2")
    out = summary.Writer(str(tmp_path / "board"))
    for step in range(1, STEPS + 1):
        for name, value in metrics(step).items():
            out.add_scalar(name, value, step)
    out.close()
    # Megatron's arguments: a text each. Hugging Face's: one object.
    texts = {"world_size": "4", "args": json.dumps({**CONFIG, "world_size": 4})}
    more = writers.EventFileWriter(str(tmp_path / "board"))
    for name, text in texts.items():
        tensor = tensor_pb2.TensorProto(dtype=7, string_val=[text.encode()])
        value = summary_pb2.Summary.Value(tag=f"{name}/text_summary", tensor=tensor)
        more.add_event(event_pb2.Event(summary=summary_pb2.Summary(value=[value])))
    more.close()
    check(only(tmp_path / "board", tmp_path / "runs"), "tensorboard", "interrupted")


# All ---------------------------------------------------------------------------------------------


def test_the_batch_of_one_device_is_no_global_batch(tmp_path: Path):
    run = write_file_store(tmp_path / "mlruns")
    (run / "params" / "global_batch_size").unlink()
    (run / "params" / "micro_batch_size").unlink()
    (run / "params" / "per_device_train_batch_size").write_text("2")
    (run / "params" / "train_batch_size").write_text("2")
    observed = only(run, tmp_path / "runs").record.observed
    assert observed["micro_batch_size"] == 2
    assert "global_batch_size" not in observed


def test_values_that_contradict_one_another_are_not_used(tmp_path: Path):
    run = write_file_store(tmp_path / "mlruns")
    (run / "params" / "trainer.global_batch_size").write_text("32")
    found = only(run, tmp_path / "runs")
    assert "global_batch_size" not in found.record.observed
    assert "Say which with --global-batch-size" in str(found.record.environment["ingest"])


def test_an_export_of_a_history_is_read_as_before(tmp_path: Path):
    rows = (json.dumps({"_step": n, **metrics(n)}) for n in range(1, STEPS + 1))
    file = tmp_path / "history.jsonl"
    file.write_text("\n".join(rows))
    run = only(file, tmp_path / "runs", world_size=4, global_batch_size=16, sequence_length=1024)
    check(run, "rows", "interrupted")


def test_a_named_dialect_reads_files_as_text(tmp_path: Path):
    write_file_store(tmp_path / "mlruns")
    assert main(["ingest", str(tmp_path / "mlruns"), "--dialect", "rows", "--json"]) == 2
    assert no_store(tmp_path) is None


def test_a_pipe_under_the_name_of_a_store_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "run-x.wandb")
    os.mkfifo(tmp_path / "mlflow.db")
    found, _ = ingest([tmp_path], tmp_path / "runs", {}, opens=opener())
    assert found == []


@pytest.mark.parametrize(
    ("name", "known"),
    [("train/loss", True), ("perf/step_time", True), ("gpu.0.fan", False),
     ("train/global_batch_size", False)],
)  # fmt: skip
def test_a_metric_is_a_column_in_the_spellings_of_tables(name: str, known: bool):
    assert tracked_run.wants(name, frozenset()) is known
    assert tracked_run.wants(name, frozenset([name]))
