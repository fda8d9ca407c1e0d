"""The choice of a buyer: two platforms, models or other sets of runs side by side.

Every panel is written here; the page's script only shows the one that a reader chooses, and
follows the prices that they type with the formula of the cost page. Without it the panel of the
two platforms with the most matched pairs is shown.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log
from typing import Any

from scalebook.identity import VERSIONS
from scalebook.measure.economics import ANSWERS, Inputs, answer
from scalebook.measure.intervals import Interval
from scalebook.report.base.columns import words_of
from scalebook.report.base.comparisons import (
    BEST,
    DIVISIONS,
    MATCHED,
    Division,
    Kind,
    Pair,
    Sided,
    basis_rows,
    divided,
    pairs,
    ratio,
    three,
    work,
)
from scalebook.report.base.html_tables import Column, Row, noted, ranged, table, text
from scalebook.report.base.markup import (
    Markup,
    join,
    paragraphs,
    part,
    run_link,
    run_links,
    script_json,
)
from scalebook.report.base.naming import (
    fact_words,
    in_words,
    is_whole,
    model_title,
    platform_title,
    setting_words,
    titled,
)
from scalebook.report.base.quantities import NONE, count, number, percent
from scalebook.report.base.stated import Stated
from scalebook.report.base.versus import Configuration, best_of
from scalebook.report.pages.cost_page import inputs_of, shown, written
from scalebook.settings import SETTINGS

MOST_SIDES = 6  # of one kind that can be chosen: those of the most runs
MOST_PAIRS = 8  # rows of one panel
MOST_WORDS = 10  # differences named in one panel
MOST_MISSING = 3  # runs named that would make a matched pair
PRICE = "price_per_gpu_hour"
PER_PRICE = "tokens_per_dollar"
IN = {  # how a run is repeated as one of a side
    "platform": "on {}", "model": "with model {}", "precision": "in {}", "versions": "with {}",
    "plan": "in {}", "folder": "in folder {}",
}  # fmt: skip
STACK = (*VERSIONS, "cuda", "rocm", "nccl", "rccl", "triton", "driver")


@dataclass(frozen=True, slots=True)
class TwoSides:
    """Two sides with every pair of theirs: matched configurations first."""

    by: Division
    a: Sided
    b: Sided
    pairs: tuple[Pair, ...]

    def of(self, kind: Kind) -> tuple[Pair, ...]:
        """Return the pairs of the same configuration, or of each side's fastest for a work."""
        return tuple(one for one in self.pairs if one.kind == kind)


def panels(rows: Sequence[Row]) -> list[TwoSides]:
    """Return every choice that a reader has, the one to begin with first.

    That is the two platforms with the most matched pairs; with one platform, the next division of
    the runs that has two sides.
    """
    found: list[TwoSides] = []
    for by in DIVISIONS:
        if len({*map(by.side, rows)} - {None}) < 2:
            continue  # the keys of ten thousand runs take seconds
        every = divided(rows, by)
        least = sorted((len(one.runs) for one in every), reverse=True)[:MOST_SIDES]
        sides = [one for one in every if len(one.runs) >= least[-1]][:MOST_SIDES]
        of_it = [TwoSides(by, a, b, tuple(pairs(a, b))) for a, b in combinations(sides, 2)]
        found += sorted(of_it, key=lambda one: (-len(one.of(MATCHED)), -len(one.pairs)))
    return found


def chooser(rows: Sequence[Row], stated: Stated) -> Markup:
    """Return the menus, the prices and every panel, all but the first hidden."""
    found = panels(rows)
    if not found:
        return paragraphs("No two sides have runs that can be compared, so nothing can be chosen.")
    product = next(one for one in ANSWERS if one.name == PER_PRICE)
    formula = {name: getattr(product, name) for name in ("constant", "over", "under")}
    kinds = dict.fromkeys((one.by.key, one.by.title) for one in found)
    panels_ = (
        (one.by.key, one.a.name, one.b.name, _words(one, stated), _table(one, stated))
        for one in found
    )
    return part("chooser", kinds, _prices(rows, stated), panels_, script_json(formula))


def _prices(rows: Sequence[Row], stated: Stated) -> Iterator[tuple[str, str, str]]:
    """Yield a field for the price of each platform, as stated next to the runs."""
    for one in dict.fromkeys(row["platform"] for row in rows):
        if one != "cpu":
            price = stated.of(one, PRICE)
            label = f"{words_of('inputs')[PRICE]}, {platform_title(one)}"
            yield label, one, written(price) if price else ""


def _words(one: TwoSides, stated: Stated) -> list[tuple[str, Markup]]:
    """Return the answers in sentences, each with the head that a reader looks for."""
    none = "no two runs differ only in the side."
    return [
        ("Matched pairs", _verdicts(one, one.of(MATCHED), none)),
        ("Best against best", _verdicts(one, one.of(BEST), "the sides did no equal work.")),
        ("Per watt", _per_joule(one, stated)),
        ("Per price", PRICED if one.pairs else Markup("there is no pair.")),
        ("What differs", _differing(one)),
        ("What is missing", _missing(one)),
    ]


PRICED = Markup(
    "type the prices above, and the last columns of the table show it, by the formula of "
    '<a href="cost.html">Cost</a>.'
)


def _verdicts(one: TwoSides, found: Sequence[Pair], none: str) -> Markup:
    """Return how many pairs either side wins, and the largest difference with its interval."""
    if not found:
        return Markup("{}").format(none)
    decided = [(pair, pair.verdict) for pair in found if pair.verdict is not None]
    words = Counter(verdict.word for _, verdict in decided)
    wins = "trains more tokens/s" if one.by.varies == "model" else "is faster"
    counts = (
        (words["faster"], f"{one.a.name} {wins} in {words['faster']}"),
        (words["slower"], f"{one.b.name} {wins} in {words['slower']}"),
        (words["cannot tell"], f"{words['cannot tell']} undecided"),
        (len(found) - len(decided), f"{len(found) - len(decided)} without an interval"),
    )
    told = [text for number, text in counts if number]
    sentence = Markup("{}: {}.").format(count(len(found), "pair"), join(told))
    sure = [(pair, verdict) for pair, verdict in decided if verdict.word != "cannot tell"]
    if not sure:
        advice = next((verdict.advice for _, verdict in decided if verdict.advice), None)
        return sentence + (f" {advice}" if advice else "")
    pair, verdict = max(sure, key=lambda each: abs(log(each[1].ratio)))
    names = (one.a.name, one.b.name)
    if verdict.ratio < 1:  # the faster side is named first
        names, verdict = names[::-1], verdict.turned
    most = " The largest difference: {} is {} as fast as {}, {}, {}."
    return sentence + Markup(most).format(
        names[0], ratio(verdict), names[1], model_title(pair.a.row["model"]), work(pair.a.row)
    )


def _per_joule(one: TwoSides, stated: Stated) -> Markup:
    """Return what the pairs say per watt of the boards, or why they say nothing."""
    rows = [row for pair in one.pairs for row in basis_rows(pair, stated) if row["per"] == "watt"]
    known = [row["ratio"] for row in rows if row["ratio"]]
    if not known:
        return Markup("{}.").format(rows[0]["reason"] if rows else "there is no pair")
    ends = dict.fromkeys((f"{min(known):.2f}", f"{max(known):.2f}"))
    words = "{} trains {} times the tokens of {} per joule of its boards, over {}."
    pairs_of = count(len(known), "pair")
    return Markup(words).format(one.a.name, " to ".join(ends), one.b.name, pairs_of)


def _differing(one: TwoSides) -> Markup:
    """Return which settings and versions differ, with their values, then what else does."""
    if not one.pairs:
        return Markup("there is no pair to look at.")
    found: dict[str, list[str]] = {}
    for pair in one.of(MATCHED) or one.of(BEST):
        for item in pair.beside_the_gpu:
            values = found.setdefault(item.name, [])
            values.append(titled(f"{item.a or 'none'} against {item.b or 'none'}"))
    found.pop(one.by.varies, None)
    told = [
        f"{setting_words(name)} {', '.join(dict.fromkeys(values))}"
        for wanted in (_changes_speed, STACK.__contains__)
        for name, values in found.items()
        if wanted(name)
    ]
    rest = [name for name in found if not _changes_speed(name) and name not in STACK]
    if not found:
        return Markup("nothing else that was recorded.")
    first = join(told[:MOST_WORDS], "; ") if told else "no setting that changes the speed"
    more = [f"{len(rest) - MOST_WORDS} more"] if len(rest) > MOST_WORDS else []
    names = ", ".join([*map(fact_words, rest[:MOST_WORDS]), *more])
    also = f" Also, with the values in the records: {names}." if rest else ""
    models = {(pair.a.row["model"], pair.b.row["model"]) for pair in one.pairs}
    unlike = any(a != b for a, b in models)
    note = " A token of each costs other FLOPs, so compare the MFU." if unlike else ""
    return Markup("{}.{}{}").format(first, also, note)


def _changes_speed(name: str) -> bool:
    return name in SETTINGS and bool(SETTINGS[name].affects)


def _missing(one: TwoSides) -> Markup:
    """Return which runs would make a matched pair, those of work that both sides did first."""
    wanted = _wanted(one)
    if not wanted:
        return Markup("nothing: each side ran the other's fastest configurations.")
    named = [
        Markup("{} ({}; {}, {}) {}").format(
            run_link(row["run_id"]),
            row["configuration_name"],
            model_title(row["model"]),
            work(row),
            IN[one.by.key].format(side),
        )
        for row, side in wanted[:MOST_MISSING]
    ]
    more = len(wanted) - MOST_MISSING
    end = f"; and {more} more." if more > 0 else "."
    return Markup("repeat {}{} Each makes a matched pair.").format(join(named, "; "), end)


def _wanted(one: TwoSides) -> list[tuple[Row, str]]:
    """Return the fastest of each work that the other side did not run, and that side's name."""
    both = one.a.work.keys() & one.b.work.keys()
    found: list[tuple[bool, bool, Row, str]] = []
    for own, other in ((one.a, one.b), (one.b, one.a)):
        for name, group in own.work.items():
            row = best_of(group).row
            if one.by.matched(row) not in other.matched:
                found.append((name not in both, not is_whole(row), row, other.name))
    return [(row, side) for *_, row, side in sorted(found, key=lambda each: each[:2])]


def _table(one: TwoSides, stated: Stated) -> Markup:
    a, b = one.a.name, one.b.name
    each = "tokens/s per GPU"
    columns = (
        Column(
            "what", "Work", lambda row: noted(row["what"], row["layouts"]), numeric=False, wide=True
        ),
        text("how", "Chosen"),
        Column("a", a, lambda row: _rate(row, "a"), each, hint="with the MFU"),
        Column("b", b, lambda row: _rate(row, "b"), each, hint="with the MFU"),
        Column("ratio", f"{a} over {b}", _ratio, hint="with its 95 % interval"),
        Column("watt", f"Per watt, {a} over {b}", _per_watt, hint="tokens/J of the boards"),
        Column("price_a", f"Per price, {a}", lambda r: r["priced_a"], "tokens per currency"),
        Column("price_b", f"Per price, {b}", lambda r: r["priced_b"], "tokens per currency"),
        Column("price", f"Per price, {a} over {b}", lambda row: row["priced"]),
    )
    more = len(one.pairs) - MOST_PAIRS
    note = f"{count(more, 'more pair')} in the table of every comparison." if more > 0 else ""
    rows = (_row(pair, stated) for pair in one.pairs[:MOST_PAIRS])
    said = Markup('<p class="note">{}</p>').format(note) if note else Markup("")
    return table(rows, columns, "side-by-side") + said


def _row(pair: Pair, stated: Stated) -> dict[str, Any]:
    bases = {row["per"]: row for row in basis_rows(pair, stated)}
    watt, price = bases["watt"], bases["price"]
    a, b = (_priced(side, stated) for side in (pair.a, pair.b))
    layouts = dict.fromkeys(in_words(side.row) for side in (pair.a, pair.b))
    return {
        "what": f"{model_title(pair.a.row['model'])}, {work(pair.a.row)}",
        "layouts": " against ".join(layouts),
        "how": "matched" if pair.kind == MATCHED else "best",
        "a": pair.a.rate, "b": pair.b.rate,
        "runs_a": [row["run_id"] for row in pair.a.runs],
        "runs_b": [row["run_id"] for row in pair.b.runs],
        "ratio": pair.a.rate / pair.b.rate, "verdict": pair.verdict,
        "mfu_a": pair.a.row["mfu"], "mfu_b": pair.b.row["mfu"],
        "watt": watt["ratio"], "watt_low": watt["low"], "watt_high": watt["high"],
        "watt_reason": watt["reason"],
        "price_a": a.middle if a else None, "price_b": b.middle if b else None,
        "priced_a": _following(pair.a, a), "priced_b": _following(pair.b, b),
        "price": price["ratio"], "priced": _price_ratio(pair, price),
        "source": pair.source,
    }  # fmt: skip


def side_inputs(side: Configuration, stated: Stated) -> Inputs:
    """Return the inputs of the cost page for a side; of repeats the rate is that of all."""
    row = side.row
    known = inputs_of(row, stated)
    low, high = row["pooled_tokens_per_second_low"], row["pooled_tokens_per_second_high"]
    if len(side.runs) > 1 and low and high:
        mean = side.rate * row["tokens_per_second"] / row["rate"]
        known = replace(known, tokens_per_second=Interval(low, high, mean))
    return known


def _priced(side: Configuration, stated: Stated) -> Interval | None:
    if side.row["platform"] == "cpu":
        return None
    return answer(PER_PRICE, side_inputs(side, stated)).value


def _following(side: Configuration, value: Interval | None) -> Markup:
    """Return tokens per unit of currency, with what the script needs to follow a price."""
    known = side_inputs(side, Stated()).stated()
    names = ("tokens_per_second", "gpus")
    found = {name: known[name] for name in names if name in known}
    inputs = {name: (one.low, one.high, one.middle) for name, one in found.items()}
    template = '<span data-platform="{}" data-inputs="{}">{}</span>'
    return Markup(template).format(side.row["platform"], json.dumps(inputs), shown(value))


def _price_ratio(pair: Pair, priced: Row) -> Markup:
    verdict = pair.verdict
    ratio = pair.a.rate / pair.b.rate
    ends = (verdict.low, ratio, verdict.high) if verdict else (ratio, ratio, ratio)
    template = '<span data-platforms="{}" data-ratio="{}">{}</span>'
    platforms = [side.row["platform"] for side in (pair.a, pair.b)]
    told = NONE
    if priced["ratio"]:
        low, high = priced["low"] or priced["ratio"], priced["high"] or priced["ratio"]
        told = f"{priced['ratio']:.3f} ({low:.3f} to {high:.3f})"
    return Markup(template).format(json.dumps(platforms), json.dumps(ends), told)


def _rate(row: Row, side: str) -> Markup:
    mfu = Markup(f"MFU {percent(row[f'mfu_{side}'])}, ") if row[f"mfu_{side}"] else Markup("")
    return noted(number(row[side]), mfu + run_links(row[f"runs_{side}"]))


def _ratio(row: Row) -> Markup:
    verdict = row["verdict"]
    if verdict is None:
        return noted(f"{row['ratio']:.3f}", "no interval")
    ends = f"{verdict.low:.3f} to {verdict.high:.3f}, {verdict.word}"
    return noted(f"{verdict.ratio:.3f}", ends)


def _per_watt(row: Row) -> Markup | str:
    if row["watt"] is None:
        return noted(NONE, row["watt_reason"] or "")
    return ranged("watt", three)(row)
