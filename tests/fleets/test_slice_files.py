"""Files that cut devices: keys and values as mig-parted's specification and amd-smi have them."""

import subprocess
from dataclasses import replace

from recipe_core.base.documents import parse_yaml
from recipe_core.fleets.answer import CutDevices
from recipe_core.fleets.exports.slices import amd_script, slice_files
from tests.fixtures.needs import needs
from tests.fleets.placed import placed_fleet

# api/spec/v1/spec.go of NVIDIA/mig-parted: the keys of an entry; the others are optional.
KEYS = {"devices", "mig-enabled", "mig-devices"}
SEVEN, MIXED = {"1g.10gb": 7}, {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1}


def cut_fleet(pool, *cuts):
    """The answer with devices of one pool cut: each of ``cuts`` has how many of a node, and how."""
    answer = placed_fleet()
    devices = tuple(CutDevices(sum(nodes.values()), counts, {}, nodes) for nodes, counts in cuts)
    pools = [replace(use, cuts=devices if use.name == pool else ()) for use in answer.pools]
    return replace(answer, pools=tuple(pools))


def test_a_pool_becomes_configurations_of_its_nodes():
    answer = cut_fleet("big", ({"big-0": 4, "big-1": 3}, SEVEN), ({"big-0": 1, "big-1": 2}, MIXED))
    document = parse_yaml(slice_files(answer)["slices/mig-parted.yaml"])
    assert list(document) == ["version", "mig-configs"]
    assert document["version"] == "v1"
    entries = document["mig-configs"]
    assert {key for config in entries.values() for entry in config for key in entry} == KEYS
    assert entries["big-0"] == [
        {"devices": [0, 1, 2, 3], "mig-enabled": True, "mig-devices": SEVEN},
        {"devices": [4], "mig-enabled": True, "mig-devices": dict(sorted(MIXED.items()))},
        {"devices": [5, 6, 7], "mig-enabled": False},
    ]
    assert [entry["devices"] for entry in entries["big-1"]] == [[0, 1, 2], [3, 4], [5, 6, 7]]
    assert slice_files(cut_fleet("big")) == {}


@needs("scripts", "shellcheck")
def test_partitions_are_set_after_the_memory_they_share(tmp_path):
    script = slice_files(cut_fleet("amd", ({"amd-0": 2}, {"cpx-nps4": 8})))["slices/amd-0.sh"]
    (tmp_path / "amd.sh").write_text(script)
    done = subprocess.run(["shellcheck", tmp_path / "amd.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    commands = [line.split("  #")[0] for line in script.splitlines()[2:] if line[0] != "#"]
    assert commands == [
        "echo y | amd-smi set --gpu all --memory-partition NPS4",
        "modprobe -r amdgpu",
        "modprobe amdgpu",
        "amd-smi set --gpu all --compute-partition CPX",  # also of those that the plan leaves idle
    ]
    # amd-smi numbers the partitions of a device too, so that the last device goes first.
    mixed = amd_script([{"cpx-nps1": 8}, {"dpx-nps1": 2}], 4)
    assert mixed.splitlines()[-3:] == [
        "amd-smi set --gpu all --compute-partition SPX",
        "amd-smi set --gpu 1 --compute-partition DPX",
        "amd-smi set --gpu 0 --compute-partition CPX",
    ]
