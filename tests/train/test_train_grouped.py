"""Pieces of experts and latent attention: grouped products, gradients added up over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from scalebook.train import cpu

cpu.install()

from scalebook.train.experts import grouped, permutation  # noqa: E402
from scalebook.train.layers import blocks, fused, latent  # noqa: E402

COUNTS = [5, 0, 1, 14]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what was found out about this device before and after."""
    for function in (grouped.can_group, grouped.can_group_gradient):
        function.cache_clear()
    yield
    for function in (grouped.can_group, grouped.can_group_gradient):
        function.cache_clear()


def tensors(counts: list[int] = COUNTS, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    torch.manual_seed(3)
    rows = torch.randn(sum(counts), 24, dtype=dtype, requires_grad=True)
    weight = torch.randn(len(counts), 40, 24, dtype=dtype, requires_grad=True)
    return rows, weight, torch.randn(sum(counts), 40, dtype=dtype)


def loop(rows: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
    parts = zip(rows.split(counts), weight, strict=True)
    return torch.cat([part @ matrix.t() for part, matrix in parts])


def gradients(output: Tensor, grad: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output, inputs, grad))


def accumulate(rows: Tensor, grads: Tensor, total: Tensor) -> None:
    """The reference of the GEMM that adds to an fp32 sum, which a CPU does not have."""
    total += grads.float().t() @ rows.float()


def groups_of(counts: list[int], known: bool = True) -> grouped.Groups:
    """The groups of these sizes, which the host knows or the device alone."""
    groups = grouped.Groups.of(counts, torch.device("cpu"))
    return groups if known else grouped.Groups(groups.ends)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("counts", [COUNTS, [0, 0, 0, 7], [3, 3, 3, 3]])
def test_product_and_gradients_are_those_of_a_loop(counts: list[int], known: bool) -> None:
    rows, weight, grad = tensors(counts)
    found = grouped.product(rows, weight, groups_of(counts, known), add=False)
    expected = loop(rows, weight, counts)
    torch.testing.assert_close(found, expected)
    for own, reference in zip(
        gradients(found, grad, rows, weight), gradients(expected, grad, rows, weight), strict=True
    ):
        torch.testing.assert_close(own, reference)


def test_a_device_without_the_grouped_gradient_makes_it_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, weight, grad = tensors()
    expected = gradients(loop(rows, weight, COUNTS), grad, weight)
    monkeypatch.setattr(grouped, "can_group_gradient", lambda *_: False)
    found = grouped.product(rows, weight, groups_of(COUNTS), add=False)
    torch.testing.assert_close(gradients(found, grad, weight), expected)


@pytest.mark.parametrize("known", [True, False])
def test_each_row_chooses_the_group_it_lies_in(known: bool) -> None:
    rows = torch.zeros(4, 2, dtype=torch.bfloat16)
    found = groups_of([1, 0, 3], known).choice(rows)
    expected = [[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("most", "known", "compiled"),
    [(0, True, False), (0, False, True), (16, True, False), (16, False, False)],
)
def test_gradients_of_micro_batches_add_up_in_the_main_gradient(
    most: int, known: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped, "MOST_SINGLE_GRADIENTS", most)
    monkeypatch.setattr(fused, "accumulate_weight_gradient", accumulate)
    rows, weight, grad = tensors(dtype=torch.bfloat16)
    weight.main_grad = torch.zeros(weight.shape, dtype=torch.float32)
    groups = groups_of(COUNTS, known)
    for _ in range(2):
        placeholder = gradients(
            grouped.product(rows, weight, groups, add=True, compiled=compiled), grad, weight
        )[0]
        assert placeholder.shape == weight.shape  # the hook that counts gradients needs one
    assert weight.grad_added_to_main_grad
    expected = gradients(loop(rows, weight, COUNTS), grad, weight)[0].float()
    torch.testing.assert_close(weight.main_grad, 2 * expected, rtol=2e-2, atol=2e-1)
    assert not weight.main_grad[1].any()  # no token came to this expert


def test_a_rank_without_tokens_still_has_gradients() -> None:
    counts = [0, 0]
    rows = torch.empty(0, 24, requires_grad=True)
    weight = torch.randn(2, 40, 24, requires_grad=True)
    output = grouped.product(rows, weight, groups_of(counts), add=False)
    assert output.shape == (0, 40)
    own, other = gradients(output, torch.empty(0, 40), rows, weight)
    assert own.shape == rows.shape
    assert not other.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_this_device_is_found_to_have_a_right_grouped_product(dtype: torch.dtype) -> None:
    assert grouped.can_group(torch.device("cpu"), dtype)
    assert grouped.can_group_gradient(torch.device("cpu"), dtype)


@pytest.mark.parametrize("kind", ["wrong", "missing", "refused"])
def test_a_product_that_is_wrong_missing_or_refused_is_not_used(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = grouped.grouped_mm

    def broken(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        if kind == "missing":
            raise AttributeError("_grouped_mm")
        if kind == "refused":
            raise RuntimeError("offsets must be multiples of 16")
        product = right(rows, matrices, ends).clone()
        product[..., 3:4, :] = 0
        return product

    monkeypatch.setattr(grouped, "grouped_mm", broken)
    assert not grouped.can_group(torch.device("cpu"), torch.float32)
    assert not grouped.can_group_gradient(torch.device("cpu"), torch.float32)


def test_the_activation_is_weighted_and_keeps_its_type() -> None:
    doubled = torch.randn(6, 8, dtype=torch.bfloat16)
    weights = torch.rand(6, 1)
    gate, up = doubled.chunk(2, dim=-1)
    expected = (torch.nn.functional.silu(gate) * up * weights).bfloat16()
    torch.testing.assert_close(fused.weighted(doubled, weights, True), expected)
    plain = torch.nn.functional.gelu(doubled) * weights
    torch.testing.assert_close(fused.weighted(doubled, weights, False), plain.bfloat16())


def test_a_gradient_of_some_columns_is_added_up_over_the_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ranks:
        """A group of three whose ranks all have the same gradient; it wants contiguous ones."""

        @staticmethod
        def all_reduce(tensor: Tensor, group: Any) -> None:
            assert group == "group"
            assert tensor.is_contiguous()
            tensor *= 3

    monkeypatch.setattr(latent, "distributed", Ranks)
    output = torch.randn(4, 5, requires_grad=True)
    own, shared = torch.split(output, [3, 2], dim=-1)
    whole = torch.cat([own, latent.added_up(shared, "group")], dim=-1)
    (found,) = torch.autograd.grad(whole, output, torch.ones(4, 5))
    assert found.tolist() == [[1.0, 1.0, 1.0, 3.0, 3.0]] * 4


def routed(tokens: int = 13, experts: int = 6, each: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, the experts that they visit, and the experts' weights."""
    torch.manual_seed(4)
    chosen = torch.rand(tokens, experts).topk(each).indices
    visits = torch.zeros(tokens, experts, dtype=torch.bool).scatter_(1, chosen, value=True)
    hidden = torch.randn(tokens, 5, requires_grad=True)
    return hidden, visits, torch.rand(tokens, experts, requires_grad=True)


def test_tokens_lie_expert_by_expert_and_come_back_as_the_sum_of_their_rows() -> None:
    hidden, visits, weights = routed()
    rows, own, order = permutation.permute(hidden, visits, weights, int(visits.sum()))
    pairs = [(t, e) for e in range(visits.shape[1]) for t in range(len(hidden)) if visits[t, e]]
    assert order.tolist() == [token for token, _ in pairs]
    torch.testing.assert_close(rows, torch.stack([hidden[token] for token, _ in pairs]))
    torch.testing.assert_close(own, torch.stack([weights[pair] for pair in pairs]))
    back = permutation.unpermute(rows * own.unsqueeze(1), order)
    # Each token comes back times the sum of its experts' weights.
    expected = hidden * (weights * visits).sum(1, keepdim=True)
    torch.testing.assert_close(back, expected)
    grad = torch.randn_like(back)
    for found, reference in zip(
        gradients(back, grad, hidden, weights),
        gradients(expected, grad, hidden, weights),
        strict=True,
    ):
        torch.testing.assert_close(found, reference)


def test_rows_are_added_up_one_after_another_as_in_a_sum() -> None:
    rows, places = torch.randn(24, 4).bfloat16(), torch.randperm(24).view(3, 8)
    found = permutation._combine_each(rows, places)
    assert found.dtype == torch.bfloat16
    exact = torch.stack([rows[place].double().sum(0) for place in places])
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-6)


def test_pieces_of_rows_change_places_and_their_gradients_change_back() -> None:
    sizes, order = [3, 0, 4, 2], [2, 0, 3, 1]
    rows = torch.randn(9, 2, requires_grad=True)
    weights = torch.rand(9)
    found, own = permutation.sort_chunks(
        rows, torch.tensor(sizes), torch.tensor(order), weights, {}
    )
    expected = torch.cat([rows.split(sizes)[piece] for piece in order])
    torch.testing.assert_close(found, expected)
    assert own is not None
    torch.testing.assert_close(own, torch.cat([weights.split(sizes)[piece] for piece in order]))
    grad = torch.randn(9, 2)
    torch.testing.assert_close(gradients(found, grad, rows), gradients(expected, grad, rows))


def test_places_are_computed_once_for_a_change_and_what_undoes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[list[int]] = []
    places = permutation._places

    def counted(sizes: torch.Tensor, *rest: Any) -> Any:
        computed.append(sizes.tolist())
        return places(sizes, *rest)

    monkeypatch.setattr(permutation, "_places", counted)
    rows, order = torch.randn(9, 2), torch.tensor([2, 0, 3, 1])
    undoing: permutation.Undoing = {}
    for sizes in ([3, 0, 4, 2], [1, 5, 0, 3]):  # of two layers
        there, _ = permutation.sort_chunks(rows, torch.tensor(sizes), order, None, undoing)
        assert not torch.equal(there, rows)
        moved = torch.tensor(sizes)[order]
        back, _ = permutation.sort_chunks(there, moved, order.argsort(), None, undoing)
        torch.testing.assert_close(back, rows)
    assert computed == [[3, 0, 4, 2], [1, 5, 0, 3]]


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_that_share_a_sequence_attend_as_one_under_a_mask(groups: int, ranks: int) -> None:
    length = 6 * ranks  # chunks of 3 tokens
    tensors = [
        torch.randn(2, heads, length, 8, dtype=torch.float64).requires_grad_()
        for heads in (2 * groups, 2, 2)
    ]
    query, key, value = (
        tensor.repeat_interleave(groups * 2 // tensor.shape[1], 1) for tensor in tensors
    )
    scores = query @ key.transpose(2, 3) * 0.3
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value
    found = blocks.rehearse(ranks, 0.3, *tensors)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    torch.autograd.grad(found, tensors, grad, retain_graph=True)  # tells what ranks send
    for ours, plain in zip(
        torch.autograd.grad(found, tensors, grad),
        torch.autograd.grad(expected, tensors, grad),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("window", [0, 3, 20])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize("queries", [13, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_windows_and_sinks_are_as_a_softmax_of_all_scores(
    groups: int, window: int, sunk: bool, queries: int, masked: bool
) -> None:
    """A sink is one more score in the denominator, whose value is zero (gpt-oss)."""
    sizes = ((2 * groups, queries), (2, 13), (2, 13))
    tensors = [
        torch.randn(2, heads, length, 8, dtype=torch.float64).requires_grad_()
        for heads, length in sizes
    ]
    sinks = torch.randn(2 * groups, dtype=torch.float64).requires_grad_() if sunk else None
    query, key, value = (
        tensor.repeat_interleave(groups * 2 // tensor.shape[1], 1) for tensor in tensors
    )
    behind = torch.arange(13 - queries, 13).unsqueeze(1) - torch.arange(13)
    seen = (behind >= 0) & (behind < (window or 13))
    scores = (query @ key.transpose(2, 3) * 0.3).masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(2, -1, queries, 1)], dim=-1)
    expected = scores.softmax(-1)[..., :13] @ value
    assert blocks.fits(window, sunk, *tensors) is (queries == 13 and not window)
    if masked:
        found = blocks._under_mask(blocks._How(window, 0.3, False), sinks, *tensors)
    else:
        found = blocks.attend_seen(window, 0.3, sinks, *tensors)
    torch.testing.assert_close(found, expected)
    grad, leaves = torch.randn_like(found), tensors if sinks is None else [*tensors, sinks]
    for ours, plain in zip(
        torch.autograd.grad(found, leaves, grad),
        torch.autograd.grad(expected, leaves, grad),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain)


def test_a_mask_does_where_the_kernel_for_windows_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.randn(1, 2, 12, 16) for _ in range(3)]
    expected = blocks._under_mask(blocks._How(4, 0.25, False), None, *tensors)
    right = blocks._flash
    monkeypatch.setattr(blocks, "_flash", lambda *given: right(*given[:3], 0, given[4]))
    blocks._right.cache_clear()
    assert blocks.fits(4, False, *tensors) is None
    torch.testing.assert_close(blocks.attend_seen(4, 0.25, None, *tensors), expected)
    blocks._right.cache_clear()
    assert blocks.fits(4, False, *tensors[:2], tensors[2][..., :8]) is None  # narrower values


def test_a_device_is_asked_whether_it_attends_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = torch.device("cpu"), torch.float32, 64, 4
    blocks.can_share.cache_clear()
    with torch.no_grad():  # as in the forward pass of what is recomputed
        assert blocks.can_share(*asked)
    blocks.can_share.cache_clear()
    right = blocks._forward
    monkeypatch.setattr(blocks, "_forward", lambda *given: right(*given[:3], False, given[4]))
    assert not blocks.can_share(*asked)
    blocks.can_share.cache_clear()


@pytest.mark.parametrize(
    ("cuda", "capability", "cudnn", "tokens", "first"),
    [
        ("13.0", (9, 0), (9, 14, 0), 2048, 3),  # what Transformer Engine may load
        ("13.0", (9, 0), (9, 14, 0), 1500, 1),
        ("13.0", (9, 0), (9, 10, 2), 2048, 1),
        ("13.0", (8, 0), (9, 14, 0), 2048, 1),
        (None, (9, 4), (9, 14, 0), 2048, 1),  # an MI300X calls itself 9.4
    ],
)
def test_cudnn_comes_first_on_hopper_only_and_where_it_is_right(
    cuda, capability, cudnn, tokens, first, monkeypatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    runtime = SimpleNamespace(getRuntimeVersion=lambda: cudnn)
    monkeypatch.setattr(torch._C, "_cudnn", runtime, raising=False)
    before = torch._C._get_sdp_priority_order()
    assert before[0] == 1  # FlashAttention
    with blocks._order:
        blocks.prefer_cudnn(torch.device("cpu"), 2048)
        assert torch._C._get_sdp_priority_order() == before
        blocks.prefer_cudnn(torch.device("cuda"), tokens)
        assert torch._C._get_sdp_priority_order()[0] == first
    assert torch._C._get_sdp_priority_order() == before
