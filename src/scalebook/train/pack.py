"""Turn a text into Megatron's indexed format with one token a byte: no tokenizer is needed.

    python -m scalebook.train.pack TEXT PREFIX

writes PREFIX.bin and PREFIX.idx. Paragraphs (separated by an empty line) become documents, and
each ends with token 256.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

END_OF_DOCUMENT = 256
VOCABULARY = 257


def documents(text: bytes) -> list[list[int]]:
    """Return the tokens of each paragraph of a text, each with its end mark."""
    return [
        [*paragraph.strip(), END_OF_DOCUMENT]
        for paragraph in text.replace(b"\r\n", b"\n").split(b"\n\n")
        if paragraph.strip()
    ]


def pack(text: Path, prefix: Path) -> int:
    """Write PREFIX.bin and PREFIX.idx; return the number of tokens in them."""
    from scalebook.train import cpu

    with cpu.lean_import():
        indexed: Any = import_module("megatron.core.datasets.indexed_dataset")
    smallest = indexed.DType.optimal_dtype(VOCABULARY)
    builder = indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=smallest)
    total = 0
    for tokens in documents(text.read_bytes()):
        builder.add_document(np.array(tokens), [len(tokens)])
        total += len(tokens)
    builder.finalize(f"{prefix}.idx")
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.train.pack")
    parser.add_argument("text", type=Path, help="a text file, read as bytes")
    parser.add_argument("prefix", type=Path, help="where to write: PREFIX.bin and PREFIX.idx")
    options = parser.parse_args(arguments)
    if not options.text.is_file():
        print(f"{options.text} is not a file. Give a text file to pack.", file=sys.stderr)
        return 2
    total = pack(options.text, options.prefix)
    print(f"{options.prefix}.bin and .idx: {total} tokens, vocabulary {VOCABULARY}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
