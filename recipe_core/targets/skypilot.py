"""SkyPilot: a service by its policy, one server, or a training task on clouds that have devices.

A service answers the internet, so it is only made where callers need a key. Without one there is a
task that opens no port, and is reached through an SSH tunnel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Scaling
from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import launch_units
from recipe_core.targets.names import cluster_names
from recipe_core.targets.node_script import node_script
from recipe_core.targets.pod import container_image, recipe_object
from recipe_core.targets.replica_words import ReplicaWords
from recipe_core.targets.resources import cache_gib, checkpoints_gib
from recipe_core.targets.scale.policy import triggers_of, whole_seconds

# SkyServe scales by requests per second, over a minute.
WORDS = ReplicaWords(
    title="SkyServe",
    name="skypilot",
    metric="request-rate",
    fixed="replicas",
    scaled="replica_policy",
    target="target_qps_per_replica",
)


def sky_service_replicas(scaling: Scaling) -> dict[str, Any]:
    """The part of a service that sets its number of replicas.

    Raises:
        NoAnswer: for another policy, and for what SkyServe cannot be told.
    """
    written = WORDS.write_replicas(scaling, whole_seconds)
    if WORDS.scaled in written:
        triggers_of(scaling)  # raises that it has none
    return written


FOLDER = "targets/skypilot"
DISK_GIB = 100  # for the image and logs, besides the weights
PROBES = 4  # of a replica without an answer in the time of a hang, at most
BUSY = 0.8  # share of the estimated throughput above which another copy starts


def skypilot_files(context: Context) -> dict[str, str]:
    """``service.yaml`` for ``sky serve up`` or ``task.yaml`` for ``sky launch``, with ``node.sh``.

    A run's ``task.yaml`` is for ``sky jobs launch``.

    Raises:
        NoAnswer: for several servers that ask no caller for a key,
            for a device that SkyPilot's clouds do not have, where neither an image nor an
            installation is known, where clients would have to call several different servers, and
            for policies of scaling that are not SkyServe's.
    """
    single_copy, copies = _one_copy(context)
    script = {f"{FOLDER}/node.sh": node_script(single_copy, "SKYPILOT_NODE_RANK")}
    task = skypilot_task(single_copy, copies)
    name = "service" if "service" in task else "task"
    return {f"{FOLDER}/{name}.yaml": to_yaml(task)} | script


def _one_copy(context: Context) -> tuple[Context, int]:
    """One of the identical servers, and their number.

    A SkyPilot service balances over tasks, and calls one port of each.
    """
    started, units = context.launch, launch_units(context.launch)
    if context.kind == "training":
        return context, 1
    if len(units) == 1 and units[0].copies > 1:
        first_group = started.processes[0].group
        processes = tuple(p for p in started.processes if p.group == first_group)
        started = replace(started, processes=processes)
    routers = [p for p in started.processes if p.role == "router"]
    entries = routers or [p for p in started.processes if p.answers]
    if len(entries) > 1:
        raise NoAnswer(
            f"its servers answer at {len(entries)} addresses; a service calls only one.",
            hint="Use Kubernetes or Slurm.",
        )
    node_devices = max(
        sum(len(p.devices) for p in started.processes if p.node == node)
        for node in range(started.nodes)
    )
    return replace(context, launch=started, devices_per_node=max(node_devices, 1)), units[0].copies


def skypilot_task(context: Context, copies: int) -> dict[str, Any]:
    """The task that runs one of ``copies``; the bundle is its working folder."""
    service = _sky_service(context, copies) if context.kind == "serving" else None
    if service and context.key_variable is None:
        _check_single(context, service)
        service = None
    # SkyPilot takes a secret's value from the environment of who starts the task
    token = ["HF_TOKEN"] if context.parameters.token_secret else []
    secrets = dict.fromkeys([*token, *([context.key_variable] if context.key_variable else [])])
    return recipe_object(
        context,
        "sky-task",
        nodes=context.nodes,
        **_sky_resources(context),
        public_port=context.parameters.port if service else None,
        bucket=context.parameters.bucket if context.kind == "training" else None,
        secrets=secrets or None,
        setup=_install_setup(context),
        service=service,
    )


def _check_single(context: Context, service: dict[str, Any]) -> None:
    """Raise NoAnswer where one server alone, which a tunnel reaches, is not what was decided."""
    if service.get("replicas") == 1:
        return
    api_key, reason = (
        context.api_key,
        "a service of SkyPilot answers the internet, and its servers ask",
    )
    hint = "plan a single server: its task opens no port, and a tunnel reaches it."
    if api_key is not None:
        hint = f"Set api_key_secret, and {api_key.variable} where you start it; or {hint}"
    raise NoAnswer(
        f"{reason} no caller for a key.",
        field="parameters.api_key_secret",
        hint=hint[0].upper() + hint[1:],
    )


def _sky_resources(context: Context) -> dict[str, Any]:
    p, training = context.parameters, context.kind == "training"
    weights = 0 if context.model_is_folder else cache_gib(context)
    cpu = context.vendor == "cpu"
    return {
        "cpus": "4+" if cpu else None,
        "accelerators": None if cpu else _sky_accelerators(context),
        "infra": "/".join(filter(None, (p.cloud, p.region))) if p.cloud else None,
        "use_spot": None if context.spot is None else True,
        "image": container_image(context) if _has_image(context) else None,
        "restarts": supervise.lifetime_restarts(context) if training else None,
        "tier": "best" if context.nodes > 1 and not cpu else None,
        "disk_gib": DISK_GIB + weights + (checkpoints_gib(context) if training else 0),
    }


def _sky_accelerators(context: Context) -> dict[str, int]:
    accelerator = cluster_names().sky.names.get(context.device)
    if accelerator is None or context.slice_of:
        kind = "slices of " if context.slice_of else ""
        raise NoAnswer(
            f"SkyPilot has no name for {kind}{context.device}.",
            field="hardware.device",
            hint="Use another target.",
        )
    return {accelerator: context.devices_per_node}


def _has_image(context: Context) -> bool:
    return bool(context.parameters.image or context.image)


def _install_setup(context: Context) -> str | None:
    """The command that installs the engine; none for an image, which contains it."""
    if _has_image(context):
        return None
    if not context.install:
        container_image(context)  # raises that none is known
    return context.install + "\n"


def _sky_service(context: Context, copies: int) -> dict[str, Any]:
    return recipe_object(
        context,
        "sky-service",
        health=context.launch.health,
        start_s=supervise.start_s(context),
        timeout_s=probe_timeout_s(context),
        replicas=_sky_replicas(context, copies),
        port=context.parameters.port,
    )


def _sky_replicas(context: Context, copies: int) -> dict[str, Any]:
    """The number of replicas: by the request's policy, else by the load of the estimate."""
    low, high = context.parameters.min_replicas, context.parameters.max_replicas
    if context.scaling is not None:
        return sky_service_replicas(context.scaling)
    if low == high:
        return {WORDS.fixed: low * copies}
    target = max(0.01, round(_requests_per_s(context) / copies, 2))
    bounds = {"min_replicas": low * copies, "max_replicas": high * copies}
    return {WORDS.scaled: {**bounds, WORDS.target: target}}


def probe_timeout_s(context: Context) -> int:
    """Seconds without an answer after which a probe of SkyServe has failed."""
    return max(1, context.supervision.hang_s // PROBES)


def _requests_per_s(context: Context) -> float:
    """Requests per second of the whole deployment at its target load."""
    tokens_per_s = float(context.estimate["serving"]["output_tokens_per_s"])
    return BUSY * (tokens_per_s / float(context.workload["output_tokens"]))
