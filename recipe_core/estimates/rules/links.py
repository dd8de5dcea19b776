"""Slices of devices have no links: a server keeps to one, and every replica is its own server."""

from __future__ import annotations

from recipe_core.base.arrays import Bool
from recipe_core.engines.spec import Engine
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.hardware.cluster import Cluster

_REASONS = {
    "mig": "a CUDA process sees one MIG slice, and slices have no peer access",
    "partition": "vLLM gave wrong answers over partitions of a device (its issue 20125), and no "
    "speed over them is measured",
}


def has_no_links(cluster: Cluster) -> bool:
    """Return whether devices of a node reach each other through their host alone."""
    return cluster.fabric.topology == "none"


def apart_on(cluster: Cluster, spec: Engine) -> Engine:
    """An engine as it runs there: without links replicas are servers, whatever it balances."""
    if not has_no_links(cluster) or spec.split.replicas == "servers":
        return spec
    return spec.model_copy(update={"split": spec.split.model_copy(update={"replicas": "servers"})})


def link_refusals(cluster: Cluster, several: Bool) -> list[Refusal]:
    """Refuse ``several`` devices in a server, or pools that hand caches over, without links."""
    device = cluster.device
    if not has_no_links(cluster) or device.slice_of is None:
        return []
    words = f"a layout keeps to one {device.title}: {_REASONS[device.slice_of.kind]}"
    return [Refusal("no-links", several, lambda i: words)]
