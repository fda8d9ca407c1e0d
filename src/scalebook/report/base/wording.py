"""Settings and their values in the words that readers know them by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from scalebook.config import DEFAULTS
from scalebook.settings import SETTINGS

VALUES = {  # settings whose value says it all
    ("layer_spec", "transformer_engine"): "Transformer Engine's layers",
    ("layer_spec", "torch"): "torch's layers",
}
OFF = (None, False, "off", "none")
MOST = 3  # deviations named one by one
VERSION_WORDS = {"megatron_core": "megatron-core", "transformer_engine": "Transformer Engine"}


def in_words(changes: Sequence[tuple[str, Any]], most: int | None = MOST) -> list[str]:
    """Return changes in words, many switches of one kind together; with ``most`` None, all."""
    fusions = [name for name, value in changes if name.startswith("fused_") and value in OFF]
    together = [f"{len(fusions)} fusions off"] if len(fusions) > 2 else []
    rest = [change for change in changes if not together or change[0] not in fusions]
    words = together + [_words(name, value) for name, value in rest]
    if most is None or len(words) <= most:
        return words
    return [*words[: most - 1], f"{len(words) - most + 1} more"]


def setting_words(name: str) -> str:
    """Return a setting as readers call it: ``CUDA graph``."""
    row = SETTINGS.get(name)
    return row.words if row else VERSION_WORDS.get(name, name.replace("_", " "))


def _words(name: str, value: Any) -> str:
    if (name, str(value)) in VALUES:
        return VALUES[name, str(value)]
    word = setting_words(name)
    if name in SETTINGS and SETTINGS[name].counted:
        return f"{value} {word}"
    if value in OFF:
        return f"no {word}"
    return word if value is True or value == "on" else f"{word} {value}"


def series_words(texts: Sequence[str]) -> list[str]:
    """Return what distinguishes each key of ``identity.series`` from the first: empty for that."""
    keys: list[dict[str, Any]] = [json.loads(text) if text else {} for text in texts]
    first = keys[0] if keys else {}
    found: list[str] = []
    for one in keys:
        changes = [
            (name, one.get(name, DEFAULTS.get(name)))
            for name in dict.fromkeys([*first, *one])
            if one.get(name) != first.get(name)
        ]
        known = [(name, value) for name, value in changes if value is not None]
        found.append(" · ".join(in_words(known)) if known else "")
    return found
