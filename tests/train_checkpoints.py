"""Train each layout twice, to the end and again from a checkpoint in the middle; print the losses.

Run as a script: ranks are forked, so that imports are paid once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

OPTIMIZER: dict[str, Any] = {"data_parallel_sharding": "optimizer"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one process, bf16": {"precision": "bf16", "data_parallel_sharding": "none"},
    "DP=2": {"world_size": 2, "data_parallel_sharding": "none"},
    "DP=2, bf16, sharded optimizer": {"world_size": 2, "precision": "bf16", **OPTIMIZER},
    # The parameters of a step are gathered while the next begins: a save comes in between.
    "DP=2, bf16, collectives beside computation": {
        "world_size": 2, "precision": "bf16", **OPTIMIZER,
        "overlap_grad_reduce": "on", "overlap_param_gather": "on",
    },
    "TP=2 with SP": {
        "world_size": 2, "tensor_parallel_size": 2, "sequence_parallel": True, **OPTIMIZER,
    },
    "PP=2 interleaved": {
        "world_size": 2, "pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 2,
        **OPTIMIZER,
    },
    "EP=2": {"world_size": 2, "expert_parallel_size": 2, "model": "tiny-moe", **OPTIMIZER},
}  # fmt: skip
SMALL: dict[str, Any] = {
    "platform": "cpu",
    "model": "tiny-llama",
    "world_size": 1,
    "micro_batch_size": 1,
    "global_batch_size": 4,
    "sequence_length": 16,
    "precision": "fp32",
    "steps": 4,
    "warmup_steps": 1,
}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def rank(number: int, config: Any, output: Path, port: str, queue: Any) -> int:
    """Fork one rank; return its process id."""
    child = os.fork()
    if child:
        return child
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number))
    os.environ.update(WORLD_SIZE=str(config.world_size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    code = 1
    try:
        from megatron.core.dist_checkpointing.strategies import filesystem_async

        from scalebook import catalog
        from scalebook.train import cpu
        from scalebook.train.loop import train

        filesystem_async._results_queue = queue  # one process answers in all tests
        cpu.install()
        code = train(config, catalog.model(config.model), output)
    finally:
        os._exit(code)


def losses(output: Path, changes: dict[str, Any], queues: list[Any]) -> list[float | None]:
    """Train with changes and return the loss of each step."""
    from scalebook.config import RunConfig
    from scalebook.store import read_steps

    output.mkdir(parents=True)
    config, port = RunConfig(**{**SMALL, **changes}), free_port()
    ranks = [rank(n, config, output, port, queues[n]) for n in range(config.world_size)]
    codes = [os.waitpid(process, 0)[1] for process in ranks]
    if any(codes):
        raise RuntimeError(f"{changes} ended with {codes}")
    return [step.loss for step in read_steps(output / "steps.jsonl")[0]]


def main() -> None:
    import torch

    torch.set_num_threads(1)
    from scalebook.train import cpu

    with cpu.lean_import():
        from scalebook.train import mcore  # noqa: F401
    from scalebook.train import loop  # noqa: F401

    manager = torch.multiprocessing.get_context("spawn").Manager()
    queues = [manager.Queue() for _ in range(2)]
    found: dict[str, Any] = {}
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        folder = Path(sys.argv[1]) / str(number)
        saving = {
            "checkpoint_interval": 2,
            "checkpoint_keep": 2,
            "checkpoint_async": number % 2 == 1,
        }
        whole = losses(folder / "whole", {**layout, **saving}, queues)
        middle = folder / "whole" / "checkpoints" / "step-00000002"
        rest = losses(folder / "rest", {**layout, "load_checkpoint": str(middle)}, queues)
        kept = sorted(path.name for path in middle.parent.iterdir())
        found[name] = {"whole": whole, "rest": rest, "kept": kept}
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
