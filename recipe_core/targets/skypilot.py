"""SkyPilot: a service (or a training task) on whatever cloud has the devices."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.targets.context import Context
from recipe_core.targets.kubernetes import cache_gib
from recipe_core.targets.layout import layout
from recipe_core.targets.names import names
from recipe_core.targets.node_script import node_script
from recipe_core.targets.pod import image, object_name

FOLDER = "targets/skypilot"
DISK_GIB = 100  # for the image and logs, besides the weights
BUSY = 0.8  # of the estimated throughput, above which another copy is started


def files(context: Context) -> dict[str, str]:
    """``task.yaml``, for ``sky serve up`` or ``sky launch`` from the bundle's folder, and ``node.sh``, which its nodes run.

    Raises:
        NoAnswer: for a device that SkyPilot's clouds do not have, where neither an image nor an installation is known, or where several
            servers that are no copies would have to be asked.
    """
    one, copies = _one_copy(context)
    script = {f"{FOLDER}/node.sh": node_script(one, "SKYPILOT_NODE_RANK")}
    return {f"{FOLDER}/task.yaml": to_yaml(task(one, copies))} | script


def _one_copy(context: Context) -> tuple[Context, int]:
    """One of the servers that are copies of each other, and how many there are: a service balances among tasks, and asks one port each."""
    started, units = context.launch, layout(context.launch)
    if context.kind == "training":
        return context, 1
    if len(units) == 1 and units[0].copies > 1:
        first = started.processes[0].group
        started = replace(
            started, processes=tuple(p for p in started.processes if p.group == first)
        )
    asked = [p for p in started.processes if p.role == "router"] or [
        p for p in started.processes if p.answers
    ]
    if len(asked) > 1:
        raise NoAnswer(
            f"its servers answer at {len(asked)} addresses, and a service asks one.",
            hint="Use Kubernetes or Slurm.",
        )
    used = max(
        sum(len(p.devices) for p in started.processes if p.node == node)
        for node in range(started.nodes)
    )
    return replace(context, launch=started, devices_per_node=max(used, 1)), units[0].copies


def task(context: Context, copies: int) -> dict[str, Any]:
    """The task as SkyPilot reads it, which runs one of so many copies; the bundle is its working folder."""
    training = context.kind == "training"
    secret = (
        {"secrets": {"HF_TOKEN": None}} if context.parameters.token_secret else {}
    )  # its value is given when it is launched
    return {
        "name": object_name(context),
        "workdir": ".",
        "num_nodes": context.nodes,
        "resources": _resources(context),
        **secret,
        **_setup(context),
        "run": f"bash {FOLDER}/node.sh $SKYPILOT_NODE_IPS\n",
        **({} if training else {"service": _service(context, copies)}),
    }


def _resources(context: Context) -> dict[str, Any]:
    p = context.parameters
    place = "/".join(part for part in (p.cloud, p.region) if part) if p.cloud else None
    weights = 0 if context.model_is_folder else cache_gib(context)
    return {
        **_accelerators(context),
        **({"infra": place} if place else {}),
        **({"image_id": f"docker:{image(context)}"} if _has_image(context) else {}),
        **({"ports": [p.port]} if context.kind == "serving" else {}),
        "disk_size": DISK_GIB + weights,
    }


def _accelerators(context: Context) -> dict[str, Any]:
    if context.vendor == "cpu":
        return {"cpus": "4+"}
    found = names().sky.names.get(context.device)
    if found is None:
        raise NoAnswer(
            f"SkyPilot has no name for {context.device}.",
            field="hardware.device",
            hint="Use another target.",
        )
    return {"accelerators": {found: context.devices_per_node}}


def _has_image(context: Context) -> bool:
    return bool(context.parameters.image or context.image)


def _setup(context: Context) -> dict[str, str]:
    """The image has the engine; without one it is installed."""
    if _has_image(context):
        return {}
    if not context.install:
        image(context)  # says that none is known
    return {"setup": shlex.join(context.install) + "\n"}


def _service(context: Context, copies: int) -> dict[str, Any]:
    p = context.parameters
    probe = {
        "path": context.launch.health,
        "initial_delay_seconds": math.ceil(context.launch.startup_timeout_s),
    }
    if p.min_replicas == p.max_replicas:
        return {"readiness_probe": probe, "replicas": p.min_replicas * copies, "ports": p.port}
    bounds = {"min_replicas": p.min_replicas * copies, "max_replicas": p.max_replicas * copies}
    policy = bounds | {
        "target_qps_per_replica": max(0.01, round(_requests_per_s(context) / copies, 2))
    }
    return {"readiness_probe": probe, "replica_policy": policy, "ports": p.port}


def _requests_per_s(context: Context) -> float:
    """What the deployment is expected to answer, with room to spare."""
    requests = float(context.estimate["serving"]["output_tokens_per_s"]) / float(
        context.workload["output_tokens"]
    )
    return BUSY * requests
