"""Stand-ins for the CUDA that Megatron-Core takes for granted, so that it trains on a CPU.

Never imported by a run on a GPU. Each piece says what it answers and why; a test takes each away
and expects training to break, so that a piece leaves when Megatron-Core no longer needs it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
TorchCall = tuple[Any, tuple[Any, ...], dict[str, Any]]  # a function of torch and its arguments


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: a CPU has done what it was asked."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Names that a module gets instead of its own."""

    name: str
    reason: str
    module: str
    values: dict[str, Any]

    def install(self) -> None:
        """Put the names in place."""
        module = import_module(self.module)
        for name, value in self.values.items():
            setattr(module, name, value)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """How a call of a torch function is rewritten."""

    name: str
    reason: str
    rewrite: Callable[[Any, tuple[Any, ...], dict[str, Any]], TorchCall]


def _device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TorchCall:
    if str(kwargs.get("device")).startswith("cuda"):
        kwargs = {**kwargs, "device": CPU}
    return func, args, kwargs


def _pinned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TorchCall:
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    return func, args, kwargs


def _same(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _to_cuda(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TorchCall:
    return (_same if func is torch.Tensor.cuda else func), args, kwargs


def _cuda_type(tensor: torch.Tensor) -> str:
    return str(tensor.type()).replace("torch.", "torch.cuda.", 1)


def _type(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TorchCall:
    asks = func is torch.Tensor.type and len(args) == 1 and not kwargs
    return (_cuda_type if asks else func), args, kwargs


class _Stream:
    """A stream of a device that does one thing after the other anyway, and its events."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: there is nothing to wait for."""

    def record_event(self, event: Any = None) -> _Stream:
        """Return an event that has happened."""
        return self

    def synchronize(self) -> None:
        """Do nothing: everything asked for is done."""


@contextlib.contextmanager
def _on_stream(_: Any) -> Generator[None]:
    yield


def _host_counts(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


def _random_state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_random_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


STREAM = _Stream()

RULES = (
    Rewrite("device", "buffers are made with device='cuda'", _device),
    Rewrite("pinned memory", "indices of context parallelism are made in pinned memory", _pinned),
    Rewrite("Tensor.cuda", "the same indices are moved with .cuda()", _to_cuda),
    Rewrite("Tensor.type", "the optimizers look for the type torch.cuda.FloatTensor", _type),
)

PATCHES = (
    Patch(
        "current_device",
        "weights and buffers are made on torch.cuda.current_device()",
        "torch.cuda",
        {"current_device": lambda: CPU},
    ),
    Patch(
        "get_rng_state",
        "the tracker of random states reads the GPU's generator before it seeds it",
        "torch.cuda",
        {"get_rng_state": torch.get_rng_state},
    ),
    Patch(
        "streams",
        "the token dispatcher copies its counts on a stream of its own",
        "torch.cuda",
        {"Stream": _Stream, "current_stream": lambda: STREAM, "stream": _on_stream},
    ),
    Patch(
        "synchronize",
        "a checkpoint is copied to the host before it is written",
        "torch.cuda",
        {"synchronize": _nothing},
    ),
    Patch(
        "random states",
        "dropout and recomputation save and set the GPU's generator",
        "megatron.core.tensor_parallel.random",
        {"_get_cuda_rng_state": _random_state, "_set_cuda_rng_state": _set_random_state},
    ),
    Patch(
        "counts",
        "the numbers of tokens for each expert become lists only on their way from GPU to host",
        "megatron.core.transformer.moe.token_dispatcher",
        {"maybe_move_tensor_to_cpu": _host_counts},
    ),
)


class _Rewriting(TorchFunctionMode):
    """Apply rules to every call of a torch function."""

    def __init__(self, rules: tuple[Rewrite, ...]) -> None:
        super().__init__()
        self.rules = rules

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Return what the rewritten call answers."""
        kwargs = kwargs or {}
        for rule in self.rules:
            func, args, kwargs = rule.rewrite(func, args, kwargs)
        return func(*args, **kwargs)


class _Triton(ModuleType):
    """A triton whose kernels can be defined but not run."""

    __version__ = "3.4.0"  # the oldest that Megatron-Core takes

    def __getattr__(self, name: str) -> Any:
        """Return something that can stand wherever a kernel's definition needs a name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return _decorate


def _decorate(function: Any = None, *_: Any, **__: Any) -> Any:
    """Return what is decorated, with or without arguments in between."""
    return function if callable(function) else _decorate


@contextlib.contextmanager
def lean_import() -> Generator[None]:
    """Import without compiling, and without a Triton where there is none (0.17 and newer ask).

    Megatron-Core hands its fused functions to torch.compile when it is imported, which costs
    4 seconds of start-up and later a C++ compiler, for models that run in milliseconds. It imports
    wandb and TensorBoard where they are installed: a second more, for nothing that trains.
    """
    missing: dict[str, Any] = dict.fromkeys({"wandb", "tensorboard"} - sys.modules.keys())
    if find_spec("triton") is None:
        missing |= {name: _Triton(name) for name in ("triton", "triton.language")}
        missing["triton"].language = missing["triton.language"]
    sys.modules.update(missing)
    module: Any = torch
    compiler, module.compile = module.compile, _decorate
    try:
        yield
    finally:
        module.compile = compiler
        for name in missing:
            del sys.modules[name]  # torch would take it for the real one


def install(without: str | None = None) -> None:
    """Import Megatron-Core with every stand-in in place, but the one a test leaves out."""
    with lean_import():
        import_module("scalebook.train.mcore")
    for patch in PATCHES:
        if patch.name != without:
            patch.install()
    _Rewriting(tuple(rule for rule in RULES if rule.name != without)).__enter__()
