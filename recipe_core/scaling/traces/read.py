"""A trace from the bytes of a file, whatever its format."""

from __future__ import annotations

from recipe_core.base.errors import unknown
from recipe_core.scaling.traces.formats import rate_table
from recipe_core.scaling.traces.formats.columns import UNITS
from recipe_core.scaling.traces.formats.content import Content, unpacked, wrong
from recipe_core.scaling.traces.formats.registry import format_of
from recipe_core.scaling.traces.formats.requests import trace_of
from recipe_core.scaling.traces.formats.table import is_table
from recipe_core.scaling.traces.rates import Rates
from recipe_core.scaling.traces.trace import Trace


def read_trace(data: bytes, name: str = "", *, unit: str | None = None) -> Trace:
    """The requests in a file (gzip or not), in one of the formats of docs/guide/scale.md.

    name: of the file, for messages and ``source``. unit: of times that are numbers and do not say
    their unit (``s``, ``ms``, ``us``, ``ns``).

    Raises:
        InputError: for an unknown format, a file over the limits, or the first line that is wrong.
    """
    content = _content(data, name)
    if rate_table.is_one(content) and not _has_requests(content):
        raise wrong(
            f"{content.title} has rates and no single requests.",
            "Use it for rates: recipe trace FILE, or workload.over_time.rates.",
        )
    return _trace(content, _known_unit(unit))


def read_load(
    data: bytes, name: str = "", *, unit: str | None = None, model: str | None = None
) -> Trace | Rates:
    """The requests in a file, or its rates where it has no single requests.

    model: whose rates, of a table with several.

    Raises:
        InputError: as ``read_trace``.
    """
    content = _content(data, name)
    if rate_table.is_one(content) and not _has_requests(content):
        return rate_table.read(content, model, _known_unit(unit))
    return _trace(content, _known_unit(unit))


def _content(data: bytes, name: str) -> Content:
    return Content(unpacked(data), name)


def _trace(content: Content, unit: str | None) -> Trace:
    known = format_of(content)
    return trace_of(known.read(content, unit), known.TITLE, content)


def _has_requests(content: Content) -> bool:
    return is_table(content.head)


def _known_unit(unit: str | None) -> str | None:
    if unit is not None and unit not in UNITS:
        message, hint = unknown("unit", unit, list(UNITS))
        raise wrong(message, hint)
    return unit
