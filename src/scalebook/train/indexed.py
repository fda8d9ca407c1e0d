"""Samples of a real text in Megatron's indexed format, and what identifies that text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts.catalog.types import ModelShape
from scalebook.train.data import Samples, SyntheticSamples, Tokens

HEAD_BYTES = 1 << 20  # of the .bin that the fingerprint covers; its size covers the rest


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
                ".bin file; python -m scalebook.train.pack TEXT PREFIX makes them."
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
                f"The data holds token {tokens.max()}, but the model's vocabulary has "
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
