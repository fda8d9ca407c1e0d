"""What torchrun starts for engine ``primus``: Primus's own command line, in this process."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from scalebook.config import RunConfig
from scalebook.engines import mapping, primus
from scalebook.engines.start import main_of, write_once


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the arguments say; return the exit code."""
    return main_of(_train, arguments)


def _train(config: RunConfig, output: Path) -> int:
    folder = mapping.primus_folder()
    if folder is not None:
        sys.path.insert(0, str(folder))
        os.chdir(folder)  # its files name one another relative to it
    path = write_once(output / primus.FILE, primus.text(config, output))
    sys.argv = ["primus", "train", "pretrain", "--config", str(path)]
    runpy.run_module("primus.cli.main", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
