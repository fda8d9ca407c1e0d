"""``doctor``: what in this machine or container would spoil a run, and how to fix it."""

from __future__ import annotations

import argparse
from pathlib import Path

from scalebook.cli.arguments import Subparsers, add_json, add_runs

MARKS = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM", "unknown": "unknown"}


def register(subparsers: Subparsers) -> None:
    """Add this module's command."""
    parser = subparsers.add_parser(
        "doctor", help="check this machine or container without changing it"
    )
    add_runs(parser)
    parser.add_argument("--strict", action="store_true", help="exit with code 1 for warnings, too")
    parser.add_argument(
        "--secrets",
        type=Path,
        metavar="DIR",
        help="only list lines in the files of DIR that look like secrets",
    )
    add_json(parser)
    parser.set_defaults(handler=doctor)


def doctor(options: argparse.Namespace) -> int:
    """Print what every check found; 0 without a problem, 1 with one."""
    if options.secrets is not None:
        return _secrets(options.secrets, as_json=options.json)
    from scalebook.cli.output import print_json
    from scalebook.doctor import checks, gather
    from scalebook.project import root, runs_folder

    images = (root() or Path.cwd()) / "containers" / "images"
    facts = gather.gather(runs_folder(str(options.runs or "")), images)
    findings = checks.examine(facts)
    code = checks.exit_code(findings, strict=options.strict)
    if options.json:
        print_json({"findings": findings, "facts": facts, "exit_code": code})
        return code
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print(f"{MARKS[finding.level]:<8} {finding.check:<{width}}  {finding.found}")
        if finding.advice:
            print(f"{'':<{width + 11}}{finding.advice}")
    counts = {level: sum(f.level == level for f in findings) for level in ("problem", "warning")}
    print(f"\n{counts['problem']} problems, {counts['warning']} warnings.")
    return code


def _secrets(folder: Path, *, as_json: bool) -> int:
    """Print where something looks like a secret, never the secret itself; 1 if anything does."""
    from scalebook.cli.output import print_json
    from scalebook.errors import RecordError
    from scalebook.scrub import in_folder

    if not folder.is_dir():
        raise RecordError(f"{folder} is not a folder. Name the folder of runs.")
    found = list(in_folder(folder))
    if as_json:
        print_json([{"file": str(path), "line": line, "kinds": one} for path, line, one in found])
    else:
        for path, line, kinds in found:
            print(f"{path}:{line}: {', '.join(kinds)}")
        print(
            f"Lines that look like secrets: {len(found)}."
            if found
            else "Nothing looks like a secret."
        )
    return 1 if found else 0
