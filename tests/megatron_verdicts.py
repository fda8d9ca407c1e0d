"""A program that asks megatron-core itself which of the configurations on its input it refuses.

Reads two JSON lists of RunConfig fields. Of each of ``built`` it writes what became of it: the
error's text, or, where the first forward pass was reached, how many parameters rank 0 holds; of
each of ``asked`` whether Scalebook's trainer would take it. The world is faked:
torch's "fake" process group answers every collective at once, so one process is rank 0 of as many
as a configuration names. A process of its own, because the stand-ins for CUDA change torch for
good.
"""

from __future__ import annotations

import json
import sys
from inspect import signature
from typing import Any

import torch
from shapes import SHAPES
from torch.testing._internal.distributed.fake_pg import FakeStore

from scalebook.config import RunConfig, recompute_options
from scalebook.errors import ConfigError
from scalebook.facts import catalog
from scalebook.facts.catalog import ModelShape
from scalebook.facts.flops import padded_vocab_size
from scalebook.train import cpu

cpu.install()

from megatron.core import num_microbatches_calculator, utils  # noqa: E402

from scalebook.train import mcore  # noqa: E402
from scalebook.train.model import local, megatron_config  # noqa: E402
from scalebook.train.model.chunks import refuse_unsupported  # noqa: E402
from scalebook.train.model.switches import Switches  # noqa: E402

ranks = mcore.parallel_state


class ReachedForwardError(Exception):
    """The forward pass was done (or a router reached): nothing refused the configuration."""


def transformer_config(config: RunConfig, shape: ModelShape) -> Any:
    chunks = config.virtual_pipeline_parallel_size
    moe: dict[str, Any] = {}
    if shape.moe is not None:
        trainers = megatron_config._experts(config, shape)
        moe = {
            "num_moe_experts": shape.moe.num_experts,
            "moe_router_topk": shape.moe.top_k,
            "moe_router_pre_softmax": trainers["moe_router_pre_softmax"],
            "moe_ffn_hidden_size": shape.moe.ffn_hidden_size,
            "moe_shared_expert_intermediate_size": shape.moe.shared_ffn_hidden_size or None,
        }
    return mcore.TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.head_dim,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bias_activation_fusion=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        tensor_model_parallel_size=config.tensor_parallel_size,
        pipeline_model_parallel_size=config.pipeline_parallel_size,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
        sequence_parallel=config.sequence_parallel,
        pipeline_dtype=torch.float32,
        params_dtype=torch.float32,
        num_layers_in_last_pipeline_stage=config.last_pipeline_stage_layers or None,
        **recompute_options(config),
        **moe,
    )


def plain_split() -> dict[str, Any]:
    """What is asked from 0.18 on: whether samples differ in their split, and over whom it is."""
    asked = signature(utils.get_batch_on_this_cp_rank).parameters
    known = {"is_hybrid_cp": False, "cp_group": ranks.get_context_parallel_group()}
    return {name: value for name, value in known.items() if name in asked}


FUSED_ATTENTION = dict.fromkeys(Switches.__dataclass_fields__, False) | {"fused_attention": True}
PIECES = local.pieces(Switches(**FUSED_ATTENTION), remakes=False)


def chunk(config: Any, shape: ModelShape, stage: int | None) -> Any:
    spec = mcore.block_spec(config, pieces=PIECES, vp_stage=stage)
    model = mcore.GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=padded_vocab_size(shape.vocab_size, config.tensor_model_parallel_size),
        max_sequence_length=shape.max_sequence_length,
        pre_process=ranks.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=ranks.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        position_embedding_type="rope",
        vp_stage=stage,
    )
    model.train()
    for layer in model.decoder.layers if shape.moe else ():
        layer.mlp.router.forward = reached  # token counts of a faked world mean nothing
    return model


def reached(*_: Any, **__: Any) -> Any:
    raise ReachedForwardError


def forward_step(length: int, micro: int) -> Any:
    def step(_: Any, model: Any) -> Any:
        batch = {
            "tokens": torch.zeros(micro, length, dtype=torch.int64),
            "labels": torch.zeros(micro, length, dtype=torch.int64),
            "position_ids": torch.arange(length).repeat(micro, 1),
        }
        part = utils.get_batch_on_this_cp_rank(batch, **plain_split())
        model(part["tokens"], part["position_ids"], None, labels=part["labels"])
        raise ReachedForwardError

    return step


def held(models: list[Any]) -> dict[str, int]:
    """Parameters of rank 0; those of experts are marked by megatron-core."""
    counts = {"dense": 0, "expert": 0}
    for parameter in (parameter for model in models for parameter in model.parameters()):
        kind = "dense" if getattr(parameter, "allreduce", True) else "expert"
        counts[kind] += parameter.numel()
    return counts


def run(config: RunConfig) -> dict[str, int]:
    shape, chunks = SHAPES[config.model], config.virtual_pipeline_parallel_size
    ranks.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor_parallel_size,
        pipeline_model_parallel_size=config.pipeline_parallel_size,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
        create_gloo_process_groups=False,
    )
    mcore.tensor_parallel.model_parallel_cuda_manual_seed(1)
    microbatches = num_microbatches_calculator.ConstantNumMicroBatchesCalculator(
        config.global_batch_size,
        config.micro_batch_size,
        ranks.get_data_parallel_world_size(),
        False,
        0,
    ).get()
    transformer = transformer_config(config, shape)
    models = [
        chunk(transformer, shape, stage) for stage in (range(chunks) if chunks > 1 else [None])
    ]
    try:
        forward(config, models, microbatches)
    except ReachedForwardError:
        return held(models)
    raise SystemExit(f"no forward pass was reached: {config}")


def forward(config: RunConfig, models: list[Any], microbatches: int) -> None:
    chunks = len(models)
    mcore.get_forward_backward_func()(
        forward_step_func=forward_step(config.sequence_length, config.micro_batch_size),
        data_iterator=[None] * chunks if chunks > 1 else None,
        model=models if chunks > 1 else models[0],
        num_microbatches=microbatches,
        seq_length=config.sequence_length,
        micro_batch_size=config.micro_batch_size,
    )


def verdict(fields: dict[str, Any]) -> dict[str, Any]:
    config = RunConfig.from_parameters(fields)
    torch.distributed.init_process_group(
        "fake", rank=0, world_size=config.world_size, store=FakeStore()
    )
    try:
        return {"error": None, "parameters": run(config)}
    except (ValueError, AssertionError, RuntimeError, IndexError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        ranks.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def taken(fields: dict[str, Any]) -> bool:
    config = RunConfig.from_parameters(fields)
    try:
        refuse_unsupported(config, catalog.model(config.model))
    except ConfigError:
        return False
    return True


if __name__ == "__main__":
    mcore.quiet()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # the matrices are far too small to share
    cases = json.load(sys.stdin)
    answers = {
        "built": [verdict(fields) for fields in cases["built"]],
        "asked": [taken(fields) for fields in cases["asked"]],
    }
    print(json.dumps(answers))
