"""The page that sets predicted step times against measured ones; no run predicts itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from statistics import fmean, median

import polars as pl

from scalebook.measure.probes import read_probes
from scalebook.predict import KnownRate, predictor
from scalebook.predict.kinds import COMMUNICATION
from scalebook.predict.known import configuration, known_rates, layout
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column, plain, table, text
from scalebook.report.base.markup import Fragment, Markup, bullets, run_link
from scalebook.report.base.quantities import count, percent
from scalebook.report.charts import Figure
from scalebook.report.charts import predicted_charts as charts

MOST_RUNS = 400  # that are fitted to, the newest: each configuration costs a fit
MOST_CONFIGURATIONS = 100
SHOWN = 14  # rows of a figure
_QUANTILE = 1.645  # of the normal distribution, both sides of 90 %
# What a reader tells apart in a step; every other kind of work is "other".
PARTS = {
    "matrix products": ("gemm", "gemm_fp8", "gemm_traffic", "expert_gemm"),
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


def compare(data: ReportData) -> tuple[Compared, ...]:
    """Return every configuration of the report's runs against its prediction, best known first.

    A configuration is predicted from the runs of all others, on any device.
    """
    rates = known_rates([data.folder])[0][-MOST_RUNS:]
    probes, _ = read_probes(data.folder)
    groups: dict[tuple[str, str], list[KnownRate]] = defaultdict(list)
    for rate in rates:
        groups[rate.config.platform, configuration(rate.config, rate.ran)].append(rate)
    labels = dict(data.runs.select("run_id", "label").iter_rows())
    found: list[Compared] = []
    for (platform, own), same in [*groups.items()][-MOST_CONFIGURATIONS:]:
        made = predictor(
            platform,
            rates,
            probes,
            leave_out=lambda other, own=own: configuration(other.config, other.ran) == own,
        )
        if not made.fitted.samples:
            continue
        first, seconds = same[0], fmean(one.seconds for one in same)
        parts, deviation = made.step(first.config, first.shape, first.ran)
        tokens = first.config.tokens_per_step / first.config.world_size
        rate, spread = tokens / sum(parts.values()), exp(_QUANTILE * deviation)
        shares = _grouped({kind: value / seconds for kind, value in parts.items()})
        ids, family = tuple(one.run_id for one in same), layout(first.config, first.ran)
        label = labels.get(first.run_id, first.run_id)
        ends = (rate, rate / spread, rate * spread)
        found.append(Compared(ids, label, family, platform, tokens / seconds, *ends, shares))
    return tuple(sorted(found, key=lambda one: -abs(one.error)))


def _grouped(parts: Mapping[str, float]) -> dict[str, float]:
    of = {kind: name for name, kinds in PARTS.items() for kind in kinds}
    found = dict.fromkeys((*PARTS, OTHER), 0.0)
    for kind, value in parts.items():
        found[of.get(kind, OTHER)] += value
    return found


def findings(ones: Sequence[Compared]) -> Fragment:
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
        f"{held} of {len(ones)} lie in their 90 % interval."
    )
    families = _families(ones)
    several = {name: same for name, same in families.items() if len(same) >= 3}
    if len(several) > 1:
        worst = max(several, key=lambda name: median(abs(one.error) for one in several[name]))
        middle = median(abs(one.error) for one in several[worst])
        yield f"The layout predicted worst is {worst!r}: {percent(middle)} in the median."
    first = ones[0]
    way = "slower" if first.error < 0 else "faster"
    said = f"The largest miss ran {percent(abs(first.error))} {way} than predicted: "
    yield Markup("{}{}.").format(said, run_link(first.run_ids[0], first.label))


def _families(ones: Sequence[Compared]) -> dict[str, list[Compared]]:
    found: dict[str, list[Compared]] = defaultdict(list)
    for one in ones:
        found[one.family].append(one)
    return found


def errors(ones: Sequence[Compared]) -> Figure | None:
    """Return the error of each configuration, a row per kind of layout."""
    values = [{**_values(one), "error": one.error, "family": one.family} for one in ones]
    return charts.errors(pl.DataFrame(values, charts.ERRORS), [*_families(ones)])


def rates(ones: Sequence[Compared]) -> Figure | None:
    """Return measured rates next to predicted ones, the largest misses first."""
    values = [
        {
            **_values(one),
            **{name: getattr(one, name) for name in ("measured", "predicted", "low", "high")},
        }
        for one in ones[:SHOWN]
    ]
    return charts.rates(pl.DataFrame(values, charts.RATES), len(ones))


def parts(ones: Sequence[Compared]) -> Figure | None:
    """Return the predicted parts of the step over the measured step, in the same order."""
    values = [
        {**_values(one), "part": name, "share": share, "place": place}
        for one in ones[:SHOWN]
        for place, (name, share) in enumerate(one.parts.items())
    ]
    return charts.parts(pl.DataFrame(values, charts.PARTS), (*PARTS, OTHER))


def _values(one: Compared) -> dict[str, str]:
    return {"run_id": one.run_ids[0], "label": one.label, "platform": one.platform}


def families(ones: Sequence[Compared]) -> Fragment | None:
    """Return the errors by kind of layout as a table."""
    if not ones:
        return None
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
        text("family", "layout"),
        plain("count", "configurations"),
        plain("median", "median error", "%", 2),
        plain("largest", "largest error", "%", 2),
        text("held", "in the 90 % interval"),
    ]
    return table(rows, columns, "predicted")
