"""Facts with their sources: accelerators, model shapes, platforms, strategies, published results.

Every function answers from the package's files and the user's own (see ``catalog.load``).
"""

from __future__ import annotations

import re
from dataclasses import replace

from scalebook.errors import CatalogError, unknown
from scalebook.facts.catalog import build, load, results
from scalebook.facts.catalog.results import PublishedResult
from scalebook.facts.catalog.types import (
    Accelerator,
    HybridShape,
    MLAShape,
    ModelShape,
    MoEShape,
    Platform,
    Strategy,
)

__all__ = [
    "MIG_SLICE", "Accelerator", "HybridShape", "MLAShape", "MoEShape", "ModelShape", "Platform",
    "PublishedResult", "Strategy", "accelerator", "accelerator_for_device", "accelerators", "model",
    "models", "peak_tflops", "platform", "platforms", "published", "strategy", "strategy_rows",
    "unknown_device",
]  # fmt: skip


@load.kept
def _accelerators() -> dict[str, Accelerator]:
    return {one.name: one for one in map(build.accelerator, load.rows("accelerators"))}


@load.kept
def _devices() -> dict[str, Accelerator]:
    """Return the accelerator of every driver string."""
    return {device: one for one in _accelerators().values() for device in one.device_names}


@load.kept
def _models() -> dict[str, ModelShape]:
    return {one.name: one for one in map(build.model, load.rows("models"))}


@load.kept
def _aliases() -> dict[str, str]:
    """Return the name that each alias of a model stands for."""
    rows = load.rows("models")
    return {alias: row.text("name") for row in rows for alias in row.texts("aliases")}


@load.kept
def _platforms() -> dict[str, Platform]:
    found: dict[str, Platform] = {}
    known = _accelerators()
    for row in load.rows("platforms"):
        value = found[row.text("name")] = build.platform(row)
        if value.accelerator is not None and value.accelerator not in known:
            message = unknown("accelerator", value.accelerator, known)
            raise row.error(message, "accelerator")
    return found


@load.kept
def _strategies() -> tuple[Strategy, ...]:
    """Return every row of strategies, its model under the catalog's name."""
    places = ("*", "cpu", *build.VENDORS, *_platforms())
    aliases, known = _aliases(), _models()
    found: list[Strategy] = []
    for row in load.rows("strategies"):
        value = row.built(Strategy, name=row.label("name"))
        value = replace(value, model=aliases.get(value.model, value.model))
        if value.platform not in places:
            raise row.error(unknown("platform", value.platform, places), "platform")
        if value.model != "*" and value.model not in known:
            raise row.error(unknown("model", value.model, known), "model")
        found.append(value)
    return tuple(found)


@load.kept
def published() -> tuple[PublishedResult, ...]:
    return tuple(results.published(row) for row in load.rows("published"))


def accelerators() -> tuple[Accelerator, ...]:
    return tuple(_accelerators().values())


def accelerator(name: str) -> Accelerator:
    """Return the accelerator of a catalog name such as ``H100-SXM5-80GB``, in any case.

    Raises:
        CatalogError: no accelerator has this name.
    """
    known = _accelerators()
    folded = {key.lower(): value for key, value in known.items()}
    if name.lower() not in folded:
        raise CatalogError(unknown("accelerator", name, known))
    return folded[name.lower()]


def accelerator_for_device(device_name: str) -> Accelerator | None:
    """Return the accelerator whose driver reports exactly this string, or None."""
    return _devices().get(device_name)


# What CUDA puts behind the name of the whole device: "MIG 1g.10gb", "MIG 1c.2g.20gb+me".
MIG_SLICE = r"(?i:MIG)[ ](?:\d+c\.)?\d+g\.\d+gb(?:[+-][a-z]+(?:\.[a-z]+)?)*"


def unknown_device(device_name: str) -> str:
    """Return why a device has no facts and how to add them, in one line."""
    if re.search(rf" {MIG_SLICE}$", device_name):
        return (
            f"{device_name!r} is a MIG slice: the peak of the whole device is not that of its "
            f"part. Add the slice's own, with its source, as [[accelerators]] in "
            f"{load.PROJECT_FILE} or in a --catalog file."
        )
    return (
        f"No accelerator reports the device name {device_name!r}: its peak is not known. Add it, "
        f"with its source, as [[accelerators]] in {load.PROJECT_FILE} or in a --catalog file."
    )


def peak_tflops(device_name: str, precision: str) -> tuple[float | None, str | None]:
    """Return the dense peak (TFLOP/s, one device) of a driver string, or None and the reason."""
    found = accelerator_for_device(device_name)
    if found is None:
        return None, unknown_device(device_name)
    if precision not in found.peak_tflops:
        return None, (
            f"No dense peak for accelerator {device_name!r} in {precision}. Add it, with its "
            f"source, to peak_tflops of [[accelerators]] in {load.PROJECT_FILE}."
        )
    return found.peak_tflops[precision], None


def models() -> tuple[ModelShape, ...]:
    return tuple(_models().values())


def model_names() -> dict[str, str]:
    """Return the catalog's name of a model for each of its names and aliases."""
    return {name: name for name in _models()} | _aliases()


def model(name: str) -> ModelShape:
    """Return the shape of a model; ``name@8`` is the same shape with 8 layers.

    Raises:
        CatalogError: no model has this name, or the number of layers is not a whole number.
    """
    base, at, layers = name.partition("@")
    known = _models()
    shape = known.get(_base_name(base))
    if shape is None:
        raise CatalogError(unknown("model", base, known))
    return _proxy(shape, layers) if at else shape


def _proxy(shape: ModelShape, layers: str) -> ModelShape:
    if not re.fullmatch("[1-9][0-9]{0,5}", layers):
        raise CatalogError(
            f"Unknown model '{shape.name}@{layers[:20]}'. After @ comes the number of layers, "
            f"for example {shape.name}@8."
        )
    count, moe = int(layers), shape.moe
    if shape.hybrid is not None and count != shape.num_layers:
        raise CatalogError(f"{shape.name} has layers of several kinds: it has no shorter form.")
    if moe is not None and moe.first_dense_layers >= count:
        raise CatalogError(
            f"{shape.name}@{layers} would have no mixture-of-experts layer: the first "
            f"{moe.first_dense_layers} are dense. Use at least {moe.first_dense_layers + 1} layers."
        )
    return replace(shape, name=f"{shape.name}@{count}", num_layers=count)


def platforms() -> tuple[Platform, ...]:
    return tuple(_platforms().values())


def platform(name: str) -> Platform:
    """Return the platform that a user names, such as ``mi300x``.

    Raises:
        CatalogError: no platform has this name.
    """
    known = _platforms()
    if name.lower() not in known:
        raise CatalogError(unknown("platform", name, known))
    return known[name.lower()]


def device_of(platform: str) -> Accelerator | None:
    """Return the accelerator of a platform, None for a CPU or where no platform has this name."""
    found = _platforms().get(platform.lower())
    return _accelerators()[found.accelerator] if found and found.accelerator else None


def _specificity(item: Strategy) -> tuple[int, int]:
    vendors = (*build.VENDORS, "cpu")
    place = 0 if item.platform == "*" else 1 if item.platform in vendors else 2
    return place, 0 if item.model == "*" else 1


def _places(platform: str | None) -> tuple[str, ...]:
    """Return what a strategy's ``platform`` may say to cover a platform."""
    if platform is None:
        return ("*",)
    known = _platforms().get(platform.lower())
    return ("*", platform.lower(), *([known.vendor] if known else []))


def _base_name(model: str) -> str:
    """Return the catalog's name of a model or of the model that a proxy shortens."""
    base = model.partition("@")[0].lower()
    return _aliases().get(base, base)


def strategy_rows(platform: str | None = None, model: str | None = None) -> tuple[Strategy, ...]:
    """Return every strategy for a platform and a model, the most specific row of each name.

    Every row where one of the two is left out.
    """
    places = _places(platform)
    fitting = [
        item
        for item in _strategies()
        if (platform is None or item.platform in places)
        and (model is None or item.model in ("*", _base_name(model)))
    ]
    if platform is None or model is None:
        return tuple(fitting)
    best: dict[str, Strategy] = {}
    for item in fitting:
        rival = best.get(item.name)
        if rival is None or _specificity(item) >= _specificity(rival):
            best[item.name] = item
    return tuple(best.values())


def strategy(name: str, platform: str, model: str) -> Strategy:
    """Return the strategy of a name or alias for a model on a platform.

    Raises:
        CatalogError: no strategy of this name covers the model on the platform.
    """
    wanted = name.lower().replace("-", "_")
    found = strategy_rows(platform, model)
    for item in found:
        if wanted == item.name or wanted in item.aliases:
            return item
    known = ", ".join(sorted(item.name for item in found))
    raise CatalogError(
        f"Unknown strategy {name!r} for {model} on {platform}. Known here: {known}. Add one as "
        f"[[strategies]] in {load.PROJECT_FILE}, or give the sizes."
    )
