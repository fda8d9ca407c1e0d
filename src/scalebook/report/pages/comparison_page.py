"""The comparison page: platforms or runs side by side, and what each option is worth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from scalebook import identity
from scalebook.identity import VERSIONS, alike
from scalebook.measure.verdicts import Verdict
from scalebook.report.base import comparisons as bases
from scalebook.report.base.comparisons import Pair, grouped, side_name, sides
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import RAN, Column, Row, ranged, table, text, verdict_column
from scalebook.report.base.markup import Markup, bullets, join, paragraphs, run_link, run_links
from scalebook.report.base.naming import changes_in_words as setting_in_words
from scalebook.report.base.naming import (
    fact_words,
    model_title,
    platform_title,
    precision_title,
    sequence_words,
    setting_words,
    sized,
    titled,
    units,
)
from scalebook.report.base.quantities import GLUE, change, count, times
from scalebook.report.base.versus import (
    Configuration,
    best_of,
    configurations,
    estimate_of,
    verdict_on,
)
from scalebook.report.charts.figure import Figure, Figures
from scalebook.report.charts.rate_charts import against_baseline, ratios
from scalebook.settings import named, names

SIZES = named("layout", "size")
# Ways of doing the same step: those that may be what an ablation switches.
SWITCHES = (*names("kernel"), "data_parallel_sharding", "layer_spec")
# As asked for, in addition to the work and the sizes.
FIXED = tuple(n for n in named("where it differs", "off default") if n not in SWITCHES)
# Of what differs here nobody knows what a switch is worth. Whether Transformer Engine is installed
# decides whose layers run where that was left open.
STOOD_ON = ("accelerator", *VERSIONS)
CHANGE = ranged("change", change)
IN_HEAD = ("work", "side")  # what every name begins with


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch: its value in the optimised configuration, the other, and the rates' verdict.

    ``pair`` has the optimised configuration as A.
    """

    name: str
    value: str
    other: str
    pair: Pair

    @property
    def label(self) -> str:
        """The switch in words: ``fused attention: on, not off``."""
        return f"{self.words}: {self.value}, not {self.other}"

    @property
    def choice(self) -> str:
        """Both values, neither of them preferred: ``recompute: none or pointwise``."""
        return f"{self.words}: {self.value} or {self.other}"

    @property
    def words(self) -> str:
        """The switch as labels call it: ``fused RoPE``."""
        return setting_words(self.name).removesuffix(" in")  # gradients in bf16

    @property
    def verdict(self) -> Verdict | None:
        """What the optimised value is worth: its rate over that with the other value."""
        return self.pair.verdict


@dataclass(frozen=True, slots=True)
class Ablation:
    """The switches of one optimised configuration, the largest worth first.

    ``plain`` is the configuration with the most switches changed at once, as A over B with the
    optimised one; None where no run changes several.
    """

    name: str
    optimised: Configuration
    switches: tuple[Switch, ...]
    plain: Pair | None
    plain_changes: tuple[str, ...] = ()


def changed(a: Row, b: Row) -> tuple[str, ...]:
    """Return the options that were set differently and ran differently.

    A switch that was left open on both sides is no change, even if it came out differently: what
    made it so is the change.
    """
    asked_a, asked_b = a["record"].asked, b["record"].asked
    was_a, was_b = a["record"].in_force, b["record"].in_force
    return tuple(
        name
        for name in SWITCHES
        if asked_a.get(name) != asked_b.get(name) and was_a.get(name) != was_b.get(name)
    )


def ablations(rows: Sequence[Row]) -> tuple[Ablation, ...]:
    """Return the ablation of each group of runs that differ only in options."""
    groups = grouped(rows, _group_key).values()
    found = [one for group in groups if (one := _ablation(group)) is not None]
    names = _names([one.optimised.row for one in found])
    return tuple(replace(one, name=name) for one, name in zip(found, names, strict=True))


def _group_key(row: Row) -> str | None:
    shared = _in_common(row)
    return json.dumps(shared, default=str) if shared else None


def _in_common(row: Row) -> dict[str, Any]:
    """Return what the runs of an ablation have in common, by name; nothing where it is unknown.

    That is the work, the side, every setting as it was asked for that is no switch, and the device
    and versions that the run stood on. Left out is what leaves the speed of a step alone: how many
    steps there are, the learning rate, the seed, what is profiled or saved beside them.
    """
    record = row["record"]
    work = identity.work(record)
    if work is None or not record.requested:
        return {}
    asked = {name: record.asked.get(name) for name in FIXED}
    sizes = {name: row.get(name) for name in SIZES}
    stood_on = {name: record.environment.get(name) for name in STOOD_ON}
    return {"work": work, "side": side_name(row)} | sizes | asked | stood_on


def _names(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the names of the groups of these runs, each with what sets it apart."""
    for row in rows:
        head, own = _group_name(row), _in_common(row)
        alike = [_in_common(other) for other in rows if _group_name(other) == head]
        differ = (name for name in own if any(other.get(name) != own[name] for other in alike))
        # each by itself: of several words some would be cut
        told = (setting_in_words([(name, own[name])])[0] for name in differ if name not in IN_HEAD)
        yield ", ".join([head, *told])


def _ablation(group: Sequence[Row]) -> Ablation | None:
    """Return the ablation of a group; None where no two of its runs differ in one switch.

    The optimised configuration is the one that most others differ from in a single switch. Of
    configurations of the same switches, such as two numbers of steps, the fastest counts.
    """
    certain = [row for row in group if estimate_of(row) is not None]
    asked = alike(certain, lambda row: repr([row["record"].asked.get(n) for n in SWITCHES]))
    ones = [best_of(same) for same in asked]
    if len(ones) < 2:
        return None
    best = min(ones, key=lambda one: (-_neighbours(one, ones), -one.rate))
    if _neighbours(best, ones) == 0:
        return None
    switches = sorted(
        _switches(best, ones), key=lambda one: -one.verdict.ratio if one.verdict else 0.0
    )
    most = max(ones, key=lambda one: len(changed(best.row, one.row)))
    changes = changed(best.row, most.row)
    plain = _pair(best, most) if len(changes) > 1 else None
    return Ablation(_group_name(best.row), best, tuple(switches), plain, changes if plain else ())


def _neighbours(one: Configuration, ones: Sequence[Configuration]) -> int:
    return sum(len(changed(one.row, other.row)) == 1 for other in ones)


def _switches(best: Configuration, ones: Sequence[Configuration]) -> Iterator[Switch]:
    for other in ones:
        names = changed(best.row, other.row)
        if len(names) == 1:
            was = [side.row["record"].in_force.get(names[0]) for side in (best, other)]
            value, instead = (
                titled(("off", "on")[one] if isinstance(one, bool) else str(one)) for one in was
            )
            yield Switch(names[0], value, instead, _pair(best, other))


def _pair(best: Configuration, other: Configuration) -> Pair:
    return Pair("one option", "optimised", "changed", best, other)


def _group_name(row: Row) -> str:
    what = f"{model_title(row['model'])} on {platform_title(side_name(row))}"
    return f"{what}, {sized(row)}, {precision_title(row['precision'])}, {sequence_words(row)}"


NOTHING = (
    "No two runs differ in only one option. The plan ablation.toml runs one model with "
    "everything on, everything off, and each option changed on its own."
)


def ablation_overview(found: Sequence[Ablation]) -> Markup:
    """Return what the optimised configuration gains, and its largest and its useless switches."""
    if not found:
        return paragraphs(NOTHING)
    return bullets(join(_sentences(item), " ") for item in found)


def _sentences(item: Ablation) -> Iterator[Markup]:
    name = Markup("<strong>{}</strong>").format(item.name)
    many = len(item.switches)
    how = "one option was" if many == 1 else f"{many} options, one at a time, were"
    yield Markup("{}: {} changed from {}.").format(name, how, _linked(item.optimised))
    verdict = item.plain.verdict if item.plain else None
    if item.plain and verdict:
        yield Markup("With {} changed at once ({}) the optimised one is {} as fast.").format(
            count(len(item.plain_changes), "option", "options"),
            _linked(item.plain.b),
            f"{times(verdict.ratio)} ({times(verdict.low)} to {times(verdict.high)})",
        )
    known = [(one, found) for one in item.switches if (found := one.verdict)]
    heads = {"faster": "Certainly faster with", "slower": "Faster without"}
    for word, head in (heads | {"cannot tell": "Undecided"}).items():
        ones = [
            f"{one.label} ({change(found.low - 1)} to {change(found.high - 1)})"
            if word in heads
            else one.choice
            for one, found in known
            if found.word == word
        ]
        if ones:
            yield Markup("{}: {}.").format(head, join(ones))


def _linked(side: Configuration) -> Markup:
    return run_links(row["run_id"] for row in side.runs)


def worth(found: Sequence[Ablation]) -> Figures | None:
    """Return a chart of each switch's worth for each optimised configuration."""
    axis = "optimised over changed, throughput"
    rows = {
        item.name: [row for one in item.switches if (row := ratio_row(one.label, one.pair))]
        for item in found
    }
    return Figures.of((name, ratios(each, axis, "option")) for name, each in rows.items())


def ratio_row(label: str, pair: Pair) -> dict[str, Any] | None:
    """Return the verdict on a pair as a row of a chart of ratios; None where there is none."""
    verdict = pair.verdict
    if verdict is None:
        return None
    ids = [", ".join(row["run_id"] for row in side.runs) for side in (pair.a, pair.b)]
    return {
        "label": label,
        "run_id": ids[0],
        "other_run_id": ids[1],
        "kind": pair.kind,
        "source": pair.source or "measured",
        "change": verdict.ratio - 1,
        "change_low": verdict.low - 1,
        "change_high": verdict.high - 1,
        "word": verdict.word,
    }


def bars(found: Sequence[Ablation]) -> Figures | None:
    """Return baseline against optimised, with every single change between them."""
    return Figures.of((item.name, against_baseline(_bar_rows(item))) for item in found)


def _bar_rows(item: Ablation) -> list[dict[str, Any]]:
    changes = sorted(item.switches, key=lambda one: one.pair.b.rate)
    rows = [_bar(item.plain.b, "baseline: several changed", "baseline")] if item.plain else []
    rows += [_bar(one.pair.b, f"{one.words}: {one.other}", "one option changed") for one in changes]
    return [*rows, _bar(item.optimised, "optimised", "optimised")]


def _bar(side: Configuration, label: str, step: str) -> dict[str, Any]:
    several = len(side.runs) > 1
    # repeats have an interval of their own, which the chart of ratios holds
    low, high = (None, None) if several else side.interval
    return {
        "label": label,
        "run_id": ", ".join(row["run_id"] for row in side.runs),
        "source": side.row["source"],
        "step": step,
        "rate": side.rate,
        "rate_low": low,
        "rate_high": high,
        "unit": side.row["rate_unit"],
    }


def switches(found: Sequence[Ablation]) -> Markup:
    """Return the table of all switches with their intervals."""
    rows = [
        {
            **(ratio_row(one.label, one.pair) or {}),
            **{"what": item.name, "name": one.words, "value": one.value, "other": one.other},
            "run_id": one.pair.b.row["run_id"],
        }
        for item in found
        for one in item.switches
    ]
    columns = (
        *(text("name", "Option"), text("value", "Optimised"), text("other", "Changed to")),
        Column("change", "Worth", CHANGE, hint="optimised over changed, with its 95 % interval"),
        text("word", "Verdict", hint="on the optimised value"),
        text("what", "What ran", wide=True),
        text("run_id", "Run with the change", show=run_link),
    )
    return table(rows, columns, "switches")


COMMIT_DIGITS = 12
MOST_DIFFERENCES = 400  # rows of the table


def overview(rows: Sequence[Row], found: Sequence[Pair]) -> Markup:
    """Return why nothing can be compared; nothing where there is a pair."""
    if found:
        return Markup("")
    known = sorted({platform_title(side_name(row)) for row in rows})
    words = "share no model, sequence length, precision and number of GPUs: nothing compares them."
    words = f"The runs of {', '.join(known)} {words}"
    if not known:
        words = "No run has a rate and all that a comparison needs, so there is nothing to compare."
    elif len(known) == 1:
        words = f"All runs with a throughput are of {known[0]}: there is no second side."
    return paragraphs(words)


def chart(found: Sequence[Pair]) -> Figures | None:
    """Return the ratio of each pair with its interval, a chart for every two sides."""
    drawn: list[tuple[str, Figure | None]] = []
    for same in alike(found, sides):
        axis = f"throughput per GPU of {same[0].name_a} over {same[0].name_b}"
        rows = filter(None, map(ratio_row, _labels(same), same))
        drawn.append((sides(same[0]), ratios([*rows], axis, "comparison")))
    return Figures.of(drawn)


def _labels(group: Sequence[Pair]) -> Iterator[str]:
    """Yield what each pair is called in a chart: its work, its configurations, how it was chosen.

    The parts of the work that all pairs share are left out. A narrow chart shows the end alone.
    """
    works = [_work(pair.a.row) for pair in group]
    vary = [len(set(values)) > 1 for values in zip(*works, strict=True)]
    for pair, parts in zip(group, works, strict=True):
        ranks = f"{parts[-1]} · ".replace(GLUE, " ")  # a split of one rank is only its number
        each = (str(side.row["name"]) for side in (pair.a, pair.b))
        bare = (name.partition(" [")[0] for name in each)  # the chart shows the source
        names = dict.fromkeys(f"{name} · ".removeprefix(ranks).removesuffix(" · ") for name in bare)
        how = {bases.MATCHED: "matched", bases.BEST: "best"}.get(pair.kind, "")
        work = [text for text, differs in zip(parts, vary, strict=True) if differs]
        yield " · ".join(
            part for part in dict.fromkeys((*work, " / ".join(filter(None, names)), how)) if part
        )


def _work(row: Row) -> tuple[str, ...]:
    ranks = count(row["world_size"] or 0, *units(row["platform"]))
    length = f"seq {row['sequence_length'] or 0:,}"
    return model_title(row["model"]), precision_title(row["precision"]) or "", length, ranks


def differing(found: Sequence[Pair]) -> Markup:
    """Return what differs between the sides of each pair, in addition to the GPU itself."""
    rows = (
        {**bases.named(pair), "name": one.name, "a": one.a, "b": one.b}
        for pair in found
        for one in pair.beside_the_gpu
    )
    columns = (
        *(bases.COMPARED, text("kind", "Kind"), text("name", "What", show=fact_words)),
        Column("a", "First", lambda row: _value(row, "a"), numeric=False, wide=True),
        Column("b", "Second", lambda row: _value(row, "b"), numeric=False, wide=True),
    )
    none = "Nothing that the runs recorded differs between the sides."
    none = none if found else "There are not two sides, so nothing can differ."
    return table(islice(rows, MOST_DIFFERENCES), columns, "differences", empty=none)


def _value(row: Row, side: str) -> str:
    """Return a value that differs; of a commit its first digits."""
    value = str(row[side] or "none")
    return value[:COMMIT_DIGITS] if row["name"] == "git_commit" else titled(value)


def against_best(data: ReportData) -> Markup:
    """Return every configuration next to the fastest of its group, with the verdict on the two."""
    rows: list[dict[str, Any]] = []
    for _, runs in data.ranked.group_by("group", maintain_order=True):
        ranked = configurations(runs.drop_nulls("rate").iter_rows(named=True))
        for one in ranked[1:]:
            best, verdict = ranked[0], verdict_on(one, ranked[0])
            rows.append({
                **one.row,
                "runs": [row["run_id"] for row in one.runs],
                "best": [row["run_id"] for row in best.runs],
                "best_name": best.row["name"],
                "word": verdict.word if verdict else "no interval",
                "change": one.rate / best.rate - 1,
                "change_low": verdict.low - 1 if verdict else None,
                "change_high": verdict.high - 1 if verdict else None,
            })  # fmt: skip
    columns = (
        Column("run_id", "Run", lambda row: run_links(row["runs"]), numeric=False),
        RAN,
        Column("change", "Change", CHANGE, hint="rate over that of the fastest, less 1"),
        verdict_column("word", "Verdict", hint="on the configuration, against the fastest"),
        text("best", "Fastest", show=run_links),
        text("best_name", "Its configuration"),
    )
    none = "No group of comparable runs has two configurations."
    return table(rows[:MOST_DIFFERENCES], columns, "against-fastest", empty=none)
