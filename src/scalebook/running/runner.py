"""Train one configuration: start it, watch it, end it if it must end, and write its record.

Runs inside the notebook's kernel, and in any Python process. It loads no torch, and what the
trainer prints goes to a file: a kernel's output can be lost, and printing costs the ranks time.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

from scalebook import engines, host, ownership, project, store
from scalebook.config import RunConfig
from scalebook.errors import LaunchError
from scalebook.facts import catalog, legality
from scalebook.record import RunRecord
from scalebook.running import finish_run, launch, processes, progress
from scalebook.running.devices import detect, telemetry
from scalebook.running.kernel import RunOptions
from scalebook.running.outcome import EndReason, signal_name
from scalebook.running.progress import POLL_SECONDS, ProgressLimit, Tail, extra_seconds, line

GRACE_SECONDS = 20.0  # from SIGTERM to SIGKILL: a trainer finishes its step and closes its group
SHOW_SECONDS = 2.0  # each change of a notebook's output is a message to whoever reads it
STOP_FILE = "stop.json"  # whoever wants a run to end writes it into the run's directory

DEFAULTS = RunOptions()

Show = Callable[[str], None]


def train(
    config: RunConfig, options: RunOptions = DEFAULTS, show: Show = lambda _: None
) -> RunRecord:
    """Return the record of one run, whatever becomes of it; ``show`` gets a line now and then.

    Raises:
        ConfigError: the configuration is illegal.
        LaunchError: this machine cannot run it.
    """
    check(config, force_platform=options.force_platform)
    if not options.trainer and config.engine == "megatron":
        launch.require_trainer()
    if options.run_directory:
        return _train_in(Path(options.run_directory), config, options.trainer, show)
    runs = project.runs_folder(options.runs)
    partial = store.create_partial(runs, config)
    with ownership.owned(partial):
        record = _train_in(partial, config, options.trainer, show)
        return record.model_copy(update={"run_id": store.publish(partial).name})


def check(config: RunConfig, *, force_platform: bool = False, allocated: bool = False) -> None:
    """Refuse what cannot run here, before anything is started.

    ``allocated``: a scheduler gave the run all its nodes, and this machine is one of them.

    Raises:
        ConfigError: the configuration is illegal.
        LaunchError: this machine cannot run it.
    """
    legality.refuse(legality.Case(config, catalog.model(config.model)))
    engines.check(config)
    platform = catalog.platform(config.platform)
    devices = None
    if platform.vendor != "cpu":
        machine = detect.detect()
        refusal = None if force_platform else detect.refusal(platform, machine)
        if refusal:
            raise LaunchError(refusal)
        devices = machine.count
    missing = launch.unavailable(config, devices, allocated=allocated)
    if missing:
        raise LaunchError(f"This run {missing}.")


def _train_in(directory: Path, config: RunConfig, trainer: str, show: Show) -> RunRecord:
    plan = launch.direct(
        config, config_path=directory / "config.json", output=directory, trainer=trainer
    )
    environment = plan.environment(os.environ)
    # The interpreter's path says nothing that another machine could use.
    command = ("python", *plan.command[1:])
    start = uuid4().hex
    finish_run.write_launch(directory, command, host.facts(environment, project.root()), start)
    end = supervise(directory, config, plan.command, environment, start, show=show)
    return finish_run.conclude(directory, end)


def supervise(
    directory: Path,
    config: RunConfig,
    command: tuple[str, ...],
    environment: Mapping[str, str],
    start: str,
    *,
    node: int = 0,
    show: Show = lambda _: None,
    ended: Callable[[], EndReason | None] = lambda: None,
) -> finish_run.Ended:
    """Start this machine's ranks, sample its devices, and return and note how the ranks ended.

    ``start`` is the mark of this start (``processes.START``); ``ended`` returns why the ranks must
    end for a reason that neither the directory nor a limit of the run gives.
    """
    run_id = finish_run.run_id(directory)
    began, kills_before = time.monotonic(), processes.memory_kills()
    with telemetry.sampling(directory, config, environment, node):
        log = finish_run.log_file(directory, node)
        marked = {**environment, processes.START: start}
        process = launch.guarded(run_id, GRACE_SECONDS, command, marked, log)
        stop = _watch(
            process,
            directory,
            config,
            show,
            ended,
            stopped=lambda: progress.stopped_rank(processes.ranks(run_id, start), log),
        )
        kills = max(processes.memory_kills() - kills_before, 0)
        killed = processes.killed_for_memory(began)
        code = processes.shell_code(process.returncode)
        if stop is None and process.returncode < 0 and not kills:
            # The guard itself: of what it ran it answers with 128 + n.
            name = signal_name(-process.returncode)
            stop = ("interrupted", f"The process that guards the run was ended by {name}")
        end = finish_run.Ended(code, stop, kills, tuple(sorted(killed)))
        finish_run.write_exit(directory, end, node)
    # a killed guard leaves the run behind
    processes.end(run_id, start=start)
    (directory / STOP_FILE).unlink(missing_ok=True)
    return end


def _watch(
    process: subprocess.Popen[bytes],
    directory: Path,
    config: RunConfig,
    show: Show,
    ended: Callable[[], EndReason | None],
    *,
    stopped: Callable[[], str | None],
) -> EndReason | None:
    """Return when the run has ended, with why if it was ended from here.

    ``stopped`` names the rank that stopped, where that is clear.
    """
    limit = config.time_limit_seconds
    deadline = time.monotonic() + limit if limit else None
    tail = Tail(directory / "steps.jsonl")
    progress_limit = ProgressLimit(directory, config.progress_limit_seconds, tail)
    stop: EndReason | None = None
    next_show = 0.0
    try:
        while stop is None and process.poll() is None:
            if time.monotonic() >= next_show:
                next_show = time.monotonic() + SHOW_SECONDS
                show(line(tail.read(), config.steps, tail.quiet_seconds()))
            time.sleep(POLL_SECONDS)
            asked = store.read_object(directory / STOP_FILE)
            stop = (asked["status"], asked["sentence"]) if asked else ended()
            if stop is None and deadline is not None and time.monotonic() > deadline:
                extra = extra_seconds(tail.read(), config.steps)
                if time.monotonic() > deadline + extra:
                    stop = ("timeout", f"The time limit of {limit} s ran out")
            if stop is None and progress_limit.reached():
                sentence = f"No step for {config.progress_limit_seconds} s"
                where = stopped()
                stop = ("timeout", f"{sentence}: {where}" if where else sentence, "no_progress")
    except KeyboardInterrupt:
        stop = ("interrupted", "The run was interrupted by hand")
    if stop is not None:
        _end(process)
    return stop


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run through its guard, which asks, waits and kills; end the guard if it does not."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS + 10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
