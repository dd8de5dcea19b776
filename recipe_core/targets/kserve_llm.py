"""KServe: an LLMInferenceService with its gateway, multi-node, with prefill and decode pools.

KServe merges the object with presets of its own, by names and mount paths. The recipe's command
replaces a preset's; what remains of the preset is the certificate, the sidecar that a decode pod
answers through, and a folder for temporary files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipe_core.base import texts
from recipe_core.base.errors import NoAnswer
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.option_meanings import Meant
from recipe_core.launch.process import Process, engine_words
from recipe_core.scaling.policies.rows import policy_row
from recipe_core.targets import kserve, kubernetes, pod, rdma
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Pod, Unit, by_role, same_pod
from recipe_core.targets.node_script import Values, Variable
from recipe_core.targets.objects import make_object
from recipe_core.targets.pod import pod_labels, recipe_object
from recipe_core.targets.scale import llm_d
from recipe_core.targets.scale.policy import most_copies, refuse_policy
from recipe_core.targets.supervise import set_probe_port

FOLDER = "targets/kserve-llm"
ENGINE, PROGRAM = "vllm", ("vllm", "serve")
CONTAINER = "main"  # the name that presets give the engine's container
# KServe's services expect a server at the first, its sidecar the decoding server at the second.
PORT, BEHIND_SIDECAR = 8000, 8001
CERTIFICATES = "/var/run/kserve/tls"  # where presets mount them
# Which KServe gives the pods of a service, beside its name.
POD_LABELS = {
    "app.kubernetes.io/part-of": "llminferenceservice",
    "kserve.io/component": "workload",
}
OTHER = "Use the Kubernetes target."


def kserve_llm_files(context: Context) -> dict[str, str]:
    """``llminferenceservice.yaml``, the claim and the files it mounts.

    Raises:
        NoAnswer: for other engines, for servers that differ, for a number of nodes that KServe
            would not derive, for policies of scaling other than llm-d's, or where no image is
            known.
    """
    if context.engine != ENGINE:
        raise NoAnswer(
            f"its presets and scheduler are made for {ENGINE}, not {context.engine}.",
            field="candidate.engine",
            hint=OTHER,
        )
    rdma.refuse_gke_network(context, "an LLMInferenceService")
    objects = {"llminferenceservice.yaml": llm_inference_service(context)}
    if context.scaling is not None and policy_row(context.scaling.policy).metrics:
        objects["thresholds.yaml"] = llm_d.saturation_thresholds(context, context.scaling)
    units = by_role(context.launch) or {}
    pods = {**pod_labels(context), **POD_LABELS}
    objects["network.yaml"] = pod.network_policy(
        context, pods, (PORT, BEHIND_SIDECAR), asks_cluster="prefill" in units
    )
    # KServe's labels tell neither leaders from workers nor pools apart in one way for all
    if [*units] == ["server"] and len(units["server"].pods) == 1:
        min_available = context.supervision.available_of(
            kubernetes.initial_copies(context, units["server"])
        )
        objects["disruption.yaml"] = kubernetes.disruption_budget(
            context, "", {"matchLabels": pods}, min_available
        )
    return kserve.service_folder_files(context, FOLDER, objects)


def llm_inference_service(context: Context) -> dict[str, Any]:
    """The LLMInferenceService: the serving (or decode) pool on top, the prefill pool below it."""
    units = by_role(context.launch)
    if units is None:
        raise NoAnswer("its servers differ; this object replicates a single one.", hint=OTHER)
    context = replace(context, apart="prefill" in units)  # each pool has pods of its own
    server = units.get("server")
    copies_of = kubernetes.initial_copies if context.scaling is None else most_copies
    spec = make_object(
        "llm-inference-spec",
        uri=_model_uri(context),
        model=context.launch.api_model,
        pool=_pool_workload(context, server, PORT)
        if server
        else _pool_workload(context, units["decode"], BEHIND_SIDECAR),
        prefill=None if server else _pool_workload(context, units["prefill"], PORT),
        scheduler={} if server is None or copies_of(context, server) > 1 else None,
    )
    return recipe_object(context, "llm-inference-service", spec=_escape_templates(spec))


def _model_uri(context: Context) -> str:
    """The model's URI; with the storage initializer off, KServe reads nothing from it."""
    if context.model_is_folder:
        return f"file://{pod.mounted_model(context)}"
    return f"hf://{context.model_source}"


def _pool_workload(context: Context, unit: Unit, port: int) -> dict[str, Any]:
    on_port = replace(context, parameters=context.parameters.model_copy(update={"port": port}))
    worker = same_pod(unit.pods[1:], first=1) if len(unit.pods) > 1 else ()
    if worker is None:
        raise NoAnswer(
            "its nodes run different processes; "
            "an LLMInferenceService has one template for all workers.",
            hint=OTHER,
        )
    if any(process.answers for process in worker):
        raise NoAnswer(
            "each node of a server answers requests, but KServe calls only the first.", hint=OTHER
        )
    pool: dict[str, Any] = make_object(
        "llm-pool",
        replicas=_pool_replicas(context, unit),
        parallelism=_parallelism_degrees(unit),
        attachments=rdma.network_attachments(context),
        leader=_preset_pod(on_port, unit.leader, sidecar=port == BEHIND_SIDECAR),
        worker=_preset_pod(on_port, worker, sidecar=False) if worker else None,
    )
    return pool


def _pool_replicas(context: Context, unit: Unit) -> dict[str, Any]:
    """A fixed number, or the request's policy, which KServe hands to llm-d's autoscaler."""
    scaling = context.scaling
    if scaling is None or scaling.policy == "fixed":
        return {"replicas": kubernetes.initial_copies(context, unit)}
    refuse_policy(scaling, "kserve-llm", "an LLMInferenceService")
    return {"scaling": llm_d.scaling_of(context, scaling)}


def _parallelism_degrees(unit: Unit) -> dict[str, Any]:
    """Degrees as the command states them.

    KServe derives the number of nodes from them: one per pipeline stage, or ``data / dataLocal``.

    Raises:
        NoAnswer: where that is not the recipe's number of nodes.
    """
    words = engine_words(unit.leader[0].argv)
    if words[: len(PROGRAM)] != PROGRAM or len(unit.leader) > 1:
        raise NoAnswer("each of its pods must run a single engine process.", hint=OTHER)
    split = Meant(Arguments(ENGINE, list(words[len(PROGRAM) :]))).candidate
    nodes, tp, pp, dp = len(unit.pods), split["tp"], split["pp"], split["dp"]
    degrees: dict[str, Any] = {"tensor": tp}
    derived_nodes = 1
    if pp > 1 and dp == 1:
        degrees["pipeline"], derived_nodes = pp, pp
    elif dp > 1 and pp == 1 and dp % nodes == 0:
        degrees |= {"data": dp, "dataLocal": dp // nodes}
        derived_nodes = nodes
    if nodes not in (1, derived_nodes):
        raise NoAnswer(
            "it needs one pipeline stage per node or equally many data-parallel replicas on each; "
            f"TP {tp} × PP {pp} × DP {dp} runs on {nodes} nodes.",
            hint=OTHER,
        )
    return {**degrees, "expert": True} if split["ep"] > 1 else degrees


def _preset_pod(context: Context, processes: Pod, *, sidecar: bool) -> dict[str, Any]:
    """A pod to merge with a preset's; its sidecar asks the cluster for the prefill pods."""
    values = pod.pod_values(
        context, Variable("LWS_LEADER_ADDRESS"), index=Variable("LWS_WORKER_INDEX")
    )
    spec = pod.pod_spec(context, processes, values)
    if sidecar:
        del spec["automountServiceAccountToken"]
    return spec | {"containers": [_preset_container(context, processes[0], values)]}


def _preset_container(context: Context, process: Process, values: Values) -> dict[str, Any]:
    # Whether it serves with TLS is the cluster's: a probe of ours could not ask it for tokens.
    spec = pod.process_container(context, process, values, name=CONTAINER, asks=False)
    port = context.parameters.port
    program, *words = spec.pop("command")
    if process.answers:
        words += _certificate_words()
        spec["ports"] = [{"name": "http", "containerPort": port, "protocol": "TCP"}]
        set_probe_port(spec, port)  # its scheme is left to the preset
    # command and args each replace the preset's
    identity = {"name": spec.pop("name"), "image": spec.pop("image")}
    return {**identity, "command": [program], "args": words, **spec}


def _certificate_words() -> list[str]:
    """Options for KServe's certificate; without TLS in the cluster their paths come out empty."""
    path = "{{ if .GlobalConfig.EnableTLS }}" + CERTIFICATES + "/tls.%s{{ end }}"
    return [
        _Template(f"--ssl-certfile={path % 'crt'}"),
        _Template(f"--ssl-keyfile={path % 'key'}"),
    ]


class _Template(str):
    """A text for KServe to render; it renders every text of the specification."""


def _escape_templates(value: Any) -> Any:
    """A specification with its texts escaped for KServe, and its templates as plain texts."""
    if isinstance(value, dict):
        return {key: _escape_templates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape_templates(item) for item in value]
    if isinstance(value, _Template):
        return str(value)
    return texts.quote_go_template(value) if isinstance(value, str) else value
