"""Whether this process is in a container already, by the marks that container engines leave."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

CONTAINER = "SCALEBOOK_CONTAINER"  # set by our launcher: the engine that started the container

_VARIABLES = {
    "APPTAINER_CONTAINER": "apptainer",
    "APPTAINER_NAME": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
    "SINGULARITY_NAME": "apptainer",
    "ENROOT_ROOTFS": "enroot",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}
_FILES = {
    "run/.containerenv": "podman",
    ".dockerenv": "docker",
    ".singularity.d": "apptainer",
    ".enroot": "enroot",
}
_CGROUPS = {
    "libpod": "podman",
    "docker": "docker",
    "kubepods": "kubernetes",
    "containerd": "containerd",
    "lxc": "lxc",
}


def container(environment: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Return the kind of container that this process is in, None on a bare machine.

    The variable ``container`` is what podman and systemd-nspawn set; files come next, and the
    first process's control group is asked last, as a new kind of group would be no sign.
    """
    if environment.get(CONTAINER):
        return environment[CONTAINER]
    for name, kind in _VARIABLES.items():
        if environment.get(name):
            return kind
    if environment.get("container"):
        return environment["container"]
    for name, kind in _FILES.items():
        if (root / name).exists():
            return kind
    return _by_cgroup(root / "proc" / "1" / "cgroup")


def _by_cgroup(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for name, kind in _CGROUPS.items():
        if re.search(rf"[/:]{name}[-/.:]", text):
            return kind
    return None
