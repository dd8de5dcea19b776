"""KServe: an LLMInferenceService, with its gateway, over several nodes and with prefill and decode pools.

KServe lays the object over presets of its own, by names and by mount paths. The recipe's words take the place of a preset's; what is left
of it is the certificate, the sidecar that a decode pod answers through, and a folder for temporary files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.commands.arguments import read_arguments
from recipe_core.commands.meaning import meaning_of
from recipe_core.launch.process import Process
from recipe_core.targets import kserve, kubernetes, pod
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Pod, Unit, by_role, same_pod
from recipe_core.targets.pod import metadata

FOLDER = "targets/kserve-llm"
VERSION = "serving.kserve.io/v1alpha2"
ENGINE, PROGRAM = "vllm", ("vllm", "serve")
CONTAINER = "main"  # the name that presets give the engine's container
PORT, BEHIND_SIDECAR = (
    8000,
    8001,
)  # where KServe's services look for a server, and its sidecar for the one that decodes
CERTIFICATES = "/var/run/kserve/tls"  # where presets mount them
OTHER = "Use the Kubernetes target."


def files(context: Context) -> dict[str, str]:
    """``llminferenceservice.yaml``, the claim and the files it mounts.

    Raises:
        NoAnswer: for other engines, for servers that differ, for nodes that KServe does not count, or where no image is known.
    """
    if context.engine != ENGINE:
        raise NoAnswer(
            f"its presets and its scheduler are {ENGINE}'s, not {context.engine}'s.",
            field="candidate.engine",
            hint=OTHER,
        )
    return kserve.folder(context, FOLDER, {"llminferenceservice.yaml": service(context)})


def service(context: Context) -> dict[str, Any]:
    """The LLMInferenceService: what answers (or decodes) at its top, and the pool that computes prompts below it."""
    units = by_role(context.launch)
    if units is None:
        raise NoAnswer("its servers differ, and here copies of one stand for all.", hint=OTHER)
    pools = "prefill" in units
    several = pools or kubernetes.copies(context, units["server"]) > 1
    spec = {
        "model": {"uri": _uri(context), "name": context.launch.api_model},
        "storageInitializer": {
            "enabled": False
        },  # the engine loads it, into the claim, by the name that the recipe gives it
        **_workload(
            context, units["decode" if pools else "server"], BEHIND_SIDECAR if pools else PORT
        ),
        **({"prefill": _workload(context, units["prefill"], PORT)} if pools else {}),
        "router": {"route": {}, "gateway": {}} | ({"scheduler": {}} if several else {}),
    }
    return {
        "apiVersion": VERSION,
        "kind": "LLMInferenceService",
        "metadata": metadata(context),
        "spec": spec,
    }


def _uri(context: Context) -> str:
    """The model as KServe names it; it reads nothing from there."""
    return (
        f"file://{pod.mounted_model(context)}"
        if context.model_is_folder
        else f"hf://{context.model_source}"
    )


def _workload(context: Context, unit: Unit, port: int) -> dict[str, Any]:
    here = replace(context, parameters=context.parameters.model_copy(update={"port": port}))
    worker = same_pod(unit.pods[1:], first=1) if len(unit.pods) > 1 else ()
    if worker is None:
        raise NoAnswer(
            "its nodes run different processes; an LLMInferenceService has one template for all workers.",
            hint=OTHER,
        )
    if any(process.answers for process in worker):
        raise NoAnswer(
            "every node of a server answers by itself, and here only the first one is asked.",
            hint=OTHER,
        )
    return {
        "replicas": kubernetes.copies(context, unit),
        "parallelism": _parallelism(unit),
        # The name that requests go by is the recipe's alone; a preset would have them sent to a second one.
        "annotations": {"serving.kserve.io/model-based-routing-enabled": "false"},
        "template": _pod(here, unit.leader, sidecar=port == BEHIND_SIDECAR),
        **({"worker": _pod(here, worker, sidecar=False)} if worker else {}),
    }


def _parallelism(unit: Unit) -> dict[str, Any]:
    """Degrees as the words say them. KServe counts nodes by them: stages, or replicas over those of a node.

    Raises:
        NoAnswer: where that gives another number of nodes.
    """
    words = unit.leader[0].argv
    if words[: len(PROGRAM)] != PROGRAM or len(unit.leader) > 1:
        raise NoAnswer("a pod here has one process, which is an engine.", hint=OTHER)
    said = meaning_of(read_arguments(ENGINE, list(words[len(PROGRAM) :]))).candidate
    nodes, tp, pp, dp = len(unit.pods), said["tp"], said["pp"], said["dp"]
    stages, replicas = pp > 1 and dp == 1, dp > 1 and pp == 1 and dp % nodes == 0
    if nodes > 1 and nodes != (pp if stages else nodes if replicas else 1):
        raise NoAnswer(
            f"it counts nodes by stages, or by replicas with as many on each; tp {tp} × pp {pp} × dp {dp} has {nodes} nodes.",
            hint=OTHER,
        )
    over = (
        {"pipeline": pp} if stages else {"data": dp, "dataLocal": dp // nodes} if replicas else {}
    )
    return {"tensor": tp, **over, **({"expert": True} if said["ep"] > 1 else {})}


def _pod(context: Context, processes: Pod, *, sidecar: bool) -> dict[str, Any]:
    """A pod to lay over a preset's; the sidecar asks the cluster which pods compute prompts."""
    known = pod.values(context, "$(LWS_LEADER_ADDRESS)", index="$(LWS_WORKER_INDEX)")
    spec = pod.pod_spec(context, processes, known)
    if sidecar:
        del spec["automountServiceAccountToken"]
    return spec | {"containers": [_container(context, processes[0], known)]}


def _container(context: Context, process: Process, known: Mapping[str, str]) -> dict[str, Any]:
    whole = pod.container(context, process, known, name=CONTAINER)
    program, *words = (_literal(word) for word in whole.pop("command"))
    name, image = whole.pop("name"), whole.pop("image")
    if process.answers:
        words += _certificates()
        whole["ports"] = [
            {"name": "http", "containerPort": context.parameters.port, "protocol": "TCP"}
        ]
        for probe in pod.PROBES:
            whole[probe]["httpGet"]["port"] = (
                context.parameters.port
            )  # its scheme is left to the preset
    whole["env"] = [
        entry | {"value": _literal(entry["value"])} if "value" in entry else entry
        for entry in whole["env"]
    ]
    return {
        "name": name,
        "image": image,
        "command": [program],
        "args": words,
        **whole,
    }  # both replace a preset's


def _certificates() -> list[str]:
    """Whether traffic inside the cluster is encrypted is KServe's setting; without it the paths are empty, which is as if not given."""
    path = "{{ if .GlobalConfig.EnableTLS }}" + CERTIFICATES + "/tls.%s{{ end }}"
    return [f"--ssl-certfile={path % 'crt'}", f"--ssl-keyfile={path % 'key'}"]


def _literal(text: str) -> str:
    """Text that KServe's templates leave as it is: ``{{`` would otherwise start an action."""
    return text.replace("{{", "{{`{{`}}")
