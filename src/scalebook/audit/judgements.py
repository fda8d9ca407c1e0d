"""Claims that are words: whether sizes are legal for a model, and what kind of model it is."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scalebook.audit.knowledge import accelerator_of, model_of
from scalebook.audit.known import Known
from scalebook.audit.rows import Row
from scalebook.audit.verdicts import Check, check_of
from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.legality import Problem, check

SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
)
# Rules that a table of sizes can break. Uneven layers are only noted: Megatron takes a layout of
# stages. The batch, the schedule and the steps are left out: such tables seldom give them.
UNEVEN = "layers"
RULES = ("attention_heads", "key_value_groups", "ffn", "experts", "world_size")


def judge_words(known: Known) -> Iterator[Check]:
    """Yield a check of the sizes against legality, and of the architecture against the catalog."""
    shape = model_of(known.row)
    if shape is None:
        return
    claimed = known.row.words.get("architecture")
    if claimed is not None:
        kind = "dense" if shape.moe is None else "moe"
        verdict = "holds" if claimed.lower() == kind else "contradicts"
        yield check_of(
            known.row, "architecture", "architecture of the catalog", verdict,
            note=f"{shape.name} is {kind}",
        )  # fmt: skip
    yield from _legality(known.row, shape)


def _legality(row: Row, shape: ModelShape) -> Iterator[Check]:
    stated = [name for name in SIZES if name in row.values]
    if not stated or not all(row.values[name].interval.exact for name in stated):
        return
    says_legal = row.words.get("legal", "yes").lower() == "yes"
    field = "legal" if "legal" in row.words else stated[0]
    absurd, found = _absurd(row), ()
    if not absurd:
        try:
            found = _problems(row, shape)
        except ConfigError as error:
            absurd = f"no machine has such sizes: {error}"
    if absurd:
        yield check_of(row, field, "legality", "impossible" if says_legal else "holds", note=absurd)
        return
    problems = [item for item in found if item.rule in (*RULES, UNEVEN)]
    errors = [item for item in problems if item.severity == "error" and item.rule != UNEVEN]
    verdict = "holds" if says_legal == (not errors) else "contradicts"
    note = "; ".join(item.message for item in errors or problems)
    if not errors and not says_legal:
        note = f"these sizes fit {shape.name}"
    yield check_of(row, field, "legality", verdict, note=note)


def _absurd(row: Row) -> str | None:
    """Return which stated size can be none at all, None where each is a number of processes."""
    for name in (*SIZES, "gpus"):
        value = row.values.get(name)
        if value is None or not value.interval.exact:
            continue
        size = value.interval.low
        if not (1 <= size < math.inf and size == int(size)):
            return f"{name}={value.text} is no whole number of at least 1"
    return None


def _problems(row: Row, shape: ModelShape) -> tuple[Problem, ...]:
    """Return every rule that the stated sizes break; whatever is not stated is made to fit.

    Raises:
        ConfigError: a size is beyond what a configuration can have.
    """
    sizes = {name: int(row.values[name].interval.low) for name in SIZES if name in row.values}
    tensor = sizes.get("tensor_parallel_size", 1)
    context = sizes.get("context_parallel_size", 1)
    model_parallel = tensor * context * sizes.get("pipeline_parallel_size", 1)
    gpus = row.values.get("gpus")
    world = int(gpus.interval.low) if gpus and gpus.interval.exact else 0
    parameters = {
        "platform": row.words.get("accelerator", "cpu"),
        "model": shape.name,
        "world_size": world or model_parallel * sizes.get("expert_parallel_size", 1),
        "global_batch_size": max(1, (world or model_parallel) // model_parallel),
        "sequence_length": 2 * context * tensor,
        "sequence_parallel": tensor > 1,
        **sizes,
    }
    config = RunConfig.from_parameters(parameters)
    return check(config, shape, accelerator=accelerator_of(row))
