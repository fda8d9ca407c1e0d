"""image.toml: which image a vendor's platforms run in, what it holds, and how it is started.

The files are those of containers/, which is also a folder of the package (a link).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from scalebook import __version__, project
from scalebook.errors import CatalogError, unknown
from scalebook.facts.catalog.rows import TomlRow, rows_of

VENDORS = ("nvidia", "amd", "cpu")
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
    megatron_core: str
    contents: Mapping[str, str]
    flags: Mapping[str, tuple[Flag, ...]]  # by engine

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

    def reference(self, engine: str, folder: Path) -> str:
        """Return what an engine calls our image: a local tag, or a file below ``folder``."""
        if engine in ("docker", "podman"):
            return f"localhost/{self.name}:{__version__}"
        suffix = "sif" if engine == "apptainer" else "sqsh"
        return f"{folder}/{self.name}-{__version__}.{suffix}"


def folder_of(root: Path) -> Path:
    """Return where a project keeps image files of apptainer and enroot."""
    return root / "containers" / "images"


def named_or_ours(named: str, vendor: str, engine: str) -> str:
    """Return the image that a user named, else what an engine calls our image of a vendor."""
    return named or image(vendor).reference(engine, folder_of(project.required_root()))


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
def document(vendor: str, name: str) -> Mapping[str, Any]:
    """Return a TOML file such as ``image.toml`` of a vendor (nvidia, amd or cpu).

    Raises:
        CatalogError: the file is missing or its TOML is broken.
    """
    if vendor not in VENDORS:
        raise CatalogError(unknown("vendor", vendor, VENDORS))
    path = files("scalebook.running.container") / "facts" / vendor / name
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CatalogError(f"containers/{vendor}/{name} cannot be read: {error}.") from error


@cache
def image(vendor: str) -> Image:
    """Return the image of a vendor.

    Raises:
        CatalogError: image.toml is malformed.
    """
    return parse(vendor, document(vendor, "image.toml"))


def parse(vendor: str, document: Mapping[str, Any]) -> Image:
    """Return what the text of an image.toml says.

    Raises:
        CatalogError: a key is missing, unknown or malformed.
    """
    file = f"containers/{vendor}/image.toml"
    row = TomlRow("image", document.get("image", {}), file, None)
    contents = TomlRow("contents", document.get("contents", {}), file, None)
    if not contents.values:
        raise contents.error("[contents] must hold versions.")
    row.text("retrieved")
    found = row.built(
        Image,
        vendor=vendor,
        contents={component: contents.text(component) for component in contents.values},
        flags=_flags(file, document.get("run", {})),
    )
    if found.digest is not None and not DIGEST.fullmatch(found.digest):
        raise row.error("digest must be sha256: and 64 hex digits.")
    return found


def _flags(file: str, run: Mapping[str, Any]) -> dict[str, tuple[Flag, ...]]:
    for engine in run:
        if engine not in ENGINES:
            raise CatalogError(f"{file}: {unknown('container engine', engine, ENGINES)}")
    return {
        engine: tuple(_flag(row) for row in rows_of(f"run.{engine}", tables, file))
        for engine, tables in run.items()
    }


def _flag(row: TomlRow) -> Flag:
    flag = row.built(Flag)
    if not flag.argument.startswith("--"):
        raise row.error(f"argument {flag.argument!r} must begin with '--'.")
    return flag
