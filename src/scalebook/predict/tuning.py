"""Find the fastest layout with few runs: predict all, try the best, refit, halve the field.

``Tuning`` decides which layout runs next and for how many steps; the caller runs it and says what
came of it. The rule is asynchronous successive halving (Li et al. 2020, arXiv 1810.05934) with
intervals: half of the layouts that were tried are tried again for twice the steps, and a layout
leaves the field as soon as its interval ends below the leader's. What was tried is read from the
records, so that tuning resumes where it ended.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median, stdev, variance
from typing import Any, Literal

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts.feasibility.known import ran_out
from scalebook.measure.metrics.window import measured_steps
from scalebook.predict.known import KnownRate, configuration, known_rate
from scalebook.predict.model import Z90, Prediction, Predictor
from scalebook.predict.search import Candidate, Ranking, order
from scalebook.store import Run

FULL_STEPS, WARMUP_STEPS = 20, 3
_FEWEST_STEPS, _MOST_STEPS = 8, 24  # of a first trial: the steady state needs 10 to be judged
_LIMIT_SECONDS = 60.0  # on top of three times what a trial is predicted to take
_RESERVE = 1.15  # of the full run's predicted time is kept for it
_SHARE = 0.3  # of a run's start: its steps may take so long, as they are what is bought
_MOST_TRIALS = 4  # of one layout: what is equal after them is called equal
_MOST_FAILURES = 3  # one after another, before any trial completed
# Relative deviation between two starts of a configuration on one machine. Repeats among the
# committed GPU runs differ by 0.4 %; processes of a CPU share its cores with everything else.
_RUN_NOISE, _CPU_RUN_NOISE = 0.005, 0.03

RESULT = "tuned"  # in the schedule of a winner's full run: how it was chosen

End = Literal["separated", "equal", "budget", "stopped", "failures", "nothing fits"]
SENTENCES: Mapping[End, str] = {
    "separated": "Its interval lies above that of every other layout.",
    "equal": "The runner-up is within the noise.",
    "budget": "The budget is spent; other layouts may be as fast.",
    "stopped": "Tuning was stopped; other layouts may be as fast.",
    "failures": f"{_MOST_FAILURES} trials failed one after another.",
    "nothing fits": "No layout is left to try.",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What one run of a layout showed; without ``rate`` the ``reason`` says why nothing."""

    config: RunConfig
    run_id: str
    rate: KnownRate | None
    steps: int = 0  # that were measured
    deviation: float = 0.0  # relative standard error of the mean step
    completed: bool = True
    memory_full: bool = False
    full: bool = False  # the run of a winner
    reason: str | None = None
    wall_seconds: float | None = None  # of the whole run; None: it ran in an earlier session

    @property
    def key(self) -> str:
        """What the trials of one layout share."""
        return configuration(self.config)


def trial(run: Run, config: RunConfig, wall_seconds: float | None = None) -> Trial:
    """Return what a run showed of the layout that it was asked for."""
    found, record = known_rate(run), run.record
    if isinstance(found, str):
        return Trial(
            config,
            record.run_id,
            None,
            completed=record.status == "completed",
            memory_full=ran_out(record),
            reason=record.reason or found,
            wall_seconds=wall_seconds,
        )
    seconds = [one.step_seconds for one in measured_steps(run.steps) if one.step_seconds]
    count = len(seconds)
    spread = stdev(seconds) / found.seconds if count > 1 else 0.0
    return Trial(
        config,
        record.run_id,
        found,
        count,
        spread / math.sqrt(max(count, 1)),
        full=RESULT in record.schedule,
        wall_seconds=wall_seconds,
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a layout: its rate with 90 %, measured where it has trials."""

    config: RunConfig
    tokens_per_second_per_gpu: float
    low: float
    high: float
    memory_gib: float
    fits: bool | None
    trials: int
    run_ids: tuple[str, ...] = ()

    @property
    def layout(self) -> str:
        """The layout in words."""
        return self.config.words()


@dataclass(frozen=True, slots=True)
class Tuned:
    """The answer: the fastest layout, by how much it is known to be, and what was left untried."""

    plan: str
    end: End
    sentence: str
    winner: Standing | None
    runner_up: Standing | None
    trials: tuple[Trial, ...]
    not_tried: Mapping[str, int]  # layouts by reason
    untried: tuple[Standing, ...]  # that may be as fast as the winner
    seconds: float
    full_run: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The next run: a configuration, and the seconds that it is predicted to take."""

    config: RunConfig
    seconds: float
    full: bool = False


@dataclass
class Tuning:
    """The field of layouts with all that their trials have shown so far."""

    ranking: Ranking
    teach: Callable[[Sequence[KnownRate]], Predictor]  # the runs at hand and these
    budget_seconds: float
    trials: list[Trial] = field(default_factory=list[Trial])

    def __post_init__(self) -> None:
        self.made = self.teach([])
        self.failed: dict[str, str] = {}
        self.full: Trial | None = None
        self._standings: tuple[Standing, ...] | None = None
        self.trials = [one for one in self.trials if one.key in self._predicted]
        self._refit()

    def add(self, one: Trial, *, blame: bool = True) -> None:
        """Take in a trial, and fit the model to it too.

        ``blame`` False: a failure does not exclude the layout, which has completed before.
        """
        self.trials.append(one)
        before = sum(other.key == one.key for other in self.trials) - 1
        # Steps that drift give no rate: a longer trial may.
        if blame and one.rate is None and not one.memory_full and (before or not one.completed):
            self.failed[one.key] = f"a trial failed: {one.reason}"
        self._refit()

    def _refit(self) -> None:
        longest = {
            one.key: one.rate
            for one in sorted(self.trials, key=lambda one: one.steps)
            if one.rate is not None
        }
        # One run per layout: repeats of one that the model misjudges would bend the fit.
        found = list(longest.values())
        self.made = self.teach(found) if found else self.made
        misses = [
            math.log(one.seconds / self.made.predict(one.config).step_seconds) for one in found
        ]
        # A machine may be slower at everything, which runs of other machines keep out of the fit.
        self.slower = math.exp(sum(misses) / (len(misses) + 1))
        self._standings = None

    # What is known

    @property
    def standings(self) -> tuple[Standing, ...]:
        """The layouts that are still in the field, in the order of a ranking."""
        if self._standings is None:
            excluded = self.excluded
            found = [
                self._standing(one)
                for one in self.ranking.candidates
                if configuration(one.config) not in excluded
            ]
            reach = max((one.high for one in found if one.fits), default=0.0)
            found.sort(key=lambda one: (order(one, reach), one.config.config_hash()))
            self._standings = tuple(found)
        return self._standings

    def _standing(self, one: Candidate) -> Standing:
        config, taught = one.config, any(tried.rate is not None for tried in self.trials)
        predicted = self.made.predict(config) if taught else one.prediction
        key = configuration(config)
        own = [(one, one.rate) for one in self.trials if one.key == key and one.rate is not None]
        if not own:
            rate = predicted.tokens_per_second_per_gpu / self.slower
            low, high = predicted.low / self.slower, predicted.high / self.slower
            return Standing(config, rate, low, high, predicted.memory_gib, predicted.fits, 0)
        total = sum(one.steps for one, _ in own) or 1
        seconds = sum(one.steps * known.seconds for one, known in own) / total
        noise = self.noise
        deviation = math.hypot(
            *(one.steps / total * math.hypot(noise, one.deviation) for one, _ in own)
        )
        rate = config.tokens_per_step / seconds / config.world_size
        spread = math.exp(Z90 * deviation)
        names = tuple(one.run_id for one, _ in own)
        memory = predicted.memory_gib
        return Standing(config, rate, rate / spread, rate * spread, memory, True, len(own), names)

    @property
    def noise(self) -> float:
        """Relative deviation between starts of a layout: of its repeats, where they differ more."""
        usual = _RUN_NOISE if self.made.machine.is_gpu else _CPU_RUN_NOISE
        seconds: dict[str, list[float]] = defaultdict(list)
        for one in self.trials:
            if one.rate is not None:
                seconds[one.key].append(math.log(one.rate.seconds))
        free = sum(len(same) - 1 for same in seconds.values())
        squares = sum(variance(same) * (len(same) - 1) for same in seconds.values() if same[1:])
        return max(usual, math.sqrt(squares / free)) if free else usual

    @property
    def excluded(self) -> Mapping[str, str]:
        """Layouts that are out of the field, with the reason."""
        found = dict(self.failed)
        found |= {one.key: "a trial ran out of memory" for one in self.trials if one.memory_full}
        limit = self.memory_limit_gib
        if limit is not None:
            for one in self.ranking.candidates:
                if one.prediction.memory_gib >= limit:
                    reason = f"{limit:.1f} GiB or more predicted, at which a trial ran out"
                    found.setdefault(configuration(one.config), reason)
        return found

    @property
    def memory_limit_gib(self) -> float | None:
        """Predicted memory from which layouts are taken not to fit, by the trials; None: unknown.

        The least at which a trial ran out of memory, but for those that a completed one needed.
        """
        memory = [(self._predicted[one.key].memory_gib, one) for one in self.trials]
        fitting = [gib for gib, one in memory if one.rate is not None]
        broken = [gib for gib, one in memory if one.memory_full]
        return min((one for one in broken if one > max(fitting, default=0.0)), default=None)

    @cached_property
    def _predicted(self) -> Mapping[str, Prediction]:
        return {configuration(one.config): one.prediction for one in self.ranking.candidates}

    @property
    def leader(self) -> Standing | None:
        """The fastest layout that was tried; None before the first completed trial."""
        return next((one for one in self.standings if one.trials), None)

    @property
    def survivors(self) -> tuple[Standing, ...]:
        """The layouts that may be the fastest, tried or not, the leader among them."""
        leader = self.leader
        if leader is not None:
            return tuple(one for one in self.standings if one.high >= leader.low)
        # Predictions share most of their error: their lower ends would keep too many.
        best = self.standings[0].tokens_per_second_per_gpu if self.standings else 0.0
        return tuple(one for one in self.standings if one.high >= best)

    # What comes next

    def next(self, elapsed_seconds: float) -> Step | End:
        """Return the next trial, or why there is none."""
        if not self.standings:
            return "nothing fits"
        if self.leader is None and len(self.failed) >= _MOST_FAILURES:
            return "failures"
        chosen = self._chosen(self.width(elapsed_seconds))
        if chosen is None:
            return "separated" if len(self.survivors) == 1 else "equal"
        step = self.trial_step(chosen)
        reserve = _RESERVE * self.full_step(self.leader or chosen).seconds
        left = self.budget_seconds - elapsed_seconds
        return "budget" if step.seconds + reserve > left else step

    def _chosen(self, width: int) -> Standing | None:
        """Return the layout to try next, None where trials say no more."""
        survivors = self.survivors
        untried = [one for one in survivors if not one.trials]
        tried = [one for one in survivors if one.trials]
        counts = Counter(one.key for one in self.trials if one.rate is not None)
        if untried and len(counts) < width:
            return untried[0]
        rung = 1
        while tried and rung < _MOST_TRIALS and (room := math.ceil(len(counts) / 2**rung)) > 1:
            if sum(count > rung for count in counts.values()) < min(room, len(tried)):
                waiting = [one for one in tried[:room] if one.trials == rung]
                if waiting and len(tried) > 1:
                    return waiting[0]
            rung += 1
        if untried:
            return untried[0]
        again = [one for one in tried if one.trials < _MOST_TRIALS] if len(tried) > 1 else []
        return min(again, key=lambda one: one.trials, default=None)

    def width(self, elapsed_seconds: float = 0.0) -> int:
        """Return how many layouts there is time to try before half of them are tried again."""
        if not self.standings:
            return 0
        best = self.leader or self.standings[0]
        cost = self._step(best, self._first_steps(best)).seconds
        left = self.budget_seconds - elapsed_seconds - _RESERVE * self.full_step(best).seconds
        room = sum(one.rate is not None for one in self.trials) + int(max(left, 0.0) / cost)
        return max(2, *(n for n in range(1, 65) if _halving_trials(n) <= room))

    @property
    def start_seconds(self) -> float:
        """What a run takes around its steps: of this session's trials, else of the runs at hand."""
        found: list[float] = []
        for one in self.trials:
            if one.wall_seconds is not None:
                step = one.rate.seconds if one.rate else self._predicted[one.key].step_seconds
                around = one.wall_seconds - one.config.steps * step * one.completed
                found.append(max(around, 0.0))
        return median(found) if found else self.made.start_seconds

    def trial_step(self, standing: Standing) -> Step:
        """Return a layout's next trial: as many steps as its start is worth, doubled each time."""
        return self._step(standing, self._first_steps(standing) * 2 ** self._runs(standing))

    def full_step(self, standing: Standing) -> Step:
        """Return the full run of a layout."""
        steps = max(FULL_STEPS, self._first_steps(standing))
        return replace(self._step(standing, steps), full=True)

    def _first_steps(self, standing: Standing) -> int:
        steps = int(_SHARE * self.start_seconds / self._step_seconds(standing))
        return min(max(steps, _FEWEST_STEPS), _MOST_STEPS)

    def _runs(self, standing: Standing) -> int:
        key = configuration(standing.config)
        return sum(one.key == key for one in self.trials)

    def _step_seconds(self, standing: Standing) -> float:
        config = standing.config
        return config.tokens_per_step / config.world_size / standing.tokens_per_second_per_gpu

    def _step(self, standing: Standing, steps: int) -> Step:
        seconds = self.start_seconds + steps * self._step_seconds(standing)
        update = {
            "steps": steps,
            "warmup_steps": WARMUP_STEPS,
            "repeat": self._runs(standing),
            # A layout may be slower than any prediction; it must not take the others' time.
            "time_limit_seconds": int(3 * seconds + _LIMIT_SECONDS),
        }
        return Step(standing.config.model_copy(update=update), seconds)

    # What came of it

    def result(self, plan: str, end: End, seconds: float) -> Tuned:
        """Return the answer as it stands."""
        leader, survivors = self.leader, self.survivors
        others = [one for one in self.standings if one.trials and one is not leader]
        untried = tuple(one for one in survivors if not one.trials)
        left_out = sorted(self.ranking.left_out.items(), key=lambda item: -item[1])
        counts = Counter({reason.replace("_", " "): n for reason, n in left_out})
        tried = {one.key for one in self.trials}
        counts.update(reason for key, reason in self.excluded.items() if key not in tried)
        slower = sum(not one.trials for one in self.standings) - len(untried)
        counts["predicted to be slower than the winner"] += slower
        counts["may be as fast, but no time was left"] += len(untried)
        return Tuned(
            plan=plan,
            end=end,
            sentence=SENTENCES[end],
            winner=leader,
            runner_up=others[0] if others else None,
            trials=tuple(self.trials),
            not_tried={reason: count for reason, count in counts.items() if count},
            untried=untried,
            seconds=seconds,
            full_run=self.full.run_id if self.full else None,
        )


def _halving_trials(layouts: int) -> int:
    """Return the trials that halving takes, except the full run of the last one."""
    return 0 if layouts < 2 else layouts + _halving_trials(-(-layouts // 2))


def refuse_short(tuning: Tuning) -> None:
    """Refuse a budget in which not even one layout can run in full.

    Raises:
        ConfigError: it is too short.
    """
    if not tuning.standings:
        return
    needed = tuning.full_step(tuning.standings[0]).seconds
    if needed > tuning.budget_seconds:
        raise ConfigError(
            f"budget_seconds={tuning.budget_seconds:g} is too short: one full run takes about "
            f"{needed:.0f} s. Give at least {2 * needed:.0f}."
        )


def tune(
    tuning: Tuning,
    plan: str,
    run: Callable[[Step, Mapping[str, Any]], Trial],
    elapsed_seconds: Callable[[], float],
    stopped: Callable[[], bool] = lambda: False,
) -> Tuned:
    """Run trials until one layout is separated or the budget is spent, then the winner in full.

    ``run`` gets each step and what its record's schedule should keep of the tuning so far.
    """
    refuse_short(tuning)
    while True:
        step: Step | End = "stopped" if stopped() else tuning.next(elapsed_seconds())
        if isinstance(step, str):
            break
        tuning.add(run(step, {}))
    found = tuning.result(plan, step, elapsed_seconds())
    best = found.winner or (tuning.standings[0] if step == "budget" else None)
    if best is None or step == "stopped":
        return found
    left = tuning.budget_seconds - elapsed_seconds()
    if found.winner is None and tuning.full_step(best).seconds > left:
        return found
    own = (one for one in tuning.trials if one.run_id in best.run_ids)
    tuning.full = next((one for one in own if one.full), None)
    if tuning.full is None:
        last = run(tuning.full_step(best), {RESULT: summary(found)})
        tuning.add(last, blame=False)
        tuning.full = last if last.rate is not None else None
    return tuning.result(plan, "stopped" if stopped() else step, elapsed_seconds())


def summary(found: Tuned) -> dict[str, Any]:
    """Return what the record of the winner's full run keeps of how it was chosen."""

    def short(one: Standing | None) -> dict[str, Any] | None:
        names = ("layout", "tokens_per_second_per_gpu", "low", "high", "trials", "run_ids")
        return one and {name: getattr(one, name) for name in names}

    return {
        "end": found.end,
        "sentence": found.sentence,
        "winner": short(found.winner),
        "runner_up": short(found.runner_up),
        "untried": [short(one) for one in found.untried],
        "not_tried": dict(found.not_tried),
        "trials": len(found.trials),
    }
