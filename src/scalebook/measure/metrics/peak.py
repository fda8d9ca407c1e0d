"""Denominators: the dense peak for MFU, the machine's best product for ``matmul_fraction``."""

from __future__ import annotations

from typing import Any

from scalebook.facts import catalog
from scalebook.record import RunRecord, number_of, object_of, text_of

NOT_PROBED = "The run knows no probe of its machine"


def peak_precision(record: RunRecord, named: str | None) -> tuple[str | None, str | None]:
    """Return the precision whose peak is the denominator, or None and the reason."""
    precision = text_of(record.setting("precision"))
    if precision is None:
        return None, "The run names no precision: MFU is left empty."
    if precision == "fp8":
        return named, None if named else (
            "An FP8 run computes attention and the output layer in BF16, so it has no single "
            "peak. 'scalebook list --peak-precision' names the denominator."
        )
    if precision == "fp32" and record.observed.get("float32_matmul") in ("high", "medium"):
        return "tf32", None
    return precision, None


def peak_of(record: RunRecord, named: str | None) -> tuple[float | None, str | None, str | None]:
    """Return the dense peak (TFLOP/s), the precision whose peak it is, and the reason for None."""
    device = text_of(record.environment.get("accelerator"))
    if record.setting("platform") == "cpu":
        return None, None, "A CPU has no peak in the catalog: MFU is left empty."
    if device is None:
        return None, None, "The run names no accelerator: MFU is left empty."
    precision, reason = peak_precision(record, named)
    if precision is None:
        return None, None, reason
    # AMD's matrix cores take fp32; where a device has none, its vector rate is the peak.
    for name in ("fp32_matrix", "fp32") if precision == "fp32" else (precision,):
        peak, reason = catalog.peak_tflops(device, name)
        if peak is not None:
            return peak, name, None
    return None, None, reason


def highest_peak(record: RunRecord, named: str | None) -> tuple[float | None, str]:
    """Return the dense peak (TFLOP/s) that no rate of this run can pass, and its precision.

    That is the peak of the run's own precision; where that leaves several open (fp8, TF32 for
    fp32, none told), the highest of the device. None where the device has no known peak.
    """
    found = catalog.accelerator_for_device(text_of(record.environment.get("accelerator")) or "")
    precision, _ = peak_precision(record, named)
    if found is None:
        return None, ""
    peaks = {name: peak for name, peak in found.peak_tflops.items() if not name.startswith("int")}
    if precision in ("bf16", "fp16") and precision in peaks:
        return peaks[precision], precision
    return max(((peak, name) for name, peak in peaks.items()), default=(None, ""))


def ceiling_of(record: RunRecord, named: str | None) -> tuple[float | None, str | None]:
    """Return the rate of the best matrix product (TFLOP/s, one device), or None and the reason.

    ``named`` is the precision where the run's own does not settle it (fp8).
    """
    known = record.environment.get("ceilings")
    if not isinstance(known, dict):
        reason = text_of(record.environment.get("ceilings_reason")) or NOT_PROBED
        return None, f"{reason.rstrip('.')}."
    precision, reason = peak_precision(record, named)
    if precision is None:
        return None, reason
    rate = number_of(object_of(object_of(known).get("matmul_tflops")).get(precision))
    if rate is None or not 0 < rate < 1e9:
        return None, f"The probe of this machine measured no matrix product in {precision}."
    return rate, None


def matmul_fraction(
    rate: float | None, record: RunRecord, named: str | None, why: str | None
) -> Any:
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
