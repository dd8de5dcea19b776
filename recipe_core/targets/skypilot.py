"""SkyPilot: a service by its policy, one server, or a training task on clouds that have devices.

A service answers the internet, so it is only made where callers need a key. Without one there is a
task that opens no port, and is reached through an SSH tunnel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.scaling.policies.columns import default_of
from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import launch_units
from recipe_core.targets.names import cluster_names
from recipe_core.targets.node_script import node_script
from recipe_core.targets.pod import RUN, container_image, object_name
from recipe_core.targets.scale.policy import (
    fewest_replicas,
    only_trigger,
    refuse_fields,
    refuse_policy,
    triggers_of,
    whole_seconds,
)
from recipe_core.targets.storage import cache_gib, checkpoints_gib

WHERE = "SkyServe"
# SkyServe scales by requests per second, over a minute.
METRIC: Metric = "request-rate"
TIMES = {"up_delay_s": "upscale_delay_seconds", "down_delay_s": "downscale_delay_seconds"}
# What a service cannot change.
FIXED = {name: default_of("skyserve", name) for name in ("window_s", "interval_s")}


def sky_service_replicas(scaling: Scaling) -> dict[str, Any]:
    """The part of a service that sets its number of replicas.

    Raises:
        NoAnswer: for another policy, and for what SkyServe cannot be told.
    """
    refuse_policy(scaling, ("fixed", "skyserve"), WHERE)
    if scaling.policy == "fixed":
        return {"replicas": fewest_replicas(scaling)}
    refuse_fields(scaling, ("triggers", *TIMES, *FIXED), WHERE)
    for name, value in FIXED.items():
        if getattr(scaling, name) not in (None, value):
            raise NoAnswer(
                f"{name} is {getattr(scaling, name):g} s; SkyServe's is {value:g} s.",
                field=f"options.scaling.{name}",
                hint="Leave it out.",
            )
    (trigger, *more_triggers) = triggers_of(scaling)
    if more_triggers:
        only_trigger(scaling, WHERE)  # raises that it knows one metric
    if trigger.metric != METRIC:
        raise NoAnswer(
            f"{WHERE} scales by {METRIC}, not by {trigger.metric}.",
            field="options.scaling.triggers.0.metric",
        )
    times = {name: whole_seconds(scaling, field) for field, name in TIMES.items()}
    policy = {
        "min_replicas": scaling.min_replicas,
        "max_replicas": scaling.max_replicas,
        "target_qps_per_replica": trigger.target,
        **{name: seconds for name, seconds in times.items() if seconds is not None},
    }
    return {"replica_policy": policy}


def read_sky_service(service: Mapping[str, Any]) -> Scaling:
    """The policy that a service was written from."""
    if "replicas" in service:
        count = service["replicas"]
        return Scaling(policy="fixed", min_replicas=count, max_replicas=count)
    policy = service["replica_policy"]
    times = {field: policy[name] for field, name in TIMES.items() if name in policy}
    trigger = Trigger(metric=METRIC, target=policy["target_qps_per_replica"])
    return Scaling(
        policy="skyserve",
        min_replicas=policy["min_replicas"],
        max_replicas=policy["max_replicas"],
        triggers=(trigger,),
        **times,
    )


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
    # SkyPilot takes a secret's value from the environment of who starts the task
    secrets = {"HF_TOKEN": None} if context.parameters.token_secret else {}
    if context.key_variable:
        secrets[context.key_variable] = None
    service = _sky_service(context, copies) if context.kind == "serving" else {}
    if service and context.key_variable is None:
        _check_single(context, service)
        service = {}
    return {
        "name": object_name(context),
        "workdir": ".",
        "num_nodes": context.nodes,
        "resources": _sky_resources(context, public=bool(service)),
        **_run_bucket(context),
        **({"secrets": secrets} if secrets else {}),
        **_install_setup(context),
        "run": f"bash {FOLDER}/node.sh $SKYPILOT_NODE_IPS\n",
        **({"service": service} if service else {}),
    }


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


def _sky_resources(context: Context, *, public: bool) -> dict[str, Any]:
    p = context.parameters
    infra = f"{p.cloud}/{p.region}" if p.region else p.cloud
    weights = 0 if context.model_is_folder else cache_gib(context)
    checkpoints = checkpoints_gib(context) if context.kind == "training" else 0
    return {
        **_sky_accelerators(context),
        **({"infra": infra} if p.cloud else {}),
        **({"use_spot": True} if context.spot is not None else {}),
        **({"image_id": f"docker:{container_image(context)}"} if _has_image(context) else {}),
        **({"ports": [p.port]} if public else {}),
        **(_job_recovery(context) if context.kind == "training" else {}),
        # Otherwise machines of clouds talk over plain TCP, and say nothing.
        **({"network_tier": "best"} if context.nodes > 1 and context.vendor != "cpu" else {}),
        "disk_size": DISK_GIB + weights + checkpoints,
    }


def _run_bucket(context: Context) -> dict[str, Any]:
    """The bucket that holds the run, where one is named: nothing stays of a lost machine."""
    bucket = context.parameters.bucket
    if context.kind != "training" or bucket is None:
        return {}
    return {
        "file_mounts": {RUN: {"source": bucket, "mode": "MOUNT_CACHED"}},
        "envs": {"RECIPE_RUN": RUN},
    }


def _job_recovery(context: Context) -> dict[str, Any]:
    """Return how often a failed run is started again; lost machines are replaced without a count.

    ``recover_on_exit_codes`` is left out: torchrun ends with 1 whatever its ranks ended with.
    """
    return {"job_recovery": {"max_restarts_on_errors": supervise.lifetime_restarts(context)}}


def _sky_accelerators(context: Context) -> dict[str, Any]:
    if context.vendor == "cpu":
        return {"cpus": "4+"}
    accelerator = cluster_names().sky.names.get(context.device)
    if accelerator is None:
        raise NoAnswer(
            f"SkyPilot has no name for {context.device}.",
            field="hardware.device",
            hint="Use another target.",
        )
    return {"accelerators": {accelerator: context.devices_per_node}}


def _has_image(context: Context) -> bool:
    return bool(context.parameters.image or context.image)


def _install_setup(context: Context) -> dict[str, str]:
    """The command that installs the engine; none for an image, which contains it."""
    if _has_image(context):
        return {}
    if not context.install:
        container_image(context)  # raises that none is known
    return {"setup": context.install + "\n"}


def _sky_service(context: Context, copies: int) -> dict[str, Any]:
    p = context.parameters
    probe = {
        "path": context.launch.health,
        "initial_delay_seconds": supervise.start_s(context),
        "timeout_seconds": probe_timeout_s(context),
    }
    if context.scaling is not None:
        return {
            "readiness_probe": probe,
            **sky_service_replicas(context.scaling),
            "ports": p.port,
        }
    if p.min_replicas == p.max_replicas:
        return {"readiness_probe": probe, "replicas": p.min_replicas * copies, "ports": p.port}
    bounds = {"min_replicas": p.min_replicas * copies, "max_replicas": p.max_replicas * copies}
    policy = bounds | {
        "target_qps_per_replica": max(0.01, round(_requests_per_s(context) / copies, 2))
    }
    return {"readiness_probe": probe, "replica_policy": policy, "ports": p.port}


def probe_timeout_s(context: Context) -> int:
    """Seconds without an answer after which a probe of SkyServe has failed."""
    return max(1, context.supervision.hang_s // PROBES)


def _requests_per_s(context: Context) -> float:
    """Requests per second of the whole deployment at its target load."""
    tokens_per_s = float(context.estimate["serving"]["output_tokens_per_s"])
    return BUSY * (tokens_per_s / float(context.workload["output_tokens"]))
