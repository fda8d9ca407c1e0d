"""Where the checkpoints of a run are, and which one a training starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.measure.reliability import CHECKPOINTS
from scalebook.parallelism import Parallelism
from scalebook.store import read_object

LATEST = "latest.json"  # names the last good checkpoint
CONTENT = "scalebook.json"  # in a checkpoint: its step and layout
# A checkpoint holds parts as the ranks of one layout need them.
LAYOUT = ("model", *(n for n in Parallelism.__dataclass_fields__ if n != "sequence_parallel"),
          "precision")  # fmt: skip


def latest(folder: Path) -> Path | None:
    """Return the last good checkpoint of a folder, None where there is none."""
    named = read_object(folder / LATEST).get("name")
    if not isinstance(named, str) or Path(named).name != named:  # nor does it lead elsewhere
        return None
    return folder / named if (folder / named).is_dir() else None


def size_bytes(directory: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def refuse_unsupported(config: RunConfig) -> None:
    """Raise ConfigError where no checkpoint of this configuration can be saved or loaded."""
    asked = config.checkpoint_interval or config.load_checkpoint
    if asked and config.data_parallel_sharding == "full":
        raise ConfigError(
            "Checkpoints are not supported with data_parallel_sharding='full' (FSDP). "
            "Use data_parallel_sharding='optimizer', or none."
        )


def source(config: RunConfig, folder: Path) -> Path | None:
    """Return the checkpoint to start from: this run's own before the one asked for; or None.

    Raises:
        ConfigError: the one asked for is not there, or was saved by another layout.
    """
    own = latest(folder)
    if own is not None or not config.load_checkpoint:
        return own
    asked = Path(config.load_checkpoint)
    whole = asked if (asked / CONTENT).exists() else None
    found = whole or latest(asked) or latest(asked / CHECKPOINTS)
    if found is None:
        raise ConfigError(
            f"load_checkpoint={config.load_checkpoint!r} contains no complete checkpoint. Name a "
            f"run's directory, the folder {CHECKPOINTS!r} in it, or a checkpoint there."
        )
    saved = read_object(found / CONTENT)
    step, layout = saved.get("step"), saved.get("config")
    if type(step) is not int or not isinstance(layout, dict):
        raise ConfigError(f"{found / CONTENT} does not contain the checkpoint's step and config.")
    _refuse_other(config, cast("dict[str, Any]", layout))
    if step >= config.steps:
        raise ConfigError(
            f"The checkpoint is of step {step}, and steps={config.steps} leaves nothing "
            "to do. Raise steps: they count from step 1 of the first run."
        )
    return found


def _refuse_other(config: RunConfig, saved: dict[str, Any]) -> None:
    different = [
        f"{name}={saved[name]!r} (here {getattr(config, name)!r})"
        for name in LAYOUT
        if name in saved and saved[name] != getattr(config, name)
    ]
    if different:
        raise ConfigError(
            f"The checkpoint was saved with {', '.join(different)}. Use the same values, or none."
        )
