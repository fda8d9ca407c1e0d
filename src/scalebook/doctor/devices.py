"""Checks of the GPUs: there, allowed, free, alike, and at full clocks and power."""

from __future__ import annotations

from collections import Counter

from scalebook.doctor.facts import GpuState, MachineFacts
from scalebook.doctor.findings import CheckResult, ok

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
    advice = f"Install or load the driver, until {tool} lists them."
    if facts.inside:
        advice = "Start the container with its devices (see the run flags of image.toml)."
    return CheckResult("devices", "problem", f"{found}, none usable", advice)


def driver(facts: MachineFacts) -> CheckResult | None:
    """Return the driver's version."""
    if not facts.devices:
        return None
    if facts.driver is None:
        return CheckResult("driver", "unknown", "the driver tells no version")
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
    advice = "Choose devices of one kind (CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES)."
    return CheckResult("alike", "warning", f"different devices: {found}", advice)


def known(facts: MachineFacts) -> CheckResult | None:
    """Return whether the catalog knows the device's peak."""
    if not facts.devices or facts.known_device is None:
        return None
    name = facts.devices[0].name or "unnamed"
    if facts.known_device:
        return ok("peak", f"the peak of {name} is in the catalog")
    advice = "Add the device, with its source, as [[accelerators]] in a --catalog file."
    return CheckResult("peak", "warning", f"no peak for {name}: MFU stays empty", advice)


def free_memory(facts: MachineFacts) -> CheckResult | None:
    """Return whether the GPUs' memory is free."""
    shares = [(share, device) for device in facts.devices if (share := _used(device)) is not None]
    if not shares:
        return None
    worst, device = max(shares, key=lambda pair: pair[0])
    found = f"device {device.index} has {worst:.0%} of its memory in use"
    if worst < USED_WARNING:
        return ok("free memory", "less than 1 % in use on every device")
    advice = "End what holds it, or wait: 'nvidia-smi' or 'rocm-smi --showpids' names it."
    return CheckResult(
        "free memory", "problem" if worst > USED_PROBLEM else "warning", found, advice
    )


def _used(device: GpuState) -> float | None:
    if device.memory_used_mib is None or not device.memory_total_mib:
        return None
    return device.memory_used_mib / device.memory_total_mib


def foreign(facts: MachineFacts) -> CheckResult | None:
    """Return whether other processes use the GPUs: they share time, power and links."""
    if not facts.devices:
        return None
    if facts.processes is None:
        return CheckResult("other processes", "unknown", "the driver does not list them")
    if not facts.processes:
        return ok("other processes", "none on the GPUs")
    listed = ", ".join(str(number) for number in facts.processes[:8])
    advice = "Wait until they have ended, or take a node of its own (Slurm: --exclusive)."
    count = len(facts.processes)
    return CheckResult("other processes", "warning", f"{count} on the GPUs: {listed}", advice)


def power(facts: MachineFacts) -> CheckResult | None:
    """Return whether a power cap is below the device's own."""
    capped = [
        device
        for device in facts.devices
        if device.power_cap_watts is not None
        and device.power_default_watts is not None
        and device.power_cap_watts < device.power_default_watts - 0.5
    ]
    told = [device for device in facts.devices if device.power_cap_watts is not None]
    if not told:
        return CheckResult("power cap", "unknown", "no device tells it") if facts.devices else None
    if not capped:
        return ok("power cap", f"{told[0].power_cap_watts:.0f} W, not lowered")
    first = capped[0]
    found = (
        f"device {first.index}: {first.power_cap_watts:.0f} W "
        f"in place of {first.power_default_watts:.0f} W"
    )
    watts = f"{first.power_default_watts:.0f}"
    advice = (
        "Say so beside the results, or reset it (rocm-smi --resetpoweroverdrive)."
        if facts.vendor == "amd"
        else f"Say so beside the results, or reset it (sudo nvidia-smi --power-limit={watts})."
    )
    return CheckResult("power cap", "warning", found, advice)


def clocks(facts: MachineFacts) -> CheckResult | None:
    """Return whether clocks are held down by heat or power, or were fixed by hand."""
    if not facts.devices:
        return None
    slow = [device for device in facts.devices if device.slowdown]
    if slow:
        found = f"device {slow[0].index} is slowed down: {', '.join(slow[0].slowdown)}"
        advice = "Mend cooling or power supply first: every rate would be too low."
        return CheckResult("clocks", "problem", found, advice)
    fixed = [device for device in facts.devices if device.performance_level not in (None, "auto")]
    if fixed:
        found = f"device {fixed[0].index}: performance level {fixed[0].performance_level!r}"
        advice = "Set it back: sudo rocm-smi --setperflevel auto."
        return CheckResult("clocks", "warning", found, advice)
    return ok("clocks", "not held down at this moment")


def modes(facts: MachineFacts) -> CheckResult | None:
    """Return whether NVIDIA's MIG cuts devices in parts, or the driver unloads between runs."""
    if any(device.partitioned for device in facts.devices):
        advice = "Turn MIG off (sudo nvidia-smi --multi-instance-gpu=0), or name the parts."
        return CheckResult("modes", "problem", "MIG cuts the devices in parts", advice)
    if any(device.persistent is False for device in facts.devices):
        advice = "Keep the driver loaded: sudo nvidia-smi --persistence-mode=1."
        return CheckResult("modes", "warning", "persistence mode is off: starts are slow", advice)
    return None


CHECKS = (present, driver, access, alike, known, free_memory, foreign, power, clocks, modes)
