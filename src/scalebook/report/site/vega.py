"""The JavaScript that draws charts, bundled once from vl-convert and kept for the next build."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from scalebook.errors import ReportError
from scalebook.report.site.keeping import keep, kept

# Bundling takes seconds of one core and holds Python's lock: another process does it, so that
# the pages are executed meanwhile.
PROGRAM = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"


def bundle(cache: Path) -> bytes:
    """Return Vega, Vega-Lite and vega-embed as one script, kept in ``cache`` for the next build.

    The function around the bundle keeps its own names out of the page; it sets
    ``window.vegaEmbed``.
    """
    path = cache / f"vega-bundle-{version('vl-convert-python')}.kept"
    if (before := kept(path)) is not None:
        return before
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    if done.returncode != 0 or b"vegaEmbed" not in done.stdout:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ReportError(f"vl-convert gave no chart library: {' '.join(last) or 'no message'}.")
    script = b"(function(){\n" + done.stdout + b"\n})();\n"
    keep(path, script)
    return script
