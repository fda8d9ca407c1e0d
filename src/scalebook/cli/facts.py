"""Commands that answer from the catalog and the FLOPs formulas."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from scalebook.cli.arguments import Subparsers, add_json, at_least, positive
from scalebook.cli.output import number, plain, print_data, print_json, print_table
from scalebook.errors import ClaimError
from scalebook.facts.flops import RECOMPUTE, TRAINED, ConventionFit
from scalebook.measure.intervals import Numeral, read_numeral

PACKED = (
    "One document per sample is assumed. Packed documents that attend only inside themselves cost "
    "less: see 'scalebook flops --packed-lengths'."
)


def _printed(text: str) -> Numeral:
    """Return a printed number above zero with the size of its last digit, as an argument type."""
    try:
        found = read_numeral(text)
        positive(repr(found.value))
    except (ClaimError, argparse.ArgumentTypeError) as error:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number above zero") from error
    return found


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    _register_flops(subparsers)
    _register_convert(subparsers)
    for name, handler, text in (
        ("accelerators", accelerators, "list accelerators with their dense peaks"),
        ("models", models, "list model shapes with their parameter counts"),
        ("platforms", platforms, "list platforms"),
    ):
        parser = subparsers.add_parser(name, help=text)
        if name == "accelerators":
            parser.add_argument(
                "--device", metavar="STRING", help="only the device of this driver string"
            )
        add_json(parser, csv=True)
        parser.set_defaults(handler=handler)
    parser = subparsers.add_parser("strategies", help="list named parallelism strategies")
    parser.add_argument("--platform", help="only strategies for this platform")
    parser.add_argument("--model", help="only strategies for this model")
    add_json(parser, csv=True)
    parser.set_defaults(handler=strategies)
    parser = subparsers.add_parser("published", help="list published results with their sources")
    parser.add_argument("--accelerator", help="only results on this accelerator")
    parser.add_argument("--model", help="only results of this model")
    add_json(parser, csv=True)
    parser.set_defaults(handler=published)


def _register_flops(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("flops", help="count FLOPs per trained token")
    parser.add_argument("--model", required=True, help="model, or name@LAYERS for fewer layers")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument(
        "--sequence-length", type=at_least(1), metavar="TOKENS", help="tokens per sample"
    )
    length.add_argument(
        "--packed-lengths",
        type=at_least(1),
        nargs="+",
        metavar="TOKENS",
        help="lengths of the documents packed into a sample",
    )
    parser.add_argument(
        "--recompute",
        choices=RECOMPUTE,
        default="none",
        help="count hardware FLOPs with this recomputation (default: none)",
    )
    parser.add_argument(
        "--recompute-num-layers",
        type=at_least(0),
        metavar="LAYERS",
        help="layers that full recomputation covers (default: all)",
    )
    _add_mtp_layers(parser)
    parser.add_argument(
        "--trained",
        choices=tuple(TRAINED),
        default="all",
        help="trained weights: all, adapters only (lora) or none (forward)",
    )
    parser.add_argument(
        "--tensor-parallel-size",
        type=at_least(1),
        metavar="GPUS",
        help="count the vocabulary padded for this many GPUs, as Megatron pads it",
    )
    add_json(parser)
    parser.set_defaults(handler=flops)


def _add_mtp_layers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mtp-layers",
        type=at_least(0),
        default=0,
        metavar="MODULES",
        help="multi-token prediction modules (default: 0)",
    )


def _register_convert(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "convert", help="convert TFLOP/s between conventions, or find the convention of a pair"
    )
    parser.add_argument("--model", required=True, help="model, or name@LAYERS for fewer layers")
    parser.add_argument(
        "--sequence-length",
        type=at_least(1),
        required=True,
        metavar="TOKENS",
        help="tokens per sample",
    )
    parser.add_argument(
        "--tokens-per-second-per-gpu",
        type=_printed,
        metavar="RATE",
        help="published tokens/s/GPU",
    )
    parser.add_argument(
        "--tflops", type=_printed, metavar="TFLOPS", help="published TFLOP/s/GPU with all digits"
    )
    parser.add_argument("--convention", metavar="NAME", help="FLOPs convention of --tflops")
    _add_mtp_layers(parser)
    add_json(parser)
    parser.set_defaults(handler=convert)


def flops(options: argparse.Namespace) -> int:
    """Print FLOPs per token under every convention."""
    from scalebook.facts import catalog
    from scalebook.facts.flops import (
        CONVENTIONS,
        hardware_flops_per_token,
        packed_sequence_length,
        padded_vocab_size,
    )
    from scalebook.facts.flops import flops_per_token as model_flops

    shape = catalog.model(options.model)
    packed = options.packed_lengths
    length = packed_sequence_length(packed) if packed else options.sequence_length
    tensor = options.tensor_parallel_size
    rows = padded_vocab_size(shape.vocab_size, tensor) if tensor else None
    given: dict[str, Any] = {
        "mtp_layers": options.mtp_layers, "vocab_size": rows, "trained": options.trained
    }  # fmt: skip
    found: dict[str, float] = {}
    for name in CONVENTIONS:
        if options.recompute == "none":
            found[name] = model_flops(shape, length, name, **given)
            continue
        layers = options.recompute_num_layers
        found[name] = hardware_flops_per_token(
            shape, length, options.recompute, name, recompute_num_layers=layers, **given
        )
    if options.json:
        print_json(found)
    else:
        table = [[name, f"{value / 1e9:,.4f}", CONVENTIONS[name]] for name, value in found.items()]
        print_table(("convention", "GFLOP per token", "counts"), table)
        if not packed:
            print(PACKED)
    return 0


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
    if rate:
        by_name = {
            name: model_tflops(rate, shape, length, name, mtp_layers=modules)
            for name in CONVENTIONS
        }
    else:
        by_name = {
            name: convert_tflops(
                tflops, shape, length, options.convention, name, mtp_layers=modules
            )
            for name in CONVENTIONS
        }
    fits = (
        convention_fits(
            rate,
            tflops,
            shape,
            length,
            mtp_layers=modules,
            tolerance=sum(one.unit / one.value / 2 for one in pair if one),
        )
        if rate and tflops
        else ()
    )
    if options.json:
        print_json({"tflops_per_second_per_gpu": by_name, "fits": fits})
    else:
        _print_conversions(by_name, fits)
    return 0


def _print_conversions(by_name: Mapping[str, float], fits: Sequence[ConventionFit]) -> None:
    from scalebook.facts.flops import CONVENTIONS

    rows = [[name, f"{value:,.2f}"] for name, value in by_name.items()]
    differences = {fit.convention: f"{100 * fit.relative_difference:+.2f}%" for fit in fits}
    headers = ["convention", "TFLOP/s/GPU"]
    if fits:
        headers.append("published is off by")
        rows = [[*row, differences[row[0]]] for row in rows]
    print_table(headers, rows)
    if fits:
        print(f"Likeliest: {fits[0].convention} ({CONVENTIONS[fits[0].convention]}).")
    print(PACKED)


def accelerators(options: argparse.Namespace) -> int:
    """Print every accelerator, or the one of a driver string."""
    from scalebook.errors import CatalogError
    from scalebook.facts import catalog

    found = catalog.accelerators()
    if options.device is not None:
        match = catalog.accelerator_for_device(options.device)
        if match is None:
            raise CatalogError(catalog.unknown_device(options.device))
        found = (match,)
    if options.json:
        print_data(found, options.json)
        return 0
    shown = ("bf16", "fp16", "fp8", "fp4", "tf32", "fp32")
    rows = [
        [
            item.name,
            item.vendor,
            number(item.memory_gb),
            *(number(item.peak_tflops.get(name), 6) for name in shown),
            " | ".join(item.device_names) or "-",
        ]
        for item in found
    ]
    print_table(["accelerator", "vendor", "GB", *shown, "driver strings"], rows)
    print("Peaks: dense TFLOP/s per device.")
    return 0


def models(options: argparse.Namespace) -> int:
    """Print every model shape with its parameter counts."""
    from scalebook.facts import catalog
    from scalebook.facts.flops import parameter_count

    found = [(shape, parameter_count(shape)) for shape in catalog.models()]
    if options.json:
        data = [
            {**plain(shape), "parameters": count.total, "active_parameters": count.active}
            for shape, count in found
        ]
        print_data(data, options.json)
        return 0
    rows = [
        [
            shape.name,
            f"{count.total / 1e9:,.3f}",
            f"{count.active / 1e9:,.3f}",
            str(shape.num_layers),
            str(shape.hidden_size),
            str(shape.num_attention_heads),
            str(shape.num_query_groups),
            str(shape.vocab_size),
            str(shape.max_sequence_length),
        ]
        for shape, count in found
    ]
    headers = ["model", "parameters 1e9", "active 1e9", "layers", "hidden", "heads", "groups"]
    print_table([*headers, "vocabulary", "max sequence"], rows)
    return 0


def platforms(options: argparse.Namespace) -> int:
    """Print every platform."""
    from scalebook.facts import catalog

    found = catalog.platforms()
    if options.json:
        print_data(found, options.json)
        return 0
    rows = [
        [
            item.name,
            item.vendor,
            item.accelerator or "-",
            str(item.gpus_per_node),
            item.default_precision,
        ]
        for item in found
    ]
    print_table(["platform", "vendor", "accelerator", "GPUs per node", "precision"], rows)
    return 0


def strategies(options: argparse.Namespace) -> int:
    """Print strategies: all rows, or those for a platform and a model."""
    from scalebook.facts import catalog

    platform = catalog.platform(options.platform).name if options.platform else None
    model = catalog.model(options.model).name if options.model else None
    found = catalog.strategy_rows(platform, model)
    if options.json:
        print_data(found, options.json)
        return 0
    rows = [
        [
            item.name,
            item.platform,
            item.model,
            str(item.tensor_parallel_size),
            str(item.pipeline_parallel_size),
            str(item.context_parallel_size),
            str(item.expert_parallel_size),
            ", ".join(item.aliases),
        ]
        for item in found
    ]
    headers = ["strategy", "platform", "model", "TP", "PP", "CP", "EP", "aliases"]
    print_table(headers, rows)
    return 0


def published(options: argparse.Namespace) -> int:
    """Print published results as their sources state them."""
    from scalebook.facts import catalog

    device = catalog.accelerator(options.accelerator).name if options.accelerator else None
    model = catalog.model(options.model).name if options.model else None
    found = [
        row
        for row in catalog.published()
        if device in (None, row.accelerator) and model in (None, row.model)
    ]
    if options.json:
        print_data(found, options.json)
        return 0
    rows = [
        [
            row.id or "-",
            row.hardware or "-",
            number(row.world_size),
            row.model_label or "-",
            number(row.sequence_length),
            row.precision or "-",
            number(row.tokens_per_second_per_gpu, 6),
            number(row.claimed_tflops_per_second_per_gpu, 4),
            row.flops_convention or "-",
            row.source or "-",
        ]
        for row in found
    ]
    headers = ["id", "hardware", "GPUs", "model", "sequence", "precision", "tokens/s/GPU"]
    print_table([*headers, "claimed TFLOP/s", "counted by", "source"], rows)
    print(f"{len(found)} results, as their sources state them.")
    return 0
