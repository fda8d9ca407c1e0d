"""The page of training curves: what each run reached, and how it got there step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import Markup, bullets, by_cause, join, paragraphs, run_links
from scalebook.report.base.naming import model_title, platform_title
from scalebook.report.base.quantities import count, number, percent, quantity
from scalebook.report.base.sections import jump_findings, loss_agreement, loss_findings
from scalebook.report.charts import Figure, Figures
from scalebook.report.charts import step_charts as charts
from scalebook.report.charts.step_charts import MAX_RUNS

MAX_MODELS = 6  # of which curves are drawn
MAX_BROKEN = 4  # runs that did not complete, of the MAX_RUNS of a chart
GROWING = 0.01  # a peak of memory that rises by more after the warm-up is worth a sentence
STATUS_WORDS = pl.col("status").str.replace_all("_", " ")
TITLES = {
    "loss": "loss",
    "learning_rate": "learning rate",
    "allocated_gib": "peak memory so far, GiB",
    "step_seconds": "step time, s",
}


def throughput(data: ReportData) -> Figures | None:
    """Return the model FLOP rate of each run that has one, else its tokens/s; by platform."""
    return _by_platform(data, _rate_bars)


def memory(data: ReportData) -> Figures | None:
    """Return the peak memory of each run, those that did not complete too; by platform."""
    return _by_platform(data, lambda runs: _bars(runs, "peak_memory_gib", "GiB", ".2f"))


def _by_platform(data: ReportData, draw: Callable[[pl.DataFrame], Figure | None]) -> Figures | None:
    groups = data.runs.group_by("platform", maintain_order=True)
    return Figures.of((platform_title(name), draw(runs)) for (name,), runs in groups)


def _rate_bars(runs: pl.DataFrame) -> Figure | None:
    rate = "model_tflops_per_second_per_gpu"
    if runs[rate].drop_nulls().is_empty():
        return _bars(runs, "tokens_per_second", "tokens/s", ",.0f")
    one = "process" if runs["platform"][0] == "cpu" else "GPU"
    return _bars(runs, rate, f"TFLOP/s per {one}", ",.1f")


def _bars(runs: pl.DataFrame, field: str, title: str, format_: str) -> Figure | None:
    done = pl.col("status") == "completed"
    ended = pl.format("{}{}", STATUS_WORDS, pl.concat_str(pl.lit(": "), "reason").fill_null(""))
    shown = runs.filter(pl.col(field).is_not_null()).select(
        *("run_id", "label", "source"),
        ending=pl.when(done).then(pl.lit(charts.ENDINGS[0])).otherwise(pl.lit(charts.ENDINGS[1])),
        reason=ended,
        value=field,
    )
    return charts.run_bars(shown, title, format_)


def curves(data: ReportData, field: str) -> Figures | None:
    """Return one chart per model of one field of the steps; None where no step has it."""
    label = pl.col("label")  # without the model, which is the heading of a chart
    return Figures.of(
        (model, _lines(data, runs.with_columns(label.str.strip_prefix(f"{model} · ")), field))
        for model, runs in _models(data)[:MAX_MODELS]
    )


def _models(data: ReportData) -> list[tuple[str, pl.DataFrame]]:
    """Return the runs with steps by model, each model's in the order of the report."""
    runs = data.runs.filter(pl.col("run_id").is_in(data.steps["run_id"].unique().implode()))
    grouped = runs.group_by("model", maintain_order=True)
    return [(model_title(model), members) for (model,), members in grouped]


def chosen(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs that a chart has room for: the fastest of each group, and some that broke."""
    done = pl.col("status") == "completed"
    broken = runs.filter(~done).head(max(MAX_BROKEN, MAX_RUNS - runs.filter(done).height))
    room = MAX_RUNS - min(broken.height, MAX_RUNS)
    # every group's first, then seconds
    place = pl.int_range(pl.len()).over("group").rank("ordinal")
    return pl.concat([runs.filter(done).filter(place <= room), broken])


def _lines(data: ReportData, runs: pl.DataFrame, field: str) -> Figure | None:
    known = data.steps.filter(pl.col(field).is_not_null())["run_id"].unique()
    with_field = runs.filter(pl.col("run_id").is_in(known.implode()))
    shown = chosen(with_field).head(MAX_RUNS)
    windows = steady_windows(data, shown)
    steps = shown.select("run_id", "label", "source", STATUS_WORDS).join(
        data.steps.select("run_id", "step", "phase", field), on="run_id", maintain_order="left"
    )
    steps = steps.join(windows, on="run_id", how="left", maintain_order="left")
    inside = pl.col("step").is_between("first", "last").fill_null(value=False)
    lines = steps.select(
        *("run_id", "label", "source", "status", "phase", "step"), value=field, steady=inside
    )
    lacking = with_field.height - shown.height
    cut = f"{shown.height} of {with_field.height} runs" if lacking else None
    return charts.steady_lines(lines, TITLES[field], cut)


def steady_windows(data: ReportData, runs: pl.DataFrame) -> pl.DataFrame:
    """Return run_id, first and last step of the steady state of each run that has one."""
    known = runs.filter(pl.col("steady")).select("run_id", "steady_first_step", "steady_steps")
    drawn = pl.col("run_id").is_in(known["run_id"].implode())
    measured = data.steps.filter(drawn, pl.col("phase") == "measured")
    counted = measured.drop_nulls("step_seconds").sort("step")
    inside = known.join(counted.select("run_id", "step"), on="run_id").filter(
        pl.col("step") >= pl.col("steady_first_step")
    )
    place = pl.int_range(pl.len()).over("run_id")
    window = inside.filter(place < pl.col("steady_steps"))
    return window.group_by("run_id").agg(first=pl.col("step").min(), last=pl.col("step").max())


def findings(data: ReportData) -> Markup:
    """Return what the curves show: how losses end, where runs are steady, what grows."""
    if data.runs.is_empty():
        return paragraphs("No run could be read, so there is no curve.")
    runs = data.completed
    losses = (loss_findings(runs), jump_findings(data), loss_agreement(runs))
    parts = (*losses, _steady(data), _growing(data))
    return bullets(sentence for part in parts for sentence in part)


def _steady(data: ReportData) -> Iterator[Markup]:
    """Yield how many runs have a steady state, and why the others have none."""
    runs = data.runs.filter(pl.col("status") == "completed")
    steady = runs.filter(pl.col("steady"))
    if runs.is_empty():
        return
    words = "{} of {} reached a steady state"
    told = Markup(words).format(steady.height, count(runs.height, "completed run"))
    if steady.height:
        shares = steady["steady_steps"] / steady["measured_steps"]
        told += Markup(", which includes {} to {} of the measured steps").format(
            percent(shares.min(), 2),  # pyright: ignore[reportArgumentType]
            percent(shares.max(), 2),  # pyright: ignore[reportArgumentType]
        )
    yield told + "."
    others = runs.filter(~pl.col("steady").fill_null(value=False))
    why = others["steady_reason"].fill_null("No reason is recorded.")
    for reason, ids in by_cause(zip(why, others["run_id"], strict=True)):
        yield Markup("No steady state: {} ({})").format(reason, run_links(ids))


def _growing(data: ReportData) -> Iterator[Markup]:
    """Yield the runs whose peak memory still rose inside the measured window."""
    known = data.measured_steps.filter(pl.col("allocated_gib").is_not_null()).sort("step")
    ends = known.group_by("run_id", maintain_order=True).agg(
        first=pl.col("allocated_gib").first(), last=pl.col("allocated_gib").last()
    )
    grown = ends.filter(pl.col("last") > (1 + GROWING) * pl.col("first")).sort("run_id")
    if not ends.is_empty() and grown.is_empty():
        words = "In none of {} did the peak memory rise by more than {} after the warm-up."
        yield Markup(words).format(count(ends.height, "run"), percent(GROWING, 2))
    if grown.height:
        told = (
            Markup("{} (from {} to {})").format(
                run_links([row["run_id"]]), number(row["first"]), quantity(row["last"], "GiB")
            )
            for row in grown.iter_rows(named=True)
        )
        yield Markup("The peak memory still rose after the warm-up in {}.").format(join(told))


def left_out(data: ReportData) -> Markup:
    """Return which models have no curve here for lack of room; nothing where all have one."""
    names = [model for model, _ in _models(data)[MAX_MODELS:]]
    if not names:
        return Markup("")
    rest = [f"{len(names) - MAX_MODELS} more"] if len(names) > MAX_MODELS else []
    words = Markup("No room for the curves of {}: {}.")
    told = join([*names[:MAX_MODELS], *rest])
    return paragraphs(words.format(count(len(names), "model"), told), style="note")
