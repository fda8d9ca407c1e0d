"""The manifests of ``run --launcher kubernetes``."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from scalebook.cli import contained

if TYPE_CHECKING:
    from scalebook.running.todo import Entry


def show(options: argparse.Namespace, entries: tuple[Entry, ...]) -> int:
    """Print the manifests of a plan's runs: applying them is kubectl's part."""
    from datetime import UTC, datetime

    from scalebook.errors import LaunchError
    from scalebook.running.cluster import kubernetes
    from scalebook.store import run_id

    if not options.dry_run:
        raise LaunchError(
            "Scalebook prints manifests; kubectl applies them. Use: scalebook "
            "run --launcher kubernetes --dry-run ... | kubectl apply -f -"
        )
    contained.set_variables(options)
    user = (os.getuid(), os.getgid()) if os.getuid() else None
    chosen = kubernetes.Options(
        options.image, options.claim, options.namespace, user, dict(os.environ)
    )
    now = datetime.now(UTC)
    made = [
        kubernetes.manifest(entry.config, run_id(entry.config, now), chosen, options.trainer)
        for entry in entries
        if entry.action == "run"
    ]
    print(kubernetes.text(made), end="")
    for entry in entries:
        if entry.action != "run":
            print(f"not made: {entry.reason or entry.action}", file=sys.stderr)
    return 0
