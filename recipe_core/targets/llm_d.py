"""llm-d: values for its Helm chart ``llm-d-modelservice``, with the gateway's endpoint picker."""

from __future__ import annotations

from typing import Any

from recipe_core.base import texts
from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import SCRIPT
from recipe_core.targets import kubernetes, pod
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Unit, launch_units
from recipe_core.targets.pod import object_name, recipe_object
from recipe_core.targets.resources import cache_gib
from recipe_core.targets.supervise import PROBES

FOLDER = "targets/llm-d"
MODEL_LABEL = "llm-d.ai/model"
ENGINE = "vllm"  # the engine whose metrics the endpoint picker reads
TYPES = {"cuda": "nvidia", "rocm": "amd", "hpu": "intel-gaudi", "xpu": "intel-xe"}
EXTRA = (
    "automountServiceAccountToken",
    "securityContext",
    "affinity",
    "nodeSelector",
    "tolerations",
    "priorityClassName",
    "terminationGracePeriodSeconds",
)
FIELDS = ("image", "command", "ports", "resources", *PROBES, "securityContext")
OWN_VOLUMES = ("shm", "home", "tmp", "run", "files")  # the chart makes the one for the weights


def llm_d_files(context: Context) -> dict[str, str]:
    """``values.yaml`` for ``helm install`` of the chart, and the objects that it does not make.

    Raises:
        NoAnswer: for other engines or devices, several nodes or pools, or where no image is known.
    """
    shape = launch_units(context.launch)[0]
    if context.engine != ENGINE or context.runtime not in TYPES:
        raise NoAnswer(
            f"its scheduler reads the metrics of {ENGINE} on accelerators, "
            f"not of {context.engine} on {context.vendor}."
        )
    if context.nodes > 1 or len(shape.leader) > 1 or {*context.mounted} - {SCRIPT}:
        raise NoAnswer(
            "the chart renders multi-node and disaggregated commands itself; "
            "they may differ from the estimated ones."
        )
    objects: dict[str, Any] = {
        "network.yaml": pod.network_policy(
            context, {MODEL_LABEL: object_name(context)}, (context.parameters.port,)
        )
    }
    if context.mounted:
        objects["files.yaml"] = pod.files_map(context)
    objects["kustomization.yaml"] = pod.kustomization([*objects])
    return {
        f"{FOLDER}/values.yaml": to_yaml(chart_values(context, shape)),
        **{f"{FOLDER}/objects/{name}": to_yaml(value) for name, value in objects.items()},
    }


def chart_values(context: Context, shape: Unit) -> dict[str, Any]:
    """The chart's values: the recipe's own command, and no prefill pods."""
    (process,) = shape.leader
    tensor, data = (
        context.launch.options.get(f"{name}_parallel_size", 1) for name in ("tensor", "data")
    )
    if tensor * data != len(process.devices):
        raise NoAnswer(
            f"the chart requests tensor {tensor} × data {data} devices; "
            f"the recipe uses {len(process.devices)}.",
            hint="Use the Kubernetes target.",
        )
    if context.model_is_folder:
        raise NoAnswer(
            "the chart loads a model from the hub or a claim, not from a folder on the nodes.",
            field="parameters.model",
        )
    spec = pod.pod_spec(context, shape.leader, pod.pod_values(context, head="127.0.0.1", index="0"))
    (server,) = spec["containers"]
    # the chart sets HF_HOME itself, to where it mounts the model
    env = [_escape_entry(entry) for entry in server["env"] if entry["name"] != "HF_HOME"]
    return recipe_object(
        context,
        "llm-d-values",
        model=context.launch.api_model,
        source=context.model_source,
        cache_gib=cache_gib(context),
        type=TYPES[context.runtime],
        port=context.parameters.port,
        copies=kubernetes.initial_copies(context, shape),
        tensor=tensor,
        data=data,
        pod_fields={key: spec[key] for key in EXTRA if key in spec},
        container={key: server[key] for key in FIELDS},
        lifecycle=server["lifecycle"],
        env=env,
        mounts=[mount for mount in server["volumeMounts"] if mount["name"] in OWN_VOLUMES],
        volumes=[volume for volume in spec["volumes"] if volume["name"] in OWN_VOLUMES],
    )


def _escape_entry(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: _escape_text(item) for key, item in entry.items()}


def _escape_text(value: Any) -> Any:
    return texts.quote_go_template(value) if isinstance(value, str) else value
