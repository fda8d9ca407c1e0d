"""Checkpoints of a run: when they are saved, that a kill never takes the last one, what they cost.

A checkpoint is written under a name that starts with a dot, renamed when it is whole, and then
``latest.json`` is replaced to name it. Only what that file names is ever loaded, and what it named
before is removed afterwards, so a kill at any moment leaves a good checkpoint.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from scalebook import store, untrusted
from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.measure import reliability
from scalebook.measure.reliability import CHECKPOINTS, UNFINISHED, CheckpointRecord
from scalebook.parallelism import Parallelism
from scalebook.record import StepRecord
from scalebook.store import read_object
from scalebook.train import mcore
from scalebook.train.checkpoint import mcore_checkpoint
from scalebook.train.step_record import now, phase
from scalebook.train.trainer import Trainer
from scalebook.train.world import distributed, restart_count


@dataclass(frozen=True, slots=True)
class _Save:
    """A save that has begun."""

    step: int
    temporary: Path
    began: float
    started_at: str


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder)


@dataclass(slots=True)
class Keeper:
    """Saves and loads the checkpoints of a run; every rank has one and calls it alike."""

    trainer: Trainer
    output: Path
    done: int = 0  # steps done when training begins or goes on
    _queue: Any = None
    _pending: _Save | None = None
    _blocked: float = 0.0  # seconds that training has waited for the pending save
    _last: int = field(default=0)  # steps done at the last save or load
    _preparing: threading.Thread | None = None
    _removing: threading.Thread | None = None

    @classmethod
    def open(cls, trainer: Trainer, output: Path) -> Keeper:
        """Return the keeper of a run, its state loaded where there is one to continue from."""
        refuse_unsupported(trainer.config)
        keeper = cls(trainer, output)
        if trainer.config.checkpoint_interval:
            given = (trainer.world.device, state_sizes(trainer))
            keeper._preparing = threading.Thread(
                target=mcore_checkpoint.prepare, args=given, daemon=True
            )
            keeper._preparing.start()
        keeper.load()
        return keeper

    @property
    def folder(self) -> Path:
        """Where this run keeps its checkpoints."""
        return self.output / CHECKPOINTS

    @property
    def _first_rank(self) -> bool:
        return self.trainer.world.rank == 0

    def after(self, step: int) -> float:
        """Do what is due when ``step`` steps are done; return the seconds that it took.

        Called between two steps, so the time is part of the next step's.
        """
        interval = self.trainer.config.checkpoint_interval
        due = bool(interval) and step % interval == 0 and step > self._last
        if not due and self._pending is None:
            return 0.0
        began = time.perf_counter()
        self._poll(blocking=due)
        if due:
            self._save(step)
        return time.perf_counter() - began

    def finish(self, completed: bool) -> None:
        """Wait for what is being saved; leave no more checkpoints than were asked for.

        A run that did not complete leaves its last one: another run can go on from there.
        """
        self._poll(blocking=True)
        if self._first_rank and self.folder.is_dir():
            keep = self.trainer.config.checkpoint_keep
            self._prune(keep if completed else max(keep, 1)).join()
            if latest(self.folder) is None:
                shutil.rmtree(self.folder)

    def mark(self, record: StepRecord, seconds: float) -> StepRecord:
        """Return a step's record with what it waited for checkpoints and the restart it is of.

        Processes that have just begun warm up again, whatever the number of their first step.
        """
        config = self.trainer.config
        changes: dict[str, Any] = {"phase": phase(record.step - self.done, config.warmup_steps)}
        if config.checkpoint_interval:
            changes["checkpoint_seconds"] = seconds
        return record.model_copy(update={**changes, "restart": restart_count()})

    def _save(self, step: int) -> None:
        trainer = self.trainer
        name = f"{UNFINISHED}{step:08d}-{restart_count()}"
        save = _Save(step, self.folder / name, time.perf_counter(), now())
        self._blocked, self._last = 0.0, step
        if self._preparing is not None:
            self._preparing.join()
        if self._first_rank:
            save.temporary.mkdir(parents=True)
        distributed.barrier()
        request = mcore_checkpoint.save(
            sharded_state(trainer, step),
            save.temporary,
            asynchronous=trainer.config.checkpoint_async,
        )
        self._pending = save
        if request is None:
            self._publish(save)
        else:
            self._queue = self._queue or mcore_checkpoint.queue()
            self._queue.schedule_async_request(request)
        self._blocked += time.perf_counter() - save.began

    def _poll(self, *, blocking: bool) -> None:
        """Publish the pending save if it is written; every rank must call this alike."""
        save = self._pending
        if save is None:
            return
        began = time.perf_counter()
        if self._queue.maybe_finalize_async_calls(blocking=blocking):
            self._publish(save, waited=time.perf_counter() - began)
        else:
            self._blocked += time.perf_counter() - began

    def _publish(self, save: _Save, waited: float | None = None) -> None:
        """Make a written checkpoint the latest, and record what it cost."""
        self._pending = None
        if not self._first_rank:
            return
        began = time.perf_counter()
        path = self.folder / f"step-{save.step:08d}"
        if path.exists():  # whole, but killed before it was named
            shutil.rmtree(path)
        config = self.trainer.config.model_dump(include=set(LAYOUT))
        store.write_json(save.temporary / CONTENT, {"step": save.step, "config": config})
        untrusted.publish(save.temporary, path)
        store.write_json(self.folder / LATEST, {"name": path.name})
        self._prune(max(self.trainer.config.checkpoint_keep, 1))
        end = time.perf_counter()
        seconds = end - save.began
        blocked = seconds if waited is None else self._blocked + waited + end - began
        self._tell("save", save.started_at, seconds, blocked, path)

    def _prune(self, keep: int) -> threading.Thread:
        """Begin to remove all but the newest checkpoints, and what a kill left unfinished.

        Training does not wait for it: a file system takes a second for some gigabytes.
        """
        if self._removing is not None:
            self._removing.join()
        whole = sorted(self.folder.glob("step-*"))
        pending = self._pending.temporary if self._pending else None
        unfinished = [path for path in self.folder.glob(f"{UNFINISHED}*") if path != pending]
        for path in whole[: max(len(whole) - keep, 0)]:
            hidden = path.with_name(f"{UNFINISHED}{path.name}-{time.monotonic_ns()}")
            unfinished.append(path.rename(hidden))
        self._removing = threading.Thread(target=_remove, args=(unfinished,), daemon=True)
        self._removing.start()
        return self._removing

    def _tell(self, kind: Any, started_at: str, seconds: float, blocked: float, path: Path) -> None:
        record = CheckpointRecord(
            kind=kind,
            step=read_object(path / CONTENT)["step"],
            seconds=seconds,
            blocking_seconds=blocked,
            size_bytes=size_bytes(path),
            asynchronous=kind == "save" and self.trainer.config.checkpoint_async,
            restart=restart_count(),
            started_at=started_at,
            finished_at=now(),
        )
        with (self.output / reliability.CHECKPOINTS_FILE).open("a", encoding="utf-8") as stream:
            stream.write(record.model_dump_json() + "\n")

    def load(self) -> None:
        """Go on from the last checkpoint, if there is one to start from."""
        path = source(self.trainer.config, self.folder)
        if path is None:
            return
        started_at, began = now(), time.perf_counter()
        sharded = sharded_state(self.trainer, 0, loading=True)
        kind = mcore_checkpoint.content(self.trainer.model.config)
        loaded = mcore_checkpoint.load(sharded, path, kind)
        self.done = self._last = restore_state(self.trainer, loaded)
        self.trainer.world.synchronize()
        distributed.barrier()
        seconds = time.perf_counter() - began
        if self._first_rank:
            self._tell("load", started_at, seconds, seconds, path)
            print(f"loaded the checkpoint of step {self.done} in {seconds:.2f} s", flush=True)


def sharded_state(trainer: Trainer, step: int, *, loading: bool = False) -> dict[str, Any]:
    """Return this rank's part of the state after ``step`` steps.

    The place in the data is the step itself: sample numbers follow from it alone.
    """
    chunks, content = trainer.model.chunks, mcore_checkpoint.content(trainer.model.config)
    if not loading:
        _gather(trainer)
    names = ["model"] if len(chunks) == 1 else [f"model{i}" for i in range(len(chunks))]
    models = {
        name: _without_extras(chunk.module.sharded_state_dict(metadata=content), trainer)
        for name, chunk in zip(names, chunks, strict=True)
    }
    if loading:
        mcore_checkpoint.fill(trainer.optimizer.inner)
    optimizer = trainer.optimizer.inner.sharded_state_dict(
        models, is_loading=loading, metadata=content
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


def _without_extras(state: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    """Leave out what only Transformer Engine fills; grouped experts have none for the others."""
    if trainer.model.switches.transformer_engine:
        return state
    return {name: part for name, part in state.items() if not name.endswith(_EXTRA)}


def state_sizes(trainer: Trainer) -> list[int]:
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
def restore_state(trainer: Trainer, loaded: dict[str, Any]) -> int:
    """Put a loaded state in place and return how many steps had been done."""
    chunks = trainer.model.chunks
    for index, chunk in enumerate(chunks):
        name = "model" if len(chunks) == 1 else f"model{index}"
        module = chunk.module
        extras = [one for one in module.state_dict() if one.endswith(_EXTRA)]
        module.load_state_dict(dict.fromkeys(extras) | loaded[name], strict=True)
    mcore_checkpoint.load_optimizer(trainer.optimizer.inner, loaded["optimizer"])
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


_EXTRA = "._extra_state"
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
