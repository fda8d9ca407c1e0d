"""Which layouts are searched and tried, by hand: the space, its order, trials and their lengths."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts import catalog
from scalebook.predict import predictor, recommended, search, tuning
from scalebook.predict.known import KnownRate
from scalebook.predict.search import Candidate, Ranking
from scalebook.predict.tuning import Trial, Tuning, refuse_short, trial

DEVICE = catalog.accelerator("H100-SXM5-80GB")


def config(**fields: Any) -> RunConfig:
    base = {"platform": "h100", "model": "llama3.1-8b@8", "world_size": 4, "sequence_length": 4096}
    base |= {"micro_batch_size": 1, "global_batch_size": 32}
    return RunConfig(**(base | fields))


# The space


@pytest.mark.parametrize(
    ("model", "world", "platform"),
    [("llama3.1-8b@8", 4, "h100"), ("qwen3-30b-a3b@4", 4, "h100"), ("tiny-llama", 2, "cpu"),
     ("llama3.1-8b@3", 16, "h100")],
)  # fmt: skip
def test_the_space_is_every_split_of_the_world_once(model: str, world: int, platform: str) -> None:
    shape = catalog.model(model)
    base = config(model=model, world_size=world, platform=platform)
    room = None if platform == "cpu" else 8
    found = list(search._variations(base, shape, room, ()))
    assert len({one.config_hash() for _, one in found}) == len(found)
    splits: set[tuple[int, ...]] = set()
    for _, one in found:
        tensor, stages = one.tensor_parallel_size, one.pipeline_parallel_size
        context, experts = one.context_parallel_size, one.expert_parallel_size
        splits.add((tensor, stages, context, experts))
        assert one.sequence_parallel == (tensor > 1)
        inner = one.expert_tensor_parallel_size
        assert inner == (tensor if shape.moe and experts == 1 else 1)
    sizes = range(1, world + 1)
    expected = {
        (tensor, stages, context, experts)
        for tensor in sizes if tensor <= 8
        for stages in sizes if stages <= shape.num_layers
        for context in sizes if world % (tensor * stages * context) == 0
        for experts in range(1, (shape.num_experts or 1) + 1)
        if (shape.num_experts or 1) % experts == 0
    }  # fmt: skip
    assert splits == expected
    one = [c for _, c in found if (c.tensor_parallel_size, c.expert_parallel_size) == (1, 1)]
    flat = [c for c in one if c.pipeline_parallel_size == c.context_parallel_size == 1]
    # 4 micro batches, 3 shardings; on a GPU nothing, pointwise with 3 numbers of layers, all saved
    assert len(flat) == 4 * 3 * (1 if platform == "cpu" else 5)
    assert {c.micro_batch_size for c in flat} == {1, 2, 4, 8}
    shared = {(c.data_parallel_sharding, c.parameter_gather) for c in flat}
    assert shared == {("optimizer", "pass"), ("full", "step"), ("full", "pass")}
    alone = [c for _, c in found if c.tensor_parallel_size * c.pipeline_parallel_size == world]
    assert {c.data_parallel_sharding for c in alone} == {"optimizer"}  # nobody to share with
    chunks = {(c.pipeline_parallel_size > 1, c.virtual_pipeline_parallel_size) for _, c in found}
    assert chunks == {(False, 1), *((True, n) for n in (1, 2, 4) if shape.num_layers > 1)}


def test_what_saves_more_memory_comes_later_and_only_where_memory_is_known() -> None:
    saved = [
        (one["recompute"], one["offload_layers"])
        for one in search._savings(config(), catalog.model("llama3.1-8b@9"))
    ]
    assert saved == [("none", 0), *(("pointwise", n) for n in (0, 4, 9)), ("full", 0)]
    one_layer = search._savings(config(), catalog.model("llama3.1-8b@1"))
    assert [one["offload_layers"] for one in one_layer] == [0, 0, 1, 1, 0]
    assert len(list(search._savings(config(platform="cpu"), catalog.model("tiny-llama")))) == 1


def test_layouts_with_more_recomputation_than_one_that_fits_are_left_out() -> None:
    made = predictor("h100")
    ranking = search.layouts(config(), made)
    for first in ranking.candidates:
        same = {"recompute": "none", "offload_layers": 0}
        if first.prediction.fits and first.config.recompute == "none":
            others = (one.config for one in ranking.candidates if one is not first)
            twins = [one for one in others if one.model_copy(update=same) == first.config]
            assert twins == []
    assert all(one.prediction.fits is not False for one in ranking.candidates)
    large = search.layouts(config(model="llama3.1-70b", world_size=4), made)
    assert large.left_out["does not fit the memory"] > 0
    assert all(one.config.recompute != "none" for one in large.candidates)


def test_layouts_that_are_illegal_are_left_out_as_such() -> None:
    found = search.layouts(config(precision="fp4"), predictor("h100"))
    assert found.candidates == ()
    assert set(found.left_out) == {"illegal: precision", "illegal: layers"}


def test_a_search_ends_after_its_most_layouts_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MOST", 10)
    found = search.layouts(config(), predictor("h100"))
    assert found.left_out.pop("beyond the first 10") == 1
    assert len(found.candidates) + sum(found.left_out.values()) == 10


def candidate(rate: float, high: float, memory: float = 1.0, **fields: Any) -> Candidate:
    asked = config(**fields)
    seconds = asked.tokens_per_step / asked.world_size / rate
    found: Any = SimpleNamespace(
        tokens_per_second_per_gpu=rate, low=rate**2 / high, high=high, step_seconds=seconds,
        memory_gib=memory, fits=True,
    )  # fmt: skip
    return Candidate(asked, found)


def test_a_layout_whose_interval_reaches_the_first_may_be_the_fastest() -> None:
    ranking = Ranking((candidate(100, 110), candidate(95, 100), candidate(90, 99.9)), {})
    assert [one.prediction.high for one in ranking.contenders] == [110, 100]
    assert Ranking((), {}).contenders == ()


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        # (rate, high, whether it fits): the interval is symmetric in logarithms
        ([(100, 110, True), (105, 115, None), (90, 99, True)], [100, 90, 105]),  # they overlap
        ([(100, 110, True), (150, 160, None), (105, 115, None)], [150, 100, 105]),  # 140.6 > 110
        ([(100, 110, None), (105, 115, None)], [105, 100]),  # no memory is known
    ],
)
def test_a_layout_that_may_not_fit_comes_after_those_that_may_be_as_fast_and_fit(
    rates: list[tuple[float, float, bool | None]], expected: list[float]
) -> None:
    found = [
        SimpleNamespace(tokens_per_second_per_gpu=rate, low=rate**2 / high, high=high, fits=fits)
        for rate, high, fits in rates
    ]
    reach = max((one.high for one in found if one.fits), default=0.0)
    ranked = sorted(found, key=lambda one: search.order(one, reach))
    assert [one.tokens_per_second_per_gpu for one in ranked] == expected


def test_a_layout_that_rests_on_an_assumption_comes_after_taught_ones_unless_surely_faster() -> (
    None
):
    rates = [(100, 110, ()), (105, 115, ("hidden",)), (150, 160, ("hidden",)), (90, 99, ())]
    found = [
        SimpleNamespace(
            tokens_per_second_per_gpu=rate, low=rate**2 / high, high=high, fits=True, assumed=why
        )
        for rate, high, why in rates
    ]
    ranked = sorted(found, key=lambda one: search.order(one, 110))
    # The lower end of 150 is 140.6, above 110; that of 105 is 95.9.
    assert [one.tokens_per_second_per_gpu for one in ranked] == [150, 100, 90, 105]


# Trials


class Made:
    """A predictor whose rates are those of the candidates and whose runs start in 50 s."""

    start_seconds = 50.0
    machine = SimpleNamespace(is_gpu=True)

    def __init__(self, *candidates: Candidate) -> None:
        self.known = {one.config.micro_batch_size: one.prediction for one in candidates}

    def predict(self, asked: RunConfig) -> Any:
        return self.known[asked.micro_batch_size]


def begin(*candidates: Candidate, budget: float = 10_000.0, trials: Any = ()) -> Tuning:
    made: Any = Made(*candidates)
    return Tuning(Ranking(candidates, {}), lambda _: made, budget, list(trials))


FAST = candidate(32768.0, 40000.0, micro_batch_size=1)  # a step of 1 s
SLOW = candidate(16384.0, 20000.0, 3.0, micro_batch_size=2)  # of 2 s


def tried(one: Candidate, seconds: float, steps: int = 10, **fields: Any) -> Trial:
    shape = catalog.model(one.config.model)
    asked = one.config.model_copy(update={"steps": steps})
    rate = KnownRate("r", asked, shape, DEVICE, {}, seconds)
    return Trial(asked, "r", rate, **({"steps": steps, "deviation": 0.0} | fields))


@pytest.mark.parametrize(("layouts", "trials"), [(0, 0), (1, 0), (2, 2), (3, 5), (4, 6), (5, 10),
                                                 (8, 14), (16, 30)])  # fmt: skip
def test_halving_tries_all_then_half_and_so_on(layouts: int, trials: int) -> None:
    assert tuning._halving_trials(layouts) == trials


def test_a_first_trial_takes_as_many_steps_as_its_start_is_worth() -> None:
    """Three tenths of 50 s: 15 steps of 1 s; 8 at least and 24 at most; a full run has 20."""
    for seconds, steps in ((1.0, 15), (2.0, 8), (0.7, 21), (0.1, 24)):
        one = candidate(32768 / seconds, 32768 / seconds)
        found = begin(one)
        (standing,) = found.standings
        step = found.trial_step(standing)
        assert (step.config.steps, step.config.warmup_steps) == (steps, 3)
        assert step.seconds == pytest.approx(50 + steps * seconds)
        assert step.config.time_limit_seconds == int(3 * (50 + steps * seconds) + 60)
        full = found.full_step(standing)
        assert (full.config.steps, full.full, step.full) == (max(20, steps), True, False)


def test_each_trial_of_a_layout_takes_twice_the_steps_of_the_one_before() -> None:
    for before in range(3):
        found = begin(FAST, SLOW, trials=[tried(FAST, 1.0) for _ in range(before)])
        step = found.trial_step(next(one for one in found.standings if one.config == FAST.config))
        assert (step.config.steps, step.config.repeat) == (15 * 2**before, before)


@pytest.mark.parametrize(
    ("trials", "elapsed", "width"), [(1, 0, 2), (2, 0, 2), (5, 0, 3), (6, 0, 4), (9, 0, 4),
                                     (10, 0, 5), (10, 1, 4), (10, 66, 4), (500, 0, 64)]
)  # fmt: skip
def test_as_many_layouts_are_tried_as_halving_has_time_for(
    trials: int, elapsed: float, width: int
) -> None:
    """A trial takes 65 s, the full run 70 s, of which 1.15 times are kept."""
    found = begin(FAST, budget=1.15 * 70 + 65 * trials + 0.01)
    assert found.width(elapsed) == width


def test_a_budget_must_hold_one_full_run() -> None:
    """Of 50 s and 20 steps of 1 s."""
    refuse_short(begin(FAST, budget=70.0))
    with pytest.raises(ConfigError, match=r"takes about 70 s\. Give at least 140"):
        refuse_short(begin(FAST, budget=69.9))
    refuse_short(begin(budget=1.0))  # nothing to try is another answer


def test_the_next_trial_must_leave_time_for_the_full_run() -> None:
    """65 s of a trial and 1.15 x 70 s."""
    found = begin(FAST, SLOW, budget=145.5)
    step = found.next(0.0)
    assert not isinstance(step, str) and step.config.micro_batch_size == 1
    assert found.next(0.1) == "budget"
    nothing = begin()
    assert nothing.next(0.0) == "nothing fits"
    assert (nothing.width(), nothing.survivors, nothing.leader) == (0, (), None)


def test_the_better_half_is_tried_again_before_a_layout_beyond_the_width() -> None:
    """By hand: 4 of 5 once, 2 of them twice, the fifth; then 3 of 5 twice, 2 thrice, the rest."""
    layouts = [
        candidate(32768 * (1 - at / 1000), 40000.0, micro_batch_size=2**at) for at in range(5)
    ]
    trials: list[Trial] = []
    for _ in range(12):
        standing = begin(*layouts, trials=trials)._chosen(4)
        assert standing is not None
        at = standing.config.micro_batch_size.bit_length() - 1
        trials.append(tried(layouts[at], layouts[at].prediction.step_seconds))
    order = [one.config.micro_batch_size.bit_length() - 1 for one in trials]
    assert order == [0, 1, 2, 3, 0, 1, 4, 2, 0, 1, 3, 4]


def test_trials_of_a_layout_count_by_their_steps() -> None:
    """By hand: 10 steps of 1 s and 30 of 1.2 s are 1.15 s; their errors add by their weights."""
    trials = [tried(FAST, 1.0, 10, deviation=0.02), tried(FAST, 1.2, 30, deviation=0.01)]
    found = begin(FAST, trials=trials)
    (standing,) = found.standings
    assert standing.tokens_per_second_per_gpu == pytest.approx(32768 / 1.15)
    noise = math.sqrt(math.log(1.2) ** 2 / 2)
    assert found.noise == pytest.approx(noise)
    parts = (math.hypot(noise, 0.02) / 4, 3 * math.hypot(noise, 0.01) / 4)
    spread = math.exp(1.645 * math.hypot(*parts))
    assert standing.high == pytest.approx(32768 / 1.15 * spread)
    assert standing.low == pytest.approx(32768 / 1.15 / spread)
    assert (standing.trials, standing.run_ids) == (2, ("r", "r"))


def test_starts_differ_by_what_repeats_do_or_by_half_a_percent() -> None:
    assert begin(FAST, trials=[tried(FAST, 1.0)]).noise == 0.005
    assert begin(FAST, trials=[tried(FAST, 1.0), tried(FAST, 1.001)]).noise == 0.005
    made: Any = Made(FAST)
    made.machine = SimpleNamespace(is_gpu=False)
    assert Tuning(Ranking((FAST,), {}), lambda _: made, 1.0, []).noise == 0.03


def test_a_machine_slower_at_everything_makes_every_prediction_slower() -> None:
    """By hand: two layouts take 1.44 times their prediction, pulled to none by a third."""
    third = candidate(8192.0, 9000.0, micro_batch_size=4)
    found = begin(FAST, SLOW, third, trials=[tried(FAST, 1.44), tried(SLOW, 2.88)])
    slower = 1.44 ** (2 / 3)
    assert found.slower == pytest.approx(slower)
    last = found.standings[-1]
    ends = (last.tokens_per_second_per_gpu, last.low, last.high)
    assert ends == pytest.approx((8192 / slower, 8192**2 / 9000 / slower, 9000 / slower))


def test_a_start_takes_the_median_of_what_trials_took_around_their_steps() -> None:
    trials = [
        tried(FAST, 1.0, 10, wall_seconds=40.0),  # 30
        tried(FAST, 1.0, 10, wall_seconds=5.0),  # less than its steps: 0
        tried(SLOW, 3.0, 10, wall_seconds=130.0),  # 100
        tried(SLOW, 3.0, 10),  # of an earlier session
    ]
    assert begin(FAST, SLOW, trials=trials).start_seconds == 30.0
    assert begin(FAST, SLOW, trials=trials[1:2]).start_seconds == 0.0
    failed = replace(trials[0], rate=None, completed=False, wall_seconds=90.0)
    assert begin(FAST, SLOW, trials=[failed]).start_seconds == 90.0
    drifted = replace(trials[0], rate=None, wall_seconds=90.0)  # its 10 steps were predicted 1 s
    assert begin(FAST, SLOW, trials=[drifted]).start_seconds == 80.0


def test_layouts_of_as_much_memory_as_one_that_ran_out_leave_the_field() -> None:
    full = replace(tried(SLOW, 1.0), rate=None, memory_full=True)
    found = begin(FAST, SLOW, candidate(1.0, 1.0, 2.9, micro_batch_size=4), trials=[full])
    assert found.memory_limit_gib == 3.0
    assert [one.config.micro_batch_size for one in found.standings] == [1, 4]
    # where a layout of as much has completed, memory is not what decides
    fits = candidate(1.0, 1.0, 3.0, micro_batch_size=4)
    other = begin(FAST, SLOW, fits, trials=[full, tried(fits, 4.0)])
    assert other.memory_limit_gib is None
    assert [one.config.micro_batch_size for one in other.standings] == [1, 4]


def test_a_layout_that_fails_leaves_the_field_and_one_that_drifts_has_a_second_trial() -> None:
    drifted, failed = (
        replace(tried(one, 1.0), rate=None, completed=completed, reason="why")
        for one, completed in ((FAST, True), (SLOW, False))
    )
    said = "a trial failed: why"
    found = begin(FAST, SLOW)
    for one, out in ((drifted, set()), (failed, {failed}), (drifted, {failed, drifted})):
        found.add(one)
        assert found.failed == {other.key: said for other in out}
    unblamed = begin(FAST, SLOW)
    unblamed.add(failed, blame=False)
    assert unblamed.failed == {}
    full = begin(FAST, SLOW)  # memory that ran out has a reason of its own
    full.add(replace(failed, memory_full=True))
    assert (full.failed, set(full.excluded)) == ({}, {failed.key})


@pytest.mark.parametrize("fits", [True, False, None])
def test_a_layout_that_was_measured_fits_whatever_was_predicted(fits: bool | None) -> None:
    one = candidate(32768.0, 40000.0)
    one.prediction.fits = fits
    (predicted,), (measured,) = begin(one).standings, begin(one, trials=[tried(one, 1.0)]).standings
    assert (predicted.fits, measured.fits) == (fits, True)


@given(st.integers(1, 9), st.lists(st.integers(0, 8), max_size=5))
def test_every_layout_of_the_space_is_tried_or_counted_with_a_reason(
    count: int, tries: list[int]
) -> None:
    ranked = [candidate(1000.0 - 90 * n, 1050.0 - 90 * n, micro_batch_size=n + 1)
              for n in range(count)]  # fmt: skip
    trials = [tried(ranked[n], 32768 / (1000 - 90 * n)) for n in tries if n < count]
    made: Any = Made(*ranked)
    found = Tuning(Ranking(tuple(ranked), {"a_rule": 3}), lambda _: made, 1.0, trials)
    result = found.result("plan", "budget", 1.0)
    keys = {one.key for one in trials}
    assert sum(result.not_tried.values()) == count - len(keys) + 3
    assert result.not_tried["a rule"] == 3
    assert not {one.config.micro_batch_size for one in result.untried} & {n + 1 for n in tries}
    if len(keys) > 1:
        rates = [one.tokens_per_second_per_gpu for one in (result.winner, result.runner_up) if one]
        assert len(rates) == 2 and rates[0] > rates[1]


def test_a_run_is_a_trial_of_its_measured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: steps of 1, 2 and 3 s deviate by 1 s of 2, their mean by 1 / 2 / sqrt 3."""
    rate = SimpleNamespace(seconds=2.0)
    monkeypatch.setattr(tuning, "known_rate", lambda _: rate)
    monkeypatch.setattr(tuning, "measured_steps", lambda steps: steps)
    record = SimpleNamespace(run_id="r", schedule={}, status="completed", reason=None)
    for seconds, deviation in (((1.0, 2.0, 3.0, None), 0.5 / 3**0.5), ((2.0,), 0.0), ((), 0.0)):
        steps = [SimpleNamespace(step_seconds=one) for one in seconds]
        run: Any = SimpleNamespace(record=record, steps=steps)
        found = trial(run, config(), 7.0)
        assert found.deviation == pytest.approx(deviation)
        assert (found.steps, found.full) == (sum(1 for one in seconds if one), False)
        assert found.wall_seconds == 7.0


# What is recommended


def row(rate: float, differs: int = 0, **fields: Any) -> recommended.Recommended:
    base = {"kind": "measured", "rank": 0, "low": None, "high": None, "interval": None,
            "precision": "bf16", "sequence_length": 8, "world_size": 4, "global_batch_size": 1,
            "layout": "", "software": None, "source": "x", "url": None, "date": None}  # fmt: skip
    named = tuple("x" * differs)
    return recommended.Recommended(**(base | fields), tokens_per_second_per_gpu=rate, differs=named)


def test_rows_are_ranked_by_how_little_they_differ_then_by_rate() -> None:
    rows = [row(5.0), row(9.0), row(50.0, 1, world_size=8), row(70.0, 2, precision="fp8"),
            row(60.0, 1, sequence_length=16)]  # fmt: skip
    left_out: Counter[str] = Counter()
    kept = recommended._ranked(rows, left_out, 3)
    assert [(one.rank, one.tokens_per_second_per_gpu) for one in kept] == [(1, 9), (2, 60), (3, 50)]
    assert left_out == {
        "slower under the same conditions": 1,
        "differs more from the question, or slower": 1,
    }
    assert recommended._ranked(rows[1:3], left_out, 2) and left_out.total() == 2


@pytest.mark.parametrize(
    ("precision", "length", "world", "differs"),
    [
        ("BF16", 4096, 4, ()),
        (None, 4096, 4, ("precision not stated",)),
        ("FP8", 8192, 4, ("precision FP8", "sequence 8,192")),
        ("BF16", None, 1024, ("sequence not stated", "GPUs 1,024")),
    ],
)
def test_a_row_says_in_which_conditions_it_differs(
    precision: str | None, length: int | None, world: int, differs: tuple[str, ...]
) -> None:
    assert recommended._differences(config(), precision, length, world) == differs
