"""The pages Machine probe and Predicted: what devices reach, and predictions of runs.

A chart of predictions has a point, a bar or a row per configuration; hollow marks are predictions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from statistics import fmean, median
from typing import Any

import altair as alt
import polars as pl

from scalebook.facts import catalog
from scalebook.identity import alike
from scalebook.measure.probes import Collective, Matmul, Probe, Sustained
from scalebook.measure.probes.files import read_probes
from scalebook.measure.probes.lines import left_out, lines
from scalebook.predict import KnownRate, Predictor, predictor
from scalebook.predict.kinds import COMMUNICATION
from scalebook.predict.known import known_rates, layout
from scalebook.predict.model import Z90
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import MODEL, PRECISION, Column, plain, share, table, text
from scalebook.report.base.markup import Markup, bullets, join, paragraphs, run_link
from scalebook.report.base.naming import precision_title, titled
from scalebook.report.base.quantities import count, number, percent
from scalebook.report.charts.figure import (
    SHARES,
    SIGNED,
    TICKS,
    Figure,
    Figures,
    by,
    drawn,
    names,
    rows,
    stacked,
    tooltips,
)

NONE = "No probe is among these runs. 'scalebook probe' adds one in a minute on a GPU node."
NOTHING = "No probe of these runs measured this."
TFLOPS = "TFLOP/s"
# Expressions of Vega that write a tick: a whole number, or bytes in their binary unit.
WHOLE = "format(datum.value, ',')"
BINARY = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '.3~g') + ' KiB' : datum.value + ' B'"
)


def load(data: ReportData) -> tuple[Probe, ...]:
    """Return the newest completed probe of each machine and software, the newest first."""
    probes, _ = read_probes(data.folder)
    newest: dict[object, Probe] = {}
    for probe in sorted(probes, key=lambda item: item.started_at or "", reverse=True):
        if probe.status == "completed" and probe.identity is not None:
            newest.setdefault(probe.identity, probe)
    return tuple(newest.values())


def name(probe: Probe) -> str:
    """Return a probe's machine in words, and when it was probed."""
    device = probe.identity.accelerator if probe.identity else None
    many = probe.request.world_size
    began = f" ({probe.started_at[:16].replace('T', ' ')})" if probe.started_at else ""
    if device is None:
        return f"{count(many, 'process', 'processes')} on a CPU{began}"
    return f"{many} × {device}{began}"


def _machine(probes: tuple[Probe, ...]) -> tuple[Column, ...]:
    """Return the column of the machine; none where a page is about one machine."""
    return (text("probe", "Machine"),) if len(probes) > 1 else ()


def peaks(probe: Probe) -> Mapping[str, float]:
    """Return the dense peaks (TFLOP/s) of a probe's device by precision; empty where unknown."""
    device = catalog.accelerator_for_device(
        (probe.identity.accelerator if probe.identity else None) or ""
    )
    return device.peak_tflops if device else {}


def overview(probes: tuple[Probe, ...], data: ReportData) -> Markup:
    """Return what each probe found, and which probes did not complete or cannot be read."""
    found, problems = read_probes(data.folder)
    sentences = [sentence for probe in probes for sentence in _sentences(probe)]
    sentences += [
        Markup("Probe <code>{}</code>: {}. {}.").format(item.probe_id, item.status, item.reason)
        for item in found
        if item.status != "completed"
    ]
    return bullets([*sentences, *problems], empty=NONE)


def _sentences(probe: Probe) -> Iterator[Markup]:
    dense = peaks(probe)
    rates = probe.ceilings.matmul_tflops if probe.ceilings else {}
    if rates:
        shares = {name: f" ({percent(rates[name] / peak)} of the dense peak)"
                  for name, peak in dense.items() if name in rates}  # fmt: skip
        found = (
            f"{number(rate)} TFLOP/s in {precision_title(name)}{shares.get(name, '')}"
            for name, rate in rates.items()
        )
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
        yield Markup(words).format(
            name(probe), number(row.seconds), precision_title(row.precision), kept
        )


def sweep(probes: tuple[Probe, ...]) -> Figures | Markup:
    """Return a chart of square products by size for each probe."""
    squares = ([row for row in probe.sweep if row.m == row.n == row.k] for probe in probes)
    parts = (
        (name(probe), products(rows, peaks(probe)))
        for probe, rows in zip(probes, squares, strict=True)
    )
    return Figures.of(parts) or paragraphs(NOTHING)


def sustained(probes: tuple[Probe, ...]) -> Figures | Markup:
    """Return a chart of one product over time for each probe."""
    parts = ((name(probe), over_time(row)) for probe in probes for row in probe.sustained)
    return Figures.of(parts) or paragraphs(NOTHING)


def collectives(probes: tuple[Probe, ...]) -> Figures | Markup:
    """Return a chart of collectives by size for each probe and size of group."""
    parts = (
        (
            f"{name(probe)}, groups of {size}",
            bus([row for row in probe.collectives if row.group_size == size]),
        )
        for probe in probes
        for size in sorted({row.group_size for row in probe.collectives})
    )
    return Figures.of(parts) or paragraphs(NOTHING)


def _curves(
    values: Sequence[Mapping[str, Any]], x: tuple[str, str, str], title: str, colour: str, tips: Any
) -> Any:
    """Return rates over sizes, one line per kind; the axis doubles, with a tick per measured size.

    ``x`` has the column, its title and the expression of its ticks.
    """
    column, name, labels = x
    sizes = alt.Axis(values=sorted({row[column] for row in values}), labelExpr=labels)
    scale = alt.Scale(type="log", base=2, nice=False, padding=20)
    base = alt.Chart(rows(pl.DataFrame(values))).encode(
        x=alt.X(f"{column}:Q", title=f"{name} (log)", scale=scale, axis=sizes),
        y=alt.Y("rate:Q", title=title, axis=TICKS),
        color=alt.Color(f"{colour}:N", title=None),
    )
    marks = base.mark_point(filled=True, size=70).encode(tooltip=tooltips(colour, *tips))
    return base.mark_line() + marks


def products(found: Sequence[Matmul], peaks: Mapping[str, float]) -> Figure | None:
    """Return the rate of square products by size, next to the dense peaks (TFLOP/s)."""
    if not found:
        return None
    values = [
        {"size": row.n, "rate": row.tflops, "best": row.tflops_best,
         "precision": precision_title(row.precision)}
        for row in found
    ]  # fmt: skip
    rates = (("rate", f"median {TFLOPS}", ",.4~g"), ("best", f"best {TFLOPS}", ",.4~g"))
    x = ("size", "rows = columns = depth", WHOLE)
    chart = _curves(values, x, TFLOPS, "precision", (("size", "", ",d"), *rates))
    limits = [
        {"precision": precision_title(name), "peak": peaks[name]}
        for name in dict.fromkeys(row.precision for row in found)
        if name in peaks
    ]
    if limits:
        rule = alt.Chart(alt.Data(values=limits)).mark_rule(strokeDash=[5, 4])
        chart += rule.encode(y="peak:Q", color="precision:N")
    fastest = max(found, key=lambda row: row.tflops)
    words = (
        f"Rate of {count(len(found), 'square matrix product')} by size; the fastest is "
        f"{number(fastest.tflops)} {TFLOPS} in {precision_title(fastest.precision)} at {fastest.n}."
    )
    return drawn(chart, words, 320)


def over_time(row: Sustained) -> Figure | None:
    """Return the rate of one product repeated for seconds, in equal parts of the time."""
    if not row.series_tflops:
        return None
    step = row.seconds / len(row.series_tflops)
    values = [
        {"seconds": (index + 0.5) * step, "rate": rate}
        for index, rate in enumerate(row.series_tflops)
    ]
    chart = alt.Chart(alt.Data(values=values)).mark_line(point=True).encode(
        x=alt.X("seconds:Q", title="seconds"),
        y=alt.Y("rate:Q", title=TFLOPS, scale=alt.Scale(zero=False)),
        tooltip=tooltips(("rate", TFLOPS, ",.4~g")),
    )  # fmt: skip
    words = (
        f"Rate of one {precision_title(row.precision)} product over {number(row.seconds)} s: "
        f"{number(row.burst_tflops)} {TFLOPS} at first, "
        f"{percent(row.sustained_tflops / row.burst_tflops)} of that in the second half."
    )
    return drawn(chart, words, 220)


def bus(found: Sequence[Collective]) -> Figure | None:
    """Return the bus rate of collectives by size of the buffer, one colour per operation."""
    if not found:
        return None
    values = [
        {"bytes": row.bytes, "rate": row.bus_gb_per_second, "milliseconds": row.seconds * 1e3,
         "operation": row.operation.replace("_", "-")}
        for row in found
    ]  # fmt: skip
    tips = (("bytes", "", "~s"), ("rate", "GB/s bus", ",.4~g"), ("milliseconds", "ms", ",.4~g"))
    x = ("bytes", "size of the buffer", BINARY)
    chart = _curves(values, x, "GB/s bus", "operation", tips)
    fastest = max(found, key=lambda row: row.bus_gb_per_second)
    words = (
        f"Bus rate of {count(len({row.operation for row in found}), 'collective')} by size; the "
        f"highest is {number(fastest.bus_gb_per_second)} GB/s by "
        f"{fastest.operation.replace('_', '-')}."
    )
    return drawn(chart, words, 300)


def summary(probes: tuple[Probe, ...]) -> Markup:
    """Return the best rate of each kind, one row per rate."""
    rows = [
        # products of Llama 3.1 8B, TP1, BF16
        {
            "probe": name(probe),
            "what": titled(what.replace("/tp", ", TP").replace("/", ", ")),
            "rate": rate,
            "unit": unit,
        }
        for probe in probes
        for what, rate, unit in lines(probe)
    ]
    columns = (text("what", "What"), plain("rate", "Rate"))
    columns = (*columns, text("unit", "Unit"), *_machine(probes))
    return table(rows, columns, "probe", empty=NOTHING)


# How a layer's product is called, and what a pass computes with it.
PRODUCTS = {
    "qkv": "query, key, value", "proj": "attention output", "fc1": "MLP, first",
    "fc2": "MLP, second", "dgrad": "input gradient", "wgrad": "weight gradient",
    "wgrad_accumulate": "weight gradient, added up",
}  # fmt: skip


def layers(probes: tuple[Probe, ...]) -> Markup:
    """Return every product of the models' layers with its part of the dense peak."""
    rows = [_layer(probe, row) for probe in probes for row in probe.layers]
    columns = (
        *(MODEL, text("layer", "Layer")),
        text("layout", "Pass", hint="which transposes lie in memory"),
        plain("tensor_parallel_size", "TP"),
        PRECISION,
        *(plain("m", "Rows"), plain("n", "Columns"), plain("k", "Depth")),
        plain("tflops", "Median", "TFLOP/s"),
        plain("tflops_best", "Best", "TFLOP/s"),
        share("of_peak", "Of peak"),
        *_machine(probes),
    )
    return table(rows, columns, "probe-layers", empty=NOTHING)


def _layer(probe: Probe, row: Any) -> dict[str, Any]:
    peak = peaks(probe).get(row.precision)
    of_peak = row.tflops / peak if peak else None
    words = {
        part: PRODUCTS.get(getattr(row, part), getattr(row, part)) for part in ("layer", "layout")
    }
    return {**row.model_dump(), **words, "probe": name(probe), "of_peak": of_peak}


def links(probes: tuple[Probe, ...]) -> Markup:
    """Return how the devices of each probe's node are linked, where a tool reported it."""
    rows = [
        {"probe": name(probe), "device": device, "links": " ".join(cells)}
        for probe in probes
        for device, cells in zip(probe.topology.devices, probe.topology.links, strict=False)
    ]
    columns = (text("device", "Device"), text("links", "To each device"))
    return table(rows, (*columns, *_machine(probes)), "probe-links", empty=NOTHING)


def missing(probes: tuple[Probe, ...]) -> Markup:
    """Return what was not measured, and why."""
    return bullets(
        Markup("<strong>{}</strong>: {}").format(name(probe), titled(sentence))
        for probe in probes
        for sentence in left_out(probe)
    )


MOST_RUNS = 400  # that are fitted to, the newest: each configuration costs a fit
MOST_CONFIGURATIONS = 300
SHOWN, ROW_HEIGHT = 14, 28  # rows of a figure
_WHO = (("label", "configuration"), "run_id")
# What a reader tells apart in a step; every other kind of work is "other".
PARTS = {
    "matrix products": ("gemm", "gemm_fp8", "gemm_fp32", "gemm_traffic", "expert_gemm"),
    "attention": ("attention", "context_attention", "fused_attention_off"),
    "element-wise": ("elementwise", "fp8_cast", "fp8_scaling", "routing"),
    "optimizer": ("optimizer", "sharded_optimizer", "fused_optimizer_off"),
    "exposed communication": COMMUNICATION,
    "pipeline bubble": ("bubble",),
}
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Compared:
    """One configuration on one platform: measured, and predicted from all others."""

    run_ids: tuple[str, ...]
    label: str
    family: str  # of its layout
    platform: str
    measured: float  # tokens/s per GPU
    predicted: float
    low: float  # 90 %
    high: float
    parts: Mapping[str, float]  # predicted seconds over the measured step, by name of PARTS

    @property
    def error(self) -> float:
        """Predicted over measured step time, minus 1."""
        return self.measured / self.predicted - 1

    @property
    def held(self) -> bool:
        """Whether the interval holds the measured rate."""
        return self.low <= self.measured <= self.high


def compare(data: ReportData, run_ids: Collection[str] = ()) -> tuple[Compared, ...]:
    """Return every configuration of the report's runs against its prediction, best known first.

    A configuration is predicted from the runs of all others, on any device; those of ``run_ids``
    from the runs of no such configuration.
    """
    rates = known_rates([data.folder], _newest(data))[0][-MOST_RUNS:]
    probes, _ = read_probes(data.folder)
    wanted = [rate for rate in rates if not run_ids or rate.run_id in run_ids]
    groups = alike(wanted, lambda rate: rate.placed)
    asked = {same[0].placed[1] for same in groups} if run_ids else set[str]()
    labels = dict(data.runs.select("run_id", "label").iter_rows())
    made: dict[str, Predictor] = {}
    found: list[Compared] = []
    for same in groups[-MOST_CONFIGURATIONS:]:
        platform, own = same[0].placed
        if not asked or platform not in made:
            apart = asked or {own}
            made[platform] = predictor(
                platform,
                rates,
                probes,
                leave_out=lambda one, apart=apart: one.placed[1] in apart,
            )
        if made[platform].fitted.samples:
            found.append(_compared(made[platform], platform, same, labels))
    return tuple(sorted(found, key=lambda one: -abs(one.error)))


def _compared(
    made: Predictor, platform: str, same: Sequence[KnownRate], labels: Mapping[str, str]
) -> Compared:
    first, seconds = same[0], fmean(one.seconds for one in same)
    parts, deviation = made.step(first.config, first.shape, first.ran)
    tokens = first.config.tokens_per_step / first.config.world_size
    rate, spread = tokens / sum(parts.values()), exp(Z90 * deviation)
    shares = _grouped({kind: value / seconds for kind, value in parts.items()})
    ids, family = tuple(one.run_id for one in same), layout(first.config, first.ran)
    label = labels.get(first.run_id, first.run_id)
    ends = (rate, rate / spread, rate * spread)
    return Compared(ids, label, family, platform, tokens / seconds, *ends, shares)


def _newest(data: ReportData) -> set[str]:
    """Return the directories of the newest runs that may teach a rate, some of which teach none."""
    ids = data.completed.filter(pl.col("source") == "measured")["run_id"].sort()
    return {data.directories[run_id].name for run_id in ids[-2 * MOST_RUNS :]}


def _grouped(parts: Mapping[str, float]) -> dict[str, float]:
    of = {kind: name for name, kinds in PARTS.items() for kind in kinds}
    found = dict.fromkeys((*PARTS, OTHER), 0.0)
    for kind, value in parts.items():
        found[of.get(kind, OTHER)] += value
    return found


def findings(ones: Sequence[Compared]) -> Markup:
    """Return how far predictions are off, and where most."""
    return bullets(_findings(ones))


def _findings(ones: Sequence[Compared]) -> Iterator[Markup | str]:
    if not ones:
        yield "No run here can be predicted from another: two configurations at least are needed."
        return
    errors = [abs(one.error) for one in ones]
    held = sum(one.held for one in ones)
    yield (
        f"Half of {count(len(ones), 'configuration')} are predicted within "
        f"{percent(median(errors))} of the measured step time; "
        f"{held} of {len(ones)} lie in their 90\N{NO-BREAK SPACE}% interval."
    )
    families = _families(ones)
    several = {name: same for name, same in families.items() if len(same) >= 3}
    if len(several) > 1:
        worst = max(several, key=lambda name: median(abs(one.error) for one in several[name]))
        middle = median(abs(one.error) for one in several[worst])
        yield f"The kind of layout predicted worst is “{worst}”: {percent(middle)} in the median."
    first = ones[0]
    way = "slower" if first.error < 0 else "faster"
    said = f"The largest miss ran {percent(abs(first.error))} {way} than predicted: "
    yield Markup("{}{}.").format(said, run_link(first.run_ids[0], first.label))


def _families(ones: Sequence[Compared]) -> dict[str, list[Compared]]:
    return {_family(same[0]): same for same in alike(ones, _family)}


def _family(one: Compared) -> str:
    parallel = one.family in ("data", "tensor", "pipeline", "context")
    return f"{one.family} parallel" if parallel else titled(one.family)


def errors(ones: Sequence[Compared]) -> Figure | None:
    """Return the error of each configuration, a row per kind of layout."""
    if not ones:
        return None
    data = pl.DataFrame(
        [{**_facts(one), "error": one.error, "family": _family(one)} for one in ones]
    )
    order = sorted(_families(ones))
    axis = alt.Axis(labelExpr=SIGNED, tickCount=6)
    scale = alt.Scale(nice=True, padding=6)  # no mark is cut off at the edge
    title = "predicted over measured step time, minus 1"
    marks = alt.Chart(rows(data)).mark_point(filled=True, size=55).encode(
        y=alt.Y("family:N", sort=order, title=None),
        x=alt.X("error:Q", title=title, axis=axis, scale=scale),
        color=by("platform", data),
        tooltip=tooltips(*_WHO, ("error", "", "+.1%")),
    )  # fmt: skip
    words = f"Error of {count(len(ones), 'prediction')} in {count(len(order), 'kind')} of layout."
    return drawn(alt.layer(_rule("error", 0.0), marks), words, ROW_HEIGHT * len(order) + 10)


def rates(ones: Sequence[Compared]) -> Figure | None:
    """Return predicted rates with their intervals over the measured ones, largest misses first.

    Rates of different models differ a hundredfold: side by side no error would be seen.
    """
    if not ones:
        return None
    columns = ("measured", "predicted", "low", "high")
    data = pl.DataFrame(
        [_facts(one) | {name: getattr(one, name) for name in columns} for one in ones[:SHOWN]]
    )
    over = data.with_columns(
        (pl.col(name) / pl.col("measured")).alias(f"{name}_share") for name in columns
    )
    low, predicted, measured = (
        alt.X(f"{name}_share:Q", title="over the measured rate", axis=SHARES,
              scale=alt.Scale(zero=False))
        for name in ("low", "predicted", "measured")
    )  # fmt: skip
    order = data["label"].unique(maintain_order=True).to_list()
    base = alt.Chart(rows(over)).encode(
        y=names("label", order, grid=True),
        color=by("platform", data),
        tooltip=tooltips(*_WHO, *((name, "", ",.0f") for name in columns)),
    )
    chart = alt.layer(
        base.mark_rule(strokeWidth=1.5).encode(x=low, x2="high_share:Q"),
        base.mark_point(filled=False, size=80, strokeWidth=1.8).encode(x=predicted),
        base.mark_point(filled=True, size=55, opacity=1).encode(x=measured),
    )
    many = len(order)
    cut = f"The {many} largest misses of {len(ones)}" if len(ones) > many else None
    words = f"Measured and predicted tokens/s per GPU of {count(many, 'configuration')}."
    return drawn(chart, words, ROW_HEIGHT * many + 10, cut)


def parts(ones: Sequence[Compared]) -> Figure | None:
    """Return the predicted parts of the step over the measured step, in the same order."""
    if not ones:
        return None
    data = pl.DataFrame([
        {**_facts(one), "part": name, "share": share, "place": place}
        for one in ones[:SHOWN]
        for place, (name, share) in enumerate(one.parts.items())
    ])  # fmt: skip
    labels = data["label"].unique(maintain_order=True).to_list()
    title = "predicted time over the measured step"
    x = alt.X("share:Q", title=title, axis=SHARES, stack="zero")
    tips = tooltips(*_WHO, "part", ("share", "", ".1%"))
    marks = stacked(data.filter(pl.col("share") > 0), labels, x, (*PARTS, OTHER), tips)
    words = f"Predicted parts of the step of {count(len(labels), 'configuration')}."
    return drawn(alt.layer(marks, _rule("share", 1.0)), words, ROW_HEIGHT * len(labels) + 10)


def _facts(one: Compared) -> dict[str, Any]:
    return {"run_id": one.run_ids[0], "label": one.label, "platform": one.platform}


def _rule(field: str, value: float) -> alt.Chart:
    """Return a line where prediction and measurement are equal."""
    data = rows(pl.DataFrame({field: [value]}))
    return alt.Chart(data).mark_rule(strokeDash=[4, 3]).encode(x=f"{field}:Q")


def families(ones: Sequence[Compared]) -> Markup:
    """Return the errors by kind of layout as a table."""
    rows = [
        {
            "family": name,
            "count": len(same),
            "median": 100 * median(abs(one.error) for one in same),
            "largest": 100 * max(abs(one.error) for one in same),
            "held": f"{sum(one.held for one in same)} of {len(same)}",
        }
        for name, same in sorted(_families(ones).items())
    ]
    columns: list[Column] = [
        text("family", "Layout"),
        plain("count", "Configurations"),
        plain("median", "Median error", "%", 2),
        plain("largest", "Largest error", "%", 2),
        text("held", "In the 90 % interval"),
    ]
    return table(rows, columns, "predicted")
