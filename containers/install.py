"""Install Scalebook into a vendor's image and leave everything that the image has as it is.

``python3 install.py FOLDER [--train [--torch-index URL]] [--megatron-core VERSION]`` runs while an
image is built. FOLDER holds our wheel; where it holds others too, everything comes from them and no
index is asked. What is installed already is pinned for the installer, and compared afterwards: a
build that changed the image's torch, or anything else of it, fails. The image's own constraint
(PIP_CONSTRAINT) stays in force.

Only the standard library is used: nothing else is sure to be here.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# A version that pip takes in a constraint; those that it does not take are only compared.
PLAIN = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)*(\+[A-Za-z0-9.]+)?")
# What an image without torch has for installing alone: torch may need a newer one.
TOOLS = frozenset(("pip", "setuptools", "wheel"))


def installed() -> dict[str, str]:
    """Return the version of every installed distribution by its normalized name."""
    found: dict[str, str] = {}
    for item in metadata.distributions():
        name = item.metadata["Name"]
        if name:  # the first on the path is the one that imports find
            found.setdefault(normal(name), item.version)
    return found


def kept(versions: dict[str, str], *, train: bool) -> dict[str, str]:
    """Return what has to stay as it is: all, but for the tools where torch is added (train)."""
    return {n: v for n, v in versions.items() if not (train and n in TOOLS)}


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(versions: dict[str, str], lock: str = "") -> str:
    """Return a constraints file that keeps every version; the rest is as locked."""
    lines = [f"{n}=={v}" for n, v in sorted(versions.items()) if PLAIN.fullmatch(v)]
    lines += [line for line in lock.splitlines() if normal(line.partition("==")[0]) not in versions]
    return "\n".join(lines) + "\n"


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return a line for each distribution that is gone or has another version."""
    return [
        f"{name}: {version} -> {after.get(name, 'removed')}"
        for name, version in sorted(before.items())
        if after.get(name) != version
    ]


def installer() -> list[str]:
    """Return the command that installs into this Python: its pip, else uv."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--no-cache-dir"]
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("install.py: this image has neither pip nor uv. Use another base image.")
    return [uv, "pip", "install", "--no-cache", "--python", sys.executable]


def sources(folder: Path, torch_index: str) -> list[str]:
    """Return pip's options for where packages come from: the folder's wheels, else indexes."""
    if len(list(folder.glob("*.whl"))) > 1:
        return ["--no-index", "--find-links", str(folder)]
    return ["--extra-index-url", torch_index] if torch_index else []


def run(command: list[str]) -> None:
    """Run the installer; end where it fails, as it has said why."""
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        sys.exit(f"install.py: {command[0]} could not install {command[-1]} (exit {code}).")


def has_megatron() -> bool:
    """Return whether megatron.core can be imported, without importing it."""
    spec = importlib.util.find_spec("megatron")
    places = list(spec.submodule_search_locations or []) if spec else []
    return any((Path(place) / "core").is_dir() for place in places)


def main() -> None:
    """Install, then compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", action="store_true", help="also torch, where there is none")
    parser.add_argument("--torch-index", default="", help="index of torch, beside the usual one")
    parser.add_argument("--megatron-core", default="", help="version, where the image has none")
    options = parser.parse_args()
    wheels = sorted(options.folder.glob("scalebook-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"install.py: {options.folder} must hold one wheel of scalebook: {wheels}")
    train = options.train and importlib.util.find_spec("torch") is None
    before = kept(installed(), train=train)
    lock = options.folder / "requirements.lock"
    locked = lock.read_text(encoding="utf-8") if train and lock.is_file() else ""
    places = sources(options.folder, options.torch_index if train else "")
    with tempfile.TemporaryDirectory() as temporary:
        constraints = Path(temporary) / "image.txt"
        constraints.write_text(pins(before, locked), encoding="utf-8")
        wanted = f"{wheels[0]}[{'run,train' if train else 'run'}]"
        run([*installer(), *places, "--constraint", str(constraints), wanted])
    importlib.invalidate_caches()
    if options.megatron_core and not has_megatron():
        version = f"megatron-core=={options.megatron_core}"
        run([*installer(), *places, "--no-deps", version])
    changed = changes(before, installed())
    if changed:
        sys.exit("install.py: the image's own packages were changed: " + "; ".join(changed))
    print(f"install.py: added to {len(before)} packages, changed none")


if __name__ == "__main__":
    main()
