"""Data files of the package (a device, a model, an engine): read, and held to a schema.

Who adds one of these adds such a file. What is wrong with it is an error that names the file, the
field, its value and the fix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import InputError, look_up, unknown
from recipe_core.base.problems import first_problem
from recipe_core.base.resources import PACKAGE

Schema = TypeVar("Schema", bound=BaseModel)
Row = TypeVar("Row")


class DataRow(BaseModel):
    """A part of such a file: nothing changes it, and a field that its class lacks is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A YAML file; ``field`` is what of a request leads to it, ``error`` the kind it raises."""

    path: Path
    field: str
    error: type[InputError] = InputError

    @property
    def name(self) -> str:
        """Its path from the root of the checkout (or of the installation), for a message."""
        root = PACKAGE.parent
        return str(self.path.relative_to(root) if self.path.is_relative_to(root) else self.path)

    def problem(self, where: str, text: str, hint: str) -> InputError:
        """The error that says what is wrong with a field (of the whole file: ""), and the fix."""
        place = ": ".join(filter(None, (self.name, where)))
        return self.error(f"{place}: {text}.", field=self.field, hint=hint)

    def read(self) -> Any:
        """The file as plain values; raises where it is missing or not YAML."""
        try:
            return read_shipped(self.path)
        except FileNotFoundError:
            raise self.problem("", "is missing", "Add it.") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            text = " ".join(str(error).split())
            raise self.problem("", f"is not YAML: {text}", "Correct that line.") from None

    def read_as(self, schema: type[Schema]) -> Schema:
        """The file as its schema; raises where it is missing, not YAML or does not fit."""
        return self.validated(self.read(), schema)

    def validated(self, document: Any, schema: type[Schema]) -> Schema:
        """Return the file's content as its schema; raise for the first field that does not fit."""
        try:
            return schema.model_validate(document)
        except ValidationError as error:
            raise self._first(error, schema) from None

    def _first(self, error: ValidationError, schema: type[BaseModel]) -> InputError:
        problem = first_problem(error)
        hint = {"missing": "Add it."}.get(problem.kind, "Correct it.")
        if problem.kind == "extra_forbidden":
            hint = "Remove or rename it."
            if len(problem.path) == 1:
                hint = unknown("field", problem.field, list(schema.model_fields))[1]
        return self.problem(problem.field, problem.text, hint)


@dataclass(frozen=True)
class DataTable(Generic[Row]):
    """Rows by their names, in one field of a file; ``noun`` says what a row is."""

    file: DataFile
    schema: type[BaseModel]
    rows_field: str
    noun: str

    @cached_property
    def document(self) -> Any:
        """The whole file; raises where it does not fit its schema."""
        return self.file.read_as(self.schema)

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Every row, in the order of the file."""
        return dict(getattr(self.document, self.rows_field))

    def row(self, name: str) -> Row:
        """The row of a name; raises where none has it."""
        return look_up(self.noun, name, self.rows, self.file.field, self.file.error)
