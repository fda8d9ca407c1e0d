"""From files to run directories: joined, supplied, refused, written once."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard

from scalebook import catalog, flops, store
from scalebook.cli import main
from scalebook.errors import IngestError
from scalebook.ingest import group, holding
from scalebook.ingest import write as ingest_write
from scalebook.ingest.run import ingest, summaries
from scalebook.logs import source
from scalebook.metrics import measure
from scalebook.running import recovery
from scalebook.store import read_run, read_runs

LOGS = Path(__file__).parent / "logs"


def line(step, ms=1000.0, *, loss=None, tflops=None, batch=16, total=60):
    parts = [
        f" iteration {step:8d}/ {total:7d}",
        f"consumed samples: {batch * step:12d}",
        f"elapsed time per iteration (ms): {ms:.1f}",
        *([] if tflops is None else [f"throughput per GPU (TFLOP/s/GPU): {tflops:.1f}"]),
        "learning rate: 1.000E-04",
        f"global batch size: {batch:5d}",
        *([] if loss is None else [f"lm loss: {loss:.6E}"]),
        "loss scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |",
    ]
    return " | ".join(parts) + "\n"


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def one(path, **supplied):
    found = summaries(path, supplied)
    assert len(found) == 1
    return found[0]


def test_an_ingested_run_reads_back_marked_with_its_settings_and_steps(tmp_path):
    (run,), notes = ingest([LOGS / "megatron_2024.log"], tmp_path / "runs", {"platform": "h100"})
    assert notes == []
    back = read_run(run.path)
    assert back.problems == ()
    assert (back.record.source, back.record.status) == ("ingested", "completed")
    assert back.record.observed["tensor_parallel_size"] == 2
    assert back.record.observed["precision"] == "bf16"
    assert [step.step for step in back.steps] == [1, 2, 3, 4, 5, 6]
    assert [step.phase for step in back.steps] == ["startup", *["measured"] * 5]
    assert back.steps[1].tokens == 96 * 2048
    assert back.steps[1].step_seconds == pytest.approx(2.0125)


def test_metrics_are_those_of_the_log(tmp_path):
    (run,), _ = ingest([LOGS / "megatron_2024.log"], tmp_path, {"platform": "h100"})
    found = measure(read_run(run.path))
    seconds = (2.0125 + 2.001 + 1.999 + 2.0035 + 2.0005) / 5
    per_gpu = 96 * 2048 / seconds / 32
    per_token = flops.flops_per_token(catalog.model("llama2-7b"), 2048)
    assert found.model == "llama2-7b"
    assert found.tokens_per_second_per_gpu == pytest.approx(per_gpu)
    assert found.model_tflops_per_second_per_gpu == pytest.approx(per_gpu * per_token / 1e12)
    assert found.mfu == pytest.approx(per_gpu * per_token / 1e12 / 989.4, rel=1e-3)


def test_ingesting_twice_changes_nothing(tmp_path):
    paths = [LOGS / "megatron_2024.log"]
    (first,), _ = ingest(paths, tmp_path, {})
    before = {path: path.stat().st_mtime_ns for path in first.path.iterdir()}
    (second,), _ = ingest(paths, tmp_path, {})
    assert (first.new, second.new) == (True, False)
    assert {path: path.stat().st_mtime_ns for path in second.path.iterdir()} == before


def threads(count, call):
    """Call something in several threads at the same time; return what each got."""
    with ThreadPoolExecutor(count) as pool:
        return [one.result() for one in [pool.submit(call) for _ in range(count)]]


def test_ingesting_at_the_same_time_writes_one_whole_run(tmp_path, monkeypatch):
    log = LOGS / "megatron_2024.log"
    attached = ingest_write._write_attached
    monkeypatch.setattr(
        ingest_write, "_write_attached", lambda *given: (time.sleep(0.3), attached(*given))
    )
    found = threads(3, lambda: ingest([log], tmp_path, {})[0][0])
    assert sorted(run.new for run in found) == [False, False, True]
    (path,) = tmp_path.iterdir()
    assert {run.path for run in found} == {path}
    assert not (path / holding.OWNER_FILE).exists()
    assert len(read_run(path).steps) == 6


def test_recovering_during_an_ingest_leaves_its_directory_alone(tmp_path, monkeypatch):
    seen = []

    def recover(directory, _group):
        os.utime(directory, (1, 1))  # however long it takes
        seen.extend(recovery.recover(tmp_path))

    monkeypatch.setattr(ingest_write, "_write_attached", recover)
    (run,), _ = ingest([LOGS / "megatron_2024.log"], tmp_path, {})
    assert [leftover.record for leftover in seen] == [None]
    assert len(read_run(run.path).steps) == 6


def test_what_a_killed_ingest_left_is_written_anew(tmp_path):
    (run,), _ = ingest([LOGS / "megatron_2024.log"], tmp_path, {})
    partial = run.path.rename(tmp_path / f".partial-{run.path.name}")
    (partial / holding.OWNER_FILE).write_text("")
    (partial / "profile").mkdir()
    (partial / "record.json").write_text("{")
    (again,), _ = ingest([LOGS / "megatron_2024.log"], tmp_path, {})
    assert again.new
    assert [path.name for path in sorted(again.path.iterdir())] == ["record.json", "steps.jsonl"]
    assert list(tmp_path.iterdir()) == [again.path]


def test_where_files_cannot_be_locked_a_log_is_ingested_all_the_same(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(holding.fcntl, "flock", flock)
    (run,), _ = ingest([LOGS / "megatron_2024.log"], tmp_path, {})
    assert run.new
    assert not (run.path / holding.OWNER_FILE).exists()


def test_what_is_supplied_the_second_time_makes_a_run_of_its_own(tmp_path):
    log, runs = LOGS / "megatron_2021_windows.log", tmp_path / "runs"
    ((plain, *_), _) = ingest([log], runs, {})
    ((first, *_), _) = ingest([log], runs, {"platform": "h100"})
    ((again, *_), _) = ingest([log], runs, {"platform": "h100"})
    ((still, *_), _) = ingest([log], runs, {})
    assert first.new and first.path != plain.path
    assert (again.new, again.path) == (False, first.path)
    assert (still.new, still.path) == (False, plain.path)
    assert store.read_record(first.path).observed["platform"] == "h100"
    assert "platform" not in store.read_record(plain.path).observed


def test_what_was_supplied_before_names_told_of_it_is_found_again(tmp_path):
    log, runs = LOGS / "megatron_2021_windows.log", tmp_path / "runs"
    ((plain, *_), _) = ingest([log], runs, {})
    ((first, *_), _) = ingest([log], runs, {"platform": "h100"})
    shutil.rmtree(plain.path)
    record = store.read_record(first.path).model_copy(update={"run_id": plain.path.name})
    store.write_record(first.path.rename(plain.path), record)
    ((again, *_), _) = ingest([log], runs, {"platform": "h100"})
    assert (again.new, again.path) == (False, plain.path)


def test_a_file_whose_name_is_no_utf_8_gives_a_record_that_can_be_read(tmp_path):
    log = tmp_path / os.fsdecode(b"caf\xe9.log")
    log.write_bytes((LOGS / "megatron_2021_windows.log").read_bytes())
    ((run, *_), _) = ingest([log], tmp_path / "runs", {})
    (file,) = store.read_record(run.path).environment["ingest"]["files"]
    assert file["name"] == r"caf\udce9.log"


@pytest.mark.parametrize("runs", ["file", "file/below"])
def test_runs_that_cannot_be_written_are_one_line_and_exit_code_2(tmp_path, capsys, runs):
    (tmp_path / "file").write_text("")
    log = str(LOGS / "megatron_2021_windows.log")
    assert main(["ingest", log, "--runs", str(tmp_path / runs)]) == 2
    error = capsys.readouterr().err
    assert "cannot be written to" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_folder_with_nothing_in_it_is_exit_code_2(tmp_path, capsys, option):
    (tmp_path / "empty").mkdir()
    assert main(["ingest", str(tmp_path / "empty"), *option, "--runs", str(tmp_path / "r")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "recognised" in captured.err


def test_the_run_id_follows_the_content_not_the_name_or_the_packing(tmp_path):
    content = (LOGS / "megatron_2024.log").read_bytes()
    (tmp_path / "other.out").write_bytes(content)
    (tmp_path / "packed.log.gz").write_bytes(gzip.compress(content))
    runs = [
        ingest([path], tmp_path / path.name.replace(".", "-"), {})[0][0].path.name
        for path in (LOGS / "megatron_2024.log", tmp_path / "other.out", tmp_path / "packed.log.gz")
    ]
    assert len(set(runs)) == 1


def test_what_the_log_does_not_tell_is_null(tmp_path):
    found = one(write(tmp_path / "a.log", line(1), line(2)))
    for name in ("world_size", "sequence_length", "tensor_parallel_size", "micro_batch_size"):
        assert found[name] is None
    assert found["tokens_per_second_median"] is None


def test_what_is_supplied_fills_gaps_and_is_marked(tmp_path):
    path = write(tmp_path / "a.log", line(1), line(2, 2000.0))
    found = one(path, sequence_length=4096, world_size=8)
    assert found["tokens_per_second_per_gpu_median"] == pytest.approx(16 * 4096 / 2 / 8)
    assert found["provenance"]["sequence_length"] == "supplied"
    assert found["provenance"]["global_batch_size"] == "told"


@pytest.mark.parametrize(
    ("supplied", "message"),
    [
        ({"global_batch_size": 32}, "--global-batch-size 32 contradicts .* which tells 96"),
        ({"world_size": 64}, "--gpus 64 contradicts .* which tells 32"),
        ({"model": "llama3.1-8b"}, "--model llama3.1-8b has ffn_hidden_size=14336, but .* 11008"),
    ],
)
def test_what_is_supplied_may_not_contradict_the_file(supplied, message):
    with pytest.raises(IngestError, match=message):
        summaries(LOGS / "megatron_2024.log", supplied)


def test_a_platform_may_not_contradict_the_device(tmp_path):
    with pytest.raises(IngestError, match=r"--platform mi300x contradicts .*NVIDIA H100 80GB HBM3"):
        ingest([LOGS / "torchtitan.log"], tmp_path, {"platform": "mi300x"})
    assert not list(tmp_path.iterdir())


def test_tflops_are_recounted_and_the_disagreement_kept(tmp_path):
    path = write(tmp_path / "a.log", *(line(n, 8000.0, tflops=500.0) for n in range(1, 5)))
    found = one(path, model="llama3.1-8b", sequence_length=8192, world_size=8)
    tflops = found["tflops"]
    rate = 16 * 8192 / 8.0 / 8
    ours = rate * flops.flops_per_token(catalog.model("llama3.1-8b"), 8192) / 1e12
    assert tflops["recounted"]["megatron_causal"] == pytest.approx(ours)
    assert tflops["logged_over_recounted"] == pytest.approx(500.0 / ours)
    assert any("times those of megatron_causal" in warning for warning in found["warnings"])


@pytest.mark.parametrize("modules", [0, 1])
def test_further_tokens_that_a_log_says_it_trained_are_counted(tmp_path, modules):
    told = f"  mtp_num_layers .................................. {modules or None}\n"
    path = write(tmp_path / "a.log", told, *(line(n, 8000.0) for n in range(1, 5)))
    found = one(path, model="deepseek-v3", sequence_length=4096, world_size=8)
    rate = 16 * 4096 / 8.0 / 8
    ours = rate * flops.flops_per_token(catalog.model("deepseek-v3"), 4096, mtp_layers=modules)
    assert found["tflops"]["recounted"]["megatron_causal"] == pytest.approx(ours / 1e12)
    (run,), _ = ingest([path], tmp_path / "runs", {"model": "deepseek-v3"})
    assert (read_run(run.path).record.setting("mtp_layers") or 0) == modules


def test_printed_tflops_are_kept_where_nothing_can_be_counted_beside_them(tmp_path):
    rates = (100.0, 500.0, 510.0, 520.0)
    path = write(tmp_path / "a.log", *(line(n + 1, tflops=rate) for n, rate in enumerate(rates)))
    tflops = one(path)["tflops"]
    assert tflops["logged"] == 510.0  # the median without the first record
    assert tflops["recounted"] is None
    assert "sequence_length" in tflops["reason"]


def test_the_convention_that_gives_the_printed_tflops_is_named(tmp_path):
    shape = catalog.model("llama3.1-8b")
    rate = 16 * 8192 / 8.0 / 8
    printed = rate * flops.flops_per_token(shape, 8192, "full_attention") / 1e12
    path = write(tmp_path / "a.log", *(line(n, 8000.0, tflops=printed) for n in range(1, 5)))
    found = one(path, model="llama3.1-8b", sequence_length=8192, world_size=8)
    assert found["tflops"]["convention_that_fits"] == "full_attention"


@pytest.mark.parametrize("factor", [0.5, 2.0, 4.0, 8.0])
def test_a_printed_rate_that_contradicts_is_flagged_with_its_factor(tmp_path, factor):
    rate = factor * 16 * 4096 / 2.0 / 8
    path = write(
        tmp_path / "a.log",
        *(
            line(n, 2000.0).rstrip() + f" tokens per GPU (tokens/s/GPU): {rate:.1f} |\n"
            for n in range(1, 4)
        ),
    )
    told = write(
        tmp_path / "b.log",
        "  seq_length ...................................... 4096\n",
        "  world_size ...................................... 8\n",
        path.read_text(),
    )
    for found in (one(told), one(path, sequence_length=4096, world_size=8)):
        assert found["sequence_length"] == 4096
        assert found["tokens_per_second_per_gpu_median"] == pytest.approx(16 * 4096 / 2.0 / 8)
        assert any(f"is {factor:.3g} times what" in warning for warning in found["warnings"])


def test_figures_that_imply_a_size_are_not_overruled(tmp_path):
    path = write(
        tmp_path / "a.log",
        "  world_size ...................................... 8\n",
        *(
            line(n, 2000.0).rstrip() + " tokens per GPU (tokens/s/GPU): 4096.5 |\n"
            for n in range(1, 4)
        ),
    )
    assert one(path)["sequence_length"] is None
    exact = write(tmp_path / "b.log", path.read_text().replace("4096.5", "4096.0"))
    assert one(exact)["sequence_length"] == 4096
    with pytest.raises(
        IngestError, match=r"--sequence-length 8192 contradicts b\.log, which implies"
    ):
        one(exact, sequence_length=8192)


def test_files_of_ranks_become_one_run(tmp_path):
    steps = [line(n, loss=9 - n / 10) for n in range(1, 5)]
    write(tmp_path / "job" / "rank-0.log", *steps[:3])
    write(tmp_path / "job" / "rank-1.log", *steps, "HIP out of memory. Tried to allocate 2 GiB.\n")
    runs, _ = ingest([tmp_path / "job"], tmp_path / "runs", {})
    assert len(runs) == 1
    assert (runs[0].summary["n_records"], runs[0].summary["status"]) == (4, "out_of_memory")
    assert runs[0].summary["not_used"]["other_rank_records"] == 3


def test_stdout_and_stderr_of_a_job_become_one_run(tmp_path):
    write(tmp_path / "job" / "run-17.out", *(line(n, loss=5.0) for n in range(1, 4)))
    write(
        tmp_path / "job" / "run-17.err",
        "slurmstepd: error: *** JOB 17 CANCELLED AT 2031-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
    )
    runs, _ = ingest([tmp_path / "job" / "run-17.out", tmp_path / "job" / "run-17.err"],
                     tmp_path / "runs", {})  # fmt: skip
    assert [run.summary["status"] for run in runs] == ["interrupted"]
    assert "TIME LIMIT" in runs[0].summary["reason"]


def test_the_names_of_many_files_are_looked_at_once_each(tmp_path, monkeypatch):
    asked = []
    known = group.group_key
    monkeypatch.setattr(group, "group_key", lambda path: asked.append(path) or known(path))
    for job in range(30):
        write(tmp_path / f"job{job}x" / "a.log", line(1, 1000.0 + job, loss=3.0))
        write(tmp_path / f"job{job}x" / "smi.csv", (LOGS / "rocm_smi.csv").read_text())
    found, notes = group.collect([tmp_path])
    assert len(found) == len(asked) == 30
    assert all(len(one.attached) == 1 for one in found)
    assert notes == []


def test_files_of_two_jobs_stay_two_runs(tmp_path):
    write(tmp_path / "job" / "rank-0.log", *(line(n, loss=9.0) for n in range(1, 4)))
    write(tmp_path / "job" / "rank-1.log", *(line(n, loss=3.0) for n in range(1, 4)))
    assert len(ingest([tmp_path / "job"], tmp_path / "runs", {})[0]) == 2


def test_telemetry_and_traces_attach_to_the_run_beside_them(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("megatron_2024.log", "nvidia_smi.csv", "kineto.json"):
        shutil.copy(LOGS / name, folder)
    (run,), notes = ingest([folder], tmp_path / "runs", {})
    assert notes == []
    samples = (run.path / "telemetry.jsonl").read_text().splitlines()
    assert json.loads(samples[0])["power_watts"] == 610.5
    assert "power_watts" not in json.loads(samples[1])
    breakdown = json.loads((run.path / "profile" / "breakdown.json").read_text())
    assert breakdown["traces"][0]["totals"]["device_seconds"] == pytest.approx(900e-6)
    assert breakdown["rank"] == 3
    assert breakdown["parts"]["forward_seconds"] == pytest.approx(600e-6)  # hides the all-reduce
    assert breakdown["parts"]["idle_seconds"] == pytest.approx(400e-6)


def test_telemetry_beside_several_runs_is_attached_to_none(tmp_path):
    for name in ("megatron_2024.log", "maxtext.log", "nvidia_smi.csv"):
        shutil.copy(LOGS / name, tmp_path)
    runs, notes = ingest([tmp_path], tmp_path / "runs", {})
    assert len(runs) == 2
    assert any("attached to none" in note for note in notes)


def test_walking_a_folder_follows_no_link_and_no_run_directory(tmp_path):
    outside = write(tmp_path / "outside" / "secret.log", line(1), line(2))
    folder = tmp_path / "job"
    write(folder / "a.log", line(1), line(2))
    write(folder / ".hidden" / "b.log", line(1, 900.0))
    (folder / "link.log").symlink_to(outside)
    (folder / "links").symlink_to(outside.parent)
    runs, _ = ingest([folder], folder / "runs", {})
    assert [path.name for path in runs[0].files] == ["a.log"]
    again, _ = ingest([folder], folder / "runs", {})
    assert [run.new for run in again] == [False]


def test_a_name_inside_a_file_does_not_leave_the_runs_folder(tmp_path):
    bad = "  tensor_model_parallel_size ...................... ../../../../etc/passwd\n"
    path = write(tmp_path / "..x.log", bad, line(1), line(2))
    (run,), _ = ingest([path], tmp_path / "runs", {})
    assert run.path.parent == tmp_path / "runs"
    assert run.summary["tensor_parallel_size"] is None


def test_a_failed_start_is_a_run_without_numbers(tmp_path):
    (run,), _ = ingest([LOGS / "oom_only.log"], tmp_path, {})
    found = measure(read_run(run.path))
    assert (found.status, found.tokens_per_second, found.measured_steps) == (
        "out_of_memory", None, 0,
    )  # fmt: skip


def test_a_log_that_just_stops_keeps_its_rates(tmp_path):
    (run,), _ = ingest([LOGS / "primus_new_keys.log"], tmp_path, {})
    found = measure(read_run(run.path))
    assert found.status == "interrupted"
    assert found.tokens_per_second_per_gpu == pytest.approx(48 * 4096 / 3.036 / 16, rel=1e-3)


def test_a_log_without_tokens_gives_steps_without_tokens(tmp_path):
    (run,), _ = ingest([write(tmp_path / "a.log", line(1), line(2))], tmp_path / "runs", {})
    back = read_run(run.path)
    assert [step.tokens for step in back.steps] == [None, None]
    assert measure(back).tokens_per_second is None


def test_steps_that_count_from_zero_count_from_one_in_the_run(tmp_path):
    (run,), _ = ingest([LOGS / "nemo2.log"], tmp_path, {})
    assert [step.step for step in read_run(run.path).steps] == [4, 5]
    assert run.summary["first_step"] == 3


def test_a_loss_that_vanishes_at_the_end_is_divergence(tmp_path):
    path = write(tmp_path / "a.log", line(1, loss=9.0), line(2, loss=8.0), line(3))
    found = one(path)
    assert found["status"] == "diverged"
    assert "step 3" in found["reason"]


def test_a_step_time_that_drifts_is_flagged(tmp_path):
    path = write(tmp_path / "a.log", *(line(n, 1000.0 if n < 6 else 1500.0) for n in range(1, 11)))
    assert any("drifts" in warning for warning in one(path)["warnings"])


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "BOMB_BYTES", 1 << 20)
    path = tmp_path / "bomb.log.gz"
    path.write_bytes(gzip.compress(b"\0" * (8 << 20)))
    with pytest.raises(IngestError, match="unpacks to more than"):
        summaries(path, {})


def test_a_gzip_that_ends_early_gives_what_it_holds(tmp_path):
    text = "".join(line(n, loss=9.0) for n in range(1, 3000))
    path = tmp_path / "a.log.gz"
    packed = gzip.compress(text.encode())
    path.write_bytes(packed[: len(packed) // 2])
    found = one(path)
    assert 0 < found["n_records"] < 2999
    assert any("ends early" in warning for warning in found["warnings"])


def test_zstd_without_its_package_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "a.log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 20)
    with pytest.raises(IngestError, match=r"pip install zstandard.*zstd -d a\.log\.zst"):
        summaries(path, {})


def test_a_zstd_log_of_several_frames_gives_the_run_of_the_plain_one(tmp_path):
    content = (LOGS / "megatron_2024.log").read_bytes()
    half = len(content) // 2
    frames = (content[:half], content[half:])
    path = tmp_path / "a.log.zst"
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(frame) for frame in frames))
    assert one(path) == one(LOGS / "megatron_2024.log")
    names = [
        ingest([log], tmp_path / log.suffix[1:], {})[0][0].path.name
        for log in (path, LOGS / "megatron_2024.log")
    ]
    assert names[0] == names[1]


def test_a_zstd_bomb_is_refused_after_a_bounded_part_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "BOMB_BYTES", 1 << 20)
    path = tmp_path / "bomb.log.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b"\0" * (64 << 20)))
    assert path.stat().st_size < 1 << 13
    read = 0
    with pytest.raises(IngestError, match="unpacks to more than"):
        for piece in source.Source(path).pieces():
            read += len(piece)
            assert len(piece) <= source.CHUNK_BYTES
    assert read < 8 << 20


def test_a_zstd_log_that_ends_early_gives_what_it_holds(tmp_path):
    text = "".join(line(n, loss=9.0 - n % 97 / 13) for n in range(1, 9000))
    packed = zstandard.ZstdCompressor().compress(text.encode())
    path = tmp_path / "a.log.zst"
    path.write_bytes(packed[: len(packed) // 2])
    found = one(path)
    assert 0 < found["n_records"] < 8999
    assert any("ends early" in warning for warning in found["warnings"])


def test_damaged_zstd_data_raises_nothing(tmp_path):
    packed = bytearray(zstandard.ZstdCompressor().compress((LOGS / "restart.log").read_bytes()))
    path = tmp_path / "a.log.zst"
    for place in range(4, len(packed), 7):
        damaged = packed.copy()
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        summaries(path, {})
    path.write_bytes(packed[:5])
    summaries(path, {})


def test_a_log_of_utf_16_is_read(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes("".join(line(n, loss=9.0) for n in (1, 2)).encode("utf-16"))
    assert one(path)["n_records"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.log"], "nowhere.log does not exist."),
        (["nowhere.log", "--json"], "nowhere.log does not exist."),
        ([str(LOGS / "sat.log"), "--dialect", "x"], "Unknown dialect 'x'."),
        ([str(LOGS / "sat.log"), "--model", "llama9"], "Unknown model 'llama9'."),
        ([str(LOGS / "sat.log"), "--gpus", "3"], "--gpus 3 contradicts sat.log, which implies 4."),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, tmp_path, capsys):
    assert main(["ingest", *arguments, "--runs", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_json_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", str(LOGS / "megatron_2024.log"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["family"] == "megatron-lm"
    assert found["tensor_parallel_size"] == 2
    assert not list(tmp_path.iterdir())


def test_json_gives_a_list_for_several_jobs(capsys):
    assert main(["ingest", str(LOGS / "primus_two_jobs.log"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_the_table_names_each_run_and_its_warnings(tmp_path, capsys):
    assert main(["ingest", str(LOGS / "restart.log"), "--runs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "written" in printed
    assert "restart" in printed


def test_every_excerpt_becomes_runs_that_can_be_measured(tmp_path):
    ingest([LOGS], tmp_path, {})
    runs, problems = read_runs(tmp_path)
    assert problems == ()
    assert len(runs) > 30
    for run in runs:
        assert run.problems == ()
        for value in measure(run).as_dict().values():
            assert not isinstance(value, float) or (math.isfinite(value) and value >= 0)


@pytest.mark.slow
def test_the_excerpts_beside_the_checkout_give_what_their_index_says(shared):
    tool = shared / "tools" / "check_ingest"
    if not tool.exists():
        pytest.skip("the scorer is not beside this checkout")
    command = f"{sys.executable} -m scalebook ingest --json"
    done = subprocess.run(
        [sys.executable, str(tool), "--floor", "100", "--command", command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " 0 guesses" in done.stdout
