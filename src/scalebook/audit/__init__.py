"""Audit claims: tables, typed-in rows or result rows against every identity that should hold.

``audit(load_claims(path))`` answers row by row whether a claim holds, is possible (it breaks no
limit), contradicts (with the right value and the arithmetic), is physically impossible, or cannot
be checked. Identities and limits
are data (identities.toml), and so is the vocabulary (fields.toml); nothing is special to a source.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from scalebook.audit.claim_files import load_claims, load_results, parse_claims, parse_results
from scalebook.audit.claimed_rows import (
    ORDER,
    Audit,
    Check,
    Claims,
    Row,
    Table,
    Verdict,
    count_claims,
    read_bounded,
)
from scalebook.audit.documents import LARGEST_FILE, SUFFIXES, load_document, read_document
from scalebook.audit.knowledge import accelerator_of, know, model_of, trained_weights
from scalebook.audit.table_checks import check_table
from scalebook.facts.flops import AgainstBest, against_best, model_tflops

__all__ = [
    "ORDER", "SUFFIXES", "Audit", "Check", "Claims", "Row", "Table", "Verdict", "against_published",
    "audit", "count_claims", "load", "load_claims", "load_document", "load_results", "parse_claims",
    "parse_results", "read_document", "sample_text", "samples",
]  # fmt: skip


def load(path: Path, *, follow: bool = False) -> Claims:
    """Return the claims of a file: a document with tables, result rows (.json), else TOML.

    ``follow`` accepts a link or a pipe: the user named the file, so it is not somebody else's.

    Raises:
        ClaimError: the file cannot be read as what its name says.
    """
    suffix = path.suffix.lower()
    text = suffix == ".txt"  # a document, unless it holds the tables of a claims file
    if text and b"[[claims]]" in read_bounded(path, LARGEST_FILE, follow=follow):
        return load_claims(path, follow=follow)
    if suffix in SUFFIXES:
        return load_document(path, follow=follow)
    read = load_results if suffix == ".json" else load_claims
    return read(path, follow=follow)


def audit(claims: Claims) -> Audit:
    """Return every check of the claims, in the order of their rows.

    Raises:
        CatalogError: a row names a model or an accelerator that the catalog lacks.
    """
    return Audit(claims, tuple(check for table in claims.tables for check in check_table(table)))


def against_published(claims: Claims) -> tuple[tuple[Row, AgainstBest], ...]:
    """Return each claimed rate of pretraining that has a published one of its kind next to it.

    TFLOP/s are counted from tokens by the default convention, else taken as the row states them.
    """
    found: list[tuple[Row, AgainstBest]] = []
    for row in claims.rows:
        shape, device, width = model_of(row), accelerator_of(row), row.words.get("precision")
        if not (shape and device and width) or trained_weights(row) != ("all",):
            continue
        rates = know(row).facts.get("tokens_per_second_per_gpu", ())
        length, stated = map(row.values.get, ("sequence_length", "model_tflops_per_second_per_gpu"))
        value = stated.value if stated else None
        if rates and length:
            value = model_tflops(rates[0].value, shape, length.value)
        one = None if value is None else against_best(value, shape.name, device.name, width)
        found += [(row, one)] if one else []
    return tuple(found)


def samples() -> tuple[str, ...]:
    """Return the names of the claims files that the package ships."""
    folder = files("scalebook.audit").joinpath("samples")
    names = (item.name for item in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def sample_text(name: str) -> str:
    """Return the text of a shipped claims file, one of ``samples()``."""
    path = files("scalebook.audit").joinpath("samples", f"{name}.toml")
    return path.read_text(encoding="utf-8")
