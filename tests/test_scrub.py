"""Nothing personal or secret in a record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scalebook import store
from scalebook.cli import main
from scalebook.scrub import (
    in_folder,
    is_secret,
    kinds,
    scrub,
    scrub_all,
    scrub_file,
    without_secrets,
)


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
LONG = "aB3" * 20
FORMS = [  # what a kind of key begins with, and what may follow
    *(("api_org_", LONG), ("gho_", LONG), ("ghs_", LONG), ("github_pat_", LONG), ("glpat-", LONG)),
    *(("gldt-", LONG), ("glrt-", LONG), ("glcbt-", f"64_{LONG}"), ("npm_", LONG), ("nvapi-", LONG)),
    *(("pypi-AgE", LONG), ("xoxb-", "1-2-aB3"), ("xapp-", f"1-A0-{LONG}"), ("dckr_pat_", LONG)),
    *(("sk-", LONG), ("sk-", f"proj-{LONG}"), ("sk-", f"ant-api03-aB3-x_Y-{LONG}")),
    *(("sk-", f"svcacct-{LONG}"), ("sk-", f"or-v1-{'0a1b' * 16}"), ("sk_live_", LONG)),
    *(("gsk_", LONG), ("AIza", LONG), ("ya29.", LONG), ("GOCSPX-", LONG), ("wandb_v1_", LONG)),
    *(("dop_v1_", LONG), ("hvs.", LONG), ("SG.", f"{LONG}.{LONG}"), ("dapi", "0a1b" * 8)),
    *(
        ("key-", "0a1b" * 8),
        ("r8_", LONG),
        ("ASIA", "ABCDEFGHIJKLMNOP"),
        ("eyJ", f"{LONG}.eyJ{LONG}"),
    ),
]


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
        *((f"use {sign}{rest} now", f"use {sign}*** now") for sign, rest in FORMS),
        (f"see {'aB3' * 4}Xy.atlasv1.{'aB3' * 20}", f"see {'aB3' * 4}Xy.atlasv1.***"),
        ("AccountName=a;AccountKey=aB3/xY+z==;x", "AccountName=a;AccountKey=***"),
        ("MYSQL_PWD=SECRET mysql", "MYSQL_PWD=*** mysql"),
        ("Cookie: session=SECRET; a=b", "Cookie: ***"),
        ('{"Set-Cookie": "auth=SECRET; Path=/"}', '{"Set-Cookie": "***"}'),
        (
            "post https://hooks.slack.com/services/T0/B0/SECRET",
            "post https://hooks.slack.com/services/***",
        ),
        ("https://discord.com/api/webhooks/123/SECRET", "https://discord.com/api/webhooks/***"),
        ("https://api.telegram.org/bot123:SECRET", "https://api.telegram.org/bot***"),
        ("curl -s -u me:SECRET https://h", "curl -s -u me:*** https://h"),
        ("sshpass -p SECRET ssh h", "sshpass -p *** ssh h"),
        (f"wandb login {'0a1b2c3d' * 5}", "wandb login ***"),
        ("machine h login me password SECRET", "machine h login me password ***"),
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
        "scikit-learn sk-learn task-based sk-learn-compatible-interface-2",
        "docker run -u 1000:1000 --user nobody:nogroup",
        "PWD=/data/run OLDPWD=/data; cookie policy: none; login as user",
        f"sha256:{'0a1b' * 16} commit {'0a1b' * 10} GPU-5d3bdf4e-38f6-4b8c-9c11-0a3ad5a8aa1f",
        "NCCL INFO comm 0x55d5c8 rank 0 commId 0x8f3a9cd1b2e4f7a6 - Init COMPLETE",
        "20261128-022021-llama3.1-8b-2-w1-7edfdce034a2 config_hash=5f2a6a8d791d",
        "query_key_value: [12288, 4096] --key-value-heads 8 --token-dispatcher-type alltoall",
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


def test_every_line_of_a_private_key_is_masked_and_no_line_after_it(tmp_path: Path):
    body = [f"[rank0]: {'MIIEowIBAAKCAQEA' * 3}", "[rank0]: AbC/+w=="]
    lines = [
        "step 1",
        "[rank0]: -----BEGIN RSA PRIVATE KEY-----",
        "DEK-Info: AES-128-CBC",
        "",
        *body,
    ]
    lines += ["[rank0]: -----END RSA PRIVATE KEY-----", f"commit {'0a1b' * 10}"]
    masked = [*lines[:4], *["[rank0]: ***"] * 2, *lines[6:]]
    masked[1] += "***"
    assert scrub_all(lines, {}) == tuple(masked)
    log = tmp_path / "train.log"
    log.write_bytes("\r\n".join(lines).encode())
    assert [number for _, number, _ in in_folder(tmp_path)] == [2]
    scrub_file(log, {})
    assert log.read_bytes() == "\r\n".join(masked).encode()
    assert not list(in_folder(tmp_path))


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
