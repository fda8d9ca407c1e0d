"""Tokens into the order of their experts and back, without copies from the device to the host.

Megatron-Core's own, where Transformer Engine does not fuse it, selects by mask: the number of rows
is then asked of the device twice per layer. It adds tokens back with atomics and cuts them into a
piece for each expert and rank. Here every size is known beforehand (each token visits as many
experts as any other), and rows move by one gather each way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from scalebook.parallelism import experts_need_no_host
from scalebook.train.layers import fused

Combine = Callable[[Tensor, Tensor], Tensor]
Way = tuple[Combine, Tensor]  # how rows are moved, and by which indices
Undoing = dict[Any, list[Tensor]]  # what undoes the last change of places, by what asks for it


def _combine(rows: Tensor, places: Tensor) -> Tensor:
    """Return for each token the sum of its rows [tokens, hidden]; ``places`` [tokens, each]."""
    return rows[places].sum(1)


def _combine_each(rows: Tensor, places: Tensor) -> Tensor:
    """Return the same for the compiler, which would give the sum's terms to neighbouring threads.

    Their rows lie apart: at 8 experts per token that reads at a quarter of the speed.
    """
    first, *others = places.unbind(1)
    total = rows[first].float()
    for place in others:
        total = total + rows[place].float()
    return total.to(rows.dtype)


def _select(rows: Tensor, order: Tensor) -> Tensor:
    """Return the rows in an order; one may come several times."""
    return rows.index_select(0, order)


class _Moved(torch.autograd.Function):
    """Rows that a function moves by its indices; another moves their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Way, back: Way) -> Tensor:
        move, places = there
        ctx.undo, undoing = back
        ctx.save_for_backward(undoing)
        return move(rows, places)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return ctx.undo(grad_outputs[0], *ctx.saved_tensors), None, None


def _set_places(chosen: Tensor, rows: int) -> Tensor:
    """Return the indices of the ``rows`` true elements of a mask, in their order."""
    found = chosen.cumsum(0)
    # What is not chosen is written behind the end.
    target = torch.where(chosen, found - 1, rows)
    indices = torch.arange(len(chosen), device=chosen.device)
    return indices.new_empty(rows + 1).scatter_(0, target, indices)[:rows]


def permute(
    tokens: Tensor, routing_map: Tensor, probs: Tensor, rows: int, combine: Combine = _combine
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens [rows, hidden] expert by expert, their weights, and which token each row is.

    ``routing_map`` [tokens, experts] marks as many experts for every token, ``rows`` in all.
    """
    each_expert = _set_places(routing_map.bool().T.reshape(-1), rows)
    order = each_expert % len(tokens)
    places = order.argsort(stable=True).view(len(tokens), -1)
    order.places = places  # pyright: ignore[reportAttributeAccessIssue]
    spread = fused.apply(_Moved, tokens, (_select, order), (combine, places))
    return spread, probs.T.reshape(-1).index_select(0, each_expert), order


def unpermute(rows: Tensor, order: Any, combine: Combine = _combine) -> Tensor:
    """Return for each token the sum of its rows [tokens, hidden]; ``order`` is that of permute."""
    return fused.apply(_Moved, rows, (combine, order.places), (_select, order))


def _starts(sizes: Tensor) -> Tensor:
    return sizes.cumsum(0) - sizes


def _places(sizes: Tensor, chunks: Tensor, rows: int, device: torch.device) -> list[Tensor]:
    """Return the rows in the order in which ``chunks`` lists pieces of these sizes; its inverse.

    What host numbers say is computed on the host and copied once: launches are what a layer of
    many small experts waits for.
    """
    moved, opposite = sizes[chunks], chunks.argsort()
    shift = _starts(sizes)[chunks] - _starts(moved)
    table = torch.stack([shift, moved, -shift[opposite], sizes]).to(device, non_blocking=True)
    own = torch.arange(rows, device=device)
    return [
        own + torch.repeat_interleave(table[row], table[row + 1], output_size=rows)
        for row in (0, 2)
    ]


def _order(
    undoing: Undoing, sizes: Tensor, chunks: Tensor, rows: int, device: torch.device
) -> list[Tensor]:
    """Return ``_places``; those of experts' outputs are the inverse of those of their inputs."""

    def key(*tensors: Any) -> tuple[Any, ...]:
        return device, *(tuple(tensor.tolist()) for tensor in tensors)

    found = undoing.pop(key(sizes, chunks), None)
    if found is None:
        found = _places(sizes, chunks, rows, device)
        undoing.clear()
        undoing[key(sizes[chunks], chunks.argsort())] = found[::-1]
    return found


def sort_chunks(
    rows: Tensor, sizes: Tensor, chunks: Tensor, probs: Tensor | None, undoing: Undoing
) -> tuple[Tensor, Tensor | None]:
    """Return rows and their weights with the pieces of these sizes in the order of ``chunks``.

    ``undoing`` passes places on to the call that undoes this one.
    """
    if torch.equal(chunks, torch.arange(len(chunks))):
        return rows, probs
    order, back = _order(undoing, sizes.cpu(), chunks, len(rows), rows.device)
    ways = (_select, order), (_select, back)
    weights = None if probs is None else fused.apply(_Moved, probs, *ways)
    return fused.apply(_Moved, rows, *ways), weights


def install(*, compiled: bool) -> None:
    """Put these in the place of Megatron-Core's, for what its dispatcher does without dropping."""
    dispatcher: Any = import_module("megatron.core.transformer.moe.token_dispatcher")
    combine = fused.compiled(_combine_each) if compiled else _combine
    undoing: Undoing = {}
    for name, make, given in (
        ("permute", _permute, combine),
        ("unpermute", _unpermute, combine),
        ("sort_chunks_by_idxs", _sort, undoing),
    ):
        original = getattr(dispatcher, name)
        if not isinstance(original, partial):
            setattr(dispatcher, name, partial(make, original, given))
    _leave_counts(dispatcher.MoEAlltoAllTokenDispatcher)


def _leave_counts(dispatcher: Any) -> None:
    """Leave the number of tokens of each expert on the device where the host needs none.

    Megatron-Core's dispatcher copies them to the host, which waits for them in every layer.
    """
    name = "_maybe_dtoh_and_synchronize"
    original = getattr(dispatcher, name)

    def copy(self: Any, point: str, tokens_per_expert: Any = None) -> Any:
        if experts_need_no_host(self.num_local_experts, self.ep_size, self.tp_size):
            return tokens_per_expert
        return original(self, point, tokens_per_expert)

    if not hasattr(original, "leaves"):
        copy.leaves = True  # pyright: ignore[reportFunctionMemberAccess]
        setattr(dispatcher, name, copy)


def _permute(
    original: Any, combine: Combine, tokens: Tensor, routing_map: Tensor, **options: Any
) -> Any:
    rows, probs = options.get("num_out_tokens"), options.get("probs")
    plain = not (options.get("fused") or options.get("drop_and_pad"))
    if not (plain and isinstance(rows, int) and isinstance(probs, Tensor)):
        return original(tokens, routing_map, **options)
    moved = permute(tokens, routing_map, probs, rows, combine)
    # From 0.17 on, padding is returned as well, which only fused kernels make.
    return (*moved, None, None) if "align_size" in signature(original).parameters else moved


def _unpermute(
    original: Any, combine: Combine, rows: Tensor, order: Tensor, **options: Any
) -> Tensor:
    if not hasattr(order, "places"):
        return original(rows, order, **options)
    return unpermute(rows, order, combine)


def _sort(
    original: Any, undoing: Undoing, rows: Tensor, sizes: Any, chunks: Tensor, **options: Any
) -> Any:
    if options.get("fused") or chunks.is_cuda:
        return original(rows, sizes, chunks, **options)
    return sort_chunks(rows, torch.as_tensor(sizes), chunks, options.get("probs"), undoing)
