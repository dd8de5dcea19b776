"""Results of benchmarks that say when each request began: what was sent, as a trace.

``vllm bench serve --save-result --save-detailed``: one object with the lists ``start_times``,
``input_lens`` and ``output_lens``. GuideLLM's report: ``benchmarks`` with ``requests`` of
``successful`` and ``errored``. A benchmark's arrivals are those of its load generator, no users'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.scaling.traces.formats.content import Content, read_json_objects, wrong
from recipe_core.scaling.traces.formats.requests import Gathered, Requests

TITLE = "benchmark"
VLLM = ("start_times", "input_lens", "output_lens")
_LISTS = ("successful", "errored", "incomplete")


def is_benchmark_trace(content: Content) -> bool:
    """Whether it is an object with vLLM's lists or GuideLLM's benchmarks."""
    if not content.first_line.startswith("{"):
        return False
    if all(f'"{name}"'.encode() in content.data for name in VLLM):
        return True
    return b'"benchmarks"' in content.data and b'"successful"' in content.data


def read_benchmark_trace(content: Content, unit: str | None = None) -> Requests:
    """The requests of such a file."""
    gathered = Gathered()
    for line, value in read_json_objects(content):
        lists = [value.get(name) for name in VLLM]
        if all(isinstance(values, list) for values in lists):
            _add_lists(gathered, line, lists, value.get("errors"))
        for request, failed in _guidellm_requests(value):
            _add_guidellm_request(gathered, line, request, failed)
    if not len(gathered.times):
        raise wrong(
            f"{content.title} does not say when each request began.",
            "Save details: vllm bench serve --save-result --save-detailed.",
        )
    return gathered.requests(unit)


def _add_lists(gathered: Gathered, line: int, lists: list[Any], errors: Any) -> None:
    starts, inputs, outputs = lists
    if not len(starts) == len(inputs) == len(outputs):
        raise wrong(f"line {line:,}: the lists have different lengths.", "Write the file again.")
    errors = (
        errors if isinstance(errors, list) and len(errors) == len(starts) else [""] * len(starts)
    )
    for start, prompt, answer, error in zip(starts, inputs, outputs, errors, strict=True):
        gathered.add(line, start, prompt, answer, session=None, failed=bool(error))


def _guidellm_requests(value: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], bool]]:
    runs = value.get("benchmarks")
    for run in runs if isinstance(runs, list) else []:
        requests = run.get("requests") if isinstance(run, Mapping) else None
        if not isinstance(requests, Mapping):
            continue
        for name in _LISTS:
            for request in requests.get(name) or ():
                if isinstance(request, Mapping):
                    yield request, name != "successful"


def _add_guidellm_request(
    gathered: Gathered, line: int, request: Mapping[str, Any], failed: bool
) -> None:
    start = request.get("request_start_time", request.get("start_time"))
    if start is not None:
        gathered.add(
            line,
            start,
            request.get("prompt_tokens"),
            request.get("output_tokens"),
            session=None,
            failed=failed,
        )
