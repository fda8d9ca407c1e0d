"""The stand-ins for CUDA: each is still needed, and none touches a run on a GPU."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from train_worlds import environment

HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def trains_without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    answer = tmp_path_factory.mktemp("pieces") / "verdicts.json"
    command = [sys.executable, str(HERE / "train_pieces.py"), str(answer)]
    subprocess.run(command, env=environment(), capture_output=True, timeout=500, check=True)
    return json.loads(answer.read_text())


def test_training_works_with_every_stand_in(trains_without: dict[str, bool]):
    assert trains_without["None"]


def test_megatron_core_still_needs_each_stand_in(trains_without: dict[str, bool]):
    useless = [name for name, works in trains_without.items() if works and name != "None"]
    assert not useless, f"remove from scalebook.train.cpu: {useless}"


def test_no_module_of_a_gpu_run_imports_the_stand_ins(root: Path):
    importers = {
        path.name
        for path in (root / "src/scalebook").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and node.module == "scalebook.train"
        and any(name.name == "cpu" for name in node.names)
    }
    # __main__ imports them only after it has seen that the platform is cpu; pack trains nothing.
    assert importers == {"__main__.py", "pack.py"}


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_what_trains_on_a_cpu_loads_no_tracker_of_its_own(name: str, monkeypatch):
    from scalebook.train import cpu

    monkeypatch.delitem(sys.modules, name, raising=False)
    with cpu.lean_import(), pytest.raises(ImportError):
        import_module(name)
    assert name not in sys.modules
    monkeypatch.setitem(sys.modules, name, json)  # as if a caller had loaded it
    with cpu.lean_import():
        assert import_module(name) is json
    assert sys.modules[name] is json
