"""What ``scalebook audit`` prints."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from scalebook.audit import Audit, Check, Claims, audit, load, parse_claims, sample_text, samples
from scalebook.audit.fields import fields, words
from scalebook.audit.identities import show
from scalebook.cli.output import print_json, print_table
from scalebook.errors import ClaimError

WRONG = ("contradicts", "impossible")


def audit_file(options: argparse.Namespace) -> int:
    """Audit the file and print its checks; see the command's help for the exit code."""
    if options.file is None:
        raise ClaimError("No FILE to audit. Name one, or see --sample, --samples and --fields.")
    result = audit(_load(options.file))
    checks = [c for c in result.checks if not options.problems or c.verdict in WRONG]
    if options.json:
        _print_json(result, checks)
    else:
        _print_people(result, checks)
    return int(any(check.verdict in WRONG for check in result.checks))


def _load(name: str) -> Claims:
    path = Path(name)
    if not path.exists() and name in samples():
        return parse_claims(sample_text(name), f"{name}.toml")
    if not path.exists():
        known = ", ".join(samples())
        raise ClaimError(f"No file {name[:200]!r}. Name a file, or a shipped one: {known}.")
    return load(path, follow=True)


def _print_json(result: Audit, checks: Sequence[Check]) -> None:
    claims = result.claims
    print_json(
        {
            "title": claims.title,
            "source": claims.source,
            "counts": result.counts(),
            "unread": claims.unread,
            "checks": [dataclasses.asdict(check) for check in checks],
        }
    )


def _print_people(result: Audit, checks: Sequence[Check]) -> None:
    print(result.claims.title)
    if result.claims.source:
        print(f"from {result.claims.source}")
    for table, group in groupby(checks, key=lambda check: check.table):
        print(f"\n{table}")
        for check in group:
            _print_check(check)
    if result.claims.unread:
        print("\nNot read:")
        for text in result.claims.unread:
            print(f"  {text}")
    counts = [f"{verdict} {count}" for verdict, count in result.counts().items()]
    print(f"\nClaims: {', '.join(counts)}.")


def _print_check(check: Check) -> None:
    place = f"line {check.line}  " if check.line else ""
    name = "" if check.label == check.table else f"{check.label}: "
    head = f"  {check.verdict:<13}  {place}{name}{check.field} = {check.stated}"
    if check.verdict not in WRONG:
        reason = "; ".join(part for part in (check.rule, check.note) if part)
        print(f"{head}  ({reason})")
        return
    print(f"{head}{_right_value(check)}")
    details = check.arithmetic.split("; ") if check.arithmetic else [check.rule]
    remark = f"({check.remark})" if check.remark else ""
    for line in (*details, check.note, remark):
        if line:
            print(f"{'':17}{line}")


def _right_value(check: Check) -> str:
    """Return what it should be, in percent where the claim is."""
    if check.expected is None:
        return ""
    if "%" in check.stated:
        return f", should be {show(check.expected * 100)} %"
    return f", should be {show(check.expected)}"


def print_sample() -> int:
    """Print a claims file to start from."""
    print(sample_text("example"), end="")
    return 0


def print_samples(*, as_json: bool) -> int:
    """List the claims files that the package ships."""
    found = [(name, parse_claims(sample_text(name), name)) for name in samples()]
    if as_json:
        print_json([{"name": name, "title": claims.title} for name, claims in found])
    else:
        print_table(("name", "rows", "title"), [_sample_row(*item) for item in found])
    return 0


def _sample_row(name: str, claims: Claims) -> tuple[str, str, str]:
    return name, str(len(claims.rows)), claims.title


def print_fields(*, as_json: bool) -> int:
    """List the fields of a claims file with their meaning."""
    meanings = {**words(), **{name: item.meaning for name, item in fields().items()}}
    if as_json:
        print_json(meanings)
    else:
        print_table(("field", "meaning"), list(meanings.items()))
    return 0
