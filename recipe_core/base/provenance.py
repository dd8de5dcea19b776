"""The provenance of numbers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from recipe_core.base.data_files import DataRow

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Status = Literal["datasheet", "measured", "fitted", "published", "assumed"]
Remark = Annotated[str, Field(max_length=1000)]
# Days after which a measurement speaks for nothing: drivers, images and clocks have moved on.
VALID_DAYS = 180


class Source(DataRow):
    """The source of a number: a document with address and date, or the measuring command."""

    title: Annotated[str, Field(min_length=1, max_length=500)]
    url: Annotated[str, Field(pattern=r"^https?://[^\s<>()\"'\\]+$", max_length=1000)] | None = None
    date: Annotated[str, Field(max_length=40)] | None = None
    command: Remark | None = None


class Quantity(DataRow):
    """One number with its provenance; ``source`` is a key of the file's ``sources``."""

    value: Positive
    source: str
    status: Status
    note: Remark | None = None


class Sourced(DataRow):
    """A data file whose numbers cite entries of its own ``sources``."""

    schema_version: Literal[1]
    sources: Annotated[dict[Annotated[str, Field(max_length=64)], Source], Field(max_length=64)]

    @model_validator(mode="after")
    def _sources_exist(self) -> Sourced:
        unlisted = sorted(set(_cited_sources(self)) - set(self.sources))
        if unlisted:
            raise ValueError(f"source {unlisted[0]!r} is not listed under sources")
        return self


def _cited_sources(value: object) -> list[str]:
    """The ``source`` of every number in ``value``, at any depth."""
    if isinstance(value, dict):
        return [source for item in value.values() for source in _cited_sources(item)]
    if isinstance(value, tuple):
        return [source for item in value for source in _cited_sources(item)]
    if not isinstance(value, BaseModel):
        return []
    direct = getattr(value, "source", None)
    sources = [direct] if isinstance(direct, str) else []
    return sources + [source for _, item in value for source in _cited_sources(item)]
