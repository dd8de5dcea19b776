"""Results of ``vllm bench serve`` and ``sglang.bench_serving`` as they print them.

Lines as in vLLM 0.6 to 0.32 (``benchmarks/benchmark_serving.py``, ``vllm/benchmarks/serve.py``) and
SGLang 0.4 and 0.5. How requests were sent stands in the block, or before it in older releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.calibration.importers.bench_clients import (
    DRAFTED,
    client_figures,
    client_load,
    completed_requests,
    failed_requests_reason,
    mean_lengths,
)
from recipe_core.calibration.importers.content import LONGEST_LINE, Content, one_line, parse_number
from recipe_core.calibration.importers.formats import Format
from recipe_core.calibration.importers.imported import Imported
from recipe_core.calibration.importers.sglang_bench import engine_of_backend

NAME = "bench-text"
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
        format=NAME,
        place=place,
        engine=engine_of_backend(fields),
        model=one_line(str(values.get("model") or "")),
        figures=figures,
        load=load,
        settings={"requests": requests},
        notes=notes,
        excluded=failed_requests_reason(fields, requests) or excluded,
    )


FORMAT = Format(NAME, "printed result of vllm bench serve", _is_bench_text, _read_bench_text)
