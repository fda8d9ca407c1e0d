"""Change the numeric core in one place at a time and count which changes its own tests notice.

A change is compiled in a forked process and written to no file. One that a part's tests pass with
is printed: it needs a test, or a line in equivalent.txt. --only memory --sample 0 tries all of a
part.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from multiprocessing import connection, get_context
from pathlib import Path

import hypothesis.configuration
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/scalebook"
# A part of the core: its sources below src/scalebook, and the tests that must notice a change.
CORE = {
    "flops": ("facts/flops", "facts/flops"),
    "memory": ("facts/memory", "facts/memory facts/memory_golden"),
    "communication": ("facts/communication.py", "facts/communication"),
    "legality": ("facts/legality", "facts/legality"),
    "feasibility": ("facts/feasibility", "facts/feasibility"),
    "scaling": ("measure/scaling", "measure/scaling"),
    "metrics": ("measure/metrics", "measure/metrics measure/steady measure/window measure/anatomy"),
    "anatomy": ("measure/anatomy", "measure/anatomy"),
    "economics": ("measure/economics.py", "measure/economics"),
    "intervals": ("measure/intervals.py", "measure/intervals"),
    "verdicts": ("measure/verdicts", "measure/gate measure/verdict"),
    "diagnosis": ("measure/diagnosis", "measure/diagnosis"),
    "audit": ("audit", "audit/audit audit/audit_documents"),
    "outcome": ("running/outcome.py", "running/outcome running/failures"),
    "ingest": ("logs/ingest", "logs/ingest logs/logs_dialects"),
    "predict": ("predict", "predict/predict predict/tuning predict/recommended"),
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
    folder, name = test.split("/")
    return f"{ROOT}/tests/{folder}/test_{name}.py"


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
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
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


def attempt(mutant: tuple[Path, int, str] | None, tests: list[str], home: str) -> None:
    os.setsid()
    plain = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> object:
        if mutant is None or self.path != str(mutant[0]):
            return plain(self, name)
        tree = ast.parse(mutant[0].read_text(encoding="utf-8"))
        change(list(places(tree))[mutant[1]])
        return compile(ast.fix_missing_locations(tree), self.path, "exec")

    SourceFileLoader.get_code = get_code
    hypothesis.configuration.set_hypothesis_home_dir(home)
    options = ["-xq", "-pno:cacheprovider", "-mnot slow and not facts"]
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    os._exit(int(pytest.main([*options, f"--basetemp={home}/{os.getpid()}", *tests])))


def outcomes(work: list, jobs: int) -> Iterator[tuple[int, bool, float]]:
    running, left = {}, list(range(len(work)))
    with tempfile.TemporaryDirectory(prefix="mutate-") as home:
        while running or left:
            while left and len(running) < jobs:
                place = left.pop(0)
                process = get_context("fork").Process(target=attempt, args=(*work[place][:2], home))
                process.start()
                running[process] = (place, time.monotonic())
            connection.wait([process.sentinel for process in running], timeout=1)
            for process, (place, begun) in list(running.items()):
                spent = time.monotonic() - begun
                if not process.is_alive() or spent > work[place][2]:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.join()
                    del running[process]
                    yield place, process.exitcode == 0, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="changes in all; 0: every one")
    parser.add_argument("--only", nargs="+", choices=CORE, default=list(CORE), metavar="PART")
    parser.add_argument("--seed", type=int, default=1, help="which changes are drawn")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    os.nice(10)
    parts, work, names = options.only, [], []
    tests = [[test_file(test) for test in CORE[one][1].split()] for one in parts]
    for place, passed, spent in outcomes([(None, files, 600) for files in tests], options.jobs):
        if not passed:
            raise SystemExit(f"The tests of {parts[place]} fail without a change.")
        top = [SOURCE / one for one in CORE[parts[place]][0].split()]
        files = [file for path in top for file in sorted(path.rglob("*.py")) or [path]]
        found = [one for file in files for one in mutants(file)]
        share = options.sample // len(parts) or len(found)
        chosen = random.Random(options.seed).sample(found, min(share, len(found)))
        work += [(one, tests[place], 5 * spent + 10) for one in chosen]
        names += [parts[place]] * len(chosen)
    missed = dict.fromkeys(parts, 0)
    for place, passed, _ in outcomes(work, options.jobs):
        if passed:
            missed[names[place]] += 1
            print(f"survived {work[place][0][2]}", flush=True)
    for part, survivors in missed.items():
        print(f"{part:<15}{names.count(part) - survivors:>5} of {names.count(part):>4} noticed")


if __name__ == "__main__":
    main()
