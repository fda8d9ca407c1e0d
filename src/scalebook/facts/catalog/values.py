"""The catalog's values, built once for each state of the user's files."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from scalebook.errors import unknown
from scalebook.facts.catalog import build, load, results
from scalebook.facts.catalog.results import PublishedResult
from scalebook.facts.catalog.types import Accelerator, ModelShape, Platform, Strategy

Signature = tuple[tuple[str, int], ...]


@lru_cache(maxsize=8)
def accelerators(user: Signature) -> dict[str, Accelerator]:
    """Return every accelerator by name."""
    found = [build.accelerator(row) for row in load.rows("accelerators", user)]
    return {value.name: value for value in found}


@lru_cache(maxsize=8)
def devices(user: Signature) -> dict[str, Accelerator]:
    """Return the accelerator of every driver string."""
    found = accelerators(user).values()
    return {device: value for value in found for device in value.device_names}


@lru_cache(maxsize=8)
def models(user: Signature) -> dict[str, ModelShape]:
    """Return every model shape by name."""
    found = [build.model(row) for row in load.rows("models", user)]
    return {value.name: value for value in found}


@lru_cache(maxsize=8)
def model_aliases(user: Signature) -> dict[str, str]:
    """Return the name that each alias of a model stands for."""
    rows = load.rows("models", user)
    return {alias: row.text("name") for row in rows for alias in row.texts("aliases")}


@lru_cache(maxsize=8)
def platforms(user: Signature) -> dict[str, Platform]:
    """Return every platform by name."""
    found: dict[str, Platform] = {}
    known = accelerators(user)
    for row in load.rows("platforms", user):
        value = found[row.text("name")] = build.platform(row)
        if value.accelerator is not None and value.accelerator not in known:
            message = unknown("accelerator", value.accelerator, known)
            raise row.error(message, "accelerator")
    return found


@lru_cache(maxsize=8)
def strategies(user: Signature) -> tuple[Strategy, ...]:
    """Return every row of strategies, its model under the catalog's name."""
    places = ("*", "cpu", *build.VENDORS, *platforms(user))
    aliases, known = model_aliases(user), models(user)
    found: list[Strategy] = []
    for row in load.rows("strategies", user):
        value = build.strategy(row)
        value = replace(value, model=aliases.get(value.model, value.model))
        if value.platform not in places:
            raise row.error(unknown("platform", value.platform, places), "platform")
        if value.model != "*" and value.model not in known:
            raise row.error(unknown("model", value.model, known), "model")
        found.append(value)
    return tuple(found)


@lru_cache(maxsize=8)
def published(user: Signature) -> tuple[PublishedResult, ...]:
    """Return every published result."""
    return tuple(results.published(row) for row in load.rows("published", user))
