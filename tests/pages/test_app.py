"""The server's own file, loaded in a process of its own: Streamlit allows one app a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from recipe_core.api import create_api
from recipe_core.resources import root
from recipe_core.serve import FOLDERS, Later, folders_allowed

LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("recipe_builder_app", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(root("app.py").parent), os.environ.get("PYTHONPATH", "")])
    argv = [sys.executable, "-c", LOAD + script, str(root("app.py"))]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=root("app.py").parent, timeout=60)


@pytest.mark.parametrize(("value", "allowed"), [(None, False), ("0", False), ("1", True)])
def test_folders_are_read_only_where_the_starter_says_so(monkeypatch: pytest.MonkeyPatch, value: str | None, allowed: bool) -> None:
    monkeypatch.delenv(FOLDERS, raising=False)
    if value is not None:
        monkeypatch.setenv(FOLDERS, value)
    assert folders_allowed() is allowed


def test_the_server_starts_without_what_only_its_answers_need() -> None:
    script = "print(sorted({'numpy', 'pandas', 'fastapi', 'recipe_core.api', 'recipe_core.board'} & set(sys.modules)))"
    assert run(script).stdout.strip() == "[]"


def test_the_api_is_made_once_when_it_is_first_asked() -> None:
    made: list[FastAPI] = []

    def make() -> FastAPI:
        made.append(create_api(folders=False))
        return made[-1]

    client = TestClient(Later(make))
    assert not made
    assert [client.get("/models").status_code for _ in range(2)] == [200, 200]
    assert len(made) == 1


def test_an_unexpected_error_is_one_sentence_and_its_id_is_in_the_log() -> None:
    script = """
said = []
module.st.error = lambda text, icon: said.append(text)
try:
    1 / 0
except ZeroDivisionError as error:
    assert module.say_sorry(error) is True
print(said[0])
"""
    answer = run(script)
    number = answer.stdout.split("**")[1]
    assert "ZeroDivisionError" not in answer.stdout
    assert f"error {number} in a page" in answer.stderr
    assert "ZeroDivisionError" in answer.stderr
