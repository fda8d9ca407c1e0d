"""The table of settings against RunConfig, the trainer, the data files and the command line."""

import ast
import json
import re
import typing
from collections.abc import Iterable
from pathlib import Path

import annotated_types
import pytest

from scalebook import settings
from scalebook.cli import main
from scalebook.config import DEFAULTS, RunConfig
from scalebook.settings import SETTINGS, Kind, is_on

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/scalebook"


def test_every_field_of_run_config_has_exactly_one_row_and_one_kind():
    assert list(SETTINGS) == list(RunConfig.model_fields)
    kinds = [settings.names(kind) for kind in typing.get_args(Kind)]
    assert sorted(name for names in kinds for name in names) == sorted(RunConfig.model_fields)


@pytest.mark.parametrize("name", RunConfig.model_fields)
def test_the_type_of_a_row_is_the_type_of_its_field(name):
    field, row = RunConfig.model_fields[name], SETTINGS[name]
    lower = [one.ge for one in field.metadata if isinstance(one, annotated_types.Ge)]
    choices = typing.get_args(field.annotation)
    if choices:
        assert row.choices == choices
    elif field.annotation is int:
        assert [row.minimum] == lower
    assert row.yes_no == (field.annotation is bool)


def test_a_setting_that_changes_what_is_computed_is_work():
    assert {row.name for row in SETTINGS.values() if "FLOPs" in row.affects} <= {
        *settings.names("work")
    }


def nodes_of(*places: str) -> list[ast.AST]:
    """Return the syntax of the modules at these places of the source."""
    paths = [path for place in places for path in sorted(SOURCE.glob(place))]
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]


def read_of(nodes: Iterable[ast.AST], owners: tuple[str, ...]) -> set[str]:
    """Return which attributes are read of what is named so, such as ``self.config.seed``."""
    reads = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    return {n.attr for n in reads if ast.unparse(n.value).rpartition(".")[2] in owners}


def implemented(*places: str) -> set[str]:
    """Return what code reads of a configuration: by itself, or by what config.py defines."""
    nodes = nodes_of(*places)
    found = read_of(nodes, ("config", "run", "asked"))
    called = [n for n in nodes if isinstance(n, ast.Call)]
    found |= {n.func.id for n in called if isinstance(n.func, ast.Name)}
    arguments = (one for n in called for one in n.args if isinstance(one, ast.Constant))
    found |= {n.value for n in arguments} & set(settings.SWITCHES)  # decide("fused_norm", ...)
    own = [n for n in nodes_of("config.py") if isinstance(n, ast.FunctionDef)]
    for _ in own:  # one may use another
        used = (read_of(ast.walk(n), ("self", "config")) for n in own if n.name in found)
        found = found.union(*used)
    return found


READ = implemented("train/**/*.py", "running/**/*.py")


@pytest.mark.parametrize("name", RunConfig.model_fields)
def test_each_setting_is_read_by_the_trainer_or_by_what_runs_it(name):
    assert name in READ, f"{name} is a setting that nothing implements"


def test_a_setting_that_only_has_a_row_is_not_read():
    assert not set(RunConfig.model_fields) & implemented("step_columns.py")
    assert "learning_rate" not in implemented("running/**/*.py")  # only the trainer reads it


def test_a_switch_is_left_open_by_default():
    assert {DEFAULTS[name] for name in settings.SWITCHES} == {"auto"}


@pytest.mark.parametrize(
    ("value", "on"),
    [("on", True), ("off", False), (True, True), (False, False), (None, None), ("auto", None)],
)
def test_on_and_off_read_alike_in_every_vocabulary_of_records(value, on):
    assert is_on(value) is on


def observed_switches():
    """Return the names in the trainer's own class of decided switches, without importing torch."""
    tree = ast.parse((SOURCE / "train/model/switches.py").read_text())
    one = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Switches")
    return {n.target.id for n in one.body if isinstance(n, ast.AnnAssign)}


def test_the_trainer_observes_every_switch_as_on_or_off():
    # Whose layers run is no switch: layer_spec has two names.
    assert observed_switches() - {"transformer_engine"} == {*settings.SWITCHES}
    records = [json.loads(path.read_text()) for path in ROOT.glob("runs/examples/*/record.json")]
    seen = {
        is_on(value)
        for record in records
        for name, value in record["observed"].items()
        if name in settings.SWITCHES
    }
    assert seen == {True, False}


def flags(command: str, capsys) -> list[str]:
    """Return the options that a command's help shows."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    return re.findall(r"--[a-z0-9-]+", capsys.readouterr().out)


def test_check_takes_a_flag_for_each_setting_with_a_help_text_that_changes_a_step(capsys):
    found = flags("check", capsys)
    for name, row in SETTINGS.items():
        asked = row.help is not None and name not in ("steps", "data")
        assert (f"--{name.replace('_', '-')}" in found) == asked, name


def test_run_takes_a_flag_for_each_setting_with_a_help_text(capsys):
    found = flags("run", capsys)
    own = ("world_size", "strategy")  # --gpus is a limit, and plans name strategies
    missing = [
        name
        for name, row in SETTINGS.items()
        if row.help and name not in own and f"--{name.replace('_', '-')}" not in found
    ]
    assert missing == []


def planned(capsys, *asked: str) -> str:
    assert main(["run", "--platform", "cpu", "--dry-run", *asked]) == 0
    return capsys.readouterr().out


def test_a_flag_of_run_is_the_same_as_set(capsys):
    batch = ["--model", "tiny-llama", "--set", "world_size=2", "--global-batch-size", "8"]
    flag = planned(capsys, *batch, "--sequence-length", "64", "--tensor-parallel-size", "2")
    assert flag == planned(
        capsys, *batch, "--set", "sequence_length=64", "--set", "tensor_parallel_size=2"
    )
    assert "2 ranks, TP2, micro batch 1, fp32, batch 8 x 64 tokens" in flag


def test_a_setting_given_by_flag_and_by_set_is_refused(capsys):
    assert main(["run", "--dry-run", "--steps", "5", "--set", "steps=6"]) == 2
    assert "steps is given by its flag and by --set. Leave one out." in capsys.readouterr().err


def test_what_is_wrong_with_a_flag_is_not_blamed_on_the_default_plan(capsys):
    for asked in (["--model", "nope"], ["--set", "model=nope"]):
        assert main(["run", "--dry-run", "--platform", "cpu", *asked]) == 2
        assert capsys.readouterr().err.startswith("scalebook: Unknown model 'nope'. Known models")
    for command, asked, says in (
        ("drill", ["--model", "nope"], "Unknown model 'nope'. Known models"),
        ("run", ["--dry-run", "--cool-down", "3x"], "cool_down='3x' is not a pause."),
    ):
        assert main([command, "--platform", "cpu", *asked]) == 2
        assert capsys.readouterr().err.startswith(f"scalebook: {says}")


def test_a_flag_reaches_the_configuration_with_its_type(capsys):
    asked = ["--fused-attention", "off", "--mtp-layers", "0", "--no-sequence-parallel"]
    code = main(
        ["check", "--json", "--model", "llama3.1-8b", "--platform", "h100", "--gpus", "8", *asked]
    )
    config = json.loads(capsys.readouterr().out)["config"]
    assert code in (0, 1)
    assert (config["fused_attention"], config["mtp_layers"]) == ("off", 0)
    assert config["sequence_parallel"] is False
