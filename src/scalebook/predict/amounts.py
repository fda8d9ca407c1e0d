"""How much of each kind of work one training step is, in seconds at a machine's reference rates.

What the slowest pipeline stage does for all micro batches, plus what the other stages take once
while the pipeline fills and drains: m t_max + sum of the others / v. For equal stages that is
m t (1 + (p - 1) / (m v)), the bubble of arXiv 2104.04473; the output layer makes the last stage
the slowest. Bytes of communication are those of ``scalebook.facts.communication``.

Left out: contention of collectives on one link, retries, data loading, checkpoints, and any kernel
that is slower for a shape than for its FLOPs and bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from scalebook.config import RunConfig
from scalebook.facts import communication, traffic
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.flops import attention_projections, attention_width, padded_vocab_size
from scalebook.facts.flops.parameters import mla_up_elements
from scalebook.facts.memory.parameters import Count, is_moe, stage_count, stage_layers
from scalebook.parallelism import MOST_SINGLE_GRADIENTS
from scalebook.predict.kinds import (
    KINDS,
    Launches,
    MachineRates,
    believed,
    in_transformer_engine,
    slowest_of,
    switches,
    unsure,
    waits,
)

Seconds = dict[str, float]  # by kind

_ADAM = 30.0  # bytes a parameter: gradient, weight and both moments read; three and a copy written
_NORM_AND_CLIP = 12.0
_CPU_LAYER_SECONDS = 0.0036  # of calls, both ways
# Of the host for a layer's kernels, each way: 1.9 to 2.2 ms by the time marks of 5 runs on H200s
# that wait for it, the smallest in both passes. Vendors' engines have fewer: an assumption.
_LAUNCH_SECONDS, _ENGINE_LAUNCH_SECONDS = 0.0020, 0.0007
_KERNEL_SECONDS = 4e-6  # of a kernel in which it starts and ends, however small: an order of size
# For a piece of its overlapped collectives, each way: 4.5 ms of Llama 3.2 3B by TP2 on H200s.
_PIECES_LAUNCH_SECONDS = 0.00225
# More for its whole collectives: 3.2 to 3.8 ms in 4 runs by TP2, 1.4 to 2.4 in 5 without them.
_WHOLE_LAUNCH_SECONDS = 0.0014
# More for a compiled norm than for torch's, and for a compiled rotary embedding: 131, 23 and 85 us.
_COMPILED_NORM_SECONDS, _COMPILED_ROPE_SECONDS = 0.000108, 0.000085
# Of the host for a layer with experts. Where it waits for the number of tokens of each expert, the
# device is idle: 1.6 to 3.5 ms of the forward pass by time marks. Both passes take 14 to 16 ms.
_COUNTED_SECONDS, _EXPERT_FORWARD_SECONDS, _EXPERT_BACKWARD_SECONDS = 0.0025, 0.0062, 0.0058
# Where it does not wait: forward at the most, by a stage that the device fills (Qwen3 30B-A3B).
_ALONE_FORWARD_SECONDS = 0.0042
_LATENT_LAUNCH_SECONDS = 0.003  # more with latent attention, whose projections are made in steps
_SINGLE_EXPERT_SECONDS = 0.0017  # of one computed by itself: GPT-OSS, one expert after another
# Transformer Engine's grouped product launches a product an expert: Qwen3 30B-A3B, 128 on one H200.
_PRODUCT_OF_EXPERT_SECONDS = 0.0003
# What a grouped product's tiles lose at their ends, in elements of the sum: Qwen3 30B-A3B's kernels
# reach 500 TFLOP/s on an H200, Mixtral 8x7B's 665. The rate of experts is fitted to the former's.
_TILE_ENDS = 480
_FITTED_EXPERTS = (1 / 2048 + 1 / 768) / 2
# GPT-OSS on an H200: 0.29 s under a mask, 0.12 s with a sink, and 0.07 and 0.04 without either.
_MASKED_ATTENTION = 3.5
# A window is FlashAttention 2's, for whose time FlashAttention 3 takes 1 / 1.5 to 1 / 2 forward and
# 1 / 1.5 to 1 / 1.75 backward (arXiv 2407.08608); its blocks of 128 queries see 128 keys more.
_WINDOW_KERNEL, _WINDOW_BLOCK = 1.7, 128.0
# On an H200 cuDNN takes 4.5 ms for 8,192 tokens and 16 heads of 256, and 14.3 ms for 16,384 tokens
# and 32 heads of 128: 1.42 times what their exponentials explain.
_WIDE_HEADS = 1.42
# cuDNN's kernel for queries of 192 and values of 128 elements takes 11.19 ms for 2 x 4,096 tokens
# and 128 heads on an H200, and 7.36 ms for heads of 128; their widths explain 1.19 of it.
_LATENT_ATTENTION = 1.28
# Width of a head at which attention's exponentials take as long as its products: an SM of compute
# capability 9.0 makes 16 in a clock (CUDA C++ Programming Guide) and 4,270 bf16 FLOPs (989 TFLOP/s,
# 132 SMs, 1.755 GHz). A score takes 2 of them and 14 FLOPs for each element of a head.
_EXPONENTIAL_WIDTH = 2 / 16 * 4270 / 14
_USUAL_WIDTH = 128  # of the runs that the rate of attention is fitted to
# A kernel computes heads in whole tiles. What a head of 80 or 96 lacks to 128 saves little: cuDNN's
# both passes take 1.16 and 1.22 ms for 4 x 2,048 tokens and 32 heads on an H200, and 1.34 for 128.
_HEAD_TILE, _SAVED_OF_TILE = 64, 0.36
# Half of what a squared ReLU returns is zero, and so is half of its gradient. Where power limits
# the clock, products of zeros are faster: the four of an MLP of 6,144 and 24,576 on an H200.
_FASTER_HALF_ZERO = 0.05
_STEP_SECONDS, _PIECE_SECONDS = 0.005, 15e-6  # before a step, and a piece of a collective, starts
_FIRST_BUCKET = 0.05  # of data-parallel traffic that nothing is left to hide behind


@dataclass(frozen=True, slots=True)
class Amounts:
    """The work of one step of one rank in reference seconds by kind, and the pipeline's share."""

    seconds: Mapping[str, float]
    idle: Mapping[str, float]  # of these, what the slowest stage waits for others (the bubble)
    unsure: Mapping[str, float]  # of these, the standard deviation as hosts differ


def amounts(
    config: RunConfig,
    shape: ModelShape,
    machine: MachineRates,
    ran: Mapping[str, object] | None = None,
) -> Amounts:
    """Return the work of a legal configuration, in seconds at the machine's reference rates."""
    config = config.unpacked()
    job = _Job(config, shape, machine, switches(config, shape, ran))
    stages = [job.stage(number) for number in range(config.pipeline_parallel_size)]
    batches = config.num_microbatches
    launches = [job.launches(number, stage) for number, stage in enumerate(stages)]
    launched = [waits(stage) for stage in launches]
    times = [believed(stage) + wait for stage, wait in zip(stages, launched, strict=True)]
    slowest = times.index(max(times))
    # Its own passes of as many micro batches as there are later stages hide a part of these.
    after, ahead = sum(times[slowest + 1 :]), (len(times) - 1 - slowest) * times[slowest]
    shown = max(after - ahead / 3, 0.0) + max(after - 2 * ahead / 3, 0.0)
    chunks = config.virtual_pipeline_parallel_size
    later = shown / after if after and chunks == 1 else 1.0
    total = {kind: batches * seconds for kind, seconds in stages[slowest].items()}
    idle: Seconds = {}
    for number, stage in enumerate(stages):
        share = ((number < slowest) + later * (number > slowest)) / chunks
        _add(idle, {kind: share * seconds for kind, seconds in stage.items()})
    _add(total, idle)
    experts = job.expert_launches(believed(total))
    _add(total, job.once(believed(stages[slowest])))
    total["expert_launch"] = waits(experts)
    total["waiting"] = slowest_of(config.world_size) * believed(total)
    idle["launch"] = (sum(launched) - launched[slowest]) / chunks
    total["launch"] = batches * launched[slowest] + idle["launch"]
    return Amounts(
        {kind: value for kind, value in total.items() if value > 0},
        {kind: value for kind, value in idle.items() if value > 0},
        {"launch": batches * unsure(launches[slowest]), "expert_launch": unsure(experts)},
    )


def _add(total: Seconds, more: Mapping[str, float]) -> None:
    for kind, value in more.items():
        total[kind] = total.get(kind, 0.0) + value


@dataclass(frozen=True, slots=True)
class _Job:
    config: RunConfig
    shape: ModelShape
    machine: MachineRates
    on: Mapping[str, bool]

    @property
    def tokens(self) -> float:
        """Tokens of a micro batch on one rank."""
        config = self.config
        return config.micro_batch_size * config.sequence_length / config.context_parallel_size

    @property
    def replicated(self) -> float:
        """Share of the hidden state that one tensor-parallel rank works on between products."""
        config = self.config
        return 1 / config.tensor_parallel_size if config.sequence_parallel else 1.0

    @property
    def local_experts(self) -> float:
        """Experts of a layer that one rank holds; 0 in a dense model."""
        return self.shape.num_experts / self.config.expert_parallel_size

    def layers(self, stage: int) -> list[int]:
        """Return the layers of a stage."""
        chunks = stage_layers(self.shape, self.config.parallelism, stage)
        return [layer for chunk in chunks for layer in chunk]

    def expert_launches(self, busy: float) -> Launches:
        """Return how long the host launches a step's experts, where it does so kernel by kernel."""
        config, on = self.config, self.on
        launched = self.machine.is_gpu and self.own_kernels and not on["cuda_graph"]
        if not launched or self.shape.moe is None:
            return []
        stages = range(config.pipeline_parallel_size)
        layers = (sum(is_moe(self.shape, one) for one in self.layers(each)) for each in stages)
        more = _LATENT_LAUNCH_SECONDS / 2 if self.shape.mla else 0.0
        if on["overlap_tensor_parallel"]:  # of attention, which has half of the products
            more += config.tensor_parallel_size * _PIECES_LAUNCH_SECONDS / 2
        if not on["grouped_gemm"]:
            more += self.local_experts * _SINGLE_EXPERT_SECONDS / 2
        counted, forward = _COUNTED_SECONDS, _EXPERT_FORWARD_SECONDS + more
        backward = _EXPERT_BACKWARD_SECONDS + more
        if in_transformer_engine(config):
            forward = backward = self.local_experts * _PRODUCT_OF_EXPERT_SECONDS / 2
        elif on["token_counts"]:
            counted, forward = 0.0, _ALONE_FORWARD_SECONDS + more
        passes = ((counted, 0.0), (forward, busy / 3), (backward, 2 * busy / 3))
        times = config.num_microbatches * max(layers)
        return [(times * host, hidden) for host, hidden in passes]

    def launches(self, number: int, stage: Seconds) -> Launches:
        """Return how long the host launches a stage's layers without experts in a micro batch."""
        layers = self.layers(number)
        if not self.machine.is_gpu:  # nothing runs behind a CPU's own calls
            return [(len(layers) * _CPU_LAYER_SECONDS, 0.0)]
        if self.on["cuda_graph"]:
            return []
        dense = sum(not is_moe(self.shape, one) for one in layers)
        # By the output layer the host has launched the layers; backward it hides launches.
        after = self.head() if number == self.config.pipeline_parallel_size - 1 else {}
        kinds = ("gemm", "gemm_fp8", "gemm_fp32", "gemm_outputs", "attention", "elementwise")
        busy = {one: stage.get(one, 0.0) - after.get(one, 0.0) for one in (*kinds, "kernels")}
        third = believed(busy) / 3
        each = _ENGINE_LAUNCH_SECONDS
        if self.own_kernels and self.on["overlap_tensor_parallel"]:
            each = self.config.tensor_parallel_size * _PIECES_LAUNCH_SECONDS
        elif self.own_kernels:
            each = _LAUNCH_SECONDS - 2 * _COMPILED_ROPE_SECONDS * bool(self.shape.learned_positions)
            torchs = self.on["norm_kernel"] or self.shape.normalization == "layer"
            each -= 2 * _COMPILED_NORM_SECONDS * torchs
            each += _WHOLE_LAUNCH_SECONDS * (self.config.tensor_parallel_size > 1)
        hidden = third, 2 * third + believed(after)
        chunks = self.config.virtual_pipeline_parallel_size
        queued = self.own_kernels and self.on["pipeline_transfers"]
        if self.config.pipeline_parallel_size > chunks == 1 and queued:
            return [(2 * dense * each, sum(hidden))]  # no pass waits for the one before
        return [(dense * each, one) for one in hidden]

    def stage(self, number: int) -> Seconds:
        """Return the work of one micro batch on a stage, forward and backward."""
        config, shape = self.config, self.shape
        total: Seconds = defaultdict(float)
        layers = self.layers(number)
        for moe in (False, True):
            count = sum(is_moe(shape, layer) == moe for layer in layers)
            for kind, value in self.layer(moe=moe).items() if count else ():
                total[kind] += count * value
        if number == config.pipeline_parallel_size - 1:
            _add(total, self.head())
            _add(total, self.further_tokens())
        _add(total, self.weight_traffic(number))
        _add(total, self.between_stages(number))
        if config.data_parallel_sharding == "full":
            _add(total, self.gathers(number, believed(total)))
        return total

    def further_tokens(self) -> Seconds:
        """Return the modules of multi-token prediction: a layer, a joint product and the loss."""
        shape, modules = self.shape, self.config.mtp_layers
        joint = 12 * self.tokens * shape.hidden_size**2 / self.config.tensor_parallel_size
        one: Seconds = {"gemm": joint / self.machine.flops("bf16")}
        _add(one, self.layer(moe=is_moe(shape, shape.num_layers - 1)))
        _add(one, self.head())
        return {kind: modules * value for kind, value in one.items()}

    def layer(self, *, moe: bool) -> Seconds:
        """Return the work of one layer for one micro batch, except what depends on its stage."""
        total: Seconds = defaultdict(float)
        parts = self.products(moe=moe), self.attention(), self.pointwise(moe=moe)
        for part in (*parts, self.communication(moe=moe)):
            _add(total, part)
        if self.machine.is_gpu:
            total["kernels"] = self.kernels * _KERNEL_SECONDS
        return total

    @property
    def kernels(self) -> float:
        """Kernels of a layer, both ways: products, attention, activation and sums; the rest."""
        norms, turned = 2 + 2 * self.shape.qk_norm, 2 * (not self.shape.learned_positions)
        forward, backward = 8 + norms + turned, 14 + 2 * norms + turned
        return forward * (1 + self.config.again(self.shape.num_layers)) + backward

    @property
    def product_kind(self) -> str:
        """The kind of a layer's matrix products."""
        if self.config.precision == "fp32" and self.machine.is_gpu:
            return "gemm_fp32"
        return "gemm_fp8" if self.config.precision == "fp8" else "gemm"

    def products(self, *, moe: bool) -> Seconds:
        config, shape = self.config, self.shape
        factor, dense, experts = shape.mlp_matrices, shape.ffn_hidden_size, 0.0
        if moe and shape.moe is not None:
            dense = shape.moe.shared_ffn_hidden_size
            # Tokens that a rank sends away come back from others: evenly loaded, it is its share.
            experts = shape.moe.top_k * shape.moe.ffn_hidden_size * factor * shape.hidden_size
            experts /= config.tensor_parallel_size
            short = (1 / shape.hidden_size + 1 / shape.moe.ffn_hidden_size) / 2
            experts *= (1 + _TILE_ENDS * short) / (1 + _TILE_ENDS * _FITTED_EXPERTS)
        inside = ("moe", "shared_experts") if moe else ("mlp",)
        third = 1 + config.again(shape.num_layers, *inside) / 3
        again = 1 + config.again(shape.num_layers, *inside[:1]) / 3
        elements = factor * shape.hidden_size * dense * third
        if shape.activation == "squared_relu":  # an operand of 4 of the 6 products
            elements *= 1 - _FASTER_HALF_ZERO * 2 / 3
        elements += attention_projections(shape) * (1 + config.again(shape.num_layers) / 3)
        if shape.mla and "mla_up_proj" in config.recomputation.modules:
            elements += mla_up_elements(shape, shape.mla) / 3
        flops = 6 * self.tokens * elements / config.tensor_parallel_size
        precision = config.precision if config.precision in ("fp8", "fp32", "fp16") else "bf16"
        rate = self.machine.flops(precision)
        found = {self.product_kind: flops / rate}
        if experts:
            found["expert_gemm"] = 6 * self.tokens * experts * again / rate
            router = 6 * self.tokens * self.replicated * shape.hidden_size * shape.num_experts
            _add(found, {"gemm_fp32": router / self.machine.flops("fp32")})
            if config.expert_parallel_size > 1 and config.expert_balance == "learned":
                found["uneven_experts"] = KINDS["expert_gemm"].slowness * found["expert_gemm"]
        forward, backward = traffic.product_values(shape, config.tensor_parallel_size, dense)
        found |= self.written(forward * (1 + config.again(shape.num_layers, *inside)) + backward)
        if config.precision == "fp8":
            routed = shape.moe.top_k * shape.moe.ffn_hidden_size if experts and shape.moe else 0
            _add(found, self.casts(flops / rate, dense + routed, again))
        return found

    def written(self, outputs: float) -> Seconds:
        """Return the writing of products' outputs per token: a tile multiplies nothing then."""
        seconds = 2 * self.tokens * outputs / self.machine.memory_bytes_per_second
        return {"gemm_outputs": seconds} if self.machine.is_gpu else {}

    def casts(self, product_seconds: float, dense: float, again: float) -> Seconds:
        """Return casts to FP8: each input and gradient of a product is read, written twice."""
        config, shape = self.config, self.shape
        tensor = config.tensor_parallel_size
        width = 2 * shape.hidden_size * self.replicated + 4 * attention_width(shape) / tensor
        width += (5 if shape.gated_mlp else 4) * dense / tensor
        values = self.tokens * width * again / self.machine.memory_bytes_per_second
        found = {"fp8_cast": 4 * values}
        if config.fp8_recipe != "delayed":  # the largest value is looked for first
            found["fp8_scaling"] = 2 * values
        if config.fp8_recipe == "blockwise":
            found["fp8_blockwise"] = product_seconds
        return found

    @property
    def waits_for_context(self) -> bool:
        """Whether attention waits for the keys of other ranks: before a window, sinks, or once."""
        other = self.shape.mla or self.shape.attention_sinks or self.shape.sliding_window
        return self.own_kernels and bool(other or not self.on["context_parallel_communication"])

    def attention(self) -> Seconds:
        config, shape = self.config, self.shape
        pairs = config.sequence_length / 2  # the causal half
        windowed = 0 < shape.sliding_window < config.sequence_length
        # Under a mask torch's kernels compute every pair.
        torch_only = self.own_kernels and not in_transformer_engine(config)
        own = self.machine.is_gpu and torch_only and (windowed or shape.attention_sinks)
        masked = own and not self.on["window_attention"]
        if windowed:
            width = float(shape.sliding_window)
            inside = 2 * pairs if masked else min(width, pairs)
            if own and not masked:
                seen = width - width**2 / (2 * config.sequence_length)
                inside = _WINDOW_KERNEL * (seen + _WINDOW_BLOCK)
            pairs += (inside - pairs) / shape.sliding_window_every
        flops = 12 * self.tokens * attention_width(shape) * pairs / config.tensor_parallel_size
        # Forward it is 2 of 7 products: the backward pass makes the scores again.
        flops *= 1 + config.again(shape.num_layers, "core_attn") * 2 / 7
        seconds = flops / self.machine.flops("fp32" if config.precision == "fp32" else "bf16")
        if self.machine.is_gpu:
            width = attention_width(shape) / shape.num_attention_heads
            if not shape.mla:
                padded = -(-width // _HEAD_TILE) * _HEAD_TILE
                seconds *= padded / width * (1 - _SAVED_OF_TILE * (1 - width / padded))
                width = padded
            usual = 1 + _EXPONENTIAL_WIDTH / _USUAL_WIDTH
            seconds *= (1 + _EXPONENTIAL_WIDTH / width) / usual
            seconds *= _LATENT_ATTENTION if shape.mla and torch_only else 1.0
            seconds *= _WIDE_HEADS if width > _USUAL_WIDTH and not shape.mla else 1.0
        found = {"attention": seconds * (_MASKED_ATTENTION if masked else 1.0)}
        if config.context_parallel_size > 1 and self.waits_for_context and self.machine.is_gpu:
            found["context_attention"] = found["attention"]
        return found

    def pointwise(self, *, moe: bool) -> Seconds:
        config, shape = self.config, self.shape
        tensor, hidden = config.tensor_parallel_size, shape.hidden_size * self.replicated
        rotary = (shape.num_attention_heads + shape.num_query_groups) * shape.head_dim / tensor
        share = self.replicated
        wide = traffic.mlp_width(shape, tensor, share, moe=moe)
        forward, backward = traffic.layer_values(shape, tensor=tensor, replicated=share, moe=moe)
        values = forward * (1 + config.again(shape.num_layers)) + backward
        modules = set(config.recomputation.modules)
        inside = {"moe", "moe_act"} if moe else {"mlp"}
        if config.recompute == "pointwise" or "layernorm" in modules:
            values += 4 * hidden
        if config.recompute == "pointwise" or modules & inside:
            values += (3 if shape.gated_mlp else 2) * wide
        if self.own_kernels and self.machine.is_gpu:
            values += traffic.joined_values(shape) / tensor
        if self.own_kernels and self.machine.is_gpu and not in_transformer_engine(config):
            again = config.again(shape.num_layers)
            values += traffic.bias_values(shape, tensor, share, moe=moe, again=again)
        if self.on["rotary_embedding"]:  # which reads queries where they were split before
            values -= 2 * (2 + config.again(shape.num_layers)) * attention_width(shape) / tensor
        rate = self.machine.memory_bytes_per_second / self.tokens
        found = {"elementwise": 2 * values / rate}
        if moe and shape.moe is not None:
            # Rows there and back, sorted again between ranks; casts before and after the router.
            moved = (28 if config.expert_parallel_size > 1 else 12) * shape.moe.top_k + 28
            found["routing"] = moved * hidden / rate
        off = {
            "fused_norm": 60 * hidden,
            "fused_rope": 20 * rotary,
            "fused_activation": (24 if shape.gated_mlp else 14) * wide,
            "fused_attention": 30 * config.sequence_length * shape.num_attention_heads / tensor,
        }
        for name, size in off.items():
            if self.machine.is_gpu and not self.on[name]:
                found[f"{name}_off"] = size / rate
        return found

    def communication(self, *, moe: bool) -> Seconds:
        config, shape = self.config, self.shape
        found: Seconds = {}
        ranks, each = config.tensor_parallel_size, self.element_bytes
        if ranks > 1:
            sized = partial(communication.tensor_bytes, shape, ranks, self.tokens, moe=moe)
            again, spread = config.again(shape.num_layers), config.sequence_parallel
            size = sized(element_bytes=each, sequence_parallel=spread, again=again)
            _add(found, self.tensor(size / self.link(ranks, 1)[0]))
        ranks = config.context_parallel_size
        if ranks > 1:
            whole = self.tokens * ranks
            again = config.again(shape.num_layers, "core_attn")
            size = communication.context_ring_bytes(
                shape, ranks, whole, element_bytes=each, again=again
            )
            size /= config.tensor_parallel_size
            # Scalebook's trainer gathers keys and values and scatters their gradients, twice where
            # a ring passes three times.
            passes = (2 + again) / (3 + again) if self.own_kernels else 1.0
            kind = "context_exposed" if self.waits_for_context else "context"
            _add(found, self.sent(kind, passes * size, ranks, config.tensor_parallel_size))
        if moe:
            sizes = {"tokens": self.tokens * self.replicated, "element_bytes": each}
            again = config.again(shape.num_layers, "moe")
            bytes_of = partial(communication.expert_bytes, shape, **sizes, again=again)
            ranks, inner = config.expert_parallel_size, config.expert_tensor_parallel_size
            _add(found, self.sent("expert_exchange", bytes_of(ranks), ranks, inner))
            _add(found, self.sent("expert_exchange", bytes_of(1, tensor=inner), inner, 1))
        if config.offload_layers:  # of one layer in so many, gate and up go to the host and back
            share = min(config.offload_layers / shape.num_layers, 1.0)
            size = 8 * self.tokens * shape.ffn_hidden_size / config.tensor_parallel_size
            found["offload"] = share * size / self.machine.host_bytes_per_second
        return found

    def tensor(self, seconds: float) -> Seconds:
        """Return tensor parallelism's collectives of a layer, by what hides them.

        Cut in r pieces, r - 1 of them cross links and the first has nothing to hide behind. With
        user buffers that holds for 6 of 10 passes; the other 4 run behind a whole product.
        """
        config, shape, ranks = self.config, self.shape, self.config.tensor_parallel_size
        if not self.own_kernels:
            first = 0.6 * seconds / (ranks - 1)
            return {"tensor_unhidden": first, "tensor_hidden": seconds - first}
        if not self.on["overlap_tensor_parallel"]:
            # Four passes run behind products of the backward pass. In FP8 gathers move half.
            again, spread = config.again(shape.num_layers), config.sequence_parallel
            each, halves = seconds / (8 + 2 * spread + 4 * again), config.precision == "fp8"
            shown = seconds - (4 + halves * spread * (2 + again)) * each
            found = {"tensor_exposed": shown, "tensor_hidden": (4 - halves * spread) * each}
            return found | {"tensor_latency": 4 * _PIECE_SECONDS}
        pieces = {"tensor_overlapped": seconds, "tensor_piece": seconds / (ranks - 1)}
        if ranks > 2 or not self.on["tensor_pieces"]:
            # Of two collectives in each pass: r pieces are read, and their sum is written.
            size = 2 * self.tokens * shape.hidden_size * (1 + 1 / ranks)
            passes = 4 + 2 * config.again(shape.num_layers)
            pieces["tensor_sums"] = passes * size / self.machine.memory_bytes_per_second
        return pieces | {"tensor_latency": ranks * 4 * _PIECE_SECONDS}

    @property
    def own_kernels(self) -> bool:
        """Whether Scalebook's trainer runs, and not a vendor's engine with its own overlap."""
        return self.config.engine == "megatron"

    def sent(self, kind: str, size: float, ranks: int, stride: int) -> Seconds:
        """Return the seconds to send bytes in a group of ranks that are ``stride`` apart."""
        rate, crosses = self.link(ranks, stride)
        return {"network_exposed" if crosses else kind: size / rate}

    def link(self, ranks: int, stride: int) -> tuple[float, bool]:
        """Return a group's bytes per second and rank, and whether it spans nodes.

        A ring enters and leaves a node once, so its ranks there share their network devices.
        """
        room, link = self.machine.gpus_per_node, self.machine.link_bytes_per_second
        world = self.config.world_size
        room = min(room, -(-world // self.config.nodes)) if self.config.nodes > 1 else room
        if ranks * stride <= room or world <= room:
            return link, False
        inside = max(min(ranks, room // stride), 1)
        return min(self.machine.network_bytes_per_second * inside, link), True

    def head(self) -> Seconds:
        """Return the output layer and the loss; Megatron keeps both out of FP8."""
        config, shape = self.config, self.shape
        tensor = config.tensor_parallel_size
        rows = padded_vocab_size(shape.vocab_size, tensor) / tensor
        name = "fp32" if config.precision == "fp32" else "bf16"
        logits = self.tokens * rows
        kind = "gemm" if self.product_kind == "gemm_fp8" else self.product_kind
        found = {
            kind: 6 * logits * shape.hidden_size / self.machine.flops(name),
            **self.written(rows + shape.hidden_size),
            "elementwise": traffic.LOGIT_BYTES * logits / self.machine.memory_bytes_per_second,
        }
        if self.machine.is_gpu and not self.on["fused_cross_entropy"]:
            found["fused_cross_entropy_off"] = 32 * logits / self.machine.memory_bytes_per_second
        return found

    def held(self, stage: int) -> Count:
        config = self.config
        return stage_count(self.shape, config.parallelism, stage, mtp_layers=config.mtp_layers)

    def weight_traffic(self, stage: int) -> Seconds:
        """Return reads of weights and sums of gradients, once for every micro batch."""
        count, memory = self.held(stage), self.machine.memory_bytes_per_second
        size = 4 if self.config.gradient_precision == "bf16" else 8
        found = {"gemm_traffic": (4 + size) * count.total / memory}
        if self.machine.is_gpu and self.own_kernels and self.local_experts > MOST_SINGLE_GRADIENTS:
            found["expert_gradients"] = (2 + size) * count.expert / memory
            found["gemm_traffic"] -= (size - 2) * count.expert / memory  # products write BF16
        if self.machine.is_gpu and not self.on["fused_weight_gradient"]:
            found["fused_weight_gradient_off"] = 12 * count.total / memory
        if self.config.fp8_primary_weights:
            found["fp8_weights"] = 8 * count.total / memory
        return found

    def between_stages(self, stage: int) -> Seconds:
        config = self.config
        stages, chunks = config.pipeline_parallel_size, config.virtual_pipeline_parallel_size
        if stages == 1:
            return {}
        parts = config.tensor_parallel_size if config.sequence_parallel else 1
        size = communication.pipeline_bytes(
            self.shape, self.tokens, tensor=parts, element_bytes=self.element_bytes
        )
        # Interleaved schedules send while they compute: half of it shows.
        times = 2 * chunks - (stage in (0, stages - 1))
        stride = config.world_size // stages
        return self.sent("pipeline", size * (times / 2 if chunks > 1 else times), stages, stride)

    def replicas(self, held: Count) -> Iterator[tuple[float, int, int]]:
        """Yield parameters, ranks that hold copies of them, and how far apart those are."""
        config = self.config
        tensor, world = config.tensor_parallel_size, config.world_size
        ranks = world // tensor // config.pipeline_parallel_size
        yield held.dense, ranks, tensor
        if held.expert:
            inner = config.expert_parallel_size * config.expert_tensor_parallel_size
            yield held.expert, max(ranks * tensor // inner, 1), inner

    def gathers(self, stage: int, busy: float) -> Seconds:
        """Return what full sharding moves for one micro batch that takes ``busy`` seconds."""
        held, config = self.held(stage), self.config
        # Of the copies, 7 bytes per weight belong to the two gathers.
        gathers = 1 / config.num_microbatches if config.parallelism.gathers_once else 2
        copied = (5 + 3.5 * gathers) * held.total / self.machine.memory_bytes_per_second
        found: Seconds = {"sharding": copied if self.own_kernels else copied / 3}
        for size, ranks, stride in self.replicas(held):
            moved = (ranks - 1) / ranks * (gathers * self.element_bytes + self.gradient_bytes)
            _add(found, self.hidden_behind(size * moved, ranks, stride, busy))
        return found

    @property
    def element_bytes(self) -> int:
        return communication.exchanged_bytes(self.config.precision)

    @property
    def gradient_bytes(self) -> int:
        return communication.gradient_bytes(self.config.precision, self.config.gradient_precision)

    def hidden_behind(self, size: float, ranks: int, stride: int, busy: float) -> Seconds:
        """Return seconds to send bytes, split by whether ``busy`` seconds of work hide them."""
        if size == 0:  # one rank alone sends nothing
            return {}
        rate, crosses = self.link(ranks, stride)
        place, seconds = "network" if crosses else "data", size / rate
        shown = max(seconds - busy, min(_FIRST_BUCKET, 1.0) * seconds)
        return {f"{place}_exposed": shown, f"{place}_hidden": seconds - shown}

    def once(self, busy: float) -> Seconds:
        """Return what happens once in a step: gradients, optimizer, weights; the largest stage."""
        config = self.config
        total: Seconds = {"step": _STEP_SECONDS}
        counts = [self.held(stage) for stage in range(config.pipeline_parallel_size)]
        held = max(counts, key=lambda one: one.total)
        sharded = config.data_parallel_sharding
        memory = self.machine.memory_bytes_per_second
        for size, ranks, stride in self.replicas(held):
            own = size / (1 if sharded == "none" else ranks)
            adam = own * (_ADAM + _NORM_AND_CLIP) + size * self.gradient_bytes
            _add(total, {"optimizer": adam / memory})
            if sharded == "full":
                _add(total, {"sharded_optimizer": 100 * own / memory})
                continue
            once = (ranks - 1) / ranks * size
            gathered = self.gradient_bytes if sharded == "none" else self.element_bytes
            reduced = "overlap_grad_reduce", self.gradient_bytes, 2 / 3
            for name, bytes_each, share in (reduced, ("overlap_param_gather", gathered, 1 / 3)):
                # The reduction runs behind the last backward pass, the gather behind the first
                # forward pass; an all-reduce without sharding is both, behind the backward pass.
                behind = name if sharded == "optimizer" else "overlap_grad_reduce"
                room = busy * share if self.on[behind] else 0.0
                _add(total, self.hidden_behind(bytes_each * once, ranks, stride, room))
        if self.machine.is_gpu and not self.on["fused_optimizer"]:
            own = held.total / (1 if sharded == "none" else config.data_parallel_size)
            total["fused_optimizer_off"] = 40 * own / memory
        return total
