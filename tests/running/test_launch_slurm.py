"""The script of a Slurm job: what it asks for, and what it really runs, argument by argument."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalebook.config import RunConfig
from scalebook.errors import LaunchError
from scalebook.running.cluster import slurm
from scalebook.running.cluster.slurm import Container, chosen

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "launch"
TEMPLATE = (ROOT / slurm.TEMPLATE).read_text()
# Stands for srun, apptainer and scontrol: notes its arguments, one a line.
STUB = """#!/bin/bash
if [ "${0##*/}" = scontrol ]; then printf 'first\\nsecond\\n'; exit; fi
{ echo "# ${0##*/}"; printf '%s\\n' "$@"; } >>"$STUB_LOG"
exit "${STUB_CODE:-0}"
"""
FORMS = {
    "none": Container(),
    "pyxis": Container("pyxis", "registry#team/image:1"),
    "apptainer": Container("apptainer", "/images/image.sif"),
}
SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
PLATFORMS = ("cpu", "a100", "h100", "h200", "b200", "mi300x", "mi325x", "mi355x")


def config(**changes: Any) -> RunConfig:
    """Return a configuration of two nodes."""
    base: dict[str, Any] = {
        "platform": "h100",
        "model": "llama3.1-8b",
        "world_size": 16,
        "nodes": 2,
        "tensor_parallel_size": 4,
        "global_batch_size": 32,
        "sequence_length": 4096,
    }
    return RunConfig(**{**base, **changes})


def script(
    directory: Path = Path("/shared/runs/.partial-ID"),
    *,
    environment: dict[str, str] | None = None,
    runs: int = 1,
    form: str = "none",
    **changes: Any,
) -> str:
    """Return a job's script; ``sbatch`` in the changes are options of it."""
    options = slurm.Options(
        container=FORMS[form], python="/cluster/bin/python", sbatch=changes.pop("sbatch", None)
    )
    tasks = [slurm.JobTask(config(**changes, repeat=number), directory) for number in range(runs)]
    return slurm.script(
        tasks, options, template=TEMPLATE, logs=directory.parent, environment=environment or {}
    )


def ran(text: str, tmp_path: Path, **variables: str) -> list[str]:
    """Run a script with stubs in place of Slurm's programs; return what they were given."""
    tools, log = tmp_path / "tools", tmp_path / "log"
    tools.mkdir(exist_ok=True)
    for name in ("srun", "scontrol", "apptainer"):
        (tools / name).write_text(STUB)
        (tools / name).chmod(0o755)
    known = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "STUB_LOG": str(log),
        "SLURM_JOB_ID": "4242",
        "SLURM_JOB_NODELIST": "node[1-2]",
    }
    subprocess.run(
        ["bash", "-s"], input=text, text=True, env={**known, **variables}, timeout=60, check=False
    )
    return log.read_text().splitlines() if log.exists() else []


def directives(text: str) -> list[str]:
    """Return what the job asks of the cluster."""
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line[:8] == "#SBATCH "]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_job_is_as_it_was(platform: str, form: str, tmp_path: Path):
    """SCALEBOOK_WRITE_GOLDEN=1 writes the snapshots anew; read their difference."""
    directory = tmp_path / ".partial-ID"
    directory.mkdir()
    text = script(directory, platform=platform, form=form, time_limit_seconds=1800)
    exports = [line for line in text.splitlines() if line.startswith("export ")]
    shown = [*directives(text), "", *exports, "", *ran(text, tmp_path)]
    found = "\n".join(shown).replace(str(tmp_path), "/shared/runs") + "\n"
    path = GOLDEN / f"slurm_{platform}_{form}.txt"
    if os.environ.get("SCALEBOOK_WRITE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


def test_the_nodes_meet_at_the_first_nodes_name_at_a_port_of_the_job(tmp_path: Path):
    directory = tmp_path / "run"
    directory.mkdir()
    given = ran(script(directory), tmp_path)
    assert given[given.index("--rendezvous") + 1] == f"first:{20000 + 4242}"
    assert given[given.index("--job") + 1] == "4242"
    assert given[given.index("--restart") + 1] == "0"


@pytest.mark.parametrize("name", ["a b", "a'b", "$(touch x)", "`id`", "a%jb", 'a"b', "ä;&|"])
def test_a_path_reaches_every_program_as_one_argument(name: str, tmp_path: Path):
    directory = tmp_path / name / ".partial-ID"
    directory.mkdir(parents=True)
    task = slurm.JobTask(config(), directory)
    text = slurm.script(
        [task], slurm.Options(), template=TEMPLATE, logs=Path("/logs"), environment={}
    )
    given = ran(text, tmp_path)
    assert given[given.index("scalebook.running.cluster.node") + 1] == str(directory)
    assert not (ROOT / "x").exists()


@pytest.mark.parametrize("name", ["a\nb", "a\\b", 'a"b'])
def test_a_folder_that_a_directive_cannot_name_is_refused(name: str):
    with pytest.raises(LaunchError, match="Use a folder without"):
        script(Path("/shared") / name / ".partial-ID")


def test_a_container_cannot_be_given_a_folder_that_its_mounts_split():
    for form in ("pyxis", "apptainer"):
        with pytest.raises(LaunchError, match="the list of mounts of a container cannot take"):
            script(Path("/shared/a:b/.partial-ID"), form=form)


def test_performance_variables_of_the_submitter_go_along_and_secrets_do_not():
    given = {"NCCL_DEBUG": "a'b $(id)", "NCCL_SECRET_KEY": "hidden-value", "HOME": "/home/me"}
    text = script(environment=given)
    assert """export NCCL_DEBUG='a'"'"'b $(id)' # set where the job was made""" in text
    assert "hidden-value" not in text and "/home/me" not in text


def test_what_the_submitter_set_wins_over_the_platforms_choice():
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1 #" in script()
    assert "CUDA_DEVICE_MAX_CONNECTIONS=8 #" in script(
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    )


def test_in_apptainer_every_variable_has_the_name_that_gets_inside(tmp_path: Path):
    text = script(form="apptainer")
    assert "export APPTAINERENV_CUDA_DEVICE_MAX_CONNECTIONS=1" in text


def test_in_apptainer_a_node_still_knows_its_number(tmp_path: Path):
    directory = tmp_path / "run"
    directory.mkdir()
    given = ran(script(directory, form="apptainer"), tmp_path)
    entered = given[given.index("bash") :]
    assert entered[:3] == ["bash", "-c", 'APPTAINERENV_SLURM_NODEID=$SLURM_NODEID exec "$@"']
    assert entered[4:6] == ["apptainer", "exec"]


@pytest.mark.parametrize("form", ["pyxis", "apptainer"])
def test_the_record_of_a_job_gets_the_bytes_of_its_image_file(form: Any, tmp_path: Path):
    image, directory = tmp_path / "an image.sqsh", tmp_path / "run"
    image.write_bytes(b"squash")
    directory.mkdir()
    options = slurm.Options(Container(form, str(image)))
    task = slurm.JobTask(config(), directory)
    text = slurm.script([task], options, template=TEMPLATE, logs=tmp_path, environment={})
    prefix = "APPTAINERENV_" if form == "apptainer" else ""
    seen = f'printf "%s\\n" "${prefix}SCALEBOOK_IMAGE_ID" >"{tmp_path}/seen"\n'
    ran(text.replace("\nrun\n", f"\n{seen}run\n"), tmp_path)
    digest = hashlib.sha256(b"squash").hexdigest()
    assert (tmp_path / "seen").read_text() == f"sha256:{digest}\n"
    image.unlink()
    ran(text.replace("\nrun\n", f"\n{seen}run\n"), tmp_path)
    assert (tmp_path / "seen").read_text() == "\n", "not read: not known"


def test_an_image_of_a_job_that_a_tag_names_is_not_pinned():
    digest = f"sha256:{'0' * 64}"
    pinned = (f"reg#x:{digest}", f"reg#x@{digest}", "/images/x.sqsh")
    assert all(Container("pyxis", image).is_pinned for image in pinned)
    assert not Container("pyxis", "reg#x:1").is_pinned
    assert not Container("apptainer", "docker://reg/x:1").is_pinned
    assert Container().is_pinned


def test_in_pyxis_the_jobs_variables_win_over_the_images():
    assert "--container-env=" in script(form="pyxis")
    passed = script(form="pyxis").split("--container-env=")[1]
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in passed
    assert "SCALEBOOK_CONTAINER,SCALEBOOK_IMAGE," in passed


def test_options_of_a_site_are_added_replaced_and_left_out():
    sbatch = slurm.parse_options(["partition=gpu", "--gpus-per-node=", "time=30", "exclusive="])
    given = directives(script(sbatch=sbatch))
    assert "--partition=gpu" in given and "--time=30" in given
    assert not any("gpus-per-node" in line or "exclusive" in line for line in given)


@pytest.mark.parametrize("pair", ["partition=a b", "=x", "x=`id`", 'comment="a"', "A=1", "x=a\nb"])
def test_an_option_that_could_say_more_than_its_value_is_refused(pair: str):
    with pytest.raises(LaunchError, match=r"cannot be used\. Write NAME=VALUE"):
        slurm.parse_options([pair])


def test_the_environment_of_the_submitter_stays_outside():
    assert "--export=NONE" in directives(script())


def test_one_job_runs_one_configuration_after_the_other(tmp_path: Path):
    directory = tmp_path / "run"
    directory.mkdir()
    text = script(directory, runs=3)
    assert text.count("\nrun\n") == 3
    assert ran(text, tmp_path).count("# srun") == 3
    assert "--job-name=scalebook-3-runs" in directives(text)


def test_the_highest_exit_code_of_the_runs_is_the_jobs(tmp_path: Path):
    directory = tmp_path / "run"
    directory.mkdir()
    text = script(directory) + "\n"
    ran("exit() { echo $1 >" + f"{tmp_path}/code; }}\n" + text, tmp_path, STUB_CODE="7")
    assert (tmp_path / "code").read_text() == "7\n"


def test_a_requeued_job_puts_the_last_attempt_aside_unless_there_is_a_checkpoint(tmp_path: Path):
    directory = tmp_path / "run"
    directory.mkdir()
    for name in ("steps.jsonl", "train.log", "launch.json", "exit.json", "exit.node1.json"):
        (directory / name).write_text("{}\n")
    ran(script(directory), tmp_path, SLURM_RESTART_COUNT="1")
    assert {path.name for path in directory.iterdir()} == {"attempts"}
    left = {path.name for path in (directory / "attempts" / "1").iterdir()}
    assert left == {"steps.jsonl", "train.log"}
    (directory / "steps.jsonl").write_text("{}\n")
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "latest.json").write_text("{}")
    ran(script(directory), tmp_path, SLURM_RESTART_COUNT="2")
    assert (directory / "steps.jsonl").exists()
    assert not (directory / "attempts" / "2").exists()


def test_a_changed_template_is_refused_before_anything_is_submitted():
    with pytest.raises(LaunchError, match="other places than expected: WRONG"):
        slurm.fill(TEMPLATE + "@WRONG@", dict.fromkeys(slurm._PLACE.findall(TEMPLATE), ""))


def test_a_value_that_looks_like_a_place_of_the_template_is_left_alone():
    assert slurm.fill("@A@ @B@", {"A": "@B@", "B": "b"}) == "@B@ b"


def test_the_container_of_a_job_is_named_in_words():
    assert chosen("none", "x").form == "none"
    assert chosen("auto", "", ask=False).form == "none"
    assert chosen("enroot", "x", {}).form == "pyxis"
    assert chosen("pyxis", "x", {}).form == "pyxis"
    assert chosen("auto", "x", {}, ask=False).form == "pyxis"
    with pytest.raises(LaunchError, match="does not start its image by 'docker'"):
        chosen("docker", "x")
    with pytest.raises(LaunchError, match=r"needs an image\. Name it with --image"):
        chosen("apptainer", "")


@pytest.mark.skipif(not SHELLCHECK, reason="no wheel of shellcheck for this machine, nor a command")
def test_the_script_is_clean_for_shellcheck(tmp_path: Path):
    for form in FORMS:
        path = tmp_path / f"{form}.sh"
        path.write_text(script(form=form))
        done = subprocess.run([SHELLCHECK, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_script_is_bash(tmp_path: Path):
    command = ["bash", "-n"]
    done = subprocess.run(command, input=script(), capture_output=True, text=True, check=True)
    assert done.stderr == ""
