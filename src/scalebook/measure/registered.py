"""Metrics that are one function each: value or reason, with unit and words, and a user's own.

``Metric`` objects of this module, and of the files that ``[metrics] files`` of the project's
``.scalebook.toml`` names, become columns of every data file, of ``scalebook list`` and of the API:
the value under the metric's name, and ``NAME_reason``, which says why there is none. The file is a
program of the user's, so it is read from the user's own project only (``own_files``).
"""

from __future__ import annotations

import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from scalebook import untrusted
from scalebook.errors import ConfigError
from scalebook.facts.catalog.load import PROJECT_FILE, own_file
from scalebook.measure.row import NAMES
from scalebook.settings import SETTINGS

if TYPE_CHECKING:
    from scalebook.measure.row import RunMetrics
    from scalebook.record import RunRecord
    from scalebook.step_columns import Steps

Dtype = Literal["float", "int", "str", "bool"]
Value = float | int | str | bool | None
_NAME = re.compile(r"[a-z][a-z0-9_]{1,59}")
_LONGEST = 300  # characters of a reason or a text
_LARGEST = 2**63  # of a whole number in a column
_REASON = "_reason"
_PUBLICATION = "SHA256SUMS"  # a folder that ``publish`` wrote may come from others


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a metric has no value for a run: one sentence."""

    reason: str


@dataclass(frozen=True)
class Subject:
    """What a metric is a function of: one run as it was recorded, and its other numbers."""

    record: RunRecord
    steps: Steps  # every step
    window: Steps | None  # the steps that the rates are over; None where there is no rate
    numbers: RunMetrics  # the numbers of this run; none that are registered

    @cached_property
    def spread(self) -> tuple[float, float] | Missing:
        """Standard deviation and mean of the steady steps, in seconds."""
        if self.window is None or not self.numbers.steady:
            reasons = self.numbers.steady_reason, self.numbers.throughput_reason
            return Missing(reasons[0] or reasons[1] or _NOT_STEADY)
        seconds = self.window.known("step_seconds")
        if len(seconds) < 2:
            return Missing(_NOT_STEADY)
        mean = sum(seconds) / len(seconds)
        squares = sum((value - mean) ** 2 for value in seconds)
        return math.sqrt(squares / (len(seconds) - 1)), mean


@dataclass(frozen=True, slots=True)
class Metric:
    """A function from a run to a number, and the words of its column."""

    name: str
    words: str  # as a table calls it: Reserved memory
    unit: str  # empty: it has none
    dtype: Dtype
    meaning: str
    null: str  # when it is null
    function: Callable[[Subject], Value | Missing]

    @property
    def reason_name(self) -> str:
        """The column that says why there is no value."""
        return f"{self.name}{_REASON}"


def metric(
    *, unit: str, meaning: str, null: str, dtype: Dtype = "float", words: str | None = None
) -> Callable[[Callable[[Subject], Value | Missing]], Metric]:
    """Make a metric of a function; the function's name is that of the column."""

    def named(function: Callable[[Subject], Value | Missing]) -> Metric:
        name = function.__name__
        title = words or name.replace("_", " ").capitalize()
        return Metric(name, title, unit, dtype, meaning, null, function)

    return named


def values(subject: Subject, metrics: Iterable[Metric]) -> dict[str, Value]:
    """Return value and reason of each metric by column; one that raises is null with a reason."""
    found: dict[str, Value] = {}
    for one in metrics:
        found[one.name], found[one.reason_name] = _value(one, subject)
    return found


def _value(one: Metric, subject: Subject) -> tuple[Value, str | None]:
    """Return the value of a metric, or None and the reason."""
    try:
        found = one.function(subject)
        if found is None or isinstance(found, Missing):
            return None, _sentence(found.reason if found and found.reason else one.null)
        value = _converted(found, one.dtype)
        if value is None:
            return None, _sentence(f"The metric returned {found!r}, which is not a {one.dtype}.")
    # A metric is a program of anybody's: whatever it raises costs its own number only.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        said = " ".join(str(error).split())
        kind = type(error).__name__
        return None, _sentence(f"The metric raised {kind}{f': {said}' if said else ''}.")
    return value, None


def _sentence(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _converted(found: Any, dtype: Dtype) -> Value:
    """Return a value as its column holds it; None where it has another type or is not finite."""
    if dtype == "bool":
        return found if isinstance(found, bool) else None
    if dtype == "str":
        return str(found)[:_LONGEST] if isinstance(found, str) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    if not abs(found) <= sys.float_info.max:  # true for NaN, and for a whole number without end
        return None
    if dtype == "float":
        return float(found)
    return int(found) if found == int(found) and abs(found) < _LARGEST else None


# The metrics of a user's own --------------------------------------------------------------------

Signature = tuple[tuple[str, int, int], ...]


def every() -> tuple[Metric, ...]:
    """Return the metrics of this module, then the user's.

    Raises:
        ConfigError: a file of the user's cannot be read, or a metric in it is malformed.
    """
    return (*BUILT_IN, *own())


def own() -> tuple[Metric, ...]:
    """Return the metrics of the files that the project's ``.scalebook.toml`` names.

    Raises:
        ConfigError: as ``every``.
    """
    return _loaded(signature())


def signature() -> Signature:
    """Return what ``own`` depends on: path, time of change and size of each file."""
    stats = ((path, path.stat()) for path in own_files())
    return tuple((str(path), about.st_mtime_ns, about.st_size) for path, about in stats)


def own_files() -> tuple[Path, ...]:
    """Return the files of metrics that the project's ``.scalebook.toml`` names.

    Raises:
        ConfigError: a name is not that of a file of the project, or others can change the file.
    """
    project = own_file()
    if project is None:
        return ()
    try:
        about = project.stat()
    except FileNotFoundError:  # removed since it was looked for
        return ()
    return _named(project, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _named(project: Path, modified: int, size: int) -> tuple[Path, ...]:
    del modified, size  # only part of the cache's key
    names = _names(project)
    if not names:
        return ()
    _require_own(project, project.parent)
    found = tuple(project.parent / name for name in names)
    for name, path in zip(names, found, strict=True):
        inside = path.resolve().is_relative_to(project.parent.resolve())
        if not inside or not path.is_file() or path.suffix != ".py":
            raise ConfigError(
                f"{project}: [metrics] files names {name!r}. Name Python files of this project, "
                'such as files = ["my_metrics.py"].'
            )
        _require_own(path, project.parent)
    return found


def _names(project: Path) -> tuple[str, ...]:
    """Return what ``[metrics] files`` says; nothing where the file has no such table."""
    try:
        document = tomllib.loads(untrusted.read_bytes(project, follow=True).decode())
    except (OSError, ValueError, RecursionError):
        return ()  # the catalog, which reads the same file, says what is wrong
    table = document.get("metrics")
    if table is None:
        return ()
    found = cast("dict[str, Any]", table).get("files") if isinstance(table, dict) else None
    names = cast("list[Any]", found) if isinstance(found, list) else [None]
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f'{project}: write [metrics] as files = ["my_metrics.py"].')
    return tuple(str(name) for name in names)


def _require_own(path: Path, project: Path) -> None:
    """Refuse a file that others wrote or can change, or that lies in a folder of runs."""
    about = path.stat()
    users = (os.geteuid(), 0) if hasattr(os, "geteuid") else (about.st_uid,)
    if about.st_uid not in users or about.st_mode & 0o002:
        raise ConfigError(
            f"{path} is not run: it belongs to another user, or everyone may write to it. Metrics "
            "are programs; keep them in files of your own."
        )
    folder = path.resolve().parent
    top = project.resolve()
    while True:
        marked = any((folder / name).exists() for name in ("record.json", _PUBLICATION))
        if marked or any(folder.glob("*/record.json")):
            raise ConfigError(
                f"{path} is not run: {folder} is a folder of runs, which may come from others. "
                f"Keep {PROJECT_FILE} and its metrics at the root of your project."
            )
        if folder == top:
            return
        folder = folder.parent


@lru_cache(maxsize=8)
def _loaded(files: Signature) -> tuple[Metric, ...]:
    """Return the metrics of these files; a changed file is rerun."""
    known = dict.fromkeys((*NAMES, *SETTINGS), "Scalebook")
    known |= {name: "Scalebook" for one in BUILT_IN for name in (one.name, one.reason_name)}
    found: list[Metric] = []
    for path, _, _ in files:
        module = vars(_run(Path(path))).values()  # in the order in which they stand there
        for one in (value for value in module if isinstance(value, Metric)):
            _require_fitting(one, path, known)
            known |= dict.fromkeys((one.name, one.reason_name), path)
            found.append(one)
    return tuple(found)


def _run(path: Path) -> ModuleType:
    """Run a file of metrics as a module of its own; nothing is written next to it."""
    module = ModuleType(f"scalebook_metrics_{path.stem}")
    module.__file__ = str(path)
    try:
        source = untrusted.read_bytes(path)
        sys.modules[module.__name__] = module  # dataclasses of the file look themselves up
        exec(compile(source, str(path), "exec"), module.__dict__)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    # Whatever the user's program raises is the user's to mend, in one line.
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {said}.") from error
    return module


def _require_fitting(one: Metric, path: str, known: Mapping[str, str]) -> None:
    if not _NAME.fullmatch(one.name):
        raise ConfigError(
            f"{path}: {one.name!r} is not a name that a metric can have. Use 2 to 60 lower-case "
            "letters, digits and underscores."
        )
    for name in (one.name, one.reason_name):
        if name in known:
            raise ConfigError(f"{path}: {known[name]} has a column {name!r}. Rename the metric.")
    if one.dtype not in get_args(Dtype):
        raise ConfigError(f"{path}: {one.name} has dtype {one.dtype!r}. Use float, int, str, bool.")
    texts = {"unit": one.unit, "meaning": one.meaning, "null": one.null}
    for name, text in texts.items():
        if not isinstance(text, str) or not (text or name == "unit"):  # pyright: ignore
            raise ConfigError(f"{path}: {one.name} has {name}={text!r}. Write a text.")


# The metrics of this project --------------------------------------------------------------------

_NOT_STEADY = "There is no steady state of two steps or more."


@metric(
    unit="s",
    words="Standard deviation of steps",
    meaning="standard deviation (n - 1) of the steps of the steady state",
    null=_NOT_STEADY,
)
def step_seconds_std(run: Subject) -> float | Missing:
    found = run.spread
    return found if isinstance(found, Missing) else found[0]


@metric(
    unit="fraction",
    words="Variation of steps",
    meaning="coefficient of variation: the standard deviation of the steady steps over their mean",
    null=_NOT_STEADY,
)
def step_seconds_cv(run: Subject) -> float | Missing:
    found = run.spread
    return found if isinstance(found, Missing) else found[0] / found[1]


@metric(
    unit="GiB",
    words="Reserved memory",
    meaning="the most that torch's allocator had reserved on any rank, at any step",
    null="No step recorded the reserved memory.",
)
def reserved_memory_gib(run: Subject) -> float | None:
    return max(run.steps.known("reserved_gib"), default=0.0) or None


@metric(
    unit="fraction",
    words="HFU",
    meaning="hardware FLOPs utilisation: MFU with the FLOPs of recomputation counted",
    null="There is no MFU, or the run does not say what it recomputed.",
)
def hfu(run: Subject) -> float | Missing:
    """Return the hardware FLOPs utilisation, a fraction of the dense peak.

    The FLOPs of a step with what was recomputed, over those of the model, times MFU.
    """
    from scalebook.facts import flops
    from scalebook.measure.metrics.recorded import count, document_length, recomputed, run_shape

    numbers, record = run.numbers, run.record
    if numbers.mfu is None:
        return Missing(numbers.mfu_reason or "There is no MFU.")
    shape, reason = run_shape(record)
    length, again = document_length(record), recomputed(record)
    if shape is None or length is None:
        return Missing(reason or "The run names no sequence_length.")
    if again is None:
        return Missing("The run does not say what it recomputed, or names modules not known.")
    names = ("pipeline_parallel_size", "virtual_pipeline_parallel_size")
    stages, chunks = (count(record, name) or 1 for name in names)
    counted, modules = numbers.flops_convention, count(record, "mtp_layers") or 0
    hardware = flops.hardware_flops_per_token(
        *(shape, length, again.mode, counted),
        recompute_num_layers=again.covered(stages, chunks, shape.num_layers),
        recompute_modules=again.modules,
        mtp_layers=modules,
    )
    model = flops.flops_per_token(shape, length, counted, mtp_layers=modules)
    return numbers.mfu * hardware / model


BUILT_IN = tuple(one for one in list(globals().values()) if isinstance(one, Metric))
