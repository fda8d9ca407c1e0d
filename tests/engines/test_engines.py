"""Vendors' trainers: a configuration in their words, and their logs as runs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scalebook import engines, store
from scalebook.config import RunConfig
from scalebook.engines import harvest, mapping, nemo_train, primus_train
from scalebook.errors import ConfigError
from scalebook.report.base import naming
from scalebook.running import finish_run, launch, runner
from scalebook.running.devices import detect
from scalebook.running.kernel import RunOptions

FAKES = Path(__file__).parents[1] / "fakes"

NEMO_LOG = """\
[NeMo I 2033-01-02 03:04:05 nemo_logging:393] Global batch size 16
Training epoch 0, iteration 0/3 | lr: 1e-05 | global_batch_size: 16 | global_step: 0 | \
max_memory_reserved: 21474836480 | max_memory_allocated: 10737418240 | reduced_train_loss: 9.5 | \
train_step_timing in s: 4.5 | consumed_samples: 16
Training epoch 0, iteration 1/3 | lr: 2e-05 | global_batch_size: 16 | global_step: 1 | \
max_memory_reserved: 21474836480 | max_memory_allocated: 10737418240 | reduced_train_loss: 9.25 | \
train_step_timing in s: 1.25 | consumed_samples: 32
Training epoch 0, iteration 2/3 | lr: 3e-05 | global_batch_size: 16 | global_step: 2 | \
max_memory_reserved: 21474836480 | max_memory_allocated: 10737418240 | reduced_train_loss: 9.0 | \
train_step_timing in s: 1.5 | consumed_samples: 48
Training epoch 0, iteration 3/3 | lr: 4e-05 | global_batch_size: 16 | global_step: 3 | \
max_memory_reserved: 21474836480 | max_memory_allocated: 10737418240 | reduced_train_loss: 8.75 | \
train_step_timing in s: 1.25 | consumed_samples: 64
"""


def config(engine: str = "primus", **changes: Any) -> RunConfig:
    """Return a configuration of an engine on its vendor's platform."""
    base: dict[str, Any] = {
        "platform": "mi300x" if engine == "primus" else "h100",
        "model": "llama3.1-8b",
        "engine": engine,
        "world_size": 8,
        "global_batch_size": 16,
        "sequence_length": 4096,
        "steps": 4,
        "warmup_steps": 2,
    }
    return RunConfig(**{**base, **changes})


def overrides(**changes: Any) -> dict[str, Any]:
    """Return what Primus is told for a configuration."""
    return primus_train.experiment(config(**changes), Path("/r"))["modules"]["pre_trainer"][
        "overrides"
    ]


def test_primus_is_told_every_size_of_the_split_under_megatrons_names():
    told = overrides(
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        virtual_pipeline_parallel_size=4,
        context_parallel_size=2,
        sequence_parallel=True,
    )
    assert (told["tensor_model_parallel_size"], told["pipeline_model_parallel_size"]) == (2, 2)
    assert (told["context_parallel_size"], told["sequence_parallel"]) == (2, True)
    assert told["num_virtual_stages_per_pipeline_rank"] == 4
    assert (told["train_iters"], told["global_batch_size"], told["seq_length"]) == (4, 16, 4096)


def test_primus_is_told_precision_recomputation_and_sharding():
    assert overrides()["fp8"] is None
    assert overrides(precision="fp8")["fp8"] == "hybrid"
    assert overrides(recompute="full")["recompute_method"] == "uniform"
    assert overrides(recompute="selective")["recompute_granularity"] == "selective"
    assert overrides(data_parallel_sharding="none")["use_distributed_optimizer"] is False


def test_switches_left_at_auto_stay_the_vendors():
    assert "overlap_grad_reduce" not in overrides()
    assert overrides(overlap_grad_reduce="off")["overlap_grad_reduce"] is False


def test_a_model_with_fewer_layers_is_told_so():
    assert "num_layers" not in overrides()
    assert overrides(model="llama3.1-8b@8")["num_layers"] == 8


def test_the_experiment_is_json_and_nothing_in_it_reaches_a_shell():
    text = primus_train.text(config(), Path("/runs/a b; rm -rf"))
    assert json.loads(text)["workspace"] == "/runs/a b; rm -rf/primus"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_parallel_sharding": "full"}, "data_parallel_sharding='full' is not supported"),
        (
            {"precision": "fp4"},
            "precision='fp4' is not supported by engine 'primus'. Use one",
        ),
        ({"data": "/tokens"}, "data='/tokens' is not supported"),
        ({"checkpoint_interval": 5}, "checkpoint_interval=5 is not supported .* Leave it at 0"),
        ({"fused_rope": "off"}, "fused_rope='off' is not supported"),
        ({"model": "olmo2-7b"}, "no configuration of it. Unknown primus model 'olmo2-7b'. Known"),
        ({"platform": "h100"}, "trains on amd platforms, and platform='h100' is nvidia"),
    ],
)
def test_what_primus_cannot_be_told_is_refused_in_words(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        engines.check(config(**changes))


def test_our_own_trainer_is_told_everything():
    engines.check(config(engine="megatron", platform="cpu", data="/tokens", precision="fp4"))


def test_every_field_is_ours_told_or_refused():
    """A new field of RunConfig is refused by the engines until somebody maps it."""
    for engine in ("nemo", "primus"):
        for name, field in RunConfig.model_fields.items():
            if isinstance(field.default, bool) and name not in (*mapping._OURS, *mapping._TAKEN):
                with pytest.raises(ConfigError, match=name):
                    engines.check(config(engine, **{name: not field.default}))


def test_an_engine_that_is_not_installed_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mapping, "find_spec", lambda _name: None)
    assert "Use AMD's Primus image" in str(engines.missing("primus", {}))
    assert "Use NVIDIA's NeMo image" in str(engines.missing("nemo", {}))
    assert engines.missing("megatron") is None
    monkeypatch.setattr(mapping, "PRIMUS_FOLDERS", ())
    assert "needs the engine 'primus'" in str(launch.unavailable(config()))


def test_nemo_and_bridge_are_told_the_same_split():
    asked = config("nemo", tensor_parallel_size=4, pipeline_parallel_size=2)
    recipe, bridge = (
        nemo_train.recipe_settings(asked),
        nemo_train.bridge_settings(asked, Path("/r")),
    )
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        assert recipe[f"trainer.strategy.{name}"] == bridge[f"model.{name}"]
    assert recipe["trainer.devices"] == 8
    assert recipe["trainer.strategy.virtual_pipeline_model_parallel_size"] is None
    assert bridge["mixed_precision"] == "bf16_mixed"


def test_fp8_scaling_is_told_by_the_vendors_name():
    asked = config("nemo", precision="fp8", fp8_recipe="tensorwise")
    expected = "bf16_with_fp8_current_scaling_mixed"
    assert nemo_train.precision_name(nemo_train.NEMO_PRECISION, asked) == expected
    assert nemo_train.precision_name(nemo_train.BRIDGE_PRECISION, asked) == expected


def test_a_setting_that_a_recipe_does_not_know_is_refused():
    recipe = SimpleNamespace(trainer=SimpleNamespace(max_steps=1))
    nemo_train.put(recipe, "trainer.max_steps", 5)
    assert recipe.trainer.max_steps == 5
    with pytest.raises(ConfigError, match=r"no 'trainer\.max_epochs' to set to 1"):
        nemo_train.put(recipe, "trainer.max_epochs", 1)


def test_every_model_that_has_a_name_is_in_the_catalog():
    from scalebook.facts import catalog

    for kind in ("nemo", "bridge", "primus"):
        assert mapping.known(kind)
        for name in mapping.known(kind):
            catalog.model(name)


# What their logs become.


def directory(path: Path, asked: RunConfig, log: str) -> Path:
    """Return a run directory that a trainer has left."""
    path.mkdir()
    store.write_json(path / "config.json", asked.model_dump())
    (path / "train.log").write_text(log)
    return path


def test_a_nemo_log_becomes_steps_with_the_phases_that_were_asked_for(tmp_path: Path):
    run = directory(tmp_path / "run", config("nemo"), NEMO_LOG)
    record = finish_run.conclude(run, finish_run.Ended(0))
    steps, problems = store.read_steps(run / "steps.jsonl")
    assert (record.status, problems) == ("completed", ())
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert [step.phase for step in steps] == ["startup", "warmup", "measured", "measured"]
    assert [step.step_seconds for step in steps] == [4.5, 1.25, 1.5, 1.25]
    assert steps[-1].tokens == 16 * 4096
    assert steps[-1].allocated_gib == 10.0


def test_only_what_the_log_tells_counts_as_observed(tmp_path: Path):
    run = directory(tmp_path / "run", config("nemo"), NEMO_LOG)
    record = finish_run.conclude(run, finish_run.Ended(0))
    assert record.observed["global_batch_size"] == 16
    assert record.observed["engine"] == "nemo"
    assert "sequence_length" not in record.observed
    assert record.environment["engine_log"]["dialect"] == "nemo2"


def test_a_batch_that_ran_otherwise_is_noted(tmp_path: Path):
    run = directory(tmp_path / "run", config("nemo", global_batch_size=32), NEMO_LOG)
    record = finish_run.conclude(run, finish_run.Ended(0))
    assert any("global_batch_size: asked for 32, ran with 16" in note for note in record.notes)


def test_a_log_without_steps_is_a_run_without_steps(tmp_path: Path):
    run = directory(tmp_path / "run", config("nemo"), "ModuleNotFoundError: No module named 'x'\n")
    record = finish_run.conclude(run, finish_run.Ended(1))
    assert record.status == "failed"
    assert not (run / "steps.jsonl").exists()
    assert any("No training step of engine 'nemo'" in note for note in record.notes)


def test_a_log_of_another_trainer_is_not_taken_for_the_engines(tmp_path: Path):
    run = directory(tmp_path / "run", config("primus"), NEMO_LOG)
    assert (
        "'nemo2', which engine 'primus' does not print"
        in harvest.harvest(run, config("primus").model_dump())[0]
    )


def test_an_engine_is_part_of_what_must_agree_before_runs_are_ranked():
    row = {"model": "llama3.1-8b", "platform": "mi300x", "precision": "bf16"}
    groups = {naming.group_name({**row, "engine": name}) for name in ("megatron", "nemo", "primus")}
    assert len(groups) == 3


# Through the launcher, with a stand-in that prints what Primus prints.


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two MI300X and a checkout of Primus, as far as anything asks."""
    folder = tmp_path / "Primus"
    (folder / "primus" / "cli").mkdir(parents=True)
    for place in (folder / "primus", folder / "primus" / "cli"):
        (place / "__init__.py").touch()
    shutil.copy(FAKES / "primus_main.py", folder / "primus" / "cli" / "main.py")
    monkeypatch.setenv("PRIMUS_PATH", str(folder))
    monkeypatch.setattr(
        detect, "detect", lambda: detect.Machine("amd", "AMD Instinct MI300X OAM", 2)
    )
    monkeypatch.setenv("SCALEBOOK_TELEMETRY_SECONDS", "0")
    return tmp_path / "runs"


def test_a_run_of_primus_is_trained_by_the_same_launcher_and_recorded(node: Path):
    record = runner.train(config(world_size=2), RunOptions(runs=str(node)))
    run = store.read_run(node / record.run_id)
    assert (record.status, record.reason) == ("completed", None)
    assert record.observed["world_size"] == 2
    assert [step.step_seconds for step in run.steps] == [0.9, 0.252, 0.253, 0.254]
    assert json.loads((run.path / primus_train.FILE).read_text())["exp_name"].startswith(
        "scalebook-"
    )
    assert "scalebook.engines.primus_train" in record.command


def test_memory_that_runs_out_in_primus_is_told_apart(node: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_PRIMUS", "oom")
    record = runner.train(config(world_size=1), RunOptions(runs=str(node)))
    assert record.status == "out_of_memory"
    assert "3.00 GiB more did not fit" in str(record.reason)


def test_a_recipe_is_built_in_this_process_and_every_setting_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = config("nemo", tensor_parallel_size=2, sequence_parallel=True)
    built = SimpleNamespace()
    for path in nemo_train.recipe_settings(asked):
        target = built
        *parents, last = path.split(".")
        for name in parents:
            target = target.__dict__.setdefault(name, SimpleNamespace())
        setattr(target, last, "the recipe's")
    built.data.tokenizer = None
    modules = {
        "nemo.collections.llm.recipes.llama31_8b": {"pretrain_recipe": lambda **_: built},
        "nemo.collections.llm.recipes.precision.mixed_precision": {"bf16_mixed": lambda: "plugin"},
        "nemo.collections.common.tokenizers.null_tokenizer": {"NullTokenizer": "null"},
        "nemo_run": {"Config": lambda made, **fields: (made, fields)},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    recipe = nemo_train.build_recipe(asked, tmp_path, nemo_train.recipe_settings(asked))
    assert recipe.trainer.strategy.tensor_model_parallel_size == 2
    assert recipe.trainer.strategy.sequence_parallel is True
    assert recipe.trainer.plugins == "plugin"
    assert recipe.data.tokenizer == ("null", {"vocab_size": 128255})  # NeMo adds the end itself
    assert recipe.trainer.max_steps == 4
