"""Files of ``hw_profiles/``, read and validated."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import HardwareError

Model = TypeVar("Model", bound=BaseModel)


def read_profile_file(path: Path, schema: type[Model]) -> Model:
    """A file as its schema.

    Raises:
        HardwareError: names the file, the field, its value and the fix.
    """
    return profile_data_file(path).read_as(schema)


def profile_data_file(path: Path) -> DataFile:
    """A file of ``hw_profiles/``, whose problems are HardwareErrors."""
    return DataFile(path, "hardware", HardwareError)


def files_by_name(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
