"""Every field of a request in ``docs/reference/request.md``, from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.request.schema import json_schema
from scripts.documents import REFERENCE, exchange

PAGE = REFERENCE / "request.md"
LARGE = 1 << 20
"""Bounds from here on only keep numbers sane, and say nothing to a reader."""
HEAD = ["| field | type | default | meaning |", "|---|---|---|---|"]
Schema = Mapping[str, Any]


def choices(field: Schema) -> list[Schema]:
    """Return what a field can be; that it can be left out goes without saying."""
    options = field.get("anyOf") or field.get("oneOf") or [field]
    return [option for option in options if option.get("type") != "null"]


def models(field: Schema) -> Iterator[tuple[str, str]]:
    """Names of the definitions that a field holds, with what its path gets where it is a list."""
    for option in choices(field):
        if "$ref" in option:
            yield option["$ref"].rpartition("/")[2], ""
        elif "$ref" in option.get("items", {}):
            yield option["items"]["$ref"].rpartition("/")[2], "[]"


def bounds(option: Schema) -> str:
    """The range of a number, as far as it says something."""
    minimum, above = option.get("minimum"), option.get("exclusiveMinimum")
    maximum, below = option.get("maximum", LARGE), option.get("exclusiveMaximum")
    parts = [
        f"from {minimum:,}" if minimum is not None else "",
        f"above {above:,}" if above is not None else "",
        f"to {maximum:,}" if maximum < LARGE else "",
        f"to below {below:,}" if below is not None else "",
    ]
    return "".join(f" {part}" for part in parts if part)


def kind(option: Schema) -> str:
    """One type, as a reader knows it."""
    if "$ref" in option:
        return "object"
    if "const" in option or "enum" in option:
        return ", ".join(f"`{value}`" for value in option.get("enum", [option.get("const")]))
    if option["type"] == "array":
        return f"list of {kind(option['items'])}"
    names = {"string": "text", "boolean": "true or false", "object": "mapping"}
    return names.get(option["type"], option["type"]) + bounds(option)


def default(name: str, field: Schema, model: Schema) -> str:
    """Say what stands for a field that is left out; empty where its meaning says that."""
    if name in model.get("required", ()):
        return "required"
    value = field.get("default")
    if value is None or value in ({}, []) or "$ref" in field:
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def rows(path: str, model: Schema) -> list[str]:
    """The table of a model's fields."""
    lines = list(HEAD)
    for name, field in model["properties"].items():
        types = " or ".join(dict.fromkeys(kind(option) for option in choices(field)))
        meaning = field["description"].replace("|", "\\|")
        dotted = f"{path}.{name}" if path else name
        lines.append(f"| `{dotted}` | {types} | {default(name, field, model)} | {meaning} |")
    return lines


def places(schema: Schema) -> dict[str, list[str]]:
    """The definitions, with every path that leads to each, in the order of reading."""
    paths: dict[str, list[str]] = {}

    def visit(model: Schema, path: str) -> None:
        for name, field in model["properties"].items():
            for target, suffix in models(field):
                dotted = f"{path}.{name}".lstrip(".") + suffix
                paths.setdefault(target, []).append(dotted)
                visit(schema["$defs"][target], dotted)

    visit(schema, "")
    return paths


def request_tables() -> str:
    """All tables: the request's, then each part's under the first path that leads to it."""
    schema = json_schema()
    lines = rows("", schema)
    for name, (first, *aliases) in places(schema).items():
        model = schema["$defs"][name]
        work = model["properties"].get("kind", {}).get("const")
        lines += ["", f"### `{first}`" + (f" ({work})" if work else ""), "", model["description"]]
        if aliases:
            lines += ["", f"The same fields stand in {', '.join(f'`{path}`' for path in aliases)}."]
        lines += ["", *rows(first, model)]
    return "\n".join(lines)


def renewed(text: str) -> str:
    """The page with its tables written anew."""
    return exchange(text, "fields", request_tables())
