"""Benchmark clients, beyond the table of formats: loads, splits, printed results and CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.importers.measurement import (
    LONGEST_LINE,
    Content,
    Draft,
    Fields,
    parse_number,
)

# Share of the limit on requests in flight from which a run with a rate too was at that limit.
FULL = 0.9
# Share of the sent rate below which a server did not keep up, and no state was steady.
KEPT_UP = 0.75
# Why a run with drafts is not to be learned from.
DRAFTED = "speculative decoding, whose acceptance a table does not state"
# Engines by the start of a client's backend or a framework's name.
ENGINES = {"sglang": "sglang", "vllm": "vllm", "trt": "tensorrt-llm"}


def _put_closed_loop(draft: Draft, concurrency: int, requests: int) -> None:
    """A closed loop; with fewer than two rounds of requests most of it was no steady state."""
    draft.load |= {"mode": "closed", "concurrency": concurrency}
    if requests < 2 * concurrency:
        draft.notes.append(f"{requests} requests, {concurrency} at once: start and end weigh much")


def _exclude_failed(draft: Draft, failed: int, requests: int) -> None:
    if failed > 0.01 * requests:
        draft.exclude(f"{failed} of {failed + requests} requests failed")


def _rename_engine(draft: Draft) -> None:
    """The engine that a client was told of as its backend; none where it was not."""
    name = str(draft.facts.get("engine", ""))
    draft.facts["engine"] = next(
        (ENGINES[start] for start in ENGINES if name.startswith(start)), ""
    )


# vllm bench serve and sglang.bench_serving


def finish_bench(fields: Fields, draft: Draft, *, with_load: bool = True) -> None:
    """Requests and load of a run, and why it is not to be learned from.

    Raises:
        InputError: for a run without a completed request.
    """
    requests = fields.count("completed")
    if requests is None:
        raise InputError(
            f"{fields.place}: completed no request.",
            field="completed",
            hint="Look at the errors of the run; nothing was measured.",
        )
    draft.settings["requests"] = requests
    _rename_engine(draft)
    for name in ("input_tokens", "output_tokens"):
        total = fields.number(f"total_{name}")
        draft.put(f"load.{name}", None if total is None else max(round(total / requests), 1))
    _exclude_failed(draft, fields.count("failed") or 0, requests)
    if with_load:
        _put_client_load(fields, draft, requests)
    if (fields.number("accept_length") or 0.0) > 1:
        draft.exclude(DRAFTED)


def finish_printed_bench(fields: Fields, draft: Draft) -> None:
    # releases that print failed requests print in the block how all were sent
    finish_bench(fields, draft, with_load=bool(fields.values.keys() & {*_SENT, "failed"}))


def _sent_rate(fields: Fields) -> float | None:
    """The rate at which requests were sent, per second; None where all were sent at once."""
    rate = fields.values.get("request_rate")
    if isinstance(rate, str) and rate.casefold() in ("inf", "infinity"):
        return None
    if isinstance(rate, float) and math.isinf(rate) and rate > 0:
        return None
    return fields.number("request_rate")


def _put_client_load(fields: Fields, draft: Draft, requests: int) -> None:
    """Put how requests were sent; the figures tell how many were in flight (Little's law)."""
    limit, rate = fields.count("max_concurrency"), _sent_rate(fields)
    done, latency = (draft.figures.get(name) for name in ("requests_per_s", "request_latency_s"))
    if rate is None:
        if limit is None:
            draft.load |= {"mode": "offline", "requests": requests}
        else:
            _put_closed_loop(draft, min(limit, requests), requests)
    elif limit is not None and done and latency and done * latency >= FULL * limit:
        draft.notes.append(f"sent at {rate:g} requests a second, but held back at {limit} at once")
        _put_closed_loop(draft, limit, requests)
    else:
        draft.load |= {"mode": "open", "request_rate": rate}
        if done is not None and done < KEPT_UP * rate:
            draft.exclude(f"only {done:.3g} of {rate:g} requests a second were served")


def finish_sglang_bench(fields: Fields, draft: Draft) -> None:
    """The load of a run, and what its server says of its split and memory."""
    finish_bench(fields, draft)
    split, server = draft.split, fields.inside("server_info")
    if server.flag("enable_dp_attention"):
        # ranks of data-parallel attention inside tp, whose experts are shared by tp × dp of ours
        dp, tp = split.get("dp", 1), split.get("tp", 1)
        split |= {"tp": max(tp // dp, 1), "ep": tp}
    for state in server.list("internal_states"):
        draft.put("figures.weights_bytes", state.number("memory_usage.weight", GIB))
        draft.put("figures.kv_cache_bytes", state.number("memory_usage.kvcache", GIB))
        graphs = [state.number(f"memory_usage.{name}", GIB) for name in ("cuda_graph", "graph")]
        draft.put("figures.graph_bytes", graphs[0] or graphs[1])
        tokens = state.number("memory_usage.token_capacity")
        if tokens is not None:
            draft.figures.setdefault("kv_cache_tokens", tokens)


# What vllm bench serve prints

_TITLE = re.compile(r"={4,} Serving Benchmark Result ={4,}")
_END = re.compile(r"={20,}")
# Printed labels, and the keys of the same in files of results.
_LABELS = {
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


def read_printed_results(content: Content) -> list[tuple[str, Mapping[str, Any]]]:
    """The values of each printed block, by the keys of files of results.

    Raises:
        InputError: naming the line whose figure is no number.
    """
    blocks = list(_iter_result_blocks(content))
    several = len(blocks) > 1
    return [(f"result {n}" if several else "", block) for n, block in enumerate(blocks, 1)]


def _iter_result_blocks(content: Content) -> Iterator[dict[str, Any]]:
    """The values of each block, with what stands before it of how requests were sent."""
    values: dict[str, Any] = {}
    inside = False
    for number, line in enumerate(content.log, 1):
        text = line[:LONGEST_LINE].strip()
        starts = _TITLE.search(text) is not None
        if inside and (starts or _END.fullmatch(text)):
            yield values
            values, inside = {}, False
        if starts:
            inside = True
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
    name = _LABELS.get(label.casefold(), "")
    if time is not None:
        name = f"{time[1]}_{time[2].replace(' ', '_')}_ms"
    if not name or not colon:
        return "", None
    if name == "backend" or value.casefold() in _WORDS:
        return name, _parse_argument(value)
    return name, content.line_number(value, number, label, name)


def _parse_argument(text: str) -> Any:
    """An argument's value: a number, a text, or None where it is not set."""
    if text.casefold() in ("none", "not set"):
        return None
    try:
        return parse_number(text)
    except ValueError:
        return text


# guidellm


def finish_guidellm(run: Fields, draft: Draft) -> None:
    """Requests as newer and older reports count them, and the load of a benchmark's strategy."""
    places = (
        "metrics.request_totals",
        "scheduler_metrics.requests_made",
        "run_stats.requests_made",
    )
    counts = next((fields for fields in map(run.inside, places) if fields.values), run)
    requests, failed = (counts.count(name) or 0 for name in ("successful", "errored"))
    draft.settings["requests"] = requests
    if not requests:
        draft.exclude("no request was successful")
    _exclude_failed(draft, failed, requests)
    strategy = run.inside("config.strategy")
    strategy = strategy if strategy.values else run.inside("args.strategy")
    kind = strategy.text("type_") or strategy.text("kind")
    rate, limit = strategy.number("rate"), strategy.count("max_concurrency")
    if kind == "synchronous":
        _put_closed_loop(draft, 1, requests)
    elif kind == "concurrent" and (streams := strategy.count("streams") or limit) is not None:
        _put_closed_loop(draft, streams, requests)
    elif kind == "throughput" and requests:
        if limit is not None and limit < requests:
            _put_closed_loop(draft, limit, requests)
        else:
            draft.load |= {"mode": "offline", "requests": requests}
    elif kind in ("constant", "poisson", "async") and rate is not None:
        draft.load |= {"mode": "open", "request_rate": rate}
    else:
        draft.notes.append(f"its strategy {kind or 'is unstated and'} is no load of ours")


# aiperf and genai-perf


def finish_aiperf(fields: Fields, draft: Draft) -> None:
    """Model and load of a configuration: of aiperf, or of genai-perf, its predecessor."""
    config, requests = fields.inside("input_config"), draft.settings.get("requests", 0)
    if not fields.values.keys() & {"aiperf_version", "schema_version"}:
        draft.format = "genai-perf"
    failed = fields.count("error_request_count.avg") or 0
    if failed > 0.01 * requests:
        draft.exclude(f"{failed} requests failed")
    draft.put("model", _aiperf_model(config))
    places = [config.inside("loadgen"), config.inside("perf_analyzer.stimulus"), config]
    places += [phase for phase in config.list("phases") if phase.text("name") != "warmup"]
    for place in places:
        rate = place.number("request_rate") or place.number("rate")
        concurrency = place.count("concurrency")
        if rate is not None:
            draft.load |= {"mode": "open", "request_rate": rate}
            return
        if concurrency is not None:
            _put_closed_loop(draft, concurrency, requests)
            return
    draft.notes.append("the load is not stated")


def _aiperf_model(config: Fields) -> str:
    for place in (config, config.inside("endpoint"), config.inside("models")):
        for key in ("model_names", "model", "items"):
            names = place.values.get(key)
            first = names[0] if isinstance(names, list) and names else names
            entry = first if isinstance(first, Mapping) else {"name": first}
            if isinstance(entry.get("name"), str):
                return Fields(entry, place.place).text("name")
    return ""


METRICS = (
    "time_to_first_token",
    "inter_token_latency",
    "request_latency",
    "output_token_throughput",
    "total_token_throughput",
    "request_throughput",
    "input_sequence_length",
    "output_sequence_length",
)
STATISTICS = ("avg", "p50", "p90", "p95", "p99")


def read_metric_tables(content: Content) -> list[tuple[str, Mapping[str, Any]]]:
    """The metrics of a CSV by the names that they have in JSON.

    Raises:
        InputError: naming the row whose figure is no number.
    """
    head: list[str] = []
    metrics: dict[str, Any] = {}
    for number, row in enumerate(content.rows, 1):
        # genai-perf and aiperf differ in the case of titles
        title, _, unit = row[0].casefold().partition("(")
        if title.strip() == "metric":
            head = [name.strip().casefold() for name in row]
            continue
        cells = dict(zip(head, row, strict=False))
        cells.setdefault("avg", cells.get("value", ""))
        name = title.strip().replace(" ", "_")
        if name in METRICS:
            cell_texts = {key: text for key in STATISTICS if (text := cells.get(key))}
            metric = metrics.setdefault(name, {})
            metric["unit"] = unit.rstrip(") ")
            metric |= {key: _parse_cell(text, content, number) for key, text in cell_texts.items()}
    return [("", metrics)]


def _parse_cell(text: str, content: Content, number: int) -> float:
    try:
        return parse_number(text)
    except ValueError as error:
        raise InputError(f"{content.name}, row {number}: {error}.", field="file") from None


def finish_aiperf_csv(_: Fields, draft: Draft) -> None:
    draft.format = "aiperf"


# InferenceX: it counts GPUs in ``tp``; with attention by data parallelism, every GPU is a rank of
# it and the experts are shared by all

# Its names of devices where they are not ours; a suffix names the cluster (``h200-cw``).
DEVICES = {
    "a100": "a100-sxm-80gb",
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
}
PRECISIONS = ("fp8", "bf16", "fp16", "int8", "int4")
# GPUs of its machines but racks.
PER_NODE = 8
RACKS = ("gb200", "gb300")


def finish_inferencex(fields: Fields, draft: Draft) -> None:
    stages = fields.count("pp") or 1
    gpus = (fields.count("tp") or 1) * stages
    for key, figure in (("output_tput_per_gpu", "output"), ("tput_per_gpu", "total")):
        draft.put(f"figures.{figure}_tokens_per_s", fields.number(key, gpus))
    draft.load["mode"] = "closed"
    draft.facts["engine"] = framework = str(draft.facts.get("engine", "")).casefold()
    draft.facts["engine"] = {"trtllm": "tensorrt-llm", **ENGINES}.get(framework, framework)
    name = str(draft.facts.get("device", "")).casefold().partition("-")[0]
    draft.facts["device"] = device = DEVICES.get(name, name)
    if fields.flag("disagg"):
        draft.exclude("prompts have devices of their own, which a table does not state")
        return
    drafts = fields.text("spec_decoding").casefold()
    if fields.flag("spec_decoding") or drafts not in ("", "none", "false"):
        draft.exclude(DRAFTED)
    ep, inside = fields.count("ep") or 1, gpus // stages
    if ep not in (1, inside):
        draft.exclude(f"experts are shared by {ep} of {inside} ranks")
    per_node = min(gpus, 4 if device in RACKS else PER_NODE)
    weights = fields.text("precision").casefold()
    draft.put("split.weight_dtype", weights if weights in PRECISIONS else "")
    ranks = {"tp": inside, "dp": 1, "ep": inside if ep > 1 else 1}
    if fields.flag("dp_attention"):
        ranks = {"tp": 1, "dp": inside, "ep": inside}
    draft.split |= {**ranks, "pp": stages}
    draft.split |= {"per_node": per_node, "nodes": max(gpus // per_node, 1)}
