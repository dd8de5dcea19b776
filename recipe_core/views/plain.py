"""Text for pages: field names, which commands and documents write, as words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel

from recipe_core.base.documented import description_of, models_in
from recipe_core.estimates.serving.results import MEMORY
from recipe_core.request.link import FIELDS
from recipe_core.request.metrics import metrics
from recipe_core.request.size import SizeRequest

# What a description says of a place in the package, for who reads its source.
_PLACE = re.compile(r" \(`[\w./]+/`\)")
_DOCS = re.compile(r" \(docs/[\w/.-]+\.md(?:, [^)]*)?\)")
_CODE = re.compile(r"`([^`]*)`")


def plain_words(text: str) -> str:
    """Return a text with names of fields as words, without the pages of docs that it names.

    ``objective.limits.tpot_ms`` is ``tpot ms``.
    """
    if "_" not in text and "." not in text:
        return text
    return _field_names().sub(lambda match: _words_of(match.group()), _DOCS.sub("", text))


def plain_help(text: str) -> str:
    """Return a field's description for a page: values and fields as words, without code."""
    return _CODE.sub(lambda match: _words_of(match.group(1)), _PLACE.sub("", text))


def describe_plainly(model: type[BaseModel], field: str) -> str:
    """Return a field's description for a page.

    Raises:
        LookupError: for a name that the model has not.
    """
    return plain_help(description_of(model, field))


def _words_of(name: str) -> str:
    """The last part of a dotted name, with spaces: ``tokens``, ``input spread``."""
    last = name.rpartition(".")[2] if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name) else name
    return last.replace("_", " ")


@cache
def _field_names() -> re.Pattern[str]:
    """Match names of fields: dotted ones, and those of several words."""
    names = {*_iter_names()}
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w/-])")


def _iter_names() -> Iterator[str]:
    yield from (name for name in FIELDS if "." in name)
    visited: set[type[BaseModel]] = set()
    pending: list[type[BaseModel]] = [SizeRequest]
    while pending:
        model = pending.pop()
        if model in visited:
            continue
        visited.add(model)
        yield from (name for name in model.model_fields if "_" in name)
        for field in model.model_fields.values():
            pending += models_in(field.annotation)
    yield from (name for name in MEMORY if "_" in name)
    yield from (metric.column for metric in metrics() if "_" in metric.column)
    yield "total_bytes"
