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
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
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
from scalebook.train.model.graph import GraphedSchedule, GraphedStage
from scalebook.train.model.optimizer import build_optimizer
from scalebook.train.samples import Batch, Share, micro_batches, samples_of
from scalebook.train.step_record import RankStep, gather, open_steps, progress
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


def train_step(trainer: Trainer, step: int) -> RankStep:
    """Run one optimizer step."""
    config, marks, learning_rate = trainer.config, trainer.marks, trainer.optimizer.learning_rate
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
    mcore.forget_auxiliary_losses()
    return RankStep(loss, grad_norm, learning_rate, not succeeded)


def _schedule(config: RunConfig, model: Model) -> Any:
    schedule = mcore.get_forward_backward_func()
    if not model.switches.cuda_graph:
        return schedule
    return (GraphedSchedule if config.pipeline_parallel_size == 1 else GraphedStage)(schedule)


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
        forward_backward=_schedule(config, model),
        marks=marks,
        routing=routing.watch(config, model.chunks, shape.num_layers),
    )


def _run_steps(trainer: Trainer, keeper: Keeper, stream: TextIO | None) -> int:
    config, world = trainer.config, trainer.world
    world.synchronize()
    begin = time.perf_counter()
    for step in range(keeper.done, config.steps):
        waited = keeper.after(step)
        ended = train_step(trainer, step)
        world.synchronize()
        # A step lasts from the end of the last one, so that steps add up to the wall time.
        end = time.perf_counter()
        record = keeper.mark(gather(trainer, step + 1, end - begin, ended), waited)
        begin = end
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
            run_traced(trainer, output, stream)
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


def _trace_files(output: Path, rank: int) -> tuple[Path, Path, Path]:
    """Return a rank's trace as the profiler writes it, gone at the end; compressed; reduced."""
    folder, name = output / FOLDER, anatomy.BREAKDOWN_FILE
    raw, packed = folder / f".trace-rank{rank}.json", folder / f"trace-rank{rank}.json.gz"
    return raw, packed, folder / (name if rank == 0 else f"breakdown-rank{rank}.json")


def wanted(trainer: Trainer) -> bool:
    """Return whether this rank is to be profiled."""
    config = trainer.config
    return config.profile_steps > 0 and (trainer.world.rank == 0 or config.profile_all_ranks)


def run_traced(trainer: Trainer, output: Path, stream: TextIO | None) -> None:
    """Run the profiled steps on every rank; those that are to be profiled leave a raw trace."""
    config, world = trainer.config, trainer.world
    with _profile(trainer, output) if wanted(trainer) else nullcontext() as profile:
        for number in range(config.steps, config.steps + WARM_UP + config.profile_steps):
            trainer.marks.annotate = profile is not None
            world.synchronize()
            begin = time.perf_counter()
            with torch.autograd.profiler.record_function(STEP):
                ended = train_step(trainer, number)
                world.synchronize()
            seconds = time.perf_counter() - begin
            trainer.marks.annotate = False
            record = gather(trainer, number + 1, seconds, ended)
            if stream is not None:
                stream.write(record.model_dump_json() + "\n")
                print(f"profiled step {number + 1}: {seconds * 1e3:.1f} ms", flush=True)
            if profile is not None:
                profile.step()


def _profile(trainer: Trainer, output: Path) -> Any:
    """Return the profiler, which writes the raw trace after its last step."""
    raw, _, _ = _trace_files(output, trainer.world.rank)
    raw.parent.mkdir(exist_ok=True)
    activities = [_profiler.ProfilerActivity.CPU]
    if trainer.world.on_gpu:  # on AMD the same name stands for roctracer
        activities.append(_profiler.ProfilerActivity.CUDA)

    def export(profile: Any) -> None:
        try:
            profile.export_chrome_trace(str(raw))
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
    rank, device = trainer.world.rank, "gpu" if trainer.world.on_gpu else "cpu"
    raw, packed, breakdown = _trace_files(output, rank)
    try:
        found = reduce_file(raw, rank=rank, device=device)
        found = found.model_copy(update={"trace": _compress(raw, packed)})
    except (TraceError, OSError) as error:
        found = anatomy.Breakdown(rank=rank, device=device, reason=str(error))
    finally:
        raw.unlink(missing_ok=True)
    write_json(breakdown, found.model_dump(mode="json"))


def _compress(raw: Path, packed: Path) -> str | None:
    """Compress the raw trace and return its new name, None where it is too large to keep."""
    with raw.open("rb") as source, gzip.open(packed, "wb", compresslevel=LEVEL) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    if packed.stat().st_size <= LARGEST_TRACE:
        return packed.name
    packed.unlink()
    return None


DIVERGED_EXIT_CODE = 3
