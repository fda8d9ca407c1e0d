"""Traces in the format of torch's profiler, made by hand for tests; times in microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 100, 101


def host(name: str, start: float, stop: float, thread: int = MAIN, cat: str = "user_annotation"):
    """A range or an operator on a thread of the host."""
    place = {"pid": 4242, "tid": thread}
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": stop - start, **place}


def op(name: str, start: float, stop: float, thread: int = MAIN):
    """An operator of torch on the host."""
    return host(name, start, stop, thread, "cpu_op")


def launch(correlation: int, at: float, thread: int = MAIN, name: str = "cudaLaunchKernel"):
    """A call that launches a kernel."""
    event = host(name, at, at + 1, thread, "cuda_runtime")
    return event | {"args": {"cbid": 211, "correlation": correlation}}


def kernel(
    name: str,
    start: float,
    stop: float,
    correlation: int | None = None,
    stream: int = 7,
    cat: str = "kernel",
    device: int = 0,
):
    """A kernel on a stream of the device."""
    args: dict[str, Any] = {"device": device, "context": 1, "stream": stream}
    if correlation is not None:
        args["correlation"] = correlation
    place = {"pid": device, "tid": stream}
    times = {"ts": start, "dur": stop - start}
    return {"ph": "X", "cat": cat, "name": name, **times, **place, "args": args}


def text(*events: dict[str, Any], rank: int = 0) -> str:
    """The text of a trace of these events, with what the profiler writes around them."""
    head = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": 8,
            "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1790857026000000000,
    }
    noise = [
        {"ph": "M", "name": "process_name", "ts": 0, "pid": 4242, "tid": 0, "args": {"name": "p"}},
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "ts": 1, "pid": 4242, "tid": MAIN},
        {"ph": "X", "cat": "Trace", "name": "Profiler", "pid": "Spans", "tid": "P", "ts": 0,
         "dur": 10**6},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "scalebook.step", "ts": 0, "dur": 10**6,
         "pid": 0, "tid": 7},
    ]  # fmt: skip
    return json.dumps(head | {"traceEvents": [*noise, *events], "traceName": "t.json"}, indent=1)


def write(path: Path, *events: dict[str, Any], rank: int = 0) -> Path:
    """Write a trace file."""
    path.write_text(text(*events, rank=rank))
    return path
