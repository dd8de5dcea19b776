"""Training logs of Megatron-LM: a line a logged interval, after a table of all arguments.

Lines as in Megatron-LM core 0.5 to 0.14 (``megatron/training/training.py``); Megatron-DeepSpeed and
NeMo's Megatron print the same. MB of its memory report are MiB.
"""

from __future__ import annotations

import re
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.calibration.importers.content import Content, parse_number
from recipe_core.calibration.importers.formats import Format
from recipe_core.calibration.importers.imported import Imported, drop_unstated
from recipe_core.calibration.importers.training_steps import devices_of_split, steady_median

NAME = "megatron"
_STEP = re.compile(
    r"iteration\s{1,12}(?P<step>\d{1,12})/\s{0,12}\S{1,12} \|"
    r".{0,500}?elapsed time per iteration \(ms\): (?P<ms>[\d.]{1,20})"
    r"(?:.{0,500}?global batch size:\s{0,12}(?P<batch>\d{1,9}))?"
)
_ARGUMENT = re.compile(r"^\s*(?:\d+: *)?([a-z][a-z0-9_]{2,60}) \.{3,} (\S.*?)\s*$")
_MEMORY = re.compile(r"max allocated: (\d{1,9}(?:\.\d{1,9})?)")
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
    return _STEP.search(content.head) is not None


def _read_megatron_log(content: Content) -> list[Imported]:
    times, batch = _read_megatron_steps(content)
    arguments = _read_argument_table(content)
    split: dict[str, Any] = _positive_arguments(arguments, DEGREES)
    load = _positive_arguments(arguments, {"seq_length": "sequence_length"})
    batch = batch or _positive_arguments(arguments, {"global_batch_size": "batch"}).get("batch")
    step = steady_median(times)
    memory = [float(text) * (1 << 20) for text in _MEMORY.findall(content.text)]
    figures = drop_unstated(step_s=step, peak_memory_bytes=max(memory, default=None))
    load |= drop_unstated(global_batch=batch)
    if step and batch and "sequence_length" in load and "dp" in split:
        tokens = batch * load["sequence_length"]
        figures["tokens_per_s_per_gpu"] = tokens / (step * devices_of_split(split))
    return [
        Imported(
            format=NAME,
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
        match = _STEP.search(line[:4000])
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


FORMAT = Format(NAME, "training log of Megatron-LM", _is_megatron_log, _read_megatron_log)
