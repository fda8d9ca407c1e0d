"""Fused GPU operations in torch, where Megatron-Core needs Apex or Transformer Engine.

Nothing here names a vendor: what this device's torch cannot do is found out by trying it, and the
record says what was used.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from scalebook.train.layers.remake import made_by

APEX_MODULE = "fused_weight_gradient_mlp_cuda"
_torch: Any = torch  # what is typed only in part


def apply(function: Any, *given: Any) -> Tensor:
    """Return what an autograd function makes of its arguments."""
    return function.apply(*given)


def in_main_gradient(weight: Any) -> Tensor:
    """Return what stands for a gradient that is in the main gradient, as in Megatron-Core.

    With it the hook that counts finished gradients runs.
    """
    weight.grad_added_to_main_grad = True
    return torch.empty_like(weight)


def accumulate_weight_gradient(inputs: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
    """Add ``grad_output^T inputs`` to ``main_grad`` [out, in] in one GEMM.

    ``inputs`` is [tokens, in], ``grad_output`` [tokens, out]. The GEMM reads and writes the fp32
    sum itself, which saves a bf16 gradient and a pass over it (4 bytes read and 8 moved a weight).
    A sum in the type of the inputs (gradient_precision bf16) is added to in the same way.
    """
    if main_grad.dtype == inputs.dtype:
        main_grad.addmm_(grad_output.t(), inputs)
        return
    torch.addmm(main_grad, grad_output.t(), inputs, out_dtype=main_grad.dtype, out=main_grad)


def can_accumulate(device: torch.device) -> bool:
    """Return whether this device's GEMM adds bf16 products to an fp32 sum in place."""
    factors = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    total = torch.ones(16, 16, dtype=torch.float32, device=device)
    try:
        accumulate_weight_gradient(factors, factors, total)
    except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return False
    return bool((total == 17).all())


def install_weight_gradient() -> None:
    """Put the accumulation where Megatron-Core looks for Apex's kernel, unless that is here.

    Must run before megatron.core is imported.
    """
    if APEX_MODULE in sys.modules or find_spec(APEX_MODULE) is not None:
        return
    module: Any = ModuleType(APEX_MODULE)
    module.wgrad_gemm_accum_fp32 = accumulate_weight_gradient
    module.wgrad_gemm_accum_fp16 = accumulate_weight_gradient
    sys.modules[APEX_MODULE] = module


def can_compile() -> bool:
    """Return whether torch.compile can build GPU kernels here: Triton needs a C compiler."""
    return any(shutil.which(compiler) for compiler in ("cc", "gcc", "clang"))


@cache
def compiled(function: Callable[..., Any], *, dynamic: bool | None = None) -> Any:
    """Return a function, compiled once."""
    return _torch.compile(function, dynamic=dynamic)


@cache
def compiled_in_place(function: Callable[..., Any], *, dynamic: bool | None = False) -> Any:
    """Return a function that writes over an argument, compiled once.

    Torch would time two ways to launch it, and for each call copy the argument to the host and
    back if there is no room for a second: a minute for the logits of 131,072 tokens.
    """
    return _torch.compile(function, dynamic=dynamic, options={"triton.autotune_pointwise": False})


def _turned(heads: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """Return heads [sequence, ..., dim] turned by their angles, or back: the gradient of that.

    ``cos`` is [sequence, 1, dim / 2]; ``sin`` [sequence, 2, dim / 2], negative for the first half.
    """
    shape = (cos.shape[0], *[1] * (heads.dim() - 2), -1, cos.shape[-1])
    halves = heads.view(*heads.shape[:-1], 2, -1).float()
    other = halves.flip(-2) * sin.view(shape)
    turned = halves * cos.view(shape) + (-other if back else other)
    return turned.flatten(-2).to(heads.dtype)


def _split_turned(mixed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of ``mixed``; see ``turned_parts``."""
    heads = mixed.view(*mixed.shape[:-1], -1, 2 * cos.shape[-1])
    queries, keys = _turned(heads[..., :-2, :], cos, sin), _turned(heads[..., -2, :], cos, sin)
    return queries, keys, heads[..., -1, :].contiguous()


def _turn_back(into: Tensor, grad: Tensor, cos: Tensor, sin: Tensor) -> None:
    into.copy_(_turned(grad, cos, sin, back=True))


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return compiled(_turned, dynamic=False)(heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        turned = compiled(_turned, dynamic=False)(grad_outputs[0], *ctx.saved_tensors, back=True)
        return turned, None, None


class _TurnedParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mixed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        return compiled(_split_turned, dynamic=False)(mixed, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values = grad_outputs
        *outer, each, width = queries.shape
        gradient = queries.new_empty(*outer, each + 2, width)
        turn_back = compiled_in_place(_turn_back)
        turn_back(gradient[..., :-2, :], queries, *ctx.saved_tensors)
        turn_back(gradient[..., -2, :], keys, *ctx.saved_tensors)
        gradient[..., -1, :].copy_(values)
        return gradient.flatten(-2), None, None


def _table(angles: Any) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines of angles [sequence, 1, 1, dim], computed once for all."""
    if not hasattr(angles, "table"):  # Megatron-Core keeps the angles of a length
        half = angles.detach().flatten(0, -2).chunk(2, dim=-1)[0].float()
        angles.table = half.cos().unsqueeze(1), torch.stack((-half.sin(), half.sin()), dim=1)
    return angles.table


def turned_parts(
    mixed: Tensor, angles: Tensor, key_angles: Tensor, widths: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return turned queries, turned keys and values, each contiguous, in one pass each way.

    ``mixed`` [sequence, batch, groups, (queries of a group + 2) x dim] is what a layer's first
    product gives. Split first and turned then, queries and values are copied in addition.
    """
    queries, keys, values = apply(_TurnedParts, mixed, *_table(angles))
    return queries.flatten(2, 3), keys, values


def install_rotary_embedding() -> None:
    """Put ours in the places of Megatron-Core's rotary embedding and of Transformer Engine's.

    Megatron-Core's is eight kernels that each read the tensor. It stays, compiled, for the pairs of
    neighbours of latent attention.
    """
    rope: Any = import_module("megatron.core.models.common.embeddings.rope_utils")
    original = rope._apply_rotary_pos_emb_bshd
    original = getattr(original, "original", original)

    def turn(heads: Tensor, angles: Tensor, **options: Any) -> Tensor:
        usual = {**options, "mscale": options.get("mscale", 1.0) != 1.0}
        if any(usual.values()) or angles.shape[-1] != heads.shape[-1]:
            return any_pairs(heads, angles, **options)
        return apply(_Turned, heads, *_table(angles))

    # Queries and keys differ in shape: for any shape, it would be compiled a third time.
    any_pairs = compiled(original, dynamic=False)
    turn.original = original  # pyright: ignore[reportFunctionMemberAccess]
    rope._apply_rotary_pos_emb_bshd = turn
    attention: Any = import_module("megatron.core.transformer.attention")
    attention.HAVE_FUSED_QKV_ROPE, attention.apply_fused_qkv_rotary_pos_emb = True, turned_parts


def _rms_norm(hidden: Tensor, shape: tuple[int], weight: Tensor, eps: float) -> Tensor:
    wide = hidden.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(hidden.dtype)


def rms_norm(hidden: Tensor, normalized_shape: tuple[int], weight: Tensor, eps: float) -> Tensor:
    """Return torch's ``rms_norm`` over the last dimension, in one pass each way.

    Torch's own kernel takes the device as long and the host 160 us instead of 437.
    """
    own = takes_torch_norm(*normalized_shape)
    norm: Any = torch.nn.functional.rms_norm if own else compiled(_rms_norm, dynamic=False)
    return norm(hidden, normalized_shape, weight, eps)


def takes_torch_norm(columns: int) -> bool:
    """Return whether RMS norms of this width are torch's, which has a kernel since 2.9.

    It was timed with 896 to 8,192: norms of queries and keys, narrower, stay compiled.
    """
    return columns >= 896 and hasattr(torch, "_fused_rms_norm")


def swiglu(doubled: Tensor) -> Tensor:
    """Return silu(gate) x up for ``doubled`` [..., gate and up]."""
    gate, up = doubled.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def weighted(doubled: Tensor, weights: Tensor | None, gated: bool) -> Tensor:
    """Return the activation, times the router's weight [tokens, 1] if any, in its input's type."""
    active = swiglu(doubled) if gated else torch.nn.functional.gelu(doubled)
    return active if weights is None else (active * weights).to(doubled.dtype)


def _swiglu_gradient(
    grad: Tensor, doubled: Tensor, weights: Tensor | None, gate_grad: Tensor, up_grad: Tensor
) -> Tensor | None:
    """Write the gradients of both halves; return that of each row's weight.

    Torch's compiler makes one pass of this. Of a concatenation of both it makes one that computes
    either half for each element, at half the speed.
    """
    if gate_grad.stride(0) != doubled.shape[1] or up_grad.stride(0) != doubled.shape[1]:
        raise ValueError("the gradients lie in one tensor")  # so the compiler knows the stride
    gate, up = (half.float() for half in doubled.chunk(2, dim=-1))
    sigmoid, grad = torch.sigmoid(gate), grad.float()
    active = gate * sigmoid
    weights_grad = None
    if weights is not None:
        weights_grad = (grad * active * up).sum(-1, keepdim=True).to(weights.dtype)
        grad = grad * weights
    gate_grad.copy_(grad * up * sigmoid * (1 + gate * (1 - sigmoid)))
    up_grad.copy_(grad * active)
    return weights_grad


class _Swiglu(torch.autograd.Function):
    """SwiGLU of rows [tokens, gate and up], each times its weight [tokens, 1] where given."""

    @staticmethod
    def forward(ctx: Any, doubled: Tensor, weights: Tensor | None) -> Tensor:
        ctx.save_for_backward(doubled, weights)
        return compiled(weighted)(doubled, weights, True)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        doubled, weights = ctx.saved_tensors
        gradient = torch.empty_like(doubled)
        given = grad_outputs[0].contiguous(), doubled, weights, *gradient.chunk(2, dim=-1)
        write = compiled_in_place(_swiglu_gradient, dynamic=None if weights is not None else False)
        if weights is not None:
            any_rows(*given)
        return gradient, write(*given)


def any_rows(*tensors: Tensor) -> None:
    """Let what is compiled for these tensors take any number of rows."""
    for tensor in tensors:
        _torch._dynamo.maybe_mark_dynamic(tensor, 0)


def compiled_swiglu(doubled: Tensor) -> Tensor:
    """Return SwiGLU of ``doubled`` [..., gate and up] in one pass each way."""
    product = apply(_Swiglu, doubled.contiguous().flatten(0, -2), None)
    return product.view(*doubled.shape[:-1], -1)


def weighted_compiled(doubled: Tensor, weights: Tensor, gated: bool) -> Tensor:
    """Return ``weighted`` in one pass; the number of tokens may change from call to call."""
    any_rows(doubled, weights)
    if not gated:
        return compiled(weighted)(doubled, weights, False)
    return apply(_Swiglu, doubled, weights)


def install_swiglu(*, fused: bool, remakes: bool) -> None:
    """Put ours in the place of the SwiGLU of Megatron-Core's MLP, where it has no bias.

    With ``remakes`` its product says how it can be recomputed.
    """
    mlp: Any = import_module("megatron.core.transformer.mlp")
    original = getattr(mlp.bias_swiglu_impl, "original", mlp.bias_swiglu_impl)
    ours = compiled_swiglu if fused else swiglu

    def activate(doubled: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
        if bias is not None or any(options):
            return original(doubled, bias, *options)
        product = ours(doubled)
        return made_by(product, ours, doubled) if remakes else product

    activate.original = original  # pyright: ignore[reportFunctionMemberAccess]
    mlp.bias_swiglu_impl = activate
