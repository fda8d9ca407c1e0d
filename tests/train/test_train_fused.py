"""Each fast piece computes what the plain one does: values, gradients, and what is kept."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from scalebook.train import cpu  # noqa: E402

cpu.install()

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from scalebook.train.layers import fused, remake  # noqa: E402
from scalebook.train.layers.vocabulary import cross_entropy  # noqa: E402
from scalebook.train.model import local  # noqa: E402

TOKENS, BATCH, VOCABULARY = 6, 2, 40


class OneRank:
    """A group of this process alone."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


def logits_and_labels() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(TOKENS, BATCH, VOCABULARY, generator=generator)
    return logits, torch.randint(0, VOCABULARY, (TOKENS, BATCH), generator=generator)


def test_the_cross_entropy_and_its_gradient_are_torchs():
    logits, labels = logits_and_labels()
    weights = torch.rand(TOKENS, BATCH)
    plain = logits.clone().requires_grad_()
    expected = functional.cross_entropy(plain.flatten(0, 1), labels.flatten(), reduction="none")
    (expected * weights.flatten()).sum().backward()
    ours = logits.clone().requires_grad_()
    loss = cross_entropy(ours * 1.0, labels, OneRank(), compiled=False)
    (loss * weights).sum().backward()
    torch.testing.assert_close(loss.flatten(), expected)
    torch.testing.assert_close(ours.grad, plain.grad)


def test_the_gradient_takes_the_place_of_the_logits():
    logits, labels = logits_and_labels()
    inner = (logits.requires_grad_() * 1.0).detach().requires_grad_()
    loss = cross_entropy(inner, labels, OneRank(), compiled=False)
    loss.sum().backward()
    assert inner.grad is not None
    assert inner.grad.data_ptr() == inner.data_ptr()


def test_logits_of_16_bits_lose_no_more_than_their_rounding():
    logits, labels = logits_and_labels()
    half = logits.bfloat16()
    loss = cross_entropy(half.clone().requires_grad_(), labels, OneRank(), compiled=False)
    exact = functional.cross_entropy(
        half.double().flatten(0, 1), labels.flatten(), reduction="none"
    )
    torch.testing.assert_close(loss.flatten().double(), exact, rtol=1e-5, atol=1e-5)


def test_what_is_written_in_place_is_compiled_without_a_trial_of_two_launches(
    monkeypatch: pytest.MonkeyPatch,
):
    """A trial copies what is written to the host and back each time: a minute for long logits."""
    asked: dict[str, dict[str, Any]] = {}

    def compiler(function: Any, **options: Any) -> Any:
        asked[function.__name__] = options
        return function

    monkeypatch.setattr(torch, "compile", compiler)
    caches = fused.compiled, fused.compiled_in_place
    for one in caches:
        one.cache_clear()
    logits, labels = logits_and_labels()
    cross_entropy(logits.requires_grad_() * 1.0, labels, OneRank(), compiled=True).sum().backward()
    for one in caches:
        one.cache_clear()
    assert asked["_gradient"] == {"dynamic": False, "options": {"triton.autotune_pointwise": False}}
    settings: Any = import_module("torch._inductor.config")
    assert settings.triton.autotune_pointwise is True  # what the option turns off


def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what would be compiled run as it is written."""
    for name in ("compiled", "compiled_in_place"):
        monkeypatch.setattr(fused, name, lambda function, **_: function)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_swiglu_written_out_is_autograds(
    monkeypatch: pytest.MonkeyPatch, weighted: bool
):
    uncompiled(monkeypatch)
    generator = torch.Generator().manual_seed(11)
    shape = (15, 8) if weighted else (5, 3, 8)
    leaves = [torch.randn(shape, generator=generator).requires_grad_()]
    if weighted:
        leaves.append(torch.rand(15, 1, generator=generator).requires_grad_())
    gate, up = leaves[0].chunk(2, dim=-1)
    expected = functional.silu(gate) * up * (leaves[1] if weighted else 1)
    grad = torch.randn(expected.shape, generator=generator)
    found = fused.weighted_compiled(*leaves, True) if weighted else fused.compiled_swiglu(*leaves)
    torch.testing.assert_close(found, expected)
    for own, plain in zip(
        torch.autograd.grad(found, leaves, grad),
        torch.autograd.grad(expected, leaves, grad),
        strict=True,
    ):
        torch.testing.assert_close(own, plain)


@pytest.mark.skipif(not fused.can_compile(), reason="no C compiler")
def test_the_gradient_of_swiglu_is_one_pass_for_any_number_of_rows():
    metrics: Any = import_module("torch._inductor.metrics")
    tools: Any = import_module("torch._inductor.utils")
    metrics.reset()
    fused.compiled_in_place.cache_clear()
    write = fused.compiled_in_place(fused._swiglu_gradient, dynamic=None)
    given: Any = ()
    for rows in (6, 9):
        doubled = torch.randn(rows, 32)
        weights, gradient = torch.rand(rows, 1), torch.empty_like(doubled)
        given = torch.randn(rows, 16), doubled, weights, *gradient.chunk(2, dim=-1)
        fused.any_rows(*given)
        write(*given)
        plain = doubled.clone().requires_grad_()
        gate, up = plain.chunk(2, dim=-1)
        (functional.silu(gate) * up * weights * given[0]).sum().backward()
        torch.testing.assert_close(gradient, plain.grad)
    assert metrics.generated_kernel_count == 1
    (source,) = tools.run_and_get_code(write, *given)[1]
    assert "ks1" not in source  # the number of rows is all that it does not know


def test_the_swiglu_of_an_mlp_is_ours_where_it_has_no_bias(monkeypatch: pytest.MonkeyPatch):
    uncompiled(monkeypatch)
    mlp: Any = import_module("megatron.core.transformer.mlp")
    asked: list[Any] = []
    monkeypatch.setattr(mlp, "bias_swiglu_impl", lambda *given: asked.append(given))
    original = mlp.bias_swiglu_impl
    doubled = torch.randn(3, 1, 8)
    for remakes in (False, True):
        fused.install_swiglu(fused=True, remakes=remakes)
        product = mlp.bias_swiglu_impl(doubled, None, False, False)
        assert hasattr(product, remake.ATTRIBUTE) == remakes
        torch.testing.assert_close(product, fused.swiglu(doubled))
    mlp.bias_swiglu_impl(doubled, torch.ones(8))
    assert len(asked) == 1
    assert mlp.bias_swiglu_impl.original is original


def test_a_norm_written_out_is_torchs():
    generator = torch.Generator().manual_seed(5)
    hidden, weight = (torch.randn(shape, generator=generator) for shape in ((4, 8), (8,)))
    expected = functional.rms_norm(hidden, (8,), weight, 1e-5)
    torch.testing.assert_close(fused._rms_norm(hidden, (8,), weight, 1e-5), expected)


def released() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    hidden, weight = torch.randn(5, 8, generator=generator), torch.rand(8, generator=generator)
    matrix = torch.randn(3, 8, generator=generator)
    function = partial(local._rms, nn.functional.rms_norm, (8,), 1e-5)
    leaves = tuple(leaf.requires_grad_() for leaf in (hidden, weight, matrix))
    normed = remake.made_by(function(leaves[0], leaves[1]), function, leaves[0], leaves[1])
    output = normed @ leaves[2].t()
    remake.release(normed, output)
    return normed, output, leaves[0], leaves[2]


def test_what_can_be_made_again_holds_no_memory_between_the_passes():
    normed, output, _, _ = released()
    assert normed.untyped_storage().nbytes() == 0
    output.sum().backward()
    assert normed.untyped_storage().nbytes() == 5 * 8 * 4


def test_gradients_through_what_is_made_again_are_the_same():
    _, output, hidden, matrix = released()
    output.square().sum().backward()
    generator = torch.Generator().manual_seed(7)
    plain = torch.randn(5, 8, generator=generator).requires_grad_()
    weight = torch.rand(8, generator=generator)
    other = torch.randn(3, 8, generator=generator).requires_grad_()
    (functional.rms_norm(plain, (8,), weight, 1e-5) @ other.t()).square().sum().backward()
    assert torch.equal(hidden.grad, plain.grad)
    assert torch.equal(matrix.grad, other.grad)


def same_memory(address: int) -> int:
    """Return how many living tensor objects begin at an address."""
    gc.collect()
    found = [one for one in gc.get_objects() if type(one) is Tensor]
    return sum(one.untyped_storage().data_ptr() == address for one in found)


def test_nothing_of_a_layer_outlives_its_turn_in_the_backward_pass():
    generator = torch.Generator().manual_seed(7)
    hidden = torch.randn(5, 8, generator=generator)
    leaf = hidden.clone().requires_grad_()
    middle = leaf * 1.0
    kept = middle.untyped_storage().data_ptr()
    normed = remake.made_by(middle.square(), torch.square, middle)
    output = normed @ torch.eye(8)
    remake.release(normed, output)
    del normed, middle
    assert same_memory(kept) >= 1  # the recipe's
    output.sum().backward()
    # The graph still lives with its output, as that of the last micro batch does in a schedule.
    assert same_memory(kept) == 0
    assert torch.equal(leaf.grad, 2 * hidden)


def test_what_waits_in_host_memory_comes_back_unchanged():
    generator = torch.Generator().manual_seed(7)
    plain = torch.randn(5, 8, generator=generator).requires_grad_()
    matrix = torch.randn(3, 4, generator=generator)
    (fused.swiglu(plain * 1.0) @ matrix.t()).square().sum().backward()
    leaf = plain.detach().clone().requires_grad_()
    below, host = remake.HostCopy(None), remake.HostCopy(None)
    for _ in range(2):  # the place serves one micro batch after another
        leaf.grad = None
        other = torch.arange(6.0)
        below.store(other)
        doubled = leaf * 1.0
        product = remake.made_by(fused.swiglu(doubled), fused.swiglu, doubled)
        output = product @ matrix.t()
        remake.release(product, output, host, below)
        away = [one.untyped_storage().nbytes() for one in (doubled, product, other)]
        assert away == [0, 0, 0]
        output.square().sum().backward()
        assert torch.equal(leaf.grad, plain.grad)
        assert torch.equal(other, torch.arange(6.0))  # begun for the layer below
        below.fetch()


def test_a_tensor_without_a_recipe_stays():
    hidden = torch.ones(2, 2, requires_grad=True)
    remake.release(hidden, hidden * 2)
    assert hidden.untyped_storage().nbytes() == 16


def test_two_ranks_agree_with_one(tmp_path: Path):
    program = Path(__file__).parents[1] / "two_ranks.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "--nproc-per-node=2", str(program)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("agrees") == 2


def test_scaling_in_place_is_one_factor_for_all():
    from scalebook.train.model.optimizer import _scale

    tensors = [torch.full((2,), 3.0), torch.full((3,), 5.0)]
    _scale(0, torch.zeros(1), [tensors, tensors], 0.5)
    assert [tensor.tolist() for tensor in tensors] == [[1.5] * 2, [2.5] * 3]


def test_a_switch_that_cannot_be_on_says_why(monkeypatch: Any):
    from training import small

    from scalebook.errors import ConfigError
    from scalebook.facts import catalog
    from scalebook.train.model.switches import resolve
    from scalebook.train.world import World

    world = World(0, 1, torch.device("cpu"))
    shape = catalog.model("tiny-llama")
    with pytest.raises(ConfigError, match="cuda_graph='on' is not possible here: it is made for"):
        resolve(small(cuda_graph="on"), shape, world)
    decided = resolve(small(), shape, world)
    assert decided.fused_attention
    assert not any((decided.cuda_graph, decided.fused_norm, decided.overlap_tensor_parallel))
    assert decided.observed()["layer_spec"] == "torch"


def test_fp8_is_captured_where_asked_for_and_never_with_primary_weights(monkeypatch: Any):
    from training import small

    from scalebook.errors import ConfigError
    from scalebook.facts import catalog
    from scalebook.train import mcore
    from scalebook.train.model import megatron_config
    from scalebook.train.model.switches import resolve
    from scalebook.train.world import World

    monkeypatch.setattr(mcore, "transformer_engine_version", lambda: "2.20.2")
    world, shape = World(0, 2, torch.device("cuda")), catalog.model("tiny-llama")
    layout = {"platform": "h200", "world_size": 2, "tensor_parallel_size": 2, "precision": "fp8"}
    layout["fused_rope"] = "off"  # its kernel is the engine's, which is not here

    def made(**changes: Any) -> tuple[bool, Any]:
        config = small(**layout, **changes)
        on = resolve(config, shape, world)
        return on.cuda_graph, megatron_config.transformer_config(config, shape, world, on)

    captured, given = made(cuda_graph="on")
    assert captured and given.disable_parameter_transpose_cache
    captured, given = made()
    assert not (captured or given.disable_parameter_transpose_cache)
    # As Transformer Engine by itself, and as NeMo and Primus.
    assert (given.fp8_amax_history_len, given.fp8_amax_compute_algo) == (1024, "max")
    with pytest.raises(ConfigError, match="FP8 primary weights were transposed"):
        made(cuda_graph="on", fp8_primary_weights=True)


def test_an_optimizer_of_fp8_weights_starts_from_the_weights_that_no_layout_changes(
    monkeypatch: Any,
):
    from scalebook.train.model import weights

    def initialised(**held: Any) -> Any:
        parameter: Any = torch.nn.Parameter(torch.zeros(8, 16, dtype=torch.bfloat16))
        for name, value in held.items():
            setattr(parameter, name, value)
        shard = weights.Shard(
            "decoder.layers.0.mlp.linear_fc2.weight", parameter, False, None, 0, 1
        )
        monkeypatch.setattr(weights, "shards", lambda *_: [shard])
        config = SimpleNamespace(num_layers=2, gated_linear_unit=True)
        weights.initialise([], config, vocab_size=8, tied=False, seed=1)
        return parameter.detach()

    drawn = torch.ones(8, 16, dtype=torch.bfloat16)
    expected = initialised(get_high_precision_init_val=lambda: drawn)
    torch.testing.assert_close(drawn, expected)
    torch.testing.assert_close(initialised(), expected)
    assert expected.std() > 0
