"""Linear layers whose tensor-parallel collectives run in pieces, between pieces of the GEMM.

With sequence parallelism a column-parallel layer multiplies what it gathers, and a row-parallel
layer scatters what it multiplied. torch's symmetric memory cuts both in one piece a rank: while
one piece is multiplied, the next is copied over the links (Wang et al., ASPLOS 2023,
doi:10.1145/3567955.3567959). Without it, the same functions gather first and multiply then.

Two ranks exchange their pieces by the functions here. torch's operators, which serve any number of
ranks, wait 7 times instead of 4 for a pair of layers, add up two pieces at a third of the memory's
speed, and leave gathers for a weight's gradient to kernels that products compete with.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from scalebook.config import RunConfig
from scalebook.train import mcore
from scalebook.train.layers import fused, remake
from scalebook.train.world import World, distributed

SYMMETRIC_MEMORY = "torch.distributed._symmetric_memory"
WRITTEN, READ = 0, 1  # channels of barriers

_cuda: Any = torch.cuda


def obstacle(config: RunConfig, world: World, transformer_engine: bool) -> str | None:
    """Return why the layers here cannot be used; None where they can."""
    per_node = config.world_size // config.nodes
    obstacles = {
        "it is made for GPUs": not world.on_gpu,
        "it needs tensor_parallel_size above 1 and sequence_parallel": (
            config.tensor_parallel_size == 1 or not config.sequence_parallel
        ),
        "Transformer Engine has linear layers of its own": transformer_engine,
        "FSDP has no main gradient": config.data_parallel_sharding == "full",
        "its ranks must be GPUs of one node": config.tensor_parallel_size > per_node,
        f"torch {torch.__version__} has no symmetric memory": find_spec(SYMMETRIC_MEMORY) is None,
    }
    return next((why for why, stands in obstacles.items() if stands), None)


def _ops() -> Any:
    import_module(SYMMETRIC_MEMORY)  # registers the operators
    operators: Any = torch.ops
    return operators.symm_mem


@cache
def _streams() -> tuple[Any, Any]:
    """Return the streams of the other rank's piece and of the barrier after it was read."""
    return _cuda.Stream(), _cuda.Stream(priority=-1)


def _places(group: Any, *pieces: Tensor) -> tuple[Any, list[Tensor], list[Tensor]]:
    """Return the memory that two ranks share, and the places for pieces in either's part of it.

    Who reads the other's places meets it in a barrier afterwards, so the next pieces may come.
    """
    symmetric: Any = import_module(SYMMETRIC_MEMORY)
    size = sum(piece.nbytes for piece in pieces)
    memory = symmetric.get_symm_mem_workspace(group.group_name, min_size=size)
    places: tuple[list[Tensor], ...] = ([], [])
    for found, rank in zip(places, (memory.rank, 1 - memory.rank), strict=True):
        begin = 0
        for piece in pieces:
            found.append(memory.get_buffer(rank, piece.shape, piece.dtype, begin))
            begin += piece.numel()
    return memory, *places


def _gather_of_two(rows: Tensor, weight: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """Return (rows of both ranks [2, rows, in], they x ``weight``)."""
    memory, (own,), (other,) = _places(group, rows)
    current, (side, after) = _cuda.current_stream(), _streams()
    rank, remote = memory.rank, 1 - memory.rank
    whole = rows.new_empty((2, *rows.shape))
    product = rows.new_empty((2, len(rows), weight.shape[1]))
    own.copy_(rows)
    memory.barrier(channel=WRITTEN)  # begins before a product fills the device
    side.wait_stream(current)
    torch.mm(rows, weight, out=product[rank])
    with _cuda.stream(side):
        whole[remote].copy_(other)
    after.wait_stream(side)
    with _cuda.stream(after):
        memory.barrier(channel=READ)
    with _cuda.stream(side):
        torch.mm(whole[remote], weight, out=product[remote])
    whole[rank].copy_(rows)
    current.wait_stream(side)
    current.wait_stream(after)
    return whole, product


def _scatter_of_two(whole: Tensor, weight: Tensor, group: Any, *shards: Tensor) -> list[Tensor]:
    """Return this rank's half of the sum over ranks of ``whole`` [rows, in] x ``weight``.

    Shards are gathered meanwhile; what of each is returned, too, is [2, its rows, its columns].
    """
    halves: Any = whole.chunk(2)
    parts = whole.new_empty((2, len(halves[0]), weight.shape[1]))
    gathered = [shard.new_empty((2, *shard.shape)) for shard in shards]
    memory, (own, *own_shards), (other, *other_shards) = _places(group, parts[0], *shards)
    current, (side, after) = _cuda.current_stream(), _streams()
    rank, remote = memory.rank, 1 - memory.rank
    side.wait_stream(current)
    with _cuda.stream(side):
        torch.mm(halves[remote], weight, out=own)
        for place, shard in zip(own_shards, shards, strict=True):
            place.copy_(shard)
        memory.barrier(channel=WRITTEN)
        parts[remote].copy_(other)
    _cuda._sleep(100)  # so that what the other rank waits for is multiplied first
    torch.mm(halves[rank], weight, out=parts[rank])
    after.wait_stream(side)
    with _cuda.stream(after):
        for place, found in zip(other_shards, gathered, strict=True):
            found[remote].copy_(place)
        memory.barrier(channel=READ)
    for found, shard in zip(gathered, shards, strict=True):
        found[rank].copy_(shard)
    current.wait_stream(side)
    part = parts[0] + parts[1]
    current.wait_stream(after)
    return [part, *gathered]


def gather_matmul(shard: Tensor, weight: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """Return (the gathered sequence, it x ``weight``) for ``shard`` [sequence / ranks, batch, in].

    ``weight`` is [in, out].
    """
    if shard.is_cuda and group.size() == 2:
        found = _gather_of_two(shard.flatten(0, -2), weight, group)
        whole, product = (each.view(-1, *shard.shape[1:-1], each.shape[-1]) for each in found)
        return whole, product
    if shard.is_cuda:
        whole, (product,) = _ops().fused_all_gather_matmul(shard, [weight], 0, group.group_name)
        return whole, product
    whole, work = _gathering(shard, group)
    work.wait()
    return whole, whole @ weight


def matmul_scatter(whole: Tensor, weight: Tensor, group: Any) -> Tensor:
    """Return this rank's part of the sequence of the sum over ranks of ``whole`` x ``weight``."""
    if whole.is_cuda and group.size() == 2:
        (part,) = _scatter_of_two(whole.flatten(0, -2), weight, group)
        return part.view(-1, *whole.shape[1:-1], part.shape[-1])
    if whole.is_cuda:
        return _ops().fused_matmul_reduce_scatter(whole, weight, "sum", 0, group.group_name)
    product: Tensor = (whole @ weight).contiguous()
    distributed.all_reduce(product, group=group)
    parts: Any = product.chunk(group.size())
    own: Tensor = parts[group.rank()].contiguous()
    return own


def _gathering(shard: Tensor, group: Any) -> tuple[Tensor, Any]:
    """Begin to gather a sequence; return where it comes to, and what waits for it."""
    whole = shard.new_empty((shard.shape[0] * group.size(), *shard.shape[1:]))
    gather = distributed.all_gather_into_tensor
    return whole, gather(whole, shard.contiguous(), group=group, async_op=True)


def _scatter_and_gather(
    whole: Tensor, weight: Tensor, shard: Tensor, group: Any
) -> tuple[Tensor, Tensor]:
    """Return what ``matmul_scatter`` does, and the sequence of a shard, gathered meanwhile."""
    if whole.is_cuda and group.size() == 2:
        rows, own = whole.flatten(0, -2), shard.flatten(0, -2)
        part, gathered = _scatter_of_two(rows, weight, group, own)
        part = part.view(-1, *whole.shape[1:-1], part.shape[-1])
        return part, gathered.view(-1, *shard.shape[1:])
    gathered, work = _gathering(shard, group)
    part = matmul_scatter(whole, weight, group)
    work.wait()
    return part, gathered


def _weight_gradient(
    weight: Any, inputs: Tensor, grad_output: Tensor, *, into_main: bool
) -> Tensor:
    """Return the gradient of a weight, or add it to the main gradient."""
    rows, grads = inputs.flatten(0, -2), grad_output.flatten(0, -2)
    if not into_main:
        return grads.t() @ rows
    fused.accumulate_weight_gradient(rows, grads, weight.main_grad)
    return fused.in_main_gradient(weight)


class _GatherMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, weight: Tensor, group: Any, into_main: bool) -> Tensor:
        ctx.save_for_backward(shard, weight)
        ctx.group, ctx.into_main = group, into_main
        return gather_matmul(shard, weight.t(), group)[1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        shard, weight = ctx.saved_tensors
        (grad_output,) = grad_outputs
        # Gathered again while the gradient of the input is made, rather than kept.
        output = grad_output.contiguous()
        grad_input, whole = _scatter_and_gather(output, weight, shard, ctx.group)
        grad_weight = _weight_gradient(weight, whole, grad_output, into_main=ctx.into_main)
        return grad_input, grad_weight, None, None


class _MatmulScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, weight: Tensor, group: Any, into_main: bool) -> Tensor:
        ctx.save_for_backward(whole, weight)
        ctx.group, ctx.into_main = group, into_main
        return matmul_scatter(whole, weight.t(), group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        whole, weight = ctx.saved_tensors
        gathered, grad_input = gather_matmul(grad_outputs[0].contiguous(), weight, ctx.group)
        grad_weight = _weight_gradient(weight, whole, gathered, into_main=ctx.into_main)
        return grad_input, grad_weight, None, None


def _apply(function: Any, input_: Tensor, layer: Any) -> tuple[Tensor, Tensor | None]:
    into_main = bool(layer.gradient_accumulation_fusion)
    output: Tensor = function.apply(input_, layer.weight, layer.tp_group, into_main)
    remake.release(input_, output, getattr(layer, "host", None), getattr(layer, "below", None))
    if layer.bias is None:
        return output, None
    return (output, layer.bias) if layer.skip_bias_add else (output + layer.bias, None)


def _parent(untyped: Any) -> Any:
    return untyped


class OverlappedColumn(mcore.ColumnParallelLinear):
    """Column-parallel linear layer that multiplies while it gathers."""

    def forward(self, input_: Tensor, weight: Tensor | None = None, *_: Any, **__: Any) -> Any:
        """Return (output [sequence, batch, out / ranks], bias or None)."""
        if weight is not None or self.gather_output or not self.sequence_parallel:
            return _parent(super()).forward(input_, weight, *_, **__)
        return _apply(_GatherMatmul, input_, self)


class OverlappedRow(mcore.RowParallelLinear):
    """Row-parallel linear layer that scatters while it multiplies."""

    def forward(self, input_: Tensor) -> Any:
        """Return (output [sequence / ranks, batch, out], bias or None)."""
        if not self.sequence_parallel:
            return _parent(super()).forward(input_)
        return _apply(_MatmulScatter, input_, self)
