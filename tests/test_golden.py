"""The golden figures are those of the folder of facts, where a checkout has one next to it."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
# A golden file, its column, the tables of facts that it was taken from and their column.
TAKEN = [
    ("flops", "flops_per_token", ["flops_golden"], "flops_per_token"),
    ("parameters", "total", ["models"], "params_total"),
    ("parameters", "active", ["models"], "params_active"),
    ("parameters", "padded_total", ["models"], "params_total_padded128"),
    ("crosscheck", "tokens_per_second_per_gpu", ["flops_crosscheck"], "tokens_s_gpu"),
    ("crosscheck", "tflops", ["flops_crosscheck"], "tflops_gpu"),
    ("crosscheck", "difference_percent", ["flops_crosscheck"], "diff_pct"),
    ("memory", "value", ["memory_golden", "peers_golden"], "value"),
    ("communication", "value", ["comm_golden"], "value"),
    ("training_days", "days", ["peers_golden"], "value"),
    ("accelerators", "bf16", ["accelerators"], "bf16"),
    ("accelerators", "memory_gb", ["accelerators"], "memory_gb"),
    ("published", "tokens_per_second_per_gpu", ["published"], "tokens_s_gpu"),
    ("published", "tflops_per_second_per_gpu", ["published"], "tflops_gpu_claimed"),
    ("published", "mfu_percent", ["published"], "mfu_claimed_pct"),
]
SOURCED = sorted({row[0] for row in TAKEN} | {"claims", "frameworks", "llm_foundry", "recompute"})


def column(path: Path, name: str) -> Counter[str]:
    with path.open(encoding="utf-8", newline="") as stream:
        return Counter(row[name] for row in csv.DictReader(stream) if row[name])


@pytest.mark.parametrize(("golden", "name", "tables", "theirs"), TAKEN)
def test_a_golden_column_agrees_with_the_folder_of_facts(shared, golden, name, tables, theirs):
    known: Counter[str] = Counter()
    for table in tables:
        known += column(shared / "facts" / f"{table}.csv", theirs)
    if golden == "flops":
        known += column(shared / "facts" / "peers_golden.csv", "value")
        known = Counter(dict.fromkeys(known, 9))  # two columns may be the same number
    found = column(GOLDEN / f"{golden}.csv", name)
    assert found
    assert not found - known


@pytest.mark.parametrize("golden", SOURCED)
def test_every_golden_row_names_its_source(golden):
    with (GOLDEN / f"{golden}.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows
    assert all(row["source"] and None not in row.values() for row in rows)
