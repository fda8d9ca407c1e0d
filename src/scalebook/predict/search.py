"""Rank the legal layouts of a model on a number of devices by their predicted rate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from scalebook.config import RunConfig
from scalebook.facts import catalog, legality
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.legality import fit
from scalebook.facts.legality.problem import divisors
from scalebook.plan import defaults
from scalebook.predict.model import Prediction, Predictor
from scalebook.settings import Precision

_MICRO_BATCHES = (1, 2, 4, 8)
_CHUNKS = (1, 2, 4)
# What replicas share, and how often FSDP gathers weights; the last saves most memory.
_SHARDINGS = (("optimizer", "pass"), ("full", "step"), ("full", "pass"))
_MOST = 20_000  # layouts of one search


def order(one: Any, reach: float) -> tuple[bool, float]:
    """Return what predictions and standings are sorted by: the fastest first.

    One that may not fit, or rests on something ``assumed`` (a standing does not: trials test it),
    comes after the others, unless even its lower end is above ``reach``, their highest upper end.
    """
    doubtful = not one.fits or bool(getattr(one, "assumed", ()))
    return doubtful and one.low <= reach, -one.tokens_per_second_per_gpu


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal layout that fits, with its prediction."""

    config: RunConfig
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Ranking:
    """Every legal layout that fits, in ``order``, and how many others there were and why."""

    candidates: tuple[Candidate, ...]
    left_out: dict[str, int]  # by reason
    least_gib: float | None = None  # of the legal layouts that do not fit

    @property
    def nothing_fits(self) -> str:
        """Why no layout is left, with the memory that the one with the least needs."""
        if self.least_gib is None:
            return "No layout is legal"
        return f"No legal layout fits: the least memory per GPU is {self.least_gib:.1f} GiB"

    @property
    def refused(self) -> str | None:
        """Why rates are good for the order only, if that of the first layout is."""
        return self.candidates[0].prediction.refused if self.candidates else None

    @property
    def contenders(self) -> tuple[Candidate, ...]:
        """The layouts whose interval reaches the highest predicted rate: any may be fastest.

        All predictions share most of their error, so their intervals' lower ends are too strict.
        """
        best = max(
            (one.prediction.tokens_per_second_per_gpu for one in self.candidates), default=0.0
        )
        return tuple(one for one in self.candidates if one.prediction.high >= best)


def layouts(
    base: RunConfig,
    made: Predictor,
    precisions: Sequence[Precision] = (),
    fixed: Collection[str] = (),
) -> Ranking:
    """Return the layouts of a configuration's model and batch on its devices, ranked.

    Varied are tensor, pipeline, context and expert parallelism, model chunks, the last stage's
    layers, sharding, micro batch, recomputation and offload, and the precision where several are
    allowed. Of layouts that differ only in recomputation and offload, those are left out that save
    more memory than one that surely fits: they are never faster. Fields that are ``fixed`` stay as
    they are.
    """
    shape, accelerator = catalog.model(base.model), made.accelerator
    room = None if made.platform.vendor == "cpu" else made.platform.gpus_per_node
    left_out: Counter[str] = Counter()
    fitting: list[tuple[RunConfig, float]] = []
    least = math.inf
    settled: set[tuple[Any, ...]] = set()
    for number, (key, config) in enumerate(_variations(base, shape, room, precisions, fixed)):
        if number >= _MOST:
            left_out[f"beyond the first {_MOST:,}"] += 1
            break
        if any(getattr(config, name) != getattr(base, name) for name in fixed):
            continue
        if key in settled:
            left_out["less recomputation fits"] += 1
            continue
        problems = legality.check(legality.Case(config, shape, accelerator, room))
        if not legality.is_legal(problems):
            rule = next(one.rule for one in problems if one.severity == "error")
            left_out[f"illegal: {rule.replace('_', ' ')}"] += 1
            continue
        needed = fit.estimate(config, shape).total_gib
        verdict = fit.verdict(needed, accelerator)
        if verdict.fits is False:
            least = min(least, needed)
            left_out["does not fit the memory"] += 1
            continue
        fitting.append((config, needed))
        if verdict.fits or verdict.capacity_gib is None:
            settled.add(key)
    found = [Candidate(config, made.of_legal(config, shape, gib)) for config, gib in fitting]
    sure = (one.prediction for one in found if one.prediction.fits and not one.prediction.assumed)
    reach = max((one.high for one in sure), default=0.0)
    found.sort(key=lambda one: (order(one.prediction, reach), one.config.config_hash()))
    return Ranking(tuple(found), dict(left_out), least if math.isfinite(least) else None)


def _variations(
    base: RunConfig,
    shape: ModelShape,
    room: int | None,
    precisions: Sequence[Precision],
    fixed: Collection[str] = (),
) -> Iterator[tuple[tuple[Any, ...], RunConfig]]:
    """Yield layouts with a key that is equal where only recomputation and offload differ."""
    # What is fixed is kept whatever its value: also where it would not be tried.
    kept, seen = {name: getattr(base, name) for name in fixed}, set[tuple[Any, ...]]()
    savings = [
        one for one in _savings(base, shape) if all(kept.get(k, v) == v for k, v in one.items())
    ] or [{}]  # what is fixed, if it is none of these
    world = base.world_size
    for tensor, stage, context, expert in _sizes(shape, world, room, kept):
        replicas = world > tensor * stage  # that share parameters; context parallelism counts
        shardings = _SHARDINGS if replicas else _SHARDINGS[:1]
        for precision, chunks, (sharding, gather), micro in product(
            precisions or (base.precision,),
            _CHUNKS if stage > 1 else (1,),
            shardings,
            _MICRO_BATCHES,
        ):
            update: dict[str, Any] = {
                "strategy": "custom",
                "tensor_parallel_size": tensor,
                "sequence_parallel": tensor > 1,
                "pipeline_parallel_size": stage,
                "virtual_pipeline_parallel_size": chunks,
                "context_parallel_size": context,
                "expert_parallel_size": expert,
                "expert_tensor_parallel_size": 1 if expert > 1 else tensor if shape.moe else 1,
                "data_parallel_sharding": sharding,
                "parameter_gather": gather,
                "micro_batch_size": micro,
                "precision": precision,
            }
            update |= {name: kept[name] for name in kept.keys() & update.keys()}
            if update["data_parallel_sharding"] != "full":
                update["parameter_gather"] = kept.get("parameter_gather", "pass")
            asked = base.model_dump(exclude={"last_pipeline_stage_layers"}) | update
            balanced = defaults.following(asked, shape).get("last_pipeline_stage_layers", 0)
            for last, saving in product({0, balanced}, savings):
                update["last_pipeline_stage_layers"] = kept.get("last_pipeline_stage_layers", last)
                key = (*update.values(),)
                if (*key, *saving.values()) not in seen:
                    seen.add((*key, *saving.values()))
                    yield key, base.model_copy(update=update | saving)


def _sizes(
    shape: ModelShape, world: int, room: int | None, kept: Mapping[str, Any]
) -> Iterator[tuple[int, ...]]:
    """Yield the tensor, pipeline, context and expert sizes that the devices can have."""
    tried = {
        "tensor_parallel_size": [n for n in divisors(world) if n <= min(room or world, 8)],
        "pipeline_parallel_size": [n for n in divisors(world) if n <= shape.num_layers],
        "context_parallel_size": divisors(world),
        "expert_parallel_size": divisors(shape.num_experts or 1),
    }
    for sizes in product(*([kept[name]] if name in kept else tried[name] for name in tried)):
        if world % (sizes[0] * sizes[1] * sizes[2]) == 0:
            yield sizes


def _savings(base: RunConfig, shape: ModelShape) -> Iterator[dict[str, Any]]:
    """Yield what trades time for memory, the least first."""
    layers = (0, max(shape.num_layers // 2, 1), shape.num_layers)
    whole = {"recompute_layers": 0, "recompute_method": "block", "recompute_modules": ""}
    yield {"recompute": "none", **whole, "offload_layers": 0}
    if base.platform != "cpu":  # whose memory is not known: nothing has to be saved there
        for number in layers:
            yield {"recompute": "pointwise", **whole, "offload_layers": number}
        yield {"recompute": "full", "recompute_modules": "", "offload_layers": 0}
