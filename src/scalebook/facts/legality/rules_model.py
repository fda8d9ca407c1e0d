"""Rules about how a model's dimensions split: heads, FFN, layers, experts, sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scalebook.errors import unknown
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.legality.problem import Answers, Case, Problem, choices, divisors
from scalebook.parallelism import last_stage_sizes
from scalebook.settings import RECOMPUTE_MODULES, named_modules


def tensor_sizes(shape: ModelShape) -> list[int]:
    """Return every tensor-parallel size that fits the model's heads, groups and FFN."""
    return [size for size in divisors(shape.num_attention_heads) if not any(_misfits(shape, size))]


def _misfits(shape: ModelShape, size: int) -> Iterator[tuple[str, str]]:
    """Yield rule and words for each part of the model that a tensor-parallel size does not split.

    megatron-core from 0.16 repeats key-value groups over more ranks than groups; before, the groups
    had to be a multiple of the tensor-parallel size.
    """
    heads, groups, name = shape.num_attention_heads, shape.num_query_groups, shape.name
    if heads % size:
        words = f"does not fit {name} ({heads} heads, {groups} key-value groups)"
        yield "attention_heads", words
    uneven = shape.mla is None and groups % size
    if uneven and size % groups:
        words = f"neither divides nor is a multiple of the {groups} key-value groups of {name}"
        yield "key_value_groups", words
    # The columns of the fused query-key-value projection, which repeated groups do not widen.
    elif uneven and heads % size == 0 and (heads + 2 * groups) * shape.head_dim % size:
        parts = f"{heads} + 2 x {groups} heads of {shape.head_dim}"
        words = f"does not divide the query-key-value projection of {name} ({parts})"
        yield "key_value_groups", words
    # FFN widths that tensor parallelism splits: experts are split by their own size.
    moe = shape.moe
    widths = [shape.ffn_hidden_size] if moe is None or moe.first_dense_layers else []
    for width in [*widths, moe.shared_ffn_hidden_size] if moe else widths:
        if width % size:
            yield "ffn", f"does not divide the FFN width {width} of {name}"


def tensor_parallel(case: Case) -> Answers:
    """Heads, key-value groups and FFN width are split over tensor-parallel ranks."""
    shape, size = case.shape, case.config.tensor_parallel_size
    for rule, words in _misfits(shape, size):
        fits = choices(tensor_sizes(shape))
        yield Problem(rule, f"tensor_parallel_size={size} {words}. Use {fits}.")


def replicated_groups(case: Case) -> Answers:
    """More tensor-parallel ranks than key-value groups work from megatron-core 0.16 on only."""
    shape, size = case.shape, case.config.tensor_parallel_size
    if shape.mla is None and size > shape.num_query_groups and not any(_misfits(shape, size)):
        yield Problem(
            "key_value_groups",
            f"tensor_parallel_size={size} is above the {shape.num_query_groups} key-value groups "
            f"of {shape.name}: megatron-core repeats them from 0.16 on and refuses before.",
            "warning",
        )


def packed_documents(case: Case) -> Answers:
    """Documents of one length fill a sequence: each is a row of the batch in our trainer."""
    length, packed = case.config.sequence_length, case.config.packed_documents
    if packed > 1 and case.config.engine != "megatron":
        yield (
            f"packed_documents={packed} is not supported by engine {case.config.engine!r}. Use 1, "
            "or engine 'megatron'."
        )
    if length % packed:
        near = divisors(length)
        fits = [*(n for n in near if n < packed)][-1:] + [*(n for n in near if n > packed)][:1]
        yield (
            f"packed_documents={packed} does not divide sequence_length={length} into documents "
            f"of equal length. Use {choices(fits)}."
        )


def recompute_layers(case: Case) -> Answers:
    """Full recomputation may cover the first layers of a stage's chunks, or all in groups."""
    config, layers, rule = case.config, case.config.recompute_layers, "recompute_layers"
    grouped = config.recompute_method == "uniform"
    if (layers or grouped) and config.recompute != "full":
        name, rest = (rule, 0) if layers else ("recompute_method", "block")
        asked = f"{name}={getattr(config, name)} needs recompute='full', not {config.recompute!r}."
        yield f"{asked} Use {rest}."
    stages, last = config.pipeline_parallel_size, config.last_pipeline_stage_layers
    others = (case.shape.num_layers - last) // (stages - bool(last) or 1)
    chunks = config.virtual_pipeline_parallel_size
    most = max(min(others, last or others) // chunks, 1)
    if layers > most and not grouped:
        text = f"recompute_layers={layers} is more than the {most} layers of the smallest stage or "
        text += f"chunk of one. Use recompute_layers={most}, or 0 for all layers."
        yield Problem(rule, text, "warning")
    sizes = sorted(
        {(size + chunk) // chunks for size in (others, last or others) for chunk in range(chunks)}
    )
    if grouped and layers and any(size % layers for size in sizes):
        text = f"recompute_layers={layers} does not divide the {choices(sizes)} layers of each "
        text += "stage or chunk of one, as megatron-core before 0.17 needs. "
        yield f"{text}Use {choices(divisors(math.gcd(*sizes)))}."


def recompute_modules(case: Case) -> Answers:
    """Selective recomputation names modules that the layers have (transformer_config)."""
    config, moe, rule = case.config, case.shape.moe, "recompute_modules"
    asked, name = config.recompute_modules, case.shape.name
    if asked and config.recompute != "selective":
        needs = f"{rule}={asked!r} needs recompute='selective', not {config.recompute!r}."
        yield f"{needs} Use it, or leave the modules out."
    parts = {  # of a layer, and whether this model's layers have it
        "mla_up_proj": ("multi-latent attention", case.shape.mla),
        "moe_act": ("experts", moe),
        "moe": ("experts", moe),
        "shared_experts": ("shared experts", moe and moe.shared_ffn_hidden_size),
        "mlp": ("dense MLPs", moe is None or moe.first_dense_layers),
    }
    delayed = config.precision == "fp8" and config.fp8_recipe == "delayed"
    for one in named_modules(asked):
        part, has = parts.get(one, ("", True))
        if one not in RECOMPUTE_MODULES:
            yield unknown("recomputed module", one, RECOMPUTE_MODULES)
        elif not has:
            text = f"{rule} has {one!r}, and {name} has no {part}. Leave it out."
            yield Problem(rule, text, "error" if one in ("mla_up_proj", "moe_act") else "warning")
        elif delayed and one in ("moe_act", "layernorm"):
            text = f"{rule} has {one!r}, which megatron-core does not recompute with "
            text += "fp8_recipe='delayed'. Use 'tensorwise' or 'blockwise', or leave it out."
            yield text


def sequence_parallel(case: Case) -> Answers:
    """Sequence parallelism splits by tp, context parallelism by 2 cp (each rank takes two ends)."""
    config = case.config
    tensor, context = config.tensor_parallel_size, config.context_parallel_size
    packed = config.packed_documents
    length = config.sequence_length // packed
    name = "sequence_length" if packed == 1 else "sequence_length / packed_documents"
    if config.sequence_parallel and tensor == 1:
        yield "sequence_parallel=true needs tensor_parallel_size above 1. Use false."
    if context > 1 and length % (2 * context):
        yield Problem(
            "context_parallel",
            f"{name}={length} is not a multiple of 2 x context_parallel_size = "
            f"{2 * context}: each rank holds two equal pieces of the sequence.",
        )
    elif config.sequence_parallel and (length // context) % tensor:
        yield (
            f"{name} / context_parallel_size = {length // context} is not a multiple of "
            f"tensor_parallel_size={tensor}, as sequence_parallel needs."
        )


def layers(case: Case) -> Answers:
    """Layers split evenly over stages, and a stage's layers over its virtual chunks."""
    config, shape = case.config, case.shape
    stages, chunks = config.pipeline_parallel_size, config.virtual_pipeline_parallel_size
    if config.last_pipeline_stage_layers:
        yield from _uneven(case)
    elif shape.num_layers % stages:
        yield (
            f"pipeline_parallel_size={stages} does not divide the {shape.num_layers} layers of "
            f"{shape.name}: this trainer splits evenly except for the last stage. "
            f"{_last_stage(shape.num_layers, stages, chunks)}Use pipeline_parallel_size="
            f"{choices(divisors(shape.num_layers))}."
        )
    elif stages > 1 and (shape.num_layers // stages) % chunks:
        local = shape.num_layers // stages
        yield (
            f"virtual_pipeline_parallel_size={chunks} does not divide the {local} layers of a "
            f"stage of {shape.name}: this trainer splits evenly except for the last stage. "
            f"{_last_stage(shape.num_layers, stages, chunks)}Use "
            f"virtual_pipeline_parallel_size={choices(divisors(local))}."
        )


def _last_stage(layers: int, stages: int, chunks: int) -> str:
    """Return the advice to give the last stage a size of its own; nothing where none fits.

    The size nearest to an even split is offered, the smaller of two: the last stage computes the
    loss too. Where no size leaves a layer for each chunk, a layout without interleaving is offered.
    """
    every = last_stage_sizes(layers, stages)
    chunked = last_stage_sizes(layers, stages, chunks)
    if not every:
        return ""
    best = min(chunked or every, key=lambda size: (abs(size - layers / stages), size))
    other = (layers - best) // (stages - 1)
    plain = "" if chunked else " with virtual_pipeline_parallel_size=1"
    if chunked and other % chunks:  # Megatron-Core takes these as a layout that names each chunk
        least = other // chunks
        plain = f", which allows uneven chunks of {least + 1} and {least}"
    return f"Use last_pipeline_stage_layers={best}{plain} ({other} on the other stages). Or: "


def _uneven(case: Case) -> Answers:
    """Yield what is wrong with a last stage of its own size (Megatron-Core's transformer block)."""
    config, layers = case.config, case.shape.num_layers
    stages, last = config.pipeline_parallel_size, config.last_pipeline_stage_layers
    if stages == 1:
        yield (
            f"last_pipeline_stage_layers={last} needs pipeline_parallel_size above 1. "
            "Use last_pipeline_stage_layers=0."
        )
        return
    chunks = config.virtual_pipeline_parallel_size
    sizes, legal = (last_stage_sizes(layers, stages, each) for each in (1, chunks))
    if last not in legal:
        advice = choices(legal)
        if not legal:  # too many chunks, or too many stages
            fewer = f"pipeline_parallel_size={choices(divisors(layers))} and 0"
            advice = f"virtual_pipeline_parallel_size=1 and {choices(sizes)}" if sizes else fewer
        yield (
            f"last_pipeline_stage_layers={last} does not leave the {stages - 1} other stages an "
            f"equal part of the {layers} layers of {case.shape.name}. Use {advice}."
        )


def experts(case: Case) -> Answers:
    """Experts split over ep; ep x etp x pp divides the world (parallel_state, moe_layer)."""
    config, moe = case.config, case.shape.moe
    size, inner = config.expert_parallel_size, config.expert_tensor_parallel_size
    if moe is None:
        for name, value in (("expert", size), ("expert_tensor", inner)):
            if value > 1:
                yield (
                    f"{name}_parallel_size={value} needs experts; {case.shape.name} has none. "
                    "Use 1."
                )
        if config.expert_balance == "forced":
            yield (
                f"expert_balance='forced' needs experts; {case.shape.name} has none. Use 'learned'."
            )
        return
    if moe.num_experts % size:
        yield (
            f"expert_parallel_size={size} does not divide the {moe.num_experts} experts of "
            f"{case.shape.name}. Use {choices(divisors(moe.num_experts))}."
        )
    if moe.ffn_hidden_size % inner:
        yield (
            f"expert_tensor_parallel_size={inner} does not divide the expert FFN width "
            f"{moe.ffn_hidden_size} of {case.shape.name}."
        )
    stage, rest = divmod(config.world_size, config.pipeline_parallel_size)
    if rest == 0 and stage % (size * inner):
        yield (
            f"expert {size} x expert tensor {inner} does not divide the {stage} ranks of a "
            "pipeline stage (world_size / pipeline_parallel_size)."
        )
    if config.tensor_parallel_size > 1 and not config.sequence_parallel:
        yield (
            f"{case.shape.name} has experts: tensor_parallel_size={config.tensor_parallel_size} "
            "needs sequence_parallel=true."
        )


def mtp_layers(case: Case) -> Answers:
    """A model has a fixed number of prediction modules (arXiv 2412.19437, section 2.2)."""
    asked, known = case.config.mtp_layers, case.shape.mtp_layers
    if asked > known:
        yield (
            f"mtp_layers={asked} is more multi-token prediction than {case.shape.name} has. "
            f"Use {choices(list(range(known + 1)))}."
        )


def expert_gradients(case: Case) -> Answers:
    """Experts that no expert parallelism spreads are split as the layers are.

    Megatron-Core takes any other size without a word, and then reduces the experts' gradients over
    the data-parallel ranks of the dense layers (tensor_parallel/layers.py marks expert weights only
    where ep is above 1): copies of one expert drift apart, and the loss with them.
    """
    config = case.config
    tensor, inner = config.tensor_parallel_size, config.expert_tensor_parallel_size
    if case.shape.moe is not None and config.expert_parallel_size == 1 and inner != tensor:
        yield (
            f"expert_tensor_parallel_size={inner} differs from tensor_parallel_size={tensor} at "
            "expert_parallel_size=1: megatron-core would not keep copies of an expert equal. "
            f"Use expert_tensor_parallel_size={tensor}, or expert_parallel_size above 1."
        )


RULES = (
    tensor_parallel, replicated_groups, packed_documents, recompute_layers, recompute_modules,
    sequence_parallel, layers, experts, expert_gradients, mtp_layers,
)  # fmt: skip
