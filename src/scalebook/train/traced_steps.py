"""A few steps under torch's profiler, after those that count, and their trace reduced.

One more step runs first and is not kept: the profiler's own start falls into it. The trace stays in
the run directory, compressed, unless it is very large; ``breakdown.json`` is always written.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from scalebook.errors import TraceError
from scalebook.measure import anatomy
from scalebook.measure.anatomy.kinds import STEP
from scalebook.store import write_json
from scalebook.train import mcore
from scalebook.train.step_record import gather
from scalebook.train.trainer import Trainer

WARM_UP = 1
FOLDER = "profile"
LARGEST_TRACE = 64 << 20  # bytes, compressed: about 100 times what a step of a small model takes
LEVEL = 5  # of gzip: 6 % larger than the strongest and four times as fast

_profiler: Any = torch.profiler
Step = Callable[[Any, int], tuple[float | None, float | None, bool]]


@dataclass(frozen=True, slots=True)
class TraceFolder:
    """Where a rank keeps its trace and its breakdown."""

    folder: Path
    rank: int

    @property
    def raw(self) -> Path:
        """The trace as the profiler writes it; gone when all is done."""
        return self.folder / f".trace-rank{self.rank}.json"

    @property
    def trace(self) -> Path:
        """The compressed trace."""
        return self.folder / f"trace-rank{self.rank}.json.gz"

    @property
    def breakdown(self) -> Path:
        """The reduced trace; that of rank 0 has the plain name."""
        name = anatomy.BREAKDOWN_FILE
        return self.folder / (name if self.rank == 0 else f"breakdown-rank{self.rank}.json")


def wanted(trainer: Trainer) -> bool:
    """Return whether this rank is to be profiled."""
    config = trainer.config
    return config.profile_steps > 0 and (trainer.world.rank == 0 or config.profile_all_ranks)


def run(trainer: Trainer, step: Step, output: Path, stream: TextIO | None) -> None:
    """Run the profiled steps on every rank; those that are to be profiled leave a raw trace."""
    config, world = trainer.config, trainer.world
    place = TraceFolder(output / FOLDER, world.rank)
    with _profile(trainer, place) if wanted(trainer) else nullcontext() as profile:
        for number in range(config.steps, config.steps + WARM_UP + config.profile_steps):
            trainer.marks.annotate = profile is not None
            world.synchronize()
            begin = time.perf_counter()
            rate = trainer.optimizer.learning_rate
            with torch.autograd.profiler.record_function(STEP):
                loss, norm, skipped = step(trainer, number)
                world.synchronize()
            mcore.forget_auxiliary_losses()
            seconds = time.perf_counter() - begin
            trainer.marks.annotate = False
            own = trainer.step_report(seconds, loss, norm, rate, skipped)
            record = gather(number + 1, own, config, world)
            if stream is not None:
                stream.write(record.model_dump_json() + "\n")
                print(f"profiled step {number + 1}: {seconds * 1e3:.1f} ms", flush=True)
            if profile is not None:
                profile.step()


def _profile(trainer: Trainer, place: TraceFolder) -> Any:
    """Return the profiler, which writes the raw trace after its last step."""
    place.folder.mkdir(exist_ok=True)
    activities = [_profiler.ProfilerActivity.CPU]
    if trainer.world.on_gpu:  # on AMD the same name stands for roctracer
        activities.append(_profiler.ProfilerActivity.CUDA)

    def export(profile: Any) -> None:
        try:
            profile.export_chrome_trace(str(place.raw))
        except (RuntimeError, OSError) as error:
            print(f"The trace could not be written: {error}", file=sys.stderr)

    return _profiler.profile(
        activities=activities,
        schedule=_profiler.schedule(
            wait=0, warmup=WARM_UP, active=trainer.config.profile_steps, repeat=1
        ),
        on_trace_ready=export,
    )


def finish(trainer: Trainer, output: Path) -> None:
    """Reduce this rank's raw trace, if it has one, and compress it; needs no other rank."""
    if not wanted(trainer):
        return
    place = TraceFolder(output / FOLDER, trainer.world.rank)
    device = "gpu" if trainer.world.on_gpu else "cpu"
    try:
        found = anatomy.reduce_file(place.raw, rank=place.rank, device=device)
        found = found.model_copy(update={"trace": _compress(place)})
    except (TraceError, OSError) as error:
        found = anatomy.Breakdown(rank=place.rank, device=device, reason=str(error))
    finally:
        place.raw.unlink(missing_ok=True)
    write_json(place.breakdown, found.model_dump(mode="json"))


def _compress(place: TraceFolder) -> str | None:
    """Compress the raw trace and return its new name, None where it is too large to keep."""
    with place.raw.open("rb") as raw, gzip.open(place.trace, "wb", compresslevel=LEVEL) as packed:
        shutil.copyfileobj(raw, packed, 1 << 20)
    if place.trace.stat().st_size <= LARGEST_TRACE:
        return place.trace.name
    place.trace.unlink()
    return None
