"""Escaped HTML for pages: whatever comes from a run file is text here, never markup."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

__all__ = ["Fragment", "Markup", "anchor", "bullets", "escape", "join", "paragraphs", "run_link"]

MOST_ITEMS = 200  # of one list: a page of ten thousand runs must open
MOST_NAMED = 12  # runs in one sentence; the tables have them all
RUNS_PAGE = "throughput.html"  # where the table of all runs is, and so every run's anchor


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of a page. Its Markdown form is one raw HTML block.

    Markdown and not HTML is what pages are built from: Quarto adds scripts from a CDN to a page
    as soon as one output of a notebook has the type text/html.
    """

    html: Markup

    def _repr_html_(self) -> str:
        return str(self.html)

    def _repr_markdown_(self) -> str:
        return raw_block(str(self.html))


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


def bullets(sentences: Iterable[Markup | str], style: str = "findings") -> Fragment:
    """Return a list of sentences, of the first MOST_ITEMS where there are more."""
    every = list(sentences)
    more = len(every) - MOST_ITEMS
    cut = [f"And {more:,} more like these."] if more > 0 else []
    shown = (Markup("<li>{}</li>").format(one) for one in (*every[:MOST_ITEMS], *cut))
    items = Markup("").join(shown)
    return Fragment(Markup('<ul class="{}">{}</ul>').format(style, items))


def paragraphs(*sentences: Markup | str, style: str = "") -> Fragment:
    """Return a paragraph a sentence."""
    opening = Markup('<p class="{}">').format(style) if style else Markup("<p>")
    parts = (opening + Markup("{}</p>").format(sentence) for sentence in sentences)
    return Fragment(Markup("").join(parts))


def to_copy(summary: str, text: str) -> Markup:
    """Return a text to copy, such as a sample file, folded under a line that says what it is."""
    template = '<details class="sb-sample"><summary>{}</summary><pre>{}</pre></details>'
    return Markup(template).format(summary, text)


def callout(title: str, sentences: Iterable[Markup | str]) -> Fragment:
    """Return a marked box with a title and a list; nothing where there is no sentence."""
    sentences = list(sentences)
    if not sentences:
        return Fragment(Markup(""))
    # Quarto moves what is an <aside> into the margin
    head = Markup('<p class="callout-head">{}</p>').format(title)
    body = bullets(sentences, style="notes").html
    return Fragment(Markup('<div class="sb-callout" role="note">{}{}</div>').format(head, body))


def anchor(run_id: str) -> str:
    """Return the element id of a run: letters, digits, dot, dash and underscore alone.

    An id that had to be changed gets a checksum, so that two of them stay different.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", run_id)
    return f"run-{plain}" if plain == run_id else f"run-{plain}-{zlib.crc32(run_id.encode()):08x}"


def short_id(run_id: str) -> str:
    """Return the hash at the end of a run id that this program made; any other id whole."""
    made = re.fullmatch(r"[0-9]{8}-[0-9]{6}-.*-([0-9a-f]{12}(?:-[0-9]+)?)", run_id)
    return made[1] if made else run_id


def run_link(run_id: str, text: str | None = None) -> Markup:
    """Return a link from any page to the row of a run; its text is short, its title the run id."""
    template = '<a class="run" data-run="{0}" title="{0}" href="{1}#{2}">{3}</a>'
    return Markup(template).format(run_id, RUNS_PAGE, anchor(run_id), text or short_id(run_id))


def run_links(run_ids: Iterable[str]) -> Markup:
    """Return links to the first MOST_NAMED runs, and how many there are beside them."""
    every = list(run_ids)
    more = len(every) - MOST_NAMED
    names = join(map(run_link, every[:MOST_NAMED]))
    return Markup("{} and {:,} more").format(names, more) if more > 0 else names


def script_json(value: Any) -> Markup:
    """Return JSON that is safe inside a script element: no character of it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&`":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
