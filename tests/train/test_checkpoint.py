"""Checkpoints: every layout goes on where it was, and no kill takes the last good one."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from train_checkpoints import LAYOUTS
from training import small

from scalebook import store
from scalebook.errors import ConfigError
from scalebook.facts import catalog, legality
from scalebook.measure import reliability
from scalebook.record import StepRecord
from scalebook.running import finish_run
from scalebook.running.launch import direct
from scalebook.train import cpu

with cpu.lean_import():  # as the other tests do: whoever is first imports Megatron-Core for all
    from scalebook.train import mcore  # noqa: F401

from scalebook.train.checkpoint import keeper, mcore_checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The losses of each layout: to the end, and from the checkpoint in the middle."""
    folder = tmp_path_factory.mktemp("layouts")
    script, answer = Path(__file__).parents[1] / "train_checkpoints.py", folder / "found.json"
    subprocess.run(
        [sys.executable, str(script), str(folder), str(answer)],
        check=True, timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return json.loads(answer.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_goes_on_from_its_checkpoint_bit_by_bit(layout: str, trained: dict[str, Any]):
    found = trained[layout]
    assert len(found["whole"]) == 4
    if "grouped_gemm" not in LAYOUTS[layout]:
        assert found["rest"] == found["whole"][2:]
    # Those went on with their experts the other way, whose products round otherwise.
    assert found["rest"] == pytest.approx(found["whole"][2:], rel=1e-6)


@pytest.mark.slow
def test_as_many_checkpoints_are_kept_as_were_asked_for(trained: dict[str, Any]):
    for found in trained.values():
        assert found["kept"] == ["latest.json", "step-00000002", "step-00000004"]


def saved(folder: Path, step: int, **layout: Any) -> Path:
    """Write what is on disk of a whole checkpoint, but its data."""
    path = folder / f"step-{step:08d}"
    path.mkdir(parents=True)
    config = small().model_dump(include=set(keeper.LAYOUT)) | layout
    (path / keeper.CONTENT).write_text(json.dumps({"step": step, "config": config}))
    return path


def name_latest(folder: Path, path: Path) -> None:
    (folder / keeper.LATEST).write_text(json.dumps({"name": path.name}))


def test_training_does_not_wait_until_an_old_checkpoint_is_removed(tmp_path, monkeypatch):
    kept = keeper.Keeper(SimpleNamespace(), tmp_path)
    for step in (1, 2, 3):
        saved(kept.folder, step)
    begun, may_end = threading.Event(), threading.Event()

    def slow(path: Path) -> None:
        begun.set()
        assert may_end.wait(60)
        removed(path)

    removed = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", slow)
    removing = kept._prune(1)
    assert begun.wait(60)
    # Gone by name, so that nothing loads what is half removed; the files go later.
    assert [path.name for path in kept.folder.glob("step-*")] == ["step-00000003"]
    assert len(list(kept.folder.iterdir())) == 3
    assert removing.daemon  # a process that ends does not wait for it
    may_end.set()
    removing.join()
    assert [path.name for path in kept.folder.iterdir()] == ["step-00000003"]


def test_the_newest_checkpoints_are_kept_and_what_a_kill_left_is_not(tmp_path):
    kept = keeper.Keeper(SimpleNamespace(), tmp_path)
    for step in (8, 9, 10):
        saved(kept.folder, step)
    (kept.folder / f"{keeper.UNFINISHED}step-00000007").mkdir()
    kept._prune(4).join()
    assert len(list(kept.folder.iterdir())) == 3
    kept._prune(2).join()
    names = sorted(path.name for path in kept.folder.iterdir())
    assert names == ["step-00000009", "step-00000010"]


@pytest.mark.parametrize(("keep", "completed", "left"), [
    (0, True, 0), (0, False, 1), (2, True, 2), (2, False, 2),
])  # fmt: skip
def test_a_run_that_did_not_complete_leaves_a_checkpoint_to_go_on_from(
    tmp_path: Path, keep: int, completed: bool, left: int
):
    config, world = SimpleNamespace(checkpoint_keep=keep), SimpleNamespace(rank=0)
    kept = keeper.Keeper(SimpleNamespace(config=config, world=world), tmp_path)
    for step in (1, 2, 3):
        name_latest(kept.folder, saved(kept.folder, step))
    kept.finish(completed)
    assert len(list(kept.folder.glob("step-*"))) == left
    assert kept.folder.exists() is (left > 0)


def test_what_only_transformer_engine_fills_is_saved_with_it_alone():
    state = {"a.weight": 1, "a._extra_state": 2}
    for on in (True, False):
        trainer = SimpleNamespace(
            model=SimpleNamespace(switches=SimpleNamespace(transformer_engine=on))
        )
        found = keeper._without_extras(state, trainer)
        assert found == (state if on else {"a.weight": 1})


def test_states_that_are_saved_without_a_count_of_steps_are_loaded_with_one(monkeypatch):
    put: list[dict[str, Any]] = []

    class Part:
        def _set_main_param_and_optimizer_states(self, _parameter: Any, tensors: Any) -> None:
            put.append(tensors)

    part, other = Part(), SimpleNamespace()
    loads = lambda state: part._set_main_param_and_optimizer_states(None, state)  # noqa: E731
    whole = SimpleNamespace(chained_optimizers=[other, part], load_state_dict=loads)
    monkeypatch.setattr(mcore_checkpoint, "set_steps", lambda _: None)
    mcore_checkpoint.load_optimizer(whole, {"exp_avg": 1.0})
    assert put == [{"step": 0.0, "exp_avg": 1.0}]
    assert not vars(other)


def test_without_a_marker_there_is_no_checkpoint(tmp_path: Path):
    saved(tmp_path, 3)
    assert keeper.latest(tmp_path) is None
    assert keeper.source(small(), tmp_path) is None


def test_a_checkpoint_that_was_not_named_before_a_kill_does_not_count(tmp_path: Path):
    old = saved(tmp_path, 3)
    name_latest(tmp_path, old)
    saved(tmp_path, 6)
    (tmp_path / ".saving-00000009-0").mkdir()
    assert keeper.source(small(), tmp_path) == old


def test_a_marker_cut_off_names_nothing(tmp_path: Path):
    saved(tmp_path, 3)
    (tmp_path / keeper.LATEST).write_text('{"name": "st')
    assert keeper.latest(tmp_path) is None


def test_a_run_goes_on_from_its_own_checkpoint_before_the_one_asked_for(tmp_path: Path):
    other, own = tmp_path / "other", tmp_path / "own"
    name_latest(own, saved(own, 2))
    name_latest(other, saved(other, 1))
    assert keeper.source(small(load_checkpoint=str(other)), own) == own / "step-00000002"


@pytest.mark.parametrize("where", ["", "checkpoints", "checkpoints/step-00000002"])
def test_a_checkpoint_is_named_by_its_run_its_folder_or_itself(tmp_path: Path, where: str):
    folder = tmp_path / "checkpoints"
    name_latest(folder, saved(folder, 2))
    asked = small(load_checkpoint=str(tmp_path / where))
    assert keeper.source(asked, tmp_path / "new") == folder / "step-00000002"


@pytest.mark.parametrize(
    ("step", "layout", "words"),
    [
        (5, {}, "of step 5, and steps=5 leaves nothing to do"),
        (2, {"tensor_parallel_size": 2}, r"tensor_parallel_size=2 \(here 1\)"),
        (2, {"model": "tiny-moe"}, r"model='tiny-moe' \(here 'tiny-llama'\)"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    tmp_path: Path, step: int, layout: dict[str, Any], words: str
):
    name_latest(tmp_path, saved(tmp_path, step, **layout))
    with pytest.raises(ConfigError, match=words):
        keeper.source(small(load_checkpoint=str(tmp_path)), tmp_path / "new")


@pytest.mark.parametrize("content", ['{"step": "2", "config": {}}', '{"step": 2}', "[]", '{"step'])
def test_a_checkpoint_that_does_not_say_its_step_and_layout_is_refused(
    tmp_path: Path, content: str
):
    path = saved(tmp_path, 2)
    name_latest(tmp_path, path)
    (path / keeper.CONTENT).write_text(content)
    with pytest.raises(ConfigError, match="does not contain the checkpoint's step and config"):
        keeper.source(small(load_checkpoint=str(tmp_path)), tmp_path / "new")


def test_a_marker_leads_to_no_other_folder(tmp_path: Path):
    saved(tmp_path / "elsewhere", 2)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / keeper.LATEST).write_text('{"name": "../elsewhere/step-00000002"}')
    assert keeper.latest(tmp_path / "own") is None


class Runs:
    """What a pickle can hold: a call that is made when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_checkpoint_whose_table_of_contents_runs_code_is_refused(tmp_path: Path):
    mcore_checkpoint = pytest.importorskip("scalebook.train.checkpoint.mcore_checkpoint")
    path, mark = saved(tmp_path, 2), tmp_path / "ran"
    (path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (path / ".metadata").write_bytes(pickle.dumps(Runs(mark)))
    with pytest.raises(ConfigError, match=r"\.metadata is refused: it names posix\.mkdir"):
        mcore_checkpoint.load({}, path, {})
    (path / ".metadata").write_bytes(b"\x80\x04cut")
    with pytest.raises(ConfigError, match="is refused"):
        mcore_checkpoint.load({}, path, {})
    assert not mark.exists()


@pytest.mark.parametrize("chain", ["", "chained_0."])
def test_experts_whose_optimizer_was_saved_by_buffers_are_refused(tmp_path: Path, chain: str):
    mcore_checkpoint = pytest.importorskip("scalebook.train.checkpoint.mcore_checkpoint")
    tables = pytest.importorskip("torch.distributed.checkpoint.metadata")
    path = saved(tmp_path, 2)
    (path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    buffers = f"{chain}optimizer.distributed.dp_group_idx_0.gbuf_idx_0.bucket_idx_0.param"
    named = f"{chain}optimizer.state.exp_avg.output_layer.weight"
    experts = mcore_checkpoint.content(SimpleNamespace(num_moe_experts=4))
    dense = mcore_checkpoint.content(SimpleNamespace(num_moe_experts=None))
    for name, kind, refused in (
        (buffers, experts, True), (named, experts, False), (buffers, dense, False),
    ):  # fmt: skip
        table = tables.Metadata({name: tables.BytesStorageMetadata()})
        (path / ".metadata").write_bytes(pickle.dumps(table))
        try:
            mcore_checkpoint.load({}, path, kind)
        except ConfigError as error:
            assert refused and "names of parameters only (fully_reshardable). Load" in str(error)
        except Exception:  # noqa: BLE001  Megatron-Core finds no data
            assert not refused
        else:
            assert not refused


@pytest.mark.parametrize(
    "name", ["builtins eval", "torch load", "torch.distributed.checkpoint.planner reduce"]
)
def test_a_table_of_contents_names_nothing_that_can_be_called_to_harm(tmp_path: Path, name: str):
    mcore_checkpoint = pytest.importorskip("scalebook.train.checkpoint.mcore_checkpoint")
    path = saved(tmp_path, 2)
    (path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    module, function = name.split()
    (path / ".metadata").write_bytes(f"c{module}\n{function}\n.".encode())
    with pytest.raises(ConfigError, match=f"it names {module}.{function}"):
        mcore_checkpoint.refuse_code(path)


def test_the_other_parts_of_a_checkpoint_are_read_as_data(tmp_path: Path):
    torch = pytest.importorskip("torch")
    mcore_checkpoint = pytest.importorskip("scalebook.train.checkpoint.mcore_checkpoint")
    path, mark = tmp_path / "common.pt", tmp_path / "ran"
    torch.save({"a": Runs(mark)}, path)
    with mcore_checkpoint._data_only(), pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=False)  # as Megatron-Core asks in some versions
    assert not mark.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="contains no complete checkpoint"):
        keeper.source(small(load_checkpoint=str(tmp_path)), tmp_path / "new")


def rules(**changes: Any) -> dict[str, str]:
    config = small(**changes)
    problems = legality.check(legality.Case(config, catalog.model(config.model)))
    return {problem.rule: problem.severity for problem in problems}


def test_checkpoints_of_fsdp_are_refused():
    full = {"data_parallel_sharding": "full", "world_size": 2}
    assert rules(checkpoint_interval=2, **full)["checkpoint_sharding"] == "error"
    assert rules(load_checkpoint="x", **full)["checkpoint_sharding"] == "error"
    assert "checkpoint_sharding" not in rules(**full)
    assert "checkpoint_sharding" not in rules(checkpoint_interval=2)


@pytest.mark.parametrize(("ranks", "whole"), [(1, [96, 32]), (2, [])])
def test_memory_for_copies_is_that_of_the_updated_parameters_and_their_moments(
    ranks: int, whole: list[int]
):
    torch = pytest.importorskip("torch")
    pytest.importorskip("megatron.core")
    chunk = [torch.zeros(6, 8, dtype=torch.bfloat16), torch.zeros(16, dtype=torch.bfloat16)]
    updated = [torch.zeros(part.numel() // ranks) for part in chunk]  # in fp32, this rank's share
    adam = SimpleNamespace(param_groups=[{"params": [part]} for part in updated])
    trainer = SimpleNamespace(
        optimizer=SimpleNamespace(inner=SimpleNamespace(optimizer=adam)),
        model=SimpleNamespace(chunks=[SimpleNamespace(parameters=lambda: iter(chunk))]),
        share=SimpleNamespace(data_size=ranks),
    )
    weights = [192 // ranks, 64 // ranks]
    assert keeper.state_sizes(trainer) == [*weights, *weights, *weights, *whole]


def test_settings_that_do_nothing_are_said():
    assert rules(checkpoint_interval=6)["checkpoint_interval"] == "warning"  # of 5 steps
    assert rules(max_restarts=1)["checkpoint_restarts"] == "warning"
    assert not rules(max_restarts=1, checkpoint_interval=2)


def test_a_configuration_without_checkpoints_keeps_its_hash_and_its_command(tmp_path: Path):
    assert small().config_hash() == small(checkpoint_interval=0).config_hash()
    assert small().config_hash() != small(checkpoint_interval=2).config_hash()
    where = {"config_path": tmp_path / "c.json", "output": tmp_path}
    assert "--max-restarts" not in direct(small(), **where).command
    command = direct(small(max_restarts=2), **where).command
    assert command[command.index("--max-restarts") + 1] == "2"


def step(number: int, restart: int = 0, loss: float = 1.0) -> StepRecord:
    return StepRecord(
        step=number, phase="measured", step_seconds=1.0, tokens=1, loss=loss, restart=restart
    )


def written(path: Path, steps: list[StepRecord]) -> Path:
    path.write_text("".join(f"{one.model_dump_json()}\n" for one in steps))
    return path


def test_of_steps_done_twice_those_count_that_training_went_on_from(tmp_path: Path):
    lines = [step(1), step(2), step(3, loss=3.0), step(3, 1, 3.5), step(4, 1)]
    path = written(tmp_path / "steps.jsonl", lines)
    steps, problems = store.read_steps(path)
    assert [(s.step, s.restart, s.loss) for s in steps] == [
        (1, 0, 1.0), (2, 0, 1.0), (3, 1, 3.5), (4, 1, 1.0),
    ]  # fmt: skip
    assert not problems
    assert store.read_step_lines(path)[0] == tuple(lines)


def test_a_second_restart_may_go_back_behind_the_first(tmp_path: Path):
    lines = [step(1), step(2), step(3), step(3, 1), step(4, 1), step(2, 2), step(3, 2)]
    steps, _ = store.read_steps(written(tmp_path / "steps.jsonl", lines))
    assert [(s.step, s.restart) for s in steps] == [(1, 0), (2, 2), (3, 2)]


def test_steps_without_a_restart_are_read_as_they_stand(tmp_path: Path):
    lines = [step(2), step(1), step(2)]  # a log of another trainer may repeat a number
    assert store.read_steps(written(tmp_path / "steps.jsonl", lines))[0] == tuple(lines)


def test_a_record_says_that_its_processes_were_started_again(tmp_path: Path):
    lines = [step(1), step(2), step(3), step(3, 1), step(4, 1), step(1, 2)]
    written(tmp_path / "steps.jsonl", lines)
    assert finish_run.restart_notes(tmp_path) == (
        "A process died after step 3 and all were restarted: 1 step was repeated.",
        "A process died after step 4 and all were restarted: 4 steps were repeated.",
    )
    written(tmp_path / "steps.jsonl", lines[:3])
    assert finish_run.restart_notes(tmp_path) == ()


def test_a_broken_line_of_checkpoints_is_a_problem_and_hides_no_other(tmp_path: Path):
    good = {
        "kind": "save", "step": 2, "seconds": 2.0, "blocking_seconds": 1.0, "size_bytes": 2**31,
        "started_at": "2026-03-05T10:00:00+00:00", "finished_at": "2026-03-05T10:00:02+00:00",
    }  # fmt: skip
    (tmp_path / reliability.CHECKPOINTS_FILE).write_text(f'{json.dumps(good)}\n{{"kind": "sa')
    found, problems = reliability.read_checkpoints(tmp_path)
    assert [entry.gib_per_second for entry in found] == [1.0]
    assert problems == ("checkpoints.jsonl line 2 is not a checkpoint record",)
