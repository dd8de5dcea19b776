"""Kubernetes: a Deployment, or a LeaderWorkerSet over several nodes, with all they need.

For ``kubectl apply -k``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Process
from recipe_core.targets import pod, rdma, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import NODE, Pod, Unit, launch_units, port_name, port_of, same_pod
from recipe_core.targets.node_script import Variable
from recipe_core.targets.objects import make_object
from recipe_core.targets.pod import (
    kustomization,
    label_name,
    object_metadata,
    object_name,
    pod_labels,
    recipe_object,
)
from recipe_core.targets.resources import cache_gib
from recipe_core.targets.scale.policy import fewest_copies, in_copies, most_copies
from recipe_core.targets.supervise import container_probes

FOLDER = "targets/kubernetes"
ROLE = "app.kubernetes.io/component"
QUEUE = "kueue.x-k8s.io/queue-name"
ROOTS = {"sshd"}  # programs that do not start without root
POD_FIELDS = ("restartPolicy", "topologySpreadConstraints")
SCHEDULING_S = 600  # assumed: until a pod has a node and its image, beside its start


def kubernetes_files(context: Context) -> dict[str, str]:
    """One file per object, and their kustomization.

    Raises:
        NoAnswer: where no image is known, workers differ in more than their number, or need root.
    """
    values = {f"{name}.yaml": value for name, value in kubernetes_objects(context).items()}
    values["kustomization.yaml"] = kustomization([*values])
    return {f"{FOLDER}/{name}": to_yaml(value) for name, value in values.items()}


def kubernetes_objects(context: Context) -> dict[str, dict[str, Any]]:
    """The objects by file name, without its ending.

    Raises:
        NoAnswer: as ``kubernetes_files``.
    """
    units = launch_units(context.launch)
    single = [process for unit in units if len(unit.pods) == 1 for process in unit.leader]
    if any(NODE.search(word) for p in single for word in (*p.argv, *p.env.values())):
        raise NoAnswer(
            "its servers rendezvous at another node's address, and pods are not placed by node.",
            hint="Use Slurm.",
        )
    values = {
        f"{workload_kind(unit)}{unit_suffix(unit)}": unit_workload(context, unit) for unit in units
    }
    for unit in units:
        if unit.answers and unit.name and not any(p.role == "router" for p in unit.leader):
            values[f"service{unit_suffix(unit)}"] = unit_service(context, unit, unit_suffix(unit))
    values["service"] = unit_service(context, entry_unit(units), "")
    values |= mounted_objects(context)
    policy = pod.network_policy(context, pod_labels(context), pod.served_ports(context))
    return {**values, **disruption_budgets(context, units), "network": policy}


def mounted_objects(context: Context) -> dict[str, dict[str, Any]]:
    """Return what pods mount, by file name: the claim for weights (or the user's), bundle files."""
    values = {}
    if makes_weights(context):
        values["storage"] = weights_claim(context)
    if context.mounted:
        values["files"] = pod.files_map(context)
    return values


def makes_weights(context: Context) -> bool:
    """Return whether the recipe claims a volume for weights: no folder, no other claim."""
    return bool(pod.claim_name(context)) and not context.parameters.model_cache


def weights_claim(context: Context) -> dict[str, Any]:
    """The claim for the weights."""
    name = object_name(context, "-models")
    return volume_claim(context, name, cache_gib(context), shared=is_shared(context))


def is_shared(context: Context) -> bool:
    """Return whether more than one pod mounts a volume of the recipe."""
    if context.kind == "training":
        return context.nodes > 1
    return (
        sum(most_copies(context, unit) * len(unit.pods) for unit in launch_units(context.launch))
        > 1
    )


def shares_a_claim(context: Context) -> bool:
    """Return whether several pods mount a volume that the recipe claims."""
    claims = context.kind == "training" or makes_weights(context)
    return claims and is_shared(context)


def volume_claim(context: Context, name: str, size_gib: int, *, shared: bool) -> dict[str, Any]:
    """A PersistentVolumeClaim, mounted by several nodes if ``shared``."""
    parameters = context.parameters
    return recipe_object(
        context,
        "claim",
        metadata=object_metadata(context) | {"name": name},
        access="ReadWriteMany" if shared else "ReadWriteOnce",
        storage_class=(parameters.shared_class if shared else parameters.storage_class) or None,
        size_gib=size_gib,
    )


def unit_suffix(unit: Unit) -> str:
    return f"-{label_name(unit.name)}" if unit.name else ""


def workload_kind(unit: Unit) -> str:
    return "deployment" if len(unit.pods) == 1 else "leaderworkerset"


def entry_unit(units: Sequence[Unit]) -> Unit:
    """The unit that clients call: the one with the router, else the first."""
    return next((unit for unit in units if any(p.role == "router" for p in unit.leader)), units[0])


def unit_workload(context: Context, unit: Unit) -> dict[str, Any]:
    make_workload = _deployment_object if len(unit.pods) == 1 else _leader_worker_set
    return make_workload(context, unit)


def initial_copies(context: Context, unit: Unit) -> int:
    """Initial pods (or groups of pods): the fewest that are to run, and at least one replica."""
    replica_copies = unit.copies if context.scaling is None else in_copies(context, unit, 1)
    return max(replica_copies, fewest_copies(context, unit))


def _deployment_object(context: Context, unit: Unit) -> dict[str, Any]:
    count = initial_copies(context, unit)
    spread = make_object("spread-constraint", labels=pod_labels(context))  # where there is room
    template = _role_template(
        context,
        unit.leader,
        leader_role(unit),
        head="127.0.0.1",
        restartPolicy="Always",
        topologySpreadConstraints=[spread] if count > 1 else None,
    )
    return recipe_object(
        context,
        "deployment",
        metadata=workload_metadata(context, unit_suffix(unit)),
        copies=count,
        labels=pod_labels(context) | {ROLE: leader_role(unit)},
        update=supervise.rollout_limits(context, count),
        progress_s=progress_s(context, unit),
        template=template,
    )


def progress_s(context: Context, unit: Unit) -> int:
    """Seconds after which a rollout without progress counts as failed."""
    startup = max(_startup_seconds(context, process) for process in unit.leader if process.answers)
    return startup + SCHEDULING_S


def _leader_worker_set(context: Context, unit: Unit) -> dict[str, Any]:
    worker = same_pod(unit.pods[1:], first=1)
    if worker is None:
        raise NoAnswer(
            "its nodes run different processes; "
            "a LeaderWorkerSet has one template for all workers.",
            hint="Use Slurm.",
        )
    if programs := ROOTS & {p.argv[0].split("/")[-1] for pods in unit.pods for p in pods}:
        raise NoAnswer(
            f"its workers run {', '.join(programs)}, which needs root and SSH keys in a container.",
            hint="Use Slurm.",
        )
    addresses: dict[str, Any] = {
        "head": Variable("LWS_LEADER_ADDRESS"),
        "index": Variable("LWS_WORKER_INDEX"),
        **_worker_addresses(context, unit),
    }
    count = initial_copies(context, unit)
    return recipe_object(
        context,
        "leaderworkerset",
        metadata=workload_metadata(context, unit_suffix(unit)),
        copies=count,
        update=supervise.rollout_limits(context, count),
        size=len(unit.pods),
        leader=_role_template(context, unit.leader, leader_role(unit), **addresses),
        worker=_role_template(context, worker, worker_role(unit), **addresses),
    )


def _worker_addresses(context: Context, unit: Unit) -> dict[str, str]:
    """Addresses of workers where a unit has one copy; pods do not know their copy's number."""
    name = object_name(context, unit_suffix(unit))
    addresses = {f"node{n}": f"{name}-0-{n}.{name}" for n in range(1, len(unit.pods))}
    return (
        addresses if initial_copies(context, unit) == 1 and most_copies(context, unit) == 1 else {}
    )


def leader_role(unit: Unit) -> str:
    return label_name(unit.name) or "leader"


def worker_role(unit: Unit) -> str:
    """The role label of the other pods: the leader's if they answer requests too."""
    if any(process.answers for process in unit.pods[-1]):
        return leader_role(unit)
    return "-".join(filter(None, (label_name(unit.name), "worker")))


def _role_template(
    context: Context,
    processes: Pod,
    role: str,
    *,
    head: str | Variable,
    index: str | Variable = "0",
    **more: Any,
) -> dict[str, Any]:
    """A pod template; ``more`` are addresses of other pods, or fields of the specification."""
    addresses = {key: value for key, value in more.items() if key not in POD_FIELDS}
    values = {
        **pod.pod_values(context, head, index=index),
        **_answering_addresses(context),
        **addresses,
    }
    fields = {key: more[key] for key in POD_FIELDS if more.get(key) is not None}
    spec = pod.pod_spec(context, processes, values, **fields)
    return rdma.attached_pod_template(context, pod_labels(context) | {ROLE: role}, spec)


def _answering_addresses(context: Context) -> dict[str, str]:
    """Addresses of all processes that answer, by port offset; a single unit is one pod."""
    addresses = {}
    for unit in launch_units(context.launch):
        host = object_name(context, unit_suffix(unit)) if unit.name else "127.0.0.1"
        for process in unit.leader:
            if process.answers:
                addresses[f"at{process.port_offset}"] = f"{host}:{port_of(context, process)}"
    return addresses


def workload_metadata(context: Context, suffix: str = "") -> dict[str, Any]:
    """Metadata, with Kueue's label where a queue is set."""
    metadata, queue = object_metadata(context, suffix), context.parameters.queue
    return metadata | {"labels": metadata["labels"] | {QUEUE: queue}} if queue else metadata


def _startup_seconds(context: Context, process: Process) -> int:
    probe = container_probes(context, process, {}, asks=False)["startupProbe"]
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def entry_processes(unit: Unit) -> list[Process]:
    """Processes of the leader that clients call: the router where there is one."""
    answering = [process for process in unit.leader if process.answers]
    return [process for process in answering if process.role == "router"] or answering


def unit_service(context: Context, unit: Unit, name: str) -> dict[str, Any]:
    """One address in the cluster for all copies of a unit; ``name`` follows the recipe's."""
    ports = [
        {"name": port_name(p), "port": port_of(context, p), "targetPort": port_name(p)}
        for p in entry_processes(unit)
    ]
    labels = pod_labels(context) | {ROLE: leader_role(unit)}
    return recipe_object(context, "service", name, labels=labels, ports=ports)


def disruption_budgets(context: Context, units: Sequence[Unit]) -> dict[str, dict[str, Any]]:
    """Budgets by file name: how many pods of each role maintenance must leave up.

    Servers of one role stand in for each other, whichever workload they belong to. Workers of
    servers over several nodes have a budget of their own, because a pod counts in one only, and
    only a leader tells whether its server answers.
    """
    roles: dict[str, list[Unit]] = {}
    for unit in units:
        roles.setdefault(unit.leader[0].role, []).append(unit)
    budgets = {}
    for role, members in roles.items():
        name = f"-{role}" if len(roles) > 1 else ""
        servers = sum(initial_copies(context, unit) for unit in members)
        min_available = context.supervision.available_of(servers)
        leaders = [leader_role(unit) for unit in members]
        workers = [worker_role(unit) for unit in members if len(unit.pods) > 1]
        size, counted = len(members[0].pods), counted_pods(members[0])
        budgets[f"disruption{name}"] = _role_budget(context, name, leaders, counted * min_available)
        if workers and counted == 1:
            workers_name = f"{name}-workers"
            budgets[f"disruption{workers_name}"] = _role_budget(
                context, workers_name, workers, (size - 1) * min_available
            )
    return budgets


def counted_pods(unit: Unit) -> int:
    """Pods of a server that its disruption budget counts: its leader, or all where all answer."""
    every_node = len(unit.pods) > 1 and worker_role(unit) == leader_role(unit)
    return len(unit.pods) if every_node else 1


def _role_budget(
    context: Context, name: str, roles: Sequence[str], min_available: int
) -> dict[str, Any]:
    role_rule = {"key": ROLE, "operator": "In", "values": list(roles)}
    labels, alone = pod_labels(context), len(roles) == 1
    selector: dict[str, Any] = {"matchLabels": labels | ({ROLE: roles[0]} if alone else {})}
    if not alone:
        selector["matchExpressions"] = [role_rule]
    return disruption_budget(context, name, selector, min_available)


def disruption_budget(
    context: Context, name: str, selector: dict[str, Any], min_available: int
) -> dict[str, Any]:
    """A PodDisruptionBudget: drains of nodes wait while fewer pods would be left."""
    return recipe_object(
        context, "disruption-budget", name, selector=selector, min_available=min_available
    )
