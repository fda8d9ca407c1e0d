"""Find the run that a command names: a run directory, or a run id in a folder of runs."""

from __future__ import annotations

from pathlib import Path


def run_directory(name: str, folder: Path | None) -> Path:
    """Return the directory of a run; ids are looked for in the folder of runs and its examples.

    Raises:
        RecordError: there is no such run.
    """
    from scalebook import store
    from scalebook.errors import RecordError, unknown
    from scalebook.project import runs_folder

    if (Path(name) / "record.json").is_file():
        return Path(name)
    runs = folder or runs_folder()
    directories = [*store.run_directories(runs), *store.run_directories(runs / "examples")]
    by_name = {directory.name: directory for directory in reversed(directories)}
    if name in by_name:
        return by_name[name]
    if not by_name:
        raise RecordError(f"No run {name!r}: {runs} holds no run. Name its folder with --runs DIR.")
    nearest = unknown("run", name, by_name).rpartition("Did you mean")[2]
    hint = f"Did you mean{nearest}" if nearest.startswith(" ") else "'scalebook list' names them."
    raise RecordError(f"No run {name!r} under {runs}. {hint}")
