"""Arguments of ``project``: the stated inputs of economics, each a number or a range."""

from __future__ import annotations

import argparse

from scalebook.errors import ClaimError
from scalebook.measure.intervals import Interval

INPUT_HELP = {
    "tokens": "tokens to train on: 1T",
    "tokens_per_second": "of all GPUs together; without it, the projection to the one --to",
    "sequence_length": "tokens of a sample",
    "gpus": "GPUs of the job; without it, the one --to",
    "price_per_gpu_hour": "on demand",
    "spot_price_per_gpu_hour": "spot",
    "preemption_overhead": "extra time that preemptions cost: 5%%",
    "watts_per_gpu": "mean power of a GPU with its share of the node",
    "pue": "power usage effectiveness of the site",
    "grid_kg_per_kwh": "kg CO2e of a kWh",
    "other_tokens_per_second": "of a second platform, for the break-even price",
    "other_gpus": "GPUs of the second platform",
}


def stated_range(text: str) -> Interval:
    """Return a number or a range, as an argument type."""
    from scalebook.measure.economics import read_range

    try:
        return read_range(text)
    except ClaimError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error
