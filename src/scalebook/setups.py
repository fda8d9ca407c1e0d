"""What runs of different sizes must share to be one scaling series, and how series are named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from scalebook.config import RunConfig
from scalebook.record import RunRecord
from scalebook.wording import MINOR, NAMED, in_words

# A layout is a part of the size.
_LAYOUT = frozenset({"nodes", "expert_tensor_parallel_size", "last_pipeline_stage_layers"})
_SOFTWARE = ("torch", "megatron_core")


def setup(record: RunRecord) -> str:
    """Return the settings and versions that do not follow from a run's size, as one text.

    Equal texts are comparable. Settings at their default are left out, so that runs of before a
    setting existed are comparable with those after; a log that tells nothing has an empty text.
    """
    fields = RunConfig.model_fields
    asked: dict[str, Any] = {
        name: value
        for name, value in record.requested.items()
        if name in fields and name not in NAMED | MINOR | _LAYOUT and value != fields[name].default
    }
    # What auto came to for the others may follow from the size.
    ran = {"layer_spec": record.layer_spec}
    stood_on = {name: record.environment.get(name) for name in _SOFTWARE}
    known = {name: value for name, value in (ran | stood_on).items() if value is not None}
    return json.dumps(asked | known, sort_keys=True, default=str)


def setup_words(texts: Sequence[str]) -> list[str]:
    """Return what distinguishes each setup from the first: empty for that."""
    setups: list[dict[str, Any]] = [json.loads(text) if text else {} for text in texts]
    fields = RunConfig.model_fields
    first = setups[0] if setups else {}
    found: list[str] = []
    for one in setups:
        changes = [
            (name, one.get(name, fields[name].default if name in fields else None))
            for name in dict.fromkeys([*first, *one])
            if one.get(name) != first.get(name)
        ]
        told = [(name, value) for name, value in changes if value is not None]
        found.append(" · ".join(in_words(told)) if told else "")
    return found
