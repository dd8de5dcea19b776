"""Files that cut devices: keys and values as mig-parted's specification and amd-smi have them."""

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import HardwareError
from recipe_core.fleets.slice_files import (
    NodeCuts,
    amd_partition_commands,
    mig_parted_config,
    nodes_cuts,
)

# api/spec/v1/spec.go of NVIDIA/mig-parted: the keys of an entry; the others are optional.
KEYS = {"devices", "mig-enabled", "mig-devices"}
SEVEN, MIXED = {"1g.10gb": 7}, {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1}


def test_a_pool_becomes_configurations_of_its_nodes():
    first, last = nodes_cuts("h100-sxm", 8, [(7, SEVEN), (3, MIXED)])
    assert (len(first.cuts), len(last.cuts)) == (8, 8)
    assert nodes_cuts("h100-sxm", 8, []) == ()
    whole = NodeCuts("a100-sxm-80gb", ({},) * 4)
    document = parse_yaml(mig_parted_config({"pool-1": first, "pool-2": last, "whole": whole}))
    assert list(document) == ["version", "mig-configs"]
    assert document["version"] == "v1"
    entries = document["mig-configs"]
    assert {key for config in entries.values() for entry in config for key in entry} == KEYS
    assert entries["pool-1"] == [
        {"devices": [0, 1, 2, 3, 4, 5, 6], "mig-enabled": True, "mig-devices": SEVEN},
        {"devices": [7], "mig-enabled": True, "mig-devices": dict(sorted(MIXED.items()))},
    ]
    assert [entry["devices"] for entry in entries["pool-2"]] == [[0, 1], [2, 3, 4, 5, 6, 7]]
    assert entries["pool-2"][1]["mig-enabled"] is False
    assert entries["whole"] == [{"devices": "all", "mig-enabled": False}]


def test_partitions_are_set_after_the_memory_they_share():
    text = amd_partition_commands(NodeCuts("mi300x", ({"cpx-nps4": 8},) * 8))
    commands = [line.split("  #")[0] for line in text.splitlines()[2:]]
    assert commands == [
        "echo y | amd-smi set --gpu all --memory-partition NPS4",
        "modprobe -r amdgpu",
        "modprobe amdgpu",
        "amd-smi set --gpu all --compute-partition CPX",
    ]
    # amd-smi numbers the partitions of a device too, so that the last device goes first.
    mixed = amd_partition_commands(NodeCuts("mi300x", ({"cpx-nps1": 8}, {}, {"dpx-nps1": 2})))
    assert mixed.splitlines()[-3:] == [
        "amd-smi set --gpu all --compute-partition SPX",
        "amd-smi set --gpu 2 --compute-partition DPX",
        "amd-smi set --gpu 0 --compute-partition CPX",
    ]


def test_a_cut_that_no_device_allows_is_refused():
    with pytest.raises(HardwareError, match=r"3g\.40gb"):
        mig_parted_config({"n": NodeCuts("h100-sxm", ({"3g.40gb": 2, "1g.10gb": 1},))})
    with pytest.raises(HardwareError, match="at once"):  # one memory mode a node
        amd_partition_commands(NodeCuts("mi300x", ({"cpx-nps4": 8}, {})))
