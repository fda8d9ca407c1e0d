"""How fast this device computes: matrix products by shape, one of them sustained, and attention."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from itertools import product as product_of
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from scalebook.facts import catalog
from scalebook.facts.catalog.types import ModelShape
from scalebook.measure.probes import Attention, Matmul, ProbeRequest, Sample, Sustained
from scalebook.measure.probes.shapes import LayerProduct, products, tensor_sizes
from scalebook.probe.measurement.timing import (
    Budget,
    Call,
    Rank,
    Timing,
    between,
    cuda,
    mark,
    measure,
)

# Random operands of products, taken from one large buffer so that no cache holds them

# More than any cache between the units and the memory: 256 MiB on MI300X, 50 MiB on H100.
ARENA_BYTES = {"cuda": 2**30, "cpu": 2**24}
MOST_SETS = 256
ALIGNMENT = 256  # elements; operands start where an allocation of their own could
CHUNK = 2**24  # elements made at a time where a type cannot be drawn itself

torch_any: Any = torch  # some of its functions are typed only in part


@dataclass(frozen=True, slots=True)
class OperandKind:
    """A kind of product: the operands' type, and what torch must be set to before."""

    name: str
    dtype: torch.dtype
    float32_matmul: str = "highest"
    scaled: bool = False  # fp8: torch._scaled_mm, both operands K-major


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


def product(buffer: Tensor, precision: OperandKind, layout: str, *, m: int, n: int, k: int) -> Call:
    """Return a call that multiplies [m, k] by [k, n]; its number chooses the operands."""
    layout = "forward" if precision.scaled else layout
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
    if precision.scaled:  # one scale a tensor and a bf16 result
        one = torch.ones((), dtype=torch.float32, device=buffer.device)
        multiply = partial(torch_any._scaled_mm, scale_a=one, scale_b=one, use_fast_accum=True)
        multiply = partial(multiply, out_dtype=torch.bfloat16)
    elif layout == "wgrad_accumulate":  # added to an fp32 sum by one kernel, as the trainer does
        total = torch.zeros(m, n, dtype=torch.float32, device=buffer.device)
        multiply = partial(torch_any.addmm, total, out_dtype=total.dtype, out=total)
    else:
        output = torch.empty(m, n, dtype=precision.dtype, device=buffer.device)
        multiply = partial(torch_any.mm, out=output)
    return lambda number: multiply(*sets[number % len(sets)])


# The GEMM ceiling: a sweep of shapes, and the products of models' layers

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
    of: Mapping[str, Any] = field(default_factory=dict[str, Any])  # fields of Matmul

    def __str__(self) -> str:
        of = " {model} tp{tensor_parallel_size} {layer}".format(**self.of) if self.of else ""
        return f"GEMM {self.precision.name}{of} {self.layout} {self.m}x{self.n}x{self.k}"


def fp8_precision(place: Rank) -> OperandKind | None:
    """Return the 8-bit format that this device multiplies, None where it multiplies none."""
    for precision in FP8 if place.on_gpu else ():
        buffer = torch.zeros(2 * 64 * 64, device=place.device).to(precision.dtype)
        try:
            product(buffer, precision, "forward", m=64, n=64, k=64)(0)
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


def _case(
    item: LayerProduct, precision: OperandKind, layout: str, model: str, size: int
) -> MatmulCase:
    rows, wide, deep = item.rows, item.outputs, item.inputs
    m, n, k = {"forward": (rows, wide, deep), "dgrad": (rows, deep, wide)}.get(
        layout, (wide, deep, rows)
    )
    of = {"model": model, "layer": item.layer, "tensor_parallel_size": size, "count": item.count}
    return MatmulCase(precision, layout, m, n, k, of)


def measured_matmuls(cases: Sequence[MatmulCase], budget: Budget) -> list[Matmul]:
    """Return the rate of each case; cases of one precision share a buffer."""
    found: list[Matmul] = []
    budget.cases = len(cases)
    for precision in dict.fromkeys(case.precision for case in cases):
        members = [case for case in cases if case.precision == precision]
        torch.set_float32_matmul_precision(precision.float32_matmul)
        most = max(elements(case.m, case.n, case.k) for case in members)
        buffer = arena(precision, most, budget.place)
        for case in members:
            found += _measured_matmul(case, buffer, budget)
        del buffer
        if budget.place.on_gpu:
            cuda.empty_cache()
    torch.set_float32_matmul_precision(FP32.float32_matmul)
    return found


def _measured_matmul(case: MatmulCase, buffer: Tensor, budget: Budget) -> Iterator[Matmul]:
    shape = {"m": case.m, "n": case.n, "k": case.k}

    def timed(seconds: float) -> Timing:
        call = product(buffer, case.precision, case.layout, **shape)
        return measure(call, budget.place, seconds)

    if took := budget.spend(str(case), timed):
        values: dict[str, Any] = {**shape, **case.of, **took.rates(2.0 * case.m * case.n * case.k)}
        row = Matmul(precision=case.precision.name, layout=case.layout, calls=took.calls, **values)
        budget.show(f"{case}: {row.tflops:.4g} TFLOP/s")
        yield row


# One product repeated for seconds: clocks fall under load, and a short test does not see it

REST_SECONDS = {"cuda": 1.0, "cpu": 0.0}  # the device cools and its clock rises again
BURST_SECONDS = 0.25
SUSTAINED_ROUND_SECONDS = 10e-3
ROUNDS_AHEAD = 8  # asked of the device before the host waits for it
PARTS = 20  # of the series over time

Moment = Literal["idle", "loaded"]
Sampler = Callable[[Moment], list[Sample]]


def sustained(size: int, place: Rank, seconds: float, sample: Sampler) -> Sustained:
    """Return the rate of a square product over seconds; every process must call this."""
    precision = BF16 if place.on_gpu else FP32
    shape = {"m": size, "n": size, "k": size}
    buffer = arena(precision, elements(**shape), place)
    call = product(buffer, precision, "plain", **shape)
    calls = max(1, round(SUSTAINED_ROUND_SECONDS / measure(call, place, 0.0).seconds))
    idle = sample("idle")
    time.sleep(REST_SECONDS[place.device.type])
    place.barrier()
    rounds, loaded = _rounds(call, calls, place, seconds, sample)
    flops = 2.0 * size**3 * calls / 1e12
    burst = 1 + sum(passed < BURST_SECONDS for passed in accumulate(rounds[:-1]))
    half = rounds[len(rounds) // 2 :]
    steady = flops * len(half) / sum(half)
    return Sustained(
        precision=precision.name,
        **shape,
        seconds=sum(rounds),
        burst_tflops=flops / median(rounds[:burst]),
        sustained_tflops=steady,
        series_tflops=tuple(_parts([flops / seconds for seconds in rounds])),
        rank_tflops=place.gather(steady),
        samples=tuple(idle + loaded),
    )


def _rounds(
    call: Call, calls: int, place: Rank, seconds: float, sample: Sampler
) -> tuple[list[float], list[Sample]]:
    """Return the seconds of each round, and samples from the middle of it all."""
    found, samples = list[float](), list[Sample]()
    # The driver's tool takes a while to answer, during which the device must not fall idle.
    asking = threading.Thread(target=lambda: samples.extend(sample("loaded")))
    begin = time.perf_counter()
    while (now := time.perf_counter() - begin) < seconds or not found:
        if now > seconds / 2 and asking.ident is None:
            asking.start()
        marks = [mark(place)]
        for _ in range(ROUNDS_AHEAD):
            for number in range(calls):
                call(number)
            marks.append(mark(place))
        place.synchronize()
        found += between(marks)
    if asking.ident is not None:
        asking.join()
    return found, samples


def _parts(rates: list[float]) -> Iterator[float]:
    size = max(len(rates) // PARTS, 1)
    for start in range(0, len(rates) - size + 1, size):
        part = rates[start : start + size]
        yield sum(part) / len(part)


# The rate of causal attention by each of torch's fused kernels that this device has

# The backward pass has 5 products of s x s x d where the forward has 2.
PRODUCTS = {"forward": 2, "forward_backward": 7}
FUSED = {
    "cuda": ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"),
    "cpu": ("FLASH_ATTENTION",),
}
members: Any = SDPBackend.__members__


def measured_attention(
    models: list[ModelShape], request: ProbeRequest, budget: Budget
) -> list[Attention]:
    """Return the rate of each kernel at each model's heads; what a kernel refuses is noted."""
    found: list[Attention] = []
    known = [name for name in FUSED[budget.place.device.type] if name in members]
    kernels = list(product_of(known, PRODUCTS))
    budget.cases = len(models) * len(kernels)
    for shape in models:
        inputs = _inputs(shape, request, budget.place)
        for name, direction in kernels:
            found += _measured_kernel(inputs, name, direction, shape.name, budget)
    return found


def _measured_kernel(
    inputs: list[Tensor], name: str, direction: str, model: str, budget: Budget
) -> Iterator[Attention]:
    query, key, value = inputs
    gradient = torch.randn_like(query)

    def call(_: int) -> None:
        options: Any = {"enable_gqa": query.shape[1] != key.shape[1]}
        with torch.set_grad_enabled(direction != "forward"):
            context = scaled_dot_product_attention(query, key, value, is_causal=True, **options)
        if direction != "forward":
            torch.autograd.grad(context, (query, key, value), gradient)

    def timed(seconds: float) -> Timing:
        with sdpa_kernel(members[name]):
            return measure(call, budget.place, seconds)

    what = f"attention {name.lower()} {direction}"
    took = budget.spend(f"{what} of {model}", timed)
    if took is None:
        return
    batch, heads, length, dim = query.shape
    flops = PRODUCTS[direction] * 2.0 * batch * heads * length * length * dim / 2
    row = Attention.model_validate(
        {
            "precision": "bf16" if budget.place.on_gpu else "fp32",
            "backend": name.removesuffix("_ATTENTION").lower(),
            "direction": direction,
            **{"batch": batch, "heads": heads, "groups": key.shape[1], "head_dim": dim},
            "sequence_length": length,
            **took.rates(flops),
        }
    )
    budget.show(f"{what}: {row.tflops:.4g} TFLOP/s")
    yield row


def _inputs(shape: ModelShape, request: ProbeRequest, place: Rank) -> list[Tensor]:
    """Return random queries, keys and values; laid out as the trainer has them, token by token."""
    batch, length = request.micro_batch_size, request.sequence_length
    dtype = torch.bfloat16 if place.on_gpu else torch.float32
    heads = (shape.num_attention_heads, shape.num_query_groups, shape.num_query_groups)
    return [
        torch.randn(length, batch, number, shape.head_dim, dtype=dtype, device=place.device)
        .permute(1, 2, 0, 3)
        .requires_grad_()
        for number in heads
    ]
