"""Files of ``hw_profiles/``, read and validated."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import HardwareError

Model = TypeVar("Model", bound=BaseModel)


def read(path: Path, schema: type[Model]) -> Model:
    """A file as its schema.

    Raises:
        HardwareError: names the file and the field that is wrong.
    """
    try:
        return schema.model_validate(read_shipped(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(step) for step in first["loc"])
        raise HardwareError(
            f"{path.name}: {field}: {first['msg']}.", field="hardware", hint="Correct the profile."
        ) from None


def named(folder: Path) -> dict[str, Path]:
    """The YAML files of a folder by name, sorted."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
