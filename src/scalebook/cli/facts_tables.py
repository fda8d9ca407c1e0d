"""Handlers of the commands that list the catalog."""

from __future__ import annotations

import argparse

from scalebook.cli.output import number, print_data, print_table


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
    from scalebook.cli.output import plain
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
