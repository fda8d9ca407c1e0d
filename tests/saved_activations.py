"""Print the bytes that the forward pass of one sample keeps for each configuration on stdin.

Run as a script with a port: a process has one world, and this one must not be the tests' own.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.train import cpu

cpu.install()

from scalebook.train.model.chunks import build  # noqa: E402
from scalebook.train.world import World, join  # noqa: E402


def kept(config: RunConfig, world: World) -> int:
    """Return the bytes of all storages that autograd holds at the end, weights left out."""
    shape = catalog.model(config.model)
    chunk: Any = build(config, shape, world).chunks[0].train()
    held: list[torch.UntypedStorage] = []

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor.untyped_storage())
        return tensor

    tokens = torch.zeros((1, config.sequence_length), dtype=torch.long)
    places = torch.arange(config.sequence_length).unsqueeze(0)
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        loss = chunk(tokens, places, None, labels=tokens)
    weights = {one.untyped_storage().data_ptr() for one in chunk.parameters()}
    sizes = {one.data_ptr(): one.nbytes() for one in held}
    assert loss.requires_grad
    return sum(size for place, size in sizes.items() if place not in weights)


def main() -> None:
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = sys.argv[1]
    torch.set_num_threads(1)
    configs = [RunConfig(**case) for case in json.load(sys.stdin)]
    world = join(configs[0])
    print(json.dumps([kept(config, world) for config in configs]))


if __name__ == "__main__":
    main()
