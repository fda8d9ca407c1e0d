"""The whole data of a report as files beside it: CSV for people, Parquet for programs."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from scalebook.report.base.frames import ReportData

DATA_FILES = ("runs.csv", "runs.parquet", "steps.parquet")


def write_data(data: ReportData, folder: Path) -> None:
    """Write runs.csv, runs.parquet and steps.parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    tame_formulas(data.runs).write_csv(folder / "runs.csv")
    data.runs.write_parquet(folder / "runs.parquet")
    data.steps.write_parquet(folder / "steps.parquet")


def write_tables(data: ReportData, folder: Path, kind: str) -> tuple[str, ...]:
    """Write the tables of runs and steps as ``csv`` or ``parquet``; return the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = (f"runs.{kind}", f"steps.{kind}")
    for name, frame in zip(names, (data.runs, data.steps), strict=True):
        if kind == "csv":
            tame_formulas(frame).write_csv(folder / name)
        else:
            frame.write_parquet(folder / name)
    return names


def tame_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with a quote before each text that a spreadsheet would run as a formula."""
    text = pl.col(pl.String)
    return frame.with_columns(
        pl.when(text.str.contains(r"^[=+\-@\t\r]")).then("'" + text).otherwise(text).name.keep()
    )
