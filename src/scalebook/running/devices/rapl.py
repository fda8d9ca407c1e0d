"""Energy of CPU packages from the counters that Linux shows under /sys/class/powercap.

Intel and AMD processors keep them (RAPL); since Linux 5.10 only root may read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from scalebook.query import number, said
from scalebook.running.devices.sensor import Row, Sensor, SensorError, without_missing

POWERCAP = Path("/sys/class/powercap")


@dataclass(slots=True)
class _Package:
    path: Path
    number: int
    wraps_at: int  # microjoules
    last: int
    joules: float = 0.0  # since the sampler began


@dataclass(slots=True)
class RAPL(Sensor):
    """The energy counters of this machine's CPU packages.

    Raises:
        SensorError: there are none, or they may not be read.
    """

    root: Path = POWERCAP
    source: str = "rapl"
    _packages: list[_Package] = field(default_factory=lambda: [])

    def __post_init__(self) -> None:
        """Open the packages; their parts (cores, memory controller) are within them.

        ``psys`` counts the platform, packages included.
        """
        domains = sorted(self.root.glob("intel-rapl:[0-9]*"))
        whole = (path for path in domains if path.name.count(":") == 1)
        paths = [path for path in whole if said(path / "name").startswith("package")]
        if not paths:
            raise SensorError(f"This machine shows no energy counter of its CPU under {self.root}")
        for path in paths:
            number = int(path.name.partition(":")[2])
            wraps_at = _counter(path / "max_energy_range_uj")
            self._packages.append(_Package(path, number, wraps_at, _counter(path / "energy_uj")))

    def devices(self) -> list[Row]:
        """Return the number of each package and its power limit (W)."""
        return [
            without_missing(cpu=package.number, power_cap_watts=_cap(package.path))
            for package in self._packages
        ]

    def read(self) -> list[Row]:
        """Return the energy (J) of each package since the first reading."""
        return [self._row(package) for package in self._packages]

    def _row(self, package: _Package) -> Row:
        now = _counter(package.path / "energy_uj")
        # The counter starts again at 0, about once an hour under load.
        step = now - package.last if now >= package.last else now + package.wraps_at - package.last
        package.joules += step / 1e6
        package.last = now
        return {"cpu": package.number, "energy_joules": round(package.joules, 6)}


def _counter(path: Path) -> int:
    try:
        return int(path.read_text())
    except PermissionError as error:
        raise SensorError(
            f"Only root may read the CPU's energy counter {path.parent.name}/{path.name}"
        ) from error
    except (OSError, ValueError) as error:
        raise SensorError(f"The CPU's energy counter {path} cannot be read: {error}") from error


def _cap(path: Path) -> float | None:
    limit = number(said(path / "constraint_0_power_limit_uw"))
    return None if limit is None else limit / 1e6
