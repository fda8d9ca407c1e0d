"""Small charts of rows in HTML and CSS: marks on one axis, bars, cells, parts of a time.

They need no script and no width: a row is a label and a track, and places on the track are percent.
So the first screen is drawn at once, prints, and fits a phone. Every value is also text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log, log10
from typing import Any

from scalebook.report.base.markup import Markup, join, part, run_link
from scalebook.report.charts.theme import PALETTE

_Place = Callable[[float], float]
_Named = tuple[str, float, str]  # the side that a name stands on, its place, its words


@dataclass(frozen=True, slots=True)
class Dot:
    """One row: a value with its interval in the unit of the axis, and both in words.

    ``colour`` is a place in the palette; a ``hollow`` mark has too few steps for an interval, a
    ``predicted`` one was not measured; ``shape`` is "circle" or "diamond".
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    text: Markup | str = ""
    note: str = ""
    colour: int = 0
    shape: str = "circle"
    hollow: bool = False
    predicted: bool = False
    run_id: str = ""
    target: str = ""  # the named line that the value is to be held against

    @property
    def kind(self) -> str:
        """The classes of its mark."""
        kinds = {"hollow": self.hollow, "predicted": self.predicted}
        more = " ".join(name for name, holds in kinds.items() if holds)
        return f"{self.shape} c{self.colour % len(PALETTE['light'])} {more}".rstrip()

    @property
    def words(self) -> Markup:
        """The value in words, linked to its run where it has one."""
        return run_link(self.run_id, str(self.text)) if self.run_id else Markup(self.text)


_TRACK_CHARACTERS = 88  # of the small text, on the widest track
_MOST_PERCENT = 106.0  # of the track, with the gap to the right of it
_NAME_CHARACTERS = 34  # of the heading in bold, in the column of names
_WIDE = 6.0  # the largest value over the smallest from which an axis is logarithmic
_MOST_TINTS = 6  # explained in a legend
MOST_TINT = 45  # percent of the hue in a cell: its text keeps a contrast of 4.5:1
Group = tuple[str, Sequence[Dot], Mapping[str, float]]  # heading, rows, named lines to draw


def rounded_up(value: float) -> float:
    """Return the next value that an axis can end at: 16,000 of 15,487."""
    size = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    ends = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
    return next(end * size for end in ends if end * size >= value * (1 - 1e-9))


def _round(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten from the last up to ``low`` to the first above."""
    powers = range(floor(log10(low)), floor(log10(high)) + 2)
    numbers = [part * 10.0**power for power in powers for part in (1, 2, 5)]
    first = max(place for place, number in enumerate(numbers) if number <= low * (1 + 1e-9))
    last = min(place for place, number in enumerate(numbers) if number >= high * (1 - 1e-9))
    return numbers[first : last + 1]


def dots(
    groups: Iterable[Group],
    unit: str,
    *,
    low: float = 0.0,
    high: float | None = None,
    ticks: int = 4,
) -> Markup:
    """Return marks on one axis from ``low`` to ``high``, a heading per group; ``unit`` in words.

    Without ``high`` the axis ends at a round number, and is logarithmic where values differ so much
    that most would share a corner of it.
    """
    given = list(groups)
    ends = [max(mark.high or 0.0, mark.value) for _, marks, _ in given for mark in marks]
    ends += [at for _, _, lines in given for at in lines.values()]
    least = min((mark.low or mark.value for _, marks, _ in given for mark in marks), default=0.0)
    top = high if high is not None else rounded_up(max(ends, default=1.0))
    logarithmic = high is None and low == 0 < least and max(ends) >= _WIDE * least
    linear = [low + (top - low) * tick / ticks for tick in range(ticks + 1)]
    steps, kind = (_round(least, max(ends)), " (log)") if logarithmic else (linear, "")

    def place(value: float) -> float:
        size, span = value - low, top - low
        if logarithmic:
            size, span = log(value / steps[0]) if value > 0 else 0.0, log(steps[-1] / steps[0])
        # a quarter of the track stays free for the text of the highest mark
        return max(0.0, min(100.0, 76 * size / span))

    numbers = ((place(at), f"{at:,.4g}" if top < 1000 else f"{at:,.0f}") for at in steps)
    return part("dots", [_group(group, place) for group in given], unit + kind, [*numbers])


def _group(group: Group, place: _Place) -> tuple[str, list[_Named], list[Markup]]:
    """Return the heading of a group, the names of the lines drawn, and its rows."""
    heading, marks, lines = group
    held = [mark.target for mark in marks]
    # a line ends at the last row that is held against it, so that it crosses no other
    ends = {
        name: max((i for i, one in enumerate(held) if one == name), default=-1) for name in lines
    }
    rows = [
        _mark(mark, place, [at for name, at in lines.items() if i <= ends[name] or not any(held)])
        for i, mark in enumerate(marks)
    ]
    return heading, _line_names(heading, lines, place), rows


def _line_names(heading: str, lines: Mapping[str, float], place: _Place) -> list[_Named]:
    """Return the name of each line next to it: the last to the right, any before it to the left.

    Where that covers the heading or leaves the track, all stand together at the last line.
    """
    named = [
        (place(at), f"{name} {at:,.0f}") for name, at in sorted(lines.items(), key=lambda i: i[1])
    ]
    if not named:
        return []
    *others, (last, text) = named
    reach = 100 * max(0, len(heading) - _NAME_CHARACTERS) / _TRACK_CHARACTERS
    fits = last + _share(text) <= _MOST_PERCENT
    if len(others) > fits or any(at - _share(words) < reach for at, words in others):
        others, text = [], " · ".join(words for _, words in named)
        fits = last + _share(text) <= _MOST_PERCENT
    side = "after" if fits else "before"
    return [*(("before", at, words) for at, words in others), (side, last, text)]


def _share(text: str) -> float:
    """Return how much of a track a small text takes, in percent."""
    return 100 * len(text) / _TRACK_CHARACTERS


def _mark(mark: Dot, place: _Place, lines: Sequence[float]) -> Markup:
    end = max(place(mark.value), place(mark.high or mark.value))
    note, left = _fitting(mark, end)
    options = join([one for one in note.split(" · ") if one and "%" not in one])
    return _row(
        mark, place, shape="dot", left=place(mark.value), end=end, lines=[*map(place, lines)],
        name=join([mark.name, *left]), more=options, note=note,  # a phone shows no notes
    )  # fmt: skip


def _row(mark: Dot, place: _Place, **track: Any) -> Markup:
    """Return a row with its interval; ``track`` is where the mark and its text stand."""
    known = {"name": mark.name, "kind": mark.kind, "text": mark.words, "note": mark.note}
    ends = None if mark.low is None or mark.high is None else (place(mark.low), place(mark.high))
    band = ends and (ends[0], ends[1] - ends[0])
    return part("row", band=band, tint=mark.colour % len(PALETTE["light"]), **(known | track))


def _fitting(mark: Dot, end: float) -> tuple[str, list[str]]:
    """Return the note that fits next to a mark, and the parts of it that its name has to say.

    A share gives way to what it is a share of.
    """
    room = _TRACK_CHARACTERS * (100 - end) / 100 - len(Markup(mark.text).striptags())
    parts, left = mark.note.split(" · "), list[str]()
    while len(parts) > 1 and len(" · ".join(parts)) > room:
        if "%" in parts[0]:
            parts.pop(0)
        else:
            left.insert(0, parts.pop())
    return " · ".join(parts), left


def legend(drawn: Sequence[Dot], precisions: Mapping[str, str], tints: Mapping[str, int]) -> Markup:
    """Return what the marks mean, only those drawn: ``precisions`` by run, ``tints`` by name."""
    shapes: dict[str, list[str]] = {"circle": [], "diamond": []}
    for one in drawn:
        name = precisions.get(one.run_id)
        if name and name not in shapes[one.shape]:
            shapes[one.shape].append(name)
    each = [
        Markup('<i class="dot circle c{}"></i>\N{NO-BREAK SPACE}{}').format(tint, name)
        for name, tint in tints.items()
        if 1 < len(tints) <= _MOST_TINTS  # of more, each row names its own
    ]
    each += [
        f"{'●' if shape == 'circle' else '◆'} {', '.join(n)}" for shape, n in shapes.items() if n
    ]
    said = {
        "line: 95 %": any(one.low is not None and not one.predicted for one in drawn),
        "hollow: few steps": any(one.hollow for one in drawn),
        "dashed: predicted": any(one.predicted for one in drawn),
        "%: MFU": any("%" in one.note for one in drawn),
    }
    return join([*each, *(words for words, holds in said.items() if holds)], " · ")


def bars(rows: Iterable[Dot], unit: str) -> Markup:
    """Return bars from zero, to the left for a loss, with intervals; ``unit`` names them."""
    marks = list(rows)
    known = [end for mark in marks for end in (mark.value, mark.low, mark.high) if end is not None]
    low, high = min(0.0, *known, 0.0), max(0.0, *known, 0.0)
    width = (high - low) or 1.0

    def place(value: float) -> float:
        return 54 * (value - low) / width  # the rest is for the text of the longest

    def row(mark: Dot) -> Markup:
        end = max(place(0.0), place(mark.value), place(mark.high or 0.0))
        wide = max(0.6, place(abs(mark.value)) - place(0.0))
        left = place(min(0.0, mark.value))
        return _row(mark, place, shape="bar", left=left, width=wide, end=end)

    return part("bars", [*map(row, marks)], unit)


def cells(
    values: Mapping[tuple[str, str], tuple[float | None, str]],
    words: tuple[str, str],
    unit: str,
) -> Markup:
    """Return a heat map as a table: by (row, column) a share of the best, 0 to 1, and its text.

    ``words`` name the rows and the columns. A share of None is a place that gave no value, such as
    one that ran out of memory.
    """
    columns = sorted({column for _, column in values}, key=lambda text: (len(text), text))
    rows = [
        (row, [_cell(values.get((row, column))) for column in columns])
        for row in dict.fromkeys(row for row, _ in values)
    ]
    return part("cells", rows, columns, words, unit)


def _cell(value: tuple[float | None, str] | None) -> tuple[int | None, str] | None:
    """Return how much of the hue a place has, in percent, and its text."""
    if value is None or value[0] is None:
        return value and (None, value[1])
    return round(MOST_TINT * max(0.0, min(1.0, value[0]))), value[1]


def timeline(parts: Sequence[tuple[str, float]]) -> Markup:
    """Return the parts of a time in seconds, one after the other, each named with its length."""
    whole = sum(seconds for _, seconds in parts) or 1.0
    named = [(name, f"{time:.3g}\N{NO-BREAK SPACE}s", 100 * time / whole) for name, time in parts]
    return part("timeline", named)
