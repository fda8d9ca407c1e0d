"""How a world of processes is split; the one value that memory, legality and launch share."""

from __future__ import annotations

from dataclasses import dataclass


def last_stage_sizes(layers: int, stages: int) -> list[int]:
    """Return how many layers the last of several pipeline stages can have.

    Megatron-Core wants the other stages to share the rest equally.
    """
    return [size for size in range(1, layers) if (layers - size) % (stages - 1) == 0]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of every kind of parallelism; ``world_size = tp x pp x cp x dp``.

    Expert parallelism divides the ``tp x cp x dp`` ranks of a pipeline stage and is no factor of
    the world size. ``data_parallel_sharding`` says what the data-parallel ranks share out:
    ``none`` (plain DDP), ``optimizer`` (Megatron's distributed optimizer, ZeRO-1) or ``full``
    (FSDP, ZeRO-3).
    """

    world_size: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    virtual_pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    sequence_parallel: bool = False
    data_parallel_sharding: str = "optimizer"
    last_pipeline_stage_layers: int = 0  # 0: as many as every other stage

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one replica: tp x pp x cp."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.context_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """Replicas of the model; the floor of the division where the sizes do not divide."""
        return self.world_size // self.model_parallel_size
