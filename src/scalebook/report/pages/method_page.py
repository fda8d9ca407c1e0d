"""The pages Method and Provenance: how numbers are counted, and what each run recorded."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, cast

import polars as pl

from scalebook import identity
from scalebook.facts import catalog
from scalebook.facts.flops.conventions import CONVENTIONS, DEFAULT_CONVENTION
from scalebook.measure.probes.topology import pairs_by_link
from scalebook.measure.verdicts.differences import differences
from scalebook.record import RunRecord
from scalebook.report.base.frames import VERSIONS, ReportData, records
from scalebook.report.base.html_tables import PLATFORM, RAN, RUN, Column, Row, Show, table, text
from scalebook.report.base.markup import (
    Fragment,
    Markup,
    bullets,
    callout,
    escape,
    join,
    paragraphs,
    run_link,
    run_links,
)
from scalebook.report.base.naming import fact_words, typed
from scalebook.report.base.quantities import NONE, count, number

PRECISIONS = ("bf16", "fp16", "fp8", "fp32")


def _words(content: str) -> Markup:
    return Markup("<mtext>{}</mtext>").format(content)


def _symbol(content: str) -> Markup:
    return Markup("<mi>{}</mi>").format(content)


def _sub(name: str, index: str) -> Markup:
    return Markup("<msub><mi>{}</mi><mi>{}</mi></msub>").format(name, index)


def _mrow(*parts: Markup | str) -> Markup:
    """Return parts in a row; a plain string is an operator, or a number where it has digits."""
    marked = (
        part
        if isinstance(part, Markup)
        else Markup("<{0}>{1}</{0}>").format("mn" if part[0].isdigit() else "mo", part)
        for part in parts
    )
    return Markup("<mrow>{}</mrow>").format(Markup("").join(marked))


def _fraction(top: Markup, bottom: Markup) -> Markup:
    return Markup("<mfrac>{}{}</mfrac>").format(top, bottom)


def _sum(body: Markup) -> Markup:
    return _mrow(Markup("<munder><mo>∑</mo><mi>i</mi></munder>"), body)


def _formulas() -> dict[str, Markup]:
    tokens, seconds = _sub("tokens", "i"), _sub("step_seconds", "i")
    throughput, world, flops = _symbol("T"), _symbol("n"), _symbol("F")
    rate, peak = _symbol("R"), _symbol("P")
    million_million = Markup("<msup><mn>10</mn><mn>12</mn></msup>")
    hidden = _symbol("h")
    layer = _mrow(
        "6", hidden, "(", _symbol("k"), _symbol("f"), "+", _symbol("q"), "+", "2", _symbol("v"),
        "+", _symbol("q"), ")", "+", "6", _symbol("q"), _symbol("s"),
    )  # fmt: skip
    reached, base = (
        _mrow(_sub("T", "n"), "/", world),
        _mrow(_sub("T", "b"), "/", _symbol("b")),
    )
    return {
        "throughput": _mrow(throughput, "=", _fraction(_sum(tokens), _sum(seconds))),
        "rate": _mrow(
            rate,
            "=",
            _fraction(_mrow(throughput, flops), _mrow(world, "·", million_million)),
        ),
        "mfu": _mrow(_words("MFU"), "=", _fraction(rate, peak)),
        "flops": _mrow(flops, "=", _symbol("L"), "(", layer, ")", "+", "6", hidden, _symbol("V")),
        "efficiency": _mrow(_words("efficiency"), "=", _fraction(reached, base)),
    }


def formula(name: str) -> Fragment:
    """Return a formula as MathML, which browsers draw without any script."""
    opening = Markup('<div class="formula"><math display="block">')
    return Fragment(opening + _formulas()[name] + Markup("</math></div>"))


def conventions(data: ReportData) -> Fragment:
    """Return what each FLOPs convention counts, the default first."""
    used = set(_used(data))
    ordered = sorted(CONVENTIONS.items(), key=lambda item: item[0] != DEFAULT_CONVENTION)
    terms = Markup("").join(
        Markup("<dt><code>{}</code>{}</dt><dd>{}.</dd>").format(
            name, " (used in this report)" if name in used else "", typed(words)
        )
        for name, words in ordered
    )
    return Fragment(Markup('<dl class="terms">{}</dl>').format(terms))


def peaks(data: ReportData) -> Fragment:
    """Return the dense peaks of the catalog with their sources, those of these runs marked."""
    used = set(data.runs["accelerator"].drop_nulls())
    rows = [_peak_row(device, used) for device in catalog.accelerators()]
    rows.sort(key=lambda row: (row["used"] == "", row["vendor"], row["name"]))
    columns = (
        text("name", "Accelerator"),
        text("used", "In this report"),
        *(Column(name, name.upper(), _shower(name), "TFLOP/s") for name in PRECISIONS),
        Column("source", "Source", _source, numeric=False, wide=True),
    )
    return table(rows, columns, "peaks")


def _peak_row(device: catalog.Accelerator, used: set[str]) -> dict[str, str | float | None]:
    names = sorted(used & set(device.device_names))
    values = {name: device.peak_tflops.get(name) for name in PRECISIONS}
    facts = {"name": device.name, "vendor": device.vendor, "source": device.source}
    return facts | values | {"used": ", ".join(names)}


def _shower(name: str) -> Show:
    return lambda row: number(row[name], 4)


def _source(row: Row) -> Markup:
    return Markup("<details><summary>source</summary>{}</details>").format(escape(row["source"]))


def windows(data: ReportData) -> Fragment:
    """Return how many steps the runs of this report are averaged over."""
    judged = pl.col("steady").fill_null(value=False)
    steady, short = data.completed.filter(judged), data.completed.filter(~judged)
    sentences: list[Markup] = []
    if steady.height:
        low, high = steady["steady_steps"].min(), steady["steady_steps"].max()
        span = f"{low}" if low == high else f"{low} to {high}"
        words = "{} of this report {} averaged over a steady state of {} steps."
        runs, are = count(steady.height, "run"), "is" if steady.height == 1 else "are"
        sentences.append(Markup(words).format(runs, are, span))
    if short.height:
        words = "{} {} too few steps to say, and a rate without an interval: {}."
        runs, have = count(short.height, "run"), "has" if short.height == 1 else "have"
        sentences.append(Markup(words).format(runs, have, run_links(short["run_id"])))
    return paragraphs(*([join(sentences, " ")] if sentences else []))


def _used(data: ReportData) -> Iterable[str]:
    rated = data.runs.drop_nulls("model_tflops_per_second_per_gpu")
    return rated["flops_convention"].unique(maintain_order=True)


def used_conventions(data: ReportData) -> Fragment:
    """Return which convention the rates of this report follow."""
    known = [Markup("<code>{}</code>").format(name) for name in _used(data)]
    sentence = Markup("<p>Rates of this report follow {}.</p>").format(join(known))
    return Fragment(sentence if known else Markup(""))


MOST_ROWS = 500

Records = Mapping[str, RunRecord]


def read(data: ReportData) -> Mapping[str, RunRecord]:
    """Return the record of each run."""
    return records(data)


def overview(data: ReportData, found: Records) -> Fragment:
    """Return how many runs, commits and images there are, and what could not be read."""
    if not found:
        return paragraphs("No run could be read, so there is nothing to trace.")
    commits = {_known_commit(one) for one in found.values()}
    images = [identity.image(one) for one in found.values()]
    many = len({*images} - {None, ""})
    items = [
        Markup("{} of {}{}.").format(
            count(len(found), "run"),
            count(len(commits - {None}), "commit"),
            f" and {count(many, 'image')}" if many else "",
        )
    ]
    without = sum(_known_commit(one) is None for one in found.values())
    if without:
        items.append(Markup("{} no commit.").format(count(without, "run records", "runs record")))
    if images.count(""):
        words = "{} no image; their versions say which software ran."
        items.append(Markup(words).format(count(images.count(""), "run names", "runs name")))
    if images.count(None):
        words = "{} an image by a tag only, which can move: equal to the image of no other run."
        items.append(Markup(words).format(count(images.count(None), "run names", "runs name")))
    if data.problems:
        items.append(
            Markup("{} could not be read; the reasons are below.").format(
                count(len(data.problems), "part of the run files", "parts of the run files")
            )
        )
    return bullets(items)


def runs(data: ReportData, found: Records) -> Fragment:
    """Return each run's command, versions, image, environment variables and commit."""
    if not found:
        return Fragment(Markup(""))
    folders = dict(data.runs.select("run_id", "folder").iter_rows())
    rows = [
        {**_row(one), "folder": folders[run_id]} for run_id, one in list(found.items())[:MOST_ROWS]
    ]
    columns = (
        *(RUN, RAN),
        Column("started_at", "Started, UTC", _started, numeric=False),
        Column("git_commit", "Commit", _commit, numeric=False),
        text("torch", "PyTorch"),
        Column("versions", "Versions", _folded("versions"), numeric=False),
        Column("command", "Command", _folded("command"), numeric=False),
        Column("variables", "Variables", _folded("variables"), numeric=False),
        Column("image", "Image", _image, numeric=False),
        Column("again", "Again with", _again, numeric=False, wide=True),
        text("source", "Source"),
        text("folder", "Folder"),
    )
    shown = table(data.with_work(rows), columns, "provenance")
    if len(found) <= MOST_ROWS:
        return shown
    cut = paragraphs(f"The first {MOST_ROWS} of {len(found)} runs are shown.")
    return Fragment(shown.html + cut.html)


def _known_commit(one: RunRecord) -> str | None:
    """Return the commit of a run; None where its record holds none, or something else."""
    commit = one.environment.get("git_commit")
    return commit if isinstance(commit, str) and commit else None


def _row(one: RunRecord) -> dict[str, Any]:
    environment = one.environment
    named = (
        (name, environment.get(name)) for name in (*VERSIONS, "triton") if name != "git_commit"
    )
    made_here = one.source in ("measured", "inferred")
    return {
        "run_id": one.run_id,
        "source": one.source,
        "status": one.status,
        "started_at": one.started_at,
        "git_commit": _known_commit(one),
        "torch": environment.get("torch"),
        "versions": ", ".join(f"{name} {value}" for name, value in named if value) or NONE,
        "image": _flat(environment.get("container")),
        "image_id": identity.image(one),
        "command": shlex.join(one.command),
        "variables": _flat(environment.get("variables")),
        "again": shlex.join(("scalebook", "reproduce", one.run_id)) if made_here else None,
    }


def _flat(value: Any) -> str:
    """Return a mapping of a record as text, in the order of its names; nothing for none."""
    if not isinstance(value, dict):
        return str(value or "")
    items = cast("dict[str, Any]", value).items()
    return ", ".join(f"{name}={one}" for name, one in sorted(items) if one is not None)


def _started(row: Row) -> str:
    """Return when a run started, to the minute; the exact time goes with the cell."""
    return str(row["started_at"] or NONE)[:16].replace("T", " ")


def _commit(row: Row) -> Markup | str:
    commit = row["git_commit"]
    return NONE if commit is None else Markup("<code>{}</code>").format(_short(str(commit)))


def _short(text: str) -> str:
    """Return a text with every hash of a commit or an image cut to its first 12 digits."""
    return re.sub(r"\b([0-9a-f]{12})(?:[0-9a-f]{28}|[0-9a-f]{52})\b", r"\1", text)


def _image(row: Row) -> Markup | str:
    """Return the short id of a run's image and, folded, all that the record says of it."""
    if not row["image"]:
        return NONE
    shown = Markup("<details><summary>{}</summary><code>{}</code></details>")
    return shown.format(row["image_id"] or "not known", row["image"])


def _folded(key: str) -> Any:
    def write(row: Row) -> Markup | str:
        if not row[key]:
            return NONE
        shown = Markup("<details><summary>show</summary><code>{}</code></details>")
        return shown.format(row[key])

    return write


def _again(row: Row) -> Markup:
    if row["again"] is None:
        return Markup("no command of Scalebook made it")
    return Markup("<code>{}</code>").format(row["again"])


def links(found: Records) -> Fragment:
    """Return how the GPUs of each platform's runs are linked, and how many runs recorded it."""
    machines: dict[str, tuple[Any, str, list[str]]] = {}
    for run_id, one in found.items():
        topology = one.environment.get("topology")
        if pairs_by_link(topology):
            device = str(one.environment.get("accelerator") or NONE)
            key = json.dumps([device, topology], sort_keys=True, default=str)
            machines.setdefault(key, (topology, device, []))[2].append(run_id)
    rows = [
        {"gpu": f"GPU{place}", "accelerator": device, "links": " ".join(map(str, row)),
         "runs": " ".join(run_ids), "linked": run_links(run_ids)}
        for topology, device, run_ids in machines.values()
        for place, row in enumerate(topology["links"])
    ]  # fmt: skip
    if not rows:
        return paragraphs(
            "No run recorded how its GPUs are linked. Runs on a CPU, ingested logs and older runs "
            "never do, nor does a driver's tool that reports no links. The page of probes shows "
            "the machines that were probed."
        )
    columns = (
        *(text("accelerator", "Accelerator"), text("gpu", "GPU"), text("links", "To each GPU")),
        Column("runs", "Runs", lambda row: row["linked"], numeric=False, wide=True),
    )
    return table(rows[:MOST_ROWS], columns, "links")


def unequal(found: Records) -> Fragment:
    """Return every version, device and variable that differs between the runs of one platform."""
    platforms: dict[str, list[RunRecord]] = {}
    for one in found.values():
        platforms.setdefault(str(one.setting("platform") or "unknown platform"), []).append(one)
    rows = [row for name, group in platforms.items() for row in _unequal(name, group)]
    if not rows:
        return paragraphs("Versions, devices and variables are equal over the runs of a platform.")
    columns = (
        *(PLATFORM, Column("name", "What", lambda row: fact_words(row["name"]), numeric=False)),
        Column("values", "Values and runs", lambda row: row["values"], numeric=False, wide=True),
    )
    return table(rows[:MOST_ROWS], columns, "unequal")


def _unequal(platform: str, group: list[RunRecord]) -> list[dict[str, Any]]:
    """Return what differs in the surroundings of these runs; settings are the other pages' part."""
    bare = [one.model_copy(update={"requested": {}, "observed": {}}) for one in group]
    names = dict.fromkeys(item.name for one in bare[1:] for item in differences([bare[0]], [one]))
    return [{"platform": platform, "name": name, "values": _values(bare, name)} for name in names]


def _values(group: list[RunRecord], name: str) -> str:
    """Return the values of a dotted name, each with how many runs have it."""
    counts: dict[str, int] = {}
    for one in group:
        value: Any = one.environment
        for part in name.split("."):
            value = cast("dict[str, Any]", value).get(part) if isinstance(value, dict) else None
        words = "none" if value is None else _short(str(value))
        counts[words] = counts.get(words, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{words} ({count(many, 'run')})" for words, many in ranked)


def otherwise(data: ReportData) -> Fragment:
    """Return the runs whose trainer read back another setting than was asked for."""
    if not data.differences:
        return paragraphs(
            "Every measured run ran as requested, as far as its settings were read back."
        )
    return bullets(
        Markup("{}: {}").format(run_link(run_id), " ".join(said))
        for run_id, said in data.differences.items()
    )


def broken(data: ReportData) -> Fragment:
    """Return the run directories and lines that could not be read, each with the reason."""
    if not data.problems:
        return paragraphs("Every run directory could be read completely.")
    return callout("Not readable", data.problems)
