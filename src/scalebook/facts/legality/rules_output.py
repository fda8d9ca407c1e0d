"""Rules about what a run writes besides its steps: checkpoints, with restarts, and profiles."""

from __future__ import annotations

from collections.abc import Iterator

from scalebook.facts.legality.problem import Case, Problem


def sharding(case: Case) -> Iterator[Problem]:
    """The parameters of FSDP are not sharded tensors of Megatron-Core's torch-native layers."""
    config = case.config
    asked = config.checkpoint_interval or config.load_checkpoint
    if asked and config.data_parallel_sharding == "full":
        name = "checkpoint_interval" if config.checkpoint_interval else "load_checkpoint"
        yield Problem(
            "checkpoint_sharding",
            f"{name}={getattr(config, name)!r} is not supported with data_parallel_sharding='full' "
            "(FSDP). Use data_parallel_sharding='optimizer', or no checkpoints.",
        )


def interval(case: Case) -> Iterator[Problem]:
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


def all_ranks(case: Case) -> Iterator[Problem]:
    """Asking which ranks to profile does nothing without steps to profile."""
    if case.config.profile_all_ranks and not case.config.profile_steps:
        yield Problem(
            "profile_all_ranks",
            "profile_all_ranks=True without profile_steps: nothing is profiled. "
            "Set profile_steps=2.",
            "warning",
        )


RULES = (sharding, interval, all_ranks)
