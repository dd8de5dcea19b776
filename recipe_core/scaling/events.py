"""What happens to replicas of a kind of hardware: failures of their nodes, reclaimed instances.

Rates are those of published fleets and spot traces (``hardware/failures.yaml``). A replica on
several nodes is lost when one of them is, so that rates add up over its nodes. Correlation is left
out: zones empty together, and very large fleets fail more often than independence says.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any, Literal

from recipe_core.base.bounded import whole
from recipe_core.hardware.failures import (
    DEVICES_PER_NODE,
    HOST,
    failures,
    node_failures,
    repair_hours,
    spot_market,
)
from recipe_core.scaling.fleet import Events
from recipe_core.scaling.outcome import HOUR_S


@dataclass(frozen=True, slots=True)
class Reclaims:
    """Reclaims per hour of one instance: the median of traces, and their range.

    ``held``: share of the instances asked for that zones held. ``notice_s``: before one ends.
    """

    per_hour: float
    low: float
    high: float
    held: float
    notice_s: float
    traces: int
    basis: str

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def reclaims(architecture: str | None = None, provider: str | None = None) -> Reclaims:
    """Reclaims in the traces of an architecture, of all GPUs where it has none.

    Traces that count refused launches only say nothing of reclaims, and are left out of the rates.

    Args:
        architecture: as in ``hw_profiles/``.
        provider: as in ``hw_profiles/offers/``; all traces count where it has none, or is None.
    """
    file = failures()
    notices = {name: notice.value for name, notice in file.reclaim_notice_s.items()}
    shortest = min(notices.values())
    notice_s = shortest if provider is None else notices.get(provider, shortest)
    if provider not in {trace.provider for trace in file.spot}:
        provider = None
    market = spot_market(architecture, provider)
    traces = [
        trace
        for trace in file.spot
        if (provider is None or trace.provider == provider)
        and trace.counts != "refusals"
        and trace.instance_hours
    ]
    known = [trace for trace in traces if trace.architecture == architecture]
    rates = [
        trace.losses / trace.instance_hours
        for trace in known or [trace for trace in traces if trace.architecture != HOST]
    ]
    return Reclaims(
        per_hour=statistics.median(rates),
        low=min(rates),
        high=max(rates),
        held=market.held,
        notice_s=notice_s,
        traces=len(rates),
        basis=market.basis,
    )


def events_of(
    architecture: str | None,
    *,
    nodes: int = 1,
    devices_per_node: int = DEVICES_PER_NODE,
    spot: bool = False,
    provider: str | None = None,
    how: Literal["own", "rented"] = "rented",
) -> Events:
    """What happens to one replica on ``nodes`` of ``devices_per_node`` each.

    A failed node comes back after ``repair_s``: a replacement where it is rented, else a restart or
    a repair.

    Args:
        architecture: of the devices, as in ``hw_profiles/``; None for the median of all fleets.
        nodes: of one replica.
        devices_per_node: that a node has.
        spot: whether instances can be reclaimed, and orders refused.
        provider: of spot instances; all traces count where it has none, or is None.
        how: whether nodes are rented or one's own.

    Raises:
        InputError: for numbers that are not positive.
    """
    count = whole("nodes", nodes)
    node = node_failures(architecture, devices_per_node)
    taken = reclaims(architecture, provider) if spot else None
    return Events(
        failures_per_hour=count / node.mtbf_hours,
        repair_s=repair_hours(how) * HOUR_S,
        reclaims_per_hour=count * taken.per_hour if taken else 0.0,
        notice_s=taken.notice_s if taken else 0.0,
        available=taken.held if taken else 1.0,
    )
