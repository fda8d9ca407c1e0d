"""Train once per stand-in of ``scalebook.train.cpu`` without that one; print which were missed.

Run as a script: a child process is forked for each rank, so that imports are paid once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.train import cpu

LIMIT_SECONDS = 60
# One small run that walks through everything: experts, context parallelism, recomputation,
# a checkpoint.
CONFIG = RunConfig(
    platform="cpu",
    model="tiny-moe",
    world_size=2,
    context_parallel_size=2,
    expert_parallel_size=2,
    recompute="full",
    global_batch_size=1,
    sequence_length=32,
    precision="fp32",
    steps=2,
    warmup_steps=0,
    checkpoint_interval=2,
)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def rank(number: int, port: str, output: Path, without: str | None, answers: Any) -> int:
    """Fork one rank; return its process id. A checkpoint's writers answer through ``answers``."""
    child = os.fork()
    if child:
        return child
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    code = 1
    try:
        cpu.install(without)
        from megatron.core.dist_checkpointing.strategies import filesystem_async

        filesystem_async._results_queue = answers  # else every rank starts a process for it
        from scalebook.train.loop import train

        code = train(CONFIG, catalog.model(CONFIG.model), output)
    finally:
        os._exit(code)


def trains(without: str | None, answers: list[Any]) -> bool:
    """Whether two ranks train to the end without one of the stand-ins."""
    port = free_port()
    with tempfile.TemporaryDirectory() as output:
        left = {rank(n, port, Path(output), without, answers[n]) for n in range(2)}
        good, deadline = True, time.monotonic() + LIMIT_SECONDS
        while left:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child:
                left.discard(child)
                good = good and status == 0
            elif not good or time.monotonic() > deadline:
                good = False
                for other in left:
                    os.kill(other, 9)
            time.sleep(0.05)
    return good


def main() -> None:
    torch.set_num_threads(1)
    with cpu.lean_import():
        from scalebook.train import mcore  # noqa: F401
    from scalebook.train import loop  # noqa: F401

    names = [piece.name for piece in (*cpu.PATCHES, *cpu.RULES)]
    manager = torch.multiprocessing.get_context("spawn").Manager()
    verdicts = {name: trains(name, [manager.Queue(), manager.Queue()]) for name in (None, *names)}
    Path(sys.argv[1]).write_text(json.dumps({str(k): v for k, v in verdicts.items()}))


if __name__ == "__main__":
    main()
