"""The page of probes: what each machine can reach, apart from any training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalebook.facts import catalog
from scalebook.measure.probes import Probe, read_probes
from scalebook.measure.probes.words import left_out, lines
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column, plain, table, text
from scalebook.report.base.markup import Fragment, Markup, bullets, join, paragraphs
from scalebook.report.base.quantities import count, number, percent
from scalebook.report.charts import Figures
from scalebook.report.charts.probe_charts import bus, over_time, products

NONE = "No probe is among these runs. 'scalebook probe' makes one: it takes a minute on a GPU node."
NOTHING = "No probe of these runs measured this."


def load(data: ReportData) -> tuple[Probe, ...]:
    """Return the newest completed probe of each machine and software, the newest first."""
    probes, _ = read_probes(data.folder)
    newest: dict[object, Probe] = {}
    for probe in sorted(probes, key=lambda item: item.started_at or "", reverse=True):
        if probe.status == "completed" and probe.identity is not None:
            newest.setdefault(probe.identity, probe)
    return tuple(newest.values())


def name(probe: Probe) -> str:
    """Return a probe's machine in words."""
    device = probe.identity.accelerator if probe.identity else None
    many = probe.request.world_size
    if device is None:
        return f"{count(many, 'process', 'processes')} on a CPU ({probe.probe_id})"
    return f"{many} × {device} ({probe.probe_id})"


def _machine(probes: tuple[Probe, ...]) -> tuple[Column, ...]:
    """Return the column of the machine; none where a page is about one machine."""
    return (text("probe", "Machine"),) if len(probes) > 1 else ()


def peaks(probe: Probe) -> Mapping[str, float]:
    """Return the dense peaks (TFLOP/s) of a probe's device by precision; empty where unknown."""
    device = catalog.accelerator_for_device(
        (probe.identity.accelerator if probe.identity else None) or ""
    )
    return device.peak_tflops if device else {}


def overview(probes: tuple[Probe, ...], data: ReportData) -> Fragment:
    """Return what each probe found, and which probes did not complete or cannot be read."""
    found, problems = read_probes(data.folder)
    sentences = [*(sentence for probe in probes for sentence in _sentences(probe))]
    sentences += [
        Markup("Probe <code>{}</code>: {}. {}.").format(item.probe_id, item.status, item.reason)
        for item in found
        if item.status != "completed"
    ]
    sentences += [Markup("{}").format(problem) for problem in problems]
    return bullets(sentences) if sentences else paragraphs(NONE)


def _sentences(probe: Probe) -> Iterator[Markup]:
    dense = peaks(probe)
    rates = probe.ceilings.matmul_tflops if probe.ceilings else {}
    if rates:
        found = (_best(precision, rate, dense) for precision, rate in rates.items())
        words = "<strong>{}</strong>: the fastest matrix products reach {}."
        yield Markup(words).format(name(probe), join(found))
    for row in probe.sustained:
        words = (
            "<strong>{}</strong>: held for {} s, the {} product falls to {} of its rate in the "
            "first quarter of a second, as clocks do under load."
            if row.sustained_tflops < row.burst_tflops
            else "<strong>{}</strong>: held for {} s, the {} product keeps its first rate ({})."
        )
        kept = percent(row.sustained_tflops / row.burst_tflops)
        yield Markup(words).format(name(probe), number(row.seconds), row.precision, kept)


def _best(precision: str, rate: float, dense: Mapping[str, float]) -> str:
    of = f" ({percent(rate / dense[precision])} of the dense peak)" if precision in dense else ""
    return f"{number(rate)} TFLOP/s in {precision}{of}"


def sweep(probes: tuple[Probe, ...]) -> Figures | Fragment:
    """Return a chart of square products by size for each probe."""
    parts = ((name(probe), products(_squares(probe), peaks(probe))) for probe in probes)
    return Figures.of(parts) or paragraphs(NOTHING)


def _squares(probe: Probe) -> tuple[Any, ...]:
    return tuple(row for row in probe.sweep if row.m == row.n == row.k)


def sustained(probes: tuple[Probe, ...]) -> Figures | Fragment:
    """Return a chart of one product over time for each probe."""
    parts = ((name(probe), over_time(row)) for probe in probes for row in probe.sustained)
    return Figures.of(parts) or paragraphs(NOTHING)


def collectives(probes: tuple[Probe, ...]) -> Figures | Fragment:
    """Return a chart of collectives by size for each probe and size of group."""
    parts = (
        (
            f"{name(probe)}, groups of {size}",
            bus(tuple(row for row in probe.collectives if row.group_size == size)),
        )
        for probe in probes
        for size in sorted({row.group_size for row in probe.collectives})
    )
    return Figures.of(parts) or paragraphs(NOTHING)


def summary(probes: tuple[Probe, ...]) -> Fragment:
    """Return the best rate of each kind, a row a rate."""
    rows = [
        {"probe": name(probe), "what": what, "rate": rate, "unit": unit}
        for probe in probes
        for what, rate, unit in lines(probe)
    ]
    columns = (text("what", "What"), plain("rate", "Rate"))
    return _table(rows, (*columns, text("unit", "Unit"), *_machine(probes)), "probe")


def layers(probes: tuple[Probe, ...]) -> Fragment:
    """Return every product of the models' layers with its part of the dense peak."""
    rows = [_layer(probe, row) for probe in probes for row in probe.layers]
    columns = (
        *(text("model", "Model"), text("layer", "Layer")),
        text("layout", "Pass", hint="which transposes lie in memory"),
        plain("tensor_parallel_size", "TP"),
        text("precision", "Precision"),
        *(plain("m", "Rows"), plain("n", "Columns"), plain("k", "Depth")),
        plain("tflops", "Median", "TFLOP/s"),
        plain("tflops_best", "Best", "TFLOP/s"),
        Column("of_peak", "Of peak", lambda row: percent(row["of_peak"])),
        *_machine(probes),
    )
    return _table(rows, columns, "probe-layers")


def _layer(probe: Probe, row: Any) -> dict[str, Any]:
    peak = peaks(probe).get(row.precision)
    of_peak = row.tflops / peak if peak else None
    return {**row.model_dump(), "probe": name(probe), "of_peak": of_peak}


def links(probes: tuple[Probe, ...]) -> Fragment:
    """Return how the devices of each probe's node are linked, where a tool told it."""
    rows = [
        {"probe": name(probe), "device": device, "links": " ".join(cells)}
        for probe in probes
        for device, cells in zip(probe.topology.devices, probe.topology.links, strict=False)
    ]
    columns = (text("device", "Device"), text("links", "To each device"))
    return _table(rows, (*columns, *_machine(probes)), "probe-links")


def missing(probes: tuple[Probe, ...]) -> Fragment:
    """Return what was not measured, and why."""
    sentences = [
        Markup("<strong>{}</strong>: {}").format(name(probe), sentence)
        for probe in probes
        for sentence in left_out(probe)
    ]
    return bullets(sentences) if sentences else Fragment(Markup(""))


def _table(rows: list[dict[str, Any]], columns: tuple[Column, ...], title: str) -> Fragment:
    return table(rows, columns, title) if rows else paragraphs(NOTHING)
