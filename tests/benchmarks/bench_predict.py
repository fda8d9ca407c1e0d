"""How far predictions are from measured and published rates, and how often intervals hold them.

Not part of the tests: python tests/benchmarks/bench_predict.py [--runs DIR] [--worst 10]. Prints
the table of src/scalebook/predict/README.md. A configuration is predicted from the runs of all
others, refitted each time, so that neither rates nor intervals have seen it; published results
are never fitted.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.facts.catalog import PublishedResult
from scalebook.facts.flops import flops_per_token
from scalebook.measure.probes import Probe
from scalebook.measure.probes.files import read_probes
from scalebook.predict.known import KnownRate, configuration, known_rates, layout
from scalebook.predict.model import Predictor, predictor

QUANTILE = 1.645  # 90 %, as the command's intervals
Row = dict[str, str]


@dataclass(frozen=True)
class Miss:
    """A predicted step time against the known one, and the error that was to be expected."""

    name: str
    error: float  # predicted over known, minus 1
    deviation: float
    layout: str

    @property
    def held(self) -> bool:
        """Whether the 90 % interval holds the known value."""
        low = (1 + self.error) * 2.718281828 ** (-QUANTILE * self.deviation)
        high = (1 + self.error) * 2.718281828 ** (QUANTILE * self.deviation)
        return low <= 1 <= high


def left_out(
    rates: tuple[KnownRate, ...], probes: tuple[Probe, ...], keep: Callable[[KnownRate], bool]
) -> list[Miss]:
    """Predict each configuration from the runs that ``keep`` lets in, but for its own."""
    found: list[Miss] = []
    for rate in rates:
        own = configuration(rate.config, rate.ran)
        made = predictor(
            rate.config.platform,
            rates,
            probes,
            leave_out=lambda other, own=own: (
                configuration(other.config, other.ran) == own or not keep(other)
            ),
        )
        found.append(miss(made, rate))
    return found


def groups_left_out(
    rates: tuple[KnownRate, ...], probes: tuple[Probe, ...], key: Callable[[KnownRate], str]
) -> list[Miss]:
    """Predict the runs of each key from those of others, without their configurations."""
    groups: defaultdict[str, list[KnownRate]] = defaultdict(list)
    for rate in rates:
        groups[key(rate)].append(rate)
    found: list[Miss] = []
    for name, group in groups.items():
        own = {configuration(one.config, one.ran) for one in group}
        others = [
            one
            for one in rates
            if key(one) != name and configuration(one.config, one.ran) not in own
        ]
        found += [miss(predictor(one.config.platform, others, probes), one) for one in group]
    return found


def miss(made: Predictor, rate: KnownRate) -> Miss:
    """Compare a run with its prediction, options as they ran."""
    parts, deviation = made.step(rate.config, rate.shape, rate.ran)
    family = layout(rate.config, rate.ran)
    return Miss(rate.run_id, sum(parts.values()) / rate.seconds - 1, deviation, family)


def published_config(row: PublishedResult) -> RunConfig:
    """Return the configuration of a published result; what it leaves out has common defaults."""
    tensor, world = row.tensor_parallel_size or 1, row.world_size or 1
    precision = (row.precision or "").lower()
    return RunConfig(
        platform="h100",
        model=row.model or "",
        world_size=world,
        nodes=-(-world // 8),
        engine="nemo",
        tensor_parallel_size=tensor,
        pipeline_parallel_size=row.pipeline_parallel_size or 1,
        virtual_pipeline_parallel_size=row.virtual_pipeline_parallel_size or 1,
        context_parallel_size=row.context_parallel_size or 1,
        sequence_parallel=tensor > 1,
        data_parallel_sharding="full" if (row.fully_sharded_size or 0) > 1 else "optimizer",
        micro_batch_size=row.micro_batch_size or 1,
        global_batch_size=row.global_batch_size or 1,
        sequence_length=row.sequence_length or 1,
        precision="fp8" if precision.startswith("fp8") else "bf16",
        fp8_recipe="tensorwise" if precision == "fp8-cs" else "delayed",
    )


def published_rows() -> Iterable[PublishedResult]:
    """Yield dense pretraining results of Megatron on H100."""
    for row in catalog.published():
        dense = row.model is not None and catalog.model(row.model).moe is None
        megatron = "egatron" in (row.framework or "") and row.task == "pretrain"
        if dense and megatron and (row.accelerator or "").startswith("H100"):
            yield row


def published(made: Predictor) -> list[Miss]:
    """Predict every published result."""
    found: list[Miss] = []
    for row in published_rows():
        config, shape = published_config(row), catalog.model(row.model or "")
        rate = row.tokens_per_second_per_gpu
        if rate is None and row.claimed_tflops_per_second_per_gpu and row.flops_convention:
            counted = flops_per_token(shape, config.sequence_length, row.flops_convention)
            rate = row.claimed_tflops_per_second_per_gpu * 1e12 / counted
        if rate is None:
            continue
        parts, deviation = made.step(config, shape)
        known = config.tokens_per_step / config.world_size / rate
        name = f"published {row.id} {row.model} x {row.world_size} {row.precision}"
        error = sum(parts.values()) / known - 1
        found.append(Miss(name, error, deviation, f"published {row.model}"))
    return found


def rounds(rates: tuple[KnownRate, ...]) -> dict[str, list[tuple[KnownRate, Row]]]:
    """Return the runs that were predicted before they ran with the rows of these, by round.

    What was predicted twice ran twice: the first run after each prediction counts.
    """
    rows = csv.DictReader((Path(__file__).parents[1] / "golden/predicted_before.csv").open())
    runs: defaultdict[str, list[KnownRate]] = defaultdict(list)
    for rate in sorted(rates, key=lambda one: one.run_id):
        runs[rate.config.config_hash()].append(rate)
    found: dict[str, list[tuple[KnownRate, Row]]] = {}
    for row in rows:
        if runs[row["config_hash"]]:
            pair = runs[row["config_hash"]].pop(0), row
            found.setdefault(row["round"], []).append(pair)
    return found


def predicted_before(rates: tuple[KnownRate, ...]) -> dict[str, list[Miss]]:
    """Compare runs with what was written down before they ran, by round."""
    return {name: [written(*pair) for pair in pairs] for name, pairs in rounds(rates).items()}


def written(rate: KnownRate, row: Row) -> Miss:
    """Compare a run with a row that was written before it."""
    middle, high = float(row["tokens_per_second_per_gpu"]), float(row["high"])
    error = float(row["step_seconds"]) / rate.seconds - 1
    deviation = math.log(high / middle) / QUANTILE
    return Miss(rate.run_id, error, deviation, layout(rate.config, rate.ran))


def replayed(rates: tuple[KnownRate, ...], probes: tuple[Probe, ...]) -> dict[str, list[Miss]]:
    """Compare the same runs with what today's model says of them from the runs before each round.

    Its kinds of work and constants were chosen since, with these runs in view.
    """
    found: dict[str, list[Miss]] = {}
    for name, pairs in rounds(rates).items():
        first = min(rate.run_id for rate, _ in pairs)
        before = [rate for rate in rates if rate.run_id < first]
        made = predictor(pairs[0][0].config.platform, before, probes)
        found[name] = [miss(made, rate) for rate, _ in pairs]
    return found


def line(name: str, misses: list[Miss]) -> str:
    """Return a row of the table."""
    errors = sorted(abs(one.error) for one in misses)
    if not errors:
        return f"| {name} | 0 | - | - | - | - |"
    tail = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
    held = sum(one.held for one in misses) / len(misses)
    numbers = " | ".join(f"{100 * value:.1f} %" for value in (median(errors), tail, errors[-1]))
    return f"| {name} | {len(errors)} | {numbers} | {100 * held:.0f} % |"


def main() -> None:
    """Print the table, the worst misses, and errors by layout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs/examples"))
    parser.add_argument("--worst", type=int, default=0, help="misses to name")
    options = parser.parse_args()
    rates, without = known_rates([options.runs])
    probes, _ = read_probes(options.runs)
    every = left_out(rates, probes, lambda _: True)
    plain = {
        rate.run_id
        for rate in rates
        if rate.config.precision == "bf16" and layout(rate.config, rate.ran) != "options off"
    }
    one_device = [
        one
        for one, rate in zip(
            left_out(rates, probes, lambda other: other.config.world_size == 1), rates, strict=True
        )
        if rate.config.world_size > 1
    ]
    made = predictor("h100", rates, probes)
    outside = published(made)
    untaught = [miss(predictor(rate.config.platform, (), probes), rate) for rate in rates]
    print(f"{len(rates)} runs teach, {without} do not.\n")
    print("| step time | n | median error | p90 | max | in the 90 % interval |")
    print("|---|---|---|---|---|---|")
    print(line("one configuration left out", every))
    print(line("of these, options on, bf16", [one for one in every if one.name in plain]))
    nodes = groups_left_out(rates, probes, lambda one: one.node)
    models = groups_left_out(rates, probes, lambda one: one.shape.name.partition("@")[0])
    print(line("one node left out, with its configurations", nodes))
    print(line("one model left out, at every depth", models))
    print(line("fitted on 1 GPU, predicting 2 and 4", one_device))
    print(line("from the probe only", untaught))
    print(line("published dense Megatron results on H100, never fitted", outside))
    for name, misses in sorted(predicted_before(rates).items(), key=lambda one: int(one[0])):
        print(line(f"predicted before they ran, round {name}", misses))
    for name, misses in sorted(replayed(rates, probes).items(), key=lambda one: int(one[0])):
        print(line(f"round {name}, predicted now by the runs before it", misses))
    for name in sorted({one.layout for one in [*every, *outside]}):
        print(line(f"  {name}", [one for one in [*every, *outside] if one.layout == name]))
    for one in sorted([*every, *outside], key=lambda one: -abs(one.error))[: options.worst]:
        print(f"{100 * one.error:+6.1f} % (1 sd {100 * one.deviation:.1f} %) {one.name}")


if __name__ == "__main__":
    main()
