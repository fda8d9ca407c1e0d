"""Probe this machine: start the probe's processes, watch them, and leave a probe among the runs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from scalebook import project, scrub, store
from scalebook.config import RunConfig
from scalebook.errors import LaunchError, RecordError, not_installed
from scalebook.facts import catalog
from scalebook.measure.probes import Probe, ProbeRequest, Status
from scalebook.measure.probes.files import FILE, FOLDER, read_probe
from scalebook.measure.probes.lines import summary
from scalebook.running import launch, processes
from scalebook.running.container.rules import variables
from scalebook.running.devices import detect
from scalebook.running.outcome import LOG_TAIL_LINES
from scalebook.running.progress import POLL_SECONDS, last_lines

MODULE = "scalebook.probe.measurement"
LOG = "probe.log"
REQUEST = "request.json"
GRACE_SECONDS = 10.0
START_SECONDS = 180.0  # imports, groups of processes and first calls, beside the measurements
PROCESSES_PER_CORE = 8  # of a CPU: with more they only wait for each other
# Model, seconds and sequence length where they are not named.
DEFAULTS = {"cpu": ("tiny-llama", 4.0, 128), "gpu": ("llama3.1-8b", 60.0, 4096)}

Show = Callable[[str], None]


def request(
    platform: str = "",
    *,
    world_size: int = 0,
    models: tuple[str, ...] = (),
    seconds: float = 0.0,
    micro_batch_size: int = 1,
    sequence_length: int = 0,
) -> ProbeRequest:
    """Return what to probe; an empty or zero value stands for what the machine has or is usual.

    Raises:
        CatalogError: the platform or a model is not known.
        LaunchError: this machine is another platform, or has fewer devices.
    """
    machine = detect.detect()
    chosen = catalog.platform(platform) if platform else detect.platform_of(machine)
    refusal = detect.refusal(chosen, machine)
    if refusal:
        raise LaunchError(refusal)
    kind = "cpu" if chosen.vendor == "cpu" else "gpu"
    cores = os.cpu_count() or 1
    most = machine.count if kind == "gpu" else PROCESSES_PER_CORE * cores
    if world_size > most:
        here = machine.describe() if kind == "gpu" else f"{cores} cores can share"
        raise LaunchError(
            f"--world-size {world_size} is more than this machine's {here}. Use at most {most}."
        )
    model, usual_seconds, usual_length = DEFAULTS[kind]
    names = models or (model,)
    return ProbeRequest(
        platform=chosen.name,
        world_size=world_size or (1 if kind == "cpu" else machine.count),
        models=tuple(catalog.model(name).name for name in names),
        seconds=seconds or usual_seconds,
        micro_batch_size=micro_batch_size,
        sequence_length=sequence_length or usual_length,
    )


def names(text: str) -> tuple[str, ...]:
    """Return the names in a text that commas separate."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def show_result(found: Probe) -> None:
    """Print a probe, so that a notebook of one that did not complete ends in an error.

    Raises:
        LaunchError: the probe did not complete.
    """
    print(summary(found))
    if found.status != "completed":
        raise LaunchError(f"Probe {found.probe_id}: {found.status}. {found.reason}.")


def probe(
    asked: ProbeRequest, runs: str = "", show: Show = lambda _: None, module: str = MODULE
) -> Probe:
    """Return the probe of this machine, whatever became of it; it is among the runs then.

    Raises:
        LaunchError: torch is not installed.
        RecordError: the folder of runs cannot be written.
    """
    if find_spec("torch") is None:
        raise LaunchError(f"{not_installed('torch', 'train')} Or use a training container.")
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{asked.platform}-w{asked.world_size}"
    partial = store.create_directory(project.runs_folder(runs) / FOLDER, name)
    store.write_json(partial / REQUEST, asked.model_dump())
    code, status = _run(partial, asked, show, module)
    found = _concluded(partial, asked, code, status)
    store.write_json(partial / FILE, found.model_dump(mode="json"))
    (partial / REQUEST).unlink()
    store.publish(partial)
    return found


def command(partial: Path, asked: ProbeRequest, module: str = MODULE) -> launch.Launch:
    """Return how a probe is started: like training, through torchrun."""
    config = RunConfig.from_parameters(
        {
            "platform": asked.platform,
            "model": asked.models[0],
            "world_size": asked.world_size,
            "global_batch_size": asked.world_size,
            "sequence_length": asked.sequence_length,
        }
    )
    start = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(asked.world_size), "-m", module),
        *("--request", str(partial / REQUEST), "--output", str(partial)),
    )
    return launch.Launch(start, variables(config))


def _run(partial: Path, asked: ProbeRequest, show: Show, module: str) -> tuple[int, Status]:
    """Run the processes; return the exit code and the status that ended them."""
    name = partial.name.removeprefix(store.PARTIAL_PREFIX)
    started = command(partial, asked, module)
    environment, log = started.environment(os.environ), partial / LOG
    deadline = time.monotonic() + 2 * asked.seconds + START_SECONDS
    status: Status = "completed"
    process = launch.guarded(name, GRACE_SECONDS, started.command, environment, log)
    try:
        with processes.handled(signal.default_int_handler):
            while process.poll() is None:
                if time.monotonic() > deadline:
                    status = "timeout"
                    break
                show("".join(last_lines(log, 2)).strip() or "starting")
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        status = "interrupted"
    if status != "completed":
        process.terminate()
    code = process.wait(GRACE_SECONDS + 30)
    processes.end(name)
    return code, "failed" if code != 0 and status == "completed" else status


def _concluded(partial: Path, asked: ProbeRequest, code: int, status: Status) -> Probe:
    """Return what the processes wrote, with how they ended."""
    try:
        found = read_probe(partial)
    except RecordError:
        name = partial.name.removeprefix(store.PARTIAL_PREFIX)
        found = Probe(probe_id=name, request=asked)
    tail = () if status == "completed" else last_lines(partial / LOG, LOG_TAIL_LINES)
    reasons = {
        "completed": None,
        "timeout": "The probe took more than twice its time and was ended",
        "interrupted": "The probe was interrupted by hand",
        "failed": f"The probe's processes ended with exit code {code}; the log says why",
    }
    return found.model_copy(
        update={
            "status": status,
            "reason": reasons[status],
            "log_tail": scrub.scrub_all(tail, os.environ),
        }
    )
