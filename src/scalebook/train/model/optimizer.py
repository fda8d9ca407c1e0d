"""Adam with Megatron-Core's mixed precision, its schedule, and the hooks that overlap it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalebook.config import RunConfig
from scalebook.train import mcore
from scalebook.train.model import fsdp
from scalebook.train.model.chunks import Model
from scalebook.train.model.switches import DTYPES

WEIGHT_DECAY = 0.1
GRADIENT_CLIP = 1.0
FINAL_LEARNING_RATE = 0.1  # of the peak
WARMUP = 0.1  # least part of the steps over which the learning rate rises


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Megatron-Core's optimizer and the schedule of its learning rate."""

    inner: Any
    schedule: Any

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.inner.param_groups[0]["lr"])


def build_optimizer(config: RunConfig, model: Model) -> Optimizer:
    """Return the optimizer of this rank's parameters; set the hooks of the schedules."""
    options = mcore.OptimizerConfig(
        optimizer="adam",
        lr=config.learning_rate,
        min_lr=config.learning_rate * FINAL_LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_eps=1e-8,
        clip_grad=GRADIENT_CLIP,
        bf16=config.precision != "fp32",
        params_dtype=DTYPES[config.precision],
        use_distributed_optimizer=model.ddp_config.use_distributed_optimizer,
        overlap_param_gather=model.ddp_config.overlap_param_gather,
    )
    if model.switches.fused_optimizer:
        mcore.scale_in_place(_scale)
    if config.data_parallel_sharding == "full":
        inner: Any = fsdp.FullyShardedAdam(
            model.chunks, options, fused=model.switches.fused_optimizer
        )
    else:
        inner = mcore.get_megatron_optimizer(options, model.chunks, use_gloo_process_groups=False)
        _fuse(inner, fused=model.switches.fused_optimizer)
    _hook(inner, model)
    return Optimizer(inner, _schedule(config, inner))


def _scale(_: int, __: Tensor, tensors: list[list[Tensor]], factor: float) -> None:
    """Scale gradients in place, all in one pass: the clipping by norm."""
    sources, targets = tensors
    for source, target in zip(sources, targets, strict=True):
        if source is not target:
            target.copy_(source)
    operators: Any = torch
    operators._foreach_mul_(targets, factor)


def _fuse(inner: Any, *, fused: bool) -> None:
    """Let torch's Adam update all parameters in one kernel; those of other packages do always."""
    for optimizer in getattr(inner, "chained_optimizers", [inner]):
        for group in optimizer.param_groups:
            if "fused" in group:
                group.update(fused=fused, foreach=not fused)


def _hook(inner: Any, model: Model) -> None:
    """Tell the pipeline schedules how to scale the loss and when to reduce gradients."""
    config, chunks = model.config, model.chunks
    config.grad_scale_func = inner.scale_loss
    sharded = isinstance(chunks[0], fsdp.Sharded)
    config.finalize_model_grads_func = fsdp.finalize if sharded else mcore.finalize_model_grads
    if sharded and chunks[0].once:
        config.no_sync_func = chunks[0].gathered
    elif not sharded and model.ddp_config.overlap_grad_reduce:
        no_sync = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = no_sync if len(chunks) > 1 else no_sync[0]


def _schedule(config: RunConfig, inner: Any) -> Any:
    return mcore.OptimizerParamScheduler(
        inner,
        init_lr=config.learning_rate * FINAL_LEARNING_RATE,
        max_lr=config.learning_rate,
        min_lr=config.learning_rate * FINAL_LEARNING_RATE,
        # At least over the steps that no average counts: a large model diverges without.
        lr_warmup_steps=min(max(int(config.steps * WARMUP), config.warmup_steps), config.steps - 1),
        lr_decay_steps=config.steps,
        lr_decay_style="cosine",
        start_wd=WEIGHT_DECAY,
        end_wd=WEIGHT_DECAY,
        wd_incr_steps=config.steps,
        wd_incr_style="constant",
    )
