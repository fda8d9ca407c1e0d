"""Nothing personal or secret in a record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scalebook import store
from scalebook.cli import main
from scalebook.scrub import in_folder, is_secret, kinds, scrub, scrub_all, without_secrets


def test_the_value_of_a_secret_variable_is_masked_wherever_it_stands():
    environment = {"HF_TOKEN": "hf_abcdefgh", "WANDB_API_KEY": "0123456789"}
    text = scrub("login hf_abcdefgh failed, key 0123456789", environment)
    assert text == "login *** failed, key ***"


def test_an_assignment_of_a_secret_is_masked_without_knowing_the_value():
    assert scrub("AWS_SECRET_ACCESS_KEY=abc/def GPU=1", {}) == "AWS_SECRET_ACCESS_KEY=*** GPU=1"
    assert scrub('"password": "hunter2"', {}) == '"password": "***"'


def test_a_password_in_an_address_is_masked():
    assert scrub("https://me:pw123@host/x", {}) == "https://me:***@host/x"


def test_the_home_directory_becomes_a_tilde():
    text = scrub("/home/ada/run/x.py and /home/adalbert", {"HOME": "/home/ada"})
    assert text == "~/run/x.py and /home/adalbert"


def test_a_short_value_of_a_secret_variable_masks_no_ordinary_text():
    assert scrub("step 1 of 20", {"KEY": "1"}) == "step 1 of 20"


@pytest.mark.parametrize("name", ["HF_TOKEN", "db_password", "API_KEY", "MY_SECRET", "KEY"])
def test_secret_names_are_recognised(name: str):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "tokens_per_second", "MONKEY", "KEYBOARD"])
def test_ordinary_names_are_not_secret(name: str):
    assert not is_secret(name)


def test_tokens_per_second_in_a_log_stays():
    line = "step 3 tokens: 4096 tokens/s: 1200 tokens_per_second=12"
    assert scrub(line, {}) == line


def test_secret_variables_keep_their_name():
    assert without_secrets({"NCCL_TOKEN": "x", "NCCL_DEBUG": "y"}) == {
        "NCCL_TOKEN": "***",
        "NCCL_DEBUG": "y",
    }


HUGGING_FACE = "hf_" + "aB3" * 8
GITHUB = "ghp_" + "x1Y" * 8


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"login with {HUGGING_FACE} failed", "login with hf_*** failed"),
        (f"Authorization: Bearer {HUGGING_FACE}", "Authorization: Bearer ***"),
        ("curl -H 'Bearer abcdef123'", "curl -H 'Bearer ***'"),
        (f"git clone https://{GITHUB}@github.com/x", "git clone https://ghp_***@github.com/x"),
        ("init_method=tcp://u:SECRET@h:29500", "init_method=tcp://u:***@h:29500"),
        ("redis://:SECRET@h", "redis://:***@h"),
        ("https://h/x?sig=SECRET&n=1", "https://h/x?sig=***&n=1"),
        ("train.py --token SECRET --steps 5", "train.py --token *** --steps 5"),
        ("train.py --hf-token=SECRET", "train.py --hf-token=***"),
        ("api_key: SECRET", "api_key: ***"),
        ("DB_PASSWORD=SECRET", "DB_PASSWORD=***"),
        ("key AKIAABCDEFGHIJKLMNOP used", "key AKIA*** used"),
    ],
)
def test_a_secret_is_known_by_its_form(text: str, masked: str):
    assert scrub(text, {}) == masked
    assert kinds(text)
    assert not kinds(masked)


@pytest.mark.parametrize(
    "text",
    [
        "hf_checkpoint hf_model_config",
        "--eos-token 2 --tokenizer llama --pad-token 0",
        "token: 4096 eos_token='<s>' bos_token_id=1",
        "key = value, MONKEY=7, keys: 12",
        "https://host:8080/a/@scope/b",
        "step 3/20 loss 2.1 tokens/s 1200",
        "scikit-learn sk-learn task-based",
    ],
)
def test_what_only_sounds_like_a_secret_stays(text: str):
    assert scrub(text, {}) == text
    assert not kinds(text)


def test_the_part_of_a_command_after_a_secret_option_is_masked():
    command = ("train.py", "--token", "SECRET", "--steps", "5")
    assert scrub_all(command, {}) == ("train.py", "--token", "***", "--steps", "5")


def test_a_secret_in_the_value_of_an_ordinary_variable_is_masked():
    assert without_secrets({"NCCL_X": "tcp://u:SECRET@h"}) == {"NCCL_X": "tcp://u:***@h"}


def example(runs: Path, name: str) -> Path:
    """A run of the trainer with secrets where one may get: its log, and its record."""
    source = sorted((Path(__file__).parents[1] / "runs" / "examples").glob("*/train.log"))[0].parent
    shutil.copytree(source, runs / name)
    with (runs / name / "train.log").open("ab") as log:
        log.write(f"\xff pulling with {HUGGING_FACE} and s3cretvalue\n".encode("latin-1"))
    return runs / name


def test_a_log_is_published_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", "s3cretvalue")
    before = example(tmp_path, ".partial-x")
    whole = (before / "train.log").read_bytes()
    log = (store.publish(before) / "train.log").read_bytes()
    assert log.endswith(b"\xff pulling with hf_*** and ***\n")
    assert log.splitlines()[:-1] == whole.splitlines()[:-1]


def test_a_log_without_secrets_is_published_as_it_is(tmp_path: Path):
    before = example(tmp_path, ".partial-x")
    (before / "train.log").write_bytes(b"step 1\r\nstep 2")
    inode = (before / "train.log").stat().st_ino
    assert (store.publish(before) / "train.log").stat().st_ino == inode


def test_the_secrets_of_a_record_from_elsewhere_go_no_further_than_its_file(tmp_path: Path):
    run = example(tmp_path, "x")
    value = json.loads((run / "record.json").read_text())
    value["reason"] = f"could not log in with {HUGGING_FACE}"
    value["environment"]["extra"] = {"db_password": "hunter2", "deep": [f"Bearer {GITHUB}"]}
    value["command"] = ["train.py", "--token", "SECRET"]
    (run / "record.json").write_text(json.dumps(value))
    text = store.read_record(run).model_dump_json()
    for secret in (HUGGING_FACE, GITHUB, "hunter2", "SECRET"):
        assert secret not in text
    assert store.read_record(run).requested == value["requested"]


def test_doctor_says_where_secrets_are_and_not_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = example(tmp_path, "x")
    (run / "pipe").symlink_to("/dev/zero")
    lines = len((run / "train.log").read_bytes().splitlines())
    assert main(["doctor", "--secrets", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert shown == f"{run / 'train.log'}:{lines}: token\nLines that look like secrets: 1.\n"
    (run / "train.log").unlink()
    assert main(["doctor", "--secrets", str(tmp_path)]) == 0
    assert "Nothing looks like a secret." in capsys.readouterr().out


def test_the_examples_hold_nothing_that_looks_like_a_secret(root: Path):
    assert list(in_folder(root / "runs")) == []
