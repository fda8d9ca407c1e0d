"""The best known rates of a model: three kinds of evidence, each with its conditions and source."""

from __future__ import annotations

import csv
import json
import shlex
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated import H100, config, write_run

from scalebook import store
from scalebook.cli import main
from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.facts.catalog.results import PublishedResult
from scalebook.facts.flops import published_rate
from scalebook.measure.metrics import measure
from scalebook.predict import load, recommended, search

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "runs/examples"
FLAGS = ("--runs", str(EXAMPLES), "--platform")
CATALOG = """
[[published]]
id = "{id}"
source = "a page"
model = "llama3.1-8b"
accelerator = "H100-SXM5-80GB"
world_size = 8
sequence_length = 8192
precision = "{precision}"
{rate}
"""


def asked(**fields: object) -> RunConfig:
    base = {"platform": "h100", "model": "llama3.1-8b", "world_size": 8, "precision": "bf16"}
    return config(**(base | {"sequence_length": 8192, "global_batch_size": 128} | fields))


def known_rows(monkeypatch: pytest.MonkeyPatch, path: Path, *rows: dict[str, str]) -> None:
    """Add published rows; their rates are too high for any other row to be faster."""
    path.write_text("".join(CATALOG.format(**row) for row in rows))
    monkeypatch.setenv("SCALEBOOK_CATALOG", str(path))


def answers(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, object]]:
    assert main(["recommend", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_first_published_row_is_the_fastest_of_those_under_the_asked_conditions():
    with (ROOT / "src/scalebook/facts/catalog/published.csv").open() as stream:
        alike = [
            float(row["tokens_per_second_per_gpu"])
            for row in csv.DictReader(stream)
            if (row["model"], row["accelerator"], row["world_size"], row["sequence_length"])
            == ("llama3.1-8b", "H100-SXM5-80GB", "8", "8192")
            and (row["precision"], row["task"]) == ("BF16", "pretrain")
        ]
    first, *others = recommended.published(asked(), 20).rows
    assert (first.tokens_per_second_per_gpu, first.differs) == (max(alike), ())
    assert all(row.differs for row in others)
    assert [len(row.differs) for row in others] == sorted(len(row.differs) for row in others)


@pytest.mark.parametrize(
    ("stated", "question", "same"),
    [
        ("BF16", "bf16", True),
        ("MXFP8", "fp8", True),
        ("FP8 (torchao)", "fp8", True),
        ("BF16/FP16", "fp16", True),
        ("BF16/INT8", "bf16", False),
        ("NVFP4/FP8", "fp8", False),
        ("FP8", "bf16", False),
    ],
)
def test_a_source_s_words_for_a_precision_are_compared_by_what_they_mean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stated: str, question: str, same: bool
):
    rate = "tokens_per_second_per_gpu = 900000"
    only = {"id": "only", "precision": stated, "rate": rate}
    known_rows(monkeypatch, tmp_path / "facts.toml", only)
    rows = recommended.published(asked(precision=question), 100).rows
    differs = next(row.differs for row in rows if "row only" in row.source)
    assert differs == (() if same else (f"precision {stated}",))


def test_a_published_rate_follows_from_tflops_only_by_a_stated_convention(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    claim = "claimed_tflops_per_second_per_gpu = 48000"
    known = f'{claim}\nflops_convention = "palm_6n"'
    rows = (
        {"id": "known", "precision": "BF16", "rate": known},
        {"id": "unknown", "precision": "BF16", "rate": claim},
        {"id": "node", "precision": "FP16", "rate": "tokens_per_second = 8000000"},
    )
    known_rows(monkeypatch, tmp_path / "facts.toml", *rows)
    found = recommended.published(asked(), 100)
    rates = {row.source: row for row in found.rows}
    parameters, attention = 8_030_261_248, 12 * 32 * 4096 * 8192  # by hand: PaLM's 6N + 12LHQT
    counted = 48000e12 / (6 * parameters + attention)
    converted = rates["a page (row known)"]
    assert converted.tokens_per_second_per_gpu == pytest.approx(counted, rel=1e-3)
    assert converted.notes == ("rate: from TFLOP/s by palm_6n",)
    assert rates["a page (row node)"].tokens_per_second_per_gpu == 1_000_000
    assert "a page (row unknown)" not in rates
    assert found.left_out["neither tokens per second nor TFLOP/s of a known convention are stated"]


def test_fine_tuning_is_in_no_ranking_of_training():
    found = recommended.published(asked(), 1000)
    assert found.left_out["LoRA, not pretraining"] == 1
    assert not any("LoRA" in row.source for row in found.rows)


def test_a_model_that_nobody_published_has_no_row_and_says_so():
    nobody = recommended.published(asked(model="tiny-llama", sequence_length=256), 5)
    assert nobody.rows == ()
    none = "The catalog has no published rate of pretraining"
    assert nobody.said == f"{none} tiny-llama on H100-SXM5-80GB."
    cut = recommended.published(asked(model="llama3.1-8b@8"), 5)
    assert cut.rows == ()
    assert cut.said.startswith(
        f"{none} llama3.1-8b@8 on H100-SXM5-80GB. It has some of llama3.1-8b"
    )


def test_a_model_published_on_other_devices_only_says_on_which():
    elsewhere = recommended.published(asked(platform="cpu"), 5)
    assert elsewhere.rows == ()
    assert "no published rate of pretraining llama3.1-8b on a CPU" in elsewhere.said
    assert "H100-SXM5-80GB (35)" in elsewhere.said


def test_the_first_measured_row_is_the_run_of_the_readme_with_its_interval():
    found = recommended.measured(asked(platform="h200", world_size=4), EXAMPLES, 3)
    first, second, _ = found.rows
    assert Path(first.source).name.endswith("f7a529f1dcbc")
    values = (first.tokens_per_second_per_gpu, first.low, first.high)
    assert [round(value or 0) for value in values] == [10_982, 10_632, 11_238]
    assert (first.interval, first.differs, first.date) == ("95 %", (), "2026-11-28")
    assert first.layout == "DP4, micro batch 1, bf16"
    assert "megatron-core 0.16.1" in (first.software or "")
    assert second.differs == ("precision fp8",)


def test_runs_of_other_models_depths_devices_and_simulations_are_counted_but_not_ranked(
    tmp_path: Path,
):
    here = asked(world_size=1, sequence_length=128, global_batch_size=8)
    write_run(tmp_path, "real", here, source="measured", device=H100, seconds=1.0)
    write_run(tmp_path, "simulated", here, device=H100)
    write_run(tmp_path, "cut", here.model_copy(update={"model": "llama3.1-8b@8"}),
              source="measured", device=H100)  # fmt: skip
    write_run(tmp_path, "elsewhere", here, source="measured", device="NVIDIA H200")
    write_run(tmp_path, "broken", here, source="measured", device=H100, status="failed",
              reason="It broke.")  # fmt: skip
    found = recommended.measured(here, tmp_path, 1)
    (row,) = found.rows
    assert Path(row.source).name == "real"
    assert row.tokens_per_second_per_gpu == pytest.approx(8 * 128, rel=0.05)
    for reason in (
        "simulated, not measured",
        "llama3.1-8b@8: another number of layers",
        "another device: H200-SXM-141GB",
        "without a rate",
    ):
        assert found.left_out[reason] >= 1


def test_a_run_from_a_log_is_labelled_as_of_another_trainer(tmp_path: Path):
    here = asked(world_size=1, sequence_length=128, global_batch_size=8)
    write_run(tmp_path, "log", here, source="ingested", device=H100)
    (row,) = recommended.measured(here, tmp_path, 1).rows
    assert row.differs == ("trainer: an imported log",)


def test_predicted_rows_are_the_first_of_the_search_with_what_they_rest_on():
    question = asked(world_size=2, model="llama3.1-8b@8", sequence_length=4096)
    made = load("h100", EXAMPLES)
    ranking = search.layouts(question, made)
    found = recommended.predicted(question, made, 3)
    assert [row.layout for row in found.rows] == [
        one.config.words() for one in ranking.candidates[:3]
    ]
    fits = [one.prediction.fits for one in ranking.candidates]
    assert fits[0] and None in fits  # what may not fit is not offered first
    assert all(row.source.startswith("fit to ") and row.interval == "90 %" for row in found.rows)
    assert (
        found.left_out["slower by prediction, may not fit, or rest on an assumption"]
        == len(ranking.candidates) - 3
    )


def test_each_kind_has_its_own_ranking(capsys: pytest.CaptureFixture[str]):
    found = answers(capsys, *FLAGS, "h100", "--model", "llama3.1-8b", "--gpus", "8")
    assert list(found) == ["question", "published", "measured", "predicted"]
    for kind in ("published", "measured", "predicted"):
        rows = found[kind]["rows"]
        assert isinstance(rows, list)
        assert {row["kind"] for row in rows} == {kind}
        assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    assert found["question"]["sequence_length"] == 4096


def test_csv_has_the_kind_of_every_row(capsys: pytest.CaptureFixture[str]):
    words = ["recommend", *FLAGS, "h200", "--model", "llama3.1-8b", "--gpus", "4", "--most", "2"]
    assert main([*words, "--csv"]) == 0
    rows = list(csv.DictReader(StringIO(capsys.readouterr().out)))
    assert [row["kind"] for row in rows] == [
        kind for kind in ("published", "measured", "predicted") for _ in range(2)
    ]


def test_the_terminal_says_what_was_asked_and_what_was_assumed(capsys: pytest.CaptureFixture[str]):
    words = ["recommend", *FLAGS, "cpu", "--model", "tiny-llama", "--gpus", "2", "--most", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assumed = "fp32 (default), sequence 256 (default), global batch 32 (default)\n"
    assert said.startswith(f"Asked: tiny-llama on 2 x cpu, {assumed}")
    assert "no published rate of pretraining tiny-llama on a CPU" in said
    assert "the catalog only: no run, no probe" in said


def test_the_command_of_a_prediction_predicts_that_very_rate(capsys: pytest.CaptureFixture[str]):
    """Flags that a layout leaves out have defaults that depend on it: another batch or stage."""
    words = ["--model", "llama3.1-8b", "--gpus", "8", "--global-batch-size", "96"]
    rows = answers(capsys, *FLAGS, "h100", *words, "--most", "30")["predicted"]["rows"]
    staged = next(row for row in rows if "in the last stage" in row["layout"])
    sharded = next(row for row in rows if "fully sharded" in row["layout"])
    for row in (rows[0], staged, sharded):
        command = shlex.split(row["command"])
        assert command[0] == "scalebook"
        assert main([*command[1:], "--runs", str(EXAMPLES), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        for name in ("tokens_per_second_per_gpu", "low", "high"):
            assert found[name] == pytest.approx(row[name], rel=1e-9)
        assert found["layout"].startswith(row["layout"])
    assert main(["recommend", *FLAGS, "h100", *words, "--most", "1"]) == 0
    assert f"\n  {rows[0]['command']}\n" in capsys.readouterr().out


def test_an_unknown_model_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]):
    assert main(["recommend", "--model", "llama3.1-8", "--platform", "h100"]) == 2
    assert "Did you mean 'llama3.1-8b'?" in capsys.readouterr().err


def test_a_run_of_an_unknown_device_is_one_of_its_platform_alone(tmp_path: Path) -> None:
    for name, said in (("cpu", None), ("mi300x", "another device: mi300x")):
        run = write_run(tmp_path, name, config(platform=name), source="measured")
        assert recommended._unlike(config(), measure(store.read_run(run))) == said


# Rows by hand


def published_row(**fields: Any) -> PublishedResult:
    """Return a row that states nothing but what is given."""
    first = catalog.published()[0]
    empty = {one.name: None for one in dataclass_fields(first)}
    base = {"id": "7", "source": "A page", "url": "u", "date": "2026-01", "task": "pretrain",
            "confidence": "high", "mtp_layers": 0, "model": "llama3.1-8b"}  # fmt: skip
    return replace(first, **(empty | base | fields))


@pytest.mark.parametrize(
    ("fields", "layout"),
    [
        ({}, "not stated"),
        ({"tensor_parallel_size": 1, "pipeline_parallel_size": 1}, "not stated"),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 4, "data_parallel_size": 1},
         "TP2 PP4 DP1"),
        ({"context_parallel_size": 2, "fully_sharded_size": 8, "micro_batch_size": 3},
         "CP2 FSDP8, micro batch 3"),
        ({"micro_batch_size": 1}, "micro batch 1"),
    ],
)  # fmt: skip
def test_a_published_layout_is_what_its_row_states(fields: dict[str, int], layout: str):
    found = recommended._published_row(asked(), published_row(**fields), 9.0, "")
    assert found.layout == layout


@pytest.mark.parametrize(
    ("fields", "note", "notes"),
    [
        ({}, "", ()),
        ({"caveat": "A caveat."}, "rate: so", ("rate: so", "A caveat.")),
        ({"confidence": "low"}, "", ("low confidence",)),
    ],
)
def test_a_published_row_is_kept_with_its_source_and_what_to_know_of_it(
    fields: dict[str, str], note: str, notes: tuple[str, ...]
):
    stated = {"precision": "BF16", "sequence_length": 8192, "world_size": 8,
              "global_batch_size": 64, "framework": "An engine"}  # fmt: skip
    found = recommended._published_row(asked(), published_row(**stated, **fields), 9.0, note)
    assert found == recommended.Recommended(
        "published", 0, 9.0, None, None, None, "BF16", 8192, 8, 64, "not stated", "An engine",
        "A page (row 7)", "u", "2026-01", (), notes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "rate"),
    [
        ({"tokens_per_second_per_gpu": 5.0, "tokens_per_second": 80.0, "world_size": 8}, 5),
        ({"tokens_per_second": 80.0, "world_size": 8}, 10),
        ({"tokens_per_second": 80.0}, None),
        ({"claimed_tflops_per_second_per_gpu": 480.0, "flops_convention": "six_n"}, None),
        ({"claimed_tflops_per_second_per_gpu": 480.0, "sequence_length": 8192}, None),
    ],
)
def test_a_published_rate_is_of_one_gpu_or_none(fields: dict[str, Any], rate: float | None):
    assert published_rate(published_row(**fields))[0] == rate


def test_a_prediction_says_what_it_rests_on():
    basis = load("h100", EXAMPLES).basis
    none = replace(basis, runs=0, probe=None)
    assert recommended._basis(none) == "the catalog only: no run, no probe"
    assert recommended._basis(replace(none, probe="p1")) == "probe p1"
    two = replace(basis, runs=3, folders=("a", "b"))
    assert recommended._basis(two) == "fit to 3 runs in a and b"


@pytest.mark.parametrize(
    ("low", "high", "world", "ends", "notes"),
    [
        (80.0, 120.0, 8, (10, 15), ("3 repeats",)),
        (None, None, 8, (None, None), ("3 repeats", "Too few steps.")),
        (80.0, 120.0, None, (None, None), ("3 repeats", "Too few steps.")),
    ],
)
def test_a_measured_interval_is_that_of_one_gpu(
    low: float | None, high: float | None, world: int | None, ends: object, notes: object
):
    item: Any = SimpleNamespace(
        tokens_per_second_per_gpu=12.0, world_size=world, tokens_per_second_low=low,
        tokens_per_second_high=high, precision="bf16", sequence_length=8192, repeats=3,
        source="measured", interval_reason="Too few steps.", global_batch_size=4,
    )  # fmt: skip
    one: Any = SimpleNamespace(metrics=item)
    found = recommended._measured_row(asked(), one, Path("x"))
    assert ((found.low, found.high), found.notes) == (ends, notes)
    assert found.interval == (None if ends == (None, None) else "95 %")
    assert found.differs == (() if world else ("GPUs not stated",))
    item.repeats = 1
    assert "repeats" not in str(recommended._measured_row(asked(), one, Path("x")).notes)


def test_a_precision_that_the_device_lacks_is_said_before_any_rate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    asked = ("--model", "llama3.1-8b", "--platform", "h100", "--gpus", "2")
    words = ("recommend", *asked, "--runs", str(tmp_path))
    assert main([*words, "--precision", "fp4"]) == 0
    _, second, *_ = capsys.readouterr().out.splitlines()
    assert second.startswith("Not possible: precision=fp4 is not known for H100-SXM5-80GB.")
    assert main([*words, "--precision", "fp8"]) == 0
    assert "Not possible" not in capsys.readouterr().out
