"""Which layout to run: ``recommend`` shows what is known of it, ``tune`` finds the fastest."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli import predict as predictions
from scalebook.cli import run_options
from scalebook.cli.check import said
from scalebook.cli.predict import add_network, duration
from scalebook.cli.terminal import (
    Subparsers,
    add_count,
    add_json,
    add_model,
    add_processes,
    add_runs,
    add_set,
    add_settings,
    add_start,
    add_switch,
    existing_runs,
    number,
    plain,
    positive,
    print_data,
    print_json,
    print_table,
)
from scalebook.errors import ConfigError
from scalebook.project import TRAIN_NOTEBOOK, required_root, runs_folder, short
from scalebook.running.console import Console
from scalebook.settings import SETTINGS

if TYPE_CHECKING:
    from scalebook.config import RunConfig
    from scalebook.predict import Prediction
    from scalebook.predict.recommended import Recommendations, Recommended
    from scalebook.predict.search import Ranking
    from scalebook.predict.tuning import Standing, Step, Trial, Tuned, Tuning

_SHOWN = 12  # layouts of a ranking for people
_EVIDENCE = {
    "published": "Published by others, on their engine and machine",
    "measured": "Measured, by runs at hand",
    "predicted": "Predicted for Scalebook's trainer, not run",
}
_SAMPLES_PER_GPU = 16  # of a tuned step: enough for every micro batch and a few in each pipeline


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    text = "find the fastest layout of a model in short runs"
    parser = subparsers.add_parser("tune", tune, help=text)
    add_model(parser)
    parser.add_argument("--platform", required=True, help=SETTINGS["platform"].help)
    add_processes(parser, "total processes (default: a whole node)")
    text = "time for all trials and the winner's full run; required without --dry-run"
    parser.add_argument("--budget-seconds", type=positive, metavar="S", help=text)
    _add_space(parser)
    add_switch(parser, "--dry-run", "print the ranking and the trials; start nothing")
    add_start(parser)
    add_runs(parser, "folder of runs")
    add_network(parser)
    add_json(parser)
    run_options.add_container(parser)
    parser.set_defaults(plan=None, data="")
    _add_recommend(subparsers)


def _add_recommend(subparsers: Subparsers) -> None:
    text = "show the best published, measured and predicted rates of a model"
    parser = subparsers.add_parser("recommend", recommend, help=text)
    add_model(parser)
    parser.add_argument("--platform", required=True, help=SETTINGS["platform"].help)
    add_settings(parser, ("world_size", "sequence_length", "precision", "global_batch_size"))
    add_count(parser, "--most", "ROWS", "rows of each kind (default: 5)", default=5)
    add_runs(parser, "folder of runs")
    add_network(parser)
    add_json(parser, csv=True)
    parser.set_defaults(fields=[])


def recommend(options: argparse.Namespace) -> int:
    """Print the best known rates, each kind of evidence by itself."""
    from scalebook import predict as room
    from scalebook.predict.recommended import recommend as found_for

    options.precisions = [options.precision] if options.precision else []
    base, runs = _sought(options), existing_runs(options.runs)
    made = room.load(base.platform, runs, network_gbps=options.network_gbps)
    console = Console(sys.stderr)  # thousands of layouts take a minute
    console.live(f"Ranking the layouts of {base.model} on {base.world_size} x {base.platform}")
    found = found_for(base, made, runs, options.most)
    console.clear()
    if options.json == "csv":
        print_data([row for kind in found for row in kind.rows], "csv")
    elif options.json:
        print_json({"question": base.model_dump(), **{one.kind: plain(one) for one in found}})
    else:
        _print_recommended(options, base, found)
    return 0


def _add_space(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which work is tuned, and what may vary."""
    add_count(parser, "--global-batch-size", "SAMPLES", "samples per step (default: 16 per GPU)")
    add_settings(parser, ["sequence_length"])
    parser.add_argument(
        "--precision",
        dest="precisions",
        nargs="+",
        choices=("bf16", "fp16", "fp8", "fp32"),
        default=[],
        help="allowed number formats of the matrix products (default: the platform's)",
    )
    add_set(parser, "setting of every trial, which is then not varied")


def tune(options: argparse.Namespace) -> int:
    """Rank all layouts, try the best, and run the fastest in full; 0 if there is a winner."""
    from scalebook.facts import catalog
    from scalebook.plan import Plan
    from scalebook.running import runner

    if options.budget_seconds is None and not options.dry_run:
        raise ConfigError(
            "--budget-seconds is missing. Give the seconds for all trials, or --dry-run."
        )
    base = _sought(options)
    if options.dry_run:
        runs = existing_runs(options.runs)
        return _dry_run(options, base, _tuning(options, base, runs))
    runs = runs_folder(options.runs)
    platform = catalog.platform(base.platform)
    ended = run_options.enter_container(options, platform, Plan(_name(base), "", ()), runs)
    if ended is not None:
        return ended
    runner.check(base, force_platform=options.force_platform)
    found = _run(options, base, runs)
    if options.json:
        print_json(_value(found))
    else:
        _print_result(found)
    return 0 if found.full_run else 1


def _print_recommended(
    options: argparse.Namespace, base: RunConfig, found: Sequence[Recommendations]
) -> None:
    from scalebook.facts import catalog, legality

    length, batch = f"sequence {base.sequence_length:,}", f"global batch {base.global_batch_size:,}"
    length += "" if options.sequence_length else " (default)"
    batch += "" if options.global_batch_size else " (default)"
    asked = f"{base.precision}{'' if options.precision else ' (default)'}, {length}, {batch}"
    print(f"Asked: {base.model} on {base.world_size} x {base.platform}, {asked}")
    device, shape = catalog.platform(base.platform).accelerator, catalog.model(base.model)
    accelerator = catalog.accelerator(device) if device else None
    for problem in legality.check(legality.Case(base, shape, accelerator)):
        if (problem.rule, problem.severity) == ("precision", "error"):
            print(f"Not possible: {problem.message} The rates below are of other precisions.")
    for one in found:
        print(f"\n{_EVIDENCE[one.kind]}. {one.said}")
        headers = ("#", "tokens/s/GPU", "interval", "precision", "sequence", "GPUs", "layout")
        rows = [_recommended_cells(row) for row in one.rows]
        if rows:
            print_table((*headers, "differs from the question"), rows)
        about: dict[str, list[str]] = {}
        for row in one.rows:
            parts = (row.source, row.software, row.date, *row.notes)
            about.setdefault("; ".join(filter(None, parts)), []).append(str(row.rank))
        for text, ranks in about.items():
            print(f"  {', '.join(ranks)}: {text}")
        for reason, count in sorted(one.left_out.items(), key=lambda item: -item[1]):
            print(f"  left out: {count:,} ({reason})")
        if one.rows and one.rows[0].command:
            print("  1 in detail, with days and cost if you add --tokens and --price-per-gpu-hour:")
            print(f"  {one.rows[0].command}")


def _recommended_cells(row: Recommended) -> tuple[str, ...]:
    ends = f"{number(row.low)} to {number(row.high)} ({row.interval})" if row.interval else "-"
    return (
        str(row.rank), number(row.tokens_per_second_per_gpu), ends, row.precision or "-",
        number(row.sequence_length), number(row.world_size), row.layout,
        ", ".join(row.differs) or "nothing",
    )  # fmt: skip


def _sought(options: argparse.Namespace) -> RunConfig:
    """Return the configuration whose layout is sought."""
    options.precision = options.precisions[0] if options.precisions else None
    base = predictions.configuration(options)
    if options.global_batch_size is None:
        batch = _SAMPLES_PER_GPU * base.world_size
        base = base.model_copy(update={"global_batch_size": batch})
    return base


def _name(base: RunConfig) -> str:
    return f"tune-{base.model.replace('@', '-')}-{base.world_size}"


def _tuning(options: argparse.Namespace, base: RunConfig, runs: Path) -> Tuning:
    """Return the field of layouts, with the trials that the folder of runs has of them."""
    from scalebook import predict as room
    from scalebook.predict import search
    from scalebook.predict.known import KnownRate, configuration
    from scalebook.predict.tuning import Tuning

    rates, probes, _ = room.evidence(runs)
    network, fixed = options.network_gbps, tuple(run_options.fields(options.fields))
    made = room.predictor(options.platform, rates, probes, network_gbps=network)
    ranking = search.layouts(base, made, options.precisions, fixed)
    layouts = {configuration(one.config) for one in ranking.candidates}
    earlier = [one for one in _earlier(base, runs) if one.key in layouts]
    tried = {one.run_id for one in earlier}  # which the tuning itself teaches
    others = [rate for rate in rates if rate.run_id not in tried]

    def teach(found: Sequence[KnownRate]) -> room.Predictor:
        every = (*others, *found)
        return room.predictor(options.platform, every, probes, network_gbps=network)

    return Tuning(ranking, teach, options.budget_seconds or 0.0, earlier)


def _earlier(base: RunConfig, runs: Path) -> list[Trial]:
    """Return the runs of this folder that ended by themselves, as trials: they are not repeated."""
    from scalebook import store
    from scalebook.config import RunConfig
    from scalebook.predict.known import ODD
    from scalebook.predict.tuning import trial

    found: list[Trial] = []
    for directory in store.run_directories(runs):
        try:
            run = store.read_run(directory)
            config = RunConfig.from_parameters(run.record.requested)
            one = trial(run, config)
        except ODD:
            continue
        if run.record.source == "measured" and config.platform == base.platform:
            found += [one] if one.rate is not None or one.memory_full else []
    return found


def _run(options: argparse.Namespace, base: RunConfig, runs: Path) -> Tuned:
    """Tune by ordinary runs of one plan."""
    from scalebook import store
    from scalebook.plan import Plan, Schedule
    from scalebook.predict import tuning
    from scalebook.running import finish_run, launch, sweep, todo

    if not options.trainer:
        launch.require_trainer()
    begin = time.monotonic()
    console = Console(sys.stderr if options.json else sys.stdout)
    finish_run.recover_all(runs, console.say)
    state = _tuning(options, base, runs)
    settings = sweep.Settings(
        runs=runs,
        notebook=required_root() / TRAIN_NOTEBOOK,
        trainer=options.trainer,
        force_platform=options.force_platform,
    )
    console.say(_plan_line(state))
    question = f"Which layout of {base.model} is fastest on {base.world_size} GPUs?"
    plan = Plan(_name(base), "", (), Schedule(order="adaptive"), "tune", question)
    places = itertools.count(1)

    def run(step: Step, keep: Mapping[str, Any]) -> Trial:
        place, config = next(places), step.config
        where = "[full run]" if step.full else f"[trial {place}]"
        about = f"{config.steps} steps, about {duration(step.seconds)}"
        console.say(f"{where} {config.words()}: {about}")
        scheduled = {**todo.place(plan, place, None), "of": None, **keep}
        start = time.monotonic()
        record, directory = sweep.run_one(
            config, settings, console, stop, where, scheduled=scheduled
        )
        found = tuning.trial(store.read_run(directory), config, time.monotonic() - start)
        said = found.reason or ""
        if found.rate is not None:
            rate = config.tokens_per_step / found.rate.seconds / config.world_size
            said = f"{number(rate)} tokens/s per GPU"
        console.say(f"{where} {record.status}: {said} {short(directory)}")
        return found

    with sweep.stop_on_signals(options.budget_seconds) as stop:
        return tuning.tune(
            state, _name(base), run, lambda: time.monotonic() - begin, lambda: bool(stop.signals)
        )


def _plan_line(state: Tuning) -> str:
    """Return what the budget has room for."""
    if not state.standings:
        return f"{state.ranking.nothing_fits}."
    best = state.standings[0]
    one, full = state.trial_step(best), state.full_step(best)
    done = f", {len(state.trials)} of their runs are done" if state.trials else ""
    return (
        f"{len(state.standings)} layouts, {len(state.survivors)} may be the fastest{done}. A trial "
        f"takes about {duration(one.seconds)} ({one.config.steps} steps), the winner's full run "
        f"{duration(full.seconds)}. The budget of {duration(state.budget_seconds)} has room to "
        f"try {min(state.width(), len(state.standings))} layouts and to repeat the better half."
    )


def _dry_run(options: argparse.Namespace, base: RunConfig, state: Tuning) -> int:
    """Print the ranking, and which layouts would be tried first."""
    from scalebook.facts import catalog, legality
    from scalebook.predict.tuning import refuse_short

    steps = [state.trial_step(one) for one in state.survivors if not one.trials]
    if options.budget_seconds is not None:
        refuse_short(state)
        steps = steps[: state.width()]
    ranking = state.ranking
    if options.json:
        ranked = [
            {"config": one.config.model_dump(), **plain(one.prediction)}
            for one in ranking.candidates
        ]
        trials = [
            {"layout": one.config.words(), "steps": one.config.steps, "seconds": one.seconds}
            for one in steps
        ]
        value = {"plan": _name(base), "ranking": ranked, "contenders": len(state.survivors)}
        value |= {"trials": trials, "trial_seconds": sum(one.seconds for one in steps)}
        print_json(value | {"left_out": ranking.left_out})
        return 0
    _print_ranking(base, ranking)
    if not ranking.candidates:
        print(f"{ranking.nothing_fits}. Change the GPUs, the batch or what --set fixes.")
        for problem in said(
            legality.check(legality.Case(base, catalog.model(base.model))), "error"
        ):
            print(f"  with the defaults: {problem['message']}")
        return 0
    print(f"{len(state.survivors)} of them may be the fastest: trials would separate these.")
    for one in steps[:_SHOWN]:
        print(f"  try: {one.config.words()}, {one.config.steps} steps, {duration(one.seconds)}")
    if options.budget_seconds is not None:
        print(_plan_line(state))
    return 0


def _print_ranking(base: RunConfig, ranking: Ranking) -> None:
    candidates = ranking.candidates
    fits = sum(one.prediction.fits is True for one in candidates)
    where = f"{base.model} on {base.world_size} x {base.platform}"
    counted = f"{fits} layouts fit, {len(candidates) - fits} may fit"
    batch = f"batch {base.global_batch_size} x {base.sequence_length:,} tokens"
    print(f"{where}, {batch}: {counted}")
    rows = [
        (
            one.config.words(),
            f"{one.prediction.memory_gib:.1f}",
            "yes" if one.prediction.fits else "cannot tell",
            "an assumption" if one.prediction.assumed else f"{one.prediction.basis.runs} runs",
            *_rates(one.prediction),
        )
        for one in candidates[:_SHOWN]
    ]
    if rows:
        print_table(("layout", "GiB", "fits", "rests on", "tokens/s/GPU", "low", "high"), rows)
    if refused := ranking.refused:
        print(f"  for ranking only: {refused}")
    for reason, count in sorted(ranking.left_out.items(), key=lambda item: -item[1]):
        print(f"  left out: {count:,} ({reason.replace('_', ' ')})")


def _rates(found: Prediction | Standing) -> tuple[str, ...]:
    """Return tokens/s per GPU with the ends of its interval."""
    return tuple(number(one, 3) for one in (found.tokens_per_second_per_gpu, found.low, found.high))


def _value(found: Tuned) -> dict[str, Any]:
    value = plain({name: getattr(found, name) for name in _VALUES})
    for name in ("winner", "runner_up"):
        standing: Standing | None = getattr(found, name)
        value[name] = None if standing is None else _standing(standing)
    value["untried"] = [_standing(one) for one in found.untried]
    value["trials"] = [
        {
            "layout": one.config.words(),
            "run_id": one.run_id,
            "steps": one.config.steps,
            "step_seconds": one.rate.seconds if one.rate else None,
            "reason": one.reason,
        }
        for one in found.trials
    ]
    return value


_VALUES = ("plan", "end", "sentence", "not_tried", "seconds", "full_run")


def _standing(one: Standing) -> dict[str, Any]:
    return {"layout": one.layout, **plain(one), "config": one.config.model_dump()}


def _print_result(found: Tuned) -> None:
    winner, second = found.winner, found.runner_up
    print()
    if winner is None:
        print(f"No winner. {found.sentence}")
    else:
        print(f"Fastest: {winner.layout}. {found.sentence}")
        shown = [one for one in (winner, second, *found.untried[:3]) if one is not None]
        rows = [
            (one.layout, str(one.trials) if one.trials else "predicted", *_rates(one))
            for one in shown
        ]
        print_table(("layout", "trials", "tokens/s/GPU", "low", "high"), rows)
    for one in found.trials:
        if one.rate is None:
            print(f"  {one.config.words()}: {one.reason}")
    print("Not tried:" if found.not_tried else "Every legal layout was tried.")
    for reason, count in found.not_tried.items():
        print(f"  {count}: {reason}")
    if found.full_run:
        print(f"Full run: {found.full_run}. Plan {found.plan!r}, {duration(found.seconds)}.")
