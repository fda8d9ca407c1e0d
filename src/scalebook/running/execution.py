"""One run's notebook under way: papermill in a thread, and an end to a kernel that hangs.

A kernel can lose a message and then wait for ever, as papermill does for it. What a run leaves in
its directory tells how far it is; between the files a kernel has so long and no longer. While the
ranks train nothing is expected of it: training has limits of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from scalebook import notebooks
from scalebook.config import RunConfig
from scalebook.project import short
from scalebook.running import finish_run
from scalebook.running.kernel import RunOptions

START_SECONDS = 900.0  # to import, look at the machine and start: a cold shared disk is slow
CLOSING_SECONDS = 90.0  # for a request to end the run, with its grace, and for the last cells
DYING_SECONDS = 30.0  # for papermill to see that its kernel is gone


class Execution(threading.Thread):
    """Papermill in a thread: in the main thread nbclient would take the signals to itself."""

    def __init__(
        self, notebook: Path, config: RunConfig, directory: Path, options: RunOptions
    ) -> None:
        super().__init__(daemon=True)
        self.config, self.directory = config, directory
        self._notebook, self._output = short(notebook), short(directory / "run.ipynb")
        own = replace(options, run_directory=str(short(directory)))
        self._parameters = {**config.model_dump(), **asdict(own)}
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Execute the notebook and keep its error for the thread that waits."""
        try:
            notebooks.execute(self._notebook, self._output, self._parameters)
        except Exception as error:  # noqa: BLE001  a defect in one run must not cost the others
            self.error = error
        finally:
            with suppress(RuntimeError):  # papermill made none
                # Else its descriptors stay open until memory is next searched for garbage.
                asyncio.get_event_loop().close()

    def end(self) -> None:
        """Kill the kernel, whose death ends papermill and, by its guard, what it ran."""
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if "ipykernel_launcher" in child.cmdline():
                    child.kill()
        self.join(DYING_SECONDS)


@dataclass(slots=True)
class Patience:
    """How long the kernel of one run has kept what is waited for now."""

    directory: Path
    clock: Callable[[], float] = time.monotonic
    _awaited: str | None = None
    _since: float = 0.0

    def lost(self, *, asked: bool) -> str | None:
        """Return what the kernel should have done by now, None while there is hope.

        ``asked``: it has been told to end the run.
        """
        awaited, seconds = self._next(asked)
        if awaited != self._awaited:
            self._awaited, self._since = awaited, self.clock()
        if awaited is None or self.clock() - self._since <= seconds:
            return None
        return f"The notebook's kernel did not {awaited} within {seconds:.0f} s and was ended"

    def _next(self, asked: bool) -> tuple[str | None, float]:
        if (self.directory / "record.json").exists():
            return "end", CLOSING_SECONDS
        if asked:
            return "end the run", CLOSING_SECONDS
        if not (self.directory / finish_run.LAUNCH_FILE).exists():
            return "start the run", START_SECONDS
        return None, 0.0
