"""Train each layout twice, to the end and again from a checkpoint in the middle; print the losses.

Run as a script: ranks are forked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import train_forked

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
        "model": "tiny-llama", "world_size": 2, "pipeline_parallel_size": 2,
        "virtual_pipeline_parallel_size": 2, **OPTIMIZER,
    },
    "EP=2": {"world_size": 2, "expert_parallel_size": 2, "model": "tiny-moe@2", **OPTIMIZER},
    "grouped experts": {"model": "tiny-moe@2", "grouped_gemm": "on", **OPTIMIZER},
    "experts one by one": {"model": "tiny-moe@2", "grouped_gemm": "off", **OPTIMIZER},
    "grouped experts, EP=2": {
        "world_size": 2, "expert_parallel_size": 2, "model": "tiny-moe@2", "grouped_gemm": "on",
        **OPTIMIZER,
    },
    "grouped experts, whole optimizer": {
        "model": "tiny-moe@2", "grouped_gemm": "on", "data_parallel_sharding": "none",
    },
}  # fmt: skip
SMALL: dict[str, Any] = {
    "platform": "cpu",
    "model": "tiny-llama@2",
    "world_size": 1,
    "micro_batch_size": 1,
    "global_batch_size": 2,
    "sequence_length": 16,
    "precision": "fp32",
    "steps": 4,
    "warmup_steps": 1,
}


def losses(output: Path, changes: dict[str, Any], queues: list[Any]) -> list[float | None]:
    """Train with changes and return the loss of each step."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    from scalebook.config import RunConfig
    from scalebook.store import read_steps

    def answer(rank: int) -> None:
        filesystem_async._results_queue = queues[rank]  # one process answers in all tests

    code = train_forked.run(RunConfig(**{**SMALL, **changes}), output, answer)
    if code:
        log = (output / train_forked.LOG).read_text()
        raise RuntimeError(f"{changes} ended with {code}:\n{log}")
    return [step.loss for step in read_steps(output / "steps.jsonl")[0]]


def main() -> None:
    import torch

    train_forked.prepare()
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
        other = {"on": "off", "off": "on"}.get(layout.get("grouped_gemm", ""), "auto")
        again = {**layout, "grouped_gemm": other, "load_checkpoint": str(middle)}
        rest = losses(folder / "rest", again, queues)
        kept = sorted(path.name for path in middle.parent.iterdir())
        found[name] = {"whole": whole, "rest": rest, "kept": kept}
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
