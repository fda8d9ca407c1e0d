"""Train small configurations one after another, in ranks forked from one process.

Run as a script with a file of {name: changes to SMALL} and a folder: imports are paid once. Each
configuration gets a folder, named by its place in the file, with what a run leaves and its log.
A third argument names configurations in which ranks do as on a GPU: pieces that are compiled there
are compiled for the CPU where it says so, and run as they are written in the others.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from train_worlds import SMALL, Finished, environment

from scalebook.store import read_steps

LOG, CODE, CONFIG = "log.txt", "code.txt", "config.json"


def trained(
    folder: Path,
    changes: Mapping[str, Mapping[str, Any]],
    *,
    as_on_a_gpu: Mapping[str, bool] | None = None,
) -> dict[str, Finished]:
    """Train SMALL with each of these changes; return what each left behind, by name.

    A change of ``started`` is the number of ranks, where it is not the one that is asked for.
    As on a GPU where a name is given, with its pieces compiled or not.
    """
    asked = folder / "asked.json"
    asked.write_text(json.dumps(changes))
    command = [sys.executable, __file__, str(asked), str(folder)]
    command += [json.dumps(as_on_a_gpu or {})]
    # Without the processes of a compiler, each of which would import torch for a few lines of code.
    variables = environment() | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    subprocess.run(command, check=True, timeout=900, env=variables)
    places = {name: folder / str(number) for number, name in enumerate(changes)}
    return {name: _finished(place) for name, place in places.items()}


def _finished(place: Path) -> Finished:
    path = place / "steps.jsonl"
    steps = read_steps(path)[0] if path.exists() else ()
    return Finished(int((place / CODE).read_text()), (place / LOG).read_text(), place, steps)


def prepare() -> None:
    """Import, in the process that forks, what every rank needs."""
    import torch

    torch.set_num_threads(1)
    from scalebook.train import cpu
    from scalebook.train.layers import fused

    fused.install_weight_gradient()
    with cpu.lean_import():
        from scalebook.train import mcore  # noqa: F401
    from scalebook.facts import catalog
    from scalebook.train import loop  # noqa: F401

    catalog.model(SMALL["model"])  # the catalog's files, which every rank would read again
    gc.freeze()  # else each rank would copy what it looks through for garbage


def run(
    config: Any, output: Path, first: Callable[[int], None] = lambda _: None, started: int = 0
) -> int:
    """Train a configuration in forked ranks; return 0 or the first code that is not.

    Each rank calls ``first`` with its number before it trains. There are as many ranks as were
    asked for, or else as ``started`` says.
    """
    output.mkdir(parents=True)
    (output / CONFIG).write_text(config.model_dump_json())
    port = _free_port()
    size = started or config.world_size
    ranks = [_rank(number, size, output, port, first) for number in range(size)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
    return next((code for code in codes if code), 0)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _rank(number: int, size: int, output: Path, port: str, first: Callable[[int], None]) -> int:
    """Fork one rank; return its process id."""
    child = os.fork()
    if child:
        return child
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number))
    os.environ.update(WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    code = 1
    try:
        with (output / LOG).open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        from scalebook.train.__main__ import main as entry

        first(number)
        code = entry(["--config", str(output / CONFIG), "--output", str(output)])
    except Exception:  # noqa: BLE001  the log of the run is where a test looks
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _played(chunk: Any, batch: Any, hidden: Any) -> Any:
    """Stand for the two graphs of a micro batch in flight: each replay computes the pass."""
    import torch

    from scalebook.train.model import graph

    static = graph._clone(batch)
    received = None if hidden is None else hidden.detach().clone().requires_grad_()
    made: list[Any] = []

    def compute() -> Any:
        chunk.module.set_input_tensor([received])
        return chunk(static.tokens, static.position_ids, None, labels=static.labels)

    def forward() -> None:
        with torch.enable_grad():
            made.append(compute())
        output.copy_(made[-1].detach())

    def backward() -> None:
        if received is not None:
            received.grad = None
        torch.autograd.backward(made.pop(), gradient)

    with torch.no_grad():
        output = compute().clone()
    gradient = torch.zeros_like(output)
    print("captured", flush=True)
    passes = (SimpleNamespace(replay=each) for each in (forward, backward))
    return graph._InFlight(*passes, static, received, output, gradient)


def _as_on_a_gpu(compiled: bool, _: int) -> None:
    """Let pieces be compiled and passes replayed; where a norm is compiled, average gradients."""
    import torch

    if not compiled:
        torch.compile = lambda function, **_: function
    from scalebook.train.model import graph, megatron_config, switches
    from scalebook.train.world import World

    reduced = megatron_config.ddp_config
    gpu = World(0, 2, torch.device("cuda"))
    switches._compiled = lambda _: None
    whole = switches._graph
    switches._graph = lambda config, *given, **how: (
        None if config.pipeline_parallel_size > 1 else whole(config, *given, **how)
    )
    graph._captured_passes, graph.leave_default_stream = _played, lambda: None
    megatron_config.ddp_config = lambda config, world, on: reduced(
        config, gpu if on.fused_norm else world, on
    )


def main() -> None:
    """Train what the file of the first argument asks for, into the folder of the second."""
    from scalebook.config import RunConfig

    prepare()
    folder, gpu = Path(sys.argv[2]), json.loads(sys.argv[3])
    for number, (name, changes) in enumerate(json.loads(Path(sys.argv[1]).read_text()).items()):
        output = folder / str(number)
        if gpu.get(name):  # the compiler, which every rank would import again
            import torch._inductor.compile_fx  # noqa: F401
        first = [partial(_as_on_a_gpu, gpu[name])] if name in gpu else []
        started = changes.pop("started", 0)
        code = run(RunConfig(**{**SMALL, **changes}), output, *first, started=started)
        (output / CODE).write_text(str(code))


if __name__ == "__main__":
    main()
