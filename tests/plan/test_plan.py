"""Plans: what a file expands to, and how a bad one is refused."""

from __future__ import annotations

import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from scalebook.cli import build_commands, main
from scalebook.cli.check import request
from scalebook.errors import ConfigError
from scalebook.plan import Plan, load_plan, refuse_many, single_plan
from scalebook.plan.document import read_document
from scalebook.plan.schedule import draw_seed, read_schedule
from scalebook.running import todo

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


def test_a_plan_packs_documents_and_refuses_what_does_not_divide(load, capsys, tmp_path) -> None:
    text = HEAD + "[[runs]]\nsequence_length = 8192\npacked_documents = [1, 4, 3]"
    plan = load(text)
    assert column(plan, "packed_documents") == [1, 4, 3]
    assert [run.legal for run in plan.runs] == [True, True, False]
    (problem,) = plan.runs[2].problems
    assert "packed_documents=3 does not divide sequence_length=8192" in problem.message
    path = tmp_path / "packed.toml"
    path.write_text(text)
    assert main(["plan", str(path), "--platform", "h100"]) == 0
    shown = capsys.readouterr().out
    assert "8,192 of 4       0" in shown
    assert "8,192            0" in shown


def test_a_run_without_a_world_size_fills_the_node_or_the_devices_there_are(load) -> None:
    text = HEAD + "[[runs]]"
    assert column(load(text), "world_size") == [8]
    assert column(load(text, world_size=4), "world_size") == [4]
    assert column(load(text + "\nnodes = 2"), "world_size") == [16]
    assert column(load(text + "\nworld_size = 16"), "nodes") == [2]


def test_a_run_that_needs_more_devices_than_there_are_stays_with_its_reason(load) -> None:
    plan = load(HEAD + "[[runs]]\nworld_size = [4, 8]", world_size=4)
    assert [run.legal for run in plan.runs] == [True, False]
    message = "world_size=8 is above the limit of 4 devices (--gpus or this machine's)."
    assert plan.runs[1].problems[0].message == message
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


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        # The output layer is 2.3 layers of work: 17 against 15 + 2.3.
        ({"pipeline_parallel_size": 2}, 15),
        ({"pipeline_parallel_size": 2, "last_pipeline_stage_layers": 0}, 0),
        ({"pipeline_parallel_size": 2, "engine": "nemo"}, 0),
        ({}, 0),
        # 3.0 layers of work: 5 against 3 + 3.0, and each stage has 2 chunks.
        (
            {
                "model": "qwen3-8b@8",
                "pipeline_parallel_size": 2,
                "virtual_pipeline_parallel_size": 2,
                "sequence_length": 4096,
            },
            3,
        ),
        # 4 does not divide 126 layers; 3 stages of 32 and one of 30.
        ({"model": "llama3.1-405b", "pipeline_parallel_size": 4}, 30),
    ],
)
def test_the_last_stage_has_fewer_layers_where_nobody_says_how_many(changes, last) -> None:
    fields = {"model": "llama3.1-8b", "global_batch_size": 32, "sequence_length": 2048, **changes}
    (run,) = single_plan(fields, platform="h100", world_size=8).runs
    assert run.config.last_pipeline_stage_layers == last
    assert not [problem for problem in run.problems if problem.rule == "layers"]


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
    # One rank holds whole layers where no size is named.
    (run,) = load(HEAD + '[[runs]]\nsequence_parallel = "auto"').runs
    assert run.config.sequence_parallel is False


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


LISTS = (
    *("steps", "seed", "repeat", "warmup_steps", "time_limit_seconds"),
    *("checkpoint_interval", "checkpoint_keep"),
)
BAD = {
    "no [[runs]]": HEAD,
    "is not valid TOML": "[plan\n",
    "Unknown section 'run'": HEAD + "[[run]]",
    r"Did you mean 'tensor_parallel_size'": HEAD + "[[runs]]\ntensor_paralel_size = 2",
    "'modle' is not a key of [plan].*Did you mean 'model'?": "[plan]\nmodle = 'a'\n" + HEAD,
    "'model'.*Settings belong into [defaults]": "[plan]\nmodel = 'tiny-llama'\n" + HEAD,
    "platform is not a key of [[runs]] 1: choose it with --platform.$": HEAD
    + '[[runs]]\nplatform = "h100"',
    "Known keys of [[runs]] 1: .*": HEAD + "[[runs]]\nunheard_of = 1",
    "both strategy and tensor_parallel_size": HEAD
    + '[[runs]]\nstrategy = "balanced"\ntensor_parallel_size = 2',
    "both global_batch_size and global_batch_size_per_gpu": HEAD
    + "[[runs]]\nglobal_batch_size = 8\nglobal_batch_size_per_gpu = 1",
    "is empty": HEAD + "[[runs]]\nsteps = []",
    "Parameter steps='x'": HEAD + '[[runs]]\nsteps = "x"',
    "Parameter steps=0": HEAD + "[[runs]]\nsteps = 0",
    "Parameter steps=True": HEAD + "[[runs]]\nsteps = true",
    "world_size=0 must be a whole number": HEAD + "[[runs]]\nworld_size = 0",
    "Unknown model 'llama3.1-9b'.*Did you mean": HEAD + '[[runs]]\nmodel = "llama3.1-9b"',
    "model=None is not a model name": "[[runs]]\nsteps = 3",
    "Unknown strategy 'balancd'": HEAD + '[[runs]]\nstrategy = "balancd"',
    "name=3 of": HEAD + "[plan]\nname = 3\n[[runs]]",
    "runs must be tables": "runs = [1, 2]",
    "global_batch_size is missing. Add it to the table or to [defaults]": (
        '[[runs]]\nmodel = "tiny-llama"\nsequence_length = 8'
    ),
    "Unknown platform 'h10'": HEAD + '[[runs]]\nplatforms = ["h10"]',
    "Unknown key of [plan] 'repeat'": "[plan]\nrepeat = 3\n" + HEAD + "[[runs]]",
    "repeats=0 must be a whole number of 1 to": "[plan]\nrepeats = 0\n" + HEAD + "[[runs]]",
    "has repeat and [plan] has repeats": "[plan]\nrepeats = 2\n" + HEAD + "[[runs]]\nrepeat = 1",
    "order='up' is not known": '[plan]\norder = "up"\n' + HEAD + "[[runs]]",
    "order_seed=1 needs order='random'": '[plan]\norder = "planned"\norder_seed = 1\n'
    + HEAD
    + "[[runs]]",
    "cool_down='45' is not a pause": '[plan]\ncool_down = "45"\n' + HEAD + "[[runs]]",
    "cool_down='300C' must be 10C to 110C": '[plan]\ncool_down = "300C"\n' + HEAD + "[[runs]]",
    "multiply out to 10,000,000 runs; a plan has at most 5,000": HEAD
    + "[[runs]]\n"
    + "".join(f"{name} = {[*range(1, 11)]}\n" for name in LISTS),
    "multiply out to 10,000 runs": "[plan]\nrepeats = 1000\n"
    + HEAD
    + f"[[runs]]\nsteps = {[*range(1, 11)]}",
    "is nested too deeply": "a = " + "[" * 100_000,
    "a number is too long": HEAD + "[[runs]]\nsteps = 1" + "0" * 5000,
    "Parameter sequence_length=1000.*less than or equal to 2147483648": HEAD
    + "[[runs]]\nsequence_length = 1"
    + "0" * 330,
    "Parameter world_size=1000.*less than or equal to 2147483648": HEAD
    + "[[runs]]\nworld_size = 1"
    + "0" * 330,
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


def test_a_mistyped_plan_is_answered_with_the_nearest_path(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans/quick.toml").touch()
    for typed in ("plans/quik.toml", "plan/quick.toml", "plans/quick.tml"):
        with pytest.raises(ConfigError) as caught:
            load_plan(tmp_path / typed, platform="h100")
        assert str(caught.value).endswith(f"Did you mean '{tmp_path}/plans/quick.toml'?")
    with pytest.raises(ConfigError, match=r"directory\.$"):
        load_plan(tmp_path / "plans/other", platform="h100")


@pytest.mark.parametrize("platform", ["h100", "mi300x"])
def test_the_committed_plans_are_legal_and_fit(root: Path, platform: str) -> None:
    for name in ("strategies", "scaling_weak", "scaling_strong"):
        plan = load_plan(root / "runs" / "plans" / f"{name}.toml", platform=platform)
        assert plan.name == name
        assert len(plan.runs) >= 10
        assert all(run.legal and run.fits for run in plan.runs)


SPLITS = HEAD + "[[runs]]\ntensor_parallel_size = [1, 2, 4]\n"


def test_each_configuration_runs_as_often_as_asked_a_round_after_the_other(load) -> None:
    plan = load('[plan]\nrepeats = 2\norder = "planned"\n' + SPLITS)
    pairs = zip(column(plan, "repeat"), column(plan, "tensor_parallel_size"), strict=True)
    assert list(pairs) == [(0, 1), (0, 2), (0, 4), (1, 1), (1, 2), (1, 4)]
    assert len({run.config.config_hash() for run in plan.runs}) == 6


def test_repeats_asked_for_by_the_caller_displace_those_of_the_file(load) -> None:
    text = SPLITS + "repeat = [0, 1, 2, 3]"
    plan = load(text, scheduled={"repeats": 2, "order": "planned"})
    assert column(plan, "repeat") == [0] * 3 + [1] * 3
    assert column(load(text), "repeat") == [0, 1, 2, 3] * 3


def test_repeats_are_shuffled_unless_an_order_is_named(load) -> None:
    assert load(SPLITS).schedule.order == "planned"
    assert load(SPLITS, scheduled={"repeats": 1}).schedule.order == "planned"
    assert load(SPLITS, scheduled={"repeats": 2}).schedule.order == "random"


def test_a_seed_gives_one_order_that_can_be_checked_from_the_hashes(load) -> None:
    asked = {"repeats": 4, "order": "random", "order_seed": 7}
    plan = load(SPLITS, scheduled=asked)
    assert [run.config for run in plan.runs] == [
        run.config for run in load(SPLITS, scheduled=asked).runs
    ]
    assert column(plan, "repeat") == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    for repeat in range(4):
        hashes = [run.config.config_hash() for run in plan.runs if run.config.repeat == repeat]
        assert hashes == sorted(hashes, key=lambda h: sha256(f"7:{h}".encode()).hexdigest())


def test_every_configuration_comes_first_in_some_order(load) -> None:
    plan = load(SPLITS)
    first = {plan.shuffled(seed).runs[0].config.tensor_parallel_size for seed in range(30)}
    assert first == {1, 2, 4}


def test_a_callers_order_displaces_the_files_order_and_seed(load) -> None:
    text = '[plan]\norder = "random"\norder_seed = 3\n' + SPLITS
    assert load(text).schedule.seed == 3
    assert load(text, scheduled={"order": "planned"}).schedule.seed is None
    planned = '[plan]\norder = "planned"\n' + SPLITS
    assert load(planned, scheduled={"order_seed": 5}).schedule.order == "random"


@pytest.mark.parametrize(
    ("text", "seconds", "celsius"), [("30s", 30, None), ("1.5s", 1.5, None), ("45C", None, 45)]
)
def test_a_cool_down_is_seconds_or_a_temperature(load, text, seconds, celsius) -> None:
    found = load(f'[plan]\ncool_down = "{text}"\n' + SPLITS).schedule.cool_down
    assert (found.seconds, found.celsius, str(found)) == (seconds, celsius, text)


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        ('cool_down = "10C"', True), ('cool_down = "9.9C"', False),
        ('cool_down = "110C"', True), ('cool_down = "110.1C"', False),
        ('cool_down = "86400s"', True), ('cool_down = "86401s"', False),
        ("order_seed = 0", True), ("order_seed = -1", False),
        (f"order_seed = {2**63 - 1}", True),
        ("repeats = 1", True), ("repeats = 1000", True), ("repeats = 1001", False),
    ],
)  # fmt: skip
def test_a_schedule_may_go_to_its_limits_and_no_further(line, fits) -> None:
    values = tomllib.loads(line)
    if fits:
        found = read_schedule(values)
        assert (found.repeats, found.seed) == (values.get("repeats"), values.get("order_seed"))
    else:
        with pytest.raises(ConfigError, match=next(iter(values))):
            read_schedule(values)


def test_a_seed_of_64_bits_with_a_sign_is_the_largest() -> None:
    with pytest.raises(ConfigError, match=f"must be a whole number of 0 to {2**63 - 1}"):
        read_schedule({"order_seed": 2**63})


def test_a_drawn_seed_is_one_of_four_thousand_million() -> None:
    seeds = {draw_seed() for _ in range(200)}
    # Two of 200 are equal once in 200,000 times; all lie in one half once in 2**199.
    assert len(seeds) >= 199
    assert 0 <= min(seeds) < 2**31 <= max(seeds) < 2**32


def test_a_plan_has_5000_runs_at_most() -> None:
    refuse_many(5000)
    with pytest.raises(ConfigError, match="multiply out to 5,001 runs"):
        refuse_many(5001)


def test_no_seconds_are_no_cool_down(load) -> None:
    assert load('[plan]\ncool_down = "0s"\n' + SPLITS).schedule.cool_down is None


def test_a_single_run_has_the_defaults_of_a_plan_and_keeps_its_label() -> None:
    fields = {"model": "tiny-moe", "global_batch_size": 8, "sequence_length": 64}
    plan = single_plan({**fields, "strategy": "balanced"}, platform="cpu")
    config = plan.runs[0].config
    assert (config.world_size, config.precision, config.strategy) == (1, "fp32", "balanced")
    split = {"tensor_parallel_size": 2, "sequence_parallel": True, "world_size": 2}
    config = single_plan({**fields, **split}, platform="cpu").runs[0].config
    assert config.expert_tensor_parallel_size == 2


@pytest.mark.parametrize("platform", ["cpu", "h100"])
@pytest.mark.parametrize("given", [{}, {"nodes": 2}, {"world_size": 16}])
def test_check_and_plan_fill_in_the_same_world_and_experts(load, platform, given) -> None:
    text = HEAD.replace("llama3.1-8b", "mixtral-8x7b") + "[[runs]]\n"
    text += "tensor_parallel_size = 2\nsequence_parallel = true\n"
    text += "".join(f"{name} = {value}\n" for name, value in given.items())
    planned = load(text, platform=platform).runs[0].config
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    more = ("--tensor-parallel-size=2", "--global-batch-size=32", "--sequence-length=2048")
    options = build_commands()[0].parse_args(
        ["check", "--model=mixtral-8x7b", f"--platform={platform}", *flags, *more]
    )
    assert request(options).config == planned


def test_a_plan_says_what_it_asks(load) -> None:
    plan = load(f'[plan]\nkind = "map"\nquestion = "Which fits?"\n{HEAD}[[runs]]')
    assert (plan.kind, plan.question) == ("map", "Which fits?")
    kept = todo.place(plan, 1, None)
    assert (kept["plan"], kept["kind"], kept["question"]) == ("a", "map", "Which fits?")
    silent = todo.place(load(HEAD + "[[runs]]"), 1, None)
    assert not {"kind", "question"} & silent.keys()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('kind = "speed"', "Unknown kind of \\[plan\\] 'speed'"),
        ("kind = 3", "kind=3 of \\[plan\\] must be text"),
        ('question = "It is fast."', "must be one question"),
        (f'question = "{"so " * 60}?"', "at most 120 characters"),
    ],
)
def test_an_unknown_kind_or_a_question_that_asks_nothing_is_refused(
    load, line: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(f"[plan]\n{line}\n{HEAD}[[runs]]")


def test_every_committed_plan_has_a_kind_and_a_question(root: Path) -> None:
    documents = [
        read_document(path)[0] for path in sorted((root / "runs" / "plans").glob("*.toml"))
    ]
    assert [one.name for one in documents if not (one.kind and one.question)] == []
