"""A chart as a page shows it: the specification as data, drawn by the page's one script."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl
from altair.utils import schemapi

from scalebook.report.base.frames import for_charts
from scalebook.report.base.markup import Markup, join, opened, raw_block, script_json
from scalebook.report.base.naming import platform_title
from scalebook.report.charts.theme import FAINT, GREY, config

SHAPES = {
    "measured": "circle",
    "ingested": "square",
    "simulated": "diamond",
    "published": "triangle-up",
    "inferred": "triangle-down",
}
# A change on an axis: nothing is neither more nor less.
SIGNED = "datum.value ? format(datum.value, '+.2~%') : format(0, '.0%')"
MAX_BARS = 20  # of one chart: the table has them all
MOST_NAMED = 3  # of the folded charts
MOST_OPEN = 1  # charts of one figure that are open before the reader asks for the others
ALWAYS = ("run_id", "source", "platform", "model", "strategy")  # what a page is filtered by
SHARED = 20_000  # characters from which on rows of several layers are there once
NAME_PIXELS = 520  # of a name, in a still picture
WIDE = 760  # pixels of a chart in a notebook
AnyChart = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart
TICKS = alt.Axis(tickCount=6)
SHARES = alt.Axis(format="%", tickCount=6)
FROM_ZERO = alt.Scale(domainMin=0)
PALER = alt.condition("datum.source == 'measured'", alt.value(1), alt.value(FAINT))
TITLES = {"run_id": "run", "label": "what", "split": "parallelism", "micro": "micro batch"}
TEMPLATE = Markup(
    '<div class="sb-chart" role="img" aria-label="{}"></div>\n'
    '<script type="application/json" class="sb-spec">{}</script>'
)
SOURCE = Markup('<span class="badge source">{}</span> {}')
CUT = Markup('<p class="sb-sources">{}</p>\n')
HEADED = Markup('<p class="sb-chart-head">{}</p>\n{}')


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and what it shows in words, for readers who can't see it.

    The chart travels as JSON in a script element that no browser runs: no code is made from data.
    """

    chart: AnyChart
    description: str

    def spec(self) -> dict[str, Any]:
        """Return the Vega-Lite specification, without theme and without any address."""
        return self._unpacked()[0]

    def _unpacked(self) -> tuple[dict[str, Any], str]:
        """Return the specification, and what it says of the runs that it leaves out."""
        spec = self.chart.to_dict(validate=schemapi.DEBUG_MODE)
        # Altair's own default theme would win over the page's, and "$schema" is an address.
        kept = {key: spec[key] for key in spec if key not in ("$schema", "config")}
        cut = unpack(kept)
        name_only_drawn(kept, [*data_rows(kept)])
        return kept | {"autosize": {"type": "fit-x", "contains": "padding"}}, cut

    @property
    def html(self) -> Markup:
        """The chart's place in a page."""
        spec, cut = self._unpacked()
        note = CUT.format(cut) if cut else Markup("")
        return note + sources_note(spec) + TEMPLATE.format(self.description, script_json(spec))

    def _repr_markdown_(self) -> str:
        return raw_block(str(self.html))

    def _repr_html_(self) -> str:
        return self.picture()

    def picture(self) -> str:
        """Return a still picture (SVG): what JupyterLab shows, without a network."""
        import vl_convert  # heavy, and the pages of the report never need it here

        return vl_convert.vegalite_to_svg(self._themed(width=WIDE))

    def _themed(self, **more: Any) -> dict[str, Any]:
        return self.spec() | {"config": config("light") | {"background": "white"}} | more

    def vega(self) -> dict[str, Any]:
        """Return the specification under the MIME type by which altair hands it to a notebook."""
        spec = self._themed(**{"$schema": alt.SCHEMA_URL})
        del spec["autosize"]  # of a page's column
        with alt.renderers.enable("mimetype"):
            renderer: Any = alt.renderers.get()
            bundle, _ = renderer(spec)
        return {kind: part for kind, part in bundle.items() if "vegalite" in kind}


def sources_note(spec: Mapping[str, Any]) -> Markup:
    """Return which rows of a chart were not measured here, for above it; nothing where all were."""
    found: dict[str, set[str]] = {}
    for row in data_rows(spec):
        source = row.get("source")
        if isinstance(source, str) and source in SHAPES and source != "measured":
            found.setdefault(source, set()).add(str(row.get("run_id") or row.get("label") or row))
    if not found:
        return Markup("")
    marks = (SOURCE.format(source, len(found[source])) for source in SHAPES if source in found)
    return Markup('<p class="sb-sources">Not measured here: {}</p>\n').format(join(marks))


def data_rows(spec: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every row that a specification holds, of all its layers and look-ups."""
    given = (place.get("values", ()) for place in _data_places(spec))
    for rows_ in (*spec.get("datasets", {}).values(), *given):
        yield from (row for row in rows_ if isinstance(row, dict))


def name_only_drawn(spec: Any, drawn: Sequence[Mapping[str, Any]]) -> None:
    """Keep each legend to the values that ``drawn`` rows have, where its scale lists more."""
    for channel in spec.get("encoding", {}).values():
        if isinstance(channel, list) or "field" not in channel or not channel.get("scale"):
            continue  # a tooltip, a constant, or a scale that follows its data
        present = {one.get(channel["field"]) for one in drawn}
        domain = channel["scale"].get("domain")
        named = [one for one in domain or () if isinstance(one, str) and one in present]
        if named and channel.get("legend", {}) is not None:
            channel["legend"] = {"values": named, **channel.get("legend", {})}
    for name in ("layer", "hconcat", "vconcat"):
        for part in spec.get(name, ()):
            name_only_drawn(part, drawn)
    if "spec" in spec:
        name_only_drawn(spec["spec"], drawn)


def by_source(sources: Iterable[str]) -> alt.Shape:
    """Return shape by source: a run that was not measured here never looks like one that was.

    There is a legend unless all were measured.
    """
    present = set(sources)
    shapes = {name: shape for name, shape in SHAPES.items() if name in present}
    scale = alt.Scale(domain=list(shapes), range=list(shapes.values()))
    grey = alt.Legend(symbolFillColor=GREY, symbolStrokeColor=GREY)
    legend = None if present <= {"measured"} else grey
    return alt.Shape("source:N", title=None, legend=legend, scale=scale)


def by(column: str, data: pl.DataFrame) -> alt.Color:
    """Return colour by a column, with a legend where it has several values."""
    several = data[column].n_unique() > 1
    return alt.Color(f"{column}:N", title=None, legend=alt.Legend() if several else None)


def names(column: str, order: Iterable[str], *, grid: bool = False) -> alt.Y:
    """Return rows by name; the page's script breaks a long name into lines and makes room."""
    axis = {"labelLimit": NAME_PIXELS} | ({"grid": True} if grid else {})
    return alt.Y(f"{column}:N", sort=list(order), title=None, axis=axis)


def tooltips(*columns: str | tuple[str, str] | tuple[str, str, str]) -> list[alt.Tooltip]:
    """Return what a mark shows under the pointer: words with their title, numbers with a format.

    A number is (column, title, format); an empty title is the name of the column.
    """
    given = [(one, TITLES.get(one, "")) if isinstance(one, str) else one for one in columns]
    return [
        alt.Tooltip(
            f"{name}:{'Q' if format_ else 'N'}",
            title=title or alt.Undefined,
            format="".join(format_) or alt.Undefined,
        )
        for name, title, *format_ in given
    ]


def first(
    data: pl.DataFrame, most: int = MAX_BARS, what: str = "runs"
) -> tuple[list[str], pl.DataFrame, str | None]:
    """Return the labels that a chart has room for, their rows, and a title where it is not all."""
    every: list[str] = data["label"].unique(maintain_order=True).to_list()
    cut = f"The first {most} of {len(every)} {what}" if len(every) > most else None
    return every[:most], data.filter(pl.col("label").is_in(every[:most])), cut


def by_platform(bars: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the title of each platform with its rows."""
    data = pl.DataFrame(bars, infer_schema_length=None)
    for (name,), members in data.group_by("platform", maintain_order=True) if bars else ():
        yield platform_title(name), members


def stacked(
    data: pl.DataFrame, labels: Sequence[str], x: alt.X, parts: Iterable[str], tips: Any
) -> alt.Chart:
    """Return a bar per label of its parts in the order of ``place``: each part keeps its colour."""
    pick = alt.selection_point(fields=["part"], bind="legend")
    # in the order of the bars, whatever that of the colours
    named = alt.Legend(values=data.sort("place")["part"].unique(maintain_order=True).to_list())
    bars = alt.Chart(rows(data)).mark_bar().encode(
        y=names("label", labels),
        x=x,
        order=alt.Order("place:Q"),
        color=alt.Color("part:N", title=None, scale=alt.Scale(domain=list(parts)), legend=named),
        opacity=alt.condition(pick, alt.value(1), alt.value(0.15)),
        tooltip=tips,
    )  # fmt: skip
    return bars.add_params(pick)


def drawn(chart: AnyChart, words: str, height: int, title: str | None = None) -> Figure:
    """Return a chart as wide as its column, under a title where there is one."""
    sized = chart.properties(width="container", height=height)
    return Figure(sized if title is None else sized.properties(title=title), words)


def rows(data: Any) -> alt.Data:
    """Return a polars data frame as inline values, to six digits; null stays null.

    Of a great many runs a sample is drawn, which the figure says. The rows travel through Altair
    as one text, because it would check and copy each of them several times; ``unpack`` makes rows
    of it again.
    """
    shown = for_charts(sample(data))
    # more digits than anyone sees would be half of a page's size
    values = shown.with_columns(pl.col(pl.Float64).round_sig_figs(6)).to_dicts()
    cut = ""
    if shown.height < data.height:
        drawn, known = shown["run_id"].n_unique(), data["run_id"].n_unique()
        cut = f"Drawn: {drawn:,} of {known:,} runs, the highest and lowest of each kind among them."
    return alt.Data(values=json.dumps([cut, values]))


def unpack(spec: dict[str, Any]) -> str:
    """Put the rows of ``rows`` into a specification; return what was said of those left out.

    Rows that several layers share are there once, where they are many.
    """
    places = [place for place in _data_places(spec) if isinstance(place.get("values"), str)]
    times = Counter(place["values"] for place in places)
    texts = [place.pop("values") for place in places]
    shown = json.dumps(spec)  # names every field that the chart draws, tells or computes with
    said: dict[str, None] = {}
    names: dict[str, str] = {}
    for place, text in zip(places, texts, strict=True):
        cut, values = json.loads(text)
        said |= {cut: None} if cut else {}
        fields = values[0] if values else ()
        unused = [one for one in fields if one not in ALWAYS and one not in shown]
        for row in values:
            for one in unused:
                del row[one]
        if times[text] == 1 or len(text) < SHARED:
            place["values"] = values
            continue
        name = names.setdefault(text, f"rows-{len(names) + 1}")
        spec.setdefault("datasets", {})[name] = values
        place["name"] = name
    return " ".join(said)


def _data_places(part: Any) -> Iterator[dict[str, Any]]:
    """Yield every data entry of a specification, those of look-ups too."""
    if isinstance(part, list):
        for one in part:  # pyright: ignore[reportUnknownVariableType]
            yield from _data_places(one)
    elif isinstance(part, dict):
        for key, value in part.items():  # pyright: ignore[reportUnknownVariableType]
            if key == "data" and isinstance(value, dict):
                yield value
            elif key != "datasets":
                yield from _data_places(value)


@dataclass(frozen=True, slots=True)
class Figures:
    """Several charts of one kind under a heading each, such as one a group of runs."""

    parts: tuple[tuple[str, Figure], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[str, Figure | None]]) -> Figures | None:
        """Return the charts that there are; None where there is none."""
        drawn = tuple((name, figure) for name, figure in parts if figure is not None)
        return cls(drawn) if drawn else None

    def _repr_markdown_(self) -> str:
        headed = [HEADED.format(name, figure.html) for name, figure in self.parts]
        shown = len(headed) if len(headed) <= MOST_OPEN + 1 else MOST_OPEN
        if headed[shown:]:
            rest = [name for name, _ in self.parts[shown:]]
            names = join([*rest[:MOST_NAMED], *(["…"] if rest[MOST_NAMED:] else [])])
            title = Markup("{} more charts: {}").format(len(headed) - shown, names)
            headed[shown:] = [opened(title, Markup("\n").join(headed[shown:]), "sb-more")]
        return raw_block("\n".join(headed))

    def vega(self) -> dict[str, Any]:
        """Return all charts, one below the other, as ``Figure.vega`` does."""
        charts = [f.chart.properties(title=name, width=WIDE) for name, f in self.parts]
        return Figure(alt.vconcat(*charts), "").vega()

    def _repr_html_(self) -> str:
        return "".join(str(HEADED.format(n, Markup(f.picture()))) for n, f in self.parts)


MOST_RUNS = 1_000  # of one chart: more marks hide one another, and a page must open
MOST_KINDS = 60  # combinations of names and sizes whose highest and lowest runs are kept
FEW = 12  # a column with more values than that names runs, not kinds of them


def sample(data: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of MOST_RUNS runs at most, all of them where there are no more.

    The runs with the highest and the lowest value of each quantity in each kind of runs are kept,
    and those of the rarer sources where they are few. A hash of the run's id picks the others, so
    that all charts of a page show the same ones.
    """
    if "run_id" not in data.columns or data["run_id"].n_unique() <= MOST_RUNS:
        return data
    kept = sorted({*_extremes(data), *_rare(data)})
    others = (
        data.select(pl.col("run_id").unique())
        .filter(~pl.col("run_id").is_in(kept))
        .sort(pl.col("run_id").hash(seed=0), "run_id")
        .head(max(MOST_RUNS - len(kept), 0))
    )
    return data.filter(pl.col("run_id").is_in([*kept, *others["run_id"]]))


def _rare(data: pl.DataFrame) -> list[str]:
    """Return the runs of all sources but the most frequent one; none where they are many."""
    if "source" not in data.columns:
        return []
    most = data["source"].mode().sort()[0]
    runs = data.filter(pl.col("source") != most)["run_id"].drop_nulls().unique().to_list()
    return runs if len(runs) <= MOST_RUNS // 2 else []


def _extremes(data: pl.DataFrame) -> set[str]:
    """Return the runs at either end of a quantity in one kind of runs."""
    quantities = [name for name, kind in data.schema.items() if kind.is_float()]
    kinds = [
        name
        for name, kind in data.schema.items()
        if (kind == pl.String or kind.is_integer()) and 1 < data[name].n_unique() <= FEW
    ]
    together = data.select(pl.struct(kinds).n_unique()).item() if kinds else 1
    groups = [kinds] if together <= MOST_KINDS else [[name] for name in kinds]
    found: set[str] = set()
    for group in groups:
        for name in quantities:
            known = data.filter(pl.col(name).is_not_null()).sort(name)
            parts = known.group_by(group, maintain_order=True) if group else known
            ends = (parts.head(1), parts.tail(1))
            found.update(run for end in ends for run in end["run_id"].drop_nulls())
    return found
