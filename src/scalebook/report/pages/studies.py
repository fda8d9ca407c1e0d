"""Studies: what a set of runs was to answer, the answer in one sentence, and its chart.

A plan says its kind and its question, and its records keep both. Runs of no such plan form studies
by what they share: for each kind, those of them that can answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

import polars as pl

from scalebook import identity
from scalebook.errors import ConfigError
from scalebook.facts.catalog.types import TINY
from scalebook.identity import alike
from scalebook.measure.verdicts import Verdict
from scalebook.plan.document import KINDS, read_document
from scalebook.project import root
from scalebook.record import RunRecord
from scalebook.report.base import html_tables as tables
from scalebook.report.base import versus
from scalebook.report.base.columns import words_of
from scalebook.report.base.comparisons import (
    comparable,
    equal_work,
    platform_pairs,
    ranked,
    ratio,
    side_name,
)
from scalebook.report.base.frames import ReportData, records
from scalebook.report.base.markup import Markup, paragraphs, part, run_link
from scalebook.report.base.naming import (
    Row,
    has_experts,
    headed,
    is_whole,
    model_title,
    on,
    platform_title,
    precision_title,
    sequence_words,
    split_name,
    units,
    verb,
)
from scalebook.report.base.quantities import change, count, duration, number, percent, times
from scalebook.report.base.scaling_series import ScalingSeries, scaling_series
from scalebook.report.base.versus import Configuration, best_of, configurations, gain, linked, rate
from scalebook.report.charts import css_charts as marks
from scalebook.report.charts.css_charts import Dot
from scalebook.report.pages.comparison_page import ablations
from scalebook.report.pages.predicted_page import compare
from scalebook.report.pages.reliability_page import PARTS, reliability
from scalebook.report.pages.scaling_page import projected_efficiency

Ends = tuple[float | None, float | None]
NO_ENDS: Ends = (None, None)
MOST_ROWS = 8  # of a chart; the table has every run
FORMED = tuple(kind for kind in KINDS if kind not in ("tune", "correctness", "prediction"))


@dataclass(frozen=True, slots=True)
class StudyAnswer:
    """What runs answer to a question: one sentence, and the chart that shows it."""

    verdict: Markup
    chart: Markup
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """A question with its answer; ``answer`` is None where its runs do not answer it yet."""

    kind: str
    plans: tuple[str, ...]  # none where runs formed the study by what they share
    question: str
    run_ids: tuple[str, ...]
    answer: StudyAnswer | None

    @property
    def chart(self) -> Markup:
        """The chart of the answer; empty without one."""
        return self.answer.chart if self.answer else Markup("")

    @property
    def verdict(self) -> Markup:
        """The answer in one sentence."""
        if self.answer is not None:
            return self.answer.verdict
        runs, needs = count(len(self.run_ids), "run does", "runs do"), _words(self.kind, "needs")
        lacking = f": that takes {needs}" if needs else ""
        return Markup("Its {} not answer this yet{}.").format(runs, lacking)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of one study: all of them as a frame, those with a rate as rows."""

    data: ReportData
    frame: pl.DataFrame
    rows: tuple[Row, ...]
    every: Sequence[Row]  # of the report: equal work is looked for in all of them
    planned: bool = True

    def dot(self, row: Row, name: str, value: float, ends: Ends, text: str) -> Dot:
        """Return the row of a chart that shows a value of a run, with the ends of its interval."""
        tint = colour(self.data, row["platform"])
        return Dot(name, value, *ends, text, colour=tint, run_id=row["run_id"])


def _words(kind: str, name: str) -> str:
    """Return the ``question`` of a kind, the page of its ``evidence``, or what an answer needs."""
    return words_of("studies")[kind].get(name, "")


def studies(data: ReportData) -> tuple[Study, ...]:
    """Return the studies of a report in the order of KINDS, those without an answer last.

    Plans of a kind that ask the same question are one study; those that ask none are one each.
    """
    held, every = records(data), ranked(data)
    planned: dict[tuple[str, str], list[RunRecord]] = {}
    for record in held.values():
        plan, question = record.schedule.get("plan"), record.schedule.get("question")
        asked, committed = _committed().get(str(plan), ("", ""))
        kind = record.schedule.get("kind")
        kind = asked if not kind or committed == question else kind
        if kind in KINDS and isinstance(plan, str):
            planned.setdefault((kind, str(question or committed or plan)), []).append(record)
    found = [_planned(data, every, kind, same) for (kind, _), same in planned.items()]
    taken = {run_id for one in found for run_id in one.run_ids}
    found += _formed(data, every, [run_id for run_id in held if run_id not in taken])
    return tuple(sorted(found, key=lambda one: (one.answer is None, KINDS.index(one.kind))))


@lru_cache(maxsize=1)
def _committed() -> Mapping[str, tuple[str, str]]:
    """Return kind and question of the checkout's plans by name, for records that lack both."""
    project = root()
    paths = sorted((project / "runs" / "plans").glob("*.toml")) if project else []
    found: dict[str, tuple[str, str]] = {}
    for path in paths:
        try:
            plan, _ = read_document(path)
        except ConfigError:
            continue  # a plan of the user's own that is not finished is no part of a report
        found[plan.name] = (plan.kind, plan.question)
    return found


def _planned(data: ReportData, every: Sequence[Row], kind: str, same: Sequence[RunRecord]) -> Study:
    run_ids = tuple(record.run_id for record in same)
    plans = tuple(dict.fromkeys(str(record.schedule["plan"]) for record in same))
    asked = [record.schedule.get("question") for record in same]
    asked += [_committed().get(plan, ("", ""))[1] for plan in plans]
    asked.append(_words(kind, "question"))
    question = next(text for text in asked if isinstance(text, str) and text)
    for model in {str(record.setting("model")) for record in same}:
        question = question.replace(model, model_title(model))
    return Study(kind, plans, question, run_ids, _ANSWERS[kind](_chosen(data, every, run_ids)))


def _formed(data: ReportData, every: Sequence[Row], run_ids: Sequence[str]) -> Iterator[Study]:
    runs = replace(_chosen(data, every, run_ids), planned=False)
    for kind in FORMED:
        answer = _ANSWERS[kind](runs)
        if answer is not None:
            yield Study(kind, (), _words(kind, "question"), answer.run_ids, answer)


def _chosen(data: ReportData, every: Sequence[Row], run_ids: Sequence[str]) -> _Runs:
    wanted = set(run_ids)
    frame = data.runs.filter(pl.col("run_id").is_in(run_ids))
    own = tuple(row for row in every if row["run_id"] in wanted)
    return _Runs(data, frame, own, every)


def colour(data: ReportData, platform: str | None) -> int:
    """Return the place in the palette of a platform, the same in every chart of a page."""
    known = sorted(data.runs["platform"].drop_nulls().unique())
    return known.index(platform) if platform in known else len(known)


def mark(data: ReportData, one: Configuration, name: str, note: str = "") -> Dot:
    """Return the row of a chart that shows the rate of a configuration."""
    low, high = one.interval
    shape = "diamond" if one.row["precision"] == "fp8" else "circle"
    tint, run_id = colour(data, one.row["platform"]), one.row["run_id"]
    text = f"{one.rate:,.0f}"
    return Dot(name, one.rate, low, high, text, note, tint, shape, low is None, run_id=run_id)


def _ids(ones: Sequence[Configuration]) -> tuple[str, ...]:
    return tuple(row["run_id"] for one in ones for row in one.every)


def _headline(runs: _Runs) -> StudyAnswer | None:
    whole = [row for row in runs.rows if is_whole(row) and row["platform"] != "cpu"]
    by_side = alike(whole, lambda row: (side_name(row), row["model"], row["precision"]))
    best = sorted((best_of(same) for same in by_side), key=lambda one: -one.rate)
    if not best:
        return None
    first = best[0]
    sides = {side_name(one.row) for one in best}
    tried = {side_name(row) for row in runs.frame.to_dicts() if is_whole(row)}
    lost, known = sorted(map(platform_title, tried - sides)), _equal_work(runs, best)
    words = "{} trains {} at {} in {}, {}"
    if len(sides) > 1:
        words += ", the highest rate" + ("" if known else "; no equal work compares the platforms")
    words += f"; no run on {' or '.join(lost)} has a rate." if lost else "."
    verdict = Markup(words).format(
        platform_title(first.row["platform"]), model_title(first.row["model"]),
        linked(first, rate(first)), precision_title(first.row["precision"]),
        sequence_words(first.row),
    )  # fmt: skip
    if known:
        own, said = known
        words = "{} Only runs of other plans make two platforms comparable. {}"
        verdict = said if own else Markup(words).format(verdict, said)
    drawn: list[Dot] = []
    several = len({one.row["sequence_length"] for one in best}) > 1
    for one in best[:MOST_ROWS]:
        name = f"{platform_title(one.row['platform'])} {precision_title(one.row['precision'])}"
        drawn.append(mark(runs.data, one, name + several * f", {sequence_words(one.row)}"))
    return StudyAnswer(verdict, marks.bars(drawn, first.row["rate_unit"]), _ids(best))


def _equal_work(runs: _Runs, best: Sequence[Configuration]) -> tuple[bool, Markup] | None:
    """Return how platforms compare at equal work, and whether the study's own runs say it.

    Runs of no plan are compared as those of the first screen, which are all.
    """
    models = {one.row["model"] for one in best}
    own = [*filter(is_whole, runs.rows)] if runs.planned else []
    every = [row for row in comparable(runs.every) if row["model"] in models]
    known = ((rows is own, equal_work(platform_pairs(rows))) for rows in (own, every))
    return next(((mine or not runs.planned, said) for mine, said in known if said), None)


def _scaling(runs: _Runs) -> StudyAnswer | None:
    frame = runs.frame.filter(pl.col("run_id").is_in([row["run_id"] for row in runs.rows]))
    found = [one for one in scaling_series(frame) if one.base["platform"]]
    if not found:
        return None
    chosen = max(found, key=lambda one: (one.points["world_size"].n_unique(), is_whole(one.base)))
    best = _sizes(chosen)
    last, base = best[-1], chosen.base
    words = "{} {} {}{} of the rate per {} from {} to {}."
    low, high = last["efficiency_low"], last["efficiency_high"]
    ends = f" ({percent(low)} to {percent(high)})" if low is not None else " (no interval)"
    one, many = units(base["platform"])
    verdict = Markup(words).format(
        model_title(base["model"]), verb(base["model"], "keep"),
        run_link(last["run_id"], percent(last["scaling_efficiency"])), ends, one,
        base["world_size"], f"{last['world_size']} {platform_title(base['platform'])} {many}",
    )  # fmt: skip
    drawn = [_efficiency(runs.data, row, one, many) for row in best]
    drawn += projected_efficiency(chosen, drawn[-1].colour, many)
    off = max(abs(100 - (end or mark.value)) for mark in drawn for end in (mark.low, mark.high))
    span = max(5.0, marks.rounded_up(off))  # 100 % is in the middle of the axis
    chart = marks.dots(
        [("", drawn, {"100 %": 100.0})], "efficiency, %", low=100 - span, high=100 + span, ticks=2
    )
    return StudyAnswer(verdict, chart, tuple(chosen.points["run_id"]))


def _sizes(one: ScalingSeries) -> list[Row]:
    """Return the fastest run of each size, the smallest size first."""
    ordered = one.points.sort("world_size", "tokens_per_second", descending=[False, True])
    return list(ordered.unique("world_size", keep="first", maintain_order=True).to_dicts())


def _efficiency(data: ReportData, row: Row, one: str, many: str) -> Dot:
    low, high = row["efficiency_low"], row["efficiency_high"]
    value = 100 * row["scaling_efficiency"]
    name = f"{row['world_size']} {one if row['world_size'] == 1 else many}"
    ends = (100 * low, 100 * high) if low is not None else (None, None)
    text, tint = f"{value:.1f}\N{NO-BREAK SPACE}%", colour(data, row["platform"])
    hollow = low is None and row["kind"] != "base"
    return Dot(name, value, *ends, text, colour=tint, hollow=hollow, run_id=row["run_id"])


def _layouts(runs: _Runs, named: Callable[[Row], str] = split_name) -> StudyAnswer | None:
    """Answer which layout is fastest, at the work that most layouts did."""
    each = (_per_layout(same, named) for same in alike(runs.rows, _same_work))
    found = [ones for ones in each if len(ones) > 1]
    if not found:
        return None
    ones = max(found, key=_importance)
    best, second = ones[:2]
    against = versus.verdict_on(best, second)
    work = f"sequence {best.row['sequence_length']:,}"
    work = work if named is _with_micro_batch else f"{on(best.row)} at {work}"
    name = named(best.row)
    other = named(second.row).removeprefix(f"{split_name(best.row)}, ")
    if against is None or against.word == "cannot tell":
        words = Markup("{} leads with {} for {}; {} is within the noise.")
        if against is None:
            words = Markup("{} leads with {} for {}; without intervals, {} may be as fast.")
        verdict = words.format(name, linked(best, rate(best)), work, other)
    else:
        words = Markup("{} is fastest for {}: {} against {}.")
        verdict = words.format(linked(best, name), work, gain(against), other)
    chart = marks.bars(_behind(runs, ones, named), "difference from the best, %")
    return StudyAnswer(verdict, chart, _ids(ones))


def _with_micro_batch(row: Row) -> str:
    return f"{split_name(row)}, micro batch {row['micro_batch_size']}"


def _same_work(row: Row) -> tuple[str, str] | None:
    work = identity.work(row["record"])
    return None if work is None else (work, side_name(row))


def _importance(ones: Sequence[Configuration]) -> tuple[bool, int, int, float]:
    certain = sum(one.interval[0] is not None for one in ones)
    return is_whole(ones[0].row), certain, len(ones), ones[0].rate


def _per_layout(rows: Sequence[Row], named: Callable[[Row], str]) -> list[Configuration]:
    """Return the fastest configuration of each layout, of those with an interval, fastest first."""
    found: dict[str, Configuration] = {}
    for one in sorted(configurations(rows), key=lambda one: one.interval[0] is None):
        found.setdefault(named(one.row), one)
    return sorted(found.values(), key=lambda one: -one.rate)


def _behind(
    runs: _Runs, ones: Sequence[Configuration], named: Callable[[Row], str]
) -> Iterator[Dot]:
    """Yield each layout's difference from the best in percent."""
    best = ones[0]
    yield runs.dot(best.row, named(best.row), 0.0, NO_ENDS, "best")
    for one in ones[1:MOST_ROWS]:
        against = versus.verdict_on(one, best)
        lost = one.rate / best.rate - 1
        yield runs.dot(one.row, named(one.row), 100 * lost, _percent(against), change(lost))


def _percent(verdict: Verdict | None) -> Ends:
    """Return the ends of a ratio's interval as a change in percent."""
    return (100 * (verdict.low - 1), 100 * (verdict.high - 1)) if verdict else NO_ENDS


def _ablation(runs: _Runs) -> StudyAnswer | None:
    found = ablations(runs.rows)
    if not found:
        return None
    chosen = max(found, key=lambda one: len(one.switches))
    known = [(one, one.verdict) for one in chosen.switches if one.verdict is not None]
    first, worth = known[0]
    every = chosen.plain.verdict if chosen.plain else None
    verdict = Markup("{} is worth most: {}").format(headed(first.words), gain(worth))
    if every:
        # how many options differ between the slowest and the fastest, and of which kind
        names = chosen.plain_changes
        fused = " fused kernels" if all(name.startswith("fused_") for name in names) else ""
        many, whole = f"{len(names)}{fused}", change(every.ratio - 1)
        verdict += Markup("; all {} together {}").format(many, whole)
    verdict += "."
    fused = any(one.words.startswith("fused ") for one, _ in known[:MOST_ROWS])
    unit = f"what each option adds to the rate, %{'; kernels: fused' if fused else ''}"
    drawn = [
        runs.dot(one.pair.b.row, one.words.removeprefix("fused "), 100 * (worth.ratio - 1),
                 _percent(worth), change(worth.ratio - 1))
        for one, worth in known[:MOST_ROWS]
    ]  # fmt: skip
    ids = [row["run_id"] for one in chosen.switches for row in one.pair.b.runs]
    return StudyAnswer(verdict, marks.bars(drawn, unit), (chosen.optimised.row["run_id"], *ids))


_MAP = (
    *("model", "platform", "source", "precision", "sequence_length"),
    *("packed_documents", "world_size", "global_batch_size", "split"),
)


def _map(runs: _Runs) -> StudyAnswer | None:
    """Answer which micro batch and recomputation is best, where several of both were tried."""
    frame = runs.frame.drop_nulls(["recompute", "micro_batch_size"])
    maps = [same for _, same in frame.group_by(*_MAP, maintain_order=True)]
    maps = [
        same
        for same in maps
        if same["micro_batch_size"].n_unique() > 1 and same["recompute"].n_unique() > 1
        and same["rate"].drop_nulls().len()
    ]  # fmt: skip
    if not maps:
        return None
    chosen = max(maps, key=lambda same: same.select("recompute", "micro_batch_size").n_unique())
    best = best_of(chosen.drop_nulls("rate").to_dicts())
    row = best.row
    how = "without" if row["recompute"] == "none" else f"with {row['recompute']}"
    words = "Micro batch {} {} recomputation is fastest for {}: {}."
    size = row["micro_batch_size"]
    verdict = Markup(words).format(size, how, on(row), linked(best, rate(best)))
    values = {
        (cell["recompute"], str(cell["micro_batch_size"])): _place(cell, best.rate)
        for cell in chosen.sort("recompute", "rate", descending=[True, False]).to_dicts()
    }
    unit = "MFU, %" if row["mfu"] is not None else str(row["rate_unit"])
    order = ("none", "pointwise", "full")
    values = dict(sorted(values.items(), key=lambda item: (*order, item[0][0]).index(item[0][0])))
    chart = marks.cells(values, ("recomputation", "micro batch"), unit)
    return StudyAnswer(verdict, chart, tuple(chosen["run_id"]))


def _place(cell: Row, best: float) -> tuple[float | None, str]:
    """Return how near a place of a map comes to the best, and its MFU or what happened there."""
    if cell["rate"] is None:
        return None, "memory" if cell["status"] == "out_of_memory" else "?"
    mfu = cell["mfu"]
    text = f"{100 * mfu:.1f}" if mfu is not None else f"{cell['rate']:,.0f}"
    return (cell["rate"] / best - 0.7) / 0.3, text


def _precision(runs: _Runs) -> StudyAnswer | None:
    """Answer how much faster 8-bit products are, at the same work on the same devices."""
    names = [name for name in _MAP if name not in ("precision", "split")]
    found: list[tuple[Configuration, Configuration, Verdict | None]] = []
    for same in alike(runs.rows, lambda row: tuple(row[name] for name in names)):
        wide = [row for row in same if row["precision"] in ("bf16", "fp16")]
        narrow = [row for row in same if str(row["precision"]).startswith(("fp8", "mxfp8", "fp4"))]
        if wide and narrow:
            fast, base = best_of(narrow), best_of(wide)
            found.append((fast, base, versus.verdict_on(fast, base)))
    if not found:
        return None
    found.sort(key=lambda one: (not is_whole(one[0].row), one[2] is None, one[0].row["model"]))
    fast, base, verdict = found[0]
    how = ratio(verdict) if verdict else f"{times(fast.rate / base.rate)} (no interval)"
    wide, narrow = (precision_title(one.row["precision"]) for one in (base, fast))
    words = Markup("{} is {} as fast as {} for {}.")
    said = words.format(narrow, linked(fast, how), wide, on(fast.row))
    drawn = [
        Dot(model_title(a.row["model"]).partition(" of ")[0],  # 8 layers
             a.rate / b.rate,
             v.low if v else None, v.high if v else None, times(a.rate / b.rate),
             colour=colour(runs.data, a.row["platform"]), run_id=a.row["run_id"])
        for a, b, v in found[:MOST_ROWS]
    ]  # fmt: skip
    ids = _ids([one for a, b, _ in found for one in (a, b)])
    return StudyAnswer(said, marks.bars(drawn, "rate over that in 16 bits"), ids)


def _experts(runs: _Runs) -> StudyAnswer | None:
    frame = runs.frame.filter(
        pl.col("model").map_elements(has_experts, return_dtype=pl.Boolean, skip_nulls=False)
    )
    if frame.is_empty():
        return None
    ids = tuple(frame["run_id"])
    rows = [row for row in runs.rows if row["run_id"] in ids]
    if not rows:
        verdict = Markup("No rate: {} with experts, none with steady steps.").format(
            count(len(ids), "run")
        )
        return StudyAnswer(verdict, Markup(""), ids)
    groups = alike(rows, lambda row: (row["model"], side_name(row), row["precision"]))
    best = [best_of(same) for same in groups]
    # Compared by MFU, since smaller models are faster anyway; one made for a CPU says least.
    best.sort(
        key=lambda one: (
            not one.row["model"].startswith(TINY), is_whole(one.row), one.row["mfu"] or 0.0
        ),
        reverse=True,
    )  # fmt: skip
    first, mfu = best[0], best[0].row["mfu"]
    more = f", {percent(mfu)} of peak" if mfu is not None else ""
    verdict = Markup("{} {} {}{}.").format(
        on(first.row), verb(first.row["model"], "reach"), linked(first, rate(first)), more
    )
    if without := len(ids) - len(rows):
        verdict = verdict[:-1] + Markup("; {} without a steady rate.").format(count(without, "run"))
    toys = len({one.row["model"].startswith(TINY) for one in best}) > 1
    drawn = [
        runs.dot(row, model_title(row["model"]), 100 * row["mfu"], ends, percent(row["mfu"]))
        for row in (one.row for one in best[:MOST_ROWS])
        for ends in [(row["mfu_low"] and 100 * row["mfu_low"],
                      row["mfu_high"] and 100 * row["mfu_high"])]
        if row["mfu"] is not None and not (toys and row["model"].startswith(TINY))
    ]  # fmt: skip
    return StudyAnswer(verdict, marks.bars(drawn, "MFU, %") if drawn else Markup(""), ids)


def _prediction(runs: _Runs) -> StudyAnswer | None:
    """Answer how far off predictions of these runs from those of other configurations are."""
    ones = compare(runs.data, set(runs.frame["run_id"]))
    if not ones:
        return None
    held, many = sum(one.held for one in ones), len(ones)
    words = "Half of {} ran within {} of the time predicted from others; {} of {} intervals hold."
    middle = percent(median(abs(one.error) for one in ones), 2)
    said = Markup(words).format(count(many, "configuration"), middle, held, many)
    drawn = [
        Dot(one.label.removesuffix(" · 1 GPU"), 100 * (one.predicted / one.measured - 1),
            100 * (one.low / one.measured - 1), 100 * (one.high / one.measured - 1),
            change(one.predicted / one.measured - 1), colour=colour(runs.data, one.platform),
            run_id=one.run_ids[0])
        for one in ones[:MOST_ROWS]
    ]  # fmt: skip
    unit = "predicted rate over measured, less 1, %; the largest misses; lines: 90 %"
    ids = tuple(run_id for one in ones for run_id in one.run_ids)
    return StudyAnswer(said, marks.bars(drawn, unit), ids)


def _correctness(runs: _Runs) -> StudyAnswer | None:
    """Answer how far apart the last losses of one training are, run in different ways."""
    names = ("model", "precision", "sequence_length", "global_batch_size", "recorded_steps")
    known = [row for row in runs.frame.to_dicts() if row["loss_last"] is not None]
    groups = [
        same for same in alike(known, lambda row: tuple(row[n] for n in names)) if len(same) > 1
    ]
    if not groups:
        return None
    chosen = max(groups, key=len)
    losses = [row["loss_last"] for row in chosen]
    low, high = min(losses), max(losses)
    words = "{} of {} end within {} of one loss ({} to {})."
    many, model = count(len(chosen), "run"), model_title(chosen[0]["model"])
    ends = (number(low, 5), number(high, 5))
    verdict = Markup(words).format(many, model, percent(high / low - 1, 2), *ends)
    base = chosen[0]["loss_last"]
    drawn = [
        runs.dot(row, row["name"], 100 * (row["loss_last"] / base - 1), NO_ENDS,
                 number(row["loss_last"], 5))
        for row in chosen[:MOST_ROWS]
    ]  # fmt: skip
    chart = marks.bars(drawn, "last loss, and its difference from the first run, %")
    return StudyAnswer(verdict, chart, tuple(row["run_id"] for row in chosen))


def _drill(runs: _Runs) -> StudyAnswer | None:
    wanted = set(runs.frame["run_id"])
    found = [one for one in reliability(runs.data).drills if one[0]["run_id"] in wanted]
    known = [one for one in found if one[1].next_step_seconds is not None]
    if not known:
        return None
    run, drill = known[0]
    lost = drill.steps_lost
    again = f"; {count(lost, 'step')} ran again" if lost is not None else ""
    apart = drill.largest_loss_difference
    again += "" if drill.passed or not apart else f", losses off by {percent(apart)}"
    words = Markup("{} continued {} after a kill{}.")
    link = run_link(run["run_id"], duration(drill.next_step_seconds))
    parts = [
        (name.removesuffix("_seconds"), value)
        for name in PARTS
        if (value := getattr(drill, name)) is not None
    ]
    ids = tuple(row["run_id"] for row, _ in found)
    return StudyAnswer(words.format(on(run), link, again), marks.timeline(parts), ids)


_ANSWERS: Mapping[str, Callable[[_Runs], StudyAnswer | None]] = {
    "headline": _headline, "scaling": _scaling, "strategies": _layouts, "ablation": _ablation,
    "map": _map, "precision": _precision, "experts": _experts, "prediction": _prediction,
    "correctness": _correctness, "drill": _drill,
    # where one layout was tried, with which micro batch it is fastest
    "tune": lambda runs: _layouts(runs) or _layouts(runs, _with_micro_batch),
}  # fmt: skip


def page(data: ReportData) -> Markup:
    """Return every study: its question, the answer, the chart, and its runs in a folded table."""
    found = studies(data)
    if not found:
        return paragraphs("No run answers a question yet. A plan with a kind asks one.")
    return Markup("\n").join(_section(data, i, one) for i, one in enumerate(found, 1))


def _section(data: ReportData, number: int, one: Study) -> Markup:
    rows = data.runs.filter(pl.col("run_id").is_in(one.run_ids)).iter_rows(named=True)
    columns = (*tables.WHAT_RAN, tables.TOKENS_EACH, tables.MFU, tables.TOKENS)
    shown = tables.table(rows, columns, f"study-{number}")
    many = count(len(one.run_ids), "run")
    facts = (number, one.kind.capitalize(), one.question, one.verdict, one.chart)
    return part("study", *facts, many, shown, one.plans, _words(one.kind, "evidence"))
