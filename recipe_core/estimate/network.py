"""Time of collectives: latency plus bytes over achieved bandwidth (alpha–beta), in a node and across nodes.

Across nodes a collective is hierarchical: inside each node at the fabric's rate, between nodes at the network's with the
share of the data that one device carries. Source of the factors: NCCL's performance notes (bus bandwidth). Left out:
in-network reduction, and overlap with compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.estimate.cases import Bool, Cases, Float, Int
from recipe_core.hardware.catalog import Cluster
from recipe_core.hardware.profile import Fabric


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of a collective: ``local`` reach each other over the fabric, in ``remote`` such islands joined by the network."""

    local: Float
    remote: Float

    @property
    def ranks(self) -> Float:
        """All ranks."""
        return self.local * self.remote


def group(cluster: Cluster, cases: Cases, ranks: Int | Float, stride: Int | int = 1) -> Group:
    """The group of ``ranks`` consecutive ranks (``stride`` apart): as many on one island as its devices allow."""
    reach = np.full(len(cases), float(cluster.fabric.domain or 1)) if cluster.rack_scale else cases.per_node.astype(float)
    local = np.clip(np.floor(reach / stride), 1, ranks)
    return Group(local, np.ceil(ranks / local))


def _rate(fabric: Fabric, ranks: Float) -> Float:
    """Achieved bytes per second and direction of one device; in a mesh only the links to members of the group count."""
    full = fabric.bandwidth_bytes_per_s.value * fabric.efficiency.value
    if fabric.topology == "mesh" and fabric.domain:
        return full * np.clip((ranks - 1) / (fabric.domain - 1), 1 / (fabric.domain - 1), 1)
    return np.full_like(ranks, full)


def _latency(fabric: Fabric, ranks: Float) -> Float:
    per_rank = fabric.latency_per_rank_s.value if fabric.latency_per_rank_s else 0.0
    return fabric.latency_s.value + per_rank * (ranks - 1)


def _inside(cluster: Cluster, ranks: Float) -> tuple[Float, Float]:
    """Rate and latency in a node; a group wider than the fabric's domain (bridged pairs) goes at the pace of what joins the domains."""
    rate, latency = _rate(cluster.fabric, ranks), _latency(cluster.fabric, ranks)
    if cluster.beyond is None:
        return rate, latency
    wide = ranks > (cluster.fabric.domain or 1)
    return np.where(wide, _rate(cluster.beyond, ranks), rate), np.where(wide, _latency(cluster.beyond, ranks), latency)


def _two_level(cluster: Cluster, members: Group, data_bytes: Float, passes: float) -> Float:
    """``passes`` rounds in which each rank moves (n-1)/n of the data: 1 for gather or scatter, 2 for all-reduce."""
    rate_inside, latency_inside = _inside(cluster, members.local)
    inside = passes * (members.local - 1) / members.local * data_bytes / rate_inside
    outside = passes * (members.remote - 1) / members.remote * data_bytes / members.local / _rate(cluster.network, members.remote)
    inside = np.where(members.local > 1, inside + latency_inside, 0.0)
    return inside + np.where(members.remote > 1, outside + _latency(cluster.network, members.remote), 0.0)


def all_reduce_s(cluster: Cluster, members: Group, data_bytes: Float) -> Float:
    """Seconds to sum ``data_bytes`` held by every rank."""
    return _two_level(cluster, members, data_bytes, 2.0)


def all_gather_s(cluster: Cluster, members: Group, data_bytes: Float) -> Float:
    """Seconds until every rank has the ``data_bytes`` that all hold together (a reduce-scatter takes the same)."""
    return _two_level(cluster, members, data_bytes, 1.0)


def send_s(cluster: Cluster, across: Bool, data_bytes: Float) -> Float:
    """Seconds to hand ``data_bytes`` to the next stage, over the network where it sits in another node."""
    two = np.full_like(data_bytes, 2.0)
    inside = _latency(cluster.fabric, two) + data_bytes / _rate(cluster.fabric, two)
    return np.where(across, _latency(cluster.network, two) + data_bytes / _rate(cluster.network, two), inside)
