"""Checks of what would train: this Python's own packages, or a container engine with the image."""

from __future__ import annotations

from scalebook.doctor.facts import MachineFacts
from scalebook.doctor.findings import CheckResult, ok

OLDEST_PYTHON = (3, 11)


def python(facts: MachineFacts) -> CheckResult:
    """Return whether this Python can run Scalebook."""
    version = facts.versions.get("python") or "unknown"
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts >= OLDEST_PYTHON:
        return ok("python", version)
    return CheckResult("python", "problem", version, "Use Python 3.11 or later.")


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
    if facts.inside:
        advice = "Use an image that has them, or: pip install --no-deps megatron-core."
    else:
        advice = "Build the image (make image PLATFORM=...), or: pip install 'scalebook[train]'."
    return CheckResult("trainer", "problem", f"{missing} not installed", advice)


def build(facts: MachineFacts) -> CheckResult | None:
    """Return whether torch was built for the devices that are here."""
    if not facts.devices or not facts.versions.get("torch"):
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
    """Return whether podman can give a container NVIDIA GPUs (Container GpuState Interface)."""
    if facts.vendor != "nvidia" or "podman" not in facts.engines or facts.inside:
        return None
    if facts.device_specs:
        return ok("device interface", ", ".join(facts.device_specs))
    advice = "Make it: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml."
    return CheckResult("device interface", "warning", "podman has no CDI file for the GPUs", advice)


CHECKS = (python, trainer, build, engines, device_interface)
