"""``scalebook predict``: how fast configurations would be, before they run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli import check
from scalebook.cli.terminal import (
    Subparsers,
    add_json,
    add_processes,
    add_runs,
    add_set,
    at_least,
    existing_runs,
    number,
    plain,
    positive,
    print_json,
    print_table,
    show,
)
from scalebook.errors import ClaimError, ConfigError, ScalebookError
from scalebook.project import runs_folder

if TYPE_CHECKING:
    from scalebook.config import RunConfig
    from scalebook.measure.economics import Answer
    from scalebook.measure.intervals import Interval
    from scalebook.predict import Prediction, Predictor

_MOST_SIZES = 32  # of one curve
_SHORT = ("tokens_per_second_per_gpu", "low", "high", "step_seconds")
_HEADERS = ("tokens/s/GPU", "low", "high", "s/step")
_PREDICTED = ("tokens_per_second", "sequence_length", "gpus")
INPUT_HELP = {
    "tokens": "tokens to train on, such as 1T",
    "tokens_per_second": "tokens/s of all GPUs (default: the projection to --to)",
    "sequence_length": "tokens per sample",
    "gpus": "GPUs of the job (default: --to)",
    "price_per_gpu_hour": "on-demand price per GPU-hour",
    "spot_price_per_gpu_hour": "spot price per GPU-hour",
    "reserved_price_per_gpu_hour": "reserved price per GPU-hour",
    "storage_tb": "TB held while training runs: data, checkpoints",
    "price_per_tb_month": "price of storage per TB and month",
    "transferred_tb": "TB sent over a network that is charged for",
    "price_per_transferred_tb": "price per TB sent",
    "preemption_overhead": "extra time lost to preemptions, such as 5%%",
    "watts_per_gpu": "mean watts per GPU, with its share of the node",
    "pue": "power usage effectiveness of the site",
    "grid_kg_per_kwh": "kg CO2e per kWh",
    "other_tokens_per_second": "tokens/s of a second platform, for the break-even price",
    "other_gpus": "GPUs of the second platform",
}
_STATED = tuple(name for name in INPUT_HELP if name not in _PREDICTED and name[:6] != "other_")
_PER_SIZE = {"training_days": "days", "cost": "cost", "energy": "kWh"}  # columns of several rates


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    text = "predict the rate of a configuration, with its interval"
    parser = subparsers.add_parser("predict", predict, help=text)
    parser.add_argument("--model", help="model, or name@LAYERS; required without --plan")
    parser.add_argument("--platform", required=True, help="platform, such as h100")
    text = "total processes; several numbers give curves of weak and strong scaling"
    add_processes(parser, text, "sizes", "N[,N...]", type=_sizes)
    check.add_layout(parser, world_size=False)
    add_set(parser)
    parser.add_argument("--plan", type=Path, metavar="FILE", help="predict every run of a plan")
    add_runs(parser, "runs to learn from")
    add_network(parser)
    add_economics(parser, _STATED)
    add_json(parser)


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add ``--network-gbps``."""
    text = "Gbit/s per GPU between nodes (default: the catalog's for the platform)"
    parser.add_argument("--network-gbps", type=positive, metavar="GBPS", help=text)


def add_economics(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add the flags of these inputs of ``measure.economics``."""
    group = parser.add_argument_group("economics")
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=stated_range, metavar="VALUE", help=INPUT_HELP[name])


def stated_inputs(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Interval]:
    """Return those of these inputs that the flags state."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def stated_range(text: str) -> Interval:
    """Return a number or a range, as an argument type."""
    from scalebook.measure.economics import read_range

    try:
        return read_range(text)
    except ClaimError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error


def _sizes(text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list with commas, as an argument type."""
    sizes = tuple(at_least(1)(part) for part in text.split(","))
    if len(sizes) > _MOST_SIZES:
        raise argparse.ArgumentTypeError(f"{len(sizes)} sizes are more than {_MOST_SIZES}")
    return sizes


def predict(options: argparse.Namespace) -> int:
    """Print the predicted rate of a configuration, of a plan's runs, or of a scaling curve."""
    from scalebook import predict as room

    if (options.model is None) == (options.plan is None):
        raise ConfigError("Name either --model or --plan.")
    runs = existing_runs(options.runs)
    made = room.load(options.platform, runs, network_gbps=options.network_gbps)
    sizes: tuple[int, ...] = options.sizes or ()
    if options.plan is not None:
        return _plan(options, made, sizes)
    if len(sizes) > 1:
        return _curves(options, made, sizes)
    options.world_size = sizes[0] if sizes else None
    config = configuration(options)
    found = made.answer(config)
    replies = _economics(options, config, plain(found))
    if options.json:
        more: dict[str, Any] = {"economics": answer_values(replies)} if replies else {}
        print_json({"layout": _layout(config), **plain(found)} | more)
        return 0
    _print(config, found, made)
    if replies:
        print_answers([one for one in replies if len(one.missing) < 2])
    elif stated_inputs(options, _STATED):
        print("No days or cost: this layout cannot run.")
    return 0


def _economics(
    options: argparse.Namespace, config: RunConfig, found: dict[str, Any]
) -> tuple[Answer, ...]:
    """Return what training takes, from what was stated; () if nothing was or it does not fit."""
    from scalebook.measure.economics import Inputs, answers
    from scalebook.measure.intervals import Interval, point

    stated = stated_inputs(options, _STATED)
    if not stated or found["tokens_per_second_per_gpu"] is None or found["fits"] is False:
        return ()
    ends = (found[name] * config.world_size for name in ("low", "high", _SHORT[0]))
    known = {"gpus": config.world_size, "sequence_length": config.sequence_length}
    sizes = {name: point(float(value)) for name, value in known.items()}
    return answers(Inputs(tokens_per_second=Interval(*ends), **sizes, **stated))


def answer_values(replies: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """Return answers as JSON values by name, those without a range with the reason."""
    return {
        reply.name: {
            "unit": reply.unit,
            "value": reply.value.middle if reply.value else None,
            "low": reply.value.low if reply.value else None,
            "high": reply.value.high if reply.value else None,
            "reason": reply.reason,
            "formula": reply.formula,
        }
        for reply in replies
    }


def print_answers(replies: Sequence[Answer]) -> None:
    """Print a table of answers, those without a value with what is missing."""
    rows = (
        (name, range_text(one), one["unit"], one["reason"] or one["formula"])
        for name, one in answer_values(replies).items()
    )
    print_table(("quantity", "value", "unit", "from"), rows)


def range_text(found: Mapping[str, Any]) -> str:
    """Return one of ``answer_values`` in four digits, with its ends where it is not exact."""
    if found["value"] is None:
        return "-"
    value, low, high = (number(float(f"{found[end]:.4g}")) for end in ("value", "low", "high"))
    return value if found["low"] == found["high"] else f"{value} ({low} to {high})"


def configuration(options: argparse.Namespace) -> RunConfig:
    """Return the configuration that the flags describe, with the defaults of ``check``."""
    from scalebook.cli.run_options import fields

    given = argparse.Namespace(**vars(options))
    for name, value in fields(options.fields).items():
        setattr(given, name, value)
    return check.request(given).config


def short_value(found: Prediction) -> dict[str, Any]:
    """Return what other commands show of a prediction."""
    return {name: getattr(found, name) for name in _SHORT}


def rate_line(
    tokens_per_second_per_gpu: float, low: float, high: float, step_seconds: float
) -> str:
    """Return a prediction in a line: rate with its interval, and the step."""
    ends = f"90 %: {number(low, 3)} to {number(high, 3)}"
    rate = number(tokens_per_second_per_gpu, 3)
    return f"{rate} tokens/s per GPU ({ends}), {number(step_seconds, 3)} s per step"


def predicted_line(found: dict[str, float] | str) -> str:
    """Return what is predicted of a run, or why no rate is, as every command says it."""
    return f"predicted: {rate_line(**found) if isinstance(found, dict) else f'no rate. {found}'}"


def forecast(
    platform: str, runs: Path | None
) -> Callable[[RunConfig], tuple[Prediction, float] | str]:
    """Return a function from a configuration to its prediction and its whole run's seconds.

    It answers why not where a configuration is illegal, or the platform or the rate is not known.
    """
    from scalebook import predict as room

    made: list[Predictor] = []

    def answered(config: RunConfig) -> tuple[Prediction, float] | str:
        try:
            if not made:
                made.append(room.load(platform, runs_folder(runs)))
            found = made[0].answer(config)
        except ScalebookError as error:
            return str(error)
        return found, room.run_seconds(made[0], config, found.step_seconds)

    return answered


def total_line(seconds: Sequence[float | None], budget: float | None) -> str:
    """Return how long runs take one after another, and how many a budget has room for."""
    known = [value for value in seconds if value is not None]
    line = f"Predicted time: about {duration(sum(known))} for {len(known)} runs"
    if budget is None:
        return f"{line}."
    spent, fitting = 0.0, 0
    for value in known:
        spent += value
        fitting += spent <= budget
    return f"{line}; the first {fitting} fit into {duration(budget)}."


def duration(seconds: float) -> str:
    """Return a length of time for people: ``45 s``, ``12 min``, ``3.4 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _print(config: RunConfig, found: Prediction, made: Predictor) -> None:
    from scalebook.predict.kinds import KINDS
    from scalebook.predict.model import HELD_BEFORE, HELD_NOW, WRITTEN_BEFORE

    line = rate_line(**short_value(found))
    if found.fits is False:
        line = f"does not fit; without that limit {line}"
    where = f"{config.world_size} x {config.platform}, global batch {config.global_batch_size:,}"
    print(f"{config.model} on {where}: {line}")
    others = " ('scalebook recommend' ranks layouts)" if config.world_size > 1 else ""
    print(f"  layout: {_layout(config)}{others}")
    if found.mfu is not None and found.mfu_low is not None and found.mfu_high is not None:
        low, high = 100 * found.mfu_low, 100 * found.mfu_high
        print(f"  MFU {100 * found.mfu:.1f} % ({low:.1f} to {high:.1f})")
    no = "does not fit, so it cannot run. 'scalebook recommend' ranks the layouts that fit"
    fits = {True: "fits", False: no, None: "cannot tell whether it fits"}[found.fits]
    print(f"  memory: {found.memory_gib:.1f} GiB, {fits}")
    if config.offload_layers:
        print(f"  {check.host_line(config)}")
    largest_first = sorted(found.parts.items(), key=lambda item: -item[1])
    names = {name: kind.words for name, kind in KINDS.items()}
    rows = [
        (
            names.get(name, name.replace("_", " ")),
            number(1000 * seconds, 3),
            f"{100 * seconds / found.step_seconds:.1f}%",
        )
        for name, seconds in largest_first
        if seconds > 0
    ]
    print_table(("part of the step", "ms", "share"), rows)
    print(f"  based on {_basis(made)}")
    if made.basis.runs:
        held = f"{HELD_BEFORE} of {WRITTEN_BEFORE}"
        now = f"those of today's model would have held {HELD_NOW}"
        print(f"  intervals written down before their runs: {held} held; {now}")
    for warning in found.warnings:
        print(f"  ! {warning}")


def _layout(config: RunConfig) -> str:
    """Return the layout that a rate is of, in a line of words."""
    return f"{config.words()}, sequence {config.sequence_length:,}"


def _basis(made: Predictor) -> str:
    basis = made.basis
    known = f"{basis.accelerator} of the catalog" if basis.accelerator else "a guess for any CPU"
    words = [known]
    if basis.probe:
        words.insert(0, f"probe {basis.probe}")
    if basis.runs:
        where = f"{basis.configurations} configurations on {', '.join(basis.platforms)}"
        words.insert(0, f"{basis.runs} runs ({where}) in {' and '.join(basis.folders)}")
    return ", ".join(words)


def _plan(options: argparse.Namespace, made: Predictor, sizes: tuple[int, ...]) -> int:
    """Print a prediction for every run of a plan."""
    from scalebook.plan import load_plan

    loaded = load_plan(options.plan, platform=options.platform, world_size=max(sizes, default=None))
    pairs = [(one.config, _row(options, made, one.config)) for one in loaded.runs]
    runs = [{"config_hash": config.config_hash(), **one} for config, one in pairs]
    taken = _taken(runs)
    rows = (
        (str(index), config.model, str(config.world_size), *_cells(one, taken))
        for index, (config, one) in enumerate(pairs, start=1)
    )
    headers = ("#", "model", "GPUs", *_headers(taken))
    return show(options, {"name": loaded.name, "runs": runs}, headers, rows)


def answer(made: Predictor, config: RunConfig) -> dict[str, Any]:
    """Return a prediction as a JSON value, or the reason for none under ``reason``."""
    try:
        return plain(made.answer(config))
    except ScalebookError as error:
        return {"tokens_per_second_per_gpu": None, "reason": str(error)}


def _row(options: argparse.Namespace, made: Predictor, config: RunConfig) -> dict[str, Any]:
    """Return the answer, with what training at its rate takes where something was stated."""
    found = {"layout": _layout(config), **answer(made, config)}
    replies = _economics(options, config, found)
    return found | ({"economics": answer_values(replies)} if replies else {})


def _taken(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return which economics some of the answers have, as columns."""
    known = [one["economics"] for one in found if "economics" in one]
    return [name for name in _PER_SIZE if any(one[name]["value"] for one in known)]


def _headers(taken: list[str]) -> tuple[str, ...]:
    return (*_HEADERS, *(_PER_SIZE[name] for name in taken), "layout", "note")


def _cells(found: dict[str, Any], taken: list[str]) -> tuple[str, ...]:
    if found["tokens_per_second_per_gpu"] is None:
        return *("-" for _ in (*_SHORT, *taken)), found["layout"], found["reason"]
    note = found["untrained"] or ("does not fit" if found["fits"] is False else "")
    known = found.get("economics")
    economics = (range_text(known[name]) if known else "-" for name in taken)
    return *(number(found[name], 3) for name in _SHORT), *economics, found["layout"], note


def _curves(options: argparse.Namespace, made: Predictor, sizes: tuple[int, ...]) -> int:
    """Print weak scaling (batch per GPU kept) and strong scaling (batch kept) over sizes.

    A batch that is not given is for weak scaling the default of the first size, and for strong
    scaling the least multiple of all defaults: every size can share it.
    """
    options.nodes = None
    given = vars(options)
    each = [configuration(argparse.Namespace(**given | {"world_size": size})) for size in sizes]
    first, strong = each[0], math.lcm(*(one.global_batch_size for one in each))
    found: dict[str, list[dict[str, Any]]] = {"weak": [], "strong": []}
    for scaling, rows in found.items():
        for size in sizes:
            batch = strong
            if scaling == "weak":
                batch = first.global_batch_size * size // first.world_size
            options.world_size, options.global_batch_size = size, batch
            one = _row(options, made, configuration(options))
            rows.append({"world_size": size, "global_batch_size": batch, **one})
    if options.json:
        print_json(found)
        return 0
    for scaling, rows in found.items():
        print(f"{scaling} scaling of {first.model} on {first.platform}")
        taken = _taken(rows)
        cells = [
            (str(row["world_size"]), str(row["global_batch_size"]), *_cells(row, taken))
            for row in rows
        ]
        print_table(("GPUs", "batch", *_headers(taken)), cells)
    return 0
