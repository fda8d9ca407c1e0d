"""Verdicts on rows of the run frame: the same as ``scalebook compare`` gives on two runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalebook.metrics.repeats import Estimate, start_spread
from scalebook.verdicts import Verdict, compare


def verdict_on(a: Mapping[str, Any], b: Mapping[str, Any]) -> Verdict | None:
    """Return the verdict on the rates of two runs; None where one has no interval."""
    sides = [estimate_of(row) for row in (a, b)]
    if sides[0] is None or sides[1] is None:
        return None
    return compare([sides[0]], [sides[1]], start_spread=start_spread(a["platform"]))


def estimate_of(row: Mapping[str, Any]) -> Estimate | None:
    """Return the rate of a run with its interval; None where it has none."""
    rate, low, high = row["rate"], row["rate_low"], row["rate_high"]
    if not rate or not low or not high:
        return None
    return Estimate.of(rate, low, high, row.get("steady_steps") or 0)
