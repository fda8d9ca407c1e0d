"""Commands that answer from the catalog, the FLOPs formulas and what runs showed to fit."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from scalebook.cli.terminal import (
    Flags,
    Subparsers,
    add_count,
    add_json,
    add_model,
    add_runs,
    add_settings,
    number,
    plain,
    positive,
    print_data,
    print_json,
    print_table,
    require_folder,
    show,
)
from scalebook.errors import ClaimError
from scalebook.facts.flops import TRAINED, ConventionFit
from scalebook.measure.intervals import Numeral, read_numeral
from scalebook.parallelism import RECOMPUTE
from scalebook.project import runs_folder, short

if TYPE_CHECKING:
    from scalebook.facts.feasibility import Cell

PACKED = (
    "One document per sample is assumed. Packed documents that attend only inside themselves cost "
    "less: see 'scalebook flops --packed-lengths'."
)
LEGEND = (
    "fits, out: measured. (fits), (out): inferred from a run. fits?, out?: predicted; ?: too close "
    "to tell. Numbers are peaks in GiB: measured, or predicted with '~'."
)


def _printed(text: str) -> Numeral:
    """Return a printed number above zero with the size of its last digit, as an argument type."""
    try:
        found = read_numeral(text)
    except ClaimError as error:
        positive(text)  # says what no plain number may be
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number above zero") from error
    positive(repr(found.value))
    return found


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    _register_flops(subparsers)
    _register_convert(subparsers)
    for name, handler, text, filters in (
        ("accelerators", accelerators, "list accelerators with their dense peaks", ()),
        ("models", models, "list model shapes with their parameter counts", ()),
        ("platforms", platforms, "list platforms", ()),
        (
            "strategies", strategies, "list named parallelism strategies",
            (("platform", "strategies for this platform"), ("model", "strategies for this model")),
        ),
        (
            "published", published, "list published results with their sources",
            (("accelerator", "results on this accelerator"), ("model", "results of this model")),
        ),
    ):  # fmt: skip
        parser = subparsers.add_parser(name, handler, help=text)
        for field, what in filters:
            parser.add_argument(f"--{field}", help=f"only {what}")
        if name == "accelerators":
            parser.add_argument(
                "--device",
                metavar="STRING",
                help="only the device of this driver string or start of a name",
            )
        add_json(parser, csv=True)
    text = "map which layouts and micro batches fit in memory"
    parser = subparsers.add_parser("feasibility", feasibility, help=text)
    add_runs(parser)
    parser.add_argument("--model", help="only runs of this model")
    add_json(parser, csv=True)


def _register_flops(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("flops", flops, help="count FLOPs per trained token")
    add_model(parser)
    length = parser.add_mutually_exclusive_group(required=True)
    add_settings(length, ["sequence_length"])
    text = "lengths of the documents packed into a sample"
    add_count(length, "--packed-lengths", "TOKENS", text, nargs="+")
    text = "count hardware FLOPs with this recomputation (default: none)"
    parser.add_argument("--recompute", choices=RECOMPUTE, default="none", help=text)
    text = "layers that full recomputation covers (default: all)"
    add_count(parser, "--recompute-num-layers", "LAYERS", text, least=0)
    add_settings(parser, ["recompute_modules"])
    _add_mtp_layers(parser)
    text = "trained weights: all, adapters only (lora) or none (forward)"
    parser.add_argument("--trained", choices=tuple(TRAINED), default="all", help=text)
    text = "count the vocabulary padded for this many GPUs, as Megatron pads it"
    add_count(parser, "--tensor-parallel-size", "GPUS", text)
    add_json(parser)


def _add_mtp_layers(parser: Flags) -> None:
    text = "multi-token prediction modules (default: 0)"
    add_count(parser, "--mtp-layers", "MODULES", text, least=0, default=0)


def _register_convert(subparsers: Subparsers) -> None:
    text = "convert TFLOP/s between conventions, or find the convention of a pair"
    parser = subparsers.add_parser("convert", convert, help=text)
    add_model(parser)
    add_count(parser, "--sequence-length", "TOKENS", "tokens per sample", required=True)
    for flag, unit, text in (
        ("--tokens-per-second-per-gpu", "RATE", "published tokens/s/GPU"),
        ("--tflops", "TFLOPS", "published TFLOP/s/GPU with all digits"),
    ):
        parser.add_argument(flag, type=_printed, metavar=unit, help=text)
    parser.add_argument("--convention", metavar="NAME", help="FLOPs convention of --tflops")
    _add_mtp_layers(parser)
    add_json(parser)


def flops(options: argparse.Namespace) -> int:
    """Print FLOPs per token under every convention."""
    from scalebook.errors import ConfigError
    from scalebook.facts import catalog
    from scalebook.facts.flops import (
        CONVENTIONS,
        hardware_flops_per_token,
        packed_sequence_length,
        padded_vocab_size,
    )
    from scalebook.facts.flops import flops_per_token as model_flops
    from scalebook.settings import named_modules

    shape = catalog.model(options.model)
    packed = options.packed_lengths
    length = packed_sequence_length(packed) if packed else options.sequence_length
    tensor = options.tensor_parallel_size
    given: dict[str, Any] = {
        "mtp_layers": options.mtp_layers,
        "vocab_size": padded_vocab_size(shape.vocab_size, tensor) if tensor else None,
        "trained": options.trained,
    }
    mode, layers, modules = (
        getattr(options, name)
        for name in ("recompute", "recompute_num_layers", "recompute_modules")
    )
    for name, value, needed in (("num-layers", layers, "full"), ("modules", modules, "selective")):
        if value is not None and mode != needed:
            needs = f"--recompute-{name}={value} needs --recompute {needed}, not {mode}."
            raise ConfigError(needs)
    found = {name: model_flops(shape, length, name, **given) for name in CONVENTIONS}
    given |= {"recompute_num_layers": layers}
    given |= {"recompute_modules": named_modules(modules)} if modules else {}
    for name in CONVENTIONS if mode != "none" else ():
        found[name] = hardware_flops_per_token(shape, length, mode, name, **given)
    rows = ((name, f"{value / 1e9:,.4f}", CONVENTIONS[name]) for name, value in found.items())
    headers = ("convention", "GFLOP per token", "counts")
    return show(options, found, headers, rows, *(() if packed else (PACKED,)))


def convert(options: argparse.Namespace) -> int:
    """Print TFLOP/s/GPU under every convention, and which one a published pair fits."""
    from scalebook.errors import ConfigError
    from scalebook.facts import catalog
    from scalebook.facts.flops import CONVENTIONS, convention_fits, convert_tflops, model_tflops

    shape, length = catalog.model(options.model), options.sequence_length
    pair: tuple[Numeral | None, Numeral | None]
    pair = options.tokens_per_second_per_gpu, options.tflops
    modules: int = options.mtp_layers
    rate, tflops = (0.0 if one is None else one.value for one in pair)  # 0: not stated
    if not rate and not (tflops and options.convention):
        raise ConfigError(
            "Nothing to convert. Give --tokens-per-second-per-gpu, or --tflops with --convention."
        )
    by_name = {
        name: model_tflops(rate, shape, length, name, mtp_layers=modules)
        if rate
        else convert_tflops(tflops, shape, length, options.convention, name, mtp_layers=modules)
        for name in CONVENTIONS
    }
    fits: Sequence[ConventionFit] = ()
    if rate and tflops:
        error = sum(one.unit / one.value / 2 for one in pair if one)
        fits = convention_fits(rate, tflops, shape, length, mtp_layers=modules, tolerance=error)
    if options.json:
        print_json({"tflops_per_second_per_gpu": by_name, "fits": fits})
    else:
        _print_conversions(by_name, fits)
    return 0


MOST_APART = 5  # times between a claim and every convention that may be a way of counting


def _print_conversions(by_name: Mapping[str, float], fits: Sequence[ConventionFit]) -> None:
    from scalebook.facts.flops import CONVENTIONS

    rows = [[name, f"{value:,.2f}"] for name, value in by_name.items()]
    ratios = [1 + fit.relative_difference for fit in fits]
    times = min((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)
    if times > MOST_APART:
        print_table(["convention", "TFLOP/s/GPU"], rows)
        how = "more" if fits[0].relative_difference > 0 else "less"
        print(
            f"These units do not fit: the published TFLOP/s are {times:,.0f} times {how} than any "
            "convention gives at this rate. Are both of one GPU, in TFLOP/s and tokens/s?"
        )
        return
    differences = {
        fit.convention: f"{100 * fit.relative_difference:+z.2f}%".replace("+0.00%", "0.00%")
        for fit in fits
    }
    headers = ["convention", "TFLOP/s/GPU"]
    if fits:
        headers.append("published is off by")
        rows = [[*row, differences[row[0]]] for row in rows]
    print_table(headers, rows)
    if fits:
        first = fits[0].convention
        head = "Likeliest" if fits[0].within else "None fits the printed digits. Nearest"
        others = ", ".join(one.convention for one in fits[1:] if one.within)
        print(f"{head}: {first}, off by {differences[first]} ({CONVENTIONS[first]}).")
        if others:
            print(f"Within the printed digits too: {others}.")
    print(PACKED)


def accelerators(options: argparse.Namespace) -> int:
    """Print every accelerator, or those of a driver string or start of a name."""
    from scalebook.errors import CatalogError
    from scalebook.facts import catalog

    found = catalog.accelerators()
    if options.device is not None:
        match, start = catalog.accelerator_for_device(options.device), options.device.lower()
        named = tuple(one for one in found if start and one.name.lower().startswith(start))
        found = (match,) if match else named
        if not found:
            raise CatalogError(catalog.unknown_device(options.device))
    shown = ("bf16", "fp16", "fp8", "fp4", "tf32", "fp32")
    rows = (
        (
            *(item.name, item.vendor, number(item.memory_gb)),
            *(number(item.peak_tflops.get(name), 6) for name in shown),
            " | ".join(item.device_names) or "-",
        )
        for item in found
    )
    headers = ["accelerator", "vendor", "GB", *shown, "driver strings"]
    return show(options, found, headers, rows, "Peaks: dense TFLOP/s per device.")


def models(options: argparse.Namespace) -> int:
    """Print every model shape with its parameter counts."""
    from scalebook.facts import catalog
    from scalebook.facts.flops import parameter_count

    found = [(shape, parameter_count(shape)) for shape in catalog.models()]
    data = [
        {**plain(shape), "parameters": count.total, "active_parameters": count.active}
        for shape, count in found
    ]
    rows = (
        (
            *(shape.name, f"{count.total / 1e9:,.3f}", f"{count.active / 1e9:,.3f}"),
            *map(str, (shape.num_layers, shape.hidden_size, shape.num_attention_heads)),
            *map(str, (shape.num_query_groups, shape.vocab_size, shape.max_sequence_length)),
        )
        for shape, count in found
    )
    headers = ["model", "parameters 1e9", "active 1e9", "layers", "hidden", "heads", "groups"]
    return show(options, data, [*headers, "vocabulary", "max sequence"], rows)


def platforms(options: argparse.Namespace) -> int:
    """Print every platform."""
    from scalebook.facts import catalog

    found = catalog.platforms()
    rows = (
        (
            *(one.name, one.vendor, one.accelerator or "-"),
            *(str(one.gpus_per_node), one.default_precision),
        )
        for one in found
    )
    headers = ["platform", "vendor", "accelerator", "GPUs per node", "precision"]
    return show(options, found, headers, rows)


def strategies(options: argparse.Namespace) -> int:
    """Print strategies: all rows, or those for a platform and a model."""
    from scalebook.facts import catalog

    platform = catalog.platform(options.platform).name if options.platform else None
    model = catalog.model(options.model).name if options.model else None
    found = catalog.strategy_rows(platform, model)
    rows = (
        (
            *(item.name, item.platform, item.model),
            *map(str, (item.tensor_parallel_size, item.pipeline_parallel_size)),
            *map(str, (item.context_parallel_size, item.expert_parallel_size)),
            ", ".join(item.aliases),
        )
        for item in found
    )
    headers = ["strategy", "platform", "model", "TP", "PP", "CP", "EP", "aliases"]
    return show(options, found, headers, rows)


def published(options: argparse.Namespace) -> int:
    """Print published results as their sources state them."""
    from scalebook.audit.fields import accelerator_named
    from scalebook.facts import catalog

    device = accelerator_named(options.accelerator).name if options.accelerator else None
    model = catalog.model(options.model).name if options.model else None
    found = [
        row
        for row in catalog.published()
        if device in (None, row.accelerator) and model in (None, row.model)
    ]
    rows = (
        (
            *(row.id or "-", row.hardware or "-", number(row.world_size), row.model_label or "-"),
            *(row.task or "-", number(row.sequence_length), row.precision or "-"),
            number(row.tokens_per_second_per_gpu, 6),
            number(row.claimed_tflops_per_second_per_gpu, 4),
            *(row.flops_convention or "-", row.source or "-"),
        )
        for row in found
    )
    headers = ["id", "hardware", "GPUs", "model", "task", "sequence", "precision"]
    headers += ["tokens/s/GPU", "claimed TFLOP/s", "counted by", "source"]
    note = f"{len(found)} result{'s' * (len(found) != 1)}, as their sources state them."
    return show(options, found, headers, rows, note)


def feasibility(options: argparse.Namespace) -> int:
    """Print the maps of a folder's runs."""
    from scalebook.facts.feasibility import feasibility, scope_of
    from scalebook.store import read_runs

    runs = runs_folder(options.runs)
    require_folder(runs)
    cells = feasibility(read_runs(runs)[0], options.model)
    if options.json:
        print_data(cells, options.json)
        return 0
    if not cells:
        of = f" of {options.model}" if options.model else ""
        print(f"No run{of} under {short(runs)} shows whether a configuration fits.")
        return 0
    for _, same in groupby(cells, key=scope_of):
        _print_map(list(same))
    print(LEGEND)
    return 0


def _print_map(cells: Sequence[Cell]) -> None:
    first = cells[0]
    device = first.accelerator or first.platform
    print(
        f"{first.model} on {first.world_size} x {device}, sequence {first.sequence_length:,}, "
        f"{first.precision}, sharding {first.data_parallel_sharding}"
        + (f", CP {first.context_parallel_size}" if first.context_parallel_size > 1 else "")
        + (f", EP {first.expert_parallel_size}" if first.expert_parallel_size > 1 else "")
    )
    sizes = sorted({cell.micro_batch_size for cell in cells})
    rows: dict[tuple[str, ...], dict[int, Cell]] = {}
    for cell in cells:
        row = rows.setdefault(_layout(cell), {})
        known = row.setdefault(cell.micro_batch_size, cell)
        if cell.global_batch_size > known.global_batch_size:  # which needs more
            row[cell.micro_batch_size] = cell
    table = [
        (*name, *(_verdict(row.get(size)) for size in sizes)) for name, row in sorted(rows.items())
    ]
    print_table(("TP", "PP", "recompute", *(f"micro {size}" for size in sizes)), table)
    print()


def _layout(cell: Cell) -> tuple[str, ...]:
    chunks = cell.virtual_pipeline_parallel_size
    pipeline = f"{cell.pipeline_parallel_size}" + (f" x {chunks}" if chunks > 1 else "")
    sp = " SP" if cell.sequence_parallel else ""
    return f"{cell.tensor_parallel_size}{sp}", pipeline, cell.recompute


def _verdict(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    word = {"fits": "fits", "out_of_memory": "out", None: ""}[cell.verdict]
    if cell.evidence == "predicted":
        return f"{word}? ~{number(cell.predicted_gib, 3)}"
    if cell.evidence == "inferred":
        return f"({word})"
    peak = f" {number(cell.peak_memory_gib, 3)}" if cell.peak_memory_gib is not None else ""
    mark = "" if cell.evidence == "measured" else f" [{cell.evidence}]"
    return f"{word}{peak}{mark}"
