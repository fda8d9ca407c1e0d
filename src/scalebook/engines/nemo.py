"""RunConfig -> what is set on a recipe of NeMo 2.7 or of Megatron-Bridge, as plain data.

A recipe is a tree of objects; each entry names an attribute by its path. Everything that is not
set stays as the recipe has it: that is what makes it the vendor's. Paths: NVIDIA-NeMo/NeMo
nemo/collections/llm/recipes, NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/recipes/common.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalebook.config import RunConfig
from scalebook.engines import names
from scalebook.facts import catalog

NemoSettings = dict[str, Any]

# Values that are made by a function of the engine: NeMo's precision plugin, Bridge's name of one.
NEMO_PRECISION = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": {
        "delayed": "bf16_with_fp8_mixed",
        "tensorwise": "bf16_with_fp8_current_scaling_mixed",
        "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
        "mxfp8": "bf16_with_mxfp8_mixed",
    },
}
BRIDGE_PRECISION = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": {
        "delayed": "bf16_with_fp8_delayed_scaling_mixed",
        "tensorwise": "bf16_with_fp8_current_scaling_mixed",
        "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
        "mxfp8": "bf16_with_mxfp8_mixed",
    },
}


def precision_name(table: dict[str, Any], config: RunConfig) -> str:
    """Return the engine's name of a run's precision."""
    found = table[config.precision]
    return found if isinstance(found, str) else found[config.fp8_recipe]


def _split(config: RunConfig) -> NemoSettings:
    """Return the sizes of the split under Megatron's names."""
    stages = config.virtual_pipeline_parallel_size
    return {
        "tensor_model_parallel_size": config.tensor_parallel_size,
        "pipeline_model_parallel_size": config.pipeline_parallel_size,
        "virtual_pipeline_model_parallel_size": stages if stages > 1 else None,
        "context_parallel_size": config.context_parallel_size,
        "expert_model_parallel_size": config.expert_parallel_size,
        "expert_tensor_parallel_size": config.expert_tensor_parallel_size,
        "sequence_parallel": config.sequence_parallel,
    }


def _recompute(config: RunConfig) -> NemoSettings:
    full = config.recompute == "full"
    return {
        "recompute_granularity": None if config.recompute == "none" else config.recompute,
        "recompute_method": "uniform" if full else None,
        "recompute_num_layers": 1 if full else None,
    }


def _ddp(config: RunConfig) -> NemoSettings:
    switches = {name: getattr(config, name) for name in names.OVERLAPS}
    return {
        "use_distributed_optimizer": config.data_parallel_sharding == "optimizer",
        **{name: value == "on" for name, value in switches.items() if value != "auto"},
    }


def _under(prefix: str, settings: NemoSettings) -> NemoSettings:
    return {f"{prefix}.{name}": value for name, value in settings.items()}


def recipe_settings(config: RunConfig) -> NemoSettings:
    """Return what is set on a pre-training recipe of NeMo 2.7."""
    layers = names.fewer_layers(config, catalog.model(config.model))
    distributed = config.data_parallel_sharding == "optimizer"
    return {
        "trainer.max_steps": config.steps,
        "trainer.num_nodes": config.nodes,
        "trainer.devices": config.world_size // config.nodes,
        "trainer.log_every_n_steps": 1,
        "trainer.val_check_interval": config.steps,
        "trainer.limit_val_batches": 0,
        "trainer.limit_test_batches": 0,
        "trainer.enable_checkpointing": False,
        **_under("trainer.strategy", _split(config)),
        **_under("trainer.strategy.ddp", _ddp(config)),
        **_under("model.config", {"seq_length": config.sequence_length, **_recompute(config)}),
        **({"model.config.num_layers": layers} if layers else {}),
        "data.seq_length": config.sequence_length,
        "data.micro_batch_size": config.micro_batch_size,
        "data.global_batch_size": config.global_batch_size,
        "optim.config.lr": config.learning_rate,
        "optim.config.use_distributed_optimizer": distributed,
        "optim.lr_scheduler.warmup_steps": min(config.warmup_steps, config.steps - 1),
        "optim.lr_scheduler.min_lr": 0.0,
        "resume.resume_if_exists": False,
        "log.ckpt": None,
        "log.tensorboard": None,
    }


def bridge_settings(config: RunConfig, output: Path) -> NemoSettings:
    """Return what is set on a pre-training recipe of Megatron-Bridge."""
    layers = names.fewer_layers(config, catalog.model(config.model))
    distributed = config.data_parallel_sharding == "optimizer"
    model = _split(config) | _recompute(config) | {"seq_length": config.sequence_length}
    data = [config.data] if config.data else None
    return {
        **_under("model", model | ({"num_layers": layers} if layers else {})),
        **_under("ddp", _ddp(config)),
        "train.train_iters": config.steps,
        "train.micro_batch_size": config.micro_batch_size,
        "train.global_batch_size": config.global_batch_size,
        "validation.eval_iters": 0,
        "optimizer.lr": config.learning_rate,
        "optimizer.min_lr": 0.0,
        "optimizer.use_distributed_optimizer": distributed,
        "scheduler.lr_warmup_iters": min(config.warmup_steps, config.steps - 1),
        "scheduler.lr_decay_iters": config.steps,
        "dataset.seq_length": config.sequence_length,
        "dataset.random_seed": config.seed,
        "dataset.blend": (data, None) if data else None,
        "rng.seed": config.seed,
        "logger.log_interval": 1,
        "logger.tensorboard_dir": str(output / "bridge"),
        "checkpoint.save": None,
        "checkpoint.load": None,
        "mixed_precision": precision_name(BRIDGE_PRECISION, config),
    }
