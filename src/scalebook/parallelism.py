"""How a world of processes is split; the one value that memory, legality and launch share."""

from __future__ import annotations

from dataclasses import dataclass

# Up to so many experts a rank, weight gradients are added to the fp32 sum by a GEMM an expert;
# beyond, those are too small, and one grouped product is made first and added then.
MOST_SINGLE_GRADIENTS = 16

RECOMPUTE = ("none", "pointwise", "selective", "full")


def experts_need_no_host(experts: int, expert_size: int, tensor_size: int) -> bool:
    """Return whether a rank computes its ``experts`` without asking how many tokens each got.

    The host needs the numbers to send tokens to other ranks (``expert_size`` and ``tensor_size``
    are those of expert and expert tensor parallelism), and for a product per expert.
    """
    return expert_size == tensor_size == 1 and experts > MOST_SINGLE_GRADIENTS


def last_stage_sizes(layers: int, stages: int, chunks: int = 1) -> list[int]:
    """Return how many layers the last of several pipeline stages can have.

    Megatron-Core wants the other stages to share the rest equally. Every stage keeps a layer for
    each of its ``chunks``.
    """
    rest = stages - 1
    even = [size for size in range(1, layers) if (layers - size) % rest == 0]
    return [size for size in even if min(size, (layers - size) // rest) >= chunks]


def stage_shares(stages: int, last: int, layers: int, head: float) -> tuple[float, float]:
    """Return the shares of the work of each stage but the last, and of that, as ``stages_wait``."""
    if not last:
        return (1 - head) / stages, (1 - head) / stages + head
    layer = (1 - head) / layers
    return (layers - last) / (stages - 1) * layer, last * layer + head


def stages_wait(stages: int, last: int, layers: int, head: float) -> float:
    """Return the fraction of a schedule without bubble in which stages wait for the slowest.

    ``last`` are the layers of the last stage, 0 where it has as many as the others; ``head`` is the
    output layer's share of the FLOPs.
    """
    return 1 - 1 / stages / max(stage_shares(stages, last, layers, head))


def balanced_last_stage(stages: int, chunks: int, layers: int, head: float) -> int:
    """Return the layers of the last stage with which stages wait least; 0: even stages."""
    sizes = last_stage_sizes(layers, stages, chunks)
    even = [0] if layers % (stages * chunks) == 0 else []
    return min((*even, *sizes), key=lambda size: stages_wait(stages, size, layers, head), default=0)


def chunk_sizes(layers: int, stages: int, chunks: int, last: int) -> list[list[int]]:
    """Return the layers of each stage's model chunks, where the last stage has ``last`` in all.

    Earlier chunks take what does not divide: the output layer follows the very last one.
    """
    width = -(-(layers - last) // (stages - 1))
    return [
        [size // chunks + (chunk < size % chunks) for chunk in range(chunks)]
        for size in (*[width] * (stages - 1), last)
    ]


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What the backward pass recomputes: in ``full`` layers, in ``selective`` modules of each."""

    mode: str = "none"
    layers: int = 0  # the first of each stage, or chunk of one; 0: all
    group: int = 1  # layers that keep one input together
    modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, mode: str, method: str, layers: int, modules: tuple[str, ...]) -> Recomputed:
        """Return what settings of these values ask for."""
        grouped = method == "uniform"
        return cls(
            mode,
            layers=0 if grouped else layers,
            group=max(layers, 1) if grouped else 1,
            modules=(modules or ("core_attn",)) if mode == "selective" else (),
        )

    def covered(self, stages: int, chunks: int, layers: int) -> int:
        """Return how many of a model's layers run their forward pass again as a whole."""
        if self.mode != "full":
            return 0
        return min(self.layers * stages * chunks, layers) if self.layers else layers

    def again(self, stages: int, chunks: int, layers: int, *modules: str) -> float:
        """Return in which share of the layers the forward pass of a part runs again.

        The part is within each of these ``modules``; all parts are within a whole layer.
        """
        whole = self.covered(stages, chunks, layers) / layers
        return whole + sum(module in self.modules for module in modules)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of every kind of parallelism; ``world_size = tp x pp x cp x dp``.

    Expert parallelism divides the ``tp x cp x dp`` ranks of a pipeline stage and is no factor of
    the world size. ``data_parallel_sharding`` says what the data-parallel ranks share out:
    ``none`` (plain DDP), ``optimizer`` (Megatron's distributed optimizer, ZeRO-1) or ``full``
    (FSDP, ZeRO-3), which with ``parameter_gather`` step keeps gathered weights for a step (as
    ZeRO-2 does).
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
    parameter_gather: str = "pass"

    @property
    def gathers_once(self) -> bool:
        """Whether FSDP gathers the weights once per step."""
        return self.data_parallel_sharding == "full" and self.parameter_gather == "step"

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one replica: tp x pp x cp."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.context_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """Replicas of the model; the floor of the division where the sizes do not divide."""
        return self.world_size // self.model_parallel_size
