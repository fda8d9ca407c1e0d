"""What a job of several runs settles before the next one: whether it starts, and when.

``python -m scalebook.running.cluster.slurm_turn DIRECTORY [--prune] [--since JOB_ID]
[--cool-down 30s]``.
A run that cannot fit, because a smaller one ran out of memory, gets its record here; its directory
is published, and the job goes on with the next one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from scalebook import ownership, store
from scalebook.config import RunConfig
from scalebook.errors import RecordError
from scalebook.plan import schedule
from scalebook.running import finish_run, waiting
from scalebook.running.cluster import job_files
from scalebook.running.pruning import Broken, Inference


def main(arguments: Sequence[str]) -> int:
    """Settle a run's turn; return 0, also where it is not to run."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.running.cluster.slurm_turn")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--prune", action="store_true")
    parser.add_argument("--since", default="", help="only what this job's own runs showed counts")
    parser.add_argument("--cool-down", default="", help="30s or 45C")
    options = parser.parse_args(arguments)
    directory: Path = options.directory
    if options.prune:
        config = RunConfig.from_parameters(store.read_object(directory / "config.json"))
        inference = shown(directory.parent, options.since).against(config)
        if inference is not None:
            infer(directory, inference)
            return 0
    if options.cool_down:
        cool_down(directory, options.cool_down)
    return 0


def shown(runs: Path, job_id: str = "") -> Broken:
    """Return what the records of a folder show to be too large; of one job's alone, if named."""
    found = Broken()
    for path in store.run_directories(runs):
        try:
            record = store.read_record(path)
        except RecordError:
            continue
        slurm: Any = record.environment.get("slurm")
        of_job = cast("dict[str, Any]", slurm).get("job_id") if isinstance(slurm, dict) else None
        if not job_id or of_job == job_id:
            found.add(record)
    return found


def infer(directory: Path, inference: Inference) -> None:
    """Record a run that was not started, and why; its directory gets its final name."""
    with ownership.owned(directory):
        (directory / finish_run.LAUNCH_FILE).unlink(missing_ok=True)  # nothing was launched
        stop = ("out_of_memory", inference.sentence)
        finish_run.conclude(directory, stop=stop, inferred_from=inference.run_id)
        for name in (ownership.JOB_FILE, job_files.EVENTS):
            (directory / name).unlink(missing_ok=True)
        final = store.publish(directory)
    print(f"{final.name}: {inference.sentence}", flush=True)


def cool_down(directory: Path, asked: str) -> None:
    """Wait on this node, the job's first, and note in the run's schedule what was waited for."""
    wanted = schedule.cool_down(asked)
    if wanted is None:
        return
    waited = waiting.wait(wanted, lambda: False)
    file = directory / finish_run.SCHEDULE_FILE
    kept = store.read_object(file)
    notes = [*kept.get("notes", ()), *([waited.note] if waited.note else [])]
    store.write_json(file, {**kept, "cool_down": waited.value(), "notes": notes})
    print(f"{directory.name}: cooled down for {waited.seconds:.0f} s. {waited.note or ''}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
