"""Result rows as claims: what ``scalebook list --json`` prints, from this project or elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from scalebook.audit.knowledge import unknown_names
from scalebook.audit.printed import Printed
from scalebook.audit.rows import Claims, Row, Table, read_bounded
from scalebook.errors import ClaimError
from scalebook.measure.intervals import Interval, point

LARGEST_FILE = 20_000_000  # bytes
MOST_ROWS = 5_000  # some seconds of work
COMPUTED = 1e-6  # rounding of a number that was computed rather than printed
LARGEST = 1e30

# Column of a result row -> field of a claim. The median of the steps is left out: tokens per
# second are all tokens over all time, which follows the mean. GiB are taken as the GB by which
# makers name the memory of a device: an "80 GB" device has about 80 GiB.
NUMBERS = {
    "world_size": "gpus",
    "nodes": "nodes",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_parallel_size": "expert_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "sequence_length": "sequence_length",
    "num_layers": "num_layers",
    "tokens_per_second": "tokens_per_second",
    "tokens_per_second_per_gpu": "tokens_per_second_per_gpu",
    "model_tflops_per_second_per_gpu": "model_tflops_per_second_per_gpu",
    "peak_tflops_per_second": "peak_tflops_per_second",
    "mfu": "mfu",
    "peak_memory_gib": "memory_gb",
}
PEAK_FIELDS = ("mfu", "peak_tflops_per_second")
WORDS = ("model", "accelerator", "precision")


def load_results(path: Path, *, follow: bool = False) -> Claims:
    """Return the claims of a JSON array of result rows; raises ClaimError as ``read_rows``."""
    return parse_results(read_rows(path, follow=follow), str(path))


def read_rows(path: Path, *, follow: bool = True) -> list[dict[str, Any]]:
    """Return the objects of a JSON array.

    Raises:
        ClaimError: the file cannot be read, is too large, or is no JSON array of objects.
    """
    data = read_bounded(path, LARGEST_FILE, follow=follow)
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, UTF-8 or a huge integer
        reason = " ".join(str(error).split())[:200]
        raise ClaimError(f"{path} is no valid JSON: {reason}.") from error
    items = cast(list[Any], rows) if isinstance(rows, list) else []
    if not items or not all(isinstance(row, dict) for row in items):
        raise ClaimError(f"{path} holds no result rows: a JSON array of objects is expected.")
    if len(items) > MOST_ROWS:
        raise ClaimError(f"{path} has more than {MOST_ROWS:,} rows. Split it.")
    return cast(list[dict[str, Any]], items)


def parse_results(rows: Sequence[Mapping[str, Any]], name: str) -> Claims:
    """Return the claims of the completed runs; ``name`` is the file's, for messages.

    Raises:
        ClaimError: no run completed, a number is none, or a name is no short printable text.
    """
    found = tuple(
        _row(row, f"{name} row {number}")
        for number, row in enumerate(rows, 1)
        if row.get("status", "completed") == "completed"
    )
    if not found:
        raise ClaimError(f"{name} holds no completed run to audit.")
    return Claims("Result rows", name, (Table("Results", found),))


def _row(data: Mapping[str, Any], place: str) -> Row:
    label = _text(data.get("run_id"), place) or place
    words = {key: text for key in WORDS if (text := _text(data.get(key), place))}
    values = {
        field: _number(data[column], f"{place}: {column}")
        for column, field in NUMBERS.items()
        if data.get(column) is not None
    }
    over = _text(data.get("peak_precision"), place)
    if over and over != words.get("precision"):  # an fp8 run whose MFU is over the bf16 peak
        values = {key: value for key, value in values.items() if key not in PEAK_FIELDS}
        words["note"] = f"MFU over the {over} peak: left out"
    return _without_unknown(Row("Results", label, None, values, words))


def _without_unknown(row: Row) -> Row:
    """Return the row without names that the catalog lacks; a note says which."""
    problem = unknown_names(row)
    if problem is None:
        return row
    problem = problem.partition(" Known")[0]
    for key in ("model", "accelerator"):
        words = {name: text for name, text in row.words.items() if name != key}
        rest = Row(row.table, row.label, row.line, row.values, {**words, "note": problem})
        if unknown_names(rest) is None:
            return rest
    words = {name: text for name, text in row.words.items() if name not in WORDS[:2]}
    return Row(row.table, row.label, row.line, row.values, {**words, "note": problem})


def _text(value: Any, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > 300 or not value.isprintable():
        raise ClaimError(f"{place}: a name must be a printable text of at most 300 characters.")
    return value


def _number(value: Any, place: str) -> Printed:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClaimError(f"{place}={str(value)[:40]!r} must be a number or null.")
    if not abs(value) <= LARGEST or math.isnan(value):
        raise ClaimError(f"{place} must be a finite number below {LARGEST:g}.")
    number = float(value)
    if isinstance(value, int):
        return Printed(str(value), number, point(number), point(number))
    # a number that somebody rounded has few digits; a computed one has its own rounding
    exponent = Decimal(repr(value)).as_tuple().exponent
    unit = 10.0**exponent if isinstance(exponent, int) else 0.0
    slack = abs(number) * COMPUTED
    low = number - max(unit / 2, slack)
    interval = Interval(low, number + max(unit / 2, slack))
    claimed = Interval(low, number + max(unit, slack))
    return Printed(f"{value:.10g}", number, interval, claimed)
