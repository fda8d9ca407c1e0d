"""Find the run that a command names: a run directory, or a run id (or its end) in a folder."""

from __future__ import annotations

from pathlib import Path

RUN_HELP = "run id or its last six or more characters, or a run directory"
HINT = "See 'scalebook list'; the last six characters of an id are enough."


def run_directory(name: str, folder: Path | None) -> Path:
    """Return the directory of a run; ids are looked for in the folder of runs and its examples.

    Raises:
        RecordError: there is no such run, or several are named.
    """
    from scalebook import store
    from scalebook.errors import RecordError, unknown
    from scalebook.project import runs_folder

    if (Path(name) / "record.json").is_file():
        return Path(name)
    runs = folder or runs_folder()
    found = store.find_run(name, runs)
    if found is not None:
        return found
    folders = (runs, runs / "examples")
    names = {path.name for one in folders for path in store.run_directories(one)}
    if not names:
        raise RecordError(
            f"No run {name!r}: {runs} contains no runs. Name a folder with --runs DIR."
        )
    nearest = unknown("run", name, names).rpartition("Did you mean")[2]
    hint = f"Did you mean{nearest}" if nearest.startswith(" ") else HINT
    raise RecordError(f"No run {name!r} under {runs}. {hint}")
