"""Storage tiers: files with sources, and what nodes reach of them."""

from __future__ import annotations

import numpy as np
import pytest

from recipe_core.base.errors import HardwareError
from recipe_core.hardware.storage import storage_names, storage_tier


@pytest.mark.parametrize("name", storage_names())
def test_every_tier_states_what_nodes_reach(name):
    tier = storage_tier(name)
    for whole, per_node in (
        (tier.read_bytes_per_s, tier.read_bytes_per_s_per_node),
        (tier.write_bytes_per_s, tier.write_bytes_per_s_per_node),
    ):
        assert 1e9 <= per_node.value <= 2e11
        assert whole is None or whole.value >= 0.5 * per_node.value
    assert (tier.kind == "network") == (tier.read_bytes_per_s is not None)
    assert 1e-5 <= tier.latency_s.value < 1


def test_a_shared_tier_stops_growing_and_local_drives_do_not():
    nodes = np.array([1.0, 10.0, 1000.0])
    assert storage_tier("superpod-better").read_rate(nodes).tolist() == [8e9, 80e9, 160e9]
    assert storage_tier("superpod-better").write_rate(nodes).tolist() == [4e9, 40e9, 80e9]
    assert storage_tier("nvme").write_rate(nodes).tolist() == [3.5e9, 35e9, 3500e9]


def test_an_unknown_tier_is_named():
    with pytest.raises(HardwareError) as caught:
        storage_tier("superpod-bester")
    assert caught.value.field == "workload.storage"
    assert "superpod-best" in caught.value.hint
