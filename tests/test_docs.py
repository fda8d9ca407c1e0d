"""Documentation is true: help exists, commands in prose run, exit codes are real, prose is plain.

The list of habits is the one that the project writes by; each pattern finds what a native reader
stumbles over. ``LEFT`` counts what is still to be rewritten, for each part of the source; a number
in it may only go down.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalebook.cli import COMMANDS, build_commands, main

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/scalebook"
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", ".github/*.md", "containers/**/*.md", "reports/*.md", "src/**/*.md")
    for path in ROOT.glob(pattern)
)
THING = (
    "GPU|run|step|group|node|rank|layer|line|file|second|day|device|token|sample|configuration|"
    "stage|page|job|process|replica|side|platform|kind|micro batch"
)
COUNTED = (
    r"\d[\d,]*(?: (?!where|when|if|of|for|in|on|to|is|and|or|by|with)\w+)?|one \w+|bytes|"
    r"tokens(?:/s)?|samples|GPUs|seconds|items?|rates?|ranks|GiB|GB"
)
HABITS = {
    "per": rf"\b(?:{COUNTED}) an? (?:{THING})\b(?! (?:is|was|has|that|of|with|needs|gets|can))"
    rf"|\b(?:an?|one) (?:bar|row|chart|sentence|point|mark|cell) an? (?:{THING}|drill|model)\b",
    "is not, there are none": r"(?<!here )\b(?:is|are|was|were) no\b(?! (?:longer|more|better))"
    r"|\b(?:that|which) (?:is|are|was) none\b",
    "says, shows": r"\btold\b|(?<!annot )(?<!can )(?<!to )\btells?\b(?! \w+ apart)",
    "recomputed, rebuilt, released": r"\b(?:made|done|built|run|computed) (?:again|anew|new)\b"
    r"|\bgiven back\b",
    "the field's term": r"\bfurther tokens?\b|\bbringing (?:gradients )?together\b",
    "next to, in addition to": r"\bbeside\b",
    "only": r"\b(?:(?!left|it|leave|stands?)\w+) alone\b",
    "N, this many": r"\bso many\b",
    "even if": r"\balso (?:where|what)\b",
    "name it": r"\bwhat (?:builds|runs|starts) it\b",
    "instead of": r"\bin place of\b",
    "continue": r"\b(?:goes|go|went) on\b",
    "contains no": r"\bholds? no\b",
    "complete": r"\b(?:is|are|was) whole\b(?! micro)",
    "except": r"\bbut for\b",
    "fix, expect, learned": r"\b[Mm]end(?:s|ed)?\b|\bforesees?\b|\blearnt\b",
    "differently": r"\b(?:set|ran|run) otherwise\b",
    "because memory ran out": r"\bfor want of\b",
    "requested": r"\bwhat was asked for\b",
    "appears": r"\bstands? (?:twice|beside|in the file)\b",
    "unknown": r"\b(?:cannot|can) be told\b(?! apart)",
}
HABIT = re.compile("|".join(HABITS.values()))
# What is left to rewrite, by part of the source; a part that is not named has none.
LEFT: dict[str, int] = {}
LEFT_IN_DOCUMENTS: dict[str, int] = {}


def parsers() -> dict[str, argparse.ArgumentParser]:
    parser, commands = build_commands()
    action = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    assert {*action.choices} == {*commands.help} == {*COMMANDS}
    return dict(action.choices)


PARSERS = parsers()
NAMES = {"Gbit/s", "Kubernetes", "Kubernetes:", "Slurm"}
LATER = {"status", "gate", "--sbatch-option"}  # help texts that are still to be rewritten


@pytest.mark.parametrize("command", sorted(PARSERS.keys() - LATER))
def test_every_option_has_a_help_text_that_is_a_phrase(command: str):
    for action in PARSERS[command]._actions:
        name = "/".join(action.option_strings) or action.dest
        assert action.help, name
        if action.help == argparse.SUPPRESS or LATER.intersection(action.option_strings):
            continue
        word = action.help.split()[0]
        assert word in NAMES or not re.match("[A-Z][a-z]", word), action.help
        assert not action.help.endswith("."), action.help
        assert not action.help.startswith(("a ", "an ", "the ")), action.help


@pytest.mark.parametrize("command", sorted(PARSERS.keys() - LATER))
def test_a_number_that_a_flag_takes_has_its_unit_as_metavariable(command: str):
    for action in PARSERS[command]._actions:
        if action.option_strings and action.nargs != 0 and action.type not in (None, str):
            assert action.metavar is not None, action.option_strings


def test_every_command_is_in_the_table_of_the_command_line():
    table = (SOURCE / "cli/README.md").read_text()
    rows = re.findall(r"^\| `scalebook ([a-z]+)`", table, re.M)
    assert rows == list(COMMANDS)


# Commands in prose ------------------------------------------------------------------------------


def lines_of_code(document: Path) -> Iterator[str]:
    """Yield the lines of fenced blocks and the spans of code of a document."""
    text = document.read_text()
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def shown(code: Iterator[str], program: str) -> list[list[str]]:
    """Return the words of each command of a program, without comments."""
    found: list[list[str]] = []
    for line in code:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        while words and ("=" in words[0] or words[0] == "$"):
            words = words[1:]
        if words[:1] == [program] and len(words) > 1:
            end = next((i for i, word in enumerate(words) if word in ("|", ">", "&&", ";")), None)
            found.append(words[1:end])
    return found


def known(words: list[str]) -> str | None:
    """Return what is wrong with a command as prose shows it; its values may be placeholders."""
    if words[0] not in PARSERS:
        return None if words[0].startswith("-") or not words[0].islower() else f"no {words[0]!r}"
    options = {*PARSERS[words[0]]._option_string_actions, "--catalog", "--version"}
    wrong = [word for word in words if word.startswith("--") and word.split("=")[0] not in options]
    return f"{words[0]} has no {', '.join(wrong)}" if wrong else None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_document_shows_exists_with_its_options(document: Path):
    problems = [known(words) for words in shown(lines_of_code(document), "scalebook")]
    assert [one for one in problems if one] == []


def test_every_command_that_the_source_advises_exists_with_its_options():
    problems: list[str] = []
    for path in SOURCE.rglob("*.py"):
        for command in re.findall(r"'(scalebook [a-z][^'\n{}]*)'", path.read_text()):
            problem = known(command.split()[1:])
            problems += [f"{path.name}: {problem}"] if problem else []
    assert problems == []


def test_every_command_of_the_first_page_can_be_parsed():
    commands = shown(lines_of_code(ROOT / "README.md"), "scalebook")
    whole = [words for words in commands if len(words) > 1 and words[0] in PARSERS]
    assert len(whole) > 8
    for words in whole:
        PARSERS[words[0]].parse_args(words[1:])


def test_every_rate_of_the_first_page_is_that_of_its_run(capsys: pytest.CaptureFixture[str]):
    main(["list", "--runs", str(ROOT / "runs/examples"), "--json"])
    rows = {row["run_id"]: row for row in json.loads(capsys.readouterr().out)}
    line = re.compile(r"\| `([\d-]+)-…-(\w+)` \|.*\| (.*) \| (?:(.*) %|no single peak) \|")
    stated = line.findall((ROOT / "README.md").read_text())
    assert len(stated) == 10
    for start, end, rate, mfu in stated:
        (row,) = (rows[name] for name in rows if name.startswith(start) and name.endswith(end))
        ends = ("tokens_per_second", "tokens_per_second_low", "tokens_per_second_high")
        mean, low, high = (f"{row[name] / row['world_size']:,.0f}" for name in ends)
        assert rate == f"{mean} ({low} to {high})"
        assert mfu == (f"{100 * row['mfu']:.1f}" if row["mfu"] else "")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_that_a_document_shows_exists(document: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    asked = {words[0] for words in shown(lines_of_code(document), "make")}
    assert {name for name in asked if re.fullmatch(r"[a-z-]+", name)} <= targets


def test_every_file_that_the_guide_names_exists():
    text = (ROOT / ".github/CONTRIBUTING.md").read_text()
    named = {one for one in re.findall(r"`([^`\n]+/[^`\n]*)`", text) if " " not in one}
    named = {one for one in named if (ROOT / one.partition("/")[0]).is_dir()}
    assert len(named) > 50
    assert [one for one in sorted(named) if not any(ROOT.glob(one.rstrip("/")))] == []


# Exit codes -------------------------------------------------------------------------------------

CHECKED = ["check", "--platform", "h100", "--gpus", "8", "--model", "llama3.1-8b"]
EXITS = [
    (["audit", "scaling-analysis"], 0),
    (["audit", "example"], 1),
    (["audit", "no-such-file"], 2),
    (CHECKED, 0),
    ([*CHECKED, "--tensor-parallel-size", "3"], 1),
    (["check", "--platform", "h100", "--model", "no-such-model"], 2),
    (["gate", "--baseline", "BASE", "--runs", "BASE"], 0),
    (["gate", "--baseline", "EMPTY", "--runs", "BASE"], 2),
    (["doctor", "--secrets", "EMPTY"], 0),
    (["steady", "no-such-file"], 2),
    (["list", "--runs", "EMPTY"], 0),
]


@pytest.mark.parametrize(("command", "code"), EXITS, ids=lambda value: str(value)[:60])
def test_exit_codes_are_those_of_the_table(command: list[str], code: int, tmp_path: Path):
    names = {"EMPTY": tmp_path / "empty", "BASE": tmp_path / "base"}
    for path in names.values():
        path.mkdir()
    run = next(path for path in sorted((ROOT / "runs/examples").iterdir()) if path.is_dir())
    (names["BASE"] / run.name).symlink_to(run)
    assert main([str(names.get(word, word)) for word in command]) == code
    table = (SOURCE / "cli/README.md").read_text()
    row = next(
        line for line in table.splitlines() if line.startswith(f"| `scalebook {command[0]}`")
    )
    stated = row.split("|")[3]
    assert code in (0, 2) or f"{code}:" in stated


# Prose ------------------------------------------------------------------------------------------


def prose(path: Path) -> Iterator[str]:
    """Yield the first line of every docstring, and every other text of several words."""
    tree = ast.parse(path.read_text())
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            docstrings.add(id(first.value))
            yield str(first.value.value).strip().partition("\n")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield node.value if isinstance(node.value, str) and " " in node.value else ""


def room(path: Path) -> str:
    """Return the part of the source that a file belongs to."""
    return path.relative_to(SOURCE).parts[0]


def habits(text: str) -> list[str]:
    """Return each habit in a text with the words around it."""
    return [text[max(0, m.start() - 40) : m.end() + 30].strip() for m in HABIT.finditer(text)]


def test_no_help_text_has_a_habit():
    texts = [a.help or "" for parser in PARSERS.values() for a in parser._actions]
    texts += [parser.description or "" for parser in PARSERS.values()]
    assert [found for text in texts for found in habits(text)] == []


def test_no_text_of_the_source_has_a_habit():
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for text in prose(path):
            found.setdefault(room(path), []).extend(f"{path.name}: {one}" for one in habits(text))
    over = {name: some for name, some in found.items() if len(some) > LEFT.get(name, 0)}
    assert over == {}


def test_no_page_of_the_report_has_a_habit():
    found: Counter[str] = Counter()
    for path in ROOT.glob("notebooks/*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                found.update(habits("".join(cell["source"])))
    assert sum(found.values()) <= LEFT_IN_DOCUMENTS.get("notebooks", 0), found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_has_a_habit(document: Path):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", document.read_text(), flags=re.M | re.S)
    limit = LEFT_IN_DOCUMENTS.get(str(document.relative_to(ROOT)), 0)
    assert len(habits(text)) <= limit, habits(text)


@pytest.mark.parametrize(
    ("text", "habit"),
    [
        ("one directory a run: what ran", True),
        ("8 samples a GPU", True),
        ("a run needs 8 GPUs", False),
        ("this is no verdict", True),
        ("there is no verdict", False),
        ("files that are none are skipped", True),
        ("the log tells its size", True),
        ("cannot tell", False),
        ("two runs are told apart", True),
        ("activations made again", True),
        ("over the measured steps alone", True),
        ("variables left alone", False),
        ("use at most so many GPUs", True),
        ("run also where the device is another", True),
        ("one bar a drill, in order", True),
        ("a row a run that failed", True),
        ("a bar that a run may have", False),
        ("the folder holds no run", True),
        ("a save is whole after 3 s", True),
        ("all processes but for our own", True),
        ("settings that ran otherwise", True),
        ("ended for want of memory", True),
        ("the log says what was asked for", True),
    ],
)
def test_the_patterns_find_the_habits_and_nothing_else(text: str, habit: bool):
    assert bool(habits(text)) == habit
