"""Stand-ins for the CUDA that Megatron-Core takes for granted, so that it trains on a CPU.

Never imported by a run on a GPU. Each piece says what it replaces and why; a test takes each away
and expects training to break, so that a piece leaves when Megatron-Core no longer needs it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class _DeviceMode(TorchFunctionMode):
    """Read device 'cuda' as the CPU, and let a tensor's type name be the one of CUDA."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Return what ``func`` answers with its device replaced."""
        kwargs = kwargs or {}
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if func is torch.Tensor.cuda:
            return args[0]
        if kwargs and _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": CPU}
        if "pin_memory" in kwargs:
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


def _is_cuda(device: Any) -> bool:
    return device is not None and str(device).startswith("cuda")


class _Stream:
    """A stream of a device that does one thing after the other anyway."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: there is nothing to wait for."""

    def record_event(self, event: Any = None) -> _Stream:
        """Return an event that has happened."""
        return self

    def synchronize(self) -> None:
        """Do nothing: everything asked for is done."""


@contextlib.contextmanager
def _stream_context(_: Any) -> Iterator[None]:
    yield


_STREAM = _Stream()


@dataclass(frozen=True, slots=True)
class Piece:
    """One stand-in: ``install`` puts it in place."""

    name: str
    reason: str
    install: Callable[[], None]


def _patch(owner: Any, **values: Any) -> Callable[[], None]:
    def install() -> None:
        for name, value in values.items():
            setattr(owner, name, value)

    return install


class _Triton(ModuleType):
    """A triton whose kernels can be defined but not run."""

    __version__ = "3.4.0"  # the oldest that Megatron-Core wants

    def __getattr__(self, name: str) -> Any:
        """Return something that can stand wherever a kernel's definition needs a name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return _decorate


@contextlib.contextmanager
def _triton_during_import() -> Iterator[None]:
    if find_spec("triton"):
        yield
        return
    triton, language = _Triton("triton"), _Triton("triton.language")
    setattr(triton, "language", language)  # noqa: B010
    sys.modules.update({"triton": triton, "triton.language": language})
    try:
        yield
    finally:
        del sys.modules["triton"], sys.modules["triton.language"]  # torch would take it for real


def install() -> None:
    """Put every stand-in in place, before megatron.core is imported."""
    for piece in BEFORE_IMPORT:
        piece.install()
    with _triton_during_import():
        import_module("scalebook.train.mcore")
    for piece in AFTER_IMPORT:
        piece.install()


def _decorate(function: Any = None, *_: Any, **__: Any) -> Any:
    """Return what is decorated, with or without arguments in between."""
    return function if callable(function) else _decorate


BEFORE_IMPORT = (
    Piece(
        "torch.compile",
        "Megatron-Core's fused functions are compiled at import: seconds of start-up, and a C++ "
        "compiler, for a model that runs in milliseconds",
        _patch(torch, compile=_decorate),
    ),
)



def _random_module() -> Any:
    return import_module("megatron.core.tensor_parallel.random")


def _install_random_state() -> None:
    random = _random_module()
    _patch(
        random,
        _get_cuda_rng_state=lambda *_, **__: torch.get_rng_state(),  # pyright: ignore
        _set_cuda_rng_state=lambda state, *_, **__: torch.set_rng_state(state),  # pyright: ignore
    )()


def _host_counts(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Return a tensor of counts as the collectives take it: in numpy where that is asked for."""
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


def _install_host_counts() -> None:
    dispatcher = import_module("megatron.core.transformer.moe.token_dispatcher")
    _patch(dispatcher, maybe_move_tensor_to_cpu=_host_counts)()


AFTER_IMPORT = (
    Piece(
        "device mode",
        "buffers are made with device='cuda', and the optimizer asks for torch.cuda.FloatTensor",
        lambda: _DeviceMode().__enter__(),
    ),
    Piece(
        "torch.cuda.current_device",
        "weights and buffers are made on torch.cuda.current_device()",
        _patch(torch.cuda, current_device=lambda: CPU),
    ),
    Piece(
        "torch.cuda.get_rng_state",
        "the tracker of random states saves and seeds the GPU's generator",
        _patch(torch.cuda, get_rng_state=torch.get_rng_state),
    ),
    Piece(
        "torch.cuda.Stream",
        "the token dispatcher copies counts on a stream of its own",
        _patch(torch.cuda, Stream=_Stream, current_stream=lambda: _STREAM, stream=_stream_context),
    ),
    Piece(
        "random states of Megatron-Core",
        "dropout and recomputation fork the GPU's generator",
        _install_random_state,
    ),
    Piece(
        "counts of the token dispatcher",
        "how many tokens go to each expert becomes a list only on its way from a GPU to the host",
        _install_host_counts,
    ),
)
