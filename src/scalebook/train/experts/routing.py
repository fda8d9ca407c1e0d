"""How evenly the router spreads tokens over the ranks that hold the experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from scalebook.config import RunConfig


@dataclass(slots=True)
class Routing:
    """Counts the tokens that this rank's experts get, layer by layer; no rank waits for it."""

    counts: list[int] = field(default_factory=list[int])  # one a layer of the whole model

    def add(self, layer: int, _experts: Any, given: tuple[Any, ...]) -> None:
        """Count the rows [tokens, hidden] that an experts' module is called with."""
        self.counts[layer] += len(given[0])

    def take(self) -> list[int]:
        """Return the counts since the last call, and begin anew."""
        taken, self.counts = self.counts, [0] * len(self.counts)
        return taken


def watch(config: RunConfig, chunks: Sequence[Any], num_layers: int) -> Routing:
    """Return a counter of the experts in this rank's chunks; of nothing where none are spread."""
    if config.expert_parallel_size == 1:
        return Routing()
    routing = Routing([0] * (num_layers + config.mtp_layers))
    further = count(num_layers)
    for chunk in chunks:
        for name, part in chunk.named_modules():
            if hasattr(part, "router") and hasattr(part, "experts"):
                # Megatron-Core from 0.17 on numbers the modules for further tokens anew, from 1.
                beyond = ".mtp." in f".{name}"
                layer = next(further) if beyond else part.layer_number - 1
                part.experts.register_forward_pre_hook(partial(routing.add, layer))
    return routing


def load(layers: Sequence[Sequence[float]], pipeline_parallel_size: int) -> float | None:
    """Return what the busiest ranks' experts got over the mean: 1 where all got as much.

    ``layers`` holds for each layer the tokens of every rank. The ranks of a layer wait for the
    busiest of them, so the busiest are added up over the layers. None where nothing was counted.
    """
    # A layer is on the ranks of one stage; the others count nothing.
    mean = sum(sum(tokens) * pipeline_parallel_size / len(tokens) for tokens in layers)
    return sum(max(tokens) for tokens in layers) / mean if mean > 0 else None
