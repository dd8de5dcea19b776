"""Notes on a recipe's targets for its README: texts of ``notes.yaml``, by facts of the recipe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipe_core.engines.release import ApiKey
from recipe_core.launch.templates import Facts, fill_template, read_templates
from recipe_core.payload.launcher.api import is_loopback
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.policies.rows import policy_row, policy_rows
from recipe_core.targets import rdma
from recipe_core.targets.by_hand import TITLES
from recipe_core.targets.context import Context
from recipe_core.targets.kubernetes import shares_a_claim
from recipe_core.targets.layout import launch_units, port_of
from recipe_core.targets.names import cluster_names
from recipe_core.targets.node_script import listening_host
from recipe_core.targets.restarts import LAUNCHER
from recipe_core.targets.scale import keda
from recipe_core.targets.scale.policy import (
    fewest_replicas,
    in_copies,
    shortest_number,
    stated_fields,
)

FILE = Path(__file__).with_name("notes.yaml")


def _note_facts(context: Context, **values: Any) -> Facts:
    return Facts(context, _FACTS, values, read_templates(FILE)["texts"])


def _code_names(targets: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in targets)


def scaling_notes(context: Context, targets: Collection[str]) -> list[str]:
    """Sentences for the README of a bundle that has these targets, by name."""
    scaling, notes = context.scaling, read_templates(FILE)
    if scaling is None:
        return []
    writers = [name for name in policy_row(scaling.policy).targets if name in targets]
    scalers = {name for row in policy_rows().values() for name in row.targets}
    placed = {*writers, *scalers, *notes["not_started"]}
    facts = _note_facts(
        context,
        writers=_code_names(writers),
        unscaled=_code_names(name for name in targets if name not in placed),
        keeps_llm_d="llm-d" in targets and "llm-d" not in writers,
        policy=policy_summary(scaling),
        from_zero="kubernetes-keda" in writers
        and scaling.policy == "keda"
        and scaling.min_replicas == 0,
        tolerance=_has_tolerance(context, scaling),
        knative=scaling.policy == "kpa",
    )
    return facts.sentences(notes["scaling"])


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


def _has_tolerance(context: Context, scaling: Scaling) -> bool:
    if scaling.policy != "schedule":
        return scaling.tolerance is not None and scaling.policy != "dynamo"
    unit = launch_units(context.launch)[0]
    counts = [in_copies(context, unit, count) for count in keda.replicas_by_hour(scaling)]
    return keda.changes_within_tolerance(counts, keda.TOLERANCE)


def _key_method(context: Context) -> ApiKey | None:
    """Return how callers are asked for a key; None where a router that cannot ask answers them."""
    api_key = context.api_key
    routed = any(process.role == "router" for process in context.launch.processes)
    return None if api_key is not None and routed and api_key.router_option is None else api_key


def _crossed_ports(context: Context) -> str:
    """Ports of pools that other nodes call."""
    return ", ".join(
        str(port_of(context, process))
        for process in context.launch.processes
        if context.nodes > 1 and process.role in ("prefill", "decode")
    )


_FACTS: Mapping[str, Callable[[Context], Any]] = {
    "name": lambda context: context.name,
    "engine": lambda context: context.engine,
    "host": lambda context: context.parameters.host,
    "port": lambda context: context.parameters.port,
    "namespace": lambda context: context.parameters.namespace,
    "monitoring": lambda context: context.parameters.monitoring_namespace,
    "gateway": lambda context: context.parameters.gateway_namespace,
    "loopback": lambda context: is_loopback(context.parameters.host),
    "local_nodes": lambda context: is_loopback(listening_host(context)),
    "crossed": _crossed_ports,
    "rack_scale": lambda context: context.rack_scale,
    "simulated": lambda context: context.simulated,
    "shared_by_default": lambda context: (
        shares_a_claim(context) and not context.parameters.shared_class
    ),
    "keyed": lambda context: context.key_variable,
    "variable": lambda context: context.key_variable,
    "secret": lambda context: context.parameters.api_key_secret,
    "can_ask": _key_method,
    "asks_alone": lambda context: context.api_key,
    "key_variable": lambda context: context.api_key.variable if context.api_key else None,
    "guards_metrics": lambda context: context.api_key and context.api_key.guards_metrics,
    "logs": lambda context: context.api_key and context.api_key.logs,
}


def reach_section(context: Context, available: Sequence[str]) -> str:
    """The section of a bundle's README; empty for a run, which serves nobody."""
    if context.kind == "training":
        return ""
    facts, names = _note_facts(context), [LAUNCHER, *available]
    table = ["| target | who reaches it | to change that |", "|---|---|---|"]
    for row in read_templates(FILE)["reached"]:
        if titles := [TITLES.get(name, name) for name in names if name in row["targets"]]:
            who, change = (fill_template(row[column], facts) for column in ("who", "change"))
            table.append(f"| {', '.join(titles)} | {who} | {change} |")
    return "\n".join(["## Who can reach it", "", facts["key"], "", *table])


def cluster_notes(context: Context, targets: Collection[str]) -> list[str]:
    """Sentences for the README of a bundle that has these targets, by name."""
    notes = read_templates(FILE)
    if not {*notes["kubernetes"]} & {*targets}:
        return []
    storage = _note_facts(context).sentences(notes["storage"])
    if context.nodes > 1:
        return [*_network_notes(context, "Kubernetes"), *storage]
    pools = any(process.role == "prefill" for process in context.launch.processes)
    apart = replace(context, apart=pools and "kserve-llm" in targets)
    return [*_network_notes(apart, "KServe"), *storage]


def spot_note(context: Context, targets: Collection[str]) -> str:
    """Name the targets that ask for the spot devices of the price; empty for other prices."""
    if context.spot is None:
        return ""
    notes, labelled = read_templates(FILE), cluster_names().spot.get(context.spot) is not None
    by_label = {*notes["kubernetes"], *notes["overlays"]} if labelled else set()
    asking = [name for name in targets if name in {"skypilot", *by_label}]
    silent = [name for name in targets if name not in {*asking, *notes["start_nothing"]}]
    facts = _note_facts(
        context, asking=_code_names(asking), silent=_code_names(["launch.py", *silent])
    )
    return str(facts["spot"])


def _network_notes(context: Context, platform: str) -> list[str]:
    """Say what carries the traffic between pods, against what the estimate assumes."""
    if (gke_text := rdma.gke_note(context)) is not None:
        return [gke_text]
    usual = cluster_names().networks.get(context.network or "")
    if not rdma.crosses_nodes(context) or usual is None:
        return []
    resources = rdma.rdma_resources(context, context.launch.processes)
    name, count = next(iter(resources.items()), (None, None))
    facts = _note_facts(
        context,
        network=True,
        asks=resources,
        platform=platform,
        assumed=context.network_title or context.network,
        resource=name,
        count=count,
        **_rented_facts(context),
    )
    return facts.sentences(read_templates(FILE)["network"])


def _rented_facts(context: Context) -> dict[str, Any]:
    """Return whose interfaces are counted, and machines that have more or fewer."""
    machine = rdma.rented_machine(context)
    if machine is None:
        return {"machine": None}
    alternatives = [
        f"{alternative.interfaces} on {alternative.type}"
        for alternative in cluster_names().machines
        if (alternative.provider, alternative.device) == (machine.provider, machine.device)
        and alternative != machine
    ]
    return {
        "machine": machine.type,
        "interfaces": machine.interfaces,
        "huge_mib": machine.huge_mib,
        "alternatives": ", ".join(alternatives),
    }
