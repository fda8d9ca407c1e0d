"""legality.check says of a configuration what megatron-core itself says when it builds it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from shapes import SHAPES

from scalebook.config import RunConfig
from scalebook.facts import catalog, legality
from scalebook.facts.memory.parameters import stage_count

pytestmark = pytest.mark.skipif(
    find_spec("megatron") is None or find_spec("torch") is None,
    reason="megatron-core is not installed",
)

BASE: dict[str, Any] = {
    "platform": "cpu",
    "precision": "fp32",
    "model": "dense",
    "world_size": 8,
    "global_batch_size": 48,
    "sequence_length": 48,
}
# Each base is legal; every field is then moved through these values by itself.
BASES: tuple[dict[str, Any], ...] = (
    {},
    {"tensor_parallel_size": 2, "sequence_parallel": True, "context_parallel_size": 2},
    {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "virtual_pipeline_parallel_size": 3,
        "micro_batch_size": 2,
    },
    {"model": "odd-groups", "world_size": 24, "tensor_parallel_size": 2},
    {"model": "odd-ffn", "world_size": 12},
    {"model": "moe", "expert_parallel_size": 2},
    {
        "model": "moe",
        "world_size": 16,
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "sequence_parallel": True,
        "expert_parallel_size": 4,
        "expert_tensor_parallel_size": 2,
    },
    {"model": "shared", "tensor_parallel_size": 2, "sequence_parallel": True},
    {"model": "single", "expert_parallel_size": 2},
    {"recompute": "full", "recompute_method": "uniform"},
    {
        "pipeline_parallel_size": 2,
        "last_pipeline_stage_layers": 2,
        "recompute": "full",
        "recompute_method": "uniform",
    },
    {"recompute": "selective", "recompute_modules": "core_attn"},
)
MOVES: dict[str, tuple[Any, ...]] = {
    "world_size": (1, 2, 3, 6, 8, 12, 16),
    "tensor_parallel_size": (1, 2, 3, 4, 6, 8, 12),
    "pipeline_parallel_size": (1, 2, 3, 4, 5, 8),
    "virtual_pipeline_parallel_size": (1, 2, 3, 4, 6),
    "context_parallel_size": (1, 2, 3, 4, 8),
    "expert_parallel_size": (1, 2, 3, 4, 5, 8, 12),
    "micro_batch_size": (1, 2, 3, 5),
    "global_batch_size": (1, 8, 20, 24, 36, 48),
    "sequence_length": (6, 16, 30, 33, 48),
    "sequence_parallel": (False, True),
}
# What means something only next to another setting, which megatron-core does not check.
BESIDE: dict[str, dict[str, tuple[Any, ...]]] = {
    "last_pipeline_stage_layers": {"last_pipeline_stage_layers": (1, 2, 4, 5)},
    "recompute_method": {"recompute_layers": (0, 1, 2, 3, 5)},  # 4 breaks the other stage alone
    "recompute_modules": {
        "recompute_modules": ("", "core_attn,mlp,layernorm", "mla_up_proj", "moe", "moe_act", "no")
    },
}
RANDOM_CASES = 60
# Without experts megatron-core lets this size pass, though it means nothing.
EXPERT_MOVES = {"expert_tensor_parallel_size": (1, 2, 3, 5)}
# What Scalebook's trainer is asked whether it would take.
ASKED = [
    BASE | {"model": model, "precision": precision, "data_parallel_sharding": sharding}
    for model in ("llama3.1-8b", "mixtral-8x7b", "deepseek-v3", "deepseek-v2-lite")
    for precision in ("bf16", "fp16", "fp8", "fp4", "fp32")
    for sharding in ("none", "optimizer", "full")
] + [
    BASE
    | {"model": model, "recompute": recompute, "offload_layers": layers}
    | ({"pipeline_parallel_size": stages, "world_size": 2})
    for model in ("llama3.1-8b", "mixtral-8x7b", "gpt3-125m")
    for recompute in ("none", "pointwise")
    for stages in (1, 2)
    for layers in (4, 200)
]


def moves(base: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    known = MOVES | (EXPERT_MOVES if SHAPES[base["model"]].moe else {})
    for name, more in BESIDE.items():
        known |= more if name in base else {}
    return known


def grid() -> list[dict[str, Any]]:
    """One field moved at a time from each base, then random pairs of moves."""
    cases: list[dict[str, Any]] = []
    for changes in BASES:
        base = BASE | changes
        cases += [base | {name: value} for name, values in moves(base).items() for value in values]
    generator = random.Random(20)
    for _ in range(RANDOM_CASES):
        base = BASE | generator.choice(BASES)
        known = moves(base)
        names = generator.sample(sorted(known), 2)
        cases.append(base | {name: generator.choice(known[name]) for name in names})
    return [dict(case) for case in {tuple(sorted(case.items())) for case in cases}]


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    return grid()


@pytest.fixture(scope="module")
def told(cases: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """What the program that builds the cases with megatron-core writes."""
    program = Path(__file__).parents[1] / "megatron_verdicts.py"
    done = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps({"built": cases, "asked": ASKED}),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def answers(told: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """What megatron-core says of each case: its error, or None and rank 0's parameters."""
    return told["built"]


@pytest.fixture(scope="module")
def verdicts(answers: list[dict[str, Any]]) -> list[str | None]:
    """Megatron-core's error for each case, None where it had none."""
    return [answer["error"] for answer in answers]


def broken(case: dict[str, Any]) -> list[str]:
    config = RunConfig.from_parameters(case)
    problems = legality.check(legality.Case(config, SHAPES[config.model]))
    # Megatron-core takes what breaks this rule, and trains it wrongly.
    return [
        problem.rule
        for problem in problems
        if problem.severity == "error" and problem.rule != "expert_gradients"
    ]


def test_the_grid_has_many_legal_and_many_illegal_configurations(
    verdicts: list[str | None],
) -> None:
    legal = sum(verdict is None for verdict in verdicts)
    assert legal > 60
    assert len(verdicts) - legal > 60


def test_every_verdict_is_megatron_cores(
    cases: list[dict[str, Any]], verdicts: list[str | None]
) -> None:
    differing = [
        (case, broken(case), verdict)
        for case, verdict in zip(cases, verdicts, strict=True)
        if bool(broken(case)) != (verdict is not None)
    ]
    assert differing == []


def test_each_rank_holds_the_parameters_that_memory_predicts(
    cases: list[dict[str, Any]], answers: list[dict[str, Any]]
) -> None:
    for case, answer in zip(cases, answers, strict=True):
        if answer["error"] is None:
            config = RunConfig.from_parameters(case)
            count = stage_count(SHAPES[config.model], config.parallelism, 0)
            expected = {"dense": count.dense, "expert": count.expert}
            if config.expert_parallel_size == 1:  # not marked as experts by megatron-core
                expected = {"dense": count.total, "expert": 0}
            assert answer["parameters"] == expected, case


def test_the_grid_breaks_every_rule_that_megatron_core_has(cases: list[dict[str, Any]]) -> None:
    rules = {rule for case in cases for rule in broken(case)}
    assert rules == {
        "attention_heads",
        "context_parallel",
        "experts",
        "ffn",
        "global_batch_size",
        "key_value_groups",
        "layers",
        "recompute_layers",
        "recompute_modules",
        "sequence_parallel",
        "virtual_pipeline",
        "world_size",
    }


def test_what_the_trainer_refuses_is_said_before_it_starts(told: dict[str, list[Any]]) -> None:
    said = [
        all(
            problem.rule != "engine"
            for problem in legality.check(
                legality.Case(RunConfig.from_parameters(case), catalog.model(case["model"]))
            )
        )
        for case in ASKED
    ]
    assert said == told["asked"]
    assert any(said)
