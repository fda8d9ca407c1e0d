"""Change the numeric core one operator at a time and count which changes its tests notice.

Every change is compiled in a forked process and never written to a file. A change that a part's own
tests pass with is listed with its file and line: it needs a test, or a reason why it is equivalent.
Run with `make mutate` (ARGS="--sample 50 --only memory"). It is no part of CI.
"""

from __future__ import annotations

import argparse
import ast
import copy
import io
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.machinery import SourceFileLoader
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import hypothesis.configuration
import pytest

ROOT = Path(__file__).resolve().parents[2]
# A part of the core: its sources below src/scalebook and the tests that must notice a change.
CORE = {
    "flops": ("flops", "flops"),
    "memory": ("memory", "memory memory_golden"),
    "communication": ("communication.py", "communication"),
    "legality": ("legality", "legality"),
    "feasibility": ("feasibility", "feasibility"),
    "metrics": ("metrics", "metrics steady repeats"),
    "anatomy": ("anatomy", "anatomy"),
    "scaling": ("scaling", "scaling"),
    "economics": ("economics.py", "economics"),
    "verdicts": ("verdicts intervals.py", "verdict gate"),
    "diagnosis": ("diagnosis", "diagnosis"),
    "audit": ("audit", "audit"),
    "ingest": ("ingest/rates.py ingest/ratios.py ingest/steps.py", "ingest logs_dialects"),
    "outcome": ("running/outcome.py", "outcome failures"),
    "winners": ("report/winners.py", "report_findings report_comparison"),
    "plan": ("plan/expand.py plan/schedule.py", "plan"),
}
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
# Words whose values only guard the code itself.
GUARDS = {"strict", "frozen", "slots", "kw_only", "default_factory", "maxsize"}


class Mutant(NamedTuple):
    """A change: its file, the index of its place there, and its line in the list."""

    path: Path
    index: int
    words: str


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that a change may concern: no annotation, decorator or guard."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and getattr(node, "arg", None) not in GUARDS:
                yield node
                yield from places(node)


def change(node: ast.AST) -> bool:
    """Change the node in place; False where it has nothing to change."""
    match node:
        case ast.BinOp(op=op, left=left) if type(op) in SWAPS and not isinstance(
            left, ast.JoinedStr
        ):
            node.op = SWAPS[type(op)]()
        case ast.BoolOp(op=op):
            node.op = SWAPS[type(op)]()
        case ast.Compare(ops=[op, *rest]):
            node.ops = [SWAPS[type(op)](), *rest]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Invert()
            if isinstance(node.op, ast.Invert):
                node.__class__, node.func, node.args, node.keywords = (
                    ast.Call, ast.Name("bool", ast.Load()), [node.operand], []
                )  # fmt: skip
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() | float() as value):
            node.value = value + 1
        case ast.Return(value=ast.expr() as value) if not (
            isinstance(value, ast.Constant) and value.value is None
        ):
            node.value = ast.Constant(None)
        case _:
            return False
    return True


def mutants(path: Path) -> Iterator[Mutant]:
    """Every change of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for index, node in enumerate(places(tree)):
        before = ast.unparse(node)
        if change(twin := copy.deepcopy(node)):
            after = ast.unparse(ast.fix_missing_locations(twin))
            words = f"{path.relative_to(ROOT)}:{node.lineno}  {before} -> {after}"
            yield Mutant(path, index, words)


def attempt(mutant: Mutant | None, tests: list[str], home: str) -> None:
    """In a process of its own: load the file with its change and exit as its tests do."""
    os.setsid()
    plain = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> object:
        if mutant is None or self.path != str(mutant.path):
            return plain(self, name)
        tree = ast.parse(mutant.path.read_text(encoding="utf-8"))
        change(list(places(tree))[mutant.index])
        return compile(ast.fix_missing_locations(tree), self.path, "exec")

    SourceFileLoader.get_code = get_code
    hypothesis.configuration.set_hypothesis_home_dir(home)
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        f"--basetemp={home}/{os.getpid()}",
    ]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = pytest.main([*options, *tests])
    os._exit(int(code))


def outcomes(
    work: list[tuple[Mutant | None, list[str], float]], jobs: int
) -> Iterator[tuple[int, bool, float]]:
    """The place in the list, whether its tests passed, and its seconds, as each one ends."""
    running: dict[BaseProcess, tuple[int, float]] = {}
    waiting = list(enumerate(work))
    with tempfile.TemporaryDirectory(prefix="mutate-") as home:
        while waiting or running:
            while waiting and len(running) < jobs:
                place, (mutant, tests, _) = waiting.pop(0)
                process = get_context("fork").Process(target=attempt, args=(mutant, tests, home))
                process.start()
                running[process] = (place, time.monotonic())
            wait([process.sentinel for process in running], timeout=1)
            for process, (place, begun) in list(running.items()):
                spent = time.monotonic() - begun
                if process.is_alive() and spent < work[place][2]:
                    continue
                with suppress(ProcessLookupError):
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.join()
                del running[process]
                yield place, process.exitcode == 0, spent


def parts(names: list[str]) -> dict[str, tuple[list[Path], list[str]]]:
    """The source files and the test files of each part."""
    source = ROOT / "src" / "scalebook"
    return {
        name: (
            [
                file
                for one in CORE[name][0].split()
                for file in sorted((source / one).rglob("*.py")) or [source / one]
            ],
            [f"{ROOT}/tests/test_{test}.py" for test in CORE[name][1].split()],
        )
        for name in names
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=300, help="changes in all (0: every one)")
    parser.add_argument("--only", nargs="+", choices=CORE, default=list(CORE), metavar="PART")
    parser.add_argument("--file", default="", help="only files whose path contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    os.nice(10)
    chosen = parts(options.only)
    limits: dict[str, float] = {}
    work: list[tuple[Mutant | None, list[str], float]] = [
        (None, tests, 600.0) for _, tests in chosen.values()
    ]
    for place, passed, spent in outcomes(work, options.jobs):
        name = list(chosen)[place]
        if not passed:
            print(f"The tests of {name} fail without a change.", file=sys.stderr)
            return 1
        limits[name] = 5 * spent + 10
    draw = random.Random(options.seed)
    work, names = [], []
    for name, (files, tests) in chosen.items():
        found = [one for file in files if options.file in str(file) for one in mutants(file)]
        share = max(1, options.sample // len(chosen)) if options.sample else len(found)
        for one in draw.sample(found, min(share, len(found))):
            work.append((one, tests, limits[name]))
            names.append(name)
    survivors: dict[str, list[str]] = {name: [] for name in chosen}
    for place, passed, _ in outcomes(work, options.jobs):
        if passed and (mutant := work[place][0]):
            survivors[names[place]].append(mutant.words)
            print("survived", mutant.words, flush=True)
    print(f"{'part':<15}{'changes':>8}{'noticed':>9}{'share':>7}")
    for name, count in Counter(names).items():
        noticed = count - len(survivors[name])
        print(f"{name:<15}{count:>8}{noticed:>9}{noticed / count:>7.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
