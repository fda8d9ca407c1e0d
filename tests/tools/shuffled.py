"""A plugin that runs files, and the tests of each, in an order of chance: `make test-shuffled`.

The end of the report names the seed; SEED=7 repeats its order.
"""

from __future__ import annotations

import os
import random

import pytest

# In the environment, so that every worker of pytest-xdist collects in the same order.
SEED = os.environ.get("SEED") or str(random.SystemRandom().randrange(10**6))
os.environ["SEED"] = SEED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"The order was SEED={SEED}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    chance = random.Random(SEED)
    files = list({item.path: 0 for item in items})
    chance.shuffle(files)
    places = {path: place for place, path in enumerate(files)}
    chance.shuffle(items)
    items.sort(key=lambda item: places[item.path])
