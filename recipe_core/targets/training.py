"""Training on Kubernetes: Kubeflow's TrainJob and PyTorchJob, a JobSet, a Volcano job.

One pod per node, torchrun in each.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.targets import kubernetes, pod, rdma, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.kubernetes import workload_metadata
from recipe_core.targets.layout import Pod, launch_units, same_pod
from recipe_core.targets.node_script import Variable
from recipe_core.targets.pod import (
    kustomization,
    object_metadata,
    object_name,
    pod_labels,
    recipe_object,
)
from recipe_core.targets.resources import checkpoints_gib

NODE = "node"
# Fields of the runtime's pod that a TrainJob may patch.
PATCHABLE = (
    "affinity",
    "nodeSelector",
    "securityContext",
    "terminationGracePeriodSeconds",
    "tolerations",
    "volumes",
)
INDEX = Variable("JOB_COMPLETION_INDEX")


def train_job_files(context: Context) -> dict[str, str]:
    """A TrainJob of Kubeflow Trainer v2, which becomes a JobSet: its patches add no container."""
    rdma.refuse_gke_network(context, "a TrainJob")
    head = f"{object_name(context)}-{NODE}-0-0.{object_name(context)}"
    container, spec = _node_container(context, head, INDEX, NODE)
    if rdma.pod_fields(context):
        raise NoAnswer(
            "a TrainJob cannot set the host's network.",
            field="parameters.host_network",
            hint="Use the JobSet target, or a runtime with hostNetwork.",
        )
    if context.parameters.priority_class:
        raise NoAnswer(
            "a TrainJob cannot set a priority class.",
            field="parameters.priority_class",
            hint="Use the JobSet target, or a runtime with it.",
        )
    value = recipe_object(
        context,
        "trainjob",
        metadata=workload_metadata(context),
        **{key: container[key] for key in ("image", "command", "env", "resources")},
        nodes=context.nodes,
        devices=context.devices_per_node,
        annotations=rdma.network_attachments(context) or None,
        pod_fields={key: value for key, value in spec.items() if key in PATCHABLE},
        mounts=container["volumeMounts"],
        security=container["securityContext"],
    )
    pods = {"jobset.sigs.k8s.io/jobset-name": object_name(context)}
    return _job_files(context, "kubeflow-trainjob", {"trainjob.yaml": value}, pods)


def job_set_files(context: Context) -> dict[str, str]:
    """A JobSet of one indexed Job; a failed node restarts all of it.

    Restarts count, but for those after a drained or lost node.
    """
    head = f"{object_name(context)}-{NODE}-0-0.{object_name(context)}"
    template = _node_template(context, head, INDEX, NODE, restartPolicy="Never")
    value = _job_object(context, "jobset", template)
    return _job_files(context, "jobset", {"jobset.yaml": value})


def pytorch_job_files(context: Context) -> dict[str, str]:
    """A PyTorchJob of Kubeflow's training operator (v1)."""
    head = f"{object_name(context)}-master-0"
    template = _node_template(context, head, Variable("RANK"), "pytorch")
    queue = context.parameters.queue or None
    value = _job_object(context, "pytorchjob", template, queue=queue, workers=context.nodes - 1)
    return _job_files(context, "kubeflow-pytorchjob", {"pytorchjob.yaml": value})


def volcano_files(context: Context) -> dict[str, str]:
    """A Volcano job: its nodes are scheduled together or not at all."""
    # the name that the svc plugin gives to the first pod
    head = f"{object_name(context)}-{NODE}-0.{object_name(context)}"
    index = Variable("VC_TASK_INDEX")
    template = _node_template(context, head, index, NODE, restartPolicy="OnFailure")
    metadata, queue = object_metadata(context), context.parameters.queue or "default"
    value = _job_object(context, "volcano", template, metadata=metadata, queue=queue)
    return _job_files(context, "volcano", {"job.yaml": value})


def _job_object(context: Context, kind: str, template: Any, **values: Any) -> dict[str, Any]:
    """An object that starts a pod a node by a template, and all again so many times."""
    common = {
        "metadata": workload_metadata(context),
        "template": template,
        "nodes": context.nodes,
        "devices": context.devices_per_node,
        "restarts": supervise.lifetime_restarts(context),
    }
    return recipe_object(context, kind, **{**common, **values})


def _node_template(
    context: Context, head: str, index: Variable, name: str, **fields: str
) -> dict[str, Any]:
    container, spec = _node_container(context, head, index, name)
    return rdma.attached_pod_template(
        context, pod_labels(context), {**spec, **fields, "containers": [container]}
    )


def _node_container(
    context: Context, head: str, index: Variable, name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The container of every node, and the rest of its pod."""
    (process,) = _process_of_nodes(context)
    values = pod.pod_values(context, head, index=index)
    spec = pod.pod_spec(context, (process,), values)
    spec.pop("containers")
    return pod.process_container(context, process, values, name=name), spec


def _process_of_nodes(context: Context) -> Pod:
    (unit,) = launch_units(context.launch)
    node_pod = same_pod(unit.pods, first=0)
    if node_pod is None or len(node_pod) != 1:
        raise NoAnswer(
            "its nodes run different processes; such a job has one template for all.",
            hint="Use Slurm.",
        )
    return node_pod


def _job_files(
    context: Context,
    folder: str,
    jobs: dict[str, dict[str, Any]],
    pods: dict[str, str] | None = None,
) -> dict[str, str]:
    """Files of the job, claims for weights and checkpoints, what it mounts, who reaches it.

    ``pods``: labels of its pods, where they are not the recipe's.
    """
    objects = jobs | {"network.yaml": pod.network_policy(context, pods or pod_labels(context), ())}
    if kubernetes.makes_weights(context):
        objects["storage.yaml"] = kubernetes.weights_claim(context)
    objects["checkpoints.yaml"] = kubernetes.volume_claim(
        context,
        pod.run_claim(context),
        checkpoints_gib(context),
        shared=kubernetes.is_shared(context),
    )
    if context.mounted:
        objects["files.yaml"] = pod.files_map(context)
    objects["kustomization.yaml"] = kustomization([*objects])
    return {f"targets/{folder}/{name}": to_yaml(value) for name, value in objects.items()}
