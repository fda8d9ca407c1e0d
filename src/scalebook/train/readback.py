"""observed.json: the configuration as read back inside the training process, and the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from scalebook import host, project
from scalebook.config import RunConfig
from scalebook.measure.probes.files import ceilings
from scalebook.parallelism import experts_need_no_host
from scalebook.store import write_json
from scalebook.train import mcore, world
from scalebook.train.layers import blocks
from scalebook.train.layers.fused import takes_torch_norm
from scalebook.train.model import fsdp
from scalebook.train.model.chunks import Model
from scalebook.train.model.local import takes_grouped_heads
from scalebook.train.model.megatron_config import last_stage_layers
from scalebook.train.model.switches import DTYPES
from scalebook.train.samples import fingerprint
from scalebook.train.trainer import Trainer
from scalebook.train.world import distributed


def _counted(trainer: Trainer) -> dict[str, int]:
    """Return what was built, summed over the pipeline's stages."""
    model = trainer.model
    built = sum(len(chunk.module.decoder.layers) for chunk in model.chunks)
    counts = torch.tensor([built, model.parameter_count], device=trainer.world.device)
    group = mcore.parallel_state.get_pipeline_model_parallel_group()
    distributed.all_reduce(counts, group=group)
    return {"num_layers": int(counts[0]), "parameter_count": int(counts[1])}


def _attention(trainer: Trainer) -> dict[str, str | None]:
    """Return which of its kernels torch takes for this run's core attention; None if not torch's.

    And how layers with a window or sinks are computed: ``fused``, or ``masked``; and whether keys
    of other ranks travel while a rank attends to its own. All is asked before the first step.
    """
    config, run = trainer.model.config, trainer.config
    found: dict[str, str | None] = {"attention_kernel": None, "window_attention": None}
    found["context_parallel_communication"] = "all_gather"
    if trainer.model.switches.transformer_engine:
        found["context_parallel_communication"] = config.cp_comm_type
    if trainer.model.switches.transformer_engine or not trainer.model.switches.fused_attention:
        return found
    length = run.sequence_length // run.context_parallel_size
    heads = config.num_attention_heads // run.tensor_parallel_size
    groups = max(config.num_query_groups // run.tensor_parallel_size, 1)
    wide = narrow = config.kv_channels
    if config.multi_latent_attention:
        wide, narrow = config.qk_head_dim + config.qk_pos_emb_head_dim, config.v_head_dim
    query, key, value = (
        torch.empty(
            (run.micro_batch_size, number, length, width),
            dtype=config.params_dtype,
            device=trainer.world.device,
            requires_grad=True,
        )
        for number, width in ((heads, wide), (groups, wide), (groups, narrow))
    )
    if not takes_grouped_heads(query):
        key, value = query, query[..., :narrow]
    window, sinks = (config.window_size or (-1,))[0] + 1, config.softmax_type == "learnable"
    if sinks or 0 < window < run.sequence_length:
        masked = blocks.fits(window, sinks, query, key, value) is None
        found["window_attention"] = "masked" if masked else "fused"
    elif wide == narrow and not sinks and run.context_parallel_size > 1:
        asked = query.device, query.dtype, wide, query.shape[1] // key.shape[1]
        if blocks.can_share(*asked):
            found["context_parallel_communication"] = "overlapped_all_gather"
    choice: Any = getattr(torch, "_fused_sdp_choice", None)
    if choice is not None:
        grouped = query.shape[1] != key.shape[1]
        chosen = choice(query, key, value, is_causal=True, enable_gqa=grouped)
        found["attention_kernel"] = SDPBackend(chosen).name.lower()
    return found


def _token_counts(trainer: Trainer) -> str | None:
    """Return where the numbers of experts' tokens are read; None without experts."""
    config, on = trainer.model.config, trainer.model.switches
    if config.num_moe_experts is None:
        return None
    sizes = config.expert_model_parallel_size, config.expert_tensor_parallel_size
    stay = experts_need_no_host(config.num_moe_experts, *sizes)
    return "device" if stay and on.grouped_gemm and not on.transformer_engine else "host"


def _kernels(trainer: Trainer) -> dict[str, str | None]:
    """Return if transfers of a stage are queued, two ranks' pieces ours, and norms torch's."""
    config, on = trainer.model.config, trainer.model.switches
    queued = config.batch_p2p_comm and not config.batch_p2p_sync
    staged = config.pipeline_model_parallel_size > 1
    ours = on.overlap_tensor_parallel and config.tensor_model_parallel_size == 2
    rms = on.fused_norm and config.normalization == "RMSNorm"
    return {
        "norm_kernel": "torch" if rms and takes_torch_norm(config.hidden_size) else None,
        "pipeline_transfers": "queued" if staged and queued else None,
        "tensor_pieces": "exchanged" if ours and trainer.world.on_gpu else None,
    }


def _split() -> dict[str, Any]:
    ranks = mcore.parallel_state
    return {
        "world_size": distributed.get_world_size(),
        "tensor_parallel_size": ranks.get_tensor_model_parallel_world_size(),
        "pipeline_parallel_size": ranks.get_pipeline_model_parallel_world_size(),
        "virtual_pipeline_parallel_size": (
            ranks.get_virtual_pipeline_model_parallel_world_size() or 1
        ),
        "context_parallel_size": ranks.get_context_parallel_world_size(),
        "expert_parallel_size": ranks.get_expert_model_parallel_world_size(),
        "expert_tensor_parallel_size": ranks.get_expert_tensor_parallel_world_size(),
        "data_parallel_size": ranks.get_data_parallel_world_size(),
    }


def _modules_with(model: Model, name: str) -> int:
    """Return how many modules of this rank have something of that name.

    Norms (remade) and experts (remakes) keep recipes of an output, layers (host) a tensor in host
    memory.
    """
    parts = (part for chunk in model.chunks for part in chunk.module.modules())
    return sum(bool(getattr(part, name, None)) for part in parts)


def _recomputed(model: Model) -> dict[str, Any]:
    config = model.config
    mode = config.recompute_granularity or (
        "pointwise" if _modules_with(model, "remade") else "none"
    )
    names = [*config.recompute_modules] if mode == "selective" else ["core_attn"]
    if mode == "selective" and _modules_with(model, "remakes"):
        names.append("moe_act")
    many, block = config.recompute_num_layers or 0, config.recompute_method == "block"
    return {  # all layers one by one are what block does without a number
        "recompute": mode,
        "recompute_layers": many if block or many > 1 else 0,
        "recompute_method": "block" if block or many < 2 else "uniform",
        "recompute_modules": "" if names == ["core_attn"] else ",".join(names),
    }


def observed(trainer: Trainer, run: RunConfig) -> dict[str, Any]:
    """Return RunConfig's names with the values that are in force; every rank must call this.

    ``run`` is what was asked for; the trainer's own has each packed document as a sample.
    """
    config, model = trainer.model.config, trainer.model
    precisions = {DTYPES[name]: name for name in ("bf16", "fp32")}
    sharding = "optimizer" if model.ddp_config.use_distributed_optimizer else "none"
    wide = trainer.config.precision == "fp32" or model.ddp_config.grad_reduce_in_fp32
    return {
        **_split(),
        "last_pipeline_stage_layers": last_stage_layers(config),
        "num_microbatches": run.num_microbatches,
        "sequence_parallel": config.sequence_parallel,
        "data_parallel_sharding": "full" if isinstance(model.chunks[0], fsdp.Sharded) else sharding,
        "parameter_gather": "step" if getattr(model.chunks[0], "once", False) else "pass",
        "precision": "fp8" if config.fp8 else precisions[config.params_dtype],
        "fp8_recipe": config.fp8_recipe if config.fp8 else None,
        "fp8_primary_weights": bool(config.fp8 and config.fp8_param),
        "gradient_precision": "fp32" if wide else "bf16",
        **_recomputed(model),
        "offload_layers": _modules_with(model, "host"),
        "mtp_layers": config.mtp_num_layers or 0,
        "micro_batch_size": run.micro_batch_size,
        "global_batch_size": run.global_batch_size,
        "sequence_length": trainer.config.sequence_length * run.packed_documents,
        "packed_documents": trainer.config.micro_batch_size // run.micro_batch_size,
        "learning_rate": run.learning_rate,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.ffn_hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_query_groups": config.num_query_groups,
        "head_dim": config.kv_channels,
        "num_experts": config.num_moe_experts,
        "expert_top_k": config.moe_router_topk if config.num_moe_experts else None,
        "expert_balance": "forced" if config.moe_router_force_load_balancing else "learned",
        "padded_vocab_size": model.padded_vocab_size,
        **_counted(trainer),
        **model.switches.observed(),
        **_attention(trainer),
        "rotary_embedding": "while_split" if config.fused_single_qkv_rope else None,
        "token_counts": _token_counts(trainer),
        **_kernels(trainer),
        "moe_grouped_gemm": config.moe_grouped_gemm,
        "float32_matmul": torch.get_float32_matmul_precision(),
    }


def environment(trainer: Trainer) -> dict[str, Any]:
    """Return what the run stood on; null where a thing is absent."""
    data = trainer.config.data
    memory = {} if trainer.world.on_gpu else {"memory_reason": "the CPU has no device allocator"}
    return {
        **host.facts(trainer.variables, project.root()),
        **world.accelerator(),
        **world.links(),
        **world.software(),
        "backend": distributed.get_backend(),
        "megatron_core": mcore.version,
        "transformer_engine": mcore.transformer_engine_version(),
        "data": fingerprint(data) if data else {"synthetic": True},
        **memory,
    }


def write(output: Path, values: dict[str, Any], trainer: Trainer) -> None:
    """Write observed.json into a run directory, before the first step."""
    # A run lies beside the probes of its folder of runs; the newest of this machine counts.
    known = ceilings(output.absolute().parent, world.identity(trainer.world.size))
    around = environment(trainer) | known
    write_json(output / "observed.json", {"observed": values, "environment": around})
