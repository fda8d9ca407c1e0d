"""Entry point of a probe's process: ``torchrun ... -m scalebook.probe.measurement``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scalebook.errors import ScalebookError
from scalebook.measure.probes import ProbeRequest
from scalebook.store import read_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe as the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.probe.measurement")
    parser.add_argument("--request", type=Path, required=True, help="ProbeRequest as JSON")
    parser.add_argument("--output", type=Path, required=True, help="directory to write into")
    options = parser.parse_args(arguments)
    try:
        request, _ = read_model(options.request, ProbeRequest)
        variables = dict(os.environ)
        from scalebook.probe.measurement.probe_run import run

        run(request, options.output, variables, time.perf_counter())
    except ScalebookError as error:
        print(f"scalebook.probe.measurement: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
