"""RunConfig -> a PyTorchJob of Kubeflow's training operator (kubeflow.org/v1), as plain data.

Written as JSON, which is YAML too: every text is quoted, and the machine that makes it needs no
library. Fields: kubeflow/training-operator, manifests/base/crds/kubeflow.org_pytorchjobs.yaml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalebook.config import RunConfig
from scalebook.errors import LaunchError
from scalebook.facts import catalog
from scalebook.running.cluster.slurm import exported, ranks_per_node

MOUNT = "/runs"  # where the claim is mounted: run directories are below it
SHARED_MEMORY = "/dev/shm"
LONGEST_NAME = 50  # a pod's name is a label of 63 characters, with "-worker-999" behind this
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
MARGIN_SECONDS = 1800  # of the job over the run's own limit: images, start, the record
_REFERENCE = re.compile(r"[A-Za-z0-9][\w./:@-]{0,511}")
_DNS = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Options:
    """Where the pods get their image and keep their runs; ``user`` None leaves the image's own."""

    image: str
    claim: str
    namespace: str = ""
    user: tuple[int, int] | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


def dns_name(text: str) -> str:
    """Return a text as a name that Kubernetes takes: small letters, digits, ``-``, not too long.

    Long names keep their end, which tells the runs of one model apart.
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[-LONGEST_NAME:].strip("-")
    return name if name[:1].isalpha() else f"run-{name}"[:LONGEST_NAME].strip("-")


def check(options: Options) -> None:
    """Refuse names that the cluster would refuse, or that are no names.

    Raises:
        LaunchError: the image is missing or malformed, or the claim or the namespace is.
    """
    if not _REFERENCE.fullmatch(options.image):
        raise LaunchError(
            f"--image {options.image!r} names no image. Kubernetes needs one that its nodes can "
            "pull, such as registry/name:tag."
        )
    for option, name in (("--claim", options.claim), ("--namespace", options.namespace)):
        if (name or option == "--claim") and not _DNS.fullmatch(name):
            raise LaunchError(
                f"{option} {name!r} is no name in Kubernetes. Use small letters, digits and '-'."
            )


def manifest(config: RunConfig, run_id: str, options: Options, trainer: str = "") -> dict[str, Any]:
    """Return the PyTorchJob that trains one configuration: a pod a node, the first one the master.

    Raises:
        LaunchError: a name cannot be used.
    """
    check(options)
    metadata: dict[str, Any] = {
        "name": dns_name(run_id),
        "labels": {"app.kubernetes.io/managed-by": "scalebook", "scalebook/run": run_id[-63:]},
    }
    if options.namespace:
        metadata["namespace"] = options.namespace
    pod = _pod(config, run_id, options, trainer)
    replicas = {"Master": _replica(1, pod)}
    if config.nodes > 1:
        replicas["Worker"] = _replica(config.nodes - 1, pod)
    policy: dict[str, Any] = {"cleanPodPolicy": "None", "backoffLimit": 0}
    if config.time_limit_seconds:
        policy["activeDeadlineSeconds"] = config.time_limit_seconds + MARGIN_SECONDS
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": {
            "nprocPerNode": str(ranks_per_node(config)),
            "runPolicy": policy,
            "pytorchReplicaSpecs": replicas,
        },
    }


def _replica(count: int, pod: Mapping[str, Any]) -> dict[str, Any]:
    # A pod that failed is a run that failed: a new one would write into the same directory.
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": dict(pod)}}


def _pod(config: RunConfig, run_id: str, options: Options, trainer: str) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "pytorch",  # the operator looks for this name
        "image": options.image,
        "command": ["python", "-m", "scalebook.running.cluster.pod"],
        "args": _arguments(config, run_id, trainer),
        "env": [
            {"name": name, "value": _literal(value)}
            for name, (value, _) in exported(config, options.environment).items()
        ],
        "volumeMounts": [
            {"name": "runs", "mountPath": MOUNT},
            {"name": "shared-memory", "mountPath": SHARED_MEMORY},
        ],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    resource = RESOURCES.get(catalog.platform(config.platform).vendor)
    if resource:
        container["resources"] = {"limits": {resource: ranks_per_node(config)}}
    pod: dict[str, Any] = {
        "containers": [container],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": options.claim}},
            # NCCL and RCCL share memory between the ranks of a node; a pod has 64 MiB of it.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if options.user is not None:
        user, group = options.user
        pod["securityContext"] = {"runAsUser": user, "runAsGroup": group, "fsGroup": group}
    return pod


def _arguments(config: RunConfig, run_id: str, trainer: str) -> list[str]:
    """Return what a pod is told: the whole configuration, so that nothing else has to be there."""
    fields = json.dumps(config.model_dump(exclude_defaults=True), sort_keys=True)
    more = ["--trainer", trainer] if trainer else []
    return ["--runs", MOUNT, "--run-id", run_id, "--config", *map(_literal, [fields, *more])]


def _literal(text: str) -> str:
    """Return a text that Kubernetes leaves as it is: $(NAME) is expanded, and $$ read as $."""
    return text.replace("$", "$$")


def text(manifests: Sequence[Mapping[str, Any]]) -> str:
    """Return manifests as one file for ``kubectl apply -f``."""
    return "---\n".join(json.dumps(one, indent=2, allow_nan=False) + "\n" for one in manifests)
