"""What a machine can reach, as ``scalebook probe`` measured it, apart from any training."""

from scalebook.measure.probes.files import (
    ceilings,
    find,
    probe_directories,
    read_probe,
    read_probes,
)
from scalebook.measure.probes.types import (
    Attention,
    Ceilings,
    Collective,
    Copy,
    MachineIdentity,
    Matmul,
    Probe,
    ProbeRequest,
    Sample,
    Skipped,
    Sustained,
)

__all__ = [
    "Attention", "Ceilings", "Collective", "Copy", "MachineIdentity", "Matmul", "Probe",
    "ProbeRequest", "Sample", "Skipped", "Sustained", "ceilings", "find", "probe_directories",
    "read_probe", "read_probes",
]  # fmt: skip
