"""Tuning: which layouts run, for how long, and what is said of those that don't."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from training import environment

from scalebook import store
from scalebook.cli import main
from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts import catalog
from scalebook.measure.metrics import measure
from scalebook.measure.probes.files import read_probes
from scalebook.predict import load, predictor, search
from scalebook.predict.known import KnownRate, configuration, known_rates
from scalebook.predict.tuning import RESULT, Step, Trial, Tuned, Tuning, trial, tune

EXAMPLES = Path(__file__).parents[2] / "runs" / "examples"
H100 = catalog.accelerator("H100-SXM5-80GB")
START_SECONDS = 50.0

Truth = Callable[[RunConfig], float]  # step seconds


@pytest.fixture(scope="module")
def evidence():
    return known_rates([EXAMPLES])[0], read_probes(EXAMPLES)[0]


@pytest.fixture(scope="module")
def made(evidence):
    """A predictor that works out each layout once: tuning asks again after every trial."""
    found = predictor("h100", *evidence)
    object.__setattr__(found, "predict", cache(found.predict))
    return found


BASE = RunConfig(
    platform="h100",
    model="llama3.1-8b@8",
    world_size=2,
    global_batch_size=32,
    sequence_length=4096,
)


@dataclass
class Machine:
    """A stand-in for the runner: what layouts take is given, time passes as they say."""

    truth: Truth
    out_of_memory: Callable[[RunConfig], bool] = lambda _: False
    broken: Callable[[RunConfig], bool] = lambda _: False
    clock: float = 0.0
    ran: list[RunConfig] = field(default_factory=list)
    kept: list[Mapping[str, Any]] = field(default_factory=list)

    def run(self, step: Step, keep: Mapping[str, Any]) -> Trial:
        config, run_id = step.config, f"run-{len(self.ran)}"
        self.ran.append(config)
        self.kept.append(keep)
        if self.out_of_memory(config) or self.broken(config):
            self.clock += START_SECONDS
            full = self.out_of_memory(config)
            reason = "CUDA out of memory" if full else "A rank raised"
            return Trial(config, run_id, None, completed=False, memory_full=full, reason=reason)
        seconds = self.truth(config)
        wall = START_SECONDS + config.steps * seconds
        self.clock += wall
        shape = catalog.model(config.model)
        rate = KnownRate(run_id, config, shape, H100, {}, seconds)
        steps = config.steps - config.warmup_steps
        return Trial(config, run_id, rate, steps, 0.001, full=RESULT in keep, wall_seconds=wall)


@pytest.fixture(scope="module")
def ranking(made):
    return search.layouts(BASE, made)


@pytest.fixture
def start(made, ranking):
    """Return a function that makes a tuning of the small space, which is not predicted anew."""

    def begin(budget_seconds: float, trials: list[Trial] | None = None) -> Tuning:
        return Tuning(ranking, lambda _: made, budget_seconds, trials or [])

    return begin


@pytest.fixture
def learning(evidence, ranking):
    """Return a function that makes one whose predictions are fitted to its trials too."""
    rates, probes = evidence

    def begin(budget_seconds: float) -> Tuning:
        def teach(found):
            return predictor("h100", (*rates, *found), probes)

        return Tuning(ranking, teach, budget_seconds, [])

    return begin


def as_predicted(ranking: search.Ranking, factor: Callable[[RunConfig], float]) -> Truth:
    predicted = {
        configuration(one.config): one.prediction.step_seconds for one in ranking.candidates
    }
    return lambda config: predicted[configuration(config)] * factor(config)


def run(tuning: Tuning, machine: Machine) -> Tuned:
    return tune(tuning, "tune-test", machine.run, lambda: machine.clock)


def hidden(config: RunConfig) -> float:
    """Return what the prediction does not know: a few percent, as a hash says."""
    return 1 + 0.03 * (int(config.model_copy(update=ZERO).config_hash(), 16) % 7) / 7


ZERO = {"steps": 1, "repeat": 0, "time_limit_seconds": 0, "warmup_steps": 0}


def test_with_time_enough_the_winner_is_that_of_trying_every_layout(learning, ranking) -> None:
    truth = as_predicted(ranking, hidden)
    found = run(learning(100_000.0), Machine(truth))
    best = min(truth(one.config) for one in ranking.candidates)
    assert found.winner is not None
    assert truth(found.winner.config) == pytest.approx(best, rel=0.01)
    assert found.end in ("separated", "equal")
    assert found.not_tried.get("may be as fast, but no time was left") is None


def test_a_layout_far_ahead_is_separated_long_before_the_budget_is_spent(start, ranking) -> None:
    ahead = configuration(ranking.candidates[0].config)
    truth = as_predicted(ranking, lambda one: 0.8 if configuration(one) == ahead else 1.0)
    machine = Machine(truth)
    found = run(start(100_000.0), machine)
    assert found.end == "separated"
    assert found.winner is not None and configuration(found.winner.config) == ahead
    assert len(machine.ran) <= 8
    rest = [one for one in found.trials if one.key != ahead]
    assert all(found.winner.low > 32 * 4096 / 2 / truth(one.config) for one in rest)


def test_layouts_as_fast_as_each_other_are_called_so(start, ranking) -> None:
    same = ranking.candidates[30].prediction.step_seconds  # slower than predicted: many may win
    found = run(start(1_000_000.0), Machine(lambda _: same))
    assert found.end == "equal"
    assert found.sentence == "The runner-up is within the noise."
    repeats = Counter(one.key for one in found.trials if not one.full)
    assert len(repeats) > 8  # more layouts than three rounds of halving leave one of
    assert max(repeats.values()) == 4


@pytest.mark.parametrize("budget_seconds", [300.0, 480.0, 900.0])
def test_the_trials_and_the_full_run_stay_within_the_budget(
    start, ranking, budget_seconds: float
) -> None:
    machine = Machine(as_predicted(ranking, hidden))
    found = run(start(budget_seconds), machine)
    assert machine.clock <= budget_seconds
    assert found.full_run == f"run-{len(machine.ran) - 1}"
    assert machine.ran[-1].steps >= 20
    assert found.winner is not None
    assert configuration(machine.ran[-1]) == configuration(found.winner.config)


def test_half_of_the_layouts_are_tried_again_for_twice_the_steps(start, ranking) -> None:
    same = ranking.candidates[0].prediction.step_seconds
    tuning = start(900.0)
    machine = Machine(lambda _: same)
    run(tuning, machine)
    trials = machine.ran[:-1]
    first = list(takewhile(lambda one: one.repeat == 0, trials))  # more follow if time is left
    second = [one for one in trials if one.repeat == 1]
    assert len(first) >= 4
    assert len(second) >= math.ceil(len(first) / 2)
    assert {one.steps for one in second} <= {2 * one.steps for one in first}


def test_what_was_tried_is_not_repeated_when_tuning_resumes(start, ranking) -> None:
    truth = as_predicted(ranking, hidden)
    once = run(start(480.0), Machine(truth))
    machine = Machine(truth)
    again = run(start(480.0, list(once.trials)), machine)
    before = {one.config.config_hash() for one in once.trials}
    assert not before & {one.config_hash() for one in machine.ran}
    assert len(again.trials) > len(once.trials)


def test_a_finished_tuning_runs_nothing_when_it_is_started_again(start, ranking) -> None:
    ahead = configuration(ranking.candidates[0].config)
    truth = as_predicted(ranking, lambda one: 0.6 if configuration(one) == ahead else 1.0)
    once = run(start(2000.0), Machine(truth))
    machine = Machine(truth)
    again = run(start(2000.0, list(once.trials)), machine)
    assert machine.ran == []
    assert again.full_run == once.full_run


def test_a_trial_out_of_memory_sets_aside_what_needs_as_much(start, ranking) -> None:
    memory = {configuration(one.config): one.prediction.memory_gib for one in ranking.candidates}
    largest = max(memory.values())
    machine = Machine(
        as_predicted(ranking, hidden),
        out_of_memory=lambda one: memory[configuration(one)] > 0.7 * largest,
    )
    tuning = start(3000.0)
    found = run(tuning, machine)
    broken = [memory[one.key] for one in found.trials if one.memory_full]
    assert broken and found.winner is not None
    assert memory[configuration(found.winner.config)] < min(broken)
    assert tuning.memory_limit_gib == min(broken)
    after = [configuration(one) for one in machine.ran]
    for place, key in enumerate(after):
        before = [memory[one] for one in after[:place] if memory[one] > 0.7 * largest]
        assert not before or memory[key] < min(before)
    reason = f"{min(broken):.1f} GiB or more predicted, at which a trial ran out"
    assert found.not_tried[reason] > 0


def test_a_layout_that_broke_is_not_tried_again_and_its_reason_is_kept(start, ranking) -> None:
    bad = configuration(ranking.candidates[0].config)
    machine = Machine(as_predicted(ranking, hidden), broken=lambda one: configuration(one) == bad)
    found = run(start(900.0), machine)
    assert [configuration(one) for one in machine.ran].count(bad) == 1
    assert found.winner is not None and configuration(found.winner.config) != bad
    assert "A rank raised" in {one.reason for one in found.trials}


def test_three_failures_without_a_success_end_the_tuning_without_a_winner(start, ranking) -> None:
    machine = Machine(as_predicted(ranking, hidden), broken=lambda _: True)
    found = run(start(100_000.0), machine)
    assert (found.end, found.winner, found.full_run) == ("failures", None, None)
    assert len(machine.ran) == 3


def test_each_trial_refits_the_prediction_of_the_layouts_that_were_not_tried(
    learning, ranking
) -> None:
    tuning = learning(3000.0)
    before = {one.layout: one.tokens_per_second_per_gpu for one in tuning.standings}
    machine = Machine(as_predicted(ranking, lambda _: 1.2))
    for _ in range(3):
        step = tuning.next(machine.clock)
        assert isinstance(step, Step)
        tuning.add(machine.run(step, {}))
    after = [one for one in tuning.standings if not one.trials]
    slower = sum(one.tokens_per_second_per_gpu < 0.97 * before[one.layout] for one in after)
    assert slower >= 0.9 * len(after)


def test_repeats_that_differ_widen_every_measured_interval(start, ranking) -> None:
    truth = as_predicted(ranking, lambda one: 1.3 if one.repeat else 1.0)
    tuning = start(3000.0)
    machine = Machine(truth)
    step = tuning.trial_step(tuning.standings[0])
    tuning.add(machine.run(step, {}))
    sure = tuning.leader
    tuning.add(machine.run(tuning.trial_step(sure), {}))
    assert tuning.leader is not None and sure is not None
    assert sure.high / sure.low < 1.03
    assert tuning.leader.high / tuning.leader.low > 1.3


def test_the_noise_of_starts_is_pooled_over_the_repeats_of_each_layout(made, ranking) -> None:
    """By hand: two layouts of two repeats that differ by a fifth (of logarithms) each."""
    shape = catalog.model(BASE.model)
    pairs = [
        (one.config, seconds) for one in ranking.candidates[:2] for seconds in (1, math.exp(0.2))
    ]
    trials = [
        Trial(config, f"r{n}", KnownRate(f"r{n}", config, shape, H100, {}, seconds), 10, 0.001)
        for n, (config, seconds) in enumerate(pairs)
    ]
    noise = Tuning(ranking, lambda _: made, 3000.0, trials).noise
    # the variance of each pair is 0.2 ** 2 / 2, with one degree of freedom
    assert noise == pytest.approx((0.2**2 / 2) ** 0.5)
    assert Tuning(ranking, lambda _: made, 3000.0, trials[::2]).noise < 0.02
    # a third repeat in the middle leaves 0.2 ** 2 / 2 to squares, with a degree more
    middle = KnownRate("m", pairs[0][0], shape, H100, {}, math.exp(0.1))
    three = [*trials, Trial(pairs[0][0], "m", middle, 10, 0.001)]
    expected = (2 * 0.2**2 / 2 / 3) ** 0.5
    assert Tuning(ranking, lambda _: made, 3000.0, three).noise == pytest.approx(expected)


def test_a_budget_in_which_no_run_fits_is_refused_with_what_would(start, ranking) -> None:
    with pytest.raises(ConfigError, match=r"budget_seconds=30 is too short: one full run takes"):
        run(start(30.0), Machine(as_predicted(ranking, hidden)))


def test_a_budget_for_one_run_only_runs_the_predicted_best(start, ranking) -> None:
    machine = Machine(as_predicted(ranking, hidden))
    found = run(start(80.0), machine)
    assert [configuration(one) for one in machine.ran] == [
        configuration(ranking.candidates[0].config)
    ]
    assert found.end == "budget"
    assert found.full_run == "run-0"


def test_the_time_that_failed_trials_took_counts_for_the_next(start, ranking) -> None:
    machine = Machine(as_predicted(ranking, hidden), broken=lambda _: True)
    tuning = start(3000.0)
    before = tuning.start_seconds
    step = tuning.next(0.0)
    assert isinstance(step, Step)
    tuning.add(replace(machine.run(step, {}), wall_seconds=400.0))
    assert before < 60
    assert tuning.start_seconds == 400.0
    assert tuning.next(2300.0) == "budget"


def test_no_full_run_begins_for_which_failed_trials_left_no_time(start, ranking) -> None:
    machine = Machine(as_predicted(ranking, hidden), broken=lambda _: True)

    def slow(step: Step, keep: Mapping[str, Any]) -> Trial:
        machine.clock += 100.0
        return replace(machine.run(step, keep), wall_seconds=150.0)

    found = tune(start(200.0), "", slow, lambda: machine.clock)
    assert (found.end, found.winner, found.full_run) == ("budget", None, None)
    assert len(machine.ran) == 1


def test_a_stop_ends_the_tuning_without_a_full_run(start, ranking) -> None:
    machine = Machine(as_predicted(ranking, hidden))
    found = tune(
        start(3000.0), "", machine.run, lambda: machine.clock, lambda: len(machine.ran) == 2
    )
    assert (found.end, found.full_run, len(found.trials)) == ("stopped", None, 2)


def test_the_full_runs_record_keeps_how_it_was_chosen(start, ranking) -> None:
    machine = Machine(as_predicted(ranking, hidden))
    run(start(480.0), machine)
    *trials, full = machine.kept
    assert all(not kept for kept in trials)
    said = full[RESULT]
    assert said["winner"]["low"] < said["winner"]["tokens_per_second_per_gpu"]
    assert said["runner_up"]["layout"] != said["winner"]["layout"]
    assert said["not_tried"] and said["end"] == "budget"
    json.dumps(said, allow_nan=False)


def test_a_recorded_run_is_a_trial_of_what_it_was_asked_for() -> None:
    recorded = store.read_run(EXAMPLES / "20261128-085506-llama3.1-8b-8-w1-172ad1564998")
    config = RunConfig.from_parameters(recorded.record.requested)
    found = trial(recorded, config)
    assert found.rate is not None and found.completed
    assert found.steps > 5
    assert 0 < found.deviation < 0.02


# The space


def test_fields_that_are_fixed_are_not_varied(made) -> None:
    base = BASE.model_copy(update={"micro_batch_size": 2})
    found = search.layouts(base, made, fixed=("micro_batch_size",)).candidates
    assert {one.config.micro_batch_size for one in found} == {2}
    assert len({one.config.tensor_parallel_size for one in found}) == 2


@pytest.mark.parametrize(
    "kept",
    [
        {"micro_batch_size": 3},
        {"recompute": "selective"},
        {"recompute": "full", "recompute_layers": 5},
        {"data_parallel_sharding": "none"},
        {"sequence_parallel": False, "tensor_parallel_size": 2},
        {"last_pipeline_stage_layers": 3, "pipeline_parallel_size": 2},
        {"virtual_pipeline_parallel_size": 8, "pipeline_parallel_size": 2},
    ],
)
def test_a_fixed_value_is_kept_that_no_search_would_try(made, kept: dict[str, Any]) -> None:
    base = BASE.model_copy(update={"model": "llama3.2-1b", "global_batch_size": 48} | kept)
    found = search.layouts(base, made, fixed=tuple(kept)).candidates
    assert found
    assert all(getattr(one.config, name) == kept[name] for one in found for name in kept)


def test_offload_is_varied_within_the_recomputation_that_is_fixed(made) -> None:
    base = BASE.model_copy(update={"model": "llama3.1-8b", "recompute": "pointwise"})
    found = search.layouts(base, made, fixed=("recompute",)).candidates
    assert {one.config.recompute for one in found} == {"pointwise"}
    assert len({one.config.offload_layers for one in found}) > 1


def test_offload_and_a_second_precision_are_tried_where_they_are_allowed(made) -> None:
    base = BASE.model_copy(update={"model": "llama3.1-8b", "global_batch_size": 8})
    found = search.layouts(base, made, ("bf16", "fp8")).candidates
    assert {one.config.precision for one in found} == {"bf16", "fp8"}
    whole = BASE.model_copy(update={"model": "llama3.1-8b@14", "world_size": 1})
    fitting = search.layouts(whole, made).candidates
    assert any(one.config.offload_layers for one in fitting)


def test_the_last_stage_may_have_fewer_layers(made) -> None:
    found = search.layouts(BASE, made).candidates
    stages = {one.config.last_pipeline_stage_layers for one in found}
    assert stages == {0, 3}  # the output layer of 128,256 words weighs as much as 2 layers


# The command

ASKED = ("tune", "--platform", "h100", "--model", "llama3.1-8b@8", "--gpus", "2")


def test_a_dry_run_ranks_layouts_and_says_which_would_run(capsys) -> None:
    assert main([*ASKED, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    sure = [one for one in found["ranking"] if one["fits"]]
    rates = [one["tokens_per_second_per_gpu"] for one in sure]
    assert rates == sorted(rates, reverse=True)
    assert 1 <= found["contenders"] == len(found["trials"]) <= len(found["ranking"])
    assert found["left_out"] and found["plan"] == "tune-llama3.1-8b-8-2"
    assert {one["config"]["global_batch_size"] for one in found["ranking"]} == {32}
    assert main([*ASKED, "--dry-run", "--budget-seconds", "480"]) == 0
    said = capsys.readouterr().out
    assert said.count("\n  try: ") == 4
    assert "room to try 4 layouts" in said


def test_a_dry_run_without_a_layout_says_why_and_what_to_change(capsys) -> None:
    assert main([*ASKED, "--dry-run", "--set", "micro_batch_size=3"]) == 0
    head, *_, change, why = capsys.readouterr().out.splitlines()
    assert head.endswith("batch 32 x 4,096 tokens: 0 layouts fit, 0 may fit")
    assert change == "No layout is legal. Change the GPUs, the batch or what --set fixes."
    assert why.startswith("  with the defaults: global_batch_size=32 is not a multiple of")


def test_a_dry_run_of_what_does_not_fit_names_the_least_memory_that_it_needs(capsys) -> None:
    """Of 70.6e9 parameters on 8 GPUs: 2 + 4 + 12 bytes each, in eighths, and activations."""
    asked = ("tune", "--platform", "h100", "--model", "llama3.1-70b", "--gpus", "8")
    fixed = ("--set", "data_parallel_sharding=optimizer", "--set", "tensor_parallel_size=8")
    assert main([*asked, "--dry-run", *fixed]) == 0
    *_, said = capsys.readouterr().out.splitlines()
    least = float(said.split("the least memory per GPU is ")[1].split(" GiB")[0])
    states = 70.6e9 * 18 / 8 / 2**30
    assert said.startswith("No legal layout fits: ") and states < least < 1.2 * states


def test_a_ranking_says_which_layouts_may_not_fit(capsys) -> None:
    asked = ("--platform", "h100", "--model", "llama3.1-8b", "--gpus", "4", "--dry-run")
    assert main(["tune", *asked, "--json"]) == 0
    ranking = json.loads(capsys.readouterr().out)["ranking"]
    unsure = [one for one in ranking if one["memory_gib"] > 0.9 * 80]  # of the card's 80
    assert 0 < len(unsure) < len(ranking)
    assert main(["tune", *asked]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert f": {len(ranking) - len(unsure)} layouts fit, {len(unsure)} may fit" in head
    assert "fits" in columns.split()
    for row, one in zip(rows, ranking, strict=False):
        if row.startswith("  "):
            break
        assert ("cannot tell" in row) == (one["memory_gib"] > 72)


def test_layouts_that_may_not_fit_come_after_those_that_do(made) -> None:
    """85.4 GiB of DP4 are predicted to be the fastest, on a card of 80 GB."""
    base = BASE.model_copy(update={"model": "llama3.1-8b", "world_size": 4})
    found = search.layouts(base, made)
    first = found.candidates[0].prediction
    fastest = max(found.candidates, key=lambda one: one.prediction.tokens_per_second_per_gpu)
    assert first.fits
    assert fastest.prediction.fits is None
    assert fastest in found.contenders
    tuning = Tuning(found, lambda _: made, 3600.0, [])
    fits = [one.fits for one in tuning.survivors]
    assert fits == [True] * fits.count(True) + [None] * fits.count(None)
    step = tuning.next(0.0)
    assert isinstance(step, Step)
    assert made.predict(step.config).fits


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--budget-seconds is missing. Give the seconds for all trials, or --dry-run."),
        (("--dry-run", "--budget-seconds", "20"), "budget_seconds=20 is too short"),
        (("--dry-run", "--set", "tensor=2"), "Unknown parameter 'tensor'"),
    ],
)
def test_bad_input_to_tune_ends_with_code_2(capsys, arguments: tuple[str, ...], says: str) -> None:
    assert main([*ASKED, *arguments]) == 2
    assert says in capsys.readouterr().err


FAKE = ("--trainer", "fake_trainer")
FIXED = ("micro_batch_size=4", "pipeline_parallel_size=1", "data_parallel_sharding=optimizer")
ASKED_CPU = ("--platform", "cpu", "--model", "tiny-llama", "--sequence-length", "128")


def tuned(runs: Path, capsys, fixed: tuple[str, ...], *more: str) -> tuple[int, dict[str, Any]]:
    """Tune processes on this machine by the command; return its code and what it printed."""
    space = [word for one in fixed for word in ("--set", one)]
    asked = [*ASKED_CPU, "--json", "--runs", str(runs), "--budget-seconds", "300", *space, *more]
    return main(["tune", *asked]), json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_tuning_two_processes_finds_the_layout_that_trying_all_of_them_finds(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    # The space has three layouts: replicas, which are predicted to be the fastest, tensor
    # parallelism, which is, and context parallelism.
    seconds = {"tensor_parallel_size": 0.5, "context_parallel_size": 0.7}
    monkeypatch.setenv("FAKE_FACTORS", json.dumps(seconds))
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.05")
    monkeypatch.setenv("PYTHONPATH", environment(stand_in=True)["PYTHONPATH"])
    code, found = tuned(tmp_path, capsys, FIXED, "--gpus", "2", *FAKE)
    assert (code, found["end"]) == (0, "separated")
    assert found["winner"]["config"]["tensor_parallel_size"] == 2
    assert found["runner_up"]["config"]["context_parallel_size"] == 2
    # 32 samples of 128 tokens a step, over 2 processes.
    rate = 32 * 128 / (0.5 * 0.05) / 2
    assert found["winner"]["tokens_per_second_per_gpu"] == pytest.approx(rate)
    assert [one["layout"].partition(",")[0] for one in found["trials"][:1]] == ["DP2"]
    assert len({one["layout"] for one in found["trials"]}) == 3


@pytest.mark.slow
def test_tuning_trains_and_its_records_say_what_for(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", environment(stand_in=True)["PYTHONPATH"])
    sizes = ("--gpus", "1", "--global-batch-size", "4", "--sequence-length", "32")
    code, found = tuned(tmp_path, capsys, FIXED, *sizes)
    records = [store.read_record(one) for one in store.run_directories(tmp_path)]
    assert {one.status for one in records} == {"completed"}
    assert {one.schedule["plan"] for one in records} == {"tune-tiny-llama-1"}
    assert {one.schedule["kind"] for one in records} == {"tune"}
    (full,) = (one.run_id for one in records if RESULT in one.schedule)
    # A full run whose steps drift, as other work on the machine makes them, is no answer.
    assert (found["full_run"], code) in ((full, 0), (None, 1))
    # A trial whose steps drift teaches nothing.
    trials = store.read_runs(tmp_path)[0]
    rated = [run for run in trials if measure(run).tokens_per_second is not None]
    assert len(trials) >= len(found["trials"])
    assert load("cpu", tmp_path).basis.runs >= len(rated) > 0
