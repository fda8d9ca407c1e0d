"""What torchrun starts for engine ``nemo``: a recipe of NeMo 2.7, or of Megatron-Bridge.

The recipe is built in every rank from the run's configuration and trained in this process, so that
the launcher, the container and the log are those of every other run. A recipe is a tree of objects;
each setting names an attribute by its path. Everything that is not set stays as the recipe has it:
that is what makes it the vendor's. Paths: NVIDIA-NeMo/NeMo nemo/collections/llm/recipes,
NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/recipes/common.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from scalebook.config import RunConfig, recompute_options, split_sizes
from scalebook.engines import mapping
from scalebook.engines.mapping import main_of, write_once
from scalebook.errors import ConfigError, LaunchError
from scalebook.facts import catalog

FILE = "nemo.json"
RECIPES = "nemo.collections.llm.recipes"

NemoSettings = dict[str, Any]

# Names of what makes a precision: functions of NeMo's plugins, keys of Bridge's table.
NEMO_PRECISION = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "delayed": "bf16_with_fp8_mixed",
    "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
}
BRIDGE_PRECISION = NEMO_PRECISION | {"delayed": "bf16_with_fp8_delayed_scaling_mixed"}


def precision_name(table: Mapping[str, str], config: RunConfig) -> str:
    """Return the engine's name of a run's precision, in FP8 of its recipe."""
    return table[config.fp8_recipe if config.precision == "fp8" else config.precision]


def _under(prefix: str, settings: NemoSettings) -> NemoSettings:
    return {f"{prefix}.{name}": value for name, value in settings.items()}


def recipe_settings(config: RunConfig) -> NemoSettings:
    """Return what is set on a pre-training recipe of NeMo 2.7."""
    layers = mapping.fewer_layers(config)
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
        **_under("trainer.strategy", split_sizes(config)),
        **_under("trainer.strategy.ddp", mapping.data_parallel(config)),
        **_under(
            "model.config", {"seq_length": config.sequence_length, **recompute_options(config)}
        ),
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
    layers = mapping.fewer_layers(config)
    distributed = config.data_parallel_sharding == "optimizer"
    model = split_sizes(config) | recompute_options(config) | {"seq_length": config.sequence_length}
    data = [config.data] if config.data else None
    return {
        **_under("model", model | ({"num_layers": layers} if layers else {})),
        **_under("ddp", mapping.data_parallel(config)),
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


def _train(config: RunConfig, output: Path) -> int:
    if mapping.nemo_kind() == "nemo":
        settings = recipe_settings(config)
        recipe = build_recipe(config, output, settings)
        _keep(output, "nemo", settings)
        import_module("nemo_run").run(recipe, direct=True)
    else:
        settings = bridge_settings(config, output)
        container = build_bridge(config, settings)
        _keep(output, "bridge", settings)
        step: Any = import_module("megatron.bridge.training.gpt_step").forward_step
        import_module("megatron.bridge.training.pretrain").pretrain(container, step)
    return 0


def _keep(output: Path, kind: str, settings: Mapping[str, Any]) -> None:
    """Leave in the run directory what was set on the recipe."""
    text = json.dumps({"trainer": kind, "settings": dict(settings)}, indent=1)
    write_once(output / FILE, text + "\n")


def build_recipe(config: RunConfig, output: Path, settings: Mapping[str, Any]) -> Any:
    """Return the recipe of a run, ready to be trained (NeMo 2.7)."""
    module = import_module(f"{RECIPES}.{mapping.name_of('nemo', config)}")
    recipe: Any = module.pretrain_recipe(
        dir=str(output / "nemo"),
        name="scalebook",
        num_nodes=config.nodes,
        num_gpus_per_node=config.world_size // config.nodes,
    )
    if config.data:
        recipe.data = _dataset(config)
    put(recipe, "data.tokenizer", _null_tokenizer(config))
    _open_ddp(recipe)
    for path, value in settings.items():
        put(recipe, path, value)
    plugins = import_module(f"{RECIPES}.precision.mixed_precision")
    name = precision_name(NEMO_PRECISION, config)
    recipe.trainer.plugins = getattr(plugins, name)()
    return recipe


def _null_tokenizer(config: RunConfig) -> Any:
    """Return a tokenizer of the model's vocabulary: data are tokens already, and none is fetched.

    NeMo sizes the model's vocabulary by it, and counts one token more than it is told: the end.
    """
    run: Any = import_module("nemo_run")
    module: Any = import_module("nemo.collections.common.tokenizers.null_tokenizer")
    size = catalog.model(config.model).vocab_size - 1
    return run.Config(module.NullTokenizer, vocab_size=size)


def _open_ddp(recipe: Any) -> None:
    """Give a recipe that leaves data parallelism to its strategy's name for it a configuration."""
    strategy = recipe.trainer.strategy
    if isinstance(getattr(strategy, "ddp", None), str):
        ddp: Any = import_module("megatron.core.distributed").DistributedDataParallelConfig
        # What NeMo's strategy makes of the name "megatron".
        strategy.ddp = import_module("nemo_run").Config(ddp, check_for_nan_in_grad=True)


def _dataset(config: RunConfig) -> Any:
    """Return NeMo's reader of an indexed dataset instead of its random tokens."""
    run: Any = import_module("nemo_run")
    reader: Any = import_module("nemo.collections.llm.gpt.data.pre_training").PreTrainingDataModule
    return run.Config(reader, paths=[config.data], seed=config.seed, split="1,0,0")


def build_bridge(config: RunConfig, settings: Mapping[str, Any]) -> Any:
    """Return the configuration of a run (Megatron-Bridge)."""
    recipes: Any = import_module("megatron.bridge.recipes")
    known = mapping.name_of("bridge", config)
    found = next((getattr(recipes, name) for name in known if hasattr(recipes, name)), None)
    if found is None:
        raise LaunchError(
            f"This Megatron-Bridge has none of the recipes {', '.join(known)}. Use the version "
            "that the platform's image.toml names."
        )
    container: Any = found()
    for path, value in settings.items():
        put(container, path, value)
    return container


def put(root: Any, path: str, value: Any) -> None:
    """Set an attribute by its path; one that the recipe does not know is an error, not a new one.

    Raises:
        ConfigError: a part of the path does not exist, or cannot be set.
    """
    *parents, last = path.split(".")
    target = root
    try:
        for name in parents:
            target = getattr(target, name)
        if not hasattr(target, "__fn_or_cls__") and not hasattr(target, last):
            raise AttributeError(last)
        setattr(target, last, value)  # a fiddle Config refuses names that its class has not
    except (AttributeError, TypeError) as error:
        raise ConfigError(
            f"The recipe of engine 'nemo' has no {path!r} to set to {value!r}. Use the version "
            "that the platform's image.toml names, or engine 'megatron'."
        ) from error


if __name__ == "__main__":
    sys.exit(main_of(_train))
