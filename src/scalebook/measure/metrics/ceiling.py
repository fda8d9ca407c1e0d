"""The denominator of ``matmul_fraction``: the best matrix product seen on the machine that ran."""

from __future__ import annotations

from typing import Any

from scalebook.measure.metrics.peak import peak_precision
from scalebook.measure.metrics.settings import text
from scalebook.record import RunRecord, object_of

NOT_PROBED = "The run knows no probe of its machine"


def ceiling_of(record: RunRecord, named: str | None) -> tuple[float | None, str | None]:
    """Return the rate of the best matrix product (TFLOP/s, one device), or None and the reason.

    ``named`` is the precision where the run's own does not settle it (fp8).
    """
    known = record.environment.get("ceilings")
    if not isinstance(known, dict):
        reason = text(record.environment.get("ceilings_reason")) or NOT_PROBED
        return None, f"{reason.rstrip('.')}."
    precision, reason = peak_precision(record, named)
    if precision is None:
        return None, reason
    rate = object_of(object_of(known).get("matmul_tflops")).get(precision)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9:
        return None, f"The probe of this machine measured no matrix product in {precision}."
    return float(rate), None


def fraction(rate: float | None, record: RunRecord, named: str | None, why: str | None) -> Any:
    """Return the fields of RunMetrics that compare a run with its machine's best product.

    ``rate`` is the model FLOP rate of a device (TFLOP/s), ``why`` the reason where it is None.
    """
    ceiling, missing = ceiling_of(record, named)
    value = rate / ceiling if rate is not None and ceiling is not None else None
    reason = None if value is not None else missing or why
    return {
        "measured_matmul_tflops": ceiling,
        "matmul_fraction": value,
        "matmul_fraction_reason": reason,
    }
