"""A recipe, the files of its bundle, and those as a folder and as an archive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from recipe_core.bundle.replace import replace_folder
from recipe_core.bundle.write import bundle_files, zipped
from recipe_core.recipe import Recipe
from tests.fixtures.recipes import recipe_of


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return recipe_of(candidate={"tp": 8, "pp": 1, "dp": 1})


@pytest.fixture(scope="session")
def files(recipe: Recipe) -> Mapping[str, bytes]:
    return MappingProxyType(bundle_files(recipe))


@pytest.fixture
def folder(files: Mapping[str, bytes], tmp_path: Path) -> Path:
    replace_folder(tmp_path / "b", files)
    return tmp_path / "b"


@pytest.fixture
def archive(files: Mapping[str, bytes], tmp_path: Path) -> Path:
    path = tmp_path / "b.zip"
    path.write_bytes(zipped(files))
    return path
