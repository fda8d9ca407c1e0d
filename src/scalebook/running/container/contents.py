"""What an image holds, read inside it and compared (``-m scalebook.running.container.contents``).

Versions come from the installed packages' own metadata; nothing is imported into this process. One
child process imports torch, so that an image whose torch cannot start is found here.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

from scalebook.errors import LaunchError
from scalebook.query import ask, said_of

IMPORT_SECONDS = 300.0  # a first import from a cold network file system takes minutes
IMPORT = (
    "import json, torch; print(json.dumps([torch.cuda.is_available(), torch.cuda.device_count()]))"
)

# Component -> distributions that carry it; the first that is installed counts.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "megatron_core": ("megatron-core",),
    "transformer_engine": ("transformer-engine", "transformer-engine-torch"),
    "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm"),
    "flash_attn": ("flash-attn",),
    "megatron_bridge": ("megatron-bridge",),
    "nemo": ("nemo-toolkit",),
    "scalebook": ("scalebook",),
    "papermill": ("papermill",),
    "ipykernel": ("ipykernel",),
    "pydantic": ("pydantic",),
}
NEEDED = ("torch", "megatron_core", "scalebook", "papermill", "ipykernel", "pydantic")

ImageVerdict = Literal["as stated", "different", "missing", "present"]


@dataclass(frozen=True, slots=True)
class ImageFinding:
    """One component: what image.toml says (None: nothing), what is there, and how they compare."""

    component: str
    stated: str | None
    found: str | None
    verdict: ImageVerdict

    @property
    def good(self) -> bool:
        return self.verdict in ("as stated", "present")


def read() -> dict[str, Any]:
    """Return the versions in this Python and whether its torch starts; null for none."""
    found = versions()
    return {"versions": found, "torch": _import_torch(found["torch"] is not None)}


def told(value: Mapping[str, Any]) -> tuple[dict[str, str | None], dict[str, Any]]:
    """Return versions and torch's state from what ``read`` gave in an image, which may be anyone's.

    Raises:
        LaunchError: it is something else.
    """
    versions, torch = value.get("versions"), value.get("torch")
    if not isinstance(versions, dict) or not isinstance(torch, dict):
        raise LaunchError("The image's scalebook reported no versions. Build the image again.")
    texts = cast("dict[object, object]", versions)
    state = cast("dict[str, Any]", torch)
    names = ("starts", "devices", "reason")
    found = {str(k): None if v is None else str(v) for k, v in texts.items()}
    return found, {name: state.get(name) for name in names}


def versions() -> dict[str, str | None]:
    """Return the version of each component in this Python, None for what is not here."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    found.update({name: _version(names) for name, names in PACKAGES.items()})
    return {**found, **_torch_build()}


def _version(names: tuple[str, ...]) -> str | None:
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def _torch_build() -> dict[str, str | None]:
    """Return the CUDA and ROCm versions that torch was built for, from its version file."""
    spec = find_spec("torch")
    file = Path(str(spec.origin)).parent / "version.py" if spec else Path()
    cuda, hip = (said_of(file, rf"^{name}\b[^=]*= *'([^']*)'") for name in ("cuda", "hip"))
    rocm = re.search(r"\+rocm(\d+(?:\.\d+)*)", _version(("torch",)) or "")
    return {"cuda": cuda, "rocm": rocm[1] if rocm else hip}


def _import_torch(there: bool) -> dict[str, Any]:
    """Return whether torch starts and the devices that it sees, or why it does not."""
    if not there:
        return {"starts": None, "devices": None, "reason": "torch is not installed"}
    answer = ask((sys.executable, "-c", IMPORT), IMPORT_SECONDS)
    lines = (answer.output if answer.code == 0 else answer.errors).strip().splitlines()
    if answer.code != 0 or not lines:
        return {"starts": False, "devices": None, "reason": lines[-1] if lines else "no output"}
    available, count = json.loads(lines[-1])
    return {"starts": True, "devices": count if available else 0, "reason": None}


def same(stated: str, found: str) -> bool:
    """Return whether a version is the stated one, which may be cut short: 2.16 is also 2.16.1."""
    return re.match(re.escape(stated) + r"(?![0-9])", found) is not None


def compare(
    stated: Mapping[str, str], versions: Mapping[str, str | None]
) -> tuple[ImageFinding, ...]:
    """Return each stated or needed component, what was found of it and the verdict."""
    findings: list[ImageFinding] = []
    for name in (*stated, *(name for name in NEEDED if name not in stated)):
        wanted, found = stated.get(name), versions.get(name)
        verdict: ImageVerdict = "missing"
        if found is not None:
            verdict = "present"
            if wanted is not None:
                verdict = "as stated" if same(wanted, found) else "different"
        findings.append(ImageFinding(name, wanted, found, verdict))
    return tuple(findings)


if __name__ == "__main__":
    print(json.dumps(read()))
