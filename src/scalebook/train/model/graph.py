"""A micro batch captured as a CUDA (or HIP) graph and replayed, where launches limit the speed.

A layer under tensor parallelism is some hundred short kernels; replayed as a graph they follow one
another without the host. Two graphs serve a step: one for every micro batch but the last, one for
the last with the reduction of gradients. In FP8 a third one serves the first, in which weights are
cast for the step. All use one memory pool, as they never run together.
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


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: Any
    batch: Batch
    loss: Tensor

    def run(self, batch: Batch) -> Tensor:
        """Return the mean loss of a micro batch after its gradients have been added."""
        for field in fields(Batch):
            getattr(self.batch, field.name).copy_(getattr(batch, field.name), non_blocking=True)
        self.graph.replay()
        return self.loss.clone()


class GraphedSchedule:
    """Megatron-Core's schedule without pipeline, replayed from its third step on."""

    def __init__(self, schedule: Callable[..., list[Tensor]]) -> None:
        self.schedule = schedule
        self.steps = 0
        self.graphs: tuple[_Graph, ...] = ()  # of the first, an inner and the last micro batch

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
    static = Batch(*(getattr(batch, field.name).clone() for field in fields(Batch)))
    config = chunk.config
    graph = _cuda.CUDAGraph()
    # The watchdog of the communicators may ask for events meanwhile: only this thread is bound.
    capture = _cuda.graph(
        graph, pool=pool, stream=_cuda.current_stream(), capture_error_mode="thread_local"
    )
    with mcore.no_random_streams(), capture:
        output = chunk(static.tokens, static.position_ids, None, labels=static.labels)
        mean = output.float().sum() / output.numel()  # as in the schedule, kernel for kernel
        torch.autograd.backward(config.grad_scale_func(mean / count))
        if finish:
            config.finalize_model_grads_func([chunk], None)
        loss = mean.detach()
    return _Graph(graph, static, loss)
