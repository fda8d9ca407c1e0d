"""Arguments of ``project``: the stated inputs of economics, each a number or a range."""

from __future__ import annotations

import argparse

from scalebook.errors import ClaimError
from scalebook.measure.intervals import Interval

INPUT_HELP = {
    "tokens": "tokens to train on, such as 1T",
    "tokens_per_second": "tokens/s of all GPUs (default: the projection to --to)",
    "sequence_length": "tokens per sample",
    "gpus": "GPUs of the job (default: --to)",
    "price_per_gpu_hour": "on-demand price per GPU-hour",
    "spot_price_per_gpu_hour": "spot price per GPU-hour",
    "preemption_overhead": "extra time lost to preemptions, such as 5%%",
    "watts_per_gpu": "mean watts per GPU, with its share of the node",
    "pue": "power usage effectiveness of the site",
    "grid_kg_per_kwh": "kg CO2e per kWh",
    "other_tokens_per_second": "tokens/s of a second platform, for the break-even price",
    "other_gpus": "GPUs of the second platform",
}


def stated_range(text: str) -> Interval:
    """Return a number or a range, as an argument type."""
    from scalebook.measure.economics import read_range

    try:
        return read_range(text)
    except ClaimError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error
