"""Escaped HTML for pages: whatever comes from a run file is text here, never markup."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import markupsafe
from markupsafe import escape

__all__ = ["Markup", "anchor", "bullets", "escape", "join", "paragraphs", "run_link"]

MOST_ITEMS = 200  # of one list: a page of ten thousand runs must open
MOST_OPEN = 5  # items of a list that a reader sees before opening it
MOST_NAMED = 12  # runs in one sentence; the tables have them all
MOST_LINKED = 3  # of them before the reader opens the others
RUNS_PAGE = "throughput.html"  # where the table of all runs is, and so every run's anchor


class Markup(markupsafe.Markup):
    """Escaped HTML, a piece of a page or a whole cell. Its Markdown form is one raw HTML block.

    Markdown and not HTML is what pages are built from: Quarto adds scripts from a CDN to a page
    as soon as one output of a notebook has the type text/html.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        return raw_block(str(self))


def raw_block(html: str) -> str:
    """Return a fenced raw HTML block that no run of backticks in ``html`` can close."""
    longest = max((len(run) for run in re.findall(r"`+", html)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{{=html}}\n{html}\n{fence}\n"


def raw_html(markdown: str) -> str | None:
    """Return the HTML inside a block made by ``raw_block``; None for other Markdown."""
    match = re.fullmatch(r"(`{3,})\{=html\}\n(.*)\n\1\n?", markdown, re.DOTALL)
    return match[2] if match else None


def join(parts: Iterable[Markup | str], separator: str = ", ") -> Markup:
    """Return the parts, escaped where they are not markup yet, with a separator between them."""
    return Markup(escape(separator)).join(parts)


def part(name: str, /, *values: Any, **named: Any) -> Markup:
    """Return a piece of a page by its macro in parts.html; plain text in it is escaped."""
    return Markup(getattr(_parts(), name)(*values, **named))


@cache
def _parts() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return made.get_template("parts.html").module


def bullets(
    sentences: Iterable[Markup | str], style: str = "findings", empty: Markup | str = ""
) -> Markup:
    """Return a list of sentences, of the first MOST_ITEMS where there are more, or ``empty``."""
    every = list(sentences)
    if not every:
        return paragraphs(*filter(None, [empty]))
    more = len(every) - MOST_ITEMS
    cut = [f"And {more:,} more like these."] if more > 0 else []
    items = [*every[:MOST_ITEMS], *cut]
    # one item more takes no more room than the line that would hide it
    shown = len(items) if len(items) <= MOST_OPEN + 1 else MOST_OPEN
    first, others = items[:shown], items[shown:]
    hidden = part("bullets", others, style)
    rest = opened(f"{len(others)} more", hidden, "sb-more") if others else Markup("")
    return part("bullets", first, style) + rest


def opened(summary: Markup | str, body: Markup | str, style: str = "") -> Markup:
    """Return a part of a cell, or with a ``style`` of a page, that opens on demand.

    Charts in one of style "sb-more" are drawn when it does.
    """
    kind = Markup(' class="{}"').format(style) if style else ""
    return Markup("<details{}><summary>{}</summary>{}</details>").format(kind, summary, body)


def code(text: object) -> Markup:
    """Return a text as code."""
    return Markup("<code>{}</code>").format(text)


def paragraphs(*sentences: Markup | str, style: str = "") -> Markup:
    """Return a paragraph a sentence."""
    # a browser ends a <p> where folded runs begin
    parts = (
        Markup("<{0} class='{1}'>{2}</{0}>").format("div" if "<details" in one else "p", style, one)
        for one in sentences
    )
    return Markup("").join(parts)


def to_copy(name: str, text: str) -> Markup:
    """Return a sample file, folded under its name."""
    return opened(f"A file to copy: {name}", Markup("<pre>{}</pre>").format(text), "sb-sample")


def callout(title: str, sentences: Iterable[Markup | str]) -> Markup:
    """Return a marked box with a title and a list; nothing where there is no sentence."""
    items = bullets(sentences, style="notes")
    return part("callout", title, items) if items else items


def unreadable(problems: Iterable[str]) -> Markup:
    """Return the directories and lines that could not be read; nothing where there are none."""
    return callout("Not readable", problems)


def anchor(run_id: str) -> str:
    """Return the element id of a run: only letters, digits, dot, dash and underscore.

    An id that had to be changed gets a checksum, so that two of them stay different.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", run_id)
    return f"run-{plain}" if plain == run_id else f"run-{plain}-{zlib.crc32(run_id.encode()):08x}"


def short_id(run_id: str) -> str:
    """Return the hash at the end of a run id that this program made; any other id whole."""
    made = re.fullmatch(r"[0-9]{8}-[0-9]{6}-.*-([0-9a-f]{12}(?:-[0-9]+)?)", run_id)
    return made[1] if made else run_id


def run_link(run_id: str, text: str | None = None, *, page: str = RUNS_PAGE) -> Markup:
    """Return a link from any page to the row of a run; its text is short, its title the run id."""
    place = anchor(run_id) if page == RUNS_PAGE else quote(run_id, safe="")
    # Markup.format takes ten times as long, and a report has a link for each run in each table
    own, to, where, shown = map(escape, (run_id, page, place, text or short_id(run_id)))
    return Markup(f'<a class="run" data-run="{own}" title="{own}" href="{to}#{where}">{shown}</a>')


def run_links(run_ids: Iterable[str]) -> Markup:
    """Return links to the first runs, the next ones folded, and how many there are in all."""
    every = list(run_ids)
    more = len(every) - MOST_NAMED
    names = list(map(run_link, every[:MOST_NAMED]))
    if len(names) <= MOST_LINKED + 1:
        return join(names)
    rest = join(names[MOST_LINKED:]) + (f" and {more:,} more" if more > 0 else "")
    hidden = opened(f"{len(every) - MOST_LINKED:,} more", " " + rest, "sb-runs")
    return join([join(names[:MOST_LINKED]), hidden])


# A number with the word that it counts: "1 step" and "2 steps" are one.
_FIGURE = re.compile(r"\d[\d,.]*(?:\s\w+)?")


def by_cause(said: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return each reason with its runs, of pairs; those that differ only in figures are one."""
    found: dict[str, list[tuple[str, str]]] = {}
    for reason, run_id in said:
        found.setdefault(_FIGURE.sub("#", reason), []).append((reason, run_id))
    first = " The figures are those of the first run."
    return [
        (same[0][0] + first * (len({reason for reason, _ in same}) > 1), [one for _, one in same])
        for same in found.values()
    ]


# A link to a run whose text is the end of its id, in a page or in the JSON of a long table's rows.
_LINK = re.compile(
    r'((?:<|\\u003c)a class=\\?"run\\?" data-run=\\?"([^"\\]+)\\?" [^<>]*?(?:>|\\u003e))'
    r"([^<>\\]+)(?=<|\\u003c)"
)


def number_runs(text: str, numbers: Mapping[str, int]) -> str:
    """Return a page's text in which runs are called by number: ``run 17``, not by a hash.

    A number is a run's row in the table of all runs; the title of the link has the whole id.
    """

    def called(match: re.Match[str]) -> str:
        opening, run_id, name = match.groups()
        number = numbers.get(run_id)
        if number is None or name != short_id(run_id):
            return match[0]
        return f"{opening}run\N{NO-BREAK SPACE}{number}"

    return _LINK.sub(called, text)


def script_json(value: Any) -> Markup:
    """Return JSON that is safe inside a script element: no character of it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&`":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
