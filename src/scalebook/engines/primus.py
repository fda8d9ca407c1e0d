"""RunConfig -> the experiment file of AMD's Primus (Megatron backend), as plain data.

Names and meanings: AMD-AGI/Primus, docs/02-user-guide/configuration-system.md and
docs/03-configuration-reference/megatron-parameters.md at fd1eeab. JSON is valid YAML, so that the
file needs no library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scalebook.config import RunConfig
from scalebook.engines import names
from scalebook.facts import catalog

FILE = "primus.yaml"


def experiment(config: RunConfig, output: Path) -> dict[str, Any]:
    """Return the experiment of a run; ``output`` is where Primus may write what it writes.

    Raises:
        ConfigError: Primus has no configuration of the model.
    """
    return {
        "work_group": "scalebook",
        "user_name": "scalebook",
        "exp_name": f"scalebook-{config.config_hash()}",
        "workspace": str(output / "primus"),
        "modules": {
            "pre_trainer": {
                "framework": "megatron",
                "config": "pre_trainer.yaml",
                "model": f"{names.name_of('primus', config)}.yaml",
                "overrides": _overrides(config),
            }
        },
    }


def _overrides(config: RunConfig) -> dict[str, Any]:
    shape = catalog.model(config.model)
    layers = names.fewer_layers(config, shape)
    stages = config.virtual_pipeline_parallel_size
    return {
        **({"num_layers": layers} if layers else {}),
        **({"num_virtual_stages_per_pipeline_rank": stages} if stages > 1 else {}),
        "train_iters": config.steps,
        "micro_batch_size": config.micro_batch_size,
        "global_batch_size": config.global_batch_size,
        "seq_length": config.sequence_length,
        "max_position_embeddings": config.sequence_length,
        "seed": config.seed,
        "lr": config.learning_rate,
        "min_lr": 0.0,
        "lr_warmup_iters": min(config.warmup_steps, config.steps - 1),
        "lr_decay_iters": None,
        "tensor_model_parallel_size": config.tensor_parallel_size,
        "pipeline_model_parallel_size": config.pipeline_parallel_size,
        "context_parallel_size": config.context_parallel_size,
        "expert_model_parallel_size": config.expert_parallel_size,
        "expert_tensor_parallel_size": config.expert_tensor_parallel_size,
        "sequence_parallel": config.sequence_parallel,
        "use_distributed_optimizer": config.data_parallel_sharding == "optimizer",
        **_overlap(config),
        **_precision(config),
        **_recompute(config),
        # Random tokens, and a vocabulary of the model's size without a download.
        "mock_data": True,
        "train_data_path": None,
        "valid_data_path": None,
        "test_data_path": None,
        "tokenizer_type": "NullTokenizer",
        "vocab_size": shape.vocab_size,
        # Training alone is measured: no checkpoint, no evaluation, nothing sent anywhere.
        "finetune": False,
        "auto_continue_train": False,
        "load": None,
        "save": None,
        "disable_last_saving": True,
        "eval_iters": 0,
        "disable_wandb": True,
        "disable_tensorboard": True,
        "log_interval": 1,
    }


def _overlap(config: RunConfig) -> dict[str, bool]:
    """Return the switches that are not left to Primus."""
    names_ = ("overlap_grad_reduce", "overlap_param_gather")
    return {
        name: getattr(config, name) == "on" for name in names_ if getattr(config, name) != "auto"
    }


def _precision(config: RunConfig) -> dict[str, Any]:
    return {
        "bf16": config.precision != "fp16",
        "fp16": config.precision == "fp16",
        "fp8": "hybrid" if config.precision == "fp8" else None,
    }


def _recompute(config: RunConfig) -> dict[str, Any]:
    if config.recompute == "none":
        return {
            "recompute_granularity": None,
            "recompute_method": None,
            "recompute_num_layers": None,
        }
    if config.recompute == "selective":
        return {"recompute_granularity": "selective", "recompute_method": None}
    # Every layer of a stage: blocks of one layer, as Megatron's "uniform" counts them.
    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }


def text(config: RunConfig, output: Path) -> str:
    """Return the experiment as the text of its file."""
    return json.dumps(experiment(config, output), indent=1, allow_nan=False) + "\n"
