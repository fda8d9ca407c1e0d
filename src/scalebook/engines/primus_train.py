"""What torchrun starts for engine ``primus``: the command line of AMD's Primus, in this process.

A RunConfig becomes an experiment file of its Megatron backend. Names and meanings: AMD-AGI/Primus,
docs/02-user-guide/configuration-system.md and docs/03-configuration-reference/
megatron-parameters.md at fd1eeab. JSON is valid YAML, so that the file needs no library.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from scalebook.config import RunConfig, recompute_options, split_sizes
from scalebook.engines import mapping
from scalebook.engines.mapping import main_of, write_once
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
                "model": f"{mapping.name_of('primus', config)}.yaml",
                "overrides": _overrides(config),
            }
        },
    }


def _overrides(config: RunConfig) -> dict[str, Any]:
    layers = mapping.fewer_layers(config)
    split = split_sizes(config)
    stages = split.pop("virtual_pipeline_model_parallel_size")
    recompute = recompute_options(config)
    if config.recompute == "selective":
        del recompute["recompute_num_layers"]
    return {
        **({"num_layers": layers} if layers else {}),
        **({"num_virtual_stages_per_pipeline_rank": stages} if stages else {}),
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
        **split,
        **mapping.data_parallel(config),
        "bf16": config.precision != "fp16",
        "fp16": config.precision == "fp16",
        "fp8": "hybrid" if config.precision == "fp8" else None,
        **recompute,
        # Random tokens, and a vocabulary of the model's size without a download.
        "mock_data": True,
        "train_data_path": None,
        "valid_data_path": None,
        "test_data_path": None,
        "tokenizer_type": "NullTokenizer",
        "vocab_size": catalog.model(config.model).vocab_size,
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


def text(config: RunConfig, output: Path) -> str:
    return json.dumps(experiment(config, output), indent=1, allow_nan=False) + "\n"


def _train(config: RunConfig, output: Path) -> int:
    folder = mapping.primus_folder()
    if folder is not None:
        sys.path.insert(0, str(folder))
        os.chdir(folder)  # its files name one another relative to it
    path = write_once(output / FILE, text(config, output))
    sys.argv = ["primus", "train", "pretrain", "--config", str(path)]
    runpy.run_module("primus.cli.main", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main_of(_train))
