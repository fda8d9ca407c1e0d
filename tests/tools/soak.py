"""Kill processes of real commands at random moments, and check that nothing is lost.

``python tests/tools/soak.py --kills 200`` starts plan, drill, ingest, report and tune on the CPU
with the trainer that needs no torch, kills one of their processes, and starts the command again.
``--runs 1000`` goes through one long plan instead, and checks that its process does not grow.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from commands import COMMAND_SECONDS, PLAN, ROOT, BrokenError, ended, marked, role, start, whole
from growth import plan_without_growth

from scalebook import ownership, store
from scalebook.running import finish_run, processes

# How often each command is killed, by what it costs; below its phases, as ``phase`` says them.
WEIGHTS = {"plan": 9, "drill": 6, "ingest": 9, "report": 5, "tune": 2}
TRAINING = ("before a run", "starting a run", "steps", "recording")
PHASES = {
    "plan": TRAINING,
    "drill": TRAINING,
    "tune": TRAINING,
    "ingest": ("before a run", "starting a run", "steps", "recording"),
    "report": ("reading", "executing pages"),
}


@dataclass
class Soak:
    """A folder of runs, with what was published in it and what was killed so far."""

    folder: Path
    draw: random.Random
    report_every: int
    published: dict[str, str] = field(default_factory=dict[str, str])
    ingested: dict[str, str] = field(default_factory=dict[str, str])
    kills: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def arguments(self, name: str, number: int) -> tuple[str, ...]:
        """Return the arguments of a command whose work no command before has done."""
        plan = self.folder / f"{name}-{number}.toml"
        plan.write_text(PLAN.format(seed=1000 + number, repeats="0, 1" if name == "plan" else "0"))
        fake = ("--platform", "cpu", "--runs", str(self.runs), "--trainer", "fake_trainer")
        if name == "plan":
            return ("run", "--plan", str(plan), *fake)
        if name == "drill":
            return ("drill", "--plan", str(plan), "--no-reference", *fake)
        if name == "ingest":
            return ("ingest", str(ROOT / "tests" / "logs"), "--runs", str(self.place(name, number)))
        if name == "tune":
            size = ("--model", "tiny-llama", "--gpus", "1", "--set", f"seed={number}")
            return ("tune", *size, "--budget-seconds", "60", *fake)
        site = str(self.folder / "site")
        return ("report", "--renderer", "preview", "--runs", str(self.runs), "--output", site)

    def place(self, name: str, number: int) -> Path:
        """Return the folder that a command writes runs to."""
        return self.folder / f"ingested-{number}" if name == "ingest" else self.runs

    def kill_one(self, number: int) -> None:
        """Kill a process of a command, check what is left, and start the command again."""
        name = self.draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        process, output = start(self.arguments(name, number), f"{os.getpid()}-{number}")
        killed = self._kill(process, name, number)
        if killed is None:  # it was faster
            process.wait(COMMAND_SECONDS)
        else:
            self.kills[(name, *killed)] += 1
            print(f"{number}: {name}, {killed[0]} killed while {killed[1]}", flush=True)
        ended(process, f"{os.getpid()}-{number}", output)
        self._check(number)
        code, text = whole(self.arguments(name, number))
        # The trainer saves no checkpoint to drill with and says no options that tune compares.
        if code not in ((0, 1) if name in ("drill", "tune") else (0,)) or "Traceback" in text:
            raise BrokenError(f"{name} ended with {code} when started again:\n{text[-3000:]}")
        self._check_after(name, number)
        if number % self.report_every == 0:
            code, text = whole(self.arguments("report", number))
            if code:
                raise BrokenError(f"the report was not built:\n{text[-3000:]}")

    def _kill(
        self, process: subprocess.Popen[bytes], name: str, number: int
    ) -> tuple[str, str] | None:
        """Return which process was killed and in which phase; None: the command had ended."""
        wanted, mark = self.draw.choice(PHASES[name]), f"{os.getpid()}-{number}"
        place = self.place(name, number)
        while process.poll() is None and phase(name, place, mark) != wanted:
            time.sleep(0.002)
        time.sleep(self.draw.choice((0, 0, 1)) * self.draw.uniform(0, 1.5))
        found = {one: role(one) for one in marked(mark) if role(one)}
        if process.poll() is not None or not found:
            return None
        # By role first: a plan has one kernel and many ranks, which matter as much together.
        wanted = self.draw.choice(sorted(set(found.values())))
        victim = self.draw.choice([one for one, name in found.items() if name == wanted])
        killed = role(victim), phase(name, place, mark)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return killed

    def _check(self, number: int) -> None:
        """Compare every published run with what it was, and note the new ones."""
        now = digests(self.runs)
        for run, digest in self.published.items():
            if now.get(run) != digest:
                raise BrokenError(f"{run} was {'changed' if run in now else 'lost'}")
        problems = store.read_runs(self.runs)[1]
        if problems:
            raise BrokenError("; ".join(problems))
        for partial in store.partial_directories(self.runs):
            if processes.marked(finish_run.run_id(partial)):
                raise BrokenError(f"processes of {partial.name} are left")
        for name, digest in digests(self.folder / f"ingested-{number}").items():
            if self.ingested.get(name) != digest:
                raise BrokenError(f"ingest left {name}, which is not whole")
        self.published = now

    def _check_after(self, name: str, number: int) -> None:
        """Check that the command, started again, did all of its work and left nothing behind."""
        self._check(number)
        place = self.place(name, number)
        # One that was killed before it had its lock is left alone for a minute.
        held = (path / ownership.FILE for path in store.partial_directories(place))
        if left := [path.parent for path in held if path.exists()]:
            raise BrokenError(f"{len(left)} unfinished run(s) are left, such as {left[0].name}")
        if name == "ingest" and digests(place) != self.ingested:
            raise BrokenError("ingest did not complete what was left")
        done = [run.record.requested for run in store.read_runs(self.runs)[0] if not problem(run)]
        seeds = [one["repeat"] for one in done if one.get("seed") == 1000 + number]
        if name == "plan" and sorted(seeds) != [0, 1]:
            raise BrokenError(f"the plan has repeats {seeds} completed, not 0 and 1")


def problem(run: store.Run) -> bool:
    """Return whether a run is not completed and whole."""
    return run.record.status != "completed" or bool(run.problems)


def phase(name: str, runs: Path, mark: str) -> str:
    """Return what a command is doing, from the files of its newest unfinished run."""
    if name == "report":
        return "executing pages" if len(marked(mark)) > 1 else "reading"
    partials = store.partial_directories(runs)
    if not partials:
        return "before a run"
    if (partials[-1] / "record.json").exists():
        return "recording"
    return "steps" if (partials[-1] / "steps.jsonl").exists() else "starting a run"


def digests(runs: Path) -> dict[str, str]:
    """Return a digest of the files of each published run, but for who holds it."""
    return {path.name: digest(path) for path in store.run_directories(runs) if runs.is_dir()}


def digest(directory: Path) -> str:
    """Return a digest of the names and contents of the files below a directory."""
    found = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        if path.name != ownership.FILE:
            found.update(f"{path.relative_to(directory)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def soak(folder: Path, kills: int, seed: int, report_every: int) -> None:
    """Kill so many times, and print how often what was killed."""
    soak = Soak(folder, random.Random(seed), report_every)
    code, text = whole(soak.arguments("ingest", 0))
    soak.ingested = digests(soak.place("ingest", 0))
    if code or not soak.ingested:
        raise BrokenError(text)
    code, text = whole(soak.arguments("plan", 0))  # something to lose, and to report on
    if code:
        raise BrokenError(text)
    number = 0
    while soak.kills.total() < kills:
        number += 1
        soak.kill_one(number)
    time.sleep(ownership.NEW_SECONDS)
    whole(("recover", "--runs", str(soak.runs)))
    if left := store.partial_directories(soak.runs):
        raise BrokenError(f"{len(left)} unfinished run(s) are left at the end")
    print(f"\n{'command':8} {'killed':10} {'while':18} kills")
    for (name, victim, when), count in sorted(soak.kills.items()):
        print(f"{name:8} {victim:10} {when:18} {count:5}")
    print(f"{soak.kills.total()} kills, {len(soak.published)} runs published; nothing was lost.")


def main() -> int:
    """Run the soak that the arguments describe; 0: all held."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="kills (default: 200)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of a soak to repeat")
    parser.add_argument("--report-every", type=int, default=1, metavar="N", help="kills per report")
    parser.add_argument("--runs", type=int, metavar="N", help="one plan of N runs, without kills")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="scalebook-soak-"))
    print(f"seed {seed}, in {folder}", flush=True)
    try:
        if options.runs:
            plan_without_growth(folder, options.runs)
        else:
            soak(folder, options.kills, seed, options.report_every)
    except BrokenError as error:
        print(f"BROKEN: {error}\nThe files are in {folder}. Seed: {seed}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
