"""What the entry points of the engines share: arguments, errors, files that every rank needs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from scalebook.config import RunConfig
from scalebook.engines import mapping
from scalebook.errors import LaunchError, ScalebookError


def main_of(train: Callable[[RunConfig, Path], int]) -> int:
    """Read the arguments of our trainer, check that the engine can do it, and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True, help="RunConfig as JSON")
    parser.add_argument("--output", type=Path, required=True, help="run directory to write into")
    options = parser.parse_args()
    try:
        config = RunConfig.read(options.config)
        mapping.check(config)
        lack = mapping.missing(config.engine)
        if lack:
            raise LaunchError(f"Engine {config.engine!r} cannot run here: {lack}")
        return train(config, options.output.absolute())
    except ScalebookError as error:
        print(f"scalebook {Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 2


def write_once(path: Path, text: str) -> Path:
    """Write a file that every rank writes alike, so that none reads half of it; return its path."""
    temporary = path.with_name(f".{path.name}.{os.environ.get('RANK', '0')}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path
