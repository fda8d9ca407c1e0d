"""Commands that show runs: ``list``, ``columns`` of the data, ``diagnose``, ``reproduce``."""

from __future__ import annotations

import argparse
import gc
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.terminal import (
    RUN_HELP,
    Subparsers,
    add_json,
    add_runs,
    add_switch,
    add_text,
    complain,
    number,
    plain,
    print_data,
    print_json,
    print_table,
    report_needed,
    require_folder,
    run_directory,
    show,
)
from scalebook.project import runs_folder, short

if TYPE_CHECKING:
    from scalebook.facts.flops import AgainstBest
    from scalebook.measure.diagnosis import Diagnosis, Finding, Waterfall
    from scalebook.measure.metrics_cache import ListedRun
    from scalebook.measure.row import RunMetrics
    from scalebook.store import Run

WIDTH = 100  # of the sentences of a diagnosis


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser(
        "list", list_runs, help="list runs with rate, MFU, memory and loss"
    )
    add_runs(parser)
    text = "precision of the dense peak that the MFU of FP8 runs refers to"
    parser.add_argument("--peak-precision", choices=("bf16", "fp8"), help=text)
    text = "columns to add to the table, of those that --csv has: hfu,reserved_memory_gib"
    add_text(parser, "--columns", "NAME,...", text)
    add_json(parser, csv=True)
    text = "explain the columns of the data files"
    parser = subparsers.add_parser("columns", list_columns, help=text)
    files = ("runs", "steps", "telemetry")
    parser.add_argument("file", nargs="?", choices=files, help="data file (default: all three)")
    add_switch(parser, "--markdown", "print the page of the documentation")
    add_json(parser, csv=True)
    for name, handler, text in (
        ("diagnose", diagnose, "explain the MFU of a run and suggest what to try"),
        ("reproduce", reproduce, "print command, commit and variables that reproduce a run"),
    ):
        parser = subparsers.add_parser(name, handler, help=text)
        parser.add_argument("run", metavar="RUN", help=RUN_HELP)
        add_runs(parser)
        add_json(parser)


def list_runs(options: argparse.Namespace) -> int:
    """Print one row per run, sorted by run id; what cannot be read goes to stderr."""
    gc.set_threshold(100_000)  # rows are many and hold no cycle: a search for one finds nothing
    runs = runs_folder(options.runs)
    require_folder(runs)
    brief = not options.json and not options.columns
    rows = _readable(runs, options.peak_precision, brief)
    found = sorted(((row.metrics, row) for row in rows), key=lambda pair: pair[0].run_id)
    if options.json:
        data = [item.as_dict() | dict(row.of_record) for item, row in found]
        print_data(data, options.json)
    elif found:
        for item, _ in found:
            if item.status == "void":
                print(f"warning: {item.run_id}: {item.reason}")
        _print_people([item for item, _ in found], _added(options.columns, found[0][0]))
        for item, row in found:
            if differences := row.of_record["differences"]:
                from scalebook.measure.provenance import Deviation

                said = " ".join(Deviation(**one).sentence() for one in differences)
                what = "warning: the run differs from what was requested"
                print(f"{item.run_id}: {what}: {said}")
    else:
        print(f"No runs under {short(runs)}.")
    return 0


def _readable(runs: Path, precision: str | None, brief: bool) -> Iterator[ListedRun]:
    """Yield the row of each run; what cannot be read or measured goes to stderr."""
    from scalebook.measure.metrics_cache import listed

    for row in listed(runs, precision, brief=brief):
        if isinstance(row, str):
            complain(row)
            continue
        for problem in row.problems:
            complain(f"{row.metrics.run_id}: {problem}")
        yield row


def _row(item: RunMetrics) -> tuple[str, ...]:
    sizes = (
        *(item.tensor_parallel_size, item.pipeline_parallel_size, item.context_parallel_size),
        *(item.expert_parallel_size, item.data_parallel_size),
    )
    rates = (item.step_seconds_median, item.tokens_per_second_per_gpu)
    return (
        *(item.run_id, item.status, item.source, item.platform or "-", item.model or "-"),
        number(item.world_size),
        "/".join("-" if size is None else str(size) for size in sizes),
        *map(number, (*rates, item.model_tflops_per_second_per_gpu)),
        "-" if item.mfu is None else f"{100 * item.mfu:.1f}%",
        *map(number, (item.peak_memory_gib, item.loss_first, item.loss_last)),
    )


def _added(text: str, first: RunMetrics) -> list[str]:
    """Return the columns that ``--columns`` names.

    Raises:
        ConfigError: there is no such column.
    """
    from scalebook.errors import ConfigError, unknown

    names = [name for part in text.split(",") if (name := part.strip())]
    known = first.as_dict()
    for name in names:
        if name not in known:
            raise ConfigError(unknown("column", name, known))
    return names


def _cell(value: Any) -> str:
    """Return a value of any column for a table."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value)
    return number(value)


def _print_people(found: list[RunMetrics], added: list[str]) -> None:
    headers = [
        "run", "status", "source", "platform", "model", "GPUs", "TP/PP/CP/EP/DP",
        *("median step s", "tokens/s/GPU", "TFLOP/s/GPU", "MFU", "GiB", "first loss", "last loss"),
        *added,
    ]  # fmt: skip
    more = [item.as_dict() if added else {} for item in found]
    cells = ([_cell(values[name]) for name in added] for values in more)
    print_table(headers, [(*_row(item), *of) for item, of in zip(found, cells, strict=True)])
    for item in found:
        rateless = item.status == "completed" and item.tokens_per_second_per_gpu is None
        for reason in (item.reason, item.throughput_reason if rateless else None):
            if reason and item.status != "void":
                print(f"{item.run_id}: {reason}")


def list_columns(options: argparse.Namespace) -> int:
    """Print what each column of the data files is."""
    with report_needed():
        from scalebook.report.base.columns import DATA_FILES, columns, page
    if options.markdown:
        print(page())
        return 0
    chosen = [options.file] if options.file else DATA_FILES
    found = [one for file in chosen for one in columns(file)]
    rows = ((one.file, one.name, one.dtype, one.unit, one.meaning, one.null) for one in found)
    return show(options, found, ["file", "column", "type", "unit", "meaning", "null when"], rows)


def diagnose(options: argparse.Namespace) -> int:
    """Print what the measurements of a run say about its speed."""
    from scalebook.measure.diagnosis import diagnose as diagnosed
    from scalebook.measure.metrics import measure
    from scalebook.store import read_run

    run = read_run(run_directory(options.run, options.runs))
    found, parts = _with_others(diagnosed(run), run, options.runs)
    numbers = measure(run)
    published, said = _next_to_published(numbers)
    if options.json:
        explained = found.waterfall.explained if found.waterfall else None
        value = {**plain(found), "explained_fraction": explained}
        print_json({**value, "slower_than_parts": parts, "published": published})
        return 0
    against = _wrapped("= ", _against_parts(parts)) if parts else []
    for line in (*_lines(found, numbers), *against, *_wrapped("= " if published else "? ", said)):
        print(line)
    return 0


def _next_to_published(numbers: RunMetrics) -> tuple[AgainstBest | None, str]:
    """Return a run next to the best published rate of its kind, and that in a sentence.

    The sentence is empty where there is nothing to compare: no rate, or only the first layers.
    """
    from scalebook.facts import catalog
    from scalebook.facts.catalog.results import number_width
    from scalebook.facts.flops import DEFAULT_CONVENTION, against_best
    from scalebook.predict.recommended import nobody_published

    tflops, model = numbers.model_tflops_per_second_per_gpu, numbers.model
    device = catalog.accelerator_for_device(numbers.accelerator or "")
    alike = numbers.flops_convention == DEFAULT_CONVENTION and "@" not in (model or "@")
    if tflops is None or device is None or model is None or not alike:
        return None, ""
    width = number_width(numbers.precision)
    found = against_best(tflops, model, device.name, numbers.precision or "")
    if found is None:
        return None, nobody_published(model, f"{device.name} in {width}")
    best = f"{number(found.best_tflops)} TFLOP/s per GPU ({found.where})"
    share = f"{number(tflops)} TFLOP/s per GPU, {tflops / found.best_tflops:.2f} times"
    return found, f"{share} the best published of {model} on {device.name} in {width}: {best}."


def _with_others(
    found: Diagnosis, run: Run, folder: Path | None
) -> tuple[Diagnosis, dict[str, Any] | None]:
    """Return the diagnosis with parts at the rates of other runs, and the run against their sum.

    The sum is None where there is nothing to compare with.
    """
    from scalebook import predict

    rate = predict.known_rate(run)
    if isinstance(rate, str):
        return found, None
    rates, probes, _ = predict.evidence(runs_folder(folder))
    made = predict.predictor(rate.config.platform, rates, probes)
    return predict.filled(found, rate, made), predict.slower_than_parts(rate, rates, probes)


def _against_parts(parts: dict[str, Any]) -> str:
    """Return how a run compares with the sum of its parts, in a sentence."""
    low, share, high = (
        f"{100 * abs(parts[name]):.1f} % {'slower' if parts[name] > 0 else 'faster'}"
        for name in ("low", "fraction", "high")
    )
    of = f"{parts['runs']} other run{'s'[: parts['runs'] - 1]}"
    line = (
        f"{share} than the sum of its parts as predicted from {of} (90 % of runs: {low} to {high})."
    )
    return f"{line} Suspect: {parts['suspect']}." if parts["fraction"] > parts["high"] else line


def _lines(found: Diagnosis, numbers: RunMetrics) -> Iterator[str]:
    if found.reason is not None:
        yield f"{found.run_id}: {found.reason}"
        return
    peak = f"{number(numbers.peak_tflops_per_second)} TFLOP/s (dense {numbers.peak_precision})"
    rate = f"{number(numbers.tokens_per_second_per_gpu)} tokens/s per GPU"
    yield f"{found.run_id}: {rate} over {numbers.measured_steps} steps"
    yield f"MFU {100 * found.mfu:.1f} % of {peak}" if found.mfu else f"no MFU. {found.mfu_reason}"
    for place, finding in enumerate(found.findings, start=1):
        yield from _finding(place, finding)
    if not found.findings:
        yield "No rule found a cause in the measurements."
    if found.waterfall is not None:
        yield from _waterfall(found.waterfall)
    for sentence in found.missing:
        yield from _wrapped("? ", sentence)


def _finding(place: int, finding: Finding) -> Iterator[str]:
    size = ""
    if finding.step_fraction is not None:
        size = f" [{100 * finding.step_fraction:.3g} % of the step, {finding.basis}]"
    yield from _wrapped(f"{place}. ", f"{finding.says}{size}")
    for advice in finding.advice:
        yield from _wrapped("   -> ", advice)


def _waterfall(found: Waterfall) -> Iterator[str]:
    yield "Where the step's time goes:"
    unknown: dict[str | None, list[str]] = {}  # by reason: most share one
    for part in found.parts:
        name = part.name.replace("_", " ")
        if part.step_fraction is None:
            unknown.setdefault(part.reason, []).append(name)
        elif part.step_fraction > 0:
            basis = f" ({part.basis})" if part.basis else ""
            yield f"  {100 * part.step_fraction:6.1f}%  {name}{basis}"
    for reason, names in unknown.items():
        yield from _wrapped(f"  {'?':>7}  ", f"{', '.join(names)}: {reason}")
    for note in found.notes:
        yield from _wrapped("  ! ", note)


def _wrapped(mark: str, sentence: str) -> list[str]:
    return textwrap.wrap(
        sentence, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), tabsize=1
    )


def reproduce(options: argparse.Namespace) -> int:
    """Print how to reproduce a run, and how its machine differs from this one."""
    from scalebook.running import reproduce
    from scalebook.store import read_record

    record = read_record(run_directory(options.run, options.runs))
    found = reproduce.recipe(record, reproduce.surroundings(os.environ), os.environ)
    if options.json:
        names = ("name", "recorded", "here")
        differences = [dict(zip(names, one, strict=True)) for one in found.differences]
        print_json({**plain(found), "differences": differences})
        return 0
    for line in reproduce.lines(found):
        print(line)
    return 0
