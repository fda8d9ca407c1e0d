"""The Python API: its page's examples run, its values are those of the records and the commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
from training import environment

import scalebook as sb
from scalebook import api
from scalebook.errors import ConfigError, ScalebookError
from scalebook.report.charts.figure import data_rows

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "runs/examples"
PAGE = (ROOT / "src/scalebook/API.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[2][:40])
def test_every_example_of_the_page_runs(block: str, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    exec(compile(block, "API.md", "exec"), {})


def test_the_page_names_every_verb():
    named = re.findall(r"^\| `(\w+)\(", PAGE, re.M)
    assert sorted([*named, "Runs"]) == sorted(api.VERBS)


def test_importing_the_package_loads_nothing_and_no_module_gets_a_verb_by_chance():
    code = "import sys, scalebook; print([n for n in sys.modules if n.startswith('scalebook.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sb.nothing


def test_mfu_is_that_of_the_record_that_the_trainer_wrote():
    runs = sb.load(EXAMPLES)
    (row,) = runs.frame.filter(runs.frame["run_id"].str.ends_with("f7a529f1dcbc")).to_dicts()
    found = sb.mfu(
        row["tokens_per_second_per_gpu"],
        model="llama3.1-8b",
        sequence_length=8192,
        accelerator="H200-SXM-141GB",
    )
    assert found.fraction == pytest.approx(row["mfu"], rel=1e-9)


def test_runs_are_filtered_with_their_steps_and_stay_frozen():
    runs = sb.load(EXAMPLES)
    records = [json.loads(path.read_text()) for path in EXAMPLES.glob("*/record.json")]
    assert len(runs) == len(records)
    h100 = runs.where(platform="h100")
    assert len(h100) == sum(one["requested"]["platform"] == "h100" for one in records)
    assert set(h100.steps["run_id"]) <= set(h100.frame["run_id"])
    assert "<table" in h100._repr_html_()
    with pytest.raises(FrozenInstanceError):
        h100.frame = runs.frame
    with pytest.raises(ConfigError, match=r"Unknown column 'platfrom'.*Did you mean 'platform'"):
        runs.where(platfrom="h100")


def test_telemetry_is_of_the_runs_that_were_chosen():
    runs = sb.load(EXAMPLES).where(platform="h200")
    found = runs.telemetry
    assert found["run_id"].n_unique() > 1
    assert set(found["run_id"]) <= set(runs.frame["run_id"])


def test_pandas_is_optional_and_its_absence_is_said_with_the_way_out(monkeypatch):
    runs = sb.load(EXAMPLES)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ScalebookError, match=r"pandas is not installed\..*pip install pandas"):
        runs.to_pandas()


def test_a_pandas_frame_has_the_columns_of_the_frame(monkeypatch):
    if find_spec("pandas") is None or find_spec("pyarrow") is None:  # stand-ins for both
        for name in ("pandas", "pyarrow"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setattr(pl.DataFrame, "to_pandas", lambda frame: frame.clone())
    runs = sb.load(EXAMPLES)
    assert list(runs.to_pandas().columns) == runs.frame.columns


def test_results_show_as_tables_in_a_notebook_with_their_text_escaped():
    rate = {"model": "llama3.1-8b", "sequence_length": 8192, "accelerator": "H200-SXM-141GB"}
    assert "<td>57.1%</td>" in sb.mfu(10_982, **rate)._repr_html_()
    assert "No dense peak" in sb.mfu(10_982, **rate, precision="fp4")._repr_html_()
    shown = sb.check("qwen2.5-7b", "h100", world_size=8, tensor_parallel_size=8)._repr_html_()
    assert "<th>legal</th><td>no</td>" in shown
    assert "tensor_parallel_size=8" in shown
    eight = {"world_size": 8, "tensor_parallel_size": 2, "sequence_length": 8192}
    assert "GiB" in sb.memory("llama3.1-8b", "h100", **eight)._repr_html_()
    rated = sb.predict("llama3.1-8b", "h100", runs=EXAMPLES, **eight)._repr_html_()
    assert "tokens/s per GPU" in rated
    assert "<td>1 s (" in sb.steady([1.0, 1.001, 0.999] * 20)._repr_html_()
    assert "none of 2" in sb.steady([1.0, 1.001])._repr_html_()
    odd = api.Comparison(None, "<b>", ())
    assert "&lt;b&gt;" in odd._repr_html_()


def test_runs_travel_to_a_notebook_as_a_table_and_as_a_chart_of_their_rates():
    alt = pytest.importorskip("altair")
    formatter = pytest.importorskip("IPython.core.formatters").DisplayFormatter()
    formatter.active_types = formatter.format_types
    runs = sb.load(EXAMPLES).where(platform="h200", model="llama3.1-8b", precision="bf16")
    shown, _ = formatter.format(runs)
    assert "<table" in shown["text/html"]
    with alt.renderers.enable("mimetype"):
        plain, _ = alt.Chart().mark_point()._repr_mimebundle_()
    (kind,) = plain.keys() - {"text/plain"}  # whatever this altair writes
    assert kind.startswith("application/vnd.vegalite.v")
    chart = shown[kind]
    assert chart["$schema"] == alt.SCHEMA_URL
    rows = {row["run_id"]: row["rate"] for row in data_rows(chart)}
    rates = dict(runs.frame.drop_nulls("rate").select("run_id", "rate").iter_rows())
    assert rows == pytest.approx(rates, rel=1e-5)
    svg = pytest.importorskip("vl_convert").vegalite_to_svg(chart)
    assert "tokens/s per GPU" in svg
    none = runs.where(status="out_of_memory")
    assert none._repr_mimebundle_() == {}


def test_an_illegal_configuration_is_judged_and_has_no_memory():
    # 28 heads are not a multiple of 8.
    found = sb.check("qwen2.5-7b", "h100", world_size=8, tensor_parallel_size=8)
    assert not found.legal and found.fits is None
    with pytest.raises(ConfigError, match="tensor_parallel_size=8"):
        sb.memory("qwen2.5-7b", "h100", world_size=8, tensor_parallel_size=8)


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'tensor_parallel_size'"):
        sb.check("llama3.1-8b", "h100", tensor_paralel_size=2)


RATE = {"model": "llama3.1-8b", "sequence_length": 8192, "accelerator": "H200-SXM-141GB"}


def test_a_rate_above_the_peak_has_no_mfu_and_a_reason():
    at_peak = 989.4e12 / sb.flops("llama3.1-8b", 8192)  # the data sheet's dense peak
    assert sb.mfu(at_peak * (1 - 1e-9), **RATE).fraction == pytest.approx(1)
    found = sb.mfu(at_peak * 1.01, **RATE)
    assert found.fraction is None and found.reason is not None
    assert "999 TFLOP/s per GPU is above the dense bf16 peak of H200-SXM-141GB" in found.reason


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1"])
def test_what_is_no_rate_and_no_step_time_is_refused(value):
    with pytest.raises(ConfigError, match="must be a finite number above zero"):
        sb.mfu(value, **RATE)
    with pytest.raises(ConfigError, match="must be a finite number above zero"):
        sb.steady([1.0] * 20 + [value])
    with pytest.raises(ConfigError, match=r"sequence_length=.* must be a finite number above zero"):
        sb.flops("llama3.1-8b", value)


@pytest.mark.parametrize(
    ("supplied", "words"),
    [
        ({"sequence_lenght": 8192}, "Did you mean 'sequence_length'"),
        ({"gpus": 8}, "Known values: .*world_size"),
        ({"world_size": "8"}, "world_size='8' must be a whole number of at least 1"),
        ({"world_size": 0}, "world_size=0 must be"), ({"nodes": True}, "nodes=True must be"),
        ({"precision": "bf17"}, "precision='bf17' must be one of bf16, fp16"),
    ],
)  # fmt: skip
def test_what_a_log_is_supplied_with_is_refused_as_by_the_command(tmp_path, supplied, words):
    log = ROOT / "tests/logs/megatron_2024.log"
    with pytest.raises(ConfigError, match=words):
        sb.read_log(log, tmp_path / "runs", **supplied)
    assert not (tmp_path / "runs").exists()
    assert len(sb.read_log(log, tmp_path / "runs", platform="h100", trained="all")) == 1


def test_a_folder_that_is_not_there_predicts_nothing(tmp_path):
    with pytest.raises(ScalebookError, match="No folder of runs at"):
        sb.predict("llama3.1-8b", "h100", runs=tmp_path / "none", world_size=8)


def test_predict_is_a_verb_and_a_package_whichever_is_asked_for_first():
    for first in ("import scalebook as sb; sb.predict", "from scalebook import predict"):
        code = f"{first}\nfrom scalebook import predict as p\nprint(p.load.__name__, callable(p))"
        words = (sys.executable, "-c", code)
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "load True"
    assert sb.predict("llama3.1-8b", "h100", runs=EXAMPLES, world_size=8).low > 0


def test_no_other_verb_has_the_name_of_a_part_of_the_package():
    parts = {path.stem for path in (ROOT / "src/scalebook").iterdir()}
    assert parts & {*api.VERBS} == {"predict"}


@pytest.mark.slow
def test_run_trains_and_returns_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", environment(stand_in=True)["PYTHONPATH"])
    small = {"sequence_length": 64, "global_batch_size": 2, "steps": 2, "warmup_steps": 0}
    found = sb.run("tiny-llama", "cpu", runs=tmp_path, world_size=1, **small)
    assert found.record.status == "completed"
    assert len(found.steps) == 2


def test_a_shell_completes_the_verbs():
    command = [sys.executable, "-c", "import scalebook; print(*dir(scalebook))"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {"check", "flops", "load", "predict", "read_log", "__version__"} <= {
        *done.stdout.split()
    }
