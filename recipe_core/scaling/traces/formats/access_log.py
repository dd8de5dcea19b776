"""Access logs of gateways as JSON lines: LiteLLM, Envoy AI Gateway, Kong, Cloudflare and the like.

Each line is an object in which somewhere stand a time, the tokens of the prompt and those of the
answer: LiteLLM's ``startTime``, ``prompt_tokens``, ``completion_tokens`` (its standard payload or
spend logs), an OpenAI ``usage`` object, ``tokens_in`` and ``tokens_out`` (Cloudflare), or what an
operator of Envoy named them. Names are looked up at every depth to the fifth, outer ones first;
where they stand in the first line that has all of them they are expected in all others. Lines
without tokens of a prompt count as failed requests if they have a time, and are skipped otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.scaling.traces.formats.content import Content, read_json_objects, wrong
from recipe_core.scaling.traces.formats.requests import Gathered, Requests
from recipe_core.scaling.traces.formats.table import (
    INPUTS,
    OUTPUTS,
    SESSIONS,
    STATUSES,
    is_failure,
    normalise_column_name,
    time_column,
)

TITLE = "access log"
_DEEPEST = 5
_LOOKED_AT = 200
Path = tuple[str, ...]


def is_access_log(content: Content) -> bool:
    """Whether one of the first lines is an object with a time and the tokens of a prompt."""
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
    """Where an object holds what is needed; None where it lacks a time or a prompt's tokens."""
    leaves: dict[Path, Any] = dict(sorted(_iter_leaves(value, ()), key=lambda leaf: len(leaf[0])))
    stamps = _paths_by_name(leaves)
    column = time_column(stamps)
    prompt = _find_named_path(stamps, INPUTS)
    if column is None or prompt is None:
        return None
    places = {"time": stamps[column[0]], "input": prompt}
    for key, names in (("output", OUTPUTS), ("session", SESSIONS), ("status", STATUSES)):
        place = _find_named_path(stamps, names)
        if place is not None:
            places[key] = place
    return places


def _paths_by_name(leaves: Mapping[Path, Any]) -> dict[str, Path]:
    """Places by the last part of their path, the outermost first; dots divide parts too."""
    names: dict[str, Path] = {}
    for path in leaves:
        names.setdefault(path[-1].rpartition(".")[2], path)
    return names


def _find_named_path(paths: Mapping[str, Path], names: tuple[str, ...]) -> Path | None:
    by_plain: dict[str, Path] = {}
    for name, path in paths.items():
        by_plain.setdefault(normalise_column_name(name), path)
    return next((by_plain[name] for name in names if name in by_plain), None)


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
