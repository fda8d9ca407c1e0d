"""Everything that training continues from, as Megatron-Core's sharded state, and back."""

from __future__ import annotations

from typing import Any

import torch

from scalebook.train import mcore
from scalebook.train.checkpoint import mcore_checkpoint
from scalebook.train.trainer import Trainer


def sharded(trainer: Trainer, step: int, *, loading: bool = False) -> dict[str, Any]:
    """Return this rank's part of the state after ``step`` steps.

    The place in the data is the step itself: sample numbers follow from it alone.
    """
    chunks = trainer.model.chunks
    if not loading:
        _gather(trainer)
    names = ["model"] if len(chunks) == 1 else [f"model{i}" for i in range(len(chunks))]
    models = {
        name: chunk.module.sharded_state_dict(metadata=dict(mcore_checkpoint.CONTENT))
        for name, chunk in zip(names, chunks, strict=True)
    }
    if loading:
        mcore_checkpoint.fill(trainer.optimizer.inner)
    optimizer = trainer.optimizer.inner.sharded_state_dict(
        models, is_loading=loading, metadata=dict(mcore_checkpoint.CONTENT)
    )
    world = trainer.world
    random = mcore_checkpoint.ShardedObject("random", _random(), (world.size,), (world.rank,))
    return {
        **models,
        "optimizer": optimizer,
        "schedule": trainer.optimizer.schedule.state_dict(),
        "step": step,
        "samples": step * trainer.config.global_batch_size,
        "random": random,
    }


def sizes(trainer: Trainer) -> list[int]:
    """Return the bytes of each large tensor that this rank saves, as far as known before a step.

    Adam keeps two moments for each parameter that it updates; what data-parallel ranks hold alike
    is shared out among them when it is saved.
    """
    adams = mcore_checkpoint.adams(trainer.optimizer.inner)
    groups = [group for adam in adams for group in adam.param_groups]
    updated = [p.nbytes for group in groups for p in group["params"]]
    alone = trainer.share.data_size == 1
    whole = [p.nbytes for chunk in trainer.model.chunks for p in chunk.parameters()]
    return [*updated, *updated, *updated, *(whole if alone else ())]


def _gather(trainer: Trainer) -> None:
    """Let every rank hold the parameters of the last step; every rank must call this.

    With ``overlap_param_gather`` a rank has updated its own shard alone when a step ends, and gets
    the others' while the next step computes: until then it would save old ones.
    """
    if trainer.model.ddp_config.overlap_param_gather:
        for chunk in trainer.model.chunks:
            chunk.start_param_sync(force_sync=True)


@torch.no_grad()
def restore(trainer: Trainer, loaded: dict[str, Any]) -> int:
    """Put a loaded state in place and return how many steps had been done."""
    chunks = trainer.model.chunks
    for index, chunk in enumerate(chunks):
        name = "model" if len(chunks) == 1 else f"model{index}"
        chunk.module.load_state_dict(loaded[name], strict=True)
    trainer.optimizer.inner.load_state_dict(loaded["optimizer"])
    mcore_checkpoint.set_steps(trainer.optimizer.inner)
    trainer.optimizer.schedule.load_state_dict(loaded["schedule"])
    _set_random(loaded["random"])
    return int(loaded["step"])


def _random() -> dict[str, Any]:
    """Return the states of every generator that a layer may draw from."""
    tracker = mcore.tensor_parallel.get_cuda_rng_tracker()
    return {
        "cpu": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(),
        "tracker": tracker.get_states(),
    }


def _set_random(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(states["device"])
    mcore.tensor_parallel.get_cuda_rng_tracker().set_states(states["tracker"])
