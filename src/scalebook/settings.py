"""Every setting of a run as one row: its kind, what it changes, and how people read and type it.

The one place that lists the fields of RunConfig. Any other list of them is a query on ``SETTINGS``
(``names``), so that a new setting is one row here and whatever the trainer does with it. The rows
are in the order of RunConfig; a test keeps the two alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Precision = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]
GradientPrecision = Literal["fp32", "bf16"]
# pointwise: what costs no matrix product, the outputs of norms and of the activation function
Recompute = Literal["none", "pointwise", "selective", "full"]
# block: the first layers of a stage (or its chunks), one by one; uniform: all, in equal groups
RecomputeMethod = Literal["block", "uniform"]
# What Megatron-Core 0.16 can recompute by itself in a layer (recompute_granularity selective).
RECOMPUTE_MODULES = (
    *("core_attn", "mla_up_proj", "layernorm"),
    *("mlp", "moe", "moe_act", "shared_experts"),
)
# forced: tokens go to experts at random, as if a router had learned to spread them evenly
ExpertBalance = Literal["learned", "forced"]
Sharding = Literal["none", "optimizer", "full"]
# pass: a layer's weights are gathered for each forward and backward pass; step: kept for a step
ParameterGather = Literal["pass", "step"]
Switch = Literal["auto", "on", "off"]  # auto: on where this machine and configuration can
LayerSpec = Literal["auto", "torch", "transformer_engine"]
Fp8Recipe = Literal["delayed", "tensorwise", "blockwise"]
Engine = Literal["megatron", "nemo", "primus"]

# work: what is computed for a token. layout: how a step is spread over GPUs. kernel: how fast, and
# in how much memory, the same mathematics runs. software: whose code runs on which device.
# bookkeeping: the rest, what is measured, saved, repeated, and where training starts.
Kind = Literal["work", "layout", "kernel", "software", "bookkeeping"]
Effect = Literal["speed", "memory", "loss", "FLOPs"]  # of a step, where another value is set
# Where a run's name has its value: always in its group, in its layout or as a batch size; off its
# default; where runs of one layout differ; only where nothing else tells runs apart; never.
Named = Literal["group", "layout", "size", "off default", "where it differs", "last", "never"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of RunConfig. Its type is ``choices``, ``minimum``, ``yes_no``, or else text."""

    name: str
    kind: Kind
    affects: frozenset[Effect]
    words: str  # as readers call it: CUDA graph
    named: Named
    help: str | None = None  # of a flag; None: no command takes it as one
    metavar: str | None = None  # of a flag that takes a number: its unit
    short: str | None = None  # in a layout's name: TP
    counted: bool = False  # read with its number before it: 2 layers offloaded
    choices: tuple[str, ...] = ()
    minimum: int | None = None  # of a whole number
    yes_no: bool = False

    @property
    def switch(self) -> bool:
        """Whether it is on, off, or left to the machine."""
        return self.choices == get_args(Switch)

    @property
    def follows_size(self) -> bool:
        """Whether another number of GPUs needs another value: sizes do, named ways do not."""
        return self.kind == "layout" and not self.choices


def _row(
    name: str,
    kind: Kind,
    affects: str,
    type_: object = None,
    *,
    named: Named | None = None,
    words: str | None = None,
    help: str | None = None,
    metavar: str | None = None,
    short: str | None = None,
    counted: bool = False,
) -> Setting:
    return Setting(
        name=name,
        kind=kind,
        affects=frozenset(one for one in get_args(Effect) if one in affects.split()),
        words=words or name.replace("_", " "),
        named=named or ("last" if kind == "bookkeeping" else "where it differs"),
        help=help,
        metavar=metavar,
        short=short,
        counted=counted,
        choices=get_args(type_),
        minimum=type_ if isinstance(type_, int) else None,
        yes_no=type_ is bool,
    )


_TIME = "speed memory"
_ALL = "speed memory loss"
_ROWS = (
    _row("platform", "software", _TIME, named="group", help="platform, such as h100"),
    _row("model", "work", "speed memory loss FLOPs", named="group",
         help="model, or name@LAYERS for fewer layers"),
    _row("world_size", "layout", _TIME, 1, named="group",
         help="total processes, one per GPU", metavar="GPUS"),
    _row("nodes", "layout", _TIME, 1, counted=True,
         help="nodes of the run", metavar="NODES"),
    _row("engine", "software", _ALL, Engine, named="group",
         help="what trains (default: megatron)"),
    _row("strategy", "bookkeeping", "", named="never",
         help="named strategy instead of parallel sizes"),
    _row("tensor_parallel_size", "layout", _TIME, 1, named="layout", short="TP",
         help="GPUs that share each layer", metavar="GPUS"),
    _row("pipeline_parallel_size", "layout", _TIME, 1, named="layout", short="PP",
         help="pipeline stages", metavar="STAGES"),
    _row("virtual_pipeline_parallel_size", "layout", _TIME, 1, named="layout", short="VP",
         help="model chunks per stage (interleaved schedule)", metavar="CHUNKS"),
    _row("last_pipeline_stage_layers", "layout", _TIME, 0, named="off default",
         words="layers in the last stage", counted=True,
         help="layers of the last stage; 0: as many as in the others", metavar="LAYERS"),
    _row("context_parallel_size", "layout", _TIME, 1, named="layout", short="CP",
         help="GPUs that share each sequence", metavar="GPUS"),
    _row("expert_parallel_size", "layout", _TIME, 1, named="layout", short="EP",
         help="GPUs that share the experts", metavar="GPUS"),
    _row("expert_tensor_parallel_size", "layout", _TIME, 1, words="expert TP",
         help="GPUs that share each expert", metavar="GPUS"),
    _row("sequence_parallel", "layout", _TIME, bool, named="layout",
         help="split norms and residuals along the sequence over the tensor-parallel GPUs"),
    _row("data_parallel_sharding", "layout", _TIME, Sharding, words="sharding",
         help="what replicas share: nothing, the optimizer state (default) or everything (FSDP)"),
    _row("parameter_gather", "kernel", _TIME, ParameterGather, named="off default",
         words="weights gathered per", help="with FSDP, gather weights for each pass over a layer "
         "(pass, default), or once and keep them for the step (step)"),
    _row("micro_batch_size", "layout", _TIME, 1, named="size", words="micro batch",
         help="samples per forward pass of a replica", metavar="SAMPLES"),
    _row("global_batch_size", "layout", _ALL, 1, named="size", words="global batch",
         help="samples per optimizer step", metavar="SAMPLES"),
    _row("sequence_length", "work", "speed memory loss FLOPs", 1, named="group",
         help="tokens per sample", metavar="TOKENS"),
    _row("packed_documents", "work", "speed memory loss FLOPs", 1, named="off default",
         counted=True, help="documents of equal length that fill a sample; attention and "
         "positions stay inside each", metavar="DOCUMENTS"),
    _row("precision", "work", _ALL, Precision, named="group",
         help="number format of the matrix products"),
    _row("gradient_precision", "kernel", _ALL, GradientPrecision, named="off default",
         words="gradients in", help="number format in which gradients are summed"),
    _row("expert_balance", "kernel", _ALL, ExpertBalance, named="off default",
         words="experts' balance", help="how tokens are assigned to experts"),
    _row("recompute", "kernel", _TIME, Recompute, named="off default", words="recomputation",
         help="activations that the backward pass recomputes"),
    _row("recompute_layers", "kernel", _TIME, 0, named="off default", words="layers recomputed",
         counted=True, help="first layers of each pipeline stage (or its chunks) that full "
         "recomputation covers, or layers per group (uniform); 0: all", metavar="LAYERS"),
    _row("recompute_method", "kernel", _TIME, RecomputeMethod, named="off default",
         help="full recomputation of the first layers (block, default), or of all in groups that "
         "keep one input each (uniform)"),
    _row("recompute_modules", "kernel", _TIME, named="off default", words="recomputed modules",
         metavar="NAMES", help="what selective recomputation covers, joined by commas: "
         f"{', '.join(RECOMPUTE_MODULES)} (default: core_attn)"),
    _row("offload_layers", "kernel", _TIME, 0, named="off default", words="layers offloaded",
         counted=True, help="first layers whose MLP activations move to host memory (with "
         "pointwise recomputation)", metavar="LAYERS"),
    _row("mtp_layers", "work", "speed memory loss FLOPs", 0, named="off default",
         words="MTP modules", counted=True, help="multi-token prediction modules",
         metavar="MODULES"),
    _row("steps", "bookkeeping", "", 1, counted=True, help="optimizer steps", metavar="STEPS"),
    _row("warmup_steps", "bookkeeping", "", 0, words="warm-up steps", counted=True),
    _row("learning_rate", "bookkeeping", "loss"),
    _row("seed", "bookkeeping", "loss", 0),
    _row("data", "bookkeeping", "loss", metavar="PREFIX",
         help="train on PREFIX.bin and PREFIX.idx (Megatron's indexed format) instead of "
         "synthetic tokens"),
    _row("repeat", "bookkeeping", "", 0, named="never"),
    _row("time_limit_seconds", "bookkeeping", "", 0, named="never"),
    _row("progress_limit_seconds", "bookkeeping", "", 0, named="never"),
    _row("checkpoint_interval", "bookkeeping", _TIME, 0),
    _row("checkpoint_async", "bookkeeping", _TIME, bool),
    _row("checkpoint_keep", "bookkeeping", "", 0),
    _row("load_checkpoint", "bookkeeping", "memory loss"),
    _row("max_restarts", "bookkeeping", "", 0),
    _row("step_split", "bookkeeping", "speed", bool),
    # A profiler takes memory in the steps after the measured ones.
    _row("profile_steps", "bookkeeping", "memory", 0, words="profiled steps", counted=True),
    _row("profile_all_ranks", "bookkeeping", "memory", bool),
    _row("layer_spec", "software", _TIME, LayerSpec),
    _row("fp8_recipe", "kernel", _ALL, Fp8Recipe, named="off default", words="FP8 recipe",
         help="how FP8 tensors are scaled"),
    _row("fp8_primary_weights", "kernel", _ALL, bool, named="off default",
         words="FP8 primary weights", help="keep and gather the weights in FP8"),
    _row("fused_attention", "kernel", _TIME, Switch, help="fused (flash) attention"),
    _row("fused_norm", "kernel", _TIME, Switch),
    _row("fused_rope", "kernel", _TIME, Switch, words="fused RoPE"),
    _row("fused_activation", "kernel", _TIME, Switch),
    _row("fused_cross_entropy", "kernel", _TIME, Switch, help="fused loss, which keeps no logits"),
    _row("fused_weight_gradient", "kernel", _TIME, Switch),
    _row("fused_optimizer", "kernel", _TIME, Switch),
    _row("grouped_gemm", "kernel", _TIME, Switch),
    _row("overlap_grad_reduce", "kernel", _TIME, Switch, words="gradient overlap"),
    _row("overlap_param_gather", "kernel", _TIME, Switch, words="parameter overlap"),
    _row("overlap_tensor_parallel", "kernel", _TIME, Switch, words="tensor parallel overlap"),
    _row("cuda_graph", "kernel", _TIME, Switch, words="CUDA graph"),
)  # fmt: skip
SETTINGS: Mapping[str, Setting] = {row.name: row for row in _ROWS}

SWITCHES = tuple(row.name for row in _ROWS if row.switch)
# What tells the parallelism of a run, as strategies and plans name it: TP, PP, CP, EP.
PARALLEL_SIZES = tuple(row.name for row in _ROWS if row.short not in (None, "VP"))


def names(*kinds: Kind) -> tuple[str, ...]:
    """Return the settings of these kinds, all without one."""
    return tuple(row.name for row in _ROWS if not kinds or row.kind in kinds)


def named_modules(text: str) -> tuple[str, ...]:
    """Return the names in a list that commas, spaces or both join, each once."""
    return tuple(dict.fromkeys(text.replace(",", " ").split()))


def named(*where: Named) -> tuple[str, ...]:
    """Return the settings whose values stand there in the name of a run."""
    return tuple(row.name for row in _ROWS if row.named in where)


def without_effect(effect: Effect) -> frozenset[str]:
    """Return the settings that do not change one thing."""
    return frozenset(row.name for row in _ROWS if effect not in row.affects)


def assigned(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return ``name=value`` of each setting, as ``--set`` reads it."""
    texts = {name: one if isinstance(one, str) else json.dumps(one) for name, one in values.items()}
    return tuple(f"{name}={text}" for name, text in texts.items())


def option(name: str, value: object) -> tuple[str, ...]:
    """Return the words of a command line that give a setting a value by its own flag."""
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return (f"--{words}" if value else f"--no-{words}",)
    return f"--{words}", str(value)


def is_on(value: object) -> bool | None:
    """Return whether the value of a switch is on; None where it is open or unknown.

    The trainer writes ``on`` and ``off``; older records and logs have true and false.
    """
    if isinstance(value, bool):
        return value
    return {"on": True, "off": False}.get(value) if isinstance(value, str) else None
