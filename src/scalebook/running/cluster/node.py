"""One node's part of a run on a cluster; the first node writes the run's record.

``python -m scalebook.running.cluster.node DIRECTORY`` is what a job starts once on each node. It
runs the ranks as ``scalebook run`` runs those of one machine (``runner.supervise``). The nodes know
of each other by the files of the run's directory, which all of them see.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from scalebook import host, ownership, project, store
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError, ScalebookError
from scalebook.plan import schedule
from scalebook.record import Status
from scalebook.running import finish_run, launch, processes, runner, todo
from scalebook.running.cluster import node_logs
from scalebook.running.cluster.node_logs import ASKED, FOLLOWED
from scalebook.running.launch import Launch
from scalebook.running.outcome import EndReason
from scalebook.running.todo import Inference

JOIN_SECONDS = 600  # for every node to come to the rendezvous: images may have to be unpacked
REPORT_SECONDS = 60.0  # for the other nodes to end after the first one has
LOOK_SECONDS = 2.0  # between two looks at what other nodes noted: the folder is shared
ENDED_CODE = 128 + signal.SIGTERM
REQUEUED = "Slurm requeued the job "


@dataclass(slots=True)
class NodePart:
    """This node's part of a run: which node it is, and whether the scheduler wants it to end."""

    directory: Path
    config: RunConfig
    number: int
    options: argparse.Namespace
    start: str = field(default_factory=lambda: uuid4().hex)
    asked_to_end: bool = False
    _looked: float = 0.0

    def listen(self) -> None:
        """Take SIGTERM as the scheduler's word that the job is to end."""

        def note(_number: int, _frame: Any) -> None:
            self.asked_to_end = True

        for number in processes.STOPPING:
            signal.signal(number, note)

    def ended(self) -> tuple[Status, str] | None:
        """Return why this node's ranks must end now, None while they need not."""
        if self.asked_to_end:
            # At once: some seconds after SIGTERM comes SIGKILL.
            end = finish_run.Ended(ENDED_CODE, ASKED)
            with suppress(FileNotFoundError):
                finish_run.write_exit(self.directory, end, self.number)
            return ASKED
        if self.config.nodes == 1 or time.monotonic() - self._looked < LOOK_SECONDS:
            return None
        self._looked = time.monotonic()
        with suppress(FileNotFoundError):  # the first node has published the run
            ends = node_logs.ends(self.directory).items()
            failed = any(end.exit_code for node, end in ends if node != self.number)
            return FOLLOWED if failed else None
        return FOLLOWED

    def launch(self) -> Launch:
        """Return how this node starts its ranks; where the nodes meet is the job's choice.

        Raises:
            LaunchError: nothing says where the nodes meet.
        """
        nodes, where = ("--nnodes", str(self.config.nodes)), self.options.rendezvous
        if where:
            # c10d settles by itself which node holds rank 0, and can start all ranks again.
            name = f"{self.options.job}.{self.options.restart}"
            meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", where, "--rdzv-id", name)
            meeting += ("--rdzv-conf", f"join_timeout={JOIN_SECONDS}")
        elif self.config.nodes == 1:
            nodes, meeting = (), ("--standalone",)
        elif address := os.environ.get("MASTER_ADDR"):
            port = os.environ.get("MASTER_PORT", "29500")
            meeting = ("--node-rank", str(self.number))
            meeting += ("--master-addr", address, "--master-port", port)
        else:
            raise LaunchError("MASTER_ADDR is not set. Set it, or give --rendezvous HOST:PORT.")
        return launch.direct(
            self.config,
            config_path=self.directory / "config.json",
            output=self.directory,
            trainer=self.options.trainer,
            meeting=(*nodes, *meeting),
        )

    def run(self, plan: Launch, environment: dict[str, str]) -> finish_run.Ended:
        return runner.supervise(
            self.directory,
            self.config,
            plan.command,
            environment,
            self.start,
            node=self.number,
            ended=self.ended,
        )


def main(arguments: Sequence[str]) -> int:
    """Run this node's part of a run; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.running.cluster.node")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--config", default="", help="RunConfig as JSON: create the directory")
    parser.add_argument("--trainer", default="")
    parser.add_argument("--force-platform", action="store_true")
    parser.add_argument("--rendezvous", default="", help="HOST:PORT; default: MASTER_ADDR")
    parser.add_argument("--job", default="", help="the scheduler's name of the job")
    parser.add_argument("--restart", type=int, default=0, help="how often it was requeued")
    parser.add_argument(
        "--prune", action="store_true", help="skip runs that do not fit by the records"
    )
    parser.add_argument("--fresh", action="store_true", help="use the records of this job only")
    parser.add_argument("--cool-down", default="", help="30s or 45C, before the run starts")
    options = parser.parse_args(arguments)
    try:
        part = _part(options)
        part.listen()
        return _follow(part) if part.number else _lead(part)
    except ScalebookError as error:
        print(f"scalebook: {error}", file=sys.stderr)
        return 2


def _part(options: argparse.Namespace) -> NodePart:
    directory: Path = options.directory
    name = "SLURM_NODEID" if "SLURM_NODEID" in os.environ else "RANK"
    text = os.environ.get(name, "")
    number = int(text) if text.isdigit() else None
    if options.config:
        _create(directory, options.config, number or 0)
    config = RunConfig.from_parameters(store.read_object(directory / "config.json"))
    if number is None and config.nodes == 1:
        number = 0
    if number is None or number >= config.nodes:
        raise LaunchError(f"{name}={text!r} is not one of the run's {config.nodes} nodes (0, ...).")
    return NodePart(directory, config, number, options)


def _create(directory: Path, text: str, number: int) -> None:
    """Create a run's directory on the first node, and wait for it on the others."""
    if number:
        _wait((directory / "config.json").exists, JOIN_SECONDS)
        return
    final = directory.with_name(finish_run.run_id(directory))
    if final == directory or final.exists() or directory.exists():
        raise LaunchError(f"{directory} is not a new run's .partial-NAME. Choose another NAME.")
    try:
        config = RunConfig.from_parameters(json.loads(text))
    except ValueError as error:
        raise ConfigError(f"--config is not JSON: {error}. Give the fields of a run.") from error
    directory.mkdir(parents=True)
    store.write_json(directory / ownership.JOB_FILE, {"scheduler": "kubernetes"})
    store.write_json(directory / "config.json", config.model_dump())


def _lead(part: NodePart) -> int:
    """Run the first node's part: settle whether and when the run starts, and write its record."""
    directory, options = part.directory, part.options
    if options.prune:
        since = options.job if options.fresh else ""
        inference = todo.broken(directory.parent, None, job_id=since).against(part.config)
        if inference is not None:
            return _skip(part, inference)
    if options.cool_down:
        _cool_down(part)
    if part.asked_to_end:
        return ENDED_CODE
    try:
        if not options.trainer and part.config.engine == "megatron":
            launch.require_trainer()
        runner.check(part.config, force_platform=options.force_platform, allocated=True)
        plan = part.launch()
    except (ConfigError, LaunchError) as error:
        _record(part, ("failed", str(error)))
        raise
    environment = plan.environment(os.environ)
    facts = host.facts(environment, project.root()) | _job(part)
    finish_run.write_launch(directory, ("python", *plan.command[1:]), facts, part.start)
    end = part.run(plan, environment)
    if end.stop == ASKED and options.job:
        return ENDED_CODE  # the job may be requeued; otherwise 'scalebook status' asks Slurm why
    _wait(lambda: part.asked_to_end or len(node_logs.ends(directory)) >= part.config.nodes)
    stop = None if end.stop == FOLLOWED else end.stop
    return _record(part, node_logs.own_stop(directory) or stop)


def _follow(part: NodePart) -> int:
    """Run another node's part; the first node looks at its code, so that 0 is returned.

    srun ends all nodes when one answers with another code: that is kept for a node that breaks.
    """
    started = part.directory / finish_run.LAUNCH_FILE
    there = part.directory.is_dir  # not any more where the first node has published the run
    _wait(lambda: part.asked_to_end or started.exists() or not there(), math.inf)
    if part.asked_to_end:
        return ENDED_CODE
    if not started.exists():
        return 0  # the run was not started, as the first node says
    try:
        plan = part.launch()
        end = part.run(plan, plan.environment(os.environ))
    except FileNotFoundError:  # the first node did not wait any longer
        return 0
    return ENDED_CODE if end.stop == ASKED else 0


def _wait(condition: Callable[[], bool], seconds: float = REPORT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.5)


def _job(part: NodePart) -> dict[str, Any]:
    """Return what the record says of the job; a requeue is noted in the run's schedule too."""
    if not part.options.job:
        return {"kubernetes": {}}
    restart = part.options.restart
    if restart:
        file = part.directory / finish_run.SCHEDULE_FILE
        kept = store.read_object(file)
        times = "once" if restart == 1 else f"{restart} times"
        note = f"{REQUEUED}{times}; the files of the earlier attempts are in attempts/."
        notes = [one for one in kept.get("notes", ()) if not one.startswith(REQUEUED)]
        store.write_json(file, {**kept, "notes": [*notes, note]})
    submitted = store.read_object(part.directory / ownership.JOB_FILE).get("submitted_at")
    return {"slurm": {"job_id": part.options.job, "submitted_at": submitted, "requeued": restart}}


def _skip(part: NodePart, inference: Inference) -> int:
    """Record a run that is not started, and why."""
    with ownership.owned(part.directory):
        end = finish_run.Ended(stop=inference.reason)
        finish_run.conclude(part.directory, end, inferred_from=inference.run_id)
        _publish(part.directory)
    print(f"{finish_run.run_id(part.directory)}: {inference.sentence}", flush=True)
    return 0


def _cool_down(part: NodePart) -> None:
    """Wait on this node, and note in the run's schedule what was waited for."""
    asked = schedule.cool_down(part.options.cool_down)
    if asked is None:
        return
    waited = todo.wait(asked, lambda: part.asked_to_end)
    file = part.directory / finish_run.SCHEDULE_FILE
    kept = store.read_object(file)
    notes = [*kept.get("notes", ()), *([waited.note] if waited.note else [])]
    store.write_json(file, {**kept, "cool_down": asdict(waited), "notes": notes})


def _record(part: NodePart, stop: EndReason | None) -> int:
    """Write the record of the run and give its directory its name; return the run's exit code."""
    with ownership.owned(part.directory):
        record = node_logs.conclude_nodes(part.directory, stop=stop)
        _publish(part.directory)
    print(f"{record.run_id}: {record.status}. {record.reason or ''}", flush=True)
    return record.exit_code or 0


def _publish(directory: Path) -> None:
    (directory / ownership.JOB_FILE).unlink(missing_ok=True)
    store.publish(directory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
