"""New runs against a folder of older ones: the gate's checks, and the rate over commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook import identity
from scalebook.errors import ReportError
from scalebook.measure.metrics import measure
from scalebook.measure.metrics.repeats import Estimate, estimate, pool, start_spread
from scalebook.measure.verdicts.differences import Difference
from scalebook.measure.verdicts.gate import MUST_SEE, GateCheck, check, nothing_shared
from scalebook.report.base.naming import (
    model_title,
    platform_title,
    precision_title,
    sequence_words,
    sized,
)
from scalebook.store import Run, read_runs

COMMIT = "git_commit"
KINDS = {  # of a check, in the order of the page, with its words
    "faster": "faster",
    "slower": "slower",
    "cannot tell": "cannot tell",
    "unchanged": "unchanged",
    "failure": "new failure",
    "new": "new",
    "gone": "gone",
    "no baseline": "without an old rate",
}
_COUNTED = ("failure", "new", "gone")
_OUTCOMES = {
    "unexplained speed-up": "faster",
    "regression": "slower",
    "pass": "unchanged",
    "missing": "gone",
}
_VERSIONS = (
    *("driver", "torch", "cuda", "rocm", "triton", "nccl", "rccl", "megatron_core"),
    *("transformer_engine", "python", "scalebook", COMMIT, "container", "host.kernel"),
)


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """The rate of one configuration at one commit, in tokens/s of all GPUs, over ``runs`` runs."""

    configuration: str
    commit: str
    started_at: str  # of the first run at this commit
    runs: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Against:
    """What changed since the runs of a folder: ``name`` is that folder's."""

    name: str
    checks: tuple[GateCheck, ...]
    history: tuple[HistoryPoint, ...] = ()
    unread: tuple[str, ...] = ()
    apart: str = ""  # why nothing can be compared, where no configuration is in both folders

    def of(self, kind: str) -> list[GateCheck]:
        """Return the checks of one of ``KINDS``."""
        return [one for one in self.checks if kind_of(one) == kind]


def kind_of(one: GateCheck) -> str:
    """Return which of ``KINDS`` a check is: a regression without a rate is a new failure."""
    if one.outcome == "regression" and one.verdict is None:
        return "failure"
    return _OUTCOMES.get(one.outcome, one.outcome)


def read_against(old: Path, new: Path) -> Against:
    """Return what changed in the runs of ``new`` since those of ``old``, as the gate decides it.

    Raises:
        ReportError: ``old`` is missing or holds no run.
    """
    if not old.is_dir():
        raise ReportError(f"{old} is not a folder. Give a folder of older runs with --against.")
    before, problems = read_runs(old)
    if not before:
        raise ReportError(f"{old} contains no run. Give a folder of older runs with --against.")
    now, _ = read_runs(new)
    found = check(before, now, apart=True)
    shared = any(one.baseline_runs and one.current_runs for one in found)
    apart = "" if shared else nothing_shared(before, now)
    said = tuple(problem.replace(f"{old}/", "") for problem in problems)
    return Against(old.resolve().name, found, tuple(history((*before, *now))), said, apart)


def history(runs: Iterable[Run]) -> list[HistoryPoint]:
    """Return the rates of each configuration that ran at several commits, in the order of these.

    A commit's place is that of its first run. Runs without a commit or an interval are left out.
    """
    known: dict[str, Run] = {}
    for run in runs:
        known.setdefault(run.record.run_id, run)
    points: list[HistoryPoint] = []
    named: Counter[str] = Counter()
    for group in identity.alike(known.values(), lambda run: identity.configuration(run.record)):
        name = _named(group[0])
        found = _over_commits(group, f"{name} · {named[name] + 1}" if named[name] else name)
        if len(found) > 1:
            named[name] += 1
            points += found
    return points


def _named(run: Run) -> str:
    row = _row(run)
    parts = (precision_title(row["precision"]) or "unknown precision", sequence_words(row))
    where = f"{model_title(row['model'])} on {platform_title(row['platform'])}"
    return f"{where} ({', '.join(parts)}) · {sized(row)}"


def _over_commits(runs: Sequence[Run], name: str) -> list[HistoryPoint]:
    by_commit: dict[str, list[tuple[Run, Estimate]]] = {}
    for run in sorted(runs, key=lambda run: (run.record.started_at or "", run.record.run_id)):
        commit, known = run.record.environment.get(COMMIT), estimate(measure(run))
        if isinstance(commit, str) and known is not None:
            by_commit.setdefault(commit, []).append((run, known))
    return [_point(commit, members, name) for commit, members in by_commit.items()]


def _point(commit: str, members: Sequence[tuple[Run, Estimate]], name: str) -> HistoryPoint:
    record = members[0][0].record
    measures = [measure(run) for run, _ in members]
    platform = record.setting("platform")
    pooled = pool(
        [known for _, known in members],
        start_spread(platform if isinstance(platform, str) else None),
    )
    one = measures[0]
    alone = (one.tokens_per_second, one.tokens_per_second_low, one.tokens_per_second_high)
    ends = (pooled.rate, pooled.low, pooled.high) if pooled else alone
    rate, low, high = (value or 0.0 for value in ends)
    return HistoryPoint(name, commit[:12], record.started_at or "", len(members), rate, low, high)


def _row(run: Run) -> dict[str, Any]:
    record = run.record
    names = (*identity.settings.names("layout"), "platform", "world_size", "model", "precision")
    names = (*names, "sequence_length", "packed_documents")
    return {**{name: record.setting(name) for name in names}, **record.observed}


def version_differences(checks: Iterable[GateCheck]) -> list[tuple[Difference, int]]:
    """Return the versions that differ, new (A) against old (B), and in how many configurations."""
    found: dict[Difference, int] = {}
    for one in checks:
        for item in one.differences:
            if any(item.name == name or item.name.startswith(f"{name}.") for name in _VERSIONS):
                found[item] = found.get(item, 0) + 1
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0].name))


def sentence(found: Against) -> str:
    """Return in at most 25 words how many configurations came out how, new against old."""
    if found.apart:
        return f"Nothing is compared with {found.name}: no configuration is in both folders."
    amounts = {kind: len(found.of(kind)) for kind in KINDS}
    parts = [f"{amounts[kind]} {KINDS[kind]}" for kind in ("faster", "slower", "cannot tell")]
    parts += [f"{amounts['unchanged']} unchanged within {100 * MUST_SEE:.2g}\N{NO-BREAK SPACE}%"]
    parts += [f"{amounts[kind]} {words}" for kind, words in KINDS.items()
             if kind in _COUNTED and amounts[kind]]  # fmt: skip
    return f"New runs against the old ones: {', '.join(parts)}."
