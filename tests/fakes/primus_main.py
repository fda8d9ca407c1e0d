"""Stands for Primus: reads the experiment file and prints what Primus prints, without training."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Print one line a step, in the form of Primus on Megatron."""
    assert sys.argv[1:4] == ["train", "pretrain", "--config"], sys.argv
    experiment = json.loads(Path(sys.argv[4]).read_text())
    told = experiment["modules"]["pre_trainer"]["overrides"]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if os.environ.get("FAKE_PRIMUS") == "oom":
        raise RuntimeError("HIP out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total")
    if rank != world - 1:
        return
    for step in range(1, told["train_iters"] + 1):
        milliseconds = 900.0 if step == 1 else 250.0 + step
        rate = told["global_batch_size"] * told["seq_length"] / world / (milliseconds / 1000)
        print(
            f"[20330102 03:04:{step:02d}][rank-{rank}/{world}][INFO ] [-----trainer.py:2382] : "
            f" iteration {step:8d}/{told['train_iters']:8d} | consumed samples: "
            f"{step * told['global_batch_size']:12d} | elapsed time per iteration (ms): "
            f"{milliseconds:.1f}/{milliseconds + 1:.1f} | throughput per GPU (TFLOP/s/GPU): "
            f"401.5/400.0 | tokens per GPU (tokens/s/GPU): {rate:.1f}/{rate:.1f} | "
            f"learning rate: 1.000000E-05 | global batch size: {told['global_batch_size']:5d} | "
            f"lm loss: {9.0 - step / 10:.6E} | loss scale: 1.0 | grad norm: 1.250 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |",
            flush=True,
        )


if __name__ == "__main__":
    main()
