"""The pages Machine probe and Predicted: what devices reach, and predictions of runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from statistics import fmean, median
from typing import Any

import polars as pl

from scalebook.facts import catalog
from scalebook.identity import alike
from scalebook.measure.probes import Probe
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
from scalebook.report.charts import Figure, Figures
from scalebook.report.charts import predicted_charts as charts
from scalebook.report.charts.predicted_charts import bus, over_time, products

NONE = "No probe is among these runs. 'scalebook probe' adds one in a minute on a GPU node."
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
MOST_CONFIGURATIONS = 240
SHOWN = 14  # rows of a figure
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
    values = [{**_values(one), "error": one.error, "family": _family(one)} for one in ones]
    return charts.errors(values, [*_families(ones)])


def rates(ones: Sequence[Compared]) -> Figure | None:
    """Return measured rates next to predicted ones, the largest misses first."""
    names = ("measured", "predicted", "low", "high")
    values = [_values(one) | {name: getattr(one, name) for name in names} for one in ones[:SHOWN]]
    return charts.rates(values, len(ones))


def parts(ones: Sequence[Compared]) -> Figure | None:
    """Return the predicted parts of the step over the measured step, in the same order."""
    values = [
        {**_values(one), "part": name, "share": share, "place": place}
        for one in ones[:SHOWN]
        for place, (name, share) in enumerate(one.parts.items())
    ]
    return charts.parts(values, (*PARTS, OTHER))


def _values(one: Compared) -> dict[str, str]:
    return {"run_id": one.run_ids[0], "label": one.label, "platform": one.platform}


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
