"""The Python API, ``import scalebook as sb``: the verbs of the command line as typed functions.

``scalebook`` loads this module at the first use of one of ``VERBS``, and each verb imports what it
needs when it is called. A verb returns a frozen value, or raises a ``ScalebookError`` whose message
says what to do. Settings are keyword arguments with the names of ``scalebook.settings``.
"""

from __future__ import annotations

import argparse
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from scalebook.untrusted import html_table

if TYPE_CHECKING:
    import polars as pl

    from scalebook.cli.check import Request
    from scalebook.config import RunConfig
    from scalebook.facts.memory import MemoryEstimate
    from scalebook.measure.metrics.steady import Steady
    from scalebook.measure.registered import Metric, Missing, Subject, Value
    from scalebook.measure.verdicts import Verdict
    from scalebook.predict import Prediction
    from scalebook.report.base.frames import ReportData
    from scalebook.store import Run

VERBS = (
    *("Runs", "check", "compare", "flops", "load", "memory", "metric", "mfu", "missing"),
    *("predict", "read_log", "run", "steady"),
)


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of a folder as data frames."""

    data: ReportData
    frame: pl.DataFrame  # one row per run, the columns of runs.csv
    steps: pl.DataFrame  # one row per step

    def where(self, **values: Any) -> Runs:
        """Return the runs whose columns have these values: ``where(platform="h100")``."""
        from scalebook.errors import ConfigError, unknown

        for name in values.keys() - set(self.frame.columns):
            raise ConfigError(unknown("column", name, self.frame.columns))
        return _only(self, self.frame.filter(**values))

    @property
    def telemetry(self) -> pl.DataFrame:
        """One row per reading of a device, of long runs every second, third, ...; read when asked.

        The columns, and how many readings are kept, are those of telemetry.parquet.
        """
        from scalebook.report.base.frames import telemetry_frame

        places = self.data.directories
        return telemetry_frame({one: places[one] for one in self.frame["run_id"].to_list()})

    def to_pandas(self) -> Any:
        """Return ``frame`` as a pandas data frame.

        Raises:
            ScalebookError: pandas or pyarrow, which the conversion needs, is not installed.
        """
        from scalebook.errors import ScalebookError

        for name in ("pandas", "pyarrow"):
            try:
                import_module(name)
            except ImportError as error:
                raise ScalebookError(
                    f"{name} is not installed. Install it: pip install pandas pyarrow. Without "
                    "it, use the polars data frame in .frame."
                ) from error
        return cast(Any, self.frame).to_pandas()

    def report(self, output: str | Path) -> Path:
        """Build the report of the whole folder; return the path of its first page."""
        from scalebook.project import required_root
        from scalebook.report import Places, build

        return build(Places(self.data.folder, Path(output), required_root()))

    def __len__(self) -> int:
        """Return the number of runs."""
        return self.frame.height

    def _repr_html_(self) -> str:
        return cast(Any, self.frame)._repr_html_()  # what a notebook shows

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the rates as a Vega-Lite chart, which a notebook that knows its type draws."""
        from scalebook.report.charts.rate_charts import throughput

        drawn = throughput(self.frame)
        return drawn.vega() if drawn else {}


def _only(runs: Runs, frame: pl.DataFrame) -> Runs:
    steps = runs.steps.filter(runs.steps["run_id"].is_in(frame["run_id"].to_list()))
    return Runs(runs.data, frame, steps)


@dataclass(frozen=True, slots=True)
class Mfu:
    """A fraction of the dense peak, None with a reason; both rates in TFLOP/s per GPU."""

    fraction: float | None
    reason: str | None
    model_tflops_per_second_per_gpu: float
    peak_tflops_per_second: float | None

    def _repr_html_(self) -> str:
        shown = f"{self.fraction:.1%}" if self.fraction is not None else self.reason
        rates = f"{self.model_tflops_per_second_per_gpu:,.1f} TFLOP/s per GPU"
        peak = self.peak_tflops_per_second
        return html_table(
            {"MFU": shown, "model rate": rates, "dense peak": peak and f"{peak:,.1f} TFLOP/s"}
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a configuration is legal and fits, as ``scalebook check`` judges it."""

    config: RunConfig
    legal: bool
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    fits: bool | None
    fits_reason: str

    def _repr_html_(self) -> str:
        words = {True: "yes", False: "no", None: "unknown"}
        return html_table(
            {
                "legal": words[self.legal],
                "fits": f"{words[self.fits]}: {self.fits_reason}",
                "problems": " ".join(self.problems),
                "warnings": " ".join(self.warnings),
            }
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict on A against B, None with a reason, and the settings in which they differ."""

    verdict: Verdict | None
    reason: str | None
    differences: tuple[str, ...]

    def _repr_html_(self) -> str:
        verdict = self.verdict.sentence if self.verdict else self.reason
        return html_table({"verdict": verdict, "differences": ", ".join(self.differences)})


def metric(
    *,
    unit: str,
    meaning: str,
    null: str,
    dtype: Literal["float", "int", "str", "bool"] = "float",
    words: str | None = None,
) -> Callable[[Callable[[Subject], Value | Missing]], Metric]:
    """Make a column of a function from a run to its value; the function's name is the column's.

    ``meaning`` says what it is, ``null`` when there is no value, ``words`` what a table calls it.
    """
    from scalebook.measure import registered

    return registered.metric(unit=unit, meaning=meaning, null=null, dtype=dtype, words=words)


def missing(reason: str) -> Missing:
    """Return the reason that a metric returns instead of a value: one sentence."""
    from scalebook.measure import registered

    return registered.Missing(reason)


def load(runs: str | Path = "runs") -> Runs:
    """Return the runs of a folder."""
    from scalebook.errors import RecordError
    from scalebook.report.base import frames

    if not Path(runs).is_dir():
        raise RecordError(f"No folder of runs at {runs}.")
    data = frames.load(runs)
    return Runs(data, data.runs, data.steps)


def read_log(path: str | Path, runs: str | Path, **supplied: Any) -> Runs:
    """Import a log of another trainer into a folder of runs; return the runs that it contains."""
    from scalebook.errors import IngestError
    from scalebook.logs.ingest.ingestion import ingest
    from scalebook.trackers import opener

    _refuse_unknown(supplied)
    found, notes = ingest([Path(path)], Path(runs), supplied, opens=opener())
    if not found:
        raise IngestError(" ".join(notes) or f"No log was recognised in {path}.")
    every = load(runs)
    ids = [one.path.name for one in found]
    return _only(every, every.frame.filter(every.frame["run_id"].is_in(ids)))


def flops(model: str, sequence_length: int, convention: str = "megatron_causal") -> float:
    """Return the FLOPs per trained token, forward and backward, without recomputation."""
    from scalebook.facts import catalog
    from scalebook.facts.flops import flops_per_token

    _require_positive("sequence_length", sequence_length)
    return flops_per_token(catalog.model(model), sequence_length, convention)


def mfu(
    tokens_per_second_per_gpu: float,
    *,
    model: str,
    sequence_length: int,
    accelerator: str,
    precision: str = "bf16",
    convention: str = "megatron_causal",
) -> Mfu:
    """Return the MFU of a rate on an accelerator of the catalog."""
    from scalebook.facts import catalog

    _require_positive("tokens_per_second_per_gpu", tokens_per_second_per_gpu)
    rate = tokens_per_second_per_gpu * flops(model, sequence_length, convention) / 1e12
    device = catalog.accelerator(accelerator)
    peak = device.peak_tflops.get(precision)
    if peak is None:
        return Mfu(None, f"No dense peak for {device.name} in {precision}.", rate, None)
    if rate > peak:
        wrong = "The rate, the model or the device is wrong: MFU is left empty."
        reason = f"{rate:,.0f} TFLOP/s per GPU is above the dense {precision} peak of {device.name}"
        return Mfu(None, f"{reason} ({peak:,g}). {wrong}", rate, peak)
    return Mfu(rate / peak, None, rate, peak)


def memory(model: str, platform: str, **settings: Any) -> MemoryEstimate:
    """Return the predicted memory of a legal configuration, GiB per rank on every stage."""
    from scalebook.facts import legality

    asked = _request(model, platform, settings)
    case = legality.Case(asked.config, asked.shape, asked.accelerator, asked.gpus_per_node)
    legality.refuse(case)
    return legality.fitting(case)[0]


def check(model: str, platform: str, **settings: Any) -> Judgement:
    """Return whether a configuration is legal and fits."""
    from scalebook.cli.check import answer

    asked = _request(model, platform, settings)
    found = answer(asked)
    problems, warnings = (
        tuple(one["message"] for one in found[kind]) for kind in ("problems", "warnings")
    )
    reason = found["fits_reason"]
    return Judgement(asked.config, found["legal"], problems, warnings, found["fits"], reason)


def predict(model: str, platform: str, *, runs: str | Path = "runs", **settings: Any) -> Prediction:
    """Return the predicted rate of a configuration with its interval."""
    from scalebook.errors import RecordError
    from scalebook.predict import load

    if str(runs) != "runs" and not Path(runs).is_dir():
        raise RecordError(f"No folder of runs at {runs}.")
    return load(platform, Path(runs)).answer(_request(model, platform, settings).config)


def compare(a: str | Path, b: str | Path, *, runs: str | Path = "runs") -> Comparison:
    """Return which of two runs, folders of repeats or files of step times is faster."""
    from scalebook.measure.verdicts.differences import differences
    from scalebook.measure.verdicts.read import judge, read_side

    left, right = (read_side(str(side), Path(runs)) for side in (a, b))
    verdict, reason = judge(left, right)
    found = differences(left.records, right.records) if left.records and right.records else ()
    return Comparison(verdict, reason, tuple(map(str, found)))


def steady(step_seconds: Sequence[float]) -> Steady:
    """Return the steady state of step times, with mean and interval in seconds."""
    from scalebook.measure.metrics.steady import find_steady

    for seconds in step_seconds:
        _require_positive("step_seconds", seconds)
    return find_steady(step_seconds)


def run(model: str, platform: str, *, runs: str | Path = "runs", **settings: Any) -> Run:
    """Train one configuration on this machine; return its run, whatever became of it."""
    from scalebook.cli import main
    from scalebook.errors import LaunchError
    from scalebook.store import read_runs

    config = _request(model, platform, settings).config
    before = {one.record.run_id for one in read_runs(Path(runs))[0]}
    given = config.model_dump(exclude={"platform"})
    words = [f"{name}={value}" for name, value in given.items()]
    flags = [word for one in words for word in ("--set", one)]
    main(["run", "--rerun", "--platform", config.platform, "--runs", str(runs), *flags])
    for one in read_runs(Path(runs))[0]:
        if one.record.run_id not in before and one.record.config_hash == config.config_hash():
            return one
    raise LaunchError(f"No run was recorded under {runs}; the output above says why.")


def _require_positive(name: str, value: Any) -> None:
    """Refuse what is not a finite number above zero."""
    from scalebook.errors import ConfigError

    if not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise ConfigError(f"{name}={value!r} must be a finite number above zero.")


def _refuse_unknown(supplied: dict[str, Any]) -> None:
    """Refuse what no flag of ``scalebook ingest`` supplies, and a value that its flag refuses."""
    from scalebook.cli.interchange import KNOWN
    from scalebook.errors import ConfigError, unknown
    from scalebook.settings import SETTINGS

    for name, value in supplied.items():
        if name not in KNOWN:
            raise ConfigError(unknown("value", name, KNOWN))
        row = SETTINGS.get(name)
        if row and row.choices and value not in row.choices:
            raise ConfigError(f"{name}={value!r} must be one of {', '.join(row.choices)}.")
        least = row.minimum if row else None
        if least is not None and (type(value) is not int or value < least):
            raise ConfigError(f"{name}={value!r} must be a whole number of at least {least}.")


def _request(model: str, platform: str, settings: dict[str, Any]) -> Request:
    """Return a configuration completed by the defaults of ``scalebook check``."""
    from scalebook.cli.check import request
    from scalebook.errors import ConfigError, unknown
    from scalebook.settings import SETTINGS

    for name in settings.keys() - SETTINGS.keys():
        raise ConfigError(unknown("setting", name, SETTINGS))
    return request(argparse.Namespace(model=model, platform=platform, **settings))
