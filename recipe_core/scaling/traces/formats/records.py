"""Requests that stand in records of their own: spans, results of benchmarks, logs of gateways.

Spans of OpenTelemetry of calls to language models, by the ``gen_ai`` semantic conventions, in three
forms: OTLP in JSON (``resourceSpans``, what the collector's file exporter writes, one document a
line), single spans in lines with ``attributes`` as an object or a list, and lines with the
attributes at their top. Log records (``resourceLogs``) are read in the same way. A span counts when
it has ``gen_ai.usage.input_tokens`` (or the older ``prompt_tokens``, which vLLM's spans have);
spans of agents and tools, which repeat the tokens of the calls within, do not. Source:
opentelemetry.io/docs/specs/semconv/gen-ai.

Benchmarks that say when each request began: ``vllm bench serve --save-result --save-detailed``, one
object with the lists ``start_times``, ``input_lens`` and ``output_lens``; GuideLLM's report,
``benchmarks`` with ``requests`` of ``successful`` and ``errored``. Their arrivals are those of a
load generator, no users'.

Access logs as JSON lines (LiteLLM, Envoy AI Gateway, Kong, Cloudflare and the like): an object in
which somewhere stand a time, the tokens of the prompt and those of the answer. Names are looked up
at every depth to the fifth, outer ones first; where they stand in the first line that has all of
them they are expected in all others. Lines without tokens of a prompt count as failed requests if
they have a time, and are skipped otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.scaling.traces.formats.content import Content, read_json_objects, wrong
from recipe_core.scaling.traces.formats.requests import Gathered, Requests
from recipe_core.scaling.traces.formats.table import column_of, is_failure, time_column

SPANS_TITLE = "OpenTelemetry spans"
INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
)
SESSION = ("gen_ai.conversation.id", "session.id")
OPERATION = "gen_ai.operation.name"
# Operations whose spans hold those of the calls.
AROUND = ("invoke_agent", "create_agent", "execute_tool", "invoke_workflow")
START = (
    "startTimeUnixNano",
    "start_time_unix_nano",
    "timeUnixNano",
    "observedTimeUnixNano",
    "startTime",
    "start_time",
    "timestamp",
    "Timestamp",
    "time",
)
_RESOURCES = {"resourceSpans": ("scopeSpans", "spans"), "resourceLogs": ("scopeLogs", "logRecords")}
_ATTRIBUTES = ("attributes", "Attributes", "SpanAttributes", "span_attributes", "tags")
_ERROR = ("2", "status_code_error", "error")


def has_genai_spans(content: Content) -> bool:
    """Return whether it is OTLP, or its first line names an attribute of ``gen_ai``."""
    if not content.is_json:
        return False
    head = content.data[: 1 << 20]
    return any(f'"{name}"'.encode() in head for name in (*_RESOURCES, *INPUT))


def read_genai_spans(content: Content, unit: str | None = None) -> Requests:
    """The requests of such a file."""
    gathered = Gathered()
    for line, value in read_json_objects(content):
        for span in _iter_spans(value):
            _add_span(gathered, line, span)
    if not len(gathered.times):
        raise wrong(
            f"no span of {content.title} has {INPUT[0]}.",
            "Export the spans of calls to the model, with their usage.",
        )
    return gathered.requests(unit)


def _iter_spans(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    is_export = False
    for outer, (scopes, spans) in _RESOURCES.items():
        if outer in value:
            is_export = True
            for resource in _mappings_in(value[outer]):
                for scope in _mappings_in(resource.get(scopes)):
                    yield from _mappings_in(scope.get(spans))
    if not is_export:
        yield value


def _mappings_in(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _add_span(gathered: Gathered, line: int, span: Mapping[str, Any]) -> None:
    attributes = _span_attributes(span)
    inputs = _first_present(attributes, INPUT)
    if inputs is None or attributes.get(OPERATION) in AROUND:
        return
    start = _first_present(span, START)
    if start is None:
        raise wrong(f"line {line:,}: the span has no start time.", f"Export {START[0]}.")
    gathered.add(
        line,
        start,
        inputs,
        _first_present(attributes, OUTPUT),
        session=_first_present(attributes, SESSION),
        failed=_is_failed_span(span, attributes),
    )


def _span_attributes(span: Mapping[str, Any]) -> Mapping[str, Any]:
    """Attributes by name: those of the span, and what stands beside them."""
    attributes = _first_present(span, _ATTRIBUTES)
    if isinstance(attributes, Mapping):
        return attributes
    if isinstance(attributes, list):
        return {
            str(item.get("key")): _attribute_value(item.get("value"))
            for item in attributes
            if isinstance(item, Mapping)
        }
    return span


def _attribute_value(value: Any) -> Any:
    """The value in ``{"intValue": "12"}``."""
    if isinstance(value, Mapping):
        return next(iter(value.values()), None)
    return value


def _first_present(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _is_failed_span(span: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
    if attributes.get("error.type"):
        return True
    status = span.get("status", span.get("StatusCode"))
    if isinstance(status, Mapping):
        status = status.get("code", status.get("status_code"))
    return str(status).lower() in _ERROR


BENCH_TITLE = "benchmark"
VLLM = ("start_times", "input_lens", "output_lens")
_LISTS = ("successful", "errored", "incomplete")


def is_benchmark_trace(content: Content) -> bool:
    """Return whether it is an object with vLLM's lists or GuideLLM's benchmarks."""
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


LOG_TITLE = "access log"
_DEEPEST = 5
_LOOKED_AT = 200
Path = tuple[str, ...]


def is_access_log(content: Content) -> bool:
    """Return whether one of the first lines is an object with a time and the tokens of a prompt."""
    if not content.is_json:
        return False
    head = Content(content.data[: 1 << 20], content.name) if content.first_line != "{" else content
    try:
        return any(
            _find_field_paths(value) for _, value in islice(read_json_objects(head), _LOOKED_AT)
        )
    except InputError:  # the last line of the head is cut
        return False


def read_access_log(content: Content, unit: str | None = None) -> Requests:
    """The requests of such a file."""
    gathered = Gathered()
    places: Mapping[str, Path] | None = None
    early: list[tuple[int, dict[str, Any]]] = []
    for line, value in read_json_objects(content):
        if places is None:
            places = _find_field_paths(value)
            if places is None:
                early.append((line, value))
                continue
        _add_log_request(gathered, line, value, places)
    if places is None:
        raise wrong(
            f"no line of {content.title} has a time and the tokens of a prompt.",
            "Log them, for example as timestamp, input_tokens and output_tokens.",
        )
    for line, value in early:
        _add_log_request(gathered, line, value, places)
    return gathered.requests(unit or _time_unit_of(places["time"]))


def _add_log_request(
    gathered: Gathered, line: int, value: dict[str, Any], places: Mapping[str, Path]
) -> None:
    time = _value_at_path(value, places["time"])
    if time is None:
        return
    status = _value_at_path(value, places.get("status", ()))
    gathered.add(
        line,
        time,
        _value_at_path(value, places["input"]),
        _value_at_path(value, places.get("output", ())),
        session=_value_at_path(value, places.get("session", ())),
        failed=status is not None and is_failure(str(status).lower()),
    )


def _find_field_paths(value: Mapping[str, Any]) -> dict[str, Path] | None:
    """Return the paths to an object's fields; None where it lacks a time or prompt tokens."""
    leaves: dict[Path, Any] = dict(sorted(_iter_leaves(value, ()), key=lambda leaf: len(leaf[0])))
    stamps = _paths_by_name(leaves)
    column = time_column(stamps)
    roles = {"input": "inputs", "output": "outputs", "session": "sessions", "status": "statuses"}
    names = {role: column_of(stamps, meaning) for role, meaning in roles.items()}
    if column is None or names["input"] is None:
        return None
    places = {role: stamps[name] for role, name in names.items() if name is not None}
    return {"time": stamps[column[0]], **places}


def _paths_by_name(leaves: Mapping[Path, Any]) -> dict[str, Path]:
    """Places by the last part of their path, the outermost first; dots divide parts too."""
    names: dict[str, Path] = {}
    for path in leaves:
        names.setdefault(path[-1].rpartition(".")[2], path)
    return names


def _iter_leaves(value: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            if len(path) < _DEEPEST - 1:
                yield from _iter_leaves(item, (*path, name))
        elif item is not None and not isinstance(item, list):
            yield (*path, name), item


def _value_at_path(value: Any, path: Path) -> Any:
    if not path:
        return None
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _time_unit_of(path: Path) -> str | None:
    column = time_column([path[-1].rpartition(".")[2]])
    return column[1] if column else None
