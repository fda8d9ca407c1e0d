"""Charts of what a step's time went to: one bar per run, its parts side by side."""

from __future__ import annotations

import altair as alt
import polars as pl

from scalebook.report.base.naming import platform_title
from scalebook.report.base.quantities import count, percent
from scalebook.report.charts.figure import MAX_BARS, Figure, Figures, by_part, entitled, names, rows

ROW_HEIGHT = 30
BAR_SCHEMA: dict[str, type[pl.DataType]] = {
    # label: the run, and the rank where there are several; place: of the part in the bar
    **dict.fromkeys(("run_id", "label", "platform", "source", "part"), pl.String),
    **dict.fromkeys(("seconds", "share"), pl.Float64),
    "place": pl.Int64,
}
# One colour a part in every chart, whichever parts it shows: the order is that of the theme's hues.
PARTS = (
    "forward", "exposed communication", "backward", "optimizer", "data",
    "waiting for a stage", "idle", "gradients", "schedule", "outside",
)  # fmt: skip
KINDS = (
    "gemm", "communication", "attention", "norm", "elementwise", "optimizer", "other", "copy",
)  # fmt: skip


def anatomy(bars: pl.DataFrame, domain: tuple[str, ...], axis: str) -> Figures | None:
    """Return stacked bars, one chart per platform; None where there is no bar.

    ``bars`` has the columns of BAR_SCHEMA, a row a part; ``axis`` names what a share is of.
    """
    platforms = bars.group_by("platform", maintain_order=True)
    return Figures.of(
        (platform_title(name), _stacked(members, domain, axis)) for (name,), members in platforms
    )


def _stacked(bars: pl.DataFrame, domain: tuple[str, ...], axis: str) -> Figure | None:
    labels: list[str] = bars["label"].unique(maintain_order=True).to_list()
    shown = labels[:MAX_BARS]
    data = bars.filter(pl.col("label").is_in(shown)).drop("platform")
    if data.is_empty():
        return None
    pick = alt.selection_point(fields=["part"], bind="legend")
    marks = (
        alt.Chart(rows(data))
        .mark_bar()
        .encode(
            y=names("label", shown),
            x=alt.X(
                "share:Q",
                title=axis,
                stack="zero",
                axis=alt.Axis(format="%", tickCount=6),
                scale=alt.Scale(domain=[0, 1], clamp=True),  # a sum of shares may round above 1
            ),
            order=alt.Order("place:Q"),
            color=by_part(domain),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.15)),
            tooltip=[
                alt.Tooltip("run_id:N", title="run"),
                alt.Tooltip("label:N", title="what"),
                alt.Tooltip("source:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("seconds:Q", title="seconds per step", format=".4~g"),
                alt.Tooltip("share:Q", title="share", format=".1%"),
            ],
        )
        .add_params(pick)
        .properties(width="container", height=ROW_HEIGHT * len(shown) + 10)
    )
    cut = f"The first {MAX_BARS} of {len(labels)} bars" if len(labels) > MAX_BARS else None
    return Figure(entitled(marks, cut), _describe(data, len(shown)))


def _describe(data: pl.DataFrame, bars: int) -> str:
    largest = data.sort("share", descending=True).row(0, named=True)
    return (
        f"{count(bars, 'bar')}; the largest part of all is {largest['part']} of "
        f"{largest['label']}, {percent(largest['share'])}."
    )
