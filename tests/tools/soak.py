"""Kill processes of real commands at random moments, and check that nothing is lost.

``python tests/tools/soak.py --kills 200`` kills each kind of process in turn: those of a plan, and
the commands ingest, report, drill, tune and recover. Ranks are a trainer that needs no torch. The
moment is drawn over the whole life of the victim, which is measured first. With ``--folder`` a
series that was stopped continues. ``--runs 1000`` goes through one long plan instead, and checks
that its process does not grow.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

from commands import PLAN, ROOT, BrokenError, LeftError, ended, kill, lives, marked, start
from growth import plan_without_growth

from scalebook import ownership, store

# What is killed: the process, and the command that starts it.
VICTIMS = {
    "plan": ("command", "plan"),
    "kernel": ("kernel", "plan"),
    "guard": ("guard", "plan"),
    "torchrun": ("torchrun", "plan"),
    "rank": ("rank", "plan"),
    "sampler": ("sampler", "plan"),
    "ingest": ("command", "ingest"),
    "report": ("command", "report"),
    "drill": ("command", "drill"),
    "tune": ("command", "tune"),
    "recover": ("command", "recover"),
}
# The trainer saves no checkpoint to drill with and says no options that tune compares.
CODES = {"drill": (0, 1), "tune": (0, 1)}
LEFT = 12  # unfinished runs that each recover finds
TRIES = 8  # a busy machine is now faster, now slower than what was measured
KEPT = 5  # measured lives that count


@dataclass(frozen=True)
class Trial:
    """One kill: ``moment`` is the part of the victim's life that it had had by then."""

    number: int
    victim: str
    moment: float
    life_seconds: float
    outcome: str = "survived"  # or: lost, left running, broken, missed
    problem: str = ""


@dataclass
class Series:
    """A series of kills in a folder, where trials.jsonl has the seed and what was done so far."""

    folder: Path
    seed: int
    kills: int
    measured: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    lock: Lock = field(default_factory=Lock)

    @property
    def base(self) -> Path:
        return self.folder / "base"

    def victim(self, number: int) -> str:
        """Return what trial ``number`` kills: each once in a round, in an order of chance."""
        order = list(VICTIMS)
        random.Random(f"{self.seed} {number // len(order)}").shuffle(order)
        return order[number % len(order)]

    def moment(self, number: int) -> float:
        """Return at which part of its life the victim of a trial is killed."""
        return random.Random(f"{self.seed} moment {number}").random()

    def trials(self) -> list[Trial]:
        """Return the trials that were made, but for those whose victim was faster."""
        path = self.folder / "trials.jsonl"
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        found = (Trial(**json.loads(line)) for line in lines)
        return [one for one in found if one.outcome != "missed"]

    def note(self, trial: Trial) -> None:
        """Add a trial to the file, and print it."""
        with self.lock, (self.folder / "trials.jsonl").open("a") as stream:
            stream.write(json.dumps(asdict(trial)) + "\n")
            at = f"{trial.moment:.0%} of {trial.life_seconds:.1f} s"
            print(f"{trial.number}: {trial.victim} at {at}: {trial.outcome}", flush=True)
            if trial.problem:
                print(trial.problem, flush=True)

    def add_lives(self, command: str, found: dict[str, float]) -> None:
        """Keep how long the processes of a command lived."""
        for victim, (process, started) in VICTIMS.items():
            if started == command and process in found:
                self.measured.setdefault(victim, []).append(found[process])

    def life(self, victim: str) -> float:
        """Return how long a victim lives undisturbed, in seconds, as measured last."""
        return statistics.median(self.measured[victim][-KEPT:])

    def prepare(self) -> None:
        """Make what there is to lose, and measure each victim's life; both once."""
        known = self.base / "lives.json"
        if known.exists():
            self.measured = json.loads(known.read_text())
            return
        shutil.rmtree(self.base, ignore_errors=True)
        make_powercap(self.base / "powercap")
        Place(self, self.base).whole("plan", PLAN.format(seed=1, repeats="0, 1"))
        leave_runs(self.base)
        for command in dict.fromkeys(command for _, command in VICTIMS.values()):
            place = Place(self, self.folder / f"measured-{command}")
            shutil.copytree(self.base, place.folder)
            self.add_lives(command, place.whole(command))
            if command in ("ingest", "report"):
                name = "ingested" if command == "ingest" else "site"
                shutil.copytree(place.folder / name, self.base / f"whole-{name}")
            if command == "report":  # the next one replaces it
                shutil.copytree(place.folder / "site", self.base / "site")
            shutil.rmtree(place.folder)
        known.write_text(json.dumps(self.measured))
        print({victim: round(self.life(victim), 1) for victim in VICTIMS}, flush=True)

    def trial(self, number: int, worker: int) -> None:
        """Make one trial, again where its victim was faster."""
        victim, moment = self.victim(number), self.moment(number)
        for attempt in range(TRIES):
            life = self.life(victim)
            place = Place(self, self.folder / f"trial-{worker}")
            place.clear()
            shutil.copytree(self.base, place.folder)
            outcome, problem = "survived", ""
            try:
                if not place.survives(victim, moment * life, random.Random(f"{number} {attempt}")):
                    outcome = "missed"
            except BrokenError as error:
                outcome, problem = kind_of(error), str(error)
                place.folder.rename(self.folder / f"broken-{number}-{time.time():.0f}")
            self.note(Trial(number, victim, moment, life, outcome, problem))
            if outcome != "missed":
                return


@dataclass
class Place:
    """A folder with runs in which commands are started, killed, and started again."""

    series: Series
    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def mark(self) -> str:
        return str(self.folder)

    def clear(self) -> None:
        """Remove the folder, and end what a trial before, or a stopped series, left there."""
        for one in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def arguments(self, command: str, plan: str = "") -> tuple[str, ...]:
        """Return the arguments of a command."""
        path = self.folder / "plan.toml"
        path.write_text(plan or PLAN.format(seed=2, repeats="0"))
        runs = ("--runs", str(self.runs))
        fake = ("--platform", "cpu", *runs, "--trainer", "fake_trainer")
        size = ("--model", "tiny-llama", "--gpus", "1", "--set", "seed=2")
        site = ("--renderer", "preview", "--output", str(self.folder / "site"))
        return {
            "plan": ("run", "--plan", str(path), *fake),
            "drill": ("drill", "--plan", str(path), "--no-reference", *fake),
            "ingest": ("ingest", str(ROOT / "tests/logs"), "--runs", str(self.folder / "ingested")),
            "tune": ("tune", *size, "--budget-seconds", "60", *fake),
            "recover": ("recover", "--runs", str(self.folder / "left")),
            "tidy": ("recover", *runs),
            "report": ("report", *site, *runs),
        }[command]

    def whole(self, command: str, plan: str = "") -> dict[str, float]:
        """Run a command to its end; return how long its processes lived.

        Raises:
            BrokenError: it did not do all of its work, or left something running.
        """
        output = self.folder / "output.log"
        powercap = self.series.base / "powercap"
        process = start(self.arguments(command, plan), self.mark, output, powercap)
        found = lives(process)
        ended(process, self.mark, output)
        text = output.read_text(errors="replace")
        if process.returncode not in CODES.get(command, (0,)) or "Traceback" in text:
            raise BrokenError(f"{command} ended with {process.returncode}:\n{text[-3000:]}")
        return found

    def survives(self, victim: str, seconds: float, draw: random.Random) -> bool:
        """Kill a process of a command; return whether it was killed, and nothing is broken.

        Raises:
            BrokenError: something was lost or kept running, or the work was not completed.
        """
        wanted, command = VICTIMS[victim]
        before, output = digests(self.runs), self.folder / "killed.log"
        powercap = self.series.base / "powercap"
        process = start(self.arguments(command), self.mark, output, powercap)
        killed = kill(process, wanted, seconds, draw)
        begun = {name: lines for name, lines in steps(self.runs).items() if name not in before}
        ended(process, self.mark, output)
        if wanted != "command" and "Traceback" in output.read_text(errors="replace"):
            raise BrokenError(output.read_text(errors="replace")[-3000:])
        self._check(command, before, begun)
        if killed:
            self.series.add_lives(command, self.whole(command))
            self._check(command, before, begun)
            self._check_work(command)
        return bool(killed)

    def _check(self, command: str, before: dict[str, str], begun: dict[str, str]) -> None:
        """Compare what was published before, and what was begun, with what is there."""
        now = digests(self.runs)
        for run, digest in before.items():
            if now.get(run) != digest:
                raise LostError(f"{run} was {'changed' if run in now else 'lost'}")
        there = steps(self.runs)
        for run, lines in begun.items():
            if not there.get(run, "").startswith(lines):
                raise LostError(f"{run} has lost steps that it had recorded")
        for place in (self.runs, self.folder / "left", self.folder / "ingested"):
            if problems := store.read_runs(place)[1] if place.is_dir() else ():
                raise LostError("; ".join(problems))
        if command == "report":
            pages = sorted(path.name for path in (self.folder / "site").glob("*.html"))
            wanted = sorted(path.name for path in (self.folder / "whole-site").glob("*.html"))
            if pages and pages != wanted:
                raise LostError(f"a part of the site is there: {pages}")
        if command == "ingest":
            whole = digests(self.folder / "whole-ingested")
            for name, digest in digests(self.folder / "ingested").items():
                if whole.get(name) != digest:
                    raise LostError(f"ingest left {name}, which is not whole")

    def _check_work(self, command: str) -> None:
        """Check that the command, started again, did all of its work and left nothing behind."""
        for place in (self.runs, self.folder / "left", self.folder / "ingested"):
            partials = store.partial_directories(place)
            for one in partials:  # one that was killed before it had its lock may wait a minute
                os.utime(one, (0, 0))
            if any((one / ownership.FILE).exists() for one in partials):
                raise BrokenError(f"an unfinished run is left: {partials[0].name}")
        if store.partial_directories(self.runs):
            self.whole("tidy")
        if left := store.partial_directories(self.runs):
            raise BrokenError(f"an unfinished run is left by recover: {left[0].name}")
        done = [run.record for run in store.read_runs(self.runs)[0] if not run.problems]
        seeds = [one.requested.get("seed") for one in done if one.status == "completed"]
        if command == "plan" and seeds.count(2) != 1:
            raise BrokenError(f"the plan has {seeds.count(2)} completed runs, not one")
        if command == "ingest" and digests(self.folder / "ingested") != digests(
            self.folder / "whole-ingested"
        ):
            raise BrokenError("ingest did not complete what was left")
        if command == "report" and not (self.folder / "site" / "index.html").exists():
            raise BrokenError("there is no report")
        recovered = list(store.run_directories(self.folder / "left"))
        if command == "recover" and len(recovered) != LEFT:
            raise LostError(f"{len(recovered)} of {LEFT} runs were recovered")


class LostError(BrokenError):
    """Something that was finished, or recorded, is not there any more."""


def kind_of(error: BrokenError) -> str:
    """Return what a trial that failed counts as."""
    if isinstance(error, LeftError):
        return "left running"
    return "lost" if isinstance(error, LostError) else "broken"


def make_powercap(root: Path) -> None:
    """Write a stand-in for the energy counters of one CPU."""
    package = root / "intel-rapl:0"
    package.mkdir(parents=True)
    values = {"name": "package-0", "max_energy_range_uj": "262143328850", "energy_uj": "1000"}
    for name, value in values.items():
        (package / name).write_text(f"{value}\n")


def leave_runs(base: Path) -> None:
    """Make runs of which the process died long ago, after their last step."""
    run = next(iter(store.run_directories(base / "runs")))
    for number in range(LEFT):
        left = store.partial_path(base / "left", f"{run.name}-{number}")
        shutil.copytree(run, left)
        (left / "record.json").unlink()
        os.utime(left, (0, 0))


def steps(runs: Path) -> dict[str, str]:
    """Return the steps of every run of a folder, published or not, by its id."""
    found: dict[str, str] = {}
    for path in (*store.run_directories(runs), *store.partial_directories(runs)):
        file, name = path / "steps.jsonl", path.name.removeprefix(store.PARTIAL_PREFIX)
        with suppress(OSError):  # none yet, or renamed at this moment
            text = file.read_text()
            found[name] = text[: text.rfind("\n") + 1]
    return found


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


def opened(folder: Path, seed: int | None, kills: int) -> Series:
    """Return the series of a folder: the one that was begun there, or a new one."""
    path = folder / "trials.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        seed = int(json.loads(path.read_text().splitlines()[0])["seed"])
    else:
        seed = seed if seed is not None else random.SystemRandom().randrange(10**6)
        path.write_text(json.dumps({"seed": seed}) + "\n")
    print(f"seed {seed}, in {folder}", flush=True)
    return Series(folder, seed, kills)


def soak(series: Series, jobs: int) -> bool:
    """Make the trials that are to do, several at a time; return whether all were survived."""
    done = {trial.number for trial in series.trials()}
    to_do = [number for number in range(series.kills) if number not in done]
    if to_do:
        series.prepare()
    with ThreadPoolExecutor(jobs) as pool:

        def work(worker: int) -> None:
            while True:
                with series.lock:
                    number = to_do.pop(0) if to_do else None
                if number is None:
                    return
                series.trial(number, worker)

        list(pool.map(work, range(jobs)))
    trials = series.trials()
    print(table(trials))
    return all(trial.outcome == "survived" for trial in trials)


def table(trials: list[Trial]) -> str:
    """Return the counts by victim: when it was killed, and what became of it."""
    outcomes = ("lost", "left running", "broken")
    heads = ("killed", "trials", "first third", "second", "last", "lost", "left running", "broken")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for victim in (*VICTIMS, "all"):
        found = [one for one in trials if victim in (one.victim, "all")]
        thirds = [sum(int(one.moment * 3) == third for one in found) for third in range(3)]
        counts = [sum(one.outcome == outcome for one in found) for outcome in outcomes]
        lines.append("| " + " | ".join(map(str, (victim, len(found), *thirds, *counts))) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run the soak that the arguments describe; 0: all held."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="kills (default: 200)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of a series to repeat")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at a time")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="of a series to continue")
    parser.add_argument("--runs", type=int, metavar="N", help="one plan of N runs, without kills")
    parser.add_argument("--minutes", type=float, default=1e6, metavar="N", help="for those runs")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="scalebook-soak-"))
    try:
        if options.runs:
            plan_without_growth(folder, options.runs, options.minutes * 60)
            survived = True
        else:
            survived = soak(opened(folder.resolve(), options.seed, options.kills), options.jobs)
    except BrokenError as error:
        print(f"BROKEN: {error}", file=sys.stderr)
        survived = False
    if survived and not options.folder:
        shutil.rmtree(folder)
    else:
        print(f"The files are in {folder}.")
    return 0 if survived else 1


if __name__ == "__main__":
    sys.exit(main())
