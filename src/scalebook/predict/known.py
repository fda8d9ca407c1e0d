"""The runs that rates are fitted to: measured, of one architecture, with what was on known."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from scalebook.config import RunConfig
from scalebook.errors import ScalebookError
from scalebook.facts import catalog
from scalebook.facts.catalog.types import Accelerator, ModelShape
from scalebook.facts.feasibility.known import config_of
from scalebook.measure.metrics.recorded import run_shape
from scalebook.measure.metrics.window import measured_steps, throughput
from scalebook.predict.amounts import amounts
from scalebook.predict.fit import StepSample
from scalebook.predict.kinds import KERNELS, machine
from scalebook.record import RunRecord, seconds_between, text_of
from scalebook.settings import SWITCHES, without_effect
from scalebook.store import Run, Steps, read_run, run_directories

# Records come from anywhere; one with a value of the wrong type teaches nothing.
ODD = (ScalebookError, ArithmeticError, TypeError, ValueError, LookupError)
# What makes two runs no two configurations: names, lengths of time, which repeat, what is watched;
# the layers' and the platform's names, whose kernels and devices are compared themselves.
_NOT_WORK = {*without_effect("speed"), "platform", "layer_spec"}
# Options that a run of an older trainer did not name.
_FUSED = tuple(name for name in SWITCHES if name.startswith("fused_"))


@dataclass(frozen=True)
class KnownRate:
    """One measured run: what ran, and the seconds of its steps."""

    run_id: str
    config: RunConfig
    shape: ModelShape
    accelerator: Accelerator | None
    ran: Mapping[str, Any]  # options that were on, as the trainer said
    seconds: float
    around_seconds: float | None = None  # between start and end of the run, outside its steps
    node: str = ""  # equal for runs of one node, as far as it is known; empty: not known

    @property
    def architecture(self) -> str:
        """What devices must share for slowness to carry over; a CPU's is its own."""
        return self.accelerator.architecture if self.accelerator else "cpu"

    @cached_property
    def placed(self) -> tuple[str, str]:
        """What the runs of one configuration share: their platform and their work."""
        return self.config.platform, configuration(self.config, self.ran)

    @cached_property
    def sample(self) -> StepSample:
        """The run's work in reference seconds next to its measured time."""
        per_node = -(-self.config.world_size // self.config.nodes)
        reference = machine(self.accelerator, per_node)
        found = amounts(self.config, self.shape, reference, self.ran)
        family, ranks = layout(self.config, self.ran), self.config.world_size
        return StepSample(
            self.seconds,
            found.seconds,
            self.placed[1],
            family,
            ranks,
            base_name(self.config, self.shape),
            narrowest(self.config, self.shape),
            sum(found.unsure.values()) / self.seconds,
            device=self.accelerator.name if self.accelerator else "",
            node=self.node,
        )


def base_name(config: RunConfig, shape: ModelShape) -> str:
    """Return the name of a model with its precision, whatever its number of layers."""
    return f"{shape.name.partition('@')[0]} {config.precision}"


def narrowest(config: RunConfig, shape: ModelShape) -> float:
    """Return the narrowest side (features) of a rank's matrix products: narrow ones are slower."""
    sides = [shape.hidden_size, shape.ffn_hidden_size or shape.hidden_size]
    sides = [side / config.tensor_parallel_size for side in sides]
    if shape.moe is not None:
        sides.append(shape.moe.ffn_hidden_size / config.expert_tensor_parallel_size)
    return min(sides)


def configuration(config: RunConfig, ran: Mapping[str, Any] | None = None) -> str:
    """Return a text that is equal for runs of the same work in the same layout, on any device."""
    fields = config.model_dump(exclude=_NOT_WORK, exclude_defaults=True)
    fields = {name: value for name, value in fields.items() if name not in SWITCHES}
    on = {name: (ran or {}).get(name, getattr(config, name)) in ("on", True) for name in SWITCHES}
    return json.dumps([fields, on], sort_keys=True)


def layout(config: RunConfig, ran: Mapping[str, Any] | None = None) -> str:
    """Return the family whose runs are wrong in the same way, for the width of intervals."""
    names = (name for name in _FUSED if name != "fused_weight_gradient")
    if config.platform != "cpu" and any((ran or {}).get(name) == "off" for name in names):
        return "options off"
    families = {
        "experts": config.expert_parallel_size > 1 or config.model.startswith("mixtral"),
        "fp8": config.precision == "fp8",
        "fully sharded": config.data_parallel_sharding == "full",
        "pipeline": config.pipeline_parallel_size > 1,
        "context": config.context_parallel_size > 1,
        "tensor": config.tensor_parallel_size > 1,
        "data": config.world_size > 1,
    }
    return next((name for name, is_one in families.items() if is_one), "one device")


def known_rate(run: Run) -> KnownRate | str:
    """Return what a run teaches, or why it teaches nothing."""
    record = run.record
    config = config_of(record)
    unknown = _unknown(record, config)
    if config is None or unknown is not None:
        return unknown or ""
    rates, reason = throughput(record, measured_steps(run.steps), interval=False)
    shape, unknown_model = run_shape(record)
    if rates is None or shape is None:
        return reason or unknown_model or "it has no rate"
    accelerator = catalog.accelerator_for_device(
        text_of(record.environment.get("accelerator")) or ""
    )
    if accelerator is None and config.platform != "cpu":
        return "its accelerator is not in the catalog"
    ran = {name: record.observed.get(name) for name in (*SWITCHES, *KERNELS)}
    # Older records do not say whether experts' tokens are counted on the device: a graph needs it.
    if ran["token_counts"] is None and ran["cuda_graph"] == "on":
        ran["token_counts"] = "device"
    seconds = config.tokens_per_step / rates.tokens_per_second
    around, node = _around(run), _node(record)
    return KnownRate(record.run_id, config, shape, accelerator, ran, seconds, around, node)


def _node(record: RunRecord) -> str:
    """Return what runs of one node share: its first device, which every run on it uses.

    Older records do not name their devices. Those of one commit and day, on nodes with as many
    devices of a kind, are taken to be of one node, which lets them teach less, not more.
    """
    known = record.environment
    ids, commit = text_of(known.get("device_ids")), text_of(known.get("git_commit"))
    if ids:
        return ids.split()[0]
    day = (record.started_at or "")[:10]
    devices = f"{known.get('accelerators_per_node')} {known.get('accelerator')}"
    return f"{commit} {day} {devices}" if commit and day else ""


def _unknown(record: RunRecord, config: RunConfig | None) -> str | None:
    """Return why a run cannot be compared with what the trainer does today; None where it can."""
    if config is None:
        return "its configuration is not whole"
    if record.source != "measured" or config.engine != "megatron":
        return "it was not measured by Scalebook's trainer"
    if any(record.observed.get(name) is None for name in _FUSED):
        return "its trainer did not record which options were on"
    return None


def _around(run: Run) -> float | None:
    """Return seconds of a run outside its steps; the first step compiles and counts as outside."""
    whole = seconds_between(run.record.started_at, run.record.finished_at)
    if whole is None:
        return None
    around = whole - sum(Steps.of(run.steps)[1:].known("step_seconds"))
    return around if around >= 0 else None


@lru_cache(maxsize=4096)
def _learned(directory: Path, *_state: tuple[tuple[str, int], ...]) -> KnownRate | str:
    """Return what a run teaches while the catalog and the files of the run are the same."""
    try:
        return known_rate(read_run(directory, brief=True))
    except ODD:
        return ""


def known_rates(
    folders: Iterable[Path], names: Collection[str] | None = None
) -> tuple[tuple[KnownRate, ...], int]:
    """Return what the runs of folders (of these names) teach, and how many teach nothing."""
    found: dict[str, KnownRate] = {}
    without: set[str] = set()
    with catalog.load.held() as facts:
        for directory in (path for folder in folders for path in run_directories(folder)):
            if names is not None and directory.name not in names:
                continue
            files = tuple((p.name, p.lstat().st_mtime_ns) for p in sorted(directory.iterdir()))
            one = _learned(directory, facts, files)
            if isinstance(one, str):
                without.add(directory.name)
            else:
                found.setdefault(one.run_id, one)
    return tuple(found[name] for name in sorted(found)), len(without)
