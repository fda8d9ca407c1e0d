"""A trainer with the contract of scalebook.train that needs no torch and misbehaves on demand.

FAKE_TRAINER names the misbehaviour; with FAKE_REPEAT it happens in the run of that repeat alone.
FAKE_FACTORS multiplies the time of a step by a factor for each setting, named in JSON, above 1.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))
SECONDS = float(os.environ.get("FAKE_STEP_SECONDS", "0.02"))
FACTORS = json.loads(os.environ.get("FAKE_FACTORS", "{}"))


def misbehave(mode: str, step: int) -> None:
    """Do what the mode says, after the second step."""
    if step < 3:
        return
    if mode == "oom" and RANK == 0:
        raise RuntimeError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "79.11 GiB of which 1.25 GiB is free."
        )
    if mode == "diverge":
        print(f"DIVERGED: the loss of step {step} is not finite", file=sys.stderr)
        sys.exit(3)
    if mode == "kill_last_rank":
        if int(os.environ.get("WORLD_SIZE", "1")) == RANK + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)  # the others wait in a collective
    if mode == "hang":
        time.sleep(600)
    if mode == "hang_until_requeued" and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        time.sleep(600)
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if mode == "tree":
        tree()
    if mode.startswith("signal:"):
        os.kill(os.getpid(), getattr(signal, mode.removeprefix("signal:")))
    if mode == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        bytearray(2**34)
    if mode == "eat":  # until the kernel ends it
        hold = [bytearray(b"x" * 2**24) for _ in range(2**12)]
        sys.exit(len(hold))
    if mode == "bus":
        bus()
    if mode.startswith("say:"):
        print(mode.removeprefix("say:"), file=sys.stderr)
        sys.exit(1)
    if mode == "early":
        sys.exit(0)
    if mode == "raise":
        raise ValueError("token s3cr3t-value is wrong")


def tree() -> None:
    """Leave processes that end for no SIGTERM, in sessions of their own, and hang."""
    code = (
        "import os, signal, time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "os.fork(); time.sleep(600)"
    )
    subprocess.Popen([sys.executable, "-c", code])
    time.sleep(600)


def bus() -> None:
    """Read a page of a mapped file that the file has no more, as where /dev/shm is full."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        mapped.read_byte()


def main() -> int:
    """Write the files of a run."""
    arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    config = json.loads(Path(arguments["--config"]).read_text())
    output = Path(arguments["--output"])
    only = os.environ.get("FAKE_REPEAT")
    mode = os.environ.get("FAKE_TRAINER", "") if only in (None, str(config["repeat"])) else ""
    if RANK == 0:
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        # A run that is to teach something says all of what it ran with.
        ran = {**(config if FACTORS else {}), "world_size": ranks}
        observed = {"observed": ran, "environment": {"torch": "none"}}
        (output / "observed.json").write_text(json.dumps(observed))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seconds = SECONDS * math.prod(by for name, by in FACTORS.items() if config[name] > 1)
    tokens = config["global_batch_size"] * config["sequence_length"] if FACTORS else 64
    for step in range(1, config["steps"] + 1):
        misbehave(mode, step)
        time.sleep(seconds)
        if RANK == 0:
            record = {"step": step, "phase": "measured", "step_seconds": seconds, "tokens": tokens}
            record |= {"loss": None if mode == "lose" and step > 3 else 1.0}
            record |= {"skipped": mode == "skip_all" or (mode == "skip_one" and step == 2)}
            with (output / "steps.jsonl").open("a") as stream:
                stream.write(json.dumps(record) + "\n")
            print(f"step {step}", flush=True)
    time.sleep({"close_slowly": 5, "never_close": 600}.get(mode, 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
