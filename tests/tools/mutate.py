"""Change the numeric core in one place at a time and count which changes its own tests notice.

A change is compiled in a fork. One that the tests that run its lines pass with needs another test.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType

from mutant_runs import Work, import_others, meeting, outcomes

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/scalebook"
# A part of the core: its sources below src/scalebook, and the tests that must notice a change.
CORE = {
    "flops": ("facts/flops", "facts/flops"),
    "memory": ("facts/memory", "facts/memory facts/memory_golden"),
    "communication": ("facts/communication.py", "facts/communication"),
    "legality": ("facts/legality", "facts/legality facts/legality_advice"),
    "feasibility": ("facts/feasibility", "facts/feasibility"),
    "scaling": ("measure/scaling", "measure/scaling"),
    "metrics": ("measure/metrics", "measure/metrics measure/steady measure/window measure/anatomy"),
    "anatomy": ("measure/anatomy", "measure/anatomy"),
    "economics": ("measure/economics.py", "measure/economics"),
    "intervals": ("measure/intervals.py", "measure/intervals measure/steady"),
    "verdicts": ("measure/verdicts", "measure/gate measure/verdict"),
    "diagnosis": ("measure/diagnosis", "measure/diagnosis"),
    "audit": ("audit", "audit/audit audit/audit_documents audit/audit_pieces"),
    "outcome": ("running/outcome.py", "running/outcome running/failures"),
    "todo": ("running/todo.py running/finish_run.py",
             "running/sweep running/recovery running/runner running/pruning"),
    "checkpoint": ("train/checkpoint", "train/checkpoint"),
    "lines": ("logs/pairs.py logs/causes.py logs/setting_lines.py logs/iteration_line.py "
              "logs/source.py logs/dialects",
              "logs/ingest logs/ingest_pieces logs/logs_dialects running/failures"),
    "ingest": ("logs/ingest", "logs/ingest logs/ingest_pieces logs/logs_dialects"),
    "predict": ("predict", "predict/predict predict/amounts predict/model "
                "predict/search predict/tuning predict/recommended"),
    "findings": ("report/pages/run_findings.py", "report/report_findings report/report_comparison"),
    "plan": ("plan/__init__.py plan/schedule.py", "plan/plan"),
}  # fmt: skip
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd,
}  # fmt: skip
# Changes that change nothing, one a line: the file, the change, and why it shows nowhere.
EQUIVALENT = {
    line.partition("  # ")[0]
    for line in (Path(__file__).parent / "equivalent.txt").read_text(encoding="utf-8").splitlines()
}
LEFT_ALONE = {"annotation", "returns", "decorator_list", "strict", "frozen", "slots", "maxsize"}


def test_file(test: str) -> str:
    return f"{ROOT}/tests/{test.replace('/', '/test_')}.py"


def places(tree: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not {name, getattr(node, "arg", "")} & LEFT_ALONE:
                yield node
                yield from places(node)


def change(node: ast.AST) -> bool:
    match node:
        case ast.BinOp() | ast.BoolOp() | ast.UnaryOp() if type(node.op) in SWAPS:
            node.op = SWAPS[type(node.op)]()
        case ast.Compare():
            node.ops[0] = SWAPS[type(node.ops[0])]()
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=bool() | int() | float() as value):
            node.value = not value if isinstance(value, bool) else value * 1.5 + 1
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
            node.value = ast.Constant(None)
        case _:
            return False
    return True


def mutants(path: Path) -> Iterator[tuple[Path, int, str]]:
    for index, node in enumerate(places(ast.parse(path.read_text(encoding="utf-8")))):
        if change(twin := copy.deepcopy(node)):
            before, after = (ast.unparse(one).splitlines()[0] for one in (node, twin))
            if f"{path.relative_to(SOURCE)}: {before} -> {after}" not in EQUIVALENT:
                yield path, index, f"{path.relative_to(ROOT)}:{node.lineno}: {before} -> {after}"


def changed_lines(path: Path, since: str) -> set[int]:
    """Return the numbers of the lines of a file that differ from those of a commit."""
    command = ["git", "-C", str(ROOT), "diff", "-U0", since, "--", str(path)]
    diff = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", diff, re.MULTILINE)
    return {n for start, count in found for n in range(int(start), int(start) + int(count or 1))}


def lines_of(path: Path, index: int) -> set[tuple[str, int]]:
    """Return the lines of a change's statement, or none where no function's body holds it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = list(places(tree))[index]
    around = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and node in ast.walk(s)]
    near = min(around, key=lambda one: one.end_lineno - one.lineno)
    body = near.body[0].lineno if hasattr(near, "body") else near.end_lineno + 1
    inside = any(s in around for f in around if isinstance(f, ast.FunctionDef) for s in f.body)
    return {(str(path), n) for n in range(near.lineno, max(body, near.lineno + 1)) if inside}


def compiled(path: Path, index: int) -> CodeType:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    change(list(places(tree))[index])
    return compile(ast.fix_missing_locations(tree), str(path), "exec")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="changes in all; 0: every one")
    parser.add_argument("--only", nargs="+", choices=CORE, default=list(CORE), metavar="PART")
    parser.add_argument("--seed", type=int, default=1, help="which changes are drawn")
    parser.add_argument("--since", metavar="COMMIT", help="only lines that changed since then")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    os.nice(10)
    whole, work = [], []
    for part in options.only:
        top = [SOURCE / one for one in CORE[part][0].split()]
        files = [str(file) for path in top for file in sorted(path.rglob("*.py")) or [path]]
        whole.append(Work(part, [test_file(test) for test in CORE[part][1].split()], files))
    import_others(sorted({test for one in whole for test in one.tests}))
    for (part, _, files, *_), passed, notes in outcomes(whole, options.jobs):
        if not passed:
            raise SystemExit(f"The tests of {part} cannot run without a change.")
        for test in sorted(notes[2] - notes[1].keys()):
            print(f"left out {test}: it fails while lines are noted", flush=True)
        found = [one for file in files for one in mutants(Path(file))]
        if options.since:
            new = {Path(file): changed_lines(Path(file), options.since) for file in files}
            found = [one for one in found if int(one[2].split(":")[1]) in new[one[0]]]
        share = min(options.sample // len(options.only) or len(found), len(found))
        for path, index, words in random.Random(options.seed).sample(found, share):
            chosen = meeting(notes, lines_of(path, index))
            tests = sorted({f"{ROOT}/{one.split('::')[0]}" for one in chosen})
            made = partial(compiled, path, index)
            work.append(Work(part, tests, [str(path)], words, made, chosen, notes[2]))
    drawn, missed = Counter(one.part for one in work), Counter()
    for one, passed, _ in outcomes(work, options.jobs):
        if passed:
            missed[one.part] += 1
            print(f"survived {one.words} ({len(one.chosen)} tests ran it)", flush=True)
    for part in options.only:
        print(f"{part:<15}{drawn[part] - missed[part]:>5} of {drawn[part]:>4} noticed")


if __name__ == "__main__":
    main()
