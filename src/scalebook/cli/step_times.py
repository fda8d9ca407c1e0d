"""Commands that judge step times: ``steady``, ``compare`` two runs, ``gate`` against a baseline."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.terminal import (
    Subparsers,
    add_json,
    add_runs,
    add_start_spread,
    complain,
    fraction,
    number,
    print_json,
    require_folder,
    step_window,
)
from scalebook.errors import ConfigError, RecordError
from scalebook.project import runs_folder

if TYPE_CHECKING:
    from scalebook.measure.metrics.steady import Steady
    from scalebook.measure.verdicts import Verdict
    from scalebook.measure.verdicts.differences import Difference
    from scalebook.measure.verdicts.gate import GateCheck
    from scalebook.measure.verdicts.read import Side
    from scalebook.store import Run


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    steady = subparsers.add_parser(
        "steady", print_steady, help="find the steady state of step times"
    )
    text = "step times in seconds, one per line; a steps.jsonl; or a run's directory or id"
    steady.add_argument("files", nargs="+", metavar="FILE", help=text)
    add_runs(steady)
    text = "store these steps in a run's record as the window of its rate"
    steady.add_argument("--window", type=step_window, metavar="FIRST:LAST", help=text)
    add_json(steady)
    text = "show which of two runs is faster, with an interval"
    versus = subparsers.add_parser("compare", print_comparison, help=text)
    text = (
        "run id or its last six characters, run directory, folder of repeats, or file of step times"
    )
    for side in ("A", "B"):
        versus.add_argument(side.lower(), metavar=side, help=text)
    add_runs(versus)
    add_start_spread(versus)
    add_json(versus)
    _register_gate(subparsers)


def _register_gate(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("gate", gate, help="fail if runs differ from a stored baseline")
    parser.add_argument("--baseline", type=Path, help="folder of baseline runs")
    add_runs(parser, "folder of the new runs")
    parser.add_argument("--junit", type=Path, help="write JUnit XML to this file")
    parser.add_argument("--markdown", type=Path, help="write a Markdown table to this file")
    text = "largest change that never fails, like 0.02 or 2%% (default: what the noise hides)"
    parser.add_argument("--tolerance", type=fraction, default=0.0, help=text)
    text = (
        "exit with 2 if a change as large as this, like 0.05 or 5%%, could hide in the noise; "
        "default: such a configuration is shown as 'cannot tell'"
    )
    parser.add_argument("--must-see", type=fraction, metavar="FRACTION", help=text)
    text = "run, or file of steps and losses, whose loss curve the new runs must follow"
    parser.add_argument("--loss-reference", metavar="RUN", help=text)
    text = "how far a loss may be from the reference's, like 0.02 or 2%% (default: 2%%)"
    parser.add_argument(
        "--loss-tolerance", type=fraction, default=0.02, metavar="FRACTION", help=text
    )
    add_start_spread(parser)
    add_json(parser)


def print_steady(options: argparse.Namespace) -> int:
    """Print one line per file; 2 where a file cannot be read."""
    from scalebook.measure.verdicts.series import read_series
    from scalebook.store import find_run

    runs = runs_folder(options.runs)
    rows: list[dict[str, Any]] = []
    unreadable = 0
    for file in options.files:
        place = Path(file)
        try:
            place = place if place.exists() else find_run(file, runs) or place
            if options.window is not None:
                print(_keep(place, options.window), file=sys.stderr)
                continue
            found: Steady | str = read_series(place).steady()
        except RecordError as error:
            complain(error)
            unreadable += 1
            found = str(error)
        rows.append(_row(file, found))
        if not options.json and not isinstance(found, str):
            print(f"{file}: {_words(found)}{_offered(place, found)}")
    if options.json:
        print_json(rows)
    return 2 if unreadable else 0


def _offered(directory: Path, found: Steady) -> str:
    """Return how to choose the longest level of a run with several; empty for any other."""
    from scalebook.measure.metrics.window import measured_steps, offered
    from scalebook.store import read_run

    if found.problem != "shift" or not (directory / "record.json").is_file():
        return ""
    steps = measured_steps(read_run(directory).steps)
    seconds, tokens = steps.known("step_seconds"), steps.known("tokens")
    return offered(steps, seconds, tokens) if len(tokens) == len(seconds) == len(steps) else ""


def _keep(directory: Path, window: tuple[int, int]) -> str:
    """Write the window that the reader chose into a run's record; return its rate in a sentence."""
    from scalebook.measure.metrics import measure
    from scalebook.store import read_run, write_record

    run = read_run(directory)
    chosen = run.record.model_copy(update={"window": window})
    found = measure(replace(run, record=chosen))
    rate = found.tokens_per_second
    if rate is None:
        raise RecordError(
            f"{directory}: no rate follows from these steps. {found.throughput_reason}"
        )
    write_record(directory, chosen)
    return f"{directory}: {rate:,.0f} tokens/s over steps {window[0]} to {window[1]}, as chosen."


def _row(file: str, found: Steady | str) -> dict[str, Any]:
    names = ("start", "count", "median", "mean", "low", "high")
    if isinstance(found, str):
        return {"file": file, "accepted": False, "reason": found} | dict.fromkeys(names)
    values = {name: getattr(found, name) for name in names}
    return {"file": file, "accepted": found.accepted, "reason": found.reason} | values


def _words(found: Steady) -> str:
    """Return a steady state in a sentence or two."""
    if found.quantiles is None or found.start is None or found.count is None:
        return f"not averaged. {found.reason}"
    p10, p90, p99 = (number(value) for value in found.quantiles)
    begin = f"after {found.start} step{'s'[: found.start - 1]}" if found.start else "from the start"
    sentences = [
        f"steady {begin} ({found.count} steps): mean {number(found.mean)} s "
        f"(95 %: {number(found.low, 5)} to {number(found.high, 5)}), median "
        f"{number(found.median)} s, p10 {p10} s, p90 {p90} s, p99 {p99} s."
    ]
    if found.brief:
        sentences.append(
            "The window is short (under a minute or 40 steps), so the interval is wider: a slow "
            "change may not show in it yet."
        )
    if found.periods:
        every = " and ".join(map(str, found.periods))
        sentences.append(f"It includes slow steps every {every} steps.")
    if found.irregular:
        slow = f"{found.irregular} slow step{'s'[: found.irregular != 1]}"
        sentences.append(f"It includes {slow} without a period.")
    if found.change:
        change = 100 * found.change
        sentences.append(
            f"It changes by {change:.2g} % over the window; the interval includes this."
        )
    return " ".join(sentences)


def print_comparison(options: argparse.Namespace) -> int:
    """Print the verdict on A against B."""
    from scalebook.measure.verdicts.differences import differences, other_work
    from scalebook.measure.verdicts.read import clocks_apart, judge, read_side, same

    runs = runs_folder(options.runs)
    a, b = sides = tuple(read_side(name, runs) for name in (options.a, options.b))
    verdict, reason = judge(a, b, options.start_spread)
    found = differences(a.records, b.records) if a.records and b.records else ()
    clocks = clocks_apart(a, b, found)
    if options.json:
        names = ("ratio", "low", "high", "rate", "start_spread", "advice")
        values = {name: getattr(verdict, name, None) for name in names}
        values |= {"verdict": verdict.word if verdict else "cannot tell", "clocks": clocks}
        print_json({**values, "differences": found, "reason": reason})
        return 0
    if verdict is None or same(a, b):
        print(f"Cannot tell. {reason}")
    else:
        said = (other_work(found), verdict.sentence, _measured(verdict, sides))
        left_out = f"Left out: {reason}" if reason else None
        more = (clocks, verdict.assumption, verdict.advice, left_out)
        print("\n".join(line for line in (*said, *more) if line))
    _print_differences(found, sides)
    return 0


def _measured(verdict: Verdict, sides: tuple[Side, ...]) -> str:
    runs = " against ".join(f"{len(side.steps)} run{'s'[: len(side.steps) - 1]}" for side in sides)
    span = f"{verdict.ratio:.4f} (95 %: {verdict.low:.4f} to {verdict.high:.4f})"
    return f"Throughput of A over B, in {verdict.rate}: {span}, {runs}."


def _print_differences(found: tuple[Difference, ...], sides: tuple[Side, ...]) -> None:
    if not all(side.records for side in sides):
        print("Files of step times do not show what else differs.")
        return
    logs = [any(record.source == "ingested" for record in side.records) for side in sides]
    known = [
        one for one in found
        if not (one.a is None and logs[0]) and not (one.b is None and logs[1])
    ]  # fmt: skip
    lines = ("Other differences:", *(f"  {one}" for one in known))
    print("\n".join(lines) if known else "No recorded setting differs.")
    if silent := len(found) - len(known):
        print(f"Not known to differ: {silent} settings that a log does not state (--json).")


def gate(options: argparse.Namespace) -> int:
    """Print how each configuration came out; 1 where one is slower or faster for sure, else 0.

    1 also where a loss leaves the band of the reference. 2 where a run could not be read, a change
    that must be seen would not be, or no step of a run is in the reference.
    """
    from scalebook.measure.verdicts.gate import junit, markdown, summary

    checks, unread, unseen = _checks(options)
    for path, write in ((options.junit, junit), (options.markdown, markdown)):
        if path is not None:
            _write(path, write(checks))
    if options.json:
        print_json(checks)
    else:
        for one in checks:
            print(f"{one.outcome}: {one.name}. {one.detail}")
            for item in one.differences if one.failed else ():
                print(f"  differs: {item}")
        print(summary(checks))
    if any(one.failed for one in checks):
        return 1
    return 2 if unread or unseen else 0


def _checks(options: argparse.Namespace) -> tuple[tuple[GateCheck, ...], bool, bool]:
    """Return all checks, whether a run was not readable, and whether a change may be hidden."""
    from scalebook.measure.verdicts.gate import MUST_SEE, check, check_losses
    from scalebook.measure.verdicts.series import read_losses

    if options.baseline is None and options.loss_reference is None:
        raise ConfigError("Name a folder with --baseline, or a run or file with --loss-reference.")
    runs = runs_folder(options.runs)
    current, problems = _read(runs)
    checks: tuple[GateCheck, ...] = ()
    if options.baseline is not None:
        baseline, more = _read(options.baseline)
        problems += more
        must_see = options.must_see or max(MUST_SEE, 2 * options.tolerance)
        checks = check(baseline, current, options.tolerance, must_see, options.start_spread)
    unseen = bool(options.must_see) and any(one.outcome == "cannot tell" for one in checks)
    if options.loss_reference is not None:
        reference = read_losses(options.loss_reference, options.baseline or runs)
        losses = check_losses(current, reference, options.loss_tolerance)
        unseen = unseen or any(one.outcome == "cannot tell" for one in losses)
        checks += losses
    return checks, bool(problems), unseen


def _read(folder: Path) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Return the runs of a folder and what cannot be read, which goes to stderr."""
    from scalebook.store import read_runs

    require_folder(folder, "--baseline and --runs")
    runs, problems = read_runs(folder)
    for problem in problems:
        complain(problem)
    if not runs:
        raise RecordError(f"{folder} contains no run. Name a folder with --baseline and --runs.")
    return runs, problems


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror}.") from error
