"""What each pod of a PyTorchJob runs: its node's ranks, and on the first node the run's record.

``python -m scalebook.running.cluster.pod --runs FOLDER --run-id ID --config JSON``. Kubeflow's
operator gives a pod its place in RANK, MASTER_ADDR and MASTER_PORT. The folder is a claim that
every pod sees.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scalebook import __version__, engines, host, ownership, store, untrusted
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError, ScalebookError
from scalebook.running import finish_run
from scalebook.running.cluster import node, node_logs, node_record
from scalebook.running.processes import shell_code

WAIT_SECONDS = 600.0  # for the first pod to start, and for the last one to end
PORT = "29500"  # of the operator's own master, where it does not tell


def main(arguments: Sequence[str]) -> int:
    """Run this pod's part; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.running.cluster.pod")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--config", required=True, help="RunConfig as JSON")
    parser.add_argument("--trainer", default="")
    options = parser.parse_args(arguments)
    try:
        config = RunConfig.from_parameters(json.loads(options.config))
        if Path(options.run_id).name != options.run_id or options.run_id.startswith("."):
            raise LaunchError(f"--run-id {options.run_id!r} is no name of a folder.")
        return run(config, options.runs, options.run_id, options.trainer)
    except (ScalebookError, ValueError) as error:
        print(f"scalebook.running.cluster.pod: {error}", file=sys.stderr)
        return 2


def run(config: RunConfig, runs: Path, run_id: str, trainer: str = "") -> int:
    """Train this node's share of a run; the first node writes the record when all have ended."""
    number = _rank(os.environ, config)
    directory = store.partial_path(runs, run_id)
    if number == 0:
        _create(directory, config, runs / run_id)
    elif not _wait((directory / "config.json").exists):
        raise LaunchError(f"The first pod made no {directory} in {WAIT_SECONDS:.0f} s.")
    os.environ["NODE_RANK"] = str(number)
    command = command_of(config, directory, number, os.environ, trainer)
    if number == 0:
        variables = host.performance_variables(os.environ)
        environment = {"scalebook": __version__, "variables": variables, "kubernetes": {}}
        finish_run.write_launch(directory, ("python", *command[1:]), environment)
    with untrusted.appended(directory / f"{node_logs.PREFIX}{number}") as log:
        agent = (sys.executable, "-m", "scalebook.running.cluster.node", str(directory), *command)
        code = subprocess.run(agent, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    code = shell_code(code)
    if number == 0:
        _record(directory, config, code)
    print(f"{run_id}, node {number} of {config.nodes}: exit code {code}.", flush=True)
    return code


def _rank(environment: Mapping[str, str], config: RunConfig) -> int:
    """Return which of the job's pods this is.

    Raises:
        LaunchError: the operator did not tell, or tells of more pods than the run has nodes.
    """
    text = environment.get("RANK", "0" if config.nodes == 1 else "")
    if not text.isdigit() or int(text) >= config.nodes:
        raise LaunchError(
            f"RANK={text!r} is no place among {config.nodes} pods. Start this by a PyTorchJob, as "
            "'scalebook run --launcher kubernetes --dry-run' prints it."
        )
    return int(text)


def _create(directory: Path, config: RunConfig, final: Path) -> None:
    if final.exists():
        raise LaunchError(f"{final} exists: this job has run before. Make a new manifest.")
    try:
        directory.mkdir(parents=True)
    except FileExistsError as error:
        raise LaunchError(f"{directory} belongs to another job. Make a new manifest.") from error
    store.write_json(directory / ownership.JOB_FILE, {"scheduler": "kubernetes"})
    store.write_json(directory / "config.json", config.model_dump())


def command_of(
    config: RunConfig,
    directory: Path,
    number: int,
    environment: Mapping[str, str],
    trainer: str = "",
) -> tuple[str, ...]:
    """Return torchrun's argv of a pod: the operator has settled who is the master."""
    each = config.world_size // config.nodes
    address = environment.get("MASTER_ADDR", "localhost")
    if config.nodes > 1 and "MASTER_ADDR" not in environment:
        raise ConfigError("MASTER_ADDR is not set. Start this by a PyTorchJob of several pods.")
    return (
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(config.nodes)),
        *("--nproc-per-node", str(each), "--node-rank", str(number)),
        *("--master-addr", address, "--master-port", environment.get("MASTER_PORT", PORT)),
        *("-m", trainer or engines.TRAINERS[config.engine]),
        *("--config", str(directory / "config.json"), "--output", str(directory)),
    )


def _record(directory: Path, config: RunConfig, code: int) -> None:
    """Wait for the other pods' reports, and write the record with what they tell."""
    _wait(lambda: len(node.reports(directory)) >= config.nodes)
    codes = [report.get("exit_code", 1) for report in node.reports(directory).values()]
    with ownership.owned(directory):
        node_record.conclude_nodes(directory, exit_code=code or max(codes, default=0))
        (directory / ownership.JOB_FILE).unlink(missing_ok=True)
        store.publish(directory)


def _wait(condition: Callable[[], bool]) -> bool:
    """Return whether a condition came true in time; a shared file system shows changes late."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
