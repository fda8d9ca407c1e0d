"""Podman with a store of its own, driven as a user drives it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
USER = 1234  # an ordinary user, who has no name anywhere


@dataclass(frozen=True)
class Engine:
    """Podman with a store of its own: nothing of the machine's is seen or left."""

    folder: Path
    environment: dict[str, str]

    def podman(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run podman and return how it ended."""
        return subprocess.run(
            ("podman", *arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=300,
        )

    def scalebook(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line and return how it ended."""
        return subprocess.run(
            (sys.executable, "-m", "scalebook", *arguments),
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def containers(self) -> list[str]:
        """Return the names of all containers, running or not."""
        listed = json.loads(self.podman("ps", "--all", "--format=json").stdout or "[]")
        return [container["Names"][0] for container in listed]

    def clear(self) -> None:
        """Remove every container, image and mount, and the store."""
        self.podman("rm", "--force", "--all", check=False)
        self.podman("rmi", "--force", "--all", check=False)
        unmount = ("umount", "--recursive", f"{self.folder}/store/overlay")
        subprocess.run(unmount, capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def configuration(folder: Path, wheels: Path) -> dict[str, str]:
    """Write an engine's configuration; return the environment that makes podman use it.

    Host network leaves no firewall rules behind. The limits are those that a root without
    CAP_SYS_RESOURCE can give. runc also runs where control groups are of both versions.
    """
    pip = folder / "pip.conf"
    index = "[global]\nno-index = true\nfind-links = /wheels\n"
    pip.write_text(f"{index}[install]\nno-compile = true\n")
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    volumes = [f"{pip}:/etc/pip.conf:ro", f"{wheels}:/wheels:ro"]
    (folder / "containers.conf").write_text(
        "[containers]\n"
        'netns = "host"\n'
        'default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
        f"volumes = {json.dumps(volumes)}\n"
        "[network]\n"
        'network_backend = "netavark"\n'
        "[engine]\n"
        f'{runtime}cgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    )
    (folder / "tmp").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SCALEBOOK")}
    return {
        **kept,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "BUILDAH_FORMAT": "docker",
        "BUILDAH_ISOLATION": "chroot",
        "TMPDIR": str(folder / "tmp"),
    }
