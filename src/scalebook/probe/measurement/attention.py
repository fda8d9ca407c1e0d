"""The rate of causal attention by each of torch's fused kernels that this device has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from scalebook.facts.catalog.types import ModelShape
from scalebook.measure.probes import Attention, ProbeRequest
from scalebook.probe.measurement.place import Budget, Rank
from scalebook.probe.measurement.timing import measure

# The backward pass has 5 products of s x s x d where the forward has 2.
PRODUCTS = {"forward": 2, "forward_backward": 7}
FUSED = {
    "cuda": ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"),
    "cpu": ("FLASH_ATTENTION",),
}
members: Any = SDPBackend.__members__


def backends(place: Rank) -> list[str]:
    """Return the names of torch's fused kernels for this kind of device."""
    return [name for name in FUSED[place.device.type] if name in members]


def cases(models: list[ModelShape], place: Rank) -> int:
    """Return how many measurements there are."""
    return len(models) * len(backends(place)) * len(PRODUCTS)


def measured(
    models: list[ModelShape],
    request: ProbeRequest,
    place: Rank,
    budget: Budget,
    show: Callable[[str], None],
) -> list[Attention]:
    """Return the rate of each kernel at each model's heads; what a kernel refuses is noted."""
    found: list[Attention] = []
    for shape in models:
        inputs = _inputs(shape, request, place)
        for name in backends(place):
            for direction in PRODUCTS:
                what = f"attention {name.lower()} {direction} of {shape.name}"
                row = _measured(inputs, (name, direction), what, place, budget)
                if row is not None:
                    found.append(row)
                    show(f"attention {name.lower()} {direction}: {row.tflops:.4g} TFLOP/s")
    return found


def _measured(
    inputs: list[torch.Tensor], kernel: tuple[str, str], what: str, place: Rank, budget: Budget
) -> Attention | None:
    (name, direction), slot = kernel, budget.slot()
    if slot <= 0:
        budget.skip(what)
        return None
    query, key, value = inputs
    gradient = torch.randn_like(query)

    def call(_: int) -> None:
        options: Any = {"enable_gqa": query.shape[1] != key.shape[1]}
        with torch.set_grad_enabled(direction != "forward"):
            context = scaled_dot_product_attention(query, key, value, is_causal=True, **options)
        if direction != "forward":
            torch.autograd.grad(context, (query, key, value), gradient)

    try:
        with sdpa_kernel(members[name]):
            took = measure(call, place, slot)
    except RuntimeError as error:
        budget.skip(what, str(error).partition("\n")[0])
        return None
    batch, heads, length, dim = query.shape
    flops = PRODUCTS[direction] * 2.0 * batch * heads * length * length * dim / 2
    return Attention.model_validate(
        {
            "precision": "bf16" if place.on_gpu else "fp32",
            "backend": name.removesuffix("_ATTENTION").lower(),
            "direction": direction,
            **{"batch": batch, "heads": heads, "groups": key.shape[1], "head_dim": dim},
            "sequence_length": length,
            "tflops": flops / took.seconds / 1e12,
            "tflops_best": flops / took.best / 1e12,
            "spread": took.spread,
        }
    )


def _inputs(shape: ModelShape, request: ProbeRequest, place: Rank) -> list[torch.Tensor]:
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
