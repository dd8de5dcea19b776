"""Logs, beyond the table of formats: engines' start-ups, training runs and MLPerf."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.importers.measurement import (
    Content,
    Draft,
    Fields,
    one_line,
    parse_number,
)

Rows = list[tuple[str, Mapping[str, Any]]]

# Start-ups of engines

_HALVES = re.compile(
    r"KV Cache is allocated\..{0,300}K size: ([\d.]{1,12}) GB, V size: ([\d.]{1,12}) GB"
)
_DP_ATTENTION = re.compile(r"\benable_dp_attention=True")
# Tokens of a block of vLLM where a release before 0.6 does not say.
USUAL_BLOCK = 16
FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
QUANTIZATIONS = {"fp8": "fp8", "mxfp4": "mxfp4"}


def finish_sglang_log(fields: Fields, draft: Draft) -> None:
    """A cache that is logged in halves, and the split of data-parallel attention."""
    head = str(fields.values["head"])
    if halves := _HALVES.findall(head):
        sizes_gib = [parse_number(keys) + parse_number(values) for keys, values in halves]
        draft.figures["kv_cache_bytes"] = min(sizes_gib) * GIB
    if _DP_ATTENTION.search(head):
        # its dp are ranks of attention inside tp, which share the experts: tp × dp ranks of ours
        inside, ranks = draft.split.get("dp", 1), draft.split.get("tp", 1)
        draft.split |= {"tp": max(ranks // inside, 1), "ep": ranks}


def finish_tensorrt_llm_log(_: Fields, draft: Draft) -> None:
    draft.facts["version"] = draft.facts.get("version", "").rstrip(".")
    if fraction := draft.split.get("memory_fraction"):
        draft.split["memory_fraction"] = round(fraction, 6)


def finish_vllm_log(_: Fields, draft: Draft) -> None:
    """Tokens of a cache that is logged in blocks, and the format of the weights."""
    draft.facts["version"] = draft.facts.get("version", "").rstrip(".")
    settings, blocks = draft.settings, draft.facts.pop("blocks", None)
    if blocks is not None:
        tokens = blocks * settings.get("block_size", USUAL_BLOCK)
        draft.figures.setdefault("kv_cache_tokens", tokens)
    stored, quantization = draft.facts.pop("dtype", ""), settings.get("quantization", "None")
    if quantization == "None":
        settings.pop("quantization", None)
        draft.put("settings.weight_dtype", FORMATS.get(stored))
    else:
        draft.put("settings.weight_dtype", QUANTIZATIONS.get(quantization))


# Training runs

# Logged intervals at the start that are left out, where others are left: compilation, caches.
WARM = 2


def _steady_median(values: Sequence[float]) -> float | None:
    """The median of the logged intervals after the first; None without any."""
    steady_values = values[WARM:] if len(values) > 2 * WARM else values[1:] or values
    return median(steady_values) if steady_values else None


def _devices_of_split(split: Mapping[str, Any]) -> int:
    product = 1
    for name in ("tp", "pp", "cp", "dp"):
        product *= int(split.get(name, 1))
    return product


_MEGATRON_STEP = re.compile(
    r"iteration\s{1,12}(?P<step>\d{1,12})/\s{0,12}\S{1,12} \|"
    r".{0,500}?elapsed time per iteration \(ms\): (?P<ms>[\d.]{1,20})"
    r"(?:.{0,500}?global batch size:\s{0,12}(?P<batch>\d{1,9}))?"
)
_ARGUMENT = re.compile(r"^\s*(?:\d+: *)?([a-z][a-z0-9_]{2,60}) \.{3,} (\S.*?)\s*$")
_MEGATRON_MEMORY = re.compile(r"max allocated: (\d{1,9}(?:\.\d{1,9})?)")


def read_megatron_steps(content: Content) -> Rows:
    """The table of arguments that the first rank prints, with the steps of the log.

    Raises:
        InputError: naming the line whose time is no number.
    """
    arguments: dict[str, Any] = {}
    for line in content.head.splitlines():
        if match := _ARGUMENT.match(line[:400]):
            name, text = match.groups()
            if text.isdecimal() and len(text) < 12:
                arguments[name] = int(text)
            elif text.isalpha() and (text != "None" or name == "recompute_granularity"):
                arguments[name] = text
    seconds: dict[int, float] = {}
    batch = None
    for number, line in enumerate(content.log, 1):
        if match := _MEGATRON_STEP.search(line[:4000]):
            seconds[int(match["step"])] = content.line_number(match["ms"], number, "file") / 1e3
            batch = int(match["batch"]) if match["batch"] else batch
    # MB of its memory report are MiB
    memory = [float(text) * (1 << 20) for text in _MEGATRON_MEMORY.findall(content.text)]
    steps = {"steps": [step for step in seconds.values() if step > 0], "memory": memory}
    return [("", {**arguments, **steps, "batch": batch, "arguments": bool(arguments)})]


def finish_megatron(fields: Fields, draft: Draft) -> None:
    """Time of a step, and what of the arguments a candidate states beside its degrees."""
    values, times = fields.values, fields.values["steps"]
    step, memory = _steady_median(times), max(fields.values["memory"], default=None)
    draft.put("figures.step_s", step)
    draft.put("figures.peak_memory_bytes", memory)
    load, split = draft.load, draft.split
    if step and len(load) == 2 and "dp" in split:
        tokens = load["global_batch"] * load["sequence_length"]
        draft.figures["tokens_per_s_per_gpu"] = tokens / (step * _devices_of_split(split))
    recompute = {"None": "none", "selective": "selective", "full": "full"}
    draft.put("split.recompute", recompute.get(values.get("recompute_granularity", "")))
    if fields.flag("use_distributed_optimizer"):
        split["zero_stage"] = 1
    if values.get("fp8", "False") != "False":
        split["precision"] = "fp8"
    elif fields.flag("fp16"):
        split["precision"] = "fp16"
    if not fields.flag("group_query_attention") and "heads" in draft.shape:
        draft.shape["kv_heads"] = draft.shape["heads"]
    draft.settings["steps"] = len(times)
    if not values["arguments"]:
        draft.notes.append("the log has no table of arguments")


_STEP = re.compile(r"step:\s{0,9}(\d{1,12})\s{1,9}loss:")
_STEP_FIGURES = {
    "rates": (re.compile(r"\btps: {0,9}([\d,.]{1,20})"), 1.0),
    "memory": (re.compile(r"memory: {0,9}([\d.]{1,12})GiB\("), GIB),
    "mfu": (re.compile(r"\bmfu: {0,9}([\d.]{1,12})%"), 0.01),
}
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
_GPU = re.compile(r"(?:CUDA|XPU|HIP|GPU) capacity: (?:\d{1,3} x )?(?P<device>.{2,60}?) with")
_MODEL = re.compile(r"Model (?P<model>\w{1,40} [\w.]{1,40}) size: [\d,]{1,30} total parameters")
_DEGREES = {"pp": "pp", "cp": "cp", "tp": "tp", "dp": "dp", "dp_shard": "dp", "dp_replicate": "dp"}


def read_torchtitan_steps(content: Content) -> Rows:
    """The batch, the mesh, and the steps of rank 0.

    Raises:
        InputError: naming the line whose figure is no number.
    """
    head = content.head
    row: dict[str, Any] = {"mesh": _torchtitan_mesh(head), **_group_integers(_BATCH.search(head))}
    for match in filter(None, (_GPU.search(head), _MODEL.search(head))):
        row |= match.groupdict()
    steps: dict[int, dict[str, float]] = {}
    for number, line in enumerate(content.log, 1):
        step = _STEP.search(line[:2000])
        if step is None or int(step[1]) in steps:
            continue
        matches = {name: of.search(line[:2000]) for name, (of, _) in _STEP_FIGURES.items()}
        if matches["rates"]:
            steps[int(step[1])] = {
                name: content.line_number(match[1], number, "file") * _STEP_FIGURES[name][1]
                for name, match in matches.items()
                if match
            }
    for name in _STEP_FIGURES:
        row[name] = [figures[name] for figures in steps.values() if figures.get(name, 0) > 0]
    return [("", row)]


def finish_torchtitan(fields: Fields, draft: Draft) -> None:
    values, load, split = fields.values, draft.load, draft.split
    rate = _steady_median(values["rates"])
    draft.put("figures.tokens_per_s_per_gpu", rate)
    draft.put("figures.mfu", _steady_median(values["mfu"]))
    draft.put("figures.peak_memory_bytes", max(values["memory"], default=None))
    draft.settings["steps"] = len(values["rates"])
    split |= values["mesh"]
    if not values["mesh"]:
        draft.notes.append("the log does not state the layout: state the devices")
    elif rate and len(load) == 2:
        tokens = load["global_batch"] * load["sequence_length"]
        draft.figures["step_s"] = tokens / (rate * _devices_of_split(split))


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
        sizes = [int(text) for text in re.findall(r"\d{1,9}", match[2])]
        split = dict.fromkeys(("tp", "pp", "cp", "dp"), 1)
        for name, size in zip(re.findall(r"\w+", match[1]), sizes, strict=False):
            if name in _DEGREES:
                split[_DEGREES[name]] *= size
        return split
    return {}


# MLPerf: neither its summary nor its detail says what ran where; lengths of answers follow from
# tokens and samples per second

_TITLED = re.compile(r"^\s*([^:=]{2,80}?)\s*:\s*(.+?)\s*$")


def read_titled_lines(content: Content) -> Rows:
    """The titled lines of a summary, the first of each: ``mean_latency_ns``."""
    row: dict[str, Any] = {}
    for line in content.log:
        if match := _TITLED.match(line[:400]):
            row.setdefault(
                re.sub(r"\W+", "_", match[1].casefold()).strip("_"), _parse_titled_value(match[2])
            )
    return [("", row)]


def _parse_titled_value(text: str) -> float | str:
    try:
        return parse_number(text)
    except ValueError:
        return text


def read_mlperf_events(content: Content) -> Rows:
    """The values of a log's events by their keys, the first of each, with its blocks and its end.

    Raises:
        InputError: naming the line whose event is no JSON, or counts no number.
    """
    row: dict[str, Any] = {"blocks": [], "status": ""}
    started: tuple[float, float] | None = None
    for number, line in enumerate(content.log, 1):
        event = _parse_event(line, content, number)
        key, metadata = event.get("key"), event.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        if key in ("block_start", "block_stop"):
            at = _parse_event_moment(event, metadata, content, number)
            if key == "block_start":
                started = at
            elif started is not None and at is not None:
                samples, seconds = at[0] - started[0], at[1] - started[1]
                row["blocks"] += [(samples, seconds)] if samples > 0 and seconds > 0 else []
                started = None
        elif key == "run_stop":
            row["status"] = one_line(str(metadata.get("status", "")))
        elif isinstance(key, str) and event.get("value") is not None:
            row.setdefault(key, event["value"])
    return [("", row)]


def _parse_event(line: str, content: Content, number: int) -> dict[str, Any]:
    """The event of a line of MLPerf's logs; empty for other lines."""
    _, sign, text = line.partition(":::MLLOG ")
    try:
        value = json.loads(text) if sign else None
    except (ValueError, RecursionError) as error:
        message = f"{content.name}, line {number}: its event is no JSON: {error}."
        raise InputError(message, field="file") from None
    return value if isinstance(value, dict) else {}


def _parse_event_moment(
    event: dict[str, Any], metadata: dict[str, Any], content: Content, number: int
) -> tuple[float, float] | None:
    """Samples so far, and the time in seconds; None where the event does not count samples."""
    samples, at = metadata.get("samples_count"), event.get("time_ms")
    for value in (samples, at):
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            message = f"{content.name}, line {number}: {value!r:.40} is not a number."
            raise InputError(message, field="file")
    return None if samples is None or at is None else (float(samples), float(at) / 1e3)


def finish_mlperf(fields: Fields, draft: Draft) -> None:
    """The load of a scenario, and why a run is not to be learned from."""
    scenario_text = fields.text("scenario") or fields.text("effective_scenario")
    scenario = scenario_text.casefold().replace(" ", "")
    rate, tokens = (draft.figures.get(name) for name in ("requests_per_s", "output_tokens_per_s"))
    numbers = {
        name: fields.number(name) or fields.number(f"effective_{name}")
        for name in ("samples_per_query", "min_query_count", "target_qps")
    }
    if scenario == "offline":
        draft.load["mode"] = "offline"
        samples = numbers["samples_per_query"]
        count = samples if samples and samples > 1 else numbers["min_query_count"]
        draft.put("load.requests", round(count) if count else None)
    elif scenario in ("server", "interactive"):
        draft.load["mode"] = "open"
        draft.put("load.request_rate", numbers["target_qps"] or rate)
    elif scenario == "singlestream":
        draft.load |= {"mode": "closed", "concurrency": 1}
    if rate and tokens:
        draft.load["output_tokens"] = max(round(tokens / rate), 1)
    draft.notes.append(
        f"scenario {scenario_text or 'unstated'}; prompts' lengths are the data set's"
    )
    result = fields.text("result_is") or fields.text("result_validity")
    if result.upper().startswith("INVALID"):
        draft.exclude("MLPerf calls the result invalid")
    if "accuracy" in fields.text("mode").casefold():
        draft.exclude("an accuracy run, whose speed says nothing")


def finish_mlperf_training(fields: Fields, draft: Draft) -> None:
    blocks, batch = fields.values["blocks"], draft.load.get("global_batch")
    step = _steady_median(
        [seconds * batch / samples for samples, seconds in blocks] if batch else []
    )
    draft.put("figures.step_s", step)
    draft.settings["blocks"] = len(blocks)
    if not blocks:
        draft.notes.append("no training block ended in the log")
    if (status := fields.values["status"]) not in ("", "success"):
        draft.exclude(f"the run ended with status {status}")
