"""Rules about world size, batch, pipeline schedule and node, and about what a run writes."""

from __future__ import annotations

from scalebook.facts.legality.problem import Answers, Case, Problem, choices, divisors


def checkpoint_sharding(case: Case) -> Answers:
    """The parameters of FSDP are not sharded tensors of Megatron-Core's torch-native layers."""
    config = case.config
    asked = config.checkpoint_interval or config.load_checkpoint
    if asked and config.data_parallel_sharding == "full":
        name = "checkpoint_interval" if config.checkpoint_interval else "load_checkpoint"
        yield (
            f"{name}={getattr(config, name)!r} is not supported with data_parallel_sharding='full' "
            "(FSDP). Use data_parallel_sharding='optimizer', or no checkpoints."
        )
    if config.parameter_gather == "step" and config.data_parallel_sharding != "full":
        yield Problem(
            "parameter_gather",
            "parameter_gather='step' needs data_parallel_sharding='full' (FSDP), not "
            f"{config.data_parallel_sharding!r}. Use parameter_gather='pass'.",
        )


def interval(case: Case) -> Answers:
    """Settings that do nothing without a checkpoint are a misunderstanding."""
    config = case.config
    if config.checkpoint_interval > config.steps:
        yield Problem(
            "checkpoint_interval",
            f"checkpoint_interval={config.checkpoint_interval} is above steps={config.steps}: "
            "no checkpoint is saved.",
            "warning",
        )
    if config.max_restarts and not config.checkpoint_interval:
        yield Problem(
            "checkpoint_restarts",
            f"max_restarts={config.max_restarts} without checkpoints: a run that is started again "
            "begins at step 1. Set checkpoint_interval.",
            "warning",
        )


def profile_all_ranks(case: Case) -> Answers:
    """Asking which ranks to profile does nothing without steps to profile."""
    if case.config.profile_all_ranks and not case.config.profile_steps:
        yield Problem(
            "profile_all_ranks",
            "profile_all_ranks=True without profile_steps: nothing is profiled. "
            "Set profile_steps=2.",
            "warning",
        )


def world_size(case: Case) -> Answers:
    """``world_size`` is a multiple of tp x pp x cp (megatron.core.parallel_state)."""
    config = case.config
    size = config.parallelism.model_parallel_size
    if config.world_size % size:
        yield (
            f"tensor {config.tensor_parallel_size} x pipeline {config.pipeline_parallel_size} x "
            f"context {config.context_parallel_size} does not divide "
            f"world_size={config.world_size}. world_size must be a multiple of {size}."
        )


def nodes(case: Case) -> Answers:
    """Every node runs the same number of processes, no more than it has devices."""
    config, room = case.config, case.gpus_per_node
    if config.world_size % config.nodes:
        yield (
            f"world_size={config.world_size} does not spread evenly over nodes={config.nodes}. "
            f"Use nodes={choices(divisors(config.world_size)[:6])}."
        )
    elif room is not None and config.world_size > config.nodes * room:
        yield (
            f"world_size={config.world_size} on nodes={config.nodes} needs "
            f"{config.world_size // config.nodes} devices per node; {config.platform} has {room}. "
            f"Use nodes={-(-config.world_size // room)} or world_size={config.nodes * room}."
        )


def tensor_inside_node(case: Case) -> Answers:
    """A tensor-parallel group that leaves its node pays the slow network in every layer."""
    config = case.config
    local, tensor = config.world_size // config.nodes, config.tensor_parallel_size
    if config.nodes > 1 and local and local % tensor:
        yield Problem(
            "tensor_inside_node",
            f"tensor_parallel_size={tensor} crosses nodes of {local} processes: every layer's "
            f"all-reduce uses the network. Use {choices(divisors(local))}.",
            "warning",
        )


def global_batch_size(case: Case) -> Answers:
    """The batch is whole micro batches on every replica (num_microbatches_calculator)."""
    config = case.config
    if config.world_size % config.parallelism.model_parallel_size:
        return  # no data-parallel size to judge by; rule world_size speaks
    micro, data = config.micro_batch_size, config.data_parallel_size
    if config.global_batch_size % (micro * data):
        yield (
            f"global_batch_size={config.global_batch_size} is not a multiple of micro_batch_size x "
            f"data_parallel_size = {micro} x {data} = {micro * data}."
        )


def virtual_pipeline(case: Case) -> Answers:
    """Interleaving needs stages (parallel_state) and whole rounds of microbatches (schedules)."""
    config = case.config
    chunks, stages = config.virtual_pipeline_parallel_size, config.pipeline_parallel_size
    if chunks == 1:
        return
    if stages == 1:
        yield (
            f"virtual_pipeline_parallel_size={chunks} needs pipeline_parallel_size above 1. "
            "Use virtual_pipeline_parallel_size=1."
        )
    elif _batch_is_whole(case) and config.num_microbatches % stages:
        unit = stages * config.micro_batch_size * config.data_parallel_size
        yield (
            f"num_microbatches={config.num_microbatches} is not a multiple of "
            f"pipeline_parallel_size={stages}, as interleaving needs. Use a global_batch_size that "
            f"is a multiple of {unit}, or virtual_pipeline_parallel_size=1."
        )


def pipeline_bubble(case: Case) -> Answers:
    """Fewer microbatches than stages leave stages idle for most of the step."""
    config = case.config
    stages = config.pipeline_parallel_size
    if stages > 1 and _batch_is_whole(case) and config.num_microbatches < stages:
        idle = (stages - 1) / (config.num_microbatches + stages - 1)
        yield Problem(
            "pipeline_bubble",
            f"num_microbatches={config.num_microbatches} is below pipeline_parallel_size={stages}: "
            f"at least {idle:.0%} of the step is idle. Raise global_batch_size.",
            "warning",
        )


def steps(case: Case) -> Answers:
    """A run that drops all its steps as warm-up measures nothing."""
    config = case.config
    if config.warmup_steps >= config.steps:
        yield (
            f"warmup_steps={config.warmup_steps} leaves no measured step of steps={config.steps}. "
            f"Use steps={config.warmup_steps + 10} or fewer warmup_steps."
        )


def _batch_is_whole(case: Case) -> bool:
    config = case.config
    if config.world_size % config.parallelism.model_parallel_size:
        return False
    return config.global_batch_size % (config.micro_batch_size * config.data_parallel_size) == 0


RULES = (
    world_size, nodes, tensor_inside_node, global_batch_size, virtual_pipeline, pipeline_bubble,
    steps, checkpoint_sharding, interval, profile_all_ranks,
)  # fmt: skip
