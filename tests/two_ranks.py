"""Pieces split over two ranks against the same on one.

Run as a script with a port. It forks the other rank, so that imports are paid once.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from scalebook.train import cpu

cpu.install()

from scalebook.train.layers import async_tensor_parallel, blocks  # noqa: E402
from scalebook.train.layers.vocabulary import cross_entropy  # noqa: E402

torch.set_num_threads(1)
child = os.fork()
os.environ |= {"RANK": "0" if child else "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
os.environ["MASTER_PORT"] = sys.argv[1]
torch.distributed.init_process_group("gloo")
group: Any = torch.distributed.group.WORLD
rank, size = group.rank(), group.size()
generator = torch.Generator().manual_seed(11)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


def same(ours: Any, expected: Any) -> None:
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def part(tensor: torch.Tensor, dimension: int) -> torch.Tensor:
    return tensor.chunk(size, dimension)[rank].contiguous()


def check_cross_entropy() -> None:
    logits, labels = random(4, 2, 24), torch.randint(0, 24, (4, 2), generator=generator)
    whole = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        whole.flatten(0, 1), labels.flatten(), reduction="none"
    )
    expected.sum().backward()
    own = part(logits, 2).requires_grad_()
    loss = cross_entropy(own * 1.0, labels, group, compiled=False)
    loss.sum().backward()
    same(loss.flatten(), expected)
    same(own.grad, part(whole.grad, 2))


def check_linear_pair() -> None:
    """A column-parallel layer and a row-parallel one, each mixed with its collective."""
    inputs, first, second = random(6, 2, 8), random(10, 8), random(8, 10)
    leaves = [leaf.clone().requires_grad_() for leaf in (inputs, first, second)]
    expected = leaves[0] @ leaves[1].t() @ leaves[2].t()
    expected.square().sum().backward()
    own = [part(inputs, 0), part(first, 0), part(second, 1)]
    x, a, b = (leaf.requires_grad_() for leaf in own)
    hidden = async_tensor_parallel._GatherMatmul.apply(x, a, group, False)
    output = async_tensor_parallel._MatmulScatter.apply(hidden, b, group, False)
    output.square().sum().backward()
    same(output, part(expected, 0))
    for leaf, whole, dimension in zip((x, a, b), leaves, (0, 0, 1), strict=True):
        same(leaf.grad, part(whole.grad, dimension))


def check_shared_attention() -> None:
    """Rank r holds chunks r and 2 x size - 1 - r of a sequence."""
    query, key, value = random(16, 1, 4, 8), random(16, 1, 2, 8), random(16, 1, 2, 8)
    leaves = [leaf.clone().requires_grad_() for leaf in (query, key, value)]
    turned = (leaf.permute(1, 2, 0, 3) for leaf in leaves)
    attention: Any = torch.nn.functional.scaled_dot_product_attention
    expected = attention(*turned, is_causal=True, enable_gqa=True).permute(2, 0, 1, 3)
    expected.square().sum().backward()

    def own(tensor: torch.Tensor) -> torch.Tensor:
        chunks = tensor.chunk(2 * size)
        return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])

    mine, pair = own(query).requires_grad_(), torch.stack([own(key), own(value)]).requires_grad_()
    shares = blocks.Shares(rank, size, group)
    found = blocks.attend_shared(mine, pair, 8**-0.5, shares)
    found.square().sum().backward()
    same(found, own(expected))
    gradients: list[Any] = [mine.grad, *pair.grad]  # pyright: ignore
    for ours, leaf in zip(gradients, leaves, strict=True):
        same(ours, own(leaf.grad))  # pyright: ignore


check_cross_entropy()
check_linear_pair()
check_shared_attention()
print("agrees", flush=True)
torch.distributed.destroy_process_group()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
