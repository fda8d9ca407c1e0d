"""From files to run directories: joined, supplied, refused, written once."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from scalebook import ownership, store
from scalebook.cli import main
from scalebook.errors import IngestError
from scalebook.facts import catalog, flops
from scalebook.logs import collect as collect_rows
from scalebook.logs import source
from scalebook.logs.causes import Ending
from scalebook.logs.ingest import group, job_summary, log_config, rates, steps
from scalebook.logs.ingest import write as ingest_write
from scalebook.logs.ingest.ingestion import ingest, summaries
from scalebook.logs.job import Job
from scalebook.logs.setting_lines import device_in
from scalebook.measure.metrics import measure
from scalebook.running import finish_run
from scalebook.store import read_run, read_runs, run_directories

LOGS = Path(__file__).parents[1] / "logs"


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
    assert not (path / ownership.FILE).exists()
    assert len(read_run(path).steps) == 6


def test_a_directory_that_is_published_while_it_is_made_is_made_anew(tmp_path, monkeypatch):
    """Another process renames it between the call that finds it there and the next look at it."""
    directory, make, seen = tmp_path / "run", os.mkdir, []

    def published_meanwhile(path, *rest):
        seen.append(path)
        if len(seen) == 1:
            raise FileExistsError(path)
        make(path, *rest)

    monkeypatch.setattr(os, "mkdir", published_meanwhile)
    with ownership.owned(directory, create=True):
        assert (directory / ownership.FILE).exists()
    assert len(seen) == 2


def test_recovering_during_an_ingest_leaves_its_directory_alone(tmp_path, monkeypatch):
    seen = []

    def recover(directory, _group):
        os.utime(directory, (1, 1))  # however long it takes
        seen.extend(finish_run.recover(tmp_path))

    monkeypatch.setattr(ingest_write, "_write_attached", recover)
    (run,), _ = ingest([LOGS / "megatron_2024.log"], tmp_path, {})
    assert [leftover.record for leftover in seen] == [None]
    assert len(read_run(run.path).steps) == 6


def test_what_a_killed_ingest_left_is_written_anew(tmp_path):
    (run,), _ = ingest([LOGS / "megatron_2024.log"], tmp_path, {})
    partial = run.path.rename(tmp_path / f".partial-{run.path.name}")
    (partial / ownership.FILE).write_text("")
    (partial / "profile").mkdir()
    (partial / "record.json").write_text("{")
    (again,), _ = ingest([LOGS / "megatron_2024.log"], tmp_path, {})
    assert again.new
    assert [path.name for path in sorted(again.path.iterdir())] == ["record.json", "steps.jsonl"]
    assert list(tmp_path.iterdir()) == [again.path]


def test_where_files_cannot_be_locked_a_log_is_ingested_all_the_same(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(ownership.fcntl, "flock", flock)
    (run,), _ = ingest([LOGS / "megatron_2024.log"], tmp_path, {})
    assert run.new
    assert not (run.path / ownership.FILE).exists()


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
        ({"global_batch_size": 32}, "--global-batch-size 32 contradicts .* which states 96"),
        ({"world_size": 64}, "--gpus 64 contradicts .* which states 32"),
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


@pytest.mark.parametrize(
    ("told", "packs"),
    [
        ("  reset_attention_mask ............................ True\n", True),  # Megatron-LM, Primus
        ("  reset_attention_mask ............................ False\n", False),
        ("    packed_sequence_size: 4096\n", True),  # Megatron-Bridge, NeMo
        ("PackedSequenceSpecs(packed_sequence_size=2048, tokenizer_model_name=None)\n", True),
        ("    packed_sequence_size: -1\n", False),
        ("    packed_sequence: false\n", False),
        ("  actor_rollout_ref.model.use_remove_padding=True \\\n", True),  # verl
        ("SFTConfig(output_dir='out', packing=True, max_length=4096)\n", True),  # TRL
        ("{'packing': False, 'eval_packing': True}\n", False),
        ("dataset.packed: True\n", True),  # torchtune
        ("weights are packed: 12 files, unpacked: true\n", False),
    ],
)
def test_a_log_that_says_that_documents_share_a_sample_is_recorded_so(tmp_path, told, packs):
    path = write(tmp_path / "a.log", told, *(line(n, 8000.0) for n in range(1, 5)))
    (run,), _ = ingest([path], tmp_path / "runs", {})
    assert read_run(run.path).record.setting("packed_sequences") is (True if packs else None)


def test_packed_documents_are_noted_with_the_most_that_mfu_is_overstated_by(tmp_path):
    path = write(tmp_path / "a.log", *(line(n, 8000.0) for n in range(1, 5)))
    given = {"model": "llama3.1-8b", "platform": "h100", "sequence_length": 8192, "world_size": 8}
    (run,), _ = ingest([path], tmp_path / "runs", {**given, "packed_sequences": True})
    record = read_run(run.path).record
    # by hand: 6 x 32 layers x 8,192 x 4,096 over 6 x 7,504,658,432 is 14.3 %
    (note,) = record.notes
    assert "overstated (at most 14 %, for documents far shorter than 8,192 tokens)" in note
    assert note in run.summary["warnings"]
    (plain,), _ = ingest([path], tmp_path / "runs", given)
    assert read_run(plain.path).record.notes == ()


def test_packed_documents_of_an_unknown_model_are_noted_without_a_bound(tmp_path):
    told = "  reset_attention_mask ............................ True\n"
    path = write(tmp_path / "a.log", told, *(line(n, 8000.0) for n in range(1, 5)))
    (note,) = one(path)["notes"]
    assert "how much is not known: The log names no model" in note


def test_a_log_that_packs_contradicts_the_option_that_denies_it(tmp_path):
    told = "  reset_attention_mask ............................ True\n"
    path = write(tmp_path / "a.log", told, *(line(n, 8000.0) for n in range(1, 5)))
    with pytest.raises(IngestError, match="--packed-sequences False contradicts"):
        one(path, packed_sequences=False)


def test_printed_tflops_are_kept_where_nothing_can_be_counted_beside_them(tmp_path):
    rates = (100.0, 500.0, 510.0, 520.0)
    path = write(tmp_path / "a.log", *(line(n + 1, tflops=rate) for n, rate in enumerate(rates)))
    tflops = one(path)["tflops"]
    assert tflops["logged"] == 510.0  # the median without the first record
    assert tflops["recounted"] is None
    assert "sequence length" in tflops["reason"]


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
    files = group.find([tmp_path])
    found = list(files.groups())
    assert len(found) == len(asked) == 30
    assert all(len(one.attached) == 1 for one in found)
    assert files.notes == []


def test_files_of_two_jobs_stay_two_runs(tmp_path):
    write(tmp_path / "job" / "rank-0.log", *(line(n, loss=9.0) for n in range(1, 4)))
    write(tmp_path / "job" / "rank-1.log", *(line(n, loss=3.0) for n in range(1, 4)))
    assert len(ingest([tmp_path / "job"], tmp_path / "runs", {})[0]) == 2


def test_telemetry_and_traces_attach_to_the_run_beside_them(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("megatron_2024.log", "nvidia_smi.csv", "kineto.json"):
        shutil.copy(LOGS / name, folder)
    (run,), notes = ingest([folder], tmp_path / "a new" / "folder", {})
    assert notes == []
    samples = (run.path / "telemetry.jsonl").read_text().splitlines()
    assert json.loads(samples[0])["power_watts"] == 610.5
    assert "power_watts" not in json.loads(samples[1])
    breakdown = json.loads((run.path / "profile" / "breakdown.json").read_text())
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


NAN_LOSSES = {
    "torchtitan.log": r"loss: +[\d.]+",
    "maxtext.log": r"loss: [\d.]+",
    "nanotron.log": r"lm_loss: [\d.]+",
    "nemo2.log": r"reduced_train_loss: [\d.]+",
    "litgpt_single.log": r"loss train: [\d.]+",
    "megatron_2024.log": r"lm loss: [\d.E+-]+",
    "composer.log": r"loss/train/total: [\d.]+",
    "hf_trainer.log": r"'loss': '?[\d.]+'?",
    "nanochat.log": r"loss: [\d.]+",
}


@pytest.mark.parametrize("name", NAN_LOSSES)
def test_a_loss_that_is_nan_in_every_record_is_divergence_in_every_dialect(tmp_path, name):
    """The key stays and its figure becomes nan, as each trainer prints it."""
    pattern = re.compile(NAN_LOSSES[name])
    text, changed = pattern.subn(
        lambda found: re.sub(r"[\d.E+-]+('?)$", r"nan\1", found[0]), (LOGS / name).read_text()
    )
    assert changed > 1
    found = one(write(tmp_path / name, text))
    assert found["status"] == "diverged"
    assert "every record" in found["reason"]


def test_one_skipped_iteration_of_a_window_is_not_divergence(tmp_path):
    """Each record stands for 10 iterations, of which one was skipped."""
    lines = [line(n, loss=9.0 - n / 100).replace("skipped iterations:   0", "skipped iterations: 1")
             for n in (10, 20, 30)]  # fmt: skip
    assert one(write(tmp_path / "a.log", *lines))["status"] == "interrupted"
    every = [text.replace("skipped iterations: 1", "skipped iterations: 10") for text in lines]
    assert one(write(tmp_path / "b.log", *every))["status"] == "diverged"


def test_a_loss_that_vanishes_at_the_end_is_divergence(tmp_path):
    path = write(tmp_path / "a.log", line(1, loss=9.0), line(2, loss=8.0), line(3))
    found = one(path)
    assert found["status"] == "diverged"
    assert "step 3" in found["reason"]


def test_lines_without_a_loss_and_without_counts_of_bad_steps_diverge_from_nothing(tmp_path):
    record = "iteration {}/3 | elapsed time per iteration (ms): 2000.0 | 300.5 MODEL_TFLOP/s/GPU\n"
    found = one(write(tmp_path / "a.log", *(record.format(n) for n in (1, 2, 3))))
    assert (found["status"], found["n_records"]) == ("completed", 3)
    counted = (line(n) for n in (1, 2, 3))  # with the counts of skipped and of NaN iterations
    assert one(write(tmp_path / "b.log", *counted))["status"] == "diverged"


def test_a_rate_that_is_printed_without_a_time_is_the_same_in_every_table(tmp_path, capsys):
    record = "Step {} | loss:2.5 lr:1e-05 tokens_per_second_per_gpu:{}\n"
    path = write(tmp_path / "a.log", *(record.format(n, 4000 + n) for n in range(1, 6)))
    assert main(["ingest", str(path), "--runs", str(tmp_path / "runs"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["tokens_per_second_per_gpu"]
    assert main(["ingest", str(path), "--runs", str(tmp_path / "runs")]) == 0
    assert "4,004" in capsys.readouterr().out
    assert main(["list", "--runs", str(tmp_path / "runs"), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["tokens_per_second_per_gpu"] == told == 4003.5  # without the first step
    assert listed["tokens_per_second"] is None
    assert "printed this rate" in listed["throughput_reason"]


def test_a_log_without_a_step_says_that_it_has_no_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(
        "***** train metrics *****\n  train_runtime = 0:01:00.00\n"
        "  train_samples_per_second = 64.0\n  train_steps_per_second = 4.0\n"
    )
    assert main(["ingest", str(path), "--runs", str(tmp_path / "runs")]) == 0
    assert "the log has no training step, so the run has no rate." in capsys.readouterr().out


def test_a_step_time_that_drifts_is_flagged(tmp_path):
    path = write(tmp_path / "a.log", *(line(n, 1000.0 if n < 6 else 1500.0) for n in range(1, 11)))
    assert any("drifts" in warning for warning in one(path)["warnings"])


def test_a_batch_that_grows_changes_no_rate_and_makes_no_remark(tmp_path):
    """16 then 32 samples of 1,024 tokens in 1 then 2 s on 8 GPUs: 2,048 tokens/s each."""
    sizes = "  seq_length .............. 1024\n  world_size .............. 8\n"
    small = [line(n, 1000.0, loss=9.0 - n / 10) for n in range(1, 11)]
    large = [line(n, 2000.0, loss=9.0 - n / 10).replace("global batch size:    16",
             "global batch size:    32") for n in range(11, 19)]  # fmt: skip
    path = write(tmp_path / "a.log", sizes, *small, *large)
    (run,), _ = ingest([path], tmp_path / "runs", {})
    assert run.summary["tokens_per_second_per_gpu_median"] == pytest.approx(2048)
    assert run.summary["tokens_per_second_per_gpu"] == pytest.approx(2048)
    assert measure(read_run(run.path)).tokens_per_second_per_gpu == pytest.approx(2048)
    assert run.summary["warnings"] == ["The global batch size changes from 16 to 32; most are 16."]


def test_steps_that_a_profiler_holds_up_are_left_out_with_a_count(tmp_path):
    sizes = "  seq_length .............. 1024\n  world_size .............. 8\n"
    times = [1000.0] * 9 + [25000.0] + [1000.0] * 10
    lines = (line(n, ms, loss=9.0 - n / 10) for n, ms in enumerate(times, start=1))
    (run,), _ = ingest([write(tmp_path / "a.log", sizes, *lines)], tmp_path / "runs", {})
    found = measure(read_run(run.path))
    assert found.stalled_steps == 1
    assert found.tokens_per_second == pytest.approx(16 * 1024)
    assert found.tokens_per_second_with_stalls == pytest.approx(19 * 16 * 1024 / (18 + 25))
    assert any("1 of the records, which took three times" in one for one in run.summary["warnings"])


def test_slow_steps_that_recur_without_a_word_belong_to_the_training(tmp_path):
    """An optimizer that does more in every tenth step: 100 steps take 90 x 1 s + 10 x 5 s."""
    sizes = "  seq_length .............. 1024\n  world_size .............. 8\n"
    times = [5000.0 if n % 10 == 0 else 1000.0 for n in range(1, 102)]
    lines = [line(n, ms, loss=9.0 - n / 20) for n, ms in enumerate(times, start=1)]
    (run,), _ = ingest([write(tmp_path / "a.log", sizes, *lines)], tmp_path / "runs", {})
    found = measure(read_run(run.path))
    assert found.stalled_steps == 0
    assert found.tokens_per_second == pytest.approx(100 * 16 * 1024 / (90 + 50))
    # the same times behind words of an evaluation are held up by it
    told = [f"Running evaluation\n{text}" if n % 10 == 0 else text
            for n, text in enumerate(lines, start=1)]  # fmt: skip
    (run,), _ = ingest([write(tmp_path / "b.log", sizes, *told)], tmp_path / "runs", {})
    found = measure(read_run(run.path))
    assert (found.stalled_steps, found.tokens_per_second) == (10, pytest.approx(16 * 1024))


@pytest.mark.parametrize(
    ("said", "stalled"),
    [
        ("saving checkpoint at iteration 10 to /data/ckpt in torch_dist format", 1),
        ("validation loss at iteration 10 | lm loss value: 7.1E+00", 1),
        ("Dumping profiler traces at step 10", 1),
        ("torch._dynamo hit recompilation limit", 1),
        ("nothing that holds up a step", 0),
    ],
)
def test_a_step_behind_words_of_a_checkpoint_is_left_out_where_it_is_slower(
    tmp_path, said, stalled
):
    sizes = "  seq_length .............. 1024\n  world_size .............. 8\n"
    lines = [line(n, 1000.0, loss=9.0 - n / 10) for n in range(1, 21)]
    lines[10] = f"{said}\n" + line(11, 1500.0, loss=7.9)
    lines[14] = f"{said}\n" + line(15, 1000.0, loss=7.5)  # it cost nothing: no stall
    (run,), _ = ingest([write(tmp_path / "a.log", sizes, *lines)], tmp_path / "runs", {})
    found = measure(read_run(run.path))
    assert found.stalled_steps == stalled
    if stalled:
        assert found.tokens_per_second == pytest.approx(16 * 1024)


def test_what_was_read_before_a_kill_is_written(tmp_path, monkeypatch):
    for number in range(4):
        write(tmp_path / "in" / f"{number}.log", line(1, loss=3.0 + number), line(2))
    real, seen = group.read, []

    def killed(path: Path, dialect: object = None) -> object:
        seen.append(path.name)
        if path.name == "3.log":
            raise KeyboardInterrupt
        return real(path, dialect)

    monkeypatch.setattr(group, "read", killed)
    with pytest.raises(KeyboardInterrupt):
        ingest([tmp_path / "in"], tmp_path / "runs", {})
    assert seen == ["0.log", "1.log", "2.log", "3.log"]
    assert len(list(run_directories(tmp_path / "runs"))) == 3


def test_a_secret_that_a_log_prints_reaches_no_part_of_its_record(tmp_path):
    secret = "hf_" + "a1B2" * 6
    text = f"Traceback (most recent call last):\nValueError: bad token {secret}\n"
    path = write(tmp_path / f"{secret}.log", line(1), line(2), text)
    (run,), _ = ingest([path], tmp_path / "runs", {})
    assert all(secret not in file.read_text() for file in run.path.iterdir())


def test_a_log_beyond_the_limit_says_so_and_not_that_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(collect_rows, "MOST_ROWS", 3)
    path = write(tmp_path / "a.log", *(line(n, loss=9.0 - n) for n in range(1, 6)))
    (run,), _ = ingest([path], tmp_path / "runs", {})
    assert read_run(run.path).record.reason == (
        "Only the first 3 records are kept, up to step 3 (2 more were not), so the log continues "
        "and does not say how the run ended."
    )


def test_runs_that_print_the_same_step_with_nothing_in_between_are_not_restarts(tmp_path):
    lines = (line(100, 1000.0 + 50 * n, loss=5.0 + n) for n in range(4))
    found = summaries(write(tmp_path / "a.log", *lines), {})
    assert [one["loss_last"] for one in found] == [5.0, 6.0, 7.0, 8.0]
    assert all(one["not_used"] == {} for one in found)


def test_ranks_that_each_print_their_own_loss_are_one_run(tmp_path):
    lines = (line(n, 1000.0, loss=9.0 - n + rank / 4) for n in (1, 2, 3) for rank in range(4))
    found = one(write(tmp_path / "a.log", *lines))
    assert (found["n_records"], found["not_used"]) == (3, {"other_rank_records": 9})


@pytest.mark.parametrize(
    ("ending", "status", "cause", "said"),
    [
        ("Error while creating shared memory segment /dev/shm/nccl-x", "failed", "shared_memory",
         "Shared memory ran out"),
        ("[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered", "failed",
         "gpu_fault", "uncorrectable ECC error"),
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", "failed",
         "gpu_fault", "fault"),
        ("HW Exception by GPU node-3 (Agent handle: 0x1) reason :GPU Hang", "failed", "gpu_fault",
         "GPU node-3"),
        ("RuntimeError: No HIP GPUs are available", "failed", "no_gpu", "found no GPU"),
        ("failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: python", "failed", "signal",
         "-9"),
        ("Traceback (most recent call last):\n  File \"a.py\", line 3\nKeyError: 'text'", "failed",
         "python_error", "The trainer failed: KeyError: 'text'"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory",
         "gpu_memory", "2.00 GiB more did not fit"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have "
         "been OOM Killed.", "out_of_memory", "host_memory", "host's memory"),
        ("train.sh: line 12: 123456 Killed                  python train.py", "failed", "signal",
         "ended by a signal"),
        ("Killed", "failed", "signal", "ended by a signal"),
        ("Bus error (core dumped)", "failed", "signal", "--shm-size"),
        ("rpc error: container killed: OOMKilled", "out_of_memory", "host_memory", "host's memory"),
        ("RuntimeError: DataLoader worker (pid 42) is killed by signal: Killed.", "out_of_memory",
         "host_memory", "host's memory"),
        ("[rank5]: Terminating the process due to ProcessGroupNCCL watchdog hang.", "timeout",
         "collective_timeout", "rank 5"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling x", "failed",
         "gpu_fault", "CUBLAS_STATUS_EXECUTION_FAILED"),
        ("[WARNING] Received Signals.SIGTERM death signal, shutting down workers", "interrupted",
         "stopped", "death signal"),
        ("api.py:723] Received 15 death signal, shutting down workers", "interrupted", "stopped",
         "15 death signal"),
        ("failed (exitcode: -15) local_rank: 3 (pid: 77) of binary: python", "interrupted",
         "terminated", "asked to end: -15"),
        ("[rank0]: KeyError: 'text'\n  exitcode  : -15 (pid: 77)", "failed", "python_error",
         "The trainer failed: KeyError: 'text'"),
        ("[rank3]: KeyError: 'text'\n[rank0]: Watchdog caught collective operation timeout: "
         "WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=600000)", "failed", "python_error", "KeyError"),
        ("[ERROR] [launch.py:325:sigkill_handler] ['python', 'a.py'] exits with return code = -9",
         "failed", "signal", "-9"),
        ("[ERROR] [launch.py:325:sigkill_handler] ['python', 'a.py'] exits with return code = 1",
         "failed", None, "return code = 1"),
        ("mpirun noticed that process rank 3 with PID 0 on node a exited on signal 9 (Killed).",
         "failed", "signal", "exited on signal 9"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
         "out_of_memory", "host_memory", "host's memory"),
        ("(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM)",
         "out_of_memory", "host_memory", "host's memory"),
        ("(raylet) A worker died or was killed while executing a task by an unexpected system "
         "error.", "failed", None, "worker died"),
        ("srun: error: nid5: task 3: Out Of Memory", "out_of_memory", "host_memory",
         "host's memory"),
        ("The node was low on resource: memory. Threshold quantity: 100Mi", "out_of_memory",
         "host_memory", "host's memory"),
        ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total "
         "capacity; 57.1 GiB already allocated)", "out_of_memory", "gpu_memory",
         "2.00 GiB more did not fit in the 60.96 GiB"),
        ("Out of memory error on GPU 0. Cannot allocate 1.5GB memory on GPU 0", "out_of_memory",
         "gpu_memory", "GPU's memory"),
        ("RuntimeError: FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::9 (8)MB",
         "out_of_memory", "gpu_memory", "GPU's memory"),
        ("HSA_STATUS_ERROR_OUT_OF_RESOURCES: no resources. Code: 0x1008 Available Free mem : 0 MB",
         "out_of_memory", "gpu_memory", "GPU's memory"),
        ("EI0002: [PID: 9] The wait execution of the Notify register times out.", "timeout",
         "collective_timeout", "did not finish"),
        ("jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: a", "timeout",
         "rendezvous_timeout", "did not find one another"),
        ("Terminating process because the JAX distributed service detected fatal errors.",
         "failed", None, "fatal errors"),
        ("RuntimeError: DataLoader worker (pid 4) is killed by signal: Bus error. It is possible "
         "that dataloader's workers are out of shared memory.", "failed", "shared_memory",
         "Shared memory ran out"),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.",
         "diverged", "not_finite", "loss scale"),
        ("Loss is nan, stopping training", "diverged", "not_finite", "Loss is nan"),
        ("`Trainer.fit` stopped: `max_epochs=1` reached.", "completed", None, ""),
        # without its traceback
        ("[rank0]: AssertionError: 100 is not divisible by 16", "failed", "python_error",
         "The trainer failed: AssertionError: 100 is not"),
        ("[rank1]: torch.distributed.DistBackendError: NCCL error in: x.cpp, remote process "
         "exited or there was a network error", "failed", None, "remote process exited"),
    ],
)  # fmt: skip
def test_an_ending_that_the_log_states_is_its_cause(tmp_path, ending, status, cause, said):
    path = write(tmp_path / "a.log", line(1, loss=9.0), line(2, loss=8.0), ending, "\n")
    (run,), _ = ingest([path], tmp_path / "runs", {})
    record = read_run(run.path).record
    assert (record.status, record.cause) == (status, cause)
    assert said in (record.reason or "")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("notes.txt", "hello\nthis is a README\n", "is not a known log"),
        ("settings.log", "train_batch_size = 4\n", "is not a known log"),
        ("gpu.txt", 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 98\n', "which is telemetry"),
        ("gpu.jsonl", '{"ts": 17, "gpu": 0, "util_pct": 8, "power_w": 398.5}\n', "telemetry"),
        ("hl.txt", "| HL-SMI Version:  hl-1.19.0 |\n", "hl-smi, which is telemetry"),
        ("board.csv", "Wall time,Step,Value\n1.5,10,9.0\n", "name it with --map"),
        ("half.log", "step: 12 was slow\n", "The nearest is"),
    ],
)
def test_a_file_that_nothing_recognises_is_refused_and_nothing_is_written(
    tmp_path, capsys, name, text, said
):
    path = write(tmp_path / name, text)
    for more in ([], ["--json"]):
        assert main(["ingest", str(path), "--runs", str(tmp_path / "runs"), *more]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert "--dialect" in told
    assert not (tmp_path / "runs").exists()


def test_a_record_that_the_file_breaks_off_in_is_no_divergence(tmp_path):
    whole = "".join(line(step, loss=9.0 - step / 4) for step in range(1, 9))
    path = write(tmp_path / "a.log", whole, line(9, loss=6.5).partition("| lm loss")[0])
    found = one(path)
    assert (found["status"], found["n_records"], found["loss_last"]) == ("interrupted", 9, 7.0)


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_table_of_a_spreadsheet_is_read(tmp_path, between):
    """Semicolons go with decimal commas: 2,5 seconds, not 2."""
    mark = "," if between == ";" else "."
    rows = "".join(f"{n},{9 - n / 8},2.5\n" for n in range(1, 9))
    rows = rows.replace(",", between).replace(".", mark)
    found = one(write(tmp_path / "a.csv", f"step{between}loss{between}step_time\n", rows))
    assert (found["n_records"], found["step_seconds_median"]) == (8, 2.5)
    assert (found["loss_first"], found["loss_last"]) == (8.875, 8.0)


def test_a_step_time_stands_where_nobody_knows_the_tokens(tmp_path):
    (run,), _ = ingest([write(tmp_path / "a.log", *(line(n, loss=9 - n) for n in range(1, 9)))],
                       tmp_path / "runs", {})  # fmt: skip
    numbers = measure(read_run(run.path))
    assert (numbers.step_seconds_median, numbers.tokens_per_second) == (1.0, None)


def test_the_tokens_of_the_first_record_count_from_the_start(tmp_path):
    """163,840 tokens in 10 steps, whether the first record has a record before it or not."""
    history = [
        {"step": n, "loss": 2 - n / 100, "num_input_tokens_seen": 16384 * n}
        for n in range(10, 90, 10)
    ]
    state = {
        "log_history": [*history, {"train_runtime": 112.0}],
        "global_step": 80,
        "max_steps": 80,
    }
    (run,), _ = ingest([write(tmp_path / "trainer_state.json", json.dumps(state))], tmp_path, {})
    assert [step.tokens for step in read_run(run.path).steps] == [16384] * 8


def test_any_table_is_read_by_the_columns_that_the_user_names(tmp_path, capsys):
    """16,384 tokens in 500 ms, whatever the columns are called."""
    rows = "n;x\n"
    rows = "when,took (ms),tokens a second\n" + "".join(f"{n},500,32768\n" for n in range(1, 9))
    path = write(tmp_path / "odd.csv", rows)
    columns = {
        "step": "when", "step_milliseconds": "took (ms)", "tokens_per_second": "tokens a second",
    }  # fmt: skip
    given = [f"--map={name}={column}" for name, column in columns.items()]
    assert main(["ingest", str(path), "--json", "--gpus", "4", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n_records"], found["step_seconds_median"]) == (8, 0.5)
    assert found["tokens_per_second_per_gpu"] == pytest.approx(8192)
    kept = write(tmp_path / "map.toml", "".join(f'{a} = "{b}"\n' for a, b in columns.items()))
    assert main(["ingest", str(path), "--json", "--gpus", "4", "--map", str(kept)]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert main(["ingest", str(path), "--json", "--map", "step_seconds=no"]) == 2
    assert "has no column 'no'. It has when, took (ms), tokens a second: --map step_seconds" in (
        capsys.readouterr().err
    )
    assert main(["ingest", str(path), "--json", "--map", "speed=took (ms)"]) == 2
    assert "--map speed=... is not a value of a step" in capsys.readouterr().err


def test_a_column_that_is_mapped_later_makes_another_run_with_its_times(tmp_path, capsys):
    rows = "iteration,seconds_per_iter,train_loss\n"
    rows += "".join(f"{n},2.5,{9 - n / 10}\n" for n in range(1, 9))
    path, runs = write(tmp_path / "own.csv", rows), tmp_path / "runs"
    assert main(["ingest", str(path), "--runs", str(runs)]) == 0
    said = capsys.readouterr().out
    assert "no step time: name its column, --map step_seconds=COLUMN." in said
    command = ["ingest", str(path), "--runs", str(runs), "--map", "step_seconds=seconds_per_iter"]
    for word in ("written", "unchanged"):
        assert main(command) == 0
        said = capsys.readouterr().out
        assert word in said
        assert "--map" not in said
    bare, mapped = sorted(read_runs(runs)[0], key=lambda run: run.steps[-1].step_seconds or 0)
    assert [step.step_seconds for step in bare.steps] == [None] * 8
    assert {step.step_seconds for step in mapped.steps} == {2.5}
    assert mapped.record.environment["ingest"]["map"] == {"step_seconds": "seconds_per_iter"}


def test_two_values_of_one_setting_are_shown_and_neither_is_used(tmp_path):
    sizes = "  seq_length .............. 1024\n  seq_length .............. 4096\n"
    path = write(tmp_path / "a.log", sizes, line(1), line(2))
    found = one(path)
    assert found["sequence_length"] is None
    said = "The file gives the sequence length as 1024 and as 4096: none is used."
    assert any(said in warning for warning in found["warnings"])
    assert one(path, sequence_length=4096)["sequence_length"] == 4096


def test_every_device_name_of_the_catalog_survives_the_reader():
    for item in catalog.accelerators():
        for name in item.device_names:
            assert device_in(f"[rank0] CUDA capacity: {name} with 80 GiB memory") == name


@pytest.mark.parametrize("profile", ["1g.10gb", "1g.10gb+me", "2g.20gb", "1c.3g.40gb", "1g.5gb"])
def test_a_slice_of_a_device_is_not_read_as_the_whole_device(profile: str):
    names = [name for item in catalog.accelerators() for name in item.device_names]
    for name in [*names, "NVIDIA RTX 6000 Ada Generation"]:
        part = f"{name} MIG {profile}"
        assert device_in(f"CUDA capacity: {part} with 9.75 GiB memory") == part
        assert device_in(f"gpu: {part}") == part
        listed = f"GPU 0: {name} (UUID: GPU-5c89-00ab)\n"
        assert device_in(f"{listed}  MIG {profile}     Device  0: (UUID: MIG-1)") == part
        assert device_in(listed) == name
        assert catalog.accelerator_for_device(part) is None
        assert device_in(f"{name} MIG M. Disabled") == name


def test_a_run_on_a_slice_of_a_device_has_no_mfu_and_says_why(tmp_path):
    text = (LOGS / "megatron_2024.log").read_text()
    name = "NVIDIA H100 80GB HBM3"
    for part in ("", " MIG 1g.10gb"):
        path = write(tmp_path / "run.log", f"device: {name}{part}\n", text)
        (run,), _ = ingest([path], tmp_path / f"runs{part[-4:]}", {"platform": "h100"})
        found = measure(read_run(run.path))
        assert found.accelerator == f"{name}{part}"
        assert (found.mfu is None) == bool(part)
        assert not part or "MIG slice" in found.mfu_reason


@pytest.mark.parametrize(
    "words",
    [
        "trainable params: 20,971,520 || all params: 8,051,232,768 || trainable%: 0.26",
        "trainable params: 20971520 (LoRA)",
        "finetuning_type: lora",
        "8.0 B     Non-trainable params",
    ],
)
def test_partial_training_leaves_mfu_empty_with_the_reason(tmp_path, words):
    head = f"NVIDIA H100 80GB HBM3\n  bf16 ............ True\n{words}\n"
    lines = [line(n, 8000.0, loss=9.0 - n / 10) for n in range(1, 15)]
    given = {"model": "llama3.1-8b", "sequence_length": 8192, "world_size": 8}
    found = one(write(tmp_path / "a.log", head, *lines), **given)
    assert found["mfu"] is None
    assert "part of the weights" in found["mfu_reason"]
    full = head.replace(words, "trainable params: 8,000 || all params: 8,000 || trainable%: 100")
    assert one(write(tmp_path / "b.log", full, *lines), **given)["mfu"] > 0


def test_a_rate_above_the_peak_comes_first_and_is_no_headline(tmp_path, capsys):
    """16 x 8192 tokens in 0.1 s on one H100: some 70 PFLOP/s."""
    head = "NVIDIA H100 80GB HBM3\n  bf16 ............ True\n"
    path = write(tmp_path / "a.log", head, *(line(n, 100.0, loss=9.0 - n / 10)
                 for n in range(1, 15)))  # fmt: skip
    given = ["--model", "llama3.1-8b", "--sequence-length", "8192", "--gpus", "1"]
    runs = ["--runs", str(tmp_path / "runs")]
    assert main(["ingest", str(path), *given, *runs]) == 0
    assert capsys.readouterr().out.startswith("warning: ingested-")
    assert main(["list", *runs]) == 0
    told = capsys.readouterr().out
    assert told.startswith("warning: ingested-")
    assert " void " in told
    assert main(["list", "--json", *runs]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["mfu"], row["tokens_per_second"], row["status"]) == (None, None, "void")


def test_a_step_time_with_its_unit_behind_the_value_is_read(tmp_path):
    text = line(1, 21392.5).replace("elapsed time per iteration (ms): 21392.5",
                                    "elapsed time per iteration: 21392.5 ms")  # fmt: skip
    assert "21392.5 ms" in text
    assert one(write(tmp_path / "a.log", text))["step_seconds_median"] == pytest.approx(21.3925)


def test_a_rate_of_a_gpu_counts_where_nobody_says_of_how_many(tmp_path):
    (run,), _ = ingest([LOGS / "torchtune.log"], tmp_path, {})
    assert run.summary["tokens_per_second_per_gpu_median"] == pytest.approx(410.5)


CASES = {  # from the index of the cases: a key of the summary and its right value
    "mega_1778.log": ("mfu", None),
    "ramp_a.log": ("tokens_per_second_per_gpu_median", 7771),
    "hf_resume.log": ("tokens_per_second_per_gpu", 2048),
    "nanochat.log": ("step_seconds_median_excluding_first", 1.3499),
    "ms_swift.log": ("last_step", 30),
    "hf_state.json": ("step_seconds_median", 1.4),
    "golden_values.json": ("n_records", 50),
    "maxtext_nan.log": ("status", "diverged"),
    "end_shm.log": ("status", "failed"),
    "end_ecc.log": ("status", "failed"),
    "torchtitan_all_ranks.log": ("n_records", 12),
    "bridge_zero_tflops.log": ("tflops_per_second_per_gpu_logged_median", None),
    "titan_b300.log": ("device", "NVIDIA B300 SXM6 AC"),
    "titan_a100_nvl_peak.log": ("device", "NVIDIA A100-SXM4-80GB"),
    "rocm_nan_fields.log": ("tokens_per_second_per_gpu", 1723),
    "maxtext_profiled.log": ("tokens_per_second_per_gpu", 10625),
    "bridge_toks.log": ("tokens_per_second_per_gpu_median", 32680),
    "nemo2_lora_b200.log": ("mfu", None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cases_beside_the_checkout_give_what_their_index_says(shared, name):
    path = shared / "cases" / name
    if not path.exists():
        pytest.skip("the cases are not beside this checkout")
    key, right = CASES[name]
    given = {"model": "llama3.1-8b"} if name.startswith(("mega", "nemo2")) else {}
    found = one(path, **given)[key]
    assert found == (pytest.approx(right, rel=1e-2) if isinstance(right, float | int) else right)


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
        with contextlib.suppress(IngestError):  # where nothing is left
            summaries(path, {})
    path.write_bytes(packed[:5])
    with pytest.raises(IngestError, match="not a known log"):
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


def test_the_dialects_are_listed_without_a_path(capsys):
    assert main(["ingest", "--dialect", "list"]) == 0
    assert {"megatron-lm", "torchtitan"} <= {*capsys.readouterr().out.split()}
    assert main(["ingest"]) == 2
    assert "Name log files or folders" in capsys.readouterr().err


def test_what_a_rate_needs_is_named_as_flags_and_a_log_that_was_there_is_named(tmp_path, capsys):
    log = write(tmp_path / "bare.log", *(line(step, loss=9.0 - step / 10) for step in range(1, 20)))
    command = ["ingest", str(log), "--gpus", "8", "--model", "llama3.1-8b"]
    command += ["--runs", str(tmp_path / "runs")]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "add --sequence-length --platform --precision." in printed.out
    assert printed.err == ""
    (first,) = run_directories(tmp_path / "runs")
    more = ["--sequence-length", "4096", "--platform", "h100"]
    assert main([*command, *more]) == 0
    printed = capsys.readouterr()
    assert ": MFU would need what the log does not say: add --precision." in printed.out
    assert f"bare.log was already there, with other settings: {first.name}. Delete" in printed.err
    assert main([*command, *more, "--precision", "bf16"]) == 0
    assert "add --" not in capsys.readouterr().out
    assert main(command) == 0
    assert capsys.readouterr().err == ""


def test_the_step_time_is_the_same_in_ingest_and_list(tmp_path, capsys):
    times = [9000.0, *(1000.0 + step % 3 for step in range(30)), 1500.0, 1600.0, 1700.0]
    lines = (line(step, ms, loss=9.0 - step / 10) for step, ms in enumerate(times, 1))
    log = write(tmp_path / "a.log", *lines)
    runs = ["--runs", str(tmp_path / "runs")]
    assert main(["ingest", str(log), "--gpus", "8", "--sequence-length", "4096", *runs]) == 0
    (heads, cells, *_) = capsys.readouterr().out.splitlines()
    end = heads.index("median step s") + len("median step s")
    assert main(["list", *runs]) == 0
    assert "median step s" in capsys.readouterr().out
    assert main(["list", *runs, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert float(cells[:end].split()[-1]) == pytest.approx(listed["step_seconds_median"], rel=1e-3)


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
def test_the_excerpts_beside_the_checkout_give_what_their_index_says(
    shared, monkeypatch: pytest.MonkeyPatch
):
    tool = shared / "tools" / "check_ingest"
    if not tool.exists():
        pytest.skip("the scorer is not beside this checkout")

    def in_this_process(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        """Read a log as its command would, whose start takes longer."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(command[1:])
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    said = io.StringIO()
    monkeypatch.setattr(subprocess, "run", in_this_process)
    words = ["--floor", "100", "--verbose", "--command", "scalebook ingest --json"]
    monkeypatch.setattr(sys, "argv", [str(tool), *words])
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tool), run_name="__main__")
    assert ended.value.code == 0, said.getvalue()
    assert " 0 guesses" in said.getvalue()


def test_a_fine_tuner_must_say_that_all_weights_were_trained(tmp_path):
    given = {"model": "llama3.1-8b", "platform": "h100", "precision": "bf16",
             "sequence_length": 512}  # fmt: skip
    unsure = one(LOGS / "hf_trainer.log", **given)
    assert unsure["mfu"] is None
    assert "--trained all" in unsure["mfu_reason"]
    sure = one(LOGS / "hf_trainer.log", **given, trained="all")
    assert "trained" not in (sure["mfu_reason"] or "")


# Rates by hand: 2,048 tokens a sample, the first record left out


def test_records_of_several_batches_have_the_median_of_their_own_rates(tmp_path):
    lines = [line(1, 5000.0, batch=8), line(2, 1000.0, batch=16), line(3, 1000.0, batch=32)]
    found = one(write(tmp_path / "a.log", *lines), sequence_length=2048)
    assert found["tokens_per_second_median"] == pytest.approx((16 + 32) / 2 * 2048)


@pytest.mark.parametrize("first", [8, 16, 64])
def test_two_records_have_the_rate_of_the_second(tmp_path, first):
    lines = [line(1, 5000.0, batch=first), line(2, 2000.0, batch=16)]
    found = one(write(tmp_path / "a.log", *lines), sequence_length=2048)
    assert found["tokens_per_second_median"] == pytest.approx(16 * 2048 / 2)
    assert found["step_seconds_median_excluding_first"] == pytest.approx(2)


@pytest.mark.parametrize("batch", [1, 2, 16])
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_rate_falls_as_its_step_time_grows(tmp_path, seconds, batch):
    lines = [line(n, 1000 * seconds, batch=batch) for n in range(1, 9)]
    found = one(write(tmp_path / "a.log", *lines), sequence_length=2048, world_size=4)
    assert found["tokens_per_second_median"] * seconds == pytest.approx(batch * 2048)
    assert found["tokens_per_second_per_gpu_median"] * 4 == found["tokens_per_second_median"]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([1, 2, 3, 4, 5], None),
        ([10, 20, 30, 40, 50], None),
        ([1, 2, 3, 5, 6], "Gaps in the step numbers: 1, the widest of 2 steps."),
        ([1, 2, 3, 4, 7, 8, 9, 20, 21], "Gaps in the step numbers: 2, the widest of 11 steps."),
    ],
)
def test_steps_that_are_missing_are_counted_with_the_widest_gap(tmp_path, steps, said):
    found = one(write(tmp_path / "a.log", *(line(n) for n in steps)))
    assert [text for text in found["warnings"] if "Gaps" in text] == ([said] if said else [])


@pytest.mark.parametrize(("step", "said"), [(1, True), (2, False), (50, False)])
def test_the_only_record_of_a_start_is_no_steady_rate(tmp_path, step, said):
    found = one(write(tmp_path / "a.log", line(step)))
    assert any("holds start-up" in text for text in found["warnings"]) is said
    several = one(write(tmp_path / "b.log", line(step), line(step + 1)))
    assert not any("holds start-up" in text for text in several["warnings"])


@pytest.mark.parametrize(("later", "said"), [(1.2, True), (1.1, False), (0.8, True), (0.9, False)])
def test_a_step_time_that_drifts_by_a_seventh_is_said_with_both_halves(tmp_path, later, said):
    times = [1000.0] * 7 + [1000.0 * later] * 6
    found = one(write(tmp_path / "a.log", *(line(n, ms) for n, ms in enumerate(times, start=1))))
    wanted = f"The step time drifts: 1 s in the first half, {later:.4g} s in the second."
    drifts = [text for text in found["warnings"] if "drifts" in text]
    assert drifts == ([wanted] if said else [])


# Jobs by hand: rows as a dialect gives them, figures from arithmetic


def job_of(*rows, dialect="made-up", **fields):
    made = Job(dialect, **fields)
    for row in rows:
        made.table.append(row)
    return made


def timed(*seconds, **every):
    """Return a job of one record per time, steps from 1 on."""
    rows = [{"step": n, "seconds": value, **every} for n, value in enumerate(seconds, start=1)]
    return job_of(*rows)


def known_of(**values):
    made = log_config.LogConfig()
    for name, value in values.items():
        made.put(name, value, "told")
    return made


@pytest.mark.parametrize(
    ("value", "tolerance", "grain", "found"),
    [
        (8.0, 0.01, 1, 8), (7.95, 0.01, 1, 8), (7.9, 0.01, 1, None), (8.05, 0.01, 1, 8),
        (0.3, 0.5, 1, None), (1e-13, 0.01, 1, None), (1000.0, 0.2, 1, None),
        (2040.0, 0.01, 128, 2048), (2000.0, 0.01, 128, None), (0.0, 0.01, 1, None),
        (-8.0, 0.01, 1, None), (1e15, 0.0, 1, None), (8.0, 0.0, 1, 8),
    ],
)  # fmt: skip
def test_a_size_follows_where_one_whole_number_alone_is_near(value, tolerance, grain, found):
    assert log_config.only_integer(value, tolerance, grain) == found


def test_a_column_is_as_exact_as_its_finest_figure():
    assert log_config.rounding_of(timed(2.5, 2.5), "seconds") == pytest.approx(0.05 / 2.5)
    assert log_config.rounding_of(timed(2.5, 25.0), "seconds") == pytest.approx(0.05 / 13.75)
    assert log_config.rounding_of(timed(2.5, 0.0), "seconds") == pytest.approx(0.05 / 1.25)
    assert log_config.rounding_of(timed(2.5), "loss") == math.inf
    assert log_config.rounding_of(timed(0.0, 0.0), "seconds") == math.inf  # no share of nothing
    exact = timed(2.0, 4.0)
    exact.finest["seconds"] = 0.003  # half of the last digit that was printed
    assert log_config.rounding_of(exact, "seconds") == pytest.approx(0.001)
    exact.rounded = 0.1
    assert log_config.rounding_of(exact, "seconds") == 0.1


def test_a_quotient_of_columns_is_the_median_over_the_rows_that_have_both():
    rows = [{"consumed_tokens": n * 100.0, "step": n} for n in (1.0, 2.0, 3.0)]
    found = log_config.ratio(
        job_of(*rows, {"consumed_tokens": 7.0, "step": 0.0}, {"step": 5.0}),
        ["consumed_tokens"], ["step"],
    )  # fmt: skip
    assert found is not None
    assert found[0] == 100
    assert log_config.ratio(job_of({"step": 1.0}), ["consumed_tokens"], ["step"]) is None
    small = job_of({"loss": 0.5, "step": 0.5}, {"loss": 0.0, "step": 0.5})
    assert (log_config.ratio(small, ["loss"], ["step"]) or ())[0] == 1


@pytest.mark.parametrize(
    ("samples", "batch"),
    [
        ([16, 32, 48], 16), ([16, 32, 48, 72], 16), ([16, 32, 56], None), ([16, 32, 57, 57], 16),
        ([16, 16, 32, 33, 33, 33], None), ([16], None),
    ],
)  # fmt: skip
def test_a_batch_is_what_most_steps_gain_of_samples(samples, batch):
    made = job_of(*({"step": n, "consumed_samples": one} for n, one in enumerate(samples)))
    if samples == [16, 32, 57, 57]:  # half a sample a step is no batch
        made.table.set_column("step", [0, 1, 3, 4])
    assert log_config.difference(made, "consumed_samples", "step") == batch


@pytest.mark.parametrize(
    ("told", "name", "size"),
    [
        ({"nodes": 2, "gpus_per_node": 8}, "world_size", 16),
        ({"nodes": 2}, "world_size", None),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 4, "context_parallel_size": 1,
          "data_parallel_size": 3}, "world_size", 24),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 4, "data_parallel_size": 3},
         "world_size", 24),
        ({"world_size": 16, "tensor_parallel_size": 2, "pipeline_parallel_size": 2,
          "context_parallel_size": 1}, "data_parallel_size", 4),
        ({"world_size": 6, "tensor_parallel_size": 4, "pipeline_parallel_size": 1,
          "context_parallel_size": 1}, "data_parallel_size", None),
        ({"world_size": 16, "tensor_parallel_size": 2}, "data_parallel_size", None),
    ],
)  # fmt: skip
def test_the_sizes_of_a_split_multiply_to_the_world(told, name, size):
    known = known_of(**told)
    log_config.complete(job_of(), known)
    assert known.size(name) == size
    assert known.provenance.get(name) == (None if size is None else "derived")


@pytest.mark.parametrize(
    ("row", "told", "name", "size"),
    [
        ({"tokens_per_second": 81_920.0, "tokens_per_second_per_gpu": 10_240.0}, {},
         "world_size", 8),
        ({"samples_per_second": 12.5, "samples_per_second_per_gpu": 3.125}, {}, "world_size", 4),
        ({"tokens_in_step": 40_960.0, "tokens_per_second_per_gpu": 5_120.0, "seconds": 2.0}, {},
         "world_size", 4),
        ({"samples_per_second": 16.25, "seconds": 2.0}, {}, "global_batch_size", None),
        ({"samples_per_second": 16.123, "seconds": 8.0011}, {}, "global_batch_size", 129),
        ({"samples_per_second_per_gpu": 2.0622, "seconds": 8.0011}, {"world_size": 4},
         "global_batch_size", 66),
        ({"tokens_per_second": 12_287.7, "seconds": 4.0001}, {"global_batch_size": 12},
         "sequence_length", 4096),
        ({"tokens_per_second_per_gpu": 6_143.85, "seconds": 4.0001},
         {"global_batch_size": 12, "world_size": 2}, "sequence_length", 4096),
        ({"consumed_tokens": 8192.0, "consumed_samples": 4.0}, {}, "sequence_length", 2048),
        ({"consumed_tokens": 8193.0, "consumed_samples": 4.0}, {}, "sequence_length", None),
    ],
)  # fmt: skip
def test_a_size_follows_from_the_rates_that_hold_it(row, told, name, size):
    known = known_of(**told)
    log_config.complete(job_of(row), known)
    assert known.size(name) == size


def test_rounded_tokens_of_a_step_give_the_multiple_of_128_that_is_near():
    """By hand: 24,608,200 tokens in 3,001 steps of 4 are 2,050 a sample, within 0.4 % 2,048."""
    known = known_of(global_batch_size=4)
    job = job_of({"consumed_tokens": 24_608_200.0, "step": 3001.0}, rounded=0.002)
    log_config.complete(job, known)
    assert known.size("sequence_length") == 2048


def test_rates_of_a_whole_run_give_batch_and_sequence():
    made = job_of(rates={"samples_per_second": 32.267, "steps_per_second": 0.25013,
                         "tokens_per_second": 66_083.0})  # fmt: skip
    known = known_of()
    log_config.complete(made, known)
    assert (known.size("global_batch_size"), known.size("sequence_length")) == (129, 2048)
    slow = known_of()
    rates_of_it = {"samples_per_second": 0.75039, "steps_per_second": 0.25013}
    log_config.complete(job_of(rates=rates_of_it), slow)
    assert slow.size("global_batch_size") == 3
    alone = known_of()
    log_config.complete(job_of(rates={"samples_per_second": 32.267}), alone)
    assert alone.values == {}


def test_a_model_that_is_named_has_the_layers_that_are_told():
    assert job_summary.shape_of(known_of(model="llama3.1-8b"))[0].num_layers == 32
    assert job_summary.shape_of(known_of(model="llama3.1-8b", num_layers=4))[0].num_layers == 4
    assert job_summary.shape_of(known_of(model="llama3.1-8b@8", num_layers=4))[0].num_layers == 4


TOLD_SHAPE = {
    "num_layers": 2, "hidden_size": 8, "ffn_hidden_size": 32, "num_attention_heads": 4,
    "vocab_size": 64, "swiglu": True,
}  # fmt: skip


def test_a_shape_is_built_from_the_sizes_that_a_log_tells():
    """By hand: a log that names no groups has one per head, and heads of 8 / 4."""
    shape, reason = job_summary.shape_of(known_of(**TOLD_SHAPE))
    assert reason is None
    assert (shape.num_layers, shape.hidden_size, shape.ffn_hidden_size) == (2, 8, 32)
    assert (shape.num_attention_heads, shape.num_query_groups, shape.head_dim) == (4, 4, 2)
    assert (shape.vocab_size, shape.gated_mlp, shape.tied_embeddings) == (64, True, True)
    assert (shape.normalization, shape.moe, shape.mla, shape.mtp_layers) == ("layer", None, None, 0)
    assert [
        job_summary.shape_of(known_of(**TOLD_SHAPE, **more))[0].max_sequence_length
        for more in ({}, {"sequence_length": 512})
    ] == [0, 512]
    # tied tables of 64 rows; a layer has 4 x 8 x 8 + 3 x 8 x 32 weights and two norms of 8 weights
    # and biases; one norm is last
    assert flops.parameter_count(shape).total == 64 * 8 + 2 * (256 + 768 + 32) + 16
    other = TOLD_SHAPE | {
        "group_query_attention": True, "num_query_groups": 2, "kv_channels": 16, "swiglu": False,
        "untie_embeddings_and_output_weights": True, "normalization": "RMSNorm", "mtp_layers": 1,
    }  # fmt: skip
    shape, _ = job_summary.shape_of(known_of(**other))
    assert (shape.num_query_groups, shape.head_dim, shape.gated_mlp) == (2, 16, False)
    assert (shape.tied_embeddings, shape.normalization, shape.mtp_layers) == (False, "rms", 1)
    assert job_summary.shape_of(known_of(**other | {"group_query_attention": False}))[0] != shape
    mixture = TOLD_SHAPE | {"num_experts": 8}
    moe = job_summary.shape_of(known_of(**mixture))[0].moe
    assert (moe.num_experts, moe.top_k, moe.ffn_hidden_size) == (8, 2, 32)
    assert (moe.shared_ffn_hidden_size, moe.first_dense_layers) == (0, 0)
    mixture |= {"moe_router_topk": 4, "moe_ffn_hidden_size": 16,
                "moe_shared_expert_intermediate_size": 24}  # fmt: skip
    moe = job_summary.shape_of(known_of(**mixture))[0].moe
    assert (moe.top_k, moe.ffn_hidden_size, moe.shared_ffn_hidden_size) == (4, 16, 24)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": None}, "does not state vocab size."),
        ({"multi_latent_attention": True}, "multi-latent attention"),
        ({"swiglu": None}, "whether the MLP is gated"),
    ],
)
def test_a_shape_that_a_log_does_not_tell_whole_is_none_with_the_reason(change, said):
    told = {name: one for name, one in (TOLD_SHAPE | change).items() if one is not None}
    shape, reason = job_summary.shape_of(known_of(**told))
    assert shape is None
    assert said in reason


LLAMA = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336,
         "num_attention_heads": 32, "num_query_groups": 8}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "model"),
    [
        ({}, "llama3.1-8b"),
        ({"vocab_size": 128_256}, "llama3.1-8b"),
        ({"vocab_size": 128_256 + 128 * 8 - 1}, "llama3.1-8b"),  # padded for at most 8 ranks
        ({"vocab_size": 128_256 + 128 * 8}, None),
        ({"vocab_size": 128_256 + 255, "tensor_parallel_size": 2}, "llama3.1-8b"),
        ({"vocab_size": 128_256 + 256, "tensor_parallel_size": 2}, None),
        ({"vocab_size": 128_255}, None), ({"num_experts": 8}, None), ({"hidden_size": None}, None),
        ({"ffn_hidden_size": 14337}, None),
    ],
)  # fmt: skip
def test_sizes_name_the_one_model_that_has_them(change, model):
    told = {name: one for name, one in (LLAMA | {"vocab_size": 128_256} | change).items() if one}
    found = job_summary.catalog_match(known_of(**told))
    named = {shape.name for shape in catalog.models() if shape.num_layers == 32
             and shape.hidden_size == 4096 and shape.vocab_size == 128_256}  # fmt: skip
    assert found == model if len(named) == 1 else found in (None, model)


@pytest.mark.parametrize(
    ("printed", "expected", "factor"),
    [
        (1.04, 1.0, None), (1.06, 1.0, 1.06), (0.96, 1.0, None), (0.5, 1.0, 0.5), (2.0, 4.0, 0.5),
        (0.0, 1.0, None), (1.0, 0.0, None), (math.nan, 1.0, None),
    ],
)  # fmt: skip
def test_two_figures_agree_within_a_twentieth(printed, expected, factor):
    assert rates.factor_between(printed, expected) == factor


def test_a_rate_that_rounds_to_zero_next_to_another_is_a_factor_like_any():
    factor = rates.factor_between(1e-320, 1e4)
    assert factor == 0.0
    assert rates.hint(0.0, 8) == ""
    assert rates.hint(0.125, 8) == rates.hint(8.0, 8) != ""


@pytest.mark.parametrize(
    ("factor", "world", "words"),
    [
        (8.0, 8, "the number of GPUs"), (1 / 16, 16, "the number of GPUs"), (1.0, 1, ""),
        (2.0, None, "2 hints at a wrong sequence length"), (0.25, None, "4 hints at micro steps"),
        (8.0, None, "8 hints at a figure of one GPU"), (3.0, 8, ""), (2.09, None, "2 hints"),
        (2.12, None, ""), (2.0, 2, "the number of GPUs"), (1.02, 1, ""),
    ],
)  # fmt: skip
def test_a_factor_hints_at_the_mistake_that_gives_it(factor, world, words):
    said = rates.hint(factor, world)
    assert words in said
    assert bool(said) is bool(words)


def test_steps_without_a_time_are_not_recounted_and_each_counts_its_own_batch():
    """By hand: 8 samples of 128 tokens on 2 GPUs are 512 tokens each in 1 s; 1 sample is 64."""
    job = job_of(
        {"seconds": 0.5, "tflops_per_gpu": 0.75, "global_batch_size": 1.0},
        {"seconds": 0.0, "tflops_per_gpu": 9.0, "global_batch_size": 8.0},
        {"seconds": 2.0, "tflops_per_gpu": 0.5, "global_batch_size": 0.0},
        {"seconds": 1.0, "tflops_per_gpu": 0.25, "global_batch_size": 16.0},
    )
    known = known_of(global_batch_size=8, sequence_length=128, world_size=2)
    rows, reason = job_summary._tokens_per_gpu(job, known)
    assert (rows, reason) == ([(128.0, 0.75), (256.0, 0.5), (1024.0, 0.25)], None)
    # Less than one TFLOP/s counts as printed too.
    assert job_summary.recount(job, known)["logged"] == 0.375
    assert job_summary._printed(job_of({"tflops_per_gpu": 0.5})) == [0.5]
    assert job_summary._printed(job_of({"tflops_per_gpu": 0.0})) == []


def test_a_rate_of_a_step_without_a_time_or_a_batch_contradicts_nothing():
    """By hand: 8 samples in 2 s are 4 a second; the records print 8 a second, twice as many."""
    rows = [{"samples_per_second": 8.0, "seconds": 2.0, "global_batch_size": 8.0}] * 3
    without = {"samples_per_second": 8.0, "seconds": 0.0, "global_batch_size": 8.0}
    known = known_of(global_batch_size=8, sequence_length=10, world_size=2)
    assert rates.rate_disagreements(job_of(*rows), known) == {"samples_per_second": 2.0}
    assert rates.rate_disagreements(job_of(*rows, *[without] * 4), known) == {
        "samples_per_second": 2.0
    }
    assert rates.rate_disagreements(job_of(without), known) == {}
    # each of another batch counts by its own: 16 samples in 4 s at 4 a second are right
    grown = [{"samples_per_second": 4.0, "seconds": 4.0, "global_batch_size": 16.0}] * 2
    right = [row | {"samples_per_second": 4.0} for row in rows]
    assert rates.rate_disagreements(job_of(*right, *grown), known) == {}
    each = [{"samples_per_second_per_gpu": 4.0, "tokens_per_second_per_gpu": 20.0,
             "tokens_per_second": 40.0, "seconds": 2.0}] * 3  # fmt: skip
    assert rates.rate_disagreements(job_of(*each), known) == {"samples_per_second_per_gpu": 2.0}


@pytest.mark.parametrize(("mfu", "said"), [(0.5, []), (1.0, []), (1.25, ["MFU of 125.0%"])])
def test_an_mfu_above_one_is_remarked_on(mfu, said):
    found = rates.warnings_of(job_of({"mfu": 0.4}, {"mfu": mfu}), known_of(), None)
    assert [text.partition(" is above")[0] for text in found] == said


@pytest.mark.parametrize(("first", "said"), [(0.4, True), (0.5, False), (0.6, False)])
def test_a_first_record_of_less_than_half_the_time_is_too_fast(first, said):
    found = rates.warnings_of(timed(first, 1.0, 1.0), known_of(), None)
    assert found == (
        ["The first record is too fast: it was timed before the device had finished."]
        if said else []
    )  # fmt: skip


def test_two_records_show_that_the_first_is_too_fast_and_one_does_not():
    assert len(rates.warnings_of(timed(0.4, 1.0), known_of(), None)) == 1
    assert rates.warnings_of(job_of({"step": 5.0, "seconds": 0.4}), known_of(), None) == []


@pytest.mark.parametrize(
    ("factor", "fits", "said"),
    [
        (1.02, None, None), (0.98, "six_n", None), (None, None, None),
        (1.03, None, "1.030 times those of model_flops: no known convention gives them."),
        (0.97, "six_n", "0.970 times those of model_flops: they are those of six_n."),
    ],
)  # fmt: skip
def test_printed_flops_agree_within_a_fortieth(factor, fits, said):
    found = job_summary.disagreement(
        {"logged_over_recounted": factor, "convention_that_fits": fits}
    )
    ours = flops.DEFAULT_CONVENTION
    wanted = said and f"Printed TFLOP/s are {said}".replace("model_flops", ours)
    assert found == ([wanted] if wanted else [])


def test_six_records_behind_the_first_show_a_drift_and_five_do_not():
    assert rates.warnings_of(timed(1, 1, 1, 1, 2, 2, 2), known_of(), None) == [
        "The step time drifts: 1 s in the first half, 2 s in the second."
    ]
    assert rates.warnings_of(timed(2, 2, 2, 2, 4, 4, 4), known_of(), None) == [
        "The step time drifts: 2 s in the first half, 4 s in the second."
    ]
    assert rates.warnings_of(timed(1, 1, 1, 1, 2, 2), known_of(), None) == []
    # one record of three times the median is held up and counts in neither half
    assert rates.warnings_of(timed(1, 1, 1, 1, 1, 3, 3), known_of(), None) == []


@pytest.mark.parametrize(
    ("numbers", "details", "interval"),
    [
        ([20, 40, 60], {"logs_multiples": True}, 20), ([30, 50], {"logs_multiples": True}, 10),
        ([1, 10], {}, 10), ([1, 2], {}, 1), ([1, 10, 20, 30], {}, 10), ([5, 10, 15, 25], {}, 5),
        ([5, 10, 20], {}, 5), ([3, 3], {}, None), ([7], {}, None), ([], {}, None),
        ([1], {"logs_multiples": True}, 1), ([7], {"logs_multiples": True}, None),
        ([7], {"logs_multiples": True, "mean_differs_at": 7}, 1),
        ([6], {"logs_multiples": True, "mean_differs_at": 6}, None),
        ([0, 0], {"logs_multiples": True}, None),
    ],
)  # fmt: skip
def test_the_steps_between_records_follow_from_their_numbers(numbers, details, interval):
    made = job_of(*({"step": float(number)} for number in numbers), details=details)
    assert rates.log_interval(made, known_of()) == interval
    assert rates.log_interval(made, known_of(log_interval=3)) == 3


BATCH = {"global_batch_size": 12, "sequence_length": 10}


@pytest.mark.parametrize(
    ("row", "whole_run", "told", "total", "each"),
    [
        # 12 samples of 10 tokens in 2 s, on 4 GPUs
        ({}, {}, BATCH | {"world_size": 4}, 60, 15),
        ({}, {}, BATCH, 60, None),
        # the file's own figure counts where it is within a twentieth of its steps
        ({}, {"tokens_per_second": 62.0}, BATCH, 62, None),
        ({}, {"tokens_per_second": 64.0}, BATCH, 60, None),
        ({"tokens_per_second": 50.0}, {}, {"world_size": 4}, 50, 12.5),
        ({"tokens_per_second_per_gpu": 50.0}, {}, {"world_size": 4}, 200, 50),
        ({"tokens_per_second_per_gpu": 50.0}, {}, {}, None, 50),
        ({"tokens_per_second_per_gpu": 0.0}, {"tokens_per_second": 9.0}, {}, 9, None),
        ({}, {"tokens_per_second_per_gpu": 7.0}, {"world_size": 3}, 21, 7),
        ({}, {}, {"world_size": 4}, None, None),
    ],
)  # fmt: skip
def test_a_rate_of_the_job_is_that_of_a_gpu_times_their_number(row, whole_run, told, total, each):
    made = timed(8.0, 2.0, 2.0, **row)
    made.rates.update(whole_run)
    found = rates.medians(made, known_of(**told))
    assert found["tokens_per_second_median"] == total
    assert found["tokens_per_second_per_gpu_median"] == each
    assert found["step_seconds_median"] == 2
    assert found["step_seconds_median_excluding_first"] == 2


def test_a_printed_rate_leaves_out_the_first_step_and_zeros():
    """By hand: without the first step and the zero, the median of 30 and 50 is 40."""
    figures = [900.0, 30.0, 0.0, 50.0]
    rows = [{"step": float(n), "tokens_per_second": one} for n, one in enumerate(figures, start=1)]
    assert rates.medians(job_of(*rows), known_of())["tokens_per_second_median"] == 40
    later = [row | {"step": row["step"] + 5} for row in rows]
    assert rates.medians(job_of(*later), known_of())["tokens_per_second_median"] == 50
    assert rates.medians(job_of(rows[0]), known_of())["tokens_per_second_median"] == 900


def test_counters_are_added_up_and_a_running_total_is_taken_as_it_is():
    rows = [{"skipped": 1.0, "nan": 0.0}, {"skipped": 2.0}]
    assert [rates.total_of(job_of(*rows), name) for name in ("skipped", "nan", "loss")] == [
        3,
        0,
        None,
    ]
    assert rates.total_of(job_of(*rows, skipped_in_all=7), "skipped") == 7
    assert rates.total_of(job_of(*rows, skipped_in_all=10**400), "skipped") is None
    assert "Iterations that the optimizer skipped: 3." in rates.warnings_of(
        job_of(*rows), known_of(), None
    )


@pytest.mark.parametrize(
    ("seconds", "count"),
    [
        ([3, 1.5, 1, 1, 1, 1], 2), ([0.4, 1, 1, 1], 1), ([0.5, 1, 1, 1], 0), ([1.2, 1, 1, 1], 0),
        ([1.21, 1, 1, 1], 1), ([2, 2, 2, 1], 2), ([2] * 12 + [1] * 30, 10), ([math.nan, 1, 1], 1),
        ([1, 2, 1, 1], 0),
    ],
)  # fmt: skip
def test_records_at_the_start_that_are_slower_or_faster_warm_up(seconds, count):
    assert steps._warmup(seconds, 1.0) == count
    assert steps._warmup(seconds, None) == 0


@pytest.mark.parametrize(
    ("seconds", "held", "found"),
    [
        ([1, 1, 1, 1, 3.1], [], {4}), ([1, 1, 1, 1, 3], [], set()), ([1, 1, 1, 3.1], [], set()),
        ([1, 1, 1, 1, 1.3], [4], {4}), ([1, 1, 1, 1, 1.2], [4], set()),
        ([4, 1, 1, 1, 1], [], set()), ([1] * 8 + [4] * 2, [], {8, 9}),
        ([1] * 7 + [4] * 3, [], set()),
    ],
)  # fmt: skip
def test_a_record_far_above_the_median_is_held_up_where_few_are(seconds, held, found):
    said = [1.0 if row in held else 0.0 for row in range(len(seconds))]
    assert steps._stalls(seconds, 1.0, 1, said) == found
    assert steps._stalls(seconds, None, 1, said) == set()


@pytest.mark.parametrize(
    ("row", "told", "tokens", "per_gpu"),
    [
        ({"global_batch_size": 4.0, "sequence_length": 10.0}, {}, 40, None),
        ({"global_batch_size": 4.0}, {"sequence_length": 10, "global_batch_size": 9}, 40, None),
        ({"tokens_per_second": 30.0, "seconds": 2.0}, {}, 60, None),
        ({"tokens_per_second_per_gpu": 30.0, "seconds": 2.0}, {"world_size": 4}, 240, None),
        ({"tokens_per_second_per_gpu": 30.0, "seconds": 2.0}, {}, None, 60),
        ({"tokens_per_second": 30.0}, {}, None, None), ({"seconds": 2.0}, {}, None, None),
    ],
)  # fmt: skip
def test_tokens_of_a_step_are_its_batch_or_its_rate_times_its_time(row, told, tokens, per_gpu):
    (step,) = steps.steps_of(job_of(row | {"step": 1.0}), known_of(**told))
    assert (step.tokens, step.tokens_per_gpu) == (tokens, per_gpu)


@pytest.mark.parametrize(
    ("value", "kept"), [(0.0, 0), (7.0, 7), (-1.0, None), (math.nan, None), (math.inf, None)]
)
def test_a_number_that_is_none_of_a_record_is_left_out(value, kept):
    assert steps._whole(value) == kept


def test_phases_compare_each_record_by_the_time_of_the_usual_number_of_tokens():
    """By hand: at 10 tokens a sample, twice the batch in twice the time is the usual speed."""
    rows = [{"step": float(n), "seconds": 1.0, "global_batch_size": 2.0} for n in range(1, 8)]
    rows[1] |= {"seconds": 2.0, "global_batch_size": 4.0}
    rows[4]["seconds"] = 3.5
    found = list(steps.steps_of(job_of(*rows), known_of(sequence_length=10)))
    assert [one.phase for one in found] == [
        "startup", "measured", "measured", "measured", "stalled", "measured", "measured",
    ]  # fmt: skip
    slow = [dict(rows[2], step=5.0), *rows[2:4]]
    assert next(iter(steps.steps_of(job_of(*slow), known_of()))).phase == "measured"


def test_numbers_from_zero_or_another_start_count_from_one():
    for first, number in ((0, 0), (1, 1), (100, 100)):
        rows = [{"step": float(first + n), "seconds": 1.0} for n in range(3)]
        found = steps.steps_of(job_of(*rows, first_number=number), known_of())
        assert [one.step for one in found] == [1, 2, 3]
    unnumbered = steps.steps_of(job_of({"seconds": 1.0}, {"seconds": 1.0}), known_of())
    assert [one.step for one in unnumbered] == [1, 2]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], None),
        ([{"skipped": 1.0, "step": 1.0}, {"skipped": 1.0, "step": 2.0}], "Every iteration"),
        ([{"skipped": 5.0, "step": 10.0}, {"skipped": 10.0, "step": 20.0}], None),
        ([{"skipped": 10.0, "step": 10.0}, {"skipped": 10.0, "step": 20.0}], "Every iteration"),
        ([{"skipped": 0.0, "step": 1.0}, {"skipped": 1.0, "step": 2.0}], None),
        ([{"not_finite": 1.0}, {"not_finite": 1.0}], "not a number in every record"),
        ([{"not_finite": 0.0}, {"not_finite": 1.0}], "not a number in the last record"),
        ([{"not_finite": 1.0}, {"not_finite": 0.0}], None),
        ([{"step": 3.0, "seconds": 1.0}, {"step": 4.0, "loss": 2.0}], "not a number at step 3"),
        ([{"loss": 2.0}, {"seconds": 1.0}], "not a number at the last record"),
        ([{"loss": 2.0}, {"seconds": 1.0, "skipped": 0.0}], "not a number at the last record"),
        ([{"loss": 2.0}, {"seconds": 1.0, "skipped": 1.0}], None),
        ([{"step": 3.0, "seconds": 1.0}], None),
    ],
)  # fmt: skip
def test_training_diverged_where_nothing_was_learnt_or_the_last_loss_is_no_number(rows, said):
    found = steps.diverged(job_of(*rows, details={"loss_expected": True}))
    assert found is None if said is None else said in found


def test_a_job_ends_as_its_log_says_or_at_its_last_step():
    rows = [{"step": 1.0, "loss": 2.0}, {"step": 2.0, "loss": 1.0}]
    assert steps.status_of(job_of(*rows, total_steps=2)) == ("completed", None)
    assert steps.status_of(job_of(*rows, total_steps=3, first_number=0)) == ("completed", None)
    assert steps.status_of(job_of(*rows, finished=True)) == ("completed", None)
    status, reason = steps.status_of(job_of(*rows, total_steps=3))
    assert (status, reason) == (
        "interrupted", "The log ends at step 2 of 3 and does not say how the run ended."
    )  # fmt: skip
    memory = Ending("out_of_memory", "CUDA out of memory")
    said = "The log says that memory ran out: CUDA out of memory"
    assert steps.status_of(job_of(*rows, total_steps=3, ending=memory)) == ("out_of_memory", said)
    assert steps.status_of(job_of(*rows, total_steps=2, ending=memory)) == (
        "completed", f"Every step was trained; what came after them failed. {said}."
    )  # fmt: skip
    failed = Ending("failed", "x")
    assert steps.status_of(job_of(*rows, total_steps=2, ending=failed))[0] == "completed"
    assert steps.status_of(job_of(*rows, ending=failed))[0] == "failed"
    assert steps.status_of(job_of())[1].startswith("The log contains no training step and")
    assert steps.status_of(job_of({"loss": 2.0}))[1].startswith("The log ends after its record 1")


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("python_error", "The trainer failed: KeyError: 'x'."),
        ("signal", "The trainer failed: KeyError: 'x'. The log says: KeyError: 'x'"),
    ],
)
def test_an_exception_is_told_once_and_the_line_of_another_ending_behind_its_sentence(cause, said):
    ending = Ending("failed", "KeyError: 'x'", 1, cause, "The trainer failed: KeyError: 'x'.")
    assert steps.status_of(job_of(ending=ending)) == ("failed", said)


def test_device_samples_are_summed_up_by_device_and_mean():
    samples = job_of().samples
    for row in ({"time": 10.0, "gpu": 1.0, "power_watts": 300.0},
                {"time": 14.0, "gpu": 0.0, "power_watts": 500.0}):  # fmt: skip
        samples.append(row)
    assert steps.summary(samples) == {
        "samples": 2, "devices": [0, 1], "seconds": 4.0, "mean": {"power_watts": 400.0},
    }  # fmt: skip
    assert [type(row["gpu"]) for row in steps.lines(samples)] == [int, int]
    assert steps.summary(job_of().samples)["seconds"] is None


def content_of(*jobs, digest="d" * 64, kind="training", path=Path("a.log")):
    """Return what stands for a file that was read."""
    dialect = SimpleNamespace(kind=kind, name=kind)
    return SimpleNamespace(jobs=list(jobs), digest=digest, dialect=dialect, path=path, tail=())


def test_a_run_is_named_by_its_files_what_was_supplied_and_its_place_in_them():
    one, two = job_of(dialect="nemo"), job_of(dialect="nemo")
    alone = group.Group([content_of(one)], [one])
    assert ingest_write.run_name(alone, 0) == f"ingested-nemo-{'d' * 12}"
    both = group.Group([content_of(one, two)], [one, two])
    assert [ingest_write.run_name(both, at) for at in (0, 1)] == [
        f"ingested-nemo-{'d' * 12}-1", f"ingested-nemo-{'d' * 12}-2",
    ]  # fmt: skip
    ranks = [content_of(one, digest=name * 64) for name in "ab"]
    names = {ingest_write.run_name(group.Group(files, [one]), 0) for files in (ranks, ranks[::-1])}
    assert len(names) == 1
    supplied = ingest_write.run_name(alone, 0, {"model": "m"})
    assert supplied not in {ingest_write.run_name(alone, 0), *names}
    assert re.fullmatch("ingested-nemo-[0-9a-f]{12}", supplied)


@pytest.mark.parametrize(
    ("told", "precision", "recompute"),
    [
        ({"bf16": True}, "bf16", None), ({"fp16": True, "bf16": False}, "fp16", None),
        ({"fp8": "hybrid", "bf16": True}, "fp8", None),
        ({"fp8": "none", "bf16": True}, "bf16", None),
        ({"fp8": "null"}, None, None), ({"precision": "fp32", "bf16": True}, "fp32", None),
        ({"recompute_granularity": "selective"}, None, "selective"),
        ({"recompute_granularity": "none"}, None, "none"),
        ({"recompute_granularity": "full"}, None, None),
        ({"recompute_granularity": "none", "recompute": "full"}, None, "full"),
    ],
)  # fmt: skip
def test_settings_of_an_argument_dump_have_our_names(told, precision, recompute):
    found = ingest_write.observed_settings(known_of(**told))
    assert (found.get("precision"), found.get("recompute")) == (precision, recompute)
    assert ingest_write.observed_settings(known_of(world_size=8, swiglu=True)) == {"world_size": 8}


def test_a_device_is_that_of_the_log_before_that_of_the_platform():
    named = job_of(details={"device": "A device"})
    assert ingest_write.accelerator_of(named, known_of(platform="h100")) == "A device"
    of_platform = ingest_write.accelerator_of(job_of(), known_of(platform="h100"))
    assert catalog.accelerator_for_device(of_platform).name == catalog.platform("h100").accelerator
    assert ingest_write.accelerator_of(job_of(), known_of()) is None


@pytest.mark.parametrize(("ranks", "first"), [((None, 3, 1), 1), ((None, 3), 3), ((None,), None)])
def test_the_anatomy_of_a_step_is_that_of_the_lowest_rank_that_is_known(tmp_path, ranks, first):
    shutil.copy(LOGS / "megatron_2024.log", tmp_path)
    trace = json.loads((LOGS / "kineto.json").read_text())
    for place, rank in enumerate(ranks):
        trace["distributedInfo"]["rank"] = rank
        (tmp_path / f"trace-{place}.json").write_text(json.dumps(trace))
    (run,), _ = ingest([tmp_path], tmp_path / "runs", {})
    assert json.loads((run.path / "profile" / "breakdown.json").read_text())["rank"] == first


def test_traces_are_copied_packed_and_numbered_and_a_very_large_one_is_left_out(
    tmp_path, monkeypatch
):
    plain = write(tmp_path / "a.json", "{}" * 100)
    packed = tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress(b"[]"))
    large = write(tmp_path / "c.json", "x" * 201)
    monkeypatch.setattr(ingest_write, "_LARGEST_TRACE", 200)
    attached = [content_of(kind="trace", path=path) for path in (large, plain, packed)]
    attached.insert(0, content_of(kind="telemetry", path=plain))
    target = tmp_path / "copies"
    target.mkdir()
    ingest_write._copy_traces(target, group.Group([], [], attached))
    assert sorted(path.name for path in target.iterdir()) == ["trace-2.json.gz", "trace-3.json.gz"]
    assert gzip.decompress((target / "trace-2.json.gz").read_bytes()) == b"{}" * 100
    assert (target / "trace-3.json.gz").read_bytes() == packed.read_bytes()


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ([(1, 2.0), (2, 1.0)], [(1, 2.0), (2, 1.0)], True),
        ([(1, 2.0), (2, 1.0)], [(2, 1.0009)], True), ([(1, 2.0), (2, 1.0)], [(2, 1.002)], False),
        ([(1, 2.0)], [(2, 2.0)], False), ([(1, 2.0)], [], True),
        ([(1, 0.0)], [(1, 1e-9)], True), ([(1, 0.0)], [(1, 1e-8)], False),
        ([(1, 1e-9)], [(1, 0.0)], True),
    ],
)  # fmt: skip
def test_two_logs_are_of_one_job_where_steps_they_share_have_one_loss(first, second, joined):
    one, other = (
        job_of(*({"step": float(step), "loss": loss} for step, loss in rows))
        for rows in (first, second)
    )
    assert group._agree(one, other) is joined
    other.settings["world_size"] = 8
    assert group._agree(one, other) is joined
    one.settings["world_size"] = 4
    assert group._agree(one, other) is False


def test_what_another_rank_tells_is_added_and_its_higher_peak_counts():
    one = job_of({"step": 1.0}, settings={"a": 1}, details={"peak_gib": 5.0, "device": "x"})
    other = job_of({"step": 1.0}, {"step": 2.0}, settings={"a": 2, "b": 3}, finished=True,
                   details={"peak_gib": 7.0, "device": "y", "more": 1}, notes=["n"])  # fmt: skip
    group._join(one, other)
    assert one.settings == {"a": 1, "b": 3}
    assert one.details == {"peak_gib": 7.0, "device": "x", "more": 1}
    assert (one.finished, one.counts.other_rank_records, one.notes) == (True, 2, ["n"])
    memory, killed = Ending("out_of_memory", "full", 2), Ending("failed", "Killed", 1)
    for ending, kept in ((None, None), (killed, killed), (memory, memory), (killed, memory),
                         (None, memory)):  # fmt: skip
        group._join(one, job_of(ending=ending))
        assert one.ending == kept
    group._join(one, job_of(details={"peak_gib": 6.0}))
    assert (one.details["peak_gib"], one.finished) == (7.0, True)


@pytest.mark.parametrize(("first", "second", "main"), [(2, 2, 0), (2, 1, 0), (1, 2, 1)])
def test_of_two_views_of_a_job_the_one_with_more_records_counts_else_the_first(first, second, main):
    jobs = [timed(*[1.0] * count, loss=2.0) for count in (first, second)]
    groups = [group.Group([content_of(jobs[0])], [jobs[0]])]
    assert group._joins(groups, content_of(jobs[1]))
    assert groups[0].jobs[0] is jobs[main]
    assert jobs[main].counts.other_rank_records == min(first, second)


def test_a_record_that_is_held_up_is_said_with_the_rate_that_holds_it(tmp_path):
    """By hand: behind the first, 9 records of 1 s and one of 5 s have 10 x 16 x 2048 tokens."""
    times = [1000.0] * 6 + [5000.0] + [1000.0] * 4
    lines = [line(n, ms, loss=3 - n / 9, total=11) for n, ms in enumerate(times, start=1)]
    log = write(tmp_path / "a.log", *lines)
    (said,) = (
        text for text in one(log, sequence_length=2048)["warnings"] if "1 of the records" in text
    )
    assert said.endswith(f"; with them it is {10 * 16 * 2048 / 14:,.0f} tokens/s.")
    (said,) = (text for text in one(log)["warnings"] if "1 of the records" in text)
    assert said.endswith("or a compilation.")


@pytest.mark.parametrize(("count", "refused"), [(2, False), (3, True)])
def test_a_folder_holds_as_many_files_as_the_limit_says(tmp_path, monkeypatch, count, refused):
    monkeypatch.setattr(group, "MOST_FILES", 2)
    for number in range(count):
        write(tmp_path / f"{number}.log", line(1))
    if refused:
        with pytest.raises(IngestError, match="contains more than 2 files"):
            list(group.files_under(tmp_path))
    else:
        assert len(list(group.files_under(tmp_path))) == count


def test_a_window_outside_the_steps_is_refused(tmp_path, capsys):
    log = str(LOGS / "megatron_2021_windows.log")  # steps 5 to 15
    command = ["ingest", log, "--runs", str(tmp_path / "runs"), "--window"]
    assert main([*command, "100:200"]) == 2
    assert "steps 5 to 15: none lies in --window 100:200" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*/record.json"))
    for touching in ("15:200", "1:5"):
        assert main(["ingest", log, "--json", "--window", touching]) == 0
    assert main([*command, "10:200"]) == 0
