"""KServe: an InferenceService with the engine's own container, raw or on Knative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.targets import kubernetes, pod, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Unit, launch_units, port_of
from recipe_core.targets.objects import make_object
from recipe_core.targets.pod import object_metadata, recipe_object
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
    shape = _single_container(context, "an InferenceService")
    copies = context.supervision.available_of(kubernetes.initial_copies(context, shape))
    knative = service_scaling(context, copies).knative
    ports = pod.served_ports(context)
    objects = {"inferenceservice.yaml": inference_service(context, shape)}
    return _service_files(context, FOLDER, objects, POD_LABEL, ports, knative=knative)


def _single_container(context: Context, kind: str) -> Unit:
    shape = launch_units(context.launch)[0]
    if context.nodes > 1 or len(shape.leader) > 1:
        raise NoAnswer(
            f"{kind} has one container; this recipe needs several per copy.",
            hint="Use the Kubernetes target.",
        )
    return shape


def _service_files(
    context: Context,
    path: str,
    objects: dict[str, dict[str, Any]],
    pod_label: str,
    ports: Sequence[int],
    *,
    knative: bool,
) -> dict[str, str]:
    """Files of a service with its budget and network policy, for pods with a label of its name."""
    shape = launch_units(context.launch)[0]
    copies = context.supervision.available_of(kubernetes.initial_copies(context, shape))
    pods = {pod_label: pod.object_name(context)}
    beside = {
        "disruption.yaml": kubernetes.disruption_budget(context, "", {"matchLabels": pods}, copies),
        "network.yaml": pod.network_policy(context, pods, ports, knative=knative),
    }
    return service_folder_files(context, path, {**objects, **beside})


def service_folder_files(
    context: Context, path: str, objects: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """Objects by file name, the claim and the files that they mount, and their kustomization."""
    mounted = {f"{name}.yaml": value for name, value in kubernetes.mounted_objects(context).items()}
    files = {**objects, **mounted}
    files["kustomization.yaml"] = pod.kustomization([*files])
    return {f"{path}/{name}": to_yaml(value) for name, value in files.items()}


def _service_pod(context: Context, shape: Unit, container: str, **port: str) -> dict[str, Any]:
    """A pod whose only container answers at the port that both kinds of service expect."""
    values = pod.pod_values(context, head="127.0.0.1", index="0")
    spec = pod.pod_spec(context, shape.leader, values)
    (server,) = spec["containers"]
    number = port_of(context, shape.leader[0])
    server |= {"name": container, "ports": [{"name": "http1", "containerPort": number, **port}]}
    set_probe_port(server, number)
    return spec


def inference_service(context: Context, shape: Unit) -> dict[str, Any]:
    """The InferenceService: with the request's policy, else without KServe's autoscaler.

    CPU load, its autoscaler's metric, says little about an engine.
    """
    count = kubernetes.initial_copies(context, shape)
    scaled = service_scaling(context, count)
    predictor = make_object(
        "predictor",
        scaling=scaled.fields,
        update=supervise.rollout_limits(context, count),
        pod=_service_pod(context, shape, CONTAINER, protocol="TCP"),
    )
    return recipe_object(
        context,
        "inference-service",
        metadata=object_metadata(context, annotations=scaled.annotations),
        predictor=without_refused(predictor) if scaled.knative else predictor,
    )


KNATIVE_FOLDER = "targets/knative"
KNATIVE_POD_LABEL = "serving.knative.dev/service"  # which Knative gives the pods of a service
KNATIVE_CONTAINER = "server"


def knative_files(context: Context) -> dict[str, str]:
    """``service.yaml``, its disruption budget, the claim and the files it mounts.

    Raises:
        NoAnswer: where the request chose no policy ``kpa``, a copy is more than one container, no
            image is known, or Knative cannot be told the policy.
    """
    objects = {
        "service.yaml": knative_service(context, _single_container(context, "a Knative Service"))
    }
    return _service_files(context, KNATIVE_FOLDER, objects, KNATIVE_POD_LABEL, (), knative=True)


def knative_service(context: Context, shape: Unit) -> dict[str, Any]:
    """The Service; its revisions have the policy as annotations."""
    scaling = context.scaling
    if scaling is None:
        raise NoAnswer(
            "Knative scales by a policy of its own, which the request has not.",
            field="options.scaling",
            hint="Set options.scaling with policy kpa.",
        )
    refuse_policy(scaling, "knative", "Knative")
    spec = without_refused(_service_pod(context, shape, KNATIVE_CONTAINER))
    annotations = revision_annotations(scaling)
    return recipe_object(context, "knative-service", annotations=annotations, pod=spec)
