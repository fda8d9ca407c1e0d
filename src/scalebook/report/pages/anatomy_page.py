"""The anatomy page: where the time of a profiled step goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import altair as alt
import polars as pl

from scalebook.measure.anatomy import Breakdown
from scalebook.measure.anatomy.kinds import COLLECTIVES, SENDS
from scalebook.measure.metrics.step_anatomy import MarkedSteps, RunAnatomy
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import RAN, RUN, Column, Row, plain, share, table, text, time
from scalebook.report.base.markup import Markup, bullets, code, join, opened, run_link, run_links
from scalebook.report.base.quantities import count, duration, percent
from scalebook.report.charts.figure import (
    SHARES,
    Figure,
    Figures,
    by_platform,
    drawn,
    first,
    stacked,
    tooltips,
)

MOST_KERNELS = 10  # of a profile, in the table

# One colour a part in every chart, whichever parts it shows: the order is that of the theme's hues.
PARTS = (
    "forward", "exposed communication", "backward", "optimizer", "data",
    "waiting for a stage", "idle", "gradients", "forward and backward", "outside",
)  # fmt: skip
# The order of the parts in a bar and in the legend.
ORDER = (
    "forward", "backward", "forward and backward", "gradients", "optimizer",
    "exposed communication", "waiting for a stage", "data", "idle", "outside",
)  # fmt: skip
KINDS = (
    "matrix products", "communication", "attention", "norm", "element-wise", "optimizer", "other",
    "copy",
)  # fmt: skip
_PROFILED = {
    name: f"{name.replace(' ', '_')}_seconds"
    for name in ("forward", "backward", "optimizer", "exposed communication", "data", "idle")
}
KIND_WORDS = {"gemm": "matrix products", "elementwise": "element-wise"}
_MARK_NAMES = {
    **{name: name for name in ("forward", "backward", "gradients", "optimizer", "data", "outside")},
    **{"pipeline": "waiting for a stage", "schedule": "forward and backward"},
}


def runs_with(data: ReportData, *, marks: bool = True) -> Iterator[tuple[Row, RunAnatomy]]:
    """Yield each run of the report's order that has a profile, or else ``marks`` of time."""
    known = data.anatomies.items()
    ids = [name for name, one in known if one.profiles or (marks and one.marked is not None)]
    for row in data.runs.filter(pl.col("run_id").is_in(ids)).iter_rows(named=True):
        yield row, data.anatomies[row["run_id"]]


def profiles(data: ReportData) -> Iterator[tuple[Row, Breakdown, str]]:
    """Yield each profile with its run and the name of its bar."""
    for row, found in runs_with(data, marks=False):
        for one in found.profiles:
            rank = f" · rank {one.rank}" if len(found.profiles) > 1 else ""
            yield row, one, f"{row['label']}{rank}"


def _parts(
    row: Row, label: str, seconds: Mapping[str, float], whole: float, order: Sequence[str] = ORDER
) -> Iterator[Any]:
    facts = {name: row[name] for name in ("run_id", "platform", "source")} | {"label": label}
    for place, part in enumerate(order):
        if own := seconds.get(part, 0.0):
            yield facts | {"part": part, "seconds": own, "share": own / whole, "place": place}


def profiled_seconds(one: Breakdown) -> dict[str, float]:
    """Return the parts of a profiled step by their names on the page."""
    seconds, names = _seconds(one), {"forward and backward": "schedule_seconds", **_PROFILED}
    return {name: seconds[key] or 0.0 for name, key in names.items()}


def _seconds(one: Breakdown) -> dict[str, float | None]:
    """Return the parts of a step; forward without backward is a replayed graph of both."""
    parts = one.parts.model_dump()
    if parts["forward_seconds"] and parts["backward_seconds"] == 0:
        replayed = parts["forward_seconds"]
        parts |= {"schedule_seconds": replayed, "forward_seconds": None, "backward_seconds": None}
    return {"schedule_seconds": None} | parts


def profile_bars(data: ReportData) -> Figures | None:
    """Return the profiled steps as bars, one bar per profiled rank."""
    rows = [
        part
        for row, one, label in profiles(data)
        for part in _parts(row, label, profiled_seconds(one), one.step_seconds or 1.0)
    ]
    return _stacked(rows, PARTS, "the profiled step")


def mark_bars(data: ReportData) -> Figures | None:
    """Return the measured steps by their time marks as bars, one bar per run."""
    rows: list[dict[str, Any]] = []
    for row, marked in _marked(data):
        named = {shown: marked.parts.get(name, 0.0) for name, shown in _MARK_NAMES.items()}
        rows += _parts(row, row["label"], named, marked.step_seconds)
    return _stacked(rows, PARTS, "the measured step")


def _marked(data: ReportData) -> Iterator[tuple[Row, MarkedSteps]]:
    every = ((row, found.marked) for row, found in runs_with(data))
    yield from ((row, marked) for row, marked in every if marked is not None)


def kind_bars(data: ReportData) -> Figures | None:
    """Return what the kernels of the profiled steps did, as shares of all kernels' time."""
    rows: list[dict[str, Any]] = []
    for row, one, label in profiles(data):
        total = sum(one.kinds.values())
        if total > 0:
            named = {KIND_WORDS.get(kind, kind): seconds for kind, seconds in one.kinds.items()}
            rows += _parts(row, label, named, total, KINDS)
    return _stacked(rows, KINDS, "the time of all kernels")


def _stacked(bars: Sequence[Row], domain: tuple[str, ...], whole: str) -> Figures | None:
    """Return bars of parts, one chart per platform; None for no bar. A share is of ``whole``."""

    def chart(rows: pl.DataFrame) -> Figure:
        labels, shown, cut = first(rows.drop("platform"), what="bars")
        x = alt.X(
            "share:Q", title=f"share of {whole}", stack="zero", axis=SHARES,
            scale=alt.Scale(domain=[0, 1], clamp=True),  # a sum of shares may round above 1
        )  # fmt: skip
        numbers = (("seconds", "seconds per step", ".4~g"), ("share", "share", ".1%"))
        tips = tooltips("run_id", "label", "source", "part", *numbers)
        largest = shown.sort("share", descending=True).row(0, named=True)
        words = (
            f"{count(len(labels), 'bar')}; the largest part of all is {largest['part']} of "
            f"{largest['label']}, {percent(largest['share'])}."
        )
        return drawn(stacked(shown, labels, x, domain, tips), words, 30 * len(labels) + 10, cut)

    return Figures.of((name, chart(rows)) for name, rows in by_platform(bars))


def parts_table(data: ReportData) -> Markup:
    """Return the profiled steps in numbers."""
    rows: list[dict[str, Any]] = []
    for row, one, _ in profiles(data):
        facts = {"rank": one.rank, "steps": one.steps, "step_seconds": one.step_seconds}
        facts |= {"kernels_per_step": one.kernels_per_step, "gap": one.launch_gap_seconds}
        rows.append({**row, **facts, **_seconds(one)})
    columns = (
        *(RUN, RAN, plain("rank", "Rank"), plain("steps", "Steps")),
        time("step_seconds", "Step"),
        *([time("schedule_seconds", "Forward and backward", "in one replayed graph")]
          if any(row["schedule_seconds"] for row in rows) else []),
        *(time(key, name.capitalize()) for name, key in _PROFILED.items()),
        time("gap", "Launch gaps", "idle until the host launched the next kernel; part of idle"),
        plain("kernels_per_step", "Kernels"),
    )  # fmt: skip
    return table(rows, columns, "anatomy")


def kernels_table(data: ReportData) -> Markup:
    """Return the longest kernels of each profile."""
    rows = [
        {**row, **kernel.model_dump(), "name": row["name"], "kernel": kernel.name,
         "kind": KIND_WORDS.get(kernel.kind, kernel.kind), "rank": one.rank, "of_step": share}
        for row, one, _ in profiles(data)
        for kernel in one.top_kernels[:MOST_KERNELS]
        for share in [kernel.seconds / (one.step_seconds or 1.0)]
    ]  # fmt: skip
    alone = "all its calls in one step together, even if others run at the same time"

    def named(name: str) -> Markup:
        return code(name) if len(name) <= 70 else opened(code(f"{name[:70]}…"), code(name))

    columns = (
        *(RUN, RAN, plain("rank", "Rank"), text("kind", "Kind")),
        text("kernel", "Kernel", show=named, wide=True),
        *(time("seconds", "Per step", alone), share("of_step", "Of the step")),
        Column("calls", "Calls", lambda row: f"{row['calls']:,g}", hint="in one step"),
    )
    return table(rows, columns, "kernels")


def communication_table(data: ReportData) -> Markup:
    """Return the communication that profiles measured next to what theory counts."""
    waits = "exposed sends and receives, with the wait for them, of the step"
    columns = (
        *(RUN, RAN, time("communication_seconds", "Communication", "a profiled step")),
        share("exposed", "Exposed", "of the step"),
        share("hidden", "Hidden", "of communication"),
        share("stages", "Between stages", waits),
        share("bubble", "Bubble", "of the step: theory"),
        *(
            plain(name, name.capitalize(), "GB", hint=f"sent a step: {words}")
            for name, words in _VOLUMES.items()
        ),
    )
    return table(_communication_rows(data), columns, "communication")


_VOLUMES = {
    "tensor": "tensor parallelism",
    "pipeline": "between stages",
    "context": "context parallelism, as a ring",
    "expert": "dispatch and combine of experts",
    "data": "gradients and weights of data parallelism",
}


def _communication_rows(data: ReportData) -> Iterator[dict[str, Any]]:
    for row in data.runs.iter_rows(named=True):
        found = data.anatomies.get(row["run_id"])
        if found is None or (row["world_size"] or 1) == 1:
            continue
        one = _first(found)
        if one is None and (found.theory is None or row["tokens_per_second"] is None):
            continue
        sent = found.theory
        sizes = {name: getattr(sent, name) if sent else None for name in _VOLUMES}  # bytes
        volumes = {name: None if size is None else size / 1e9 for name, size in sizes.items()}
        bubble = sent.bubble if sent else None
        yield {**row, **volumes, "bubble": bubble, **(_measured(one) if one else {})}


def _measured(one: Breakdown) -> dict[str, float | None]:
    if not (whole := one.step_seconds):
        return {}
    total, overlapped = one.communication_seconds, one.overlapped_communication_seconds
    exposed = one.parts.exposed_communication_seconds
    return {
        "communication_seconds": total,
        "exposed": None if exposed is None else exposed / whole,
        "hidden": overlapped / total if total and overlapped is not None else None,
        "stages": one.exposed_by_collective.get(SENDS, 0.0) / whole,
    }


NOTABLE = 0.05  # of the step: below this, exposed communication and idle time are not singled out
HOW = "'scalebook run --profile' adds two profiled steps after the measured ones"


def findings(data: ReportData) -> Markup:
    """Return what the profiles show, each sentence with its run."""
    sentences = (_profiled(data), _bubbles(data), _slowest(data), _marks(data), _missing(data))
    return bullets(chain(*sentences), empty=f"No run has a profile or time marks: {HOW}.")


def _profiled(data: ReportData) -> Iterator[Markup]:
    """Yield where the step of each profiled run goes, largest part first."""
    for row, one, label in profiles(data):
        whole = one.step_seconds or 1.0
        parts = sorted(profiled_seconds(one).items(), key=lambda item: -item[1])
        each = ((name, time / whole) for name, time in parts)
        shares = (f"{percent(share, 2)} {name}" for name, share in each if share >= 0.005)
        words = Markup("<strong>{}</strong> ({}): a profiled step of {} is {}.{}{}")
        told = (duration(whole), join(shares), _hidden(one), _gaps(one, whole))
        yield words.format(label, run_link(row["run_id"]), *told)


def _hidden(one: Breakdown) -> str:
    """Return how much of the communication runs behind computation."""
    total, overlapped = one.communication_seconds, one.overlapped_communication_seconds
    if not total or overlapped is None:
        return ""
    exposed = {name: time for name, time in one.exposed_by_collective.items() if time > 0}
    longest = max(exposed, key=lambda name: exposed[name], default=None)
    named = f"; most of the rest is {COLLECTIVES.get(longest, longest)}" if longest else ""
    return (
        f" {percent(overlapped / total, 2)} of its communication is hidden behind compute{named}."
    )


def _gaps(one: Breakdown, whole: float) -> str:
    gap = one.launch_gap_seconds
    if gap is None or gap / whole < NOTABLE:
        return ""
    return f" For {percent(gap / whole)} of the step the device waited for the host's next launch."


def _slowest(data: ReportData) -> Iterator[Markup]:
    """Yield how much longer profiled steps are than measured ones: what profiling costs."""
    ratios: list[tuple[float, str]] = []
    for row, found in runs_with(data):
        median, profile = row["step_seconds_median"], _first(found)
        if median and profile is not None and profile.step_seconds:
            ratios.append((profile.step_seconds / median, row["run_id"]))
    longer = sorted((one for one in ratios if one[0] >= 1 + NOTABLE), reverse=True)
    if not longer:
        return
    words = (
        "The profiler slows its own steps down: {} took {} times as long as measured ones ({}). "
        "Shares are those of the profiled steps, where idle time is too long by about as much."
    )
    high, low = f"{longer[0][0]:.2f}", f"{longer[-1][0]:.2f}"
    times = high if high == low else f"{low} to {high}"
    runs = run_links(run_id for _, run_id in longer)
    yield Markup(words).format(count(len(longer), "profiled run"), times, runs)


def _bubbles(data: ReportData) -> Iterator[Markup]:
    """Yield the bubble that theory gives each profiled pipeline next to what its profile shows."""
    for row, found in runs_with(data):
        profile, sent = _first(found), found.theory
        if profile is None or sent is None or not sent.bubble or not profile.step_seconds:
            continue
        waits = profile.exposed_by_collective.get(SENDS, 0.0) / profile.step_seconds
        words = (
            "{} ({}): equal stages would be idle for {} of the step; exposed sends and receives, "
            "which hold the waits for other stages, take {} of the profiled one."
        )
        yield Markup(words).format(
            row["label"], run_link(row["run_id"]), percent(sent.bubble, 2), percent(waits, 2)
        )


def _first(found: RunAnatomy) -> Breakdown | None:
    return found.profiles[0] if found.profiles else None


def _marks(data: ReportData) -> Iterator[Markup]:
    """Yield which run waits longest in a part without computation, by time marks."""
    waits = {
        "pipeline": "waiting for another pipeline stage",
        "gradients": "reducing gradients after the backward pass",
        "data": "fetching data",
    }
    rows = [
        (marked.parts.get(name, 0.0) / marked.step_seconds, row["run_id"], words)
        for row, marked in _marked(data)
        for name, words in waits.items()
    ]
    worst = max(rows, default=None, key=lambda item: item[0])
    if worst is None:
        return
    share, run_id, words = worst
    if share >= NOTABLE:
        text = "By time marks of the measured steps, {} spends most on a wait: {} of its step {}."
        yield Markup(text).format(run_link(run_id), percent(share), words)
    else:
        yield Markup(
            "By time marks of the measured steps, no run spends {} or more of its step on waits "
            "between stages, on reducing gradients after the backward pass or on data."
        ).format(percent(NOTABLE))


def _missing(data: ReportData) -> Iterator[Markup]:
    """Yield which runs have no profile and how they get one, and profiles without numbers."""
    for run_id, found in data.anatomies.items():
        for problem in found.problems:
            yield Markup("{}: {}").format(run_link(run_id), problem)
    without = [
        row["run_id"]
        for row in data.completed.iter_rows(named=True)
        if not ((found := data.anatomies.get(row["run_id"])) and _first(found))
    ]
    if without:
        has = count(len(without), "run with a throughput has", "runs with a throughput have")
        yield Markup("{} no profile ({}): {}.").format(has, run_links(without), HOW)
