"""Where the project's own folders (notebooks, runs, reports) are."""

from __future__ import annotations

from pathlib import Path

from scalebook.errors import LaunchError

TRAIN_NOTEBOOK = Path("notebooks") / "10_train.ipynb"


def root(start: Path | None = None) -> Path | None:
    """Return the project's root: above the working directory, else where the package lies."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, *Path(__file__).resolve().parents):
        if (folder / TRAIN_NOTEBOOK).is_file():
            return folder
    return None


def required_root() -> Path:
    """Return the project's root.

    Raises:
        LaunchError: it cannot be found.
    """
    found = root()
    if found is None:
        raise LaunchError(
            f"{TRAIN_NOTEBOOK} was not found. Run this inside a checkout of the project."
        )
    return found


def runs_folder(name: str | Path | None = None) -> Path:
    """Return the folder of runs: as named, else ``runs`` of the project.

    Outside of the project it is ``runs`` of the working directory, if that is there.
    """
    if name:
        return Path(name)
    found, here = root(), Path.cwd()
    if found is None or (not here.is_relative_to(found) and (here / "runs").is_dir()):
        return here / "runs"
    return found / "runs"


def short(path: Path) -> Path:
    """Return the path relative to the working directory where it lies below it."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path
