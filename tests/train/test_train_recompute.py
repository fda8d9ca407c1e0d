"""What recomputation saves on the CPU is what the memory estimate says it saves, byte by byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from train_forked import _free_port
from train_worlds import SMALL, environment, train

from scalebook.facts import catalog
from scalebook.facts.memory import activations
from scalebook.facts.memory.activations import Workload
from scalebook.facts.memory.parameters import is_moe
from scalebook.parallelism import Parallelism

pytest.importorskip("megatron")

TOKENS = 64
GPT, MLA, LLAMA = "gpt3-125m@2", "tiny-mla", "tiny-llama"
# Torch's own norm keeps a mean and a deviation per token too; its unfused SwiGLU keeps 5 values per
# element of its width where a fused one keeps 3. Two norms per layer, two layers; three mixtures.
CASES = {
    (GPT, "layernorm"): 2 * 2 * 2 * TOKENS * 4,
    (GPT, "mlp"): 0,
    (MLA, "moe_act"): 0,
    (MLA, "shared_experts"): 3 * 2 * 128 * TOKENS * 4,
}


@pytest.fixture(scope="module")
def kept() -> dict[tuple[str, str], int]:
    """Bytes by model and recomputation."""
    asked = [(model, "") for model in (GPT, MLA)] + list(CASES)
    changes = [{"recompute": "selective", "recompute_modules": m} if m else {} for _, m in asked]
    asked += [(LLAMA, f"groups of {size}") for size in (1, 2, 4)]
    grouped = {"recompute": "full", "recompute_method": "uniform"}
    changes += [grouped | {"recompute_layers": size} for size in (1, 2, 4)]
    sizes = {"global_batch_size": 1, "sequence_length": TOKENS, "grouped_gemm": "auto"}
    cases = [
        SMALL | sizes | {"model": model} | ({"grouped_gemm": "on"} if model == MLA else {}) | more
        for (model, _), more in zip(asked, changes, strict=True)
    ]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "saved_activations.py"), _free_port()],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(asked, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize(("model", "module"), CASES)
def test_a_recomputed_module_keeps_what_the_estimate_says(
    model: str, module: str, kept: dict[tuple[str, str], int]
) -> None:
    shape, work = catalog.model(model), Workload(TOKENS, TOKENS, 4, "fused")
    saved = sum(
        sum(activations.module_bytes(shape, Parallelism(1), work, module, moe=is_moe(shape, one)))
        for one in range(shape.num_layers)
    )
    assert kept[model, ""] - kept[model, module] == saved + CASES[model, module]


def test_a_group_of_layers_keeps_one_input(kept: dict[tuple[str, str], int]) -> None:
    inputs = TOKENS * 128 * 4
    one, two, four = (kept[LLAMA, f"groups of {size}"] for size in (1, 2, 4))
    assert (one - two, two - four) == (2 * inputs, inputs)  # 4, 2 and 1 of 4 layers


def test_a_recomputed_mlp_with_biases_trains_as_one_that_is_kept(tmp_path: Path) -> None:
    """Its bias leaves the checkpoint: as an output of that it would be recomputed without end."""
    asked = {"model": GPT, "global_batch_size": 2, "steps": 2, "warmup_steps": 0}
    again = {"recompute": "selective", "recompute_modules": "mlp", "time_limit_seconds": 60}
    kept, made = (train(tmp_path / f"{len(more)}", **asked, **more) for more in ({}, again))
    assert (kept.code, made.code) == (0, 0), made.log
    assert made.losses == kept.losses
    assert [one.grad_norm for one in made.steps] == [one.grad_norm for one in kept.steps]
