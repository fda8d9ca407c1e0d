"""Whether two runs are the same, decided from records that the trainer wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from scalebook import identity, store
from scalebook.measure.diagnosis import diagnose
from scalebook.measure.metrics import RunMetrics, measure
from scalebook.measure.verdicts.differences import differences, other_work
from scalebook.record import RunRecord
from scalebook.report.base import comparisons
from scalebook.report.base.frames import SCHEMA, ReportData, load
from scalebook.report.base.naming import group_name
from scalebook.report.base.scaling_series import scaling_series
from scalebook.report.base.versus import configurations
from scalebook.report.pages.reliability_page import failure_kinds
from scalebook.settings import named

EXAMPLES = Path(__file__).parents[1] / "runs/examples"
DP4 = next(EXAMPLES.glob("*-e702a0da437e"))  # 4 H100s, data parallel, optimizer sharded
PP2 = next(EXAMPLES.glob("*-86d1705eff5b"))
Change = Mapping[str, Mapping[str, Any]]
NONE: Change = {}


def copied(folder: Path, source: Path, name: str, change: Change = NONE, **values: Any) -> Path:
    """Copy a run that the trainer wrote under another id, with other values in its record."""
    target = folder / name
    shutil.copytree(source, target)
    record = json.loads((target / "record.json").read_text()) | {"run_id": name} | values
    for part, changed in change.items():
        record[part] |= changed
    (target / "record.json").write_text(json.dumps(record))
    return target


def record_of(source: Path = DP4, change: Change = NONE, **values: Any) -> RunRecord:
    record = json.loads((source / "record.json").read_text()) | values
    for part, changed in change.items():
        record[part] |= changed
    return RunRecord(**record)


def pooled(data: ReportData) -> list[int]:
    """Return how many runs each configuration of the pages has."""
    rows = data.runs.drop_nulls("rate").iter_rows(named=True)
    return [len(one.every) for one in configurations(rows)]


@pytest.mark.parametrize("off", ["off", False])
def test_an_overlap_that_the_trainer_says_is_off_is_diagnosed(tmp_path: Path, off: object) -> None:
    observed = {"overlap_grad_reduce": off, "overlap_param_gather": "on"}
    run = store.read_run(copied(tmp_path, DP4, "off", {"observed": observed}))
    found = {item.rule: item for item in diagnose(run).findings}
    assert found["overlap_off"].says.startswith("overlap_grad_reduce is off")


@pytest.mark.parametrize("off", ["off", False])
def test_a_fusion_that_is_off_is_diagnosed_in_new_and_old_records(
    tmp_path: Path, off: object
) -> None:
    change = {"observed": {"fused_norm": off, "fused_attention": off}}
    run = store.read_run(copied(tmp_path, DP4, "off", change))
    found = {item.rule: item for item in diagnose(run).findings}
    assert "fused_norm" in found["fusions_off"].says
    assert "attention_kernel" in found


def test_runs_under_two_versions_of_torch_are_no_repeats_anywhere(tmp_path: Path) -> None:
    copied(tmp_path, DP4, "one")
    copied(tmp_path, DP4, "two", {"environment": {"torch": "2.13.0"}})
    data = load(tmp_path)
    assert data.runs["repeats"].to_list() == [1, 1]
    assert pooled(data) == [1, 1]


def test_repeats_are_repeats_in_the_data_and_on_the_pages(tmp_path: Path) -> None:
    copied(tmp_path, DP4, "one")
    copied(tmp_path, DP4, "two", {"requested": {"repeat": 1, "strategy": "balanced"}})
    data = load(tmp_path)
    assert data.runs["repeats"].to_list() == [2, 2]
    assert pooled(data) == [2]


def test_a_gate_compares_one_configuration_across_versions() -> None:
    old, new = record_of(), record_of(change={"environment": {"torch": "2.13.0"}})
    assert identity.configuration(old) == identity.configuration(new) is not None
    assert identity.repeat(old) != identity.repeat(new)


@pytest.mark.parametrize("name", named("never"))
def test_what_a_run_is_called_is_no_part_of_its_identity(name: str) -> None:
    other = record_of(change={"requested": {name: "balanced" if name == "strategy" else 7}})
    keys: tuple[Callable[[RunRecord], str | None], ...] = (
        identity.repeat, identity.configuration, identity.matched, identity.work, identity.series,
    )  # fmt: skip
    assert all(key(other) == key(record_of()) for key in keys)


@pytest.mark.parametrize(
    "change",
    [
        {"last_pipeline_stage_layers": 3}, {"nodes": 2}, {"checkpoint_interval": 10},
        {"data": "corpus"}, {"expert_tensor_parallel_size": 2}, {"checkpoint_async": True},
        {"load_checkpoint": "old"}, {"step_split": False}, {"fused_norm": "off"},
    ],
)  # fmt: skip
def test_a_matched_configuration_was_asked_for_alike_in_every_setting(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    h100 = {"accelerator": "NVIDIA H100 80GB HBM3"}
    h200 = {"accelerator": "NVIDIA H200"}
    for name, more in (("same", {}), ("other", change)):
        folder = tmp_path / name
        copied(folder, PP2, "a", {"requested": {"platform": "h100"}, "environment": h100})
        asked = {"platform": "h200", **more}
        copied(folder, PP2, "b", {"requested": asked, "environment": h200})
    kinds: list[set[str]] = []
    for name in ("same", "other"):
        rows = comparisons.ranked(load(tmp_path / name))
        kinds.append({one.kind for one in comparisons.platform_pairs(rows)})
    assert kinds == [{"matched configuration", "best against best"}, {"best against best"}]


def test_a_run_of_packed_documents_does_other_work_than_one_of_whole_samples() -> None:
    whole, packed = record_of(), record_of(change={"requested": {"packed_documents": 2}})
    before = whole.model_copy(
        update={"requested": {k: v for k, v in whole.requested.items() if k != "packed_documents"}}
    )
    for key in (identity.work, identity.repeat, identity.configuration, identity.matched):
        assert key(before) == key(whole) != key(packed)
    found = differences([whole], [packed])
    assert other_work(found) == "A and B do different work: packed documents 1 against 2."


def test_failures_are_of_one_kind_by_their_cause_and_never_by_their_sentence() -> None:
    rows = [
        ("failed", "signal", "Rank 3 was ended by SIGSEGV."),
        ("failed", "signal", "Rank 0 was ended by SIGSEGV."),
        ("failed", "refused", "The trainer failed on rank 1: KeyError."),
        ("failed", "assertion", "The trainer failed on rank 1: AssertionError."),
        ("timeout", "time_limit", "Stopped after 60 s (limit)."),
        ("timeout", "time_limit", "Stopped after 90 s (limit)."),
        ("failed", None, None),
        ("failed", None, None),
    ]
    names = ("status", "cause", "reason", "run_id")
    frame = pl.DataFrame(
        [dict(zip(names, (*row, str(i)), strict=True)) for i, row in enumerate(rows)]
    )
    kinds = [run_ids for _, _, run_ids in failure_kinds(frame)]
    assert kinds == [["0", "1"], ["4", "5"], ["2"], ["3"], ["6"], ["7"]]


def test_the_cause_that_a_record_holds_reaches_the_data(tmp_path: Path) -> None:
    copied(tmp_path, DP4, "broken", status="out_of_memory", reason="No room.", cause="gpu_memory")
    assert load(tmp_path).runs["cause"].to_list() == ["gpu_memory"]


def test_every_field_of_a_runs_metrics_is_a_column_of_the_data(tmp_path: Path) -> None:
    assert {one.name for one in fields(RunMetrics)} - {"registered"} <= {*SCHEMA}
    copied(tmp_path, DP4, "one")
    data = load(tmp_path)
    assert not data.problems
    (row,) = data.runs.iter_rows(named=True)
    item = measure(store.read_run(tmp_path / "one"))
    assert row["hfu"] == item.hfu is not None
    assert {*item.registered} <= {*SCHEMA}
    assert json.loads(row["device_notes"]) == list(item.device_notes)


@pytest.mark.parametrize("name", ["model", "platform"])
def test_runs_of_an_unknown_model_or_platform_are_never_compared(tmp_path: Path, name: str) -> None:
    for run_id, ranks in (("a", 1), ("b", 1), ("c", 4)):
        known = {"requested": {name: None, "world_size": ranks}, "observed": {"world_size": ranks}}
        copied(tmp_path, DP4, run_id, known)
    data = load(tmp_path)
    assert data.runs["repeats"].to_list() == [1, 1, 1]
    assert data.runs["group"].n_unique() == 3
    assert pooled(data) == [1] * data.runs.drop_nulls("rate").height
    assert scaling_series(data.runs) == ()
    record = store.read_record(tmp_path / "a")
    keys = (identity.repeat, identity.configuration)
    assert [key(record) for key in keys] == [None, None]


def test_an_unknown_version_or_device_makes_no_repeat() -> None:
    for part in ("torch", "megatron_core", "accelerator"):
        assert identity.repeat(record_of(change={"environment": {part: None}})) is None


IMAGE = {"SCALEBOOK_IMAGE": "localhost/scalebook-nvidia:0.1.0"}
FIRST, SECOND = (f"sha256:{letter * 64}" for letter in "ab")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"SCALEBOOK_IMAGE_ID": FIRST}, {"SCALEBOOK_IMAGE_ID": FIRST}, True),
        ({"SCALEBOOK_IMAGE_ID": FIRST}, {"SCALEBOOK_IMAGE_ID": SECOND}, False),
        ({"SCALEBOOK_IMAGE_ID": FIRST, "packages_sha256": "0"},
         {"SCALEBOOK_IMAGE_ID": FIRST, "packages_sha256": "1"}, True),
        ({"packages_sha256": "0" * 64}, {"packages_sha256": "0" * 64}, True),
        ({"packages_sha256": "0" * 64}, {"packages_sha256": "1" * 64}, False),
        ({"SCALEBOOK_IMAGE_ID": FIRST}, {}, False),
        ({}, {}, False),  # named by a tag, which can have moved: an unknown equals nothing
    ],
)  # fmt: skip
def test_repeats_ran_in_the_same_image(
    one: dict[str, str], other: dict[str, str], same: bool
) -> None:
    found = [
        record_of(change={"environment": {"container": IMAGE | known}}) for known in (one, other)
    ]
    keys = [identity.repeat(record) for record in found]
    assert (keys[0] is not None and keys[0] == keys[1]) is same
    assert identity.configuration(found[0]) == identity.configuration(found[1])


def test_runs_in_no_image_or_one_that_nothing_names_are_repeats_by_their_versions() -> None:
    bare = [record_of(change={"environment": {"container": known}})
            for known in ({}, {"NVIDIA_PRODUCT_NAME": "CUDA"}, None)]  # fmt: skip
    keys = {identity.repeat(record) for record in bare}
    assert len(keys) == 1 and None not in keys
    within = record_of(change={"environment": {"container": {"SCALEBOOK_IMAGE_ID": FIRST}}})
    assert identity.repeat(within) not in keys


def test_runs_of_two_images_are_told_apart_by_name(tmp_path: Path) -> None:
    for name, image in (("one", FIRST), ("two", SECOND)):
        known = {"environment": {"container": IMAGE | {"SCALEBOOK_IMAGE_ID": image}}}
        copied(tmp_path, DP4, name, known)
    one, two = load(tmp_path).runs["name"].to_list()
    assert two == f"{one} · image {'b' * 12}"


def test_unknown_items_are_each_by_themselves() -> None:
    assert identity.alike([1, 2, 3, 4], lambda one: None if one < 3 else 0) == [[1], [2], [3, 4]]


def test_a_group_of_known_runs_is_named_without_a_run() -> None:
    row = {"model": "m", "platform": "h100", "precision": "bf16", "sequence_length": 4096}
    names = {group_name(row | {"run_id": run_id}) for run_id in ("a", "b")}
    assert len(names) == 1
    assert "run" not in names.pop()
