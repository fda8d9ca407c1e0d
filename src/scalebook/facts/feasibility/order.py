"""Which of two configurations needs no less memory than the other, where that is plain."""

from __future__ import annotations

from typing import Any

from scalebook.config import RunConfig
from scalebook.settings import without_effect

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
        if not more and not (name == "recompute" and keeps_no_less(below, above)):
            return None
        grown[name] = above
    return grown


def keeps_no_less(mode: str, other: str) -> bool:
    """Return whether recomputation ``other`` keeps no fewer activations than ``mode``.

    ``full`` keeps least and ``none`` most; what lies between is not compared.
    """
    return mode in {other, "full"} or other == "none"
