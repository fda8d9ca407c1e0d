"""The pages Method and Provenance: how numbers are counted, and what each run recorded."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, cast

import polars as pl

from scalebook import identity
from scalebook.facts import catalog
from scalebook.facts.flops.conventions import CONVENTIONS, DEFAULT_CONVENTION
from scalebook.measure.probes.topology import pairs_by_link
from scalebook.measure.verdicts.differences import differences
from scalebook.record import RunRecord
from scalebook.report.base.frames import VERSIONS, ReportData, flat, records, versions
from scalebook.report.base.html_tables import PLATFORM, RAN, RUN, Column, Row, plain, table, text
from scalebook.report.base.markup import (
    Markup,
    bullets,
    code,
    opened,
    paragraphs,
    part,
    run_link,
    run_links,
    unreadable,
)
from scalebook.report.base.naming import fact_words, typed
from scalebook.report.base.quantities import NONE, count

PRECISIONS = ("bf16", "fp16", "fp8", "fp32")


def formula(name: str) -> Markup:
    """Return a formula in the middle of a line of its own."""
    return part("formula", name)


def conventions(data: ReportData) -> Markup:
    """Return what each FLOPs convention counts, the default first."""
    used = set(data.runs.drop_nulls("model_tflops_per_second_per_gpu")["flops_convention"])
    ordered = sorted(CONVENTIONS.items(), key=lambda item: item[0] != DEFAULT_CONVENTION)
    terms = [(name, name in used, typed(words)) for name, words in ordered]
    return part("conventions", terms)


def peaks(data: ReportData) -> Markup:
    """Return the dense peaks of the catalog with their sources, those of these runs marked."""
    used = set(data.runs["accelerator"].drop_nulls())
    rows = [
        {"name": one.name, "vendor": one.vendor, "source": one.source, **one.peak_tflops,
         "used": ", ".join(sorted(used & set(one.device_names)))}
        for one in catalog.accelerators()
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["used"] == "", row["vendor"], row["name"]))
    columns = (
        text("name", "Accelerator"),
        text("used", "In this report"),
        *(plain(name, name.upper(), "TFLOP/s", digits=4) for name in PRECISIONS),
        text("source", "Source", show=partial(opened, "source"), wide=True),
    )
    return table(rows, columns, "peaks")


def windows(data: ReportData) -> Markup:
    """Return how many steps the runs of this report are averaged over."""
    steps = data.completed.filter(pl.col("steady").fill_null(value=False))["steady_steps"]
    if steps.is_empty():
        return paragraphs()
    low, high = steps.min(), steps.max()
    many = count(len(steps), "run of this report is", "runs of this report are")
    span = f"{low}" if low == high else f"{low} to {high}"
    return paragraphs(f"{many} averaged over a steady state of {span} steps.")


MOST_ROWS = 500
FOLDED = ("versions", "command", "variables")

Records = Mapping[str, RunRecord]
read = records  # of each run by its id


def overview(data: ReportData, found: Records) -> Markup:
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


def runs(data: ReportData, found: Records) -> Markup:
    """Return each run's command, versions, image, environment variables and commit."""
    folders = dict(data.runs.select("run_id", "folder").iter_rows())
    rows = (
        {**_row(one), "folder": folders[run_id]} for run_id, one in islice(found.items(), MOST_ROWS)
    )

    def folded(text: str) -> Markup | None:
        return opened("show", code(text)) if text else None

    def image(row: Row) -> Markup | str:
        """Return the short id of a run's image and, folded, all that the record says of it."""
        return opened(row["image_id"] or "not known", code(row["image"])) if row["image"] else NONE

    def again(row: Row) -> Markup | str:
        return code(row["again"]) if row["again"] else "no command of Scalebook made it"

    columns = (
        *(RUN, RAN),
        text("started_at", "Started, UTC", show=lambda time: time[:16].replace("T", " ")),
        text("git_commit", "Commit", show=lambda commit: code(_short(commit))),
        text("torch", "PyTorch"),
        *(text(name, name.capitalize(), show=folded) for name in FOLDED),
        Column("image", "Image", image, numeric=False),
        Column("again", "Again with", again, numeric=False, wide=True),
        *(text("source", "Source"), text("folder", "Folder")),
    )
    shown = table(data.with_work(rows), columns, "provenance")
    if len(found) <= MOST_ROWS:
        return shown
    return shown + paragraphs(f"The first {MOST_ROWS} of {len(found)} runs are shown.")


def _known_commit(one: RunRecord) -> str | None:
    """Return the commit of a run; None where its record holds none, or something else."""
    commit = one.environment.get("git_commit")
    return commit if isinstance(commit, str) and commit else None


def _row(one: RunRecord) -> dict[str, Any]:
    environment = one.environment
    software = [name for name in (*VERSIONS, "triton") if name != "git_commit"]
    made_here = one.source in ("measured", "inferred")
    return {
        "run_id": one.run_id,
        "source": one.source,
        "status": one.status,
        "started_at": one.started_at,
        "git_commit": _known_commit(one),
        "torch": environment.get("torch"),
        "versions": versions(environment, software) or NONE,
        "image": flat(environment.get("container")),
        "image_id": identity.image(one),
        "command": shlex.join(one.command),
        "variables": flat(environment.get("variables")),
        "again": shlex.join(("scalebook", "reproduce", one.run_id)) if made_here else None,
    }


def _short(text: str) -> str:
    """Return a text with every hash of a commit or an image cut to its first 12 digits."""
    return re.sub(r"\b([0-9a-f]{12})(?:[0-9a-f]{28}|[0-9a-f]{52})\b", r"\1", text)


def links(found: Records) -> Markup:
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
    none = (
        "No run recorded how its GPUs are linked. Runs on a CPU, ingested logs and older runs "
        "never do, nor does a driver's tool that reports no links. The page of probes shows "
        "the machines that were probed."
    )
    columns = (
        *(text("accelerator", "Accelerator"), text("gpu", "GPU"), text("links", "To each GPU")),
        Column("runs", "Runs", lambda row: row["linked"], numeric=False, wide=True),
    )
    return table(rows[:MOST_ROWS], columns, "links", empty=none)


def unequal(found: Records) -> Markup:
    """Return every version, device and variable that differs between the runs of one platform."""
    columns = (
        *(PLATFORM, text("name", "What", show=fact_words)),
        text("values", "Values and runs", wide=True),
    )
    none = "Versions, devices and variables are equal over the runs of a platform."
    return table(islice(_unequal(found), MOST_ROWS), columns, "unequal", empty=none)


def _unequal(found: Records) -> Iterator[dict[str, Any]]:
    """Yield what differs in the surroundings of runs; settings are the other pages' part."""
    platforms: dict[str, list[RunRecord]] = defaultdict(list)
    for one in found.values():
        platforms[str(one.setting("platform") or "unknown platform")].append(one)
    for platform, group in platforms.items():
        bare = [one.model_copy(update={"requested": {}, "observed": {}}) for one in group]
        differ = (item.name for one in bare[1:] for item in differences([bare[0]], [one]))
        for name in dict.fromkeys(differ):
            yield {"platform": platform, "name": name, "values": _values(bare, name)}


def _values(group: list[RunRecord], name: str) -> str:
    """Return the values of a dotted name, each with how many runs have it."""
    counts: Counter[str] = Counter()
    for one in group:
        value: Any = one.environment
        for key in name.split("."):
            value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
        counts["none" if value is None else _short(str(value))] += 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{words} ({count(many, 'run')})" for words, many in ranked)


def otherwise(data: ReportData) -> Markup:
    """Return the runs whose trainer read back another setting than was asked for."""
    none = "Every measured run ran as requested, as far as its settings were read back."
    each = data.differences.items()
    said = (Markup("{}: {}").format(run_link(run_id), " ".join(words)) for run_id, words in each)
    return bullets(said, empty=none)


def broken(data: ReportData) -> Markup:
    """Return the run directories and lines that could not be read, each with the reason."""
    none = paragraphs("Every run directory could be read completely.")
    return unreadable(data.problems) or none
