"""Random operands of matrix products, taken from one large buffer so that no cache holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalebook.probe.measurement.place import Rank

# More than any cache between the units and the memory: 256 MiB on MI300X, 50 MiB on H100.
ARENA_BYTES = {"cuda": 2**30, "cpu": 2**24}
MOST_SETS = 256
ALIGNMENT = 256  # elements; operands start where an allocation of their own could
CHUNK = 2**24  # elements made at a time where a type cannot be drawn itself

torch_any: Any = torch  # some of its functions are typed only in part


@dataclass(frozen=True, slots=True)
class OperandKind:
    """A kind of product: the operands' type, and what torch must be told before."""

    name: str
    dtype: torch.dtype
    float32_matmul: str = "highest"
    scaled: bool = False  # fp8: torch._scaled_mm, both operands K-major

    def apply(self) -> None:
        """Tell torch how products of float32 are computed."""
        torch.set_float32_matmul_precision(self.float32_matmul)


BF16 = OperandKind("bf16", torch.bfloat16)
FP16 = OperandKind("fp16", torch.float16)
TF32 = OperandKind("tf32", torch.float32, "high")
FP32 = OperandKind("fp32", torch.float32)
# MI300 knows only the second of the two 8-bit formats, everything else the first.
FP8 = tuple(
    OperandKind("fp8", getattr(torch, name), scaled=True)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz")
    if hasattr(torch, name)
)


def arena(precision: OperandKind, elements: int, place: Rank) -> Tensor:
    """Return a buffer of normal random numbers: zeros would draw less power and run faster."""
    least = ARENA_BYTES[place.device.type] // precision.dtype.itemsize
    buffer = torch.empty(max(elements, least), dtype=precision.dtype, device=place.device)
    if not precision.scaled:
        return buffer.normal_()
    for start in range(0, buffer.numel(), CHUNK):
        part = buffer[start : start + CHUNK]
        part.copy_(torch.randn(part.numel(), device=place.device))
    return buffer


def elements(m: int, n: int, k: int) -> int:
    """Return how many elements of the buffer the operands of a product take."""
    return sum(_aligned(size) for size in (m * k, k * n))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _matrices(buffer: Tensor, *shapes: tuple[int, int]) -> list[list[Tensor]]:
    """Return sets of matrices of these shapes, each set at another place of the buffer."""
    sizes = [_aligned(rows * columns) for rows, columns in shapes]
    sets = min(max(buffer.numel() // sum(sizes), 1), MOST_SETS)
    found: list[list[Tensor]] = []
    for index in range(sets):
        start, members = index * sum(sizes), list[Tensor]()
        for (rows, columns), size in zip(shapes, sizes, strict=True):
            members.append(buffer[start : start + rows * columns].view(rows, columns))
            start += size
        found.append(members)
    return found


def product(
    buffer: Tensor, precision: OperandKind, layout: str, *, m: int, n: int, k: int
) -> Callable[[int], object]:
    """Return a call that multiplies [m, k] by [k, n]; its number chooses the operands."""
    if precision.scaled:
        return _scaled(buffer, m, n, k)
    stored = {
        "plain": ((m, k), (k, n)),
        "forward": ((m, k), (n, k)),  # x W^T
        "dgrad": ((m, k), (k, n)),  # dy W
        "wgrad": ((k, m), (k, n)),  # dy^T x
        "wgrad_accumulate": ((k, m), (k, n)),
    }[layout]
    sets = [
        (
            left.t() if layout.startswith("wgrad") else left,
            right.t() if layout == "forward" else right,
        )
        for left, right in _matrices(buffer, *stored)
    ]
    if layout == "wgrad_accumulate":
        return _accumulating(sets, m, n)
    output = torch.empty(m, n, dtype=precision.dtype, device=buffer.device)

    def call(number: int) -> None:
        torch.mm(*sets[number % len(sets)], out=output)

    return call


def _accumulating(sets: list[tuple[Tensor, Tensor]], m: int, n: int) -> Callable[[int], object]:
    """Return a product that is added to an fp32 sum by the same kernel, as the trainer does."""
    total = torch.zeros(m, n, dtype=torch.float32, device=sets[0][0].device)

    def call(number: int) -> None:
        torch_any.addmm(total, *sets[number % len(sets)], out_dtype=total.dtype, out=total)

    return call


def _scaled(buffer: Tensor, m: int, n: int, k: int) -> Callable[[int], object]:
    """Return an fp8 product with one scale a tensor and a bf16 result."""
    one = torch.ones((), dtype=torch.float32, device=buffer.device)
    sets = _matrices(buffer, (m, k), (n, k))

    def call(number: int) -> object:
        left, right = sets[number % len(sets)]
        return torch_any._scaled_mm(
            left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return call
