"""Training on Kubernetes: Kubeflow's TrainJob and PyTorchJob, a JobSet, a Volcano job.

One pod per node, torchrun in each.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.targets import pod, rdma, storage, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.kubernetes import workload_metadata
from recipe_core.targets.layout import Pod, launch_units, same_pod
from recipe_core.targets.node_script import Variable
from recipe_core.targets.pod import kustomization, object_metadata, object_name, pod_labels

RUNTIME = "torch-distributed"  # of Kubeflow Trainer's own ClusterTrainingRuntimes
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
# A node that is drained or lost is no failure of the run. JobSet sees what a Job ended for, so that
# such an end is a reason of its own.
DISRUPTED = {
    "rules": [
        {
            "action": "FailJob",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }
    ]
}
INDEX = Variable("JOB_COMPLETION_INDEX")


def train_job_files(context: Context) -> dict[str, str]:
    """A TrainJob of Kubeflow Trainer v2, which becomes a JobSet: its patches add no container."""
    rdma.refuse_gke_network(context, "a TrainJob")
    head = f"{object_name(context)}-{NODE}-0-0.{object_name(context)}"
    container, spec = _node_container(context, head, INDEX, NODE)
    trainer = {
        "image": container["image"],
        "command": container["command"],
        "env": container["env"],
        "numNodes": context.nodes,
        "numProcPerNode": context.devices_per_node,
        "resourcesPerNode": container["resources"],
    }
    patched_container = {
        "name": NODE,
        **{key: container[key] for key in ("volumeMounts", "securityContext")},
    }
    patched = {key: value for key, value in spec.items() if key in PATCHABLE}
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
    annotations = rdma.network_attachments(context)
    template = {
        **({"metadata": {"annotations": annotations}} if annotations else {}),
        "spec": {**patched, "containers": [patched_container]},
    }
    job = {"name": NODE, "template": {"spec": {"template": template}}}
    patch = {
        "manager": "recipe-builder.io/bundle",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }
    value = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": workload_metadata(context),
        "spec": {"runtimeRef": {"name": RUNTIME}, "trainer": trainer, "runtimePatches": [patch]},
    }
    pods = {"jobset.sigs.k8s.io/jobset-name": object_name(context)}
    return _job_files(context, "kubeflow-trainjob", {"trainjob.yaml": value}, pods)


def job_set_files(context: Context) -> dict[str, str]:
    """A JobSet of one indexed Job; a failed node restarts all of it.

    Restarts count, but for those after a drained or lost node.
    """
    head = f"{object_name(context)}-{NODE}-0-0.{object_name(context)}"
    container, spec = _node_container(context, head, INDEX, NODE)
    job = {
        "parallelism": context.nodes,
        "completions": context.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": DISRUPTED,
        "template": rdma.attached_pod_template(
            context,
            pod_labels(context),
            {**spec, "restartPolicy": "Never", "containers": [container]},
        ),
    }
    value = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": workload_metadata(context),
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": object_name(context)},
            "failurePolicy": {
                "maxRestarts": supervise.lifetime_restarts(context),
                "rules": [
                    {
                        "name": "disruption",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [{"name": NODE, "replicas": 1, "template": {"spec": job}}],
        },
    }
    return _job_files(context, "jobset", {"jobset.yaml": value})


def pytorch_job_files(context: Context) -> dict[str, str]:
    """A PyTorchJob of Kubeflow's training operator (v1)."""
    container, spec = _node_container(
        context, f"{object_name(context)}-master-0", Variable("RANK"), "pytorch"
    )
    template = rdma.attached_pod_template(
        context, pod_labels(context), {**spec, "containers": [container]}
    )
    replica = {"restartPolicy": "OnFailure", "template": template}
    workers = {"Worker": {"replicas": context.nodes - 1, **replica}} if context.nodes > 1 else {}
    queue = context.parameters.queue
    gang = {
        "schedulingPolicy": {"minAvailable": context.nodes, **({"queue": queue} if queue else {})}
    }
    spec = {
        "nprocPerNode": str(context.devices_per_node),
        "runPolicy": {
            "backoffLimit": supervise.lifetime_restarts(context),
            "cleanPodPolicy": "Running",
            **gang,
        },
        "pytorchReplicaSpecs": {"Master": {"replicas": 1, **replica}, **workers},
    }
    value = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": workload_metadata(context),
        "spec": spec,
    }
    return _job_files(context, "kubeflow-pytorchjob", {"pytorchjob.yaml": value})


def volcano_files(context: Context) -> dict[str, str]:
    """A Volcano job: its nodes are scheduled together or not at all."""
    # the name that the svc plugin gives to the first pod
    head = f"{object_name(context)}-{NODE}-0.{object_name(context)}"
    container, spec = _node_container(context, head, Variable("VC_TASK_INDEX"), NODE)
    template = rdma.attached_pod_template(
        context,
        pod_labels(context),
        {**spec, "restartPolicy": "OnFailure", "containers": [container]},
    )
    metadata = object_metadata(context)
    value = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "schedulerName": "volcano",
            "queue": context.parameters.queue or "default",
            "minAvailable": context.nodes,
            "maxRetry": supervise.lifetime_restarts(context),
            "plugins": {"svc": [], "env": []},
            "policies": [
                {"event": "PodFailed", "action": "RestartJob"},
                {"event": "PodEvicted", "action": "RestartJob"},
            ],
            "tasks": [{"name": NODE, "replicas": context.nodes, "template": template}],
        },
    }
    return _job_files(context, "volcano", {"job.yaml": value})


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
    if storage.makes_weights(context):
        objects["storage.yaml"] = storage.weights_claim(context)
    objects["checkpoints.yaml"] = storage.volume_claim(
        context,
        pod.run_claim(context),
        storage.checkpoints_gib(context),
        shared=storage.is_shared(context),
    )
    if context.mounted:
        objects["files.yaml"] = pod.files_map(context)
    objects["kustomization.yaml"] = kustomization([*objects])
    return {f"targets/{folder}/{name}": to_yaml(value) for name, value in objects.items()}
