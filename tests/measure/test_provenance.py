"""What was asked for against what ran, and how to make a run again."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from simulated import config, write_run
from training import environment, small

from scalebook import store
from scalebook.cli import main, run_options
from scalebook.config import RunConfig
from scalebook.errors import RecordError
from scalebook.measure import provenance
from scalebook.plan import single_plan
from scalebook.record import RunRecord
from scalebook.report.base.frames import collect
from scalebook.report.pages import reliability_page, run_findings
from scalebook.running import reproduce, runner
from scalebook.running.kernel import RunOptions


def sentences(requested: dict[str, Any], observed: dict[str, Any], **environment: Any) -> list[str]:
    found = provenance.differences(requested, observed, environment)
    return [difference.sentence() for difference in found]


def test_a_setting_that_ran_otherwise_than_asked_is_told():
    asked = {"tensor_parallel_size": 2, "precision": "fp8", "data": ""}
    ran = {"tensor_parallel_size": 2, "precision": "bf16"}
    assert sentences(asked, ran) == ["precision: asked for 'fp8', ran with 'bf16'."]


def test_what_follows_from_the_configuration_is_compared_too():
    asked = small(world_size=4, tensor_parallel_size=2).model_dump()
    assert sentences(asked, {"data_parallel_size": 2, "num_microbatches": 4}) == []
    assert sentences(asked, {"data_parallel_size": 4, "num_microbatches": 4}) == [
        "data_parallel_size: asked for 2, ran with 4."
    ]


def test_the_shape_that_the_models_name_stands_for_is_compared():
    asked = config(platform="h100", model="llama3.1-8b@8").model_dump()
    ran = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336}
    assert sentences(asked, ran) == ["num_layers: asked for 8, ran with 32."]


def test_another_device_than_the_platforms_is_a_difference():
    asked = config(platform="h100").model_dump()
    assert sentences(asked, {}, accelerator="NVIDIA H100 80GB HBM3") == []
    assert sentences(asked, {}, accelerator="NVIDIA H200") == [
        "accelerator: asked for 'H100-SXM5-80GB', ran with 'NVIDIA H200'."
    ]


def test_what_was_left_to_the_trainer_is_no_difference():
    asked = {"fused_norm": "auto", "fused_rope": "on", "learning_rate": 0.1, "repeat": 3}
    ran = {"fused_norm": "off", "fused_rope": True, "learning_rate": 0.1 + 1e-17}
    assert sentences(asked, ran) == []
    assert sentences({"fused_rope": "on"}, {"fused_rope": "off"}) != []


def test_a_difference_of_any_content_stays_one_short_line():
    (sentence,) = sentences({"a\nb\x1b": "x" * 999}, {"a\nb\x1b": "y\n" * 999})
    assert sentence.isprintable()
    assert len(sentence) < 300


def unlike(runs: Path) -> Path:
    """Write a run that trained with another micro batch than it was asked for."""
    settings = config()
    observed = settings.model_dump() | {"micro_batch_size": 4}
    return write_run(runs, "unlike", settings, source="measured", observed=observed)


def test_a_run_that_is_not_what_was_asked_for_is_a_warning_in_list_and_report(
    tmp_path: Path, capsys: Any
):
    unlike(tmp_path)
    said = "micro_batch_size: asked for 1, ran with 4."
    assert main(["list", "--runs", str(tmp_path)]) == 0
    assert (
        f"unlike: warning: the run differs from what was requested: {said}"
        in capsys.readouterr().out
    )
    assert main(["list", "--runs", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["differences"] == [{"name": "micro_batch_size", "asked": 1, "ran": 4}]
    page = str(run_findings.warnings(collect(tmp_path, store.read_runs(tmp_path)[0], ())))
    assert "did not run as requested" in page
    assert said in page


def test_configurations_that_were_not_run_have_a_sentence_of_their_own(tmp_path: Path):
    write_run(tmp_path, "a", config(), source="measured")
    out: dict[str, Any] = {"status": "out_of_memory", "steps": 0, "reason": "Not run, inferred."}
    write_run(tmp_path, "b", config(micro_batch_size=8), source="inferred", **out)
    data = collect(tmp_path, store.read_runs(tmp_path)[0], ())
    page = " ".join(map(str, reliability_page.failures(data)))
    assert "configuration was not run</strong>: a smaller one had run out of memory" in page
    assert "out of memory</strong>" not in page


def recorded(**changes: Any) -> RunRecord:
    """Return the record of a run with its surroundings."""
    settings = config(platform="h100", model="llama3.1-8b", strategy="balanced", world_size=4,
                      tensor_parallel_size=2, sequence_parallel=True, precision="bf16")  # fmt: skip
    environment = {
        "git_commit": "0123456789abcdef-dirty",
        "torch": "2.0",
        "accelerator": "NVIDIA H100 80GB HBM3",
        "variables": {"NCCL_DEBUG": "WARN", "NCCL_TOKEN": "***", "A; rm -rf /": "x"},
        "container": {"SCALEBOOK_IMAGE": "image@sha256:1"},
        "host": {"cpu_cores": 64},
    }
    values: dict[str, Any] = {
        "run_id": "r",
        "config_hash": settings.config_hash(),
        "status": "completed",
        "requested": settings.model_dump(),
        "environment": environment,
    }
    return RunRecord(**(values | changes))


HERE = {"torch": "3.0", "accelerator": "NVIDIA H100 80GB HBM3", "host": {"cpu_cores": 8}}


def test_the_command_names_each_field_that_is_not_at_its_default():
    found = reproduce.recipe(recorded(), HERE, {"NCCL_ALGO": "Ring", "HOME": "/x"})
    text = shlex.join(found.command)
    assert text.startswith("scalebook run --platform h100 --rerun --set model=llama3.1-8b ")
    assert "--set tensor_parallel_size=2" in text
    assert "--set strategy=balanced" in text
    assert "--set sequence_parallel=true" in text
    assert "warmup_steps" not in text
    assert "-p sequence_parallel True" in shlex.join(found.papermill)
    assert "-r model llama3.1-8b" in shlex.join(found.papermill)


def test_the_command_of_every_example_plans_the_very_configuration(root: Path):
    """Also of even pipeline stages, which a plan would not choose by itself."""
    uneven = 0
    for run in store.read_runs(root / "runs/examples")[0]:
        command = reproduce.recipe(run.record, {}, {}).command
        named = run_options.fields(b for a, b in pairwise(command) if a == "--set")
        wanted = RunConfig.from_parameters(run.record.requested)
        (planned,) = single_plan(named, platform=wanted.platform).runs
        assert planned.config == wanted
        if not named.pop("last_pipeline_stage_layers", 0):
            (other,) = single_plan(named, platform=wanted.platform).runs
            uneven += other.config != wanted
    assert uneven


def test_variables_commit_and_what_differs_here_are_told():
    found = reproduce.recipe(recorded(), HERE, {"NCCL_ALGO": "Ring", "HOME": "/x"})
    assert found.variables == {"NCCL_DEBUG": "WARN"}
    assert found.unset == ("NCCL_ALGO",)
    assert ("torch", "2.0", "3.0") in found.differences
    assert ("host.cpu_cores", 64, 8) in found.differences
    assert not [name for name, _, _ in found.differences if name == "accelerator"]
    script = list(reproduce.lines(found))
    assert "git checkout 0123456789abcdef" in script
    assert "export NCCL_DEBUG=WARN" in script
    assert "# SCALEBOOK_IMAGE image@sha256:1" in script
    assert any("exact code is not known" in line for line in script)
    assert any("NCCL_TOKEN" in line and line.startswith("# note") for line in script)


def test_a_record_of_anyone_cannot_add_a_line_to_the_script():
    evil = {"git_commit": "x; rm -rf /", "torch": "1\nrm -rf /", "variables": {"NCCL_A": "$(x)\n"}}
    found = reproduce.recipe(recorded(environment=evil), {"torch": "y\nz"}, {})
    script = "\n".join(reproduce.lines(found))
    assert "checkout" not in script
    assert "NCCL_A='$(x)\n'" in script  # quoted for the shell
    lines = script.replace("'$(x)\n'", "").splitlines()
    assert not [line for line in lines if line.startswith("rm")]


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\u2028", "\x1b[2K"])
def test_names_in_a_record_stay_inside_the_comments_of_the_script(end: str):
    evil = f"x{end}touch PWNED{end}#"
    environment = {"container": {evil: evil}, "python": evil, "accelerator": evil}
    found = reproduce.recipe(recorded(run_id=evil, environment=environment), {}, {})
    script = "\n".join(reproduce.lines(found)).replace(end, "\n")
    assert "PWNED" in script
    assert all(line.startswith("# ") for line in script.splitlines() if "PWNED" in line)
    assert end == "\n" or end not in "\n".join(reproduce.lines(found))


def test_a_run_that_nobody_here_made_cannot_be_made_again():
    with pytest.raises(RecordError, match="is ingested"):
        reproduce.recipe(recorded(source="ingested"), {}, {})
    with pytest.raises(RecordError, match="Unknown parameter 'colour'"):
        reproduce.recipe(recorded(requested={"colour": 1}), {}, {})


def test_an_unknown_run_is_one_line_with_the_nearest(tmp_path: Path, capsys: Any):
    unlike(tmp_path)
    assert main(["reproduce", "unlik", "--runs", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "Did you mean 'unlike'" in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_the_printed_command_makes_the_run_again(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    settings = small(steps=4, learning_rate=3e-4, strategy="balanced", sequence_length=64)
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("PYTHONPATH", environment(stand_in=True)["PYTHONPATH"])
    runner.train(settings, RunOptions(runs=str(first)))
    (original,) = store.read_runs(first)[0]
    assert main(["reproduce", original.record.run_id, "--runs", str(first), "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)
    # Someone may commit while the test runs; nothing else changes on one machine.
    assert {one["name"] for one in recipe["differences"]} <= {"git_commit"}
    again = [sys.executable, "-m", "scalebook", *recipe["command"][1:], "--runs", str(second)]
    subprocess.run(again, check=True, capture_output=True, timeout=300)
    (copy,) = store.read_runs(second)[0]
    assert copy.record.config_hash == original.record.config_hash
    assert len(original.steps) == 4
    assert [step.loss for step in copy.steps] == [step.loss for step in original.steps]
