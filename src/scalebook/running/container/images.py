"""image.toml: which image a vendor's platforms run in, what it holds, and how it is started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from scalebook import __version__
from scalebook.errors import CatalogError, unknown
from scalebook.running.container import files

ENGINES = ("docker", "podman", "apptainer", "enroot")
ASKABLE = ("auto", *ENGINES, "none")  # what --container takes
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DIGEST_LINE = re.compile(r"(?m)^(# *)?digest *=.*$")
_BASE_LINE = re.compile(r"(?m)^ARG BASE_IMAGE=.*$")


@dataclass(frozen=True, slots=True)
class Flag:
    """One argument that a container engine is started with, and why."""

    argument: str
    reason: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another base image that works, and what is different about it."""

    reference: str
    note: str
    source: str


@dataclass(frozen=True, slots=True)
class Image:
    """A vendor's image: ``base`` is what ours is built on, ``contents`` what is known of it.

    ``contents`` holds versions by component; a version is known up to where it ends ("2.16" is
    also 2.16.1). ``digest`` pins the base; None where the tag alone names it.
    """

    vendor: str
    name: str
    base: str
    tag: str
    digest: str | None
    source: str
    retrieved: str
    megatron_core: str
    contents: Mapping[str, str]
    flags: Mapping[str, tuple[Flag, ...]]
    alternatives: tuple[Alternative, ...]

    @property
    def tagged(self) -> str:
        """The base by its tag, which its owner can move."""
        return f"{self.base}:{self.tag}"

    @property
    def base_reference(self) -> str:
        """The base as an engine pulls it: by digest where one is given, else by tag.

        Not by both: Apptainer and skopeo refuse that.
        """
        return f"{self.base}@{self.digest}" if self.digest else self.tagged

    def is_another_base(self, base: str | None) -> bool:
        """Return whether an image on ``base`` is on another than the one that is pinned here."""
        return None not in (self.digest, base) and base != self.base_reference

    def reference(self, engine: str, folder: str) -> str:
        """Return what an engine calls our image: a local tag, or a file below ``folder``."""
        if engine in ("docker", "podman"):
            return f"localhost/{self.name}:{__version__}"
        suffix = "sif" if engine == "apptainer" else "sqsh"
        return f"{folder}/{self.name}-{__version__}.{suffix}"


def with_digest(text: str, digest: str, comment: str) -> str:
    """Return the text of an image.toml with the base's digest; the rest of it stays.

    Raises:
        CatalogError: it has no line for the digest, not even as a comment.
    """
    if not _DIGEST_LINE.search(text):
        raise CatalogError("image.toml has no line 'digest = \"...\"'. Add one below tag.")
    return _DIGEST_LINE.sub(f'digest = "{digest}"  # {comment}', text, count=1)


def with_base(text: str, reference: str) -> str:
    """Return the text of a Containerfile with another default base."""
    return _BASE_LINE.sub(f"ARG BASE_IMAGE={reference}", text, count=1)


@cache
def image(vendor: str) -> Image:
    """Return the image of a vendor (nvidia, amd or cpu).

    Raises:
        CatalogError: image.toml is malformed.
    """
    return parse(vendor, files.document(vendor, "image.toml"))


def parse(vendor: str, document: Mapping[str, Any]) -> Image:
    """Return what the text of an image.toml says.

    Raises:
        CatalogError: a key is missing, unknown or malformed.
    """
    where = f"containers/{vendor}/image.toml"
    row: Mapping[str, Any] = document.get("image", {})
    required = ("name", "base", "tag", "source", "retrieved", "megatron_core")
    files.check_keys(where, row, required, "digest")
    if "digest" in row and not DIGEST.fullmatch(row["digest"]):
        raise CatalogError(f"{where}: digest must be sha256: and 64 hex digits.")
    contents: Mapping[str, Any] = document.get("contents", {})
    if not contents or not all(isinstance(version, str) for version in contents.values()):
        raise CatalogError(f"{where}: [contents] must hold versions as texts.")
    return Image(
        vendor=vendor,
        digest=row.get("digest"),
        contents=dict(contents),
        flags=_flags(where, document.get("run", {})),
        alternatives=tuple(_alternatives(where, document)),
        **{key: str(row[key]) for key in required},
    )


def _flags(where: str, run: Mapping[str, Any]) -> dict[str, tuple[Flag, ...]]:
    for engine in run:
        if engine not in ENGINES:
            raise CatalogError(f"{where}: {unknown('container engine', engine, ENGINES)}")
    return {engine: tuple(_flag(where, row) for row in files.tables(run, engine)) for engine in run}


def _flag(where: str, row: Mapping[str, Any]) -> Flag:
    files.check_keys(f"{where}: run", row, ("argument", "reason"), "")
    if not row["argument"].startswith("--"):
        raise CatalogError(f"{where}: run argument {row['argument']!r} must begin with '--'.")
    return Flag(row["argument"], row["reason"])


def _alternatives(where: str, document: Mapping[str, Any]) -> list[Alternative]:
    rows = files.tables(document, "alternatives")
    for row in rows:
        files.check_keys(f"{where}: alternatives", row, ("reference", "note", "source"), "")
    return [Alternative(row["reference"], row["note"], row["source"]) for row in rows]
