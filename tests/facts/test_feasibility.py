"""The feasibility map: what fits by measurement, by inference and by prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated import config, write_run

import scalebook.facts.feasibility as maps
from scalebook import store
from scalebook.cli import main
from scalebook.config import RunConfig
from scalebook.facts import catalog, legality
from scalebook.facts.feasibility import Cell, feasibility, growth
from scalebook.facts.feasibility.known import PARTS, known, predict, predictions
from scalebook.report.base.frames import FEASIBILITY_SCHEMA, collect

H100 = "NVIDIA H100 80GB HBM3"
RAN_OUT = {"status": "out_of_memory", "cause": "gpu_memory", "reason": "The GPU's memory ran out."}


def on_h100(**changes: Any) -> RunConfig:
    """Return a configuration of Llama 3.1 8B on 8 GPUs."""
    fields: dict[str, Any] = {
        "platform": "h100",
        "model": "llama3.1-8b",
        "world_size": 8,
        "precision": "bf16",
        "global_batch_size": 64,
        "sequence_length": 4096,
    }
    return config(**(fields | changes))


def write(runs: Path, name: str, settings: RunConfig, **record: Any) -> None:
    steps = 0 if record.get("status") == "out_of_memory" else 4
    device = record.pop("device", H100)
    write_run(runs, name, settings, steps=steps, source="measured", device=device, **record)


def cells(runs: Path, model: str | None = None) -> dict[tuple[int, int, int, str], Cell]:
    """Return the cells of a folder by tensor and pipeline size, micro batch and recomputation."""
    found = feasibility(store.read_runs(runs)[0], model)
    return {
        (c.tensor_parallel_size, c.pipeline_parallel_size, c.micro_batch_size, c.recompute): c
        for c in found
    }


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs of which one fits with micro batch 2 and one ran out of memory with 4."""
    write(tmp_path, "fits-2", on_h100(micro_batch_size=2))
    write(tmp_path, "out-4", on_h100(micro_batch_size=4), **RAN_OUT)
    split = {"tensor_parallel_size": 2, "sequence_parallel": True}
    write(tmp_path, "fits-tp2-8", on_h100(micro_batch_size=8, recompute="full", **split))
    return tmp_path


def said(cell: Cell) -> tuple[str | None, str]:
    return cell.verdict, cell.evidence


def test_what_ran_is_measured_with_its_run_and_peak(runs: Path):
    fits, out = cells(runs)[1, 1, 2, "none"], cells(runs)[1, 1, 4, "none"]
    assert (*said(fits), fits.run_ids, fits.peak_memory_gib) == (
        "fits",
        "measured",
        ("fits-2",),
        0.5,
    )
    assert (*said(out), out.reason, out.peak_memory_gib) == (
        "out_of_memory",
        "measured",
        "The GPU's memory ran out.",
        None,
    )


def test_what_needs_no_less_is_inferred_not_to_fit_and_what_needs_no_more_to_fit(runs: Path):
    found = cells(runs)
    assert said(found[1, 1, 8, "none"]) == ("out_of_memory", "inferred")
    assert found[1, 1, 8, "none"].run_ids == ("out-4",)
    assert said(found[1, 1, 2, "full"]) == ("fits", "inferred")
    assert said(found[2, 1, 4, "full"]) == ("fits", "inferred")
    assert found[2, 1, 4, "full"].run_ids == ("fits-tp2-8",)


def test_the_rest_is_the_prediction_of_the_memory_model(runs: Path):
    cell = cells(runs)[2, 1, 2, "none"]
    assert cell.evidence == "predicted"
    shape = catalog.model("llama3.1-8b")
    split = {"tensor_parallel_size": 2, "sequence_parallel": True}
    estimate, fit = legality.fitting(legality.Case(on_h100(micro_batch_size=2, **split), shape))
    assert cell.predicted_gib == pytest.approx(estimate.total_gib)
    assert (cell.capacity_gib, cell.run_ids, cell.peak_memory_gib) == (80, (), None)
    assert fit.capacity_gib is None  # without a device the model gives no verdict; the map has one
    assert cell.verdict == "fits"


def test_a_configuration_that_broke_once_and_ran_once_is_at_the_edge(tmp_path: Path):
    write(tmp_path, "a", on_h100())
    write(tmp_path, "b", on_h100(repeat=1), **RAN_OUT)
    (cell,) = cells(tmp_path).values()
    assert said(cell) == ("out_of_memory", "measured")
    assert cell.reason.startswith("1 of 2 runs ran out of memory: at the edge.")
    assert set(cell.run_ids) == {"a", "b"}


def test_an_inferred_record_is_inferred_and_gives_way_to_a_measured_one(tmp_path: Path):
    inferred: dict[str, Any] = {**RAN_OUT, "inferred_from": "base"}
    write_run(tmp_path, "i", on_h100(), steps=0, source="inferred", **inferred)
    (cell,) = cells(tmp_path).values()
    assert (*said(cell), cell.run_ids) == ("out_of_memory", "inferred", ("base",))
    write(tmp_path, "m", on_h100(repeat=1))
    (cell,) = cells(tmp_path).values()
    assert (*said(cell), cell.run_ids) == ("fits", "measured", ("m",))


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        ({"status": "timeout"}, "fits"),  # 4 steps ran
        ({"status": "out_of_memory", "cause": "host_memory"}, None),
        ({"status": "illegal", "steps": 0}, None),
        ({"status": "failed", "steps": 1}, None),
    ],
)
def test_only_a_run_whose_memory_was_full_shows_something(
    tmp_path: Path, record: dict[str, Any], verdict: str | None
):
    values = {"steps": 4, "device": H100, **record}
    write_run(tmp_path, "a", on_h100(), source="measured", **values)
    found = known(store.read_runs(tmp_path)[0])
    assert [one.verdict for one in found] == ([verdict] if verdict else [])


def test_a_run_that_broke_before_it_could_name_its_device_has_that_of_the_others(tmp_path: Path):
    write(tmp_path, "a", on_h100(), device=H100)
    write(tmp_path, "b", on_h100(micro_batch_size=4), device=None, **RAN_OUT)
    assert {cell.accelerator for cell in cells(tmp_path).values()} == {H100}


def test_the_device_that_all_others_name_goes_before_the_platforms(tmp_path: Path):
    write(tmp_path, "a", on_h100(), device="NVIDIA H100 PCIe")
    write(tmp_path, "b", on_h100(micro_batch_size=4), device=None, **RAN_OUT)
    found = known(store.read_runs(tmp_path)[0])
    assert [one.accelerator for one in found] == ["NVIDIA H100 PCIe"] * 2


def test_maps_of_other_sizes_and_models_are_kept_apart(runs: Path):
    write(runs, "other", on_h100(world_size=16, nodes=2, micro_batch_size=32))
    write(runs, "qwen", on_h100(model="qwen2.5-7b"))
    assert {cell.world_size for cell in cells(runs).values()} == {8, 16}
    assert not [c for c in feasibility(store.read_runs(runs)[0]) if c.micro_batch_size == 16]
    assert {cell.model for cell in cells(runs, "qwen2.5-7b").values()} == {"qwen2.5-7b"}


def test_simulated_runs_are_no_measurements(tmp_path: Path):
    write_run(tmp_path, "s", on_h100(), device=H100)
    assert [cell.evidence for cell in cells(tmp_path).values()] == ["simulated"]


def test_a_model_that_nobody_knows_has_its_runs_alone(tmp_path: Path):
    write(tmp_path, "a", on_h100(model="secret-7b"))
    write(tmp_path, "b", on_h100(model="secret-7b", micro_batch_size=4), **RAN_OUT)
    assert [(said(c), c.predicted_gib) for c in cells(tmp_path).values()] == [
        (("fits", "measured"), None),
        (("out_of_memory", "measured"), None),
    ]


def test_the_report_has_the_map_as_a_frame(runs: Path):
    frame = collect(runs, store.read_runs(runs)[0], ()).feasibility
    assert dict(frame.schema) == FEASIBILITY_SCHEMA
    assert frame.height == len(feasibility(store.read_runs(runs)[0]))
    assert set(frame["evidence"]) == {"measured", "inferred", "predicted"}


def test_the_command_prints_cells_as_json_and_a_table_a_map(runs: Path, capsys: Any):
    assert main(["feasibility", "--runs", str(runs), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert {value["evidence"] for value in values} == {"measured", "inferred", "predicted"}
    assert main(["feasibility", "--runs", str(runs)]) == 0
    text = capsys.readouterr().out
    assert "llama3.1-8b on 8 x NVIDIA H100 80GB HBM3, sequence 4,096" in text
    assert "fits 0.5" in text
    assert "(out)" in text


def test_a_folder_without_such_runs_is_said(tmp_path: Path, capsys: Any):
    assert main(["feasibility", "--runs", str(tmp_path), "--model", "x"]) == 0
    assert "No run of x" in capsys.readouterr().out
    assert main(["feasibility", "--runs", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize(
    ("smaller", "larger", "grown"),
    [
        ({}, {}, {}),
        ({}, {"repeat": 1, "seed": 7, "steps": 99, "strategy": "mine"}, {}),
        ({}, {"micro_batch_size": 2}, {"micro_batch_size": 2}),
        ({"micro_batch_size": 2}, {}, None),
        ({}, {"sequence_length": 8192, "global_batch_size": 128},
         {"sequence_length": 8192, "global_batch_size": 128}),
        ({}, {"micro_batch_size": 2, "sequence_length": 2048}, None),
        ({}, {"tensor_parallel_size": 2}, None),
        ({"recompute": "full"}, {"recompute": "selective"}, {"recompute": "selective"}),
        ({"recompute": "selective"}, {"recompute": "none"}, {"recompute": "none"}),
        ({"recompute": "pointwise"}, {"recompute": "selective"}, None),
        ({"recompute": "none"}, {"recompute": "full"}, None),
    ],
)  # fmt: skip
def test_memory_is_compared_only_where_everything_differs_one_way(
    smaller: dict[str, Any], larger: dict[str, Any], grown: dict[str, Any] | None
):
    assert growth(on_h100(**smaller), on_h100(**larger)) == grown


@pytest.mark.parametrize(
    ("seen", "sizes"),
    [({1}, [1]), ({1, 8}, [1, 2, 4, 8]), ({3, 12}, [3, 4, 8, 12]), ({2, 4}, [2, 4]), ({6}, [6])],
)
def test_a_map_has_the_powers_of_two_between_the_micro_batches_that_ran(
    seen: set[int], sizes: list[int]
):
    assert maps._micro_batches(seen) == sizes


def test_a_combination_has_the_samples_of_its_runs_or_the_next_that_its_micro_batch_allows():
    found = list(maps._combinations([on_h100(micro_batch_size=size) for size in (1, 3)]))
    # 64 samples on 8 replicas: 72 is the next multiple of 3 x 8, and 64 one of 2 x 8.
    assert [(one.micro_batch_size, one.global_batch_size) for one in found] == [
        (1, 64), (2, 64), (3, 72),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "steps", "shows"),
    [
        ({"status": "completed"}, 0, "fits"),
        ({"status": "failed"}, 1, None),
        ({"status": "failed"}, 2, "fits"),
        ({"status": "out_of_memory"}, 4, "out_of_memory"),
        ({"status": "out_of_memory", "reason": "The host's memory ran out."}, 4, None),
        ({"status": "out_of_memory", "cause": "gpu_memory", "reason": "The host's memory"}, 4,
         "out_of_memory"),
    ],
)  # fmt: skip
def test_two_steps_prove_that_a_configuration_fits(
    tmp_path: Path, record: dict[str, Any], steps: int, shows: str | None
):
    write_run(tmp_path, "a", on_h100(), source="measured", device=H100, steps=steps, **record)
    found = known(store.read_runs(tmp_path)[0])
    assert [one.verdict for one in found] == ([shows] if shows else [])


def test_the_memory_of_a_cpu_run_is_the_hosts(tmp_path: Path):
    host = {"status": "out_of_memory", "cause": "host_memory"}
    small = config(platform="cpu", model="tiny-llama")
    write_run(tmp_path, "a", small, source="measured", steps=0, **host)
    assert [one.verdict for one in known(store.read_runs(tmp_path)[0])] == ["out_of_memory"]


def test_a_device_that_no_run_names_is_the_platforms(tmp_path: Path):
    write(tmp_path, "a", on_h100(), device=None, **RAN_OUT)
    (cell,) = cells(tmp_path).values()
    assert cell.accelerator == catalog.accelerator("H100-SXM5-80GB").device_names[0]
    for name, device in (("b", H100), ("c", "NVIDIA H100 PCIe")):
        write(tmp_path, name, on_h100(seed=9), device=device)
    # Two devices of one platform: which of them broke is not known, so the platform's is taken.
    assert {one.accelerator for one in known(store.read_runs(tmp_path)[0])} == {
        H100, "NVIDIA H100 PCIe",
    }  # fmt: skip


def test_an_edge_has_the_most_memory_of_its_runs(tmp_path: Path):
    for repeat in range(3):
        record = RAN_OUT if repeat == 1 else {}
        write(tmp_path, f"r{repeat}", on_h100(repeat=repeat), **record)
    (one,) = known(store.read_runs(tmp_path)[0])
    assert one.reason == "1 of 3 runs ran out of memory: at the edge. The GPU's memory ran out."
    assert (one.verdict, len(one.run_ids), one.peak_memory_gib) == ("out_of_memory", 3, 0.5)


def test_a_place_that_ran_at_another_batch_is_not_predicted_a_second_time(tmp_path: Path):
    write(tmp_path, "one", on_h100())
    write(tmp_path, "three", on_h100(micro_batch_size=3, global_batch_size=96))
    found = feasibility(store.read_runs(tmp_path)[0])
    # Of micro batch 3 the run alone, not also the 72 samples that come next after 64.
    sizes = [(cell.micro_batch_size, cell.global_batch_size) for cell in found]
    assert sizes == [(1, 64), (2, 64), (3, 96)]


def test_one_replica_rounds_the_batch_up_to_its_micro_batch_alone():
    split = {"tensor_parallel_size": 8, "sequence_parallel": True}
    found = maps._combinations([on_h100(micro_batch_size=size, **split) for size in (1, 3)])
    assert [one.global_batch_size for one in found] == [64, 64, 66]


def test_a_map_ends_at_its_most_cells(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(maps, "MOST_CELLS", 2)
    assert len(list(maps._combinations([on_h100(micro_batch_size=n) for n in (1, 8)]))) == 2


@pytest.mark.parametrize("broken", [0, 2])
def test_runs_that_agree_are_not_at_the_edge(tmp_path: Path, broken: int):
    record = RAN_OUT if broken else {"reason": None}
    for repeat in range(2):
        write(tmp_path, f"r{repeat}", on_h100(repeat=repeat), **record)
    (cell,) = cells(tmp_path).values()
    assert cell.reason == (RAN_OUT["reason"] if broken else "4 steps ran")
    assert cell.run_ids == ("r0", "r1")


@pytest.mark.parametrize("platform", ["cpu", "a-machine-of-mine"])
def test_a_platform_without_a_device_in_the_catalog_has_none(tmp_path: Path, platform: str):
    write(tmp_path, "a", on_h100(platform=platform), device=None)
    (one,) = known(store.read_runs(tmp_path)[0])
    assert (one.accelerator, one.verdict) == (None, "fits")


def test_a_known_device_has_its_memory_on_a_machine_that_nobody_knows(tmp_path: Path):
    write(tmp_path, "a", on_h100(platform="a-machine-of-mine"))
    write(tmp_path, "b", on_h100(platform="a-machine-of-mine", seed=3), device="MyGPU")
    found = feasibility(store.read_runs(tmp_path)[0])
    assert {one.accelerator: one.capacity_gib for one in found} == {H100: 80, "MyGPU": None}


def test_runs_of_unknown_devices_are_never_the_same(tmp_path: Path):
    for name in ("a", "b"):
        write(tmp_path, name, on_h100(platform="a-machine-of-mine"), device=None)
        write(tmp_path, f"cpu-{name}", on_h100(platform="cpu"), device=None)
    found = known(store.read_runs(tmp_path)[0])
    assert sorted(one.run_ids for one in found) == [("a",), ("b",), ("cpu-a", "cpu-b")]


@pytest.mark.parametrize(("size", "shown"), [(10**15, 1), (10**15 + 1, 0)])
def test_a_size_that_no_machine_has_shows_nothing(tmp_path: Path, size: int, shown: int):
    write(tmp_path, "a", on_h100(seed=size))
    assert len(known(store.read_runs(tmp_path)[0])) == shown


def test_an_inference_names_the_fields_that_grew(runs: Path):
    found = cells(runs)
    assert found[1, 1, 8, "none"].reason == (
        "micro_batch_size=8 needs no less than out-4, which ran out of memory"
    )
    assert found[1, 1, 2, "full"].reason == "needs no more than fits-2, which ran"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": "nobody-knows"}, "the shape of nobody-knows is not known"),
        ({"tensor_parallel_size": 3, "world_size": 3}, "its sizes do not fit together"),
    ],
)
def test_what_cannot_be_predicted_says_why(fields: dict[str, Any], reason: str):
    found = predict(config(**fields))
    assert (found.parts, found.reason) == (None, reason)
    assert predict(config()).reason is None


def test_each_run_has_its_prediction_or_a_reason(tmp_path: Path):
    write(tmp_path, "whole", on_h100())
    write(tmp_path, "again", on_h100(repeat=1))
    write(tmp_path, "wider", on_h100(micro_batch_size=2))
    write(tmp_path, "broken", on_h100(seed=10**16))  # a size that no machine has
    found = predictions(store.read_runs(tmp_path)[0])
    assert found["broken"].reason == "its configuration is incomplete"
    assert found["broken"].parts is None
    estimate, _ = legality.fitting(legality.Case(on_h100(), catalog.model("llama3.1-8b")))
    parts = found["whole"].parts
    assert parts is not None and {*PARTS, "total"} == parts.keys()
    assert parts == estimate.parts_gib() == found["again"].parts
    assert parts["total"] == pytest.approx(sum(parts.values()) - parts["total"])
    wider = found["wider"].parts
    assert wider is not None
    changed = {name for name in PARTS if wider[name] != parts[name]}
    assert changed == {"activations", "logits", "backward"}
