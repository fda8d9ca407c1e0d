# ``predict`` is a verb and a package; a type checker knows it as the package.
from scalebook.api import (
    Runs,
    check,
    compare,
    flops,
    load,
    memory,
    metric,
    mfu,
    missing,
    read_log,
    run,
    steady,
)

__version__: str
__all__ = [
    "Runs",
    "check",
    "compare",
    "flops",
    "load",
    "memory",
    "metric",
    "mfu",
    "missing",
    "read_log",
    "run",
    "steady",
]
