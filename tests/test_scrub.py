"""Nothing personal or secret in a record."""

from __future__ import annotations

import pytest

from scalebook.scrub import is_secret, scrub, without_secrets


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
