"""A gate's checks as Markdown for a pull request and as JUnit XML for a CI."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from xml.etree import ElementTree

from scalebook.measure.verdicts.gate import Check

UNJUDGED = ("cannot tell", "missing", "new", "no baseline")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~])")
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def summary(checks: Sequence[Check]) -> str:
    """Return one line: how many configurations came out how."""
    outcomes = [check.outcome for check in checks]
    counts = [f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes)]
    return f"{len(checks)} configuration{'s'[: len(checks) != 1]}: {', '.join(counts)}"


def markdown(checks: Sequence[Check]) -> str:
    """Return a table of all checks, what failed first, and what else differs where it failed."""
    lines = [
        f"**{'Failed' if any(check.failed for check in checks) else 'Passed'}.** "
        f"{_cell(summary(checks))}.",
        "",
        "| configuration | outcome | throughput against the baseline | 95 % together | |",
        "|---|---|---|---|---|",
    ]
    ordered = sorted(checks, key=lambda check: not check.failed)
    lines += [_row(check) for check in ordered]
    for check in ordered:
        if check.failed and check.differences:
            lines += ["", f"What else differs in {_cell(check.name)}:", ""]
            lines += [f"- {_cell(str(difference))}" for difference in check.differences]
    return "\n".join([*lines, ""])


def _row(check: Check) -> str:
    ratio = span = ""
    if check.verdict is not None:
        ratio = f"{check.verdict.ratio:.4f}"
        span = f"{check.verdict.low:.4f} to {check.verdict.high:.4f}"
    cells = (_cell(check.name), check.outcome, ratio, span, _cell(check.detail))
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """Return text that a Markdown renderer shows as it is, on one line."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))


def junit(checks: Sequence[Check]) -> str:
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
