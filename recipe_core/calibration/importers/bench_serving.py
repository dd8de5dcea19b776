"""Results of ``vllm bench serve`` (``benchmark_serving.py`` before): a JSON document a run.

Keys as in vLLM 0.32.0, ``vllm/benchmarks/serve.py``; with ``--append-result`` a line a run. Its
``backend`` is the client's protocol, so that the engine stays unstated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.importers.bench_clients import (
    DRAFTED,
    client_figures,
    client_load,
    completed_requests,
    day_of_timestamp,
    failed_requests_reason,
    mean_lengths,
)
from recipe_core.calibration.importers.measurement import (
    LONGEST_LINE,
    Content,
    Fields,
    Format,
    Imported,
    drop_unstated,
    one_line,
    parse_number,
)

SGLANG_BENCH_NAME = "sglang-bench"
SGLANG_BENCH_SIGNS = ("total_output_tokens_retokenized", "mean_e2e_latency_ms")
# Engines by the start of the client's backend.
ENGINES = {"sglang": "sglang", "vllm": "vllm", "trt": "tensorrt-llm"}
DEGREES = {"tp_size": "tp", "pp_size": "pp", "dp_size": "dp", "ep_size": "ep"}


def _is_sglang_bench(content: Content) -> bool:
    if not content.text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return False
    return any(
        all(sign in values for sign in SGLANG_BENCH_SIGNS) for _, values in content.records[:1]
    )


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
        format=SGLANG_BENCH_NAME,
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


SGLANG_BENCH = Format(
    SGLANG_BENCH_NAME, "sglang.bench_serving", _is_sglang_bench, _read_sglang_bench
)


VLLM_BENCH_NAME = "vllm-bench"
VLLM_BENCH_SIGNS = ("completed", "total_token_throughput", "request_throughput")


def _is_vllm_bench(content: Content) -> bool:
    if not content.text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return False
    return any(
        all(sign in values for sign in VLLM_BENCH_SIGNS) for _, values in content.records[:1]
    )


def _read_vllm_bench(content: Content) -> list[Imported]:
    return [
        _parse_vllm_bench_run(content.fields(values, place), place)
        for place, values in content.records
    ]


def _parse_vllm_bench_run(fields: Fields, place: str) -> Imported:
    requests = completed_requests(fields)
    figures = client_figures(fields, "e2el")
    load, notes, excluded = client_load(fields, figures, requests)
    return Imported(
        format=VLLM_BENCH_NAME,
        place=place,
        model=fields.text("model_id"),
        date=day_of_timestamp(fields.text("date")),
        figures=figures,
        load=load,
        settings={"requests": requests},
        notes=notes,
        excluded=failed_requests_reason(fields, requests) or excluded,
    )


VLLM_BENCH = Format(VLLM_BENCH_NAME, "vllm bench serve", _is_vllm_bench, _read_vllm_bench)


BENCH_TEXT_NAME = "bench-text"
_TITLE = re.compile(r"={4,} Serving Benchmark Result ={4,}")
_END = re.compile(r"={20,}")
# Printed labels, and the keys of the same in files of results.
_FIELDS = {
    "successful requests": "completed",
    "failed requests": "failed",
    "backend": "backend",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "traffic request rate": "request_rate",
    "request rate configured (rps)": "request_rate",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "total token throughput (tok/s)": "total_token_throughput",
    "acceptance length": "accept_length",
    "accept length": "accept_length",
}
_SENT = ("max_concurrency", "request_rate")
_TIME = re.compile(r"(mean|median|p\d{1,2}) (ttft|tpot|e2el|e2e latency) \(ms\)")
_ARGUMENT = re.compile(r"\b(model|max_concurrency|request_rate)=(?:'([^']{1,200})'|([\w.]{1,40}))")
_WORDS = ("inf", "not set", "none")


def _is_bench_text(content: Content) -> bool:
    return _TITLE.search(content.head) is not None


def _read_bench_text(content: Content) -> list[Imported]:
    blocks = list(_iter_result_blocks(content))
    several = len(blocks) > 1
    return [
        _parse_result_block(content, n if several else 0, block)
        for n, block in enumerate(blocks, 1)
    ]


def _iter_result_blocks(content: Content) -> Iterator[dict[str, Any]]:
    """The values of each block, with what stands before it of how requests were sent."""
    values: dict[str, Any] = {}
    inside = False
    for number, line in enumerate(content.log, 1):
        text = line[:LONGEST_LINE].strip()
        if _TITLE.search(text):
            if inside:
                yield values
                values = {}
            inside = True
        elif inside and _END.fullmatch(text):
            yield values
            values, inside = {}, False
        elif inside or ":" in text[:60]:
            name, value = _parse_result_line(text, content, number)
            if name and (inside or name in _SENT):
                values[name] = value
        if not inside and "Namespace(" in text:
            values |= {
                match[1]: _parse_argument(match[2] or match[3])
                for match in _ARGUMENT.finditer(text)
            }
    if inside:
        yield values


def _parse_result_line(text: str, content: Content, number: int) -> tuple[str, Any]:
    """A line's key and value; no key for a line of other things."""
    label, colon, value = (part.strip() for part in text.partition(":"))
    time = _TIME.fullmatch(label.casefold())
    name = _FIELDS.get(label.casefold(), "")
    if time is not None:
        name = f"{time[1]}_{time[2].replace(' ', '_')}_ms"
    if not name or not colon:
        return "", None
    if name == "backend" or value.casefold() in _WORDS:
        return name, _parse_argument(value)
    try:
        return name, parse_number(value)
    except ValueError as error:
        raise InputError(f"{content.name}, line {number}: {label}: {error}.", field=name) from None


def _parse_argument(text: str) -> Any:
    """An argument's value: a number, a text, or None where it is not set."""
    if text.casefold() in ("none", "not set"):
        return None
    try:
        return parse_number(text)
    except ValueError:
        return text


def _parse_result_block(content: Content, number: int, values: dict[str, Any]) -> Imported:
    place = f"result {number}" if number else ""
    fields = content.fields(values, place)
    requests = completed_requests(fields)
    latency = "e2e_latency" if "mean_e2e_latency_ms" in values else "e2el"
    figures = client_figures(fields, latency)
    # releases that print failed requests print in the block how all were sent
    if values.keys() & {*_SENT, "failed"}:
        load, notes, excluded = client_load(fields, figures, requests)
    else:
        load, notes, excluded = mean_lengths(fields, requests), (), ""
    if (fields.number("accept_length") or 0.0) > 1:
        excluded = excluded or DRAFTED
    return Imported(
        format=BENCH_TEXT_NAME,
        place=place,
        engine=engine_of_backend(fields),
        model=one_line(str(values.get("model") or "")),
        figures=figures,
        load=load,
        settings={"requests": requests},
        notes=notes,
        excluded=failed_requests_reason(fields, requests) or excluded,
    )


BENCH_TEXT = Format(
    BENCH_TEXT_NAME, "printed result of vllm bench serve", _is_bench_text, _read_bench_text
)
