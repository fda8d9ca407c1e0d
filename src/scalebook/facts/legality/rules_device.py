"""Rules about the device and its number formats, and about what a model was trained for."""

from __future__ import annotations

from scalebook.facts.flops import padded_vocab_size
from scalebook.facts.legality.problem import Answers, Case, Problem
from scalebook.facts.legality.untrained import untrained

QUANTISED = ("fp8", "fp4")
# Transformer Engine refuses FP8 products whose inner dimensions are no multiples of 16, or whose
# number of tokens is no multiple of 8.
INNER_MULTIPLE, TOKEN_MULTIPLE = 16, 8
WASTE = 0.05  # share of padded vocabulary rows worth a word


def precision(case: Case) -> Answers:
    """The device computes in the format that is asked for."""
    config, device = case.config, case.accelerator
    if device is not None and config.precision not in device.peak_tflops:
        every = ("bf16", "fp16", "fp8", "fp4", "fp32")
        known = [name for name in every if name in device.peak_tflops]
        yield (
            f"precision={config.precision} is not known for {device.name}. Use "
            f"{' or '.join(known)}."
        )
    elif device is None and config.platform == "cpu" and config.precision in QUANTISED:
        yield (
            f"precision={config.precision} needs a GPU with Transformer Engine. Use bf16 or fp32."
        )


def quantised_shapes(case: Case) -> Answers:
    """Matrix products in FP8 and FP4 need dimensions in whole blocks."""
    config, shape = case.config, case.shape
    if config.precision not in QUANTISED:
        return
    tensor = config.tensor_parallel_size
    ffn = shape.moe.ffn_hidden_size if shape.moe else shape.ffn_hidden_size
    parts = config.expert_tensor_parallel_size if shape.moe else tensor
    widths = {
        "hidden_size": (shape.hidden_size, 1),
        "attention width": (shape.num_attention_heads * shape.head_dim, tensor),
        "FFN width": (ffn, parts),
    }
    for name, (width, ranks) in widths.items():
        if width % ranks == 0 and (width // ranks) % INNER_MULTIPLE:
            yield (
                f"{name} {width} / {ranks} = {width // ranks} of {shape.name} is not a multiple "
                f"of {INNER_MULTIPLE}, as {config.precision} needs. Use bf16 or a smaller "
                "tensor_parallel_size."
            )
    tokens = config.sequence_length * config.micro_batch_size // config.context_parallel_size
    if tokens % TOKEN_MULTIPLE:
        yield (
            f"{tokens} tokens per rank are not a multiple of {TOKEN_MULTIPLE}, as "
            f"{config.precision} needs. Change sequence_length."
        )


def sequence_length(case: Case) -> Answers:
    """Learned positions end; rotary ones continue, beyond what the model was trained for."""
    config, shape = case.config, case.shape
    length, limit = config.unpacked().sequence_length, shape.max_sequence_length
    if shape.learned_positions and length > shape.learned_positions:
        yield (
            f"sequence_length={length} is beyond the {shape.learned_positions} learned positions "
            f"of {shape.name}. Use at most {shape.learned_positions}."
        )
    elif limit and length > limit:
        yield Problem(
            "sequence_length",
            f"sequence_length={length} is beyond the {limit} tokens that {shape.name} was trained "
            "for: the speed is right, but the model would not be useful.",
            "warning",
        )


def hidden(case: Case) -> Answers:
    """Rotary positions turn the two halves of a head against one another."""
    shape = case.shape
    if shape.learned_positions == 0 and shape.mla is None and shape.head_dim % 2:
        yield (
            f"head_dim={shape.head_dim} of {shape.name} is odd: rotary positions need an even one."
        )
    if shape.num_attention_heads % shape.num_query_groups:
        yield (
            f"{shape.name} has {shape.num_attention_heads} heads, not a multiple of its "
            f"{shape.num_query_groups} key-value groups."
        )


def vocabulary(case: Case) -> Answers:
    """Megatron pads the vocabulary to a multiple of 128 x tp: never illegal, sometimes wasteful."""
    rows, tensor = case.shape.vocab_size, case.config.tensor_parallel_size
    padded = padded_vocab_size(rows, tensor)
    if padded > rows * (1 + WASTE):
        yield Problem(
            "vocabulary",
            f"the vocabulary of {case.shape.name} is padded from {rows} to {padded} rows at "
            f"tensor_parallel_size={tensor}: {padded / rows - 1:.0%} more work in the output "
            "layer.",
            "warning",
        )


def engine(case: Case) -> Answers:
    """Scalebook's own trainer trains what is asked for."""
    if case.shape.hybrid is not None:  # no other engine is given such a model either
        yield from untrained(case.config, case.shape)
    elif case.config.engine == "megatron":
        for sentence in untrained(case.config, case.shape):
            yield Problem("engine", f"{sentence} The run would end at its start.", "warning")


RULES = (hidden, vocabulary, sequence_length, precision, quantised_shapes, engine)
