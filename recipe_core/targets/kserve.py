"""KServe: an InferenceService with the engine's own container, raw or on Knative."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.targets import kubernetes, pod, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Unit, launch_units, port_of
from recipe_core.targets.pod import object_metadata
from recipe_core.targets.scale.kserve import revision_annotations, service_scaling, without_refused
from recipe_core.targets.scale.policy import refuse_policy
from recipe_core.targets.supervise import set_probe_port

FOLDER = "targets/kserve"
POD_LABEL = "serving.kserve.io/inferenceservice"  # which KServe gives the pods of a service
CONTAINER = "kserve-container"  # KServe sends requests to the container of this name


def kserve_files(context: Context) -> dict[str, str]:
    """``inferenceservice.yaml``, its disruption budget, the claim and the files it mounts.

    Raises:
        NoAnswer: where a copy is more than one container, no image is known, or KServe cannot be
            told the policy of scaling.
    """
    shape = launch_units(context.launch)[0]
    if context.nodes > 1 or len(shape.leader) > 1:
        raise NoAnswer(
            "an InferenceService has one container; this recipe needs several per copy.",
            hint="Use the Kubernetes target.",
        )
    min_available = context.supervision.available_of(kubernetes.initial_copies(context, shape))
    pods = {"matchLabels": {POD_LABEL: pod.object_name(context)}}
    objects = {
        "inferenceservice.yaml": inference_service(context, shape),
        "disruption.yaml": kubernetes.disruption_budget(context, "", pods, min_available),
        "network.yaml": pod.network_policy(
            context,
            pods["matchLabels"],
            pod.served_ports(context),
            knative=service_scaling(context, min_available).knative,
        ),
    }
    return service_folder_files(context, FOLDER, objects)


def service_folder_files(
    context: Context, path: str, objects: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """Objects by file name, the claim and the files that they mount, and their kustomization."""
    mounted = {f"{name}.yaml": value for name, value in kubernetes.mounted_objects(context).items()}
    files = {**objects, **mounted}
    files["kustomization.yaml"] = pod.kustomization([*files])
    return {f"{path}/{name}": to_yaml(value) for name, value in files.items()}


def inference_service(context: Context, shape: Unit) -> dict[str, Any]:
    """The InferenceService: with the request's policy, else without KServe's autoscaler.

    CPU load, its autoscaler's metric, says little about an engine.
    """
    values = pod.pod_values(context, head="127.0.0.1", index="0")
    spec = pod.pod_spec(context, shape.leader, values)
    container = pod.process_container(context, shape.leader[0], values, name=CONTAINER)
    container["ports"] = [
        {
            "name": "http1",
            "containerPort": port_of(context, shape.leader[0]),
            "protocol": "TCP",
        }
    ]
    set_probe_port(container, port_of(context, shape.leader[0]))
    count = kubernetes.initial_copies(context, shape)
    rollout = {"type": "RollingUpdate", "rollingUpdate": supervise.rollout_limits(context, count)}
    scaled = service_scaling(context, count)
    predictor = {
        **scaled.fields,
        "deploymentStrategy": rollout,
        **spec,
        "restartPolicy": "Always",
        "containers": [container],
    }
    metadata = object_metadata(context, annotations=scaled.annotations)
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {"predictor": without_refused(predictor) if scaled.knative else predictor},
    }


KNATIVE_FOLDER = "targets/knative"
KNATIVE_POD_LABEL = "serving.knative.dev/service"  # which Knative gives the pods of a service
KNATIVE_CONTAINER = "server"


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
    pods = {"matchLabels": {KNATIVE_POD_LABEL: pod.object_name(context)}}
    objects = {
        "service.yaml": knative_service(context),
        "disruption.yaml": kubernetes.disruption_budget(context, "", pods, min_available),
        "network.yaml": pod.network_policy(context, pods["matchLabels"], (), knative=True),
    }
    return service_folder_files(context, KNATIVE_FOLDER, objects)


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
    spec = without_refused(pod.pod_spec(context, shape.leader, values))
    (server,) = spec["containers"]
    port = port_of(context, shape.leader[0])
    server["name"] = KNATIVE_CONTAINER
    server["ports"] = [{"name": "http1", "containerPort": port}]
    set_probe_port(server, port)
    template = {
        "metadata": {
            "labels": pod.pod_labels(context),
            "annotations": revision_annotations(scaling),
        },
        "spec": spec,
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": object_metadata(context),
        "spec": {"template": template},
    }
