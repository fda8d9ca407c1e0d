"""Checks of the host or container around the GPUs: memory, limits, disk."""

from __future__ import annotations

from scalebook.doctor.facts import MachineFacts
from scalebook.doctor.findings import CheckResult, ok

GIB = 2**30
MIB = 2**20
SHM_NEEDED = {"cpu": 64 * MIB, "gpu": 1 * GIB}  # less fails
SHM_WANTED = {"cpu": 256 * MIB, "gpu": 8 * GIB}  # Primus' preflight asks for 8 GiB
MEMLOCK_WANTED = 32 * GIB  # as above: "RDMA pin will fail under load" below
STACK_WANTED = 8 * MIB  # Linux' own default; NVIDIA's images ask for 64 MiB inside
FILES_WANTED = 4096
DISK_NEEDED, DISK_WANTED = 1 * GIB, 10 * GIB  # a profiled run with a checkpoint takes gigabytes
MEMORY_WANTED = 16 * GIB  # per GPU: pinned buffers, workers, page cache


def size(count: float) -> str:
    """Return a size in words."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def _kind(facts: MachineFacts) -> str:
    return "gpu" if facts.devices else "cpu"


def place(facts: MachineFacts) -> CheckResult:
    """Return whether this is a container."""
    return ok("place", f"inside a container ({facts.inside})" if facts.inside else "bare machine")


def shared_memory(facts: MachineFacts) -> CheckResult:
    """Return whether /dev/shm holds what ranks and data loaders share."""
    if facts.shm_bytes is None:
        return CheckResult(
            "shared memory", "problem", "there is no /dev/shm", "Mount a tmpfs there."
        )
    needed, wanted = SHM_NEEDED[_kind(facts)], SHM_WANTED[_kind(facts)]
    if facts.shm_bytes >= wanted:
        return ok("shared memory", f"/dev/shm has {size(facts.shm_bytes)}")
    advice = (
        "Start the container with --shm-size=16g or --ipc=host."
        if facts.inside
        else "Enlarge it: sudo mount -o remount,size=16G /dev/shm."
    )
    level = "problem" if facts.shm_bytes < needed else "warning"
    return CheckResult("shared memory", level, f"/dev/shm has only {size(facts.shm_bytes)}", advice)


def locked_memory(facts: MachineFacts) -> CheckResult | None:
    """Return whether NCCL and RDMA may pin memory."""
    if not facts.devices:
        return None
    if facts.memlock is None or facts.memlock >= MEMLOCK_WANTED:
        limit = "unlimited" if facts.memlock is None else size(facts.memlock)
        return ok("locked memory", limit)
    advice = (
        "Start the container with --ulimit=memlock=-1."
        if facts.inside
        else "Raise it: '* - memlock unlimited' in /etc/security/limits.d, then log in again."
    )
    return CheckResult("locked memory", "warning", f"limited to {size(facts.memlock)}", advice)


def stack(facts: MachineFacts) -> CheckResult | None:
    """Return whether threads have the usual stack."""
    if facts.stack is None or facts.stack >= STACK_WANTED:
        return ok("stack", "unlimited" if facts.stack is None else size(facts.stack))
    advice = "Raise it: ulimit -s 65536, or --ulimit=stack=67108864 for a container."
    return CheckResult("stack", "warning", f"limited to {size(facts.stack)}", advice)


def open_files(facts: MachineFacts) -> CheckResult | None:
    """Return whether ranks may open as many files and sockets as they need."""
    if facts.open_files is None or facts.open_files >= FILES_WANTED:
        limit = "unlimited" if facts.open_files is None else f"{facts.open_files}"
        return ok("open files", limit)
    advice = f"Raise it: ulimit -n {FILES_WANTED * 16}, or --ulimit=nofile for a container."
    return CheckResult("open files", "warning", f"limited to {facts.open_files}", advice)


def numa(facts: MachineFacts) -> CheckResult | None:
    """Return whether the kernel moves pages between NUMA nodes while training runs."""
    if not facts.devices or facts.numa_nodes < 2:
        return None
    if facts.numa_balancing is None:
        return CheckResult("numa balancing", "unknown", "the kernel does not tell")
    if facts.numa_balancing == "0":
        return ok("numa balancing", "off")
    advice = "Turn it off on the host: sudo sysctl kernel.numa_balancing=0."
    return CheckResult(
        "numa balancing", "warning", "on: pages move and steps become uneven", advice
    )


def governor(facts: MachineFacts) -> CheckResult | None:
    """Return whether the CPU may run at full clocks: it launches the kernels."""
    if not facts.devices or facts.governor is None:
        return None
    if facts.governor == "performance":
        return ok("cpu governor", "performance")
    advice = "Set it on the host: sudo cpupower frequency-set --governor performance."
    return CheckResult("cpu governor", "warning", facts.governor, advice)


def host_memory(facts: MachineFacts) -> CheckResult | None:
    """Return whether the host has memory for its ranks."""
    if facts.memory_available is None:
        return CheckResult("host memory", "unknown", "the kernel does not tell")
    wanted = MEMORY_WANTED * len(facts.devices) if facts.devices else 2 * GIB
    found = f"{size(facts.memory_available)} available"
    if facts.memory_available >= wanted:
        return ok("host memory", found)
    advice = f"Free some: {size(wanted)} are wanted here."
    return CheckResult("host memory", "warning", found, advice)


def disk(facts: MachineFacts) -> CheckResult:
    """Return whether runs can be written."""
    if not facts.runs_writable:
        advice = "Make the folder yours (sudo chown), or name another with --runs."
        return CheckResult("disk", "problem", f"{facts.runs} cannot be written", advice)
    if facts.runs_free is None:
        return CheckResult("disk", "unknown", f"the space of {facts.runs} is not told")
    found = f"{size(facts.runs_free)} free for {facts.runs}"
    if facts.runs_free >= DISK_WANTED:
        return ok("disk", found)
    level = "problem" if facts.runs_free < DISK_NEEDED else "warning"
    return CheckResult("disk", level, found, "Free some space, or name another folder with --runs.")


CHECKS = (
    place,
    shared_memory,
    locked_memory,
    stack,
    open_files,
    numa,
    governor,
    host_memory,
    disk,
)
