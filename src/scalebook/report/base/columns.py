"""What each column of the data files is: type, unit, meaning, and when it is null."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

import polars as pl

from scalebook.measure import registered
from scalebook.report.base.frames import (
    MOMENT,
    MOST_READINGS,
    SCHEMA,
    STEP_SCHEMA,
    TELEMETRY_SCHEMA,
    Type,
    run_schema,
)
from scalebook.settings import SETTINGS, Setting

DataFile = Literal["runs", "steps", "telemetry"]
DATA_FILES: tuple[DataFile, ...] = get_args(DataFile)


@dataclass(frozen=True, slots=True)
class DataColumn:
    """One column of a data file, in words."""

    file: DataFile
    name: str
    dtype: str  # of polars
    unit: str  # empty: it has none
    meaning: str
    null: str  # when it is null; empty: never


def columns(file: DataFile, *, own: bool = True) -> tuple[DataColumn, ...]:
    """Return the columns of a data file in their order, with a user's ``own`` metrics.

    Raises:
        ConfigError: a metric of the user's is malformed.
        KeyError: a column has no words; a test finds it first.
    """
    schemas: Mapping[DataFile, Mapping[str, Type]] = {
        "runs": run_schema() if own else SCHEMA,
        "steps": STEP_SCHEMA,
        "telemetry": TELEMETRY_SCHEMA,
    }
    return tuple(
        DataColumn(file, name, dtype, *_words(file, name))
        for name, kind in schemas[file].items()
        for dtype in ["Datetime(us, UTC)" if kind == MOMENT else str(pl.Series(dtype=kind).dtype)]
    )


def page() -> str:
    """Return the page of documentation as Markdown, without a user's own metrics."""
    introduction = words_of("files")["introduction"]
    return "\n".join([introduction, *(line for file in DATA_FILES for line in _section(file))])


def _section(file: DataFile) -> Iterator[str]:
    yield from (f"## {file}", "", words_of("files")[file].format(MOST_READINGS), "")
    yield from ("| column | type | unit | meaning | null when |", "|---|---|---|---|---|")
    for one in columns(file, own=False):
        cells = (f"`{one.name}`", one.dtype, one.unit, one.meaning, one.null or "never")
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


@cache
def words_of(table: str) -> Mapping[str, Any]:
    """Return a table of columns.toml, such as ``runs``, ``reasons`` or ``studies``."""
    text = files("scalebook.report.base").joinpath("columns.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)[table]


def _words(file: DataFile, name: str) -> tuple[str, str, str]:
    """Return unit, meaning and when it is null."""
    if (row := words_of(file).get(name)) is not None:
        return row.get("unit", ""), row["meaning"], row.get("null", "")
    for one in registered.every():
        if one.name == name:
            null = one.null.removesuffix(".")
            return one.unit, one.meaning, f"{null[0].lower()}{null[1:]}; see {one.reason_name}"
        if one.reason_name == name:
            return _reason(one.name)
    if name in SETTINGS:
        return _of_setting(SETTINGS[name])
    if name in words_of("reasons"):
        return _reason(words_of("reasons")[name])
    explained = name.removesuffix("_reason")
    if explained == name or explained not in SCHEMA:
        raise KeyError(f"Column {name!r} of {file} has no words. Add it to columns.toml.")
    return _reason(explained)


def _reason(explained: str) -> tuple[str, str, str]:
    return "", f"why {explained} is null", f"{explained} has a value"


def _of_setting(row: Setting) -> tuple[str, str, str]:
    """Return the words of a setting as it ran."""
    number = row.minimum is not None and row.metavar is not None
    unit = (row.metavar or "").lower().replace("gpus", "GPUs") if number else ""
    values = f"; one of {', '.join(row.choices)}" if row.choices else ""
    unit = "s" if row.name.endswith("_seconds") else unit
    return unit, f"{row.help or row.words}{values}".replace("%%", "%"), "not in the record"
