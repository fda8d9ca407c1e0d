"""Experts: what an uneven router costs, and what a forced one hides."""

from __future__ import annotations

from collections.abc import Iterator

from scalebook.facts.flops import flops_per_token
from scalebook.facts.flops.parameters import dense_layers, layer_parameters
from scalebook.measure.diagnosis.evidence import Evidence
from scalebook.measure.diagnosis.finding import Finding

UNEVEN = 1.1  # tokens of the busiest ranks' experts over the mean


def balance_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that some ranks' experts get more tokens than others', which wait for them."""
    load = found.metrics.expert_load
    if load is None or load < UNEVEN:
        return
    yield Finding(
        rule="expert_load",
        says=(
            f"The busiest ranks' experts get {load:.3g} times the tokens of the mean rank: the "
            "others wait for them."
        ),
        advice=(
            "Measure after the router has learned to spread tokens: seeded synthetic ones are few.",
            "Try expert_balance='forced' to see the hardware with even experts.",
        ),
        step_fraction=_waiting(found, load),
        basis="computed",
        evidence={"expert_load": load},
    )


def _waiting(found: Evidence, load: float) -> float | None:
    """Return the part of a step that waits, or more: as if products ran at the peak."""
    shape, length, mfu = found.shape, found.document_length, found.metrics.mfu
    if shape is None or shape.moe is None or not length or mfu is None:
        return None
    layers = shape.num_layers - dense_layers(shape)
    met = layers * layer_parameters(shape, dense=False).active_experts
    experts = 6 * met / flops_per_token(shape, length)  # forward and backward
    return mfu * experts * (load - 1)


def chance_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that tokens went to experts by chance, as no training does."""
    if found.record.setting("expert_balance") != "forced":
        return
    yield Finding(
        rule="forced_balance",
        says="Tokens went to experts at random: the rate is that of an even router.",
        advice=("Do not compare it with runs whose router learns.",),
        evidence={"expert_balance": "forced"},
    )
