"""A container engine of its own, and a stand-in for a vendor's image built from Debian.

The vendors' images are tens of gigabytes behind registries: these tests use a small one that has
what matters of them, that is a virtual environment with a torch (an empty one), a pip constraint,
and an entrypoint that prints and passes on. ``make test-containers`` runs them; see
containers/README.md for what has to be installed.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from podman_engine import ROOT, USER, Engine, Registry, configuration, start_registry

HERE = Path(__file__).parent
STANDIN = "localhost/standin"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "scalebook-tests"
SUITE = "bookworm"
# The stand-in is the machine's own Debian, whose Python its wheels have to be for.
DEBIAN_PYTHON = "3.11"
NEEDED = ("podman", "buildah", "mmdebstrap")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here, and skip it where it was not asked for or cannot run."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    reason = None
    if not os.environ.get("SCALEBOOK_TEST_CONTAINERS"):
        reason = "real containers: run 'make test-containers'"
    elif missing:
        reason = f"not installed: {', '.join(missing)}"
    elif os.geteuid() != 0:
        reason = "making the stand-in image needs root"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("container")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cache() -> Path:
    """Return the folder of what is worth keeping between runs of these tests."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return CACHE


@pytest.fixture(scope="session")
def archive(cache: Path) -> Iterator[Callable[[], Path]]:
    """Yield a function that returns the stand-in's file system, once it is there.

    It is made from Debian's packages once, beside whatever else these tests prepare, and kept.
    """
    final = cache / f"standin-{SUITE}-1.tar"
    part = final.with_suffix(".part")
    process = None if final.exists() else subprocess.Popen(_debian(part))

    def wait() -> Path:
        if process is not None and not final.exists():
            assert process.wait(timeout=300) == 0
            part.rename(final)
        return final

    yield wait
    if process is not None and process.poll() is None:
        process.terminate()
        process.wait()


def _debian(part: Path) -> tuple[str, ...]:
    """Return the command that makes the file system, without what no test reads."""
    unread = ("doc/*", "man/*", "locale/*", "zoneinfo/*", "info/*")
    return (
        *("mmdebstrap", "--quiet", "--variant=minbase", "--format=tar"),
        "--include=python3,python3-venv,ca-certificates",
        '--aptopt=Acquire::Languages "none"',
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude=/usr/share/{folder}" for folder in unread),
        f"--customize-hook=copy-in {HERE / 'standin'} /opt",
        '--customize-hook=chroot "$1" python3 -m venv /opt/venv',
        '--customize-hook=chroot "$1" /opt/venv/bin/python3 /opt/standin/fake.py',
        *(SUITE, str(part)),
    )


@pytest.fixture(scope="session")
def wheels(cache: Path, archive: Callable[[], Path]) -> Path:
    """Return a folder of wheels, fetched once: inside, pip needs no network and no index."""
    folder = cache / f"wheels-{DEBIAN_PYTHON}"
    subprocess.run(
        (
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--dest", str(folder), "--python-version", DEBIAN_PYTHON, "--only-binary=:all:"),
            *("papermill>=2.6", "ipykernel>=6.29", "numpy>=1.26", "pydantic>=2.7"),
            *("psutil>=5.9", "nvidia-ml-py>=12.535", "pyzmq==26.4.0"),
        ),
        check=True,
        timeout=300,
    )
    return folder


@pytest.fixture(scope="session")
def engine(wheels: Path) -> Iterator[Engine]:
    """Yield an engine with an empty store; remove its containers, images and mounts."""
    folder = Path(tempfile.mkdtemp(prefix="scalebook-podman-"))
    folder.chmod(0o755)
    found = Engine(folder, configuration(folder, wheels))
    yield found
    found.clear()


@pytest.fixture(scope="session")
def standin(engine: Engine, archive: Callable[[], Path]) -> str:
    """Return the stand-in image."""
    path = "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    changes = (
        f"ENV PATH={path}",
        "ENV PIP_CONSTRAINT=/opt/standin/constraint.txt",
        'ENTRYPOINT ["/opt/standin/entrypoint.sh"]',
    )
    options = [f"--change={change}" for change in changes]
    engine.podman("import", "--quiet", *options, str(archive()), STANDIN)
    return STANDIN


@pytest.fixture(scope="session")
def built(engine: Engine, standin: str) -> str:
    """Return our image of the CPU platform, built by the command line on the stand-in."""
    done = engine.scalebook(
        *("image", "--platform", "cpu", "--container", "podman", "--base-image", standin)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed none" in done.stdout
    return "localhost/scalebook-cpu:0.1.0"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """Yield a registry with nothing in it."""
    if shutil.which("docker-registry") is None or shutil.which("skopeo") is None:
        pytest.skip("not installed: docker-registry, skopeo")
    found = start_registry(tmp_path / "registry")
    yield found
    found.stop()


@pytest.fixture
def runs(engine: Engine) -> Path:
    """Return an empty folder of runs that belongs to an ordinary user."""
    folder = Path(tempfile.mkdtemp(prefix="runs-", dir=engine.folder))
    os.chown(folder, USER, USER)
    return folder


@pytest.fixture(scope="session")
def trainer_inside() -> list[str]:
    """Return options that lend a container this machine's Python, torch and Megatron-Core.

    A stand-in with a real torch would be built for a minute and hold gigabytes. What is tested is
    how a run enters a container, not which torch is in it.
    """
    packages = site.getsitepackages()[0]
    lent = {sys.base_prefix: "/opt/python", packages: "/opt/packages"}
    mounts = [
        f"--container-arg=--mount=type=bind,source={source},target={target},readonly"
        for source, target in lent.items()
    ]
    variables = {
        "PATH": "/opt/python/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/opt/python/lib",
        "PYTHONPATH": f"{ROOT / 'src'}:/opt/packages:{ROOT / 'tests' / 'fakes'}",
    }
    return [*mounts, *(f"--env={name}={value}" for name, value in variables.items())]
