"""The model: a RunConfig and a ModelShape become this rank's chunks of a GPTModel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.flops import padded_vocab_size
from scalebook.facts.legality.untrained import untrained
from scalebook.train import mcore
from scalebook.train.experts import permutation
from scalebook.train.layers import blocks, fused, remake, vocabulary
from scalebook.train.model import fsdp, graph, local, megatron_config, weights
from scalebook.train.model.switches import DTYPES, Switches, resolve
from scalebook.train.world import World


@dataclass(frozen=True, slots=True)
class Model:
    """This rank's part of the model, wrapped for data parallelism."""

    chunks: list[Any]  # DistributedDataParallel or fsdp.Sharded, one a virtual pipeline stage
    config: Any  # megatron.core.TransformerConfig
    ddp_config: Any
    padded_vocab_size: int
    switches: Switches
    parameter_count: int  # of this pipeline stage, whole


def refuse_unsupported(config: RunConfig, shape: ModelShape) -> None:
    """Raise ConfigError where this trainer cannot run what is asked for."""
    refused = " ".join(untrained(config, shape))
    if refused:
        raise ConfigError(refused)
    recomputed = config.mtp_layers and config.recompute == "full"
    if recomputed and not mcore.recomputes_further_tokens():
        raise ConfigError(
            f"recompute='full' with mtp_layers={config.mtp_layers} fails in megatron-core "
            f"{mcore.version}. Use another version, or recompute 'pointwise' or 'none'."
        )
    if config.sequence_length > shape.max_sequence_length and shape.learned_positions:
        raise ConfigError(
            f"sequence_length={config.sequence_length} is beyond the "
            f"{shape.learned_positions} learned positions of {shape.name}."
        )


class _GPTModel(mcore.GPTModel):
    """Megatron-Core's model with our cross entropy, where that is on."""

    fused_cross_entropy = False

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Return the loss [batch, sequence] of logits [sequence, batch, columns of this rank]."""
        if not self.fused_cross_entropy:
            parent: Any = super()
            return parent.compute_language_model_loss(labels, logits)
        group = self.pg_collection.tp
        loss = vocabulary.cross_entropy(
            logits, labels.transpose(0, 1).contiguous(), group, compiled=True
        )
        return loss.transpose(0, 1).contiguous()


def _chunk(config: Any, shape: ModelShape, run: RunConfig, stage: int | None, on: Switches) -> Any:
    remakes = run.recompute == "pointwise" or "moe_act" in run.recomputation.modules
    pieces = None if on.transformer_engine else local.pieces(on, remakes=remakes)
    ranks = mcore.parallel_state
    where = {"ignore_virtual": False, "vp_stage": stage}
    spec = mcore.block_spec(config, pieces=pieces, vp_stage=stage)
    further = None
    if run.mtp_layers:
        further = mcore.further_tokens_spec(config, spec, pieces=pieces, vp_stage=stage)
    chunk = _GPTModel(
        config=config,
        transformer_layer_spec=spec,
        mtp_block_spec=further,
        vocab_size=padded_vocab_size(shape.vocab_size, run.tensor_parallel_size),
        max_sequence_length=shape.learned_positions or run.sequence_length,
        pre_process=ranks.is_pipeline_first_stage(**where),
        post_process=ranks.is_pipeline_last_stage(**where),
        share_embeddings_and_output_weights=shape.tied_embeddings,
        position_embedding_type="learned_absolute" if shape.learned_positions else "rope",
        rotary_base=shape.rope_theta,
        vp_stage=stage,
    )
    chunk.fused_cross_entropy = on.fused_cross_entropy
    if run.recompute == "pointwise":
        local.remake_norms(chunk)
    if run.offload_layers:
        remake.install(chunk, run.offload_layers)
    if shape.mlp_bias and "mlp" in run.recomputation.modules:
        for layer in chunk.decoder.layers:
            layer.mlp.register_forward_hook(remake.part_bias)
    if on.fused_weight_gradient:
        vocabulary.install_embedding(chunk)
    return chunk


def _install(config: RunConfig, shape: ModelShape, world: World, on: Switches) -> None:
    """Put the pieces in place that Megatron-Core has no seam for."""
    if on.fused_attention and not on.transformer_engine:
        chunks = 2 * config.context_parallel_size
        blocks.prefer_cudnn(world.device, config.sequence_length // chunks)
    if on.fused_rope and not on.transformer_engine:
        fused.install_rotary_embedding()
    remakes = megatron_config.remakes_activation(config, shape)
    fused.install_swiglu(fused=on.fused_activation, remakes=remakes)
    if on.grouped_gemm and not on.transformer_engine:
        permutation.install(compiled=on.fused_activation)


def build(config: RunConfig, shape: ModelShape, world: World) -> Model:
    """Return this rank's model chunks with weights that do not depend on the layout."""
    on = resolve(config, shape, world)
    _install(config, shape, world, on)
    if on.cuda_graph:
        graph.leave_default_stream()
    transformer = megatron_config.transformer_config(config, shape, world, on)
    stages = config.virtual_pipeline_parallel_size
    sharded = config.data_parallel_sharding == "full"
    # FSDP keeps the fp32 parameters that are updated in the model itself.
    dtype = torch.float32 if sharded else DTYPES[config.precision]
    chunks = [
        _chunk(transformer, shape, config, stage, on).to(device=world.device, dtype=dtype)
        for stage in (range(stages) if stages > 1 else [None])
    ]
    weights.initialise(
        chunks,
        transformer,
        vocab_size=shape.vocab_size,
        tied=shape.tied_embeddings,
        seed=config.seed,
    )
    count = weights.parameter_count(chunks, shape.tied_embeddings)
    for chunk in chunks:
        _mark_experts(chunk, config)
    ddp_config = megatron_config.ddp_config(config, world, on)
    if sharded:
        types = DTYPES[config.precision], DTYPES[config.gradient_precision]
        once = config.parameter_gather == "step"
        wrapped = [fsdp.shard(transformer, chunk, world, types, once=once) for chunk in chunks]
    else:
        wrapped = [
            mcore.DistributedDataParallel(
                config=transformer, ddp_config=ddp_config, module=one, disable_bucketing=index > 0
            )
            for index, one in enumerate(chunks)
        ]
    return Model(
        chunks=wrapped,
        config=transformer,
        ddp_config=ddp_config,
        padded_vocab_size=padded_vocab_size(shape.vocab_size, config.tensor_parallel_size),
        switches=on,
        parameter_count=count,
    )


def _mark_experts(chunk: Any, config: RunConfig) -> None:
    """Let experts' gradients be added up over the ranks that hold the same experts.

    Megatron-Core takes them for replicated like the rest where there is no expert parallelism, even
    if tensor parallelism splits the rest only; and it adds up the biases of different experts.
    """
    apart = config.expert_parallel_size > 1 or (
        config.expert_tensor_parallel_size != config.tensor_parallel_size
    )
    for name, parameter in chunk.named_parameters():
        if ".mlp.experts." in name:
            parameter.allreduce = not apart
            parameter.sequence_parallel = False
            # Else a bias counts in the gradient norm of the first tensor-parallel rank only.
            parameter.tensor_model_parallel = True
