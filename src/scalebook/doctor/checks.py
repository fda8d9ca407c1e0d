"""Judge the facts of a machine: checks of its GPUs, of what is around them, and of its software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from scalebook.doctor.gather import GpuState, MachineFacts

Level = Literal["ok", "warning", "problem", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found and how bad that is; ``advice`` says what to do, None where nothing is.

    ``problem``: training fails or its numbers are wrong. ``warning``: they may be. ``unknown``: the
    machine does not tell.
    """

    check: str
    level: Level
    found: str
    advice: str | None = None


def ok(check: str, found: str) -> CheckResult:
    """Return a finding that needs nothing."""
    return CheckResult(check, "ok", found)


# Checks of the GPUs: there, allowed, free, alike, at full clocks and power

USED_WARNING = 0.01  # of a device's memory: more than a driver and a display take
USED_PROBLEM = 0.10


def present(facts: MachineFacts) -> CheckResult:
    """Return which GPUs there are; a card on the bus that no driver names is a problem."""
    dumb = {vendor: count for vendor, count in facts.cards_on_bus.items() if count}
    if facts.devices:
        count = len(facts.devices)
        return ok("devices", f"{count} x {facts.devices[0].name or 'a GPU without a name'}")
    if not dumb:
        return ok("devices", "no GPU: platform cpu")
    found = ", ".join(f"{count} {vendor} cards on the bus" for vendor, count in dumb.items())
    tool = "nvidia-smi" if "nvidia" in dumb else "rocm-smi or amd-smi"
    advice = f"Install or load the driver until {tool} lists them."
    if facts.inside:
        advice = "Start the container with its devices (see the run flags of image.toml)."
    return CheckResult("devices", "problem", f"{found}, none usable", advice)


def driver(facts: MachineFacts) -> CheckResult:
    if facts.driver is None:
        return CheckResult("driver", "unknown", "the driver reports no version")
    return ok("driver", facts.driver)


def access(facts: MachineFacts) -> CheckResult | None:
    """Return whether this user may open the device files."""
    if not facts.nodes:
        return None
    closed = [node for node in facts.nodes if not node.access]
    if not closed:
        return ok("access", f"{len(facts.nodes)} device files can be opened")
    groups = sorted({node.group for node in closed if node.group})
    names = ", ".join(node.path for node in closed)
    join = ",".join(groups) or "video,render"
    advice = f"Join the groups: sudo usermod --append --groups {join} $USER, then log in again."
    if facts.inside:
        advice = f"Give the container the groups {join} (--group-add with their numbers)."
    return CheckResult("access", "problem", f"cannot be opened: {names}", advice)


def alike(facts: MachineFacts) -> CheckResult | None:
    """Return whether all GPUs are of one kind: a run is as fast as its slowest."""
    names = Counter(device.name or "unnamed" for device in facts.devices)
    if len(names) < 2:
        return None
    found = ", ".join(f"{count} x {name}" for name, count in names.items())
    advice = "Choose devices of the same kind (CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES)."
    return CheckResult("alike", "warning", f"different devices: {found}", advice)


def known(facts: MachineFacts) -> CheckResult | None:
    """Return whether the catalog knows the device's peak."""
    if facts.known_device is None:
        return None
    name = facts.devices[0].name or "unnamed"
    if facts.known_device:
        return ok("peak", f"the peak of {name} is in the catalog")
    advice = "Add the device, with its source, as [[accelerators]] in a --catalog file."
    return CheckResult("peak", "warning", f"no peak for {name}: MFU stays empty", advice)


def free_memory(facts: MachineFacts) -> CheckResult | None:
    shares = [(share, device) for device in facts.devices if (share := _used(device)) is not None]
    if not shares:
        return None
    worst, device = max(shares, key=lambda pair: pair[0])
    found = f"device {device.index} has {worst:.0%} of its memory in use"
    if worst < USED_WARNING:
        return ok("free memory", "less than 1 % in use on every device")
    advice = "End the processes that use it, or wait: see 'nvidia-smi' or 'rocm-smi --showpids'."
    level = "problem" if worst > USED_PROBLEM else "warning"
    return CheckResult("free memory", level, found, advice)


def _used(device: GpuState) -> float | None:
    if device.memory_used_mib is None or not device.memory_total_mib:
        return None
    return device.memory_used_mib / device.memory_total_mib


def foreign(facts: MachineFacts) -> CheckResult:
    """Return whether other processes use the GPUs: they share time, power and links."""
    if facts.processes is None:
        return CheckResult("other processes", "unknown", "the driver does not list them")
    if not facts.processes:
        return ok("other processes", "none on the GPUs")
    listed = ", ".join(str(number) for number in facts.processes[:8])
    advice = "Wait until they have ended, or use an exclusive node (Slurm: --exclusive)."
    count = len(facts.processes)
    return CheckResult("other processes", "warning", f"{count} on the GPUs: {listed}", advice)


def power(facts: MachineFacts) -> CheckResult:
    """Return whether a power cap is below the device's own."""
    told = [(one.power_cap_watts, one) for one in facts.devices if one.power_cap_watts is not None]
    if not told:
        return CheckResult("power cap", "unknown", "no device reports it")
    lowered = [pair for pair in told if pair[0] < (pair[1].power_default_watts or 0.0) - 0.5]
    if not lowered:
        return ok("power cap", f"{told[0][0]:.0f} W, not lowered")
    cap, device = lowered[0]
    watts = f"{device.power_default_watts:.0f}"
    found = f"device {device.index}: {cap:.0f} W instead of {watts} W"
    reset = f"sudo nvidia-smi --power-limit={watts}"
    if facts.vendor == "amd":
        reset = "rocm-smi --resetpoweroverdrive"
    advice = f"State it with the results, or reset it ({reset})."
    return CheckResult("power cap", "warning", found, advice)


def clocks(facts: MachineFacts) -> CheckResult:
    """Return whether clocks are held down by heat or power, or were fixed by hand."""
    slow = [device for device in facts.devices if device.slowdown]
    if slow:
        found = f"device {slow[0].index} is slowed down: {', '.join(slow[0].slowdown)}"
        advice = "Fix the cooling or the power supply first: every rate would be too low."
        return CheckResult("clocks", "problem", found, advice)
    fixed = [device for device in facts.devices if device.performance_level not in (None, "auto")]
    if fixed:
        found = f"device {fixed[0].index}: performance level {fixed[0].performance_level!r}"
        advice = "Set it back: sudo rocm-smi --setperflevel auto."
        return CheckResult("clocks", "warning", found, advice)
    return ok("clocks", "not throttled at the moment")


def modes(facts: MachineFacts) -> CheckResult | None:
    """Return whether NVIDIA's MIG cuts devices in parts, or the driver unloads between runs."""
    if any(device.partitioned for device in facts.devices):
        advice = "Turn MIG off (sudo nvidia-smi --multi-instance-gpu=0), or name the MIG instances."
        return CheckResult("modes", "problem", "MIG divides the devices", advice)
    if any(device.persistent is False for device in facts.devices):
        advice = "Keep the driver loaded: sudo nvidia-smi --persistence-mode=1."
        return CheckResult("modes", "warning", "persistence mode is off: starts are slow", advice)
    return None


# Checks of the host or container around the GPUs: memory, limits, disk

GIB = 2**30
MIB = 2**20
SHM_NEEDED = {"cpu": 64 * MIB, "gpu": 1 * GIB}  # less fails
SHM_WANTED = {"cpu": 256 * MIB, "gpu": 8 * GIB}  # Primus' preflight asks for 8 GiB
MEMLOCK_WANTED = 32 * GIB  # Primus' preflight: RDMA pins fail below it
STACK_WANTED = 8 * MIB  # Linux' own default; NVIDIA's images ask for 64 MiB inside
FILES_WANTED = 4096
DISK_NEEDED, DISK_WANTED = 1 * GIB, 10 * GIB  # a profiled run with a checkpoint takes gigabytes
MEMORY_WANTED = 16 * GIB  # per GPU: pinned buffers, workers, page cache


def size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def place(facts: MachineFacts) -> CheckResult:
    return ok("place", f"inside a container ({facts.inside})" if facts.inside else "bare machine")


def shared_memory(facts: MachineFacts) -> CheckResult:
    """Return whether /dev/shm holds what ranks and data loaders share."""
    if facts.shm_bytes is None:
        advice = "Mount a tmpfs there."
        return CheckResult("shared memory", "problem", "there is no /dev/shm", advice)
    kind = "gpu" if facts.devices else "cpu"
    needed, wanted = SHM_NEEDED[kind], SHM_WANTED[kind]
    if facts.shm_bytes >= wanted:
        return ok("shared memory", f"/dev/shm has {size(facts.shm_bytes)}")
    advice = (
        "Start the container with --shm-size=16g or --ipc=host."
        if facts.inside
        else "Enlarge it: sudo mount -o remount,size=16G /dev/shm."
    )
    level = "problem" if facts.shm_bytes < needed else "warning"
    return CheckResult("shared memory", level, f"/dev/shm has only {size(facts.shm_bytes)}", advice)


def _limit(
    check: str, limit: int | None, wanted: int, advice: str, words: Callable[[int], str] = size
) -> CheckResult:
    """Return whether a process may take as much as is wanted; no limit is None."""
    if limit is None or limit >= wanted:
        return ok(check, "unlimited" if limit is None else words(limit))
    return CheckResult(check, "warning", f"limited to {words(limit)}", advice)


def locked_memory(facts: MachineFacts) -> CheckResult:
    """Return whether NCCL and RDMA may pin memory."""
    advice = (
        "Start the container with --ulimit=memlock=-1."
        if facts.inside
        else "Raise it: '* - memlock unlimited' in /etc/security/limits.d, then log in again."
    )
    return _limit("locked memory", facts.memlock, MEMLOCK_WANTED, advice)


def stack(facts: MachineFacts) -> CheckResult:
    advice = "Raise it: ulimit -s 65536, or --ulimit=stack=67108864 for a container."
    return _limit("stack", facts.stack, STACK_WANTED, advice)


def open_files(facts: MachineFacts) -> CheckResult:
    """Return whether ranks may open as many files and sockets as they need."""
    advice = f"Raise it: ulimit -n {FILES_WANTED * 16}, or --ulimit=nofile for a container."
    return _limit("open files", facts.open_files, FILES_WANTED, advice, str)


def numa(facts: MachineFacts) -> CheckResult | None:
    """Return whether the kernel moves pages between NUMA nodes while training runs."""
    if facts.numa_nodes < 2:
        return None
    if facts.numa_balancing is None:
        return CheckResult("numa balancing", "unknown", "the kernel does not report it")
    if facts.numa_balancing == "0":
        return ok("numa balancing", "off")
    advice = "Turn it off on the host: sudo sysctl kernel.numa_balancing=0."
    found = "on: pages move and steps become uneven"
    return CheckResult("numa balancing", "warning", found, advice)


def governor(facts: MachineFacts) -> CheckResult | None:
    """Return whether the CPU may run at full clocks: it launches the kernels."""
    if facts.governor is None:
        return None
    if facts.governor == "performance":
        return ok("cpu governor", "performance")
    advice = "Set it on the host: sudo cpupower frequency-set --governor performance."
    return CheckResult("cpu governor", "warning", facts.governor, advice)


def host_memory(facts: MachineFacts) -> CheckResult:
    if facts.memory_available is None:
        return CheckResult("host memory", "unknown", "the kernel does not report it")
    wanted = MEMORY_WANTED * len(facts.devices) if facts.devices else 2 * GIB
    found = f"{size(facts.memory_available)} available"
    if facts.memory_available >= wanted:
        return ok("host memory", found)
    advice = f"Free some: {size(wanted)} are needed here."
    return CheckResult("host memory", "warning", found, advice)


def disk(facts: MachineFacts) -> CheckResult:
    if not facts.runs_writable:
        advice = "Make the folder yours (sudo chown), or name another with --runs."
        return CheckResult("disk", "problem", f"{facts.runs} cannot be written", advice)
    if facts.runs_free is None:
        return CheckResult("disk", "unknown", f"the space of {facts.runs} is unknown")
    found = f"{size(facts.runs_free)} free for {facts.runs}"
    if facts.runs_free >= DISK_WANTED:
        return ok("disk", found)
    level = "problem" if facts.runs_free < DISK_NEEDED else "warning"
    return CheckResult("disk", level, found, "Free some space, or name another folder with --runs.")


# Checks of what would train: this Python's own packages, or a container engine with the image


def trainer(facts: MachineFacts) -> CheckResult:
    """Return whether training can start: here, or in a container."""
    torch, megatron = facts.versions.get("torch"), facts.versions.get("megatron_core")
    if torch and megatron:
        return ok("trainer", f"torch {torch}, megatron-core {megatron}")
    missing = " and ".join(
        name for name, there in (("torch", torch), ("megatron-core", megatron)) if not there
    )
    ready = [engine for engine, lack in facts.engines.items() if lack is None]
    if ready and not facts.inside:
        return ok("trainer", f"{missing} not installed here; {ready[0]} has the image")
    build = "Build the image (make image PLATFORM=...)"
    what = "--no-deps megatron-core" if torch else "-e '.[train]'"
    advice = f"{'Use an image that has them' if facts.inside else build}, or: pip install {what}."
    return CheckResult("trainer", "problem", f"{missing} not installed", advice)


def build(facts: MachineFacts) -> CheckResult | None:
    """Return whether torch was built for the devices that are here."""
    if not facts.versions.get("torch"):
        return None
    wanted = {"nvidia": "cuda", "amd": "rocm"}[facts.vendor]
    version = facts.versions.get(wanted)
    if version:
        return ok("torch build", f"for {wanted.upper()} {version}")
    advice = f"Install a build of torch for {wanted.upper()}, or train in the vendor's image."
    return CheckResult("torch build", "problem", f"not for {wanted.upper()}", advice)


def engines(facts: MachineFacts) -> CheckResult | None:
    """Return which container engines there are, and whether one has the image."""
    if facts.inside:
        return None
    if not facts.engines:
        found = "none was found"
        if not facts.devices:
            return ok("container engine", f"{found}; platform cpu needs none")
        advice = "Install docker, podman, apptainer or enroot to train in the vendor's image."
        return CheckResult("container engine", "warning", found, advice)
    for engine, lack in facts.engines.items():
        if lack is None:
            return ok("container engine", f"{engine} has the image")
    found = " ".join(lack for lack in facts.engines.values() if lack)
    level = "warning" if facts.devices else "ok"
    return CheckResult("container engine", level, found)


def device_interface(facts: MachineFacts) -> CheckResult | None:
    """Return whether podman can give a container NVIDIA GPUs (Container Device Interface)."""
    if facts.vendor != "nvidia" or "podman" not in facts.engines or facts.inside:
        return None
    if facts.device_specs:
        return ok("device interface", ", ".join(facts.device_specs))
    advice = "Create it: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml."
    return CheckResult("device interface", "warning", "podman has no CDI file for the GPUs", advice)


def links(facts: MachineFacts) -> CheckResult | None:
    """Return by which links the GPUs are joined; a layout's rate depends on them."""
    if len(facts.devices) < 2:
        return None
    if not facts.links:
        return CheckResult("links", "unknown", "the driver's tool does not say how they are linked")
    found = ", ".join(f"{name} ({count} pairs)" for name, count in facts.links.items())
    if len(facts.links) == 1:
        return ok("links", found)
    tools = {"nvidia": "nvidia-smi topo -m", "amd": "rocm-smi --showtopo"}
    advice = (
        f"Ranks that are next to each other share tensors: see '{tools[facts.vendor]}' for the "
        "pairs, and order the GPUs by CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES."
    )
    return CheckResult("links", "warning", found, advice)


CHECKS: tuple[Callable[[MachineFacts], CheckResult | None], ...] = (
    *(present, driver, access, alike, known, links, free_memory, foreign, power, clocks, modes),
    *(place, shared_memory, locked_memory, stack, open_files, numa, governor, host_memory, disk),
    *(trainer, build, engines, device_interface),
)
# These say nothing of a machine without a GPU.
OF_GPUS = (driver, known, foreign, power, clocks, locked_memory, numa, governor, build)


def examine(facts: MachineFacts) -> tuple[CheckResult, ...]:
    """Return what every check that concerns this machine found."""
    checks = (check for check in CHECKS if facts.devices or check not in OF_GPUS)
    return tuple(finding for check in checks if (finding := check(facts)) is not None)


def exit_code(findings: Iterable[CheckResult], *, strict: bool = False) -> int:
    """Return 1 if there is a problem (``strict``: or a warning), else 0."""
    bad = ("problem", "warning") if strict else ("problem",)
    return int(any(finding.level in bad for finding in findings))
