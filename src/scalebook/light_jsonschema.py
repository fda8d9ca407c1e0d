"""Imports jsonschema without the grammar of internationalised addresses (RFC 3987).

Altair, nbformat and papermill import jsonschema. Where rfc3987-syntax is installed (Jupyter brings
it), jsonschema builds that grammar as it is imported: 5 s of the 6.7 s of CPU time that the report
took to start, in each of its processes. Nothing here checks such an address. jsonschema does
without a package that cannot be imported; afterwards others can import it as ever.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

GRAMMAR = "rfc3987_syntax"


def load() -> None:
    """Import jsonschema, if it is there and not imported yet, without the grammar."""
    modules: dict[str, Any] = sys.modules
    if "jsonschema" in modules or GRAMMAR in modules:
        return
    modules[GRAMMAR] = None  # Python's way to say that a module cannot be imported
    try:
        with suppress(ImportError):
            import_module("jsonschema")
    finally:
        del modules[GRAMMAR]


load()
