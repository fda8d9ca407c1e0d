"""What the user says beside the file: it fills gaps, and may not contradict what the file tells."""

from __future__ import annotations

from collections.abc import Mapping

from scalebook.errors import IngestError
from scalebook.facts import catalog
from scalebook.facts.catalog.types import ModelShape
from scalebook.logs.ingest.observe import Observation, complete, observe
from scalebook.logs.job import Job
from scalebook.logs.setting_lines import Value

# Options of the command whose names are not those of the settings.
OPTIONS = {"world_size": "--gpus"}
# Trainers whose logs look the same whether all weights are trained or an adapter beside them.
_FINE_TUNERS = ("hf-trainer", "hf-trainer-state", "torchtune")
_SHAPE_FIELDS = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
)


def option(name: str) -> str:
    """Return the option of the command that supplies a setting."""
    return OPTIONS.get(name, "--" + name.replace("_", "-"))


def _contradiction(name: str, given: Value, known: Observation, where: str) -> IngestError:
    how = "tells" if known.provenance[name] == "told" else "implies"
    return IngestError(
        f"{option(name)} {given} contradicts {where}, which {how} {known.values[name]}. "
        "Leave it out, or ingest the file that it belongs to."
    )


def _check_model(shape: ModelShape, known: Observation, where: str) -> None:
    for name in _SHAPE_FIELDS:
        told = known.size(name)
        ours = getattr(shape, name)
        if told is not None and told != ours:
            raise IngestError(
                f"--model {shape.name} has {name}={ours}, but {where} tells {told}. "
                f"Name the model that ran; {shape.name}@N is the same with N layers."
            )


def _check_platform(name: str, device: object, where: str) -> None:
    platform = catalog.platform(name)
    if not isinstance(device, str):
        return
    found = catalog.accelerator_for_device(device)
    if found and platform.accelerator != found.name:
        raise IngestError(
            f"--platform {name} contradicts {where}, which names the device '{device}'. "
            "Leave it out, or name the platform of that device."
        )


def observe_with(job: Job, supplied: Mapping[str, Value], where: str) -> Observation:
    """Return the configuration of a job with what the user supplied.

    Raises:
        IngestError: something supplied contradicts the file.
        CatalogError: a supplied model or platform is unknown.
    """
    alone = observe(job)
    if "trained" not in (*alone.values, *supplied) and job.dialect in _FINE_TUNERS:
        alone.put("trained", "unknown", "derived", "this trainer trains adapters as well")
    if not supplied:
        return alone
    for name, value in supplied.items():
        if name == "trained" and value == "part" and alone.values.get(name) not in (None, "all"):
            continue  # the file says which part
        if name in alone.values and alone.values[name] != value:
            raise _contradiction(name, value, alone, where)
    known = Observation(notes=list(alone.notes))
    for name, value in alone.values.items():
        known.put(name, value, alone.provenance[name], alone.origin.get(name, ""))
    for name, value in supplied.items():
        if name not in known.values:
            known.put(name, value, "supplied")
    complete(job, known)
    if "model" in supplied:
        _check_model(catalog.model(str(supplied["model"])), known, where)
    if "platform" in supplied:
        _check_platform(str(supplied["platform"]), job.details.get("device"), where)
    return known
