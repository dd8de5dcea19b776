"""Real cases to start from (``examples.yaml``): whole requests with a title and a question."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.data_files import DataFile
from recipe_core.request.schema import PlanRequest

Line = Annotated[str, Field(min_length=3, max_length=120, pattern=r"^[^\n]+$")]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
FILE = Path(__file__).with_name("examples.yaml")


class Example(BaseModel):
    """A case: what runs where (``text``), what one wants to know, and the request that asks it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    title: Annotated[Line, Field(max_length=40)]
    text: Line
    question: Line
    request: dict[str, Any]

    @property
    def asked(self) -> PlanRequest:
        """The request; raises InputError where its fields are wrong."""
        return PlanRequest.parse(self.request)


class ExampleFile(BaseModel):
    """The shape of ``examples.yaml``."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    schema_version: Literal[1]
    status: Literal["assumed"]
    source: str
    examples: dict[Slug, Example]


@cache
def examples() -> dict[str, Example]:
    """The cases this version ships, by name, in the order they are shown.

    Raises:
        InputError: naming file, field and value, where the file does not fit its schema.
    """
    return DataFile(FILE, "example").read_as(ExampleFile).examples
