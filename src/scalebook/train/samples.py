"""Token batches: of a text in Megatron's indexed format, or synthetic ones that can be learned.

Sample ``step x global_batch_size + k`` is the same in every layout and on every platform.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts.catalog.types import ModelShape

Tokens = npt.NDArray[np.int64]
# A source of samples: from a number to ``sequence_length + 1`` tokens (inputs and, one later,
# their labels).
Samples = Callable[[int], Tokens]

RESTART_PROBABILITY = 1 / 16
HEAD_BYTES = 1 << 20  # of the .bin that the fingerprint covers; its size covers the rest
MULTIPLIER, INCREMENT = 5, 3  # full period for every power of two (Hull and Dobell, 1962)


@dataclass(frozen=True, slots=True)
class SyntheticSamples:
    """Sequences whose next token mostly follows from the last one.

    An alphabet of a power of two tokens, at most a sixteenth of the vocabulary, is chosen by the
    seed. Symbol ``a`` is followed by ``5 a + 3`` modulo the alphabet's size, except that with
    probability 1/16 a new start is drawn. So the loss can fall from ln(vocabulary) to about
    ``H(1/16) + ln(size) / 16`` (0.49 for 64 tokens), and a model that does not learn stays
    visibly above.
    """

    seed: int
    sequence_length: int
    alphabet: Tokens
    power: Tokens  # k steps from ``a`` lead to ``power[k] a + offset[k]``
    offset: Tokens

    @classmethod
    def create(cls, vocab_size: int, sequence_length: int, seed: int) -> SyntheticSamples:
        """Return the samples that a seed defines for a vocabulary."""
        size = alphabet_size(vocab_size)
        order = np.random.default_rng([seed]).permutation(vocab_size)
        power, offset = [1], [0]
        for _ in range(size - 1):
            power.append(power[-1] * MULTIPLIER % size)
            offset.append((offset[-1] * MULTIPLIER + INCREMENT) % size)
        return cls(
            seed,
            sequence_length,
            order[:size].astype(np.int64),
            np.array(power, np.int64),
            np.array(offset, np.int64),
        )

    def __call__(self, index: int) -> Tokens:
        """Return ``sequence_length + 1`` tokens of one sample."""
        size, length = len(self.alphabet), self.sequence_length + 1
        generator = np.random.default_rng([self.seed, index])
        starts = generator.random(length) < RESTART_PROBABILITY
        starts[0] = True
        fresh = generator.integers(0, size, length)
        positions = np.arange(length)
        last_start = np.maximum.accumulate(np.where(starts, positions, 0))
        # Every symbol returns after ``size`` steps, so a jump of any length is in the table.
        jump = (positions - last_start) % size
        return self.alphabet[(self.power[jump] * fresh[last_start] + self.offset[jump]) % size]


def alphabet_size(vocab_size: int) -> int:
    """Return how many distinct tokens the synthetic samples of a vocabulary have."""
    return 1 << (max(vocab_size // 16, 2).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro batch of this rank: [micro_batch_size, its part of the sequence]."""

    tokens: Tensor
    labels: Tensor
    position_ids: Tensor


@dataclass(frozen=True, slots=True)
class Share:
    """Which samples, and which part of each, a rank trains on."""

    data_rank: int
    data_size: int
    context_rank: int
    context_size: int

    def sample_indices(self, config: RunConfig, step: int) -> Iterator[range]:
        """Yield the sample numbers of each micro batch of a step (counted from 0).

        Micro batches go round the data-parallel ranks, so that the same samples meet in a
        micro batch whatever the number of ranks.
        """
        size = config.micro_batch_size
        begin = step * config.global_batch_size + self.data_rank * size
        end = (step + 1) * config.global_batch_size
        for first in range(begin, end, size * self.data_size):
            yield range(first, first + size)

    def positions(self, sequence_length: int) -> Tensor:
        """Return the positions of the sequence that this rank holds.

        As in Megatron-LM, the sequence is cut in 2 x size chunks and rank r holds chunks r and
        2 x size - 1 - r, which gives every rank the same amount of causal attention.
        """
        chunks = torch.arange(sequence_length).chunk(2 * self.context_size)
        mirror = 2 * self.context_size - 1 - self.context_rank
        return torch.cat([chunks[self.context_rank], chunks[mirror]])


def micro_batches(
    samples: Samples, config: RunConfig, share: Share, step: int, device: torch.device
) -> Iterator[Batch]:
    """Yield this rank's micro batches of a step (counted from 0)."""
    positions = share.positions(config.sequence_length)
    for indices in share.sample_indices(config, step):
        rows = torch.tensor(np.stack([samples(index) for index in indices]))
        if device.type == "cuda":
            rows = rows.pin_memory()
        on_device = rows.to(device, non_blocking=True)
        own = positions.to(device, non_blocking=True)
        yield Batch(
            tokens=on_device[:, own],
            labels=on_device[:, own + 1],
            position_ids=own.expand(len(indices), -1),
        )


def files_of(prefix: str) -> tuple[Path, Path]:
    """Return the index and the data file of a prefix.

    Raises:
        ConfigError: one of them does not exist.
    """
    paths = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in paths:
        if not path.is_file():
            raise ConfigError(
                f"data={prefix!r}: {path} does not exist. Give the common prefix of an .idx and a "
                ".bin file; python -m scalebook.train.pack TEXT PREFIX writes them."
            )
    return paths


def fingerprint(prefix: str) -> dict[str, Any]:
    """Return sizes in bytes and SHA-256 sums of the whole index and the data's first MiB."""
    index, data = files_of(prefix)
    with data.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    return {
        "prefix": prefix,
        "index_bytes": index.stat().st_size,
        "index_sha256": hashlib.sha256(index.read_bytes()).hexdigest(),
        "data_bytes": data.stat().st_size,
        "data_head_sha256": hashlib.sha256(head).hexdigest(),
    }


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What GPTDataset wants to know of a tokenizer; the tokens are there already."""

    vocab_size: int
    eod: int
    unique_identifiers: dict[str, str]


@dataclass(frozen=True, slots=True)
class IndexedSamples:
    """Shuffled samples of a GPTDataset."""

    dataset: Any
    vocab_size: int

    def __call__(self, index: int) -> Tokens:
        """Return ``sequence_length + 1`` tokens of one sample."""
        item = self.dataset[index]
        tokens: Tokens = np.append(item["tokens"].numpy(), item["labels"].numpy()[-1])
        if tokens.max() >= self.vocab_size:
            raise ConfigError(
                f"The data contains token {tokens.max()}, but the model's vocabulary has "
                f"{self.vocab_size}. Use data that was tokenized for this model."
            )
        return tokens


def _open(config: RunConfig, shape: ModelShape, cache: Path) -> IndexedSamples:
    files_of(config.data)
    dataset: Any = import_module("megatron.core.datasets.gpt_dataset")
    builder: Any = import_module("megatron.core.datasets.blended_megatron_dataset_builder")
    options = dataset.GPTDatasetConfig(
        random_seed=config.seed,
        sequence_length=config.sequence_length,
        blend=([config.data], None),
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=_Vocabulary(shape.vocab_size, 0, {"class": "none"}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [config.steps * config.global_batch_size, 0, 0]
    built = builder.BlendedMegatronDatasetBuilder(
        dataset.GPTDataset, sizes, lambda: True, options
    ).build()
    return IndexedSamples(built[0], shape.vocab_size)


def samples_of(config: RunConfig, shape: ModelShape, output: Path) -> Samples:
    """Return the samples to train on; indices of an indexed dataset are kept in ``output``."""
    if config.data:
        return _open(config, shape, output / "data-index")
    return SyntheticSamples.create(shape.vocab_size, config.sequence_length, config.seed)
