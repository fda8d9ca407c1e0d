"""Metrics that are registered: functions become columns, and only a user's own file adds one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from simulated import config, write_run

from scalebook.cli import main
from scalebook.errors import ConfigError
from scalebook.facts.catalog.load import held
from scalebook.measure import registered
from scalebook.measure.metrics import measure
from scalebook.report.base import columns
from scalebook.report.base.frames import load
from scalebook.report.site.run_details import write_details
from scalebook.store import read_run

HEAD = "import scalebook as sb\n"
METRIC = '@sb.metric(unit="{unit}", dtype="{dtype}", meaning="what it is", null="No step.")\n'


def metric(name: str, body: str, *, unit: str = "s", dtype: str = "float") -> str:
    return HEAD + METRIC.format(unit=unit, dtype=dtype) + f"def {name}(run):\n    {body}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with two runs, of 0.2 s and 0.4 s per step, as the working directory."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    write_run(folder / "runs", "a", config(), seconds=0.2)
    write_run(folder / "runs", "b", config(micro_batch_size=2), seconds=0.4)
    monkeypatch.chdir(folder)
    return folder


def name(project: Path, source: str, file: str = "mine.py") -> None:
    """Let the project's file name a file of metrics."""
    (project / file).write_text(source)
    (project / ".scalebook.toml").write_text(f'[metrics]\nfiles = ["{file}"]\n')


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, object]]:
    assert main(["list", "--json", *words]) == 0
    return {row["run_id"]: row for row in json.loads(capsys.readouterr().out)}


def test_a_function_of_a_users_file_is_a_column_of_the_list_the_data_and_the_words(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name(project, metric("longest", 'return max(run.steps.known("step_seconds"))'))
    rows, data = listed(capsys), load("runs")
    for run_id, row in rows.items():
        longest = max(data.steps.filter(run_id=run_id)["step_seconds"])
        assert row["longest"] == longest > 0
        assert row["longest_reason"] is None
        assert data.runs.filter(run_id=run_id)["longest"].to_list() == [longest]
    words = {one.name: one for one in columns.columns("runs")}
    assert (words["longest"].unit, words["longest"].meaning) == ("s", "what it is")
    assert words["longest_reason"].meaning == "why longest is null"
    assert main(["list", "--columns", "longest,hfu"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[-2:] == ["longest", "hfu"]


def test_the_page_of_a_run_shows_registered_metrics_with_their_units(project: Path) -> None:
    name(project, metric("longest_step", "return 1.25"))
    write_details(load("runs"), project / "site", project / "cache")
    text = (project / "site/data/run/0.js").read_text().partition("\n")[2]
    for row in json.loads(text.rstrip(";\n")):
        results = dict(row["results"])
        assert results["Longest step"].split() == ["1.25", "s"]
        assert results["Variation of steps"].endswith("%")


def test_a_column_that_nobody_has_is_named_with_the_nearest(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--columns", "hfuu"]) == 2
    assert "Did you mean 'hfu'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "dtype", "reason"),
    [
        ("return 1 / 0", "float", "The metric raised ZeroDivisionError: division by zero."),
        ("raise SystemExit(3)", "float", "The metric raised SystemExit: 3."),
        ("return None", "float", "No step."),
        ('return sb.missing("It is Sunday.")', "float", "It is Sunday."),
        ('return float("nan")', "float", "The metric returned nan, which is not a float."),
        ("return True", "int", "The metric returned True, which is not a int."),
        ("return 2.5", "int", "The metric returned 2.5, which is not a int."),
        ("return 3", "str", "The metric returned 3, which is not a str."),
    ],
)
def test_a_metric_without_a_value_is_null_with_the_reason_and_costs_no_other_number(
    project: Path, capsys: pytest.CaptureFixture[str], body: str, dtype: str, reason: str
) -> None:
    name(project, metric("odd", body, dtype=dtype))
    row = listed(capsys)["a"]
    assert (row["odd"], row["odd_reason"]) == (None, reason)
    assert row["tokens_per_second"] is not None
    assert load("runs").runs["odd_reason"].unique().to_list() == [reason]


@pytest.mark.parametrize(
    ("digits", "reason"),
    [(400, "The metric returned 1000"), (5000, "The metric raised ValueError")],
)
def test_a_number_without_end_is_no_value(
    project: Path, capsys: pytest.CaptureFixture[str], digits: int, reason: str
) -> None:
    name(project, metric("odd", f"return 10**{digits}", dtype="float"))
    row = listed(capsys)["a"]
    assert row["odd"] is None
    assert row["odd_reason"].startswith(reason)


def test_values_of_every_type_reach_the_data(project: Path) -> None:
    texts = {"int": "7", "str": '"seven"', "bool": "True", "float": "7"}
    source = "".join(metric(f"of_{kind}", f"return {v}", dtype=kind) for kind, v in texts.items())
    name(project, source)
    (row, _) = load("runs").runs.iter_rows(named=True)
    assert [row[f"of_{kind}"] for kind in texts] == [7, "seven", True, 7.0]


def test_a_changed_file_counts_at_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in (1, 22):
        name(project, metric("mine", f"return {value}"))
        assert listed(capsys)["a"]["mine"] == value
        assert load("runs").runs["mine"].to_list() == [value, value]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def (", "cannot be run: SyntaxError"),
        ("raise ValueError('no')", "cannot be run: ValueError: no."),
        (metric("mfu", "return 1"), "Scalebook has a column 'mfu'"),
        (metric("seed", "return 1"), "Scalebook has a column 'seed'"),
        (metric("rate", "return 1"), "have a column 'rate'"),
        (metric("Big", "return 1"), "'Big' is not a name that a metric can have"),
        (metric("odd", "return 1", dtype="double"), "dtype 'double'. Use float"),
        (
            HEAD + "a = sb.metric(unit=1, meaning='a', null='b')(lambda run: 1)",
            "not a name that a metric can have",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(project: Path, source: str, says: str) -> None:
    name(project, source)
    with pytest.raises(ConfigError) as error:
        load("runs")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


HOSTILE = 'open({path!r}, "w")\n'


def ran(project: Path) -> bool:
    """Return whether hostile code ran, wherever metrics are read; an error is no harm."""
    for command in (["list"], ["list", "--json"], ["columns", "runs", "--json"]):
        assert main(command) in (0, 2)
    return (project / "ran").exists()


def hostile(project: Path) -> str:
    return HOSTILE.format(path=str(project / "ran"))


def test_a_file_of_the_project_runs_which_is_what_the_other_tests_rule_out(project: Path) -> None:
    name(project, hostile(project))
    assert ran(project)


@pytest.mark.parametrize("place", ["runs", "runs/a"])
def test_a_folder_of_runs_brings_no_metrics_even_as_the_working_directory(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    name(project / place, hostile(project))
    assert not ran(project)
    monkeypatch.chdir(project / place)
    assert not ran(project)
    assert "folder of runs, which may come from others" in capsys.readouterr().err


def test_a_project_whose_file_goes_while_runs_are_read_has_no_metrics_from_then_on(
    project: Path,
) -> None:
    name(project, metric("longest", "return 1.0"))
    with held():
        assert [one.name for one in registered.own()] == ["longest"]
        (project / ".scalebook.toml").unlink()
        assert registered.own() == ()


def test_the_project_cannot_name_a_file_of_a_folder_of_runs(project: Path) -> None:
    (project / "runs/mine.py").write_text(hostile(project))
    (project / ".scalebook.toml").write_text('[metrics]\nfiles = ["runs/mine.py"]\n')
    assert not ran(project)


def test_a_publication_brings_no_metrics(project: Path) -> None:
    (project / "SHA256SUMS").write_text("")
    name(project, hostile(project))
    assert not ran(project)


@pytest.mark.parametrize("file", ["../mine.py", "link.py", "folder", "mine.txt", "missing.py"])
def test_only_python_files_inside_the_project_are_metrics(project: Path, file: str) -> None:
    (project / "folder").mkdir()
    (project.parent / "mine.py").write_text(hostile(project))
    (project / "mine.txt").write_text(hostile(project))
    (project / "link.py").symlink_to(project.parent / "mine.py")
    (project / ".scalebook.toml").write_text(f'[metrics]\nfiles = ["{file}"]\n')
    with pytest.raises(ConfigError, match="Name Python files of this project"):
        registered.own()
    assert not ran(project)


@pytest.mark.parametrize("file", ["mine.py", ".scalebook.toml"])
def test_files_that_others_can_change_are_not_run(project: Path, file: str) -> None:
    name(project, hostile(project))
    (project / file).chmod(0o666)
    with pytest.raises(ConfigError, match="everyone may write to it"):
        registered.own()
    assert not ran(project)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_files_of_another_user_are_not_run(project: Path) -> None:
    name(project, hostile(project))
    os.chown(project / ".scalebook.toml", 1234, 1234)
    with pytest.raises(ConfigError, match="belongs to another user"):
        registered.own()
    assert not ran(project)


def test_a_catalog_that_is_named_brings_no_metrics(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALEBOOK_CATALOG", "")  # main sets it; the next test must not see that
    (project / "mine.py").write_text(hostile(project))
    (project / "other.toml").write_text('[metrics]\nfiles = ["mine.py"]\n')
    assert main(["--catalog", str(project / "other.toml"), "models"]) == 2
    assert "[metrics] counts only in .scalebook.toml" in capsys.readouterr().err
    assert not (project / "ran").exists()


@pytest.mark.parametrize("text", ["metrics = 3", "[metrics]\nfiles = 3", "[metrics]\nfile = []"])
def test_a_malformed_table_says_how_to_write_it(project: Path, text: str) -> None:
    (project / ".scalebook.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"write \[metrics\] as files = \["):
        registered.own()


def test_reserved_memory_is_the_most_of_any_step(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", config())
    assert measure(read_run(path)).registered["reserved_memory_gib"] is None
    lines = [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]
    rows = [line | {"reserved_gib": 10.0 + at} for at, line in enumerate(lines)]
    (path / "steps.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert measure(read_run(path)).registered["reserved_memory_gib"] == 9.0 + len(lines)
