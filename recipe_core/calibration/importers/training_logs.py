"""Training logs of Megatron-LM: a line a logged interval, after a table of all arguments.

Lines as in Megatron-LM core 0.5 to 0.14 (``megatron/training/training.py``); Megatron-DeepSpeed and
NeMo's Megatron print the same. MB of its memory report are MiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.importers.measurement import (
    Content,
    Format,
    Imported,
    drop_unstated,
    one_line,
    parse_number,
)

# Logged intervals at the start that are left out, where others are left: compilation, caches.
WARM = 2


def steady_median(values: Sequence[float]) -> float | None:
    """The median of the logged intervals after the first; None without any."""
    steady_values = values[WARM:] if len(values) > 2 * WARM else values[1:] or values
    return median(steady_values) if steady_values else None


def devices_of_split(split: Mapping[str, Any]) -> int:
    """Devices of a split: its degrees multiplied."""
    product = 1
    for name in ("tp", "pp", "cp", "dp"):
        product *= int(split.get(name, 1))
    return product


MEGATRON_NAME = "megatron"
_MEGATRON_STEP = re.compile(
    r"iteration\s{1,12}(?P<step>\d{1,12})/\s{0,12}\S{1,12} \|"
    r".{0,500}?elapsed time per iteration \(ms\): (?P<ms>[\d.]{1,20})"
    r"(?:.{0,500}?global batch size:\s{0,12}(?P<batch>\d{1,9}))?"
)
_ARGUMENT = re.compile(r"^\s*(?:\d+: *)?([a-z][a-z0-9_]{2,60}) \.{3,} (\S.*?)\s*$")
_MEGATRON_MEMORY = re.compile(r"max allocated: (\d{1,9}(?:\.\d{1,9})?)")
DEGREES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "data_parallel_size": "dp",
    "micro_batch_size": "micro_batch",
    "virtual_pipeline_model_parallel_size": "virtual_stages",
}
SHAPE = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_query_groups": "kv_heads",
    "ffn_hidden_size": "ffn",
    "padded_vocab_size": "vocabulary",
}


def _is_megatron_log(content: Content) -> bool:
    return _MEGATRON_STEP.search(content.head) is not None


def _read_megatron_log(content: Content) -> list[Imported]:
    times, batch = _read_megatron_steps(content)
    arguments = _read_argument_table(content)
    split: dict[str, Any] = _positive_arguments(arguments, DEGREES)
    load = _positive_arguments(arguments, {"seq_length": "sequence_length"})
    batch = batch or _positive_arguments(arguments, {"global_batch_size": "batch"}).get("batch")
    step = steady_median(times)
    memory = [float(text) * (1 << 20) for text in _MEGATRON_MEMORY.findall(content.text)]
    figures = drop_unstated(step_s=step, peak_memory_bytes=max(memory, default=None))
    load |= drop_unstated(global_batch=batch)
    if step and batch and "sequence_length" in load and "dp" in split:
        tokens = batch * load["sequence_length"]
        figures["tokens_per_s_per_gpu"] = tokens / (step * devices_of_split(split))
    return [
        Imported(
            format=MEGATRON_NAME,
            kind="training",
            engine="megatron",
            figures=figures,
            load=load,
            split=split | _megatron_settings(arguments),
            shape=_megatron_shape(arguments),
            settings={"steps": len(times)},
            notes=() if arguments else ("the log has no table of arguments",),
        )
    ]


def _read_megatron_steps(content: Content) -> tuple[list[float], int | None]:
    """Seconds by logged interval, and the batch of the last."""
    times: dict[int, float] = {}
    batch = None
    for number, line in enumerate(content.log, 1):
        match = _MEGATRON_STEP.search(line[:4000])
        if match is None:
            continue
        try:
            times[int(match["step"])] = parse_number(match["ms"]) / 1e3
        except ValueError as error:
            raise InputError(f"{content.name}, line {number}: {error}.", field="file") from None
        batch = int(match["batch"]) if match["batch"] else batch
    return [seconds for seconds in times.values() if seconds > 0], batch


def _read_argument_table(content: Content) -> dict[str, str]:
    """The table of arguments that the first rank prints."""
    matches = (_ARGUMENT.match(line[:400]) for line in content.head.splitlines())
    return {match[1]: match[2] for match in matches if match}


def _positive_arguments(arguments: dict[str, str], names: dict[str, str]) -> dict[str, int]:
    values = {ours: arguments.get(theirs, "") for theirs, ours in names.items()}
    digits = {name: text for name, text in values.items() if text.isdecimal() and len(text) < 12}
    return {name: int(text) for name, text in digits.items() if int(text) > 0}


def _megatron_settings(arguments: dict[str, str]) -> dict[str, Any]:
    """What of the arguments a candidate states beside its degrees."""
    recompute = {"None": "none", "selective": "selective", "full": "full"}
    flags = {"sequence_parallel": arguments.get("sequence_parallel")}
    out: dict[str, Any] = {name: text == "True" for name, text in flags.items() if text}
    if (recomputation := recompute.get(arguments.get("recompute_granularity", ""))) is not None:
        out["recompute"] = recomputation
    if arguments.get("use_distributed_optimizer") == "True":
        out["zero_stage"] = 1
    if arguments.get("fp8", "None") not in ("None", "False"):
        out["precision"] = "fp8"
    elif arguments.get("fp16") == "True":
        out["precision"] = "fp16"
    return out


def _megatron_shape(arguments: dict[str, str]) -> dict[str, Any]:
    shape: dict[str, Any] = _positive_arguments(arguments, SHAPE)
    if arguments.get("group_query_attention") != "True" and "heads" in shape:
        shape["kv_heads"] = shape["heads"]
    if "swiglu" in arguments:
        shape["gated"] = arguments["swiglu"] == "True"
    untied = arguments.get("untie_embeddings_and_output_weights")
    return shape | drop_unstated(tied=None if untied is None else untied != "True")


MEGATRON_LOG = Format(
    MEGATRON_NAME, "training log of Megatron-LM", _is_megatron_log, _read_megatron_log
)


TORCHTITAN_NAME = "torchtitan"
_TORCHTITAN_STEP = re.compile(r"step:\s{0,9}(\d{1,12})\s{1,9}loss:")
_RATE = re.compile(r"\btps: {0,9}([\d,.]{1,20})")
_TORCHTITAN_MEMORY = re.compile(r"memory: {0,9}([\d.]{1,12})GiB\(")
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
    return (
        _TORCHTITAN_STEP.search(content.head) is not None and _RATE.search(content.head) is not None
    )


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
            format=TORCHTITAN_NAME,
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
        match, rate = _TORCHTITAN_STEP.search(line[:2000]), _RATE.search(line[:2000])
        if match is None or rate is None or int(match[1]) in rates:
            continue
        step, memory_match, mfu_match = (
            int(match[1]),
            _TORCHTITAN_MEMORY.search(line[:2000]),
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


TORCHTITAN_LOG = Format(
    TORCHTITAN_NAME, "training log of torchtitan", _is_torchtitan_log, _read_torchtitan_log
)
