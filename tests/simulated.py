"""Run directories for tests of the report, made up and marked as such (source: simulated)."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from scalebook.config import RunConfig
from scalebook.record import RunRecord, StepRecord
from scalebook.store import write_record

H100 = "NVIDIA H100 80GB HBM3"
VERSIONS = {"torch": "2.11.0", "megatron_core": "0.16.1"}


def config(**changes: Any) -> RunConfig:
    """Return a small legal configuration."""
    fields: dict[str, Any] = {
        "platform": "cpu",
        "model": "tiny-llama",
        "world_size": 1,
        "global_batch_size": 8,
        "sequence_length": 128,
        "precision": "fp32",
    }
    return RunConfig(**(fields | changes))


def write_run(
    runs: Path,
    name: str,
    settings: RunConfig,
    *,
    seconds: float = 0.1,
    steps: int = 30,
    status: str = "completed",
    source: str = "simulated",
    device: str | None = None,
    **record: Any,
) -> Path:
    """Write a run whose measured steps take about ``seconds`` each; return its directory."""
    directory = runs / name
    directory.mkdir(parents=True)
    generator = random.Random(name)
    lines = (
        StepRecord(
            step=step,
            phase="warmup" if step <= 5 else "measured",
            step_seconds=seconds * generator.uniform(0.97, 1.05) * (3 if step == 1 else 1),
            tokens=settings.tokens_per_step,
            loss=4 + 3 * math.exp(-step / 12) + generator.uniform(0, 0.05),
            learning_rate=1e-3,
            allocated_gib=0.5,
        )
        for step in range(1, steps + 1)
    )
    text = "".join(json.dumps(line.model_dump(mode="json")) + "\n" for line in lines)
    (directory / "steps.jsonl").write_text(text)
    values: dict[str, Any] = {
        "run_id": name,
        "config_hash": settings.config_hash(),
        "status": status,
        "source": source,
        "requested": settings.model_dump(),
        "environment": VERSIONS | ({"accelerator": device} if device else {}),
        "started_at": "2026-01-01T00:00:00Z",
    }
    write_record(directory, RunRecord(**(values | record)))
    return directory


def write_sample(runs: Path, source: str = "simulated") -> Path:
    """Write a folder with what a report must cope with: sizes, splits, failures, two platforms."""
    tp2, pp2 = {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}
    write_run(runs, "cpu-one", config(), seconds=0.20, source=source)
    write_run(runs, "cpu-tp2", config(world_size=2, **tp2), seconds=0.16, source=source)
    write_run(runs, "cpu-pp2", config(world_size=2, **pp2), seconds=0.15, source=source)
    write_run(runs, "cpu-dp2", config(world_size=2), seconds=0.11, source=source)
    moe = config(model="tiny-moe", world_size=2, expert_parallel_size=2)
    write_run(runs, "cpu-moe-ep2", moe, seconds=0.3, source=source)
    big: dict[str, Any] = {
        "platform": "h100",
        "model": "llama3.1-8b",
        "precision": "bf16",
        "sequence_length": 8192,
    }
    for gpus, seconds in ((8, 16.2), (16, 16.9), (32, 18.5)):
        name, size = f"h100-tp2-{gpus}", {"world_size": gpus, "nodes": gpus // 8}
        made = config(**big, **tp2, **size, global_batch_size=16 * gpus)
        write_run(runs, name, made, seconds=seconds, device=H100, source=source)
    full = config(**big, world_size=8, global_batch_size=128, micro_batch_size=4)
    write_run(
        runs, "h100-oom", full, steps=0, status="out_of_memory", device=H100, source=source,
        reason="GPU 3 ran out of memory in step 1: 2.0 GiB more were needed, 1.1 GiB were free.",
        log_tail=("torch.OutOfMemoryError: CUDA out of memory.", "rank 3 exited with 1"),
    )  # fmt: skip
    return runs
