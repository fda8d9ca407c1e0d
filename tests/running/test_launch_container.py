"""Commands of docker, podman, apptainer and enroot: lists of arguments, whatever names they carry.

The lines under golden/launch were read by hand, argument by argument, against each engine's
documentation; a change of one is a change of how every run starts.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import wait_for

from scalebook.cli import interchange, main, run_options
from scalebook.cli.terminal import without
from scalebook.errors import LaunchError
from scalebook.running.container import commands, nested
from scalebook.running.container.commands import Contained, EngineCommand, Mount
from scalebook.running.container.images import ENGINES, image

GOLDEN = Path(__file__).parents[1] / "golden" / "launch"
PLATFORMS = {
    **dict.fromkeys(("a100", "h100", "h200", "b200"), "nvidia"),
    **dict.fromkeys(("mi300x", "mi325x", "mi355x"), "amd"),
    "cpu": "cpu",
}

HOST = nested.Host(
    project=Path("/home/ada/scalebook"),
    user=(1000, 1000),
    rootless=False,
    groups=(105,),
    scratch=Path("/tmp/scalebook-0"),
    name="scalebook-0",
    commit="0123abc",
    environment={"CUDA_VISIBLE_DEVICES": "0,1", "HF_TOKEN": "secret", "NCCL_DEBUG": "INFO"},
)


def command(engine: str, vendor: str, **changes: Any) -> EngineCommand:
    """Return how a plan is started in a container of a vendor's image."""
    reference = image(vendor).reference(engine, Path("/home/ada/scalebook/containers/images"))
    request = nested.ContainerRequest(engine, vendor, reference, **changes)
    runs = Path("/data/runs")
    return nested.command(request, HOST, ["run", "--steps", "9"], writes=[runs])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_platform_and_engine_starts_by_the_recorded_line(platform: str, engine: str):
    found = command(engine, PLATFORMS[platform], variables=("HF_TOKEN", "NCCL_ALGO=Ring"))
    lines = shlex.split(found.shown())
    path = GOLDEN / f"{platform}-{engine}.txt"
    if os.environ.get("SCALEBOOK_WRITE_GOLDEN"):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("vendor", ["nvidia", "amd", "cpu"])
def test_the_runs_are_the_only_place_that_can_be_written(engine: str, vendor: str):
    mounts = [a for a in command(engine, vendor).argv if a.startswith("--mount=")]
    readonly = {"docker": "readonly", "podman": "readonly", "apptainer": "ro", "enroot": "ro"}
    writable = [m for m in mounts if readonly[engine] not in m.replace(":", ",").split(",")]
    assert len(mounts) == 2
    assert ["/data/runs" in mount for mount in writable] == [True]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_passed_secret_is_in_no_argument_and_reaches_the_engine(engine: str):
    found = command(engine, "nvidia", variables=("HF_TOKEN",))
    assert "secret" not in found.shown()
    environment = found.full_environment(HOST.environment)
    name = "APPTAINERENV_HF_TOKEN" if engine == "apptainer" else "HF_TOKEN"
    assert environment[name] == "secret"


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_host_exports_stays_outside_but_for_the_choice_of_devices(engine: str):
    shown = command(engine, "nvidia").shown()
    assert "NCCL_DEBUG" not in shown
    assert "CUDA_VISIBLE_DEVICES=0,1" in shown


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "cpu"])
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_no_container_is_privileged_or_outlives_its_command(engine: str, vendor: str):
    argv = command(engine, vendor).argv
    assert "--privileged" not in argv
    assert {"--rm", "--init", "--cap-drop=ALL", "--user=1000:1000"} <= set(argv)
    assert "--security-opt=no-new-privileges" in argv
    assert "--pids-limit=65536" in argv
    assert not [a for a in argv if a.startswith(("--ipc", "--pid=", "--userns=host"))]
    assert [a for a in argv if a.startswith("--network")] == ["--network=none"]
    assert [a for a in argv if a.startswith("--shm-size=")]


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "cpu"])
def test_every_flag_of_an_image_says_why_it_is_needed(vendor: str):
    for flags in image(vendor).flags.values():
        assert all(len(flag.reason) > 20 for flag in flags)
        assert len({flag.argument for flag in flags}) == len(flags)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_image_is_started_by_its_id_as_its_tag_could_have_moved(engine: str):
    argv = command(engine, "cpu", image_id="sha256:feed").argv
    assert argv[argv.index("python3") - 1] == "sha256:feed"
    assert "--env=SCALEBOOK_IMAGE=localhost/scalebook-cpu:0.1.0" in argv


def test_a_file_is_started_by_its_name():
    argv = command("apptainer", "cpu", image_id="sha256:feed").argv
    assert argv[argv.index("python3") - 1].endswith("scalebook-cpu-0.1.0.sif")


@pytest.mark.parametrize(("engine", "network"), [("megatron", ["--network=none"]), ("nemo", [])])
def test_a_plan_that_reads_from_the_network_gets_the_engines_own(
    engine: str, network: list[str], stubs: Path, tmp_path: Path, capsys: Any
):
    start("podman", tmp_path, "--platform", "h100", "--dry-run", "--engine", engine)
    line = next(line for line in capsys.readouterr().out.splitlines() if line[:10] == "podman run")
    assert [word for word in shlex.split(line) if word.startswith("--network")] == network


def test_podman_without_root_keeps_the_callers_id_and_groups():
    host = nested.Host(**{**_fields(HOST), "rootless": True})
    request = nested.ContainerRequest("podman", "amd", "x")
    argv = nested.command(request, host, ["run"]).argv
    assert "--userns=keep-id" in argv
    assert [a for a in argv if a.startswith("--group-add")] == ["--group-add=keep-groups"]


def test_amd_devices_come_with_the_group_of_the_hosts_files():
    assert "--group-add=105" in command("docker", "amd").argv
    assert "--group-add=105" not in command("docker", "nvidia").argv


def test_an_argument_of_the_users_replaces_ours_of_the_same_name_alone():
    given = ("--ulimit=memlock=1048576", "--network=none", "--device=/dev/infiniband")
    argv = command("docker", "amd", arguments=given).argv
    assert [a for a in argv if a.startswith("--ulimit")] == ["--ulimit=memlock=1048576"]
    assert [a for a in argv if a.startswith("--network")] == ["--network=none"]
    devices = ["--device=/dev/kfd", "--device=/dev/dri", "--device=/dev/infiniband"]
    assert [a for a in argv if a.startswith("--device")] == devices


@pytest.mark.parametrize("argument", ["privileged", "-v", "--", "image", "--Rm"])
def test_an_argument_that_is_no_option_is_refused(argument: str):
    with pytest.raises(LaunchError, match="must begin with '--'"):
        command("docker", "cpu", arguments=(argument,))


@pytest.mark.parametrize("path", ["/", "/etc", "/usr/share/runs", "/proc/1", "relative"])
def test_a_mount_that_would_hide_the_image_is_refused(path: str):
    request = nested.ContainerRequest("docker", "cpu", "x")
    with pytest.raises(LaunchError, match="cannot be mounted"):
        nested.command(request, HOST, ["run"], writes=[Path(path)])


@pytest.mark.parametrize("name", ["9A", "A-B", "A B", "", "=x", "A\n", "$(id)", "É"])
def test_a_variable_that_no_shell_would_take_is_refused(name: str):
    with pytest.raises(LaunchError, match="--env"):
        nested.asked_variables([f"{name}=1"], {})


def test_a_variable_to_pass_on_that_is_not_set_is_refused():
    with pytest.raises(LaunchError, match="NOT_HERE: it is not set here"):
        nested.asked_variables(["NOT_HERE"], {"OTHER": "1"})


# Names that a person, or an attacker, may give to a folder: every character that a shell, CSV,
# fstab or an engine's own syntax reads, and any other that a path may hold.
HOSTILE = st.text(
    st.one_of(
        st.sampled_from(" \"'`$&|;<>(){}[]*?!#~:,=\\@%^+-é日"),
        st.characters(blacklist_characters="/\0", blacklist_categories=("Cs", "Cc")),
    ),
    min_size=1,
    max_size=20,
).filter(lambda text: text not in (".", ".."))


def _contained(engine: str, name: str) -> Contained:
    folder = Path("/data") / name
    return Contained(
        nested.ContainerRequest(engine, "cpu", "img"),
        HOST,
        command=("python3", "-m", "scalebook", "run", "--plan", str(folder / "plan.toml")),
        image="img",
        workdir=folder,
        environment={"A": name},
        mounts=(Mount(folder), Mount(folder / "runs", writable=True)),
    )


@given(HOSTILE)
def test_no_name_leaves_its_own_argument_for_docker_and_podman(name: str):
    for engine in ("docker", "podman"):
        item = _contained(engine, name)
        argv = commands.command(item).argv
        assert argv[-len(item.command) :] == item.command
        assert argv[-len(item.command) - 1] == "img"
        mounts = [a.removeprefix("--mount=") for a in argv if a.startswith("--mount=")]
        fields = [next(csv.reader([line])) for line in mounts]
        assert fields[0] == [
            "type=bind",
            f"source=/data/{name}",
            f"target=/data/{name}",
            "readonly",
        ]
        assert fields[1] == ["type=bind", f"source=/data/{name}/runs", f"target=/data/{name}/runs"]
        assert f"--env=A={name}" in argv


@given(HOSTILE)
def test_no_name_leaves_its_own_argument_for_apptainer(name: str):
    found = commands.command(_contained("apptainer", name))
    mounts = [a.removeprefix("--mount=") for a in found.argv if a.startswith("--mount=")]
    assert next(csv.reader([mounts[0]])) == [
        "type=bind",
        f"source=/data/{name}",
        f"destination=/data/{name}",
        "ro",
    ]
    assert found.environment["APPTAINERENV_A"] == name


@given(HOSTILE)
def test_enroot_gets_a_name_whole_or_not_at_all(name: str):
    try:
        argv = commands.command(_contained("enroot", name)).argv
    except LaunchError as error:
        assert "enroot cannot mount" in str(error)
        return
    mounts = [a.removeprefix("--mount=") for a in argv if a.startswith("--mount=")]
    assert mounts[0].split(":")[:2] == [f"/data/{name}"] * 2
    assert not any(character.isspace() for character in mounts[0])


@given(HOSTILE)
def test_the_line_to_paste_is_read_back_by_a_shell_as_the_same_arguments(name: str):
    for found in (
        commands.command(_contained("docker", name)),
        commands.command(_contained("apptainer", name)),
    ):
        words = shlex.split(found.shown())
        assert tuple(words[-len(found.argv) :]) == found.argv


@given(st.sampled_from("\n\r\t\x00\x1b\x7f"), HOSTILE)
def test_control_characters_reach_no_engine(character: str, name: str):
    for engine in ("docker", "podman"):
        with pytest.raises(LaunchError, match="control characters"):
            commands.command(_contained(engine, name + character + "x"))


def test_settle_keeps_the_order_and_the_users_last():
    assert commands.settle(["--a", "--b=1"], ["--b=2", "--c"]) == ("--a", "--b=2", "--c")


def test_what_lies_in_a_mounted_folder_is_not_mounted_again():
    request = nested.ContainerRequest("docker", "cpu", "x")
    inner = [HOST.project / "runs"]
    reads = [HOST.project / "runs" / "plans" / "p.toml", Path("/data/set"), Path("/data/set/a")]
    argv = nested.command(request, HOST, ["run"], writes=inner, reads=reads).argv
    sources = [a.split("source=")[1].split(",")[0] for a in argv if a.startswith("--mount=")]
    assert sources == ["/data/set", "/home/ada/scalebook", "/home/ada/scalebook/runs"]


def test_the_options_about_containers_do_not_go_inside():
    given = ["run", "--container", "docker", "--steps", "3", "--image=x", "--env", "A=1"]
    given += ["--container-arg=--network=none"]
    assert without(given, run_options.add_container) == ["run", "--steps", "3"]


def test_trackers_are_written_from_outside_of_the_container():
    given = ["run", "--log-to", "mlflow:x", "--steps", "3", "--log-to=wandb:y"]
    assert without(given, interchange.add_log_to) == ["run", "--steps", "3"]


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__dataclass_fields__}


# Stubs on PATH: what the whole command really starts.

STUB = """#!{python}
import json, os, sys
with open(os.environ["STUB_LOG"], "a") as log:
    ours = {{name: value for name, value in os.environ.items() if "SCALEBOOK_IMAGE" in name}}
    log.write(json.dumps({{"argv": sys.argv, "variables": ours}}) + "\\n")
if sys.argv[1:3] == ["image", "inspect"]:
    print("sha256:feed base:1")
    sys.exit(0)
sys.exit(int(os.environ.get("STUB_EXIT", "0")))
"""


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """A folder that a container may be given."""
    return disk_path


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs named as the engines first on PATH; return the file they write calls to."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for engine in ENGINES:
        path = folder / engine
        path.write_text(STUB.format(python=sys.executable))
        path.chmod(0o755)
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STUB_LOG", str(log))
    return log


def calls(log: Path) -> list[list[str]]:
    """Return the argument lists of every call of a stub, the program's name first."""
    lines = log.read_text().splitlines() if log.exists() else []
    argvs = [json.loads(line)["argv"] for line in lines]
    return [[Path(argv[0]).name, *argv[1:]] for argv in argvs]


def runs_of(engine: str, tmp_path: Path) -> Path:
    """Return a folder with a name that all but enroot can mount."""
    return tmp_path / ("runs" if engine == "enroot" else "my runs, $HOME")


def start(engine: str, tmp_path: Path, *arguments: str) -> int:
    """Run the quick plan of the CPU platform in a container."""
    file = tmp_path / "image.file"
    file.touch()
    named = ["--image", str(file)] if engine in ("apptainer", "enroot") else []
    place = ["--runs", str(runs_of(engine, tmp_path))]
    options = ["run", "--platform", "cpu", "--container", engine, *named, *place, *arguments]
    return main(options)


@pytest.mark.parametrize("engine", ["apptainer", "enroot"])
def test_the_bytes_of_an_image_file_go_into_the_record(engine: str, stubs: Path, tmp_path: Path):
    start(engine, tmp_path)
    call = json.loads(stubs.read_text().splitlines()[-1])
    empty = f"sha256:{hashlib.sha256(b'').hexdigest()}"
    shown = [*call["argv"], *(f"{name}={value}" for name, value in call["variables"].items())]
    assert [word for word in shown if word.endswith(f"SCALEBOOK_IMAGE_ID={empty}")]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_on_path_is_started_once_with_the_plan(engine: str, stubs: Path, tmp_path: Path):
    assert start(engine, tmp_path, "--steps", "20") == 0
    argv = calls(stubs)[-1]
    assert argv[0] == engine
    inner = argv[argv.index("scalebook") + 1 :]
    runs = str(runs_of(engine, tmp_path))
    assert inner == [
        *("run", "--platform", "cpu", "--runs", runs, "--steps", "20"),
        *("--platform", "cpu", "--runs", runs, "--container", "none"),
    ]
    assert Path(runs).is_dir()


@pytest.mark.parametrize("code", [0, 1, 7, 137])
def test_the_exit_code_of_the_command_inside_is_ours(
    code: int, stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STUB_EXIT", str(code))
    assert start("docker", tmp_path) == code


def test_an_engine_that_cannot_start_is_one_line_and_exit_code_2(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.setenv("STUB_EXIT", "125")
    assert start("podman", tmp_path) == 2
    assert "podman could not start the container" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_images_id_and_base_go_into_the_record(engine: str, stubs: Path, tmp_path: Path):
    start(engine, tmp_path)
    argv = calls(stubs)[-1]
    assert "--env=SCALEBOOK_IMAGE_ID=sha256:feed" in argv
    assert "--env=SCALEBOOK_BASE_IMAGE=base:1" in argv


def test_a_dry_run_prints_the_line_and_starts_nothing(stubs: Path, tmp_path: Path, capsys: Any):
    assert start("podman", tmp_path, "--dry-run") == 0
    text = capsys.readouterr().out
    line = next(line for line in text.splitlines() if line.startswith("podman run"))
    assert "--dry-run" not in shlex.split(line)
    assert text.count("torch.distributed.run") == 5
    assert all(call[1] == "image" for call in calls(stubs))
    assert not runs_of("podman", tmp_path).exists()


def test_variables_of_the_user_are_set_also_without_a_container(tmp_path: Path):
    code = (
        "import os, sys; from scalebook.cli import main; "
        "main(['run', '--platform', 'cpu', '--container', 'none', '--dry-run', "
        "'--env', 'NCCL_ALGO=Ring', '--runs', sys.argv[1]]); "
        "print(os.environ['NCCL_ALGO'], os.environ['SCALEBOOK_VARIABLES'])"
    )
    done = subprocess.run(
        (sys.executable, "-c", code, str(tmp_path / "runs")),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "Ring NCCL_ALGO"


# A launcher that is told to stop

SLEEPER = """#!{python}
import os, signal, sys, time
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(sys.argv[1] + "\\n")
if sys.argv[1] != "run":
    sys.exit(0)
deaf = os.environ["STUB_DEAF"] == "1"
signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda *_: sys.exit(42))
open(os.environ["STUB_LOG"] + ".ready", "w").close()
time.sleep(60)
"""
START = (
    "import sys; from scalebook.running.container import follow; follow.PATIENCE_SECONDS = 0.5; "
    "from scalebook.running.container.commands import EngineCommand; "
    "command = EngineCommand((sys.argv[1], 'run'), {}, {}); "
    "sys.exit(follow.run(command, (sys.argv[1], 'rm')))"
)


@pytest.mark.parametrize(("deaf", "code"), [("0", 42), ("1", 137)])
def test_sigterm_goes_to_the_engine_and_its_container_is_removed_whatever_it_does(
    deaf: str, code: int, tmp_path: Path
):
    program, log = tmp_path / "engine", tmp_path / "log"
    program.write_text(SLEEPER.format(python=sys.executable))
    program.chmod(0o755)
    environment = {**os.environ, "STUB_LOG": str(log), "STUB_DEAF": deaf}
    launcher = subprocess.Popen((sys.executable, "-c", START, str(program)), env=environment)
    wait_for((tmp_path / "log.ready").exists)
    launcher.terminate()
    assert launcher.wait(timeout=30) == code
    assert log.read_text().split() == ["run", "rm"]


def test_the_command_inside_gets_sigterm_when_its_standard_input_closes(tmp_path: Path):
    code = (
        "import signal, sys, time; from scalebook.running.container import follow; "
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); follow.follow(); "
        "print('ready', flush=True); time.sleep(60)"
    )
    home = tmp_path / "home"
    environment = {**os.environ, "SCALEBOOK_OWNER": "stdin", "HOME": str(home)}
    process = subprocess.Popen(
        (sys.executable, "-c", code),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert home.is_dir()
    process.stdin.close()
    assert process.wait(timeout=30) == 9
    process.stdout.close()
