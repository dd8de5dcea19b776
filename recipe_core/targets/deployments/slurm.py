"""Slurm scripts: what ``#SBATCH`` asks for, and the commands below."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from recipe_core.targets.deployments.deployed import DeployedEngine, Left, Place
from recipe_core.targets.deployments.devices import chosen, device_called
from recipe_core.targets.deployments.documents import count
from recipe_core.targets.deployments.shell import engines_of
from recipe_core.targets.names import names

_OPTION = re.compile(r"(?:^|\s)(--[\w-]+|-[A-Za-z])(?:=|\s+)?([^\s#]*)")
_LINE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_LONG = {"-N": "--nodes", "-G": "--gpus", "-C": "--constraint", "-n": "--ntasks"}
_GRES = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?(?::(\d{1,3}))?(?:\(.*)?")
_PER_NODE = re.compile(r"(?:([A-Za-z][\w.-]*):?)?(\d{1,3})?")


def is_slurm(text: str) -> bool:
    """Whether a script asks Slurm for something."""
    return _LINE.search(text) is not None


def read_slurm(text: str) -> Iterator[DeployedEngine | Left]:
    """The engines that a batch script starts, with the variables of its first node."""
    asked = options(text)
    place = place_of(asked)
    nodes = place.nodes or 1
    env = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes))
    env |= dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"), "0")
    if place.per_node:
        env |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(place.per_node))
    yield from engines_of(text, "script", place, env, text)


def options(text: str) -> dict[str, str]:
    """Options of ``sbatch`` in a script's head, by their long names; the last one counts."""
    out: dict[str, str] = {}
    for line in _LINE.finditer(text):
        for match in _OPTION.finditer(line[1]):
            out[_LONG.get(match[1], match[1])] = match[2].strip("'\"")
    return out


def place_of(asked: Mapping[str, str]) -> Place:
    """Devices and nodes that a job asks for; types of devices are those of the cluster."""
    nodes = count(asked.get("--nodes", "").partition("-")[0])
    kind, number = _devices(asked, nodes)
    if not kind:
        kind = _constraint(asked.get("--constraint", ""))
    return chosen([(kind, number)], names().slurm.names, nodes=nodes)


def _devices(asked: Mapping[str, str], nodes: int | None) -> tuple[str, int | None]:
    for entry in asked.get("--gres", "").split(","):
        if gres := _GRES.fullmatch(entry.strip()):
            return gres[1] or "", count(gres[2]) or 1
    for name in ("--gpus-per-node", "--gpus", "--gpus-per-task"):
        if (stated := _PER_NODE.fullmatch(asked.get(name, ""))) and (stated[1] or stated[2]):
            number = count(stated[2]) or 1
            share = nodes if name == "--gpus" and nodes and number % nodes == 0 else 1
            return stated[1] or "", number // share
    return "", None


def _constraint(text: str) -> str:
    """The device in a constraint on nodes (``a100&80gb``); empty where it names none."""
    words = re.split(r"[&|,\[\]()*]+", text)
    both = [first + second for first in words for second in words if first != second]
    return next((word for word in (*both, *words) if word and device_called(word)), "")
