"""What a training process holds between two steps; nothing that uses it imports the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalebook.config import RunConfig
from scalebook.train.experts.routing import Routing
from scalebook.train.marks import Marks
from scalebook.train.model.chunks import Model
from scalebook.train.model.optimizer import Optimizer
from scalebook.train.samples import Samples, Share
from scalebook.train.world import World


@dataclass(frozen=True, slots=True)
class Trainer:
    """Everything that a step needs."""

    config: RunConfig
    world: World
    model: Model
    optimizer: Optimizer
    samples: Samples
    share: Share
    variables: dict[str, str]  # the environment, before Megatron-Core adds its own
    forward_backward: Any
    marks: Marks
    routing: Routing
