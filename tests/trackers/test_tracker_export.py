"""Runs go out to trackers and come back with the rate that they had."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from simulated import H100, config, write_run

from scalebook import store
from scalebook.cli import main
from scalebook.errors import TrackerError
from scalebook.logs.ingest.ingestion import ingest, summaries
from scalebook.logs.ingest.log_config import observe
from scalebook.logs.ingest.steps import steps_of
from scalebook.measure.metrics import measure
from scalebook.report.base import frames
from scalebook.trackers import Target, export, exported, log_run, opener, parse_target, wire
from scalebook.trackers.exported import export_of
from scalebook.trackers.tracked_run import TrackedRun, content

EXAMPLES = Path(__file__).parents[2] / "runs/examples"
GOOD = next(EXAMPLES.glob("20261128-083934-*-f7a529f1dcbc"))  # Llama 3.1 8B on 4 H200
NEEDS = "pip install -e '.[trackers]'"


def failed() -> Path:
    """Return an example that ran out of memory after some steps, or else before any."""
    found = (path for path in store.run_directories(EXAMPLES)
             if store.read_record(path).status == "out_of_memory")  # fmt: skip
    return next(found)


def back(path: Path, runs: Path) -> store.Run:
    """Return the one run that a tracker's files hold, as it is ingested."""
    found, _ = ingest([path], runs, {}, opens=opener())
    assert len(found) == 1
    return store.read_run(found[0].path)


def same(run: store.Run, original: Path, *, rel: float) -> None:
    """Check that a run that went out and came back has the numbers of the original."""
    first = store.read_run(original)
    one, other = measure(first), measure(run)
    assert one.tokens_per_second_per_gpu is not None
    assert other.tokens_per_second_per_gpu == pytest.approx(one.tokens_per_second_per_gpu, rel=rel)
    assert other.mfu == pytest.approx(one.mfu, rel=rel)
    assert [step.phase for step in run.steps] == [step.phase for step in first.steps]
    assert one.peak_memory_gib is not None
    assert other.peak_memory_gib == pytest.approx(one.peak_memory_gib, rel=rel)
    kept = "reserved_memory_gib"
    assert other.registered[kept] == pytest.approx(one.registered[kept], rel=rel)
    for name in ("model", "platform", "precision", "world_size", "status", "accelerator"):
        assert getattr(other, name) == getattr(one, name), name
    for name in ("step", "step_seconds", "loss", "tokens"):
        values = [getattr(step, name) for step in run.steps]
        assert values == pytest.approx([getattr(s, name) for s in first.steps], rel=rel), name


def test_a_run_returns_from_wandb(tmp_path: Path):
    pytest.importorskip("wandb", reason=NEEDS)
    export(store.read_run(GOOD), Target("wandb", str(tmp_path / "w")))
    same(back(tmp_path / "w", tmp_path / "runs"), GOOD, rel=1e-12)


def test_a_run_returns_from_a_folder_of_mlflow(tmp_path: Path):
    mlflow = pytest.importorskip("mlflow", reason=NEEDS)
    place = tmp_path / "mlruns"
    export(store.read_run(GOOD), Target("mlflow", str(place)))
    same(back(place, tmp_path / "runs"), GOOD, rel=1e-12)
    check_mlflow(mlflow.MlflowClient(tracking_uri=place.as_uri()))


@pytest.mark.parametrize("kind", ["mlflow", "wandb", "tensorboard"])
def test_what_counts_of_the_steps_returns_with_them(kind: str, tmp_path: Path):
    """All steps but 1 take 1 s. Steps 2 to 6 were warm-up, 9 was profiled, 12 saved for 60 s."""
    pytest.importorskip(kind, reason=NEEDS)
    phases = {1: "startup", **dict.fromkeys(range(2, 7), "warmup"), 9: "profiled"}
    first = write_run(tmp_path / "out", "r", config(), steps=30)
    lines = [json.loads(line) for line in (first / "steps.jsonl").read_text().splitlines()]
    for at, line in enumerate(lines, start=1):
        line |= {"phase": phases.get(at, "measured"), "step_seconds": 1.0}
    lines[11] |= {"step_seconds": 61.0, "checkpoint_seconds": 60.0}
    (first / "steps.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    export(store.read_run(first), Target(kind, str(tmp_path / kind)))
    run = back(tmp_path / kind, tmp_path / "runs")
    assert [step.phase for step in run.steps] == [
        "startup", *["warmup"] * 5, *["measured"] * 2, "profiled", *["measured"] * 2, "stalled",
        *["measured"] * 18,
    ]  # fmt: skip
    assert measure(run).tokens_per_second == pytest.approx(8 * 128)


def test_a_run_without_a_rate_returns_without_one(tmp_path: Path):
    """A process died between its measured steps; that time is in no step."""
    pytest.importorskip("mlflow", reason=NEEDS)
    died = next(EXAMPLES.glob("20261129-080855-*-64530e7a5c07"))
    export(store.read_run(died), Target("mlflow", str(tmp_path / "mlruns")))
    one, other = measure(store.read_run(died)), measure(back(tmp_path / "mlruns", tmp_path / "r"))
    assert (one.tokens_per_second, other.tokens_per_second) == (None, None)
    assert "A process died between measured steps" in (one.throughput_reason or "")
    assert other.throughput_reason == one.throughput_reason


def test_a_phase_that_is_none_is_found_from_the_times():
    rows = [{"step": at, "step_seconds": 1.0, "phase_code": code}
            for at, code in enumerate([3.0, 7.0, 1.5, "x", *[2.0] * 8], start=1)]  # fmt: skip
    (job,) = content("mlflow", TrackedRun(Path("r"), rows=rows), None).jobs
    phases = [one.phase for one in steps_of(job, observe(job))]
    assert phases == ["profiled", *["measured"] * 11]


def check_mlflow(client) -> None:
    """Check what people see of the run in MLflow."""
    experiment = client.get_experiment_by_name("scalebook")
    (run,) = client.search_runs([experiment.experiment_id])
    found = measure(store.read_run(GOOD))
    assert (run.info.run_name, run.info.status) == (GOOD.name, "FINISHED")
    numbers = run.data.metrics
    assert numbers["steady_tokens_per_second_per_gpu"] == found.tokens_per_second_per_gpu
    assert numbers["mfu_fraction"] == found.mfu
    assert (numbers["steady_tokens_per_second_per_gpu_low"] < found.tokens_per_second_per_gpu
            < numbers["steady_tokens_per_second_per_gpu_high"])  # fmt: skip
    assert run.data.params["tensor_parallel_size"] == "1"
    assert run.data.tags["scalebook/source"] == "measured"
    assert run.data.tags["scalebook/torch"].startswith("2.")
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [one.value for one in losses] == [s.loss for s in store.read_run(GOOD).steps]
    assert run.info.start_time < run.info.end_time


def test_a_run_returns_from_tensorboard(tmp_path: Path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason=NEEDS
    )
    place = tmp_path / "board"
    export(store.read_run(GOOD), Target("tensorboard", str(place)))
    same(back(place, tmp_path / "runs"), GOOD, rel=1e-6)  # it keeps 32 bits
    shown = accumulator.EventAccumulator(str(place / GOOD.name)).Reload()
    assert [one.step for one in shown.Scalars("step_seconds")] == list(range(1, 15))
    rate = shown.Scalars("summary/steady_tokens_per_second_per_gpu")[0].value
    expected = measure(store.read_run(GOOD)).tokens_per_second_per_gpu
    assert rate == pytest.approx(expected, rel=1e-6)
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    start = shown.SummaryMetadata("_hparams_/session_start_info")
    cells = plugin.HParamsPluginData.FromString(start.plugin_data.content).session_start_info
    assert cells.hparams["global_batch_size"].number_value > 0


def test_a_run_returns_from_mlperf_logging_lines(tmp_path: Path):
    file = tmp_path / "result.log"
    for _ in range(2):  # lines are added to the file
        export(store.read_run(GOOD), Target("mlperf", str(file)))
    lines = file.read_text().splitlines()
    assert len(lines) % 2 == 0
    file.write_text("\n".join(lines[: len(lines) // 2]))
    (found,) = summaries(file, {})
    expected = measure(store.read_run(GOOD))
    rate = found["whole_run_rates"]["samples_per_second"]
    per_gpu = rate * found["sequence_length"] / found["world_size"]
    assert per_gpu == pytest.approx(expected.tokens_per_second_per_gpu, rel=1e-9)
    assert (found["status"], found["global_batch_size"]) == (
        "completed",
        expected.global_batch_size,
    )
    times = [json.loads(line.removeprefix(":::MLLOG "))["time_ms"] for line in lines]
    assert times[: len(times) // 2] == sorted(times[: len(times) // 2])


def test_every_line_has_the_form_that_mlperf_asks_for(tmp_path: Path):
    """What mllog of mlperf_logging 4.1 writes, and its mlp_parser of ruleset 5.1.0 reads."""
    export(store.read_run(GOOD), Target("mlperf", str(tmp_path / "result.log")))
    lines = (tmp_path / "result.log").read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert {line[:10] for line in lines} == {b":::MLLOG {"}
    events = [json.loads(line[9:]) for line in lines]
    form = {
        "namespace": str, "time_ms": int, "event_type": str, "key": str, "value": object,
        "metadata": dict,
    }  # fmt: skip
    for event in events:
        assert event.keys() == form.keys()
        assert all(isinstance(event[name], kind) for name, kind in form.items()), event
        assert event["metadata"].keys() >= {"file", "lineno"}
    kinds = {event["key"]: event["event_type"] for event in events}
    assert kinds.pop("run_start") == "INTERVAL_START"
    assert kinds.pop("run_stop") == "INTERVAL_END"
    assert set(kinds.values()) == {"POINT_IN_TIME"}
    assert kinds.keys() >= {"submission_benchmark", "global_batch_size", "train_loss"}


@pytest.mark.parametrize("kind", ["mlflow", "wandb", "tensorboard"])
def test_a_failed_run_keeps_its_status_and_reason(kind: str, tmp_path: Path):
    pytest.importorskip(kind, reason=NEEDS)
    original = store.read_run(failed())
    export(original, Target(kind, str(tmp_path / "out")))
    run = back(tmp_path / "out", tmp_path / "runs")
    assert run.record.status == "out_of_memory"
    assert (original.record.reason or "")[:40] in (run.record.reason or "")


def test_packed_documents_go_out_and_come_back(tmp_path: Path):
    pytest.importorskip("wandb", reason=NEEDS)
    long = {"sequence_length": 32_768, "packed_documents": 4}  # whole, attention is a third
    packed = config(platform="h100", model="llama3.1-8b", precision="bf16", **long)
    original = write_run(tmp_path / "runs", "packed", packed, seconds=60.0, device=H100)
    export(store.read_run(original), Target("wandb", str(tmp_path / "w")))
    run = back(tmp_path / "w", tmp_path / "back")
    one, other = measure(store.read_run(original)), measure(run)
    assert (one.packed_documents, other.packed_documents) == (4, 4)
    tflops = [
        found.model_tflops_per_second_per_gpu / found.tokens_per_second_per_gpu
        for found in (one, other)
    ]
    assert tflops[0] == pytest.approx(tflops[1], rel=1e-12)
    (summary,) = summaries(tmp_path / "w" / "wandb", {}, opens=opener())
    counted = summary["tflops"]["recounted"]["megatron_causal"]
    assert counted / summary["tokens_per_second_per_gpu"] == pytest.approx(tflops[0], rel=0.05)


def test_what_is_missing_has_a_reason_and_no_number():
    found = export_of(store.read_run(failed()))
    assert "mfu_fraction" not in found.summary
    assert found.tags["status"] == "out_of_memory"
    assert found.tags["mfu_reason"]


def test_every_name_of_the_summary_carries_its_unit():
    units = ("_per_gpu", "_fraction", "_low", "_high", "_seconds", "_steps", "_gib", "_per_token")
    names = export_of(store.read_run(GOOD)).summary
    assert len(names) > 6
    units = (*units, "step_seconds_std")
    assert [name for name in names if not name.endswith(units)] == []


OWN = """\
import scalebook as sb

@sb.metric(unit="tokens/s", meaning="twice the rate", null="There is no rate.")
def doubled(run):
    return run.numbers.tokens_per_second and 2 * run.numbers.tokens_per_second

@sb.metric(unit="", dtype="str", meaning="a word", null="No word.")
def verdict(run):
    return "fine"

@sb.metric(unit="s", meaning="never there", null="Nobody knows.")
def absent(run):
    return None
"""
ANY = (("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "board"), ("mlperf", "log.txt"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with metrics of its own, as the working directory."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / ".scalebook.toml").write_text('[metrics]\nfiles = ["mine.py"]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def held(kind: str, place: Path) -> dict[str, float]:
    """Return the numbers that a tracker's own reader finds in the summary of its one run."""
    if kind == "mlflow":
        client = pytest.importorskip("mlflow").MlflowClient(tracking_uri=place.as_uri())
        (run,) = client.search_runs([client.get_experiment_by_name("scalebook").experiment_id])
        assert run.data.tags["scalebook/verdict"] == "fine"
        assert run.data.tags["scalebook/absent_reason"] == "Nobody knows."
        return run.data.metrics
    if kind == "tensorboard":
        events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        shown = events.EventAccumulator(str(place / GOOD.name)).Reload()
        names = [tag for tag in shown.Tags()["scalars"] if tag.startswith("summary/")]
        return {tag.removeprefix("summary/"): shown.Scalars(tag)[0].value for tag in names}
    if kind == "wandb":
        return summary_of_wandb(place)
    events = [json.loads(line.partition(" ")[2]) for line in place.read_text().splitlines()]
    rate, summary = (event["value"] for event in events if event["key"] == "tracked_stats")
    assert [*rate] == ["throughput"]
    return summary


def summary_of_wandb(place: Path) -> dict[str, float]:
    """Return the summary in the file of an offline run, in the words of W&B's own messages."""
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (file,) = place.glob("wandb/offline-run-*/run-*.wandb")
    with file.open("rb") as stream:
        held = [records.Record.FromString(one) for one in wire.wandb_records(stream, print)]
    updates = (item for record in held for item in record.summary.update)
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in updates}


@pytest.mark.parametrize(("kind", "name"), ANY)
def test_registered_metrics_go_out_with_those_of_the_project(kind: str, name: str, project: Path):
    if kind != "mlperf":
        pytest.importorskip(kind, reason=NEEDS)
    assert main(["export", str(GOOD), "--to", f"{kind}:{project / name}"]) == 0
    numbers, found = held(kind, project / name), measure(store.read_run(GOOD))
    expected = {
        "hfu_fraction": found.hfu,
        "reserved_memory_gib": found.registered["reserved_memory_gib"],
        "doubled_tokens_per_s": 2 * (found.tokens_per_second or 0),
    }
    assert None not in expected.values()
    assert {one: numbers[one] for one in expected} == pytest.approx(expected, rel=1e-6)
    assert not {"absent", "absent_seconds"} & {*numbers}


def test_the_tables_hold_the_metrics_of_the_project(project: Path):
    place = project / "tables"
    assert main(["export", str(GOOD), "--to", f"parquet:{place}", "--to", f"csv:{place}"]) == 0
    rate = measure(store.read_run(GOOD)).tokens_per_second
    for table in (pl.read_parquet(place / "runs.parquet"), pl.read_csv(place / "runs.csv")):
        row = table.row(0, named=True)
        assert row["doubled"] == pytest.approx(2 * rate)
        assert (row["verdict"], row["absent"]) == ("fine", None)
        assert row["absent_reason"] == "Nobody knows."


# The command -------------------------------------------------------------------------------------


def test_tables_are_those_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = tmp_path / "runs"
    runs.mkdir()
    for path in (GOOD, failed()):
        (runs / path.name).symlink_to(path)
    place = tmp_path / "tables"
    assert main(["export", str(runs), "--to", f"parquet:{place}", "--to", f"csv:{place}"]) == 0
    data = frames.load(runs)
    assert pl.read_parquet(place / "runs.parquet").equals(data.runs)
    assert pl.read_parquet(place / "steps.parquet").equals(data.steps)
    assert pl.read_csv(place / "steps.csv").height == data.steps.height
    assert pl.read_csv(place / "runs.csv")["run_id"].to_list() == data.runs["run_id"].to_list()
    assert "of 2 runs written" in capsys.readouterr().out


def test_a_run_can_be_named_by_the_end_of_its_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "result.log"
    assert main(["export", GOOD.name[-6:], "--runs", str(EXAMPLES), "--to", f"mlperf:{file}"]) == 0
    assert "1 of 1 runs written" in capsys.readouterr().out
    assert ":::MLLOG" in file.read_text()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("mlflo:x", "Unknown target 'mlflo'. .*Did you mean 'mlflow'"),
        ("foo:bar", "Write .* csv:DIR or parquet:DIR"),
        ("mlperf", "names no place. Write mlperf:FILE"),
        ("mlperf:", "names no place"),
        ("csv:", "A table needs a folder"),
        (f"csv:{__file__}", "cannot be written: File exists. Name a folder"),
    ],
)
def test_a_target_that_is_none_is_an_error_of_one_line(
    target: str, message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["export", str(GOOD), "--to", target]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_a_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scalebook.trackers.find_spec", lambda _: None)
    with pytest.raises(TrackerError, match=r"wandb is not installed.* -e '\.\[trackers\]'"):
        parse_target("wandb:x")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(TrackerError, match=r"mlflow is not installed.* -e '\.\[trackers\]'"):
        exported.client("mlflow")


def test_a_tracker_that_fails_costs_an_export_its_exit_code_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    good = tmp_path / "result.log"
    command = ["export", str(GOOD), "--to", f"mlperf:{blocked}/x", "--to", f"mlperf:{good}"]
    assert main(command) == 1
    assert "did not take run" in capsys.readouterr().err
    assert good.exists()


# After each run ----------------------------------------------------------------------------------


def test_a_server_that_does_not_answer_is_a_warning():
    pytest.importorskip("mlflow", reason=NEEDS)
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        target = Target("mlflow", f"http://127.0.0.1:{taken.getsockname()[1]}")
        (problem,) = log_run(GOOD, [target])
    assert problem.startswith(f"{target} did not take run {GOOD.name}: ")
    assert "\n" not in problem


def test_a_run_that_has_ended_is_written_by_a_process_of_its_own(tmp_path: Path):
    good, bad = tmp_path / "result.log", tmp_path / "result.log" / "x"
    problems = log_run(GOOD, [Target("mlperf", str(good)), Target("mlperf", str(bad))])
    assert len(problems) == 1
    assert good.read_text().count("run_stop") == 1


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scalebook.trackers.EXPORT_SECONDS", 2.0)
    started = time.monotonic()
    with socket.socket() as silent:  # takes the connection and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        target = Target("mlflow", f"http://127.0.0.1:{silent.getsockname()[1]}")
        (problem,) = log_run(GOOD, [target])
    assert "not written to" in problem
    assert time.monotonic() - started < 30


def test_slurm_jobs_are_exported_when_they_have_ended(capsys: pytest.CaptureFixture[str]):
    command = ["run", "--platform", "h100", "--launcher", "slurm", "--dry-run"]
    assert main([*command, "--log-to", "mlperf:x.log"]) == 2
    assert "scalebook export" in capsys.readouterr().err


# A server ----------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serve MLflow on this machine, without what runs jobs of its own."""
    for name in ("mlflow", "flask", "flask_cors", "sqlalchemy", "alembic"):
        pytest.importorskip(name, reason="pip install -e '.[test]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The Flask application itself: the command that serves it needs more than the light client.
    command = [
        *(sys.executable, "-m", "flask", "--app", "mlflow.server:app"),
        *("run", "--port", str(port)),
    ]
    where = {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{tmp_path}/store.db",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": str(tmp_path / "artifacts"),
    }
    process = subprocess.Popen(command, cwd=tmp_path, env=os.environ | where)
    try:
        for _ in range(1500):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            assert process.poll() is None, "the server ended"
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_a_run_returns_from_a_server(server: str, tmp_path: Path):
    mlflow = pytest.importorskip("mlflow")
    assert log_run(GOOD, [parse_target(f"mlflow:{server}")]) == []
    check_mlflow(mlflow.MlflowClient(tracking_uri=server))
    same(back(tmp_path / "store.db", tmp_path / "runs"), GOOD, rel=1e-12)
