"""The GEMM ceiling: a sweep of shapes, and the products of models' layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from scalebook.facts import catalog
from scalebook.measure.probes import Matmul, ProbeRequest
from scalebook.measure.probes.shapes import Product, products, tensor_sizes
from scalebook.probe.measurement import operands
from scalebook.probe.measurement.operands import BF16, FP8, FP16, FP32, TF32, OperandKind
from scalebook.probe.measurement.place import Budget, Rank, cuda
from scalebook.probe.measurement.timing import measure

GPU_SWEEP = {
    "bf16": (256, 512, 1024, 2048, 4096, 6144, 8192, 12288, 16384),
    "fp8": (1024, 2048, 4096, 8192, 16384),
    "fp16": (2048, 4096, 8192),
    "tf32": (2048, 4096, 8192),
    "fp32": (2048, 4096),
}
CPU_SWEEP = {"fp32": (64, 128, 256, 512), "bf16": (64, 128, 256)}
LAYOUTS = ("forward", "dgrad", "wgrad", "wgrad_accumulate")


@dataclass(frozen=True, slots=True)
class MatmulCase:
    """One product to measure, and what it is of."""

    precision: OperandKind
    layout: str
    m: int
    n: int
    k: int
    model: str | None = None
    layer: str | None = None
    tensor_parallel_size: int | None = None
    count: int | None = None

    def __str__(self) -> str:
        of = f" {self.model} tp{self.tensor_parallel_size} {self.layer}" if self.model else ""
        return f"GEMM {self.precision.name}{of} {self.layout} {self.m}x{self.n}x{self.k}"


def fp8_precision(place: Rank) -> OperandKind | None:
    """Return the 8-bit format that this device multiplies, None where it multiplies none."""
    for precision in FP8 if place.on_gpu else ():
        buffer = torch.zeros(2 * 64 * 64, device=place.device).to(precision.dtype)
        try:
            operands.product(buffer, precision, "forward", m=64, n=64, k=64)(0)
            place.synchronize()
        except (RuntimeError, ValueError):  # NotImplementedError is a RuntimeError
            continue
        return precision
    return None


def sweep_cases(place: Rank) -> Iterator[MatmulCase]:
    """Yield squares from small to large in every precision that the device has."""
    known = {item.name: item for item in (BF16, FP16, TF32, FP32)}
    fp8 = fp8_precision(place)
    known |= {"fp8": fp8} if fp8 else {}
    for name, sizes in (GPU_SWEEP if place.on_gpu else CPU_SWEEP).items():
        for size in sizes if name in known else ():
            yield MatmulCase(known[name], "plain", size, size, size)


def model_cases(request: ProbeRequest, place: Rank) -> Iterator[MatmulCase]:
    """Yield the products of each model's layers, by tensor-parallel size and layout."""
    fp8 = fp8_precision(place)
    tokens = request.micro_batch_size * request.sequence_length
    for name in request.models:
        shape = catalog.model(name)
        for size in tensor_sizes(shape):
            for item in products(shape, tokens, size):
                for layout in LAYOUTS:
                    precision = BF16 if place.on_gpu else FP32
                    if layout != "wgrad_accumulate" or place.on_gpu:
                        yield _case(item, precision, layout, name, size)
                if fp8 and size == 1:
                    for layout in LAYOUTS[:3]:
                        yield _case(item, fp8, layout, name, size)


def _case(item: Product, precision: OperandKind, layout: str, model: str, size: int) -> MatmulCase:
    rows, wide, deep = item.rows, item.outputs, item.inputs
    m, n, k = {"forward": (rows, wide, deep), "dgrad": (rows, deep, wide)}.get(
        layout, (wide, deep, rows)
    )
    return MatmulCase(precision, layout, m, n, k, model, item.layer, size, item.count)


def measured(
    cases: Iterable[MatmulCase], place: Rank, budget: Budget, show: Callable[[str], None]
) -> list[Matmul]:
    """Return the rate of each case; cases of one precision share a buffer."""
    found: list[Matmul] = []
    by_precision: dict[OperandKind, list[MatmulCase]] = {}
    for case in cases:
        by_precision.setdefault(case.precision, []).append(case)
    for precision, members in by_precision.items():
        precision.apply()
        most = max(operands.elements(case.m, case.n, case.k) for case in members)
        buffer = operands.arena(precision, most, place)
        for case in members:
            row = _measured(case, buffer, place, budget)
            if row is not None:
                found.append(row)
                show(f"{case}: {row.tflops:.4g} TFLOP/s")
        del buffer
        if place.on_gpu:
            cuda.empty_cache()
    FP32.apply()
    return found


def _measured(case: MatmulCase, buffer: torch.Tensor, place: Rank, budget: Budget) -> Matmul | None:
    slot = budget.slot()
    if slot <= 0:
        budget.skip(str(case))
        return None
    try:
        call = operands.product(buffer, case.precision, case.layout, m=case.m, n=case.n, k=case.k)
        took = measure(call, place, slot)
    except (RuntimeError, TypeError) as error:  # out of memory is a RuntimeError
        budget.skip(str(case), str(error).partition("\n")[0])
        return None
    flops = 2.0 * case.m * case.n * case.k
    return Matmul(
        precision=case.precision.name,
        **{name: getattr(case, name) for name in ("m", "n", "k", "layout", "model", "layer")},
        tensor_parallel_size=case.tensor_parallel_size,
        count=case.count,
        tflops=flops / took.seconds / 1e12,
        tflops_best=flops / took.best / 1e12,
        spread=took.spread,
        calls=took.calls,
    )
