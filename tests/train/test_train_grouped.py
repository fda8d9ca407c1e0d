"""Pieces of experts and latent attention: grouped products, gradients added up over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from scalebook.train.experts import grouped, permutation
from scalebook.train.layers import fused, latent

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
    torch.testing.assert_close(grouped.weighted(doubled, weights, True), expected)
    plain = torch.nn.functional.gelu(doubled) * weights
    torch.testing.assert_close(grouped.weighted(doubled, weights, False), plain.bfloat16())


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


def test_pieces_of_rows_change_places_and_their_gradients_change_back() -> None:
    sizes, order = [3, 0, 4, 2], [2, 0, 3, 1]
    rows = torch.randn(9, 2, requires_grad=True)
    weights = torch.rand(9)
    found, own = permutation.sort_chunks(rows, torch.tensor(sizes), torch.tensor(order), weights)
    expected = torch.cat([rows.split(sizes)[piece] for piece in order])
    torch.testing.assert_close(found, expected)
    assert own is not None
    torch.testing.assert_close(own, torch.cat([weights.split(sizes)[piece] for piece in order]))
    grad = torch.randn(9, 2)
    torch.testing.assert_close(gradients(found, grad, rows), gradients(expected, grad, rows))
