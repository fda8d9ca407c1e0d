"""The shape of the source as numbers, with limits that only go down.

``python tests/test_structure.py`` prints them. A room is a folder or a module directly under
``src/scalebook``; a folder is one with modules side by side.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src/scalebook"
FIELDS_OF_A_LIST = 4  # a constant with so many names of settings is a list of them
LIMITS = {
    "files": 318,
    "lines": 67498,
    "longest file": 610,
    "rooms": 33,
    "import arrows between rooms": 192,
    "lists of settings": 13,
    "class names used twice": 0,
    "module names used twice": 11,
    "modules with one importer, in their own folder": 16,
    "largest folder": 19,
    "crowded folders that their README does not list": 0,
}


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Return file and syntax tree of every module, by its dotted name."""
    found: dict[str, tuple[Path, ast.Module]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path, ast.parse(path.read_text())
    return found


def imports(name: str) -> Iterator[str]:
    """Yield the modules of the package that a module imports, wherever in it."""
    for node in ast.walk(modules()[name][1]):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                whole = f"{node.module}.{one.name}"
                target = whole if whole in modules() else node.module
                if target in modules():
                    yield target


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def arrows() -> set[tuple[str, str]]:
    """Return the pairs of rooms of which the first imports the second."""
    pairs = {(room(name), room(other)) for name in modules() for other in imports(name)}
    return {
        (one, other) for one, other in pairs if one != other and "scalebook" not in (one, other)
    }


def lists_of_fields() -> list[str]:
    """Return the constants of modules, but for the table, that list settings by their names."""
    table = ast.walk(modules()["scalebook.config"][1])
    fields = {n.target.id for n in table if isinstance(n, ast.AnnAssign) and n.col_offset == 4
              and isinstance(n.target, ast.Name)}  # fmt: skip
    found: list[str] = []
    for name, (_, tree) in modules().items():
        for node in tree.body if name not in ("scalebook.settings", "scalebook.config") else ():
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                texts = {n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)}
                if len(fields & {one for one in texts if isinstance(one, str)}) >= FIELDS_OF_A_LIST:
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    found.append(f"{name}.{ast.unparse(target)}")
    return found


def twice(names: Iterator[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def classes() -> Iterator[str]:
    """Yield every public class that is defined at the top of a module."""
    for _, tree in modules().values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def with_one_importer() -> list[str]:
    """Return the modules that exactly one other imports, itself in the same folder."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name in modules():
        for other in imports(name):
            importers[other].add(name)
    files = {name for name, (path, _) in modules().items() if path.name != "__init__.py"}
    return sorted(
        name
        for name in files
        if len(importers[name]) == 1
        and name.rpartition(".")[0] in {next(iter(importers[name])).rpartition(".")[0]}
    )


def crowded(most: int = 15) -> list[str]:
    """Return the folders with more than so many modules side by side, some not in their README."""
    folders: defaultdict[Path, list[str]] = defaultdict(list)
    for path, _ in modules().values():
        if path.name != "__init__.py":
            folders[path.parent].append(path.stem)
    return sorted(
        f"{folder.relative_to(SOURCE)} ({len(stems)})"
        for folder, stems in folders.items()
        if len(stems) > most and not named(folder / "README.md").issuperset(stems)
    )


def named(readme: Path) -> set[str]:
    """Return what a README has in the font of code; nothing where there is none."""
    return set(re.findall(r"`(\w+)`", readme.read_text())) if readme.exists() else set()


@cache
def counts() -> dict[str, int]:
    """Return every number that has a limit."""
    files = [path for path, _ in modules().values()]
    lines = {path: len(path.read_text().splitlines()) for path in files}
    folders = Counter(path.parent for path in files if path.name != "__init__.py")
    stems = (name.rpartition(".")[2] for name in modules())
    return {
        "files": len(files),
        "lines": sum(lines.values()),
        "longest file": max(lines.values()),
        "rooms": len({room(name) for name in modules()}),
        "import arrows between rooms": len(arrows()),
        "lists of settings": len(lists_of_fields()),
        "class names used twice": len(twice(classes())),
        "module names used twice": len(twice(stems)),
        "modules with one importer, in their own folder": len(with_one_importer()),
        "largest folder": max(folders.values()),
        "crowded folders that their README does not list": len(crowded()),
    }


@pytest.mark.parametrize("name", LIMITS)
def test_the_structure_stays_within_its_limits(name: str):
    found, limit = counts()[name], LIMITS[name]
    assert found <= limit, (
        f"{name}: {found:,}, limit {limit:,}. Make room in the part that you change; "
        "'python tests/test_structure.py' lists what counts."
    )


def test_every_number_has_a_limit():
    assert counts().keys() == LIMITS.keys()


def test_every_package_says_what_it_is():
    silent = [
        name
        for name, (path, tree) in modules().items()
        if path.name == "__init__.py" and not ast.get_docstring(tree)
    ]
    assert silent == []


if __name__ == "__main__":
    for what, number in counts().items():
        print(f"{number:>7,} (limit {LIMITS.get(what, 0):,})  {what}")
    print("Lists of settings:", *lists_of_fields(), sep="\n  ")
    print("Classes:", *twice(classes()))
    print("Modules:", *twice(name.rpartition(".")[2] for name in modules()))
    print("One importer:", *with_one_importer(), sep="\n  ")
    print("Crowded:", *crowded())
