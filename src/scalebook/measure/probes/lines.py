"""A probe in a few lines: the best rate of each kind, and what was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scalebook.identity import alike
from scalebook.measure.probes import Probe
from scalebook.measure.probes.files import highest

Line = tuple[str, float, str]  # what, rate, unit


def lines(probe: Probe) -> Iterator[Line]:
    """Yield the best rate of each kind of measurement, with its unit."""
    summary = probe.ceilings
    if summary is not None:
        products = {
            "matrix products, {}": summary.matmul_tflops,
            "matrix products held for seconds, {}": summary.sustained_matmul_tflops,
            "products of {}": summary.model_matmul_tflops,
        }
        for template, rates in products.items():
            yield from ((template.format(name), rate, "TFLOP/s") for name, rate in rates.items())
    attention = ((f"{row.backend}, {row.direction}", row.tflops) for row in probe.attention)
    yield from _best("attention by {}", attention, "TFLOP/s")
    copies = ((row.kind, row.gib_per_second) for row in probe.copies)
    yield from _best("copy, {}", copies, "GiB/s")
    collectives = (
        (f"{row.operation.replace('_', '-')} over {row.group_size}", row.bus_gb_per_second)
        for row in probe.collectives
    )
    yield from _best("{}", collectives, "GB/s bus")


def _best(template: str, pairs: Iterable[tuple[str, float]], unit: str) -> Iterator[Line]:
    for name, rate in highest(pairs).items():
        yield template.format(name).replace("_", " "), rate, unit


def left_out(probe: Probe) -> Iterator[str]:
    """Yield a sentence for each reason why something was not measured."""
    for first, *others in alike(probe.skipped, lambda item: item.reason.rstrip(".")):
        more = f" and {len(others)} more" if others else ""
        yield f"not measured: {first.what}{more}: {first.reason.rstrip('.')}."


def summary(probe: Probe) -> str:
    text = [f"probe {probe.probe_id}: {probe.status}"]
    text += [f"  {probe.reason}."] if probe.reason else []
    text += [f"  | {line}" for line in probe.log_tail]
    text += [f"  {what}: {rate:.4g} {unit}" for what, rate, unit in lines(probe)]
    return "\n".join([*text, *(f"  {sentence}" for sentence in left_out(probe))])
