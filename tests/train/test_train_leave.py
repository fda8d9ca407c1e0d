"""A process whose communicators never end leaves all the same, with its exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import time
from scalebook.train import cpu
cpu.install()
from scalebook.train import world

class Stuck:
    def destroy_process_group(self):
        time.sleep(100)

world.distributed = Stuck()
world.leave(3, patience=0.2)
"""


def test_a_process_whose_communicators_never_end_leaves_with_its_code():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "left communicators that did not end in 0.2 s" in done.stdout


SERVED = """
import multiprocessing
from scalebook.train import __main__

if __name__ == "__main__":
    server = multiprocessing.get_context("fork").Manager()
    __main__.exit_now(5)
"""


def test_a_server_of_multiprocessing_does_not_outlive_the_process_that_started_it():
    # It would keep the pipe open, and the read of what is printed would not end.
    done = subprocess.run(
        [sys.executable, "-c", SERVED], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 5, done.stderr
