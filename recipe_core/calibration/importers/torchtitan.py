"""Training logs of torchtitan: a line a logged step.

Lines as in torchtitan 0.1 to 0.3 (``components/metrics.py``, ``train.py``, ``parallel_dims.py``).
``tps`` is tokens per second and device, so that a step is the global batch by it and the devices.
"""

from __future__ import annotations

import re
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.importers.content import Content, one_line, parse_number
from recipe_core.calibration.importers.formats import Format
from recipe_core.calibration.importers.imported import Imported, drop_unstated
from recipe_core.calibration.importers.training_steps import devices_of_split, steady_median

NAME = "torchtitan"
_STEP = re.compile(r"step:\s{0,9}(\d{1,12})\s{1,9}loss:")
_RATE = re.compile(r"\btps: {0,9}([\d,.]{1,20})")
_MEMORY = re.compile(r"memory: {0,9}([\d.]{1,12})GiB\(")
_MFU = re.compile(r"\bmfu: {0,9}([\d.]{1,12})%")
_BATCH = re.compile(
    r"local batch size (?P<micro_batch>\d{1,9}), global batch size (?P<global_batch>\d{1,9})"
    r"(?:, gradient accumulation steps \d{1,9})?, sequence length (?P<sequence_length>\d{1,9})"
)
_MESH = re.compile(
    r"pp=(?P<pp>\d{1,9}), dp_replicate=(?P<replicate>\d{1,9}), dp_shard=(?P<shard>-?\d{1,9}), "
    r"cp=(?P<cp>\d{1,9}), tp=(?P<tp>\d{1,9})"
)
_DEVICE_MESH = re.compile(
    r"Building \d{1,2}-D device mesh with (\[[^\]]{0,200}\]), (\[[^\]]{0,200}\])"
)
_WORLD = re.compile(r"world[_ ]size[=: ]+(\d{1,9})")
_GPU = re.compile(r"(?:CUDA|XPU|HIP|GPU) capacity: (?:\d{1,3} x )?(?P<name>.{2,60}?) with")
_MODEL = re.compile(r"Model (?P<model>\w{1,40} [\w.]{1,40}) size: [\d,]{1,30} total parameters")
_DEGREES = {"pp": "pp", "cp": "cp", "tp": "tp", "dp": "dp", "dp_shard": "dp", "dp_replicate": "dp"}


def _is_torchtitan_log(content: Content) -> bool:
    return _STEP.search(content.head) is not None and _RATE.search(content.head) is not None


def _read_torchtitan_log(content: Content) -> list[Imported]:
    rates, utilisation, memory = _read_torchtitan_steps(content)
    load = _group_integers(_BATCH.search(content.head))
    split = _torchtitan_mesh(content.head)
    micro = load.pop("micro_batch", None)
    rate = steady_median(rates)
    figures = drop_unstated(
        tokens_per_s_per_gpu=rate,
        mfu=steady_median(utilisation),
        peak_memory_bytes=max(memory, default=None),
    )
    if rate and len(load) == 2 and split:
        tokens = load["global_batch"] * load["sequence_length"]
        figures["step_s"] = tokens / (rate * devices_of_split(split))
    gpu, model = _GPU.search(content.head), _MODEL.search(content.head)
    notes = ("the log does not state the split: state the devices",) if not split else ()
    return [
        Imported(
            format=NAME,
            kind="training",
            engine="torchtitan",
            model=one_line(model["model"]) if model else "",
            device=one_line(gpu["name"]) if gpu else "",
            figures=figures,
            load=load,
            split={**drop_unstated(micro_batch=micro), **split},
            settings={"steps": len(rates)},
            notes=notes,
        )
    ]


def _read_torchtitan_steps(content: Content) -> tuple[list[float], list[float], list[float]]:
    """Tokens per second, utilisation and memory by logged step, of rank 0 alone."""
    rates: dict[int, float] = {}
    utilisation: dict[int, float] = {}
    memory: dict[int, float] = {}
    for number, line in enumerate(content.log, 1):
        match, rate = _STEP.search(line[:2000]), _RATE.search(line[:2000])
        if match is None or rate is None or int(match[1]) in rates:
            continue
        step, memory_match, mfu_match = (
            int(match[1]),
            _MEMORY.search(line[:2000]),
            _MFU.search(line[:2000]),
        )
        try:
            rates[step] = parse_number(rate[1])
            if memory_match:
                memory[step] = parse_number(memory_match[1]) * GIB
            if mfu_match:
                utilisation[step] = parse_number(mfu_match[1]) / 100
        except ValueError as error:
            raise InputError(f"{content.name}, line {number}: {error}.", field="file") from None
    positive = [rate for rate in rates.values() if rate > 0]
    return positive, list(utilisation.values()), list(memory.values())


def _group_integers(match: re.Match[str] | None) -> dict[str, int]:
    return {name: int(text) for name, text in match.groupdict().items()} if match else {}


def _torchtitan_mesh(head: str) -> dict[str, Any]:
    """The degrees of the mesh, as newer and older logs state it; empty where they do not."""
    mesh = _group_integers(_MESH.search(head))
    if mesh:
        shard, replicas = mesh.pop("shard"), mesh.pop("replicate")
        if shard < 1:
            world = _WORLD.search(head)
            other_ranks = mesh["pp"] * mesh["cp"] * mesh["tp"] * replicas
            if world is None or int(world[1]) % other_ranks:
                return {}
            shard = int(world[1]) // other_ranks
        return {**mesh, "dp": shard * replicas, **({"shard": shard} if replicas > 1 else {})}
    if match := _DEVICE_MESH.search(head):
        names = re.findall(r"\w+", match[1])
        sizes = [int(text) for text in re.findall(r"\d{1,9}", match[2])]
        split = dict.fromkeys(("tp", "pp", "cp", "dp"), 1)
        for name, size in zip(names, sizes, strict=False):
            if name in _DEGREES:
                split[_DEGREES[name]] *= size
        return split
    return {}


FORMAT = Format(NAME, "training log of torchtitan", _is_torchtitan_log, _read_torchtitan_log)
