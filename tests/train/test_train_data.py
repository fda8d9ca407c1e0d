"""Samples do not depend on the layout, can be learnt, and real text keeps its fingerprint."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_worlds import SMALL

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.train.pack import END_OF_DOCUMENT, documents, main
from scalebook.train.samples import (
    INCREMENT,
    MULTIPLIER,
    RESTART_PROBABILITY,
    Share,
    SyntheticSamples,
    alphabet_size,
    files_of,
    fingerprint,
    micro_batches,
)

# The first sample of seed 1234, sequence length 7, vocabulary 1024.
GOLDEN = [769, 486, 802, 399, 433, 359, 977, 40]

CPU = torch.device("cpu")


def config(**changes: object) -> RunConfig:
    return RunConfig(**{**SMALL, "global_batch_size": 8, **changes})


def test_a_sample_depends_on_seed_and_number_alone():
    first = SyntheticSamples.create(1024, 64, seed=5)
    again = SyntheticSamples.create(1024, 64, seed=5)
    assert (first(17) == again(17)).all()
    assert (first(17) != first(18)).any()
    assert (first(17) != SyntheticSamples.create(1024, 64, seed=6)(17)).any()


def test_a_shorter_sequence_has_tokens_of_the_same_alphabet():
    short, long = (set(SyntheticSamples.create(1024, n, seed=5).alphabet) for n in (16, 64))
    assert short == long


def test_samples_are_the_same_on_every_platform():
    assert SyntheticSamples.create(1024, 7, seed=1234)(0).tolist() == GOLDEN


def test_most_tokens_follow_from_the_one_before():
    samples = SyntheticSamples.create(1024, 4096, seed=5)
    symbol = {token: place for place, token in enumerate(samples.alphabet.tolist())}
    row = [symbol[token] for token in samples(0).tolist()]
    size = len(symbol)
    follows = [b == (MULTIPLIER * a + INCREMENT) % size for a, b in pairwise(row)]
    expected = 1 - RESTART_PROBABILITY * (1 - 1 / size)
    assert np.mean(follows) == pytest.approx(expected, abs=0.02)


@given(st.integers(min_value=32, max_value=200_000))
def test_the_alphabet_is_a_power_of_two_of_at_most_a_sixteenth(vocabulary: int):
    size = alphabet_size(vocabulary)
    assert size & (size - 1) == 0
    assert vocabulary / 32 < size <= max(vocabulary / 16, 2)


@pytest.mark.parametrize("size", [2, 8, 64, 4096])
def test_the_rule_visits_the_whole_alphabet(size: int):
    seen, symbol = set(), 0
    for _ in range(size):
        seen.add(symbol)
        symbol = (MULTIPLIER * symbol + INCREMENT) % size
    assert len(seen) == size


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_out_the_global_batch(ranks: int):
    whole = config(micro_batch_size=2)
    shares = [list(Share(r, ranks, 0, 1).sample_indices(whole, step=3)) for r in range(ranks)]
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(24, 32))
    # The same samples meet in a micro batch, whatever the number of ranks.
    assert sorted(batch.start for share in shares for batch in share) == [24, 26, 28, 30]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_context_ranks_hold_mirrored_parts_of_the_sequence(ranks: int):
    parts = [Share(0, 1, rank, ranks).positions(16).tolist() for rank in range(ranks)]
    assert sorted(position for part in parts for position in part) == list(range(16))
    # Causal attention costs position + 1: equal sums are equal work.
    assert len({sum(part) for part in parts}) == 1


def test_labels_are_the_tokens_one_later_on_every_context_rank():
    run = config(sequence_length=16)
    samples = SyntheticSamples.create(1024, 16, seed=1)
    (batch, *_) = micro_batches(samples, run, Share(0, 1, 1, 2), 0, CPU)
    row, positions = samples(0), batch.position_ids[0].numpy()
    assert positions.tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert (batch.tokens[0].numpy() == row[positions]).all()
    assert (batch.labels[0].numpy() == row[positions + 1]).all()


def test_entropy_floor_is_far_below_a_guess():
    restart = RESTART_PROBABILITY
    floor = -restart * math.log(restart) - (1 - restart) * math.log(1 - restart)
    floor += restart * math.log(alphabet_size(1024))
    assert floor == pytest.approx(0.49, abs=0.01)
    assert floor < math.log(1024) / 10


def test_paragraphs_become_documents_with_an_end_mark():
    assert documents(b"ab\n\n\n\nc\r\n\r\n") == [
        [97, 98, END_OF_DOCUMENT],
        [99, END_OF_DOCUMENT],
    ]


def test_packing_writes_both_files_and_a_stable_fingerprint(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("Hello.\n\nWorld.")
    assert main([str(text), str(tmp_path / "a")]) == 0
    assert main([str(text), str(tmp_path / "b")]) == 0
    first, second = (fingerprint(str(tmp_path / name)) for name in ("a", "b"))
    assert first["data_bytes"] == 2 * (7 + 7)  # two bytes a token of a vocabulary of 257
    assert {**first, "prefix": ""} == {**second, "prefix": ""}
    text.write_text("Hello!\n\nWorld.")
    main([str(text), str(tmp_path / "b")])
    assert fingerprint(str(tmp_path / "b"))["data_head_sha256"] != first["data_head_sha256"]


def test_packing_a_missing_text_is_an_error_of_one_line(tmp_path: Path, capsys):
    assert main([str(tmp_path / "none"), str(tmp_path / "a")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_dataset_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.idx does not exist"):
        files_of(str(tmp_path / "none"))
