"""What engines support and call things, whether they are installed, and what their starts share."""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError, ScalebookError, unknown
from scalebook.facts import catalog

# The module that torchrun starts for each engine.
TRAINERS: Mapping[str, str] = {
    "megatron": "scalebook.train",
    "nemo": "scalebook.engines.nemo_train",
    "primus": "scalebook.engines.primus_train",
}
NEMO_KINDS = ("nemo", "bridge")  # NeMo 2.7's llm collection, and Megatron-Bridge after it
PRIMUS_VARIABLE = "PRIMUS_PATH"  # a checkout of Primus, where it is not installed
PRIMUS_FOLDERS = (Path("/workspace/Primus"), Path("/opt/Primus"))

# Fields that say nothing to a trainer, or that the launcher keeps.
_OURS = (
    "platform", "engine", "strategy", "repeat", "time_limit_seconds", "progress_limit_seconds",
    "warmup_steps", "max_restarts", "step_split",
)  # fmt: skip
_TAKEN = (
    "model", "world_size", "nodes", "tensor_parallel_size", "pipeline_parallel_size",
    "virtual_pipeline_parallel_size", "context_parallel_size", "expert_parallel_size",
    "expert_tensor_parallel_size", "sequence_parallel", "data_parallel_sharding",
    "micro_batch_size", "global_batch_size", "sequence_length", "precision", "recompute",
    "recompute_layers", "recompute_method", "recompute_modules",
    "steps", "learning_rate", "seed", "overlap_grad_reduce", "overlap_param_gather",
)  # fmt: skip
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")  # engines know them by our name
_VENDORS: Mapping[str, str] = {"nemo": "nvidia", "primus": "amd"}
_SUPPORTED: Mapping[str, tuple[str, ...]] = {
    "precision": ("bf16", "fp16", "fp8"),
    "data_parallel_sharding": ("none", "optimizer"),
    "recompute": ("none", "selective", "full"),
}
_MORE: Mapping[str, tuple[str, ...]] = {"nemo": ("data", "fp8_recipe"), "primus": ()}


def check(config: RunConfig) -> None:
    """Refuse what an engine does not support.

    Raises:
        ConfigError: a field has a value that the engine has no word for, or the model has none.
    """
    if config.engine == "megatron":
        return
    vendor = catalog.platform(config.platform).vendor
    if vendor != _VENDORS[config.engine]:
        raise ConfigError(
            f"Engine {config.engine!r} trains on {_VENDORS[config.engine]} platforms, and "
            f"platform={config.platform!r} is {vendor}. Use engine 'megatron', which trains on all."
        )
    defaults = RunConfig.model_fields
    named = {*_OURS, *_TAKEN, *_MORE[config.engine]}
    for name, value in config:
        allowed = ("",) if (config.engine, name) == ("primus", "data") else _SUPPORTED.get(name)
        if allowed is not None and value not in allowed:
            listed = ", ".join(str(one) or "''" for one in allowed)
            raise ConfigError(
                f"{name}={value!r} is not supported by engine {config.engine!r}. Use one of "
                f"{listed}, or engine 'megatron'."
            )
        if name not in named and value != defaults[name].default:
            raise ConfigError(
                f"{name}={value!r} is not supported by engine {config.engine!r}. Leave it at "
                f"{defaults[name].default!r}, or use engine 'megatron'."
            )
    if config.engine == "primus":
        name_of("primus", config)
    elif all(config.model.partition("@")[0] not in known(kind) for kind in NEMO_KINDS):
        name_of("nemo", config)


def missing(engine: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what has to be installed here for an engine, None where it is."""
    if engine == "nemo" and nemo_kind() is None:
        return (
            "neither NeMo (nemo.collections.llm with nemo_run) nor Megatron-Bridge is installed. "
            "Use NVIDIA's NeMo image (--container, --image), or engine 'megatron'."
        )
    if engine == "primus" and primus_folder(environment) is None and find_spec("primus") is None:
        return (
            "Primus was not found. Use AMD's Primus image, set PRIMUS_PATH to a checkout of "
            "AMD-AGI/Primus, or use engine 'megatron'."
        )
    return None


def nemo_kind() -> str | None:
    """Return which of NVIDIA's trainers is installed: ``nemo``, ``bridge``, or None."""
    if find_spec("nemo") and find_spec("nemo_run") and _has("nemo.collections.llm"):
        return "nemo"
    return "bridge" if find_spec("megatron") and _has("megatron.bridge") else None


def _has(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def primus_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the checkout of Primus: where PRIMUS_PATH says, else where its images have it."""
    named = environment.get(PRIMUS_VARIABLE)
    places = (Path(named),) if named else PRIMUS_FOLDERS
    return next(
        (place for place in places if (place / "primus" / "cli" / "main.py").exists()), None
    )


# What engines call things


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files("scalebook.engines").joinpath("models.toml").read_text("utf-8")
    return tomllib.loads(text)["models"]


def known(kind: str) -> tuple[str, ...]:
    """Return the catalog models that have a name of this kind (nemo, bridge or primus)."""
    return tuple(name for name, row in _table().items() if kind in row)


def name_of(kind: str, config: RunConfig) -> Any:
    """Return what an engine calls the model of a run; ``NAME@8`` is the same with 8 layers.

    Raises:
        ConfigError: the engine has no configuration of this model.
    """
    base = config.model.partition("@")[0]
    row = _table().get(base, {})
    if kind not in row:
        message = unknown(f"{kind} model", base, known(kind))
        raise ConfigError(f"Engine {config.engine!r} has no configuration of it. {message}")
    return row[kind]


def fewer_layers(config: RunConfig) -> int | None:
    """Return the number of layers where a run names it, None where the model has all of its own."""
    return catalog.model(config.model).num_layers if "@" in config.model else None


def data_parallel(config: RunConfig) -> dict[str, bool]:
    """Return the options of data parallelism, except those that are left to the engine."""
    overlaps = {name: getattr(config, name) for name in _OVERLAPS}
    return {
        "use_distributed_optimizer": config.data_parallel_sharding == "optimizer",
        **{name: value == "on" for name, value in overlaps.items() if value != "auto"},
    }


def main_of(train: Callable[[RunConfig, Path], int]) -> int:
    """Read the arguments of our trainer, check that the engine can do it, and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True, help="RunConfig as JSON")
    parser.add_argument("--output", type=Path, required=True, help="run directory to write into")
    options = parser.parse_args()
    try:
        config = RunConfig.read(options.config)
        check(config)
        lack = missing(config.engine)
        if lack:
            raise LaunchError(f"Engine {config.engine!r} cannot run here: {lack}")
        return train(config, options.output.absolute())
    except ScalebookError as error:
        print(f"scalebook {Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 2


def write_once(path: Path, text: str) -> Path:
    """Write a file that every rank writes alike, so that none reads half of it; return its path."""
    temporary = path.with_name(f".{path.name}.{os.environ.get('RANK', '0')}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path
