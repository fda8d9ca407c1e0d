"""The page of cost, time and energy: a form whose formulas are those of ``economics``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from scalebook.facts.catalog.types import TINY
from scalebook.measure.economics import ANSWERS, Answer, Inputs, answers
from scalebook.measure.intervals import Interval, point
from scalebook.report.base import comparisons
from scalebook.report.base.columns import words_of
from scalebook.report.base.comparisons import COMPARED, Pair
from scalebook.report.base.frames import PROXY, ReportData
from scalebook.report.base.html_tables import (
    RAN,
    RUN,
    WORLD,
    Column,
    Row,
    plain,
    ranged,
    share,
    table,
    text,
)
from scalebook.report.base.markup import (
    Markup,
    bullets,
    by_cause,
    join,
    paragraphs,
    part,
    run_link,
    run_links,
    script_json,
    to_copy,
)
from scalebook.report.base.naming import model_title, platform_title, precision_title, setting_words
from scalebook.report.base.quantities import NONE, count, number, quantity
from scalebook.report.base.stated import SAMPLE, Stated
from scalebook.report.charts.figure import Figures
from scalebook.report.charts.rate_charts import energy_bars

BUDGET = point(1e12)  # tokens, where nobody stated how many
MOST_RUNS = 200  # in the menus: the fastest of each group come first


def choices(data: ReportData) -> tuple[Row, ...]:
    """Return the runs to calculate with: the best of each group, whole models, first."""
    return tuple(_ranked(data).head(MOST_RUNS).iter_rows(named=True))


def _ranked(data: ReportData) -> pl.DataFrame:
    runs = data.completed.filter(pl.col("rate").is_not_null(), pl.col("world_size").is_not_null())
    place = pl.int_range(pl.len()).over("group")
    order = ("place", PROXY, pl.col("platform") == "cpu", -pl.len().over("model").cast(pl.Int64))
    ranked = runs.with_columns(place=place)
    return ranked.sort(*order, -pl.col("rate"), maintain_order=True)


def rate_of(row: Row) -> Interval:
    """Return the tokens per second of a run, with its interval where it has one."""
    low, high, mean = (row[f"tokens_per_second{end}"] for end in ("_low", "_high", ""))
    return Interval(low, high, mean) if low and high else point(mean)


def inputs_of(row: Row, stated: Stated) -> Inputs:
    """Return what is known of a job like this run: its rate, and what was stated."""
    known: dict[str, Any] = {"tokens_per_second": rate_of(row), "gpus": point(row["world_size"])}
    if row["sequence_length"]:
        known["sequence_length"] = point(row["sequence_length"])
    found = {
        name: stated.of(row["platform"], name) for name in words_of("inputs") if name not in known
    }
    return Inputs(**known, **found)


def overview(data: ReportData, stated: Stated, budget: Sequence[Row] = ()) -> Markup:
    """Return what the budget takes, what is stated, and which run takes the least energy."""
    items = [Markup("{}").format(problem) for problem in stated.problems]
    if stated.shared or stated.platforms:
        given = [_label(name) for name in stated.shared]
        given += [
            f"{_label(name)} of {platform_title(platform)}"
            for platform, names in stated.platforms.items()
            for name in names
        ]
        items.append(Markup("Stated with the runs: {}.").format(join(given, "; ")))
    else:
        words = (
            "No price or power is stated with the runs, so cost, energy and carbon stay empty "
            "until you type them below. A file <code>economics.toml</code> in the folder of "
            "runs states them, and a budget of tokens, for every reader."
        )
        items.append(Markup(words))
    items = [*budget_sentence(budget), *items]
    sample = to_copy("economics.toml", SAMPLE)
    return bullets([*items, *energy_findings(data)]) + sample


def budgets(data: ReportData, stated: Stated) -> list[dict[str, Any]]:
    """Return what the token budget takes in the best run of each group: whole models on GPUs.

    ``gpu_hours``, ``training_days``, ``cost`` (None without a price) are intervals, ``tokens`` too.
    """
    whole = ~(PROXY | pl.col("model").str.starts_with(TINY))
    best = _ranked(data).filter(whole, pl.col("platform") != "cpu", pl.col("place") == 0)
    found: list[dict[str, Any]] = []
    for row in best.head(MOST_RUNS).iter_rows(named=True):
        inputs = _with_budget(inputs_of(row, stated))
        taken = {one.name: one.value for one in answers(inputs)}
        joules = row["energy_joules_per_token"]
        energy = joules * inputs.tokens.middle / 3.6e9 if joules and inputs.tokens else None
        found.append({**row, **taken, "tokens": inputs.tokens, "megawatt_hours": energy})
    return found


def _with_budget(inputs: Inputs) -> Inputs:
    return replace(inputs, tokens=inputs.tokens or BUDGET)


def budget_sentence(found: Sequence[Row]) -> Iterator[Markup]:
    """Yield the GPU hours of the model that ran most, by device and precision."""
    first = [row for row in found if row["model"] == found[0]["model"]]
    least = {(row["platform"], row["precision"]): row for row in reversed(first)}
    taken = [
        Markup("{} on {} in {}, sequence {} ({})").format(
            shown(row["gpu_hours"], " GPU hours"),
            platform_title(row["platform"]),
            precision_title(row["precision"]),
            number(row["sequence_length"]),
            run_link(row["run_id"]),
        )
        for row in sorted(least.values(), key=lambda row: row["gpu_hours"].middle)
    ]
    if taken:
        words = "<strong>{} trillion tokens of {}</strong> take {}, at the fastest measured rates."
        trillions = written(first[0]["tokens"] * point(1e-12))
        yield Markup(words).format(trillions, model_title(first[0]["model"]), join(taken, "; "))


def budget_table(found: Sequence[Row]) -> Markup | None:
    """Return what the token budget takes, run by run; nothing without a whole model on GPUs."""
    columns = [
        *(RUN, RAN, WORLD),
        _budget_column("gpu_hours", "GPU hours"),
        _budget_column("training_days", "Days"),
        plain("megawatt_hours", "Energy", "MWh", hint="of the devices of the run, as measured"),
    ]
    if any(row["cost"] for row in found):
        columns.append(_budget_column("cost", "Cost", "at the stated price"))
    return table(found, columns, "budget") if found else None


def _budget_column(key: str, label: str, hint: str = "") -> Column:
    return Column(key, label, lambda row: shown(row[key]), hint=hint)


def calculator(data: ReportData, stated: Stated) -> Markup:
    """Return the form and the answers for its first run; the script follows the reader's inputs."""
    runs = choices(data)
    if not runs:
        return paragraphs("No run has a throughput to calculate with.")
    first = _with_budget(inputs_of(runs[0], stated))
    found = answers(first)
    payload = {
        "runs": [_choice(row, stated) for row in runs],
        "answers": [
            {name: getattr(one, name) for name in ("name", "constant", "over", "under")}
            for one in ANSWERS
        ],
    }
    named = [f"{row['group']}, {row['name']}" for row in runs]
    menus = (("Run", "", named), ("Second platform (break-even)", "other_", named))
    values = {name: written(value) for name, value in first.stated().items()}
    fields = [(name, label, values.get(name, "")) for name, label in words_of("inputs").items()]
    return part("calculator", menus, fields, [*map(_answer, found)], script_json(payload))


def _choice(row: Row, stated: Stated) -> dict[str, tuple[float, float, float]]:
    """Return every input that is known of a job like this run: its ends and its estimate."""
    known = inputs_of(row, stated).stated()
    return {name: (value.low, value.high, value.middle) for name, value in known.items()}


def written(value: Interval) -> str:
    """Return a number or a range as a reader would type it, in six digits: ``1T``, ``2..3``."""
    low, high = (
        f"{end / 1e12:.6g}T" if end >= 1e12 else f"{end:.6g}" for end in (value.low, value.high)
    )
    return low if value.exact else f"{low}..{high}"


def _answer(item: Answer) -> tuple[str, ...]:
    """Return an answer: its name, in words, value, unit, formula, and what it still needs."""
    words = setting_words(item.name).replace("dollar", "unit of currency")
    signs = item.formula.replace(" x ", " × ").replace(" / ", " ÷ ")
    formula = re.sub("[a-z_]+", lambda found: setting_words(found[0]), signs)
    needs = f"needs: {'; '.join(map(_label, item.missing))}" if item.missing else ""
    title = re.sub("^cost (?!per)", "cost, ", words)
    return item.name, title, shown(item.value), item.unit, formula, needs


def _label(name: str) -> str:
    """Return an input as its field calls it, without the example."""
    return words_of("inputs")[name].partition(" (")[0]


def shown(value: Interval | None, unit: str = "") -> str:
    """Return an answer and its range in four digits, which no price or rate exceeds."""
    if value is None:
        return NONE
    ends = (value.middle, value.low, value.high)
    middle, low, high = (number(float(f"{end:.4g}"), 4) for end in ends)
    return f"{middle}{unit}" if value.exact else f"{middle}{unit} ({low} to {high})"


def break_even(found: Sequence[Pair], stated: Stated) -> Markup:
    """Return at which price the two sides of each pair cost the same per token."""
    columns = (
        *(COMPARED, text("kind", "Kind")),
        Column("factor", "Second may cost", ranged("factor", comparisons.three), "times the first"),
        Column("price", "First, as stated", lambda row: shown(row["price"]), "per GPU hour"),
        Column("even", "Break-even of the second", lambda row: shown(row["even"]), "per GPU hour"),
        text("reason", "Why not", wide=True),
    )
    none = "No two platforms did the same work, so there is no break-even price."
    return table(_break_even(found, stated), columns, "break-even", empty=none)


def _break_even(found: Sequence[Pair], stated: Stated) -> Iterator[dict[str, Any]]:
    for pair in found:
        verdict, row = pair.verdict, pair.a.row
        if verdict is None or "cpu" in (row["platform"], pair.b.row["platform"]):
            continue
        turned = verdict.turned
        factor = Interval(turned.low, turned.high, turned.ratio)
        price = stated.of(row["platform"], "price_per_gpu_hour")
        yield {
            **comparisons.named(pair),
            "source": pair.source,
            **{"factor": factor.middle, "factor_low": factor.low, "factor_high": factor.high},
            "price": price,
            "even": price and replace(price * factor, estimate=price.middle / verdict.ratio),
            "reason": None if price else f"no price of {platform_title(row['platform'])} is stated",
        }


def energy_findings(data: ReportData) -> Iterator[Markup]:
    """Yield which run took the least energy, and which have none and why."""
    known = data.completed.drop_nulls("energy_joules_per_token")
    if known.height:
        # the first layers of a model are fast because they are few
        small = PROXY | pl.col("model").str.starts_with(TINY)
        whole = known.filter(~small, pl.col("platform") != "cpu")
        mixed = whole.height and known.filter(small).height
        runs, of = (whole, " of a whole model") if mixed else (known, "")
        best = runs.sort("energy_joules_per_token").row(0, named=True)
        words = (
            "Energy was measured in {}: the least{} is {} by {} of {} ({}), counting only its "
            "devices."
        )
        yield Markup(words).format(
            count(known.height, "run"),
            of,
            quantity(1e3 * best["energy_joules_per_token"], "mJ per token"),
            run_link(best["run_id"]),
            model_title(best["model"]),
            best["energy_method"],
        )
    missing = data.completed.filter(pl.col("energy_joules_per_token").is_null())
    for (reason,), rows in missing.group_by("energy_reason", maintain_order=True):
        ids = run_links(rows["run_id"])
        said = (reason or "no reason is recorded").removesuffix(".")
        yield Markup("No energy per token of {}: {}.").format(ids, said)


def energy_chart(data: ReportData) -> Figures | None:
    """Return the measured energy per token, one chart per model and platform."""
    known = data.completed.drop_nulls("energy_joules_per_token")
    groups = known.group_by("group", maintain_order=True)
    return Figures.of((str(name), energy_bars(rows)) for (name,), rows in groups)


def device_findings(data: ReportData) -> Markup:
    """Return what held devices back: one sentence per cause, with the runs that it is true of."""
    known = data.completed.select("device_notes", "run_id").drop_nulls().iter_rows()
    said = ((note, run_id) for notes, run_id in known for note in json.loads(notes))
    return bullets(Markup("{}: {}").format(run_links(ids), note) for note, ids in by_cause(said))


def device_table(data: ReportData) -> Markup:
    """Return what was read of the devices of each run with a throughput; nothing without any."""
    read = pl.col("mean_power_watts").is_not_null() | pl.col("mean_clock_mhz").is_not_null()
    millijoules = 1e3 * pl.col("energy_joules_per_token")
    runs = data.completed.filter(read).with_columns(millijoules=millijoules)
    columns = (
        *(RUN, RAN),
        plain("millijoules", "Energy", "mJ per token", hint="of all devices of the run"),
        plain("mean_power_watts", "Mean power", "W per GPU"),
        plain("max_power_watts", "Highest", "W"),
        plain("power_cap_watts", "Cap", "W"),
        plain("mean_clock_mhz", "Mean clock", "MHz", digits=4),
        plain("min_clock_mhz", "Lowest", "MHz", digits=4),
        plain("max_temperature_celsius", "Hottest", "°C"),
        share("gpu_busy_fraction", "Busy", "share of the time that a kernel ran: not MFU"),
        text("energy_method", "By"),
    )  # fmt: skip
    return table(runs.iter_rows(named=True), columns, "devices")
