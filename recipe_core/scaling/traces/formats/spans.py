"""OpenTelemetry spans of calls to language models, by the ``gen_ai`` semantic conventions.

Three forms: OTLP in JSON (``resourceSpans``, what the collector's file exporter writes, one
document a line), single spans in lines with ``attributes`` as an object or a list, and lines with
the attributes at their top. Log records (``resourceLogs``) are read in the same way. A span counts
when it has ``gen_ai.usage.input_tokens`` (or the older ``prompt_tokens``, which vLLM's spans have);
spans of agents and tools, which repeat the tokens of the calls within, do not.
Source: opentelemetry.io/docs/specs/semconv/gen-ai.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.scaling.traces.formats.content import Content, read_json_objects, wrong
from recipe_core.scaling.traces.formats.requests import Gathered, Requests

TITLE = "OpenTelemetry spans"
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
    """Whether it is OTLP, or its first line names an attribute of ``gen_ai``."""
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
