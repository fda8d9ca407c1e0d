"""Plans: what a file expands to, and how a bad one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebook.errors import ConfigError
from scalebook.plan import Plan, load_plan

HEAD = """
[defaults]
model = "llama3.1-8b"
global_batch_size = 32
sequence_length = 2048
"""


@pytest.fixture
def load(tmp_path: Path):
    """Return a function that loads a plan from its text."""

    def loader(text: str, platform: str = "h100", **options: object) -> Plan:
        path = tmp_path / "a.toml"
        path.write_text(text)
        return load_plan(path, platform=platform, **options)

    return loader


def column(plan: Plan, name: str) -> list[object]:
    return [getattr(run.config, name) for run in plan.runs]


def test_lists_multiply_out_and_later_tables_add_runs(load) -> None:
    plan = load(
        HEAD
        + """
        [[runs]]
        tensor_parallel_size = [1, 2]
        micro_batch_size = [1, 2]
        [[runs]]
        recompute = "full"
        """
    )
    pairs = zip(column(plan, "tensor_parallel_size"), column(plan, "micro_batch_size"), strict=True)
    assert list(pairs) == [(1, 1), (1, 2), (2, 1), (2, 2), (1, 1)]
    assert column(plan, "recompute") == ["none"] * 4 + ["full"]


def test_a_run_without_a_world_size_fills_the_node_or_the_devices_there_are(load) -> None:
    text = HEAD + "[[runs]]"
    assert column(load(text), "world_size") == [8]
    assert column(load(text, world_size=4), "world_size") == [4]
    assert column(load(text + "\nnodes = 2"), "world_size") == [16]
    assert column(load(text + "\nworld_size = 16"), "nodes") == [2]


def test_a_run_that_needs_more_devices_than_there_are_stays_with_its_reason(load) -> None:
    plan = load(HEAD + "[[runs]]\nworld_size = [4, 8]", world_size=4)
    assert [run.legal for run in plan.runs] == [True, False]
    assert plan.runs[1].problems[0].message == "world_size=8 is above the 4 devices available."
    assert plan.runs[1].memory is None


def test_the_batch_per_gpu_grows_with_the_world_and_the_fixed_one_does_not(load) -> None:
    weak = HEAD.replace("global_batch_size = 32", "global_batch_size_per_gpu = 4")
    worlds = "[[runs]]\nworld_size = [1, 2, 4]"
    assert column(load(weak + worlds), "global_batch_size") == [4, 8, 16]
    assert column(load(HEAD + worlds), "global_batch_size") == [32, 32, 32]


def test_strategies_come_from_the_catalog_by_platform(load) -> None:
    text = HEAD + '[[runs]]\nstrategy = ["maximum_performance", "balanced"]'
    assert column(load(text), "tensor_parallel_size") == [4, 2]
    assert column(load(text, platform="mi300x"), "tensor_parallel_size") == [1, 2]


def test_an_alias_becomes_the_strategys_name(load) -> None:
    plan = load(HEAD + '[[runs]]\nstrategy = "truly_identical"')
    assert column(plan, "strategy") == ["identical_config"]


def test_a_strategy_displaces_sizes_of_the_defaults(load) -> None:
    plan = load(HEAD + 'tensor_parallel_size = 8\n[[runs]]\nstrategy = "balanced"')
    assert column(plan, "tensor_parallel_size") == [2]


def test_overrides_replace_fields_of_every_run(load) -> None:
    text = HEAD + "[[runs]]\nsteps = [10, 20]\nmicro_batch_size = [1, 2]"
    plan = load(text, overrides={"steps": 7})
    assert column(plan, "steps") == [7, 7]


def test_sequence_parallelism_follows_tensor_parallelism_where_asked(load) -> None:
    text = HEAD + '[[runs]]\ntensor_parallel_size = [1, 2]\nsequence_parallel = "auto"'
    assert column(load(text), "sequence_parallel") == [False, True]


def test_experts_that_are_not_spread_are_split_like_the_layers(load) -> None:
    text = HEAD.replace("llama3.1-8b", "tiny-moe") + "sequence_parallel = true\n[[runs]]\n"
    plan = load(text + "tensor_parallel_size = 2\nexpert_parallel_size = [1, 2]")
    assert column(plan, "expert_tensor_parallel_size") == [2, 1]
    assert all(run.legal for run in plan.runs)


def test_precision_is_the_platforms_unless_given(load) -> None:
    assert column(load(HEAD + "[[runs]]", platform="cpu"), "precision") == ["fp32"]
    assert column(load(HEAD + '[[runs]]\nprecision = "fp16"'), "precision") == ["fp16"]


def test_a_table_counts_on_its_platforms_alone(load) -> None:
    text = HEAD + '[[runs]]\nplatforms = ["mi300x", "cpu"]\n[[runs]]\nsteps = 30'
    assert len(load(text).runs) == 1
    assert len(load(text, platform="mi300x").runs) == 2


def test_the_same_configuration_is_planned_once_and_repeats_by_name(load) -> None:
    assert len(load(HEAD + "[[runs]]\n[[runs]]").runs) == 1
    assert len(load(HEAD + "[[runs]]\nrepeat = [0, 1, 2]").runs) == 3


def test_illegal_and_unfitting_runs_stay_in_the_plan(load) -> None:
    plan = load(HEAD + "[[runs]]\ntensor_parallel_size = [3, 1]\nmicro_batch_size = 4")
    illegal, large = plan.runs
    assert not illegal.legal
    assert "does not fit llama3.1-8b" in illegal.problems[0].message
    assert (illegal.memory, illegal.fits) == (None, None)
    assert large.fits is False
    assert large.memory is not None
    assert large.memory.total_gib > 80


def test_memory_of_a_platform_without_known_memory_is_told_without_a_verdict(load) -> None:
    run = load(HEAD + "[[runs]]", platform="cpu").runs[0]
    assert run.memory is not None
    assert run.fits is None
    assert "not known" in run.fit.reason


BAD = {
    "no [[runs]]": HEAD,
    "is not valid TOML": "[plan\n",
    "Unknown section 'run'": HEAD + "[[run]]",
    r"Did you mean 'tensor_parallel_size'": HEAD + "[[runs]]\ntensor_paralel_size = 2",
    "the platform is chosen by --platform": HEAD + '[[runs]]\nplatform = "h100"',
    "both strategy and tensor_parallel_size": HEAD
    + '[[runs]]\nstrategy = "balanced"\ntensor_parallel_size = 2',
    "both global_batch_size and global_batch_size_per_gpu": HEAD
    + "[[runs]]\nglobal_batch_size = 8\nglobal_batch_size_per_gpu = 1",
    "names no value": HEAD + "[[runs]]\nsteps = []",
    "Parameter steps='x'": HEAD + '[[runs]]\nsteps = "x"',
    "Parameter steps=0": HEAD + "[[runs]]\nsteps = 0",
    "Parameter steps=True": HEAD + "[[runs]]\nsteps = true",
    "world_size=0 must be a whole number": HEAD + "[[runs]]\nworld_size = 0",
    "Unknown model 'llama3.1-9b'.*Did you mean": HEAD + '[[runs]]\nmodel = "llama3.1-9b"',
    "model=None is no model name": "[[runs]]\nsteps = 3",
    "Unknown strategy 'balancd'": HEAD + '[[runs]]\nstrategy = "balancd"',
    "name=3 of": HEAD + "[plan]\nname = 3\n[[runs]]",
    "runs must be tables": "runs = [1, 2]",
    "global_batch_size: Field required": '[[runs]]\nmodel = "tiny-llama"\nsequence_length = 8',
    "Unknown platform 'h10'": HEAD + '[[runs]]\nplatforms = ["h10"]',
    "learning_rate=nan": HEAD + "[[runs]]\nlearning_rate = nan",
}


@pytest.mark.parametrize("expected", BAD)
def test_a_bad_plan_is_refused_in_one_line_that_names_the_file(load, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected.replace("[", r"\[")) as caught:
        load(BAD[expected])
    assert "a.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_plan_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        load_plan(tmp_path / "none.toml", platform="h100")


@pytest.mark.parametrize("platform", ["h100", "mi300x"])
def test_the_committed_plans_are_legal_and_fit(root: Path, platform: str) -> None:
    for name in ("strategies", "scaling_weak", "scaling_strong"):
        plan = load_plan(root / "runs" / "plans" / f"{name}.toml", platform=platform)
        assert plan.name == name
        assert len(plan.runs) >= 10
        assert all(run.legal and run.fits for run in plan.runs)
