"""Command ``diagnose``: why the MFU of a run is what it is, and what to try."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.arguments import Subparsers, add_json, add_runs
from scalebook.cli.found import RUN_HELP, run_directory
from scalebook.cli.output import plain, print_json

if TYPE_CHECKING:
    from scalebook.measure.diagnosis import Diagnosis, Finding, Waterfall
    from scalebook.store import Run

WIDTH = 100


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser(
        "diagnose", help="explain the MFU of a run and suggest what to try"
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_runs(parser)
    add_json(parser)
    parser.set_defaults(handler=diagnose)


def diagnose(options: argparse.Namespace) -> int:
    """Print what the measurements of a run say about its speed."""
    from scalebook.measure.diagnosis import diagnose as diagnosed
    from scalebook.store import read_run

    run = read_run(run_directory(options.run, options.runs))
    found, parts = _with_others(diagnosed(run), run, options.runs)
    if options.json:
        value = {**plain(found), "explained_fraction": _explained(found)}
        print_json({**value, "slower_than_parts": parts})
        return 0
    for line in _lines(found):
        print(line)
    for line in _wrapped("= ", _against_parts(parts)) if parts else ():
        print(line)
    return 0


def _with_others(
    found: Diagnosis, run: Run, folder: Path | None
) -> tuple[Diagnosis, dict[str, Any] | None]:
    """Return the diagnosis with parts at the rates of other runs, and the run against their sum.

    The sum is None where there is nothing to compare with.
    """
    from scalebook import predict
    from scalebook.measure.diagnosis import with_fitted
    from scalebook.project import runs_folder

    rate = predict.known_rate(run)
    if isinstance(rate, str):
        return found, None
    rates, probes, _ = predict.evidence(folder or runs_folder())
    if found.waterfall is not None:
        made = predict.predictor(rate.config.platform, rates, probes)
        shares = predict.fitted_shares(rate, made)
        found = replace(found, waterfall=with_fitted(found.waterfall, shares))
    return found, predict.slower_than_parts(rate, rates, probes)


def _against_parts(parts: dict[str, Any]) -> str:
    """Return how a run compares with the sum of its parts, in a sentence."""
    share = parts["fraction"]
    ends = f"90 % of runs: {100 * parts['low']:+.1f} to {100 * parts['high']:+.1f} %"
    line = f"{100 * abs(share):.1f} % {'slower' if share > 0 else 'faster'} than the sum of its"
    line = f"{line} parts, as {parts['runs']} other runs predict it ({ends})."
    if share <= parts["high"]:
        return line
    return f"{line} Suspect: {parts['suspect']}."


def _explained(found: Diagnosis) -> float | None:
    return found.waterfall.explained if found.waterfall else None


def _lines(found: Diagnosis) -> Iterator[str]:
    if found.reason is not None:
        yield f"{found.run_id}: {found.reason}"
        return
    mfu = f"MFU {100 * found.mfu:.1f} %" if found.mfu is not None else f"no MFU. {found.mfu_reason}"
    yield f"{found.run_id}: {mfu}"
    for number, finding in enumerate(found.findings, start=1):
        yield from _finding(number, finding)
    if not found.findings:
        yield "No rule found a cause in what was measured."
    if found.waterfall is not None:
        yield from _waterfall(found.waterfall)
    for sentence in found.missing:
        yield from _wrapped("? ", sentence)


def _finding(number: int, finding: Finding) -> Iterator[str]:
    size = ""
    if finding.step_fraction is not None:
        size = f" [{100 * finding.step_fraction:.3g} % of the step, {finding.basis}]"
    yield from _wrapped(f"{number}. ", f"{finding.says}{size}")
    for advice in finding.advice:
        yield from _wrapped("   -> ", advice)


def _waterfall(found: Waterfall) -> Iterator[str]:
    yield "Where the step's time goes:"
    for part in found.parts:
        name = part.name.replace("_", " ")
        if part.step_fraction is None:
            yield f"  {'?':>7}  {name} ({part.reason})"
        elif part.step_fraction > 0:
            basis = f" ({part.basis})" if part.basis else ""
            yield f"  {100 * part.step_fraction:6.1f}%  {name}{basis}"
    for note in found.notes:
        yield from _wrapped("  ! ", note)


def _wrapped(mark: str, sentence: str) -> list[str]:
    return textwrap.wrap(
        sentence, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), tabsize=1
    )
