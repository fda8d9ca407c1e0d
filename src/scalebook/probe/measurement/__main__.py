"""Entry point of a probe's process: ``torchrun ... -m scalebook.probe.measurement``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from scalebook.errors import ConfigError, ScalebookError
from scalebook.measure.probes import ProbeRequest


def read_request(path: Path) -> ProbeRequest:
    """Return the request in a JSON file.

    Raises:
        ConfigError: the file cannot be read or its content is no request.
    """
    try:
        return ProbeRequest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path} is not a request for a probe: {reason}.") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe as the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.probe.measurement")
    parser.add_argument("--request", type=Path, required=True, help="ProbeRequest as JSON")
    parser.add_argument("--output", type=Path, required=True, help="directory to write into")
    options = parser.parse_args(arguments)
    try:
        request = read_request(options.request)
        variables = dict(os.environ)
        from scalebook.probe.measurement.probe_run import run

        run(request, options.output, variables, time.perf_counter())
    except ScalebookError as error:
        print(f"scalebook.probe.measurement: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
