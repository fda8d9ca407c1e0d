"""A trainer of two ranks over gloo in which one hangs or fails; needs torch."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

MODE = os.environ["GLOO_TRAINER"]


def main() -> int:
    """Meet, add up a number, and misbehave on rank 1."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=2 if MODE == "hang" else 60))
    one = torch.ones(1)
    dist.all_reduce(one)
    if dist.get_rank() == 1:
        if MODE == "hang":
            time.sleep(600)
        if MODE == "raise":
            raise LookupError("rank 1 lost its way")
    dist.all_reduce(one)
    return 0


if __name__ == "__main__":
    sys.exit(main())
