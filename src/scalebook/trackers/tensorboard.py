"""TensorBoard: event files, read and written."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from scalebook.logs.causes import Ending
from scalebook.trackers import wire
from scalebook.trackers.exported import RunExport, client
from scalebook.trackers.tracked_run import History, TrackedRun
from scalebook.untrusted import LINES_BYTES, opened

_PIECE = ".tfevents."
# Fields of Event, Summary.Value, TensorProto and the plugin of parameters, from the .proto files
# of tensorboard/compat/proto and tensorboard/plugins/hparams.
_STEP, _SUMMARY = 2, 5
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 2, 8, 9
_TENSOR_TYPE, _TENSOR_CONTENT, _TEXTS = 1, 4, 8
_NUMBERS = {1: (5, "<f"), 2: (6, "<d")}  # type of a tensor -> its field of values, the format
_TEXT_SUFFIX = re.compile(r"/text_summary$")


def is_events(path: Path) -> bool:
    """Whether a file is an event file by its name."""
    return _PIECE in path.name


def files_of(path: Path) -> list[Path]:
    """Return the event files next to one: a run that was restarted has several."""
    return sorted(one for one in path.parent.iterdir() if is_events(one) and not one.is_symlink())


def read(path: Path, wanted: frozenset[str]) -> TrackedRun:
    """Return the run of the folder of an event file.

    Raises:
        OSError: a file cannot be opened, or is too large.
        IngestError: there are too many numbers.
    """
    run = TrackedRun(path.parent)
    history = History(path.parent, wanted)
    for file in files_of(path):
        with opened(file, LINES_BYTES) as stream:
            for event in wire.event_records(stream, run.note):
                try:
                    _take(run, history, event)
                except (ValueError, struct.error):
                    run.note("An event could not be read.")
    run.rows = history
    return run


def _take(run: TrackedRun, history: History, event: bytes) -> None:
    """Take the numbers and the parameters of an event."""
    seconds = next((struct.unpack("<d", v)[0] for k, v in wire.fields(event)
                    if k == 1 and isinstance(v, bytes)), math.nan)  # fmt: skip
    step = wire.integer(event, _STEP)
    for value in wire.members(event, _SUMMARY, 1):
        tag = next(iter(wire.texts(value, _TAG)), "")
        if history.wants(tag):
            for number in _numbers(value):
                history.add(tag, step, number, seconds)
        elif _TEXT_SUFFIX.search(tag):
            _text(run, _TEXT_SUFFIX.sub("", tag), value)
        elif tag.startswith("_hparams_/"):
            _parameters(run, value)


def _numbers(value: bytes) -> Iterator[float]:
    """Yield the scalar of a value: a plain float, or a tensor of one number."""
    for number, field in wire.fields(value):
        if not isinstance(field, bytes):
            continue
        if number == _SIMPLE_VALUE:
            yield struct.unpack("<f", field)[0]
        elif number == _TENSOR:
            place, form = _NUMBERS.get(wire.integer(field, _TENSOR_TYPE), (0, ""))
            packed = [*wire.members(field, _TENSOR_CONTENT), *wire.members(field, place)]
            if form and packed and len(packed[0]) == struct.calcsize(form):
                yield struct.unpack(form, packed[0])[0]


def _text(run: TrackedRun, name: str, value: bytes) -> None:
    """Take a text as a parameter: one value (Megatron), or an object as JSON (Hugging Face)."""
    for text in wire.texts(value, _TENSOR, _TEXTS):
        try:
            found: Any = json.loads(text) if text.lstrip().startswith("{") else text
        except (ValueError, RecursionError):
            found = text
        if isinstance(found, dict):
            for key, item in cast("dict[str, Any]", found).items():
                run.parameter(key, item)
        else:
            run.parameter(name, found)


def _parameters(run: TrackedRun, value: bytes) -> None:
    """Take what the plugin of parameters keeps: those of the start, the status of the end."""
    for data in wire.members(value, _METADATA, 1, 2):
        for entry in wire.members(data, 3, 1):
            name = next(iter(wire.texts(entry, 1)), "")
            for number, item in (one for v in wire.members(entry, 2) for one in wire.fields(v)):
                if isinstance(item, bytes):
                    plain = struct.unpack("<d", item)[0] if number == 2 else item.decode()
                    whole = isinstance(plain, float) and plain.is_integer()
                    run.parameter(name, int(plain) if whole else plain)
                elif number == 4:
                    run.parameter(name, bool(item))
        for end in wire.members(data, 4):
            status = wire.integer(end, 1)
            if status in (1, 2):
                name = "completed" if status == 1 else "failed"
                run.ending = Ending(name, f"TensorBoard holds the status {name}")


def write(run: RunExport, place: str) -> None:
    """Write a run as an event file in a folder of its name.

    Raises:
        TrackerError: the client is missing.
    """
    client("tensorboard")
    writers = client("tensorboard.summary.writer.event_file_writer")
    event_pb2 = client("tensorboard.compat.proto.event_pb2")
    summary_pb2 = client("tensorboard.compat.proto.summary_pb2")
    out = writers.EventFileWriter(str(Path(place) / run.run_id))

    def add(values: list[Any], step: int, seconds: float) -> None:
        held = summary_pb2.Summary(value=values)
        out.add_event(event_pb2.Event(wall_time=seconds, step=step, summary=held))

    def scalars(values: Mapping[str, float]) -> list[Any]:
        return [summary_pb2.Summary.Value(tag=k, simple_value=v) for k, v in values.items()]

    start, end = run.seconds
    add([_session(run, summary_pb2.Summary.Value, start=start)], 0, start)
    for step in run.steps:
        add(scalars(step.values), step.step, step.finished_at_seconds)
    last = run.steps[-1].step if run.steps else 0
    add(scalars({f"summary/{name}": value for name, value in run.summary.items()}), last, end)
    add([_session(run, summary_pb2.Summary.Value, end=end)], last, end)
    out.close()


def _session(
    run: RunExport, new: Callable[..., Any], *, start: float | None = None, end: float = 0.0
) -> Any:
    """Return the summary in which the plugin of parameters looks for them, or for the end."""
    plugin = client("tensorboard.plugins.hparams.plugin_data_pb2")
    data = plugin.HParamsPluginData(version=0)
    if start is None:
        data.session_end_info.end_time_secs = end
        data.session_end_info.status = 1 if run.tags["status"] == "completed" else 2
    else:
        data.session_start_info.start_time_secs = start
        for name, value in (run.parameters | run.named_tags).items():
            cell = data.session_start_info.hparams[name]
            if isinstance(value, bool):
                cell.bool_value = value
            elif isinstance(value, int | float):
                cell.number_value = value
            else:
                cell.string_value = value
    value = new(tag=f"_hparams_/session_{'end' if start is None else 'start'}_info")
    value.metadata.plugin_data.plugin_name = "hparams"
    value.metadata.plugin_data.content = data.SerializeToString()
    return value
