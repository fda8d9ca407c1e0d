"""Write many run directories that look like those of a cluster, marked as simulated.

Sizes are those of runs/examples: 30 to 100 steps with the times of every rank and part, about 130
samples of the devices, a record of 5 KB. There are four models on three platforms, several
layouts and batches, three repeats of each configuration, and a tenth of failed runs. Step times
have a warm-up and noise that resembles its neighbours; some runs have spikes, a drift or a shift.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from simulated import H100, VERSIONS, config

from scalebook.config import RunConfig
from scalebook.host import by_processes
from scalebook.record import RunRecord

# Platform, its device and the device's power limit (W); model, and seconds that a step takes there.
PLATFORMS = (
    ("h100", H100, 700), ("h200", "NVIDIA H200", 700), ("mi300x", "AMD Instinct MI300X OAM", 750),
)  # fmt: skip
MODELS = (("llama3.1-8b", 7.0), ("qwen2.5-7b", 6.5), ("llama3.1-8b@8", 2.5), ("mixtral-8x7b", 11.0))
LAYOUTS = ((1, 1, "none"), (2, 1, "none"), (4, 1, "selective"), (1, 2, "full"), (2, 2, "none"))
SIZES, BATCHES, REPEATS = (4, 8, 16), (1, 2), 3
SAMPLES = 128  # of all devices of a run
FAILURES = (
    ("out_of_memory", "gpu_memory", "Simulated: GPU 0 ran out of memory in step 1."),
    ("failed", "collective_timeout", "Simulated: a collective operation timed out."),
    ("failed", "unknown", "Simulated: rank 3 exited with 1."),
)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def write_many(folder: Path, count: int, steps: tuple[int, int] = (30, 100)) -> None:
    """Write ``count`` simulated runs of ``steps`` steps at least and at most."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = itertools.product(MODELS, PLATFORMS, SIZES, LAYOUTS, BATCHES, range(REPEATS))
    cases = zip(range(count), itertools.cycle(kinds), strict=False)
    for _ in by_processes(partial(_write, folder, steps), list(cases), 100):
        pass


def _write(folder: Path, bounds: tuple[int, int], case: tuple[int, tuple[Any, ...]]) -> None:
    index, ((model, base), (platform, device, cap), size, layout, micro, repeat) = case
    tensor, pipeline, recompute = layout
    generator = random.Random(index)
    settings = config(
        platform=platform, model=model, precision="bf16", sequence_length=4096, world_size=size,
        nodes=max(1, size // 8), tensor_parallel_size=tensor, pipeline_parallel_size=pipeline,
        micro_batch_size=micro, global_batch_size=16 * size, recompute=recompute, repeat=repeat,
    )  # fmt: skip
    began = BEGAN + timedelta(minutes=5 * index)
    name = f"{began:%Y%m%d-%H%M%S}-{model.replace('@', '-')}-w{size}-{settings.config_hash()}"
    directory = folder / name
    directory.mkdir()
    failure = generator.choice(FAILURES) if generator.random() < 0.1 else None
    count = 0 if failure else generator.randint(*bounds)
    rows = list(_steps(generator, settings, began, count, base))
    _lines(directory / "steps.jsonl", rows)
    seconds = sum(row["step_seconds"] for row in rows) or 20.0
    _lines(directory / "telemetry.jsonl", _telemetry(generator, device, cap, size, began, seconds))
    ended = began + timedelta(seconds=30 + seconds)
    status, cause, reason = failure or ("completed", None, None)
    record = RunRecord(
        run_id=name, config_hash=settings.config_hash(), source="simulated", status=status,
        reason=reason, cause=cause, exit_code=1 if failure else 0,
        log_tail=("Traceback (most recent call last):", str(reason)) if failure else (),
        requested=settings.model_dump(), observed=_observed(settings),
        environment=_environment(device, cap, size), started_at=began.isoformat(),
        finished_at=ended.isoformat(),
        command=("python", "-m", "torch.distributed.run", "-m", "scalebook.train", "--config"),
    )  # fmt: skip
    (directory / "record.json").write_text(json.dumps(record.model_dump(mode="json"), indent=1))
    (directory / "config.json").write_text(json.dumps(settings.model_dump(), indent=1))


def _lines(path: Path, rows: Any) -> None:
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


def _course(generator: random.Random, count: int) -> Iterator[float]:
    """Yield step times as multiples of the settled one."""
    rho, deviation = generator.uniform(0, 0.7), generator.uniform(0.001, 0.01)
    period = generator.choice((0, 0, 0, 0, 10))
    drift = generator.choice((0,) * 9 + (0.03,))
    shift = generator.choice((0,) * 19 + (0.1,))
    noise = 0.0
    for at in range(count):
        noise = rho * noise + generator.gauss(0, deviation)
        value = 1 + noise + drift * at / count + shift * (2 * at > count)
        value += 0.05 * math.exp(-at / 4) + 0.3 * (generator.random() < 0.005)
        yield value + 0.2 * bool(period and at % period == period - 1)


def _steps(
    generator: random.Random, settings: RunConfig, began: datetime, count: int, base: float
) -> Iterator[dict[str, Any]]:
    base *= generator.uniform(0.99, 1.01) * settings.micro_batch_size**-0.1
    base *= 1 + settings.tensor_parallel_size * 0.03 + settings.pipeline_parallel_size * 0.1
    end = began + timedelta(seconds=30)
    for step, value in enumerate(_course(generator, count), start=1):
        seconds = base * value * (4 if step == 1 else 1)
        end += timedelta(seconds=seconds)
        parts = {"data": 0.0003, "forward": 0.3 * seconds, "backward": 0.6 * seconds}
        parts |= {"pipeline": 0.0, "gradients": 0.05 * seconds, "optimizer": 0.03 * seconds}
        yield {
            "step": step,
            "phase": "startup" if step == 1 else "warmup" if step <= 5 else "measured",
            "step_seconds": seconds,
            "tokens": settings.tokens_per_step,
            "loss": 4 + 3 * math.exp(-step / 12) + generator.uniform(0, 0.05),
            "grad_norm": generator.uniform(1, 9),
            "learning_rate": 1e-4,
            "allocated_gib": 40 + settings.micro_batch_size + (step > 1) * 0.37,
            "reserved_gib": 52.5,
            "rank_step_seconds": [
                seconds * (1 - generator.uniform(0, 2e-4)) for _ in range(settings.world_size)
            ],
            "part_seconds": parts,
            "skipped": False,
            "finished_at": end.isoformat(timespec="milliseconds"),
            "checkpoint_seconds": None,
            "restart": 0,
        }


def _telemetry(
    generator: random.Random, device: str, cap: int, size: int, began: datetime, seconds: float
) -> Iterator[dict[str, Any]]:
    local, each = min(size, 8), SAMPLES // size
    period = round((30 + seconds) / each, 3)
    for node in range(max(1, size // 8)):
        about = {"name": device, "power_cap_watts": float(cap), "max_clock_mhz": 1980}
        yield {
            "kind": "sampler", "source": "nvml", "period_seconds": period, "node": node,
            "devices": [{"gpu": gpu} | about for gpu in range(local)], "reason": None,
        }  # fmt: skip
        for at in range(each):
            busy = at * period > 25
            for gpu in range(local):
                watts = generator.uniform(0.85, 0.95) * cap if busy else 77.0
                yield {
                    "time": round(began.timestamp() + at * period, 3), "node": node, "gpu": gpu,
                    "power_watts": round(watts, 3), "energy_joules": round(at * period * watts, 3),
                    "temperature_celsius": 37 + min(at, 20), "gpu_busy_fraction": float(busy),
                    "memory_busy_fraction": 0.4 * busy, "memory_used_gib": 53.1 if busy else 0.6,
                    "clock_mhz": generator.randint(1700, 1760) if busy else 345,
                    "memory_clock_mhz": 3201,
                    "throttle_reasons": ["power_cap"] if busy and watts > 0.94 * cap else [],
                }  # fmt: skip
        yield {"kind": "end", "node": node, "cpu_seconds": 0.4, "reason": None}


def _observed(settings: RunConfig) -> dict[str, Any]:
    """Return what a trainer reads back of its layout."""
    names = (
        "world_size", "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size",
        "expert_parallel_size", "data_parallel_size", "sequence_parallel", "precision",
        "data_parallel_sharding", "recompute", "micro_batch_size", "global_batch_size",
        "sequence_length", "learning_rate", "layer_spec",
    )  # fmt: skip
    fused = ("attention", "norm", "rope", "activation", "cross_entropy", "weight_gradient")
    return {name: getattr(settings, name) for name in names} | {
        "num_microbatches": settings.num_microbatches,
        "gradient_precision": "fp32",
        **{f"fused_{name}": "on" for name in fused},
        "overlap_grad_reduce": "on",
        "overlap_param_gather": "on",
        "cuda_graph": "off",
        "attention_kernel": "cudnn_attention",
        "context_parallel_communication": "all_gather",
        "float32_matmul": "highest",
    }


def _environment(device: str, cap: int, size: int) -> dict[str, Any]:
    """Return what a run records of its machine: about as much as a real one."""
    return VERSIONS | {
        "scalebook": "0.1.0", "git_commit": "0" * 40, "python": "3.12.3",
        "host": {"cpu_model": "Simulated", "cpu_cores": 64, "memory_gib": 503.8},
        "variables": {"CUDA_HOME": "/usr/local/cuda", "NCCL_NVLS_ENABLE": "0"},
        "accelerator": device, "accelerators_per_node": min(size, 8), "driver": "580.159.04",
        "accelerator_memory_gib": 139.8, "multiprocessors": 132, "power_cap_watts": float(cap),
        "cuda": "13.0", "nccl": "2.28.9", "backend": "nccl", "data": {"synthetic": True},
        "ceilings": {"probe": "simulated", "matmul_tflops": {"bf16": 764.6, "fp8": 1444.1}},
    }  # fmt: skip
