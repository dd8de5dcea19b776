"""A recipe, the files of its bundle, those as a folder and as an archive, and a marked process."""

import os
import subprocess
from types import MappingProxyType

import pytest

from recipe_core.bundle.replace import replace_folder
from recipe_core.bundle.write import bundle_files, zip_bundle
from recipe_core.payload.launcher import procs
from recipe_core.payload.launcher.state import Server
from tests.fixtures.recipes import recipe_of


@pytest.fixture(scope="session")
def recipe():
    return recipe_of(candidate={"tp": 8, "pp": 1, "dp": 1})


@pytest.fixture(scope="session")
def files(recipe):
    return MappingProxyType(bundle_files(recipe))


@pytest.fixture
def folder(files, tmp_path):
    replace_folder(tmp_path / "b", files)
    return tmp_path / "b"


@pytest.fixture
def archive(files, tmp_path):
    path = tmp_path / "b.zip"
    path.write_bytes(zip_bundle(files))
    return path


@pytest.fixture
def marked():
    """A process with a launcher's mark in its environment, as a server, and the mark."""
    mark = f"mark-of-{os.getpid()}"
    environment = {**os.environ, procs.MARK: mark}
    with subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True) as process:
        started = procs.read_stat(process.pid).started
        yield process, Server("server-0", process.pid, started, 8000, "log"), mark
        process.kill()
