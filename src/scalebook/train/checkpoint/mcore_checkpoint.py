"""megatron.core.dist_checkpointing as the trainer uses it, and its differences between versions.

Beside ``mcore``, the other place that knows them: 0.19 took out the base classes of strategies,
renamed the queue of results and asks which asynchronous writer to use.
"""

from __future__ import annotations

import inspect
import os
import pickle
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from scalebook import untrusted
from scalebook.errors import ConfigError
from scalebook.train import mcore

# Newer torch announces changes to what Megatron-Core calls; its users can do nothing about them.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _dist: Any = import_module("megatron.core.dist_checkpointing")
    _torch: Any = import_module("megatron.core.dist_checkpointing.strategies.torch")
    _writer: Any = import_module("megatron.core.dist_checkpointing.strategies.filesystem_async")
    _storage: Any = import_module("torch.distributed.checkpoint.storage")
    _async: Any = import_module("megatron.core.dist_checkpointing.strategies.async_utils")
    _parallel: Any = import_module("megatron.core.dist_checkpointing.strategies.fully_parallel")

ShardedObject: Any = _dist.ShardedObject


def content(config: Any) -> dict[str, Any]:
    """Return how the optimizer is saved.

    Each data-parallel rank keeps its own part, by the buckets of its buffers: nothing is gathered,
    and the checkpoint fits the same layout alone. Experts lie in them one by one or grouped, as
    ``grouped_gemm`` says; theirs is saved by the names of the parameters, which both share.
    """
    kind = "fully_reshardable" if config.num_moe_experts else "dp_reshardable"
    return {"distrib_optim_sharding_type": kind}


FILES_PER_RANK = 2  # written by as many processes; Megatron-LM's default before 0.19


def prepare(device: torch.device, sizes: Iterable[int]) -> None:
    """Get ready what the first save would wait for: seconds each.

    That is the process through which writers answer, which imports torch when it first gets an
    answer; so give it one. And page-locked host memory for copies of ``sizes`` bytes from a GPU:
    torch keeps it for the copies that the save makes.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of this thread
        held = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes]
        del held  # all at once, or each copy would reuse the memory of the last
    newer = getattr(_writer, "get_write_results_queue", None)
    answers = (newer or _writer._get_write_results_queue)()
    answers.put(_storage.WriteResult)
    answers.get()


def _strategy() -> Any:
    """Return how to save: every rank writes, also of what data-parallel ranks hold alike."""
    plain = _torch.TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=FILES_PER_RANK)
    ranks = mcore.parallel_state
    group = ranks.get_data_parallel_group(with_context_parallel=True)
    if group.size() == 1:
        return plain
    return _parallel.FullyParallelSaveStrategyWrapper(plain, group)


def save(state: dict[str, Any], directory: Path, *, asynchronous: bool) -> Any:
    """Save a sharded state; return the request that is still to be written, None if all is done.

    Every rank must call this; ``directory`` exists and is empty.
    """
    options: dict[str, Any] = {"async_sharded_save": asynchronous}
    if "async_strategy" in inspect.signature(_dist.save).parameters:
        options["async_strategy"] = "mcore"  # the other needs nvidia-resiliency-ext
    return _dist.save(state, str(directory), _strategy(), **options)


# torch pickles which parts a checkpoint has; nothing else of a pickle is ever called.
_NAMED = {
    ("collections", "OrderedDict"),
    ("io", "BytesIO"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
}
_TABLES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.planner")
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch.load asks it, whoever calls


class _Names(pickle.Unpickler):
    """Unpickles a checkpoint's table of contents; a name that it does not need is an error."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        found = None
        if (module_name, global_name) in _NAMED:
            found = super().find_class(module_name, global_name)
        elif module_name == "torch" and global_name.isidentifier():
            found = getattr(torch, global_name, None)
            found = found if isinstance(found, torch.dtype) else None
        elif module_name in _TABLES and global_name.isidentifier():
            found = getattr(import_module(module_name), global_name, None)
            own = isinstance(found, type) and found.__module__ == module_name  # not imported there
            found = found if own else None
        if found is None:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
        return found


def refuse_code(directory: Path) -> Any:
    """Return a checkpoint's table of contents; raise ConfigError where it could run code."""
    path = directory / ".metadata"
    try:
        form = untrusted.read_text(directory / "metadata.json")
        if '"torch_dist"' not in form:
            raise ConfigError(f"{directory} is not in Megatron-Core's format 'torch_dist'.")
        with untrusted.opened(path) as stream:
            return _Names(stream).load()
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}.") from error
    except ConfigError:
        raise
    except Exception as error:  # a pickle that is damaged raises anything
        raise ConfigError(
            f"{path} is refused: {str(error)[:200]}. A checkpoint of Megatron-Core contains only "
            "names of tensors; do not load this one."
        ) from error


@contextmanager
def _data_only() -> Generator[None]:
    """Make torch.load refuse to call anything that a file names, also inside Megatron-Core."""
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before


def load(state: dict[str, Any], directory: Path, kind: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a checkpoint, in the place of a sharded state; every rank must call.

    ``kind`` is the ``content`` that the state was made for.

    Raises:
        ConfigError: reading the checkpoint could run code, or its optimizer is of another kind.
    """
    names = getattr(refuse_code(directory), "state_dict_metadata", ())
    buffers = any("distributed.dp_group_idx_" in name for name in names)
    if buffers and "fully_reshardable" in kind.values():  # as once with experts too
        raise ConfigError(
            f"{directory} holds the optimizer by the buffers of its ranks (dp_reshardable). That "
            "of experts is read by names of parameters only (fully_reshardable). Load the "
            "checkpoint with the version that saved it, or train without load_checkpoint."
        )
    with warnings.catch_warnings(), _data_only():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            loaded: dict[str, Any] = _dist.load(state, str(directory))
        except pickle.UnpicklingError as error:
            raise ConfigError(f"{directory} is refused: {str(error)[:200]}") from error
    return loaded


def fill(optimizer: Any) -> None:
    """Give torch's Adam the state that its first step would make.

    Megatron-Core reads the state's step before it loads one, which Adam of Transformer Engine
    keeps elsewhere.
    """
    for adam in _torch_adams(optimizer):
        for parameter in (p for group in adam.param_groups for p in group["params"]):
            if not adam.state[parameter]:
                moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                adam.state[parameter] = {"step": torch.zeros((), device=parameter.device)} | moments


def load_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """Load an optimizer's state; its counts of steps are those of ``set_steps``.

    What is saved by name has none, which Megatron-Core looks for in torch's Adam.
    """
    name = "_set_main_param_and_optimizer_states"
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if (put := getattr(part, name, None)) is not None:
            setattr(part, name, partial(_put_all, put))
    optimizer.load_state_dict(state)
    set_steps(optimizer)


def _put_all(put: Any, parameter: Any, tensors: dict[str, Any]) -> None:
    put(parameter, {"step": torch.zeros(()), **tensors})


def set_steps(optimizer: Any) -> None:
    """Give each parameter of torch's Adam its own count of steps after a load.

    Megatron-Core leaves the count of a sharded optimizer in the parameter groups; that of another
    is one tensor for all, to which torch would add 1 for every parameter that holds it.
    """
    for adam in _torch_adams(optimizer):
        for group in adam.param_groups:
            count = group.pop("step", None)
            for values in (adam.state[parameter] for parameter in group["params"]):
                if count is not None:
                    values["step"].fill_(count)
                values["step"] = values["step"].clone()


def adams(optimizer: Any) -> list[Any]:
    """Return the optimizers, of torch or fused, behind Megatron-Core's one or chain of them."""
    return [part.optimizer for part in getattr(optimizer, "chained_optimizers", [optimizer])]


def _torch_adams(optimizer: Any) -> Iterator[Any]:
    return (one for one in adams(optimizer) if isinstance(one, torch.optim.Adam))


def queue() -> Any:
    """Return the queue of saves that continue in separate processes, forked for each."""
    return _async.AsyncCallsQueue(persistent=False)
