"""Parameters are checked before a kernel starts; a notebook that breaks says how."""

from __future__ import annotations

import ast
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training import environment

from scalebook import notebooks, store
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError
from scalebook.running import kernel

MICRO = Path(__file__).parents[1] / "notebooks"
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "10_train.ipynb"


def micro(name: str) -> Path:
    """Return a two-cell notebook."""
    return MICRO / f"{name}.ipynb"


def cells() -> list[dict[str, Any]]:
    """Return the code cells of the training notebook."""
    document = json.loads(NOTEBOOK.read_text())
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def namespace(**changes: Any) -> dict[str, Any]:
    """Return what a kernel's namespace holds after the parameters cell of 10_train.ipynb."""
    values: dict[str, Any] = {"__name__": "__main__", "_i": "", "In": [""], "Out": {}}
    exec("".join(cells()[0]["source"]), values)
    return {**values, "kernel": kernel, "exit": object(), **changes}


def test_every_plain_type_is_understood():
    types = notebooks.parameters_of(micro("every_type"))
    assert types == {"name": "str", "count": "int", "rate": "float", "flag": "bool"}


def test_right_parameters_pass():
    notebooks.validate(micro("every_type"), {"name": "b", "count": 2, "rate": 1, "flag": True})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"cuont": 2}, "no parameter 'cuont'. Did you mean 'count'?"),
        ({"zzz": 2}, "no parameter 'zzz'. It has: name, count, rate, flag."),
        ({"count": "8"}, "Parameter count='8' is of type str; .* takes int"),
        ({"count": True}, "Parameter count=True is of type bool"),
        ({"count": 1.0}, "Parameter count=1.0 is of type float"),
        ({"flag": 1}, "Parameter flag=1 is of type int"),
        ({"rate": "0.1"}, "Parameter rate='0.1' is of type str"),
        ({"name": 3}, "Parameter name=3 is of type int"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_is_started(
    tmp_path: Path, parameters: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        notebooks.execute(micro("every_type"), tmp_path / "out.ipynb", parameters)
    assert not list(tmp_path.iterdir())


def test_a_parameter_without_a_type_is_a_fault_of_the_notebook():
    with pytest.raises(LaunchError, match="count of notebook untyped_parameter"):
        notebooks.parameters_of(micro("untyped_parameter"))


def test_a_kernel_listens_on_no_port_that_another_program_could_take(tmp_path: Path):
    notebook = tmp_path / "ports.ipynb"
    cell = "import ipykernel as k; print(k.get_connection_info(unpack=True)['transport'])"
    notebook.write_text(
        json.dumps(
            {
                "cells": [
                    {"cell_type": "code", "id": "a", "execution_count": None, "metadata": {},
                     "outputs": [], "source": [cell]}
                ],
                "metadata": {"kernelspec": {"name": "python3", "display_name": "Python"},
                             "language_info": {"name": "python"}},
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        )
    )  # fmt: skip
    notebooks.execute(notebook, tmp_path / "out.ipynb", {})
    outputs = json.loads((tmp_path / "out.ipynb").read_text())["cells"][-1]["outputs"]
    assert "".join(outputs[0]["text"]) == "ipc\n"


def test_a_missing_notebook_is_named():
    with pytest.raises(LaunchError, match=r"nowhere\.ipynb was not found"):
        notebooks.parameters_of(micro("nowhere"))


def test_an_executed_notebook_holds_its_parameters_and_output(tmp_path: Path):
    notebooks.execute(micro("every_type"), tmp_path / "out.ipynb", {"count": 7})
    assert "a 7 0.5 False" in (tmp_path / "out.ipynb").read_text()


@pytest.mark.parametrize("name", ["a{b}", "{", "{}", "{count}"])
def test_braces_in_a_path_are_part_of_it(tmp_path: Path, name: str):
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(micro("every_type"), folder / "in.ipynb")
    notebooks.execute(folder / "in.ipynb", folder / "out.ipynb", {"count": 7})
    assert (folder / "out.ipynb").is_file()


def test_a_cell_that_raises_is_told_and_the_copy_is_kept(tmp_path: Path):
    with pytest.raises(notebooks.NotebookError, match="raised ValueError: count is 3"):
        notebooks.execute(micro("cell_raises"), tmp_path / "out.ipynb", {"count": 3})
    assert "count is 3" in (tmp_path / "out.ipynb").read_text()


def test_a_kernel_keeps_the_tracebacks_of_its_messaging_to_itself(tmp_path: Path):
    notebooks.execute(micro("quiet_kernel"), tmp_path / "out.ipynb", {})
    assert f"messaging is logged from {logging.CRITICAL}" in (tmp_path / "out.ipynb").read_text()


def test_a_kernel_that_dies_is_told(tmp_path: Path):
    with pytest.raises(notebooks.NotebookError, match="kernel ended early"):
        notebooks.execute(micro("kernel_dies"), tmp_path / "out.ipynb", {})


def test_the_training_notebook_has_every_field_of_the_configuration_with_its_type():
    types = notebooks.parameters_of(NOTEBOOK)
    options = set(kernel.RunOptions.__dataclass_fields__)
    assert set(types) == set(RunConfig.model_fields) | options
    defaults = RunConfig(
        platform="cpu", model="m", world_size=1, global_batch_size=1, sequence_length=1
    )
    for name, value in defaults.model_dump().items():
        assert types[name] == type(value).__name__, name


def test_the_training_notebooks_defaults_are_those_of_the_configuration():
    values = namespace()
    fields = RunConfig.model_fields
    given = {name: field.default for name, field in fields.items() if not field.is_required()}
    del given["precision"]  # empty in the notebook: the platform's own
    assert {name: values[name] for name in given} == given


def test_by_hand_the_defaults_make_a_configuration_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(kernel.detect, "detect", lambda: kernel.detect.Machine("cpu", None, 0))
    config, options = kernel.run_parameters(namespace())
    assert (config.platform, config.precision, config.world_size) == ("cpu", "fp32", 1)
    assert options == kernel.RunOptions()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_paralel_size": 2}, "Did you mean 'tensor_parallel_size'"),
        ({"tensor_parallel_size": "2"}, "tensor_parallel_size"),
        ({"steps": True}, "steps"),
        ({"steps": 0}, "steps"),
        ({"force_platform": "no"}, "force_platform='no' is a str, not a bool"),
        ({"extra": None}, "extra"),
    ],
)
def test_by_hand_wrong_parameters_are_refused_by_the_second_cell(
    changes: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        kernel.run_parameters(namespace(platform="cpu", **changes))


def test_running_the_second_cell_again_is_fine():
    first = namespace(platform="cpu")
    config, options = kernel.run_parameters(first)
    again = {**first, "config": config, "options": options}
    assert kernel.run_parameters(again) == (config, options)


def test_the_training_notebook_keeps_the_rules():
    first, *others = cells()
    assert first["metadata"]["tags"] == ["parameters"]
    for line in "".join(first["source"]).splitlines():
        assert line.startswith("# ") or (line.count("=") == 1 and "  # " in line), line
    for cell in others:
        source = "".join(cell["source"])
        assert len(source.splitlines()) <= 12
        assert not any(
            isinstance(node, ast.FunctionDef | ast.For) for node in ast.walk(ast.parse(source))
        )
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.slow
def test_papermill_by_hand_makes_and_publishes_a_run_directory(tmp_path: Path):
    command = [sys.executable, "-m", "papermill", str(NOTEBOOK), str(tmp_path / "out.ipynb")]
    parameters = {
        "model": "tiny-llama",
        "platform": "cpu",
        "tensor_parallel_size": "2",
        "world_size": "2",
        "steps": "3",
        "warmup_steps": "1",
        "trainer": "fake_trainer",
        "runs": str(tmp_path / "runs"),
    }
    for name, value in parameters.items():
        command += ["-p", name, value]
    subprocess.run(
        command, env=environment(stand_in=True), cwd=tmp_path, capture_output=True, check=True
    )
    (directory,) = store.run_directories(tmp_path / "runs")
    record = store.read_record(directory)
    assert record.status == "completed"
    assert record.requested["tensor_parallel_size"] == 2
    assert (
        "step 3/3" in (tmp_path / "out.ipynb").read_text()
        or "completed" in (tmp_path / "out.ipynb").read_text()
    )


@pytest.mark.slow
def test_papermill_by_hand_with_a_wrong_name_fails_before_training(tmp_path: Path):
    command = [sys.executable, "-m", "papermill", str(NOTEBOOK), str(tmp_path / "out.ipynb")]
    command += ["-p", "wrold_size", "2", "-p", "runs", str(tmp_path / "runs")]
    done = subprocess.run(
        command, env=dict(os.environ), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "Did you mean 'world_size'" in done.stderr
    assert not (tmp_path / "runs").exists()
