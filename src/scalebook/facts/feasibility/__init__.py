"""Which splits and micro batches of a model fit: measured, inferred from those, or predicted.

A map spans the splits, micro batches and recomputation modes that its runs have in any
combination. Combinations that did not run are inferred where another run settles them (``order``):
what needs no less than one that ran out of memory does not fit, what needs no more than one that
ran fits. Of the rest only the prediction of ``scalebook.facts.memory`` is known. Illegal ones are
left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from scalebook import identity
from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.facts.catalog.types import Accelerator
from scalebook.facts.feasibility.known import (
    SCOPE,
    SETTINGS,
    Cell,
    KnownMemory,
    Verdict,
    known,
    predict,
    scope_of,
)
from scalebook.facts.legality import fit
from scalebook.settings import without_effect
from scalebook.store import Run

__all__ = ["SCOPE", "Cell", "Verdict", "feasibility", "scope_of"]

_SPLIT = (
    *("tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_parallel_size"),
    *("expert_tensor_parallel_size", "sequence_parallel"),
)
MOST_CELLS = 2_000  # of one map: records may come from anywhere


def feasibility(runs: Iterable[Run], model: str | None = None) -> tuple[Cell, ...]:
    """Return every cell of the maps of these runs, or of those of one model.

    The cells of one map follow one another, in the order of split, recomputation and micro batch.
    """
    shown = [one for one in known(runs) if model in (None, one.config.model)]
    cells = [_cell(one) for one in shown]
    pairs = list(zip(shown, cells, strict=True))
    for same in identity.alike(pairs, lambda pair: scope_of(pair[1])):
        cells += map(_cell, _unmeasured([one for one, _ in same]))
    return tuple(sorted(cells, key=_sorting))


def _sorting(cell: Cell) -> tuple[Any, ...]:
    split = (cell.tensor_parallel_size, cell.pipeline_parallel_size)
    rest = (cell.virtual_pipeline_parallel_size, cell.sequence_parallel, cell.recompute)
    return (*map(str, scope_of(cell)), *split, *rest, cell.micro_batch_size, cell.global_batch_size)


def _cell(one: KnownMemory) -> Cell:
    """Return what is known of a configuration with its settings, prediction and device."""
    device = _device(one.config, one.accelerator)
    alike = ("accelerator", "verdict", "evidence", "reason", "run_ids", "peak_memory_gib")
    return Cell(
        **{name: getattr(one.config, name) for name in SETTINGS},
        **{name: getattr(one, name) for name in alike},
        predicted_gib=_predicted(one.config),
        capacity_gib=device.memory_gb if device else None,
    )


def _predicted(config: RunConfig) -> float | None:
    """Return the predicted GiB of the fullest rank; None where model or sizes allow none."""
    parts = predict(config).parts
    return parts["total"] if parts else None


def _device(config: RunConfig, accelerator: str | None) -> Accelerator | None:
    """Return the device that ran, else the platform's."""
    found = catalog.accelerator_for_device(accelerator) if accelerator else None
    return found or catalog.device_of(config.platform)


def _unmeasured(same: Sequence[KnownMemory]) -> Iterator[KnownMemory]:
    """Yield the combinations of one map that no run has settled."""
    taken = {identity.memory(one.config) for one in same}
    places = {_place(one.config) for one in same}
    for config in _combinations([one.config for one in same]):
        if identity.memory(config) in taken or _place(config) in places:
            continue
        needed = _predicted(config)
        if needed is not None:
            yield _inferred(config, same) or _from_prediction(config, same[0].accelerator, needed)


def _place(config: RunConfig) -> tuple[Any, ...]:
    """Return where a configuration stands in its map."""
    names = (*_SPLIT, "recompute", "micro_batch_size")
    return tuple(getattr(config, name) for name in names)


def _combinations(configs: Sequence[RunConfig]) -> Iterator[RunConfig]:
    """Yield each split with each micro batch and recomputation mode, at the batch of its runs."""
    first = {tuple(getattr(c, name) for name in _SPLIT): c for c in reversed(configs)}
    modes = sorted({config.recompute for config in configs})
    sizes = _micro_batches({config.micro_batch_size for config in configs})
    for number, (base, mode, micro) in enumerate(product(first.values(), modes, sizes)):
        if number >= MOST_CELLS:
            return
        unit = micro * max(base.data_parallel_size, 1)
        change: dict[str, Any] = {
            "recompute": mode,
            "micro_batch_size": micro,
            # as many samples as before, or the next number that the micro batch allows
            "global_batch_size": math.ceil(base.global_batch_size / unit) * unit,
        }
        yield base.model_copy(update=change)


def _micro_batches(seen: set[int]) -> list[int]:
    """Return the micro batches that ran and the powers of two between them."""
    between = (2**power for power in range(max(seen).bit_length()))
    return sorted(seen | {size for size in between if size in range(min(seen), max(seen))})


def _inferred(config: RunConfig, same: Sequence[KnownMemory]) -> KnownMemory | None:
    """Return what follows from a configuration that was run, None where none settles it."""
    for one in same:
        if one.verdict == "out_of_memory" and (grown := growth(one.config, config)) is not None:
            more = ", ".join(f"{name}={value}" for name, value in grown.items())
            words = (
                f"{more or 'the same configuration'} needs no less than {one.run_ids[0]}, which "
                "ran out of memory"
            )
        elif one.verdict == "fits" and growth(config, one.config) is not None:
            words = f"needs no more than {one.run_ids[0]}, which ran"
        else:
            continue
        given = config, one.accelerator, one.verdict, "inferred", words
        return KnownMemory(*given, one.run_ids[:1])
    return None


def _from_prediction(config: RunConfig, accelerator: str | None, needed: float) -> KnownMemory:
    verdict = fit.verdict(needed, _device(config, accelerator))
    fitting: Verdict = "fits" if verdict.fits else "out_of_memory"
    found = None if verdict.fits is None else fitting
    return KnownMemory(config, accelerator, found, "predicted", verdict.reason)


# More of these never needs less memory. A larger global batch keeps as many or more microbatches in
# a pipeline's flight; a larger micro batch keeps fewer, but the product does not fall.
GROWING = ("micro_batch_size", "sequence_length", "global_batch_size")
WITHOUT_EFFECT = without_effect("memory")


def growth(smaller: RunConfig, larger: RunConfig) -> dict[str, Any] | None:
    """Return the fields by which ``larger`` needs no less memory than ``smaller``.

    Empty where both need the same. None where nothing can be said: another field differs, or one
    differs the other way.
    """
    grown: dict[str, Any] = {}
    for name in RunConfig.model_fields:
        below, above = getattr(smaller, name), getattr(larger, name)
        if below == above or name in WITHOUT_EFFECT:
            continue
        more = name in GROWING and above > below
        # full recomputation keeps least and none most; what lies between is not compared
        keeps_no_less = name == "recompute" and (below == "full" or above == "none")
        if not more and not keeps_no_less:
            return None
        grown[name] = above
    return grown
