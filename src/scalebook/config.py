"""RunConfig: one training configuration, exactly as a user asks for it, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scalebook.errors import ConfigError, unknown
from scalebook.parallelism import Parallelism, Recomputed
from scalebook.settings import (
    SETTINGS,
    Engine,
    ExpertBalance,
    Fp8Recipe,
    GradientPrecision,
    LayerSpec,
    ParameterGather,
    Precision,
    Recompute,
    RecomputeMethod,
    Sharding,
    Switch,
    named_modules,
    names,
)

LARGEST = 2**31  # a product of several is still a float
Size = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]


# When the launcher ends a run: nothing about what it trains.
LIMITS = ("time_limit_seconds", "progress_limit_seconds")


class RunConfig(BaseModel):
    """One run: model x parallelism x platform x size. Flat, so that notebook parameters fit 1:1.

    The data-parallel size is not given: it follows from ``world_size`` and the others. Fields
    here are checked for type and range only; ``scalebook.facts.legality`` knows what fits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    platform: str
    model: str
    world_size: Size
    nodes: Size = 1
    engine: Engine = "megatron"
    strategy: str = "custom"
    tensor_parallel_size: Size = 1
    pipeline_parallel_size: Size = 1
    virtual_pipeline_parallel_size: Size = 1  # model chunks per stage
    last_pipeline_stage_layers: Count = 0  # next to the output layer; 0: as many as the others
    context_parallel_size: Size = 1
    expert_parallel_size: Size = 1
    expert_tensor_parallel_size: Size = 1
    sequence_parallel: bool = False
    data_parallel_sharding: Sharding = "optimizer"
    parameter_gather: ParameterGather = "pass"  # step: FSDP keeps gathered weights for a step
    micro_batch_size: Size = 1
    global_batch_size: Size
    sequence_length: Size
    packed_documents: Size = 1  # of equal length in a sample; each attends to itself only
    precision: Precision = "bf16"
    gradient_precision: GradientPrecision = "fp32"  # in which a step's gradients are added up
    expert_balance: ExpertBalance = "learned"  # which experts a token goes to
    recompute: Recompute = "none"
    recompute_layers: Count = 0  # first layers of a stage (or chunk) with recompute full; 0: all
    recompute_method: RecomputeMethod = "block"  # uniform: recompute_layers are those of a group
    recompute_modules: str = ""  # with recompute selective, joined by commas; empty: core_attn
    offload_layers: Count = 0  # first layers whose MLP waits in host memory
    mtp_layers: Count = 0  # multi-token prediction modules trained as well
    steps: Size = 20
    warmup_steps: Count = 5  # dropped from every average
    learning_rate: float = Field(default=1e-3, gt=0)
    seed: int = Field(default=1234, ge=0, lt=2**63)
    data: str = ""  # prefix of an indexed dataset; empty means seeded synthetic tokens
    repeat: Count = 0  # which repetition of the same configuration
    time_limit_seconds: Count = 0  # 0: no limit
    progress_limit_seconds: Count = 600  # without a step, output or checkpoint; 0: no limit
    checkpoint_interval: Count = 0  # steps between two checkpoints; 0: none
    checkpoint_async: bool = False  # written by processes of their own
    checkpoint_keep: Count = 0  # how many a completed run leaves on disk
    load_checkpoint: str = ""  # a run's directory, or its checkpoints; empty: random weights
    max_restarts: Count = 0  # restarts of a run whose process died
    step_split: bool = True  # time marks around forward, backward, optimizer, ... of every step
    profile_steps: int = Field(default=0, ge=0, le=20)  # under the profiler, after ``steps``
    profile_all_ranks: bool = False  # else rank 0 only
    # How fast the same mathematics runs. What "auto" came to is in the record.
    layer_spec: LayerSpec = "auto"  # auto: Transformer Engine where it is installed
    fp8_recipe: Fp8Recipe = "delayed"  # how FP8 tensors are scaled, with precision fp8
    fp8_primary_weights: bool = False  # weights kept and gathered in FP8, with precision fp8
    fused_attention: Switch = "auto"
    fused_norm: Switch = "auto"
    fused_rope: Switch = "auto"
    fused_activation: Switch = "auto"
    fused_cross_entropy: Switch = "auto"
    fused_weight_gradient: Switch = "auto"  # accumulated by the GEMM itself
    fused_optimizer: Switch = "auto"
    grouped_gemm: Switch = "auto"  # one matrix product for all experts of a rank
    overlap_grad_reduce: Switch = "auto"
    overlap_param_gather: Switch = "auto"
    overlap_tensor_parallel: Switch = "auto"  # collectives in pieces, between pieces of the GEMM
    cuda_graph: Switch = "auto"  # of a micro batch, replayed (HIP graph on AMD)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> RunConfig:
        """Return the configuration that flat parameters describe.

        Raises:
            ConfigError: a name is unknown, a value has another type or is out of range.
        """
        for name in parameters:
            if name not in cls.model_fields:
                raise ConfigError(unknown("parameter", name, cls.model_fields))
        try:
            return cls(**parameters)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            missing = f"{name} is missing. Add it to the table or to [defaults] of a plan."
            wrong = f"Parameter {name}={first['input']!r}: {first['msg']}."
            raise ConfigError(missing if first["type"] == "missing" else wrong) from error

    @classmethod
    def read(cls, path: Path) -> RunConfig:
        """Return the configuration in a JSON file.

        Raises:
            ConfigError: the file cannot be read or its content is not a RunConfig.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as JSON: {error}.") from error
        return cls.from_parameters(values)

    @property
    def parallelism(self) -> Parallelism:
        """The split of the world that this configuration asks for."""
        fields = Parallelism.__dataclass_fields__
        return Parallelism(**{name: getattr(self, name) for name in fields})

    @property
    def recomputation(self) -> Recomputed:
        """What the backward pass recomputes."""
        modules = named_modules(self.recompute_modules)
        return Recomputed.of(self.recompute, self.recompute_method, self.recompute_layers, modules)

    def again(self, layers: int, *modules: str) -> float:
        """Return in which share of a model's layers the forward pass of a part runs again."""
        stages, chunks = self.pipeline_parallel_size, self.virtual_pipeline_parallel_size
        return self.recomputation.again(stages, chunks, layers, *modules)

    @property
    def data_parallel_size(self) -> int:
        """Replicas of the model."""
        return self.parallelism.data_parallel_size

    @property
    def num_microbatches(self) -> int:
        """Micro batches a data-parallel rank runs in one optimizer step."""
        return self.global_batch_size // (self.micro_batch_size * self.data_parallel_size)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.global_batch_size * self.sequence_length

    def words(self) -> str:
        """Return layout and options in a few words: ``TP2 PP2, micro batch 4, full recomputation``.

        Options at their default are left out.
        """
        sizes = ((SETTINGS[name].short, getattr(self, name)) for name in names("layout"))
        split = [f"{short}{size}" for short, size in sizes if short and size > 1]
        replicas = self.data_parallel_size
        split += [f"DP{replicas}"] if replicas > 1 or not split else []
        split += ["SP"] if self.sequence_parallel else []
        parts = [" ".join(split), f"micro batch {self.micro_batch_size}"]
        if self.data_parallel_sharding == "full":
            once = ", gathered once per step" if self.parallelism.gathers_once else ""
            parts.append(f"fully sharded{once}")
        for name in ("last_pipeline_stage_layers", *names("kernel")):
            value, row = getattr(self, name), SETTINGS[name]
            if name != "parameter_gather" and value != DEFAULTS[name]:
                first = row.counted or name == "recompute"  # full recomputation
                parts.append(f"{value} {row.words}" if first else f"{row.words} {value}")
        return ", ".join([*parts, self.precision])

    def unpacked(self) -> RunConfig:
        """Return the configuration that does the same work with each packed document a sample."""
        many = self.packed_documents
        sizes = {
            "sequence_length": self.sequence_length // many,
            "micro_batch_size": self.micro_batch_size * many,
            "global_batch_size": self.global_batch_size * many,
        }
        return self.model_copy(update={**sizes, "packed_documents": 1})

    def config_hash(self) -> str:
        """Return 12 hex digits that name this configuration, equal for equal fields.

        Fields at their default are left out, so that a new field renames no old configuration. The
        limits do not count: they do not change what a run that keeps them measures.
        """
        fields = self.model_dump(exclude_defaults=True, exclude={*LIMITS})
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


# Of every setting that can be left out.
DEFAULTS: Mapping[str, Any] = {
    name: field.get_default(call_default_factory=True)
    for name, field in RunConfig.model_fields.items()
    if not field.is_required()
}


def split_sizes(config: RunConfig) -> dict[str, Any]:
    """Return the sizes of the split under Megatron's names."""
    stages = config.virtual_pipeline_parallel_size
    return {
        "tensor_model_parallel_size": config.tensor_parallel_size,
        "pipeline_model_parallel_size": config.pipeline_parallel_size,
        "virtual_pipeline_model_parallel_size": stages if stages > 1 else None,
        "context_parallel_size": config.context_parallel_size,
        "expert_model_parallel_size": config.expert_parallel_size,
        "expert_tensor_parallel_size": config.expert_tensor_parallel_size,
        "sequence_parallel": config.sequence_parallel,
    }


def recompute_options(config: RunConfig) -> dict[str, Any]:
    """Return the options of recomputation under Megatron's names."""
    asked, full = config.recomputation, config.recompute == "full"
    block = full and asked.layers > 0
    return {
        "recompute_granularity": config.recompute if full or asked.modules else None,
        "recompute_method": ("block" if block else "uniform") if full else None,
        "recompute_num_layers": (asked.layers or asked.group) if full else None,
        **({"recompute_modules": list(asked.modules)} if config.recompute_modules else {}),
    }
