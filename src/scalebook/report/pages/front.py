"""The first screen: what a buyer asks first, each answer in a sentence with its interval.

Which platform and layout is fastest, how certain, what it costs, how it scales, what failed, what
can be compared, and what memory it takes. Everything else is below it or on its own page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from scalebook import predict
from scalebook.errors import ScalebookError
from scalebook.facts.feasibility.known import config_of
from scalebook.identity import alike
from scalebook.measure.economics import Inputs, answers
from scalebook.measure.intervals import point
from scalebook.measure.probes import Probe
from scalebook.predict.search import Candidate, layouts
from scalebook.report.base import comparisons, sections, versus
from scalebook.report.base import html_tables as tables
from scalebook.report.base.against import sentence as sentence_of_changes
from scalebook.report.base.comparisons import Pair, platform_pairs, side_name
from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import Markup, join, paragraphs, part, run_link, short_id
from scalebook.report.base.naming import (
    Row,
    apart,
    brief,
    devices,
    in_words,
    model_title,
    on,
    platform_title,
    precision_title,
    sequence_words,
    sized,
    split_name,
    units,
    with_options,
)
from scalebook.report.base.quantities import count, interval, listed, number, percent, quantity
from scalebook.report.base.versus import Configuration, best_of, configurations, linked, rate
from scalebook.report.charts import css_charts as marks
from scalebook.report.charts.css_charts import Dot
from scalebook.report.pages.cost_page import rate_of
from scalebook.report.pages.published_page import best_by_precision
from scalebook.report.pages.studies import Study, colour, mark, studies

TRILLION = 1e12  # tokens of the example of a cost
MOST_LEARNED = 1_000  # runs that a prediction of a page reads again
MOST_HEADLINES, MOST_COSTS, MOST_JUMPS, MOST_CARDS = 3, 2, 2, 10
MOST_GROUPS, MOST_DRAWN, MOST_OTHERS = 3, 18, 3  # groups of the first chart, rows, other models
MOST_SIDES, MOST_CHARACTERS = 3, 34  # platforms in a heading, characters of a name on one line
HEADLINE_SHARE = 2  # a model with this part of the runs of the first has a headline
CARDS = (
    *("scaling", "strategies", "ablation", "precision", "map"),
    *("experts", "prediction", "drill", "correctness", "tune"),
)


@dataclass(frozen=True)
class Front:
    """What the first screen is made of; the runs that it is about are those of ``rows``."""

    data: ReportData

    @cached_property
    def every(self) -> tuple[Row, ...]:
        """Every run with a rate of which enough is known to set it against others."""
        return comparisons.ranked(self.data)

    @cached_property
    def chosen(self) -> tuple[Row, ...]:
        """Whole models on accelerators; where there are none, what comes next to them."""
        return comparisons.comparable(self.every)

    @cached_property
    def runs_of_models(self) -> Counter[str]:
        """How many of the chosen runs each model has."""
        return Counter(row["model"] for row in self.chosen)

    @cached_property
    def best(self) -> tuple[tuple[Configuration, ...], ...]:
        """The best of each platform and model at one sequence length: one per precision.

        The model that most runs are about comes first, and of one model the fastest platform.
        Rates at two lengths are of two works, so the length with most precisions, then most runs,
        stands for a platform.
        """
        runs = self.runs_of_models
        found: list[tuple[Configuration, ...]] = []
        for same in alike(self.chosen, lambda row: (side_name(row), row["model"])):
            lengths = alike(same, sequence_words)
            shown = max(lengths, key=lambda rows: (len({r["precision"] for r in rows}), len(rows)))
            each = [best_of(one) for one in alike(shown, lambda row: row["precision"])]
            found.append(tuple(sorted(each, key=lambda one: one.rate)))
        return tuple(sorted(found, key=lambda ones: (-runs[ones[0].row["model"]], -ones[-1].rate)))

    @cached_property
    def evidence(self) -> tuple[tuple[predict.KnownRate, ...], tuple[Probe, ...], int]:
        """What predictions learn from; nothing of very many runs, which take too long to read."""
        if self.data.runs.height > MOST_LEARNED:
            return (), (), 0
        return predict.evidence(self.data.folder)

    @cached_property
    def predicted(self) -> tuple[Candidate | None, ...]:
        """The layout that is predicted to beat the best of each entry of ``best``."""
        return tuple(
            one
            if one and _layout(one) != split_name(ones[0].row) and one.prediction.low > ones[0].rate
            else None
            for ones, one in zip(self.best, self.foreseen, strict=True)
        )

    @cached_property
    def foreseen(self) -> tuple[Candidate | None, ...]:
        """The layout with the highest predicted rate at the work of each entry of ``best``."""
        return tuple(_foreseen(self, ones[0].row) for ones in self.best)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Pairs of two platforms that did the same work, those of one configuration first."""
        return platform_pairs(self.chosen)


def screen(data: ReportData) -> Markup:
    """Return the first screen, and below it a card for each study."""
    front = Front(data)
    if not front.best:
        lost = [] if data.runs.is_empty() else [*_failed(data)]
        if not data.unfinished.is_empty():
            lost[0] = Markup("Without a result: {}").format(lost[0])
        return paragraphs(*_nothing(data), *lost, *changed(data), style="sb-headline")
    asked = studies(data)
    whole = {row["run_id"] for row in front.chosen}
    blocks = (
        (key, title, join(sentences, Markup("</p><p>") if key == "next" else " "))
        for key, title, sentences in _aside(front)
    )
    sub = [*_beneath(front.best[0]), *_comparable(front), *_ingested(front), *changed(data)]
    cards, foot = _cards(asked, whole), sections.foot(data)
    left_out = len(asked) > max(1, len(cards))
    more = f"All {len(asked)} studies, with their runs" if left_out else "Every study with its runs"
    return part("front", _headlines(front), join(sub, " "), _plot(front), blocks, cards, more, foot)


def _nothing(data: ReportData) -> Iterator[Markup | str]:
    if data.runs.is_empty():
        yield "No run could be read."
    elif data.completed.is_empty():
        yield "No run completed with a throughput."
    else:
        runs = count(data.completed.height, "run has", "runs have")
        yield f"{runs} a rate, but no two can be compared: what they ran is not known in full."
        if "ingested" in set(data.completed["source"]):
            options = "--model NAME --platform NAME --precision bf16 --sequence-length N"
            yield Markup(
                f"State what a log leaves out: <code>scalebook ingest LOG {options}</code>."
            )


def _headlines(front: Front) -> list[Markup]:
    """Return the headline of each model that many runs are about and that the chart shows."""
    runs, drawn = front.runs_of_models, _groups(front)[:MOST_GROUPS]
    least = runs[front.best[0][0].row["model"]] / HEADLINE_SHARE
    models = {row["model"] for rows in drawn for row in rows if runs[row["model"]] >= least}
    named = [ones for ones in front.best if ones[0].row["model"] in models]
    return [*map(_sentence, named[:MOST_HEADLINES])]


def changed(data: ReportData) -> Iterator[Markup]:
    """Yield what changed since older runs, where the report was asked for it."""
    if data.against is not None:
        yield Markup('<a href="changes.html">{}</a>').format(sentence_of_changes(data.against))


def _sentence(ones: Sequence[Configuration]) -> Markup:
    """Return what a platform reaches with a model: ``H200 trains ... at 10,982 ...``."""
    row = ones[0].row
    parts: list[Markup] = []
    for place, one in enumerate(ones):
        value, _, ends = rate(one, None if place == 0 else "").partition("(")
        text = Markup("{} <small>({}</small>").format(value.strip(), ends) if ends else value
        precision = precision_title(one.row["precision"])
        parts.append(Markup("{} in {}").format(linked(one, text), precision))
    if row["mfu"]:
        parts[0] += Markup(" <small>({} MFU)</small>").format(percent(row["mfu"]))
    words = Markup("{}{} trains {} at {}.")
    source = "" if row["source"] == "measured" else f" [{row['source']}]"
    title = platform_title(row["platform"])
    return words.format(title, source, model_title(row["model"]), join(parts, " and "))


def _beneath(ones: Sequence[Configuration]) -> Iterator[Markup]:
    """Yield the work of the first platform's rates, and how its precisions compare."""
    row = ones[-1].row
    words = "Best layout on {}: {}, {}; 95\N{NO-BREAK SPACE}% intervals{}."
    basis = next((f"; MFU over the {sections.peak(one.row)}" for one in ones if one.row["mfu"]), "")
    named = (platform_title(side_name(row)), sized(row), sequence_words(row), basis)
    yield Markup(words).format(*named)
    if len(ones) > 1:
        against = versus.verdict_on(ones[-1], ones[0])
        if against is not None:
            fast, slow = (precision_title(one.row["precision"]) for one in (ones[-1], ones[0]))
            yield Markup("{} is {} as fast as {}.").format(fast, comparisons.ratio(against), slow)


def _comparable(front: Front) -> Iterator[Markup]:
    """Yield how the platforms compare at equal work, or why they cannot be compared yet."""
    platforms = set(map(side_name, front.chosen))
    if len(platforms) < 2:
        return
    known = comparisons.equal_work(front.pairs)
    if known is not None:
        yield known
    else:
        words = "{} have no equal work with an interval ({}), so they cannot be compared yet."
        yield Markup(words).format(listed(sorted(map(platform_title, platforms))), _lengths(front))


def _ingested(front: Front) -> Iterator[Markup]:
    """Yield what the best ingested run reached, where measured ones are ranked without it."""
    found = [row for row in front.every if row["source"] == "ingested"]
    if found and front.chosen[0]["source"] == "measured":
        model = front.best[0][0].row["model"]
        rows = comparisons.comparable(found)
        best = best_of([row for row in rows if row["model"] == model] or rows)
        words = "Ingested runs are not ranked with measured ones: the best, {}, reached {}."
        yield Markup(words).format(on(best.row), linked(best, rate(best)))


def _lengths(front: Front) -> str:
    """Return at which sequence lengths each platform ran."""
    found = {side_name(same[0]): same for same in alike(front.chosen, side_name)}
    return "; ".join(
        f"{platform_title(name)}: sequence {listed([f'{one:,}' for one in lengths])}"
        for name, same in sorted(found.items())
        for lengths in [sorted({row["sequence_length"] for row in same})]
    )


def _aside(front: Front) -> Iterator[tuple[str, str, list[Markup]]]:
    """Yield each block of short answers: its key, its title and its sentences."""
    yield "certainty", "How certain", list(_certainty(front))
    yield "memory", "Memory", list(_memory(front))
    yield "cost", "Cost", list(_cost(front))
    yield "failures", "What failed", list(_failed(front.data))
    if steps := list(_next(front)):
        yield "next", "Do next", steps


def _certainty(front: Front) -> Iterator[Markup]:
    best = front.best[0][0]
    name, precision = _short(best.row), precision_title(best.row["precision"])
    rivals = [one for one in _rivals(front, best) if _short(one.row) != name]
    where = f"{platform_title(side_name(best.row))} in {precision}"
    if not rivals:
        yield Markup("Best layout on {}: only one ran, {}.").format(where, name)
    else:
        other, against = _short(rivals[0].row), versus.verdict_on(best, rivals[0])
        if against is None:
            words = "On {}, {} leads {} by {}; the second has too few steps for an interval."
            lead = percent(best.rate / rivals[0].rate - 1, 2)
            yield Markup(words).format(where, name, other, lead)
        elif against.word == "cannot tell":
            words = "Best layout on {}: open, {} is within the noise of {}."
            yield Markup(words).format(where, other, name)
        else:
            low, high = 100 * (against.low - 1), 100 * (against.high - 1)
            words = "Best layout on {}: decided, {} is {:.2g} to {} ahead of {}."
            yield Markup(words).format(where, name, low, quantity(high, "%", 2), other)
    rates = configurations(front.chosen)
    without = sum(one.interval[0] is None for one in rates)
    words = "{} of {} {} too few steps for an interval."
    words = words if without else "Every rate has an interval."
    has = "has" if without == 1 else "have"
    yield Markup(words).format(without, count(len(rates), "rate"), has)
    yield from _jumps(front)


def _jumps(front: Front) -> Iterator[Markup]:
    """Yield where the loss of a run in the headlines jumps."""
    shown = [one for ones in front.best[:MOST_HEADLINES] for one in ones]
    jumps = sections.loss_jumps(front.data, [one.row["run_id"] for one in shown])
    each = [
        Markup("{} {} at step {} ({} to {}, then {})").format(
            platform_title(side_name(one.row)), precision_title(one.row["precision"]),
            jump["step"], *(number(jump[name]) for name in sections.JUMP_LOSSES),
        )
        for one in shown
        if (jump := jumps.get(one.row["run_id"]))
    ]  # fmt: skip
    if each:
        words = 'The <a href="curves.html">loss</a> jumps: {}.'
        yield Markup(words).format(join(each[:MOST_JUMPS], "; "))


def _rivals(front: Front, best: Configuration) -> list[Configuration]:
    """Return the other configurations of the best run's work, the fastest first."""
    names = ("model", "platform", "source", "precision", "world_size", "sequence_length")
    rows = [row for row in front.chosen if all(row[n] == best.row[n] for n in names)]
    held = {row["run_id"] for row in best.every}
    return [one for one in configurations(rows) if one.row["run_id"] not in held]


def _memory(front: Front) -> Iterator[Markup]:
    ones = [one for one in front.best[0] if one.row["peak_memory_gib"] is not None]
    if not ones:
        yield Markup("Memory was not measured.")
        return
    unit, several = units(ones[0].row["platform"])[0], len(ones) > 1
    each = (
        f"{row['peak_memory_gib']:.1f}" + several * f" ({precision_title(row['precision'])})"
        for row in (one.row for one in ones)
    )
    yield Markup("The fastest: {} GiB per {}.").format(join(each, " and "), unit)
    base = ones[0]
    known = [one for one in _rivals(front, base) if one.row["peak_memory_gib"] is not None]
    smaller = [
        one for one in known if one.row["peak_memory_gib"] < 0.8 * base.row["peak_memory_gib"]
    ]
    if smaller:
        words = "In {:.1f} GiB, {} slower{}: {}."
        one = smaller[0]
        against = versus.verdict_on(one, base)
        sure = "" if against is not None else " (no interval)"
        less, layout = percent(1 - one.rate / base.rate, 2), linked(one, _short(one.row))
        yield Markup(words).format(one.row["peak_memory_gib"], less, sure, layout)


def _short(row: Row) -> str:
    return with_options(row, row["record"])


def _cost(front: Front) -> Iterator[Markup]:
    before = None
    for ones in front.best[:MOST_COSTS]:
        row = ones[0].row
        what = f"1 trillion tokens of {model_title(row['model'])} on"
        first = "On" if row["model"] == before else what
        yield Markup("{} {}: {}.").format(first, devices(row), join(map(_days, ones)))
        before = row["model"]
    yield Markup('<a href="cost.html">Enter a price</a> for money, energy and carbon.')


def _days(one: Configuration) -> str:
    """Return the days of the example in the precision of a configuration, by the cost formula."""
    row = one.row
    inputs = Inputs(tokens=point(TRILLION), tokens_per_second=rate_of(row))
    days = next(answer.value for answer in answers(inputs) if answer.unit == "days")
    precision = precision_title(row["precision"])
    if days is None:
        return f"unknown in {precision}"
    first, last = f"{days.low:,.0f}", f"{days.high:,.0f}"
    return f"{first if first == last else f'{first} to {last}'} days in {precision}"


def _failed(data: ReportData) -> Iterator[Markup]:
    lost = sections.failed(data)
    if lost.is_empty():
        verb = "is known to have failed" if sections.open_ended(data) else "failed"
        several = Markup("None of {} {}.").format(count(data.runs.height, "run"), verb)
        yield several if data.runs.height > 1 else Markup("No run {}.").format(verb)
    else:
        kinds = lost.group_by("status").len().sort("len", "status", descending=[True, False])
        named = ((tables.failure_words(str(status)), n) for status, n in kinds.iter_rows())
        each = (count(n, words, words) for words, n in named)
        words = '{} of {}: <a href="reliability.html">{}</a>.'
        yield Markup(words).format(lost.height, count(data.runs.height, "run"), join(each))
    without = data.runs.filter(
        pl.col("status").is_in(("completed", "void")), pl.col("tokens_per_second").is_null()
    ).height
    rising = data.completed.filter(~pl.col("loss_fell")).height
    more = [count(without, "run has no steady rate", "runs have no steady rate")] if without else []
    more += [count(rising, "loss did not fall", "losses did not fall")] if rising else []
    more += [how_ended] if (how_ended := sections.open_ended(data)) else []
    if more:
        yield Markup("{}.").format(join(more, "; "))


def _next(front: Front) -> Iterator[Markup]:
    """Yield the missing measurement that decides most, then a layout that is predicted to win."""
    if (missing := _missing(front)) is not None:
        yield missing
    for ones, found in zip(front.best, front.predicted, strict=True):
        if found is not None:
            made, platform = found.prediction, platform_title(ones[0].row["platform"])
            rate_ = interval(
                made.tokens_per_second_per_gpu, made.low, made.high, "tokens/s per GPU"
            )
            words = "Predicted best on {}: {}, micro batch {}, {}, 90\N{NO-BREAK SPACE}%. Run it."
            micro = found.config.micro_batch_size
            yield Markup(words).format(platform, _layout(found), micro, rate_)
            return
    if any(front.foreseen):
        yield Markup("No layout is predicted to be faster than those that ran.")


def _layout(found: Candidate) -> str:
    config = found.config
    return split_name(config.model_dump() | {"data_parallel_size": config.data_parallel_size})


def _missing(front: Front) -> Markup | None:
    platforms = set(map(side_name, front.chosen))
    decided = any(pair.verdict is not None for pair in front.pairs)
    if len(platforms) > 1 and not decided:
        first, *others = (ones[0].row for ones in front.best)
        second = next(row for row in others if side_name(row) != side_name(first))
        words = "Run {} at sequence {:,} on {}: it decides {} against {}."
        return Markup(words).format(
            run_link(second["run_id"], _short(second)), second["sequence_length"],
            platform_title(first["platform"]), platform_title(first["platform"]),
            platform_title(second["platform"]),
        )  # fmt: skip
    best = front.best[0][-1]
    rivals = _rivals(front, best)
    against = versus.verdict_on(best, rivals[0]) if rivals else None
    if against is not None and against.word == "cannot tell" and against.advice:
        return Markup("{} {}").format(
            f"{_short(best.row)} or {_short(rivals[0].row)}:", against.advice
        )
    hollow = [one for one in configurations(front.chosen) if one.interval[0] is None]
    if not hollow:
        return None
    next_one = min(hollow, key=lambda one: one.row["model"] != best.row["model"])
    what = f"{model_title(next_one.row['model'])} on {platform_title(next_one.row['platform'])}"
    words = "Run {} of {} with more steps: its rate has no interval."
    return Markup(words).format(linked(next_one, in_words(next_one.row)), what)


def _foreseen(front: Front, row: Row) -> Candidate | None:
    """Return the layout of the highest predicted rate at a run's work; None without evidence."""
    config = config_of(row["record"])
    if config is None or row["source"] != "measured" or row["platform"] == "cpu":
        return None
    rates, probes, _ = front.evidence
    try:
        made = predict.predictor(config.platform, rates, probes)
        ranked = layouts(config, made).candidates
    except (ScalebookError, ArithmeticError, ValueError, LookupError):
        return None  # nothing to learn from, or a platform that the catalog lacks
    sure = [one for one in ranked if one.prediction.fits]
    return sure[0] if sure and sure[0].prediction.basis.runs else None


def _groups(front: Front) -> list[list[Row]]:
    """Return the runs by model and length: the most used model first, then its bests."""
    best = [one.row["run_id"] for ones in front.best for one in ones]
    place = {ones[0].row["model"]: i for i, ones in reversed([*enumerate(front.best)])}

    def order(rows: list[Row]) -> tuple[int, int, int]:
        firsts = [best.index(row["run_id"]) for row in rows if row["run_id"] in best]
        return place[rows[0]["model"]], min(firsts, default=len(best)), -len(rows)

    every = alike(front.chosen, lambda row: (row["model"], sequence_words(row)))
    return sorted(every, key=order)


def _drawn_groups(front: Front, shown: Sequence[Sequence[Row]]) -> Iterator[marks.Group]:
    """Yield each group with its heading and the best published rates of its work."""
    each = [configurations(rows) for rows in shown]
    several = len({rows[0]["model"] for rows in shown}) > 1
    for rows, ones, left in zip(
        shown, each, versus.shares(map(len, each), MOST_DRAWN), strict=True
    ):
        sides = list(dict.fromkeys(platform_title(side_name(one.row)) for one in ones))
        where = join(sides, " and ") if len(sides) <= MOST_SIDES else f"{len(sides)} platforms"
        heading = f"{where}, {sequence_words(rows[0])}"
        heading = f"{model_title(rows[0]['model'])}, {heading}" if several else heading
        firsts = [same[0] for same in alike(rows, lambda row: row["accelerator"])]
        lines = {name: at for row in firsts for name, at in best_by_precision(row).items()}
        drawn = _drawn(front.data, versus.varied(ones, left), lines)
        held = {one.target for one in drawn}
        own = {name: at for name, at in lines.items() if name in held}
        yield heading, _with_prediction(front, ones, drawn), own


def _plot(front: Front) -> Markup:
    """Return the first chart below its title, and what it leaves out in a line."""
    found = _groups(front)
    shown, left_out = found[:MOST_GROUPS], found[MOST_GROUPS:]
    groups, unit = [*_drawn_groups(front, shown)], front.best[0][0].row["rate_unit"]
    rows = [row for rows in shown for row in rows]
    drawn = [mark for _, own, _ in groups for mark in own]
    models = list(dict.fromkeys(row["model"] for row in rows))
    platforms = dict.fromkeys(row["platform"] for row in rows)
    tints = {platform_title(name): colour(front.data, name) for name in platforms}
    precisions = {row["run_id"]: precision_title(row["precision"]) or "" for row in rows}
    title = Markup("<h3>{}, {} <small>{}</small></h3>").format(
        model_title(models[0]) if len(models) == 1 else "Each model",
        unit,
        marks.legend(drawn, precisions, tints),
    )
    said = [
        Markup("{} {} on {}").format(
            model_title(row["model"]),
            run_link(row["run_id"], f"{row['rate']:,.0f}"),
            platform_title(side_name(row)),
        )
        for same in alike([row for rows in left_out for row in rows], lambda row: row["model"])
        for row in [best_of(same).row]
        if row["model"] not in models
    ][:MOST_OTHERS]
    sentences = [Markup("Other models: {}.").format(join(said))] if said else []
    rest = len(configurations(front.chosen))
    rest -= sum(not mark.predicted for mark in drawn)
    if rest > 0:
        words = '{} on <a href="throughput.html">the page of all runs</a>.'
        more = count(rest, "more configuration is", "more configurations are")
        sentences.append(Markup(words).format(more))
    note = Markup('<p class="note">{}</p>').format(join(sentences, " ")) if sentences else ""
    return title + marks.dots(groups, unit) + note


def _drawn(
    data: ReportData, ones: Sequence[Configuration], lines: Mapping[str, float]
) -> list[Dot]:
    """Return a mark per configuration, held against the line of its precision.

    Its name has the options that tell a layout that ran twice apart, and more of them while they
    fit into a line; the note has the others.
    """
    several = len({side_name(one.row) for one in ones}) > 1
    parts = [_parts(one.row, several) for one in ones]
    made: list[Dot] = []
    for one, own, least in zip(ones, parts, apart(parts), strict=True):
        mfu = [percent(one.row["mfu"])] if one.row["mfu"] else []
        fits = [n for n in range(len(own) + 1) if len(", ".join(own[:n])) <= MOST_CHARACTERS]
        taken = max(least, *fits)
        label = ", ".join(own[:taken])
        if parts.count(own) > 1:  # nothing that a name tells differs
            label += f", {short_id(one.row['run_id'])}"
        drawn = mark(data, one, label, " · ".join([*mfu, *own[taken:]]))
        width = f" {precision_title(one.row['precision'])} "
        made.append(replace(drawn, target=next((name for name in lines if width in name), "")))
    return made


def _parts(row: Row, several: bool) -> list[str]:
    """Return the layout of a row, and what else the name of its configuration says, in short.

    The layout has its platform where its group has several.
    """
    precision = precision_title(row["precision"])
    platform = f"{platform_title(side_name(row))} " if several else ""
    label = f"{platform}{split_name(row)}" + ("" if precision == "BF16" else f", {precision}")
    rest = str(row["configuration_name"]).removeprefix(split_name(row)).strip(" ·").split(" · ")
    return [label, *(brief(text) for text in rest if text)]


def _with_prediction(front: Front, ones: Sequence[Configuration], drawn: list[Dot]) -> list[Dot]:
    """Return the marks with the predicted best, where these runs have their platform's best."""
    held = {one.row["run_id"] for one in ones}
    for best, found in zip(front.best, front.predicted, strict=True):
        if found is not None and best[0].row["run_id"] in held:
            made = found.prediction
            value, low, high = made.tokens_per_second_per_gpu, made.low, made.high
            note = f"predicted, micro batch {found.config.micro_batch_size}"
            tint = colour(front.data, best[0].row["platform"])
            text = f"{value:,.0f}"
            sides = {side_name(one.row) for one in ones}
            name = f"{platform_title(side_name(best[0].row))} " if len(sides) > 1 else ""
            one = Dot(name + _layout(found), value, low, high, text, note, tint, predicted=True)
            return sorted([*drawn, one], key=lambda mark: -mark.value)
    return drawn


def _cards(asked: Sequence[Study], whole: set[str]) -> list[tuple[int, Study]]:
    """Return a card per study that has an answer, with its place, what a buyer asks for first.

    Of a kind, the study with the most runs of whole models comes first; the others of that kind
    follow after one of each.
    """
    known = [(place, one) for place, one in enumerate(asked, 1) if one.answer and one.kind in CARDS]
    turns: Counter[str] = Counter()
    ranked: list[tuple[int, int, tuple[int, Study]]] = []
    for item in sorted(known, key=lambda item: -len(whole & set(item[1].run_ids))):
        kind = item[1].kind
        ranked.append((turns[kind], CARDS.index(kind), item))
        turns[kind] += 1
    return [item for *_, item in sorted(ranked, key=lambda one: one[:2])][:MOST_CARDS]
