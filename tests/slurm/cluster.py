"""A real Slurm cluster of two hosts on one machine, for tests: needs root, Slurm and munge.

Each host is a process in a network, host-name and mount namespace of its own, so that nodes have
names and addresses that differ, as on a real cluster. Nothing has a name outside: when the
processes end, the namespaces, links and mounts are gone with them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ASKED = "SCALEBOOK_TEST_SLURM"
TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "nsenter", "ip")
HOSTS = {"ctl": "10.77.0.1", "node1": "10.77.0.11", "node2": "10.77.0.12"}
NODES = ("node1", "node2")
LIFE_SECONDS = "900"  # a daemon ends by itself then, even if a test was killed
START_SECONDS = 30.0

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=ctl(10.77.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
InactiveLimit=0
KillWait=5
MinJobAge=3600
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=node1 NodeAddr=10.77.0.11 Port=17001 CPUs=4 Gres=gpu:2 State=UNKNOWN
NodeName=node2 NodeAddr=10.77.0.12 Port=17001 CPUs=4 Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Return why no cluster is made here, None if one can be."""
    if not os.environ.get(ASKED):
        return "asked for by 'make test-slurm' alone"
    if os.geteuid() != 0:
        return "a Slurm cluster in namespaces needs root"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=_path()) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@dataclass(slots=True)
class Cluster:
    """The cluster's folders, and the process that holds each host's namespaces."""

    folder: Path
    munge: Path
    holders: dict[str, subprocess.Popen[bytes]]

    def on(self, host: str, *command: str) -> list[str]:
        """Return the command as it is run on a host."""
        process = str(self.holders[host].pid)
        return ["nsenter", "-t", process, "-n", "-u", "-m", f"--wd={Path.cwd()}", *command]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return what a client's process needs to know."""
        known = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}
        return {**os.environ, **known, **(extra or {})}

    def run(
        self, *command: str, timeout: float = 60, cwd: Path | None = None, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login host, ``ctl``; return what it answered."""
        enter = self.on("ctl")[:-1]
        return subprocess.run(
            [*enter, f"--wd={cwd or Path.cwd()}", *command],
            env=self.environment(extra),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def job(self, job_id: str) -> dict[str, str]:
        """Return the fields of a job as the controller has them."""
        text = self.run("scontrol", "show", "job", "-o", job_id).stdout
        return dict(part.split("=", 1) for part in text.split() if "=" in part)


@contextmanager
def cluster(folder: Path) -> Generator[Cluster]:
    """Yield a cluster whose nodes are idle; nothing of it is left afterwards."""
    # munged refuses a socket below a folder that others cannot enter, as pytest's are.
    made = Cluster(folder, Path(tempfile.mkdtemp(prefix="slurm-test-")), {})
    _lay_out(made)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for host in HOSTS:
            made.holders[host] = _hold(folder, host)
        _link(made)
        daemons.append(_munge(made))
        time.sleep(1)
        daemons.append(_daemon(made, "ctl", "slurmctld", "-D", "-c"))
        time.sleep(1)
        daemons.extend(_daemon(made, node, "slurmd", "-D", "-N", node) for node in NODES)
        _wait_until_idle(made)
        yield made
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):
            made.run("scancel", "--full", "--signal=KILL", "--user=root", timeout=10)
            made.run("scancel", "--user=root", timeout=10)
        _end(daemons[::-1])
        _kill_inside(made)
        _end(list(made.holders.values()))
        shutil.rmtree(made.munge, ignore_errors=True)


def _lay_out(made: Cluster) -> None:
    folder, munge = made.folder, made.munge
    for name in ("state", "spool/node1", "spool/node2", "log", "run", "dev"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    munge.chmod(0o755)
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, munge=munge))
    for number in (0, 1):  # stands for a GPU: Slurm wants a device file
        os.mknod(folder / "dev" / f"gpu{number}", 0o020600, os.makedev(1, 3))
    gres = f"NodeName=node[1-2] Name=gpu File={folder}/dev/gpu[0-1]\n"
    (folder / "gres.conf").write_text(gres)
    hosts = "".join(f"{address} {name}\n" for name, address in HOSTS.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    key = munge / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)


def _hold(folder: Path, host: str) -> subprocess.Popen[bytes]:
    """Start the process that holds a host's namespaces, and return it when they are ready."""
    ready = folder / "run" / f"{host}.ready"
    script = 'hostname "$1"; mount --bind "$2" /etc/hosts; : > "$3"; exec sleep "$4"'
    command = ["unshare", "-n", "-u", "-m", "--propagation", "private", "sh", "-ec", script, "sh"]
    process = subprocess.Popen(
        [*command, host, str(folder / "hosts"), str(ready), LIFE_SECONDS],
        stdin=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + START_SECONDS
    while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if not ready.exists():
        raise RuntimeError(f"The namespaces of {host} could not be made.")
    return process


def _link(made: Cluster) -> None:
    """Connect the hosts by a bridge on ``ctl``."""

    def ip(host: str, *arguments: str) -> None:
        subprocess.run(made.on(host, "ip", *arguments), check=True, env=made.environment())

    ip("ctl", "link", "add", "br0", "type", "bridge")
    ip("ctl", "addr", "add", f"{HOSTS['ctl']}/24", "dev", "br0")
    for device in ("br0", "lo"):
        ip("ctl", "link", "set", device, "up")
    for node in NODES:
        other = str(made.holders[node].pid)
        peer = ("peer", "name", "eth0", "netns", other)
        ip("ctl", "link", "add", f"v-{node}", "type", "veth", *peer)
        ip("ctl", "link", "set", f"v-{node}", "master", "br0", "up")
        ip(node, "addr", "add", f"{HOSTS[node]}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip(node, "link", "set", device, "up")


def _start(folder: Path, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / "log" / f"{name}.out").open("wb") as log:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _munge(made: Cluster) -> subprocess.Popen[bytes]:
    files = {
        "key-file": "munge.key",
        "socket": "munge.socket",
        "pid-file": "munged.pid",
        "log-file": "munged.log",
        "seed-file": "munged.seed",
    }
    flags = [f"--{option}={made.munge / name}" for option, name in files.items()]
    return _start(
        made.folder, "munged", ["timeout", LIFE_SECONDS, "munged", "--foreground", *flags]
    )


def _daemon(made: Cluster, host: str, *command: str) -> subprocess.Popen[bytes]:
    timed = ("timeout", LIFE_SECONDS, *command)
    return _start(made.folder, host, made.on(host, *timed))


def _wait_until_idle(made: Cluster) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        states = made.run("sinfo", "-h", "-N", "-o", "%T").stdout.split()
        if states == ["idle", "idle"]:
            return
        time.sleep(0.2)
    log = (made.folder / "log" / "slurmctld.log").read_text(errors="replace")
    raise RuntimeError(f"The nodes did not become idle. slurmctld: {log[-2000:]}")


def _kill_inside(made: Cluster) -> None:
    """Kill whatever still runs on the hosts: daemons, and what jobs left."""
    holders = {process.pid for process in made.holders.values()}
    networks = {_network(process) for process in holders} - {_network(os.getpid())}
    for path in Path("/proc").glob("[0-9]*"):
        process = int(path.name)
        if process not in holders and _network(process) in networks - {None}:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _network(process: int) -> str | None:
    """Return the name of a process's network namespace, None where it is gone."""
    try:
        return str(Path(f"/proc/{process}/ns/net").readlink())
    except OSError:
        return None


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
