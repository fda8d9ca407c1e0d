"""Scan a finished site: no network, every figure also in words, every link leads somewhere."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scalebook.report.site import run_details
from scalebook.report.site.site_files import anchors_of_rows

# Elements whose address the browser fetches by itself; a link that a reader clicks is no asset.
ASSETS = {
    "audio": "src", "embed": "src", "iframe": "src", "image": "href", "img": "src", "input": "src",
    "link": "href", "object": "data", "script": "src", "source": "src", "track": "src",
    "use": "href", "video": "src",
}  # fmt: skip
REMOTE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
CSS_ADDRESS = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)", re.IGNORECASE)

# Most tags of a report are cells of words or a number, and parsing them takes most of the time. As
# they hold no "=", no address goes with them, even where they stand inside another tag.
PLAIN_CELL = re.compile(r"""<td class="[a-z ]*" data-value="[^"'<>=]*">[^"'<>=]*</td>""")


@dataclass
class _Scan(HTMLParser):
    """What one page refers to. Mutable, as the parser is fed."""

    ids: set[str] = field(default_factory=set[str])
    links: list[str] = field(default_factory=list[str])
    assets: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    row_files: list[str] = field(default_factory=list[str])
    _inside: str = ""  # an element, "spec" of a chart or "rows" of a long table

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the element's id, address and words."""
        values = {name: value or "" for name, value in attrs}
        self._inside = {"sb-spec": "spec", "sb-rows": "rows"}.get(values.get("class", ""), tag)
        if values.get("data-src"):
            self._inside = tag
            self.row_files.append(values["data-src"])
        if values.get("id"):
            # the anchors of runs are ours; a renderer may repeat one of its own
            if values["id"] in self.ids and values["id"].startswith("run-"):
                self.problems.append(f"the id {values['id']!r} appears twice")
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get(ASSETS.get(tag, "")):
            self.assets.append(values[ASSETS[tag]])
        self._style(values.get("style", ""))
        role = values.get("role")
        decorative = values.get("aria-hidden") == "true" or role == "presentation"
        drawn = (tag == "img" or role == "img") and not decorative
        if drawn and not (values.get("alt") or values.get("aria-label")):
            self.problems.append(f"a <{tag}> has no alternative text")

    def handle_endtag(self, tag: str) -> None:
        """Leave the element."""
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Look into styles and chart specifications."""
        if self._inside == "style":
            self._style(data)
        elif self._inside == "spec":
            try:
                if '"url":' in json.dumps(json.loads(data), separators=(",", ":")):
                    self.problems.append("a chart loads its data from an address")
            except ValueError:
                self.problems.append("a chart's specification is not JSON")
        elif self._inside == "rows":
            # the rows of a long table that are made when they are shown
            self.ids.update(entry[1] for entry in json.loads(data) if entry[1])

    def _style(self, css: str) -> None:
        self.problems += [f"style asks for {url}" for url in CSS_ADDRESS.findall(css)]


def check(site: Path, failed: Collection[str] = ()) -> tuple[str, ...]:
    """Return every problem of a site, a sentence each with the page's name.

    A link into a page of ``failed`` need not find its place there: that page has none.
    """
    site = site.resolve()  # addresses are compared with files, whatever the folder is called by
    scans: dict[str, _Scan] = {}
    for path in sorted(site.rglob("*.html")):
        scan = _Scan()
        scan.feed(PLAIN_CELL.sub("", path.read_text(encoding="utf-8")))
        for name in scan.row_files:
            if (site / name).is_file():
                scan.ids.update(anchors_of_rows(site / name))
            else:
                scan.problems.append(f"reads rows from {name}, which is not in the site")
        scans[path.relative_to(site).as_posix()] = scan
    if run_details.PAGE in scans:  # made in the browser, from data
        scans[run_details.PAGE].ids |= run_details.places(site)
    problems = [f"{page}: {text}" for page, scan in scans.items() for text in scan.problems]
    for page in scans:
        problems += [f"{page}: {text}" for text in _addresses(site, page, scans, failed)]
    for path in sorted(site.rglob("*.css")):
        for url in CSS_ADDRESS.findall(path.read_text(encoding="utf-8")):
            problems.append(f"{path.relative_to(site)}: style asks for {url}")
    return tuple(problems)


def _addresses(
    site: Path, page: str, scans: dict[str, _Scan], failed: Collection[str]
) -> Iterator[str]:
    """Yield each address of a page that leaves the machine or leads nowhere."""
    for address in scans[page].assets:
        if REMOTE.match(address):
            yield f"loads {address}"
        elif not address.startswith("data:") and not _file(site, page, address).is_file():
            yield f"loads {address}, which is not in the site"
    for link in scans[page].links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = _file(site, page, parts.path) if parts.path else site / page
        if not target.is_file():
            yield f"links to {link}, which is not in the site"
        elif parts.fragment and target.suffix == ".html":
            name = target.relative_to(site).as_posix()
            if name not in failed and unquote(parts.fragment) not in scans[name].ids:
                yield f"links to {link}, but nothing there has this id"


@lru_cache(maxsize=1024)  # a page links to the same few files thousands of times
def _file(site: Path, page: str, address: str) -> Path:
    """Return the file that a relative address of a page means."""
    path = unquote(urlsplit(address).path)
    if path.startswith("/"):
        return site / path.lstrip("/")
    return Path(os.path.normpath((site / page).parent / path))
