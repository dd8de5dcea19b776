"""``failures.yaml``: how often nodes fail and spot instances are reclaimed, and for how long."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.numbers import bounded_integer
from recipe_core.base.provenance import Quantity, Sourced, Status
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Count, Text

FILE = DataFile(PACKAGE / "hardware" / "failures.yaml", "availability")
# Hours of 1,000 node-days.
NODE_DAYS_HOURS = 24_000.0
# Of the fleets whose failures are counted.
DEVICES_PER_NODE = 8
# Architecture of instances without accelerators.
HOST = "x86_64"

Fraction = Annotated[float, Field(ge=0, le=1)]
Hours = Annotated[float, Field(ge=0, le=1e9)]


class Fleet(DataRow):
    """Failures of a fleet's nodes; ``new_nodes``: in their first weeks, when more fail."""

    fleet: Text
    architecture: Text
    failures_per_1000_node_days: Quantity
    new_nodes: bool = False


class Repair(DataRow):
    """Hours that a failure takes, by what ends it."""

    drained_share: Quantity
    restart_hours: Quantity
    repair_hours: Quantity
    replace_hours: Quantity


class SlowNodes(DataRow):
    """Nodes that compute more slowly than the others, and by how much."""

    share: Quantity
    slowdown: Quantity


class Agreement(DataRow):
    """The uptime that a provider promises, as a share of a month."""

    provider: Text
    what: Text
    uptime: Quantity


class SpotTrace(DataRow):
    """A zone's trace: how many of ``instances`` it held, and how often it lost one."""

    provider: Text
    zone: Text
    trace: Text
    device: Text
    architecture: Text
    instances: Count
    days: Annotated[float, Field(gt=0, le=3660)]
    losses: Annotated[int, Field(ge=0)]
    counts: Literal["reclaims", "refusals", "both"]
    instance_hours: Hours
    held: Fraction
    source: str
    status: Status


class FailureFile(Sourced):
    """``failures.yaml``; architectures are those of ``hw_profiles/``."""

    fleets: Annotated[tuple[Fleet, ...], Field(min_length=1)]
    gpu_share: Quantity
    slow_nodes: SlowNodes
    repair: Repair
    reclaim_notice_s: dict[Text, Quantity]
    agreements: tuple[Agreement, ...]
    spot: Annotated[tuple[SpotTrace, ...], Field(min_length=1)]


@cache
def failure_file() -> FailureFile:
    """The shipped figures.

    Raises:
        InputError: for a damaged file, naming the field and the fix.
    """
    return FILE.read_as(FailureFile)


@dataclass(frozen=True, slots=True)
class NodeFailures:
    """Mean time between failures of a node, with the range of all fleets."""

    mtbf_hours: float
    low_hours: float
    high_hours: float
    basis: str
    """The fleets that it is the median of."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def node_failures(
    architecture: str | None = None, devices_per_node: int = DEVICES_PER_NODE
) -> NodeFailures:
    """The median of the fleets of an architecture (``sm_90``), of all where it has none.

    Published nodes have 8 devices. Of n devices: the share of failures that GPUs cause grows with
    n, the rest (host, network, software) stays: ``rate · (1 - s + s · n/8)``, an assumption. Nodes
    in their first weeks are left out.

    Raises:
        InputError: for a number of devices that is not positive.
    """
    file = failure_file()
    size = bounded_integer("devices_per_node", devices_per_node) / DEVICES_PER_NODE
    settled = [fleet for fleet in file.fleets if not fleet.new_nodes]
    fleets_of_architecture = [fleet for fleet in settled if fleet.architecture == architecture]
    rates = [fleet.failures_per_1000_node_days.value for fleet in settled]
    median = statistics.median(
        fleet.failures_per_1000_node_days.value for fleet in fleets_of_architecture or settled
    )
    share = file.gpu_share.value
    hours = NODE_DAYS_HOURS / (1 - share + share * size)
    basis = (
        "; ".join(fleet.fleet for fleet in fleets_of_architecture)
        or f"median of {len(settled)} fleets"
    )
    return NodeFailures(hours / median, hours / max(rates), hours / min(rates), basis)


def repair_hours(ownership: Literal["own", "rented"] = "own") -> float:
    """Mean hours from a failure to a node that can start a replica again.

    Own nodes: ``drained · repair + (1 - drained) · restart``. Rented ones are replaced. The time in
    which a replica starts and loads comes on top.

    Raises:
        InputError: for another word.
    """
    repair = failure_file().repair
    if ownership == "rented":
        return repair.replace_hours.value
    if ownership != "own":
        message, hint = unknown("kind of node", ownership, ("own", "rented"))
        raise InputError(message, field="repair", hint=hint)
    drained = repair.drained_share.value
    return drained * repair.repair_hours.value + (1 - drained) * repair.restart_hours.value


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """Reclaims per hour of an instance that is held, with the range of its zones."""

    reclaims_per_hour: float
    low: float
    high: float
    held: float
    """Share of the instances asked for that zones held."""
    basis: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def spot_market(architecture: str | None = None, provider: str | None = None) -> SpotMarket:
    """Losses per instance-hour in the traces of an architecture, of all GPUs where it has none.

    All losses over all hours, so that long traces count more. Traces of refused launches count for
    ``held`` only.

    Args:
        architecture: as in ``hw_profiles/``; ``x86_64`` for machines without GPUs.
        provider: as in ``hw_profiles/offers/``; all with traces unless given.

    Raises:
        InputError: for a provider without traces.
    """
    traces = _traces_of_provider(provider)
    traces_of_architecture = [trace for trace in traces if trace.architecture == architecture]
    market_traces = traces_of_architecture or [
        trace for trace in traces if trace.architecture != HOST
    ]
    lost = [trace for trace in market_traces if trace.counts != "refusals" and trace.instance_hours]
    rates = [trace.losses / trace.instance_hours for trace in lost]
    instance_days = sum(trace.instances * trace.days for trace in market_traces)
    names = sorted({f"{trace.provider} {trace.device} ({trace.trace})" for trace in market_traces})
    return SpotMarket(
        reclaims_per_hour=sum(t.losses for t in lost) / sum(t.instance_hours for t in lost),
        low=min(rates),
        high=max(rates),
        held=sum(trace.held * trace.instances * trace.days for trace in market_traces)
        / instance_days,
        basis="; ".join(names),
    )


def _traces_of_provider(provider: str | None) -> Sequence[SpotTrace]:
    traces = failure_file().spot
    if provider is None:
        return traces
    provider_traces = [trace for trace in traces if trace.provider == provider]
    if not provider_traces:
        providers = sorted({trace.provider for trace in traces})
        message, hint = unknown("provider of spot traces", provider, providers)
        raise InputError(message, field="provider", hint=hint)
    return provider_traces
