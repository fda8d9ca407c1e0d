"""The single answer to "are these two runs the same?": same work, layout, software, or a repeat.

Each function returns a key: runs are the same where their keys are equal. None means that a part
of the key is not known, and an unknown equals nothing, not even another unknown (``alike``).
What a plan calls a run (its strategy), which repeat it is and how long it may take are no part of
any key. No key is read from a label, a sentence or the name of a folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from scalebook import settings
from scalebook.config import DEFAULTS, RunConfig
from scalebook.record import RunRecord, object_of, text_of
from scalebook.settings import SETTINGS

Item = TypeVar("Item")

# The software whose version can change a speed. transformer_engine is null where it is not there.
VERSIONS = ("torch", "megatron_core", "transformer_engine")
KERNELS = (  # by which a run computed
    *("window_attention", "context_parallel_communication"),
    *("pipeline_transfers", "tensor_pieces", "norm_kernel"),
)
_NEVER = frozenset(settings.named("never"))
# Work that a log from elsewhere mentions only where there is any.
_UNUSUAL = ("mtp_layers", "packed_documents")
_NO_MEMORY = settings.without_effect("memory")


def alike(items: Iterable[Item], key: Callable[[Item], Any]) -> list[list[Item]]:
    """Return the items of equal keys together, in the order of their first; None is by itself."""
    found: dict[Any, list[Item]] = {}
    for number, item in enumerate(items):
        name = key(item)
        found.setdefault((None, number) if name is None else (name,), []).append(item)
    return list(found.values())


def device(record: RunRecord) -> str | None:
    """Return what a run ran on, as its driver names it, on a CPU the processor's model."""
    name = record.environment.get("accelerator")
    if name is None and record.setting("platform") == "cpu":
        return str(object_of(record.environment.get("host")).get("cpu_model") or "cpu")
    return text_of(name)


def other_devices(a: Iterable[Mapping[str, Any]], b: Iterable[Mapping[str, Any]]) -> bool | None:
    """Return whether two sides ran on other devices; None where that is not known.

    Each item has the ``accelerator`` and the ``device_ids`` of a run, as its environment has them:
    the ids are digests of serial numbers, separated by blanks.
    """
    left, right = list(a), list(b)
    if not left or not right:
        return None
    kinds = [{one.get("accelerator") for one in side} for side in (left, right)]
    if None not in kinds[0] | kinds[1] and not kinds[0] & kinds[1]:
        return True
    ids = [[one.get("device_ids") for one in side] for side in (left, right)]
    if not all(ids[0] + ids[1]):
        return None
    first, second = (set(" ".join(map(str, side)).split()) for side in ids)
    return not first & second


def image(record: RunRecord) -> str | None:
    """Return what stands for the image that a run was in, 12 hex digits.

    They are of the digest or id of the image (of the file for Apptainer and enroot), else of the
    hash of its packages. Empty where the record names no image: then the versions alone say what
    the run stood on. None where it names one without saying which: a tag can move.
    """
    container = object_of(record.environment.get("container"))
    known = container.get("SCALEBOOK_IMAGE_ID") or container.get("packages_sha256")
    if isinstance(known, str):
        return known.removeprefix("sha256:")[:12]
    return None if container.get("SCALEBOOK_IMAGE") else ""


def software(record: RunRecord) -> dict[str, Any]:
    """Return what a run stood on and whose layers ran, None where not recorded."""
    versions = {name: record.environment.get(name) for name in VERSIONS}
    return {**versions, "layer_spec": record.layer_spec, "image": image(record) or None}


def work(record: RunRecord, but: str = "") -> str | None:
    """Return what runs share that do the same work on as many GPUs, however and on whatever.

    ``but`` is a setting that they may differ in, such as the model.
    """
    names = ("world_size", *settings.names("work"))
    found = {name: record.setting(name) for name in names if name != but}
    found |= {name: DEFAULTS[name] for name in _UNUSUAL if found[name] is None}
    return _key(found, found)


def matched(record: RunRecord, but: str = "platform") -> str | None:
    """Return what runs share that were asked to do the same work in the same way, on any platform.

    That is every setting that changes the speed, the memory or the loss of a step, but for one.
    """
    asked = record.asked
    found = {
        name: record.observed.get(name) if asked.get(name) is None else asked[name]
        for name, row in SETTINGS.items()
        if row.affects and name != but
    }
    return _key(found, found)


def configuration(record: RunRecord) -> str | None:
    """Return what runs of one configuration share, whatever versions they stand on.

    That is everything that was asked for, the device, and where the record is from.
    """
    return _key(*_configuration(record, record.asked))


def repeat(record: RunRecord) -> str | None:
    """Return what repeats share: configuration and software, as it ran where that was left open."""
    found, needed = _configuration(record, record.in_force)
    found |= {name: record.observed.get(name) for name in KERNELS}
    stood_on = software(record)
    # Without Transformer Engine its version is none, so that None is an answer.
    needed |= {name: stood_on[name] for name in ("torch", "megatron_core")}
    needed["image"] = image(record)
    return _key({**found, **stood_on}, needed)


def _configuration(
    record: RunRecord, values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of a configuration, and those of them that have to be known."""
    found = {n: values.get(n) for n in SETTINGS if n not in _NEVER} if record.requested else {}
    around = {"device": device(record), "source": record.source}
    needed = {name: found.get(name) for name in ("model", "platform")}
    return {**found, **around}, {**needed, "device": around["device"]}


def series(record: RunRecord) -> str:
    """Return the settings and versions that do not follow from a run's size, as a JSON object.

    Runs of one group with equal texts differ in size only, as far as they say. Settings at their
    default are left out, so that runs of before a setting existed compare with those after; a log
    that says nothing has an empty object.
    """
    named = settings.named("where it differs", "off default")  # neither the group nor a size
    asked = {
        name: value
        for name, value in record.requested.items()
        if name in named and not SETTINGS[name].follows_size and value != DEFAULTS.get(name)
    }
    # What auto came to for the others may follow from the size.
    stood_on = software(record)
    known = {name: value for name, value in stood_on.items() if value is not None}
    return json.dumps(asked | known, sort_keys=True, default=str)


def memory(config: RunConfig) -> str:
    """Return what configurations share that differ in nothing that takes memory."""
    return config.model_dump_json(exclude=set(_NO_MEMORY), exclude_defaults=True)


def _key(found: Mapping[str, Any], needed: Mapping[str, Any]) -> str | None:
    """Return 16 hex digits that are equal for equal parts; None where one needed is not known."""
    if any(value is None for value in needed.values()):
        return None
    text = json.dumps(found, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
