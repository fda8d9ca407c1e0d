"""Audit claims: typed-in rows or result rows against every identity that should hold.

``audit(load_claims(path))`` answers row by row whether a claim holds, contradicts (with the right
value and the arithmetic), is physically impossible, or cannot be checked. Identities and limits
are data (identities.toml), and so is the vocabulary (fields.toml); nothing is special to a source.
"""

from __future__ import annotations

from importlib.resources import files

from scalebook.audit.claims import load_claims, parse_claims
from scalebook.audit.results import load_results, parse_results
from scalebook.audit.rows import Claims, Row, Table
from scalebook.audit.tables import check_table
from scalebook.audit.verdicts import ORDER, Audit, Check, Verdict, count_claims

__all__ = [
    "ORDER",
    "Audit",
    "Check",
    "Claims",
    "Row",
    "Table",
    "Verdict",
    "audit",
    "count_claims",
    "load_claims",
    "load_results",
    "parse_claims",
    "parse_results",
    "sample_text",
    "samples",
]


def audit(claims: Claims) -> Audit:
    """Return every check of the claims, in the order of their rows.

    Raises:
        CatalogError: a row names a model or an accelerator that the catalog lacks.
    """
    return Audit(claims, tuple(check for table in claims.tables for check in check_table(table)))


def samples() -> tuple[str, ...]:
    """Return the names of the claims files that the package ships."""
    folder = files("scalebook.audit").joinpath("samples")
    names = (item.name for item in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def sample_text(name: str) -> str:
    """Return the text of a shipped claims file, one of ``samples()``."""
    path = files("scalebook.audit").joinpath("samples", f"{name}.toml")
    return path.read_text(encoding="utf-8")
