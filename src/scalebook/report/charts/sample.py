"""Which runs a chart shows where there are more than a reader can tell apart."""

from __future__ import annotations

import polars as pl

MOST_RUNS = 1_000  # of one chart: more marks hide one another, and a page must open
MOST_KINDS = 60  # combinations of names and sizes whose highest and lowest runs are kept
FEW = 12  # a column with more values than that names runs, not kinds of them


def sample(data: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of MOST_RUNS runs at most, all of them where there are no more.

    The runs with the highest and the lowest value of each quantity in each kind of runs are kept,
    and those of the rarer sources where they are few. A hash of the run's id picks the others, so
    that all charts of a page show the same ones.
    """
    if "run_id" not in data.columns or data["run_id"].n_unique() <= MOST_RUNS:
        return data
    kept = sorted({*_extremes(data), *_rare(data)})
    others = (
        data.select(pl.col("run_id").unique())
        .filter(~pl.col("run_id").is_in(kept))
        .sort(pl.col("run_id").hash(seed=0), "run_id")
        .head(max(MOST_RUNS - len(kept), 0))
    )
    return data.filter(pl.col("run_id").is_in([*kept, *others["run_id"]]))


def _rare(data: pl.DataFrame) -> list[str]:
    """Return the runs of all sources but the most frequent one; none where they are many."""
    if "source" not in data.columns:
        return []
    most = data["source"].mode().sort()[0]
    runs = data.filter(pl.col("source") != most)["run_id"].drop_nulls().unique().to_list()
    return runs if len(runs) <= MOST_RUNS // 2 else []


def _extremes(data: pl.DataFrame) -> set[str]:
    """Return the runs at either end of a quantity in one kind of runs."""
    quantities = [name for name, kind in data.schema.items() if kind.is_float()]
    kinds = [name for name, kind in data.schema.items() if _names_kinds(data, name, kind)]
    together = data.select(pl.struct(kinds).n_unique()).item() if kinds else 1
    groups = [kinds] if together <= MOST_KINDS else [[name] for name in kinds]
    found: set[str] = set()
    for group in groups:
        for name in quantities:
            known = data.filter(pl.col(name).is_not_null()).sort(name)
            parts = known.group_by(group, maintain_order=True) if group else known
            ends = (parts.head(1), parts.tail(1))
            found.update(run for end in ends for run in end["run_id"].drop_nulls())
    return found


def _names_kinds(data: pl.DataFrame, name: str, kind: pl.DataType) -> bool:
    return (kind == pl.String or kind.is_integer()) and 1 < data[name].n_unique() <= FEW
