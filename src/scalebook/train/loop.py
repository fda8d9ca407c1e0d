"""The training loop: the same on every platform.

After the steps that count, a few may run under torch's profiler. One more step runs before those
and is not kept: the profiler's own start falls into it. The trace stays in the run directory,
compressed, unless it is very large; ``breakdown.json`` is always written.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from scalebook.config import RunConfig
from scalebook.errors import TraceError
from scalebook.facts.catalog.types import ModelShape
from scalebook.measure import anatomy
from scalebook.measure.anatomy.breakdown import reduce_file
from scalebook.measure.anatomy.kinds import STEP
from scalebook.store import write_json
from scalebook.train import marks as step_marks
from scalebook.train import mcore, readback
from scalebook.train.checkpoint.keeper import Keeper
from scalebook.train.experts import routing
from scalebook.train.model.chunks import Model, build, refuse_unsupported
from scalebook.train.model.graph import GraphedSchedule
from scalebook.train.model.optimizer import build_optimizer
from scalebook.train.samples import Batch, Share, micro_batches, samples_of
from scalebook.train.step_record import gather, open_steps, progress
from scalebook.train.trainer import Trainer
from scalebook.train.world import join, leave


def _loss(losses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed loss, the number of tokens it is over, and the mean to report."""
    total = losses.float().sum()
    count = torch.full((), losses.numel(), dtype=torch.int, device=losses.device)
    return total, count, total.detach() / losses.numel()


def _forward(batches: Iterator[Batch], model: Any) -> tuple[Tensor, Any]:
    batch = next(batches)
    return model(batch.tokens, batch.position_ids, None, labels=batch.labels), _loss


def train_step(trainer: Trainer, step: int) -> tuple[float | None, float | None, bool]:
    """Run one optimizer step; return (this rank's loss or None, gradient norm, skipped)."""
    config, marks = trainer.config, trainer.marks
    with marks.part("optimizer"):
        for chunk in trainer.model.chunks:
            chunk.zero_grad_buffer()
        trainer.optimizer.inner.zero_grad()
    device = trainer.world.device
    iterators = [
        marks.over("data", micro_batches(trainer.samples, config, trainer.share, step, device))
        for _ in trainer.model.chunks
    ]
    with marks.part("schedule"):
        losses: list[Tensor] = trainer.forward_backward(
            forward_step_func=_forward,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=trainer.model.chunks,
            num_microbatches=config.num_microbatches,
            seq_length=config.sequence_length,
            micro_batch_size=config.micro_batch_size,
            decoder_seq_length=config.sequence_length,
            forward_only=False,
        )
    with marks.part("optimizer"):
        succeeded, grad_norm, _ = trainer.optimizer.inner.step()
    trainer.optimizer.schedule.step(increment=1)
    loss = torch.stack(losses).mean().item() if losses else None
    return loss, grad_norm, not succeeded


def _schedule(model: Model) -> Any:
    schedule = mcore.get_forward_backward_func()
    return GraphedSchedule(schedule) if model.switches.cuda_graph else schedule


def prepare(config: RunConfig, shape: ModelShape, output: Path) -> Trainer:
    """Return a trainer ready for its first step."""
    refuse_unsupported(config, shape)
    mcore.quiet()
    variables = dict(os.environ)
    world = join(config)
    model = build(config, shape, world)
    marks = step_marks.marks_for(config, world)
    step_marks.attach(marks, model.config, config)
    ranks = mcore.parallel_state
    share = Share(
        ranks.get_data_parallel_rank(),
        ranks.get_data_parallel_world_size(),
        ranks.get_context_parallel_rank(),
        ranks.get_context_parallel_world_size(),
    )
    return Trainer(
        config=config,
        world=world,
        model=model,
        optimizer=build_optimizer(config, model),
        samples=samples_of(config, shape, output),
        share=share,
        variables=variables,
        forward_backward=_schedule(model),
        marks=marks,
        routing=routing.watch(config, model.chunks, shape.num_layers),
    )


def _run_steps(trainer: Trainer, keeper: Keeper, stream: TextIO | None) -> int:
    config, world = trainer.config, trainer.world
    world.synchronize()
    begin = time.perf_counter()
    for step in range(keeper.done, config.steps):
        waited = keeper.after(step)
        learning_rate = trainer.optimizer.learning_rate
        loss, grad_norm, skipped = train_step(trainer, step)
        mcore.forget_auxiliary_losses()
        world.synchronize()
        # A step lasts from the end of the last one, so that steps add up to the wall time.
        end = time.perf_counter()
        own = trainer.step_report(end - begin, loss, grad_norm, learning_rate, skipped)
        begin = end
        record = keeper.mark(gather(step + 1, own, config, world), waited)
        if stream is not None:
            stream.write(record.model_dump_json() + "\n")
            print(progress(record, config), flush=True)
        if record.loss is None:
            if stream is not None:
                print(f"DIVERGED: the loss of step {step + 1} is not finite", file=sys.stderr)
            return DIVERGED_EXIT_CODE
    keeper.after(config.steps)
    return 0


def train(config: RunConfig, shape: ModelShape, output: Path) -> int:
    """Train for ``config.steps`` steps and return the exit code; rank 0 writes to ``output``.

    Packed documents are rows of the batch, so that attention and positions stay inside each.
    """
    trainer = prepare(config.unpacked(), shape, output)
    keeper = Keeper.open(trainer, output)
    observed = readback.observed(trainer, config)
    with ExitStack() as stack:
        stream = None
        if trainer.world.rank == 0:
            readback.write(output, observed, trainer)
            stream = stack.enter_context(open_steps(output))
        code = _run_steps(trainer, keeper, stream)
        if code == 0 and config.profile_steps:
            run_traced(trainer, train_step, output, stream)
    keeper.finish(completed=code == 0)
    if isinstance(trainer.forward_backward, GraphedSchedule):
        trainer.forward_backward.close()
    leave(code)
    if code == 0:
        finish_trace(trainer, output)  # the others need not wait for it
    return code


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


def run_traced(trainer: Trainer, step: Step, output: Path, stream: TextIO | None) -> None:
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


def finish_trace(trainer: Trainer, output: Path) -> None:
    """Reduce this rank's raw trace, if it has one, and compress it; needs no other rank."""
    if not wanted(trainer):
        return
    place = TraceFolder(output / FOLDER, trainer.world.rank)
    device = "gpu" if trainer.world.on_gpu else "cpu"
    try:
        found = reduce_file(place.raw, rank=place.rank, device=device)
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


DIVERGED_EXIT_CODE = 3
