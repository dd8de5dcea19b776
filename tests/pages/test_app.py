"""The server's own file, loaded in a process of its own: Streamlit allows one app a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from recipe_core.resources import root

LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("recipe_builder_app", sys.argv[1])
module = importlib.util.module_from_spec(spec)
module.__dict__.update(eval(sys.argv[2]))
spec.loader.exec_module(module)
"""


def run(script: str, preset: str = "{}") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(root("app.py").parent), os.environ.get("PYTHONPATH", "")])
    argv = [sys.executable, "-c", LOAD + script, str(root("app.py")), preset]
    return subprocess.run(
        argv, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, cwd=root("app.py").parent, timeout=60
    )


@pytest.mark.parametrize(("preset", "folders"), [("{}", "True"), ("{'HOST': '127.0.0.1'}", "True"), ("{'HOST': '0.0.0.0'}", "False")])
def test_folders_are_read_only_while_nobody_else_reaches_the_server(preset: str, folders: str) -> None:
    assert run("print(module.FOLDERS)", preset).stdout.strip() == folders


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
