"""Results of ``python -m sglang.bench_serving``: a line of JSON a run, in a file that grows.

Keys as in SGLang 0.5, ``python/sglang/bench_serving.py``. Where the client asked the server for its
state (``server_info``), its arguments and memory are there too.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.units import GIB
from recipe_core.calibration.importers.bench_clients import (
    DRAFTED,
    client_figures,
    client_load,
    completed_requests,
    failed_requests_reason,
)
from recipe_core.calibration.importers.content import Content, Fields
from recipe_core.calibration.importers.formats import Format
from recipe_core.calibration.importers.imported import Imported, drop_unstated

NAME = "sglang-bench"
SIGNS = ("total_output_tokens_retokenized", "mean_e2e_latency_ms")
# Engines by the start of the client's backend.
ENGINES = {"sglang": "sglang", "vllm": "vllm", "trt": "tensorrt-llm"}
DEGREES = {"tp_size": "tp", "pp_size": "pp", "dp_size": "dp", "ep_size": "ep"}


def _is_sglang_bench(content: Content) -> bool:
    if not content.text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return False
    return any(all(sign in values for sign in SIGNS) for _, values in content.records[:1])


def _read_sglang_bench(content: Content) -> list[Imported]:
    return [
        _parse_sglang_bench_run(content.fields(values, place), place)
        for place, values in content.records
    ]


def _parse_sglang_bench_run(fields: Fields, place: str) -> Imported:
    requests = completed_requests(fields)
    server = fields.inside("server_info")
    figures = client_figures(fields, "e2e_latency") | server_memory(server)
    load, notes, excluded = client_load(fields, figures, requests)
    drafted = fields.number("accept_length")
    if drafted is not None and drafted > 1:
        excluded = excluded or DRAFTED
    return Imported(
        format=NAME,
        place=place,
        engine=engine_of_backend(fields),
        version=server.text("version"),
        model=fields.text("model_id") or server.text("model_path"),
        figures=figures,
        load=load,
        split=server_split(server),
        settings={"requests": requests} | server_settings(server),
        notes=notes,
        excluded=failed_requests_reason(fields, requests) or excluded,
    )


def engine_of_backend(fields: Fields) -> str:
    """The engine that a client was told of as its backend; empty where it was not."""
    backend = fields.text("backend")
    return next((name for start, name in ENGINES.items() if backend.startswith(start)), "")


def server_split(server: Fields) -> dict[str, Any]:
    """The split that a server's arguments state."""
    split = {ours: server.count(theirs) for theirs, ours in DEGREES.items()}
    if server.flag("enable_dp_attention"):
        # ranks of data-parallel attention inside tp, whose experts are shared by tp × dp of ours
        dp, tp = split["dp"] or 1, split["tp"] or 1
        split |= {"tp": max(tp // dp, 1), "ep": tp}
    fraction = server.number("mem_fraction_static")
    return drop_unstated(
        **split, max_num_seqs=server.count("max_running_requests"), memory_fraction=fraction
    )


def server_settings(server: Fields) -> dict[str, Any]:
    """Other arguments of a server that its estimate depends on."""
    cached = server.flag("disable_radix_cache")
    return drop_unstated(
        max_context=server.count("context_length"),
        max_batched_tokens=server.count("chunked_prefill_size"),
        quantization=server.text("quantization"),
        kv_cache_dtype=server.text("kv_cache_dtype"),
        prefix_caching=None if cached is None else not cached,
    )


def server_memory(server: Fields) -> dict[str, float]:
    """What a server says of its memory, in bytes and tokens."""
    out: dict[str, float | None] = {"kv_cache_tokens": server.number("max_total_num_tokens")}
    for state in server.list("internal_states"):
        usage = state.inside("memory_usage")
        out["weights_bytes"] = usage.number("weight", GIB)
        out["kv_cache_bytes"] = usage.number("kvcache", GIB)
        out["graph_bytes"] = usage.number("cuda_graph", GIB) or usage.number("graph", GIB)
        out["kv_cache_tokens"] = out["kv_cache_tokens"] or usage.number("token_capacity")
    return {name: value for name, value in out.items() if value is not None}


FORMAT = Format(NAME, "sglang.bench_serving", _is_sglang_bench, _read_sglang_bench)
