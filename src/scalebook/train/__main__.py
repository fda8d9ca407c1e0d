"""Entry point of a training process: ``torchrun ... -m scalebook.train``."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any, cast

from scalebook.config import RunConfig
from scalebook.errors import ScalebookError
from scalebook.facts import catalog

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _note(number: int, frame: object) -> None:
    """Do nothing: Python must have a handler for the C handler to write to the pipe."""


def _end_as_usual() -> None:
    """Let a process forked from this one (it writes a checkpoint) be ended by these signals."""
    signal.set_wakeup_fd(-1)
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def exit_on_signals() -> None:
    """Leave at once with 128 + n on SIGTERM and SIGINT, even while waiting for other ranks.

    A Python signal handler runs only when the main thread is back in Python, which a collective
    whose peer is gone may never let happen. The wake-up pipe is written by the C handler, and a
    thread of its own waits for it. Nothing is lost: each finished step is on disk already.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def leave() -> None:
        while (number := os.read(reader, 1)[0]) not in ENDING_SIGNALS:
            pass  # another handler's signal
        sys.stdout.flush()
        os._exit(128 + number)

    for number in ENDING_SIGNALS:
        signal.signal(number, _note)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_end_as_usual)
    threading.Thread(target=leave, daemon=True).start()


def exit_now(code: int) -> None:
    """Exit with a code, all being written; torch would wait seconds for processes that compile.

    Those end when this one has; the servers of multiprocessing (a checkpoint starts one) do not.
    """
    cast("Any", util)._exit_function()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.train")
    parser.add_argument("--config", type=Path, required=True, help="RunConfig as JSON")
    parser.add_argument("--output", type=Path, required=True, help="run directory to write into")
    options = parser.parse_args(arguments)
    exit_on_signals()
    # What is imported stays: looking for garbage among it takes a third of the imports' time, and
    # after them, of every step that traces and compiles.
    gc.disable()
    # A launcher that sees no progress asks each rank where it is: the answer goes to the log.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    try:
        config = RunConfig.read(options.config)
        shape = catalog.model(config.model)
        options.output.mkdir(parents=True, exist_ok=True)
        if config.platform == "cpu":
            from scalebook.train import cpu

            cpu.install()
        from scalebook.train.layers import fused

        fused.install_weight_gradient()
        from scalebook.train.loop import train

        gc.freeze()
        gc.enable()
        return train(config, shape, options.output)
    except ScalebookError as error:
        print(f"scalebook.train: {error}", file=sys.stderr)
        return 2
    finally:
        gc.enable()


if __name__ == "__main__":
    exit_now(main())
