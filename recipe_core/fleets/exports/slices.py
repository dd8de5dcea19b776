"""Files that cut devices: a configuration of NVIDIA's mig-parted, scripts of AMD's amd-smi.

mig-parted applies it by hand (``nvidia-mig-parted apply -f FILE -c NODE``), and the GPU operator's
MIG manager to nodes with the label ``nvidia.com/mig.config=NODE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.fleets.answer import FleetAnswer, PoolUse
from recipe_core.fleets.exports.texts import render_export

# The slices of each of a node's first devices, by name; the devices after them stay whole.
Cuts = list[Mapping[str, int]]


def node_cuts(use: PoolUse) -> dict[str, Cuts]:
    """The devices of each node that are cut, as the plan has them."""
    nodes: dict[str, Cuts] = {}
    for cut in use.cuts:
        for node, count in cut.nodes.items():
            nodes.setdefault(node, []).extend([cut.counts] * count)
    return nodes


def slice_files(answer: FleetAnswer) -> dict[str, str]:
    """A configuration of mig-parted for all nodes that are cut, and a script for each of AMD's."""
    configurations: dict[str, list[dict[str, Any]]] = {}
    files: dict[str, str] = {}
    for use in answer.pools:
        for node, cuts in node_cuts(use).items():
            if any("px-" in name for name in cuts[0]):
                files[f"slices/{node}.sh"] = amd_script(cuts, use.per_node)
            else:
                configurations[node] = mig_devices(cuts, use.per_node)
    if configurations:
        document = {"version": "v1", "mig-configs": configurations}
        files["slices/mig-parted.yaml"] = to_yaml(document)
    return files


def mig_devices(cuts: Cuts, per_node: int) -> list[dict[str, Any]]:
    """A node as mig-parted's specification has it: the devices that are cut alike are an entry."""
    indexes: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for k in range(per_node):
        counts = cuts[k].items() if k < len(cuts) else ()
        indexes.setdefault(tuple(sorted(counts)), []).append(k)
    return [
        {"devices": alike, "mig-enabled": bool(cut), **({"mig-devices": dict(cut)} if cut else {})}
        for cut, alike in indexes.items()
    ]


def amd_script(cuts: Cuts, per_node: int) -> str:
    """A script for root that sets the modes of a node's devices, on which nothing may run.

    All of them share the memory mode. Beside NPS1 no device is whole, so that those without slices
    of the plan are cut as the first one is.
    """
    modes = [next(iter(cut)).upper().split("-") for cut in cuts]
    compute, memory = [mode for mode, _ in modes], modes[0][1]
    compute += ["SPX" if memory == "NPS1" else compute[0]] * (per_node - len(compute))
    return render_export("slices/amd-smi.sh.j2", memory=memory, compute=compute)
