"""Podman with a store of its own, driven as a user drives it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

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

    def scalebook(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command line, with variables in addition, and return how it ended."""
        return subprocess.run(
            (sys.executable, "-m", "scalebook", *arguments),
            env=self.environment | variables,
            cwd=variables.get("PWD", ROOT),
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


@dataclass(frozen=True)
class Registry:
    """A registry on the loopback, without TLS: ``folder`` is the home that says so to clients."""

    address: str
    folder: Path
    process: subprocess.Popen[bytes]

    def variables(self, checkout: Path) -> dict[str, str]:
        """Return the variables that run a checkout's own command line with this registry."""
        return {"HOME": str(self.folder), "PYTHONPATH": f"{checkout}/src", "PWD": str(checkout)}

    def push(self, engine: Engine, image: str, reference: str) -> str:
        """Push an image; return the digest that the registry itself states for the tag."""
        engine.podman("push", "--quiet", "--tls-verify=false", image, f"docker://{reference}")
        name, _, tag = reference.partition("/")[2].rpartition(":")
        request = Request(f"http://{self.address}/v2/{name}/manifests/{tag}", method="HEAD")
        kinds = ("vnd.oci.image.manifest.v1+json", "vnd.docker.distribution.manifest.v2+json")
        request.add_header("Accept", ", ".join(f"application/{kind}" for kind in kinds))
        with urlopen(request, timeout=10) as answer:
            return str(answer.headers["Docker-Content-Digest"])

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(10)


def start_registry(folder: Path) -> Registry:
    """Start Debian's docker-registry and return it when it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = folder / ".config" / "containers"
    settings.mkdir(parents=True)
    insecure = f'[[registry]]\nlocation = "{address}"\ninsecure = true\n'
    (settings / "registries.conf").write_text(insecure)
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f'storage: {{filesystem: {{rootdirectory: "{folder}/data"}}}}\n'
        f'http: {{addr: "{address}"}}\n'
    )
    process = subprocess.Popen(
        ("docker-registry", "serve", str(folder / "config.yml")),
        env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    made, deadline = Registry(address, folder, process), time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with urlopen(f"http://{address}/v2/", timeout=5):
                return made
        except OSError:
            time.sleep(0.1)
    made.stop()
    raise AssertionError("the registry did not answer within 30 s")


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
