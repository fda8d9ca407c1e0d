"""Each fast piece computes what the plain one does: values, gradients, and what is kept."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from train_forked import _free_port

torch = pytest.importorskip("torch")

from scalebook.train import cpu  # noqa: E402

cpu.install()

from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

from scalebook.train.layers import async_tensor_parallel as pieces  # noqa: E402
from scalebook.train.layers import fused, remake, vocabulary  # noqa: E402
from scalebook.train.layers.vocabulary import cross_entropy  # noqa: E402

TOKENS, BATCH, VOCABULARY = 6, 2, 40
STAGES = {"world_size": 2, "pipeline_parallel_size": 2}


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


@pytest.mark.parametrize("columns", [2048 + 1024, 768, 384])  # blocks of 1,024, of 256, none
@pytest.mark.parametrize("most", [10**9, 1000])  # logits of a call: all, or of one row or two
def test_the_loss_depends_neither_on_blocks_of_a_vocabulary_nor_on_the_logits_of_a_call(
    monkeypatch: pytest.MonkeyPatch, columns: int, most: int
):
    monkeypatch.setattr(vocabulary, "MOST_LOGITS", most)
    calls: list[int] = []
    replace = vocabulary._gradient
    monkeypatch.setattr(
        vocabulary, "_gradient", lambda *given: (calls.append(given[0].numel()), replace(*given))
    )
    generator = torch.Generator().manual_seed(17)
    logits = 30 * torch.randn(3, columns, generator=generator)  # some blocks count for nothing
    labels, weights = torch.tensor([0, columns // 2, columns - 1]), torch.tensor([0.5, 1.0, 2.0])
    plain, ours = (logits.clone().requires_grad_() for _ in range(2))
    expected = functional.cross_entropy(plain.double(), labels, reduction="none")
    found = cross_entropy((ours * 1.0)[None], labels[None], OneRank(), compiled=False)[0]
    for loss in (expected, found):
        (loss * weights).sum().backward()
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-5, atol=1e-7)
    assert sum(calls) == 3 * columns
    assert max(calls) <= max(most, columns)


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


@pytest.mark.parametrize(("width", "own"), [(128, False), (895, False), (896, True), (4096, True)])
def test_norms_as_narrow_as_heads_are_compiled_and_all_where_torch_has_no_kernel(
    width: int, own: bool, monkeypatch: Any
):
    compiled: list[str] = []

    def noted(function: Any, **options: Any) -> Any:
        assert options == {"dynamic": False}  # else a second width is reduced at half the speed
        compiled.append(function.__name__)
        return function

    monkeypatch.setattr(fused, "compiled", noted)
    hidden, weight = torch.randn(3, width), torch.rand(width)
    expected = functional.rms_norm(hidden, (width,), weight, 1e-5)
    torch.testing.assert_close(fused.rms_norm(hidden, (width,), weight, 1e-5), expected)
    assert compiled == ([] if own else ["_rms_norm"])
    monkeypatch.delattr(torch, "_fused_rms_norm")
    fused.rms_norm(hidden, (width,), weight, 1e-5)
    assert compiled[-1:] == ["_rms_norm"]


def released() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    hidden, weight = torch.randn(5, 8, generator=generator), torch.rand(8, generator=generator)
    matrix = torch.randn(3, 8, generator=generator)

    def function(rows: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(rows, (8,), weight, 1e-5)

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


def test_tokens_of_another_rank_add_their_zeros_to_different_rows(monkeypatch: Any):
    """All in one row, the additions of a GPU queue there."""
    monkeypatch.setattr(vocabulary.fused, "apply", lambda _, rows, inside, __: (rows, inside))
    table: Any = SimpleNamespace(
        tp_group=SimpleNamespace(size=lambda: 2),
        vocab_start_index=8,
        vocab_end_index=16,
        num_embeddings_per_partition=8,
        reduce_scatter_embeddings=False,
        weight=None,
    )
    kept = "reduce_from_tensor_model_parallel_region"
    monkeypatch.setattr(vocabulary.mcore.tensor_parallel, kept, lambda found, **_: found)
    rows, inside = vocabulary.Embedding.forward(table, torch.tensor([[0, 3, 7, 8, 15]]))
    assert rows.tolist() == [[0, 3, 7, 0, 7]]
    assert inside.tolist() == [[False] * 3 + [True] * 2]


def test_two_ranks_agree_with_one(tmp_path: Path):
    program = Path(__file__).parents[1] / "two_ranks.py"
    done = subprocess.run(
        [sys.executable, str(program), _free_port()],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("agrees") == 2


class TwoRanks:
    """The memory that two threads share, as torch's symmetric memory: bytes for each rank."""

    def __init__(self, rank: int, bytes_: Tensor, meet: threading.Barrier) -> None:
        self.rank, self.bytes, self.meet = rank, bytes_, meet

    def get_buffer(self, rank: int, shape: Any, dtype: Any, begin: int) -> Tensor:
        return self.bytes[rank].view(dtype)[begin : begin + shape.numel()].view(shape)

    def barrier(self, channel: int) -> None:
        self.meet.wait(60)


def test_two_ranks_exchange_pieces_bit_by_bit_however_late_one_is(monkeypatch: Any):
    local_ = threading.local()
    late = 1

    class Stream:
        def wait_stream(self, _: Any) -> None: ...

    @contextmanager
    def stream(_: Any) -> Any:
        if local_.memory.rank == late:
            time.sleep(0.02)
        yield

    device = SimpleNamespace(
        current_stream=Stream, stream=stream, _sleep=lambda _: None, Stream=lambda **_: Stream()
    )
    symmetric = SimpleNamespace(get_symm_mem_workspace=lambda *_, **__: local_.memory)
    monkeypatch.setattr(pieces, "_cuda", device)
    monkeypatch.setattr(pieces, "import_module", lambda _: symmetric)
    pieces._streams.cache_clear()
    shared, meet = torch.zeros(2, 1 << 12, dtype=torch.uint8), threading.Barrier(2)
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(5))
    rows, weights = draw(3, 2, 4, 8).bfloat16(), draw(3, 2, 8, 6).bfloat16()
    group: Any = SimpleNamespace(group_name="tensor")

    def of(rank: int) -> list[Tensor]:
        local_.memory = TwoRanks(rank, shared, meet)
        found: list[Tensor] = []
        for own, weight in zip(rows[:, rank], weights[:, rank], strict=True):
            found += pieces._gather_of_two(own, weight, group)
            found += pieces._scatter_of_two(own, weight, group)
            found += pieces._scatter_of_two(own, weight, group, own + 1)
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(of, (0, 1)))
    for turn in range(3):
        whole, weight = rows[turn], weights[turn]
        summed = torch.stack([whole[0] @ weight[0], whole[1] @ weight[1]]).sum(0)
        for rank in (0, 1):
            gathered, product, part, again, meanwhile = found[rank][5 * turn : 5 * turn + 5]
            assert torch.equal(gathered, whole)
            assert torch.equal(product, whole @ weight[rank])
            assert torch.equal(part, summed.chunk(2)[rank])
            assert torch.equal(again, part)
            assert torch.equal(meanwhile, whole + 1)
    pieces._streams.cache_clear()


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


@pytest.mark.parametrize(
    ("changes", "overlapped"),
    [({}, True), ({"cuda_graph": "off"}, False), ({"pipeline_parallel_size": 2}, False)],
)
def test_collectives_in_pieces_come_with_a_graph(
    monkeypatch: Any, changes: dict[str, Any], overlapped: bool
):
    """Launched one by one they are slow: a 3B model by TP2 reached 15 % instead of 44 %."""
    from training import small

    from scalebook.facts import catalog
    from scalebook.train.model.switches import resolve
    from scalebook.train.world import World

    monkeypatch.setattr(fused, "can_accumulate", lambda _: True)
    layout = {"platform": "h200", "tensor_parallel_size": 2, "sequence_parallel": True}
    layout["world_size"] = 2 * changes.get("pipeline_parallel_size", 1)
    world = World(0, layout["world_size"], torch.device("cuda"))
    shape = catalog.model("tiny-llama")
    on = resolve(small(**layout, layer_spec="torch", **changes), shape, world)
    assert (on.overlap_tensor_parallel, on.cuda_graph) == (overlapped, overlapped)
    asked = small(**layout, layer_spec="torch", overlap_tensor_parallel="on", **changes)
    assert resolve(asked, shape, world).overlap_tensor_parallel


@pytest.mark.parametrize(
    ("model", "micro_batch_size", "sequence_length", "changes", "captured"),
    [
        ("qwen2.5-0.5b", 1, 2048, {}, True),
        ("llama3.2-3b", 1, 4096, {}, True),  # as a graph 4.7 % faster
        ("llama3.2-1b", 1, 8192, {}, True),  # 2.4 %
        ("llama3.1-8b@8", 2, 2048, {}, False),  # as fast
        ("llama3.2-1b", 4, 8192, {}, False),
        ("llama3.2-1b", 1, 8192, {"recompute": "pointwise", "offload_layers": 2}, False),
        ("llama3.2-1b", 1, 8192, {"global_batch_size": 1}, False),  # a single micro batch
        ("llama3.2-1b", 1, 8192, {"context_parallel_size": 2, "world_size": 2}, False),
        ("mixtral-8x7b@2", 1, 2048, {}, False),  # the host counts the tokens of 8 experts
        ("llama3.2-3b", 1, 4096, STAGES, True),  # 4.6 %
        ("qwen3-30b-a3b@8", 2, 4096, STAGES, True),  # 25 %
        ("llama3.1-8b@8", 2, 2048, STAGES, False),
        ("llama3.2-3b", 1, 4096, STAGES | {"virtual_pipeline_parallel_size": 2}, False),
        ("llama3.2-3b", 1, 4096, STAGES | {"tensor_parallel_size": 2, "world_size": 4}, False),
    ],
)
def test_small_layers_are_replayed_as_a_graph_in_trainer_and_prediction(
    monkeypatch: Any,
    model: str,
    micro_batch_size: int,
    sequence_length: int,
    changes: dict[str, Any],
    captured: bool,
):
    from training import small

    from scalebook.facts import catalog
    from scalebook.predict.kinds import switches
    from scalebook.train.experts import grouped
    from scalebook.train.model.switches import resolve
    from scalebook.train.world import World

    monkeypatch.setattr(fused, "can_accumulate", lambda _: True)
    monkeypatch.setattr(grouped, "can_group", lambda *_: True)
    asked: dict[str, Any] = {
        "model": model,
        "platform": "h200",
        "layer_spec": "torch",
        "world_size": 1,
        "micro_batch_size": micro_batch_size,
        "global_batch_size": 8 * micro_batch_size,
        "sequence_length": sequence_length,
    }
    config, shape = small(**asked | changes), catalog.model(model)
    world = World(0, config.world_size, torch.device("cuda"))
    assert resolve(config, shape, world).cuda_graph == captured
    assert switches(config, shape)["cuda_graph"] == captured


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

    assert made(cuda_graph="on")[0]
    captured, given = made()
    assert not captured
    # As Transformer Engine by itself, and as NeMo and Primus.
    assert (given.fp8_amax_history_len, given.fp8_amax_compute_algo) == (1024, "max")
    with pytest.raises(ConfigError, match="FP8 primary weights were transposed"):
        made(cuda_graph="on", fp8_primary_weights=True)


@pytest.mark.parametrize(
    ("experts", "expert_size", "grouped", "expected"),
    [
        (32, 1, True, "device"),
        (32, 1, False, "host"),
        (32, 2, True, "host"),
        (16, 1, True, "host"),
        (None, 1, False, None),
    ],
)
def test_a_run_says_where_the_numbers_of_experts_tokens_are_read(
    experts: int | None, expert_size: int, grouped: bool, expected: str | None
):
    from scalebook.train import readback

    config = SimpleNamespace(
        num_moe_experts=experts,
        expert_model_parallel_size=expert_size,
        expert_tensor_parallel_size=1,
    )
    switches = SimpleNamespace(grouped_gemm=grouped, transformer_engine=False)
    trainer: Any = SimpleNamespace(model=SimpleNamespace(config=config, switches=switches))
    assert readback._token_counts(trainer) == expected


@pytest.mark.parametrize(
    ("norm", "columns", "expected"),
    [
        ("RMSNorm", 4096, {"norm_kernel": "torch"}),
        ("RMSNorm", 895, {"norm_kernel": None}),
        ("LayerNorm", 4096, {"norm_kernel": None}),
    ],
)
def test_a_run_says_whether_its_norms_are_torchs(
    norm: str, columns: int, expected: dict[str, str | None]
):
    from scalebook.train import readback

    sizes = {"pipeline_model_parallel_size": 1, "tensor_model_parallel_size": 1}
    config = SimpleNamespace(batch_p2p_comm=False, normalization=norm, hidden_size=columns, **sizes)
    switches = SimpleNamespace(fused_norm=True, overlap_tensor_parallel=False)
    trainer: Any = SimpleNamespace(model=SimpleNamespace(config=config, switches=switches))
    assert expected.items() <= readback._kernels(trainer).items()
    switches.fused_norm = False
    assert readback._kernels(trainer)["norm_kernel"] is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_transfer_between_stages_waits_for_the_device_and_gpus_average_as_they_reduce(
    device: str, monkeypatch: Any
):
    from training import small

    from scalebook.facts import catalog
    from scalebook.train.model import megatron_config
    from scalebook.train.model.switches import resolve
    from scalebook.train.world import World

    monkeypatch.setattr(fused, "can_accumulate", lambda _: True)
    world, shape = World(0, 2, torch.device(device)), catalog.model("tiny-llama")
    config = small(platform="h200", world_size=2, pipeline_parallel_size=2, layer_spec="torch")
    on = resolve(config, shape, world)
    settings = megatron_config.transformer_config(config, shape, world, on)
    assert settings.batch_p2p_comm
    assert not settings.batch_p2p_sync
    reduced = megatron_config.ddp_config(config, world, on)
    assert reduced.average_in_collective == (device == "cuda")


@pytest.mark.parametrize("bias", [False, True])
def test_a_residual_is_added_by_a_compiled_kernel_only_with_a_bias(bias: bool):
    from training import small

    from scalebook.facts import catalog
    from scalebook.train.model import megatron_config
    from scalebook.train.model.switches import resolve
    from scalebook.train.world import World

    world = World(0, 1, torch.device("cuda"))
    shape = catalog.model("gpt3-1.3b" if bias else "tiny-llama")
    on = resolve(small(platform="h200", layer_spec="torch", cuda_graph="off"), shape, world)
    settings = megatron_config.transformer_config(small(platform="h200"), shape, world, on)
    assert on.fused_activation
    assert settings.bias_dropout_fusion is bias


@pytest.mark.parametrize("fp8", [None, "hybrid"])
def test_a_graph_casts_weights_to_fp8_in_the_first_micro_batch_alone(
    monkeypatch: pytest.MonkeyPatch, fp8: str | None
):
    from scalebook.train.model import graph
    from scalebook.train.samples import Batch

    ran: list[tuple[bool, bool]] = []  # for each micro batch: weights cast, gradients reduced
    made, waiting = 0, []  # batches, and how many of them had not been launched

    class Chunk:
        config = SimpleNamespace(fp8=fp8, no_sync_func=None)
        first = False

        def set_is_first_microbatch(self) -> None:
            self.first = fp8 is not None

    def captured(chunk: Chunk, *_: Any, finish: bool) -> Any:
        kind = chunk.first, finish
        chunk.first = False  # as a layer of Transformer Engine does after its first pass

        def run(_: Batch) -> None:
            ran.append(kind)
            waiting.append(made - len(ran))

        return SimpleNamespace(run=run)

    def batches() -> Any:
        nonlocal made
        for _ in range(4):
            made += 1
            yield Batch(*[torch.zeros(1)] * 3)

    monkeypatch.setattr(graph, "_captured", captured)
    nothing = lambda: None  # noqa: E731
    device = SimpleNamespace(
        synchronize=nothing, empty_cache=nothing, graph_pool_handle=lambda: None
    )
    monkeypatch.setattr(graph, "_cuda", device)
    schedule = graph.GraphedSchedule(lambda **_: [])
    for step in range(4):
        made = len(ran)
        schedule(model=[Chunk()], data_iterator=batches(), num_microbatches=4)
        cast = fp8 is not None
        expected = [(cast, False), (False, False), (False, False), (False, True)]
        assert ran == expected * max(0, step + 1 - graph.WARM_UP_STEPS)
    assert waiting == [0] * 8  # each batch was made once the one before had been launched


def angles_of(tokens: int, width: int) -> Tensor:
    """Return angles [tokens, 1, 1, width] as Megatron-Core makes them."""
    turns = torch.arange(tokens)[:, None] / 10 ** (torch.arange(width // 2) / width)
    return torch.cat((turns, turns), dim=-1)[:, None, None]


@pytest.mark.parametrize("each", [1, 3])  # queries of a group
def test_queries_and_keys_turned_while_they_are_split_are_megatrons(
    monkeypatch: pytest.MonkeyPatch, each: int
):
    rope: Any = import_module("megatron.core.models.common.embeddings.rope_utils")
    turn: Any = rope._apply_rotary_pos_emb_bshd
    turn = getattr(turn, "original", turn)
    uncompiled(monkeypatch)
    tokens, batch, groups, width = 5, 2, 3, 8
    generator = torch.Generator().manual_seed(13)
    mixed = torch.randn(tokens, batch, groups, (each + 2) * width, generator=generator)
    angles, widths = angles_of(tokens, width), [each * width, width, width]
    plain, ours = (mixed.clone().requires_grad_() for _ in range(2))
    queries, keys, values = torch.split(plain, widths, dim=3)
    queries = queries.reshape(tokens, batch, groups * each, width)
    expected = turn(queries, angles), turn(keys, angles), values
    found = fused.turned_parts(ours, angles, angles, widths)
    weights = [torch.randn(part.shape, generator=generator) for part in expected]
    for part, one in zip(found, expected, strict=True):
        assert part.is_contiguous()
        torch.testing.assert_close(part, one, rtol=0, atol=0)
    for leaf, parts in ((plain, expected), (ours, found)):
        torch.autograd.backward(list(parts), weights)
        assert leaf.grad is not None
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-6, atol=1e-6)


def test_heads_are_turned_as_megatron_does_whatever_the_style(monkeypatch: pytest.MonkeyPatch):
    rope: Any = import_module("megatron.core.models.common.embeddings.rope_utils")
    attention: Any = import_module("megatron.core.transformer.attention")
    for module, name in (
        (rope, "_apply_rotary_pos_emb_bshd"),
        (attention, "HAVE_FUSED_QKV_ROPE"),
        (attention, "apply_fused_qkv_rotary_pos_emb"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name, None), raising=False)
    uncompiled(monkeypatch)
    own: Any = rope._apply_rotary_pos_emb_bshd
    own = getattr(own, "original", own)
    for _ in range(2):  # a second model of a process
        fused.install_rotary_embedding()
    turn: Any = rope._apply_rotary_pos_emb_bshd
    assert turn.original is own
    heads, angles = torch.randn(5, 2, 3, 8), angles_of(5, 8)
    latent = {"multi_latent_attention": True}
    for options, width in (({}, 8), ({"mscale": 1.5}, 8), (latent, 8), ({}, 4)):
        plain, ours = (heads.clone().requires_grad_() for _ in range(2))
        for leaf, function in ((plain, own), (ours, turn)):
            (function(leaf, angles_of(5, width), **options) * angles).sum().backward()
        torch.testing.assert_close(ours.grad, plain.grad)
        torch.testing.assert_close(
            turn(ours, angles_of(5, width), **options), own(plain, angles_of(5, width), **options)
        )


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
