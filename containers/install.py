"""Install Scalebook into a vendor's image and leave everything that the image has as it is.

``python3 install.py FOLDER [--train [--torch-index URL]] [--megatron-core VERSION]`` runs while an
image is built. FOLDER holds our wheel; where it holds others too, everything comes from them and no
index is asked. What is installed already is pinned for the installer, and compared afterwards: a
build that changed the image's torch, or anything else of it, fails. The image's own constraint
(PIP_CONSTRAINT) stays in force.

pip first says which files it would install. A file of a version in FOLDER/requirements.lock must
have the SHA-256 that FOLDER/requirements.sha256 states; then exactly these files are installed
(--require-hashes). FOLDER/packages.cdx.json lists in the end what the image has (CycloneDX 1.5).

Only the standard library is used: nothing else is sure to be here.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

# A version that pip takes in a constraint; those that it does not take are only compared.
PLAIN = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)*(\+[A-Za-z0-9.]+)?")
# What an image without torch has for installing alone: torch may need a newer one.
TOOLS = frozenset(("pip", "setuptools", "wheel"))
PACKAGES = "packages.cdx.json"


class File(NamedTuple):
    """A file that is to be installed."""

    name: str  # of the distribution
    version: str
    url: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Its name without the folder."""
        return unquote(self.url.rpartition("/")[2])

    @property
    def requirement(self) -> str:
        """What makes pip install this file and no other."""
        local = urlsplit(self.url).scheme == "file" and self.name == "scalebook"
        what = unquote(urlsplit(self.url).path) if local else f"{self.name}=={self.version}"
        return f"{what} --hash=sha256:{self.sha256}"


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


def installer(cache: Path) -> list[str]:
    """Return the command that installs into this Python: its pip, else uv."""
    if importlib.util.find_spec("pip") is not None:
        # Resolving and installing share the cache, which goes with the folder: nothing comes twice.
        return [sys.executable, "-m", "pip", "install", "--cache-dir", str(cache)]
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


def install(command: list[str], wanted: list[str], folder: Path, temporary: Path) -> list[File]:
    """Install what ``wanted`` needs, each file by its hash; return the files.

    uv does not tell which files it would take: it installs without this check.
    """
    if command[0] != sys.executable:
        run([*command, *wanted])
        return []
    report, pinned = temporary / "report.json", temporary / "pinned.txt"
    run([*command, "--quiet", "--dry-run", "--report", str(report), *wanted])
    files = resolved(json.loads(report.read_text(encoding="utf-8")))
    wrong = mismatches(files, locked_versions(folder), locked_hashes(folder))
    if wrong:
        sys.exit(
            "install.py: not the locked files: " + "; ".join(wrong) + ". Where you trust another "
            "build of a package, take its lines out of requirements.sha256."
        )
    pinned.write_text("\n".join(file.requirement for file in files) + "\n", encoding="utf-8")
    if files:
        run([*command, "--no-deps", "--require-hashes", "--requirement", str(pinned)])
    return files


def own_choice(folder: Path) -> str:
    """Return the folder's lock without what the image pins by itself (PIP_CONSTRAINT)."""
    lock, given = folder / "requirements.lock", os.environ.get("PIP_CONSTRAINT", "")
    image: set[str] = set()
    for path in map(Path, given.split()):
        if path.is_file():
            names = re.findall(r"(?m)^\s*([A-Za-z0-9][\w.-]*)", path.read_text(encoding="utf-8"))
            image.update(map(normal, names))
    lines = lock.read_text(encoding="utf-8").splitlines() if lock.is_file() else []
    return "\n".join(line for line in lines if normal(line.partition("==")[0]) not in image)


def fits(command: list[str], wanted: list[str]) -> bool:
    """Return whether pip finds versions within its constraints; uv is not asked."""
    if command[0] != sys.executable:
        return False
    tried = subprocess.run([*command, "--quiet", "--dry-run", *wanted], check=False,
                           capture_output=True)  # fmt: skip
    return tried.returncode == 0


def resolved(report: dict[str, Any]) -> list[File]:
    """Return the files of pip's installation report."""
    files: list[File] = []
    for item in report["install"]:
        about, source = item["metadata"], item["download_info"]
        url: str = source["url"]
        archive = source.get("archive_info", {})
        digest = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").removeprefix(
            "sha256="
        )
        if urlsplit(url).scheme == "file" and not digest:
            digest = sha256(Path(unquote(urlsplit(url).path)))
        files.append(File(normal(about["name"]), about["version"], url, digest))
    return files


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def locked_versions(folder: Path) -> dict[str, str]:
    """Return the locked version by name; none where the folder has no lock."""
    lock = folder / "requirements.lock"
    lines = lock.read_text(encoding="utf-8").splitlines() if lock.is_file() else []
    pairs = (line.partition("==") for line in lines if "==" in line)
    return {normal(name): version for name, _, version in pairs}


def locked_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 by file name; none where the folder has no list of them."""
    path = folder / "requirements.sha256"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def mismatches(files: list[File], versions: dict[str, str], hashes: dict[str, str]) -> list[str]:
    """Return a line for each file of a locked version whose hash is another one, or has none.

    A version that the lock does not name is the image's own choice. Of torch the list has no file:
    its indexes have different builds under one version.
    """
    listed = {name.partition("-")[0].lower().replace(".", "_") for name in hashes}
    found: list[str] = []
    for file in files:
        if not file.sha256:
            found.append(f"{file.file_name}: the index states no SHA-256")
        elif versions.get(file.name) != file.version or file.name.replace("-", "_") not in listed:
            continue
        elif hashes.get(file.file_name) != file.sha256:
            stated = hashes.get(file.file_name, "none")
            found.append(f"{file.file_name}: SHA-256 {file.sha256}, locked: {stated}")
    return found


def bill_of_materials(
    versions: dict[str, str], files: list[File], debian: str = ""
) -> dict[str, Any]:
    """Return the packages of the image as CycloneDX 1.5: Python's, and Debian's by dpkg-query."""
    hashes = {file.name: file.sha256 for file in files}
    parts: list[dict[str, Any]] = []
    for name, version in sorted(versions.items()):
        part: dict[str, Any] = {"type": "library", "name": name, "version": version}
        part["purl"] = f"pkg:pypi/{name}@{quote(version)}"
        if name in hashes:
            part["hashes"] = [{"alg": "SHA-256", "content": hashes[name]}]
        parts.append(part)
    for line in sorted(filter(None, debian.splitlines())):
        name, version = line.split("\t")
        parts.append({"type": "library", "name": name, "version": version,
                      "purl": f"pkg:deb/{distribution()}/{name}@{quote(version)}"})  # fmt: skip
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": parts}


def distribution() -> str:
    """Return the name of the Linux distribution, as /etc/os-release has it."""
    try:
        return platform.freedesktop_os_release()["ID"]
    except OSError:
        return "debian"


def debian_packages() -> str:
    """Return a line ``NAME<tab>VERSION`` for each package of the system; empty without dpkg."""
    program = shutil.which("dpkg-query")
    if program is None:
        return ""
    command = [program, "--show", "--showformat", "${Package}\t${Version}\n"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


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
    places = sources(options.folder, options.torch_index if train else "")
    with tempfile.TemporaryDirectory() as temporary:
        wanted = f"{wheels[0]}[{'run,train' if train else 'run'}]"
        command = [*installer(Path(temporary) / "cache"), *places]
        constraints = Path(temporary) / "image.txt"
        constraints.write_text(pins(before, own_choice(options.folder)), encoding="utf-8")
        chosen = ["--constraint", str(constraints), wanted]
        if not train and not fits(command, chosen):
            print("install.py: the locked versions do not fit this image; it gets others")
            constraints.write_text(pins(before), encoding="utf-8")
        files = install(command, chosen, options.folder, Path(temporary))
        importlib.invalidate_caches()
        if options.megatron_core and not has_megatron():
            version = f"megatron-core=={options.megatron_core}"
            files += install(command, ["--no-deps", version], options.folder, Path(temporary))
    changed = changes(before, installed())
    if changed:
        sys.exit("install.py: the image's own packages were changed: " + "; ".join(changed))
    packages = bill_of_materials(installed(), files, debian_packages())
    (options.folder / PACKAGES).write_text(json.dumps(packages, indent=1), encoding="utf-8")
    print(f"install.py: added to {len(before)} packages, changed none; see {PACKAGES}")


if __name__ == "__main__":
    main()
