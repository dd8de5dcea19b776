"""What to know of a recipe's files for clusters, where they ask for what a cluster may not have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from recipe_core.engines.release import ApiKey
from recipe_core.payload.launcher.sections import is_loopback
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.policies.rows import policy_row, policy_rows
from recipe_core.targets import rdma
from recipe_core.targets.by_hand import TITLES
from recipe_core.targets.context import Context
from recipe_core.targets.layout import launch_units, port_of
from recipe_core.targets.names import cluster_names
from recipe_core.targets.node_script import listening_host
from recipe_core.targets.pod import API_KEY
from recipe_core.targets.restarts import LAUNCHER
from recipe_core.targets.scale import keda
from recipe_core.targets.scale.policy import (
    fewest_replicas,
    in_copies,
    shortest_number,
    stated_fields,
)
from recipe_core.targets.storage import shares_a_claim

# Targets that start nothing of their own, or that others scale.
_NOT_STARTED = ("monitoring", "kubernetes")
_KNATIVE = (
    "Knative takes these pods only if its features `kubernetes.podspec-affinity`, "
    "`-nodeselector`, `-tolerations`, `-securitycontext`, `-volumes-emptydir` and "
    "`-persistent-volume-claim` are enabled (ConfigMap `config-features`)."
)


def scaling_notes(context: Context, targets: Collection[str]) -> list[str]:
    """Sentences for the README of a bundle that has these targets, by name."""
    scaling = context.scaling
    if scaling is None:
        return []
    writers = [name for name in policy_row(scaling.policy).targets if name in targets]
    lines = [_policy_note(context, scaling, writers)]
    scalers = {name for row in policy_rows().values() for name in row.targets}
    unscaled = [name for name in targets if name not in {*writers, *scalers, *_NOT_STARTED}]
    if "llm-d" in targets and "llm-d" not in writers:
        lines.append("`llm-d` starts the fewest of them, at least one, and keeps their number.")
    if unscaled:
        lines.append(
            f"{_code_names(unscaled)} start the recipe's own servers and keep their number."
        )
    return [*lines, *_policy_needs(context, scaling, writers)]


def _policy_note(context: Context, scaling: Scaling, writers: Collection[str]) -> str:
    basis = (
        "They are the numbers that were simulated over the request's load."
        if context.simulated
        else "They were not simulated over a load (`recipe simulate`), or changed since."
    )
    where = (
        f"is written into {_code_names(writers)}" if writers else "is in no target of this bundle"
    )
    return f"How many servers run {where}: {policy_summary(scaling)}. {basis}"


def _code_names(targets: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in targets)


def policy_summary(scaling: Scaling) -> str:
    """A policy and its stated numbers on one line."""
    low, high = fewest_replicas(scaling), scaling.max_replicas
    bounds = f"{high}" if low == high else f"{low} to {high}"
    parts = [f"policy {scaling.policy}", f"{bounds} server{'s' if high > 1 else ''}"]
    parts += [f"{trigger.metric} {shortest_number(trigger.target)}" for trigger in scaling.triggers]
    if scaling.periods:
        parts.append(f"{len(scaling.periods)} periods of the week in UTC")
    parts += [
        f"{name} {shortest_number(getattr(scaling, name))}"
        for name in stated_fields(scaling)
        if name not in ("triggers", "periods")
    ]
    return ", ".join(parts)


def _policy_needs(context: Context, scaling: Scaling, writers: Collection[str]) -> Iterator[str]:
    if "kubernetes-keda" in writers and scaling.policy == "keda" and scaling.min_replicas == 0:
        yield (
            "With no server running, the gateway has to hold requests until the first one answers, "
            "as the interceptor of KEDA's HTTP add-on does; one that refuses them makes clients "
            "try again."
        )
    if _has_tolerance(context, scaling) and writers:
        yield (
            "A tolerance of its own needs Kubernetes 1.33 or later with the feature "
            "HPAConfigurableTolerance; without it changes within 10 % are ignored."
        )
    if scaling.policy == "kpa" and writers:
        yield _KNATIVE


def _has_tolerance(context: Context, scaling: Scaling) -> bool:
    if scaling.policy != "schedule":
        return scaling.tolerance is not None and scaling.policy != "dynamo"
    unit = launch_units(context.launch)[0]
    counts = [in_copies(context, unit, count) for count in keda.replicas_by_hour(scaling)]
    return keda.changes_within_tolerance(counts, keda.TOLERANCE)


# A target's title, who reaches its servers, and how to let more or fewer in.
Reached = tuple[str, str, str]
_MACHINE = ("launcher", "systemd", "docker", "compose")
_IN_CLUSTER = ("kubernetes", "knative", "kserve", "kserve-llm", "llm-d")


def key_text(context: Context) -> str:
    """What callers need, and what nobody is asked for."""
    key, variable, secret = (
        _key_method(context),
        context.key_variable,
        context.parameters.api_key_secret,
    )
    if variable is not None and key is not None:
        figures = "figures need no key"
        if key.guards_metrics:
            figures = "figures do: Prometheus reads it from `api-key`, a file beside its own"
        logged = f" {_log_warning(context)}" if key.logs else ""
        return (
            f"Callers send `Authorization: Bearer KEY`. The key is in `{variable}` wherever a "
            f"target is started, on Kubernetes in the key `{API_KEY}` of the Secret `{secret}`; "
            f"nothing starts without it. Health needs no key; {figures}.{logged}\n\n"
            "```\n"
            f"export {variable}=$(openssl rand -hex 32)\n"
            f'printf %s "${variable}" | kubectl create secret generic {secret} '
            f"--namespace {context.parameters.namespace} --from-file={API_KEY}=/dev/stdin\n"
            "```"
        )
    if key is not None:
        return (
            "Servers ask nobody for a key: whoever reaches one may use it. The deployment setting "
            f"`api_key_secret` names a secret, and callers then need the key in `{key.variable}`."
        )
    asker = context.api_key and "the router before its pools"
    return (
        f"Nobody is asked for a key, and {asker or context.engine} cannot ask for one: put a "
        "gateway or proxy that checks callers in front before you let others in."
    )


def _key_method(context: Context) -> ApiKey | None:
    """How callers are asked for a key; None where a router that cannot ask answers them."""
    api_key = context.api_key
    routed = any(process.role == "router" for process in context.launch.processes)
    return None if api_key is not None and routed and api_key.router_option is None else api_key


def _log_warning(context: Context) -> str:
    return f"{context.engine} writes the key into its own log: keep that to yourself."


def reach_rows(context: Context, available: Iterable[str]) -> list[Reached]:
    """One entry for targets that are reached alike, the launcher first."""
    names = [LAUNCHER, *available]
    grouped = [
        (_target_titles(name for name in names if name in _MACHINE), *_machine_reach(context)),
        (_target_titles(name for name in names if name in _IN_CLUSTER), *_cluster_reach(context)),
        (_target_titles(name for name in names if name == "slurm"), *_slurm_reach(context)),
        (_target_titles(name for name in names if name == "skypilot"), *_skypilot_reach(context)),
        (_target_titles(name for name in names if name == "ray-serve"), *_ray_reach(context)),
    ]
    return [row for row in grouped if row[0]]


def _target_titles(names: Iterable[str]) -> str:
    return ", ".join(TITLES.get(name, name) for name in names)


def _key_clause(context: Context) -> str:
    return "with the key" if context.key_variable else "without a key"


def _machine_reach(context: Context) -> tuple[str, str]:
    host = context.parameters.host
    if is_loopback(host):
        return (
            f"programs of this machine ({host})",
            "`host` (`--host` of the launcher) lets more in",
        )
    return (
        f"whoever reaches {host} of this machine, {_key_clause(context)}",
        "`host: 127.0.0.1`, or a firewall",
    )


def _cluster_reach(context: Context) -> tuple[str, str]:
    parameters = context.parameters
    gateway = parameters.gateway_namespace
    through = f", and of `{gateway}`" if gateway else ""
    return (
        f"pods of the namespace `{parameters.namespace}` and of `{parameters.monitoring_namespace}`"
        f"{through}, {_key_clause(context)}, where the cluster enforces network policies",
        "`gateway_namespace` lets the gateway or ingress in, which then decides who else",
    )


def _slurm_reach(context: Context) -> tuple[str, str]:
    host = listening_host(context)
    crossed = [
        str(port_of(context, process))
        for process in context.launch.processes
        if context.nodes > 1 and process.role in ("prefill", "decode")
    ]
    pools_text = f"; pools at ports {', '.join(crossed)}: the cluster's network" if crossed else ""
    if is_loopback(host):
        return (
            f"users of the job's first node{pools_text}",
            "an SSH tunnel, which the job's output names; `host: 0.0.0.0` lets the network in",
        )
    return (f"the cluster's network, {_key_clause(context)}", "`host`, or the cluster's firewall")


def _skypilot_reach(context: Context) -> tuple[str, str]:
    if context.key_variable:
        return "the internet, with the key, unencrypted", "a proxy with TLS before the endpoint"
    port = context.parameters.port
    return (
        "programs of the cloud's machine: no port is open",
        f"`ssh -N -L {port}:localhost:{port} {context.name}`",
    )


def _ray_reach(context: Context) -> tuple[str, str]:
    host = context.parameters.host
    who = (
        "programs of Ray's nodes" if is_loopback(host) else f"whoever reaches {host} of Ray's nodes"
    )
    return f"{who}; Ray asks nobody for a key", "`host`; a gateway that checks callers"


def reach_section(context: Context, available: Sequence[str]) -> str:
    """The section of a bundle's README; empty for a run, which serves nobody."""
    if context.kind == "training":
        return ""
    rows = [
        f"| {title} | {who} | {change} |" for title, who, change in reach_rows(context, available)
    ]
    table = ["| target | who reaches it | to change that |", "|---|---|---|", *rows]
    return "\n".join(["## Who can reach it", "", key_text(context), "", *table])


KUBERNETES = frozenset(
    {
        "kubernetes",
        "knative",
        "kserve",
        "kserve-llm",
        "llm-d",
        "kubeflow-trainjob",
        "kubeflow-pytorchjob",
        "jobset",
        "volcano",
    }
)
# Which scale the pods of another target.
OVERLAYS = frozenset({"kubernetes-keda", "kubernetes-hpa"})
START_NOTHING = frozenset({"monitoring", "dynamo-planner"})
TCP = "ethernet-100"  # the network whose figures are those of TCP


def cluster_notes(context: Context, targets: Collection[str]) -> list[str]:
    """Sentences for the README of a bundle that has these targets, by name."""
    if not KUBERNETES & set(targets):
        return []
    if context.nodes > 1:
        return [*_network_notes(context, "Kubernetes"), *_storage_notes(context)]
    pools = any(process.role == "prefill" for process in context.launch.processes)
    apart = replace(context, apart=pools and "kserve-llm" in targets)
    return [*_network_notes(apart, "KServe"), *_storage_notes(context)]


def spot_note(context: Context, targets: Collection[str]) -> str:
    """Which targets ask for the spot devices that the price is of; empty for other prices."""
    if context.spot is None:
        return ""
    provider = cluster_names().spot.get(context.spot)
    asking, silent = list[str](), ["`launch.py`"]
    for name in targets:
        by_label = provider is not None and name in KUBERNETES | OVERLAYS
        if name == "skypilot" or by_label:
            asking.append(f"`{name}`")
        elif name not in START_NOTHING:
            silent.append(f"`{name}`")
    asks = f" Spot devices are asked for by {', '.join(asking)}." if asking else ""
    return (
        f"The price is a spot price: the devices may be taken back at any time.{asks} These cannot "
        f"ask for them, and run on machines that are rented as spot: {', '.join(silent)}."
    )


def _network_notes(context: Context, where: str) -> list[str]:
    """What carries the traffic between pods, against what the estimate assumes."""
    if (gke_text := rdma.gke_note(context)) is not None:
        return [gke_text]
    usual = cluster_names().networks.get(context.network or "")
    if not rdma.crosses_nodes(context) or usual is None:
        return []
    resources = rdma.rdma_resources(context, context.launch.processes)
    assumed = context.network_title or context.network
    if not resources:
        return [
            f"On {where} the pods ask for no RDMA device, so nodes talk over TCP. The estimate "
            f"assumes {assumed}: it is slower than that. Set `rdma_resource`, or plan with "
            f"`hardware.network: {TCP}`."
        ]
    name, count = next(iter(resources.items()))
    notes = [
        f"On {where} each pod asks for {count} `{name}`{_rented_note(context)}, since the estimate "
        f"assumes {assumed}, and runs as root with no capability but {rdma.LOCKS_MEMORY}, to lock "
        "memory. Pods stay pending where the cluster calls it otherwise (`kubectl describe node` "
        "lists resources): set `rdma_resource`. `none` asks for none; nodes then talk over TCP, "
        "slower than estimated."
    ]
    if context.rack_scale:
        notes.append(
            "Nodes of a rack reach each other by NVLink only in one IMEX domain: give the pods a "
            "ComputeDomain of NVIDIA's DRA driver, or NCCL takes the network."
        )
    return notes


def _rented_note(context: Context) -> str:
    """Whose interfaces are counted, and what to set on machines that have more or fewer."""
    machine = rdma.rented_machine(context)
    if machine is None:
        return ""
    alternatives = [
        f"{alternative.interfaces} on {alternative.type}"
        for alternative in cluster_names().machines
        if (alternative.provider, alternative.device) == (machine.provider, machine.device)
        and alternative != machine
    ]
    alternatives_text = f"; set `rdma_count` to {', '.join(alternatives)}" if alternatives else ""
    pages = f", and {machine.huge_mib} MiB of huge pages a machine" if machine.huge_mib else ""
    return f" (a {machine.type} has {machine.interfaces}{pages}{alternatives_text})"


def _storage_notes(context: Context) -> list[str]:
    if not shares_a_claim(context) or context.parameters.shared_class:
        return []
    return [
        "Pods on several nodes share a volume (ReadWriteMany), of the cluster's default storage "
        "class. Where that is block storage the volume stays pending, and so do the pods: set "
        "`shared_storage_class` to a class of files (NFS, CephFS, EFS, Filestore, Lustre …)."
    ]
