"""A folder of runs against a stored baseline, configuration by configuration.

Both directions count: a run that is surely slower is a regression, one that is surely faster is a
change that nobody explained, and either means that the baseline no longer describes the machine.
What is sure follows from the noise: the interval of the ratio, at a level shared out over all
comparisons (Bonferroni), so that a gate over many configurations fails by chance in 5 % of cases
at most.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal
from xml.etree import ElementTree

from scalebook import identity
from scalebook.errors import RecordError
from scalebook.measure.verdicts import Verdict
from scalebook.measure.verdicts.differences import Difference, differences
from scalebook.measure.verdicts.read import Side, compared, runs_side
from scalebook.measure.verdicts.series import LossCurve, losses_of
from scalebook.record import RunRecord
from scalebook.settings import SETTINGS
from scalebook.store import Run

Outcome = Literal[
    "pass", "cannot tell", "regression", "unexplained speed-up", "missing", "new", "no baseline",
    "loss left the band",
]  # fmt: skip
FAILING: tuple[Outcome, ...] = ("regression", "unexplained speed-up", "loss left the band")
_NEAREST, _SHOWN = 30, 6  # configurations of a side that are compared; differences named
MUST_SEE = 0.05  # a change as large as this may not hide in the noise of a pass


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One configuration: how it came out, why in a sentence, and the verdict where there is one."""

    name: str
    outcome: Outcome
    detail: str
    baseline_runs: tuple[str, ...]
    current_runs: tuple[str, ...]
    verdict: Verdict | None = None  # current (A) against baseline (B)
    differences: tuple[Difference, ...] = ()

    @property
    def failed(self) -> bool:
        return self.outcome in FAILING


@dataclass(frozen=True, slots=True)
class _Limits:
    """What decides a check: the level of one interval, and fractions of the baseline's rate."""

    level: float
    tolerance: float
    must_see: float
    starts: float | None  # the spread of starts; None for the assumed one


def check(
    baseline: Sequence[Run],
    current: Sequence[Run],
    tolerance: float = 0.0,
    must_see: float = MUST_SEE,
    starts: float | None = None,
    *,
    apart: bool = False,  # whether folders may share nothing
) -> tuple[GateCheck, ...]:
    """Return one check per configuration of either folder, in the order of their names.

    A change whose interval lies within ``tolerance`` (a fraction) of none never fails. Where a
    slow-down or speed-up of ``must_see`` (a fraction) lies in the interval, nothing can be told.
    ``starts`` replaces the assumed spread from start to start.

    Raises:
        RecordError: no configuration is in both folders, or ``must_see`` is within ``tolerance``.
    """
    if must_see <= tolerance:
        raise RecordError(
            f"--must-see {must_see:.2g} is not above --tolerance {tolerance:.2g}: a change within "
            "the tolerance never fails. Raise the one or lower the other."
        )
    before, now = _sides(baseline), _sides(current)
    shared = [key for key in before if key in now]
    if not shared and not apart:
        raise RecordError(nothing_shared(baseline, current))
    rated = sum(bool(before[key].steps and now[key].steps) for key in shared)
    level = 1 - 0.05 / max(rated, 1)
    limits = _Limits(level, tolerance, must_see, starts)
    checks = [_check(before[key], now.get(key), limits) for key in before]
    why = "The baseline has no run of this configuration."
    checks += [
        GateCheck(_name(side.records[0]), "new", why, (), _ids(side))
        for key, side in now.items()
        if key not in before
    ]
    return tuple(sorted(checks, key=lambda one: one.name))


def nothing_shared(baseline: Sequence[Run], current: Sequence[Run]) -> str:
    """Return that no configuration is in both folders, and in what the nearest two differ."""
    sides = (_sides(runs).values() for runs in (baseline, current))
    before, now = ([one.records[0] for one in side] for side in sides)
    runs = [*baseline, *current]
    logs = sum(run.record.source == "ingested" for run in runs)
    way = "Run the same configuration again on the same device; 'scalebook list' shows both."
    if logs:
        way = (
            f"{logs} of {len(runs)} runs are ingested: a log does not state its whole "
            "configuration, so no other run is known to repeat it. Compare two of them with "
            "'scalebook compare'."
        )
    counts = f"the baseline ({len(before)}) is among the runs ({len(now)})"
    named = {name: row.words for name, row in SETTINGS.items()} | {"accelerator": "accelerator"}
    pairs = product(now[:_NEAREST], before[:_NEAREST])
    found = ([d for d in differences([new], [old]) if d.name in named] for new, old in pairs)
    nearest = [
        f"{named[one.name]} ({one.a or 'not stated'}, was {one.b or 'not stated'})"
        for one in min(found, key=len, default=())[:_SHOWN]
    ]
    words = f" The nearest two differ in {', '.join(nearest)}." if nearest else ""
    return f"No configuration of {counts}.{words} {way}"


def check_losses(
    runs: Sequence[Run], reference: LossCurve, tolerance: float
) -> tuple[GateCheck, ...]:
    """Return one check per run whose loss is held against a reference curve, step by step.

    A loss may differ from the reference's at the same step by ``tolerance``, a fraction of it. Of
    a reference that is a run, runs of another model, batch or sequence length are left out.

    Raises:
        RecordError: no run trains what the reference trained.
    """
    wanted = reference.record and _trained(reference.record)
    alike = [run for run in runs if wanted is None or _trained(run.record) == wanted]
    if not alike:
        pairs = zip(_SAME, wanted or (), strict=True)
        words = ", ".join(f"{name}={value}" for name, value in pairs)
        raise RecordError(
            f"None of {len(runs)} runs trains what the loss reference {reference.name} trained "
            f"({words}). Name another run or file with --loss-reference."
        )
    return tuple(_check_loss(run, reference, tolerance) for run in alike)


_CHANGES_A_LOSS = frozenset(
    {name for name, row in SETTINGS.items() if "loss" in row.affects}
    | {"accelerator", *identity.VERSIONS}
)
_SAME = ("model", "global_batch_size", "sequence_length")  # or no two losses are comparable


def _trained(record: RunRecord) -> tuple[Any, ...]:
    return tuple(record.setting(name) for name in _SAME)


def _check_loss(run: Run, reference: LossCurve, tolerance: float) -> GateCheck:
    """Return whether a run's loss stays in the band, else at which step it leaves it first."""
    record, known = run.record, reference.record
    losses = losses_of(run.steps)
    if record.source == "ingested":  # a log need not print the loss of each step
        losses = {step: loss for step, loss in losses.items() if loss is not None}
    shared = sorted(losses.keys() & reference.losses.keys())
    name = f"loss of {_name(record)}, run {record.run_id}"
    ids = ((known.run_id,) if known else (), (record.run_id,))
    if not shared:
        why = f"{reference.name} has no step in common with the {len(losses)} steps of the run."
        return GateCheck(name, "cannot tell", why, *ids)
    pairs = [(step, losses[step], reference.losses[step]) for step in shared]
    outside = [(step, a, b) for step, a, b in pairs if a is None or abs(a - b) > tolerance * abs(b)]
    band = f"{100 * tolerance:.3g} % of {reference.name}"
    of = f"{len(shared)} of its {len(reference.losses)} steps"
    if not outside:
        far = max(abs(a - b) / abs(b) if b else 0.0 for _, a, b in pairs if a is not None)
        words = f"Within {band} at {of}; {100 * far:.2g} % at most."
        return GateCheck(name, "pass", words, *ids)
    step, loss, there = outside[0]
    value = "not finite" if loss is None else f"{loss:.5g}"
    by = "" if loss is None or not there else f", {100 * (loss / there - 1):+.2g} %"
    words = (
        f"Step {step} is the first outside {band}: its loss is {value}, the reference's "
        f"{there:.5g}{by}. {len(outside)} of {len(shared)} common steps are outside."
    )
    changed = differences([record], [known]) if known else ()
    causes = tuple(one for one in changed if one.name in _CHANGES_A_LOSS)
    return GateCheck(name, "loss left the band", words, *ids, None, causes)


def _sides(runs: Iterable[Run]) -> dict[str, Side]:
    """Return the repeats of each configuration by its key."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        key = identity.configuration(run.record)
        if key is not None:
            found.setdefault(key, []).append(run)
    return {key: runs_side("", members) for key, members in found.items()}


def _ids(side: Side) -> tuple[str, ...]:
    return tuple(record.run_id for record in side.records)


def _name(record: RunRecord) -> str:
    """Return a configuration in a few words, with its hash to tell it from others."""
    split = [f"{row.short}{record.setting(row.name)}" for row in SETTINGS.values()
             if row.short and record.setting(row.name) not in (None, 1)]  # fmt: skip
    words: list[Any] = [record.setting("model"), "on", record.setting("world_size"), "x",
                        record.setting("platform"), *split]  # fmt: skip
    return f"{' '.join(map(str, words))} [{record.config_hash or record.run_id}]"


def _check(before: Side, now: Side | None, limits: _Limits) -> GateCheck:
    name = _name(before.records[0])
    if now is None:
        why = "None of the new runs has this configuration."
        return GateCheck(name, "missing", why, _ids(before), ())
    ids = (_ids(before), _ids(now))
    if not before.steps:
        return GateCheck(name, "no baseline", before.reason or "", *ids)
    changed = differences(now.records, before.records)
    if not now.steps:
        words = f"The baseline has a rate, the new runs have none. {now.reason}"
        return GateCheck(name, "regression", words, *ids, None, changed)
    verdict = compared(now, before, limits.starts, limits.level)
    return GateCheck(name, *_outcome(verdict, limits, now.reason), *ids, verdict, changed)


def _outcome(verdict: Verdict, limits: _Limits, reason: str | None) -> tuple[Outcome, str]:
    """Return how a verdict comes out with a tolerance and a change that must be seen.

    ``reason`` says what is wrong with any of the new runs.
    """
    tolerance, must_see = limits.tolerance, limits.must_see
    low, high = 100 * (verdict.low - 1), 100 * (verdict.high - 1)
    span = f"between {low:+.2g} and {high:+.2g} % of the baseline's throughput"
    also = f" But: {reason}" if reason else ""
    if verdict.high < 1 - tolerance:
        return "regression", f"Slower: {span}.{also}"
    if verdict.low > 1 + tolerance:
        return "unexplained speed-up", f"Faster: {span}.{also}"
    if verdict.low <= 1 - must_see or verdict.high >= 1 + must_see:
        advice = f" {verdict.advice}" if verdict.advice else " Repeat the runs."
        hidden = f"A change of {100 * must_see:.2g} % would not be seen"
        return "cannot tell", f"{hidden}: {span}.{advice}{also}"
    if verdict.word == "cannot tell":
        return "pass", f"No change that the noise lets one see: {span}.{also}"
    return "pass", f"Within the tolerance: {span}.{also}"


UNJUDGED = ("cannot tell", "missing", "new", "no baseline")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~])")
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def summary(checks: Sequence[GateCheck]) -> str:
    """Return one line: how many configurations came out how."""
    outcomes = [check.outcome for check in checks]
    counts = [f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes)]
    return f"{len(checks)} configuration{'s'[: len(checks) != 1]}: {', '.join(counts)}"


def markdown(checks: Sequence[GateCheck]) -> str:
    """Return a table of all checks, what failed first, and what else differs where it failed."""
    lines = [
        f"**{'Failed' if any(check.failed for check in checks) else 'Passed'}.** "
        f"{_cell(summary(checks))}.",
        "",
        "| configuration | outcome | throughput against the baseline | 95 % together | |",
        "|---|---|---|---|---|",
    ]
    ordered = sorted(checks, key=lambda check: not check.failed)
    for check in ordered:
        found = check.verdict
        ratio = f"{found.ratio:.4f}" if found else ""
        span = f"{found.low:.4f} to {found.high:.4f}" if found else ""
        cells = (_cell(check.name), check.outcome, ratio, span, _cell(check.detail))
        lines.append(f"| {' | '.join(cells)} |")
    for check in ordered:
        if check.failed and check.differences:
            lines += ["", f"What else differs in {_cell(check.name)}:", ""]
            lines += [f"- {_cell(str(difference))}" for difference in check.differences]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """Return text that a Markdown renderer shows as it is, on one line."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))


def junit(checks: Sequence[GateCheck]) -> str:
    """Return the checks as one JUnit test suite; what could not be compared is skipped."""
    skipped = [check for check in checks if check.outcome in UNJUDGED]
    suite = ElementTree.Element(
        "testsuite",
        name="scalebook gate",
        tests=str(len(checks)),
        failures=str(sum(check.failed for check in checks)),
        errors="0",
        skipped=str(len(skipped)),
    )
    for check in checks:
        case = ElementTree.SubElement(
            suite, "testcase", classname="scalebook.gate", name=_xml(check.name)
        )
        said = _xml(check.detail)
        if check.failed:
            failure = ElementTree.SubElement(case, "failure", message=said, type=check.outcome)
            failure.text = _xml("\n".join(str(one) for one in check.differences))
        elif check in skipped:
            ElementTree.SubElement(case, "skipped", message=f"{check.outcome}: {said}")
        else:
            ElementTree.SubElement(case, "system-out").text = said
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)
