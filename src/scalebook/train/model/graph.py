"""A micro batch captured as a CUDA (or HIP) graph and replayed, where launches limit the speed.

A layer under tensor parallelism is some hundred short kernels; replayed as a graph they follow one
another without the host. Two graphs serve a step: one for every micro batch but the last, one for
the last with the reduction of gradients. In FP8 a third one serves the first, in which weights are
cast for the step. All use one memory pool, as they never run together.

A stage of a pipeline has several micro batches in flight, so each pass is a graph, and each micro
batch in flight has its own two in a pool of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scalebook.train import mcore
from scalebook.train.layers import fused
from scalebook.train.samples import Batch

WARM_UP_STEPS = 2  # steps before the capture: compilers, allocators and communicators start in them

_cuda: Any = torch.cuda


def leave_default_stream() -> None:
    """Make another stream the current one; must run before the model is wrapped.

    Gradients are accumulated in the stream that was current when their hooks were made, and work
    in the default stream waits for a capture in any other, which a capture forbids.
    """
    stream = _cuda.Stream()
    stream.wait_stream(_cuda.current_stream())
    _cuda.set_stream(stream)


def _put(static: Batch, batch: Batch) -> None:
    for field in fields(Batch):
        getattr(static, field.name).copy_(getattr(batch, field.name), non_blocking=True)


def _clone(batch: Batch) -> Batch:
    return Batch(*(getattr(batch, field.name).clone() for field in fields(Batch)))


def _recording(graph: Any, pool: Any) -> Any:
    # The watchdog of the communicators may ask for events meanwhile: only this thread is bound.
    return _cuda.graph(
        graph, pool=pool, stream=_cuda.current_stream(), capture_error_mode="thread_local"
    )


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: Any
    batch: Batch
    loss: Tensor

    def run(self, batch: Batch) -> Tensor:
        """Return the mean loss of a micro batch after its gradients have been added."""
        _put(self.batch, batch)
        self.graph.replay()
        return self.loss.clone()


class GraphedSchedule:
    """Megatron-Core's schedule without pipeline, replayed from its third step on."""

    def __init__(self, schedule: Callable[..., list[Tensor]]) -> None:
        self.schedule = schedule
        self.steps = self.left = 0
        self.graphs: Any = ()  # of the first, an inner and the last micro batch

    def __call__(self, **options: Any) -> list[Tensor]:
        """Run the micro batches of a step as Megatron-Core's schedules do; return their losses."""
        self.steps += 1
        if self.steps <= WARM_UP_STEPS:
            return self.schedule(**options)
        if options["num_microbatches"] < 2:
            raise ValueError("a graph needs 2 micro batches or more")
        (chunk,), iterator = options["model"], options["data_iterator"]
        count = options["num_microbatches"]
        batch = next(iterator)
        if not self.graphs:
            self.graphs = _capture(chunk, batch, count)
        first, inner, last = self.graphs
        losses = [first.run(batch)]
        # Each batch is made while the device works on the one before.
        losses += [graph.run(next(iterator)) for graph in [*[inner] * (count - 2), last]]
        return losses

    def close(self) -> None:
        """Drop the graphs: a communicator waits for those that hold its kernels before it ends."""
        self.graphs = ()


def _capture(chunk: Any, batch: Batch, count: int) -> tuple[_Graph, ...]:
    """Capture the graphs of a step; nothing runs, so no gradient is added."""
    _cuda.synchronize()
    _cuda.empty_cache()  # what the steps before kept is needed for the graphs' own pool
    captured = partial(_captured, chunk, batch, count, _cuda.graph_pool_handle())
    no_sync = chunk.config.no_sync_func or nullcontext
    with no_sync():
        chunk.set_is_first_microbatch()  # until each layer of Transformer Engine has run once
        first = captured(finish=False)
        inner = captured(finish=False) if chunk.config.fp8 else first
    return first, inner, captured(finish=True)


def _captured(chunk: Any, batch: Batch, count: int, pool: Any, *, finish: bool) -> _Graph:
    static, config, graph = _clone(batch), chunk.config, _cuda.CUDAGraph()
    with mcore.no_random_streams(), _recording(graph, pool):
        output = chunk(static.tokens, static.position_ids, None, labels=static.labels)
        mean = output.float().sum() / output.numel()  # as in the schedule, kernel for kernel
        torch.autograd.backward(config.grad_scale_func(mean / count))
        if finish:
            config.finalize_model_grads_func([chunk], None)
        loss = mean.detach()
    return _Graph(graph, static, loss)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A micro batch between its forward and its backward pass through a stage."""

    forward: Any
    backward: Any
    batch: Batch
    hidden: Tensor | None  # from the stage before
    output: Tensor
    gradient: Tensor  # of the output


def _captured_passes(chunk: Any, batch: Batch, hidden: Tensor | None) -> _InFlight:
    static, pool = _clone(batch), _cuda.graph_pool_handle()
    received = None if hidden is None else hidden.detach().clone().requires_grad_()
    chunk.module.set_input_tensor([received])
    forward, backward = _cuda.CUDAGraph(), _cuda.CUDAGraph()
    with mcore.no_random_streams(), _recording(forward, pool):
        output = chunk(static.tokens, static.position_ids, None, labels=static.labels)
    gradient = torch.zeros_like(output)
    with mcore.no_random_streams(), _recording(backward, pool):
        torch.autograd.backward(output, gradient)
    return _InFlight(forward, backward, static, received, output, gradient)


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _: Tensor, hidden: Tensor | None, passes: _InFlight, free: Any) -> Tensor:
        if passes.hidden is not None and hidden is not None:
            passes.hidden.copy_(hidden)
        passes.forward.replay()
        ctx.passes, ctx.free = passes, free
        return passes.output.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        passes: _InFlight = ctx.passes
        passes.gradient.copy_(grad_outputs[0])
        passes.backward.replay()
        ctx.free.append(passes)
        made = None if passes.hidden is None else passes.hidden.grad
        return None, None if made is None else made.clone(), None, None


class GraphedStage(GraphedSchedule):
    """Megatron-Core's schedule of a pipeline, whose passes are replayed from the third step on.

    The last micro batch of a step is launched kernel by kernel: hooks reduce its gradients.
    """

    def __call__(self, **options: Any) -> list[Tensor]:
        """Run a step as Megatron-Core's schedules do; return the losses that this stage sees."""
        self.steps += 1
        if self.steps > WARM_UP_STEPS:
            forward, self.left = options["forward_step_func"], options["num_microbatches"]
            self.graphs = [*self.graphs]  # those that no micro batch in flight has

            def replayed(batches: Any, chunk: Any) -> Any:
                return forward(batches, partial(self._run, chunk))

            options["forward_step_func"] = replayed
        return self.schedule(**options)

    def _run(
        self, chunk: Any, tokens: Tensor, positions: Tensor, mask: None, labels: Tensor
    ) -> Tensor:
        self.left -= 1
        if not self.left:
            return chunk(tokens, positions, mask, labels=labels)
        batch, hidden = Batch(tokens, labels, positions), chunk.module.decoder.input_tensor
        free: Any = self.graphs
        passes = free.pop() if free else _captured_passes(chunk, batch, hidden)
        _put(passes.batch, batch)
        start = torch.zeros((), device=tokens.device, requires_grad=True)  # the first has no other
        return fused.apply(_Replayed, start, hidden, passes, free)
