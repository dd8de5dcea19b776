"""The server's own file, loaded in a process of its own: Streamlit allows one app a process."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from streamlit.runtime.scriptrunner.exec_code import modified_sys_path

from recipe_core.base.resources import shipped_path
from recipe_core.doors.serve import Later, folders_allowed
from recipe_core.doors.settings import variable
from tests.fixtures.opening import opened
from tests.fixtures.patience import PATIENCE

LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("recipe_builder_app", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    folder = shipped_path("app.py").parent
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    argv = [sys.executable, "-c", LOAD + script, str(shipped_path("app.py"))]
    place: Any = {"env": os.environ | {"PYTHONPATH": path}, "cwd": folder}
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, **place)


def test_folders_are_read_only_where_the_starter_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable("folders"), raising=False)
    assert folders_allowed() is False
    for value, allowed in (("0", False), ("1", True)):
        monkeypatch.setenv(variable("folders"), value)
        assert folders_allowed() is allowed


def test_the_server_starts_without_what_only_its_answers_need() -> None:
    """And an unexpected error is one sentence on the page, whose id is in the log."""
    later = {"numpy", "pandas", "fastapi", "mcp"}
    later |= {"recipe_core.doors.api", "recipe_core.plans.plans"}
    answer = run(f"""
print(sorted({later!r} & set(sys.modules)))
module.st.error = lambda text, icon: print(text)
try:
    1 / 0
except ZeroDivisionError as error:
    assert module.say_sorry(error) is True
""")
    modules, _, said = answer.stdout.partition("\n")
    assert modules == "[]", answer.stderr
    number = said.split("**")[1]
    assert "ZeroDivisionError" not in said
    assert f"error {number} in a page" in answer.stderr
    assert "ZeroDivisionError" in answer.stderr


def test_what_is_loaded_before_pages_is_all_that_they_need() -> None:
    """Pages run in threads: what two of them imported at once could come out half-made.

    The first page is drawn while other modules are not there yet. Until it was sent, or nobody came
    for it, these and the workers wait.
    """
    imports = {
        ast.unparse(node)
        for path in shipped_path("pages").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom) and "recipe_core" in ast.unparse(node)
    }
    assert len(imports) > 50
    late = {"pandas", "recipe_core.views.charts", "recipe_core.recipe"}
    answer = run(f"""
from recipe_core.doors import serve
from streamlit.testing.v1 import AppTest
def new(before):
    return sorted(name for name in set(sys.modules) - before if name.startswith("recipe_core"))
def not_yet():
    return "recipe_core.views.report" not in sys.modules
begun = []
def sent_within(seconds):
    before = set(sys.modules)
    entry = {str(shipped_path("pages") / "_entry.py")!r}
    app = AppTest.from_file(entry, default_timeout={PATIENCE}).run()
    print([error.message for error in app.exception], app.title[0].value)
    print(new(before), {late!r} & set(sys.modules), not_yet(), begun)
    return True
def sleep(seconds):
    print(seconds, not_yet(), begun)
serve.get_ready(lambda: begun.append(1), sent_within=sent_within, sleep=sleep)
print(not_yet(), begun)
before = set(sys.modules)
exec({chr(10).join(sorted(imports))!r})
print(new(before))
""")
    assert answer.stdout.splitlines() == [
        "[] Recipe Builder",
        "[] set() True []",
        "1.0 True []",
        "False [1]",
        "[]",
    ], answer.stderr


@pytest.mark.nightly
def test_one_thread_imports_at_a_time() -> None:
    names = ["recipe_core.doors.api", "recipe_core.doors.mcp", "recipe_core.plans.plans"]
    answer = run(f"""
import threading
from recipe_core.doors import serve
def imported():
    return sorted(set({names}) & set(sys.modules))
class Seen:
    def __init__(self, lock): self.lock, self.come = lock, threading.Semaphore(0)
    def __enter__(self): self.come.release(); self.lock.acquire()
    def __exit__(self, *error): self.lock.release()
seen = serve.importing = module.importing = Seen(serve.importing)
targets = (serve.load_pages, module.make_api, module.make_mcp)
threads = [threading.Thread(target=target) for target in targets]
with seen.lock:
    [thread.start() for thread in threads]
    [seen.come.acquire() for thread in threads]
    print(imported())
[thread.join() for thread in threads]
print(imported())
""")
    assert answer.stdout.splitlines() == ["[]", str(names)], answer.stderr


def test_an_app_is_made_once_when_it_is_first_asked_and_lives_until_it_is_closed() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        said.append("begun")
        yield
        said.append("ended")

    def make() -> Starlette:
        said.append("made")
        return Starlette(routes=[Route("/", lambda _: PlainTextResponse("here"))], lifespan=life)

    later = Later(make)

    @asynccontextmanager
    async def outer(_: Starlette) -> AsyncIterator[None]:
        yield
        await later.close()

    with TestClient(Starlette(routes=[Mount("/it", app=later)], lifespan=outer)) as client:
        assert said == []
        assert [client.get("/it/").text for _ in range(2)] == ["here", "here"]
        assert said == ["made", "begun"]
    assert said == ["made", "begun", "ended"]


def test_pages_find_their_modules_after_another_run_has_ended() -> None:
    """Streamlit takes the folder of its script out of the path with each run that ends."""
    folder = shipped_path("pages")
    opened()
    with modified_sys_path(str(folder / "_entry.py")):
        pass
    assert [path for path in sys.path if path != str(folder) and Path(path) == folder]
