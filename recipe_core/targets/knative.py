"""Knative: a Service that its own autoscaler scales, by requests that its proxy counts."""

from __future__ import annotations

from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.targets import kserve, kubernetes, network, pod
from recipe_core.targets.context import Context
from recipe_core.targets.layout import launch_units
from recipe_core.targets.pod import object_metadata
from recipe_core.targets.ports import port_of
from recipe_core.targets.probes import set_probe_port
from recipe_core.targets.scale import kpa
from recipe_core.targets.scale.bounds import refuse_policy

FOLDER = "targets/knative"
POD_LABEL = "serving.knative.dev/service"  # which Knative gives the pods of a service
CONTAINER = "server"


def knative_files(context: Context) -> dict[str, str]:
    """``service.yaml``, its disruption budget, the claim and the files it mounts.

    Raises:
        NoAnswer: where the request chose no policy ``kpa``, a copy is more than one container, no
            image is known, or Knative cannot be told the policy.
    """
    shape = launch_units(context.launch)[0]
    if context.nodes > 1 or len(shape.leader) > 1:
        raise NoAnswer(
            "a Knative Service has one container; this recipe needs several per copy.",
            hint="Use the Kubernetes target.",
        )
    min_available = context.supervision.available_of(kubernetes.initial_copies(context, shape))
    pods = {"matchLabels": {POD_LABEL: pod.object_name(context)}}
    objects = {
        "service.yaml": knative_service(context),
        "disruption.yaml": kubernetes.disruption_budget(context, "", pods, min_available),
        "network.yaml": network.network_policy(context, pods["matchLabels"], (), knative=True),
    }
    return kserve.service_folder_files(context, FOLDER, objects)


def knative_service(context: Context) -> dict[str, Any]:
    """The Service; its revisions have the policy as annotations."""
    scaling = context.scaling
    if scaling is None:
        raise NoAnswer(
            "Knative scales by a policy of its own, which the request has not.",
            field="options.scaling",
            hint="Set options.scaling with policy kpa.",
        )
    refuse_policy(scaling, ("kpa",), "Knative")
    shape = launch_units(context.launch)[0]
    values = pod.pod_values(context, head="127.0.0.1", index="0")
    spec = kpa.without_refused(pod.pod_spec(context, shape.leader, values))
    (server,) = spec["containers"]
    port = port_of(context, shape.leader[0])
    server["name"] = CONTAINER
    server["ports"] = [{"name": "http1", "containerPort": port}]
    set_probe_port(server, port)
    template = {
        "metadata": {
            "labels": pod.pod_labels(context),
            "annotations": kpa.revision_annotations(scaling),
        },
        "spec": spec,
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": object_metadata(context),
        "spec": {"template": template},
    }
