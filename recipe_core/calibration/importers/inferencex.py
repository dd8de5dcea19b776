"""Result files of InferenceX (InferenceMAX before): one object a run, or a list of them.

Keys as ``utils/process_result.py`` of that project writes them: ``hw``, ``framework``, ``tp``,
``conc``, ``isl``, ``osl``, times in seconds, throughput by GPU. It counts GPUs in ``tp``: with
attention by data parallelism, every GPU is a rank of it and the experts are shared by all.
"""

from __future__ import annotations

from typing import Any

from recipe_core.calibration.importers.bench_clients import day_of_timestamp
from recipe_core.calibration.importers.measurement import (
    Content,
    Fields,
    Format,
    Imported,
    drop_unstated,
)

NAME = "inferencex"
SIGNS = ("tput_per_gpu", "isl", "osl", "conc")
# Its names of devices where they are not ours; a suffix names the cluster (``h200-cw``).
DEVICES = {
    "a100": "a100-sxm-80gb",
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
}
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "tensorrt-llm", "trtllm": "tensorrt-llm"}
PRECISIONS = {"fp8": "fp8", "bf16": "bf16", "fp16": "fp16", "int8": "int8", "int4": "int4"}
TIMES = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "request_latency_s"}
# GPUs of its machines but racks.
PER_NODE = 8
RACKS = ("gb200", "gb300")


def _is_inferencex_result(content: Content) -> bool:
    if not content.text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return False
    return any(all(sign in values for sign in SIGNS) for _, values in content.records[:1])


def _read_inferencex_results(content: Content) -> list[Imported]:
    return [
        _parse_inferencex_run(content.fields(values, place), place)
        for place, values in content.records
    ]


def _parse_inferencex_run(fields: Fields, place: str) -> Imported:
    stages = fields.count("pp") or 1
    gpus = (fields.count("tp") or 1) * stages
    split, problem = _inferencex_split(fields, gpus, stages)
    framework = fields.text("framework").casefold()
    figures: dict[str, float | None] = {}
    for key, figure in TIMES.items():
        figures[figure] = fields.number(f"mean_{key}")
        for name, percentile in (("median", "p50"), ("p90", "p90"), ("p99", "p99")):
            figure_name = f"{figure.removesuffix('_s')}_{percentile}_s"
            figures[figure_name] = fields.number(f"{name}_{key}")
    for key, figure in (("output_tput_per_gpu", "output"), ("tput_per_gpu", "total")):
        rate = fields.number(key)
        figures[f"{figure}_tokens_per_s"] = None if rate is None else rate * gpus
    load = drop_unstated(
        mode="closed",
        concurrency=fields.count("conc"),
        input_tokens=fields.count("isl"),
        output_tokens=fields.count("osl"),
    )
    return Imported(
        format=NAME,
        place=place,
        engine=ENGINES.get(framework, framework),
        version=fields.text("image"),
        model=fields.text("model"),
        device=_inferencex_device(fields),
        date=day_of_timestamp(fields.text("date")),
        figures={name: value for name, value in figures.items() if value is not None},
        load=load,
        split=split,
        settings=drop_unstated(precision=fields.text("precision")),
        notes=("lengths are those that were asked for; it draws them from 80 to 100 % of that",),
        excluded=problem,
    )


def _inferencex_device(fields: Fields) -> str:
    name = (fields.text("hw") or fields.text("device")).casefold().partition("-")[0]
    return DEVICES.get(name, name)


def _inferencex_split(fields: Fields, gpus: int, stages: int) -> tuple[dict[str, Any], str]:
    """The split, and why a table cannot hold the run; empty where it can."""
    if fields.flag("disagg"):
        return {}, "prompts have devices of their own, which a table does not state"
    drafts = fields.text("spec_decoding").casefold()
    problem = ""
    if fields.flag("spec_decoding") or drafts not in ("", "none", "false"):
        problem = "speculative decoding, whose acceptance a table does not state"
    ep = fields.count("ep") or 1
    inside = gpus // stages
    ranks = {"tp": inside, "pp": stages, "dp": 1, "ep": inside if ep > 1 else 1}
    if fields.flag("dp_attention"):
        ranks = {"tp": 1, "pp": stages, "dp": inside, "ep": inside}
    if ep not in (1, inside):
        problem = problem or f"experts are shared by {ep} of {inside} ranks"
    gpus_per_node = 4 if _inferencex_device(fields) in RACKS else PER_NODE
    per_node = min(gpus, gpus_per_node)
    weights = PRECISIONS.get(fields.text("precision").casefold())
    place = {"per_node": per_node, "nodes": max(gpus // per_node, 1)}
    return {**drop_unstated(weight_dtype=weights), **ranks, **place}, problem


FORMAT = Format(NAME, "InferenceX result files", _is_inferencex_result, _read_inferencex_results)
